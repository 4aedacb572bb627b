"""Checkpoints to save and to spoil."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from sf.storage import checkpoint, sealed
from sf.storage.checkpoint import load_newest, save

FILES = (checkpoint.TENSORS, checkpoint.STATE, sealed.MANIFEST)
DATA = {"config": {"env": "CartPole-v1", "layers": [64, 64]}, "reward": None, "pi": 3.25}


def tensors_of(version: int) -> dict[str, Tensor]:
    flat = torch.arange(12.0) + version
    return {"flat": flat, "view": flat[3:9].view(2, 3), "step": torch.tensor(version), "noise": torch.rand(300)}


def save_some(directory: Path, *versions: int, keep: int | None = None) -> list[Path]:
    return [save(directory, v, 100 * v, tensors_of(v), DATA, keep) for v in versions]


def version_of(directory: Path) -> int:
    newest = load_newest(directory)
    assert newest is not None
    assert newest.tensors["step"].item() == newest.version
    return newest.version


def flip_bit(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position // 8] ^= 1 << position % 8
    path.write_bytes(content)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
