"""The network that turns observations into actions and values, with its statistics, as one flat vector."""

from sf.policy.policy import Policy
from sf.policy.steps import Evaluation, PolicyInfo, PolicyStep, Sequences

__all__ = ["Evaluation", "Policy", "PolicyInfo", "PolicyStep", "Sequences"]
