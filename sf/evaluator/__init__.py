"""Evaluation: episodes that no learner trains on, after training or beside it."""
