"""The network that acts, is trained, published and saved."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from sf.config import ModelConfig
from sf.errors import ConfigError
from sf.nets.categorical import MASKED_LOGIT
from sf.nets.outputs import CollectInfo, Evaluation, PolicyStep, Sequences
from sf.nets.parts import NetworkParts
from sf.spaces import ACTION_MASK, EnvInfo

Observations = Mapping[str, Tensor]
"""[B, *shape] per leaf, as the environment gave them."""


class ActorCritic(NetworkParts):
    """A stochastic policy and a value function for one environment.

    Acting and training share `forward` and the formula of the log-probability, so that under unchanged weights every
    probability ratio is 1 up to rounding. Statistics that scale observations and returns are buffers: they change only
    when the learner changes them, and they travel with the weights in `flat`.

    Actions are neither clipped or squashed to the bounds of a Box nor shifted to the first choice of a Discrete space.
    The code that steps the environment does both, because the log-probability belongs to the action as it was drawn.

    Each row of a recurrent policy has a state, which `act` takes and returns. The caller sets it to 0 where an episode
    begins.

    All modules are in evaluation mode, in training as well, so that layers such as `nn.Dropout` pass their input on.
    """

    def __init__(
        self, info: EnvInfo, config: ModelConfig, device: torch.device | str = "cpu", bf16: bool = False
    ) -> None:
        """Makes a network with random weights.

        Args:
            info: spaces of the environments.
            config: of the network.
            device: that holds and computes it.
            bf16: compute the encoders in bfloat16; parameters, heads and recurrent layers stay float32.
        """
        super().__init__(info, config, device, bf16)
        # Looking up a submodule, parameter or buffer costs a microsecond each time, and calling a module another. That
        # would be a third of acting on a small batch. So modules here call functions that are kept in plain attributes.
        self._read_inputs = self.inputs.forward
        self.read_for_policy = self.groups.reader_for_policy(self.inputs)
        self._encode = self.groups.of_policy(self._encoding(self.encoder))
        self._encode_own = self._encoding(self.encoder)
        self._further_heads = getattr(self.encoder, "heads", None)
        self._answered_heads: tuple[str, ...] = ()
        self._encode_for_value = (
            None if self.value_encoder is None else self.groups.of_critic(self._encoding(self.value_encoder))
        )
        self._memories = tuple(memory for memory in (self.memory, self.value_memory) if memory is not None)
        self._policy_head_parameters = (self.policy_head.weight, self.policy_head.bias)
        self._value_head_parameters = (self.value_head.weight, self.value_head.bias)
        self._sample, self._mode = self.distribution.sample, self.distribution.mode
        self._draw, self._best, self._noise = self.distribution.draw, self.distribution.best, self.distribution.noise
        self._denormalize = None if self.return_normalizer is None else self.return_normalizer.denormalize

    def get_initial_state(self, batch_size: int) -> Tensor:
        """[B, S] recurrent state at the beginning of an episode: zeros; S is 0 without one."""
        return torch.zeros(batch_size, self.state_size, dtype=torch.float32, device=self.flat.device)

    @torch.inference_mode()
    def act(
        self,
        observations: Observations,
        state: Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> PolicyStep:
        """Choose an action for each row: drawn from the distribution, or its mode.

        Args:
            observations: [B, *shape] per leaf.
            state: [B, S] memory before the step; left out it is that of the beginning.
            generator: of the random numbers.
            greedy: take the mode.
        """
        return self.act_with(observations, state, None if greedy else self.noise(observations, generator))

    def noise(self, observations: Observations, generator: torch.Generator | None) -> Tensor:
        """[B, n] random numbers for drawing an action in each row."""
        return self._noise(next(iter(observations.values())).shape[0], generator, self._device)

    def act_with(self, observations: Observations, state: Tensor | None, noise: Tensor | None) -> PolicyStep:
        """The result of `act`, as a function of tensors; without noise the mode."""
        features, normalized_values, state = self._features_and_values(observations, state, None)
        action_params = self._head(features, observations)
        if noise is None:
            actions, log_probs = self._mode(action_params)
        else:
            actions, log_probs = self._sample(action_params, noise)
        info = CollectInfo(log_probs, self.denormalize(normalized_values), action_params)
        if self._answered_heads:
            assert self._further_heads is not None
            found = self._further_heads(features)
            info = info._replace(heads={name: found[name] for name in self._answered_heads})
        return PolicyStep(actions, state, info)

    def answer_heads(self, names: Collection[str]) -> None:
        """Has `act` answer with these further heads of the encoder from now on, see `evaluate`.

        Raises:
            ConfigError: the encoder has no such heads.
        """
        if names and self._further_heads is None:
            raise ConfigError(
                [
                    f"encoder={self.config.encoder} has no method heads(features), which the field {min(names)!r} of "
                    "the algorithm needs. Give it one that returns a tensor under this name."
                ]
            )
        self._answered_heads = tuple(names)

    @torch.inference_mode()
    def choose(
        self, observations: Observations, state: Tensor, generator: torch.Generator | None = None, greedy: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Actions, and the state afterwards, as `act` has them, without values and log-probabilities.

        Args:
            observations: [B, *shape] per leaf.
            state: [B, size of the policy's own recurrent state].
            generator: of the random numbers.
            greedy: take the mode.
        """
        action_params, state = self.policy_forward(observations, state)
        if greedy:
            return self._best(action_params), state
        return self._draw(action_params, self.noise(observations, generator)), state

    def evaluate(self, observations: Observations, actions: Tensor, sequences: Sequences | None = None) -> Evaluation:
        """Log-probabilities of recorded actions, entropies and values, with gradients.

        An encoder of the user's may have a method ``heads(features)`` that returns a dict of tensors [N, ...], for
        losses of its own. The features are those that actions are chosen from. Acting does not call it.

        Args:
            observations: [N, *shape] per leaf.
            actions: [N] or [N, D].
            sequences: of a recurrent policy; then N = T·B in the order of time.
        """
        state, resets = (None, None) if sequences is None else sequences
        features, normalized_values, _ = self._features_and_values(observations, state, resets)
        action_params = self._head(features, observations)
        log_probs, entropy = self.distribution.evaluate(action_params, actions)
        heads = {} if self._further_heads is None else self._further_heads(features)
        return Evaluation(log_probs, entropy, normalized_values, action_params, heads)

    @torch.no_grad()
    def values(self, observations: Observations, state: Tensor | None = None) -> Tensor:
        """[B] expected returns in units of the reward, without gradients; `state` as for `act`."""
        _, normalized_values, _ = self.forward(observations, state)
        return self.denormalize(normalized_values)

    def denormalize(self, normalized_values: Tensor) -> Tensor:
        """From the units of the value head to those of the reward."""
        return normalized_values if self._denormalize is None else self._denormalize(normalized_values)

    def normalize(self, values: Tensor) -> Tensor:
        """From the units of the reward to those of the value head."""
        return values if self.return_normalizer is None else self.return_normalizer.normalize(values)

    @torch.no_grad()
    def set_return_moments(self, mean: Tensor, variance: Tensor) -> None:
        """Takes over statistics of returns, scalars of any float type; no value in units of the reward changes.

        The value head is rescaled by as much as its unit (PopArt, van Hasselt et al. 2016, arXiv:1602.07714, section
        2.2). Otherwise each change of the statistics would move all values, most of all near the start of a run.
        """
        normalizer = self.return_normalizer
        assert normalizer is not None, "returns are not normalized"
        old_mean, old_std = normalizer.mean.clone(), normalizer.std.clone()
        normalizer.set_moments(mean, variance)
        weight, bias = self._value_head_parameters
        weight.mul_(old_std / normalizer.std)
        bias.mul_(old_std).add_(old_mean - normalizer.mean).div_(normalizer.std)

    def forward(
        self, observations: Observations, state: Tensor | None, resets: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Parameters of the action distribution [B, n], normalized values [B], and the state afterwards."""
        features, values, state = self._features_and_values(observations, state, resets)
        return self._head(features, observations), values, state

    def _features_and_values(
        self, observations: Observations, state: Tensor | None, resets: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Features [B, n] that actions are chosen from, normalized values [B], and the state afterwards."""
        inputs = self._read_inputs(observations)
        features = self._encode(inputs)
        value_features = features if self._encode_for_value is None else self._encode_for_value(inputs)
        if self._memories:
            features, value_features, state = self._remember(features, value_features, state, resets)
        elif state is None:
            state = features[:, :0]
        values = functional.linear(value_features, *self._value_head_parameters).squeeze(-1)
        return features, values, state

    def forward_apart(self, observations: Observations) -> tuple[Tensor, Tensor]:
        """Parameters of the action distribution [B, n], and normalized values [B] whose gradient ends at the features.

        So an error of the values moves nothing that actions are chosen from. For a policy without memory.
        """
        inputs = self._read_inputs(observations)
        features = self._encode(inputs)
        of_values = features.detach() if self._encode_for_value is None else self._encode_for_value(inputs)
        values = functional.linear(of_values, *self._value_head_parameters).squeeze(-1)
        return self._head(features, observations), values

    def policy_forward(self, observations: Observations, state: Tensor) -> tuple[Tensor, Tensor]:
        """The part of a forward pass that acting needs: parameters of the action distribution [B, n], and the state."""
        features = self._encode_own(self.read_for_policy(observations))
        if self._memories:
            features, state = self._memories[0](features, state, None)
        return self._head(features, observations), state

    def _head(self, features: Tensor, observations: Observations) -> Tensor:
        """Parameters of the action distribution; choices that are not legal have probability 0."""
        action_params = functional.linear(features, *self._policy_head_parameters)
        if self._masked:
            forbidden = functional.pad(observations[ACTION_MASK] == 0, self._mask_padding)
            action_params = action_params.masked_fill(forbidden, MASKED_LOGIT)
        return action_params

    def _remember(
        self, features: Tensor, value_features: Tensor, state: Tensor | None, resets: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Features that know the past, and the state afterwards."""
        if state is None:
            state = self.get_initial_state(len(features))
        if len(self._memories) == 1:
            features, state = self._memories[0](features, state, resets)
            return features, features, state
        own, of_value = self._memories
        features, own_state = own(features, state[:, : own.state_size], resets)
        value_features, value_state = of_value(value_features, state[:, own.state_size :], resets)
        return features, value_features, torch.cat([own_state, value_state], -1)

    def __deepcopy__(self, memo: dict[int, object]) -> ActorCritic:
        """A network of its own, whose variables are views into a vector of its own."""
        copied = ActorCritic(self.info, self.config, self.flat.device, self.bf16)
        with torch.no_grad():
            copied.flat.copy_(self.flat)
        for memory, own in zip(copied._memories, self._memories, strict=True):
            memory.through_sequences = own.through_sequences
        return copied

    def __reduce__(self) -> tuple[Callable[..., ActorCritic], tuple[object, ...]]:
        """Pickled as its description and its variables; an encoder of the user's must be known where it is loaded."""
        return _network_of, (self.info, self.config, str(self._device), self.bf16, self.flat.detach().clone())


def _network_of(info: EnvInfo, config: ModelConfig, device: str, bf16: bool, flat: Tensor) -> ActorCritic:
    """The network that was pickled."""
    network = ActorCritic(info, config, device, bf16)
    with torch.no_grad():
        network.flat.copy_(flat)
    return network
