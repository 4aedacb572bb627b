"""Functions of a user as policies of an evaluation."""

from __future__ import annotations

import numpy as np
import torch

from sf.envs.scripted import ScriptedPolicy
from sf.nets.outputs import PolicyStep
from sf.nets.seeding import Seed
from sf.policy import Policy, TensorSpec, TimeStep, time_step_spec
from sf.policy.nests import Nest
from sf.policy.specs import leaf_spec


class FunctionPolicy(Policy):
    """Acts by a function of a user on stored observations, as the evaluator plays."""

    masks_in_network = True  # a function that ignores the mask is refused when it acts

    def __init__(self, scripted: ScriptedPolicy) -> None:
        """Wraps a scripted policy, which knows its spaces."""
        info = scripted.info
        super().__init__(
            time_step_spec({name: leaf_spec(leaf) for name, leaf in info.observations.items()}),
            TensorSpec(info.action.shape, getattr(torch, info.action.dtype), "action"),
            clip=False,
            validate_args=False,
            name=scripted.name,
        )
        self._scripted = scripted

    def _action(self, time_step: TimeStep, policy_state: Nest, seed: Seed) -> PolicyStep:
        generator = seed if isinstance(seed, torch.Generator) else None
        random = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        leaves = {name: leaf.numpy() for name, leaf in time_step.observation.items()}
        return PolicyStep(torch.from_numpy(self._scripted.actions(leaves, random)), policy_state)
