"""The most likely action instead of a random one."""

from __future__ import annotations

from sf.nets.outputs import PolicyStep
from sf.nets.seeding import Seed
from sf.policy.leaf_distributions import Fixed
from sf.policy.log_probability import no_log_probability, with_log_probability
from sf.policy.nests import Nest, map_leaves
from sf.policy.policy import Policy
from sf.policy.steps import TimeStep


class GreedyPolicy(Policy):
    """Takes the mode of each leaf of the distribution of another policy, whose specs, state and info it has."""

    masks_in_network = True

    def __init__(self, policy: Policy, name: str | None = None) -> None:
        """Wraps a policy.

        Args:
            policy: shared, not copied.
            name: for messages.
        """
        super().__init__(
            policy.time_step_spec,
            policy.action_spec,
            policy.policy_state_spec,
            policy.info_spec,
            clip=policy.clip,
            automatic_state_reset=policy.automatic_state_reset,
            validate_args=policy.validate_args,
            name=name,
        )
        self.wrapped, self.device = policy, policy.device
        self.observation_and_action_constraint_splitter = policy.observation_and_action_constraint_splitter
        self.train_step, self.metadata, self.batch_size = policy.train_step, policy.metadata, policy.batch_size

    def _action(self, time_step: TimeStep, policy_state: Nest, seed: Seed) -> PolicyStep:
        """Raises ValueError if a leaf of the distribution has no mode."""
        return self.wrapped._mode_action(time_step, policy_state)

    def _distribution(self, time_step: TimeStep, policy_state: Nest) -> PolicyStep:
        step = self.wrapped._mode_action(time_step, policy_state)
        num_outer = time_step.step_type.dim()
        if self.wrapped.emit_log_probability:  # nothing was drawn here either
            zeros = map_leaves(lambda _: no_log_probability(time_step.step_type, self.device), self.action_spec)
            step = step._replace(info=with_log_probability(step.info, zeros))
        return step._replace(action=map_leaves(lambda value: Fixed(value, num_outer), step.action))

    def _get_initial_state(self, batch_size: int | None) -> Nest:
        return self.wrapped._get_initial_state(batch_size)
