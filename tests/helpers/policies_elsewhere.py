"""Asks the two policies of a learner the same on the CPU and elsewhere, and prints what came out.

In a process of its own, like `tests.helpers.same_elsewhere`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from sf.config import ModelConfig
from sf.policy import ActorCritic, CollectPolicy, GreedyPolicy, Policy, TimeStep, TrainedPolicy
from sf.policy.nests import leaves, map_leaves
from sf.spaces import EnvInfo, LeafSpec
from sf.spaces.from_gymnasium import action_spec
from tests.helpers.elsewhere import NAME, install, places_of_generators, seeds_of_all

ROWS = 3
BOX = spaces.Box(np.array([-0.1, 0.0], np.float32), np.array([0.1, 0.5], np.float32))
ACTIONS: dict[str, spaces.Space[Any]] = {
    "choice": spaces.Discrete(4, start=2),
    "choices": spaces.MultiDiscrete([3, 2], start=[5, 0]),
    "numbers": BOX,
    "mixed": spaces.Dict(number=BOX, choice=spaces.Discrete(3, start=-1)),
}


def policies(network: ActorCritic) -> Iterator[Policy]:
    yield CollectPolicy(network, emit_log_probability=True)
    yield GreedyPolicy(TrainedPolicy(network))
    yield TrainedPolicy(network, emit_log_probability=True)
    yield TrainedPolicy(network, "tanh")


def answers(policy: Policy, device: torch.device) -> Iterator[Any]:
    """What a policy says of the same time steps."""

    def ones(spec: Any) -> Tensor:
        return torch.ones(ROWS, *spec.shape, dtype=spec.dtype, device=device)

    time_step: TimeStep = map_leaves(ones, policy.time_step_spec)
    for seed in (5, torch.Generator(device).manual_seed(5)):
        yield policy.action(time_step, policy.get_initial_state(ROWS), seed)
    asked = policy.distribution(time_step, policy.get_initial_state(ROWS))
    yield [asked.info, map_leaves(lambda distribution: distribution.mode, asked.action)]


def main() -> None:
    libraries = install()
    for space in ACTIONS.values():
        info = EnvInfo("test", 1, {"obs": LeafSpec((4,), "float32")}, action_spec(space))
        found = []
        for device in (torch.device("cpu"), torch.device(NAME, 0)):
            torch.manual_seed(0)
            places_of_generators.clear()
            seeds_of_all.clear()
            network = ActorCritic(info, ModelConfig(nonlinearity="relu"), device)
            before = torch.get_rng_state()  # also elsewhere
            told = [leaf for policy in policies(network) for leaf in leaves(list(answers(policy, device)))]
            assert set(places_of_generators) == {device.type}
            assert not seeds_of_all, "a seed of one call is nobody else's"
            assert torch.equal(before, torch.get_rng_state())
            found.append([(leaf.device.type, leaf.cpu().tolist()) for leaf in told])
        places = [sorted({place for place, _ in told}) for told in found]
        same = [[values for _, values in told] for told in found]
        print(json.dumps({"places": places, "same": same[0] == same[1], "leaves": len(same[0])}))
    recurrent = ActorCritic(info, ModelConfig(use_rnn=True), torch.device(NAME, 0))
    for policy in policies(recurrent):
        for leaf in leaves(policy.get_initial_state(ROWS)):
            assert leaf.device.type == NAME
    del libraries


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
