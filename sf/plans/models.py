"""Networks for the policies of plans: those of `sf.nets`, read by the columns of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from sf.config import ModelConfig
from sf.errors import ConfigError
from sf.nets.actor_critic import ActorCritic
from sf.nets.fast.drop_in import DropIn
from sf.nets.inputs import Inputs
from sf.nets.networks import make_encoder
from sf.plans.minibatches import sequence_starts
from sf.plans.program import unknown_settings
from sf.shared.arena import Array
from sf.spaces import EnvInfo
from sf.spaces.from_gymnasium import action_spec, observation_leaves

SETTINGS_OF_MODEL = "hiddens", "activation"


class TorchModel(nn.Module):
    """The network of `sf-train`, with layers of their own for the value; the base of networks of one's own.

    ``outputs, states = model(columns, states)`` is for the rows of a batch; `value_function` is of the same rows.
    """

    def __init__(
        self, obs_space: Any, action_space: Any, num_outputs: int, config: Mapping[str, Any], **network: Any
    ) -> None:
        """Makes the layers.

        Args:
            obs_space: a Box, whose pictures go through convolutions, or a Discrete space, which is read as one-hot.
            action_space: of one agent.
            num_outputs: numbers for each row.
            config: ``hiddens`` are the widths of the layers, ``activation`` is tanh, relu or elu.
            network: further settings, see `ModelConfig`.
        """
        super().__init__()
        leaves = observation_leaves(obs_space)
        (self._leaf,) = leaves
        info = EnvInfo("", 1, leaves, action_spec(gym.spaces.Discrete(num_outputs)))
        self.network = ActorCritic(info, model_config(config, **{"actor_critic_share_weights": False, **network}))
        self._forward = DropIn(self.network)
        self._value: Tensor | None = None

    def get_initial_state(self) -> list[Array]:
        """Recurrent states of one row; none here."""
        return []

    def forward(self, columns: Mapping[str, Any], states: Sequence[Tensor] = ()) -> tuple[Tensor, list[Tensor]]:
        """Outputs [n, num_outputs] for the rows of ``columns["obs"]``, and the states after them."""
        outputs, self._value = self._forward(self.network, self.features(columns["obs"]))
        return outputs, []

    def from_batch(self, batch: Mapping[str, Any]) -> tuple[Tensor, list[Tensor]]:
        """The same for a batch for training, whose columns are tensors."""
        outputs: tuple[Tensor, list[Tensor]] = self(batch)
        return outputs

    def value_function(self) -> Tensor:
        """[n] of the rows of the last call."""
        assert self._value is not None, "call the model before its value_function"
        return self._value

    def features(self, obs: Tensor) -> Tensor:
        """[n, ...] the numbers that the network reads: here the observations, for subclasses to change."""
        return obs


class LSTMModel(TorchModel):
    """One layer, an LSTM over the steps of an episode, then outputs and value.

    The memory of `sf.nets` goes through [T, B] step by step, because episodes end within. Sequences of a plan do not,
    so one operation of torch goes through a whole one, which takes a third to a twentieth of the time.
    """

    def __init__(self, obs_space: Any, action_space: Any, num_outputs: int, config: Mapping[str, Any]) -> None:
        """See `TorchModel`; ``lstm_cell_size`` is the width."""
        self.width = int(config.get("lstm_cell_size", 64))
        read = gym.spaces.Box(-np.inf, np.inf, (self.width,), np.float32)
        super().__init__(read, action_space, num_outputs, {"hiddens": ()}, actor_critic_share_weights=True)
        one_layer, leaves = model_config({"hiddens": (self.width,)}), observation_leaves(obs_space)
        self.inputs = Inputs(leaves, one_layer)
        self.encoder, num_features = make_encoder(self.inputs.shapes, one_layer)
        self.lstm, (self._seen,) = nn.LSTM(num_features, self.width), leaves

    def get_initial_state(self) -> list[Array]:
        """Two vectors of zeros."""
        return [np.zeros(self.width, np.float32), np.zeros(self.width, np.float32)]

    def forward(self, columns: Mapping[str, Any], states: Sequence[Tensor] = ()) -> tuple[Tensor, list[Tensor]]:
        """One step of each row."""
        encoded = self.features(columns["obs"])
        after, (hidden, cell) = self.lstm(encoded[None], (states[0][None], states[1][None]))
        return self._heads(after[0]), [hidden[0], cell[0]]

    def from_batch(self, batch: Mapping[str, Any]) -> tuple[Tensor, list[Tensor]]:
        """Runs of rows of one episode go through the LSTM together, from the states that the first of them had."""
        encoded, starts = self.features(batch["obs"]), sequence_starts(batch)
        lengths = np.diff([*starts, len(encoded)]).tolist()
        padded = nn.utils.rnn.pad_sequence(list(torch.split(encoded, lengths)))  # [longest, runs, width]
        before = [batch[f"state_in_{i}"][starts][None] for i in range(2)]
        after, _ = self.lstm(padded, (before[0], before[1]))
        return self._heads(torch.cat([after[:length, run] for run, length in enumerate(lengths)])), []

    def features(self, obs: Tensor) -> Tensor:
        """[n, width] after the first layer."""
        features: Tensor = self.encoder(self.inputs({self._seen: obs}))
        return features

    def _heads(self, features: Tensor) -> Tensor:
        outputs: Tensor
        outputs, self._value, _ = self.network({self._leaf: features}, None)
        return outputs


def model_config(config: Mapping[str, Any], **network: Any) -> ModelConfig:
    """The settings ``model`` of a plan as those of a network: observations and returns are not normalized."""
    return ModelConfig(
        encoder_mlp_layers=tuple(config.get("hiddens", (64, 64))), nonlinearity=config.get("activation", "tanh"),
        normalize_input=False, normalize_returns=False, adaptive_stddev=True, **network,
    )  # fmt: skip


def expect_settings_of_model(config: Mapping[str, Any]) -> None:
    """Refuses settings ``model`` that the default network does not read; a ``custom_model`` has its own.

    Raises:
        ConfigError: there is no setting of a name.
    """
    model = config.get("model", {})
    if "custom_model" not in model and (problems := unknown_settings("model", model, SETTINGS_OF_MODEL)):
        raise ConfigError(problems)
