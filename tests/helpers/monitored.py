"""A monitor with a clock of the test, for the tests of what it prints and leaves on disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from sf.config import Config, LearnerConfig, RolloutConfig, RunConfig
from sf.machine.origin import Origin
from sf.monitor import Console, Monitor, PolicySnapshot, Snapshot
from sf.monitor.episodes import EpisodeWindows
from sf.monitor.hints import Seen
from sf.monitor.settled import SettledEpisodes
from sf.shared.episodes import Episode
from sf.shared.ledger import Ledger

SECONDS = {
    "rollout-0": {"step": 3.0, "wait": 1.0},
    "inference-0-0": {"forward": 1.0, "wait": 3.0},
    "learner-0": {"update": 2.0, "wait": 2.0},
}


def seen_at(
    now: Snapshot,
    ended: EpisodeWindows | None = None,
    settled: SettledEpisodes | None = None,
    first: Snapshot | None = None,
) -> Seen:
    """What hints look at, with nothing in place of what is left out."""
    return Seen(first or now, now, ended or EpisodeWindows(1, 1), settled or SettledEpisodes(1, 1, 1))


class Tape(Console):
    """A console that keeps its lines."""

    def __init__(self) -> None:
        super().__init__(now=lambda: datetime(2000, 1, 2, 3, 4, 5))
        self.text = ""
        self.print_with(self.keep)

    def keep(self, text: str) -> None:
        self.text += text

    def lines(self, containing: str = "") -> list[str]:
        return [line for line in self.text.splitlines() if containing in line]


def config(num_policies: int = 1, **run: Any) -> Config:
    return Config(
        run=RunConfig(env="Toy-v0", num_policies=num_policies, **run),
        rollout=RolloutConfig(num_workers=2, num_envs_per_worker=4, rollout=32),
        learner=LearnerConfig(batch_size=64, num_batches_per_epoch=4, num_epochs=3),
    )


class Run:
    """A monitor and a run that makes `fps` frames per second, polled every half second."""

    def __init__(
        self, path: Path, fps: int = 100, first_frames: int = 0, origin: Origin | None = None, **settings: Any
    ) -> None:
        self.path, self.fps, self.first_frames, self.tape = path, fps, first_frames, Tape()
        self.config = config(**settings)
        self.monitor = Monitor(self.config, path, num_agents=1, console=self.tape, origin=origin)
        self.now, self.policy = 1000.0, PolicySnapshot()
        self.is_finished = False

    def snapshot(self) -> Snapshot:
        new_frames = int((self.now - 1000.0) * self.fps)
        frames = self.first_frames + new_frames
        policy = replace(self.policy, frames=frames, new_frames=new_frames)
        policy = replace(policy, samples=frames, forwards=frames // 10, requests=frames // 5)
        return Snapshot(self.now, (policy,) * self.config.run.num_policies)

    def go(self, seconds: float, episodes: Callable[[], list[Episode]] = list) -> None:
        for _ in range(int(2 * seconds)):
            self.monitor.poll(self.snapshot(), episodes())
            self.now += 0.5

    def finish(self) -> None:
        self.is_finished = True
        self.monitor.poll(self.snapshot())
        self.monitor.finish("train_for_env_steps reached", 0, SECONDS, Ledger(7, 4, {"worker_died": 1}, 2, 0))


Start = Callable[..., Run]


def episode(reward: float = 1.25, policy_id: int = 0) -> Episode:
    return Episode(policy_id, reward, length=10, true_objective=2 * reward)
