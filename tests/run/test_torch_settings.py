"""Settings of torch in the program around a serial run, which trains in the same process."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sf.errors import UsageError
from sf.run.callbacks import Callbacks
from sf.run.supervisor import train
from tests.helpers.lab import make_config


def config_in(path: Path) -> Any:
    return make_config(train_dir=str(path), serial_mode=True, train_for_env_steps=500, num_envs_per_worker=4)


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_a_serial_run_trains_where_gradients_are_switched_off(around: Any, tmp_path: Path) -> None:
    with around():
        train(config_in(tmp_path))
        assert not torch.is_grad_enabled()
        assert torch.is_inference_mode_enabled() == (around is torch.inference_mode)
    lines = (tmp_path / "default_experiment" / "metrics.jsonl").read_text().splitlines()
    assert any(json.loads(line).get("train/grad_norm", 0.0) > 0.0 for line in lines)


@pytest.fixture
def _float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("_float64")
def test_a_serial_run_names_another_default_dtype(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"default dtype of torch is torch\.float64 .* with --serial_mode=False"):
        train(config_in(tmp_path))
    assert not (tmp_path / "default_experiment").exists()


@pytest.mark.parametrize("fails", [False, True])
def test_a_serial_run_gives_the_threads_back(tmp_path: Path, fails: bool) -> None:
    before, there = torch.get_num_threads(), 3
    torch.set_num_threads(there)

    def on_iteration(_: Any) -> None:
        assert torch.get_num_threads() == 1
        if fails:
            raise ZeroDivisionError

    try:
        with pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext():
            train(config_in(tmp_path), Callbacks(on_iteration=on_iteration))
        assert torch.get_num_threads() == there
    finally:
        torch.set_num_threads(before)
