"""The step that follows the end of an episode, where many environments step as one: see `sf.envs.vector_stepping`.

A vector environment names its `AutoresetMode` in its metadata. One without a mode may reset in the same step, as many
that are written by hand and those for Gymnasium before 1.0. Taken for NEXT_STEP, Gymnasium's own default, it would lose
the first step of each of its episodes. So its mode is found out by playing, before a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode

from sf.envs.statistics import FINAL_KEYS
from sf.envs.vectorization import UnknownMode
from sf.errors import EnvError
from sf.shared.arena import Array

KEY = "autoreset_mode"
ON_TRIAL = "on trial"
"""In place of a mode, of environments that are played to find it out."""
HALF = 0.5
"""Share of foreign numbers above which observations outweigh metadata, where there are copies enough to compare."""
ENOUGH_ENDS = 8
"""Ends of episodes after which rewards and observations tell a mode."""
FOREIGN, RATIO = 0.2, 2.0
"""Observations of one moment are foreign where so large a share of their numbers lies outside of all first
observations, and so many times the share of those of the other moment."""


class Found(NamedTuple):
    """A mode that play has shown."""

    mode: AutoresetMode
    sign: str
    """The evidence, as the end of a sentence."""
    is_certain: bool
    """Whether it outweighs what metadata say."""


def declared_mode(metadata: Any, env_id: str) -> AutoresetMode | None:
    """The mode that the metadata of a vector environment name, also as text; None where they name none.

    Raises:
        EnvError: they name something else.
    """
    named = metadata.get(KEY) if isinstance(metadata, Mapping) else None
    if named is None or isinstance(named, AutoresetMode):
        return named
    text = _letters(str(getattr(named, "value", named)).rpartition(".")[2])
    for mode in AutoresetMode:
        if text in (_letters(mode.value), _letters(mode.name)):
            return mode
    raise EnvError(
        f"{env_id} has metadata[{KEY!r}]={named!r}, expected one of "
        f"{', '.join(f'AutoresetMode.{mode.name}' for mode in AutoresetMode)} of gymnasium.vector."
    )


def mode_of(metadata: Any, env_id: str, found: str) -> AutoresetMode:
    """The mode of a vector environment.

    Args:
        metadata: of the environment.
        env_id: for messages.
        found: value of the mode that an earlier look has found; "" without a look, `ON_TRIAL` within it.

    Raises:
        UnknownMode: neither says it.
        EnvError: the metadata name no mode that there is.
    """
    declared = declared_mode(metadata, env_id)
    if declared is not None:
        return declared
    if found == ON_TRIAL:
        return AutoresetMode.NEXT_STEP
    if not found:
        raise UnknownMode(unknown(env_id))
    return AutoresetMode(found)


def unknown(env_id: str) -> str:
    """The sentence about an environment whose mode nothing shows."""
    return (
        f"The vectorized {env_id} does not say in metadata[{KEY!r}] which step begins the next episode, and its first "
        "steps have not shown it. Set it to AutoresetMode.SAME_STEP, NEXT_STEP or DISABLED of gymnasium.vector, or use "
        "--vectorization=none."
    )


class Watch:
    """Looks at the steps of many environments whose episodes end, for signs of the mode.

    After an end there are two observations of interest: the one of the step that ended the episode, and the one of the
    step after it. With SAME_STEP the former is the first one of the next episode, with NEXT_STEP the latter.
    """

    def __init__(self, first: Mapping[str, Array]) -> None:
        """Begins.

        Args:
            first: [num_envs, ...] observations of the first reset, by leaf.
        """
        self._limits = {name: (array.min(axis=0), array.max(axis=0)) for name, array in first.items()}
        size = len(next(iter(first.values())))
        self._steps, self._ended, self._is_short = 0, np.zeros(size, bool), np.zeros(size, bool)
        """Environments whose last step ended an episode, and those whose first step did: ends may follow each other."""
        self._last = np.zeros(size)
        self._shares: list[tuple[Array, Array]] = []
        """Share of the numbers outside of first observations, at each step with ends and one step later."""
        self._ends = self._quiet = self._paid = self._others = 0
        self._final_key = self._sign = ""
        self.has_cut = False
        """Whether an episode was truncated."""

    @property
    def lacks_final(self) -> bool:
        """Whether a truncated episode came without its last observation; with SAME_STEP no other place has it."""
        return self.has_cut and not self._final_key

    @property
    def is_done(self) -> bool:
        """Whether more steps tell no more."""
        return bool(self._final_key) or self._ends >= ENOUGH_ENDS

    def look(
        self, observations: Mapping[str, Array], rewards: Array, terminated: Array, truncated: Array, infos: Any
    ) -> None:
        """At one step.

        Args:
            observations: [num_envs, ...] by leaf.
            rewards: [num_envs].
            terminated, truncated: [num_envs] bool.
            infos: as they were returned.
        """
        self._steps += 1
        over = terminated | truncated
        if over.any() and isinstance(infos, Mapping):
            self._final_key = next((key for key in FINAL_KEYS if key in infos), self._final_key)
        self.has_cut = self.has_cut or bool((truncated & ~terminated).any())
        if self._steps == 1:
            self._is_short = over.copy()
        outside = self._outside(observations)
        after = self._ended & (~over | self._is_short)  # one that stays over does not begin anew by itself
        if after.any():
            self._look_after_ends(rewards[after], over[after], self._last[after], outside[after])
        others = ~self._ended & ~over
        self._others += int(others.sum())
        self._paid += int(np.count_nonzero(rewards[others]))
        self._last, self._ended = outside, over.copy()

    def found(self) -> Found | None:
        """The mode that all steps together show; None if they show none."""
        if self._final_key:
            return Found(AutoresetMode.SAME_STEP, f"infos has {self._final_key!r} at an end", is_certain=True)
        if self._ends >= ENOUGH_ENDS:
            at_end, later = (float(np.concatenate(parts).mean()) for parts in zip(*self._shares, strict=True))
            by_chance = 2 / (len(self._last) + 1)  # of other first observations outside of so many
            least = max(FOREIGN, RATIO * by_chance)
            if later > max(least, RATIO * at_end):
                sign = "the observation of a step that ends an episode is the first one of the next"
                return Found(AutoresetMode.SAME_STEP, sign, is_certain=later > max(HALF, 2 * RATIO * by_chance))
            if at_end > max(least, RATIO * later):
                return Found(AutoresetMode.NEXT_STEP, "the step after an end returns the first observation", False)
        if self._sign:
            return Found(AutoresetMode.SAME_STEP, self._sign, is_certain=False)
        if self._quiet >= ENOUGH_ENDS and 2 * self._paid > self._others:
            return Found(AutoresetMode.NEXT_STEP, "the step after an end pays nothing, and others do", False)
        return None

    def _look_after_ends(self, rewards: Array, over: Array, outside_before: Array, outside: Array) -> None:
        """At the step after an end, of the environments that had one."""
        self._ends += len(over)
        self._shares.append((outside_before, outside))
        if rewards.any():
            self._sign = "the step after an end pays a reward"
        elif over.any():
            self._sign = "the step after an end ends another episode"
        else:
            self._quiet += len(over)

    def _outside(self, observations: Mapping[str, Array]) -> Array:
        """[num_envs] share of the numbers outside of what first observations have."""
        shares = []
        for name, (low, high) in self._limits.items():
            array = observations[name]
            is_outside = (array < low) | (array > high)
            shares.append(is_outside.reshape(len(array), -1).mean(axis=1))
        return np.asarray(np.mean(shares, axis=0))


def _letters(text: str) -> str:
    return "".join(letter for letter in text.lower() if letter.isalpha())
