"""The network that turns observations into actions and values, with its statistics, as one flat vector."""

from sf.policy.actor_critic import ActorCritic
from sf.policy.steps import Evaluation, PolicyInfo, PolicyStep, Sequences

__all__ = ["ActorCritic", "Evaluation", "PolicyInfo", "PolicyStep", "Sequences"]
