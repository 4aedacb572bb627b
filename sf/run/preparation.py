"""Before a run: refuses what can be refused, looks at the environment, and fills in what follows from it.

Anything that may hang, crash or take torch is looked at in a process of its own. Nothing is written yet.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from dataclasses import replace
from typing import Any, NamedTuple

from sf.config import Config, changed_algorithm_flags, check, envs_per_group, note_on_unread_flags, unread_by_ours
from sf.config.frozen_policies import expect_directories
from sf.config.idle_flags import notes_on_idle_flags
from sf.config.observation_groups import encoders_of
from sf.config.pbt_space import env_arguments
from sf.console import Console
from sf.envs import EnvSource, find_env
from sf.envs.mapping import Mapping
from sf.envs.probe import FirstLook
from sf.envs.scripted import ScriptedPolicy
from sf.errors import ConfigError, UsageError
from sf.machine.cores import usable_cores
from sf.machine.kernel import ensure_linux
from sf.machine.limits import ensure_shared_memory, ensure_whole_words, refusals_told
from sf.machine.loading import load
from sf.machine.rank import ALONE, Rank
from sf.plugins import ALGORITHMS, ENCODERS
from sf.processes.child import is_our_command, spawned
from sf.processes.servers import ForkServers
from sf.processes.signals import early_signals, parent
from sf.processes.spare import MODULES, NETWORKS
from sf.processes.telling import told_if_slow
from sf.run.earlier import with_earlier_start
from sf.run.films import expect_films
from sf.run.first_look import look_in_child, note_on_single, vectorization_of
from sf.run.notes import chosen_flags, note_on_step_time, notes
from sf.run.probes import Fields, found_accelerators, try_plugins
from sf.run.ranks import WarningsOnly, hear_start, numbered, refuse_with_ranks
from sf.run.sizes import decide
from sf.run.trackers import wanted_trackers
from sf.run.updates import choose_updates, note_on_updates
from sf.spaces import EnvInfo


class Prepared(NamedTuple):
    """A configuration that nothing refuses any more."""

    config: Config
    """Resolved."""
    given: Config
    """As it was before."""
    source: EnvSource
    info: EnvInfo
    early_signals: list[int]
    """Which arrived meanwhile and did not end the program."""
    started_by: int | None
    """Process whose end ends the run, see `sf.processes.signals.parent`."""
    rank: Rank = ALONE
    """Rank of this run among those that train together."""
    num_earlier_starts: int | None = None
    """Runs that this one continues, if rank 0 knows it and not this rank."""
    fields: Fields | None = None
    """Further columns of a batch, which the algorithm asks for."""
    look: FirstLook | None = None
    """What was found at the environment."""


@refusals_told()
def prepare(config: Config, servers: ForkServers | None = None, rank: Rank = ALONE) -> Prepared:
    """Refuses what can be refused, looks at the environment, and fills in what follows from it.

    Args:
        config: not resolved.
        servers: begin to load as soon as only the environment and its settings can be refused.
        rank: of this run; all but the first take over what rank 0 decides.

    Raises:
        SfError: the configuration or the environment is refused.
    """
    given = config
    started_by = parent() if rank.is_alone else os.getppid()  # torchrun gives each rank a session of its own
    check(config)
    expect_directories(config)
    refuse_with_ranks(config, rank)
    wanted_trackers(config.run)
    for encoder in encoders_of(config.model):
        ENCODERS.check(encoder)
    ALGORITHMS.check(config.learner.algorithm)
    _expect_compiler(config)
    if not config.run.serial_mode:
        ensure_linux()
        ensure_whole_words()
        ensure_shared_memory()
    early = early_signals()  # until there is something to save
    with told_if_slow(f"the import of what makes {config.run.env}"):
        source = find_env(config.run.env, config.run.env_arguments, config.run.max_episode_steps)
    if config.run.serial_mode:
        _expect_float32()
    has_core_left = usable_cores() > 1  # else it would only disturb the measurement
    if servers is not None and has_core_left and not config.run.serial_mode:
        servers.start()
    loads_torch = config.run.serial_mode and has_core_left
    if config.evaluation.film_every_steps and rank.is_first:
        expect_films(source)
    begin = servers.begin_environments if servers else spawned
    look = look_in_child(config, source, begin, _load_torch if loads_torch else lambda: None)
    info = look.info
    console = Console() if rank.is_first else WarningsOnly()
    if config.run.device == "gpu":
        console.plain(f"Accelerators: {', '.join(found_accelerators())}.")
    starts: int | None = None
    if rank.is_first:
        resolved = decide(with_earlier_start(config), look, rank.share_of(usable_cores()), rank.is_alone)
        rank = rank if rank.is_alone else numbered(rank)
    else:
        resolved, starts, number = hear_start(rank, config)
        rank = replace(rank, start=number)
    check(resolved, info)
    if resolved.run.serial_mode:
        _expect_float32()
    for name in resolved.run.scripted.values():
        ScriptedPolicy(name, info, resolved.rollout.action_bounds)
    Mapping(resolved.mapping, resolved.run.num_policies, info)
    note, fields = try_plugins(resolved, changed_algorithm_flags(config.learner), info)
    if chosen := chosen_flags(config, resolved):
        measured = [note_on_step_time(look.step_time)] if look.is_timed else []
        console.plain(" ".join([*measured, f"Chosen: {chosen}"]))
    if rank.is_first and (learning := _updates(config, resolved, look, rank)):
        console.plain(learning)
    unread = note_on_unread_flags(config.learner, unread_by_ours(config.learner))
    for line in filter(None, (note, unread, *notes_on_idle_flags(given, resolved, info))):
        console.plain(line)
    if not look.refutes_vectorization and (left := note_on_single(resolved, source, info, envs_per_group(resolved))):
        console.plain(left)
    config, source = vectorized(resolved, replace(source, autoreset_mode=look.autoreset_mode), info)
    for note in notes(config, source, look):
        console.plain(note)
    return Prepared(config, given, source, info, early, started_by, rank, starts, fields, look)


def _load_torch() -> None:
    """In the process in which a serial run trains; what is wrong is told by the roles, which load it again."""
    with contextlib.suppress(Exception):
        load(MODULES[NETWORKS], freeze=is_our_command())


def _expect_float32() -> None:
    """Refuses another dtype in the process in which a serial run trains; other processes choose for themselves.

    Raises:
        UsageError: tensors of this program have another dtype by default.
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.get_default_dtype() is not torch.float32:
        raise UsageError(
            f"The default dtype of torch is {torch.get_default_dtype()} in this process, in which a serial run trains "
            "networks of float32. Leave torch.set_default_dtype out and give your own tensors their dtype, or train "
            "with --serial_mode=False."
        )


