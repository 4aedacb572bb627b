"""A population in a run: what the director tells learners, the console and its files."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sf
from sf.config import Config
from sf.errors import ExperimentError
from sf.population import pbt_director
from sf.population.director import PolicyFacts, RunFacts
from sf.population.pbt_director import PbtDirector
from sf.shared.messages import Evolve
from sf.storage.names import newest_in
from sf.storage.population import STATE as STATE_OF_POPULATION
from sf.storage.population import read_decisions, read_population, values_of_policy
from tests.helpers.lab import make_config

SPACE = '{"learning_rate": {"min": 1e-5, "max": 1e-2}}'
RUN: dict[str, Any] = {
    "env": "sf/TwoAgentEcho-v0", "num_policies": 2, "with_pbt": True, "seed": 1, "serial_mode": True, "num_workers": 1,
    "async_rl": False, "num_envs_per_worker": 8, "rollout": 16, "pbt_period_env_steps": 1500,
    "pbt_start_mutation": 1500, "pbt_mutation_rate": 1.0, "pbt_space": SPACE, "learning_rate": 1e-3,
    "pbt_replace_reward_gap": 0.0, "num_epochs": 1, "num_batches_per_epoch": 1,
}  # fmt: skip


def population(**flags: Any) -> Config:
    return make_config(
        num_policies=2, with_pbt=True, pbt_space=SPACE, learning_rate=1e-3, pbt_start_mutation=0,
        pbt_period_env_steps=100, **flags,
    )  # fmt: skip


def facts(frames: tuple[int, ...], scores: tuple[float | None, ...]) -> RunFacts:
    def score_of(score: float | None) -> Any:
        return lambda: score

    return RunFacts(0.0, [PolicyFacts(each, 0, score_of(score)) for each, score in zip(frames, scores, strict=True)])


def test_a_decision_is_on_disk_before_the_order_leaves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    director = PbtDirector(population(pbt_mutation_rate=0.0), tmp_path)
    assert read_population(tmp_path)["values"] == [{"learning_rate": 1e-3}] * 2, "before any learner begins"
    assert list(director.poll(facts((0, 0), (None, None)))) == []
    orders = director.poll(facts((100, 150), (50.0, 10.0)))
    policy_id, order = next(iter(orders))
    assert (policy_id, order) == (1, Evolve((("learning_rate", 1e-3),), source=0))
    assert read_population(tmp_path)["decided_frames"] == [100, 150]
    kept, replaced = read_decisions(tmp_path)
    assert (kept["policy"], kept["kind"], kept["source"]) == (0, "kept", None)
    assert replaced == {
        "frames": 150, "policy": 1, "kind": "replaced", "source": 0, "scores": [50.0, 10.0],
        "before": {"learning_rate": 1e-3}, "after": {"learning_rate": 1e-3},
    }  # fmt: skip
    assert list(orders) == []
    told = "Policy 1 (score 10) takes over policy 0 (score 50) after 150 frames and goes on with learning_rate=0.001."
    assert told in capsys.readouterr().out


def test_a_mutation_is_an_order_and_a_curve(tmp_path: Path) -> None:
    director = PbtDirector(population(pbt_mutation_rate=1.0), tmp_path)
    list(director.poll(facts((0, 0), (50.0, 49.0))))
    ((policy_id, order),) = director.poll(facts((0, 100), (50.0, 49.0)))
    assert policy_id == 1
    assert isinstance(order, Evolve)
    assert order.source is None
    assert director.scalars(1) == {"pbt/learning_rate": dict(order.values)["learning_rate"]}
    assert director.scalars(0) == {"pbt/learning_rate": 1e-3}
    assert values_of_policy(tmp_path, 1, ["learning_rate", "gamma"]) == dict(order.values)


def test_a_run_that_was_killed_goes_on_with_the_values_it_had(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = population(pbt_mutation_rate=1.0)
    director = PbtDirector(config, tmp_path)
    list(director.poll(facts((0, 0), (50.0, 49.0))))
    ((_, order),) = director.poll(facts((0, 100), (50.0, 49.0)))
    assert isinstance(order, Evolve)
    again = PbtDirector(config, tmp_path)
    assert list(again.poll(facts((0, 100), (50.0, 49.0)))) == []
    assert again.rules.values == [{"learning_rate": 1e-3}, dict(order.values)]
    said = capsys.readouterr().out
    assert "The population goes on with the flags that its policies had." in said
    assert "undone" not in said


def test_decisions_after_the_checkpoint_of_a_killed_run_are_undone_and_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Policy 1 has weights of 150 frames again, so it has the values of then, and decides at 200 as it did before."""
    config = population(pbt_mutation_rate=1.0)
    director = PbtDirector(config, tmp_path)
    for frames in range(0, 310, 10):
        list(director.poll(facts((frames, frames), (50.0, 49.0))))
    whole = read_decisions(tmp_path)
    assert [(each["policy"], each["frames"]) for each in whole] == [
        (policy, frames) for frames in (100, 200, 300) for policy in (0, 1)
    ]
    resumed = PbtDirector(config, tmp_path)
    ((policy, order),) = resumed.poll(facts((300, 150), (50.0, 49.0)))
    assert (policy, order) == (1, Evolve(tuple(whole[1]["after"].items()), None)), (
        "its learner has begun with the others"
    )
    assert "Decisions about the population after the newest checkpoints are undone: 2." in capsys.readouterr().out
    assert resumed.rules.values[1] == whole[1]["after"] == values_of_policy_1(tmp_path)
    assert read_decisions(tmp_path) == [each for each in whole if each not in (whole[3], whole[5])]
    for frames in range(160, 310, 10):
        list(resumed.poll(facts((300, frames), (50.0, 49.0))))
    assert read_decisions(tmp_path)[-2:] == [whole[3], whole[5]], "the same random numbers"


