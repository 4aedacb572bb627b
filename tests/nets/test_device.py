"""Training on accelerators: on one that `tests.helpers.elsewhere` emulates; those marked gpu want a real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import backend_registration

from sf.nets import device
from sf.nets.device import use_device
from sf.shared.arena import Arena
from sf.storage.checkpoint import load_newest
from tests.helpers.commands import EXPERIMENT, ROOT, Finished, run, summary_of

MANY_STEPS = {"num_batches_per_epoch": 4, "num_epochs": 2, "batch_size": 16, "max_policy_lag": 6}
CASES: dict[str, dict[str, Any]] = {
    "choice": {},
    "minibatches": MANY_STEPS
    | {"with_vtrace": True, "normalize_rewards": True, "lr_schedule": "kl_adaptive_minibatch"},
    "policies": {"num_policies": 2},
    "forwards without rows": {"num_policies": 2, "num_envs_per_worker": 2},
    "numbers": {"env": "Pendulum-v1", "adaptive_stddev": True, "ppo_clip_value": 0.2},
    "image": {"env": "sf/CatchPixels-v0"},
    "masks": {"env": "sf/Couriers-v0"},
    "categories": {"env": "Taxi-v4"},
    "encoder of the user": {"encoder": "tests.helpers.same_elsewhere:Halved"},
    "acting workers": {"env": "Pendulum-v1", "policy_workers_per_policy": 0},
    "separate": {"env": "Acrobot-v1", "actor_critic_share_weights": False, "obs_subtract_mean": 0.1},
}
SMALL = ("--env=CartPole-v1", "--num_workers=2", "--num_envs_per_worker=4", "--batch_size=256")

can_emulate = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"), reason="this torch is too old"
)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict[str, Any]]:
    """What the CPU and the other device made of each case."""
    line = [sys.executable, "-m", "tests.helpers.same_elsewhere", json.dumps(list(CASES.values()))]
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    return dict(zip(CASES, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.more
@can_emulate
@pytest.mark.parametrize("name", CASES)
def test_another_device_learns_the_same(name: str, outcomes: dict[str, dict[str, Any]]) -> None:
    """The same kernels compute, so that not even the last bit may differ."""
    outcome = outcomes[name]
    assert (outcome["cpu"]["device"], outcome["gpu"]["device"]) == ("cpu", "elsewhere")
    assert outcome["difference"] == 0.0
    assert outcome["difference_of_saved"] == 0.0
    assert sum(map(len, outcome["cpu"]["scalars"])) > 20
    for of_cpu, of_gpu in zip(outcome["cpu"]["scalars"], outcome["gpu"]["scalars"], strict=True):
        assert of_cpu == pytest.approx(of_gpu, rel=1e-12, nan_ok=True)
    assert outcome["cpu"]["transfers"] == 0
    assert outcome["gpu"]["transfers"] >= 4  # one for each dataset, and every slot was given back after one
    assert outcome["cpu"]["memory"] == [0, 0]
    assert outcome["gpu"]["memory"] == [3, 5]


@pytest.mark.more
@can_emulate
def test_policies_of_a_learner_act_on_its_device() -> None:
    line = [sys.executable, "-m", "tests.helpers.policies_elsewhere"]
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    found = [json.loads(text) for text in done.stdout.splitlines()]
    assert len(found) == 4
    for one in found:
        assert one["places"] == [["cpu"], ["elsewhere"]]
        assert one["same"]
        assert one["leaves"] > 12


def run_elsewhere(path: Path, *arguments: str) -> Finished:
    """Every process of the run has the emulated accelerator."""
    return run(path, *arguments, python_path=f"{ROOT}/tests/helpers/elsewhere_site{os.pathsep}{ROOT}")


@pytest.mark.more
@can_emulate
@pytest.mark.parametrize("inference", [1, 0])
def test_a22_cx2_whole_run_on_another_device(tmp_path: Path, inference: int) -> None:
    """Rollout workers that act for themselves do so on the CPU, and have nothing to say of an accelerator."""
    flags = "--device=gpu", "--num_learners=2", f"--policy_workers_per_policy={inference}"
    finished = run_elsewhere(tmp_path, *SMALL, *flags, "--train_for_env_steps=2000")
    assert finished.code == 0, finished.err
    assert "Accelerators: elsewhere:0." in finished.out
    assert "learner-0-1" in finished.out
    lines = [json.loads(line) for line in (tmp_path / EXPERIMENT / "metrics.jsonl").read_text().splitlines()]
    stats = {tag: value for line in lines for tag, value in line.items() if tag.startswith("stats/gpu")}
    roles = ("learner", "policy_worker") if inference else ("learner",)
    assert stats == {f"stats/gpu_{what}_{role}": mib for role in roles for what, mib in (("mem", 3), ("cache", 5))}
    newest = load_newest(tmp_path / EXPERIMENT / "checkpoint_p0")
    assert newest is not None
    assert newest.env_steps >= 2000
    nothing_open = "--worker_num_splits=2", "--policy_workers_per_policy=1"
    resumed = run(tmp_path, *SMALL, *nothing_open, "--train_for_env_steps=3000")
    assert resumed.code == 0, resumed.err
    assert f"Resumed from {newest.path} (policy_version {newest.version}" in resumed.out
    summary = summary_of(tmp_path)
    assert summary["frames"] - summary["new_frames"] == newest.env_steps


@pytest.mark.more
@pytest.mark.skipif("torch.accelerator.is_available()", reason="there is an accelerator")
def test_machine_without_an_accelerator_is_told_before_anything_starts(tmp_path: Path) -> None:
    finished = run(tmp_path, *SMALL, "--device=gpu")
    assert finished.code == 5
    assert "device=gpu needs an accelerator" in finished.err
    assert "--device=cpu" in finished.err
    assert not (tmp_path / "train_dir").exists()


@pytest.mark.parametrize("command", ["roofline", "train"])
def test_cpu_time_says_nothing_about_other_devices(command: str, tmp_path: Path) -> None:
    finished = run(tmp_path, command, "--env=CartPole-v1", "--device=gpu", module="sf.cli.bench")
    assert finished.code == 2
    assert f"sf-bench {command} compares CPU time" in finished.err


def test_cuda_computes_in_float32_whatever_the_container_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    class Module:
        def set_device(self, device: torch.device) -> None:
            assert device == torch.device("cuda:1")

    monkeypatch.setattr(device, "accelerators", lambda: ["cuda:0", "cuda:1"])
    monkeypatch.setattr(device, "pin", lambda arena, device: None)
    monkeypatch.setattr(torch, "get_device_module", lambda device: Module())
    switches: list[Any] = [torch.backends.cudnn, torch.backends.cuda.matmul]
    before = [switch.allow_tf32 for switch in switches]
    try:
        for switch in switches:
            switch.allow_tf32 = True
        assert use_device(3, Arena({})) == torch.device("cuda:1")
        assert not any(switch.allow_tf32 for switch in switches)
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.allow_tf32 = value
