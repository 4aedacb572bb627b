"""Evaluation beside the training: one version, separate environments, a stated share, the best policy kept."""

from __future__ import annotations

import json
import math
import pickle
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sf
from sf.evaluator.last import evaluate_last
from sf.evaluator.worker import Evaluator
from sf.policy.checkpoints import load_newest
from sf.processes.signals import noted_signals
from sf.shared.messages import CheckpointSaved, EvaluationDone
from sf.shared.role import RoleSpec
from tests.helpers.commands import run, running, wait_for_new
from tests.helpers.lab import Lab, make_lab, step_until


def start(path: Path, env: str = "CartPole-v1", **flags: Any) -> tuple[Lab, list[Any], Evaluator]:
    lab = make_lab(path, env, eval_every_steps=128, eval_share=1.0, **{"eval_episodes": 5, **flags})
    *roles, evaluator = lab.build_all()
    assert isinstance(evaluator, Evaluator)
    return lab, roles, evaluator


def messages(lab: Lab) -> list[Any]:
    found, lab.told[:] = lab.told.copy(), []
    return [message for message in found if isinstance(message, (EvaluationDone, CheckpointSaved))]


def close(roles: list[Any], evaluator: Evaluator) -> None:
    for role in [*roles, evaluator]:
        role.close()


def evaluate(lab: Lab, roles: list[Any], evaluator: Evaluator) -> list[Any]:
    """Trains until an evaluation has begun, and then beside it until it is done."""
    step_until(roles, lambda: evaluator.is_playing or evaluator.step())
    while evaluator.is_playing:
        for role in roles:
            role.step()
        evaluator.step()
    return messages(lab)


def test_evaluation_is_played_with_one_version_on_environments_of_its_own(tmp_path: Path) -> None:
    lab, roles, evaluator = start(tmp_path, updates="fast")  # so that there are steps while it plays
    step_until(roles, lambda: evaluator.is_playing or evaluator.step())
    played = evaluator.networks[0].flat.clone()
    version = evaluator.versions[0]
    while evaluator.is_playing:
        for role in roles * 20:  # however short the episodes are
            role.step()
        evaluator.step()
    assert roles[0].update.version > version, "training has gone on meanwhile"
    assert torch.equal(evaluator.networks[0].flat, played)
    done = messages(lab)[0]
    assert (done.version, done.frames) == (version, evaluator.frames[0])
    assert done.frames % roles[0].frames_per_iteration == 0
    assert done.frames >= 128
    episodes = evaluator.play.tally.episodes[0]
    assert len(episodes.rewards) == done.episodes == 5
    assert episodes.rewards == episodes.lengths, "CartPole"
    numbers = (np.mean, np.std, np.min, np.max, np.mean)
    found = done.reward, done.reward_std, done.reward_min, done.reward_max, done.length
    assert found == pytest.approx([number(episodes.rewards) for number in numbers])
    close(roles, evaluator)


def test_fault_f3_s2_scores_of_many_episodes_are_a_message_of_one_size(tmp_path: Path) -> None:
    lab, roles, evaluator = start(tmp_path, eval_episodes=500)
    (done, *_) = evaluate(lab, roles, evaluator)
    assert done.episodes == 500
    assert len(pickle.dumps(done)) <= 1024
    close(roles, evaluator)


def test_best_checkpoint_holds_the_policy_that_was_evaluated(tmp_path: Path) -> None:
    lab, roles, evaluator = start(tmp_path)
    step_until(roles, lambda: evaluator.is_playing or evaluator.step())
    played, version = evaluator.networks[0].flat.clone(), evaluator.versions[0]
    while evaluator.is_playing:
        for role in roles:
            role.step()
        evaluator.step()
    done, saved = messages(lab)
    best = load_newest(tmp_path / "default_experiment/checkpoint_p0/best")
    assert best.version == saved.version == version
    assert torch.equal(best.network.flat, played)
    assert evaluator.best == [pytest.approx(done.reward)]
    close(roles, evaluator)


def test_worse_score_does_not_replace_the_best_also_after_a_resume(tmp_path: Path) -> None:
    lab, roles, evaluator = start(tmp_path)
    evaluate(lab, roles, evaluator)
    evaluator.best = [math.inf]
    assert [type(message) for message in evaluate(lab, roles, evaluator)] == [EvaluationDone]
    best = load_newest(tmp_path / "default_experiment/checkpoint_p0/best")
    close(roles, evaluator)
    again = lab.build("eval")
    assert again.best == [pytest.approx(best_reward(best.path))]
    again.close()


