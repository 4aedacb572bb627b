"""Runs whose simulator, trajectories and training share a device: `--vectorization=tensors`."""
