"""The rules of population-based training (Jaderberg et al. 2017, arXiv:1711.09846) as a state machine.

Frames and scores go in, decisions come out. It owns no clock, file or process. The random numbers of a decision follow
from the seed, the policy and its frames, so the same facts bring the same decisions, wherever a run is resumed.

    every period of a policy:   rank all policies by score
      best                      stay as they are
      others                    their values mutate
      worst                     take over one of the best, where that one is better by the gap; then mutate
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sf.config import PopulationConfig
from sf.config.pbt_space import DECAYS, ValueRange

Values = Mapping[str, float]
"""Flags by name."""
Kind = Literal["kept", "mutated", "replaced"]
NEVER = 0
"""Frames of the last decision about a policy before the first one."""


@dataclass(frozen=True)
class Decision:
    """What becomes of a policy."""

    policy_id: int
    kind: Kind
    frames: int
    """Frames of the policy at this moment."""
    source: int | None
    """The policy that it takes over; None unless it is replaced."""
    scores: tuple[float, ...]
    """Scores of all policies."""
    before: Values
    after: Values


class PopulationRules:
    """Decides about all policies of a run, each by its own frames."""

    def __init__(
        self, flags: PopulationConfig, space: Mapping[str, ValueRange], values: Sequence[Values], seed: int
    ) -> None:
        """Begins with the first decision of each policy ahead.

        Args:
            flags: periods, shares, gaps and factors.
            space: the range of each value.
            values: of each policy, in the order of the space.
            seed: of all random numbers.
        """
        self._flags, self._space = flags, space
        self._seed = seed
        self.values = [dict(each) for each in values]
        """Values that each policy learns with."""
        if flags.pbt_draw_initial:
            random = np.random.default_rng(seed)
            self.values = [{name: self._drawn(name, random) for name in space} for _ in values]
        self._decided = [NEVER] * len(values)
        """Frames of each policy at the last decision about it."""
        self._seen: list[int | None] = [None] * len(values)
        """Frames of each policy at the last look."""

    def decide(self, frames: Sequence[int], score: Callable[[int], float | None]) -> list[Decision]:
        """Decides about the policies that have learned since the last look and whose period is over.

        Nothing is decided while a policy has no score. A policy that has not learned since the last look waits, so
        that the number of looks changes nothing.

        Args:
            frames: of each policy.
            score: of a policy, asked for only if a decision is due.
        """
        due = [policy for policy in range(len(frames)) if self._is_due(policy, frames[policy])]
        if not due:
            return []
        scores = [score(policy) for policy in range(len(frames))]
        known = [each for each in scores if each is not None and math.isfinite(each)]
        if len(known) < len(scores):
            return []
        return [self._decide(policy, frames[policy], known) for policy in due]

    def to_json(self) -> dict[str, Any]:
        """The state in plain JSON types."""
        return {
            "values": [dict(each) for each in self.values],
            "decided_frames": list(self._decided),
            "seed": self._seed,
        }

    def load_json(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state of `to_json`, whose policies and names may be fewer or more than those of now."""
        self._seed = int(state.get("seed", self._seed))
        for policy, (values, decided) in enumerate(zip(state["values"], state["decided_frames"], strict=True)):
            if policy < len(self.values):
                self._decided[policy] = int(decided)
                self.values[policy] |= {name: float(values[name]) for name in self._space if name in values}

    def undo(self, forgotten: Sequence[Mapping[str, Any]], kept: Sequence[Mapping[str, Any]]) -> None:
        """Goes back before decisions of a future that is lost, because the run was killed after its checkpoints.

        Args:
            forgotten: lines of these decisions, in their order.
            kept: lines of the decisions before.
        """
        for line in reversed(forgotten):
            policy, before = line["policy"], line.get("before", {})
            if policy < len(self.values):
                self.values[policy] |= {name: float(before[name]) for name in self._space if name in before}
                own = [int(each["frames"]) for each in kept if each["policy"] == policy]
                self._decided[policy] = max(own, default=NEVER)

    def _is_due(self, policy: int, frames: int) -> bool:
        before, self._seen[policy] = self._seen[policy], frames
        self._decided[policy] = min(self._decided[policy], frames)  # a run that was killed goes back a little
        flags = self._flags
        next_one = max(flags.pbt_start_mutation, self._decided[policy] + flags.pbt_period_env_steps)
        return before is not None and frames != before and frames >= next_one

    def _decide(self, policy: int, frames: int, scores: Sequence[float]) -> Decision:
        self._decided[policy] = frames
        best, worst = self._best_and_worst(scores)
        before, random = dict(self.values[policy]), np.random.default_rng([self._seed, policy, frames])
        source = None
        if policy not in best:
            source = self._source(policy, best, scores, random) if policy in worst else None
            self.values[policy] = self._mutated(before if source is None else self.values[source], random)
        after = dict(self.values[policy])
        kind: Kind = "replaced" if source is not None else "kept" if after == before else "mutated"
        return Decision(policy, kind, frames, source, tuple(scores), before, after)

    def _best_and_worst(self, scores: Sequence[float]) -> tuple[list[int], list[int]]:
        """As many of both, none of them in both; of equal policies the earlier one is better."""
        ranked = sorted(range(len(scores)), key=lambda policy: (-scores[policy], policy))
        number = min(math.ceil(self._flags.pbt_replace_fraction * len(scores)), len(scores) // 2)
        return ranked[:number], ranked[-number:]

    def _source(
        self, policy: int, best: Sequence[int], scores: Sequence[float], random: np.random.Generator
    ) -> int | None:
        """One of the best, drawn; None where it is not better by enough."""
        source = best[int(random.integers(len(best)))]
        gap, flags = scores[source] - scores[policy], self._flags
        is_better = gap > flags.pbt_replace_reward_gap_absolute
        return source if is_better and gap > flags.pbt_replace_reward_gap * abs(scores[source]) else None

    def _mutated(self, values: Values, random: np.random.Generator) -> dict[str, float]:
        return {name: self._perturbed(name, value, random) for name, value in values.items()}

    def _perturbed(self, name: str, value: float, random: np.random.Generator) -> float:
        """The value multiplied or divided by a factor, or as it is; of a decay its distance from 1 is.

        A value of 0, and a decay of 1, switches something off and stays so.
        """
        flags = self._flags
        size = 1.0 - value if name in DECAYS else value
        if random.random() >= flags.pbt_mutation_rate:
            return value
        factor = float(random.uniform(flags.pbt_perturb_min, flags.pbt_perturb_max))
        size = size * factor if random.random() < 0.5 else size / factor
        if size == 0.0:
            return value
        span = self._space[name]
        return min(max(1.0 - size if name in DECAYS else size, span.min), span.max)

    def _drawn(self, name: str, random: np.random.Generator) -> float:
        """A first value."""
        span = self._space[name]
        if span.is_linear:
            return float(random.uniform(span.min, span.max))
        low, high = (1.0 - span.max, 1.0 - span.min) if name in DECAYS else (span.min, span.max)
        size = math.exp(random.uniform(math.log(low), math.log(high)))
        return min(max(1.0 - size if name in DECAYS else size, span.min), span.max)
