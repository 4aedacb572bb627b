"""Algorithms that come with sf beside PPO, each in a file of its own."""
