"""Training from a program: the same run as `sf-train`, with callbacks, and the result as an object."""

from __future__ import annotations

import functools
import json
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sf.api.env_ids import expect_env_id
from sf.api.functions import name_of_function
from sf.errors import ExitCode
from sf.processes.callers import expect_place_for_processes

if TYPE_CHECKING:
    from sf.learner.algorithm import Algorithm
    from sf.policy import Policy
    from sf.run.callbacks import Iteration
    from sf.shared.episodes import Episode
    from sf.shared.messages import CheckpointSaved


@dataclass(frozen=True)
class TrainResult:
    """The result of a run."""

    path: Path
    """Directory of the experiment."""
    exit_reason: str
    """Why the run ended, as in summary.json."""
    encoder: str = "auto"
    """The one that the run was given, whose module may therefore be imported."""

    @functools.cached_property
    def policy(self) -> Policy:
        """The policy of the newest checkpoint, see `load_policy`, which has those of other policies and checkpoints."""
        from sf.plugins import ENCODERS
        from sf.policy import load_policy

        if ":" in self.encoder:
            ENCODERS.trust(self.encoder)
        return load_policy(self.path)

    @functools.cached_property
    def summary(self) -> dict[str, Any]:
        """Contents of summary.json, of the last start that had begun to train."""
        summary: dict[str, Any] = json.loads((self.path / "summary.json").read_text())
        return summary

    @functools.cached_property
    def metrics(self) -> dict[str, list[tuple[int, float]]]:
        """Curves of policy 0 from metrics.jsonl: name to frames and values, see docs/reference/metrics.md."""
        curves: dict[str, list[tuple[int, float]]] = {}
        for line in (self.path / "metrics.jsonl").read_text().splitlines():
            point = json.loads(line)
            frames, _ = point.pop("frames"), point.pop("time_s")
            if point.pop("policy_id") == 0:
                for name, value in point.items():
                    curves.setdefault(name, []).append((frames, value))
        return curves


def train(
    env: str,
    *,
    on_iteration: Callable[[Iteration], object] | None = None,
    on_episode: Callable[[Episode], object] | None = None,
    on_checkpoint: Callable[[CheckpointSaved], object] | None = None,
    algorithm: Callable[..., Algorithm] | str = "ppo",
    policy_mapping: Callable[..., int] | str | None = None,
    **flags: Any,
) -> TrainResult:
    """Train a policy, as ``sf-train`` does with the same flags; returns when the run is over, also after Ctrl-C.

    Processes are started, and they import the main script again, so a script calls this below
    ``if __name__ == "__main__":``. A run of the same `experiment` is continued unless `restart_behavior` says
    otherwise.

    Args:
        env: id of the environment.
        on_iteration, on_episode, on_checkpoint: called while the run goes on, see `sf.run.callbacks.Callbacks`; one
            that returns True stops the run.
        algorithm: a subclass of `sf.Algorithm`, a `functools.partial` of one, or what ``--algorithm`` says. One that
            derives from an algorithm of sf takes its defaults with ``algorithm_defaults="dqn"``.
        policy_mapping: a function of agent, episode and random numbers that returns the number of a policy, or what
            ``--policy_mapping`` says.
        flags: those of ``sf-train`` by name, such as ``train_for_env_steps=200_000``; a dict for `env_kwargs`,
            `algorithm_kwargs` and `encoder_kwargs`, and a class for `encoder`.

    Raises:
        UsageError: a flag or a callback is unknown or refused, or this is no place to train from.
        SfError: the run was refused or broke, see `sf.errors`.
    """
    expect_place_for_processes("sf.train")
    from sf.cli.train import parse_config
    from sf.config import check
    from sf.config.as_flags import as_flags
    from sf.plugins import name_of_algorithm, name_of_encoder
    from sf.processes.signals import STOP_SIGNALS
    from sf.run.callbacks import Callbacks
    from sf.run.supervisor import train as run

    expect_env_id(env)
    flags["algorithm"] = name_of_algorithm(algorithm)
    if "encoder" in flags:
        flags["encoder"] = name_of_encoder(flags["encoder"])
    if policy_mapping is not None:
        flags["policy_mapping"] = name_of_function(policy_mapping, "policy_mapping")
    callbacks = Callbacks(on_iteration, on_episode, on_checkpoint)
    config = parse_config([f"--env={env}", *(text for name, value in flags.items() for text in as_flags(name, value))])
    check(config)
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        code, reason = run(config, callbacks)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if code in (ExitCode.SIGTERM, ExitCode.REQUEUE):
        sys.exit(code)  # everything is saved, and the sender of the signal wants this process to end
    return TrainResult(config.run.experiment_dir.absolute(), reason, config.model.encoder)