def _expect_compiler(config: Config) -> None:
    """Checks a new run only: a policy that was trained with one is used without one.

    Raises:
        ConfigError: there is none, and one is needed.
    """
    compiler = os.environ.get("CXX", "g++")  # as torch looks for it
    if config.learner.torch_compile and config.run.device == "cpu" and shutil.which(compiler) is None:
        raise ConfigError(
            [
                f"torch_compile=True needs a C++ compiler, but there is no {compiler}. Install one, name it in the "
                "environment variable CXX, or use --torch_compile=False."
            ]
        )


def _updates(given: Config, resolved: Config, look: FirstLook, rank: Rank) -> str:
    """How much is learned from each frame, and why, as a sentence."""
    step = look.step_time if look.is_timed else None
    return note_on_updates(given, resolved, choose_updates(given, look.info, rank.share_of(usable_cores()), step))


def vectorized(config: Config, source: EnvSource, info: EnvInfo) -> tuple[Config, EnvSource]:
    """The configuration with the vectorization that fits, and the source of its environments."""
    if env_arguments(config):
        config = replace(config, rollout=replace(config.rollout, vectorization="none"))
    vectorization, source = vectorization_of(config, source, info, envs_per_group(config))
    return replace(config, rollout=replace(config.rollout, vectorization=vectorization)), source
