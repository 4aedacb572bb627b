"""A training in this process that suffers faults: the base of `chaos.py`."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable

import psutil

from sf.config import Config, FaultConfig, InferenceConfig, LearnerConfig, RolloutConfig, RunConfig
from sf.output import stdout_goes_to
from sf.run.callbacks import Callbacks, Iteration
from sf.run.preparation import prepare
from sf.run.supervisor import train_prepared
from sf.run.wiring import Shared
from sf.shared.ledger import Ledger
from sf.shared.progress import Phase, phase_of
from sf.shared.role import RoleSpec

TARGET = 475.0


def config(directory: str, seed: int = 1, inference: int = 1, **run: object) -> Config:
    """CartPole with four rollout workers and a budget that no number of kills uses up."""
    return Config(
        RunConfig("CartPole-v1", train_dir=directory, seed=seed, **run),  # type: ignore[arg-type]
        RolloutConfig(num_workers=4, num_envs_per_worker=16),
        InferenceConfig(inference),
        learner=LearnerConfig(num_epochs=1, num_batches_per_epoch=4),
        faults=FaultConfig(max_restarts=1_000_000),
    )


class Run:
    """A training in this process, with a thread that does things to it."""

    def __init__(self, config: Config, fault: Callable[[Run], None]):
        """Returns when the training is over, which it is when `fault` has returned."""
        self.shared: Shared | None = None
        self.frames = self.reached_at = 0
        self.fault, self.is_over = fault, False
        self.error: BaseException | None = None
        thread = threading.Thread(target=self._disturb, daemon=True)
        thread.start()
        prepared = prepare(config)
        with open(os.devnull, "wb") as nowhere, stdout_goes_to(nowhere.fileno()):
            self.outcome = train_prepared(prepared, Callbacks(on_iteration=self._look), self._keep)
        assert self.is_over, "the run was stopped from outside"
        assert self.shared is not None
        self.ledger = Ledger.of(self.shared.slots, has_ended=True)
        if self.error is not None:
            raise self.error

    def state(self) -> str:
        """The activity of each process, for the search of a deadlock."""
        assert self.shared is not None
        slots, arena = self.shared.slots, self.shared.arena
        phases = {name: arena[f"records/{name}/progress"].tolist() for name in ("rollout", "inference", "learner")}
        doing = {name: [phase_of(word)[0].name for word in words] for name, words in phases.items()}
        states = [slots.state(slot).name for slot in range(slots.topology.num_slots)]
        return f"{doing}, {Ledger.of(slots, has_ended=False).line()}, {states}"

    def pids(self, title: str) -> list[int]:
        """Children that show this name and have begun to work, or one time in ten all that show it."""
        assert self.shared is not None
        words = self.shared.arena[f"records/{title.split('-')[1]}/progress"]
        any_will_do = random.random() < 0.1
        found = []
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                name = "".join(child.cmdline())
                if child.status() != psutil.STATUS_ZOMBIE and name.startswith(title):
                    is_at_work = phase_of(int(words[int(name.rpartition("-")[2])]))[0] not in (Phase.START, Phase.INIT)
                    if is_at_work or any_will_do:
                        found.append(child.pid)
        return found

    def _keep(self, shared: Shared, specs: list[RoleSpec]) -> list[RoleSpec]:
        self.shared = shared
        return specs

    def _look(self, iteration: Iteration) -> bool:
        self.frames = iteration.frames
        if not self.reached_at and (iteration.mean_reward or 0) >= TARGET:
            self.reached_at = iteration.frames
        return self.is_over

    def _disturb(self) -> None:
        try:
            while self.frames == 0:
                time.sleep(0.01)
            self.fault(self)
        except BaseException as error:
            self.error = error
        self.is_over = True
