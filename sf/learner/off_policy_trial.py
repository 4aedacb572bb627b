"""An `OffPolicy` on trial: one update on a few zeros, of a policy that is thrown away."""

from __future__ import annotations

import copy
from typing import Any

from sf.errors import ConfigError
from sf.learner.metrics import TAKEN
from sf.learner.off_policy import OffPolicy, expected_scalars
from sf.learner.trial import batch_of_zeros, begin, fields_of, try_state
from sf.plugins import blamed_on
from sf.policy import ActorCritic

NUM_DRAWN = 4


def try_update(algorithm: OffPolicy, policy: ActorCritic) -> None:
    """Has a new algorithm do what it does in a run; the policy stays as it is.

    Raises:
        ConfigError: it raises an exception, or a method returns something else than it has to.
    """
    name = f"algorithm={type(algorithm).__name__}"
    algorithm.expect_order_for(policy)
    thrown_away = copy.deepcopy(policy)
    begin(algorithm, thrown_away)
    minibatch = _drawn(name, algorithm, thrown_away)
    with blamed_on(name, "explore()"):
        algorithm.explore()
    with blamed_on(name, "update(minibatch)"):
        scalars: object = algorithm.update(minibatch)
    if taken := sorted(expected_scalars(type(algorithm).__name__, scalars).keys() & TAKEN - SHOWN_BY_BOTH):
        raise ConfigError([f"{name}: {', '.join(taken)} are names of other curves of train/; choose other ones."])
    try_state(name, algorithm)


def _drawn(name: str, algorithm: OffPolicy, policy: ActorCritic) -> Any:
    """A minibatch of the ring of the algorithm, which has nothing in it but zeros.

    Raises:
        ConfigError: see `try_update`.
    """
    with blamed_on(name, "ring(size)"):
        ring = algorithm.ring(64)
    with blamed_on(name, "ring(size).add(batch)"):
        ring.add(batch_of_zeros(policy, fields_of(algorithm, policy.info)))
    with blamed_on(name, "ring(size).minibatches(number, size, device)"):
        drawn = [*ring.minibatches(1, NUM_DRAWN, policy.flat.device)]
    if len(drawn) == 1 and all(hasattr(drawn[0], part) for part in PARTS_OF_MINIBATCH):
        return drawn[0]
    raise ConfigError(
        [
            f"{name}: ring(size).minibatches(1, {NUM_DRAWN}) must yield one minibatch with "
            f"{', '.join(PARTS_OF_MINIBATCH)}, but yielded {drawn!r}."
        ]
    )


PARTS_OF_MINIBATCH = "observations", "actions", "rewards", "versions"
SHOWN_BY_BOTH = frozenset({"loss", "entropy", "value", "stddev", "grad_norm"})
"""Curves of PPO that mean the same elsewhere."""
