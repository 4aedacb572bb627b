"""Every command with its flags, for pages and shells that name them all."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Command(NamedTuple):
    """One command, or a part of one such as ``hub push``."""

    name: str
    """What follows ``sf``."""
    usage: str
    description: str
    config: type[DataclassInstance]
    takes_runs: bool = True
    """Whether words without a flag are runs."""


def commands() -> tuple[Command, ...]:
    """All but ``sf-train`` and ``sf-bench``, which take the whole configuration, and those without flags."""
    from sf.cli import doctor, enjoy, evaluate, export, hub, plan, report, runs, sweep, track
    from sf.config.plan import PlanConfig

    return (
        Command("eval", "sf-eval", evaluate.DESCRIPTION, evaluate.EvaluationConfig),
        Command("enjoy", "sf-enjoy", enjoy.DESCRIPTION, enjoy.EnjoyConfig),
        Command("export", "sf-export", export.DESCRIPTION, export.ExportConfig),
        Command("report", "sf-report RUN [RUN...]", report.DESCRIPTION, report.ReportConfig),
        Command("ls", "sf ls [RUN...]", runs.DESCRIPTION, runs.RunsConfig),
        Command("doctor", "sf doctor", doctor.DESCRIPTION, doctor.DoctorConfig, takes_runs=False),
        Command("track", "sf-track", track.DESCRIPTION, track.TrackConfig),
        Command("hub push", "sf-hub push", hub.COMMANDS["push"], hub.PushConfig),
        Command("hub pull", "sf-hub pull", hub.COMMANDS["pull"], hub.PullConfig, takes_runs=False),
        Command("plan", "sf-plan FILE", plan.DESCRIPTION, PlanConfig, takes_runs=False),
        Command("sweep", "sf-sweep FILE", sweep.DESCRIPTION, sweep.SweepConfig, takes_runs=False),
    )
