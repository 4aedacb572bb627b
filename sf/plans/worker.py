"""Workers that evaluate policies: the local one, which learns, and remote ones, which sample (rows D11 to D13).

Both collect fragments with the roles of `sf`; see `sf.plans.fragments`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sf.plans.agents import environment_of
from sf.plans.episode import PlanEpisode, postprocessed
from sf.plans.fragments import Fragments
from sf.plans.generators import OneThread, OwnGenerators
from sf.plans.policy import PlanPolicy
from sf.plans.policy_map import Batch, PolicyMap, as_batch
from sf.plans.sample_batch import MultiAgentBatch, SampleBatch
from sf.shared.records import Episode

WHOLE, PARTS = "complete_episodes", "truncate_episodes"


class TeamEpisodes:
    """Returns of the episodes of several agents, by policy and of all agents together, from the rewards in batches."""

    def __init__(self, num_agents: int, worker: int = 0, num_envs: int = 1) -> None:
        """Nothing has been added; a worker has so many environments, and each of them so many agents."""
        self._num_agents, self._worker, self._num_envs = num_agents, worker, num_envs
        self._sums: dict[tuple[int, int], tuple[float, int]] = {}
        """Return and steps so far, by episode and agent."""
        self._over: dict[int, list[tuple[str, float, int]]] = {}
        """Policy, return and length of the agents that have ended, by episode."""
        self._ended: list[TeamEpisode] = []

    def add(self, batch: Batch) -> None:
        """Takes in the trajectories of a fragment; see `WholeEpisodes.add` for those that are forgotten."""
        seen = set()
        for name, own in batch.policy_batches.items():
            starts = trajectory_starts(own)
            sums = np.add.reduceat(np.asarray(own["rewards"], np.float64), starts)
            ends = [*(starts[1:] - 1), own.count - 1]
            for start, end, total in zip(starts.tolist(), ends, sums.tolist(), strict=True):
                key = int(own["eps_id"][start]), int(own["agent_index"][start])
                seen.add(key[0])
                before, length = self._sums.pop(key, (0.0, 0))
                if length != own["t"][start]:
                    continue
                so_far = before + total, length + int(end) - start + 1
                if own["dones"][end]:
                    self._end(key[0], name, *so_far)
                else:
                    self._sums[key] = so_far
        self._sums = {key: so_far for key, so_far in self._sums.items() if key[0] in seen}
        self._over = {episode: over for episode, over in self._over.items() if episode in seen}

    @property
    def num_unfinished(self) -> int:
        """Agents and episodes of which something is kept."""
        return len(self._sums) + len(self._over)

    def take(self) -> list[TeamEpisode]:
        """Those that have ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def _end(self, episode: int, policy: str, total: float, length: int) -> None:
        over = self._over.setdefault(episode, [])
        over.append((policy, total, length))
        if len(over) == self._num_agents:
            agents = self._over.pop(episode)
            row = self._worker * self._num_envs + environment_of(episode, self._num_envs)
            total, length = sum(one[1] for one in agents), max(one[2] for one in agents)
            self._ended.append(TeamEpisode(total, length, [one[:2] for one in agents], row))


class TeamEpisode(NamedTuple):
    """An episode of all agents of an environment."""

    reward: float
    """The sum over all of them."""
    length: int
    """Steps of the one that went on longest."""
    by_policy: list[tuple[str, float]]
    """Policy and return of each agent."""
    row: int = 0
    """The environment among all of the plan."""


class FragmentSampler:
    """The batches of one worker, out of its fragments."""

    def __init__(self, fragments: Fragments, worker: int, policies: PolicyMap, settings: Mapping[str, Any]) -> None:
        """Asks for nothing yet.

        Args:
            fragments: of all workers.
            worker: which one.
            policies: of the driver, for postprocessing whole episodes.
            settings: ``batch_mode``, ``rollout_fragment_length`` and ``num_envs_per_worker``.
        """
        self.fragments, self.worker, self._names = fragments, worker, list(policies.policy_map)
        self._rows = settings["rollout_fragment_length"] * settings["num_envs_per_worker"]
        num_agents = fragments.wired.info.num_agents
        self.episodes = WholeEpisodes(policies, num_agents) if settings["batch_mode"] == WHOLE else None
        envs = settings["num_envs_per_worker"]
        self.team = TeamEpisodes(num_agents, worker, envs) if num_agents > 1 else None

    def ask(self) -> None:
        """For a batch more."""
        self.fragments.ask(self.worker)

    def take(self) -> Batch | None:
        """The next batch, of which a fragment is full; None, and asks for another one, where that is not enough."""
        columns = self.fragments.take(self.worker)
        batch: Batch | None = as_batch(columns, self._names, self.fragments.wired.info.num_agents)
        assert batch is not None
        if self.team is not None:
            self.team.add(batch)
        if self.episodes is not None:
            self.episodes.add(batch)
            if (batch := self.episodes.take(self._rows)) is None:
                self.ask()
        return batch

    def wait(self) -> Batch:
        """The next batch, that was asked for."""
        while True:
            self.fragments.wait({self.worker})
            if (batch := self.take()) is not None:
                return batch


