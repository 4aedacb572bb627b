"""Asynchronous PPO on one machine, with exact policy lag.

The names below are imported when they are first used, so that `import sf` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sf.api.evaluating import evaluate
    from sf.api.training import TrainResult, train
    from sf.envs import register_env
    from sf.envs.masks import MaskFromInfo
    from sf.learner.algorithm import Algorithm, Losses
    from sf.learner.ppo import PPO
    from sf.plugins import register_model
    from sf.policy import load_policy
    from sf.tools.vector.env import vector_env

__version__ = "0.2.0"
__all__ = [
    "PPO",
    "Algorithm",
    "Losses",
    "MaskFromInfo",
    "TrainResult",
    "__version__",
    "evaluate",
    "load_policy",
    "register_env",
    "register_model",
    "train",
    "vector_env",
]  # fmt: skip

_HOMES = {
    "Algorithm": "sf.learner.algorithm",
    "Losses": "sf.learner.algorithm",
    "MaskFromInfo": "sf.envs.masks",
    "PPO": "sf.learner.ppo",
    "TrainResult": "sf.api.training",
    "evaluate": "sf.api.evaluating",
    "load_policy": "sf.policy",
    "register_env": "sf.envs",
    "register_model": "sf.plugins",
    "train": "sf.api.training",
    "vector_env": "sf.tools.vector.env",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sf' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The public names, and the dunder names of a module; nothing that is only imported here."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
