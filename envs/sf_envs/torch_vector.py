"""Vector environments of Gymnasium that take and return torch tensors, as those of ManiSkill and Isaac Lab do.

import sf
from mani_skill.vector.wrappers.gymnasium import ManiSkillVectorEnv
from sf_envs.torch_vector import FromTorchVector

sf.register_env("PushCube", make_tensors=lambda num_envs: FromTorchVector(ManiSkillVectorEnv("PushCube-v1", num_envs)))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from sf.errors import EnvError

MEMBERS = ("num_envs", "single_observation_space", "single_action_space", "reset", "step")


class FromTorchVector:
    """A `sf.envs.tensors.TensorEnv` from a vector environment that resets in the same step.

    Observations before a reset are taken from `infos["final_observation"]` or `infos["final_obs"]`, where they are. The
    number `success` of an episode is a metric.
    """

    def __init__(self, env: Any) -> None:
        """Takes a vector environment.

        Raises:
            EnvError: it lacks a member.
        """
        if missing := [name for name in MEMBERS if not hasattr(env, name)]:
            raise EnvError(
                f"{type(env).__name__} has no {', '.join(missing)}, expected {', '.join(MEMBERS)} of a vector "
                "environment of Gymnasium."
            )
        mode = getattr(env, "metadata", {}).get("autoreset_mode", AutoresetMode.SAME_STEP)
        if AutoresetMode(mode) is not AutoresetMode.SAME_STEP:
            raise EnvError(
                f"{type(env).__name__} has autoreset_mode={mode}, expected {AutoresetMode.SAME_STEP}, in which an "
                "episode begins in the step that ends the last one. gymnasium.make_vec takes it as "
                "vector_kwargs={'autoreset_mode': AutoresetMode.SAME_STEP}."
            )
        self._env, self.num_envs = env, int(env.num_envs)
        self.observation_space, self.action_space = env.single_observation_space, env.single_action_space

    def reset(self, seed: int | None) -> Any:
        """Begins every episode."""
        return self._env.reset(seed=seed)[0]

    def step(self, actions: Tensor) -> tuple[Any, Tensor, Tensor, Tensor, Mapping[str, Any]]:
        """One step of all copies."""
        seen, rewards, terminated, truncated, infos = self._env.step(actions)
        extras: dict[str, Any] = {}
        for name in ("final_observation", "final_obs"):
            if isinstance(infos.get(name), (Tensor, Mapping)):
                extras["final_observations"] = infos[name]
        success = infos.get("final_info", infos).get("success")
        if isinstance(success, Tensor) and success.shape == rewards.shape:
            extras["metrics"] = {"success": success.to(torch.float32)}
        return seen, rewards, terminated.to(torch.bool), truncated.to(torch.bool), extras

    def close(self) -> None:
        """Closes the vector environment."""
        self._env.close()