def test_fault_b7_score_that_is_no_number_is_told_and_never_the_best(tmp_path: Path) -> None:
    lab, roles, evaluator = start(tmp_path)
    evaluate(lab, roles, evaluator)
    best = evaluator.best.copy()
    evaluator.play.tally.episodes[0].rewards[:] = [1e9, math.nan, math.inf, -math.inf, 1.0]
    evaluator._finish()
    (done,) = messages(lab)
    assert math.isnan(done.reward)
    assert evaluator.best == best
    close(roles, evaluator)


def best_reward(path: Path) -> float:
    text = "".join(file.read_text() for file in path.glob("*.json"))
    found = re.search(r'"reward": ?([\d.]+)', text)
    assert found, text
    return float(found[1])


@pytest.mark.parametrize("episodes", [5, 20])  # the second takes Gymnasium's own vectorized CartPole
def test_same_seeds_in_every_evaluation(tmp_path: Path, episodes: int) -> None:
    _, roles, evaluator = start(tmp_path, eval_episodes=episodes)
    step_until(roles, lambda: evaluator.is_playing or evaluator.step())
    rewards = []
    for _ in range(2):
        evaluator.play.start()
        while not evaluator.play.tally.is_complete:
            evaluator.play.step()
        rewards.append(evaluator.play.tally.episodes[0].rewards)
    assert rewards[0] == rewards[1]
    close(roles, evaluator)


@pytest.mark.parametrize("deterministic", [True, False])
def test_actions_are_the_likeliest_ones_or_drawn(tmp_path: Path, deterministic: bool) -> None:
    _, roles, evaluator = start(tmp_path, eval_deterministic=deterministic, eval_episodes=1)
    step_until(roles, lambda: evaluator.is_playing or evaluator.step())
    are_likeliest = []
    for _ in range(3):  # an untrained policy soon draws the other one
        evaluator.play.start()
        while not evaluator.play.tally.is_complete:
            seen = {name: torch.from_numpy(array.copy()) for name, array in evaluator.play._observations.items()}
            evaluator.play.step()
            likeliest = evaluator.networks[0].forward(seen, None)[0].argmax(-1)
            are_likeliest.append(torch.equal(likeliest, torch.from_numpy(evaluator.play._actions)))
    assert all(are_likeliest) == deterministic
    close(roles, evaluator)


def test_it_rests_between_two_steps(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, eval_every_steps=128, eval_share=0.001)
    *roles, evaluator = lab.build_all()
    step_until(roles, lambda: evaluator.step())
    plays = evaluator.record["play"]
    assert not any(evaluator.step() for _ in range(5)), "999 times as long as it has played"
    assert evaluator.record["play"] == plays
    close(roles, evaluator)


def test_several_policies_are_evaluated_together(tmp_path: Path) -> None:
    lab, roles, evaluator = start(tmp_path, "sf/TwoAgentEcho-v0", num_policies=2)
    found = [message for message in evaluate(lab, roles, evaluator) if isinstance(message, EvaluationDone)]
    assert [done.policy_id for done in found] == [0, 1]
    assert [done.episodes for done in found] == [5, 5]
    close(roles, evaluator)


@pytest.mark.more
@pytest.mark.parametrize("mode", ["--serial_mode=False", "--serial_mode=True"])
def test_evaluations_are_shown_and_written(tmp_path: Path, mode: str) -> None:
    flags = (
        "--eval_every_steps=4000",
        "--eval_episodes=4",
        "--eval_share=1.0",
        "--train_for_env_steps=40000",
        "--seed=1",
    )
    finished = run(tmp_path, "--env=CartPole-v1", mode, *flags)
    assert finished.code == 0, finished.err
    pattern = r"Evaluation of policy 0, policy_version \d+, \d+ frames: reward [\d.]+ ± [\d.]+ \(min .* in 4 episodes"
    assert re.search(pattern, finished.out), finished.out
    lines = (tmp_path / "train_dir/default_experiment/metrics.jsonl").read_text().splitlines()
    points = [point for point in map(json.loads, lines) if "eval/reward" in point]
    assert points
    assert all(point["eval/frames"] <= point["frames"] and point["eval/episodes"] == 4 for point in points)
    assert load_newest(tmp_path / "train_dir/default_experiment/checkpoint_p0/best").frames > 0
    assert (
        points[-1]["eval/policy_version"]
        == load_newest(tmp_path / "train_dir/default_experiment/checkpoint_p0").version
    )


