"""A look at environments that step as one: how long a step takes them, and which step begins the next episode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode

from sf.envs import EnvSource
from sf.envs.autoreset import ON_TRIAL, Watch, declared_mode, unknown
from sf.envs.leaves import any_array, first_choices, leaf_value
from sf.envs.random_player import SEED, random_action
from sf.envs.step_time import StepTime, Stopwatch
from sf.envs.stepping import Host
from sf.envs.vector_stepping import VectorBatch
from sf.envs.wrappers import note_on_statistics
from sf.errors import EnvError
from sf.shared.arena import Array
from sf.shared.progress import Phase
from sf.spaces import ACTION_MASK, ActionBounds, EnvInfo

LEAST_STEPS = 8
"""That environments which step as one take, however long that is."""
LONGEST_TRIAL_S = 3.0
"""For which they play at most until the mode of environments that do not name it is known."""


class ManyLook(NamedTuple):
    """The findings about environments that step as one."""

    step_time: StepTime | None
    """Time of one of them; None if they have not played."""
    autoreset_mode: str = ""
    """Found by playing; "" if their metadata name it, or nothing has shown it."""
    notes: tuple[str, ...] = ()
    """Sentences about a mode that their metadata do not name, and about wrappers."""
    is_unusable: bool = False
    """Whether their metadata name no mode, and nothing has shown one with which they can train."""


class _StepRecorder:
    """Keeps the last result of a vector environment as it was returned."""

    def __init__(self, env: Any) -> None:
        self.env, self.last = env, tuple[Any, ...]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def step(self, actions: Any) -> Any:
        self.last = self.env.step(actions)
        return self.last


def look_at_many(
    source: EnvSource, info: EnvInfo, num_envs: int, seconds: float, action_bounds: ActionBounds, host: Host
) -> ManyLook:
    """Plays with environments that step as one, as a rollout worker does.

    Args:
        source: of the vectorized environment.
        info: of a single one.
        num_envs: that step as one.
        seconds: for which they play random legal actions; 0 plays only for signs of the mode.
        action_bounds: see `sf.config.RolloutConfig`.
        host: this process.

    Raises:
        EnvError: they cannot be made, return something that does not fit their spaces, or contradict their metadata.
        EnvCrashed: they raise.
    """
    began_s = monotonic()
    seeds, rooms = range(SEED, SEED + num_envs), (_rooms(info, num_envs), np.zeros(num_envs, bool))
    batch = VectorBatch(replace(source, autoreset_mode=ON_TRIAL), info, seeds, *rooms, action_bounds, host)
    try:
        declared = declared_mode(batch.env.metadata, info.env_id)
        statistics = note_on_statistics(batch.env, info.env_id)
        more_notes = (statistics,) if statistics else ()
        if declared not in (None, AutoresetMode.NEXT_STEP) and not seconds:
            return ManyLook(None, notes=more_notes)
        played = _Trial(batch, info, num_envs)
        start_s = monotonic() - began_s
        step_time = played.step_time(seconds, LONGEST_TRIAL_S if declared is None else 0.0)._replace(start_s=start_s)
    finally:
        host.progress.enter(Phase.CLOSE)
        batch.close()
    found = _judged(info.env_id, declared, played.watch, step_time)
    return found._replace(notes=found.notes + more_notes)


def _judged(env_id: str, declared: AutoresetMode | None, watch: Watch, step_time: StepTime) -> ManyLook:
    """The findings, after play.

    Raises:
        EnvError: what was seen contradicts the metadata.
    """
    found = watch.found()
    if declared is not None:
        if declared == AutoresetMode.NEXT_STEP and found and found.is_certain:
            raise EnvError(
                f"The vectorized {env_id} has the autoreset mode NEXT_STEP in its metadata, but {found.sign}, as with "
                "SAME_STEP. Correct the metadata, or use --vectorization=none."
            )
        if declared == AutoresetMode.NEXT_STEP and found and found.mode == AutoresetMode.SAME_STEP:
            note = (
                f"Warning: the vectorized {env_id} has the autoreset mode NEXT_STEP in its metadata, but {found.sign}. "
                "That counts for nothing. If it resets in the same step, name AutoresetMode.SAME_STEP there."
            )
            return ManyLook(step_time, notes=(note,))
        return ManyLook(step_time)
    if found is None:
        return ManyLook(step_time, notes=(unknown(env_id),), is_unusable=True)
    if found.mode == AutoresetMode.SAME_STEP and watch.lacks_final:
        note = (
            f"The vectorized {env_id} names no autoreset mode in its metadata, and seems to reset in the same step, "
            f"because {found.sign}. But it truncates episodes without 'final_obs' in infos. Put the final observation "
            "there, or use --vectorization=none."
        )
        return ManyLook(step_time, notes=(note,), is_unusable=True)
    note = (
        f"The vectorized {env_id} names no autoreset mode in its metadata. It is taken for AutoresetMode."
        f"{found.mode.name}, because {found.sign}. Name the mode there if that is wrong."
    )
    return ManyLook(step_time, found.mode.value, (note,))


class _Trial:
    """Environments that play random legal actions."""

    def __init__(self, batch: VectorBatch, info: EnvInfo, num_envs: int) -> None:
        """Begins their first episodes."""
        self._batch, self._info, self._num_envs = batch, info, num_envs
        self._recorder = batch.env = _StepRecorder(batch.env)
        self._observations, self._rewards = _rooms(info, num_envs), np.zeros(num_envs, np.float32)
        self._random = np.random.default_rng(SEED)
        batch.reset(self._observations)
        self.watch = Watch({name: array.copy() for name, array in self._observations.items() if name != ACTION_MASK})

    def step_time(self, seconds: float, longest_s: float) -> StepTime:
        """Plays, and says how long a step of one environment takes.

        Args:
            seconds: for which they play.
            longest_s: for which they play at most until their mode is known.
        """
        stopwatch, began_s, steps = Stopwatch(self._num_envs), monotonic(), 0
        while steps < LEAST_STEPS or (
            monotonic() - began_s < (seconds if self.watch.is_done else max(seconds, longest_s))
        ):
            steps += 1
            self._step(stopwatch)
        return stopwatch.result()  # while its processes live

    def _step(self, stopwatch: Stopwatch) -> None:
        rows = range(self._num_envs)
        actions = np.stack([random_action(self._info, _row(self._observations, row), self._random) for row in rows])
        with stopwatch.step():
            self._batch.step(actions, self._observations, self._rewards)
        result: Any = self._recorder.last
        observation, rewards, terminated, truncated, infos = result
        # Those of the batch are blank where an episode is over.
        leaves = {name: leaf_value(observation, leaf) for name, leaf in self._info.observations.items()}
        self._take_masks(leaves.pop(ACTION_MASK, None))
        seen = {name: np.asarray(values, self._info.observations[name].dtype) for name, values in leaves.items()}
        flags = np.asarray(terminated, bool), np.asarray(truncated, bool)
        self.watch.look(seen, np.asarray(rewards), *flags, infos)

    def _take_masks(self, masks: Any) -> None:
        """Those that were returned, also where an episode is over, unless they allow nothing."""
        array = None if masks is None else any_array(masks)
        own = self._observations.get(ACTION_MASK)
        if array is not None and own is not None and array.shape == own.shape:
            is_legal = np.logical_or.reduceat(array, first_choices(self._info.action), axis=1).all(axis=1)
            own[is_legal] = array[is_legal]


def _rooms(info: EnvInfo, num_envs: int) -> dict[str, Array]:
    return {name: np.zeros((num_envs, *leaf.shape), leaf.dtype) for name, leaf in info.observations.items()}


def _row(observations: Mapping[str, Array], row: int) -> dict[str, Array]:
    """The leaves that a random legal action depends on."""
    return {name: array[row] for name, array in observations.items() if name == ACTION_MASK}
