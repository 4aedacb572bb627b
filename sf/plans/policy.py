"""The interface of a plan's policy (row D1): it acts, postprocesses its own trajectories, and learns.

Anything with these methods is one, with or without torch. `sf.plans.build_torch_policy` makes one from functions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sf.errors import UsageError
from sf.plans.sample_batch import SampleBatch
from sf.shared.arena import Array

Actions = tuple[Array, list[Array], dict[str, Array]]
"""Actions [n, ...], recurrent states [n, ...] each, and extra columns [n, ...] by name."""


class PlanPolicy:
    """Chooses actions and learns from batches."""

    def __init__(self, observation_space: Any, action_space: Any, config: Mapping[str, Any]) -> None:
        """Keeps what it is given.

        Args:
            observation_space: of one agent.
            action_space: of one agent.
            config: settings of the plan and of the policy.
        """
        self.observation_space, self.action_space, self.config = observation_space, action_space, dict(config)

    def compute_actions(
        self,
        obs_batch: Array,
        state_batches: Sequence[Array] = (),
        prev_action_batch: Array | None = None,
        prev_reward_batch: Array | None = None,
        info_batch: Sequence[Mapping[str, Any]] | None = None,
        episodes: Sequence[Any] | None = None,
    ) -> Actions:
        """Chooses an action for each row.

        Args:
            obs_batch: [n, ...] observations.
            state_batches: recurrent states, [n, ...] each, as `get_initial_state` has them for one row.
            prev_action_batch: [n, ...] actions before; zeros at the start of an episode.
            prev_reward_batch: [n] rewards before; zeros at the start of an episode.
            info_batch: of the last steps; None from workers, which do not keep them.
            episodes: for policies that look at them; None from workers.
        """
        raise NotImplementedError

    def compute_single_action(self, obs: Array, state: Sequence[Array] = ()) -> Any:
        """The action for one observation; with recurrent states a tuple of it, the next states and extra columns.

        Raises:
            UsageError: the policy is recurrent, and there is no state.
        """
        if not len(state) and self.get_initial_state():
            raise UsageError(
                "This policy is recurrent. Begin an episode with state=policy.get_initial_state(), and go on with the "
                "states that come back as the second part."
            )
        before = [np.asarray(part)[None] for part in state]
        zeros = np.zeros((1, *self.action_space.shape), self.action_space.dtype)
        actions, after, extra = self.compute_actions(np.asarray(obs)[None], before, zeros, np.zeros(1, np.float32))
        if not before:
            return actions[0]
        return actions[0], [part[0] for part in after], {name: column[0] for name, column in extra.items()}

    @property
    def postprocesses(self) -> bool:
        """Whether `postprocess_trajectory` does anything."""
        return type(self).postprocess_trajectory is not PlanPolicy.postprocess_trajectory

    def postprocess_trajectory(
        self, sample_batch: SampleBatch, other_agent_batches: Mapping[Any, Any] | None = None, episode: Any = None
    ) -> SampleBatch:
        """Works on the steps of one agent in one episode, or the part of it in a fragment, before training.

        Args:
            sample_batch: the steps.
            other_agent_batches: of the other agents of the episode, by agent: their policy and the same steps of
                theirs. None for the dummy batch.
            episode: a `PlanEpisode`; None for the dummy batch.
        """
        return sample_batch

    def learn_on_batch(self, samples: SampleBatch) -> dict[str, Any]:
        """Takes one step of the optimizer; returns statistics."""
        gradients, info = self.compute_gradients(samples)
        self.apply_gradients(gradients)
        return info

    def compute_gradients(self, postprocessed_batch: SampleBatch) -> tuple[Any, dict[str, Any]]:
        """The first half of learning: gradients, and statistics."""
        raise NotImplementedError

    def apply_gradients(self, gradients: Any) -> None:
        """The second half of learning."""
        raise NotImplementedError

    def get_initial_state(self) -> list[Array]:
        """Recurrent states of one row at the start of an episode; none by default."""
        return []

    def get_weights(self) -> Any:
        """Everything that acting depends on; tensors in dicts and lists reach workers as arrays."""
        return {}

    def set_weights(self, weights: Any) -> None:
        """Acts with these from now on."""

    def get_state(self) -> dict[str, Any]:
        """Everything that a restored plan needs of it."""
        return {"weights": self.get_weights()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state of `get_state`."""
        self.set_weights(state["weights"])

    def on_global_var_update(self, global_vars: Mapping[str, Any]) -> None:
        """Told the steps of the plan so far, as ``timestep``, before it learns."""


