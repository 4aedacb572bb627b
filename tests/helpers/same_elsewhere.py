"""Trains on the CPU and elsewhere, from the same weights and with the same random numbers, and prints what came out.

In a process of its own, because what torch takes for its accelerator stays for as long as the process lives.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sf.config import ModelConfig
from sf.nets.fast import acting
from sf.shared.messages import TrainSummary
from sf.shared.slots import Slots
from sf.storage.checkpoint import load_newest
from tests.helpers.elsewhere import Event, install
from tests.helpers.lab import make_lab, step_until

ITERATIONS = 4


class Halved(nn.Module):
    """An encoder with a constant that no function of torch has made."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], config: ModelConfig) -> None:
        super().__init__()
        self.layer = nn.Linear(shapes["obs"][0], 8)
        self.register_buffer("halves", torch.from_numpy(np.full(8, 0.5, np.float32)))

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        features: Tensor = self.layer(observations["obs"]) * self.halves
        return features


class Outcome(NamedTuple):
    states: list[dict[str, Tensor]]
    """State of each learner."""
    saved: list[dict[str, Tensor]]
    """The same from its newest checkpoint."""
    facts: dict[str, Any]
    """For the test."""


def trained(device: str, flags: dict[str, Any]) -> Outcome:
    """What became of the policies after some iterations."""
    Event.recorded = 0
    with tempfile.TemporaryDirectory() as directory:
        lab = make_lab(Path(directory), device=device, nonlinearity="relu", native_update=False, **flags)
        roles = lab.build_all()
        learners = roles[: lab.config.run.num_policies]
        for learner in learners:
            learner._wants_summary = lambda _: True  # of every dataset, and not of those after two seconds
        step_until(roles, lambda: all(learner.record["iterations"] >= ITERATIONS for learner in learners))
        for learner in learners:
            learner.close()
        saved = [load_newest(learner.saver.directory) for learner in learners]
    record = learners[0].record
    return Outcome(
        [{name: one.cpu() for name, one in learner.update.state_dict().items()} for learner in learners],
        [dict(one.tensors) for one in saved if one is not None],
        {
            "device": learners[0].network.flat.device.type,
            "memory": [record["gpu_mem"], record["gpu_cache"]],
            "transfers": Event.recorded,
            "scalars": [message.scalars for message in lab.told if isinstance(message, TrainSummary)],
        },
    )


def largest_difference(one: list[dict[str, Tensor]], other: list[dict[str, Tensor]]) -> float:
    return max(
        float((tensor.double() - theirs[name].double()).abs().nan_to_num(nan=math.inf).max())
        for own, theirs in zip(one, other, strict=True)
        for name, tensor in own.items()
        if tensor.numel()
    )


def forbid_early_releases() -> None:
    """Slots may be overwritten once they are given back."""
    release = Slots.release

    def checked(slots: Slots, *arguments: Any) -> None:
        assert Event.unfinished == 0, "a slot is given back while transfers may read it"
        release(slots, *arguments)

    Slots.release = checked  # type: ignore[method-assign,assignment]


def main() -> None:
    libraries = install()
    forbid_early_releases()
    # Both act with torch and draw random numbers for one batch at a time.
    vars(acting).update(NOISE_ROWS=0, MOST_PRODUCTS=0)
    for flags in json.loads(sys.argv[1]):
        on_cpu, on_device = trained("cpu", flags), trained("gpu", flags)
        facts = {
            "difference": largest_difference(on_cpu.states, on_device.states),
            "difference_of_saved": largest_difference(on_device.states, on_device.saved),
            "cpu": on_cpu.facts,
            "gpu": on_device.facts,
        }
        print(json.dumps(facts))
    del libraries


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
