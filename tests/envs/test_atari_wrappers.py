"""Rows C14 to C20 on a scripted console."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import RecordEpisodeStatistics
from sf_envs.atari_wrappers import (
    FireStart,
    LastFrames,
    LifeLossEnds,
    NoopStart,
    RepeatAction,
    SignOfReward,
    SmallPicture,
)

MEANINGS = ["NOOP", "FIRE", "RIGHT"]


class Console(gymnasium.Env[Any, Any]):
    """A console whose picture shows the number of the frame, and which notes every action and reset.

    Args:
        frames_per_life: a life is lost after so many frames.
        deaths: further frames that cost a life.
        lives: at the start of a game.
        rewards: of the frames, repeated.
    """

    def __init__(self, frames_per_life: int = 10**9, lives: int = 5, rewards: Any = (1.0,), deaths: Any = ()) -> None:
        self.observation_space = spaces.Box(0, 255, (210, 160, 3), np.uint8)
        self.action_space = spaces.Discrete(len(MEANINGS))
        self.frames_per_life, self.first_lives, self.rewards = frames_per_life, lives, rewards
        self.deaths = deaths
        self.log: list[Any] = []
        self.frame, self.left = 0, lives
        self.num_drawn = 0
        self.ale = self

    def lives(self) -> int:
        return self.left

    def getScreenDims(self) -> tuple[int, int]:
        return 210, 160

    def getScreenRGB(self, frame: Any) -> None:
        self.num_drawn += 1
        frame[:] = self.picture()

    def get_action_meanings(self) -> list[str]:
        return MEANINGS

    def picture(self) -> Any:
        return np.full((210, 160, 3), self.frame % 256, np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.log.append("reset")
        self.frame, self.left = 0, self.first_lives
        return self.picture(), {}

    def step(self, action: Any) -> Any:
        self.log.append(int(action))
        reward = self.rewards[self.frame % len(self.rewards)]
        self.frame += 1
        if self.frame % self.frames_per_life == 0 or self.frame in self.deaths:
            self.left -= 1
        return self.picture(), reward, self.left == 0, False, {}


def test_c14_number_of_noops_covers_1_to_30() -> None:
    console = Console()
    env = NoopStart(console)
    counts = []
    for attempt in range(300):
        console.log.clear()
        env.reset(seed=0 if attempt == 0 else None)
        assert console.log[0] == "reset"
        assert set(console.log[1:]) == {0}
        counts.append(len(console.log) - 1)
    assert (min(counts), max(counts)) == (1, 30)


def test_c14_game_that_ends_meanwhile_is_reset_again() -> None:
    console = Console(frames_per_life=3, lives=1)
    env = NoopStart(console)
    for _ in range(20):
        env.reset()
        assert console.left == 1
    assert console.log.count("reset") > 20


def test_c14_needs_noop_as_action_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Console, "get_action_meanings", lambda self: ["FIRE", "NOOP"])
    with pytest.raises(ValueError, match="Action 0 must be NOOP for a no-op start, found FIRE"):
        NoopStart(Console())


def test_c15_maximum_of_frames_3_and_4_and_sum_of_rewards() -> None:
    class Flickering(Console):
        """Shows the number of the frame in a pixel of its own."""

        def picture(self) -> Any:
            picture = np.zeros((210, 160, 3), np.uint8)
            picture[self.frame, 0] = self.frame
            return picture

    console = Flickering(rewards=(1.0, 2.0, 4.0, 8.0, 16.0))
    env = RepeatAction(console)
    env.reset()
    observation, reward, *_ = env.step(2)
    assert observation[:5, 0, 0].tolist() == [0, 0, 0, 3, 4]
    assert (reward, console.log) == (15.0, ["reset", 2, 2, 2, 2])
    assert console.num_drawn == 1 + 2, "of the reset, and two of four frames"


def test_c15_stops_early_and_keeps_what_the_buffers_hold() -> None:
    console = Console(frames_per_life=6, lives=1)
    env = RepeatAction(console)
    env.reset()
    env.step(0)  # frames 3 and 4
    observation, reward, terminated, *_ = env.step(0)  # frames 5 and 6, then over
    assert (int(observation.max()), reward, terminated) == (4, 2.0, True)


def test_c16_five_lives_are_five_ends_and_one_real_reset() -> None:
    console = Console(frames_per_life=10, lives=5)
    env = LifeLossEnds(console)
    env.reset()
    ends = 0
    while ends < 5:
        ended = env.step(2)[2]
        if ended:
            ends += 1
            console.log.append("end")
            if ends < 5:
                env.reset()
                assert console.log[-1] == 0, "one no-op instead of a reset"
    assert console.log.count("reset") == 1
    env.reset()
    assert console.log[-1] == "reset"


def test_c16_no_life_left_ends_nothing_before_the_game_is_over() -> None:
    class Slow(Console):
        """Shows the last picture for three more frames."""

        def step(self, action: Any) -> Any:
            *rest, _, truncated, info = super().step(action)
            return *rest, self.frame == 13, truncated, info

    env = LifeLossEnds(Slow(deaths=(4, 10), lives=2))
    env.reset()
    assert [frame for frame in range(1, 14) if env.step(2)[2]] == [4, 13]


def test_c16_raw_score_comes_with_the_end_of_the_game_only() -> None:
    env = SignOfReward(LifeLossEnds(RecordEpisodeStatistics(Console(frames_per_life=10, lives=3, rewards=(7.0,)))))
    env.reset()
    scores = []
    for _ in range(3):
        terminated = False
        while not terminated:
            _, reward, terminated, _, info = env.step(2)
            assert reward == 1
        scores.append((info.get("episode_continues"), info.get("episode", {}).get("r")))
        assert "episode_continues" not in env.reset()[1]
    assert scores == [(True, None), (True, None), (None, 7.0 * 30)]


@pytest.mark.parametrize(("last_death", "score"), [(11, 77.0), (12, 84.0), (13, 91.0)])
def test_c16_score_of_a_game_that_ends_within_a_reset_is_in_the_info_of_that_reset(
    last_death: int, score: float
) -> None:
    console = Console(lives=2, rewards=(7.0,), deaths=(10, last_death))  # in the no-op, with FIRE, with the next button
    env = FireStart(LifeLossEnds(RecordEpisodeStatistics(console)))
    assert "episode" not in env.reset(seed=0)[1]
    terminated, info = False, dict[str, Any]()
    while not terminated:
        *_, terminated, _, info = env.step(0)
    assert "episode" not in info
    assert info["episode_continues"] is True
    info = env.reset()[1]
    assert (info["episode"]["r"], info["episode_continues"]) == (score, False)
    assert (console.left, console.log.count("reset")) == (2, 2), "the next game has begun"


def test_c14_game_in_which_nobody_acted_has_no_score() -> None:
    console = Console(frames_per_life=3, lives=1)
    env = NoopStart(RecordEpisodeStatistics(console))
    assert all("episode" not in env.reset()[1] for _ in range(20))
    assert console.log.count("reset") > 20


def test_c17_fire_and_the_next_button_after_each_reset() -> None:
    console = Console(frames_per_life=10, lives=2)
    env = FireStart(LifeLossEnds(console))
    env.reset()
    assert console.log == ["reset", 1, 2]
    while not env.step(0)[2]:
        pass
    console.log.clear()
    env.reset()
    assert console.log == [0, 1, 2], "after the loss of a life too"


def test_c17_only_where_there_is_fire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Console, "get_action_meanings", lambda self: ["NOOP", "UP", "DOWN"])
    with pytest.raises(ValueError, match="Action 1 must be FIRE"):
        FireStart(Console())


def test_c18_luminance_of_84_by_84() -> None:
    env = SmallPicture(Console())
    constant = env.observation(np.full((210, 160, 3), 77, np.uint8))
    assert (constant.shape, str(constant.dtype)) == ((84, 84), "uint8")
    assert set(constant.flatten().tolist()) == {77}
    red = np.zeros((210, 160, 3), np.uint8)
    red[..., 0] = 255
    assert set(env.observation(red).flatten().tolist()) == {76}, "0.299 of red"
    half = np.zeros((210, 160, 3), np.uint8)
    half[:104] = 100  # row 41 covers the rows 102.5 to 105
    assert env.observation(half)[40:43].mean(1).tolist() == pytest.approx([100, 60, 0], abs=1), "areas, not samples"


@pytest.mark.parametrize(("reward", "sign"), [(-7.0, -1.0), (0.0, 0.0), (0.2, 1.0)])
def test_c19_sign_of_the_reward(reward: float, sign: float) -> None:
    env = SignOfReward(Console(rewards=(reward,)))
    env.reset()
    assert env.step(0)[1] == sign


def test_c20_frames_after_a_reset_and_after_two_steps() -> None:
    env = LastFrames(SmallPicture(Console()))
    first, _ = env.reset()
    assert first.shape == (4, 84, 84)
    assert first[:, 0, 0].tolist() == [0, 0, 0, 0]
    second = env.step(0)[0]
    third = env.step(0)[0]
    assert third[:, 0, 0].tolist() == [0, 0, 1, 2]
    assert second[:, 0, 0].tolist() == [0, 0, 0, 1], "older observations stay as they were"
    env.reset()
    assert third[:, 0, 0].tolist() == [0, 0, 1, 2]


def test_c20_first_frame_is_there_four_times() -> None:
    console = Console()
    env = LastFrames(SmallPicture(console))
    console.picture = lambda: np.full((210, 160, 3), 7 + console.frame, np.uint8)  # type: ignore[method-assign]
    for _ in range(2):
        assert env.reset()[0][:, 0, 0].tolist() == [7, 7, 7, 7]
        assert env.step(0)[0][:, 0, 0].tolist() == [7, 7, 7, 8]
