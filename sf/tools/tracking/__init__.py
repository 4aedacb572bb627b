"""The curves of a run for experiment trackers. A process of its own reads metrics.jsonl and sends what is new."""
