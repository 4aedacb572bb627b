"""From raw observations to what the networks read: floats, as vectors or as images with channels first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor, nn

from sf.config import ModelConfig
from sf.nets.normalizer import Normalizer
from sf.spaces import ACTION_MASK, LeafSpec
from sf.spaces.images import image_layout


class Inputs(nn.Module):
    """Prepares the leaves of an observation for the encoder; the normalizers it holds are keyed by leaf."""

    def __init__(
        self, observations: Mapping[str, LeafSpec], config: ModelConfig, pixels: torch.dtype = torch.float32
    ) -> None:
        """Without statistics yet.

        Args:
            observations: the leaves.
            config: of the network.
            pixels: type of pictures that are only divided; bfloat16 holds every byte.
        """
        super().__init__()
        leaves = {name: leaf for name, leaf in observations.items() if name != ACTION_MASK}
        self.readers = nn.ModuleList()
        self.normalizers: dict[str, Normalizer] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        """Shape of each prepared leaf: (size,) of a vector, (channels, height, width) of an image."""
        readers: list[tuple[str, Callable[[Tensor], Tensor]]] = []
        for name, leaf in leaves.items():
            reader = _OneHot(leaf) if leaf.categories else Numbers(leaf, config, pixels)
            self.readers.append(reader)
            self.shapes[name] = reader.shape
            if isinstance(reader, Numbers) and reader.normalizer is not None:
                self.normalizers[name] = reader.normalizer
            readers.append((name, reader.forward))
        self._readers = tuple(readers)

    def forward(self, observations: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Observations [B, *shape] per leaf, as the environment gave them, to floats [B, *self.shapes[name]]."""
        return {name: read(observations[name]) for name, read in self._readers}

    def reader(self, names: Collection[str]) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
        """The same function for some of the leaves."""
        readers = tuple((name, read) for name, read in self._readers if name in names)
        return lambda observations: {name: read(observations[name]) for name, read in readers}


class _OneHot(nn.Module):
    """A Discrete or MultiDiscrete leaf."""

    def __init__(self, leaf: LeafSpec) -> None:
        super().__init__()
        self.shape = (sum(leaf.categories),)
        first_places = torch.tensor([0, *leaf.categories[:-1]]).cumsum(0)
        self._shift = first_places - torch.tensor(leaf.starts)

    def forward(self, categories: Tensor) -> Tensor:
        """[B, *shape] int64 to [B, sum of the numbers of categories]."""
        places = categories.reshape(categories.shape[0], len(self._shift)) + self._shift
        return places.new_zeros((places.shape[0], *self.shape), dtype=torch.float32).scatter_(-1, places, 1.0)


class Numbers(nn.Module):
    """A Box leaf: scaled by running statistics and clipped, or else scaled by constants.

    Running statistics make up for any shift and scale, so that of `obs_scale` only the unit of their epsilon remains.
    Images of uint8 and of booleans have known limits. They are only divided by their upper bound, or by `obs_scale`
    where that is set, unless `scale_pixels` is off.

    On a CPU the channels of a pixel lie side by side in memory, with which convolutions are 1.5 times as fast.
    """

    def __init__(self, leaf: LeafSpec, config: ModelConfig, pixels_dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        layout = image_layout(leaf, config.encoder_conv_architecture)
        self.shape = _prepared_shape(leaf, layout)
        pixels = config.scale_pixels and layout is not None and leaf.dtype == "uint8"
        self.subtract = config.obs_subtract_mean
        self.scale = float(leaf.brightest) if pixels and config.obs_scale == 1.0 else config.obs_scale
        self.clip = config.obs_clip
        is_normalized = config.normalize_input and not pixels
        self.normalizer = Normalizer(leaf.shape, self.scale, leaf.is_wide) if is_normalized else None
        self._normalize = None if self.normalizer is None else self.normalizer.normalize
        self.dtype = pixels_dtype if pixels else torch.float32
        self.shifted_dtype = torch.float64 if leaf.is_wide else torch.float32
        self.flat = layout is None and len(leaf.shape) != 1
        self.add_channels, self.channels_last, self.channels_first = (layout == one for one in ("HW", "HWC", "CHW"))

    def forward(self, raw: Tensor) -> Tensor:
        """[B, *shape] of any type to floats, [B, size] or [B, channels, height, width]."""
        if self.channels_first and raw.is_cpu:  # of bytes that takes a quarter of the time that it takes of floats
            raw = raw.contiguous(memory_format=torch.channels_last)
        x = self._scaled(raw) if self._normalize is None else self._normalize(raw).clamp_(-self.clip, self.clip)
        if self.flat:
            return x.reshape(x.shape[0], *self.shape)  # not -1, which no rows leave open
        if self.channels_last:
            return x.movedim(-1, 1)
        return x.unsqueeze(1) if self.add_channels else x

    def _scaled(self, raw: Tensor) -> Tensor:
        x = raw
        if self.subtract != 0.0:
            x = x.to(self.shifted_dtype) - self.subtract
        x = x.to(self.dtype)
        if self.scale != 1.0:
            x = x / self.scale if x is raw else x.div_(self.scale)  # a second copy of images takes as long as the first
        return x


def _prepared_shape(leaf: LeafSpec, layout: str | None) -> tuple[int, ...]:
    match layout:
        case "HW":
            return (1, *leaf.shape)
        case "CHW":
            return leaf.shape
        case "HWC":
            return (leaf.shape[2], *leaf.shape[:2])
    return (leaf.size,)
