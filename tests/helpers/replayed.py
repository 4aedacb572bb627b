"""Updates with `--replay=staleness`, and what they were given and drew."""

from __future__ import annotations

from typing import Any

import torch

from sf.config import ReplayConfig
from sf.learner.batch import Batch
from sf.learner.dealing import Minibatch
from sf.learner.replayed import ReplayedMinibatches
from sf.learner.update import Update
from sf.policy import ActorCritic
from sf.replay import ReplayBuffer
from tests.helpers.updates import learner_config, make_policy

REPLAY = ReplayConfig("staleness", replay_size=200)


def make_update(policy: ActorCritic | None = None, replay: ReplayConfig = REPLAY, **flags: Any) -> Update:
    config = learner_config(num_epochs=2, num_batches_per_epoch=2, **flags)
    return Update(policy or make_policy(), config, replay=replay)


class Seen:
    """Everything that an update was given and drew."""

    def __init__(self, update: Update) -> None:
        self.minibatches: list[Minibatch] = []
        self.versions: list[int] = []
        self.update = update
        source, epoch = update._minibatches, update._minibatches.epoch

        def spied() -> Any:
            for minibatch in epoch():
                self.minibatches.append(minibatch)
                self.versions.append(update.version)
                yield minibatch

        source.epoch = spied  # type: ignore[method-assign]

    def train(self, batch: Batch) -> list[Any]:
        return list(self.update.steps(batch))


def buffer_of(update: Update) -> ReplayBuffer:
    source = update._minibatches
    assert isinstance(source, ReplayedMinibatches)
    assert source._buffer is not None
    return source._buffer


def fingerprints(observations: torch.Tensor) -> list[tuple[float, ...]]:
    return [tuple(row) for row in observations.reshape(-1, observations.shape[-1]).tolist()]
