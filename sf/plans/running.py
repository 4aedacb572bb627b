"""A plan as a run: console lines, curves, checkpoints, resume and an end in order, as `sf-train` has them."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from sf.config import Config, RunConfig
from sf.config.plan import PlanConfig
from sf.console import Console, forget_unlogged, logged
from sf.errors import CheckpointError, ConfigError, ExitCode, SfError
from sf.machine.origin import Origin, origin_of
from sf.monitor import Monitor, PolicySnapshot, Snapshot
from sf.monitor.episodes import REWARD_EPISODES
from sf.plans.environments import env_name
from sf.plans.rollout_ops import STEPS_SAMPLED
from sf.plans.saved_state import are_there
from sf.plans.trainer import Trainer, merged
from sf.processes.signals import Signals, noted_signals, parent
from sf.run.finished import nothing_left
from sf.run.reasons import ExitReason, limit_reached
from sf.shared.episodes import Episode
from sf.shared.ledger import Ledger
from sf.storage.experiment import CONSOLE_LOG, Experiment
from sf.storage.objects import json_object
from sf.storage.runs import CHECKPOINTS_OF_PLAN as CHECKPOINTS
from sf.storage.runs import PLAN

KEPT = 2
"""Checkpoints."""
LEAST_RESULT_S = 0.5
"""Between two results, and so between two looks at signals and limits."""


def run_plan(trainer_class: type[Trainer], settings: dict[str, Any], limits: PlanConfig) -> int:
    """Runs a trainer until a limit is reached or a signal arrives; returns the exit code.

    Raises:
        SfError: a setting is refused, or the plan ended because something broke.
    """
    merged(trainer_class, settings)  # refused before anything is written
    defaults = trainer_class.default_config
    env = env_name({**defaults, **settings}.get("env") or "")
    if note := note_on_finished_plan(limits, env):
        Console().line(note)
        return ExitReason.ENV_STEPS.code
    settings = {"num_workers": defaults.get("num_workers") or 2, "min_iter_time_s": LEAST_RESULT_S} | settings
    started_by = parent()
    forget_unlogged()
    with noted_signals(second_one_exits=True, started_by=started_by) as signals:
        experiment = Experiment(limits.train_dir, limits.experiment, limits.restart_behavior)
        try:
            origin = origin_of()
            with logged(experiment.path / CONSOLE_LOG, origin.command):
                if experiment.set_aside:
                    Console().line(experiment.set_aside)
                note_plan(experiment.path, env)
                with trainer_class(settings, experiment=experiment, signals=signals) as trainer:
                    return PlanRun(trainer, experiment, limits, signals, origin).run()
        finally:
            experiment.close()


def note_plan(directory: Path, env: str) -> None:
    """Writes into the directory of a run on which environment it is.

    Raises:
        ConfigError: a run on another environment has left checkpoints there.
    """
    before = json_object(directory / PLAN).get("env", env)
    if before != env and are_there(directory / CHECKPOINTS):
        raise ConfigError(
            [
                f"env: expected {before!r}, as in the run of {directory}, found {env!r}. Take another --experiment, or "
                "begin anew with --restart_behavior=restart."
            ]
        )
    (directory / PLAN).write_text(json.dumps({"env": env}) + "\n")


def note_on_finished_plan(limits: PlanConfig, env: str) -> str | None:
    """A sentence where an earlier start has ended well with all the frames that this one is to have, else None."""
    if limits.restart_behavior != "resume" or limits.train_for_env_steps is None:
        return None
    directory = Path(limits.train_dir).absolute() / limits.experiment
    is_other = json_object(directory / PLAN).get("env", env) != env
    if is_other or (directory / "plan.pt").exists():  # which is refused; the second is of an earlier version
        return None
    return nothing_left(directory, [CHECKPOINTS], limits.train_for_env_steps)


class PlanRun:
    """One start of a plan."""

    def __init__(
        self,
        trainer: Trainer,
        experiment: Experiment,
        limits: PlanConfig,
        signals: Signals,
        origin: Origin | None = None,
    ) -> None:
        """Goes on from the checkpoint of an earlier start, if there is one."""
        self.trainer, self.experiment, self.limits, self.signals = trainer, experiment, limits, signals
        self._checkpoints = experiment.path / CHECKPOINTS
        if (old := experiment.path / "plan.pt").exists():
            raise CheckpointError(
                f"{old} was written by an earlier version of sf, which kept plans in one file. Use that version, or "
                "start anew with --restart_behavior=restart or another --experiment."
            )
        if are_there(self._checkpoints):
            trainer.restore(self._checkpoints)
            Console().line(f"Goes on from {self._checkpoints} (iteration {trainer.iteration}).")
        trainer.workers.remote_workers()  # starting them is not training
        self._first_frames, self._began_s = self._counter(STEPS_SAMPLED), time.monotonic()
        self._saved_s, self._iterations = self._began_s, trainer.iteration
        self._run = RunConfig(
            env=env_name(trainer.config["env"]), train_for_env_steps=limits.train_for_env_steps,
            train_for_seconds=limits.train_for_seconds, stop_at_reward=limits.stop_at_reward,
            stop_at_reward_episodes=REWARD_EPISODES,
        )  # fmt: skip
        config = Config(run=self._run)
        rollout = replace(
            config.rollout, num_workers=max(1, trainer.workers.num_workers),
            num_envs_per_worker=trainer.config["num_envs_per_worker"],
        )  # fmt: skip
        learner = replace(config.learner, batch_size=trainer.config["train_batch_size"], num_batches_per_epoch=1)
        self.monitor = Monitor(replace(config, rollout=rollout, learner=learner), experiment.path, 1, origin=origin)
        self.monitor.high_lag.be_silent()
        self.monitor.watch(self._pids, self._faults)

    def run(self) -> int:
        """Until the end; saves whatever it is, unless something broke."""
        reason: ExitReason | None = None
        try:
            self.monitor.begin(self._snapshot())
            while (reason := self._reason_to_stop()) is None:
                self._show(self.trainer.train())
                if (reason := self._reason_to_stop()) is not None:
                    break
                if time.monotonic() - self._saved_s > self.limits.save_every_sec:
                    self._save()
            self._save()
        except BaseException as error:
            code = error.exit_code if isinstance(error, SfError) else ExitCode.INTERNAL
            self._finish(f"{type(error).__name__}: {error}", code)
            raise
        self._finish(reason.value, reason.code)
        return reason.code

    def _reason_to_stop(self) -> ExitReason | None:
        self.signals.look_for_parent()
        means = [self.monitor.settled.mean_score(0, REWARD_EPISODES)]
        seconds = time.monotonic() - self._began_s
        stopped = ExitReason.of(self.signals.first)
        reason = stopped or limit_reached(self._run, self._counter(STEPS_SAMPLED), seconds, means)
        if reason is ExitReason.REWARD:
            self.monitor.settled.close()
        return reason

    def _show(self, result: dict[str, Any]) -> None:
        history = result["hist_stats"]
        ended = zip(history["episode_reward"], history["episode_lengths"], result["episode_rows"], strict=True)
        snapshot = self._snapshot()
        self.monitor.poll(snapshot, [Episode(0, reward, length, reward, row=row) for reward, length, row in ended])
        for name, statistics in result["info"].get("learner", {}).items():
            numbers = {key: float(value) for key, value in statistics.items() if isinstance(value, (int, float))}
            prefix = "" if name == "default_policy" else f"{name}/"
            frames = snapshot.policies[0].frames
            self.monitor.train_summary(0, frames, {f"{prefix}{key}": value for key, value in numbers.items()})

    def _save(self) -> None:
        self._saved_s = time.monotonic()
        path = self.trainer.save(self._checkpoints, KEPT)
        Console().line(f"Saved {path} (iteration {self.trainer.iteration})")
        if self.trainer.iteration and (told := self.experiment.delete_overwritten()):
            Console().line(told)

    def _finish(self, reason: str, code: int) -> None:
        self.trainer.plan.close()
        fragments = self.trainer.workers.begun_fragments
        if fragments is None:
            ledger = Ledger(0, 0, {}, 0, 0)
        else:
            fragments.close()
            ledger = Ledger.of(fragments.slots, has_ended=True)
        self.monitor.poll(self._snapshot())
        self.monitor.finish(reason, code, {"driver": self._seconds()}, ledger)

    def _seconds(self) -> dict[str, float]:
        """Those of the driver, by timer."""
        timers = self.trainer.plan.shared_metrics.get().timers
        return {name: timer.total for name, timer in timers.items()}

    def _snapshot(self) -> Snapshot:
        local = self.trainer.workers.local_worker()
        frames = self._counter(STEPS_SAMPLED)
        policy = PolicySnapshot(
            frames=frames,
            new_frames=frames - self._first_frames,
            version=local.num_steps,
            iterations=self.trainer.iteration - self._iterations,
            lag=local.lag,
            lag_counted=local.lag_counted,
            samples=self._counter(STEPS_SAMPLED),
        )
        return Snapshot(time.monotonic(), (policy,))

    def _counter(self, name: str) -> int:
        return int(self.trainer.plan.shared_metrics.get().counters[name])

    def _pids(self) -> dict[str, int]:
        fragments = self.trainer.workers.begun_fragments
        return {"driver": os.getpid(), **({} if fragments is None else fragments.processes.pids())}

    def _faults(self) -> dict[str, float]:
        fragments = self.trainer.workers.begun_fragments
        return {} if fragments is None else fragments.processes.faults()
