"""Whole episodes, many environments at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
import torch

from sf.console import Console
from sf.envs import EnvSource
from sf.envs.batches import make_env_batch
from sf.envs.generators import GlobalGenerators
from sf.envs.scores import Scores
from sf.envs.stepping import NO_ROWS, Ended, EnvBatch, Host
from sf.envs.teams import seating
from sf.envs.vector_stepping import VectorBatch
from sf.envs.vectorization import UnknownMode, choose_vectorization
from sf.errors import EnvCrashed
from sf.policy import Policy, PolicyStep, StepType, TimeStep
from sf.shared.arena import Array
from sf.spaces import ActionBounds, EnvInfo

LONGEST_EPISODE = 27_000
"""Steps after which an evaluation cuts an episode where no other limit is given: that of Atari, 108,000 frames."""
MAX_ENVS = 64
"""That play at once in a process. A step of 64 CartPoles takes 0.7 of the time per sample of one of 32. But the more
there are, the more of them wait at the end for the last one to complete its episodes."""


@dataclass
class Episodes:
    """The episodes of one policy."""

    rewards: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    num_cut: int = 0
    """Episodes that `max_episode_steps` has cut."""
    metrics: list[dict[str, float]] = field(default_factory=list)
    """Numbers of the environment's own of each of them."""
    agents: list[int] = field(default_factory=list)
    """The agent of its environment that each of them belongs to."""
    envs: list[int] = field(default_factory=list)
    """The environment that each of them was played in, counted in its process."""
    games: list[int] = field(default_factory=list)
    """The episode of that environment: agents may end, and come back, before it does."""

    def mean(self, score: str) -> float:
        """Mean of the returns for ``reward``, of the metric NAME for ``env/NAME``; nan if no episode has it."""
        if score == "reward":
            return float(np.mean(self.rewards)) if self.rewards else math.nan
        name = score.removeprefix("env/")
        values = [metrics[name] for metrics in self.metrics if name in metrics]
        return float(np.mean(values)) if values else math.nan


class Play:
    """Episodes of some policies, step by step; the environments serve for one evaluation after the other.

    Each environment plays a number of episodes that is fixed before, because taking the first ones to end anywhere
    would prefer short episodes. Agent a is played by policy a modulo the number of policies, or by that of its team.
    Where there are more policies than seats, each policy has a block of environments in which it comes first.

    An emulator may exist once per process. So if making several environments raises, or resetting them for the first
    time, they are closed and one of them plays all episodes. An exception of that one is raised.
    """

    def __init__(
        self,
        policies: Sequence[Policy],
        source: EnvSource,
        info: EnvInfo,
        num_episodes: int,
        seed: int,
        action_bounds: ActionBounds = "scale",
        max_envs: int = MAX_ENVS,
        host: Host | None = None,
        is_shared: bool = False,
        mapping: str = "by_agent",
    ) -> None:
        """Makes the environments.

        Args:
            policies: by policy id; they act on stored observations and are not checked, see `CollectPolicy`.
            source: makes the environments.
            info: their spaces.
            num_episodes: of one evaluation, in total.
            seed: of the environments and of the actions, the same for each evaluation.
            action_bounds: how Box actions are kept in their bounds.
            max_envs: environments that play at once; only one does where a second one cannot live beside it.
            host: the process in which they live; None where no watchdog looks and nothing stops it.
            is_shared: whether others in this process have to find the global generators as they were.
            mapping: of the run; all but `by_team` give each agent a seat of its own.

        Raises:
            EnvError: an environment cannot be made.
            Stopped: the run ends.
        """
        self.policies, self.num_episodes, self.seed = policies, num_episodes, seed
        self._longest = source.max_episode_steps or math.inf
        self._source, self._info, self._host, self._action_bounds = source, info, host, action_bounds
        self._seats = seating(mapping, info)
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
        self._num_blocks = num_policies if self._seats.max() + 1 < num_policies else 1
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
    policies: Sequence[Policy],
    source: EnvSource,
    info: EnvInfo,
    num_episodes: int,
    seed: int,
    action_bounds: ActionBounds = "scale",
    look: Callable[[Tally, int], object] = lambda _, __: None,
    is_shared: bool = False,
    mapping: str = "by_agent",
) -> list[Episodes]:
    """The episodes of each policy in one evaluation.

    Args:
        policies, source, info, num_episodes, seed, action_bounds, is_shared, mapping: as for `Play`.
        look: is given the tally and the steps of each environment after every step.
    """
    playing = Play(policies, source, info, num_episodes, seed, action_bounds, is_shared=is_shared, mapping=mapping)
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


class Tally:
    """Sums up rewards row by row and keeps the episodes that count."""

    def __init__(
        self,
        num_episodes: int,
        num_envs: int,
        policy_ids: Array,
        num_blocks: int = 1,
        longest: float = math.inf,
    ) -> None:
        """Deals the episodes to the environments.

        Args:
            num_episodes: of each block of environments.
            num_envs: environments of a block.
            policy_ids: [rows] the policy that acts for each row; the rows of an environment lie side by side.
            num_blocks: of environments.
            longest: steps after which episodes are cut.
        """
        self._longest = longest
        self.episodes = [Episodes() for _ in range(int(policy_ids.max()) + 1)]
        self._policy_ids, self._rows_per_env = policy_ids, len(policy_ids) // (num_envs * num_blocks)
        share = [num_episodes // num_envs + (i < num_episodes % num_envs) for i in range(num_envs)]
        self._remaining = np.array(share * num_blocks)
        self._games = np.zeros_like(self._remaining)
        """Episodes of each environment that are over."""
        self._num_wanted = int(self._remaining.sum())
        self._scores = Scores(len(policy_ids))

    @property
    def is_complete(self) -> bool:
        """Whether every environment has played its episodes."""
        return not self._remaining.any()

    @property
    def num_done(self) -> int:
        """Episodes of all environments that have ended and count; one of several agents is one."""
        return self._num_wanted - int(self._remaining.sum())

    def add(self, rewards: Array, ended: Sequence[Ended], fillers: Array = NO_ROWS) -> None:
        """Takes in one step: the rewards of all rows, the rows whose episode it ended, those that it only reset."""
        self._scores.add(rewards)
        self._scores.skip(fillers)
        over = set()
        for end in ended:
            score, env = self._scores.end(end), end.row // self._rows_per_env
            if score is None or not self._remaining[env]:
                continue
            episodes = self.episodes[self._policy_ids[end.row]]
            episodes.rewards.append(score[0])
            episodes.lengths.append(score[1])
            episodes.metrics.append(score[3])
            episodes.agents.append(end.row % self._rows_per_env)
            episodes.envs.append(env)
            episodes.games.append(int(self._games[env]))
            episodes.num_cut += end.truncated and not end.terminated and score[1] >= self._longest
            if end.is_last:
                over.add(env)
        self._remaining[sorted(over)] -= 1
        self._games[sorted(over)] += 1


def _leaves(info: EnvInfo, rows: int) -> dict[str, Array]:
    """Room for one observation of every row."""
    return {name: np.zeros((rows, *leaf.shape), leaf.dtype) for name, leaf in info.observations.items()}
