"""Environments: finding one by its id, making it in any process, and looking at it before a run starts.

An id is looked up in this order:

1. names given to `register_env`;
2. the tables that installed packages offer through the entry-point group ``sf.envs``;
3. ``module:Id``, which imports the module first and then looks for Id;
4. Gymnasium's registry.

One agent is the special case of the *multi-agent protocol*. An environment with more agents has

    num_agents: int                          at least 2, always the same
    observation_space, action_space          of one agent, the same for all
    reset(seed=..., options=...) -> (observations, infos)
    step(actions) -> (observations, rewards, terminated, truncated, infos)

where every item is a list with one entry per agent. An agent ends with its own flags, `terminated` or `truncated`. The
episode goes on until no agent is left, and then the caller resets. Agents may also come later and come back, which
`is_active` in their infos says, see `sf.envs.presence`. The lists keep an entry for an agent that is not there: its
action means nothing, and its values are ignored. Such an environment comes from `register_env` or from a package's
table.

Imports neither torch nor, until an environment is looked up, gymnasium.
"""

from __future__ import annotations

from sf.envs.probe import probe, probe_and_time
from sf.envs.registry import find_env, find_pool, register_env
from sf.envs.source import EnvSource

__all__ = ["EnvSource", "find_env", "find_pool", "probe", "probe_and_time", "register_env"]
