"""A learner and the slow PPO, side by side on the same slots."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from sf.envs import register_env
from sf.learner.batcher import Batcher
from sf.learner.training import StepReport
from sf.learner.worker import Learner
from sf.shared.arena import Array
from sf.shared.messages import TrainSummary
from tests.environments.toys import Toy
from tests.helpers.lab import Lab, make_lab
from tests.helpers.recorded import Recording, Trajectory
from tests.helpers.slow_network import SlowNetwork
from tests.helpers.slow_ppo import Published, SlowPPO

BOX = spaces.Box(-10.0, 10.0, (3,), np.float32)
SIZES = {"num_envs_per_worker": 6, "rollout": 7, "num_batches_per_epoch": 3, "num_epochs": 2}
MODEL = {"encoder_mlp_layers": (8, 6), "rnn_size": 4}
TRAINING = {"learning_rate": 3e-3, "exploration_loss_coeff": 0.02, "ppo_clip_value": 0.2, "adam_eps": 1e-3}
"""Beside such an epsilon the rounding of small gradients is small, and such a range clips many values."""
TOLERANCE = 2e-6
"""Tolerance for float32, relative and absolute; the learning rate is a thousand times as large."""


def _plain(action_space: Any) -> Toy:
    return Toy(observation_space=BOX, action_space=action_space, observation=np.zeros(3, np.float32))


def _masked(choices: list[int]) -> Toy:
    space = spaces.Dict({"obs": BOX, "action_mask": spaces.MultiBinary(sum(choices))})
    seen = {"obs": np.zeros(3, np.float32), "action_mask": np.ones(sum(choices), np.int8)}
    return Toy(observation_space=space, action_space=spaces.MultiDiscrete(choices), observation=seen)


register_env("pairs/Choice", functools.partial(_plain, spaces.Discrete(3)))
register_env("pairs/Numbers", functools.partial(_plain, spaces.Box(-1.0, 1.0, (2,), np.float32)))
register_env("pairs/Masked", functools.partial(_masked, [3, 2, 4]))


def read_weights(learner: Learner) -> tuple[int, Array]:
    """The published version and vector."""
    vector = np.empty(learner.network.flat.numel(), np.float32)
    return learner.weights.read(lambda shared: np.copyto(vector, shared)), vector


def assert_same(found: Array, wanted: Array, what: str) -> None:
    np.testing.assert_allclose(found, wanted, rtol=TOLERANCE, atol=TOLERANCE, err_msg=what)


def dataset_size(learner: Learner) -> int:
    """Trajectories in one of its datasets."""
    assert isinstance(learner.source, Batcher)
    return learner.source.trajectories


class Pair:
    """A learner that notes what is published after each of its steps, and the slow PPO that follows it."""

    def __init__(self, lab: Lab, policy_id: int) -> None:
        """Begins with the weights of the learner, which become large enough to matter."""
        self.lab, self.policy_id = lab, policy_id
        self.learner = self._build()
        parameters = self.learner.network.flat_parameters
        with torch.no_grad():
            parameters.add_(torch.randn(parameters.shape), alpha=0.3)
        self.learner.weights.publish(0, self.learner._write_weights)
        variables, info = self.learner.network.variables(), self.learner.network.info
        network = SlowNetwork(variables, lab.config.model, info.action)
        self.slow = SlowPPO(network, lab.config.learner, policy_id)
        self.num_datasets = 0

    def _build(self) -> Learner:
        learner: Learner = self.lab.build(f"learner-{self.policy_id}")
        self.published: list[Published] = []
        publish = learner._publish

        def noted(step: StepReport) -> None:
            publish(step)
            record = learner.record
            version, vector = read_weights(learner)
            assert version == record["version"] == step.version
            self.published.append(Published(version, vector, (record["lag_min"], record["lag_avg"], record["lag_max"])))

        learner._publish = noted  # type: ignore[method-assign]
        return learner

    def resume(self) -> None:
        """Another learner in place of this one. Discounted sums belong to episodes, which begin anew."""
        random_state = torch.get_rng_state()
        self.learner.close()
        self.learner.weights.publish(self.slow.version, lambda shared: shared.fill(0))
        torch.manual_seed(12345)
        self.learner = self._build()
        version, vector = read_weights(self.learner)
        assert version == self.slow.version
        assert_same(vector, self.slow.network.vector, "published at the start")
        assert torch.equal(torch.get_rng_state(), random_state), "it would draw other permutations"
        self.slow.statistics.sums.clear()

    def take_over(self) -> None:
        """Gives the slow PPO the weights of the learner, so that roundings do not add up over updates."""
        variables = self.learner.network.variables()
        for name, parameter in self.slow.network.parameters.items():
            parameter.data.copy_(variables[name])

    @property
    def progress(self) -> float:
        """(u - 1) / U for dataset u of U."""
        limit = self.lab.config.run.frame_limit
        return 0.0 if limit == math.inf else self.num_datasets / (limit // self.learner.frames_per_iteration)

    def train(self, dataset: list[Trajectory]) -> int:
        """Both train on a dataset, and everything is compared; returns how many steps they have taken."""
        generator = torch.Generator()
        generator.set_state(torch.get_rng_state())  # from which both draw permutations
        self.published.clear()
        self.lab.told.clear()
        self.learner.summaries.forget()
        assert self.learner.step()
        expected = self.slow.train(dataset, lambda n: torch.randperm(n, generator=generator).tolist(), self.progress)
        self.num_datasets += 1
        assert [step.version for step in self.published] == [step.version for step in expected]
        for found, wanted in zip(self.published, expected, strict=True):
            assert_same(found.vector, wanted.vector, f"version {wanted.version}")
            assert found.lags == pytest.approx(wanted.lags, rel=1e-12)
        frames = self.slow.num_samples * self.lab.config.rollout.env_frameskip
        assert self.learner.frames == self.learner.record["env_steps"] == frames
        assert self.learner.record["skipped_steps"] == self.slow.num_skipped
        summaries = [told for told in self.lab.told if isinstance(told, TrainSummary)]
        assert sum(summary.is_last for summary in summaries) == bool(expected)
        assert {(summary.version, summary.frames) for summary in summaries} <= {(self.slow.version, frames)}
        if summaries:
            scalars = {name: value for summary in summaries for name, value in summary.scalars.items()}
            assert scalars == pytest.approx(self.slow.metrics, rel=1e-4, abs=1e-5, nan_ok=True)
        return len(expected)


class Run:
    """A pair for each policy, and slots with known numbers for them."""

    def __init__(self, path: Path, env: str = "Choice", **flags: Any) -> None:
        """Flags of the configuration, and some of the fields of `Recording`."""
        recorded = {name: flags.pop(name) for name in ("fillers", "oldest", "noise") if name in flags}
        self.lab = make_lab(path, f"pairs/{env}", **(SIZES | MODEL | TRAINING | flags))
        self.pairs = [Pair(self.lab, policy_id) for policy_id in range(self.lab.config.run.num_policies)]
        info = self.pairs[0].learner.network.info
        random, num_policies = np.random.default_rng(7), len(self.pairs)
        self.recording = Recording(self.lab.slots, info, random, num_policies, **recorded)
        self.waiting: list[Trajectory] = []

    def train(self, change: Callable[[list[Trajectory]], None] = lambda rows: None) -> list[int]:
        """The next dataset; how many steps each pair has taken."""
        size = dataset_size(self.pairs[0].learner)
        while len(self.waiting) < size:
            self.waiting += self.recording.fill(self.pairs[0].slow.version, self._say, change)
        dataset, self.waiting = self.waiting[:size], self.waiting[size:]
        return [pair.train(dataset) for pair in self.pairs]

    def _say(self, trajectory: Trajectory) -> tuple[Any, Any]:
        """Log-probabilities and values of the present policies, each where it acts."""
        num_steps = len(trajectory.rewards)
        log_probs, values = np.zeros(num_steps), np.zeros(num_steps + 1)
        for pair in self.pairs:
            acts = np.append(trajectory.policy_id, trajectory.policy_id[-1]) == pair.policy_id
            found = pair.slow.network.speak(trajectory)
            log_probs[acts[:-1]], values[acts] = found[0][acts[:-1]], found[1][acts]
        return log_probs, values
