"""The environments of one group as one `gymnasium.vector.VectorEnv`, which steps all of them at once.

The end of an episode depends on the `autoreset_mode` of the environment:

    SAME_STEP   the step returns the first observation of the next episode, and the final one in `infos`
    DISABLED    the step returns the final observation, and the caller resets these environments
    NEXT_STEP   the step returns the final observation, and the *next* step resets instead of acting

In the last mode that next step is no transition of any agent: its action was ignored. It is a *filler*, which the group
marks so that no learner trains on it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sf.envs import EnvSource
from sf.envs.actions import vector_action_converter
from sf.envs.blame import blamed_on
from sf.envs.contract import check_tuple, vector_flags
from sf.envs.leaves import any_array, is_row, leaf_array, leaf_value, vector_leaf_array
from sf.envs.observations import EntryCheck, FinalObservations, RangeCheck, blank_observation
from sf.envs.statistics import EPISODE_CONTINUES, FINAL_KEYS, METRICS, kept
from sf.envs.step_metrics import StepMetrics
from sf.envs.stepping import NO_ROWS, Ended, Host
from sf.envs.vectorization import OtherSpaces
from sf.errors import EnvError, text_of
from sf.shared.arena import Array
from sf.shared.progress import Phase
from sf.spaces import ACTION_MASK, ActionBounds, EnvInfo
from sf.spaces.from_gymnasium import action_spec, observation_leaves


class VectorBatch:
    """Environment i is row i."""

    def __init__(
        self,
        source: EnvSource,
        info: EnvInfo,
        seeds: Sequence[int],
        final_observations: dict[str, Array],
        has_final_observation: Array,
        action_bounds: ActionBounds,
        host: Host | None = None,
    ):
        """As `make_env_batch`; the seed of all environments is the first one.

        Raises:
            UnknownMode: the environment does not say how episodes follow each other, and no look has found it out.
        """
        from gymnasium.vector import AutoresetMode

        from sf.envs.autoreset import KEY, ON_TRIAL, declared_mode, mode_of

        host = host or Host()
        self.info, self.seed, self.progress = info, seeds[0], host.progress
        self.final_observations, self.has_final_observation = final_observations, has_final_observation
        self.progress.enter(Phase.INIT)
        self.env = source.make_vector(len(seeds), self.seed, host.first_index)
        try:
            self._check_spaces()
            mode = mode_of(self.env.metadata, info.env_id, source.autoreset_mode)
        except EnvError:
            self.close()
            raise
        self.resets_in_same_step, self.never_resets = mode == AutoresetMode.SAME_STEP, mode == AutoresetMode.DISABLED
        declared = declared_mode(self.env.metadata, info.env_id)
        self.says_mode = f"metadata[{KEY!r}]" if declared else "its first steps"
        """From where the mode is known, for messages."""
        self.is_on_trial = declared is None and source.autoreset_mode == ON_TRIAL
        self.to_env_actions = vector_action_converter(self.env.single_action_space, action_bounds)
        self.check_entries, self.ranges, self.finals = EntryCheck(info), RangeCheck(info), FinalObservations(info)
        self.blanks = blank_observation(info)
        self.metrics = StepMetrics()
        self.last_rewards = np.zeros(len(seeds))
        self.fillers = NO_ROWS
        """Rows whose last step was no step but the reset after the end of an episode."""
        self.next_fillers = NO_ROWS

    def reset(self, observations: dict[str, Array]) -> None:
        observation = self._reset(seed=self.seed)
        self.fillers = self.next_fillers = NO_ROWS
        self.metrics.forget(range(len(self.last_rewards)))
        self._write(observations, observation)

    def restart(self, index: int, observations: dict[str, Array]) -> None:
        raise EnvError(
            f"One of many environments of {self.info.env_id} that step at once cannot be reset on its own, as "
            "--on_nonfinite=drop needs. Use --vectorization=none."
        )

    def step(self, actions: Array, observations: dict[str, Array], rewards: Array) -> list[Ended]:
        self.progress.enter(Phase.STEP)
        with blamed_on(self.info.env_id, "step"):
            result = self.env.step(self.to_env_actions(actions))
        check_tuple(result, "step", self.info.env_id)
        observation, reward, terminated, truncated, infos = result
        self.fillers = self.next_fillers
        self._write_rewards(rewards, reward)
        terminated = vector_flags(terminated, "terminated", len(rewards), self.info.env_id)
        truncated = vector_flags(truncated, "truncated", len(rewards), self.info.env_id)
        over = terminated | truncated
        over[self.fillers] = False
        rows = np.flatnonzero(over)
        if isinstance(infos, Mapping) and METRICS in infos:
            self._add_metrics(infos, over)
        if len(rows) == 0:
            self.next_fillers = NO_ROWS
            self._write(observations, observation)
            return []
        ended = [
            Ended(row, bool(terminated[row]), bool(truncated[row]), self._info(infos, row)) for row in rows.tolist()
        ]
        self._keep_final(observation, [one for one in ended if not one.terminated])
        self.next_fillers = NO_ROWS if self.never_resets or self.resets_in_same_step else rows
        if len(self.next_fillers) and not self.is_on_trial:
            self._expect_next_step(infos)
        if self.never_resets:
            observation = self._reset(options={"reset_mask": over})
        self._write(observations, observation, self.next_fillers)
        return ended

    def _add_metrics(self, infos: Mapping[Any, Any], over: Array) -> None:
        """Adds the metrics of rows that go on; those of an ended episode come with the info of its end."""
        own = {name: infos[name] for name in (METRICS, f"_{METRICS}") if name in infos}
        left_out = {*np.flatnonzero(over).tolist(), *self.fillers.tolist()}
        for row in range(len(over)):
            if row not in left_out:
                self.metrics.add(row, _of_row(own, row).get(METRICS))

    def close(self) -> None:
        try:
            self.env.close()
        except Exception as error:  # other groups are closed all the same, and the run is over
            what = f"close() raised {type(error).__name__}: {text_of(error)}"
            print(f"{self.info.env_id}: {what}", file=sys.stderr)

    def _reset(self, **arguments: Any) -> Any:
        """The first observations."""
        self.progress.enter(Phase.RESET)
        with blamed_on(self.info.env_id, "reset"):
            result = self.env.reset(**arguments)
        check_tuple(result, "reset", self.info.env_id)
        return result[0]

    def _check_spaces(self) -> None:
        leaves = observation_leaves(self.env.single_observation_space)
        found = EnvInfo(self.info.env_id, 1, leaves, action_spec(self.env.single_action_space))
        if (found.observations, found.action.columns) != (self.info.observations, self.info.action.columns):
            raise OtherSpaces(
                f"The vectorized {self.info.env_id} is not like a single one. Expected: {self.info}. Found: {found}. "
                "Correct it, or step single ones with --vectorization=none."
            )

    def _info(self, infos: Any, row: int) -> dict[str, Any]:
        """The info of the last step of an episode; after a reset in the same step it is below a key of its own."""
        if not isinstance(infos, Mapping):
            raise EnvError(f"{self.info.env_id} returned infos of type {type(infos).__name__}, expected one dict.")
        info = _of_row(infos, row)
        info = kept({**info, **info.pop("final_info", {})} if self.resets_in_same_step else info)
        self.metrics.add(row, info.get(METRICS))
        if not info.get(EPISODE_CONTINUES):
            self.metrics.finish(row, info)
        return info

    def _expect_next_step(self, infos: Mapping[str, Any]) -> None:
        """Refuses the key of a final observation where the observation of the step should be the final one."""
        for key in FINAL_KEYS:
            if key in infos:
                raise EnvError(
                    f"{self.info.env_id} resets environments in the next step by {self.says_mode}, but infos has "
                    f"{key!r} at the end of an episode, as environments that reset in the same step. Correct "
                    "metadata['autoreset_mode'], or use --vectorization=none."
                )

    def _keep_final(self, observation: Any, cut: list[Ended]) -> None:
        """Keeps the final observations of truncated rows, whose values are still to be computed."""
        rows = [one.row for one in cut]
        if not rows:
            return
        if self.resets_in_same_step:
            for row, final in {one.row: self._final_observation(one) for one in cut}.items():
                self._keep_final_of_row(row, self.finals.unmasked(final))
        else:
            self._keep_final_of_rows(rows, self.finals.unmasked(observation))
        self.finals.allow_all(self.final_observations, np.array(rows))
        if bad := self.finals.bad_row({name: array[rows] for name, array in self.final_observations.items()}):
            raise EnvError(f"{self.info.env_id}, environment {rows[bad.row]}: {bad.error}")
        self.has_final_observation[rows] = True

    def _keep_final_of_row(self, row: int, final: Any) -> None:
        for name, leaf in self.finals.info.observations.items():
            what = f"{self.info.env_id} returned a final observation {name!r}"
            self.final_observations[name][row] = leaf_array(leaf_value(final, leaf), leaf, what)
        self.finals.check_entries(final, f"a final observation of environment {row}")

    def _keep_final_of_rows(self, rows: list[int], observation: Any) -> None:
        """Keeps the final observations among those of all environments."""
        for name, leaf in self.finals.info.observations.items():
            kept, what = self.final_observations[name], f"{self.info.env_id} returned a final observation {name!r}"
            kept[rows] = vector_leaf_array(leaf_value(observation, leaf), leaf, len(kept), what)[rows]
        self.finals.check_entries(observation, "a final observation")

    def _final_observation(self, one: Ended) -> Any:
        key = next((key for key in FINAL_KEYS if key in one.info), None)
        if key is None:
            raise EnvError(
                f"{self.info.env_id} truncated the episode of environment {one.row} and reset it in the same step, but "
                f"infos has no 'final_obs' of it, only {sorted(one.info)}. Put the final observation there, or change "
                "metadata['autoreset_mode']."
            )
        return one.info[key]

    def _write(self, observations: dict[str, Array], observation: Any, over: Array = NO_ROWS) -> None:
        """Writes what is seen; nothing of rows whose episode is over, because no policy needs their last action."""
        for name, leaf in self.info.observations.items():
            out, what = observations[name], f"{self.info.env_id} returned an observation {name!r}"
            array = leaf_value(observation, leaf) if leaf.path else observation
            if len(over) and name == ACTION_MASK:
                array = _with_rows(array, over, self.blanks[name])
            out[...] = vector_leaf_array(array, leaf, len(out), what)
            if len(over):
                out[over] = self.blanks[name]
        self.check_entries(observation)
        self._check_ranges(observations, range(len(out)))

    def _check_ranges(self, observations: dict[str, Array], rows: Sequence[int]) -> None:
        """Refuses what is wrong in one of these rows although its shape and dtype are right."""
        if self.ranges.is_needed and (bad := self.ranges.bad_row(observations)):
            raise EnvError(f"{self.info.env_id}, environment {rows[bad.row]}: {bad.error}")

    def _write_rewards(self, rewards: Array, received: Any) -> None:
        array = any_array(received)
        if array.shape != rewards.shape or array.dtype.kind not in "fiub":
            raise EnvError(
                f"{self.info.env_id} returned rewards {array.dtype}{list(array.shape)} from step, expected one number "
                f"for each of {len(rewards)} environments."
            )
        self.last_rewards[...] = array
        self.last_rewards[self.fillers] = 0.0
        rewards[...] = self.last_rewards


def _with_rows(values: Any, rows: Array, value: Array) -> Any:
    """Values of many environments that are no array yet, with `value` in some rows."""
    if isinstance(values, np.ndarray) and values.dtype.kind != "O":
        return values
    listed = list(values)
    for row in rows.tolist():
        listed[row] = value
    return listed


def _of_row(infos: Mapping[Any, Any], row: int) -> dict[str, Any]:
    """The info of one environment, without entries that a mask ``_key`` denies to it."""
    found: dict[str, Any] = {}
    for key, value in infos.items():
        if not isinstance(key, str) or key.startswith("_") or not _is_for_row(infos.get(f"_{key}"), row):
            continue
        if isinstance(value, Mapping):
            found[key] = _of_row(value, row)
        elif is_row(value) and len(value) > row:
            found[key] = value[row]
    return found


def _is_for_row(mask: Any, row: int) -> bool:
    """Whether the mask of an entry of infos, where there is one, does not deny it to a row."""
    return not is_row(mask) or len(mask) <= row or bool(mask[row])
