"""Inference workers: one forward pass for every group that waits."""