class PlanWorker(PolicyMap):
    """The local worker: evaluates the policies in this process, and learns."""

    def __init__(
        self,
        policies: Mapping[str, PlanPolicy],
        make_fragments: Callable[[], Fragments],
        settings: Mapping[str, Any],
        policies_to_train: Sequence[str] | None = None,
    ) -> None:
        """Makes no environment yet.

        Args:
            policies: by name.
            make_fragments: makes the environments, with one worker; called with the first sample.
            settings: see `FragmentSampler`.
            policies_to_train: names; None for all.
        """
        super().__init__(policies, policies_to_train)
        self._make_fragments, self._settings = make_fragments, settings
        self._sampler: FragmentSampler | None = None
        self._generators = OwnGenerators()
        """Generators for sampling: those of the program stay as they are."""

    def sample(self) -> Any:
        """Fragment length times number of environments rows, or whole episodes with as many rows at least."""
        with self._generators, OneThread():
            if self._sampler is None:
                self._sampler = FragmentSampler(self._make_fragments(), 0, self, self._settings)
            self._sampler.fragments.publish({}, self.num_steps)  # its policies are those of this worker
            self._sampler.ask()
            return self._sampler.wait()

    def apply(self, func: Callable[[Any], Any]) -> Any:
        """What the function returns for this worker."""
        return func(self)

    def new_episodes(self) -> list[Episode | TeamEpisode]:
        """Those that have ended since the last call."""
        return [] if self._sampler is None else episodes_of([self._sampler])

    def stop(self) -> None:
        """Closes the environments."""
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.fragments.close()


def episodes_of(samplers: Sequence[FragmentSampler]) -> list[Episode | TeamEpisode]:
    """Those of all workers that have ended since the last call."""
    if samplers and samplers[0].team is None:
        return list(samplers[0].fragments.new_episodes())
    return [episode for sampler in samplers if sampler.team is not None for episode in sampler.team.take()]


class RemoteWorker:
    """One of the worker processes."""

    def __init__(self, sampler: FragmentSampler, workers: Any) -> None:
        """Keeps a sampler of remote fragments, and a `WorkerSet`."""
        self.sampler, self.index, self.workers = sampler, sampler.worker, workers
        self.remote = Remote(sampler)
        """Methods that return at once."""

    def sample(self) -> Any:
        """As that of the local worker."""
        return self.remote.sample().result()

    def apply(self, func: Callable[[Any], Any]) -> Any:
        """What the function returns in that process, where it gets the policies as a `PolicyMap`."""
        return self.sampler.fragments.call([self.index], func)[0]

    def get_weights(self, policies: Sequence[str] | None = None) -> dict[str, Any]:
        """Weights of all policies in that process, or of some."""
        weights: dict[str, Any] = self.apply(lambda worker: worker.get_weights(policies))
        return weights

    def set_weights(self, weights: Mapping[str, Any], global_vars: Mapping[str, Any] | None = None) -> None:
        """Sets weights of the named policies in that process, until weights are pushed to it."""
        self.apply(lambda worker: worker.set_weights(weights, global_vars))

    def __repr__(self) -> str:
        return f"RemoteWorker({self.index})"


class Remote:
    """Methods of a remote worker that return futures."""

    def __init__(self, sampler: FragmentSampler) -> None:
        self._sampler = sampler

    def sample(self) -> FutureBatch:
        """Begins to sample."""
        self._sampler.ask()
        return FutureBatch(self._sampler)


