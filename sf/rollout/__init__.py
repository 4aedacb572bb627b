"""Rollout workers: processes that step environments and write what happens into shared slots."""
