"""The part of a rollout worker that acts for itself, with small networks of all policies.

In: requests of the groups of this process, published weights. Out: actions, their log-probabilities, values and the
versions that computed them, written in place. It has its turn before the rollout worker, and imports no torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from sf.config import Config
from sf.config.written_out import size_of
from sf.inference.bells import InferenceBells
from sf.inference.small_actors import small_actor
from sf.nets.fast.numpy_network import SmallNetwork, noise_source
from sf.nets.lasting_noise import lasting_noise
from sf.shared.arena import Array
from sf.shared.context import RunContext
from sf.shared.records import inference_record
from sf.shared.weights import NOTHING_PUBLISHED, PublishedWeights

ACTING = 0x61637473
"""The last word of the entropy: no stream of an environment is like one of actions."""


class ActingBeside:
    """One role object in the process of a rollout worker: `step` serves the groups that wait."""

    tell: Callable[[Any], None]

    def __init__(self, context: RunContext, index: int, bells: InferenceBells) -> None:
        """Takes views of the words through which groups ask.

        Args:
            context: of all roles.
            index: of the rollout worker.
            bells: that it hears.
        """
        self.topology, self.info, self.bells = context.topology, context.info, bells
        num_policies = self.topology.num_policies
        self.slots, self.requests = context.slots(), context.requests()
        self.groups = self.topology.groups_of_worker(index)
        requests = self.requests
        self._request, self._slot, self._step = requests.request.data, requests.slot.data, requests.step.data
        self._answered = [column.data for column in requests.answered.T]
        places = [policy * self.topology.inference_per_policy + index for policy in range(num_policies)]
        self.records = [inference_record(context.arena, place) for place in places]
        """One for each policy."""
        self.record = self.records[0]
        """Has the time that acting takes for all of them."""

    def step(self) -> bool:
        """Serves every group that waits; False if none does, or if the weights of a policy have not come yet."""
        request, answered = self._request, self._answered
        waiting = [g for g in self.groups if any(request[g] != own[g] for own in answered)]
        if not waiting or not self._refresh_weights():
            return False
        for number, group in enumerate(waiting):
            if number:
                self._refresh_weights()  # each forward pass has the newest
            self._serve(group)
        self.record.lap("forward")
        for record in self.records:
            record.publish()
        return True

    def wait(self, timeout_s: float) -> None:
        """Sleeps until the rollout worker has something to do."""
        self.bells.own.wait(timeout_s)
        self.record.lap("wait")

    def close(self) -> None:
        """Nothing to close: all that it holds is memory."""

    def state(self) -> dict[str, Any] | None:
        """The state that a resumed run needs beside shared memory; None for nothing."""
        return None

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken."""

    def _refresh_weights(self) -> bool:
        """Takes newer weights if there are any; False while a policy has none at all."""
        raise NotImplementedError

    def _serve(self, group: int) -> None:
        """Answers a group."""
        raise NotImplementedError


