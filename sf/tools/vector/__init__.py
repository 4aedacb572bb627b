"""Many copies of an environment in fast worker processes, for training loops of other libraries."""
