"""Workers that evaluate policies: the local one, which learns, and remote ones, which sample (rows D11 to D13).

Both collect fragments with the roles of `sf`; see `sf.plans.fragments`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from sf.envs.generators import GlobalGenerators
from sf.errors import UsageError
from sf.nets.threads import one_thread
from sf.plans.episode import PlanEpisode, postprocessed
from sf.plans.fragments import Fragments, LocalFragments
from sf.plans.minibatches import sequence_starts
from sf.plans.policy_map import PolicyMap
from sf.plans.program import Program, unpacked
from sf.plans.sample_batch import Batch, MultiAgentBatch, SampleBatch
from sf.plans.wiring import wire_workers
from sf.shared.episodes import Episode

WHOLE, PARTS = "complete_episodes", "truncate_episodes"
SAMPLING = 0x73616D70
"""The last word of the entropy of local samples, apart from that of the program; "samp" in bytes."""


class AgentEpisode(NamedTuple):
    """All steps of an agent in an episode."""

    policy: str
    agent: int
    steps: SampleBatch


class OpenEpisodes:
    """Follows the agents of each episode through the fragments of a worker, until the last of them has ended it."""

    def __init__(self, num_agents: int, columns: Sequence[str] | None = None) -> None:
        """Nothing has been added; each environment has so many agents. Keeps these columns, or all."""
        self._num_agents, self._columns = num_agents, columns
        self._parts: dict[tuple[int, int], list[SampleBatch]] = {}
        """Steps so far, by episode and agent."""
        self._ended: dict[int, list[AgentEpisode]] = {}
        """Agents that have ended, by episode."""

    def add(self, fragment: Batch) -> list[tuple[int, list[AgentEpisode]]]:
        """Takes in the trajectories of a fragment; returns the episodes that all of their agents have ended.

        An episode that goes on is in each fragment. So those that are not in this one belong to a worker that has died,
        and one of which a part is missing went on in a fragment that was dropped. Both are forgotten.
        """
        seen, whole = set(), []
        for name, batch in fragment.policy_batches.items():
            kept = batch if self._columns is None else SampleBatch({key: batch[key] for key in self._columns})
            for start, stop in itertools.pairwise([*sequence_starts(batch).tolist(), batch.count]):
                key = episode, agent = int(batch["eps_id"][start]), int(batch["agent_index"][start])
                seen.add(episode)
                parts = self._parts.pop(key, [])
                if sum(part.count for part in parts) != batch["t"][start]:
                    continue
                parts.append(kept.slice(start, stop))
                if not batch["dones"][stop - 1]:
                    self._parts[key] = parts
                    continue
                agents = self._ended.setdefault(episode, [])
                agents.append(AgentEpisode(name, agent, SampleBatch.concat_samples(parts)))
                if len(agents) == self._num_agents:
                    whole.append((episode, self._ended.pop(episode)))
        self._parts = {key: parts for key, parts in self._parts.items() if key[0] in seen}
        self._ended = {episode: agents for episode, agents in self._ended.items() if episode in seen}
        return whole

    @property
    def num_unfinished(self) -> int:
        """Agents and episodes of which something is kept."""
        return len(self._parts) + len(self._ended)


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

    @classmethod
    def of(cls, agents: Sequence[AgentEpisode], row: int) -> TeamEpisode:
        """From the rewards of all agents."""
        by_policy = [(each.policy, float(each.steps["rewards"].sum(dtype=np.float64))) for each in agents]
        return cls(sum(total for _, total in by_policy), max(each.steps.count for each in agents), by_policy, row)


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
        self.fragments, self.worker, self._policies = fragments, worker, policies
        self._rows = settings["rollout_fragment_length"] * settings["num_envs_per_worker"]
        num_agents = fragments.wired.info.num_agents
        self._is_whole, self.is_team = settings["batch_mode"] == WHOLE, num_agents > 1
        self.episodes = OpenEpisodes(num_agents)
        self._whole: list[list[AgentEpisode]] = []
        """Those that are not in a batch yet, after postprocessing."""
        self._team: list[TeamEpisode] = []

    def ask(self) -> None:
        """For a batch more."""
        self.fragments.ask(self.worker)

    def take(self) -> list[Any]:
        """The next batch, or what orders have made of it, where a fragment is full; asks for another one if nothing."""
        teams, items = self.fragments.take(self.worker)
        self._team += teams
        if self._is_whole:
            for number, agents in itertools.chain.from_iterable(map(self.episodes.add, items)):
                self._whole.append(self._postprocessed(number, agents))
            items = self._whole_episodes()
        if not items:
            self.ask()
        return items

    def take_team(self) -> list[TeamEpisode]:
        """Episodes of several agents that have ended since the last call."""
        ended, self._team = self._team, []
        return ended

    def _postprocessed(self, number: int, agents: Sequence[AgentEpisode]) -> list[AgentEpisode]:
        """A whole episode, whose agents see the steps of each other."""
        told, by_agent = PlanEpisode(number), {}
        for name, agent, steps in agents:
            by_agent[agent] = self._policies.get_policy(name), steps
            told.add(agent, name, steps)
        return [each._replace(steps=postprocessed(by_agent, each.agent, told)) for each in agents]

    def _whole_episodes(self) -> list[Batch]:
        """A batch of the oldest ones, as many as have enough steps together; none where there are fewer."""
        lengths = [max(each.steps.count for each in agents) for agents in self._whole]
        enough = np.flatnonzero(np.cumsum(lengths) >= self._rows)
        if not len(enough):
            return []
        taken, self._whole = self._whole[: enough[0] + 1], self._whole[enough[0] + 1 :]
        batches: dict[str, list[SampleBatch]] = {}
        for each in itertools.chain(*taken):
            batches.setdefault(each.policy, []).append(each.steps)
        together = {name: SampleBatch.concat_samples(own) for name, own in batches.items()}
        return [MultiAgentBatch.wrap_as_needed(together, sum(lengths[: enough[0] + 1]), self._policies.policy_map)]

    def wait(self) -> Batch:
        """The next batch, that was asked for.

        Raises:
            UsageError: functions of an iterator make something else of it.
        """
        while True:
            self.fragments.wait({self.worker})
            if items := self.take():
                break
        (batch,) = items if len(items) == 1 else (None,)
        if not isinstance(batch, Batch):
            raise UsageError("An iterator with functions reads these remote workers. Close it before you sample.")
        return batch


class PlanWorker(PolicyMap):
    """Evaluates the policies of a plan in this process: the local worker learns, those of other processes sample."""

    worker_index: int
    """The number of a worker in another process, counted from 0; the local one has none."""

    def __init__(self, program: Program) -> None:
        """Builds the policies of the program, and makes no environment yet."""
        super().__init__({name: spec.build() for name, spec in program.policies.items()}, program.policies_to_train)
        self.program = program
        self._sampler: FragmentSampler | None = None
        entropy: Any = np.random.SeedSequence(program.settings["seed"]).entropy
        self._generators = GlobalGenerators([entropy, SAMPLING], is_shared=True)
        """Generators for sampling: those of the program stay as they are."""

    @classmethod
    def elsewhere(cls, packed: bytes, index: int, seed: int) -> PlanWorker:
        """What functions of a plan see of the worker that they run in; its samples have environments of their own.

        Args:
            packed: program of the worker.
            index: of it.
            seed: of all workers.
        """
        program = unpacked(packed)
        own_seed = int(np.random.SeedSequence([seed, index, SAMPLING]).generate_state(1)[0])
        worker = cls(replace(program, settings={**program.settings, "seed": own_seed}))
        worker.worker_index = index
        return worker

    def sample(self) -> Any:
        """Fragment length times number of environments rows, or whole episodes with as many rows at least."""
        with self._generators, one_thread():
            if self._sampler is None:
                fragments = LocalFragments(wire_workers(self, 1, in_process=True))
                self._sampler = FragmentSampler(fragments, 0, self, self.program.settings)
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
    if samplers and not samplers[0].is_team:
        return list(samplers[0].fragments.new_episodes())
    return [episode for sampler in samplers for episode in sampler.take_team()]


class RemoteWorker:
    """One of the worker processes."""

    def __init__(self, sampler: FragmentSampler, workers: Any) -> None:
        """Keeps a sampler of remote fragments, and a `WorkerSet`."""
        self.sampler, self.index, self.workers = sampler, sampler.worker, workers
        self.remote = Remote(partial(FutureBatch, sampler))
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


class Remote(NamedTuple):
    """Methods of a remote worker that return futures."""

    sample: Callable[[], FutureBatch]
    """Begins to sample."""


class FutureBatch:
    """A batch that is being sampled; those of one worker are taken in the order in which they were asked for."""

    def __init__(self, sampler: FragmentSampler) -> None:
        """Begins to sample."""
        sampler.ask()
        self.result: Callable[[], Any] = cache(sampler.wait)
        """Waits for it."""
