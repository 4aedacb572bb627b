"""One evaluation on several processes: each plays its share of the episodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from sf.envs import EnvSource
from sf.evaluator.candidates import Candidate, LoadedPolicies, load_candidate
from sf.evaluator.playing import MAX_ENVS, Episodes, play
from sf.machine.cores import usable_cores
from sf.plugins import Sent, plugins_to_send, receive_plugins
from sf.processes.disposable import DisposableChild
from sf.spaces import EnvInfo

STARTING_PAYS_FROM = 4 * MAX_ENVS
"""Episodes from which another process is worth the seconds that it needs to start."""


def default_num_workers(num_episodes: int) -> int:
    """One process per core that this one may use, fewer if there is little to do."""
    return max(1, min(usable_cores(), num_episodes // STARTING_PAYS_FROM))


def evaluate(
    candidate: Candidate,
    loaded: LoadedPolicies,
    source: EnvSource,
    info: EnvInfo,
    num_episodes: int,
    seed: int,
    num_workers: int,
    tell: Callable[[str], object] = lambda _: None,
) -> list[Episodes]:
    """The episodes of each policy; this process plays the first share.

    The same seed and number of processes give the same episodes.

    Args:
        candidate: to be loaded by the other processes.
        loaded: the same, in this process.
        source: makes the environments.
        info: their spaces.
        num_episodes: in total.
        seed: of environments and actions.
        num_workers: number of processes.
        tell: receives lines about the progress of the first share.

    Raises:
        EnvError: an environment cannot be made or fails, or a process dies.
    """
    num_workers = min(num_workers, num_episodes)
    shares = [num_episodes // num_workers + (i < num_episodes % num_workers) for i in range(num_workers)]
    seeds = [int(np.random.SeedSequence([seed, i]).generate_state(1)[0]) for i in range(num_workers)]
    plugins, children = plugins_to_send(), []
    try:
        for index in range(1, num_workers):
            arguments = candidate, replace(source, worker=index), info, shares[index], seeds[index], plugins
            children.append(DisposableChild(f"eval-{index} on {source.env_id}", _play_share, *arguments))
        results = [_play(loaded, source, info, shares[0], seeds[0], tell)]
        results += [child.result() for child in children]
    finally:
        for child in children:
            child.kill()
    together = [Episodes() for _ in loaded.policies]
    for result in results:
        for all_episodes, episodes in zip(together, result, strict=True):
            all_episodes.rewards += episodes.rewards
            all_episodes.lengths += episodes.lengths
            all_episodes.num_cut += episodes.num_cut
            all_episodes.metrics += episodes.metrics
    return together


def _play_share(
    candidate: Candidate, source: EnvSource, info: EnvInfo, num_episodes: int, seed: int, plugins: Sent
) -> list[Episodes]:
    """In a process of its own."""
    receive_plugins(plugins)
    torch.set_num_threads(1)
    return _play(load_candidate(candidate), source, info, num_episodes, seed)


def _play(
    loaded: LoadedPolicies,
    source: EnvSource,
    info: EnvInfo,
    num_episodes: int,
    seed: int,
    tell: Callable[[str], object] = lambda _: None,
) -> list[Episodes]:
    return play(loaded.policies, source, info, num_episodes, seed, loaded.action_bounds, tell)
