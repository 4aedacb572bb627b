"""Forwards and backwards through the network as CUDA graphs, see `sf.nets.fast.recorded`.

An optimizer step on a small minibatch is a hundred operations, whose launches take longer than their work. Minibatches
are copied to places that stay, where the recorded ones compute. There is a recording for each size that comes twice;
a dataset has one or two.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import NamedTuple

import torch
from torch import Tensor

from sf.learner.algorithm import Algorithm, Losses
from sf.learner.dataset import COLUMNS, Transitions
from sf.learner.ppo import PPO
from sf.learner.propagation import Propagation
from sf.nets.actor_critic import ActorCritic, Observations
from sf.nets.fast.recorded import CudaGraphs, GraphRecorder, Recording, can_record
from sf.policy import Evaluation, Sequences

log = logging.getLogger(__name__)

MOST_RECORDINGS = 8
"""Sizes that are recorded; each keeps its tensors on the device."""


class _GraphedMinibatch(NamedTuple):
    """A minibatch of one size."""

    minibatch: Transitions
    """Places of its columns."""
    sequences: Sequences | None
    forwards: Recording[Evaluation]
    backwards: Recording[None]


class Graphed:
    """A propagation whose operations are recorded; those of rare or empty minibatches are not."""

    def __init__(self, plain: Propagation, policy: ActorCritic, algorithm: Algorithm, recorder: GraphRecorder) -> None:
        """Records nothing yet.

        Args:
            plain: computes the same operations each time, with gradients that depend on tensors and `algorithm.config`.
            policy: whose gradient it adds to.
            algorithm: whose coefficients a recording keeps; when they change, nothing is recorded any more.
            recorder: makes recordings.
        """
        self.plain, self._policy, self._recorder = plain, policy, recorder
        self._algorithm, self._config = algorithm, algorithm.config
        self._seen = Counter[tuple[int, ...]]()
        self._recordings: dict[tuple[int, ...], _GraphedMinibatch] = {}
        self._now: _GraphedMinibatch | None = None
        """What `evaluate` has used last."""
        self._open: Evaluation | None = None
        """Without a recording, what goes backwards. No other object may hold it: while it lives, what autograd keeps
        for a parameter belongs to the stream of that evaluation, and a recording has a stream of its own."""
        self._gives_up = False

    def evaluate(self, observations: Observations, actions: Tensor, sequences: Sequences | None = None) -> Evaluation:
        """See `Propagation`; good until the next one."""
        self._now = recording = self._recording_for(observations, actions, sequences)
        if recording is None:
            self._open = self.plain.evaluate(observations, actions, *_given(sequences))
            return self._open.detached()
        for key, place in recording.minibatch.observations.items():
            place.copy_(observations[key])
        recording.minibatch.actions.copy_(actions)
        if sequences is not None and recording.sequences is not None:
            for place, given in zip(recording.sequences, sequences, strict=True):
                place.copy_(given)
        return recording.forwards()

    def backward(self, evaluation: Evaluation, minibatch: Transitions) -> Losses | None:
        """See `Propagation`."""
        if self._now is None:
            assert self._open is not None
            evaluation, self._open = self._open, None
            return self.plain.backward(evaluation, minibatch)
        own = self._now.minibatch.columns()
        for name, column in minibatch.columns().items():
            if name != "actions":
                own[name].copy_(column)
        self._now.backwards()
        return None

    def _recording_for(
        self, observations: Observations, actions: Tensor, sequences: Sequences | None
    ) -> _GraphedMinibatch | None:
        if self._algorithm.config is not self._config:
            self._recordings.clear()
            self._gives_up = True
        size = (len(actions), *(() if sequences is None else sequences.resets.shape))
        if size in self._recordings:
            return self._recordings[size]
        self._seen[size] += 1
        self._open = None
        if self._gives_up or self._seen[size] < 2 or len(self._recordings) == MOST_RECORDINGS or not len(actions):
            return None
        try:
            self._recordings[size] = self._recorded(observations, actions, sequences)
        except RuntimeError as error:  # the network itself can always be trained
            log.warning("Optimizer steps are not recorded and take longer: %s", " ".join(str(error).split())[:300])
            self._gives_up = True
            return None
        return self._recordings[size]

    def _recorded(self, observations: Observations, actions: Tensor, sequences: Sequences | None) -> _GraphedMinibatch:
        """Records; the gradient is as before."""

        def place(like: Tensor) -> Tensor:
            return like.detach().clone()

        columns = {name: torch.zeros(len(actions), device=actions.device) for name in COLUMNS}
        minibatch = Transitions(
            {key: place(leaf) for key, leaf in observations.items()}, **{**columns, "actions": place(actions)}, extra={}
        )
        kept = None if sequences is None else Sequences(*map(place, sequences))
        last: list[Evaluation] = []

        def forwards() -> Evaluation:
            with torch.enable_grad():
                last[:] = [self.plain.evaluate(minibatch.observations, minibatch.actions, *_given(kept))]
            return last[0].detached()

        def backwards() -> None:
            with torch.enable_grad():
                self.plain.backward(last[0], minibatch)

        def both() -> None:
            forwards()
            backwards()
            last.clear()

        before = self._policy.flat_gradient.clone()
        try:
            self._recorder.warm_up(both)
            recorded = Recording(forwards, self._recorder.capture), Recording(backwards, self._recorder.capture)
        finally:
            self._policy.flat_gradient.copy_(before)
        return _GraphedMinibatch(minibatch, kept, *recorded)


def graphed(plain: Propagation, policy: ActorCritic, algorithm: Algorithm) -> Propagation:
    """The same as CUDA graphs where that is possible, and the loss is that of PPO with ranges that stay."""
    config = algorithm.config
    is_ppo = algorithm.has_gradients and type(algorithm).gradients is PPO.gradients
    if not can_record(policy) or not is_ppo or config.ppo_clip_anneal or config.torch_compile:
        return plain
    return Graphed(plain, policy, algorithm, CudaGraphs())


def as_written(network: Propagation) -> Propagation:
    """Without recordings, for a minibatch of which only some rows go backwards."""
    return network.plain if isinstance(network, Graphed) else network


def _given(sequences: Sequences | None) -> tuple[Sequences, ...]:
    """The last argument of `evaluate`, if there is one."""
    return () if sequences is None else (sequences,)
