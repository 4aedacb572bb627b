"""Algorithms that come with sf beside PPO, each a subclass of `OffPolicy` in a file of its own."""
