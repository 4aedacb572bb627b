"""Agents that come, go and come back within an episode."""

from __future__ import annotations

import json
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sf_envs.central import Central
from sf_envs.multiagent import SeveralAgents
from sf_envs.zoo import Parallel

from sf.envs import EnvSource, probe
from sf.envs.batches import make_env_batch
from sf.envs.presence import Presence
from sf.envs.stepping import Host
from sf.errors import EnvError
from sf.evaluator.cast import Cast
from sf.evaluator.playing import play
from sf.evaluator.summary import summarize
from sf.inference.small_worker import SmallInference
from sf.shared.episodes import EpisodeRing
from sf.shared.messages import EvaluationDone
from sf.shared.slot_fields import NO_POLICY
from tests.cli.test_evaluate import acting
from tests.environments.coming import LIVES, NUM_STEPS, SELDOM, Comers, Counting, Returning, comers, convoy
from tests.helpers.lab import InferenceWorker, make_lab, step_until
from tests.helpers.rollouts import Player

COMERS = EnvSource("Comers", {}, comers)
AGENTS = list(LIVES)
ACTORS = InferenceWorker, SmallInference
ACTED = sum(end - begin for lives in LIVES.values() for begin, end, _ in lives)
"""Steps of agents in an episode, of 21 that three rows have."""


class Told:
    """Two agents after the multi-agent protocol, with the infos that the test gives."""

    num_agents = 2

    def __init__(self, reset: list[Any], step: list[Any], over: Any = (False, False)) -> None:
        spaces = Comers()
        self.observation_space, self.action_space = spaces.observation_space("a"), spaces.action_space("a")
        self.infos, self.over = (reset, step), over

    def reset(self, **_: Any) -> Any:
        return [np.zeros(3, np.float32)] * 2, self.infos[0]

    def step(self, actions: Any) -> Any:
        return [np.ones(3, np.float32)] * 2, [0.0, 0.0], list(self.over), [False, False], self.infos[1]

    def close(self) -> None:
        """Nothing to close."""


def batch_of(source: EnvSource) -> tuple[Any, dict[str, Any]]:
    """A batch of one environment that keeps a history, and room for what it shows."""
    info = probe(source)
    rows = np.zeros((info.num_agents, 3), np.float32)
    final = {"obs": rows.copy()}, np.zeros(info.num_agents, bool)
    return make_env_batch(source, info, [0], *final, "clip", Host(repeatable=True)), {"obs": rows}


def life_of(agent: int, step: int) -> tuple[int, int, str] | None:
    """In which an agent acts in a step, the first of which is 1."""
    for life in LIVES[AGENTS[agent]]:
        if life[0] < step <= life[1]:
            return life
    return None


def is_there(agent: int, step: int) -> bool:
    return any(begin <= step < end for begin, end, _ in LIVES[AGENTS[agent]])


def test_an_agent_is_there_from_its_first_observation_to_its_end(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, "test/Comers", num_envs_per_worker=2, rollout=5)
    worker, player, ring = lab.build("rollout-0"), Player(lab), EpisodeRing(lab.arena, 0)
    names = "policy_id", "rewards", "terminated", "truncated", "final_values"
    steps: list[dict[str, Any]] = []
    while len(steps) < 3 * NUM_STEPS:
        assert worker.step() | player.step()
        for slot in lab.slots.waiting_for(0):
            for t in range(5) if lab.shared.topology.group_of_slot(slot) == 0 else ():
                own = {name: getattr(lab.slots, name)[slot, t].copy() for name in names}
                steps.append(own | {"after": lab.slots.observations["obs"][slot, t + 1].copy()})
            lab.slots.take(slot, 0)
            lab.slots.release(slot, 0)
    for number, one in enumerate(steps):
        t = number % NUM_STEPS + 1
        for agent in range(3):
            life = life_of(agent, t)
            ends = life[2] if life and life[1] == t else ""
            assert one["policy_id"][agent] == (NO_POLICY if life is None else 0), (agent, t)
            assert one["rewards"][agent] == (0 if life is None else t), (agent, t)
            assert bool(one["terminated"][agent]) == (life is None or ends == "terminated"), (agent, t)
            assert bool(one["truncated"][agent]) == (ends == "truncated"), (agent, t)
            if ends == "truncated":
                assert one["final_values"][agent] == t, "the value of its own last observation"
            after = t % NUM_STEPS
            assert one["after"][agent].tolist() == ([1, agent, after] if is_there(agent, after) else [0, 0, 0])
    scores = {(episode.row % 3, episode.reward, episode.length) for episode in ring.new_episodes()}
    assert scores == {(0, 21.0, 6), (1, 7.0, 2), (1, 13.0, 2), (2, 22.0, 4)}
    worker.close()


