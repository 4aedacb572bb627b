"""A policy evaluated step by step in float64, after the documentation: layers, memory, heads, masks, statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sf.config import ModelConfig
from sf.spaces import ACTION_MASK, ActionSpec
from tests.helpers.recorded import Trajectory


class Evaluated(NamedTuple):
    """Evaluation of the steps of one trajectory."""

    log_probs: Tensor
    """[T] of the recorded actions."""
    entropies: Tensor
    """[T]."""
    values: Tensor
    """[T+1] in the units of the value head."""


class SlowNetwork:
    """Tanh layers, then GRU or LSTM cells if there are some, then linear heads."""

    def __init__(self, variables: Mapping[str, Tensor], config: ModelConfig, action: ActionSpec) -> None:
        """Begins with the variables of a policy, by name: parameters, then statistics."""
        self.variables = {name: tensor.detach().double().clone() for name, tensor in variables.items()}
        self.parameters = {name: v for name, v in self.variables.items() if "normalizer" not in name}
        for parameter in self.parameters.values():
            parameter.requires_grad_()
        self.config, self.action = config, action

    @property
    def vector(self) -> np.ndarray[Any, Any]:
        """All variables side by side, as they are published."""
        return np.concatenate([variable.detach().numpy().ravel() for variable in self.variables.values()])

    @property
    def normalizers(self) -> dict[str, str]:
        """Where the statistics of observations and returns are among the variables, if they exist."""
        places = {"obs": "inputs.readers.0.normalizer", "returns": "return_normalizer"}
        return {name: place for name, place in places.items() if f"{place}.mean" in self.variables}

    @property
    def statistics_of_returns(self) -> tuple[float, float]:
        """Mean and deviation by which values are shifted and scaled."""
        if not self.config.normalize_returns:
            return 0.0, 1.0
        return self.variables["return_normalizer.mean"].item(), self.variables["return_normalizer.std"].item()

    def evaluate(self, trajectory: Trajectory) -> Evaluated:
        """Goes through the T+1 observations in the order of time."""
        seen = trajectory.observations
        x = self._normalized(torch.from_numpy(seen["obs"]).double())
        ends = [False, *(trajectory.terminated | trajectory.truncated)]
        memory = torch.from_numpy(trajectory.initial_memory).double()
        features = self._tower("encoder", x)
        own, of_value = memory, memory
        if "value_encoder.mlp.layers.0.weight" in self.variables:
            value_features = self._tower("value_encoder", x)
            own, of_value = memory[: len(memory) // 2], memory[len(memory) // 2 :]
        else:
            value_features = features
        if self.config.use_rnn:
            shared = value_features is features
            features = self._remember("memory", features, own, ends)
            value_features = features if shared else self._remember("value_memory", value_features, of_value, ends)
        log_probs, entropies = self._actions(self._linear("policy_head", features)[:-1], trajectory)
        return Evaluated(log_probs, entropies, self._linear("value_head", value_features)[:, 0])

    def speak(self, trajectory: Trajectory) -> tuple[Any, Any]:
        """Log-probabilities [T] and values [T+1] in units of the reward."""
        with torch.no_grad():
            said = self.evaluate(trajectory)
        mean, std = self.statistics_of_returns
        return said.log_probs.numpy(), (mean + std * said.values).numpy()

    def _normalized(self, x: Tensor) -> Tensor:
        if not self.config.normalize_input:
            return x
        mean, std = (self.variables[f"inputs.readers.0.normalizer.{part}"] for part in ("mean", "std"))
        return torch.clamp((x - mean) / std, -10.0, 10.0)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.variables[f"{name}.weight"].T + self.variables[f"{name}.bias"]

    def _tower(self, name: str, x: Tensor) -> Tensor:
        for layer in range(len(self.config.encoder_mlp_layers)):
            x = torch.tanh(self._linear(f"{name}.mlp.layers.{layer}", x))
        return x

    def _remember(self, name: str, features: Tensor, memory: Tensor, ends: list[bool]) -> Tensor:
        """What the last layer of cells puts out; the memory is 0 where an episode begins."""
        cell = self._gru if self.config.rnn_type == "gru" else self._lstm
        states = list(torch.chunk(memory, self.config.rnn_num_layers))
        outputs = []
        for x, has_ended in zip(features, ends, strict=True):
            for layer in range(self.config.rnn_num_layers):
                before = torch.zeros_like(states[layer]) if has_ended else states[layer]
                states[layer] = cell(f"{name}.layers.{layer}", x, before)
                x = states[layer][: self.config.rnn_size]
            outputs.append(x)
        return torch.stack(outputs)

    def _gates(self, name: str, x: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        variables = self.variables
        of_input = variables[f"{name}.weight_ih"] @ x + variables[f"{name}.bias_ih"]
        return of_input, variables[f"{name}.weight_hh"] @ hidden + variables[f"{name}.bias_hh"]

    def _gru(self, name: str, x: Tensor, hidden: Tensor) -> Tensor:
        """The equations of torch.nn.GRU."""
        (r_i, z_i, n_i), (r_h, z_h, n_h) = (gates.chunk(3) for gates in self._gates(name, x, hidden))
        reset, update = torch.sigmoid(r_i + r_h), torch.sigmoid(z_i + z_h)
        return (1 - update) * torch.tanh(n_i + reset * n_h) + update * hidden

    def _lstm(self, name: str, x: Tensor, state: Tensor) -> Tensor:
        """The equations of torch.nn.LSTM; the state is h, then c."""
        hidden, cell = state.chunk(2)
        of_input, of_hidden = self._gates(name, x, hidden)
        i, f, g, o = (of_input + of_hidden).chunk(4)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
        return torch.cat([torch.sigmoid(o) * torch.tanh(cell), cell])

    def _actions(self, params: Tensor, trajectory: Trajectory) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies [T]: sums over the columns of the action."""
        actions = torch.from_numpy(trajectory.actions)
        if not self.action.choices:
            log_std = self.variables["distribution.log_std"]
            z = (actions - params) / log_std.exp()
            log_probs = (-0.5 * z**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
            entropy = (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()
            return log_probs, entropy.expand(len(params))
        if ACTION_MASK in trajectory.observations:
            legal = torch.from_numpy(trajectory.observations[ACTION_MASK][:-1]) != 0
            params = torch.where(legal, params, -1e8)
        actions = actions.reshape(len(params), -1)
        log_probs, entropies = torch.zeros(len(params)).double(), torch.zeros(len(params)).double()
        for column, logits in enumerate(torch.split(params, list(self.action.choices), -1)):
            logs = logits - torch.logsumexp(logits, -1, keepdim=True)
            log_probs = log_probs + logs[torch.arange(len(params)), actions[:, column]]
            entropies = entropies - (logs.exp() * logs).sum(-1)
        return log_probs, entropies
