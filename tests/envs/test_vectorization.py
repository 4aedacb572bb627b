"""Environments that step many copies at once: every way in which they reset, and what is trained on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from sf.config import ModelConfig
from sf.envs import EnvSource, find_env, probe, register_env
from sf.envs.vector_stepping import VectorBatch
from sf.envs.vectorization import PAYS_FROM, choose_vectorization
from sf.errors import EnvError
from sf.evaluator.cast import Cast
from sf.evaluator.playing import Play
from sf.policy import ActorCritic, CollectPolicy
from sf.rollout.worker import RolloutWorker
from sf.run.preparation import vectorized
from sf.run.sizes import resolve
from tests.helpers.commands import run, summary_of
from tests.helpers.lab import Lab, make_config, make_lab, step_until

LENGTHS = (3, 5, 7, 4)
"""Lengths of every episode of each environment; odd ones are truncated."""


class Numbered(gymnasium.Env[Any, Any]):
    """Shows environment, episode and step, whatever is done."""

    observation_space = spaces.Box(-1.0, 1000.0, (3,))
    action_space = spaces.Discrete(3, start=1)

    def __init__(self, index: int = 0) -> None:
        self.index, self.episode, self.t = index, -1, 0

    def seen(self) -> Any:
        return np.array([self.index, self.episode, self.t], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episode, self.t = self.episode + 1, 0
        return self.seen(), {"true_objective": -1.0}

    def step(self, action: Any) -> Any:
        assert 1 <= action <= 3
        self.t += 1
        is_over = self.t == LENGTHS[self.index % len(LENGTHS)]
        is_cut = is_over and self.t % 2 == 1
        return self.seen(), float(self.t), is_over and not is_cut, is_cut, {"true_objective": 10.0 * self.t}


class Many(VectorEnv[Any, Any, Any]):
    """The same, all at once, in each of the three modes."""

    mode = AutoresetMode.NEXT_STEP

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": self.mode}
        self.envs = [Numbered(index) for index in range(num_envs)]
        self.single_observation_space, self.single_action_space = Numbered.observation_space, Numbered.action_space
        self.over = np.zeros(num_envs, bool)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        rows = [env.reset()[0] if chosen else env.seen() for env, chosen in zip(self.envs, mask, strict=True)]
        return np.stack(rows), {}

    def step(self, actions: Any) -> Any:
        rows: list[Any] = []
        final, has_final = np.full(self.num_envs, None, object), np.zeros(self.num_envs, bool)
        objectives, final_objectives = np.zeros(self.num_envs), np.zeros(self.num_envs)
        was_reset = np.zeros(self.num_envs, bool)
        for index, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            if self.over[index] and self.mode == AutoresetMode.NEXT_STEP:
                rows.append((env.reset()[0], 99.0, True, bool(index % 2)))  # a reset is no step: all of it is ignored
                was_reset[index] = True
                continue
            observation, reward, terminated, truncated, info = env.step(action)
            if (terminated or truncated) and self.mode == AutoresetMode.SAME_STEP:
                final[index], has_final[index] = observation, True
                final_objectives[index] = info["true_objective"]
                observation, info = env.reset()
            objectives[index] = info["true_objective"]
            rows.append((observation, reward, terminated, truncated))
        observations, rewards, terminated, truncated = (np.array(column) for column in zip(*rows, strict=True))
        self.over = (terminated | truncated) & ~was_reset
        infos: dict[str, Any] = {"true_objective": objectives, "_true_objective": np.ones(self.num_envs, bool)}
        if has_final.any():
            final_info = {"true_objective": final_objectives, "_true_objective": has_final}
            infos |= {"final_obs": final, "_final_obs": has_final, "final_info": final_info, "_final_info": has_final}
        return observations, rewards, terminated, truncated, infos


class SameStep(Many):
    mode = AutoresetMode.SAME_STEP


class Disabled(Many):
    mode = AutoresetMode.DISABLED


MODES: dict[str, type[Many]] = {"next": Many, "same": SameStep, "disabled": Disabled}
for name, kind in MODES.items():
    register_env(f"many/{name}", Numbered, make_vec=kind)


def collect(lab: Lab, num_slots: int) -> tuple[RolloutWorker, list[dict[str, Any]]]:
    """Plays an inference worker whose actions are all 0 and a learner that copies slots."""
    worker: RolloutWorker = lab.build("rollout-0")
    slots, copies = lab.slots, list[dict[str, Any]]()
    requests = worker.groups[0].requests
    while len(copies) < num_slots:
        worker.step()
        for group in worker.groups:
            if requests.request[group.index] != requests.answered[group.index, 0]:
                slot, t = int(requests.slot[group.index]), int(requests.step[group.index])
                if t < slots.topology.rollout:
                    slots.actions[slot, t] = 0
                if t > 0:
                    cut = slots.has_final_observation[group.index]
                    slots.final_values[slot, t - 1, cut] = slots.final_observations["obs"][group.index][cut, 2]
                requests.answered[group.index, 0] = requests.request[group.index]
        for slot in slots.waiting_for(0, 0):
            copies.append(
                {
                    name: np.array(getattr(slots, name)[slot])
                    for name in ("rewards", "terminated", "truncated", "policy_id", "final_values")
                }
                | {"obs": np.array(slots.observations["obs"][slot])}
            )
            slots.take(int(slot), 0)
            slots.release(int(slot), 0)
    return worker, copies


def transitions(copies: list[dict[str, Any]]) -> list[list[tuple[Any, ...]]]:
    """By environment: what it saw, the reward, the flags, and where it led, of every step that may be trained on."""
    found: list[list[tuple[Any, ...]]] = [[] for _ in LENGTHS]
    for copy in copies:
        steps, rows = copy["rewards"].shape
        for t in range(steps):
            for row in range(rows):
                if copy["policy_id"][t, row] != 0:
                    continue
                cut, ended = bool(copy["truncated"][t, row]), bool(copy["terminated"][t, row])
                led_to = ("final", float(copy["final_values"][t, row])) if cut else None
                if not (cut or ended):
                    led_to = tuple(copy["obs"][t + 1, row].tolist())
                found[row].append((*copy["obs"][t, row].tolist(), float(copy["rewards"][t, row]), ended, cut, led_to))
    return found


def expected(index: int, num: int) -> list[tuple[Any, ...]]:
    """The slow way: one environment after the other."""
    env, steps = Numbered(index), list[tuple[Any, ...]]()
    seen = env.reset()[0]
    while len(steps) < num:
        after, reward, terminated, truncated, _ = env.step(1)
        led_to = ("final", float(env.t)) if truncated else None if terminated else tuple(after.tolist())
        steps.append((*seen.tolist(), reward, terminated, truncated, led_to))
        seen = env.reset()[0] if terminated or truncated else after
    return steps


FLAGS = {"num_workers": 1, "num_envs_per_worker": 4, "worker_num_splits": 1, "rollout": 5, "num_batches_per_epoch": 1}


@pytest.mark.parametrize("mode", MODES)
def test_only_real_transitions_are_trained_on(mode: str, tmp_path: Path) -> None:
    lab = make_lab(tmp_path, f"many/{mode}", vectorization="native", **FLAGS)
    worker, copies = collect(lab, 12)
    assert isinstance(worker.groups[0].envs, VectorBatch)
    for index, steps in enumerate(transitions(copies)):
        assert len(steps) > 40
        assert steps == expected(index, len(steps))
    num_fillers = sum(int((copy["policy_id"] == -1).sum()) for copy in copies)
    assert (num_fillers > 0) == (mode == "next")
    num_steps = 12 * 5 * 4
    assert abs(worker.record["env_steps"] - (num_steps - num_fillers)) <= 4 * 5


@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_fault_b15_every_step_ends_an_episode(
    mode: str, length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Episodes of one step are cut, those of two terminate; half or a third of the steps of one mode are fillers."""
    monkeypatch.setattr(sys.modules[__name__], "LENGTHS", (length,) * 4)
    lab = make_lab(tmp_path, f"many/{mode}", vectorization="native", **FLAGS)
    _, copies = collect(lab, 12)
    for index, steps in enumerate(transitions(copies)):
        assert len(steps) >= 12 * 5 * (length / (length + 1) if mode == "next" else 1) - 1
        assert steps == expected(index, len(steps))


