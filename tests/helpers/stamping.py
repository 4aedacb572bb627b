"""Roles for the label tests: a learner whose weights encode their version, and environments that cost nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sf.envs.stepping import NO_ROWS, Ended
from sf.learner.batch import Batch
from sf.learner.training import StepReport
from sf.learner.worker import Learner
from sf.rollout.worker import RolloutWorker
from sf.shared.arena import Array
from sf.shared.records import inference_record
from tests.helpers.updates import a2c_gradient

LAST_EXACT_VERSION = 2**24 - 1
"""As a float."""
MOST_TRANSITIONS_PER_VERSION = 64


class StampingLearner(Learner):
    """Publishes policies that act with the number of their version, and checks every label.

    All weights are 0, the bias of the mean is the version and the deviation is tiny, so that an action rounds to the
    version of the weights that computed it. Version 0 is the policy as it was made and says nothing.
    """

    def __init__(self, publishes_always: bool, report: Path, **arguments: Any):
        """Publishes while it waits for datasets as well, as fast as it can, or once after each of them.

        The former at least once per `MOST_TRANSITIONS_PER_VERSION` learned ones, however little it gets of its core.
        """
        super().__init__(**arguments)
        self.publishes_always, self.report = publishes_always, report
        self.checked = self.wrong = self.mixed = 0
        self.lags: set[int] = set()

    def step(self) -> bool:
        if self.publishes_always:
            least = max(self.update.version + 1, self.frames // MOST_TRANSITIONS_PER_VERSION)
            while self.update.version < min(least, LAST_EXACT_VERSION):
                self._publish_next()
        return super().step() or self.publishes_always

    def _publish_next(self) -> None:
        self.update.version += 1
        self.network.flat.zero_()
        with torch.no_grad():
            self.network.policy_head.bias.fill_(self.update.version)
            self.network.distribution.log_std.fill_(-10.0)  # type: ignore[union-attr,operator]
        self.weights.publish(self.update.version, self._write_weights)
        self.record["version"] = self.update.version

    def _train(self, batch: Batch) -> None:
        labels = batch.policy_version
        acted = batch.actions[..., 0].round().to(torch.int64)
        self.checked += int((labels > 0).sum())
        self.wrong += int(((acted != labels) & (labels > 0)).sum())
        self.mixed += int((labels.amax(dim=0) > labels.amin(dim=0)).sum())
        self.lags |= set((self.update.version - labels).flatten().tolist())
        self.frames += labels.numel()
        self.record["env_steps"] = self.frames
        if not self.publishes_always:
            self._publish_next()
        self.links.supervisor.ring()
        self.source.release()
        for worker in self.links.workers:
            worker.ring()

    def close(self) -> None:
        facts = {"checked": self.checked, "wrong": self.wrong, "mixed": self.mixed, "version": self.update.version}
        self.report.write_text(json.dumps(facts | {"lags": sorted(self.lags)}))


class RecordingLearner(Learner):
    """The real learner, which also writes down what it trains on and what comes of it.

    Of every optimizer step the lag; of every dataset its labels, the samples that were acted on by then, and the
    curves of its last step.
    """

    def __init__(self, report: Path, **arguments: Any):
        super().__init__(**arguments)
        self.report = report
        self.facts: dict[str, list[Any]] = {"lags": [], "labels": [], "samples": [], "summaries": []}
        steps, context = self.update.steps, arguments["context"]
        actors = range(context.topology.num_policies * context.topology.inference_per_policy)

        def recorded(batch: Batch) -> Iterator[StepReport]:
            self.facts["labels"].append((int(batch.policy_version.min()), int(batch.policy_version.max())))
            self.facts["samples"].append(sum(inference_record(context.arena, i).read()["samples"] for i in actors))
            self.update.want_summary = True
            for step in steps(batch):
                self.facts["lags"].append((step.lag_min, step.lag_avg, step.lag_max))
                yield step
            self.facts["summaries"].append(self.update.summary())

        self.update.steps = recorded  # type: ignore[method-assign]

    def close(self) -> None:
        self.report.write_text(json.dumps(self.facts))
        super().close()


class A2CLearner(RecordingLearner):
    """Compares the gradient of every optimizer step with that of plain A2C, which automatic differentiation finds.

    It takes whole datasets in one step and clips no gradient, so that the gradient is still there after the step.
    """

    def __init__(self, **arguments: Any):
        super().__init__(**arguments)
        self.facts["gradient_errors"] = []
        steps = self.update.steps

        def compared(batch: Batch) -> Iterator[StepReport]:
            expected = a2c_gradient(self.network, self.update.config, batch)
            for step in steps(batch):
                error = (self.network.flat_gradient - expected).abs().max() / expected.abs().max()
                self.facts["gradient_errors"].append(error.item())
                yield step

        self.update.steps = compared  # type: ignore[method-assign]


class SlowLearner(Learner):
    """The real learner, which sleeps before each dataset and notes when it has trained on it."""

    def __init__(self, report: Path, train_s: float, **arguments: Any):
        super().__init__(**arguments)
        self.report, self.train_s = report, train_s
        self.trained_at: list[float] = []

    def _train(self, batch: Batch) -> None:
        time.sleep(self.train_s)
        super()._train(batch)
        self.trained_at.append(time.monotonic())

    def close(self) -> None:
        self.report.write_text(json.dumps({"trained_at": self.trained_at}))
        super().close()


STEPS_BETWEEN_SLEEPS = 8
OBSERVATION = np.float32(0.5)
"""Not 0, which a normalizer that is all zeros would turn into nan."""


class FreeEnvs:
    """A group of environments that are only an array.

    A short sleep in the middle of each trajectory gives a learner on the same core its turn.
    """

    fillers = next_fillers = NO_ROWS
    num_steps = 0

    def __init__(self, rows: int) -> None:
        self.last_rewards = np.ones(rows)

    def reset(self, observations: dict[str, Array]) -> None:
        observations["obs"][:] = OBSERVATION

    def restart(self, index: int, observations: dict[str, Array]) -> None:
        raise AssertionError("they are always finite")

    def step(self, actions: Array, observations: dict[str, Array], rewards: Array) -> list[Ended]:
        self.num_steps += 1
        if self.num_steps % STEPS_BETWEEN_SLEEPS == 0:
            time.sleep(1e-4)
        observations["obs"][:] = OBSERVATION
        rewards[:] = 1
        return []

    def close(self) -> None:
        pass


def worker_with_free_envs(**arguments: Any) -> RolloutWorker:
    """A rollout worker that steps as fast as its own code allows."""
    worker = RolloutWorker(**arguments)
    for group in worker.groups:
        group.envs.close()
        group.envs = FreeEnvs(len(group.policies))
    return worker
