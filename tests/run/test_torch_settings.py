"""Settings of torch in the program around a serial run, which trains in the same process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sf.errors import UsageError
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
