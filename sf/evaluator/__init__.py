"""Evaluation: episodes that nobody trains on, after training or beside it."""
