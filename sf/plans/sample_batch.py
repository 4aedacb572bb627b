"""Columns of equal length, and one such batch for each policy (row D14)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sf.errors import UsageError
from sf.shared.arena import Array

DEFAULT_POLICY = "default_policy"


class SampleBatch(dict[str, Any]):
    """Named columns; row i of each of them belongs to step i."""

    OBS, NEXT_OBS, ACTIONS, REWARDS, DONES, INFOS = "obs", "new_obs", "actions", "rewards", "dones", "infos"
    EPS_ID, UNROLL_ID, AGENT_INDEX, T = "eps_id", "unroll_id", "agent_index", "t"
    VF_PREDS, ACTION_LOGP, ACTION_DIST_INPUTS = "vf_preds", "action_logp", "action_dist_inputs"

    def __init__(self, *columns: Any, **more: Any) -> None:
        """Takes what dict takes; lists become arrays.

        Raises:
            UsageError: columns have different lengths.
        """
        super().__init__(*columns, **more)
        self.accessed_keys: set[str] = set()
        """Columns that were read."""
        self.after: Mapping[str, Any] = {}
        """For a trajectory that a worker postprocesses: extra columns for the observation after its last row."""
        for name, column in self.items():
            if isinstance(column, (list, tuple)):
                super().__setitem__(name, np.array(column))
        lengths = {name: len(column) for name, column in self.items()}
        if len(set(lengths.values())) > 1:
            raise UsageError(f"Columns of a batch have one length, but these have {lengths}.")

    def __setitem__(self, name: str, column: Any) -> None:
        """Sets a column.

        Raises:
            UsageError: it is longer or shorter than the others.
        """
        if self.keys() and len(column) != self.count:
            raise UsageError(f"Column {name!r} has {len(column)} rows, but the batch has {self.count}.")
        super().__setitem__(name, column)

    def __len__(self) -> int:
        """Rows, as in RLlib, and not columns."""
        return self.count

    @property
    def count(self) -> int:
        """Rows."""
        return next((len(column) for column in self.values()), 0)

    def __getitem__(self, name: str | slice) -> Any:
        """A column; a slice gives the rows of a part instead.

        Raises:
            UsageError: the slice leaves rows out between its ends.
            KeyError: there is no such column.
        """
        if isinstance(name, slice):
            start, stop, step = name.indices(self.count)
            if step != 1:
                raise UsageError(
                    f"batch[{name.start}:{name.stop}:{name.step}] leaves rows out. Use batch[start:stop], or "
                    "batch.take(rows) for rows by their numbers."
                )
            return self.slice(start, stop)
        self.accessed_keys.add(name)
        if name not in self.keys():
            raise KeyError(f"The batch has no column {name!r}, only {', '.join(self)}.")
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """A column, or something else."""
        return self[name] if name in self.keys() else default

    def agent_steps(self) -> int:
        """Steps of agents: one per row."""
        return self.count

    def env_steps(self) -> int:
        """Steps of environments: one per row, because there is one agent."""
        return self.count

    @staticmethod
    def concat_samples(samples: Sequence[Any]) -> Any:
        """All batches as one, in their order, without those that have no rows; several policies if one has several.

        Raises:
            UsageError: there is nothing to concatenate, or batches have different columns.
        """
        if not samples:
            raise UsageError("concat_samples needs one batch at least.")
        samples = [batch for batch in samples if batch.count] or samples[:1]
        if any(isinstance(batch, MultiAgentBatch) for batch in samples):
            return MultiAgentBatch.concat_samples(samples)
        if different := [
            sorted(batch.keys() ^ samples[0].keys()) for batch in samples if batch.keys() ^ samples[0].keys()
        ]:
            raise UsageError(
                f"Batches that are concatenated have the same columns, but {different[0]} are in some only."
            )
        return SampleBatch(
            {name: concatenated([dict.get(batch, name) for batch in samples], name) for name in samples[0]}
        )

    def concat(self, other: SampleBatch) -> SampleBatch:
        """This batch and then another one."""
        batch: SampleBatch = SampleBatch.concat_samples([self, other])
        return batch

    def copy(self) -> SampleBatch:
        """With columns of its own."""
        return SampleBatch({name: column.copy() for name, column in self.items()})

    def rows(self) -> Iterator[dict[str, Any]]:
        """One dict for each row."""
        for row in range(self.count):
            yield {name: column[row] for name, column in self.items()}

    def columns(self, keys: Sequence[str]) -> list[Any]:
        """The named columns, in their order."""
        return [self[key] for key in keys]

    def shuffle(self, generator: np.random.Generator | None = None) -> SampleBatch:
        """Puts the rows into random order, the same for all columns; returns this batch."""
        order = (generator or np.random.default_rng()).permutation(self.count)
        for name, column in self.items():
            super().__setitem__(name, column[order])
        return self

    def slice(self, start: int, end: int) -> SampleBatch:
        """Rows from start up to, but not with, end; views."""
        return SampleBatch({name: column[start:end] for name, column in self.items()})

    def take(self, rows: Array) -> SampleBatch:
        """The rows of these numbers; copies."""
        return SampleBatch({name: column[rows] for name, column in self.items()})

    def timeslices(self, size: int) -> list[SampleBatch]:
        """Parts of so many rows; the last one may be smaller."""
        return [self.slice(start, min(start + size, self.count)) for start in range(0, self.count, size)]

    def split_by_episode(self) -> list[SampleBatch]:
        """Parts whose rows have the same ``eps_id`` one after the other."""
        if not self.count:
            return []
        ids = self[SampleBatch.EPS_ID]
        ends = np.flatnonzero(ids[1:] != ids[:-1]) + 1
        edges = [0, *ends.tolist(), self.count]
        return [self.slice(start, end) for start, end in itertools.pairwise(edges)]

    def as_multi_agent(self) -> MultiAgentBatch:
        """As the batch of the default policy."""
        return MultiAgentBatch({DEFAULT_POLICY: self}, self.count)

    @property
    def policy_batches(self) -> dict[str, SampleBatch]:
        """As that of `MultiAgentBatch`."""
        return {DEFAULT_POLICY: self}


class MultiAgentBatch:
    """One batch for each policy, and the steps of environments that they come from."""

    def __init__(
        self, policy_batches: Mapping[str, SampleBatch], env_steps: int, policy_ids: Iterable[str] | None = None
    ) -> None:
        """Keeps them; `count` is that of the steps of environments.

        Args:
            policy_batches: by policy.
            env_steps: see above.
            policy_ids: all policies of the plan, also those that have not acted; None for those that have.
        """
        self.policy_batches, self.count = dict(policy_batches), env_steps
        self.policy_ids = frozenset(policy_batches if policy_ids is None else policy_ids)

    def env_steps(self) -> int:
        """Steps of environments, however many agents took part in them."""
        return self.count

    def agent_steps(self) -> int:
        """Rows of all policies together."""
        return sum(batch.count for batch in self.policy_batches.values())

    @staticmethod
    def concat_samples(samples: Sequence[Any]) -> MultiAgentBatch:
        """All batches as one, policy by policy."""
        parts: dict[str, list[SampleBatch]] = {}
        for batch in samples:
            for policy, own in batch.as_multi_agent().policy_batches.items():
                parts.setdefault(policy, []).append(own)
        steps = sum(batch.env_steps() for batch in samples)
        known = frozenset().union(*(batch.as_multi_agent().policy_ids for batch in samples))
        return MultiAgentBatch({policy: SampleBatch.concat_samples(own) for policy, own in parts.items()}, steps, known)

    @staticmethod
    def wrap_as_needed(
        policy_batches: Mapping[str, SampleBatch], env_steps: int, policy_ids: Iterable[str] | None = None
    ) -> SampleBatch | MultiAgentBatch:
        """A plain batch where the default policy is the only one."""
        if list(policy_batches) == [DEFAULT_POLICY]:
            return policy_batches[DEFAULT_POLICY]
        return MultiAgentBatch(policy_batches, env_steps, policy_ids)

    def as_multi_agent(self) -> MultiAgentBatch:
        """Itself."""
        return self

    def copy(self) -> MultiAgentBatch:
        """With columns of its own."""
        batches = {policy: own.copy() for policy, own in self.policy_batches.items()}
        return MultiAgentBatch(batches, self.count, self.policy_ids)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{policy}: {own.count}" for policy, own in self.policy_batches.items())
        return f"MultiAgentBatch({sizes}; {self.count} steps of environments)"


Batch = SampleBatch | MultiAgentBatch


def concatenated(columns: Sequence[Any], name: str) -> Any:
    """Arrays or tensors one after the other, of the widest type.

    Raises:
        UsageError: numbers would become texts.
    """
    if not isinstance(columns[0], np.ndarray):
        import torch

        return torch.cat(list(columns))
    return np.concatenate(columns, dtype=widest(columns, name))


def widest(columns: Sequence[Array], name: str) -> np.dtype[Any]:
    """The type that holds the values of all of them.

    Raises:
        UsageError: numbers would become texts.
    """
    types = {column.dtype for column in columns}
    if len({dtype.kind in "SU" for dtype in types}) > 1 and not any(dtype.kind == "O" for dtype in types):
        raise UsageError(f"Column {name!r} has texts in some batches and numbers in others. Keep to one of them.")
    return np.result_type(*types)
