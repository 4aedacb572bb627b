"""Whole runs, as a user starts them: every mode, what they print and leave behind, and how they end."""

from __future__ import annotations

import json
import math
import re
import resource
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.commands import (
    EXPERIMENT,
    Finished,
    newest_version,
    run,
    running,
    summary_of,
    version_of,
    wait_for_first_step,
    wait_for_saved_steps,
)
from tests.helpers.events import read_events

OPEN = ("--env=CartPole-v1", "--num_workers=2", "--num_envs_per_worker=4", "--rollout=32", "--seed=1")
SMALL = (*OPEN, "--policy_workers_per_policy=1")
A2C = ("--async_rl=False", "--num_epochs=1", "--num_batches_per_epoch=1", "--batch_size=256")
MODES = {
    "async": SMALL,
    "acting": OPEN,
    "sync": (*SMALL, "--async_rl=False"),
    "a2c": (*SMALL, *A2C),
    "serial": ("--env=CartPole-v1", "--serial_mode=True", "--num_envs_per_worker=8", "--seed=1"),
}


def matches(pattern: str, finished: Finished) -> list[re.Match[str]]:
    return [match for line in finished.lines if (match := re.fullmatch(pattern, line))]


@pytest.mark.more
@pytest.mark.parametrize("mode", MODES)
def test_s6_every_mode_trains_and_ends_well(tmp_path: Path, mode: str, oracles: dict[str, Any]) -> None:
    many_episodes = "--lr_schedule=constant"  # a policy that learns faster has longer ones
    finished = run(tmp_path, *MODES[mode], many_episodes, "--train_for_env_steps=20000")
    assert finished.code == 0, finished.err
    assert finished.err == ""
    assert re.search(r"Collected \{0: 2\d{4}\}, FPS: \d+\.\d", finished.out)
    reports = matches(oracles["A15"]["regex"], finished)
    rewards = matches(oracles["A16"]["regex"], finished)
    assert len(reports) >= 1
    assert len(rewards) <= len(reports)
    summary = summary_of(tmp_path)
    assert summary["exit_reason"] == "train_for_env_steps reached"
    assert 20_000 <= summary["frames"] < 24_000
    assert summary["policies"][0]["episodes"] > 100
    for name in ("config.json", "metrics.jsonl"):
        assert (tmp_path / EXPERIMENT / name).is_file()
    assert list((tmp_path / EXPERIMENT / ".summary" / "0").glob("events*"))


@pytest.mark.more
def test_roles_of_serial_mode_share_one_time(tmp_path: Path) -> None:
    flags = "--train_for_env_steps=8000", "--eval_every_steps=2000", "--eval_episodes=2"
    finished = run(tmp_path, *MODES["serial"], *flags)
    assert finished.code == 0, finished.err
    assert "In serial mode the roles take turns" in finished.out
    assert "the run back:" not in finished.out, "no advice about other processes"
    seconds = summary_of(tmp_path)["seconds"]
    assert set(seconds) == {"rollout-0", "inference-0-0", "learner-0", "eval-0"}
    busy = [1 - own["wait"] / sum(own.values()) for own in seconds.values()]
    assert 0.5 < sum(busy) < 1.05


@pytest.mark.more
@pytest.mark.parametrize(("inference", "groups"), [(1, 2), (0, 1)])
def test_s3_s4_a_forward_pass_serves_the_groups_that_wait_meanwhile(
    tmp_path: Path, inference: int, groups: int
) -> None:
    """Two workers of two groups ask while a large network is busy; a worker that acts for itself has one to serve."""
    large = ("--encoder_mlp_layers", "1024", "1024") if inference else ()
    flags = f"--policy_workers_per_policy={inference}", "--experiment_summaries_interval=1", "--train_for_seconds=6"
    finished = run(tmp_path, *OPEN, *flags, *large)
    assert finished.code == 0, finished.err
    assert json.loads((tmp_path / EXPERIMENT / "config.json").read_text())["rollout"]["worker_num_splits"] == groups
    served = [value for _, value in read_events(tmp_path / EXPERIMENT / ".summary/0")["stats/avg_request_count"]]
    assert min(served) > 1.2 if inference else set(served) == {1.0}
    assert max(served) <= 2 * groups


