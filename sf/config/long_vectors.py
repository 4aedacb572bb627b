"""Observations that become vectors so long that the first layer has most of a network; known before torch is loaded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sf.config.convolutions import LARGE, millions
from sf.config.model import ModelConfig
from sf.spaces import ACTION_MASK
from sf.spaces.images import image_layout

if TYPE_CHECKING:
    from sf.spaces import EnvInfo


def notes_on_vectors(info: EnvInfo, model: ModelConfig) -> Iterator[str]:
    """A sentence for each first layer with many weights; categories are inputs of their own.

    One layer reads all vectors together, unless each has its own (`encoder_per_key`).
    """
    from sf.plugins import ENCODERS

    if model.encoder != ENCODERS.default or not model.encoder_mlp_layers:
        return
    lengths = {
        name: sum(leaf.categories) or math.prod(leaf.shape)
        for name, leaf in info.observations.items()
        if name != ACTION_MASK and image_layout(leaf, model.encoder_conv_architecture) is None
    }
    together = [{name: length} for name, length in lengths.items()] if model.encoder_per_key else [lengths]
    for each in together:
        weights = sum(each.values()) * model.encoder_mlp_layers[0]
        if weights <= LARGE:
            continue
        name = max(each, key=each.__getitem__)
        kind = "categories, of which each is an input" if info.observations[name].categories else "numbers"
        yield (
            f"Warning: the observation {name!r} has {each[name]:,} {kind}. The first layer has {millions(weights)} "
            f"weights, and every checkpoint {millions(12 * weights)} bytes. Observe fewer numbers that say the same, "
            "or give an encoder with another first layer, such as torch.nn.Embedding (--encoder=module:Class)."
        )
