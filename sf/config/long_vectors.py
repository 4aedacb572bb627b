"""Observations that become vectors so long that the first layer has most of a network; known before torch is loaded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sf.config.convolutions import LARGE, millions
from sf.config.model import ModelConfig
from sf.spaces.images import image_layout

if TYPE_CHECKING:
    from sf.spaces import EnvInfo


def notes_on_vectors(info: EnvInfo, model: ModelConfig) -> Iterator[str]:
    """A sentence for each leaf whose first layer has many weights: of Discrete, one per category and neuron."""
    from sf.plugins import ENCODERS

    if model.encoder != ENCODERS.default or not model.encoder_mlp_layers:
        return
    for name, leaf in info.observations.items():
        if image_layout(leaf, model.encoder_conv_architecture) is not None:
            continue
        length = sum(leaf.categories) or math.prod(leaf.shape)
        weights = length * model.encoder_mlp_layers[0]
        if weights <= LARGE:
            continue
        what = f"has {length:,} categories, of which each is an input" if leaf.categories else f"has {length:,} numbers"
        yield (
            f"Warning: the observation {name!r} {what}. The first layer has {millions(weights)} weights, and every "
            f"checkpoint {millions(12 * weights)} bytes. Observe fewer numbers that say the same, or give an encoder "
            "with another first layer, such as torch.nn.Embedding (--encoder=module:Class)."
        )
