"""Everything random follows `--seed`: weights, environments, actions, evaluation, what user code draws."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sf.envs import EnvSource, probe
from sf.envs.batches import make_env_batch
from sf.envs.stepping import Host
from sf.learner.parts import seed_of_policy
from sf.machine.rank import ALONE, Rank
from tests.environments.toys import Toy
from tests.helpers.lab import make_lab, step_until

POLICIES, WORKERS = 2, 2


def drawn_with(path: Path, seed: int, env: str = "CartPole-v1", rank: Rank = ALONE, **flags: Any) -> dict[str, Any]:
    """What each source of random numbers gives in a run with this seed; learners of ranks are not connected."""
    lab = make_lab(
        path, env, seed=seed, num_workers=WORKERS, num_policies=POLICIES, num_envs_per_worker=4, batch_size=64,
        eval_every_steps=64, **flags,
    )  # fmt: skip
    for spec in lab.specs:
        if spec.kind in ("rollout", "inference"):
            spec.arguments["context"] = replace(spec.arguments["context"], rank=rank)
    roles: dict[str, Any] = {spec.name: lab.build(spec.name) for spec in lab.specs}
    found: dict[str, Any] = {}
    for index in range(POLICIES):
        found[f"weights {index}"] = roles[f"learner-{index}"].network.flat.tolist()
    for name, role in roles.items():
        if name.startswith("inference"):
            found[f"actions {name}"] = str(role.state())
    lab.build("rollout-0")  # the last one that was built has seeded the generators that user code shares
    found["random 0"], found["numpy 0"] = random.random(), np.random.random()
    lab.build("rollout-1")
    found["random 1"], found["numpy 1"] = random.random(), np.random.random()
    for role in roles.values():
        if hasattr(role, "groups") and hasattr(role, "record"):
            role.step()
    groups, rows = lab.slots.topology.num_groups, lab.slots.topology.rows
    first = lab.slots.observations["obs"][:, 0]
    begun = [slot for slot in range(len(first)) if np.isfinite(first[slot]).all() and first[slot].any()]
    assert len(begun) == groups
    for slot in begun:
        for row in range(rows):
            found[f"environment {slot} {row}"] = first[slot, row].tolist()
    found["evaluation"] = roles["eval-0"].play.seed
    for role in roles.values():
        role.close()
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return [drawn_with(tmp_path_factory.mktemp("run"), seed) for seed in (7, 7, 8)]


def test_same_seed_same_numbers(runs: list[dict[str, Any]]) -> None:
    assert runs[0] == runs[1]


def test_another_seed_changes_every_source(runs: list[dict[str, Any]]) -> None:
    assert [name for name in runs[0] if runs[0][name] == runs[2][name]] == []


def test_cx2_no_two_ranks_draw_the_same(runs: list[dict[str, Any]], tmp_path: Path) -> None:
    """But for the weights, which are those of rank 0 anyway."""
    first, second = runs[0], drawn_with(tmp_path, 7, rank=Rank(1, 2))
    same = {name.split(" ")[0] for name in first if first[name] == second[name]}
    assert same == {"weights", "evaluation"}
    assert [name for name in first if name.startswith("environment") and first[name] == second[name]] == []


def test_no_two_sources_of_a_kind_are_alike(runs: list[dict[str, Any]]) -> None:
    for kind in ("weights", "actions", "random", "environment"):
        values = [str(value) for name, value in runs[0].items() if name.startswith(kind)]
        assert len(values) >= 2, kind
        assert len(set(values)) == len(values), kind


def test_a_second_policy_does_not_begin_like_the_first_one_of_the_next_seed(runs: list[dict[str, Any]]) -> None:
    seeds = [seed_of_policy(seed, policy_id) for seed in range(50) for policy_id in range(8)]
    assert len(set(seeds)) == len(seeds)
    assert runs[0]["weights 1"] != runs[2]["weights 0"], "seeds 7 and 8"
    assert seed_of_policy(7, 0) == 7, "runs of one policy repeat those of earlier versions"


@pytest.mark.parametrize("repeatable", [False, True])
def test_the_first_episodes_of_a_group_have_its_seeds(repeatable: bool) -> None:
    noted: list[int | None] = []

    class Noting(Toy):
        def reset(self, **given: Any) -> Any:
            noted.append(given.get("seed"))
            return super().reset()

    source = EnvSource("Noting", factory=lambda: Noting(terminated=True))
    info = probe(source)
    observations, finals = ({"obs": np.zeros((2, 2), np.float32)} for _ in range(2))
    batch = make_env_batch(source, info, [5, 9], finals, np.zeros(2, bool), "clip", Host(repeatable=repeatable))
    noted.clear()
    batch.reset(observations)
    assert noted == [5, 9]
    batch.step(np.zeros(2, np.int64), observations, np.zeros(2, np.float32))
    assert [seed is None for seed in noted[2:]] == [not repeatable] * 2
    assert len(set(noted)) == (4 if repeatable else 3)
    batch.close()


def test_every_episode_of_a_serial_run_has_a_seed_of_its_own(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, "CartPole-v1", num_envs_per_worker=4, rollout=16)
    roles = lab.build_all()
    beginnings: list[tuple[float, ...]] = []
    batcher = roles[0].source
    take = batcher.next

    def spy() -> Any:
        batch = take()
        if batch is not None:
            starts = torch.cat([torch.full_like(batch.resets[:1], not beginnings), batch.resets[1:]])
            beginnings.extend(map(tuple, batch.observations["obs"][starts].tolist()))
        return batch

    batcher.next = spy
    step_until(roles, lambda: len(beginnings) > 12)
    assert len(set(beginnings)) == len(beginnings)
    for role in roles:
        role.close()
