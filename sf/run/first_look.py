"""A first look at the environments of a run, in a process that they may end, hang or break.

One environment is always looked at. Where sizes follow from the time of a step, and the run would step 64 environments
as one, the time of such a step counts. For instance, 64 copies of Gymnasium's CartPole take 60 us for a step together,
and 9 us each on their own.
"""

from __future__ import annotations

from time import monotonic

import numpy as np

from sf.config import Config
from sf.envs import EnvSource, probe_and_time
from sf.envs.probe import SEED, FirstLook, crash_note, random_action
from sf.envs.step_time import StepTime, Stopwatch
from sf.envs.vector_stepping import VectorBatch
from sf.envs.vectorization import Vectorization, choose_vectorization
from sf.errors import ConfigError, EnvCrashed, EnvError
from sf.run.sizes import DEFAULT_NUM_ENVS, wants_step_time
from sf.shared.arena import Array
from sf.spaces import ACTION_MASK, ActionBounds, EnvInfo

CALIBRATION_S = 0.3
"""How long environments play before the sizes of the run are chosen."""
LEAST_STEPS = 8
"""That environments which step as one take, however long that is, after one that does not count."""


def first_look(config: Config, source: EnvSource) -> FirstLook:
    """Looks at the environment, and measures how long a step takes if sizes follow from that.

    Args:
        config: with what the user has left open.
        source: of the environment.

    Raises:
        EnvError: it cannot be made, raises, has unsupported spaces, or returns something that does not fit them.
    """
    is_timed = wants_step_time(config)

    def seconds(info: EnvInfo) -> float:
        return CALIBRATION_S if is_timed and _many_as_one(config, source, info) is None else 0.0

    tries_second = config.rollout.num_envs_per_worker != 1 or config.run.serial_mode
    look = probe_and_time(source, seconds, config.faults.on_nonfinite == "drop", tries_second)
    if not is_timed:
        return look
    if (many := _many_as_one(config, source, look.info)) is None:
        return look._replace(num_timed=1)
    try:
        step_time = time_as_one(many, look.info, DEFAULT_NUM_ENVS, CALIBRATION_S, config.rollout.action_bounds)
    except EnvCrashed as crash:
        note = crash_note(f"while {DEFAULT_NUM_ENVS} environments stepped as one in a part", crash)
        is_refuted = config.rollout.vectorization == "auto"
        return look._replace(num_timed=1, notes=[*look.notes, note], refutes_vectorization=is_refuted)
    return look._replace(num_timed=DEFAULT_NUM_ENVS, step_time=step_time)


def _many_as_one(config: Config, source: EnvSource, info: EnvInfo) -> EnvSource | None:
    """The source of as many environments as a run has that step as one; None where single ones step."""
    try:
        vectorization, many = vectorization_of(config, source, info, DEFAULT_NUM_ENVS)
    except (ConfigError, EnvError):
        return None  # refused when it is known how many step as one
    return None if vectorization == "none" else many


def vectorization_of(
    config: Config, source: EnvSource, info: EnvInfo, group_size: int
) -> tuple[Vectorization, EnvSource]:
    """How groups of this many environments step, and their source.

    Raises:
        EnvError: the environment does not offer what is wanted.
        ConfigError: it does not fit the run.
    """
    wanted, run = config.rollout.vectorization, config.run
    # Environments that step as one cannot be brought back to where they were. Gymnasium's own vector environments also
    # reset in the next step, which would leave the minibatches of a synchronous run short.
    if wanted == "auto" and (run.serial_mode or (not run.async_rl and source.vector_factory is None)):
        wanted = "none"
    return choose_vectorization(wanted, source, info, group_size, run.num_policies)


def time_as_one(
    source: EnvSource, info: EnvInfo, num_envs: int, seconds: float, action_bounds: ActionBounds
) -> StepTime:
    """The time of one step of one environment where many step as one, as a rollout worker steps them.

    Args:
        source: of the vectorized environment.
        info: of a single one.
        num_envs: that step as one.
        seconds: for which they play random legal actions.
        action_bounds: see `sf.config.RolloutConfig`.

    Raises:
        EnvError: they cannot be made, or return something that does not fit their spaces.
        EnvCrashed: they raise.
    """
    observations, start_s = _rooms(info, num_envs), monotonic()
    seeds = range(SEED, SEED + num_envs)
    batch = VectorBatch(source, info, seeds, _rooms(info, num_envs), np.zeros(num_envs, bool), action_bounds)
    try:
        batch.reset(observations)
        start_s = (monotonic() - start_s) / num_envs
        random, rewards = np.random.default_rng(SEED), np.zeros(num_envs, np.float32)

        def actions() -> Array:
            return np.stack([random_action(info, _row(observations, row), random) for row in range(num_envs)])

        batch.step(actions(), observations, rewards)  # which may compile something
        watch, end_s = Stopwatch(), monotonic() + seconds
        while watch.steps < LEAST_STEPS * num_envs or monotonic() < end_s:
            chosen = actions()
            watch.steps += num_envs
            with watch.running():
                batch.step(chosen, observations, rewards)
        return watch.result()._replace(start_s=start_s)  # while its processes live
    finally:
        batch.close()


def _rooms(info: EnvInfo, num_envs: int) -> dict[str, Array]:
    return {name: np.zeros((num_envs, *leaf.shape), leaf.dtype) for name, leaf in info.observations.items()}


def _row(observations: dict[str, Array], row: int) -> dict[str, Array]:
    """The leaves that a random legal action depends on."""
    return {name: array[row] for name, array in observations.items() if name == ACTION_MASK}
