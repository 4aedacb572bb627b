"""The convolutional networks as numbers, and how large they become; known before torch is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sf.config.model import ModelConfig
from sf.spaces.images import image_layout

if TYPE_CHECKING:
    from sf.spaces import EnvInfo

CONVOLUTIONS = {
    # filters, side of the kernel, stride
    "convnet_simple": ((32, 8, 4), (64, 4, 2), (128, 3, 2)),
    "convnet_atari": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
    "convnet_microrts": ((16, 3, 2), (32, 2, 1)),
}
RESNET_CHANNELS = (16, 32, 32)

LARGE = 20_000_000
"""Weights; with the moments of Adam 240 MB in each checkpoint."""
USUAL_SIDE = 84
"""Side of the pictures in most published work."""


def num_features(height: int, width: int, architecture: str) -> int:
    """Numbers that come out of the last convolution for one picture."""
    if architecture == "resnet_impala":
        for _ in RESNET_CHANNELS:
            height, width = -(-height // 2), -(-width // 2)
        return RESNET_CHANNELS[-1] * height * width
    layers = CONVOLUTIONS[architecture]
    for _, kernel, stride in layers:
        height, width = ((side - kernel) // stride + 1 for side in (height, width))
    return layers[-1][0] * height * width


def notes_on_pictures(info: EnvInfo, model: ModelConfig) -> Iterator[str]:
    """A sentence for each picture so large that the layer after its convolutions has most of a large network."""
    from sf.plugins import ENCODERS

    if model.encoder != ENCODERS.default or not model.encoder_conv_mlp_layers:
        return
    for name, leaf in info.observations.items():
        layout = image_layout(leaf, model.encoder_conv_architecture)
        if layout is None:
            continue
        height, width = leaf.shape[1:] if layout == "CHW" else leaf.shape[:2]
        first, architecture = model.encoder_conv_mlp_layers[0], model.encoder_conv_architecture
        weights = first * num_features(height, width, architecture)
        if weights > LARGE:
            usual = first * num_features(USUAL_SIDE, USUAL_SIDE, architecture)
            yield (
                f"Warning: pictures {name!r} of {height} x {width} make a network with {millions(weights)} weights, "
                f"which takes time and {millions(12 * weights)} bytes in each checkpoint. "
                f"gymnasium.wrappers.ResizeObservation(env, ({USUAL_SIDE}, {USUAL_SIDE})) makes it one with "
                f"{millions(usual)}."
            )


def millions(number: float) -> str:
    """A number as "1.5 million"."""
    return f"{number / 1e6:.{1 if number < 1e7 else 0}f} million"
