"""The seam for another algorithm: the transitions made of a batch, and the loss of a minibatch.

    batch [T, B] -> prepare -> transitions [T*B] -> minibatches [N] -> loss -> gradient -> optimizer -> after_step
                                                                                     last one -> after_batch

`sf.learner.update.Update` is the loop around it. It deals minibatches, evaluates them under the present weights, clips
the gradient and steps. It counts versions and lag, and shares every step with the other learners. Most algorithms are
two pure functions in that loop; `sf.learner.ppo.PPO` is the default one. Networks of their own are made in `begin`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sf.config import LearnerConfig
from sf.errors import ConfigError
from sf.learner.acting_network import ActingNetwork
from sf.learner.algorithm_state import load_parts, state_of_parts
from sf.learner.batch import Batch
from sf.learner.dataset import Transitions, with_gae
from sf.policy import ActorCritic, Evaluation
from sf.shared.fields import StoredField
from sf.spaces import EnvInfo


@dataclass(frozen=True)
class Losses:
    """The loss of one minibatch."""

    total: Tensor
    """Scalar, whose gradient is followed."""
    terms: Mapping[str, Tensor]
    """Scalars that TensorBoard shows below ``train/``, each under its name, such as ``policy_loss``."""

    def plus(self, **terms: Tensor) -> Losses:
        """These losses and further terms, each of which is added to the total as it is.

        Raises:
            ConfigError: there is a term of such a name.
        """
        if taken := sorted(terms.keys() & self.terms.keys()):
            raise ConfigError([f"The loss has a term {taken[0]!r} already. Give the further one another name."])
        return Losses(sum(terms.values(), self.total), {**self.terms, **terms})

    def scalars(self) -> dict[str, Tensor]:
        """Total and terms by name, without gradient."""
        return {name: scalar.detach() for name, scalar in {"loss": self.total, **self.terms}.items()}


class FurtherStep(NamedTuple):
    """A step of the acting network that an algorithm has taken by itself, through `ActingNetwork.step`."""

    scalars: Mapping[str, Tensor]
    """What TensorBoard shows of it below ``train/``, each under its name."""
    versions: Tensor
    """[N] int64 on the host, of the policies that chose the actions of its minibatch."""


class LossGradients(NamedTuple):
    """Derivatives of the total loss with respect to what the network puts out, [N] each."""

    log_probs: Tensor
    entropy: Tensor
    normalized_values: Tensor


BESIDE_THE_LOSS = frozenset(
    {
        "prepare",
        "prepares_each_epoch",
        "set_progress",
        "reconfigure",
        "has_gradients",
        "state_dict",
        "load_state_dict",
        "begin",
        "fields",
        "after_step",
        "after_batch",
        "after_statistics",
    }
)
"""Names that a subclass may define anew without another loss."""


class Algorithm:
    """How a policy learns from batches; a subclass says at least what its loss is.

    `sf.train(algorithm=MyAlgorithm)` and ``sf-train --algorithm=module:MyAlgorithm`` construct one in each learner
    process and call it with tensors on the device that trains. Advantages of a minibatch arrive normalized where
    ``--normalize_advantages`` says so.
    """

    prepares_each_epoch: bool = False
    """Whether `prepare` is called before each epoch, under the weights of then, and not only before the first one."""
    has_gradients: bool = False
    """Whether `gradients` are those of `loss`. A subclass that changes the loss, or a part of it, has none without
    gradients of its own."""

    def __init__(self, config: LearnerConfig) -> None:
        """Keeps the flags of the learner as `config`."""
        self.config = config
        self.version = 0
        """Optimizer steps before the present one; set before each call of the methods below."""
        self.is_first_epoch = True
        """Whether no step has been taken on the batch; set before each call of `prepare`."""

    def __init_subclass__(cls) -> None:
        """Finds out whether a part of the loss was written after the gradients, which then belong to another loss.

        That is the method `loss`, or a method that it may call.
        """
        classes = cls.__mro__
        home = next(i for i, each in enumerate(classes) if "gradients" in vars(each))
        later, earlier = ({name for each in part for name in vars(each)} for part in (classes[:home], classes[home:]))
        replaced = {name for name in later & earlier if not name.startswith("__")} - BESIDE_THE_LOSS
        cls.has_gradients = classes[home] is not Algorithm and not replaced

    def fields(self, info: EnvInfo) -> Mapping[str, StoredField]:
        """Further columns of a batch, by name; asked once before the run, of an algorithm that has not begun.

        `sf.shared.fields.head_field` is one that the acting network computes: the encoder returns it from ``heads``.

        Args:
            info: spaces of the environments.
        """
        return {}

    def begin(self, acting: ActingNetwork) -> None:
        """Makes the networks beside the acting one; called once, before anything else.

        Modules in attributes are saved and resumed, see `state_dict`.

        Raises:
            ConfigError: the policy has other actions or parts than the algorithm is made for.
        """

    def set_progress(self, fraction: float) -> None:
        """Told before each batch: the part of the run, from 0 to 1, that lies behind."""

    def reconfigure(self, config: LearnerConfig) -> None:
        """Told between two batches that numbers of the configuration are others from now on, see `Training`."""
        self.config = config

    def state_dict(self) -> dict[str, Tensor]:
        """Named tensors beside the policy that a resumed run and other learners need; not copied.

        These are the modules and optimizers in attributes. For anything else, such as a coefficient that is adapted,
        extend this method and `load_state_dict`.
        """
        return state_of_parts(self)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from a state of `state_dict`.

        Raises:
            CheckpointError: it does not fit; then nothing is changed.
        """
        load_parts(self, state)

    def prepare(self, batch: Batch, policy: ActorCritic) -> Transitions:
        """All T·B transitions of a batch in the order of time; here with generalized advantage estimation.

        Args:
            batch: [T, B], as the acting side recorded it. B can be 0 where a policy shares its data with others.
            policy: under training, not to be changed.
        """
        return with_gae(batch, policy, self.config)

    def loss(self, evaluation: Evaluation, minibatch: Transitions) -> Losses:
        """The loss of N transitions, with gradient; called once for each optimizer step.

        Where `gradients` take its place, it is only called for the steps that are shown, after them and without
        gradient. Before a run it is tried once on zeros.

        Args:
            evaluation: of them by the present policy; N rows in each of its tensors.
            minibatch: made by `prepare`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method loss(evaluation, minibatch) -> Losses.")

    def after_step(self, size: int) -> None:
        """Called after each optimizer step on a loss: steps the networks beside the acting one.

        Args:
            size: transitions behind the gradient of this learner, 0 where only other learners have some.

        Raises:
            NonFiniteLoss: a gradient is not finite.
        """

    def after_statistics(self) -> None:
        """Called when a batch has changed the running statistics, before its last step is published.

        What is in units of the returns follows them here.
        """

    def after_batch(self, transitions: Transitions, versions: Tensor) -> Iterator[FurtherStep]:
        """Steps of the acting network after those on the losses of a batch, such as an auxiliary phase; here none.

        All learners of a policy take the same number of them.

        Args:
            transitions: those of the batch that were trained on, as `prepare` made them.
            versions: [N] int64 on the host, of the policy that chose each action.

        Raises:
            NonFiniteLoss: a gradient is not finite.
        """
        return iter(())

    def clipped(self, evaluation: Evaluation, minibatch: Transitions) -> Tensor:
        """[N] bool, whether the loss clips the probability ratio of a transition; for the curves alone."""
        return torch.zeros_like(minibatch.advantages, dtype=torch.bool)

    def gradients(self, evaluation: Evaluation, minibatch: Transitions) -> LossGradients:
        """The derivatives of `loss` written by hand: a shortcut past autograd, for speed only."""
        raise NotImplementedError
