"""Recurrent layers between the encoder and the heads."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from sf.config import ModelConfig
from sf.nets.initialization import orthogonal


class Memory(nn.Module):
    """LSTM or GRU layers, one above the other, whose state is one row of numbers for each sequence.

    Weight matrices are orthogonal with gain 1 and biases are 0 (row C32 of "The 37 implementation details of PPO" by
    Huang et al. 2022).
    """

    def __init__(self, num_inputs: int, config: ModelConfig) -> None:
        super().__init__()
        make, self._parts_per_layer = (nn.LSTMCell, 2) if config.rnn_type == "lstm" else (nn.GRUCell, 1)
        self.size = self.num_features = config.rnn_size
        self.state_size = config.rnn_num_layers * self._parts_per_layer * self.size
        self.layers = nn.ModuleList()
        for index in range(config.rnn_num_layers):
            cell = make(self.size if index else num_inputs, self.size)
            for weights, biases in ((cell.weight_ih, cell.bias_ih), (cell.weight_hh, cell.bias_hh)):
                orthogonal(weights, biases)
            self.layers.append(cell)
        self.through_sequences: Callable[[nn.Module, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
        """A faster way of a cell through sequences, see `sf.nets.fast.native_recurrent.through_sequences`."""

    def forward(self, x: Tensor, state: Tensor, resets: Tensor | None) -> tuple[Tensor, Tensor]:
        """Goes through sequences step by step.

        Args:
            x: [T·B, num_inputs] in the order of time, T = 1 if `resets` is None.
            state: [B, state_size] before the first step.
            resets: [T, B] bool, whether an episode begins with the step, so that its state is 0 before it.

        Returns:
            [T·B, num_features], and the state [B, state_size] after the last step.
        """
        if resets is not None and self.through_sequences is not None:
            after = []
            states = torch.split(state, self._parts_per_layer * self.size, -1)
            for cell, before in zip(self.layers, states, strict=True):
                x, last = self.through_sequences(cell, x, before, resets)
                after.append(last)
            return x, torch.cat(after, -1)
        parts = list(torch.split(state, self.size, -1))
        outputs = []
        steps = (x,) if resets is None else x.view(len(resets), len(state), x.shape[-1]).unbind()
        keeps = (None,) if resets is None else (~resets).to(x.dtype).unsqueeze(-1).unbind()
        for step, keep in zip(steps, keeps, strict=True):
            if keep is not None:
                parts = [part * keep for part in parts]
            for index, cell in enumerate(self.layers):
                at = index * self._parts_per_layer
                if self._parts_per_layer == 2:
                    parts[at], parts[at + 1] = cell(step, (parts[at], parts[at + 1]))
                else:
                    parts[at] = cell(step, parts[at])
                step = parts[at]
            outputs.append(step)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs), torch.cat(parts, -1)