class SmallInference(ActingBeside):
    """Acts with small networks of all policies, written out in NumPy."""

    def __init__(
        self,
        context: RunContext,
        index: int,
        config: Config,
        weights: Sequence[PublishedWeights],
        bells: InferenceBells,
        incarnation: int = 0,
    ):
        """Acts when weights of all policies have come.

        Args:
            context: of all roles.
            index: of the rollout worker.
            config: of the run, resolved.
            weights: published by the learner of each policy.
            bells: that it hears.
            incarnation: how many workers have had this place before; a successor draws other actions.
        """
        super().__init__(context, index, bells)
        self.weights, num_policies = weights, self.topology.num_policies
        self.versions = np.full(num_policies, NOTHING_PUBLISHED)
        """[policies] int64, of the weights that it acts with."""
        self._held = self.versions.tolist()
        self._own_weights = np.zeros((num_policies, size_of(self.info, config.model)), np.float32)
        self.networks = [SmallNetwork(self.info, config.model, own) for own in self._own_weights]
        """By policy, with its weights."""
        self.act = small_actor(self.info, config, self._own_weights, self.versions, self.slots)
        """See `SmallActor`."""
        self.one_by_one = not config.run.async_rl and not config.run.serial_mode
        """Gives each group random numbers of its own, which leaves no trace of the order in which groups asked."""
        self._entropy = [context.sampling_seed, 0, index, incarnation]
        self.random = self._random_numbers(None)
        self.draw = noise_source(self.info, self.random)
        """The source of random numbers, from the number of rows."""
        self._draw_of_groups: dict[int, Callable[[int], Array]] = {}
        self._lasting = lasting_noise(config, context, self._entropy)
        self._has_final_observation = self.slots.has_final_observation[self.groups.start : self.groups.stop]

    def state(self) -> dict[str, Any]:
        """See `ActingBeside`.

        Streams of single groups are for runs of several processes, which go on with other numbers.
        """
        lasting = {} if self._lasting is None else {"lasting_noise": self._lasting.state()}
        return {"random": self.random.bit_generator.state} | lasting

    def load_state(self, state: dict[str, Any]) -> None:
        """See `ActingBeside`."""
        self.random.bit_generator.state = state["random"]
        if self._lasting is not None:
            self._lasting.load_state(state.get("lasting_noise", {}))

    def take_weights(self, policy: int, weights: Array) -> None:
        """Acts with these from now on, [size] float32."""
        self._own_weights[policy] = weights

    def _refresh_weights(self) -> bool:
        """See `ActingBeside`."""
        for policy, published in enumerate(self.weights):
            if published.version != self._held[policy]:
                self._refresh(policy)
        return NOTHING_PUBLISHED not in self._held

    def _refresh(self, policy: int) -> None:
        record, started = self.records[policy], time.perf_counter()
        self._held[policy] = self.versions[policy] = self.weights[policy].read(partial(self.take_weights, policy))
        record["refresh_seconds"] += time.perf_counter() - started
        record["refreshes"] += 1
        record["weights_version"] = self._held[policy]
        self.record.lap("weights")

    def _serve(self, group: int) -> None:
        request = self.requests.observe(self._request, group)
        slot, step = self._slot[group], self._step[group]
        counts = self.act(slot, step, self._noise(group, step))
        if np.count_nonzero(self._has_final_observation):  # in any group, waiting or not
            self._value_final_observations(group, slot, step)
        is_step = step < self.topology.rollout
        samples = (counts - self.slots.fillers[group]).tolist()
        for policy, record in enumerate(self.records):
            if is_step:
                record["samples"] += samples[policy]
            record["requests"] += 1
            record["forwards"] += 1
            self.requests.publish(self._answered[policy], group, request)

    def _value_final_observations(self, group: int, slot: int, step: int) -> None:
        """The rows whose episode was cut in the step before get a value of their last observation."""
        slots, cut = self.slots, self.slots.has_final_observation[group]
        (observations,) = slots.final_observations.values()
        for policy, network in enumerate(self.networks):
            rows = np.flatnonzero(cut & (slots.policy_id[slot, step - 1] == policy))
            if len(rows):
                slots.final_values[slot, step - 1, rows] = network.values(observations[group, rows])

    def _noise(self, group: int, step: int) -> Array:
        """Random numbers [rows, n] for the actions of a group."""
        if self._lasting is not None:
            return self._lasting.draw(group, step < self.topology.rollout)
        draw = self._draw_of(group) if self.one_by_one else self.draw
        return draw(self.topology.rows)

    def _draw_of(self, group: int) -> Callable[[int], Array]:
        if group not in self._draw_of_groups:
            self._draw_of_groups[group] = noise_source(self.info, self._random_numbers(group))
        return self._draw_of_groups[group]

    def _random_numbers(self, group: int | None) -> np.random.Generator:
        return np.random.default_rng([*self._entropy, 0 if group is None else group + 1, ACTING])
