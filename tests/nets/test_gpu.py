"""Whole runs on a real accelerator; `make bench-gpu`. Those on an emulated one are in `test_device`."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from sf.nets.device import accelerators, from_host, pin, to_host
from sf.shared.weights import PublishedWeights
from sf.storage.checkpoint import load_newest
from tests.helpers.commands import CARTPOLE, EXPERIMENT, NAME, expect_exact_ledger, run, running, summary_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif("not torch.accelerator.is_available()", reason="there is no accelerator"),
]
SMALL = ("--env=CartPole-v1", "--num_workers=2", "--num_envs_per_worker=4", "--batch_size=256")
A2C = ("--async_rl=False", "--num_batches_per_epoch=1", "--num_epochs=1", "--strict=True")


def points(path: Path) -> list[dict[str, float]]:
    """The curves of the run below `path`."""
    return [json.loads(line) for line in (path / EXPERIMENT / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--use_rnn=True",),
        ("--use_rnn=True", "--rnn_type=lstm"),
        ("--num_learners=2",),
        ("--bf16=True",),
        ("--policy_workers_per_policy=0",),
        ("--num_policies=2",),
        ("--torch_compile=True",),
        ("--with_vtrace=True", "--async_rl=False"),
    ],
)
def test_gpu_whole_run(tmp_path: Path, flags: tuple[str, ...]) -> None:
    strict = f"--strict={'--bf16=True' not in flags}"
    finished = run(tmp_path, *SMALL, "--device=gpu", *flags, "--train_for_env_steps=20000", strict, timeout_s=300)
    assert finished.code == 0, finished.err
    assert f"Accelerators: {', '.join(accelerators())}." in finished.out
    assert any(line.get("stats/gpu_mem_learner", 0) > 0 for line in points(tmp_path))


@pytest.mark.parametrize(
    "flags",
    [
        ("--env=CartPole-v1",),
        ("--env=Pendulum-v1",),
        ("--env=sf/CatchPixels-v0",),
        ("--env=sf/Couriers-v0",),
        ("--env=sf/Remember-v0", "--use_rnn=True", "--rnn_type=gru"),
        ("--env=sf/Remember-v0", "--use_rnn=True", "--rnn_type=lstm"),
        ("--env=sf/Carts-v0",),
        ("--env=sf/Carts-v0", "--use_rnn=True"),
    ],
)
def test_gpu_cr1_ratios_are_one_at_zero_lag(tmp_path: Path, flags: tuple[str, ...]) -> None:
    workers = 1 if "--env=sf/Carts-v0" in flags else 2
    sizes = f"--num_workers={workers}", f"--num_envs_per_worker={16 // workers}", "--rollout=16", "--batch_size=256"
    finished = run(tmp_path, *flags, *sizes, *A2C, "--device=gpu", "--train_for_env_steps=20000", timeout_s=300)
    assert finished.code == 0, finished.err
    for name in ("min", "max"):
        ratios = [line[f"train/first_ratio_{name}"] for line in points(tmp_path) if f"train/first_ratio_{name}" in line]
        assert ratios
        assert ratios == pytest.approx([1.0] * len(ratios), abs=1e-5)
    assert all(line.get("lag/max", 0) in (0, -1) for line in points(tmp_path))


@pytest.mark.parametrize(
    "flags",
    [
        ("--env=CartPole-v1", "--stop_at_reward=475"),
        ("--env=sf/CatchPixels-v0", "--encoder_conv_mlp_layers", "64", "--stop_at_reward=0.95"),
        ("--env=sf/Remember-v0", "--use_rnn=True", "--rnn_type=gru", "--stop_at_reward=0.95"),
        ("--env=sf/Remember-v0", "--use_rnn=True", "--rnn_type=lstm", "--stop_at_reward=0.95"),
        ("--env=sf/Couriers-v0", "--stop_at_reward=1.85"),
        ("--env=sf/Carts-v0", "--num_envs_per_worker=64", "--stop_at_reward=475"),
    ],
)
def test_gpu_learns(tmp_path: Path, flags: tuple[str, ...]) -> None:
    more = "--device=gpu", "--strict=True", "--train_for_env_steps=1500000", "--seed=1"
    finished = run(tmp_path, *flags, *more, timeout_s=600)
    assert finished.code == 0, finished.err
    assert "stop_at_reward" in summary_of(tmp_path)["exit_reason"]


@pytest.mark.parametrize(("first", "then"), [("gpu", "cpu"), ("cpu", "gpu")])
def test_gpu_checkpoint_goes_on_and_plays_elsewhere(tmp_path: Path, first: str, then: str) -> None:
    for device, frames in ((first, 10_000), (then, 20_000)):
        finished = run(tmp_path, *SMALL, f"--device={device}", f"--train_for_env_steps={frames}")
        assert finished.code == 0, finished.err
    newest = load_newest(tmp_path / EXPERIMENT / "checkpoint_p0")
    assert newest is not None
    assert newest.env_steps >= 20_000
    assert "Resumed from" in finished.out
    played = run(tmp_path, NAME, "--num_episodes=3", module="sf.cli.evaluate")
    assert played.code == 0, played.err


def used_mib() -> int:
    """Memory of the device that anyone has taken."""
    free, total = torch.cuda.mem_get_info()
    return (total - free) // 2**20


@pytest.mark.alone
@pytest.mark.parametrize(("role", "flags"), [("inference-0-0", ()), ("learner-0", ("--restart_learner=True",))])
def test_gpu_killed_process_gives_its_memory_back(tmp_path: Path, role: str, flags: tuple[str, ...]) -> None:
    before = used_mib()
    with running(tmp_path, *CARTPOLE, "--device=gpu", "--save_every_sec=1", *flags) as command:
        command.wait_for(lambda: list((tmp_path / EXPERIMENT / "checkpoint_p0").glob("checkpoint_*")), "a checkpoint")
        at_first = used_mib()
        victim = command.named(f"sf-{role}")[0]
        victim.kill()
        command.wait_for(
            lambda: any(one.pid != victim.pid for one in command.named(f"sf-{role}")), "a successor", timeout_s=60
        )
        lines = len(command.out.splitlines())
        command.wait_for(lambda: "Saved " in "".join(command.out.splitlines()[lines:]), "a new checkpoint")
        again = used_mib()
        command.process.terminate()
        finished = command.finish(30)
    assert finished.code == 143, finished.err
    expect_exact_ledger(tmp_path, finished)
    assert again <= at_first + 64
    deadline = time.monotonic() + 10
    while used_mib() > before + 64:
        assert time.monotonic() < deadline, f"{used_mib() - before} MiB of the device are left"
        time.sleep(0.1)


FILL = """
import sys, torch
torch.zeros(1, device="cuda")
free, _ = torch.cuda.mem_get_info()
kept = torch.empty(free - int(sys.argv[1]) * 2**20, dtype=torch.uint8, device="cuda")
print("full", flush=True)
sys.stdin.read()
"""


@contextmanager
def nearly_full_device(left_mib: int) -> Iterator[None]:
    """Another process takes all but some memory of the device."""
    line = [sys.executable, "-c", FILL, str(left_mib)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "full\n"
        try:
            yield
        finally:
            other.stdin.close()
            other.wait(30)


@pytest.mark.alone
@pytest.mark.parametrize("left_mib", [100, 1300])
def test_gpu_full_device_ends_the_run_with_code_5(tmp_path: Path, left_mib: int) -> None:
    """Whether there is no room for a process, or none for its tensors."""
    wide = "--encoder_mlp_layers", "8192", "8192", "8192"
    with nearly_full_device(left_mib):
        finished = run(tmp_path, *SMALL, *wide, "--device=gpu", "--train_for_env_steps=20000")
    assert finished.code == 5, finished.err
    assert "memory" in finished.err


def test_gpu_weights_go_there_and_back() -> None:
    device = torch.accelerator.current_accelerator()
    assert device is not None
    weights = PublishedWeights()
    weights.allocate(1000)
    pin(weights, device)
    published, taken = torch.arange(1000.0, device=device).sqrt(), torch.zeros(1000, device=device)
    for version in range(3):
        weights.publish(version, to_host(published))
        assert weights.read(from_host(taken)) == version
        assert torch.equal(published, taken)
        published += 1.0
    assert math.isfinite(float(taken.sum()))
