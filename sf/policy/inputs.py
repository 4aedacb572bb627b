"""From raw observations to what the networks read: one float vector, and images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from sf.config import ModelConfig
from sf.policy.normalizer import Normalizer
from sf.spaces import LeafSpec

ACTION_MASK = "action_mask"
"""Observation key of the mask of allowed actions; no network reads it."""

SMALLEST_IMAGE_SIDE = 36
"""What the convolutions need; smaller grids are read as vectors."""


class NetworkInput(NamedTuple):
    """Observations of B rows as the encoders read them."""

    vector: Tensor | None
    """[B, size], all leaves that are not images side by side."""
    images: list[Tensor]
    """[B, channels, height, width] each."""


class Inputs(nn.Module):
    """Reads the leaves of an observation; the normalizers it holds are keyed by leaf."""

    def __init__(self, observations: Mapping[str, LeafSpec], config: ModelConfig) -> None:
        super().__init__()
        leaves = {name: leaf for name, leaf in observations.items() if name != ACTION_MASK}
        self.image_shapes = tuple(shape for leaf in leaves.values() if (shape := _image_shape(leaf)))
        self.vector_size = sum(_vector_size(leaf) for leaf in leaves.values())
        self.readers = nn.ModuleList()
        self.normalizers: dict[str, Normalizer] = {}
        vectors: list[tuple[str, Callable[[Tensor], Tensor]]] = []
        images: list[tuple[str, Callable[[Tensor], Tensor]]] = []
        for name, leaf in leaves.items():
            reader = _OneHot(leaf) if leaf.num_categories else _Numbers(leaf, config)
            self.readers.append(reader)
            if isinstance(reader, _Numbers) and reader.normalizer is not None:
                self.normalizers[name] = reader.normalizer
            (images if _image_shape(leaf) else vectors).append((name, reader.forward))
        self._vectors, self._images = tuple(vectors), tuple(images)

    def forward(self, observations: Mapping[str, Tensor]) -> NetworkInput:
        """Observations [B, *shape] per leaf, as the environment gave them."""
        vectors = [read(observations[name]) for name, read in self._vectors]
        images = [read(observations[name]) for name, read in self._images]
        return NetworkInput(vectors[0] if len(vectors) == 1 else torch.cat(vectors, -1) if vectors else None, images)


class _OneHot(nn.Module):
    """A Discrete leaf."""

    def __init__(self, leaf: LeafSpec) -> None:
        super().__init__()
        self.num_categories, self.start = leaf.num_categories, leaf.start

    def forward(self, categories: Tensor) -> Tensor:
        """[B] int64 to [B, num_categories]."""
        return functional.one_hot(categories - self.start, self.num_categories).to(torch.float32)


class _Numbers(nn.Module):
    """A Box leaf: scaled by constants, then by running statistics, then clipped.

    uint8 images have known limits, so they are only divided by 255 (or by `obs_scale` where that is set).
    """

    def __init__(self, leaf: LeafSpec, config: ModelConfig) -> None:
        super().__init__()
        image = _image_shape(leaf)
        pixels = image is not None and leaf.dtype == "uint8"
        self.subtract = config.obs_subtract_mean
        self.scale = 255.0 if pixels and config.obs_scale == 1.0 else config.obs_scale
        self.clip = config.obs_clip
        self.normalizer = Normalizer(leaf.shape) if config.normalize_input and not pixels else None
        self._normalize = None if self.normalizer is None else self.normalizer.normalize
        self.to_float = leaf.dtype != "float32"
        self.flat = image is None and len(leaf.shape) != 1
        # Moves the channels to the front; a leaf without a channel axis gets one.
        self.add_channels = image is not None and len(leaf.shape) == 2
        self.channels_last = image is not None and len(leaf.shape) == 3 and leaf.shape != image

    def forward(self, raw: Tensor) -> Tensor:
        """[B, *shape] of any type to floats, [B, size] or [B, channels, height, width]."""
        x = raw.to(torch.float32) if self.to_float else raw
        if self.subtract != 0.0:
            x = x - self.subtract
        if self.scale != 1.0:
            x = x / self.scale
        if self._normalize is not None:
            x = self._normalize(x).clamp_(-self.clip, self.clip)
        if self.flat:
            return x.reshape(x.shape[0], -1)
        if self.channels_last:
            return x.movedim(-1, 1)
        return x.unsqueeze(1) if self.add_channels else x


def _image_shape(leaf: LeafSpec) -> tuple[int, int, int] | None:
    """(channels, height, width) of a leaf that is an image, else None.

    The channels of three axes are the shorter one of the first and the last: stacked frames come first, colours last.
    """
    if leaf.num_categories or len(leaf.shape) not in (2, 3):
        return None
    if len(leaf.shape) == 2:
        channels, height, width = 1, *leaf.shape
    elif leaf.shape[0] <= leaf.shape[2]:
        channels, height, width = leaf.shape
    else:
        height, width, channels = leaf.shape
    return (channels, height, width) if min(height, width) >= SMALLEST_IMAGE_SIDE else None


def _vector_size(leaf: LeafSpec) -> int:
    if leaf.num_categories:
        return leaf.num_categories
    return 0 if _image_shape(leaf) else torch.Size(leaf.shape).numel()
