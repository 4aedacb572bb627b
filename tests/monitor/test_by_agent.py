"""Returns and metrics of each agent, without which a game that one wins and another loses shows nothing but 0."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sf.evaluator.summary import summarize
from sf.evaluator.tally import Episodes
from sf.monitor.by_agent import MOST_AGENTS, in_words, returns_by_agent, scalars_by_agent
from sf.monitor.lines import agents_line, outcome_line
from sf.shared.episodes import Episode
from tests.helpers.commands import run

ENV = "--env=tests.environments.duel:duel"


def episode(row: int, reward: float, **metrics: float) -> Episode:
    return Episode(0, reward, 4, reward, metrics, row)


def test_rows_of_all_environments_belong_to_agents_in_turns() -> None:
    episodes = [episode(0, 1.0, keys=2), episode(1, -1.0), episode(4, 3.0), episode(5, -3.0, keys=7), episode(2, 5.0)]
    assert returns_by_agent(episodes, 2) == {0: 3.0, 1: -2.0}
    assert scalars_by_agent(episodes, 2) == {
        "agents/0/reward": 3.0,
        "agents/0/env/keys": 2.0,
        "agents/1/reward": -2.0,
        "agents/1/env/keys": 7.0,
    }
    assert returns_by_agent(episodes, 3) == {0: 1.0, 1: 1.0, 2: 1.0}


@pytest.mark.parametrize("num_agents", [1, MOST_AGENTS + 1])
def test_one_agent_or_very_many_have_no_curves_of_their_own(num_agents: int) -> None:
    assert scalars_by_agent([episode(row, 1.0) for row in range(num_agents)], num_agents) == {}


def test_lines_name_the_agents() -> None:
    words = {0: in_words({0: 8.0, 1: -8.0})}
    assert agents_line(words | {1: in_words({0: 1.0, 1: 2.0})}) == (
        "Policy #0 agent 0: 8.000, agent 1: -8.000. Policy #1 agent 0: 1.000, agent 1: 2.000"
    )
    assert agents_line({0: ""}) == ""
    line = outcome_line({0: (0.0, 100)}, 10, 10, 1.0, "train_for_env_steps reached", words=words)
    assert line.startswith("Reached a mean return of 0.000 over 100 episodes (agent 0: 8.000, agent 1: -8.000) after ")


def test_an_evaluation_has_the_mean_of_each_agent() -> None:
    episodes = Episodes([1.0, -1.0, 3.0, -3.0], [4] * 4, agents=[0, 1, 0, 1], metrics=[{}] * 4, num_agents=2)
    assert summarize(episodes).agents == {0: 2.0, 1: -2.0}
    alone = Episodes([1.0, 3.0], [4] * 2, agents=[0, 0], metrics=[{}] * 2)
    assert summarize(alone).agents == {}
    assert summarize(replace(alone, num_agents=2)).agents == {0: 2.0}, "a policy that plays the first of two"


@pytest.mark.more
@pytest.mark.parametrize("mode", ["--serial_mode", "--async_rl=True"])
def test_a_run_and_an_evaluation_show_who_wins(tmp_path: Path, mode: str) -> None:
    flags = "--num_workers=2", "--num_envs_per_worker=4", "--train_for_env_steps=4000", "--rollout=16", mode
    finished = run(tmp_path, ENV, *flags, "--experiment=duel")
    assert finished.code == 0, finished.err
    assert "(agent 0: 8.000, agent 1: -8.000) after" in finished.out
    points = [json.loads(line) for line in (tmp_path / "train_dir/duel/metrics.jsonl").read_text().splitlines()]
    last = [point for point in points if "reward/reward" in point][-1]
    assert (last["agents/0/reward"], last["agents/1/reward"]) == (8.0, -8.0)
    assert last["agents/0/env/hits/sum"] == last["env/hits/sum"] == 4.0
    assert "agents/1/env/hits/sum" not in last
    played = run(tmp_path, "duel", ENV, "--num_episodes=8", "--num_workers=2", module="sf.cli.evaluate")
    assert "mean of each agent: agent 0 8.000, agent 1 -8.000" in played.out, played.err
