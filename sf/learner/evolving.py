"""A learner of a population: its flags change in the course of the run, and it may take over another policy.

In: orders of the director beside save requests. Weights do not travel with them. The learner reads the newest ones of
the other policy where that one publishes them. It publishes them under its own next version, and every transition of
an earlier version is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sf.config import Config
from sf.config.pbt_space import OF_ENV, space_of
from sf.learner.worker import Learner
from sf.nets.device import from_host
from sf.shared.messages import Evolve, Order
from sf.shared.weights import PublishedWeights
from sf.storage.experiment import Owner
from sf.storage.population import values_of_policy


class EvolvingLearner(Learner):
    """Begins with the values that the population has noted for its policy."""

    def __init__(
        self,
        policy_id: int,
        index: int,
        config: Config,
        owner: Owner,
        population: Sequence[PublishedWeights],
        **rest: Any,
    ) -> None:
        """See `Learner`.

        Args:
            policy_id, index, config, owner: see `Learner`.
            population: weights of each policy, as their learners publish them.
            rest: further arguments of `Learner`.
        """
        self._population = population
        super().__init__(policy_id, index, config, owner=owner, **rest)
        own = [name for name in space_of(config.population.pbt_space) if not name.startswith(OF_ENV)]
        self._evolve(values_of_policy(owner.path, policy_id, own))
        self.rings_always = config.run.serial_mode
        """The director then sees each iteration, so that the same run decides the same."""

    def state(self) -> dict[str, Any]:
        """See `Learner.state`; slots may hold transitions of the policy that was replaced."""
        return super().state() | {"void_before": self.update.void_before}

    def load_state(self, state: dict[str, Any]) -> None:
        """See `Learner.load_state`."""
        super().load_state(state)
        self.update.void_before = state["void_before"]

    def _carry_out(self, order: Order) -> None:
        if not isinstance(order, Evolve):
            super()._carry_out(order)
            return
        if order.source is not None:
            self._take_over(order.source)
        self._evolve(dict(order.values))

    def _evolve(self, values: Mapping[str, float]) -> None:
        """Goes on with these flags."""
        numbers: dict[str, Any] = dict(values)
        if numbers:
            self.update.reconfigure(replace(self.update.config, **numbers))

    def _take_over(self, source: int) -> None:
        """Goes on from the newest weights of another policy, and publishes them as the next version."""
        self._population[source].read(from_host(self.network.flat))
        self.update.begin_with_weights()
        self.weights.publish(self.update.version, self._write_weights)
        self.record["version"] = self.update.version
        self.record.publish()