class PolicyColumns(NamedTuple):
    """Names of columns that a policy gives."""

    acted: frozenset[str]
    """Beside actions, when it acts: recurrent states and extra columns."""
    after: frozenset[str]
    """All of a batch after its postprocessing."""


def dummy_batch(policy: PlanPolicy, rows: int = 4) -> SampleBatch:
    """A trajectory of zeros, with the actions and extra columns that the policy gives for them."""
    common, acted = _dummy_columns(policy, rows)
    return SampleBatch(common | acted)


def columns_of(policy: PlanPolicy, name: str) -> PolicyColumns:
    """What it gives for a batch of zeros.

    Raises:
        UsageError: it gives what every batch has, or its postprocessing changes the number of rows.
    """
    common, acted = _dummy_columns(policy, 4)
    if taken := sorted(common.keys() & acted.keys()):
        raise UsageError(
            f"Acting of policy {name!r} gave the extra column {', '.join(map(repr, taken))}, which every batch has. "
            "Give it another name."
        )
    batch = SampleBatch(common | acted)
    after = policy.postprocess_trajectory(batch)
    expect_after(name, after, 4, None)
    return PolicyColumns(frozenset(acted), frozenset(after))


def expect_columns(policy: str, gave: Collection[str], expected: Collection[str], did: str) -> None:
    """Refuses columns that are missing or new.

    Args:
        policy: its name.
        gave: names that it gave now.
        expected: names that it gave for a batch of zeros.
        did: what it did, for the message.

    Raises:
        UsageError: they are not the same.
    """
    for count, names in (("no", set(expected) - set(gave)), ("a new", set(gave) - set(expected))):
        if names:
            raise UsageError(
                f"{did} of policy {policy!r} gave {count} column {', '.join(map(repr, sorted(names)))}, unlike for a "
                "batch of zeros. Give the same columns in every call."
            )


def expect_after(policy: str, after: SampleBatch, rows: int, columns: PolicyColumns | None) -> None:
    """Refuses a postprocessing that gives other columns than before, or other rows, because these are the steps.

    Args:
        policy: its name.
        after: what it gave.
        rows: before it.
        columns: that are expected; None for any.

    Raises:
        UsageError: see above.
    """
    if after.count != rows:
        raise UsageError(f"Postprocessing of policy {policy!r} made {after.count} rows of {rows}. It must keep them.")
    if columns is not None:
        expect_columns(policy, after.keys(), columns.after, "Postprocessing")


def _dummy_columns(policy: PlanPolicy, rows: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Columns that all policies have, and those that this one gives when it acts."""
    space, first = policy.observation_space, getattr(policy.observation_space, "start", 0)
    obs = np.full((rows, *space.shape), first, space.dtype)
    actions = np.zeros((rows, *policy.action_space.shape), policy.action_space.dtype)
    states = [np.repeat(np.asarray(state)[None], rows, 0) for state in policy.get_initial_state()]
    rewards = np.zeros(rows, np.float32)
    _, after, extra = policy.compute_actions(obs, states, actions, rewards)
    common: dict[str, Any] = {
        "obs": obs, "new_obs": obs.copy(), "actions": actions, "rewards": rewards, "dones": np.zeros(rows, bool),
        "terminateds": np.zeros(rows, bool), "truncateds": np.zeros(rows, bool),
        "infos": np.array([{} for _ in range(rows)]), "eps_id": np.zeros(rows, np.int64),
        "unroll_id": np.zeros(rows, np.int64),
        "agent_index": np.zeros(rows, np.int64), "t": np.arange(rows, dtype=np.int64),
        "policy_version": np.zeros(rows, np.int64),
    }  # fmt: skip
    acted: dict[str, Any] = {f"state_in_{i}": state for i, state in enumerate(states)}
    acted |= {f"state_out_{i}": np.asarray(state) for i, state in enumerate(after)}
    return common, acted | {name: np.asarray(values) for name, values in extra.items()}
