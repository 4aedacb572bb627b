"""Whole episodes, many environments at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
import torch

from sf.console import Console
from sf.envs import EnvSource
from sf.envs.batches import make_env_batch
from sf.envs.generators import GlobalGenerators
from sf.envs.stepping import EnvBatch, Host
from sf.envs.vector_stepping import VectorBatch
from sf.envs.vectorization import OtherSpaces, UnknownMode, choose_vectorization
from sf.errors import EnvCrashed
from sf.evaluator.cast import Cast
from sf.evaluator.tally import Episodes, Tally
from sf.policy import PolicyStep, StepType, TimeStep
from sf.shared.arena import Array
from sf.spaces import EnvInfo

LONGEST_EPISODE = 27_000
"""Steps after which an evaluation cuts an episode where no other limit is given: that of Atari, 108,000 frames."""
MAX_ENVS = 64
"""That play at once in a process. A step of 64 CartPoles takes 0.7 of the time per sample of one of 32. But the more
there are, the more of them wait at the end for the last one to complete its episodes."""


class Play:
    """Episodes of a cast, step by step; the environments serve for one evaluation after the other.

    Each environment plays a number of episodes that is fixed before, because taking the first ones to end anywhere
    would prefer short episodes. Where policies have no agent in the seats of the cast, each policy has a block of
    environments in which it comes first.

    An emulator may exist once per process. So if making several environments raises, or resetting them for the first
    time, they are closed and one of them plays all episodes. An exception of that one is raised.
    """

    def __init__(
        self,
        cast: Cast,
        source: EnvSource,
        info: EnvInfo,
        num_episodes: int,
        seed: int,
        max_envs: int = MAX_ENVS,
        host: Host | None = None,
        is_shared: bool = False,
    ) -> None:
        """Makes the environments.

        Args:
            cast: the policies.
            source: makes the environments.
            info: their spaces.
            num_episodes: of one evaluation, in total.
            seed: of the environments and of the actions, the same for each evaluation.
            max_envs: environments that play at once; only one does where a second one cannot live beside it.
            host: the process in which they live; None where no watchdog looks and nothing stops it.
            is_shared: whether others in this process have to find the global generators as they were.

        Raises:
            EnvError: an environment cannot be made.
            Stopped: the run ends.
        """
        self.policies, self.num_episodes, self.seed = cast.policies, num_episodes, seed
        self._longest = source.max_episode_steps or math.inf
        self._source, self._info, self._host, self._action_bounds = source, info, host, cast.action_bounds
        self._seats, self._num_blocks = cast.seats(info), cast.num_blocks(info)
        self._open = ExitStack()
        """Closes the environments."""
        self.num_envs, self._was_reset = min(num_episodes, max_envs), False
        self._globals = GlobalGenerators([seed], is_shared)
        with self._globals:
            try:
                self._make()
            except EnvCrashed as crash:
                self._make_only_one(crash)
        self._generator = torch.Generator()
        self.tally: Tally
        self.last_step = PolicyStep(())
        """The last choice of the first policy; a film shows it beside the picture."""

    def _make(self) -> None:
        """`num_envs` environments for each block, and room for what they show."""
        source, info, num_envs, num_policies = self._source, self._info, self.num_envs, len(self.policies)
        num_envs *= self._num_blocks
        rows = num_envs * info.num_agents
        self._observations, self._rewards = _leaves(info, rows), np.zeros(rows, np.float32)
        self._actions = np.zeros((rows, *info.action.shape), info.action.dtype)
        self._step_types = np.zeros(rows, np.int32)
        seeds = [int(word) for word in np.random.SeedSequence(self.seed).generate_state(num_envs) % 2**31]
        final = _leaves(info, rows), np.zeros(rows, bool)
        arguments = source, info, seeds, *final, self._action_bounds, self._host or Host()
        as_one = choose_vectorization("auto", source, info, num_envs)[0] == "native"
        self._envs: EnvBatch
        try:
            self._envs = (VectorBatch if as_one else make_env_batch)(*arguments)
        except OtherSpaces:  # single ones say what the policy needs, or are like it
            self._envs = make_env_batch(*arguments)
        except UnknownMode:
            Console().line(
                f"Single environments play, because the metadata of the vectorized {info.env_id} do not say which step "
                "begins the next episode."
            )
            self._envs = make_env_batch(*arguments)
        self._open.callback(self._envs.close)
        block = np.arange(rows) // info.num_agents // self.num_envs
        self._policy_ids = (np.tile(self._seats, num_envs) + block) % num_policies
        self._rows = [np.flatnonzero(self._policy_ids == policy_id) for policy_id in range(num_policies)]
        pairs = zip(self.policies, self._rows, strict=True)
        self._memories = [policy.get_initial_state(len(own)) for policy, own in pairs]

    def _make_only_one(self, crash: EnvCrashed) -> None:
        """In place of several that have raised; raises the error again if there was only one."""
        if self.num_envs == 1:
            raise crash
        self._open.close()
        cause = str(crash).rpartition("\n")[2]  # of its stack
        Console().line(
            f"{self._info.env_id} plays in one environment at a time, because {self.num_envs} in one process could "
            f"not begin: {cause}"
        )
        self.num_envs = 1
        self._make()

    def start(self) -> None:
        """Begins an evaluation.

        Raises:
            EnvError: an environment raises in `reset`, or returns something else than it should.
            Stopped: the run ends.
        """
        self._globals.seed()
        with self._globals:
            self._reset()
        self._was_reset = True
        self._generator.manual_seed(self.seed)
        self._step_types[:] = StepType.FIRST  # so that the policies forget what was before
        self.tally = Tally(self.num_episodes, self.num_envs, self._policy_ids, self._num_blocks, self._longest)

    def _reset(self) -> None:
        try:
            self._envs.reset(self._observations)
        except EnvCrashed as crash:
            if self._was_reset:
                raise
            self._make_only_one(crash)
            self._envs.reset(self._observations)

    def step(self) -> None:
        """One step of every environment."""
        for index, (policy, own) in enumerate(zip(self.policies, self._rows, strict=True)):
            seen = {name: torch.from_numpy(array[own]) for name, array in self._observations.items()}
            time_step = TimeStep(torch.from_numpy(self._step_types[own]), (), (), seen)
            step = policy.action(time_step, self._memories[index], self._generator)
            if index == 0:
                self.last_step = step
            self._actions[own], self._memories[index] = step.action.numpy(), step.state
        with self._globals:
            ended = self._envs.step(self._actions, self._observations, self._rewards)
        self._step_types[:] = StepType.MID
        self._step_types[[end.row for end in ended]] = StepType.FIRST
        self._step_types[self._envs.fillers] = StepType.FIRST
        self.tally.add(self._envs.last_rewards, ended, self._envs.fillers)

    def close(self) -> None:
        """Closes the environments."""
        self._open.close()


def play(
    cast: Cast,
    source: EnvSource,
    info: EnvInfo,
    num_episodes: int,
    seed: int,
    look: Callable[[Tally, int], object] = lambda _, __: None,
    is_shared: bool = False,
) -> list[Episodes]:
    """The episodes of each policy in one evaluation.

    Args:
        cast, source, info, num_episodes, seed, is_shared: as for `Play`.
        look: is given the tally and the steps of each environment after every step.
    """
    playing = Play(cast, source, info, num_episodes, seed, is_shared=is_shared)
    steps = 0
    try:
        playing.start()
        while not playing.tally.is_complete:
            playing.step()
            steps += 1
            look(playing.tally, steps)
    finally:
        playing.close()
    return playing.tally.episodes


def _leaves(info: EnvInfo, rows: int) -> dict[str, Array]:
    """Room for one observation of every row."""
    return {name: np.zeros((rows, *leaf.shape), leaf.dtype) for name, leaf in info.observations.items()}