def test_a_run_that_is_killed_while_it_undoes_decisions_undoes_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = population(pbt_mutation_rate=1.0)
    director = PbtDirector(config, tmp_path)
    for frames in range(0, 210, 10):
        list(director.poll(facts((frames, frames), (50.0, 49.0))))
    whole = read_decisions(tmp_path)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pbt_director, "forget_decisions", killed)
    with pytest.raises(KeyboardInterrupt):
        list(PbtDirector(config, tmp_path).poll(facts((200, 150), (50.0, 49.0))))
    monkeypatch.undo()
    assert read_decisions(tmp_path) == whole
    again = PbtDirector(config, tmp_path)
    list(again.poll(facts((200, 150), (50.0, 49.0))))
    assert again.rules.values[1] == whole[1]["after"] == values_of_policy_1(tmp_path)
    assert len(read_decisions(tmp_path)) == len(whole) - 1


def test_a_state_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    """It has the state of a generator in the place of a seed."""
    director = PbtDirector(population(), tmp_path)
    state = read_population(tmp_path)
    seed = state.pop("seed")
    state["random"] = np.random.default_rng(1).bit_generator.state
    state["values"][1] = {"learning_rate": 2e-3}
    (tmp_path / STATE_OF_POPULATION).write_text(json.dumps(state))
    resumed = PbtDirector(population(), tmp_path)
    assert resumed.rules.values == [{"learning_rate": 1e-3}, {"learning_rate": 2e-3}]
    assert resumed.rules.to_json()["seed"] == director.rules.to_json()["seed"] == seed


def values_of_policy_1(path: Path) -> dict[str, float]:
    return values_of_policy(path, 1, ["learning_rate"])


def test_damaged_lines_and_states_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "population.jsonl").write_text('{"frames": 1, "policy": 0}\n{"frames": \n[1]\n{"frames": "x"}\n')
    assert read_decisions(tmp_path) == [{"frames": 1, "policy": 0}]
    (tmp_path / "population.json").write_text('{"values": [1, {"gamma": "x"}]}')
    assert values_of_policy(tmp_path, 0, ["gamma"]) == values_of_policy(tmp_path, 1, ["gamma"]) == {}
    assert values_of_policy(tmp_path, 7, ["gamma"]) == {}


def test_a_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"cannot be used"):
        PbtDirector(population(), tmp_path / "missing")


def decisions_of(path: Path, **flags: Any) -> list[dict[str, Any]]:
    sf.train(train_dir=str(path), experiment="one", **RUN | flags)
    return read_decisions(path / "one")


@pytest.mark.more
def test_a_serial_run_repeats_its_population(tmp_path: Path) -> None:
    first, second = (decisions_of(tmp_path / name, train_for_env_steps=12_000) for name in ("a", "b"))
    assert first == second
    assert {"kept", "replaced"} <= {decision["kind"] for decision in first}
    state = read_population(tmp_path / "a/one")
    points = [json.loads(line) for line in (tmp_path / "a/one/metrics.jsonl").read_text().splitlines()]
    for policy, values in enumerate(state["values"]):
        last = [point for point in points if point["policy_id"] == policy and "pbt/learning_rate" in point][-1]
        assert last["pbt/learning_rate"] == pytest.approx(values["learning_rate"])
        rates = {point["train/lr"] for point in points if point["policy_id"] == policy and "train/lr" in point}
        had = {decision[when]["learning_rate"] for decision in first for when in ("before", "after")}
        assert all(any(rate == pytest.approx(each) for each in had) for rate in rates)


@pytest.mark.more
def test_a_resumed_run_goes_on_as_one_that_was_not_stopped(tmp_path: Path) -> None:
    whole = decisions_of(tmp_path / "a", train_for_env_steps=12_000)
    decisions_of(tmp_path / "b", train_for_env_steps=7_000)
    assert decisions_of(tmp_path / "b", train_for_env_steps=12_000) == whole
    for policy in range(2):  # as if the run had been killed just before it saved them
        newest = newest_in(tmp_path / f"b/one/checkpoint_p{policy}")
        assert newest is not None
        shutil.rmtree(newest)
    assert decisions_of(tmp_path / "b", train_for_env_steps=12_000) == whole


def test_first_values_are_drawn_and_the_learners_have_them(tmp_path: Path) -> None:
    config = replace(population(), population=replace(population().population, pbt_draw_initial=True))
    PbtDirector(config, tmp_path)
    rates = [values["learning_rate"] for values in read_population(tmp_path)["values"]]
    assert len(set(rates)) == 2


@pytest.mark.parametrize("content", ["", "[]", '{"values": ', '{"values": [{"learning_rate": 1e-3}]}', '{"values": 1}'])
def test_a_damaged_state_is_refused(tmp_path: Path, content: str) -> None:
    """Beginning with the flags of the command instead would lose what the population has found."""
    (tmp_path / STATE_OF_POPULATION).write_text(content)
    with pytest.raises(ExperimentError, match=r"population\.json is damaged, .* or remove it to begin the pop"):
        PbtDirector(population(), tmp_path)
    assert (tmp_path / STATE_OF_POPULATION).read_text() == content
