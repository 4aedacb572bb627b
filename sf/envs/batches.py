"""The one place that chooses how a group of environments steps."""

from __future__ import annotations

from collections.abc import Sequence

from sf.envs import EnvSource
from sf.envs.agents_stepping import AgentsBatch
from sf.envs.single_stepping import SingleAgentBatch
from sf.envs.stepping import EnvBatch, Host
from sf.shared.arena import Array
from sf.spaces import ActionBounds, EnvInfo


def make_env_batch(
    source: EnvSource,
    info: EnvInfo,
    seeds: Sequence[int],
    final_observations: dict[str, Array],
    has_final_observation: Array,
    action_bounds: ActionBounds,
    host: Host | None = None,
) -> EnvBatch:
    """One environment per seed.

    Args:
        source: makes the environments.
        info: the spaces that they must have.
        seeds: of the first reset of each environment.
        final_observations: [rows, ...] per leaf; receives the final observation of truncated rows.
        has_final_observation: [rows] bool; set for these rows, cleared by their reader.
        action_bounds: how Box actions are kept in their bounds.
        host: the process; None if no supervisor watches.

    Raises:
        EnvError: an environment cannot be made or has other spaces than `info`.
        Stopped: the run ends.
    """
    kind = SingleAgentBatch if info.num_agents == 1 else AgentsBatch
    return kind(source, info, seeds, final_observations, has_final_observation, action_bounds, host or Host())
