"""Who has won, against a loop over single steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from sf.rollout.matches import Matches
from sf.shared.arena import Arena
from sf.shared.matches import MATCHES_KEPT, MIXED, Match, MatchRing, match_fields
from sf.shared.slot_fields import NO_POLICY, NO_VERSION

T, ENVS, AGENTS, SLOTS = 6, 3, 2, 40


class Steps:
    """Trajectories of `SLOTS` slots with random games, as a group writes them."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        rows, shape = ENVS * AGENTS, (SLOTS, T, ENVS * AGENTS)
        self.rewards = random.integers(-1, 2, shape).astype(np.float32)
        over = np.repeat(random.random((SLOTS, T, ENVS)) < 0.25, AGENTS, axis=2)
        left_early = random.random(shape) < 0.1
        is_truncated = random.random(shape) < 0.5
        self.terminated, self.truncated = (over & ~is_truncated) | left_early, over & is_truncated
        self.policy_id, self.policy_version = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        policies, versions = np.zeros(rows, np.int64), np.zeros(3, np.int64)
        for slot, t in np.ndindex(SLOTS, T):
            versions += random.random(3) < 0.02
            self.policy_id[slot, t], self.policy_version[slot, t] = policies, versions[policies]
            for env in np.flatnonzero(over[slot, t, ::AGENTS]):
                policies[env * AGENTS : env * AGENTS + AGENTS] = random.permutation(np.array([0, random.integers(3)]))
        fillers = random.random(shape) < 0.05
        self.policy_id[fillers], self.policy_version[fillers] = NO_POLICY, NO_VERSION


def slowly(steps: Steps) -> Iterator[Match]:
    """The definition, game by game, in the order in which trajectories are finished."""
    seen: list[list[tuple[int, int, int, float]]] = [[] for _ in range(ENVS)]
    for slot in range(SLOTS):
        for env in range(ENVS):
            for t in range(T):
                ended = []
                acted = False
                for agent in range(AGENTS):
                    row = env * AGENTS + agent
                    policy = int(steps.policy_id[slot, t, row])
                    if policy != NO_POLICY:
                        acted = True
                        version, reward = int(steps.policy_version[slot, t, row]), float(steps.rewards[slot, t, row])
                        seen[env].append((agent, policy, version, reward))
                    ended.append(bool(steps.terminated[slot, t, row] or steps.truncated[slot, t, row]))
                if all(ended):
                    if acted:
                        yield from result(seen[env])
                    seen[env] = []


def result(seen: list[tuple[int, int, int, float]]) -> Iterator[Match]:
    policies = sorted({policy for _, policy, _, _ in seen})
    if len(policies) != 2 or policies[0] != 0:
        return
    means = []
    for policy in policies:
        agents = {agent for agent, of, _, _ in seen if of == policy}
        means.append(sum(reward for _, of, _, reward in seen if of == policy) / len(agents))
    versions = {version for _, of, version, _ in seen if of == policies[1]}
    score = 1.0 if means[0] > means[1] else 0.0 if means[0] < means[1] else 0.5
    yield Match(policies[1], versions.pop() if len(versions) == 1 else MIXED, score)


@pytest.mark.parametrize("seed", range(5))
def test_results_are_those_of_a_loop_over_steps(seed: int) -> None:
    steps, found = Steps(seed), list[Match]()
    matches = Matches(steps, ENVS * AGENTS, AGENTS, found.append)  # type: ignore[arg-type]  # these arrays are enough
    for slot in range(SLOTS):
        matches.take(slot)
    expected = list(slowly(steps))
    assert found == expected
    assert len(expected) > 50
    assert {match.version == MIXED for match in expected} == {True, False}


def test_a_game_that_began_before_a_resume_counts_for_nobody() -> None:
    steps, found = Steps(1), list[Match]()
    matches = Matches(steps, ENVS * AGENTS, AGENTS, found.append)  # type: ignore[arg-type]
    matches.forget()
    for slot in range(SLOTS):
        matches.take(slot)
    expected = list(slowly(steps))
    assert len(found) == len(expected)
    assert sum(one != other for one, other in zip(found, expected, strict=True)) <= ENVS
    assert all(one.version == MIXED for one, other in zip(found, expected, strict=True) if one != other)


def test_the_ring_hands_out_each_game_once_and_the_newest_if_there_are_too_many() -> None:
    arena = Arena(match_fields(2))
    writer, reader = MatchRing(arena, 1), MatchRing(arena, 1)
    games = [Match(1 + number % 2, number, 0.5 * (number % 3)) for number in range(3 * MATCHES_KEPT)]
    for game in games[:10]:
        writer.append(game)
    assert reader.new_matches() == games[:10]
    assert reader.new_matches() == []
    for game in games[10:]:
        writer.append(game)
    assert reader.new_matches() == games[-MATCHES_KEPT // 2 :]
    assert MatchRing(arena, 0).new_matches() == []
