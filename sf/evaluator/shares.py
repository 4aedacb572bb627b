"""One evaluation on several processes: each plays its share of the episodes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from sf.envs import EnvSource
from sf.evaluator.candidates import Candidate, LoadedPolicies, load_candidate
from sf.evaluator.cast import Cast
from sf.evaluator.playing import MAX_ENVS, play
from sf.evaluator.so_far import SoFar
from sf.evaluator.tally import Episodes
from sf.machine.cores import usable_cores
from sf.machine.kernel import ensure_linux, is_linux
from sf.plugins import Sent, plugins_to_send, receive_plugins
from sf.processes.disposable import DisposableChild
from sf.processes.servers import WorkerServer
from sf.processes.telling import told_while
from sf.spaces import EnvInfo

STARTING_PAYS_FROM = 4 * MAX_ENVS
"""Episodes from which another process is worth the seconds that it needs to start."""


def default_num_workers(num_episodes: int) -> int:
    """One process per core that this one may use, fewer if there is little to do."""
    if not is_linux():
        return 1
    return max(1, min(usable_cores(), num_episodes // STARTING_PAYS_FROM))


def evaluate(
    candidate: Candidate,
    loaded: LoadedPolicies,
    source: EnvSource,
    info: EnvInfo,
    num_episodes: int,
    seed: int,
    num_workers: int,
    tell: Callable[[str], object] | None = None,
    is_shared: bool = False,
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
        tell: receives sentences about the progress while the evaluation lasts; None for none.
        is_shared: whether the program in this process has to find the global generators as they were.

    Raises:
        EnvError: an environment cannot be made or fails, or a process dies.
        ResourceError: the system has no room for several processes, or is not Linux.
    """
    num_workers = min(num_workers, num_episodes)
    if num_workers > 1:
        ensure_linux("--num_workers=1")
    shares = [num_episodes // num_workers + (i < num_episodes % num_workers) for i in range(num_workers)]
    seeds = [int(np.random.SeedSequence([seed, i]).generate_state(1)[0]) for i in range(num_workers)]
    so_far, plugins, children = SoFar(num_workers, len(loaded.policies)), plugins_to_send(), []
    wanted = num_episodes * loaded.cast.num_blocks(info)

    def told(seconds: float) -> str:
        return so_far.told(source.env_id, wanted, seconds)

    progress = contextlib.nullcontext() if tell is None else told_while(told, tell)
    with WorkerServer() as servers, progress:
        if num_workers > 1:
            servers.start()
        try:
            for index in range(1, num_workers):
                share = candidate, replace(source, worker=index), info, shares[index], seeds[index]
                name, work = f"eval-{index} on {source.env_id}", (_play_share, *share, plugins, so_far, index)
                children.append(DisposableChild(name, *work, begin=servers.begin_environments))
            results = [_play(loaded.cast, source, info, shares[0], seeds[0], so_far, 0, is_shared)]
            results += [child.result() for child in children]
        finally:
            for child in children:
                child.kill()
    together = [Episodes(num_agents=info.num_agents) for _ in loaded.policies]
    for result in results:
        for all_episodes, episodes in zip(together, result, strict=True):
            all_episodes.rewards += episodes.rewards
            all_episodes.lengths += episodes.lengths
            all_episodes.num_cut += episodes.num_cut
            all_episodes.metrics += episodes.metrics
            all_episodes.agents += episodes.agents
            all_episodes.envs += episodes.envs
            all_episodes.games += episodes.games
    return together


def _play_share(
    candidate: Candidate,
    source: EnvSource,
    info: EnvInfo,
    num_episodes: int,
    seed: int,
    plugins: Sent,
    so_far: SoFar,
    worker: int,
) -> list[Episodes]:
    """In a process of its own."""
    receive_plugins(plugins)
    torch.set_num_threads(1)
    return _play(load_candidate(candidate).cast, source, info, num_episodes, seed, so_far, worker)


def _play(
    cast: Cast,
    source: EnvSource,
    info: EnvInfo,
    num_episodes: int,
    seed: int,
    so_far: SoFar,
    worker: int,
    is_shared: bool = False,
) -> list[Episodes]:
    return play(cast, source, info, num_episodes, seed, so_far.writer(worker).look, is_shared)