@pytest.mark.parametrize("mode", MODES)
def test_scores_are_those_of_single_environments(mode: str, tmp_path: Path) -> None:
    lab = make_lab(tmp_path, f"many/{mode}", vectorization="native", **FLAGS)
    worker: RolloutWorker = lab.build("rollout-0")
    found: list[tuple[float, int, float]] = []
    worker.groups[0].on_episode = lambda episode: found.append((episode.reward, episode.length, episode.true_objective))
    lab_requests = worker.groups[0].requests
    for _ in range(60):
        worker.step()
        slot, t = int(lab_requests.slot[0]), int(lab_requests.step[0])
        lab.slots.actions[slot, min(t, 4)] = 0
        lab_requests.answered[0, 0] = lab_requests.request[0]
        for full in lab.slots.waiting_for(0, 0):
            lab.slots.take(int(full), 0)
            lab.slots.release(int(full), 0)
    possible = {(float(sum(range(length + 1))), length, 10.0 * length) for length in LENGTHS}
    assert set(found) == possible


def test_memory_begins_anew_after_a_filler(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, "many/next", vectorization="native", use_rnn=True, **FLAGS)
    _, copies = collect(lab, 6)
    for copy in copies:
        fillers = copy["policy_id"] == -1
        assert copy["terminated"][fillers].all()
        assert not copy["rewards"][fillers].any()


