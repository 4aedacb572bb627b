"""Evaluations of runs in which functions play or deal the policies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sf
from sf.errors import CheckpointError, ConfigError
from sf.evaluator.candidates import candidate_of_experiment, load_candidate
from sf.evaluator.cast import Cast
from sf.plugins.functions import TRUSTED
from sf.spaces import EnvInfo
from tests.environments.duel import Duel

HERE = __name__
SMALL: dict[str, Any] = {
    "serial_mode": True, "async_rl": False, "num_policies": 2, "train_for_env_steps": 300, "num_workers": 1,
    "num_envs_per_worker": 2, "rollout": 16, "batch_size": 32, "seed": 1,
}  # fmt: skip


class Chosen(Duel):
    """Each agent is paid its own choice, 0 or 1, in each of four steps."""

    def step(self, actions: Any) -> Any:
        seen, _, over, cut, infos = super().step(actions)
        return seen, [float(action) for action in actions], over, cut, infos


def one(observation: Any, random: np.random.Generator) -> int:
    return 1


def zero(observation: Any, random: np.random.Generator) -> int:
    return 0


def second(agent: int, episode: int, random: np.random.Generator) -> int:
    return 1 - episode % 2


def crossed(agent: int, episode: int, random: np.random.Generator) -> int:
    return 1 - agent


@pytest.fixture(autouse=True)
def _trusted() -> Any:
    before = set(TRUSTED)
    yield
    TRUSTED.clear()
    TRUSTED.update(before)


def trained(tmp_path: Path, **flags: Any) -> Path:
    return sf.train(f"{HERE}:Chosen", train_dir=str(tmp_path), experiment="run", **SMALL, **flags).path


@pytest.mark.more
def test_a_function_that_is_a_policy_plays_in_evaluations(tmp_path: Path) -> None:
    """Its return is 4, which no drawn actions have in twenty episodes."""
    frozen = {"frozen_policies": json.dumps({"1": f"{HERE}:one"}), "policy_mapping": "by_agent"}
    path = trained(tmp_path, eval_every_steps=150, eval_episodes=20, eval_deterministic=False, **frozen)
    points = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    scores = {point["policy_id"]: point["eval/reward"] for point in points if "eval/reward" in point}
    assert scores[1] == 4
    assert 0 < scores[0] < 4
    assert not (path / "checkpoint_p1" / "best").exists()
    with pytest.raises(ConfigError, match="If you trust it, name it: --functions "):
        sf.evaluate(path, f"{HERE}:Chosen", episodes=20, policy_id=1)
    named = sf.evaluate(path, f"{HERE}:Chosen", episodes=20, policy_id=1, functions=[f"{HERE}:one"])
    assert (named.mean, named.std) == (4, 0)
    best = sf.evaluate(path, f"{HERE}:Chosen", episodes=6, policy_id=1, checkpoint="best", num_workers=2)
    assert best.mean == 4, "processes of their own know what is trusted"
    with pytest.raises(CheckpointError, match=f"Policy 1 of .* is the function {HERE}:one and no network"):
        sf.load_policy(path, policy_id=1)


@pytest.mark.more
def test_a_resume_with_another_function_is_evaluated_with_that_one(tmp_path: Path) -> None:
    trained(tmp_path, policy_mapping="by_agent", frozen_policies=json.dumps({"1": f"{HERE}:one"}))
    now = {"frozen_policies": json.dumps({"1": f"{HERE}:zero"}), "train_for_env_steps": 600}
    flags = SMALL | {"policy_mapping": "by_agent"} | now
    path = sf.train(f"{HERE}:Chosen", train_dir=str(tmp_path), experiment="run", **flags).path
    played = sf.evaluate(path, f"{HERE}:Chosen", episodes=3, policy_id=1, functions=[f"{HERE}:zero"])
    assert played.mean == 0


def test_policies_that_the_first_episode_leaves_out_play_too(tmp_path: Path) -> None:
    path = trained(tmp_path, policy_mapping=f"{HERE}:second", eval_every_steps=150, eval_episodes=2)
    points = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert {point["policy_id"] for point in points if "eval/reward" in point} == {0, 1}
    loaded = load_candidate(candidate_of_experiment(path, "latest", greedy=False))
    assert Cast(loaded.policies, mapping=f"{HERE}:second").num_blocks(loaded.info) == 2


def test_a_function_that_deals_the_policies_deals_them_in_evaluations(tmp_path: Path) -> None:
    path = trained(tmp_path, policy_mapping=f"{HERE}:crossed")
    candidate = candidate_of_experiment(path, "latest", greedy=False)
    loaded = load_candidate(candidate)
    assert loaded.cast.mapping == "by_agent"
    assert f"If you trust it, name it: --functions {HERE}:crossed" in loaded.note
    TRUSTED.add(f"{HERE}:crossed")
    loaded = load_candidate(candidate)
    assert loaded.note == ""
    info: EnvInfo = loaded.info
    assert loaded.cast.seats(info).tolist() == [1, 0]
    assert replace(loaded.cast, mapping="by_agent").seats(info).tolist() == [0, 1]
    assert set(sf.evaluate(path, f"{HERE}:Chosen", episodes=5, policy_id=0).agents) == {1}


def test_a_run_that_has_fewer_policies_than_before_plays_with_those_that_it_has(tmp_path: Path) -> None:
    path = trained(tmp_path, policy_mapping="by_agent")
    assert len(candidate_of_experiment(path, "latest", greedy=False).paths) == 2
    flags = SMALL | {"num_policies": 1, "train_for_env_steps": 700}
    sf.train(f"{HERE}:Chosen", train_dir=str(tmp_path), experiment="run", **flags)
    assert len(candidate_of_experiment(path, "latest", greedy=False).paths) == 1
