"""The environments of other packages, the real ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from sf_envs.couriers import MOVES, Couriers
from sf_envs.deep_sea import DeepSea
from sf_envs.remember import Remember

from sf.envs import find_env, probe
from sf.errors import EnvError
from sf.shared.episodes import EpisodeRing
from tests.helpers.lab import make_lab, step_until

REAL: list[tuple[str, dict[str, Any], dict[str, tuple[int, ...]], int]] = [
    ("atari/Pong", {}, {"obs": (4, 84, 84)}, 6),
    ("atari/Breakout", {"frame_stack": 1}, {"obs": (1, 84, 84)}, 4),
    ("atari/BeamRider", {"full_action_space": True}, {"obs": (4, 84, 84)}, 18),
    ("minigrid/Empty-5x5", {}, {"image": (7, 7, 3), "direction": ()}, 7),
    ("minigrid/DoorKey-5x5", {"image_only": True}, {"obs": (7, 7, 3)}, 7),
    ("minigrid/ObstructedMaze-Full-v1", {}, {"image": (7, 7, 3), "direction": ()}, 7),
    ("vizdoom/Basic", {}, {"screen": (72, 96, 3), "gamevariables": (1,)}, 4),
    ("vizdoom/MyWayHome", {}, {"screen": (72, 96, 3)}, 6),
    ("envpool/Pong-v5", {}, {"obs": (4, 84, 84)}, 6),
    ("envpool/CartPole-v1", {}, {"obs": (4,)}, 2),
    ("LunarLander-v3", {}, {"obs": (8,)}, 4),
    ("CartPole-v1", {}, {"obs": (4,)}, 2),
]


def alone_if_shared(row: tuple[Any, ...]) -> Any:
    """ViZDoom has names in shared memory."""
    return pytest.param(*row, id=row[0], marks=[pytest.mark.alone] if row[0].startswith("vizdoom") else [])


@pytest.mark.parametrize(("env_id", "kwargs", "shapes", "choices"), [alone_if_shared(row) for row in REAL])
def test_real_environment_has_the_spaces_it_should(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env_id: str, kwargs: Any, shapes: Any, choices: int
) -> None:
    monkeypatch.chdir(tmp_path)
    info = probe(find_env(env_id, kwargs))
    assert not list(tmp_path.iterdir()), "left in the working directory"
    assert {name: leaf.shape for name, leaf in info.observations.items()} == shapes
    assert info.action.choices == (choices,)


@pytest.mark.parametrize(
    ("robot", "version", "size", "actions"),
    [
        ("HalfCheetah", "HalfCheetah-v4", 17, 6),
        ("HalfCheetah-v5", "HalfCheetah-v5", 17, 6),
        ("Hopper", "Hopper-v4", 11, 3),
        ("Pusher", "Pusher-v5", 23, 7),
    ],
)
def test_real_robots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, robot: str, version: str, size: int, actions: int
) -> None:
    monkeypatch.chdir(tmp_path)
    source = find_env(f"mujoco/{robot}")
    info = probe(source)
    assert info.observations["obs"].shape == (size,)
    assert (len(info.action.columns), info.action.choices) == (actions, ())
    assert source.make().spec.id == version
    assert not list(tmp_path.iterdir()), "MuJoCo's log of old words"


def test_several_agents_of_pettingzoo() -> None:
    source = find_env("pettingzoo/mpe2.simple_spread_v3", {"max_cycles": 5})
    info = probe(source)
    assert (info.num_agents, info.observations["obs"].shape, info.action.choices) == (3, (18,), (5,))
    env = source.make()
    env.reset(seed=1)
    ends = [env.step([0, 1, 2])[2:4] for _ in range(5)]
    assert ends[-1] == ([False] * 3, [True] * 3), "the limit of cycles cuts the episode"
    assert ends[0] == ([False] * 3, [False] * 3)
    env.close()


def test_agents_that_leave_early_end_for_themselves(tmp_path: Path) -> None:
    arguments = {"terminate_on_fall": False, "max_cycles": 200}
    lab = make_lab(tmp_path, "pettingzoo/sisl.multiwalker_v9", env_kwargs=json.dumps(arguments), num_envs_per_worker=2)
    roles, ring = lab.build_all(), EpisodeRing(lab.arena, 0)
    lengths: list[int] = []

    def has_ended() -> bool:
        lengths.extend(episode.length for episode in ring.new_episodes())
        return len(lengths) >= 3

    step_until(roles, has_ended)
    assert len(set(lengths)) > 1, "one has fallen before the others"
    for role in roles:
        role.close()


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("Pong-v5", r"There is no environment 'Pong-v5'\. Did you mean atari/Pong\?"),
        ("Breakout", r"There is no environment 'Breakout'\. Did you mean atari/Breakout\?"),
        ("atari/pong", r"There is no Atari game 'pong'\. Did you mean atari/Pong or "),
        ("atari/*", r"There is no Atari game '\*'\. There are \d+, such as atari/Adventure, "),
        ("Atari/Pong", r"There is no environment 'Atari/Pong'\. Did you mean atari/Pong\?"),
        ("mujoco/HalfCheeta", r"There is no MuJoCo robot 'HalfCheeta'\. Did you mean mujoco/HalfCheetah or "),
        ("minigrid/Empty-5x55", r"There is no MiniGrid world 'Empty-5x55'\. Did you mean minigrid/Empty-"),
        ("vizdoom/Basik", r"There is no ViZDoom scenario 'Basik'\. Did you mean vizdoom/Basic"),
        ("envpool/Pong", r"There is no EnvPool environment 'Pong'\. Did you mean envpool/Pong-v5"),
        ("pettingzoo/sisl.pursuit_v4", r"'sisl\.pursuit_v4'\. Did you mean pettingzoo/sisl\.pursuit_v"),
        ("pettingzoo/nothing.like_this", r"There is no PettingZoo module 'nothing\.like_this'\. There are "),
        ("pettingzoo/classic.tictactoe_v3", r"has no parallel_env: its agents take turns"),
        ("pettingzoo/mpe2.simple_v3", r"simple_v3 has the agents \['agent_0'\], expected at least 2 of them"),
    ],
)
def test_unknown_member_of_a_family_is_refused(env_id: str, message: str) -> None:
    with pytest.raises(EnvError, match=message) as caught:
        probe(find_env(env_id))
    assert "\n" not in str(caught.value), "a sentence, not a traceback"


@pytest.mark.parametrize(
    ("env_id", "module", "extra"),
    [
        ("atari/Pong", "ale_py", "atari"),
        ("atari/Pong", "cv2", "atari"),
        ("mujoco/HalfCheetah", "mujoco", "mujoco"),
        ("HalfCheetah-v5", "mujoco", "mujoco"),
        ("LunarLander-v3", "Box2D", "box2d"),
        ("pettingzoo/sisl.multiwalker_v9", "pygame", "pettingzoo"),
        ("minigrid/Empty-5x5", "minigrid", "minigrid"),
        ("vizdoom/Basic", "vizdoom", "vizdoom"),
        ("pettingzoo/mpe2.simple_spread_v3", "pettingzoo", "pettingzoo"),
        ("envpool/Pong-v5", "envpool", "envpool"),
    ],
)
def test_fault_g2_missing_package_comes_with_the_command_that_installs_it(env_id: str, module: str, extra: str) -> None:
    code = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "from sf.envs import find_env, probe; from sf.errors import EnvError\n"
        f"try: probe(find_env({env_id!r}))\n"
        "except EnvError as error: print(error)"
    )
    finished = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert f'pip install "sf-rl[{extra}]"' in finished.stdout, finished.stdout + finished.stderr


@pytest.mark.more
def test_envpool_reports_raw_scores_of_whole_games() -> None:
    env = find_env("envpool/SpaceInvaders-v5", {"episodic_life": True, "reward_clip": True}).make()
    random = np.random.default_rng(0)
    scores: list[float] = []
    ends, clipped = 0, 0.0
    env.reset(seed=3)
    for _ in range(3000):
        _, reward, terminated, truncated, info = env.step(random.integers(6))
        clipped += reward
        if terminated or truncated:
            ends += 1
            if "episode" in info:
                scores.append(info["episode"]["r"])
                assert ends == 3 * len(scores), "a lost life ends an episode, but not the game"
                assert sum(scores) > clipped
            env.reset()
    assert scores
    env.close()


def test_atari_reports_raw_scores_of_whole_games(tmp_path: Path) -> None:
    """Random play of Breakout: five lives per game, and games of about one point."""
    env = find_env("atari/Breakout").make()
    env.action_space.seed(0)
    games: list[float] = []
    ends, clipped = 0, 0.0
    env.reset(seed=0)
    while not sum(games):
        _, reward, terminated, truncated, info = env.step(env.action_space.sample())
        clipped += reward
        if terminated or truncated:
            ends += 1
            if "episode" in info:
                games.append(info["episode"]["r"])
            env.reset()
    assert ends == 5 * len(games)
    assert sum(games) >= clipped > 0
    lab = make_lab(tmp_path, "atari/Breakout", num_envs_per_worker=2, rollout=64, encoder_conv_mlp_layers=(8,))
    roles = lab.build_all()
    step_until(roles, lambda: roles[-1].record["episodes"] >= 1)
    episode = lab.arena["episodes"][0, 0]
    assert episode[2] > 150, "the length of a whole game in frames, not that of a life"
    assert lab.slots.terminated.sum() + lab.slots.truncated.sum() > 0
    for role in roles:
        role.close()


class TestRemember:
    def test_gymnasium_accepts_it(self) -> None:
        check_env(Remember(), skip_render_check=True)

    def test_right_answer_is_worth_one(self) -> None:
        env = Remember(num_cues=3, delay=2)
        for right in (True, False):
            observation, _ = env.reset(seed=4)
            cue = int(observation.argmax())
            seen, rewards = [], []
            while True:
                observation, reward, terminated, truncated, _ = env.step(cue if right else (cue + 1) % 3)
                rewards.append(reward)
                if terminated:
                    break
                seen.append(observation.tolist())
            assert rewards == [0, 0, 0, float(right)]
            assert seen == [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1]], "nothing tells the cue again"
            assert not truncated


class TestCouriers:
    def test_gymnasium_accepts_it(self) -> None:
        env = Couriers()
        observation, _ = env.reset(seed=0)
        assert env.observation_space.contains(observation)

    def test_shortest_ways_reach_the_best_return_of_1_90(self) -> None:
        env = Couriers()
        best = []
        for seed in range(2000):
            env.reset(seed=seed if seed == 0 else None)
            best.append(env.best_return)
            total, over = 0.0, False
            while not over and seed < 100:
                after = np.abs(env.places[:, None] + MOVES - env.destinations[:, None]).sum(-1)
                after[~env._legal_moves()] = 99
                _, reward, over, truncated, _ = env.step(after.argmin(1))
                total += reward
                assert not truncated
            assert seed >= 100 or total == pytest.approx(best[-1])
        assert np.mean(best) == pytest.approx(1.90, abs=0.01)

    def test_illegal_move_is_refused(self) -> None:
        env = Couriers(num_couriers=1, size=2)
        observation, _ = env.reset(seed=0)
        illegal = int(np.flatnonzero(observation["action_mask"] == 0)[0])
        with pytest.raises(ValueError, match="are not legal"):
            env.step([illegal])


def test_tables_import_nothing_heavy() -> None:
    code = "import sys, json, sf_envs; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert not {"gymnasium", "numpy", "cv2", "ale_py", "mujoco"} & set(loaded)


class TestDeepSea:
    def test_only_a_dive_to_the_right_is_rewarded(self) -> None:
        env = DeepSea(size=5)
        for wrong in (None, 0, 3, 4):  # the step that goes to the left, if any
            env.reset(seed=1)
            rewards, ended = [], False
            for step in range(5):
                right = int(env._goes_right[env.row, env.column])
                observation, reward, ended, cut, _ = env.step(np.int64(1 - right if step == wrong else right))
                assert observation.sum() == 1.0
                assert not cut
                rewards.append(reward)
            assert ended
            assert rewards == [0.0] * 4 + [0.0 if wrong is not None else 1.0]

    def test_actions_mean_the_same_in_all_of_them(self) -> None:
        first, second = DeepSea()._goes_right, DeepSea()._goes_right
        assert (first == second).all()
        assert 0 < first.sum() < first.size

    def test_a_sea_without_depth_is_refused(self) -> None:
        with pytest.raises(ValueError, match="size=1, but the sea needs 2 rows or more"):
            DeepSea(size=1)
