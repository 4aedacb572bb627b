"""Workers that evaluate policies: the local one, which learns, and remote ones, which sample (rows D11 to D13).

Both collect fragments with the roles of `sf`; see `sf.plans.fragments`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sf.envs.generators import GlobalGenerators
from sf.nets.threads import one_thread
from sf.plans.agents import environment_of
from sf.plans.episode import PlanEpisode, postprocessed
from sf.plans.fragments import Fragments, LocalFragments
from sf.plans.minibatches import sequence_starts
from sf.plans.policy_map import Batch, PolicyMap, as_batch
from sf.plans.program import Program
from sf.plans.sample_batch import MultiAgentBatch, SampleBatch
from sf.plans.wiring import wire_alone
from sf.shared.episodes import Episode

WHOLE, PARTS = "complete_episodes", "truncate_episodes"
SAMPLING = 0x73616D70
"""The last word of the entropy of local samples, apart from that of the program; "samp" in bytes."""


class OpenEpisodes:
    """Follows the agents of each episode through the fragments of a worker, until the last of them has ended it."""

    def __init__(self, num_agents: int) -> None:
        """Nothing has been added; each environment has so many agents."""
        self._num_agents = num_agents
        self._parts: dict[tuple[int, int], list[tuple[int, Any]]] = {}
        """Lengths and parts so far, by episode and agent."""
        self._ended: dict[int, list[Ended]] = {}
        """Agents that have ended, by episode."""

    def add(self, fragment: Batch) -> None:
        """Takes in the trajectories of a fragment, of which some end.

        An episode that goes on is in each fragment. So those that are not in this one belong to a worker that has died,
        and one of which a part is missing went on in a fragment that was dropped. Both are forgotten.
        """
        seen = set()
        for name, batch in fragment.policy_batches.items():
            for start, stop in itertools.pairwise([*sequence_starts(batch).tolist(), batch.count]):
                key = episode, _ = int(batch["eps_id"][start]), int(batch["agent_index"][start])
                seen.add(episode)
                parts = self._parts.pop(key, [])
                if sum(length for length, _ in parts) != batch["t"][start]:
                    continue
                parts.append((stop - start, self.part_of(batch, start, stop)))
                if not batch["dones"][stop - 1]:
                    self._parts[key] = parts
                    continue
                agents = self._ended.setdefault(episode, [])
                agents.append((name, *map(list, zip(*parts, strict=True))))  # type: ignore[arg-type]  # both lists
                if len(agents) == self._num_agents:
                    self.finish(episode, self._ended.pop(episode))
        self._parts = {key: parts for key, parts in self._parts.items() if key[0] in seen}
        self._ended = {episode: agents for episode, agents in self._ended.items() if episode in seen}

    @property
    def num_unfinished(self) -> int:
        """Agents and episodes of which something is kept."""
        return len(self._parts) + len(self._ended)

    def part_of(self, batch: SampleBatch, start: int, stop: int) -> Any:
        """What is kept of some steps of an agent."""
        raise NotImplementedError

    def finish(self, episode: int, agents: list[Ended]) -> None:
        """Takes in an episode that all of its agents have ended."""
        raise NotImplementedError


Ended = tuple[str, list[int], list[Any]]
"""Policy of an agent, and lengths and parts of its steps."""


class TeamEpisodes(OpenEpisodes):
    """Returns of the episodes of several agents, by policy and of all agents together, from the rewards in batches."""

    def __init__(self, num_agents: int, worker: int = 0, num_envs: int = 1) -> None:
        """See `OpenEpisodes`; a worker has so many environments."""
        super().__init__(num_agents)
        self._worker, self._num_envs = worker, num_envs
        self._whole: list[TeamEpisode] = []

    def part_of(self, batch: SampleBatch, start: int, stop: int) -> float:
        """See `OpenEpisodes`: the sum of the rewards."""
        return float(batch["rewards"][start:stop].sum(dtype=np.float64))

    def finish(self, episode: int, agents: list[Ended]) -> None:
        """See `OpenEpisodes`."""
        row = self._worker * self._num_envs + environment_of(episode, self._num_envs)
        by_policy = [(name, float(sum(parts))) for name, _, parts in agents]
        length = max(sum(lengths) for _, lengths, _ in agents)
        self._whole.append(TeamEpisode(sum(total for _, total in by_policy), length, by_policy, row))

    def take(self) -> list[TeamEpisode]:
        """Those that have ended since the last call."""
        ended, self._whole = self._whole, []
        return ended


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
    """Evaluates the policies of a plan in this process: the local worker learns, those of other processes sample."""

    worker_index: int
    """The number of a worker in another process, counted from 0; the local one has none."""

    def __init__(self, program: Program) -> None:
        """Builds the policies of the program, and makes no environment yet."""
        super().__init__({name: spec.build() for name, spec in program.policies.items()}, program.policies_to_train)
        self._program = program
        self._sampler: FragmentSampler | None = None
        entropy: Any = np.random.SeedSequence(program.settings["seed"]).entropy
        self._generators = GlobalGenerators([entropy, SAMPLING], is_shared=True)
        """Generators for sampling: those of the program stay as they are."""

    @classmethod
    def elsewhere(cls, program: Program, index: int, seed: int) -> PlanWorker:
        """What functions of a plan see of the worker that they run in; its samples have environments of their own.

        Args:
            program: of the worker.
            index: of it.
            seed: of all workers.
        """
        own_seed = int(np.random.SeedSequence([seed, index, SAMPLING]).generate_state(1)[0])
        worker = cls(replace(program, settings={**program.settings, "seed": own_seed}))
        worker.worker_index = index
        return worker

    def sample(self) -> Any:
        """Fragment length times number of environments rows, or whole episodes with as many rows at least."""
        with self._generators, one_thread():
            if self._sampler is None:
                fragments = LocalFragments(wire_alone(self._program, self))
                self._sampler = FragmentSampler(fragments, 0, self, self._program.settings)
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


class WholeEpisodes(OpenEpisodes):
    """Puts the episodes of fragments together, for ``complete_episodes``."""

    def __init__(self, policies: PolicyMap, num_agents: int) -> None:
        """See `OpenEpisodes`."""
        super().__init__(num_agents)
        self._policies = policies
        self._whole: list[list[tuple[str, SampleBatch]]] = []

    def part_of(self, batch: SampleBatch, start: int, stop: int) -> SampleBatch:
        """See `OpenEpisodes`: the steps."""
        return batch.slice(start, stop)

    def finish(self, episode: int, agents: list[Ended]) -> None:
        """See `OpenEpisodes`; the agents see the steps of each other."""
        told, by_agent = PlanEpisode(episode), {}
        for name, _, parts in agents:
            batch = SampleBatch.concat_samples(parts)
            agent = int(dict.__getitem__(batch, "agent_index")[0])
            by_agent[agent] = self._policies.get_policy(name), batch
            told.add(agent, name, batch)
        names = [name for name, *_ in agents]
        self._whole.append(
            [(name, postprocessed(by_agent, agent, told)) for name, agent in zip(names, by_agent, strict=True)]
        )

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
