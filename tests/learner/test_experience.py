"""The ring of transitions of off-policy algorithms, against a slow loop over steps that know where they are."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch

from sf.learner.batch import Batch
from sf.learner.experience import Experience, ExperienceRing
from sf.replay import NothingToDraw
from tests.helpers.batches import make_batch

GAMMA = 0.9
STEPS, ENVS = 5, 3


class Step(NamedTuple):
    """A step of the world below, in a trajectory."""

    batch: int
    row: int
    t: int


class World:
    """Batches whose observations, actions and rewards are different numbers everywhere."""

    def __init__(self, seed: int, ends: float = 0.25) -> None:
        self.random, self.ends = torch.Generator().manual_seed(seed), ends
        self.batches: list[Batch] = []

    def batch(self, own: float = 1.0) -> Batch:
        shape, number = (STEPS, ENVS), len(self.batches)
        kind = torch.rand(shape, generator=self.random)
        time = torch.arange(STEPS + 1).view(-1, 1).expand(-1, ENVS)
        row = torch.arange(ENVS).view(1, -1).expand(STEPS + 1, -1)
        observations = torch.stack([torch.full((STEPS + 1, ENVS), number), row, time], -1).to(torch.float32)
        made = make_batch(
            observations={"obs": observations},
            initial_memory=torch.zeros(ENVS, 0),
            streams=torch.arange(ENVS),
            actions=(100 * number + 10 * row + time)[:-1],
            behavior_log_probs=torch.zeros(shape),
            values=torch.zeros(shape),
            rewards=torch.randn(shape, generator=self.random),
            terminated=kind < self.ends,
            truncated=(kind >= self.ends) & (kind < 2 * self.ends),
            bootstrap_values=torch.zeros(ENVS),
            final_values=torch.zeros(shape),
            policy_version=torch.full(shape, 7 * number),
            valid=torch.rand(shape, generator=self.random) < own,
        )
        self.batches.append(made)
        return made

    def with_last(self, batch: Batch, known: float) -> Batch:
        """The same with the observation after some of the steps that were cut: their place, and time -1."""
        number, random = len(self.batches) - 1, self.random
        is_known = batch.truncated & (torch.rand(STEPS, ENVS, generator=random) < known)
        last = torch.stack(
            [
                torch.full((STEPS, ENVS), number),
                torch.arange(ENVS).expand(STEPS, -1),
                -1 - torch.arange(STEPS).view(-1, 1).expand(-1, ENVS),
            ],
            -1,
        ).to(torch.float32)
        columns = {"last_observations/obs": last, "has_last_observation": is_known}
        self.batches[-1] = Batch({**batch.by_step, **columns}, batch.by_trajectory)
        return self.batches[-1]

    def expected(self, step: Step, num_steps: int) -> tuple[float, float, list[float]]:
        """Rewards, weight of the value, and the observation that follows, step after step."""
        batch, t, total, discount = self.batches[step.batch], step.t, 0.0, 1.0
        for _ in range(num_steps):
            known = "has_last_observation" in batch.by_step and batch["has_last_observation"][t % STEPS, step.row]
            if t == STEPS or (t > step.t and batch.truncated[t, step.row] and not known):
                break
            total += discount * float(batch.rewards[t, step.row])
            discount *= GAMMA
            t += 1
            if batch.terminated[t - 1, step.row]:
                return total, 0.0, [step.batch, step.row, t]
            if batch.truncated[t - 1, step.row]:
                return total, discount, [step.batch, step.row, -t]
        return total, discount, [step.batch, step.row, t]


def steps_of(drawn: Experience) -> list[Step]:
    return [Step(*map(int, row)) for row in drawn.observations["obs"].tolist()]


@pytest.mark.parametrize("num_steps", [1, 2, 3, 9])
def test_transitions_are_those_of_a_slow_loop(num_steps: int) -> None:
    world, ring = World(seed=num_steps), ExperienceRing(1000, GAMMA, num_steps)
    for _ in range(6):
        ring.add(world.batch())
    drawn = ring.draw(500, torch.Generator().manual_seed(0))
    assert len(drawn) == 500
    for index, step in enumerate(steps_of(drawn)):
        rewards, discount, following = world.expected(step, num_steps)
        assert math.isclose(drawn.rewards[index].item(), rewards, rel_tol=1e-5, abs_tol=1e-6)
        assert math.isclose(drawn.discounts[index].item(), discount, rel_tol=1e-6)
        if discount:
            assert drawn.next_observations["obs"][index].tolist() == following
        assert drawn.actions[index] == 100 * step.batch + 10 * step.row + step.t
        assert drawn.versions[index] == 7 * step.batch


def test_every_transition_with_a_next_observation_is_drawn_and_no_other() -> None:
    world, ring = World(seed=3), ExperienceRing(1000, GAMMA)
    wanted = set()
    for number in range(4):
        batch = world.batch(own=0.7)
        fits = batch.valid & ~batch.truncated
        assert ring.add(batch) == int(fits.sum())
        wanted |= {Step(number, row, t) for t, row in fits.nonzero().tolist()}
    assert ring.num_added == sum(int(batch.valid.sum()) for batch in world.batches)
    assert set(steps_of(ring.draw(4000))) == wanted


def test_the_newest_trajectories_stay() -> None:
    world, ring = World(seed=4, ends=0.0), ExperienceRing(7 * STEPS + 2, GAMMA)
    for _ in range(5):
        ring.add(world.batch())
    there = {(step.batch, step.row) for step in steps_of(ring.draw(2000))}
    assert there == {(2, 2), *((number, row) for number in (3, 4) for row in range(ENVS))}


def test_a_batch_that_is_larger_than_the_ring_leaves_its_end() -> None:
    world, ring = World(seed=5, ends=0.0), ExperienceRing(2 * STEPS, GAMMA)
    ring.add(world.batch())
    assert {step.row for step in steps_of(ring.draw(200))} == {1, 2}


def test_nothing_to_draw_is_said() -> None:
    world, ring = World(seed=6), ExperienceRing(100, GAMMA)
    ring.add(world.batch(own=0.0))
    with pytest.raises(NothingToDraw):
        ring.draw(1)


def test_few_that_may_be_drawn_among_many_are_found() -> None:
    world, ring = World(seed=7, ends=0.0), ExperienceRing(20_000, GAMMA)
    for _ in range(1000):
        ring.add(world.batch(own=0.0))
    batch = world.batch()
    ring.add(batch.with_columns(valid=torch.eye(STEPS, ENVS, dtype=torch.bool)))
    assert len(ring.draw(300)) == 300
    assert {step.batch for step in steps_of(ring.draw(50))} == {1000}


@pytest.mark.parametrize("num_steps", [1, 3])
@pytest.mark.parametrize("size", [1000, 37 * STEPS])
def test_the_last_observation_follows_a_step_that_was_cut(num_steps: int, size: int) -> None:
    """Also where trajectories have made room for others many times."""
    world, ring = World(seed=11 + num_steps), ExperienceRing(size, GAMMA, num_steps)
    for _ in range(60):
        ring.add(world.with_last(world.batch(), known=0.7))
    drawn, cut = ring.draw(800, torch.Generator().manual_seed(0)), 0
    for index, step in enumerate(steps_of(drawn)):
        rewards, discount, following = world.expected(step, num_steps)
        assert math.isclose(drawn.rewards[index].item(), rewards, rel_tol=1e-5, abs_tol=1e-6)
        assert math.isclose(drawn.discounts[index].item(), discount, rel_tol=1e-6, abs_tol=1e-9)
        if discount:
            assert drawn.next_observations["obs"][index].tolist() == following
        cut += following[2] < 0
    assert cut > 50
