"""What an environment of an evaluation shows, where the critic of a policy reads more than the policy."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from sf.envs import EnvSource
from sf.envs.contract import describe
from sf.envs.source import is_gymnasium, with_mask
from sf.errors import EnvError
from sf.policy import Policy
from sf.spaces import EnvInfo


def info_for(policies: Sequence[Policy], info: EnvInfo, source: EnvSource) -> EnvInfo:
    """The spaces of the training under this environment, without leaves of the critic that it does not have.

    One environment is made for a look, and only if there are such leaves.

    Raises:
        EnvError: a policy reads what the environment does not show.
    """
    info = replace(info, env_id=source.env_id)
    needed = {name for policy in policies for name in policy.time_step_spec.observation}
    if needed == info.observations.keys():
        return info
    env = source.make()
    try:
        if info.mask_from_info:
            env = with_mask(env)
        shown = describe(env, source.env_id, 1 if info.num_agents == 1 and is_gymnasium(env) else None).observations
    finally:
        with suppress(Exception):
            env.close()
    if missing := sorted(needed - shown.keys()):
        raise EnvError(
            f"The policy reads {', '.join(sorted(needed))}, but observations of {source.env_id} have no "
            f"{', '.join(missing)}, only {', '.join(shown)}. Evaluate it in an environment that shows them."
        )
    kept = {name: leaf for name, leaf in info.observations.items() if name in shown}
    return replace(info, observations=kept)
