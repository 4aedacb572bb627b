"""Algorithms that come with sf beside PPO, each a subclass of `sf.OffPolicy` in a file of its own."""
