"""A rollout worker whose requests a test answers, and counters as agents of one environment."""

from __future__ import annotations

from typing import Any

import numpy as np
from sf_envs.counter import Counter

from sf.envs import register_env
from sf.rollout.worker import RolloutWorker
from sf.shared.requests import Requests
from tests.helpers.lab import Lab


class CounterPair:
    """Two of them as two agents of one environment."""

    num_agents = 2

    def __init__(self, **arguments: Any) -> None:
        self.agents = [Counter(**arguments) for _ in range(self.num_agents)]
        self.observation_space, self.action_space = self.agents[0].observation_space, self.agents[0].action_space

    def reset(self, **_: Any) -> Any:
        return tuple(list(part) for part in zip(*(agent.reset() for agent in self.agents), strict=True))

    def step(self, actions: Any) -> Any:
        steps = (agent.step(action) for agent, action in zip(self.agents, actions, strict=True))
        return tuple(list(part) for part in zip(*steps, strict=True))

    def close(self) -> None:
        """Nothing to close."""


register_env("test/Counter", Counter)
register_env("test/CounterPair", CounterPair)


class Player:
    """Answers requests in place of an inference worker."""

    def __init__(self, lab: Lab, action: float = 0):
        self.lab, self.action = lab, action
        self.requests = Requests(lab.shared.topology, lab.arena)
        self.asked: list[tuple[int, int, int]] = []

    def step(self) -> bool:
        requests, slots, answered = self.requests, self.lab.slots, False
        for group in np.flatnonzero(requests.request != requests.answered[:, 0]):
            slot, t = int(requests.slot[group]), int(requests.step[group])
            self.asked.append((int(group), slot, t))
            slots.values[slot, t] = 100 * slot + t
            if t < self.lab.shared.topology.rollout:
                slots.actions[slot, t] = self.action
            if slots.has_final_observation[group].any():
                slots.final_values[slot, t - 1] = slots.final_observations["obs"][group][:, 2]
            requests.answered[group, 0] = requests.request[group]
            answered = True
        return answered


def play(lab: Lab, num_slots: int, action: float = 0) -> tuple[RolloutWorker, list[int], Player, list[dict[str, Any]]]:
    """Runs a worker until `num_slots` trajectories are full; returns copies of them in order."""
    worker, player = lab.build("rollout-0"), Player(lab, action)
    order: list[int] = []
    copies: list[dict[str, Any]] = []
    names = ("rewards", "terminated", "truncated", "actions", "final_values", "values")
    while len(order) < num_slots:
        assert worker.step() | player.step()
        for slot in lab.slots.waiting_for(0):
            order.append(int(slot))
            copy = {name: getattr(lab.slots, name)[slot].copy() for name in names}
            copies.append(copy | {"obs": lab.slots.observations["obs"][slot].copy()})
            lab.slots.take(slot, 0)
            lab.slots.release(slot, 0)
    return worker, order, player, copies
