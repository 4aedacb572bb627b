"""The sub-commands of `sf-bench`: from a configuration to the lines that the user reads."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from typing import Any

from sf.config import Config
from sf.errors import ExitCode, UsageError
from sf.plugins import plugins_to_send
from sf.processes.disposable import in_disposable_child
from sf.run.callbacks import Callbacks
from sf.run.preparation import Prepared, prepare
from sf.run.sizes import decide, suits_acting
from sf.run.supervisor import train_prepared
from sf.tools.bench.cost import part_lines, parts_of
from sf.tools.bench.latency import StepStopwatch, percentile_lines
from sf.tools.bench.predict import Loads, Machine, prediction_lines
from sf.tools.bench.roofline import Block, cores_of, cost_lines, costs, measure
from sf.tools.bench.usage import Meter, disturbed, shares_of, usage_lines
from sf.tools.bench.verdict import Mode, verdict
from sf.tools.bench.window import Window

ROOFLINE_SECONDS = 6.0
SLOWEST_ROOFLINE_S = 600.0


def roofline(config: Config) -> list[str]:
    """The cost of a sample, and the limit."""
    prepared = _prepared(config)
    blocks = _blocks(prepared, min(ROOFLINE_SECONDS, config.run.time_limit_s))
    return cost_lines(costs(blocks, cores_of(prepared.config)), len(blocks))


def train(config: Config) -> list[str]:
    """The speed of a run beside the limit, the use of its time, and a remedy."""
    prepared = _prepared(config)
    seconds = min(ROOFLINE_SECONDS, config.run.time_limit_s)
    blocks = _blocks(prepared, seconds / 2)
    window = Window(Meter(prepared.config), config.run)
    _run(prepared, window)
    first, last = window.ends()
    blocks += _blocks(prepared, seconds / 2)  # before and after, because the speed of a shared machine changes
    usage, found = last.since(first), costs(blocks, cores_of(prepared.config))
    shares = replace(shares_of(usage, found.cores, _mode(config)), could_act=_could_act(prepared))
    return [
        *cost_lines(found, len(blocks)),
        "",
        *usage_lines(usage, shares),
        f"{config.run.env}: {usage.samples_per_s:,.0f} samples/s over {usage.wall:.1f} s, "
        f"{usage.samples_per_s / found.limit:.0%} of the limit",
        f"verdict: {verdict(shares)}",
    ]


def cost(config: Config) -> list[str]:
    """The CPU time of a sample in a run, part by part."""
    prepared = _prepared(config)
    window = Window(Meter(prepared.config), config.run)
    _run(prepared, window)
    first, last = window.ends()
    usage = last.since(first)
    others = disturbed(shares_of(usage, cores_of(prepared.config), _mode(config)))
    return [*part_lines(parts_of(usage)), f"{usage.samples_per_s:,.0f} samples/s", *others]


def predict(config: Config, cores: int, gpus: int) -> list[str]:
    """The speed of a run here, and what it would be on another machine.

    Raises:
        UsageError: the run has one process, whatever the machine.
    """
    if config.run.serial_mode:
        raise UsageError("sf-bench predict is about several processes. Leave out --serial_mode=True, which has one.")
    first_look = _prepared(config)
    assert first_look.look is not None
    there = decide(first_look.given, first_look.look, cores)
    prepared = _prepared(with_processes_of(config, there))
    window = Window(Meter(prepared.config), config.run)
    _run(prepared, window)
    first, last = window.ends()
    usage, here = last.since(first), prepared.config
    acts = there.inference.policy_workers_per_policy or 0
    assert there.rollout.num_workers is not None
    machine = Machine(
        cores, gpus, there.rollout.num_workers, acts * there.run.num_policies, there.learner.num_learners,
        takes_turns=not config.run.async_rl,
    )  # fmt: skip
    cores_here = cores_of(here)
    lines = prediction_lines(Loads.of(usage, cores_here), usage.samples_per_s, machine)
    return [*lines, *disturbed(shares_of(usage, cores_here, _mode(config)))]


def with_processes_of(config: Config, there: Config) -> Config:
    """A run here, each process of which has as much to do at once as there: groups and minibatches of the same size."""
    envs = {name: getattr(there.rollout, name) for name in ("num_envs_per_worker", "worker_num_splits", "rollout")}
    learner = replace(config.learner, updates=there.learner.updates)
    if config.run.async_rl:  # else a dataset has whole sampling rounds, which are smaller here
        sizes = {name: getattr(there.learner, name) for name in ("batch_size", "num_batches_per_epoch", "num_epochs")}
        learner = replace(learner, **sizes)
    acting = min(1, there.inference.policy_workers_per_policy or 0)
    return replace(
        config,
        rollout=replace(config.rollout, **envs),
        learner=learner,
        inference=replace(config.inference, policy_workers_per_policy=acting),
    )


def latency(config: Config) -> list[str]:
    """How long requests and new weights take."""
    if config.run.serial_mode:
        raise UsageError("sf-bench latency measures between processes. Leave out --serial_mode=True, which has one.")
    stopwatch = StepStopwatch()
    window = Window(stopwatch, config.run)
    _run(_prepared(config), window)
    first, _ = window.ends()
    return percentile_lines(stopwatch.percentiles(since=first))


def _prepared(config: Config) -> Prepared:
    """A run whose roles can be measured one by one.

    Raises:
        UsageError: it has one role for acting and stepping.
    """
    if config.rollout.vectorization == "auto" and config.run.serial_mode:
        config = replace(config, rollout=replace(config.rollout, vectorization="native"))
    prepared = prepare(config)
    if prepared.config.rollout.vectorization == "tensors":
        raise UsageError(
            f"sf-bench measures rollout and inference workers, but one role steps {config.run.env} and acts in it "
            "(--vectorization=tensors). Use --vectorization=native, or benchmarks/tensors.py."
        )
    return prepared


def _mode(config: Config) -> Mode:
    if config.run.serial_mode:
        return "serial"
    return "async" if config.run.async_rl else "sync"


def _could_act(prepared: Prepared) -> bool:
    """Whether rollout workers that do not act for themselves could, and would be faster than torch."""
    config = prepared.config
    if config.workers_act:
        return False
    acting = replace(
        config,
        rollout=replace(config.rollout, worker_num_splits=None),
        inference=replace(config.inference, policy_workers_per_policy=0),
    )
    return suits_acting(acting, prepared.info)


def _blocks(prepared: Prepared, seconds: float) -> list[Block]:
    """Blocks of the roofline, measured in a process that ends with them."""
    return in_disposable_child(
        measure, prepared.config, prepared.source, prepared.info, plugins_to_send(), seconds, prepared.fields,
        timeout_s=SLOWEST_ROOFLINE_S, what="The measurement of one sample",
    )  # fmt: skip


def _run(prepared: Prepared, window: Window[Any]) -> None:
    """A training that leaves nothing behind but what the window has seen."""
    with tempfile.TemporaryDirectory(prefix="sf-bench-") as directory:
        config = prepared.config
        config = replace(config, run=replace(config.run, train_dir=directory))
        code, _ = train_prepared(prepared._replace(config=config), Callbacks(window.on_iteration), window.attach)
    if code != ExitCode.FINISHED:
        sys.exit(code)
