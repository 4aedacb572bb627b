"""The part of the configuration that describes the network."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from sf.config.ranges import ABOVE_0, AT_LEAST_1


@dataclass(frozen=True)
class ModelConfig:
    """The network and the preparation of its inputs."""

    encoder: str = "auto"
    """Network from observations to features: auto, a name given to sf.register_model, or module:Name."""
    encoder_kwargs: str = "{}"
    """Further keyword arguments of an encoder of your own, as JSON."""
    encoder_mlp_layers: tuple[Annotated[int, AT_LEAST_1], ...] = (64, 64)
    """Sizes of the layers for vector observations."""
    encoder_per_key: bool = False
    """Give each vector of a Dict or Tuple layers of its own instead of one network for all of them side by side."""
    nonlinearity: Literal["tanh", "relu", "elu"] = "tanh"
    """Function between layers."""
    layer_norm: bool = False
    """Normalize the outputs of each linear layer of the encoders before the nonlinearity; pqn needs it."""
    encoder_conv_architecture: Literal["convnet_simple", "convnet_atari", "resnet_impala", "convnet_microrts"] = (
        "convnet_simple"
    )
    """Convolutions for image observations."""
    encoder_conv_mlp_layers: tuple[Annotated[int, AT_LEAST_1], ...] = (512,)
    """Sizes of the layers after the convolutions."""
    actor_critic_share_weights: bool | None = None
    """Use one network for actions and values, with two heads. None: two networks for a Box, one for choices, pictures,
    recurrent policies and algorithms with critics of their own."""
    policy_keys: tuple[str, ...] | None = None
    """Keys of a Dict observation that the policy reads; None for all. Evaluations need no others."""
    critic_keys: tuple[str, ...] | None = None
    """Keys of a Dict observation that the network of the values reads in training; None for all."""
    critic_mlp_layers: tuple[Annotated[int, AT_LEAST_1], ...] | None = None
    """Sizes of the layers for vectors in the network of the values; None for encoder_mlp_layers."""
    critic_encoder: str | None = None
    """Encoder of the network of the values, as for encoder; None for that of the policy."""
    use_rnn: bool = False
    """Make the policy recurrent."""
    rnn_type: Literal["gru", "lstm"] = "gru"
    """Kind of the recurrent layers."""
    rnn_size: Annotated[int, AT_LEAST_1] = 128
    """Size of each recurrent layer."""
    rnn_num_layers: Annotated[int, AT_LEAST_1] = 1
    """Number of recurrent layers."""
    normalize_input: bool = True
    """Shift and scale observations by their running mean and deviation."""
    normalize_returns: bool = True
    """Let the value head predict returns scaled by their running deviation; values stay when that changes (PopArt)."""
    obs_subtract_mean: float = 0.0
    """Subtracted from observations that are not normalized."""
    obs_scale: Annotated[float, ABOVE_0] = 1.0
    """Divides observations that are not normalized, after the subtraction; of others it is the unit of the epsilon."""
    scale_pixels: bool = True
    """Divide uint8 images by their upper bound, or by obs_scale if it is not 1; False treats them as other numbers."""
    obs_clip: Annotated[float, ABOVE_0] = 10.0
    """Normalized observations are limited to plus and minus this."""
    adaptive_stddev: bool = False
    """Let the network choose the deviation of Box actions for each observation."""
    initial_stddev: Annotated[float, ABOVE_0] = 1.0
    """Deviation of Box actions at the start."""
    exploration: Literal["sample", "epsilon_greedy", "noise"] = "sample"
    """How actions are drawn: by their probability, the best choice but for a share epsilon of the steps (dqn, pqn), or
    numbers with noise (td3)."""

    @property
    def log_stddev_limits(self) -> tuple[float, float]:
        """Least and largest logarithm of the deviation of Box actions.

        The largest free deviation is e² = 7.4, or 7.4 times the initial one if that is above 1. A wider one draws
        little but the bounds of an action that is scaled to -1 and 1. One of `adaptive_stddev` has no gradient beyond
        its limit, which therefore is out of reach.
        """
        return -10.0, 5.0 if self.adaptive_stddev else 2.0 + max(0.0, math.log(self.initial_stddev))

    @property
    def shares_weights(self) -> bool:
        """Whether there is one network for actions and values, which is so where nothing says otherwise."""
        return self.actor_critic_share_weights is not False and not self.has_own_critic

    @property
    def has_own_critic(self) -> bool:
        """Whether the network of the values reads other keys than that of the policy, or has other layers."""
        policy, critic = (None if keys is None else set(keys) for keys in (self.policy_keys, self.critic_keys))
        return policy != critic or self.critic_mlp_layers is not None or self.critic_encoder is not None

    @property
    def memory_size(self) -> int:
        """Numbers in the recurrent state of one agent; 0 without recurrent layers."""
        if not self.use_rnn:
            return 0
        networks = 1 if self.shares_weights else 2
        return networks * self.rnn_num_layers * self.rnn_size * (2 if self.rnn_type == "lstm" else 1)
