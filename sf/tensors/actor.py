"""The policy that acts in a simulator in tensors, with the newest published weights."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sf.config import Config
from sf.nets.actor_critic import ActorCritic
from sf.nets.device import from_host, note_memory, pin
from sf.nets.fast.recorded import Recording, random_rows, recorded, recorder_for
from sf.nets.lasting_noise import following
from sf.policy import PolicyStep
from sf.shared.context import RunContext
from sf.shared.records import Record
from sf.shared.slot_fields import fields_from_heads
from sf.shared.weights import NOTHING_PUBLISHED, PublishedWeights


class TensorActor:
    """Answers the observations of a step, where they lie in the slots, for all rows at once."""

    def __init__(
        self,
        context: RunContext,
        config: Config,
        weights: PublishedWeights,
        record: Record,
        device: torch.device,
        observations: Mapping[str, Tensor],
        seed: int,
    ) -> None:
        """Makes the network; its weights come with the first publication.

        Args:
            context: of all roles.
            config: of the run, resolved.
            weights: published by the learner.
            record: of inference.
            device: that holds and computes everything here.
            observations: [slots, T+1, rows, ...] by leaf.
            seed: of the actions.
        """
        topology = context.topology
        self.record, self.device = record, device
        self._rows, self._observations = topology.rows, observations
        self._weights, self.version = weights, NOTHING_PUBLISHED
        self.network = ActorCritic(context.info, config.model, device, config.run.bf16).requires_grad_(False)
        self.network.answer_heads(fields_from_heads(context.arena))
        self._take_weights = from_host(self.network.flat)
        self.generator = torch.Generator(device).manual_seed(seed)
        self._seen = {key: torch.empty_like(room[0, 0]) for key, room in observations.items()}
        """Place of what the policy sees."""
        self.memory = torch.zeros(self._rows, self.network.state_size, device=device)
        """[rows, S] recurrent state before the next step; the worker writes it."""
        self._correlation = config.inference.noise_correlation
        self._noise = random_rows(self.network, self._rows)
        self.noises = self._noise.expand(topology.rollout + 1, *self._noise.shape)
        """[T+1, rows, n] those of the present trajectory."""
        if self._correlation:
            self.noises = self._fresh_noises()  # what the first trajectory follows
        self._act: Recording[PolicyStep] | None = None

    @property
    def has_weights(self) -> bool:
        """Whether it has taken some that were published."""
        return self.version != NOTHING_PUBLISHED

    def refresh_weights(self) -> bool:
        """Takes newer weights if there are any; False while there are none at all."""
        if self._weights.version == NOTHING_PUBLISHED:
            return False
        if self._weights.version != self.version:
            started = time.perf_counter()
            if not self.has_weights:
                pin(self._weights, self.device)
            self.version = self._weights.read(self._take_weights)
            self.record["refresh_seconds"] += time.perf_counter() - started
            self.record["refreshes"] += 1
            self.record["weights_version"] = self.version
            note_memory(self.device, self.record)
            self.record.lap("weights")
        return True

    def draw_noises(self) -> None:
        """The random numbers for the actions of a trajectory."""
        before, self.noises = self.noises[-2], self._fresh_noises()
        if self._correlation:
            for noise in self.noises:
                before = noise.copy_(following(before, noise, self._correlation))

    def _fresh_noises(self) -> Tensor:
        noise = self.network.distribution.noise(self.noises.shape[0] * self._rows, self.generator, self.device)
        return noise.view(self.noises.shape)

    def answer(self, slot: int, t: int) -> PolicyStep:
        """What the policy says of the observations of a step; good until the next answer."""
        for key, place in self._seen.items():
            place.copy_(self._observations[key][slot, t])
        self._noise.copy_(self.noises[t])
        if self._act is None:
            network, places = self.network, (self._seen, self.memory, self._noise)
            self._act = recorded(lambda: network.act_with(*places), recorder_for(network))
        self.record["forwards"] += 1
        self.record["requests"] += 1
        return self._act()

    def state(self) -> dict[str, Any]:
        """What a resumed run needs within a trajectory, beside `memory`."""
        return {"noises": self.noises, "random": self.generator.get_state()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken."""
        self.noises = state["noises"].to(self.device)
        self.generator.set_state(state["random"])
