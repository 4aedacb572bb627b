"""`stop_at_reward`: when a run has learned enough."""

from __future__ import annotations

from pathlib import Path

import pytest

from sf.run import supervisor
from sf.run.callbacks import Callbacks
from sf.run.supervisor import train
from tests.helpers.commands import run, summary_of
from tests.helpers.lab import make_config


@pytest.mark.more
def test_stop_at_reward_takes_so_many_episodes(tmp_path: Path) -> None:
    """Random play of CartPole lasts 20 steps; a serial run looks at rewards after each iteration, of 64 frames here."""
    flags = "--num_envs_per_worker=2", "--rollout=32", "--batch_size=64", "--num_batches_per_epoch=1", "--seed=1"
    arguments = "--env=CartPole-v1", "--num_workers=1", "--serial_mode=True", "--stop_at_reward=1", *flags
    for episodes, least in (2, 64), (40, 512):
        finished = run(tmp_path / str(episodes), *arguments, f"--stop_at_reward_episodes={episodes}")
        assert finished.code == 0, finished.err
        summary = summary_of(tmp_path / str(episodes))
        assert summary["exit_reason"] == "stop_at_reward reached"
        assert least <= summary["frames"] < 100 * (episodes + 1)


def frames_and_rewards(path: Path) -> tuple[list[int], list[float]]:
    """Frames and rewards of all iterations and episodes of a serial run until a reward is reached."""
    frames: list[int] = []
    rewards: list[float] = []
    config = make_config(
        train_dir=str(path), serial_mode=True, num_workers=2, num_envs_per_worker=2, batch_size=512,
        stop_at_reward=40.0, stop_at_reward_episodes=5,
    )  # fmt: skip
    callbacks = Callbacks(
        on_iteration=lambda iteration: frames.append(iteration.frames),
        on_episode=lambda episode: rewards.append(episode.reward),
    )
    assert train(config, callbacks).reason == "stop_at_reward reached"
    return frames, rewards


@pytest.mark.more
def test_serial_run_stops_at_a_reward_at_the_same_frame_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often the session looks around, which depends on the machine, and however many workers there are."""
    monkeypatch.setattr(supervisor, "POLL_S", 10.0)
    rarely = frames_and_rewards(tmp_path / "rarely")
    monkeypatch.setattr(supervisor, "POLL_S", 0.002)
    assert frames_and_rewards(tmp_path / "often") == rarely
    assert rarely[0][-1] > 512
