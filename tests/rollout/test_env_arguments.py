"""Environments whose arguments follow the policy that plays in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import sf
from sf.config import check
from sf.envs import find_env
from sf.envs.limit import StepLimit
from sf.errors import ConfigError, EnvError
from sf.rollout.env_arguments import with_arguments
from sf.run.first_look import first_look
from sf.shared.env_arguments import ENV_ARGUMENTS
from sf.spaces import EnvInfo, LeafSpec
from sf.storage.population import read_decisions, read_population
from tests.environments.shaped import Shaped
from tests.helpers.lab import make_config, make_lab, step_until
from tests.helpers.networks import discrete

SPACE = json.dumps({"env.bonus": {"min": 0.1, "max": 50.0}, "learning_rate": {"min": 1e-5, "max": 1e-2}})
SETTINGS: dict[str, Any] = {
    "env": "tests.environments.shaped:Bonus-v0", "env_kwargs": '{"bonus": 1.0}', "num_policies": 2, "with_pbt": True,
    "pbt_space": SPACE, "pbt_period_env_steps": 200, "pbt_start_mutation": 200, "seed": 1, "num_workers": 1,
    "train_for_env_steps": 4000,
}  # fmt: skip


def test_an_episode_has_the_values_of_its_policy_in_reset_and_in_step(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, SETTINGS["env"], **{name: SETTINGS[name] for name in SETTINGS if name != "env"})
    lab.arena[ENV_ARGUMENTS][:] = [[3.0], [7.0]]
    roles = lab.build_all()
    learners = [role for role in roles if hasattr(role, "update")]
    slots = lab.slots
    seen: set[tuple[int, float, float]] = set()

    def look() -> bool:
        for slot in range(slots.topology.num_slots):
            if slots.filled[slot]:
                for shown, policy in zip(slots.observations["obs"][slot, :-1], slots.policy_id[slot], strict=True):
                    seen.update((int(p), float(a), float(b)) for p, (a, b) in zip(policy, shown, strict=True))
        return bool(learners[0].record["iterations"] >= 2)

    step_until(roles, look)
    assert seen == {(0, 3.0, 3.0), (1, 7.0, 7.0)}
    lab.arena[ENV_ARGUMENTS][:] = [[4.0], [8.0]]
    before = learners[0].record["iterations"]
    step_until(roles, lambda: bool(learners[0].record["iterations"] >= before + 4))
    seen.clear()
    look()
    assert {pair for pair in seen if pair[1] in (4.0, 8.0)} == {(0, 4.0, 4.0), (1, 8.0, 8.0)}
    for role in roles:
        role.close()


@pytest.mark.more
def test_a_population_finds_the_argument_that_pays_and_goes_on_with_it(tmp_path: Path) -> None:
    settings = SETTINGS | {"train_dir": str(tmp_path), "experiment": "run", "serial_mode": True, "async_rl": False}
    settings |= {"num_envs_per_worker": 4, "rollout": 16, "pbt_mutation_rate": 1.0, "pbt_perturb_min": 1.5}
    settings |= {"pbt_perturb_max": 3.0}
    sf.train(**settings)
    values = read_population(tmp_path / "run")["values"]
    bonuses = [own["env.bonus"] for own in values]
    assert max(bonuses) > 1.0
    assert any("env.bonus" in one["after"] for one in read_decisions(tmp_path / "run"))
    points = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    rewards = [point["reward/reward"] for point in points if point.get("reward/reward") is not None]
    assert max(rewards) > 4.0, "four steps with a bonus of more than 1"
    sf.train(**settings | {"train_for_env_steps": 4400})
    assert "goes on with the flags" in (tmp_path / "run/console.log").read_text()


def test_what_has_no_such_argument_is_told(tmp_path: Path) -> None:
    told = r"no attribute wind\. Keep the argument under this name, where step or reset"
    with pytest.raises(EnvError, match=told):
        with_arguments([Shaped()], ["wind"], np.zeros((2, 1)))
    config = make_config(**SETTINGS | {"pbt_space": SPACE.replace("bonus", "wind")})
    with pytest.raises(EnvError, match=told):  # before a process starts
        first_look(config, find_env(SETTINGS["env"], {"bonus": 1.0}))


@pytest.mark.parametrize("wrap", [lambda env: gymnasium.wrappers.TimeLimit(env, 3), lambda env: StepLimit(env, 3)])
def test_wrappers_pass_the_values_on(wrap: Any) -> None:
    wrapped = wrap(Shaped())
    (env,) = with_arguments([wrapped], ["bonus"], np.array([[1.0], [6.5]]))
    env.deal = lambda: np.array([1])
    assert env.reset(seed=1)[0].tolist() == [6.5, 6.5]
    assert wrapped.unwrapped.bonus == 6.5


def test_whole_numbers_stay_whole() -> None:
    (env,) = with_arguments([inner := Shaped(3)], ["bonus"], np.array([[4.6]]))
    env.deal = lambda: np.array([0])
    env.reset(seed=1)
    assert (inner.bonus, type(inner.bonus)) == (5, int)


def test_several_agents_are_refused() -> None:
    settings = SETTINGS | {"num_envs_per_worker": 4, "rollout": 16, "batch_size": 64, "num_batches_per_epoch": 1}
    info = EnvInfo("Many", 2, {"obs": LeafSpec((2,), "float32")}, discrete(2))
    with pytest.raises(ConfigError, match=r"pbt_space names env\.bonus, and Many has 2 agents, whose policies would"):
        check(make_config(**settings), info)
