"""The evaluator: plays episodes with the newest weights beside the training.

In: published weights, counters of the learners. Out: scores, and the best policy so far as a checkpoint. It owns
environments of its own and a copy of every policy. All episodes of an evaluation are played with one version of the
weights. Between two steps it rests, so that it is busy for a fixed share of the time at most. When the run is over, the
last policy is evaluated as well, see `sf.evaluator.last`.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sf.config import Config
from sf.console import Console
from sf.envs import EnvSource
from sf.envs.scripted import ScriptedPolicy
from sf.envs.stepping import Host
from sf.errors import CheckpointError
from sf.evaluator.cast import Cast
from sf.evaluator.filming import Filming, Stage
from sf.evaluator.function_policy import FunctionPolicy
from sf.evaluator.playing import LONGEST_EPISODE, Play
from sf.evaluator.tally import Episodes
from sf.nets.device import from_host
from sf.policy import ActorCritic, GreedyPolicy, Policy
from sf.policy.checkpoints import POLICY_PREFIX
from sf.policy.collecting import evaluated_policy
from sf.processes.process import NEVER_STOPPED
from sf.shared.context import EvaluatorLinks, RunContext
from sf.shared.messages import CheckpointSaved, EvaluationDone
from sf.shared.progress import Phase
from sf.shared.records import evaluation_record, learner_record
from sf.shared.weights import NOTHING_PUBLISHED
from sf.storage import checkpoint
from sf.storage.experiment import Owner
from sf.storage.task import has_score

STREAM = 0xE7A
"""Keeps the seeds of evaluations apart from those of environments, actions and weights."""


class Evaluator:
    """One role object: `step` plays one step of an evaluation, or looks whether one is due."""

    tell: Callable[[Any], None]

    def __init__(
        self,
        config: Config,
        context: RunContext,
        source: EnvSource,
        links: EvaluatorLinks,
        owner: Owner,
        incarnation: int = 0,
        is_last: bool = False,
    ):
        """Makes the environments.

        Args:
            config: the whole configuration, because checkpoints carry it.
            context: of all roles; every evaluation plays with the same seeds, so that their scores can be compared.
            source: makes the environments.
            links: to the other roles.
            owner: of the directory of the experiment, where checkpoints are.
            incarnation: how many have had this place before; the evaluation of a predecessor begins anew.
            is_last: whether it evaluates the last policy, after the run.

        Raises:
            EnvError: an environment cannot be made.
            Stopped: the run ends.
        """
        topology, info = context.topology, context.info
        self.config, self.weights, self.doorbell = config.evaluation, links.weights, links.doorbell
        self.supervisor, self.owner = links.supervisor, owner
        self.directories = [owner.checkpoints(policy_id) / checkpoint.BEST for policy_id in range(len(self.weights))]
        self.description = json.loads(json.dumps({"config": config.to_json(), "env": info.to_json()}))
        self.score = config.run.score
        self.record = evaluation_record(context.arena)
        torch.set_num_threads(1)  # the other cores belong to other roles
        with torch.random.fork_rng(devices=[]):  # in serial mode it is the generator of the training
            self.networks = [ActorCritic(info, config.model) for _ in self.weights]
        policies: list[Policy] = [evaluated_policy(network) for network in self.networks]
        if self.config.eval_deterministic:
            policies = [GreedyPolicy(policy) for policy in policies]
        self.scripted = config.run.scripted
        for policy_id, name in self.scripted.items():
            policies[policy_id] = FunctionPolicy(ScriptedPolicy(name, info, config.rollout.action_bounds))
        cast = Cast(policies, config.rollout.action_bounds, config.mapping)
        longest = source.max_episode_steps or LONGEST_EPISODE
        source = replace(source, worker=topology.num_workers, max_episode_steps=longest)
        stream = np.random.SeedSequence(config.run.seed or 0, spawn_key=(STREAM,))  # whichever start of the run this is
        seed = int(stream.generate_state(1)[0])
        host = Host(self.record.progress, stop=NEVER_STOPPED if is_last else context.arena["run_state"].data)
        is_shared = config.run.serial_mode and not is_last
        self.play = Play(cast, source, info, self.config.eval_episodes, seed, host=host, is_shared=is_shared)
        stage = Stage(cast, source, info, seed, host, config.run.serial_mode)
        every = self.config.film_every_steps
        self.filming = Filming(stage, owner, every) if every else None
        self.learners = [learner_record(context.arena, policy_id) for policy_id in range(topology.num_policies)]
        self.versions = [NOTHING_PUBLISHED] * topology.num_policies
        self.frames = [0] * topology.num_policies
        self.is_playing = False
        self.film_is_next = False
        self.next_frames = self.config.eval_every_steps
        self.rested_at_s = -math.inf
        self.best = [self._best_score(directory) for directory in self.directories]

    def step(self) -> bool:
        """Plays one step if it is time to; False while it rests or nothing is due."""
        now = time.monotonic()
        if now < self.rested_at_s or not (self.is_busy or self._begin_next()):
            return False
        self.record.lap("wait")
        self._play()
        self.record.lap("play")
        self.record.publish()
        self.rested_at_s = time.monotonic() + (time.monotonic() - now) * (1 / self.config.eval_share - 1)
        return True

    def play_at_once(self) -> None:
        """One evaluation of the newest weights without a rest; none if there are no weights."""
        self.next_frames = 0
        if self._begin():
            while self.is_playing:
                self._play()

    def film_at_once(self) -> None:
        """One film of the newest weights without a rest, if one is due."""
        if self._begin_film():
            while self.is_busy:
                self._play()

    def wait(self, timeout_s: float) -> None:
        """Sleeps until it has rested; while no evaluation is due it looks ten times a second."""
        self.doorbell.wait(min(timeout_s, max(0.0, self.rested_at_s - time.monotonic()) if self.is_busy else 0.1))
        self.record.lap("wait")

    def close(self) -> None:
        """Closes the environments; an evaluation that is not complete counts for nothing."""
        if self.is_playing:
            Console().line(f"The evaluation of policy_version {self.versions[0]} was not completed.")
        self.play.close()
        if self.filming is not None:
            self.filming.close()

    def state(self) -> dict[str, Any]:
        """Nothing: an evaluation begins anew."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Nothing to load."""

    @property
    def is_busy(self) -> bool:
        """Whether an evaluation or a film goes on; both act with the weights that were read when it began."""
        return self.is_playing or (self.filming is not None and self.filming.is_playing)

    def _play(self) -> None:
        if self.filming is not None and self.filming.is_playing:
            self.filming.step()
            return
        self.play.step()
        if self.play.tally.is_complete:
            self._finish()

    def _begin_next(self) -> bool:
        """Begins what is due. Films and evaluations take turns, also where both are always due."""
        return (self.film_is_next and self._begin_film()) or self._begin() or self._begin_film()

    def _begin_film(self) -> bool:
        """Takes the newest weights if a film is due."""
        frames = sum(int(record.read()["env_steps"]) for record in self.learners) if self.filming is not None else 0
        if self.filming is None or not self.filming.is_due(frames):
            return False
        if any(weights.version == NOTHING_PUBLISHED for weights in self.weights):
            return False
        for network, weights in zip(self.networks, self.weights, strict=True):
            weights.read(from_host(network.flat))
        self.film_is_next = False
        self.filming.begin(frames)
        return self.filming.is_playing

    def _begin(self) -> bool:
        """Takes the newest weights if an evaluation is due."""
        frames = [int(record.read()["env_steps"]) for record in self.learners]
        if sum(frames) < self.next_frames or any(weights.version == NOTHING_PUBLISHED for weights in self.weights):
            return False
        self.next_frames = (sum(frames) // self.config.eval_every_steps + 1) * self.config.eval_every_steps
        self.frames = frames
        for policy_id, (network, weights) in enumerate(zip(self.networks, self.weights, strict=True)):
            self.versions[policy_id] = weights.read(from_host(network.flat))
        self.play.start()
        self.is_playing = self.film_is_next = True
        return True

    def _finish(self) -> None:
        self.is_playing = False
        self.record["evaluations"] += 1
        self.record.publish()  # before the message, so that its receiver may look
        for policy_id, episodes in enumerate(self.play.tally.episodes):
            version, frames = self.versions[policy_id], self.frames[policy_id]
            scores = episodes.rewards, episodes.lengths, episodes.num_cut
            self.tell(EvaluationDone.of(policy_id, version, frames, *scores))
            self._keep_if_best(policy_id, episodes)
        self.supervisor.ring()

    def _keep_if_best(self, policy_id: int, episodes: Episodes) -> None:
        """Writes exactly the policy that was evaluated."""
        score = episodes.mean(self.score)
        if policy_id in self.scripted or not score > self.best[policy_id]:  # nor is a score better that is no number
            return
        self.best[policy_id] = score
        directory, version = self.directories[policy_id], self.versions[policy_id]
        variables = self.networks[policy_id].variables()
        tensors = {f"{POLICY_PREFIX}{name}": variable for name, variable in variables.items()}
        data = self.description | {"reward": score, "is_trained": version > 0}
        try:
            self.owner.expect_unchanged()
            self.record.progress.enter(Phase.SAVE)
            path = checkpoint.save(directory, version, self.frames[policy_id], tensors, data, keep=1, replace=True)
            saved = CheckpointSaved(policy_id, "best", str(path), version)
        except CheckpointError as error:
            saved = CheckpointSaved(policy_id, "best", str(directory), version, str(error))
        self.record.progress.enter(Phase.STEP)
        self.tell(saved)

    def _best_score(self, directory: Path) -> float:
        """The best score of an earlier start of this run."""
        try:
            self.owner.expect_unchanged()
        except CheckpointError:
            return -math.inf  # every save will be told to have failed
        best = checkpoint.load_spare(directory)
        if best is None or not has_score(best.data, self.description):
            return -math.inf
        return float(best.data["reward"])