@pytest.mark.more
@pytest.mark.parametrize("mode", ["async", "acting"])
def test_a22_tags(tmp_path: Path, mode: str) -> None:
    finished = run(tmp_path, *MODES[mode], "--train_for_seconds=6", "--experiment_summaries_interval=1")
    assert finished.code == 0, finished.err
    curves = read_events(tmp_path / EXPERIMENT / ".summary" / "0")
    spread = ("", "_min", "_max")
    wanted = {"perf/_fps", "perf/_sample_throughput"}
    wanted |= {
        f"{tag}{end}" for tag in ("reward/reward", "len/len", "policy_stats/avg_true_objective") for end in spread
    }
    wanted |= {
        f"stats/{name}"
        for name in (
            "avg_request_count", "step_policy", "wait_policy", "master_process_memory_mb", "memory_learner",
            "memory_policy_worker",
        )
    }  # fmt: skip
    wanted |= {
        f"train/{name}"
        for name in (
            "version_diff_min", "version_diff_avg", "version_diff_max", "lr", "actual_lr", "grad_norm",
            "adam_max_second_moment", "num_sgd_steps", "loss", "policy_loss", "value_loss", "exploration_loss",
            "kl_loss", "entropy", "fraction_clipped", "kl_divergence", "kl_divergence_max", "ratio_min", "ratio_mean",
            "ratio_max", "max_abs_logprob", "value", "value_delta", "value_delta_max", "adv_min", "adv_max", "adv_std",
            "returns_running_mean", "returns_running_std", "valids_fraction", "same_policy_fraction",
            "obs_running_mean", "obs_running_std",
        )
    }  # fmt: skip
    wanted |= {f"slots/{side}" for side in ("allocated", "learned", "free", "in_flight")}
    assert wanted | {"faults/checkpoint_age"} <= set(curves), wanted - set(curves)
    wanted |= {f"faults/discarded_{why}" for why in ("worker_died", "not_learned", "unused")}
    wanted |= {f"faults/restarts{end}" for end in ("", "_signal", "_exception", "_hang", "_memory", "_exit")}
    wanted |= {f"faults/{name}" for name in ("failed_saves", "checkpoint_age", "skipped_steps", "oldest_heartbeat")}
    for points in curves.values():
        steps = [step for step, _ in points]
        assert steps == sorted(steps)
    sides = {side: curves[f"slots/{side}"][-1][1] for side in ("allocated", "learned", "free", "in_flight")}
    discarded = sum(points[-1][1] for tag, points in curves.items() if tag.startswith("faults/discarded_"))
    assert sides["allocated"] == sides["learned"] + discarded + sides["free"]
    assert sides["in_flight"] == 0
    lines = [json.loads(line) for line in (tmp_path / EXPERIMENT / "metrics.jsonl").read_text().splitlines()]
    assert wanted <= {tag for line in lines for tag in line}


@pytest.mark.more
def test_s2_processes_have_names_and_different_ids(tmp_path: Path) -> None:
    with running(tmp_path, *SMALL, in_new_python=True) as command:
        command.wait_for_text("Total num frames")
        names = ("sf-train", "sf-rollout-0", "sf-rollout-1", "sf-inference-0-0", "sf-learner-0")
        found = {name: command.named(name) for name in names}
        assert all(len(processes) == 1 for processes in found.values()), found
        assert len({processes[0].pid for processes in found.values()}) == len(names)
        for name in ("sf-rollout-0", "sf-train"):
            assert not any("torch" in mapped.path for mapped in found[name][0].memory_maps()), f"{name} imported torch"
        command.process.send_signal(signal.SIGTERM)
        assert command.finish().code == 143


def test_fault_d2_final_checkpoint_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """The files of the learner may not grow any more; nothing half-written is left."""
    with running(tmp_path, *SMALL) as command:
        wait_for_first_step(command)
        resource.prlimit(command.named("sf-learner-0")[0].pid, resource.RLIMIT_FSIZE, (20_000, 20_000))
        command.process.send_signal(signal.SIGTERM)
        finished = command.finish(20)
    assert finished.code == 4
    assert "The final checkpoint was not written" in finished.err
    told = finished.out.count("Warning: the checkpoint of policy 0 was not written")
    assert summary_of(tmp_path)["faults"]["faults/failed_saves"] == told >= 1, "the best one may be another"
    assert {path.name for path in (tmp_path / EXPERIMENT / "checkpoint_p0").iterdir()} <= {"best"}


def is_saved_after(version: int, path: Path) -> bool:
    return newest_version(path) > version


@pytest.mark.more
def test_fault_a8_killed_learner_ends_the_run(tmp_path: Path) -> None:
    with running(tmp_path, *SMALL, "--save_every_sec=1") as command:
        wait_for_first_step(command)
        wait_for_saved_steps(command)
        told = version_of(command)
        for _ in range(2):  # what is written at this moment may be older
            command.wait_for(partial(is_saved_after, newest_version(tmp_path), tmp_path), "another checkpoint")
        command.named("sf-learner-0")[0].kill()
        finished = command.finish(20)
    assert finished.code == 7
    assert "learner-0" in finished.err
    assert newest_version(tmp_path) >= told > 0, "at most the steps of one interval are lost"