@pytest.mark.parametrize("env", ["many/next", "CartPole-v1"])
def test_c1_c30_fillers_are_left_out_of_training_and_counts(env: str, tmp_path: Path) -> None:
    flags: dict[str, Any] = FLAGS | {"num_envs_per_worker": 16, "normalize_rewards": True}
    lab = make_lab(tmp_path, env, vectorization="native", **flags)
    roles = lab.build_all()
    learner = roles[0]
    for _ in range(400):
        for role in roles:
            role.step()
    assert learner.update.version > 5
    frames = int(learner.record["env_steps"])
    datasets = int(learner.record["iterations"])
    assert 0.6 * datasets * 80 < frames < datasets * 80
    step_until(roles, lambda: learner.record["iterations"] > datasets)
    assert learner.frames == roles[1].record["samples"], "row A20"
    frames = learner.frames
    assert learner.update.state_dict()["reward_scaling.count"].item() == pytest.approx(frames, rel=1e-5)
    assert learner.network.flat.isfinite().all()
    for role in roles:
        role.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("memory", [False, True])
def test_evaluation_plays_many_at_once(mode: str, memory: bool) -> None:
    source = find_env(f"many/{mode}")
    info = probe(source)
    policy = CollectPolicy(ActorCritic(info, ModelConfig(use_rnn=memory)), validate_args=False)
    playing = Play(Cast([policy]), source, info, num_episodes=40, seed=0)
    assert isinstance(playing._envs, VectorBatch)
    playing.start()
    while not playing.tally.is_complete:
        playing.step()
    (episodes,) = playing.tally.episodes
    assert sorted(episodes.lengths) == sorted(LENGTHS * 10)
    assert episodes.rewards == [sum(range(length + 1)) for length in episodes.lengths]


class Wrong(Many):
    def __init__(self, num_envs: int, **changes: Any) -> None:
        super().__init__(num_envs + changes.pop("more", 0))
        self.changes = changes
        self.single_observation_space = changes.pop("space", self.single_observation_space)

    def step(self, actions: Any) -> Any:
        observation, reward, *rest = super().step(actions)
        return self.changes.get("observation", observation), self.changes.get("reward", reward), *rest


