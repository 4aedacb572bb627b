"""Networks that value an action in a state, for algorithms whose policy is another network."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from sf.config import ModelConfig
from sf.learner.acting_network import ActingNetwork
from sf.nets.dtype import float32_by_default
from sf.nets.fast.native_values import native_values
from sf.nets.flat import FlatVariables
from sf.nets.networks import Encoder, linear, make_encoder

ACTION = "action"
"""Name of the leaf beside those of the observation."""


class Critics(nn.Module):
    """Several independent estimates of a value; the least of two overestimates less (van Hasselt 2010)."""

    def __init__(self, acting: ActingNetwork, num_outputs: int, takes_action: bool, number: int = 2) -> None:
        """Networks of the same layers as that of the policy, with other weights.

        Args:
            acting: whose inputs they read.
            num_outputs: of each: 1, or one for each choice.
            takes_action: whether the action is an input; then its numbers lie beside those of the observation.
            number: of networks.
        """
        super().__init__()
        policy = acting.policy
        shapes = policy.groups.critic_shapes(policy.inputs)
        if takes_action:
            shapes[_free_name(shapes)] = (len(policy.info.action.columns),)
        with policy.flat.device, float32_by_default():
            self.networks = nn.ModuleList(
                _Critic(shapes, policy.groups.critic_model, num_outputs) for _ in range(number)
            )
        self._action = next(reversed(shapes)) if takes_action else None
        self._leaves, self._may_be_native = tuple(shapes), acting.native_update

    def fast_form(self, variables: FlatVariables) -> Callable[..., Tensor] | None:
        """The networks in C, see `sf.learner.trained_network.HasFastForm`."""
        networks = [network for network in self.networks if isinstance(network, _Critic)]
        towers = [(_only_mlp(network.encoder), network.head) for network in networks]
        native = native_values(towers, variables) if self._may_be_native else None
        if native is None:
            return None

        def forward(inputs: Mapping[str, Tensor], action: Tensor | None = None) -> Tensor:
            leaves = [inputs[name] for name in self._leaves if name != self._action]
            if self._action is not None:
                assert action is not None
                leaves.append(action)
            return native(leaves[0] if len(leaves) == 1 else torch.cat(leaves, -1)).squeeze(-1)

        return forward

    def forward(self, inputs: Mapping[str, Tensor], action: Tensor | None = None) -> Tensor:
        """[number, N] or [number, N, outputs] for inputs as the policy reads them, and actions [N, d]."""
        leaves = dict(inputs)
        if self._action is not None:
            assert action is not None
            leaves[self._action] = action
        values = torch.stack([network(leaves) for network in self.networks])
        return values.squeeze(-1)


def policy_step(acting: ActingNetwork, gains: Tensor, state_values: Tensor) -> dict[str, Tensor]:
    """A step of the policy to larger gains, and of its value head to the gains themselves.

    Args:
        acting: the network that acts.
        gains: [N] what the critics expect of the actions that the policy chooses, with gradient.
        state_values: [N] of `ActorCritic.forward_apart`, for the curves and films that show a value.

    Returns:
        Scalars by name.

    Raises:
        NonFiniteLoss: the gradient is not finite.
    """
    policy_loss = -gains.mean()
    value_loss = 0.5 * (state_values - gains.detach()).square().mean()
    acting.zero_grad()
    (policy_loss + value_loss).backward()  # type: ignore[no-untyped-call]
    return {"policy_loss": policy_loss, "value_loss": value_loss, "grad_norm": acting.step(len(gains))}


class _Critic(nn.Module):
    def __init__(self, shapes: dict[str, tuple[int, ...]], config: ModelConfig, num_outputs: int) -> None:
        super().__init__()
        self.encoder, num_features = make_encoder(shapes, config)
        self.head = linear(num_features, num_outputs, gain=1.0)

    def forward(self, leaves: dict[str, Tensor]) -> Tensor:
        values: Tensor = self.head(self.encoder(leaves))
        return values


def _only_mlp(encoder: nn.Module) -> nn.Module:
    """The linear layers of an encoder that has nothing else, or else the encoder."""
    if isinstance(encoder, Encoder) and not encoder.image_encoders and not hasattr(encoder, "mlp_per_key"):
        return encoder.mlp or encoder
    return encoder


def _free_name(shapes: Mapping[str, tuple[int, ...]]) -> str:
    name = ACTION
    while name in shapes:
        name += "_"
    return name
