"""The parts of an actor-critic network, whose variables are views into one vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import torch
from torch import Tensor, nn

from sf.config import ModelConfig
from sf.config.observation_groups import has_only_our_encoders
from sf.nets.distributions import action_distribution
from sf.nets.dtype import float32_by_default
from sf.nets.flat import FlatVariables, named_variables
from sf.nets.inputs import Inputs
from sf.nets.networks import linear, make_encoder
from sf.nets.normalizer import Normalizer
from sf.nets.observation_groups import ObservationGroups
from sf.nets.recurrent import Memory
from sf.spaces import ACTION_MASK, EnvInfo

Encode = Callable[[dict[str, Tensor]], Tensor]
"""From prepared leaves to features."""


class NetworkParts(nn.Module):
    """Encoders, recurrent layers, heads and statistics; `ActorCritic` says how they are used."""

    def __init__(self, info: EnvInfo, config: ModelConfig, device: torch.device | str, bf16: bool) -> None:
        """Makes them with random weights; see `ActorCritic`."""
        super().__init__()
        self.info, self.config, self.bf16 = info, config, bf16
        self._device = torch.device(device)
        with self._device, float32_by_default():
            self._build(info, config)
        self.eval()  # a layer that drops at random would make two policies of the one that acts and the one that trains
        self._variables = FlatVariables(self, self._device)

    def _build(self, info: EnvInfo, config: ModelConfig) -> None:
        """The parts; everything that they create is on the device that is the default now."""
        pixels = torch.bfloat16 if self.bf16 and has_only_our_encoders(config) else torch.float32
        self.groups = ObservationGroups(info, config)
        self.inputs = Inputs(self.groups.leaves, config, pixels)
        self.encoder, num_features = make_encoder(self.groups.policy_shapes(self.inputs), config)
        self.value_encoder, num_value_features = None, num_features
        if not config.shares_weights:
            shapes = self.groups.critic_shapes(self.inputs)
            self.value_encoder, num_value_features = make_encoder(shapes, self.groups.critic_model)
        self.memory = self.value_memory = None
        if config.use_rnn:
            self.memory = Memory(num_features, config)
            if self.value_encoder is not None:
                self.value_memory = Memory(num_value_features, config)
            num_features = num_value_features = self.memory.num_features
        self.distribution = action_distribution(info.action, config)
        self.policy_head = linear(num_features, self.distribution.num_params, gain=0.01)
        self.value_head = linear(num_value_features, 1, gain=1.0)
        self.return_normalizer = Normalizer(()) if config.normalize_returns else None
        self.state_size = config.memory_size
        self._mask_padding = (0, self.distribution.num_params - self.distribution.num_logits)
        self._masked = ACTION_MASK in info.observations

    def _encoding(self, encoder: nn.Module) -> Encode:
        """The function that calls an encoder."""
        return in_bfloat16(encoder.forward, self._device.type) if self.bf16 else encoder.forward

    @property
    def flat(self) -> Tensor:
        """All parameters, then all buffers, as one contiguous float32 vector; every one of them is a view into it."""
        return self._variables.vector

    @property
    def flat_parameters(self) -> nn.Parameter:
        """The trainable part of `flat`; its `grad` is `flat_gradient`."""
        return self._variables.parameters

    @property
    def flat_gradient(self) -> Tensor:
        """The vector to which `backward` adds the gradients of all parameters; zero it in place."""
        return self._variables.gradient

    @property
    def observation_normalizers(self) -> dict[str, Normalizer]:
        """The normalizers of the observations, by leaf."""
        return self.inputs.normalizers

    def variables(self) -> dict[str, Tensor]:
        """Parameters and buffers by name, in the order of `flat`."""
        return {name: variable.detach() for name, variable in named_variables(self)}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> NoReturn:
        raise TypeError(
            "ActorCritic.to, .cuda, .float and the like would tear the variables out of the flat vector. "
            "Give the device to the constructor instead: ActorCritic(info, config, device)."
        )


def in_bfloat16(encode: Encode, device_type: str) -> Encode:
    """The same computed in bfloat16 where torch considers that safe; the features are float32."""
    bfloat16 = torch.autocast(device_type, torch.bfloat16)

    def encode_in_bfloat16(inputs: dict[str, Tensor]) -> Tensor:
        with bfloat16:
            return encode(inputs).float()

    return encode_in_bfloat16
