"""Scenarios of VMAS, ``vmas/balance``, with one policy that sees and moves all agents of a copy.

Bettini et al. (2022), "VMAS: A Vectorized Multi-Agent Simulator for Collective Robot Learning", which calls this CPPO.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
import vmas
from gymnasium import spaces
from torch import Tensor

from sf_envs.members import unknown_member


class Joint:
    """A `sf.envs.tensors.TensorEnv`: observations and actions of all agents side by side, and their mean reward."""

    def __init__(self, name: str, num_envs: int, max_episode_steps: int, **settings: Any) -> None:
        """Makes the copies.

        Args:
            name: of the scenario.
            num_envs: copies.
            max_episode_steps: longest episode.
            settings: arguments of the scenario, such as `n_agents`, and `device`.

        Raises:
            EnvError: there is no such scenario.
        """
        known = [*vmas.scenarios, *vmas.mpe_scenarios, *vmas.debug_scenarios]
        if name not in known:
            raise unknown_member("vmas", "scenario of VMAS", name, known)
        self.num_envs, self._longest = num_envs, max_episode_steps
        self._env = vmas.make_env(name, num_envs=num_envs, continuous_actions=True, dict_spaces=False, **settings)
        boxes, actions = self._env.observation_space.spaces, self._env.action_space.spaces
        self._sizes = [box.shape[0] for box in actions]
        width = sum(box.shape[0] for box in boxes)
        self.observation_space: gymnasium.Space[Any] = spaces.Box(-np.inf, np.inf, (width,), np.float32)
        low, high = (np.concatenate([getattr(box, end) for box in actions]) for end in ("low", "high"))
        self.action_space: gymnasium.Space[Any] = spaces.Box(low, high, dtype=np.float32)
        self._steps = torch.zeros(num_envs, dtype=torch.int64, device=self._env.device)

    def reset(self, seed: int | None) -> Tensor:
        """Begins every episode, [num_envs, sum of the agents' observations]."""
        self._steps.zero_()
        return torch.cat(self._env.reset(seed=seed), 1)

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Mapping[str, Any]]:
        """One step of all agents of all copies."""
        seen, rewards, done, _ = self._env.step(list(torch.split(actions, self._sizes, 1)))
        final = torch.cat(seen, 1)
        self._steps += 1
        truncated = (self._steps >= self._longest) & ~done
        over = done | truncated
        extras = {"final_observations": final}
        first = final
        if over.any():
            self._steps[over] = 0
            if over.all():
                first = torch.cat(self._env.reset(), 1)
            else:
                first = final.clone()
                for index in over.nonzero()[:, 0].tolist():
                    first[index] = torch.cat([rows[index] for rows in self._env.reset_at(index)])
        return first, torch.stack(rewards).mean(0), done, truncated, extras

    def render(self) -> Any:
        """A picture of the first copy, [height, width, 3]."""
        return self._env.render(mode="rgb_array", env_index=0)
