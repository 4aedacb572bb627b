"""Replay that knows how old its data is: a bounded buffer, drawn by freshness. Torch only, no processes."""

from sf.replay.buffer import ReplayBuffer
from sf.replay.sampler import NothingToDraw, StalenessAwareSampler
from sf.replay.storage import ListStorage, TensorStorage
from sf.replay.version import PolicyVersion

__all__ = ["ListStorage", "NothingToDraw", "PolicyVersion", "ReplayBuffer", "StalenessAwareSampler", "TensorStorage"]
