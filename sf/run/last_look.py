"""The look at the last policy of a run: its evaluation and its film."""

from __future__ import annotations

from collections.abc import Sequence

from sf.evaluator.last import evaluate_last, film_last
from sf.processes.servers import ForkServers
from sf.processes.signals import Signals
from sf.run.session import Session
from sf.shared.role import RoleSpec
from sf.storage.experiment import Experiment
from sf.storage.names import FILMS, INCOMING_FILM


def look_at_last_policy(
    specs: Sequence[RoleSpec], session: Session, signals: Signals, experiment: Experiment, servers: ForkServers
) -> None:
    """What the evaluator has not done before the end: an evaluation and a film, unless a signal has come."""
    for spec in specs:
        if spec.kind == "eval" and not signals.received:
            if session.lacks_evaluation():
                session.take(evaluate_last(spec, signals, servers.begin_networks))
            if not signals.received and session.lacks_film(experiment.path):
                film_last(spec, signals, servers.begin_networks)
                (experiment.path / FILMS / INCOMING_FILM).unlink(missing_ok=True)  # it may have been broken off