@pytest.mark.more
@pytest.mark.parametrize("mode", ["--serial_mode=False", "--serial_mode=True"])
def test_last_policy_of_a_short_run_is_evaluated(tmp_path: Path, mode: str) -> None:
    flags = "--eval_every_steps=1000000", "--eval_episodes=4", "--train_for_env_steps=4000", "--num_workers=1"
    finished = run(tmp_path, "--env=CartPole-v1", mode, *flags)
    assert finished.code == 0, finished.err
    assert len(re.findall("Evaluation of policy 0", finished.out)) == 1
    checkpoints = tmp_path / "train_dir/default_experiment/checkpoint_p0"
    best, last = load_newest(checkpoints / "best"), load_newest(checkpoints)
    assert best.version == last.version > 0
    assert torch.equal(best.network.flat, last.network.flat)


def test_evaluation_of_the_last_policy_that_fails_leaves_the_run_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    broken = RoleSpec("eval-0", "tests.helpers.broken_encoder:Evaluator", {}, "eval", 0)
    with noted_signals(second_one_exits=False) as signals:
        assert evaluate_last(broken, signals) == []
    assert (
        "The last policy was not evaluated: The evaluation of the last policy failed with NameError"
        in capsys.readouterr().out
    )


def test_signal_skips_the_evaluation_of_the_last_policy(tmp_path: Path) -> None:
    flags = "--eval_every_steps=1000000", "--eval_episodes=1000000", "--num_workers=1", "--train_for_env_steps=4000"
    with running(tmp_path, "--env=CartPole-v1", *flags) as command:
        command.wait_for_text("Evaluating the last policy")
        command.process.send_signal(signal.SIGINT)
        finished = command.finish(20.0)
    assert finished.code == 0, finished.err
    assert "The last policy was not evaluated; sf-eval does it." in finished.out


@pytest.mark.more
def test_fault_e1_run_that_is_stopped_by_a_signal_evaluates_nothing_more(tmp_path: Path) -> None:
    with running(tmp_path, "--env=CartPole-v1", "--eval_every_steps=1000000", "--num_workers=1") as command:
        command.wait_for_text("Fps is")
        command.process.send_signal(signal.SIGTERM)
        finished = command.finish(20.0)
    assert finished.code == 143, finished.err
    assert "Evaluating the last policy" not in finished.out


@pytest.mark.more
@pytest.mark.parametrize("fault", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)])
def test_fault_a9_evaluator_that_dies_or_hangs_is_replaced(tmp_path: Path, fault: signal.Signals) -> None:
    """Its successor evaluates; the learner, which writes to nobody else's pipe, notices nothing."""
    flags = (
        "--eval_every_steps=1",
        "--eval_episodes=4",
        "--eval_share=1",
        "--num_workers=1",
        "--num_envs_per_worker=4",
        "--env_step_timeout=2",
        "--env_reset_timeout=2",
    )
    with running(
        tmp_path, "--env=tests.environments.fault:Fault-v0", '--env_kwargs={"step_s": 0.001}', *flags
    ) as command:
        command.wait_for_text("Evaluation of policy 0")
        (evaluator,) = command.named("sf-eval-0")
        evaluator.send_signal(fault)
        command.wait_for_text("Restart 1 of eval-0")
        wait_for_new(command, "sf-eval-0", evaluator.pid)
        evaluations = command.out.count("Evaluation of policy 0")
        command.wait_for(lambda: command.out.count("Evaluation of policy 0") > evaluations, "another evaluation")
        command.process.send_signal(signal.SIGTERM)
        assert command.finish(20.0).code == 143


@pytest.mark.more
def test_a_resumed_run_evaluates_with_the_episodes_of_before(tmp_path: Path) -> None:
    """Also where no seed is given: it keeps the one that its first start has drawn."""
    flags: dict[str, Any] = {
        "serial_mode": True, "num_envs_per_worker": 4, "rollout": 16, "batch_size": 64, "num_batches_per_epoch": 1,
        "num_epochs": 1, "eval_every_steps": 500, "eval_episodes": 5, "eval_share": 1.0, "experiment": "run",
        "train_dir": str(tmp_path),
    }  # fmt: skip
    path = sf.train("CartPole-v1", num_workers=1, train_for_env_steps=2000, **flags).path
    seed = json.loads((path / "config.json").read_text())["run"]["seed"]
    sf.train("CartPole-v1", num_workers=2, train_for_env_steps=3000, **flags)
    assert json.loads((path / "config.json").read_text())["run"]["seed"] == seed


def test_seeds_of_evaluations_follow_from_that_of_the_run_alone(tmp_path: Path) -> None:
    def seed_of(name: str, **flags: Any) -> int:
        _, roles, evaluator = start(tmp_path / name, **flags)
        close(roles, evaluator)
        return evaluator.play.seed

    assert seed_of("one", seed=3) == seed_of("sizes", seed=3, num_workers=2, worker_num_splits=1)
    assert seed_of("other", seed=4) != seed_of("again", seed=3)