@pytest.mark.parametrize("num_policies", [1, 2])
@pytest.mark.parametrize(
    "acting_side",
    [
        {"policy_workers_per_policy": 0},
        {"policy_workers_per_policy": 0, "native_update": False},
        {"policy_workers_per_policy": 1},
        {"policy_workers_per_policy": 1, "use_rnn": True},
    ],
    ids=["C", "NumPy", "torch", "recurrent"],
)
def test_no_actions_are_computed_for_agents_that_are_not_there(
    acting_side: dict[str, Any], num_policies: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is stored of them is zeros, and training stays finite."""
    lab = make_lab(
        tmp_path, "test/Comers", num_envs_per_worker=4, rollout=NUM_STEPS, num_policies=num_policies, **acting_side
    )
    roles = lab.build_all()
    learners = roles[:num_policies]
    computed = [0]
    actors = [one for role in roles for one in (role, *getattr(role, "companions", ())) if isinstance(one, ACTORS)]
    for actor in actors:
        if isinstance(actor, SmallInference):
            count_calls(monkeypatch, actor, "act", computed, lambda result: int(result.sum()))
        else:
            count_calls(monkeypatch, actor.actor, "act", computed, lambda result: len(result[2]))
    step_until(roles, lambda: all(one.update.version >= 3 for one in learners))
    records = [record for one in actors for record in getattr(one, "records", [one.record])]
    samples, requests = (sum(record[name] for record in records) for name in ("samples", "requests"))
    all_rows = requests / num_policies * lab.shared.topology.rows
    assert samples <= computed[0] < (ACTED / 21 + 0.15) * all_rows, "some are values of last observations"
    slots = lab.slots
    absent = slots.policy_id == NO_POLICY
    assert absent.any()
    for name in ("actions", "log_probs", "policy_version"):
        assert not getattr(slots, name)[absent].any()
    for learner in learners:
        assert all(torch.isfinite(variable).all() for variable in learner.network.variables().values())
    for role in roles:
        role.close()


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, total: list[int], count: Any) -> None:
    """Adds up what `count` says of each result of a method."""
    method = getattr(owner, name)

    def counted(*arguments: Any) -> Any:
        result = method(*arguments)
        total[0] += count(result)
        return result

    monkeypatch.setattr(owner, name, counted)


def test_every_life_counts_as_an_episode_in_an_evaluation() -> None:
    info = probe(COMERS)
    (played,) = play(Cast([acting(info)]), COMERS, info, num_episodes=2, seed=0)
    assert sorted(zip(played.agents, played.lengths, played.rewards, strict=True)) == sorted(
        [(0, 6, 21.0), (1, 2, 7.0), (1, 2, 13.0), (2, 4, 22.0)] * 2
    )


def test_a_replayed_environment_knows_which_agents_are_there() -> None:
    for num_steps in range(NUM_STEPS):
        (batch, rows), (resumed, again) = batch_of(COMERS), batch_of(COMERS)
        batch.reset(rows)
        for _ in range(num_steps):
            batch.step(np.zeros(3, np.int64), rows, np.zeros(3, np.float32))
        resumed.replay(batch.history, again)
        assert again["obs"].tolist() == rows["obs"].tolist()
        assert resumed.next_fillers.tolist() == batch.next_fillers.tolist()
        assert resumed.next_fillers.tolist() == [agent for agent in range(3) if not is_there(agent, num_steps)]


def test_an_agent_of_a_dict_comes_with_its_first_observation() -> None:
    batch, rows = batch_of(EnvSource("Convoy", {}, convoy))
    for episode in range(2):
        if episode == 0:
            batch.reset(rows)
        shown, ends = [], []
        for t in range(1, 6):
            assert batch.next_fillers.tolist() == ([1] if t <= 2 else [] if t <= 4 else [0])
            ended = batch.step(np.zeros(2, np.int64), rows, np.zeros(2, np.float32))
            ends += [(t, one.row, one.terminated, one.is_last) for one in ended]
            shown.append(rows["obs"][:, 2].tolist())
        assert shown == [[1, 0], [2, 2], [3, 3], [0, 4], [0, 0]]
        assert ends == [(4, 0, True, False), (5, 1, False, True)]


def test_an_agent_of_a_dict_that_comes_back_gets_actions_again() -> None:
    batch, rows = batch_of(EnvSource("Returning", {}, lambda: SeveralAgents(Returning())))
    batch.reset(rows)
    absent = []
    for _ in range(6):
        absent.append(batch.next_fillers.tolist())
        batch.step(np.zeros(2, np.int64), rows, np.zeros(2, np.float32))
    assert absent == [[1], [1], [], [1], [], []]
    assert batch.envs[0].env.acted == [["a"], ["a"], ["a", "b"], ["a"], ["a", "b"], ["a", "b"]]


def test_metrics_of_a_life_that_is_over_are_not_those_of_the_next_one_after_a_resume() -> None:
    source = EnvSource("Counting", {}, Counting)

    def hits(batch: Any, rows: Any, num_steps: int) -> list[tuple[int, float]]:
        actions, rewards = np.zeros(2, np.int64), np.zeros(2, np.float32)
        ended = [one for _ in range(num_steps) for one in batch.step(actions, rows, rewards)]
        return [(one.row, one.info["metrics"]["hits/sum"]) for one in ended]

    (batch, rows), (resumed, again) = batch_of(source), batch_of(source)
    batch.reset(rows)
    hits(batch, rows, 4)
    resumed.replay(batch.history, again)
    assert hits(resumed, again, 2) == hits(batch, rows, 2) == [(1, 2.0), (0, 6.0)]


def test_agents_that_come_when_the_last_ones_end_are_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    relay = {"a": [(0, 3, "terminated")], "b": [(3, 6, "terminated")], "c": [(0, 2, "terminated")]}
    batch, rows = batch_of(EnvSource("Relay", {}, partial(comers, lives=relay)))
    batch.reset(rows)
    for _ in range(7):
        batch.step(np.zeros(3, np.int64), rows, np.zeros(3, np.float32))
    told = capsys.readouterr().out
    assert "Relay, environment 0, has the agents [1] come in the step in which the last of the others end" in told
    assert told.count("Let them come a step earlier") == 2, "steps 3 and 6"


def test_a_policy_whose_agents_never_come_has_no_score(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither an evaluation beside the training nor a film breaks for it."""
    flags = {"num_policies": 2, "policy_mapping": "by_agent", "eval_every_steps": 10, "eval_episodes": 2}
    lab = make_lab(tmp_path, "test/Comers", env_kwargs=json.dumps({"lives": SELDOM}), num_envs_per_worker=4, **flags)
    roles, evaluator = lab.build_all(), lab.build("eval")
    told = lab.told
    evaluator.tell = told.append
    step_until([*roles, evaluator], lambda: len([one for one in told if isinstance(one, EvaluationDone)]) >= 2)
    done = {one.policy_id: one.episodes for one in told if isinstance(one, EvaluationDone)}
    assert done == {0: 4, 1: 0}
    source = EnvSource("Seldom", {}, partial(comers, lives=SELDOM))
    info = probe(source)
    played = play(Cast([acting(info), acting(info)]), source, info, num_episodes=2, seed=0)
    assert summarize(played[0]).num_episodes == 4
    with pytest.raises(EnvError, match="No agent of a policy has come in the episodes that were played"):
        summarize(played[1])
    for role in [*roles, evaluator]:
        role.close()


def test_scripted_functions_are_not_asked_for_agents_that_are_not_there(tmp_path: Path) -> None:
    flags = {"num_policies": 2, "frozen_policies": json.dumps({"1": f"{__name__}:expect_agent"})}
    lab = make_lab(tmp_path, "test/Comers", num_envs_per_worker=4, **flags)
    roles = lab.build_all()
    step_until(roles, lambda: roles[0].update.version >= 2)
    for role in roles:
        role.close()


def expect_agent(observation: Any, random: Any) -> int:
    assert observation[0] == 1
    return 1


def test_the_state_for_a_critic_has_zeros_for_agents_that_are_not_there() -> None:
    env = Central(comers())
    seen, _ = env.reset()
    assert seen[0]["state"].tolist() == [1, 0, 0] + [0] * 6
    states = [env.step([0, 0, 0])[0][0]["state"].reshape(3, 3)[:, 0].tolist() for _ in range(5)]
    assert states == [[1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 1, 1], [1, 1, 1]], "with the last observation of b in step 4"


def test_a_dropped_step_at_the_end_of_a_trajectory_keeps_the_recurrent_state(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, "test/Comers", num_envs_per_worker=4, rollout=5, use_rnn=True, on_nonfinite="drop")
    roles = lab.build_all()
    (rollout,) = (role for role in roles if hasattr(role, "groups") and not isinstance(role, ACTORS))
    group, slots = rollout.groups[0], lab.slots
    step_until(roles, lambda: group.t == 5 and not group.requests.is_answered(0))
    slot, row = group.slot, 0
    taken = slots.memory[0, group.requests.request[0] % 2, row].copy()
    slots.policy_id[slot, 4, row] = NO_POLICY  # as where its reward is refused
    ended = slots.ended(slot, 4)[row]
    filled = group.slots_filled
    step_until(roles, lambda: group.slots_filled > filled and group.slot is not None)
    assert not ended
    assert taken.any()
    assert np.array_equal(slots.initial_memory[group.slot, row], taken)
    for role in roles:
        role.close()


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"reset": [{"is_active": False}] * 2}, "returned is_active=False for each of 2 agents from reset. Let at"),
        ({"reset": [{"is_active": "no"}, {}]}, "returned is_active='no' from reset"),
        ({"reset": [{}] * 3}, "returned 3 infos from reset, expected 2"),
        ({"step": [{}, OrderedDict(is_active=False)]}, "returned is_active=False for agent 1 from step, and the agent"),
        (
            {"reset": [{}, {"is_active": False}], "step": [{}, {"is_active": True}], "over": [False, True]},
            "returned is_active=True for agent 1 from step, with terminated or truncated",
        ),
        ({"step": [{}, {"is_active": False}]}, "returned is_active=False for agent 1 from step, and the agent has not"),
    ],
)
def test_contradictions_are_refused_by_the_first_look_and_by_every_step(told: Any, message: str) -> None:
    infos: dict[str, Any] = {"reset": [{}, {}], "step": [{}, {}]}
    make = partial(Told, **infos | told)
    with pytest.raises(EnvError, match=message):
        probe(EnvSource("Told", {}, make))
    source = EnvSource("Told", {}, partial(Told, **infos))
    info, rows = probe(source), {"obs": np.zeros((2, 3), np.float32)}
    batch: Any = make_env_batch(source, info, [0], {"obs": rows["obs"].copy()}, np.zeros(2, bool), "clip", Host())
    changed = {"over": [False, False]} | infos | told
    batch.envs[0].infos, batch.envs[0].over = (changed["reset"], changed["step"]), changed["over"]

    def one_step() -> None:
        batch.reset(rows)
        batch.step(np.zeros(2, np.int64), rows, np.zeros(2, np.float32))

    with pytest.raises(EnvError, match=message):
        one_step()


