"""Networks for the policies of plans: from the columns of a batch to the inputs of a distribution, and a value."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sf.nets.networks import linear
from sf.plans.minibatches import sequence_starts
from sf.shared.arena import Array

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}


class TorchModel(nn.Module):
    """Two layers for the outputs and two for the value; the base of networks of one's own.

    ``outputs, states = model(columns, states)`` is for the rows of a batch; `value_function` is of the same rows.
    """

    def __init__(self, obs_space: Any, action_space: Any, num_outputs: int, config: Mapping[str, Any]) -> None:
        """Makes the layers.

        Args:
            obs_space: a Box, or a Discrete space, which is read as one-hot.
            action_space: of one agent.
            num_outputs: numbers for each row.
            config: ``hiddens`` are the widths of the layers, ``activation`` is tanh, relu or elu.
        """
        super().__init__()
        self.num_choices = int(obs_space.n) if hasattr(obs_space, "n") else 0
        size = self.num_choices or int(np.prod(obs_space.shape))
        hiddens = list(config.get("hiddens", (64, 64)))
        self.activation = config.get("activation", "tanh")
        activation = ACTIVATIONS[self.activation]
        self.outputs = _layers([size, *hiddens, num_outputs], activation, gain=0.01)
        self.values = _layers([size, *hiddens, 1], activation, gain=1.0)
        self._value: Tensor | None = None

    def get_initial_state(self) -> list[Array]:
        """Recurrent states of one row; none here."""
        return []

    def forward(self, columns: Mapping[str, Any], states: Sequence[Tensor] = ()) -> tuple[Tensor, list[Tensor]]:
        """Outputs [n, num_outputs] for the rows of ``columns["obs"]``, and the states after them."""
        features = self.features(columns["obs"])
        self._value = self.values(features).squeeze(-1)
        outputs: Tensor = self.outputs(features)
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
        """[n, size] float32."""
        if self.num_choices:
            return nn.functional.one_hot(obs.to(torch.int64), self.num_choices).to(torch.float32)
        return obs.flatten(1).to(torch.float32) if obs.ndim > 1 else obs[:, None].to(torch.float32)


class LSTMModel(TorchModel):
    """One layer, an LSTM over the steps of an episode, then outputs and value.

    The memory of `sf.nets` goes through trajectories of one length, [T, B]. Sequences of a plan have any length.
    """

    def __init__(self, obs_space: Any, action_space: Any, num_outputs: int, config: Mapping[str, Any]) -> None:
        """See `TorchModel`; ``lstm_cell_size`` is the width."""
        super().__init__(obs_space, action_space, num_outputs, config)
        size = self.num_choices or int(np.prod(obs_space.shape))
        width = int(config.get("lstm_cell_size", 64))
        self.width, self.values = width, _layers([width, 1], nn.Tanh, gain=1.0)
        self.encoder, self.outputs = nn.Linear(size, width), _layers([width, num_outputs], nn.Tanh, gain=0.01)
        self.lstm = nn.LSTM(width, width)

    def get_initial_state(self) -> list[Array]:
        """Two vectors of zeros."""
        return [np.zeros(self.width, np.float32), np.zeros(self.width, np.float32)]

    def forward(self, columns: Mapping[str, Any], states: Sequence[Tensor] = ()) -> tuple[Tensor, list[Tensor]]:
        """One step of each row."""
        encoded = torch.tanh(self.encoder(self.features(columns["obs"])))
        after, (hidden, cell) = self.lstm(encoded[None], (states[0][None], states[1][None]))
        return self._heads(after[0]), [hidden[0], cell[0]]

    def from_batch(self, batch: Mapping[str, Any]) -> tuple[Tensor, list[Tensor]]:
        """Runs of rows of one episode go through the LSTM together, from the states that the first of them had."""
        encoded = torch.tanh(self.encoder(self.features(batch["obs"])))
        starts = sequence_starts(batch)
        lengths = np.diff([*starts, len(encoded)]).tolist()
        padded = nn.utils.rnn.pad_sequence(list(torch.split(encoded, lengths)))  # [longest, runs, width]
        before = [batch[f"state_in_{i}"][starts][None] for i in range(2)]
        after, _ = self.lstm(padded, (before[0], before[1]))
        rows = torch.cat([after[:length, run] for run, length in enumerate(lengths)])
        return self._heads(rows), []

    def _heads(self, features: Tensor) -> Tensor:
        self._value = self.values(features).squeeze(-1)
        outputs: Tensor = self.outputs(features)
        return outputs


def _layers(sizes: list[int], activation: type[nn.Module], gain: float) -> nn.Sequential:
    *hidden, last = itertools.pairwise(sizes)
    layers = [(linear(*pair), activation()) for pair in hidden]
    return nn.Sequential(*itertools.chain(*layers), linear(*last, gain))
