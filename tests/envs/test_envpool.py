"""Pools of EnvPool: they step and begin as single environments do, and are refused where the package is missing."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from sf.config import ModelConfig
from sf.envs import find_env, find_pool, probe
from sf.envs.vector_stepping import VectorBatch
from sf.envs.vectorization import PAYS_FROM, choose_vectorization
from sf.errors import EnvError
from sf.evaluator.cast import Cast
from sf.evaluator.playing import Play
from sf.policy import ActorCritic, CollectPolicy


@pytest.mark.parametrize("num_episodes", [3, PAYS_FROM], ids=["single", "pool"])
def test_every_evaluation_in_envpool_starts_from_the_same_seeds(num_episodes: int) -> None:
    pytest.importorskip("envpool")
    source = find_env("envpool/CartPole-v1")
    info = probe(source)
    policy = CollectPolicy(ActorCritic(info, ModelConfig()), validate_args=False)
    playing = Play(Cast([policy]), source, info, num_episodes, seed=0)
    lengths = []
    for _ in range(2):
        playing.start()
        while not playing.tally.is_complete:
            playing.step()
        lengths.append(playing.tally.episodes[0].lengths)
    playing.close()
    assert lengths[0] == lengths[1]
    assert len(set(lengths[0])) > 1


def test_missing_envpool_is_refused_before_processes_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    cart = find_env("CartPole-v1")
    with pytest.raises(EnvError, match=r'out of EnvPool, which is not installed\. .* pip install "sf-rl\[envpool\]"'):
        choose_vectorization("envpool", cart, probe(cart), 16)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "mujoco/HalfCheetah", "envpool/Pong-v5"])
def test_pool_steps_like_single_environments(env_id: str) -> None:
    pytest.importorskip("envpool")
    source = find_env(env_id)
    info = probe(source)
    batch = VectorBatch(
        find_pool(source),
        info,
        range(3),
        {name: np.zeros((3, *leaf.shape), leaf.dtype) for name, leaf in info.observations.items()},
        np.zeros(3, bool),
        "clip",
    )
    observations = {name: np.zeros((3, *leaf.shape), leaf.dtype) for name, leaf in info.observations.items()}
    rewards, ended, fillers = np.zeros(3, np.float32), 0, 0
    batch.reset(observations)
    for _ in range(60):
        ended += len(batch.step(np.zeros((3, *info.action.shape), info.action.dtype), observations, rewards))
        fillers += len(batch.fillers)
    batch.close()
    if env_id == "CartPole-v1":
        assert ended > 6
        assert fillers >= ended - 3
    else:
        assert ended == fillers == 0
    assert any(array.any() for array in observations.values())