def test_an_agent_without_a_row_is_refused() -> None:
    batch, rows = batch_of(COMERS)
    reset = batch.envs[0].env.reset

    def with_stranger(**arguments: Any) -> Any:
        result = reset(**arguments)
        batch.envs[0].env.agents.append("stranger")
        return result

    batch.envs[0].env.reset = with_stranger
    with pytest.raises(EnvError, match=r"agents has stranger, which possible_agents has not: \['a', 'b', 'c'\]"):
        batch.reset(rows)


def test_an_agent_that_ends_in_a_step_does_not_come_back_in_it() -> None:
    presence = Presence(3)
    presence.begin([{}, {"is_active": False}, {}])
    assert presence.absent == {1}
    infos = [{"is_active": True}] * 3
    arrivals = presence.arrivals(infos)
    assert arrivals == {1}
    assert not presence.end([0])
    presence.come(arrivals)
    assert presence.absent == {0}
    assert presence.end([1, 2]), "none is left"


class Overpaying(Comers):
    """Rewards an agent that there is not."""

    def step(self, actions: Any) -> Any:
        seen, rewards, *rest = super().step(actions)
        return (seen, rewards | {"green_0": 5.0}, *rest)


def test_a_reward_for_an_agent_that_there_is_not_is_refused() -> None:
    env = Parallel(Overpaying())
    env.reset()
    with pytest.raises(EnvError, match="a reward for green_0, which is not among possible_agents: a, b, c"):
        env.step([0, 0, 0])
