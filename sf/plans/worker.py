"""Workers that evaluate policies: the local one, which learns, and remote ones, which sample (rows D11 to D13).

Both collect fragments with the roles of `sf`; see `sf.plans.fragments`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from sf.envs.generators import GlobalGenerators
from sf.nets.threads import one_thread
from sf.plans.episode import TeamEpisode
from sf.plans.fragments import Fragments, LocalFragments
from sf.plans.policy_map import PolicyMap
from sf.plans.program import Program, unpacked
from sf.plans.wiring import wire_workers
from sf.shared.episodes import Episode

WHOLE, PARTS = "complete_episodes", "truncate_episodes"
SAMPLING = 0x73616D70
"""The last word of the entropy of local samples, apart from that of the program; "samp" in bytes."""


class PlanWorker(PolicyMap):
    """Evaluates the policies of a plan in this process: the local worker learns, those of other processes sample."""

    worker_index: int
    """The number of a worker in another process, counted from 0; the local one has none."""

    def __init__(self, program: Program) -> None:
        """Builds the policies of the program, and makes no environment yet."""
        super().__init__({name: spec.build() for name, spec in program.policies.items()}, program.policies_to_train)
        self.program = program
        self._fragments: Fragments | None = None
        entropy: Any = np.random.SeedSequence(program.settings["seed"]).entropy
        self._generators = GlobalGenerators([entropy, SAMPLING], is_shared=True)
        """Generators for sampling: those of the program stay as they are."""

    @classmethod
    def elsewhere(cls, packed: bytes, index: int, seed: int) -> PlanWorker:
        """What functions of a plan see of the worker that they run in; its samples have environments of their own.

        Args:
            packed: program of the worker.
            index: of it.
            seed: of all workers.
        """
        program = unpacked(packed)
        own_seed = int(np.random.SeedSequence([seed, index, SAMPLING]).generate_state(1)[0])
        worker = cls(replace(program, settings={**program.settings, "seed": own_seed}))
        worker.worker_index = index
        return worker

    def sample(self) -> Any:
        """Fragment length times number of environments rows, or whole episodes with as many rows at least."""
        with self._generators, one_thread():
            if self._fragments is None:
                self._fragments = LocalFragments(wire_workers(self, 1, in_process=True))
            self._fragments.publish({}, self.num_steps)  # its policies are those of this worker
            self._fragments.ask(0)
            return self._fragments.sampled(0)

    def apply(self, func: Callable[[Any], Any]) -> Any:
        """What the function returns for this worker."""
        return func(self)

    def new_episodes(self) -> list[Episode | TeamEpisode]:
        """Those that have ended since the last call."""
        return [] if self._fragments is None else self._fragments.new_episodes()

    def stop(self) -> None:
        """Closes the environments."""
        fragments, self._fragments = self._fragments, None
        if fragments is not None:
            fragments.close()


class RemoteWorker:
    """One of the worker processes."""

    def __init__(self, fragments: Fragments, index: int, workers: Any) -> None:
        """Keeps the fragments of all remote workers, its number, and the `WorkerSet`."""
        self.fragments, self.index, self.workers = fragments, index, workers
        self.remote = Remote(partial(FutureBatch, fragments, index))
        """Methods that return at once."""

    def sample(self) -> Any:
        """As that of the local worker."""
        return self.remote.sample().result()

    def apply(self, func: Callable[[Any], Any]) -> Any:
        """What the function returns in that process, where it gets the policies as a `PolicyMap`."""
        return self.fragments.call([self.index], func)[0]

    def get_weights(self, policies: Sequence[str] | None = None) -> dict[str, Any]:
        """Weights of all policies in that process, or of some."""
        weights: dict[str, Any] = self.apply(lambda worker: worker.get_weights(policies))
        return weights

    def set_weights(self, weights: Mapping[str, Any], global_vars: Mapping[str, Any] | None = None) -> None:
        """Sets weights of the named policies in that process, until weights are pushed to it."""
        self.apply(lambda worker: worker.set_weights(weights, global_vars))

    def __repr__(self) -> str:
        return f"RemoteWorker({self.index})"


class Remote(NamedTuple):
    """Methods of a remote worker that return futures."""

    sample: Callable[[], FutureBatch]
    """Begins to sample."""


class FutureBatch:
    """A batch that is being sampled; those of one worker are taken in the order in which they were asked for."""

    def __init__(self, fragments: Fragments, worker: int) -> None:
        """Begins to sample.

        Raises:
            UsageError: an iterator with functions reads the workers.
        """
        fragments.expect_batches()
        fragments.ask(worker)
        self.result: Callable[[], Any] = cache(partial(fragments.sampled, worker))
        """Waits for it."""
