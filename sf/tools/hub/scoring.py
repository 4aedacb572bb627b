"""The scores and the film of a run that is published."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

from sf.envs import EnvSource
from sf.errors import SfError, UsageError
from sf.evaluator.candidates import Candidate, LoadedPolicies
from sf.evaluator.shares import default_num_workers, evaluate
from sf.evaluator.summary import ReturnSummary, summarize
from sf.evaluator.tally import Episodes
from sf.evaluator.watching import watch
from sf.tools.hub.folder import FILM

LONGEST_FILM = 1000
"""Steps of an episode."""


def play(
    candidate: Candidate, loaded: LoadedPolicies, source: EnvSource, num_episodes: int, seed: int
) -> tuple[list[ReturnSummary], dict[str, int]]:
    """The scores of each policy, and the flags with which `sf-eval` finds the same ones.

    Raises:
        EnvError: an environment cannot be made or fails.
    """
    num_workers = default_num_workers(num_episodes)
    info = replace(loaded.info, env_id=source.env_id)
    played = evaluate(candidate, loaded, source, info, num_episodes, seed, num_workers)
    flags = {"num_episodes": num_episodes, "seed": seed, "num_workers": num_workers, "deterministic": candidate.greedy}
    return [summarize(episodes) for episodes in played], flags


def read_scores(path: Path, num_policies: int) -> list[ReturnSummary]:
    """The scores of each policy in a file of ``sf-eval --csv``.

    Raises:
        UsageError: it cannot be read, or is about something else.
    """
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        names = {row["policy"] for row in rows}
        policies = [Episodes() for _ in range(num_policies)]
        for row in rows:
            reward, episodes = float(row["reward"]), policies[int(row["policy_id"])]
            if not math.isfinite(reward):
                raise ValueError(f"reward {reward}")
            episodes.rewards.append(reward)
            episodes.lengths.append(int(row["length"]))
            episodes.agents.append(int(row.get("agent") or 0))  # earlier versions wrote none
        for episodes in policies:
            episodes.num_agents = 1 + max(agent for one in policies for agent in one.agents or [0])
    except OSError as error:
        raise UsageError(f"--scores={path} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, IndexError, TypeError, csv.Error) as error:
        raise UsageError(f"--scores={path} is not a file that sf-eval --csv has written: {error!r}.") from None
    if len(names) != 1 or not all(episodes.rewards for episodes in policies):
        raise UsageError(
            f"--scores={path} is about {len(names)} checkpoints, expected one, with episodes of {num_policies} "
            "policies. Write it with sf-eval --experiment=... --csv=..."
        )
    return [summarize(episodes) for episodes in policies]


def film(loaded: LoadedPolicies, source: EnvSource, seed: int, folder: Path) -> str:
    """Films one episode; returns why there is no film, or nothing."""
    longest = min(source.max_episode_steps or LONGEST_FILM, LONGEST_FILM)
    try:
        watch(loaded, replace(source, max_episode_steps=longest), 1, seed, folder / FILM, False, 1.0)
    except SfError as error:
        (folder / FILM).unlink(missing_ok=True)
        return str(error).splitlines()[0]
    return ""
