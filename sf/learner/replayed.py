"""Minibatches from a buffer of earlier datasets, drawn by freshness (rows E19 and E20 of the staleness contract).

Transitions enter the buffer with the advantages of the time when they came in, and leave it when newer ones need their
place. Importance ratios correct for their age: the probability of the action when acting is stored with it. Values are
kept in units of the reward, because the statistics that scale them change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from sf.config import LearnerConfig, ReplayConfig, limit_of_drawn_lag
from sf.errors import ConfigError, ResourceError
from sf.learner.algorithm import Algorithm
from sf.learner.batch import Batch
from sf.learner.dataset import Transitions
from sf.learner.dealing import DealtMinibatches, Minibatch, MinibatchSource
from sf.learner.minibatches import Ages, Selection
from sf.learner.peers import Peers
from sf.machine.memory import available_memory
from sf.policy import ActorCritic, Sequences
from sf.replay import NothingToDraw, ReplayBuffer, StalenessAwareSampler, TensorStorage
from sf.replay.sampler import WeightFunction, inverse
from sf.replay.storage import leaves
from sf.shared.arena import Array

log = logging.getLogger(__name__)

IN_UNITS_OF_THE_REWARD = {"old_values": "values", "value_targets": "returns"}
"""Columns that are stored without the scale of the value head, and under which name."""


class ReplayedMinibatches:
    """Adds every dataset to a buffer, and draws all minibatches from there."""

    def __init__(
        self, policy: ActorCritic, config: LearnerConfig, replay: ReplayConfig, version: Callable[[], int]
    ) -> None:
        """Starts with an empty buffer on the host.

        Args:
            policy: under training.
            config: how many minibatches are drawn.
            replay: which rows may be drawn, and how many there are.
            version: the present version of the policy.
        """
        self._policy, self._config, self._version = policy, config, version
        self._size = replay.replay_size
        limit = limit_of_drawn_lag(config, replay)
        self._sampler = StalenessAwareSampler(-1 if limit is None else limit, weight_function(replay, config))
        self._buffer: ReplayBuffer | None = None
        self._newest = self._draws_left = self._entries = 0

    def add(self, batch: Batch, transitions: Transitions, selection: Selection) -> None:
        """See `MinibatchSource`; a recurrent policy keeps trajectories, others keep transitions."""
        columns, acted = _columns(transitions, self._policy), batch.policy_version.flatten()
        trains = selection.trains.flatten()
        if self._policy.state_size:
            rows = _trajectories(columns | {"acted": acted}, batch, trains)
        else:
            rows = _on_host(columns | {"policy_version": acted}, trains)
        if self._buffer is None:
            length = batch.rewards.shape[0] if self._policy.state_size else 1
            _ensure_room(rows, self._size // length)
            self._buffer = ReplayBuffer(TensorStorage(self._size // length), self._sampler)
        self._buffer.extend(rows)
        self._newest = max(self._newest, int(rows["policy_version"].max()))
        self._entries = batch.rewards.shape[1] if self._policy.state_size else batch.rewards.numel()
        self._draws_left = self._config.steps_per_batch

    def renew(self, transitions: Transitions) -> None:
        """See `MinibatchSource`; refused before a run, because minibatches come from other datasets as well."""
        raise AssertionError("transitions out of a buffer cannot be prepared anew")

    def epoch(self) -> Iterator[Minibatch]:
        """See `MinibatchSource`: as many draws as a dataset has minibatches, while there is something to draw."""
        assert self._buffer is not None
        num_minibatches = self._config.num_minibatches
        for index in range(num_minibatches):
            version = self._sampler.consumer_version = self._version()
            try:
                rows, _ = self._buffer.sample(max(1, self._entries // num_minibatches))
            except NothingToDraw as error:
                log.error("Passed over a dataset: %s", error)
                return
            self._draws_left -= 1
            exhausts = self._exhausts(version)
            yield self._minibatch(rows, ends_epoch=index == num_minibatches - 1, exhausts=exhausts)
            if exhausts and self._version() > version:
                return

    def _exhausts(self, version: int) -> bool:
        """Whether a step from this version on makes everything in the buffer too old."""
        limit, age = self._sampler.max_staleness, version + 1 - self._newest
        if not 0 <= limit < age:
            return False
        if self._draws_left:
            log.error(
                "Passed over %d of the %d optimizer steps on a dataset: its newest transition would have been older "
                "than the limit of %d (max_staleness, bound_policy_lag).",
                self._draws_left, self._config.steps_per_batch, limit,
            )  # fmt: skip
        return True

    def _minibatch(self, rows: dict[str, Any], ends_epoch: bool, exhausts: bool) -> Minibatch:
        device = self._policy.flat.device
        if not self._policy.state_size:
            lags = self._lags(rows["policy_version"])
            return Minibatch(self._transitions(rows, device), *lags, ends_epoch, exhausts=exhausts)
        trains = rows["trains"].t().flatten()
        lags = self._lags(rows["acted"].t().flatten()[trains])
        unrolled = {name: _time_first(rows[name]) for name in rows.keys() - OF_TRAJECTORIES}
        sequences = Sequences(rows["initial_state"].to(device), rows["resets"].t().to(device))
        kept = None if trains.all() else trains.nonzero()[:, 0].to(device)
        return Minibatch(self._transitions(unrolled, device), *lags, ends_epoch, sequences, kept, exhausts)

    def _lags(self, acted: Tensor) -> tuple[Ages, Array]:
        lags: Array = (self._version() - acted).numpy()
        return Ages(float(lags.min()), float(lags.mean()), float(lags.max())), lags

    def _transitions(self, rows: Mapping[str, Any], device: torch.device) -> Transitions:
        there = {name: _moved(rows[name], device) for name in rows.keys() - NO_COLUMNS}
        for name, unit in IN_UNITS_OF_THE_REWARD.items():
            there[name] = self._policy.normalize(there[unit])
        del there["values"]
        return Transitions(**there)


OF_TRAJECTORIES = frozenset({"initial_state", "resets", "trains", "policy_version"})
"""Columns of the buffer that no transition has, of recurrent policies."""
NO_COLUMNS = OF_TRAJECTORIES | {"acted"}
"""Columns of the buffer that `Transitions` do not have."""


def weight_function(replay: ReplayConfig, config: LearnerConfig) -> WeightFunction:
    """How likely a row of some staleness is drawn, up to a factor."""
    steps_per_dataset = config.steps_per_batch
    functions: dict[str, WeightFunction] = {
        "inverse": inverse,
        # Weights count up to a factor, and without this one those of old rows would all be 0.
        "exponential": lambda staleness: (staleness.min() - staleness).to(torch.float32).div_(steps_per_dataset).exp_(),
        "uniform": lambda staleness: torch.ones(len(staleness)),
    }
    return functions[replay.staleness_weight]


def _ensure_room(rows: Mapping[str, Any], size: int) -> None:
    """Looks at the columns themselves, because an algorithm can add some that no configuration knows.

    Raises:
        ResourceError: so many rows do not fit into memory.
    """
    needed = size * sum(leaf[0].numel() * leaf.element_size() for leaf in leaves(rows))
    available, owner = available_memory()
    if needed > available:
        raise ResourceError(
            f"The replay buffer takes {needed / 2**30:.3g} GiB, {needed // size} bytes for each of {size} entries, but "
            f"the {owner} has {available / 2**30:.3g} GiB left. Use a smaller --replay_size."
        )


def _columns(transitions: Transitions, policy: ActorCritic) -> dict[str, Any]:
    """The columns of transitions that the buffer keeps, [N, ...] each, nested as they are."""
    columns = {each.name: getattr(transitions, each.name) for each in fields(transitions)}
    return {name: column for name, column in columns.items() if name not in IN_UNITS_OF_THE_REWARD} | {
        "values": policy.denormalize(transitions.old_values)
    }


def _on_host(rows: Mapping[str, Any], trains: Tensor) -> dict[str, Any]:
    """The transitions that train."""
    everything = bool(trains.all())

    def chosen(column: Any) -> Any:
        if isinstance(column, Mapping):
            return {name: chosen(part) for name, part in column.items()}
        column = column.detach().cpu()
        return column if everything else column[trains]

    return {name: chosen(column) for name, column in rows.items()}


def _trajectories(rows: Mapping[str, Any], batch: Batch, trains: Tensor) -> dict[str, Any]:
    """The trajectories [b, T, ...] of which some steps train, with the version of the oldest one of those."""
    steps, num_trajectories = batch.rewards.shape
    trains = trains.view(steps, num_trajectories).t()
    chosen = trains.any(1).nonzero()[:, 0]

    def trajectory_first(column: Any) -> Any:
        if isinstance(column, Mapping):
            return {name: trajectory_first(part) for name, part in column.items()}
        return column.detach().cpu().unflatten(0, (steps, num_trajectories)).transpose(0, 1)[chosen]

    found = {name: trajectory_first(column) for name, column in rows.items()}
    newest = int(batch.policy_version.max())
    return found | {
        "initial_state": batch.initial_memory.cpu()[chosen],
        "resets": batch.resets[:-1].cpu().t()[chosen],
        "trains": trains[chosen],
        "policy_version": found["acted"].masked_fill(~trains[chosen], newest).amin(1),
    }


def _time_first(column: Any) -> Any:
    """From [n, T, ...] to [T·n, ...], in the order of time."""
    if isinstance(column, Mapping):
        return {name: _time_first(part) for name, part in column.items()}
    return column.transpose(0, 1).flatten(0, 1)


def _moved(column: Any, device: torch.device) -> Any:
    if isinstance(column, Mapping):
        return {name: _moved(part, device) for name, part in column.items()}
    return column.to(device)


def minibatches_of(
    algorithm: Algorithm,
    policy: ActorCritic,
    config: LearnerConfig,
    replay: ReplayConfig,
    version: Callable[[], int],
    peers: Peers,
) -> MinibatchSource:
    """The minibatches of an update: those of the newest dataset, or drawn from a buffer.

    Args:
        algorithm: learns from them.
        policy: under training.
        config: how many minibatches there are.
        replay: whether transitions are kept and drawn again.
        version: the present version of the policy.
        peers: the other learners of the policy.

    Raises:
        ConfigError: the algorithm is not for such minibatches.
    """
    if replay.replay == "uniform":
        raise ConfigError(
            [
                f"algorithm={type(algorithm).__name__} learns from batches by a loss, but replay=uniform is "
                "for algorithms that learn off-policy. Use --replay=none or --replay=staleness."
            ]
        )
    if replay.replay == "none":
        return DealtMinibatches(policy, config, version, peers)
    if algorithm.prepares_each_epoch:
        raise ConfigError(
            [
                f"algorithm={type(algorithm).__name__} prepares the newest batch before each epoch "
                f"(prepares_each_epoch), but with replay={replay.replay} minibatches come from older ones as well. "
                "Leave it out, or use --replay=none."
            ]
        )
    return ReplayedMinibatches(policy, config, replay, version)