@pytest.mark.more
def test_stop_at_reward_and_seconds_really_stop(tmp_path: Path) -> None:
    finished = run(tmp_path / "a", *SMALL, "--stop_at_reward=10")
    assert finished.code == 0, finished.err
    assert summary_of(tmp_path / "a")["exit_reason"] == "stop_at_reward reached"
    finished = run(tmp_path / "b", *SMALL, "--train_for_seconds=1")
    assert finished.code == 0, finished.err
    assert summary_of(tmp_path / "b")["exit_reason"] == "train_for_seconds reached"


def least_reward(out: str) -> float:
    """That of the worse of two policies, by the last line with both."""
    shown = re.findall(r"\(0, '([-\d.]+)'\), \(1, '([-\d.]+)'\)", out)
    return min(map(float, shown[-1])) if shown else -math.inf


@pytest.mark.more
@pytest.mark.parametrize("inference", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_two_policies_on_a_two_agent_environment(tmp_path: Path, inference: int, oracles: dict[str, Any]) -> None:
    flags = ("--env=sf/TwoAgentEcho-v0", "--num_policies=2", "--num_workers=2", "--num_envs_per_worker=8", "--seed=1")
    acting = f"--policy_workers_per_policy={inference}"
    with running(tmp_path, *flags, acting, "--learning_rate=0.002", "--normalize_input=False") as command:
        command.wait_for(lambda: least_reward(command.out) > 7, "both policies to learn")
        command.process.terminate()
        finished = command.finish(20)
    assert finished.code == 143, finished.err
    reports = matches(oracles["A15"]["regex"], finished)
    assert reports[-1]["throughput"].count(":") == 2
    rewards = matches(oracles["A16"]["regex"], finished)
    assert "(0, '" in rewards[-1].group()
    assert "(1, '" in rewards[-1].group()
    for policy in summary_of(tmp_path)["policies"]:
        assert policy["reward"] > 6  # about 2.5 without learning
        assert policy["policy_version"] > 10
    for policy_id in ("0", "1"):
        curves = read_events(tmp_path / EXPERIMENT / ".summary" / policy_id)
        shares = [value for _, value in curves["train/same_policy_fraction"]]
        assert all(0 < share <= 1 for share in shares)
        assert (tmp_path / EXPERIMENT / f"checkpoint_p{policy_id}").is_dir()


@pytest.mark.more
def test_a20_frames_count_the_frame_skip(tmp_path: Path, oracles: dict[str, Any]) -> None:
    """Frames learned over samples taken is 4 within 2 %, over the whole run."""
    finished = run(tmp_path, *SMALL, "--env_frameskip=4", "--train_for_env_steps=200000", "--async_rl=False")
    assert finished.code == 0, finished.err
    summary = summary_of(tmp_path)
    margin = oracles["A20"]["cases"][0]["expected"]["relative_margin"]
    assert summary["frames"] / summary["policies"][0]["samples"] == pytest.approx(4, rel=margin)


FAULTY = """
import gymnasium, numpy as np

class Faulty(gymnasium.Env):
    def __init__(self, fault, continuous=False):
        self.fault, self.steps = fault, 0
        self.observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
        box = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = box if continuous else gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.steps += 1
        observation, late = np.zeros(3, np.float32), self.steps > 300
        if late and self.fault == "raise":
            raise ZeroDivisionError("the floor is gone")
        if late and self.fault in ("nan", "final nan"):
            observation[1] = np.nan
        return observation, 0.0, False, late and self.fault == "final nan", {}

gymnasium.register("Faulty-v0", Faulty)
"""


@pytest.mark.more
@pytest.mark.parametrize("continuous", ["false", "true"])
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", "Faulty-v0, environment 0: step() raised ZeroDivisionError: the floor is gone"),
        ("nan", "returned a non-finite observation: [ 0. nan  0.]"),
        ("final nan", "returned a non-finite final observation: [ 0. nan  0.]"),
    ],
)
def test_environment_that_fails_ends_the_run_with_its_name(
    tmp_path: Path, fault: str, message: str, continuous: str
) -> None:
    """Rows B4, B7, B8: code 3, the process, what the environment did; nothing of it is learned."""
    (tmp_path / "faulty.py").write_text(FAULTY)
    kwargs = f'--env_kwargs={{"fault": "{fault}", "continuous": {continuous}}}'
    flags = "--num_workers=1", "--num_envs_per_worker=4", "--max_restarts=0", "--updates=fast"
    finished = run(tmp_path, "--env=faulty:Faulty-v0", kwargs, *flags)
    assert finished.code == 3, finished.err
    assert f"Env{'Crashed' if fault == 'raise' else 'Error'}: rollout-0 (pid " in finished.err
    assert message in finished.err
    assert fault != "raise" or 'faulty.py", line 18, in step' in finished.err
