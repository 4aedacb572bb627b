"""`sf-eval`: which checkpoint it plays, how it counts episodes, and what it refuses."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sf.cli import evaluate
from sf.config import Config, ModelConfig, RolloutConfig, RunConfig
from sf.envs import EnvSource, find_env, probe, register_env
from sf.envs.stepping import Ended
from sf.errors import CheckpointError
from sf.evaluator.cast import Cast
from sf.evaluator.playing import Play, play
from sf.evaluator.summary import bootstrap_interval, summarize
from sf.evaluator.tally import Episodes, Tally
from sf.policy import ActorCritic, CollectPolicy, GreedyPolicy, PolicySaver, TrainedPolicy
from sf.policy.checkpoints import load_newest
from sf.spaces import EnvInfo
from sf.storage import checkpoint
from tests.environments.toys import Toy, TwoToys

SMALL = ModelConfig(encoder_mlp_layers=(8,))


class Counting(Toy):
    """Instance i of a series ends its episodes after i + 1 steps; reward 1 in each."""

    series = 0

    def __init__(self) -> None:
        super().__init__()
        self.length, self.steps = Counting.series + 1, 0
        Counting.series += 1

    def reset(self, **_: Any) -> Any:
        self.steps = 0
        return super().reset()

    def step(self, action: Any) -> Any:
        self.steps += 1
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, self.steps == self.length, truncated, info


def save(directory: Path, version: int = 3, env: str = "CartPole-v1", changes: Any = None) -> ActorCritic:
    """Writes what a learner would write, with an untrained policy."""
    config = Config(RunConfig(env=env), RolloutConfig(), model=SMALL)
    info = probe(find_env("CartPole-v1"))
    policy = ActorCritic(info, SMALL)
    tensors = {f"policy.{name}": tensor for name, tensor in policy.variables().items()} | {"version": torch.tensor(3)}
    data: dict[str, Any] = {"config": config.to_json(), "env": info.to_json(), "reward": 1.0}
    directory.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.save(directory, version, 100 * version, tensors, data | (changes or {}))
    return policy


def acting(info: EnvInfo) -> CollectPolicy:
    return CollectPolicy(ActorCritic(info, SMALL), validate_args=False)


def command(capsys: pytest.CaptureFixture[str], tmp_path: Path, *arguments: str) -> tuple[int, str]:
    code = evaluate.main([f"--train_dir={tmp_path}", *arguments])
    captured = capsys.readouterr()
    errors = [line for line in captured.err.splitlines(keepends=True) if not line.startswith("Loading torch")]
    return code, captured.out + "".join(errors)  # without the line that comes on a slow machine


def end(row: int, **info: Any) -> Ended:
    return Ended(row, terminated=True, truncated=False, info=info)


class TestCounting:
    def test_every_environment_plays_its_share_so_that_short_episodes_are_not_preferred(self) -> None:
        register_env("Counting", Counting)
        source = find_env("Counting")
        info = probe(source)
        Counting.series = 0
        (episodes,) = play(Cast([acting(info)]), source, info, num_episodes=7, seed=0)
        assert sorted(episodes.lengths) == [1, 2, 3, 4, 5, 6, 7]
        assert sorted(episodes.rewards) == [1, 2, 3, 4, 5, 6, 7]

    def test_shares_differ_by_one_at_most(self) -> None:
        tally = Tally(num_episodes=5, num_envs=2, policy_ids=np.zeros(2, np.int64))
        for _ in range(9):
            tally.add(np.array([1.0, 10.0], np.float32), [end(0), end(1)])
        assert tally.is_complete
        assert sorted(tally.episodes[0].rewards) == [1.0, 1.0, 1.0, 10.0, 10.0]

    def test_reward_of_an_unfinished_episode_does_not_count(self) -> None:
        tally = Tally(num_episodes=2, num_envs=1, policy_ids=np.zeros(1, np.int64))
        for rows in ([], [0], [], []):
            tally.add(np.ones(1, np.float32), [end(row) for row in rows])
        assert (tally.episodes, tally.is_complete) == (
            [Episodes([2.0], [2], metrics=[{}], agents=[0], envs=[0], games=[0])],
            False,
        )

    def test_two_policies_play_two_agents(self) -> None:
        register_env("Two", TwoToys)
        source = EnvSource("Two", {"truncated": True}, TwoToys)
        info = probe(source)
        played = play(Cast([acting(info), acting(info)]), source, info, num_episodes=40, seed=0)
        assert [episodes.lengths for episodes in played] == [[1] * 40, [1] * 40]
        assert [[*summarize(episodes).agents] for episodes in played] == [[0], [1]], "that of agent 0 as well"

    def test_more_policies_than_agents_play_in_environments_of_their_own(self) -> None:
        source = find_env("CartPole-v1")
        info = probe(source)
        first, second = play(Cast([acting(info), acting(info)]), source, info, num_episodes=5, seed=0)
        assert len(first.rewards) == len(second.rewards) == 5

    def test_memory_begins_anew_with_each_episode(self) -> None:
        source = find_env("tests.environments.toys:Leaky-v0", {"every": 10**9})
        policy = CollectPolicy(ActorCritic(probe(source), ModelConfig(use_rnn=True, rnn_size=8)), validate_args=False)
        playing = Play(Cast([policy]), source, probe(source), num_episodes=3, seed=0, max_envs=1)
        playing.start()
        values = []
        while not playing.tally.is_complete:
            playing.step()
            values.append(playing.last_step.info.value_prediction.item())
        assert len(set(values[:20])) == 20
        assert values == pytest.approx(values[:20] * 3)

    def test_same_seed_plays_the_same_episodes(self) -> None:
        source = find_env("CartPole-v1")
        info = probe(source)
        policy = acting(info)
        first, second = (play(Cast([policy]), source, info, 5, seed=4) for _ in range(2))
        assert first == second
        assert first != play(Cast([policy]), source, info, 5, seed=5)


class TestLoading:
    def test_newest_checkpoint_gives_the_same_policy(self, tmp_path: Path) -> None:
        save(tmp_path, version=3)
        policy = save(tmp_path, version=4)
        saved = load_newest(tmp_path)
        assert (saved.version, saved.frames, saved.info.env_id) == (4, 400, "CartPole-v1")
        assert torch.equal(saved.network.flat, policy.flat)

    def test_no_checkpoint(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match=r"There is no checkpoint in .*\. Train longer, or look at"):
            load_newest(tmp_path)

    def test_fault_d7_checkpoint_of_another_shape_lists_the_differences(self, tmp_path: Path) -> None:
        other = Config(RunConfig(env="CartPole-v1"), model=ModelConfig(encoder_mlp_layers=(16,))).to_json()
        save(tmp_path, changes={"config": other})
        with pytest.raises(CheckpointError, match=r"(?s)does not fit the policy that it describes:.*float32\[16, 4\]"):
            load_newest(tmp_path)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"config": {"run": {"evn": "x"}}}, "run.evn is unknown. Did you mean env"),
            ({"config": {"run": {"env": "x", "device": "tpu"}}}, "must be one of cpu, gpu, found 'tpu'"),
            ({"env": {"env_id": "x"}}, "does not say what its policy is for: KeyError"),
            ({"env": None}, "does not say what its policy is for"),
        ],
    )
    def test_fault_g4_checkpoint_edited_by_hand_is_refused(self, tmp_path: Path, changes: Any, message: str) -> None:
        save(tmp_path, changes=changes)
        with pytest.raises(CheckpointError, match=message):
            load_newest(tmp_path)


class TestCommand:
    def test_result_of_an_experiment(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        save(tmp_path / "run1" / "checkpoint_p0")
        code, shown = command(capsys, tmp_path, "--experiment=run1", "--num_episodes=3")
        assert code == 0
        number = r"\d+\.\d{3}"
        assert re.fullmatch(
            r"Policy 0: .*/run1/checkpoint_p0/checkpoint_000000003_300 \(policy_version 3, 300 frames\)\n"
            rf"  3 episodes of CartPole-v1: reward {number} \+- {number} \(min {number}, max {number}\), "
            r"length \d+\.\d\n"
            rf"  mean with 95% confidence from {number} to {number}; quantiles 5% {number}, .*, 95% {number}\n",
            shown,
        )

    def test_best_checkpoint_and_deterministic_actions(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        save(tmp_path / "run1" / "checkpoint_p0", version=5)
        save(tmp_path / "run1" / "checkpoint_p0" / "best", version=2)
        flags = ("--experiment=run1", "--num_episodes=1", "--checkpoint=best", "--deterministic=True")
        code, shown = command(capsys, tmp_path, *flags)
        assert code == 0
        assert "policy_version 2" in shown

    def test_several_policies_side_by_side_and_every_episode(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        network = save(tmp_path / "run1" / "checkpoint_p0")
        save(tmp_path / "run1" / "checkpoint_p0" / "best", version=2)
        save(tmp_path / "run2" / "checkpoint_p0", version=7)
        PolicySaver(GreedyPolicy(TrainedPolicy(network)), train_step=9).save(tmp_path / "saved")
        code, shown = command(
            capsys,
            tmp_path,
            "--experiment",
            "run1",
            "run2",
            "--checkpoint=latest",
            f"--policy={tmp_path / 'saved'}",
            "--env=CartPole-v1",
            "--num_episodes=4",
            f"--csv={tmp_path / 'episodes.csv'}",
        )
        assert code == 0, shown
        assert f"Policy 0: {tmp_path / 'saved'} (policy_version 9)" in shown
        table = shown.splitlines()[-4:]
        assert table[0].split() == ["policy", "mean", "low", "high", "std", "min", "median", "max", "length"]
        means = [float(line.split()[-8]) for line in table[1:]]
        assert means == sorted(means, reverse=True)
        with open(tmp_path / "episodes.csv") as file:
            rows = list(csv.DictReader(file))
        assert [row["policy"] for row in rows] == ["run1 latest"] * 4 + ["run2 latest"] * 4 + [
            str(tmp_path / "saved")
        ] * 4
        assert all(float(row["reward"]) == int(row["length"]) for row in rows)

    def test_a_mistake_shows_before_the_first_episode(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        save(tmp_path / "run1" / "checkpoint_p0")
        (tmp_path / "old.csv").write_text("precious")
        flags = ("--experiment=run1", "--policy=/nowhere", f"--csv={tmp_path / 'old.csv'}")
        code, shown = command(capsys, tmp_path, *flags)
        assert code == 4
        assert "episodes of" not in shown
        assert (tmp_path / "old.csv").read_text() == "precious"

    @pytest.mark.more
    def test_processes_share_the_episodes(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        save(tmp_path / "run1" / "checkpoint_p0")
        results = []
        for _ in range(2):
            flags = ("--experiment=run1", "--num_episodes=7", "--num_workers=3", f"--csv={tmp_path / 'e.csv'}")
            assert command(capsys, tmp_path, *flags)[0] == 0
            results.append((tmp_path / "e.csv").read_text())
        assert results[0] == results[1]
        assert len(results[0].splitlines()) == 8

    def test_a_named_checkpoint(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for version in (3, 4):
            save(tmp_path / "run1" / "checkpoint_p0", version=version)
        flags = ("--experiment=run1", "--num_episodes=2", "--checkpoint", "latest", "checkpoint_000000003_300")
        code, shown = command(capsys, tmp_path, *flags)
        assert code == 0
        assert "(policy_version 4, 400 frames)" in shown
        assert "(policy_version 3, 300 frames)" in shown

    def test_a_few_of_many_experiments_are_named(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for letter in "gfedcba":
            (tmp_path / letter / "checkpoint_p0").mkdir(parents=True)
        assert "Found: a, b, c, d, e, and others." in command(capsys, tmp_path, "--experiment=run1")[1]

    @pytest.mark.parametrize(
        ("flags", "code", "message"),
        [
            (
                [],
                2,
                "UsageError: --experiment and --policy and --match are missing. Give one like --experiment=default_",
            ),
            (["--experiment=run1", "--csv=/no/file"], 2, "UsageError: --csv=/no/file cannot be written: No such file"),
            (["--experiment=run1", "--checkpoint=x"], 4, "there are latest, best, checkpoint_000000003_300."),
            (["--policy=/nowhere", "--env=CartPole-v1"], 4, "CheckpointError: There is no policy in /nowhere"),
            (["--experiment=run1", "--num_episodes=0"], 2, "ConfigError: num_episodes=0 must be at least 1."),
            (["--experiment=run1", "--env_kwargs=["], 2, "ConfigError: env_kwargs='[' is not a JSON object ("),
            (["--experiment=run2"], 4, "ExperimentError: There is no experiment 'run2' with checkpoints in "),
            (["--experiment=run2"], 4, "Did you mean run1?"),
            (["--experiment=run1", "--checkpoint=best"], 4, "CheckpointError: There is no checkpoint in "),
            (
                ["--experiment=run1", "--env=Acrobot-v1"],
                3,
                "EnvError: Acrobot-v1 is not what it should be. Expected: 1",
            ),
        ],
    )
    def test_refusals(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], code: int, message: str
    ) -> None:
        save(tmp_path / "run1" / "checkpoint_p0")
        found, shown = command(capsys, tmp_path, *flags)
        assert found == code
        assert message in shown

    def test_fault_g4_file_does_not_get_to_import_a_module(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        save(tmp_path / "run1" / "checkpoint_p0", env="os:CartPole-v1")
        code, shown = command(capsys, tmp_path, "--experiment=run1")
        assert code == 2
        assert "which imports a module. If you trust it, name it: --env=os:CartPole-v1" in shown
        code, _ = command(capsys, tmp_path, "--experiment=run1", "--num_episodes=1", "--env=os:CartPole-v1")
        assert code == 0


def test_a_saved_policy_needs_the_name_of_its_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    info = probe(find_env("CartPole-v1"))
    PolicySaver(TrainedPolicy(ActorCritic(info, SMALL))).save(tmp_path / "saved")
    code, shown = command(capsys, tmp_path, f"--policy={tmp_path / 'saved'}")
    assert code == 2
    assert "A saved policy does not know its environment. Give it like --env=CartPole-v1." in shown


class TestSummary:
    def test_numbers(self) -> None:
        summary = summarize(Episodes([1.0, 3.0, 5.0, 7.0], [10, 20, 30, 40]))
        assert (summary.num_episodes, summary.mean, summary.minimum, summary.maximum) == (4, 4.0, 1.0, 7.0)
        assert summary.std == pytest.approx(np.std([1, 3, 5, 7]))
        assert (summary.quantiles[2], summary.mean_length) == (4.0, 25.0)
        assert summary.low < 4.0 < summary.high

    def test_interval_covers_the_mean_as_often_as_it_says(self) -> None:
        random = np.random.default_rng(1)
        covered = 0
        for _ in range(200):
            low, high = bootstrap_interval(random.exponential(size=80))
            covered += low <= 1.0 <= high
        assert 0.88 <= covered / 200 <= 0.99

    def test_interval_is_that_of_the_normal_distribution_for_many_values(self) -> None:
        values = np.random.default_rng(2).normal(3.0, 2.0, 5000)
        low, high = bootstrap_interval(values)
        half = 1.96 * values.std() / 5000**0.5
        assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.006)


def test_env_info_of_a_checkpoint_is_the_probed_one(tmp_path: Path) -> None:
    save(tmp_path)
    assert load_newest(tmp_path).info == EnvInfo.from_json(probe(find_env("CartPole-v1")).to_json())


SCRIPT = """
import sys
import gymnasium
import sf
from sf.cli.train import main
from gymnasium.envs.classic_control import CartPoleEnv

