"""A first look at the environments of a run, in a process that they may end, hang or break.

One environment is always looked at. Where sizes follow from the time of a step, and the run would step 64 environments
as one, the time of such a step counts. For instance, 64 copies of Gymnasium's CartPole take 60 us for a step together,
and 9 us each on their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sf.config import Config
from sf.config.pbt_space import env_arguments
from sf.envs import EnvSource, probe_and_time
from sf.envs.probe import NUM_STEPS, FirstLook, crash_note
from sf.envs.stepping import Host
from sf.envs.suggestions import own_name
from sf.envs.vectorization import OtherSpaces, UnknownMode, Vectorization, choose_vectorization, why_left
from sf.errors import ConfigError, EnvCrashed, EnvError
from sf.processes.calls import Calls, Limit
from sf.processes.child import Begin, spawned
from sf.processes.disposable import in_disposable_child
from sf.run.groups import DEFAULT_NUM_ENVS
from sf.run.look_at_many import look_at_many
from sf.run.sizes import wants_step_time
from sf.run.specifications import START_S
from sf.shared.arena import Arena, Array, Field
from sf.shared.progress import Phase, Progress, unwatched
from sf.spaces import EnvInfo

PROGRESS, STEPS = "progress", "steps"
"""Names of shared words: the call that goes on, and the steps that the present environment has begun."""
CALIBRATION_S = 0.3
"""How long environments play before the sizes of the run are chosen."""


class _LookProgress(Progress):
    """Counts steps as well."""

    def __init__(self, words: Array, steps: Array) -> None:
        super().__init__(words, 0)
        self._steps = steps.data  # quicker than the array, because this is part of a step that is timed

    def enter(self, phase: Phase, environment: int = 0) -> None:
        if phase is Phase.INIT:
            self._steps[0] = 0
        elif phase is Phase.STEP:
            self._steps[0] += 1
        super().enter(phase, environment)


def first_look(config: Config, source: EnvSource, arena: Arena | None = None) -> FirstLook:
    """Looks at the environment, and measures how long a step takes if sizes follow from that.

    Args:
        config: with what the user has left open.
        source: of the environment.
        arena: has the words `PROGRESS` and `STEPS`; None where nothing watches them.

    Raises:
        EnvError: it cannot be made, raises, has unsupported spaces, or returns something that does not fit them.
    """
    is_timed = wants_step_time(config)

    def seconds(info: EnvInfo) -> float:
        return CALIBRATION_S if is_timed and _many_as_one(config, source, info) is None else 0.0

    tries_second = config.rollout.num_envs_per_worker != 1 or config.run.serial_mode
    progress = unwatched() if arena is None else _LookProgress(arena[PROGRESS], arena[STEPS])
    drops = config.faults.on_nonfinite == "drop"
    look = probe_and_time(source, seconds, drops, tries_second, progress, env_arguments(config))
    many = _many_as_one(config, source, look.info)
    look = look._replace(is_timed=is_timed, in_tensors=many is not None and source.in_tensors)
    return look if many is None else _with_many(look, many, config, progress)


def look_in_child(
    config: Config,
    source: EnvSource,
    begin: Begin = spawned,
    meanwhile: Callable[[], None] = lambda: None,
) -> FirstLook:
    """The same in a process of its own, in which no call may take longer than in a run.

    The first constructor may load or fetch what the others use, and so has more time.

    Args:
        config: of the run.
        source: of the environment.
        begin: starts the process.
        meanwhile: called here while it looks.

    Raises:
        EnvError: as `first_look`; or a call takes too long.
    """
    faults = config.faults
    limits = {
        Phase.START: Limit(START_S),
        Phase.INIT: Limit(3 * faults.env_init_timeout, f"3 times --env_init_timeout={faults.env_init_timeout:g}"),
        Phase.RESET: Limit(faults.env_reset_timeout, f"--env_reset_timeout={faults.env_reset_timeout:g}"),
        Phase.STEP: Limit(faults.env_step_timeout, f"--env_step_timeout={faults.env_step_timeout:g}"),
        Phase.CLOSE: Limit(faults.env_reset_timeout, f"--env_reset_timeout={faults.env_reset_timeout:g}"),
    }
    arena = Arena({PROGRESS: Field((1,), "int64"), STEPS: Field((1,), "int64")})
    progress = Progress(arena[PROGRESS], 0)
    calls = Calls(progress, source.env_id, limits, time.monotonic(), arena[STEPS], NUM_STEPS)
    what = f"A first look at {source.env_id}"
    return in_disposable_child(
        first_look, config, source, arena, what=what, calls=calls, begin=begin, meanwhile=meanwhile
    )


def _with_many(look: FirstLook, many: EnvSource, config: Config, progress: Progress) -> FirstLook:
    """The look at one environment, and at many that step as one."""
    rollout, num_envs, source_id = config.rollout, _group_size(config), many.env_id
    if not many.in_tensors:  # one more copy costs what the others cost
        num_envs = min(num_envs, DEFAULT_NUM_ENVS)
    try:
        found = look_at_many(
            many, look.info, num_envs, CALIBRATION_S if look.is_timed else 0.0, rollout.action_bounds, Host(progress)
        )
    except OtherSpaces as other:
        if rollout.vectorization != "auto" or many.vector_factory is not None:  # the user's own
            raise
        return look._replace(notes=[*look.notes, _note_on_other(other, source_id)], refutes_vectorization=True)
    except EnvCrashed as crash:
        note = crash_note(f"while {num_envs} environments stepped as one in a part", crash)
        return look._replace(notes=[*look.notes, note], refutes_vectorization=rollout.vectorization == "auto")
    if found.is_unusable and rollout.vectorization != "auto":
        raise UnknownMode(found.notes[0])
    more = [note for note in found.notes if note not in look.notes]
    if found.is_unusable:
        more[0] += " Single ones step here."
    notes = [*look.notes, *more]
    look = look._replace(notes=notes, autoreset_mode=found.autoreset_mode, refutes_vectorization=found.is_unusable)
    if look.is_timed and found.step_time is not None and not found.is_unusable:
        return look._replace(step_time=found.step_time)
    return look


def _note_on_other(other: OtherSpaces, env_id: str) -> str:
    """Single environments are what the id promises; ours may be what the user wants."""
    ours = own_name(env_id)
    hint = f" {ours} is the same with the wrappers that are usual for it." if ours else ""
    return f"{str(other).partition(' Correct it')[0]} Single ones step here.{hint}"


def _group_size(config: Config) -> int:
    """How many environments may step as one, as far as it is known."""
    return config.rollout.num_envs_per_worker or DEFAULT_NUM_ENVS


def _many_as_one(config: Config, source: EnvSource, info: EnvInfo) -> EnvSource | None:
    """The source of as many environments as a run has that step as one; None where single ones step."""
    try:
        vectorization, many = vectorization_of(config, source, info, _group_size(config))
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
    wanted = config.rollout.vectorization
    if wanted == "auto" and _refused_by_mode(config, source):
        wanted = "none"
    return choose_vectorization(wanted, source, info, group_size)


def note_on_single(config: Config, source: EnvSource, info: EnvInfo, group_size: int) -> str:
    """A sentence where environments could step as one and do not, although the user has left it open, else nothing."""
    if config.rollout.vectorization != "auto" or not source.offers_vector:
        return ""
    reason = _refused_by_mode(config, source) or why_left(source, info, group_size)
    if not reason:
        return ""
    return (
        f"{source.env_id} has a form in which many environments step as one, and single ones step here: {reason}. "
        "--vectorization=native takes that form where it can."
    )


def _refused_by_mode(config: Config, source: EnvSource) -> str:
    """Why a run of this kind takes single environments unasked, as part of a sentence; "" if it does not.

    Environments that step as one cannot be brought back to where they were. Gymnasium's own vector environments also
    reset in the next step, which would leave the minibatches of a synchronous run short.
    """
    if source.in_tensors:
        return ""  # a single copy could not be brought back either
    if config.run.serial_mode:
        return "a serial run repeats their episodes when it is resumed"
    if not config.run.async_rl and source.vector_factory is None:
        return "Gymnasium's own form would leave the minibatches of a synchronous run short"
    return ""
