"""Atari games, ``atari/Pong``: ale-py without sticky actions and with the usual wrappers."""

from __future__ import annotations

from typing import Any

from sf_envs.members import unknown_member


def make(
    game: str,
    frame_stack: int = 4,
    frame_skip: int = 4,
    noop_max: int = 30,
    episodic_life: bool = True,
    clip_rewards: bool = True,
    sticky: float = 0.0,
    full_action_space: bool = False,
    render_mode: str | None = None,
    max_episode_steps: int | None = None,
) -> Any:
    """A game as a `gymnasium.Env` with observations [frame_stack, 84, 84] uint8.

    info["episode"] holds the raw score of a whole game and its length in frames, at the end of the game only.

    Args:
        game: name in CamelCase, such as Pong or BeamRider.
        frame_stack: frames in an observation.
        frame_skip: frames that an action lasts.
        noop_max: largest number of frames without an action at the start of a game; 0 for none.
        episodic_life: whether the loss of a life ends an episode for learning.
        clip_rewards: whether rewards are replaced by their sign.
        sticky: probability that the console repeats the last action instead.
        full_action_space: all 18 actions instead of those of the game.
        render_mode: of Gymnasium.
        max_episode_steps: limit of a whole game in steps of `frame_skip` frames; None for that of the console only.
            Frames that pass within resets count as well.

    Raises:
        EnvError: there is no such game.
        ImportError: ale-py or opencv is missing.
    """
    import ale_py
    import cv2  # noqa: F401  # say at once that it is missing
    import gymnasium
    from gymnasium.wrappers import RecordEpisodeStatistics

    from sf_envs import atari_wrappers as wrappers

    gymnasium.register_envs(ale_py)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner for every game of every process
    env_id = f"ALE/{game}-v5"
    if env_id not in gymnasium.registry:
        games = [known[len("ALE/") : -len("-v5")] for known in gymnasium.registry if known.startswith("ALE/")]
        raise unknown_member("atari", "Atari game", game, games)
    # With these arguments the game is that of the old id <Game>NoFrameskip-v4, which not every game has.
    arguments: dict[str, Any] = {
        "obs_type": "ram",  # 128 bytes: the wrapper that repeats actions reads the pictures that it needs
        "frameskip": 1,
        "repeat_action_probability": sticky,
        "full_action_space": full_action_space,
    }
    # Below the statistics, so that a game that is cut has a raw score, and below the loss of a life, so that it ends.
    max_frames = None if max_episode_steps is None else max_episode_steps * frame_skip
    env: Any = gymnasium.make(
        env_id, max_episode_steps=max_frames, disable_env_checker=True, render_mode=render_mode, **arguments
    )
    env = RecordEpisodeStatistics(env)
    if noop_max:
        env = wrappers.NoopStart(env, noop_max)
    env = wrappers.RepeatAction(env, frame_skip)
    if episodic_life:
        env = wrappers.LifeLossEnds(env)
    if "FIRE" in wrappers.action_meanings(env):
        env = wrappers.FireStart(env)
    env = wrappers.SmallPicture(env)
    if clip_rewards:
        env = wrappers.SignOfReward(env)
    return wrappers.LastFrames(env, frame_stack)