sf.register_env("Mine", CartPoleEnv)

if __name__ == "__main__":
    sys.exit(main())
"""


@pytest.mark.more
@pytest.mark.parametrize("folder", [".", "scripts of mine"])
def test_printed_command_plays_what_a_script_has_registered(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / "my_run.py").write_text(SCRIPT)
    limits = "--train_for_env_steps=1 --serial_mode=True --num_envs_per_worker=2 --train_dir='of mine'"
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

    def shell(line: str) -> str:
        return subprocess.run(
            line, shell=True, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
        ).stdout

    printed = shell(f"python {shlex.quote(f'{folder}/my_run.py')} --env=Mine {limits}")
    line = printed.partition("play the policy:")[2].partition("\n")[0]
    assert "5 episodes of Mine: reward" in shell(f"{line} --num_episodes=5")


def test_numbers_as_json_for_other_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "run" / "checkpoint_p0")
    words = [f"--train_dir={tmp_path}", "run", "--num_episodes=12", f"--csv={tmp_path / 'all.csv'}"]
    assert evaluate.main([*words, "--json"]) == 0
    shown = capsys.readouterr()
    (policy,) = json.loads(shown.out)["policies"].values()
    with (tmp_path / "all.csv").open() as file:
        rewards = [float(row["reward"]) for row in csv.DictReader(file)]
    assert policy["num_episodes"] == len(rewards) == 12
    assert policy["mean"] == pytest.approx(np.mean(rewards))
    assert policy["low"] <= policy["mean"] <= policy["high"]
    assert policy["quantiles"][2] == pytest.approx(np.median(rewards))
    assert policy["metrics"] == {}
    assert "Every episode is in" in shown.err


def test_json_has_null_for_what_is_no_number() -> None:
    summary = summarize(Episodes([1.0, 3.0], [3, 4], metrics=[{"keys": 2.0}, {}]))
    shown = evaluate.as_json([("one", replace(summary, maximum=float("inf"), std=float("nan")))])
    policy = json.loads(shown)["policies"]["one"]
    assert (policy["mean"], policy["maximum"], policy["std"]) == (2.0, None, None)
    assert policy["metrics"]["keys"] == {"mean": 2.0, "low": 2.0, "high": 2.0, "num_episodes": 1}
