"""Policies that act and do not learn."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import sf
from sf.config import check
from sf.errors import CheckpointError, ConfigError
from sf.policy import checkpoints
from tests.helpers.lab import make_config

SMALL: dict[str, Any] = {
    "env": "sf/TwoAgentEcho-v0", "seed": 1, "serial_mode": True, "async_rl": False, "num_workers": 1,
    "num_envs_per_worker": 2, "rollout": 16,
}  # fmt: skip


def variables(path: Path, policy_id: int = 0) -> dict[str, torch.Tensor]:
    """Those of the newest policy of a run."""
    return checkpoints.load_newest(path / f"checkpoint_p{policy_id}").network.variables()


def differ(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return any(not torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of one policy."""
    path = tmp_path_factory.mktemp("earlier")
    sf.train(train_dir=str(path), experiment="one", train_for_env_steps=300, **SMALL)
    return path / "one"


@pytest.mark.more
def test_a_frozen_policy_acts_as_it_was_and_the_other_one_learns(earlier: Path, tmp_path: Path) -> None:
    settings = SMALL | {"num_policies": 2, "policy_mapping": "by_agent", "train_dir": str(tmp_path)}
    settings |= {"experiment": "two", "frozen_policies": json.dumps({"1": str(earlier)})}
    result = sf.train(train_for_env_steps=600, **settings)
    assert result.exit_reason == "train_for_env_steps reached"
    before, own = variables(earlier), variables(tmp_path / "two")
    assert not differ(before, variables(tmp_path / "two", 1))
    assert differ(before, own)
    points = [json.loads(line) for line in (tmp_path / "two/metrics.jsonl").read_text().splitlines()]
    learned = {number: max(point["frames"] for point in points if point["policy_id"] == number) for number in (0, 1)}
    assert learned[0] >= 600
    assert not any(tag.startswith("train/") for point in points if point["policy_id"] == 1 for tag in point)
    assert any("reward/reward" in point for point in points if point["policy_id"] == 1), "it plays"
    sf.train(train_for_env_steps=900, **settings)
    assert not differ(before, variables(tmp_path / "two", 1)), "also after a resume"
    assert differ(own, variables(tmp_path / "two"))


@pytest.mark.more
def test_policies_to_train_says_who_learns_and_may_change_when_a_run_goes_on(tmp_path: Path) -> None:
    settings = SMALL | {"num_policies": 2, "policy_mapping": "by_agent", "experiment": "two"}
    settings["train_dir"], path = str(tmp_path), tmp_path / "two"
    sf.train(train_for_env_steps=300, policies_to_train=(1,), **settings)
    first = [variables(path, number) for number in (0, 1)]
    versions = [checkpoints.load_newest(path / f"checkpoint_p{number}").version for number in (0, 1)]
    assert versions[0] == 0 < versions[1]
    sf.train(train_for_env_steps=600, policies_to_train=(0,), **settings)
    second = [variables(path, number) for number in (0, 1)]
    assert differ(first[0], second[0])
    assert not differ(first[1], second[1])
    assert checkpoints.load_newest(path / "checkpoint_p1").version == versions[1]


def test_the_reward_that_ends_a_run_is_that_of_policies_that_learn(earlier: Path, tmp_path: Path) -> None:
    """The mapping never names the frozen policy, which therefore has no reward."""
    result = sf.train(
        train_dir=str(tmp_path), experiment="two", num_policies=2,
        policy_mapping="tests.learner.test_frozen:only_first",
        frozen_policies=json.dumps({"1": str(earlier)}), stop_at_reward=0.1, stop_at_reward_episodes=4,
        train_for_env_steps=20_000, **SMALL,
    )  # fmt: skip
    assert result.exit_reason == "stop_at_reward reached"


def only_first(agent: int, episode: int, random: Any) -> int:
    """A mapping."""
    return 0


def test_another_network_is_refused(earlier: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        sf.train(
            train_dir=str(tmp_path), experiment="two", num_policies=2, frozen_policies=json.dumps({"1": str(earlier)}),
            encoder_mlp_layers=(32,), train_for_env_steps=100, **SMALL,
        )  # fmt: skip
    assert "holds another network than the policies of this run" in str(caught.value)
    assert "Use the flags of the model that it was trained with." in str(caught.value)


WRONG_TO_TRAIN = {
    (): "policies_to_train names no policy, so nothing would learn. Name one.",
    (0, 2): "policies_to_train=0 2 names policy 2, and num_policies=2. Name those from 0 to 1, or raise --num_pol",
    (1,): "policies_to_train=1 trains policy 1, and frozen_policies freezes it. Leave one out.",
}


@pytest.mark.parametrize("numbers", WRONG_TO_TRAIN)
def test_policies_to_train_that_are_none_are_refused(numbers: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        check(make_config(num_policies=2, policies_to_train=numbers, frozen_policies='{"1": "a:b"}'))
    assert WRONG_TO_TRAIN[numbers] in str(caught.value)


WRONG = {
    "[1]": "is not a JSON object of number and directory. Write it like --frozen_policies=",
    '{"1": 2}': "is not a JSON object of number and directory.",
    '{"2": "."}': "names policy 2, and num_policies=2 makes 0, 1. Name one of them, or raise --num_policies.",
    '{"0": ".", "1": "."}': "freezes every policy, so nothing would learn. Leave one out.",
}


def test_a_directory_is_asked_for_at_the_beginning_alone(earlier: Path, tmp_path: Path) -> None:
    """A policy of the run is loaded, and the run goes on, when the other run is gone."""
    gone = tmp_path / "gone"
    settings = SMALL | {"num_policies": 2, "train_dir": str(tmp_path), "experiment": "two"}
    settings |= {"frozen_policies": json.dumps({"1": str(gone)})}
    with pytest.raises(ConfigError, match=r"there is no directory .*gone\. Name that of a run"):
        sf.train(train_for_env_steps=200, **settings)
    shutil.copytree(earlier / "checkpoint_p0", gone)
    sf.train(train_for_env_steps=200, **settings)
    shutil.rmtree(gone)
    sf.train(train_for_env_steps=400, **settings)
    assert not differ(variables(earlier), variables(tmp_path / "two", 1))


@pytest.mark.more
def test_schedules_count_the_policies_that_learn(earlier: Path, tmp_path: Path) -> None:
    """The learning rate falls to the last part of it at the end, and not in the middle."""
    sf.train(
        train_dir=str(tmp_path), experiment="two", num_policies=2, policy_mapping="by_agent", train_for_env_steps=1600,
        lr_schedule="linear", learning_rate=1e-3, frozen_policies=json.dumps({"1": str(earlier)}), **SMALL,
    )  # fmt: skip
    points = [json.loads(line) for line in (tmp_path / "two/metrics.jsonl").read_text().splitlines()]
    rates = [point["train/lr"] for point in points if "train/lr" in point]
    assert len(set(rates)) >= 10
    assert all(later < sooner for sooner, later in itertools.pairwise(rates[:-1]))


@pytest.mark.parametrize("text", WRONG)
def test_what_names_no_policies_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(make_config(num_policies=2, frozen_policies=text))
    assert WRONG[text] in str(caught.value)
