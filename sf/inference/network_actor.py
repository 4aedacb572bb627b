"""Acting with a network of torch, on the CPU or on an accelerator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from sf.config import Config
from sf.console import Console
from sf.inference.actors import Answers
from sf.inference.carrier import carrier_to
from sf.inference.recorded import RecordedAct
from sf.nets.actor_critic import ActorCritic
from sf.nets.device import from_host, note_memory, pin, use_device
from sf.nets.fast.acting import FastAct
from sf.nets.fast.recorded import CudaGraphs, can_record
from sf.shared.arena import Arena, Array
from sf.shared.records import Record
from sf.shared.slot_fields import fields_from_heads
from sf.shared.weights import PublishedWeights
from sf.spaces import EnvInfo


class NetworkActor:
    """See `Actor`."""

    def __init__(
        self, info: EnvInfo, config: Config, entropy: Sequence[int], arena: Arena, accelerator: int | None
    ) -> None:
        """Builds the network; its weights come with the first publication.

        Args:
            info: spaces of the environments.
            config: of the run.
            entropy: of the random numbers.
            arena: the shared memory of the observations.
            accelerator: to act on, see `sf.nets.device`.

        Raises:
            ResourceError: there is no accelerator.
        """
        torch.set_default_dtype(torch.float32)  # a module of the user's may have chosen another one
        torch.set_num_threads(1)  # the other cores belong to other roles
        self.device = use_device(accelerator, arena)
        self.network = ActorCritic(info, config.model, self.device, config.run.bf16)
        self.network.answer_heads(fields_from_heads(arena))
        self.fast_act = FastAct(self.network)
        self.take_weights = from_host(self.network.flat)
        """See `Actor`."""
        self._carrier = carrier_to(self.device)
        self._recorded = _recorded_act(self.network)
        self._entropy = list(entropy)
        self.generator = self._generator(self._entropy)
        self._generators_of_streams: dict[int, torch.Generator] = {}

    def expect_weights(self, weights: PublishedWeights) -> None:
        """See `Actor`."""
        pin(weights, self.device)

    def act(
        self,
        observations: Mapping[str, Sequence[Array]],
        memory: Sequence[Array],
        stream: int | None,
        noise: Array | None = None,
    ) -> Answers:
        """See `Actor`. The recurrent state is that of the inference worker, which knows where episodes begin."""
        generator = self.generator if stream is None else self._generator_of(stream)
        if self._recorded is not None:
            return self._recorded(observations, memory, generator, noise)
        take = self._carrier.take
        leaves = {key: take(parts) for key, parts in observations.items()}
        given = None if noise is None else torch.from_numpy(noise).to(self.device)
        return self._carrier.bring(self.fast_act(leaves, take(memory) if memory else (), generator, given))

    def note_memory(self, record: Record) -> None:
        """See `Actor`."""
        note_memory(self.device, record)

    def state(self) -> dict[str, Any]:
        """See `Actor`."""
        return {"generator": self.generator.get_state().tolist(), "noise": self.fast_act.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        """See `Actor`."""
        saved = torch.tensor(state["generator"], dtype=torch.uint8)
        if saved.shape != self.generator.get_state().shape:
            Console().line("The run was on another device before; the random numbers of its actions begin anew.")
            return
        self.generator.set_state(saved)
        self.fast_act.load_state(state["noise"], self.generator)

    def _generator_of(self, stream: int) -> torch.Generator:
        if stream not in self._generators_of_streams:
            self._generators_of_streams[stream] = self._generator([*self._entropy, stream])
        return self._generators_of_streams[stream]

    def _generator(self, entropy: Sequence[int]) -> torch.Generator:
        word = int(np.random.SeedSequence(entropy).generate_state(1)[0])
        return torch.Generator(self.device).manual_seed(word)


def _recorded_act(network: ActorCritic) -> RecordedAct | None:
    """Forward passes as CUDA graphs, where they can be."""
    return RecordedAct(network, CudaGraphs()) if can_record(network) else None