def make_wrong(num_envs: int, wrong: str) -> Wrong:
    changes: dict[str, dict[str, Any]] = {
        "more": {"more": 1},
        "space": {"space": spaces.Box(-1.0, 1.0, (2,))},
        "shape": {"observation": np.zeros((num_envs, 2), np.float32)},
        "dtype": {"observation": np.zeros((num_envs, 3), object)},
        "reward": {"reward": np.zeros((num_envs, 1))},
    }
    return Wrong(num_envs, **changes[wrong])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("more", r"The vector factory of wrong made 5 environments, expected a gymnasium.vector.VectorEnv of 4"),
        ("space", r"The vectorized wrong is not like a single one\. Expected: .*float32\[3\].*Found: .*float32\[2\]"),
        ("shape", r"returned an observation 'obs' float32\[4, 2\], expected float32\[4, 3\]"),
        ("dtype", r"returned an observation 'obs' object\[4, 3\], expected float32"),
        ("reward", r"returned rewards float64\[4, 1\] from step, expected one number for each of 4 environments"),
    ],
)
def test_broken_promises(wrong: str, message: str) -> None:
    info = probe(EnvSource("wrong", {}, Numbered))
    source = EnvSource("wrong", {"wrong": wrong}, Numbered, vector_factory=make_wrong)
    observations, rewards = {"obs": np.zeros((4, 3), np.float32)}, np.zeros(4, np.float32)
    with pytest.raises(EnvError, match=message):  # noqa: PT012  # some are seen when it is made, some when it steps
        batch = VectorBatch(source, info, range(4), {"obs": np.zeros((4, 3), np.float32)}, np.zeros(4, bool), "clip")
        batch.reset(observations)
        batch.step(np.zeros(4, np.int64), observations, rewards)


def test_what_auto_chooses_and_what_is_refused() -> None:
    cart, lunar, mine = find_env("CartPole-v1"), find_env("Pendulum-v1"), find_env("many/next")
    info = probe(cart)
    assert choose_vectorization("auto", cart, info, PAYS_FROM)[0] == "native"
    assert choose_vectorization("auto", cart, info, PAYS_FROM - 1)[0] == "none"
    assert choose_vectorization("auto", lunar, info, 999)[0] == "none"
    assert choose_vectorization("auto", mine, info, 999)[0] == "native"
    assert choose_vectorization("none", cart, info, 999)[0] == "none"
    with pytest.raises(EnvError, match="Pendulum-v1 offers no form that steps many environments at once"):
        choose_vectorization("native", lunar, info, 4)
    register_env("many/again", Numbered, make_vec=Many)
    register_env("many/again", Numbered)
    assert not find_env("many/again").offers_vector


@pytest.mark.parametrize(
    ("env", "flags", "chosen"),
    [
        ("CartPole-v1", {"async_rl": True}, "native"),
        ("CartPole-v1", {"async_rl": False}, "none"),
        ("CartPole-v1", {"async_rl": False, "vectorization": "native"}, "native"),
        ("many/next", {"async_rl": False}, "native"),
        ("many/next", {"async_rl": False, "serial_mode": True}, "none"),
    ],
)
def test_a10_c1_synchronous_runs_take_no_vector_environments_of_gymnasium_unasked(
    env: str, flags: dict[str, Any], chosen: str
) -> None:
    """Gymnasium's own vector environments reset in the next step, which makes fillers."""
    source = find_env(env)
    info = probe(source)
    config = resolve(make_config(env, num_envs_per_worker=64, **flags), info, cores=2)
    assert vectorized(config, source, info)[0].rollout.vectorization == chosen


@pytest.mark.more
@pytest.mark.parametrize(
    "flags", [["--num_envs_per_worker=64"], ["--vectorization=envpool", "--num_envs_per_worker=16"]]
)
def test_training_learns_with_vectorized_environments(flags: list[str], tmp_path: Path) -> None:
    if "envpool" in flags[0]:
        pytest.importorskip("envpool")
    limits = ["--num_workers=1", "--train_for_env_steps=60000", "--seed=1"]
    finished = run(tmp_path, "--env=CartPole-v1", *flags, *limits)
    assert finished.code == 0, finished.err
    config = (tmp_path / "train_dir/default_experiment/config.json").read_text()
    assert ('"vectorization": "envpool"' if "envpool" in flags[0] else '"vectorization": "native"') in config
    assert summary_of(tmp_path)["policies"][0]["reward"] > 100
