"""Rows C14 to C20 on real games, against a console that is played by hand."""

from __future__ import annotations

from typing import Any

import cv2
import gymnasium
import numpy as np
import pytest

from sf.envs import find_env

ale_py = pytest.importorskip("ale_py")


def make(game: str, **kwargs: Any) -> Any:
    return find_env(f"atari/{game}", kwargs).make()


class ByHand:
    """The old id without sticky actions, with everything that the wrappers do, in one place."""

    def __init__(self, game: str) -> None:
        gymnasium.register_envs(ale_py)
        self.console: Any = gymnasium.make(f"{game}NoFrameskip-v4", disable_env_checker=True)
        self.stack: Any = None

    def begin(self, seed: int | None) -> Any:
        """A new game with a seed, or the same game after a lost life."""
        if seed is None:
            self.act(0)
        else:
            self.console.reset(seed=seed)
        self.act(1)
        self.act(2)
        self.stack = np.stack([self.picture] * 4)
        return self.stack

    def act(self, action: int) -> float:
        """Four frames; returns the sum of their rewards."""
        frames, rewards = [], []
        for _ in range(4):
            frame, reward, *_ = self.console.step(action)
            frames.append(frame)
            rewards.append(float(reward))
        gray = cv2.cvtColor(np.maximum(frames[2], frames[3]), cv2.COLOR_RGB2GRAY)
        self.picture = cv2.resize(gray, (84, 84), interpolation=cv2.INTER_AREA)
        return sum(rewards)

    def step(self, action: int) -> tuple[Any, float]:
        reward = self.act(action)
        self.stack = np.stack([*self.stack[1:], self.picture])
        return self.stack, float(np.sign(reward))

    @property
    def lives(self) -> int:
        return int(self.console.unwrapped.ale.lives())


def test_game_is_that_of_the_old_id_without_sticky_actions() -> None:
    """But for what it observes, of which the wrappers use nothing."""
    ours = make("Breakout").unwrapped.spec.kwargs
    theirs = ByHand("Breakout").console.unwrapped.spec.kwargs | {"obs_type": "ram"}
    assert {name: value for name, value in ours.items() if name != "render_mode"} == theirs


def test_c15_to_c20_pictures_rewards_and_ends_are_those_of_play_by_hand() -> None:
    env, by_hand = make("Breakout", noop_max=0), ByHand("Breakout")
    random = np.random.default_rng(3)
    observation, _ = env.reset(seed=5)
    assert (observation == by_hand.begin(seed=5)).all()
    lost = scored = 0
    while lost < 3 or not scored:
        lives, action = by_hand.lives, int(random.integers(4))
        expected, sign = by_hand.step(action)
        observation, reward, terminated, truncated, info = env.step(action)
        assert (observation == expected).all()
        assert (reward, terminated, truncated) == (sign, by_hand.lives < lives, False)
        assert "episode" not in info
        scored += reward > 0
        if terminated:
            lost += 1
            assert (env.reset()[0] == by_hand.begin(seed=None)).all()
    env.close()


def test_c14_noops_of_a_real_game() -> None:
    env = make("Freeway", episodic_life=False)  # which has no FIRE
    frames = []
    for attempt in range(80):
        env.reset(seed=0 if attempt == 0 else None)
        frames.append(env.unwrapped.ale.getEpisodeFrameNumber())
    assert 1 <= min(frames) < 5
    assert 25 < max(frames) <= 30
    env.close()


def test_reset_with_a_seed_begins_the_same_game_again() -> None:
    env = make("Breakout")
    games = []
    for _ in range(2):
        pictures = [env.reset(seed=7)[0]]
        for step in range(40):  # in the middle of a life
            pictures.append(env.step(step % 4)[0])
        games.append(np.stack(pictures))
    assert (games[0] == games[1]).all()
    assert env.unwrapped.ale.getEpisodeFrameNumber() <= 30 + 8 + 4 * 40
    env.close()


@pytest.mark.parametrize(("game", "frames"), [("Pong", 8), ("Freeway", 0)])
def test_c17_fire_takes_two_actions_where_a_game_has_it(game: str, frames: int) -> None:
    env = make(game, noop_max=0)
    env.reset(seed=0)
    assert env.unwrapped.ale.getEpisodeFrameNumber() == frames
    env.close()


def test_switches_give_the_raw_game() -> None:
    env = make("Breakout", frame_stack=1, frame_skip=2, episodic_life=False, clip_rewards=False, noop_max=0)
    env.action_space.seed(1)
    observation, _ = env.reset(seed=1)
    assert observation.shape == (1, 84, 84)
    total, steps, over, info = 0.0, 0, False, {}
    while not over:
        _, reward, terminated, truncated, info = env.step(env.action_space.sample())
        total, steps, over = total + reward, steps + 1, terminated or truncated
    assert env.unwrapped.ale.lives() == 0
    assert info["episode"]["r"] == total
    assert abs(info["episode"]["l"] - 2 * (steps + 2)) <= 1, "frames, with those of FIRE and the next button"
    env.close()
