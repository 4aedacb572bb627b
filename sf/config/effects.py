"""Flags of the policy that have no effect on it, because of other flags or of the environment."""

from __future__ import annotations

from collections.abc import Iterator

from sf.config.model import ModelConfig
from sf.config.observation_groups import has_only_our_encoders
from sf.spaces import ACTION_MASK, EnvInfo

OF_RECURRENCE = "rnn_type", "rnn_size", "rnn_num_layers"
OF_NUMBERS = "action_bounds", "adaptive_stddev", "initial_stddev"
OF_PICTURES = "encoder_conv_architecture", "encoder_conv_mlp_layers", "scale_pixels"
PICTURE_RANK = 2
"""Dimensions of an observation from which on it may be a picture."""


def without_effect(model: ModelConfig, info: EnvInfo) -> frozenset[str]:
    """The flags with which a policy is the same whatever their values are."""
    return frozenset(_without_effect(model, info))


def _without_effect(model: ModelConfig, info: EnvInfo) -> Iterator[str]:
    if not model.use_rnn:
        yield from OF_RECURRENCE
    if all(column.num_choices for column in info.action.columns):
        yield from OF_NUMBERS
    leaves = [leaf for name, leaf in info.observations.items() if name != ACTION_MASK]
    if has_only_our_encoders(model) and all(len(leaf.shape) < PICTURE_RANK for leaf in leaves):
        yield from OF_PICTURES
