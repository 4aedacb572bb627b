"""What real environments do in the first hour of a user: taken as it is meant, or refused in a sentence."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sf.envs import EnvSource, probe, register_env
from sf.evaluator.playing import play
from sf.records import EpisodeRing
from tests import first_contact_envs as envs
from tests.lab import make_lab, step_until
from tests.test_evaluate import acting


@pytest.mark.parametrize("vectorization", ["none", "native"])
@pytest.mark.parametrize("make", envs.COUNTED, ids=lambda make: make.__name__)
def test_every_episode_counts_once_wherever_its_statistics_are(make: Any, vectorization: str, tmp_path: Path) -> None:
    """And an end counts for none where info says that the episode goes on."""
    register_env("Counted", make, make_vec=partial(envs.as_one, make, "NEXT_STEP"))
    lab = make_lab(tmp_path, "Counted", num_envs_per_worker=2, worker_num_splits=1, vectorization=vectorization)
    ring, roles, seen = EpisodeRing(lab.arena, 0), lab.build_all(), []

    def enough() -> bool:
        seen.extend(ring.new_episodes())
        return len(seen) >= 12

    step_until(roles, enough)
    assert {(episode.reward, episode.length) for episode in seen} == {envs.COUNTED[make]}
    steps = roles[-1].record["env_steps"]
    assert len(seen) == pytest.approx(steps / envs.COUNTED[make][1], abs=2), "each of them"
    for role in roles:
        role.close()


@pytest.mark.parametrize("make", envs.COUNTED, ids=lambda make: make.__name__)
def test_evaluation_counts_the_same_episodes(make: Any) -> None:
    source = EnvSource("Counted", {}, make)
    info = probe(source)
    (episodes,) = play([acting(info)], source, info, num_episodes=5, seed=0)
    assert set(zip(episodes.rewards, episodes.lengths, strict=True)) == {envs.COUNTED[make]}
    assert len(episodes.rewards) == 5