class FutureBatch:
    """A batch that is being sampled; those of one worker are taken in the order in which they were asked for."""

    def __init__(self, sampler: FragmentSampler) -> None:
        self._sampler = sampler
        self._batch: Batch | None = None

    def result(self) -> Any:
        """Waits for it."""
        if self._batch is None:
            self._batch = self._sampler.wait()
        return self._batch


class WholeEpisodes:
    """Puts the episodes of fragments together, for ``complete_episodes``."""

    def __init__(self, policies: PolicyMap, num_agents: int) -> None:
        """Has nothing; an episode is whole when so many agents have ended it."""
        self._policies, self._num_agents = policies, num_agents
        self._parts: dict[tuple[str, int, int], list[SampleBatch]] = {}
        """By policy, episode and agent."""
        self._ended: dict[int, list[tuple[str, SampleBatch]]] = {}
        """Agents that have ended, by episode."""
        self._whole: list[list[tuple[str, SampleBatch]]] = []

    def add(self, fragment: Batch) -> None:
        """Takes in the trajectories of a fragment, of which some end.

        An episode that goes on is in each fragment. So those that are not in this one belong to a worker that has died,
        and one of which a part is missing went on in a fragment that was dropped. Both are forgotten.
        """
        seen = set()
        for name, batch in fragment.policy_batches.items():
            for part in _trajectories(batch):
                episode = int(part["eps_id"][0])
                key = name, episode, int(part["agent_index"][0])
                seen.add(episode)
                parts = self._parts.pop(key, [])
                if sum(each.count for each in parts) != part["t"][0]:
                    continue
                parts.append(part)
                if not part["dones"][-1]:
                    self._parts[key] = parts
                    continue
                ended = self._ended.setdefault(episode, [])
                ended.append((name, SampleBatch.concat_samples(parts)))
                if len(ended) == self._num_agents:
                    self._whole.append(self._postprocessed(episode, self._ended.pop(episode)))
        self._parts = {key: parts for key, parts in self._parts.items() if key[1] in seen}
        self._ended = {episode: ended for episode, ended in self._ended.items() if episode in seen}

    @property
    def num_unfinished(self) -> int:
        """Agents and episodes of which something is kept."""
        return len(self._parts) + len(self._ended)

    def _postprocessed(
        self, episode_id: int, ended: Sequence[tuple[str, SampleBatch]]
    ) -> list[tuple[str, SampleBatch]]:
        """All agents of an episode, which see the steps of each other."""
        episode, agents = PlanEpisode(episode_id), {}
        for name, batch in ended:
            agent = int(dict.__getitem__(batch, "agent_index")[0])
            agents[agent] = self._policies.get_policy(name), batch
            episode.add(agent, name, batch)
        return [(name, postprocessed(agents, agent, episode)) for (name, _), agent in zip(ended, agents, strict=True)]

    def take(self, steps: int) -> Batch | None:
        """The oldest whole episodes, as many as have so many steps together; None where there are fewer."""
        lengths = [max(batch.count for _, batch in agents) for agents in self._whole]
        enough = np.flatnonzero(np.cumsum(lengths) >= steps)
        if not len(enough):
            return None
        taken, self._whole = self._whole[: enough[0] + 1], self._whole[enough[0] + 1 :]
        batches: dict[str, list[SampleBatch]] = {}
        for agents in taken:
            for name, batch in agents:
                batches.setdefault(name, []).append(batch)
        together = {name: SampleBatch.concat_samples(own) for name, own in batches.items()}
        env_steps = sum(lengths[: enough[0] + 1])
        return MultiAgentBatch.wrap_as_needed(together, env_steps, self._policies.policy_map)


def _trajectories(batch: SampleBatch) -> list[SampleBatch]:
    """Parts of one agent in one episode."""
    edges = [*trajectory_starts(batch).tolist(), batch.count]
    return [batch.slice(start, end) for start, end in itertools.pairwise(edges)]


def trajectory_starts(batch: SampleBatch) -> np.ndarray[Any, Any]:
    """[n] the first rows of the parts of one agent in one episode."""
    episodes, agents = batch["eps_id"], batch["agent_index"]
    changes = (episodes[1:] != episodes[:-1]) | (agents[1:] != agents[:-1])
    return np.concatenate([[0], np.flatnonzero(changes) + 1])
