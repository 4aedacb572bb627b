"""A first look at the environments of a run, in a process that they may end, hang or break.

One environment is always looked at. Where the sizes of the run follow from the time of a step, and the run would step
many environments as one, it is that time which counts: 64 copies of Gymnasium's CartPole take 60 us for a step
together, and 9 us each on their own.
"""

from __future__ import annotations

from time import monotonic

import numpy as np

from sf.config import DEFAULT_NUM_ENVS, Config, envs_per_group, resolve, wants_step_time
from sf.envs import EnvSource, probe_and_time
from sf.envs.probe import SEED, FirstLook, crash_note, random_action
from sf.envs.step_time import StepTime, Stopwatch
from sf.envs.vector_stepping import VectorBatch
from sf.envs.vectorization import Vectorization, choose_vectorization
from sf.errors import ConfigError, EnvCrashed, EnvError
from sf.machine.cores import usable_cores
from sf.shared.arena import Array
from sf.spaces import ACTION_MASK, ActionBounds, EnvInfo

CALIBRATION_S = 0.3
"""How long environments play before the sizes of the run are chosen."""
LEAST_STEPS = 8
"""That environments which step as one take, however long that is, after one that does not count."""


def first_look(config: Config, source: EnvSource) -> FirstLook:
    """What the environment is like, and how long a step takes if sizes follow from that.

    Args:
        config: not resolved.
        source: of the environment.

    Raises:
        EnvError: it cannot be made, raises, has unsupported spaces, or returns something that does not fit them.
        ConfigError: the batch size cannot be derived.
    """
    drop_nonfinite = config.faults.on_nonfinite == "drop"
    tries_second = config.rollout.num_envs_per_worker != 1 or config.run.serial_mode
    if not wants_step_time(config):
        return probe_and_time(source, 0.0, drop_nonfinite, tries_second)
    may_offer_vector = source.modules or source.offers_vector  # modules register more when they are imported
    if not (may_offer_vector or config.rollout.vectorization == "envpool"):
        return probe_and_time(source, CALIBRATION_S, drop_nonfinite, tries_second)
    look = probe_and_time(source, 0.0, drop_nonfinite, tries_second)
    try:
        vectorization, vector_source = vectorization_of(config, source, look.info, DEFAULT_NUM_ENVS)
    except (ConfigError, EnvError):
        return look  # refused when it is known how many step as one
    if vectorization == "none":
        timed = probe_and_time(source, CALIBRATION_S, drop_nonfinite)  # made without an import, as a second one is
        return timed._replace(made_in_s=look.made_in_s, refuses_second=look.refuses_second)
    try:
        step_time = time_as_one(vector_source, look.info, DEFAULT_NUM_ENVS, CALIBRATION_S, config.rollout.action_bounds)
    except EnvCrashed as crash:
        when = f"while {DEFAULT_NUM_ENVS} environments stepped as one in a part"
        look = probe_and_time(source, CALIBRATION_S, drop_nonfinite)
        look = look._replace(notes=[*look.notes, crash_note(when, crash)])
        return look._replace(refutes_vectorization=config.rollout.vectorization == "auto")
    sized = resolve(config, look.info, usable_cores(), step_time)
    if vectorization_of(config, source, look.info, envs_per_group(sized))[0] == "none":  # auto, and many workers
        return probe_and_time(source, CALIBRATION_S, drop_nonfinite)._replace(refutes_vectorization=True)
    return look._replace(step_time=step_time, num_timed=DEFAULT_NUM_ENVS)


def vectorization_of(
    config: Config, source: EnvSource, info: EnvInfo, group_size: int
) -> tuple[Vectorization, EnvSource]:
    """How groups of this many environments step, and what makes them.

    Raises:
        EnvError: the environment does not offer what is wanted.
        ConfigError: it does not fit the run.
    """
    wanted, run = config.rollout.vectorization, config.run
    # What steps as one cannot be brought back to where it was; and Gymnasium's own vector environments reset in the
    # next step, which would leave the minibatches of a synchronous run short.
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
    batch = VectorBatch(source, info, num_envs, SEED, _rooms(info, num_envs), np.zeros(num_envs, bool), action_bounds)
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
    """What a random legal action depends on."""
    return {name: array[row] for name, array in observations.items() if name == ACTION_MASK}
