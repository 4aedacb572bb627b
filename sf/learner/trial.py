"""An algorithm on trial: one pass over a tiny batch, before anything is trained with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from sf.config import OF_ALGORITHMS, LearnerConfig
from sf.errors import ConfigError
from sf.learner.acting_network import ActingNetwork
from sf.learner.algorithm import Algorithm, Losses
from sf.learner.algorithm_state import parts_unchanged
from sf.learner.batch import Batch
from sf.learner.dataset import Transitions
from sf.learner.metrics import TAKEN
from sf.learner.optimizer import FlatAdam
from sf.learner.ppo import PPO
from sf.plugins import ALGORITHMS, blamed_on
from sf.plugins.settings import settings_for
from sf.policy import ActorCritic, Sequences
from sf.shared.fields import StoredField, TrainingUse
from sf.shared.slot_fields import OBSERVATIONS, last_observation_fields, slot_fields
from sf.spaces import ACTION_MASK, EnvInfo

NUM_STEPS, NUM_TRAJECTORIES = 3, 2


def algorithm_of(config: LearnerConfig) -> Algorithm:
    """The algorithm that the flags name.

    Raises:
        ConfigError: it cannot be imported or constructed, or is no `Algorithm`.
    """
    name = f"algorithm={config.algorithm}"
    if config.algorithm == ALGORITHMS.default:
        return PPO(config)
    make = ALGORITHMS.find(config.algorithm)
    settings = settings_for("algorithm", config.algorithm, make, config.algorithm_kwargs, num_given=1)
    with blamed_on(name, "its construction"):
        algorithm = make(config, **settings)
    if not isinstance(algorithm, Algorithm):
        raise ConfigError([f"{name} made a {type(algorithm).__name__}, expected a subclass of sf.Algorithm."])
    if not hasattr(algorithm, "is_first_epoch"):
        raise ConfigError([f"{name} does not call super().__init__(config) in its __init__. Do so before the rest."])
    return algorithm


def begin(algorithm: Algorithm, policy: ActorCritic) -> None:
    """Has an algorithm make its networks beside a policy that is not trained.

    Raises:
        ConfigError: it raises an exception, or is made for other policies.
    """
    acting = ActingNetwork(policy, FlatAdam(policy, algorithm.config), algorithm.config)
    with blamed_on(f"algorithm={type(algorithm).__name__}", "begin(acting)"):
        algorithm.begin(acting)


def unread_flags(config: LearnerConfig, policy: ActorCritic, changed: Sequence[str]) -> list[str]:
    """The `changed` flags, those with other values than by default, that an algorithm does not look at, on trial."""
    if not changed:
        return []
    watched, reads = _watched(config)
    algorithm = algorithm_of(watched)
    begin(algorithm, policy)
    loss_terms_of(algorithm, policy)
    found = set(reads)
    reads.clear()
    with blamed_on(f"algorithm={config.algorithm}", "set_progress(fraction)"):
        algorithm.set_progress(0.5)
    # A copy with other clip ranges, as that of PPO, looks at every flag.
    found |= reads & {"ppo_clip_anneal"} if reads >= set(OF_ALGORITHMS) else reads
    return [] if "__dict__" in found else [name for name in changed if name not in found]


def _watched(config: LearnerConfig) -> tuple[LearnerConfig, set[str]]:
    """The same flags, and the names of those that have been looked at."""
    reads: set[str] = set()

    class Watched(LearnerConfig):
        def __getattribute__(self, name: str) -> Any:
            reads.add(name)
            return super().__getattribute__(name)

    watched = Watched(**{each.name: getattr(config, each.name) for each in fields(config)})
    reads.clear()
    return watched, reads


def loss_terms_of(algorithm: Algorithm, policy: ActorCritic) -> tuple[str, ...]:
    """The names that the algorithm gives the terms of its loss.

    Raises:
        ConfigError: it raises an exception, or a method returns something else than it has to.
    """
    name = f"algorithm={type(algorithm).__name__}"
    with parts_unchanged(algorithm):
        losses = tried(algorithm, policy)
        if not algorithm.has_gradients:
            with blamed_on(name, "the backward pass of its loss, whose arguments it may not change in place"):
                torch.autograd.grad(losses.total, list(policy.parameters()), retain_graph=True, allow_unused=True)
        try_state(name, algorithm)
    return tuple(losses.terms)


def tried(algorithm: Algorithm, policy: ActorCritic) -> Losses:
    """The losses of a batch of zeros.

    Raises:
        ConfigError: see `loss_terms_of`.
    """
    name = f"algorithm={type(algorithm).__name__}"
    fields = fields_of(algorithm, policy.info)
    _try_fields(name, fields, policy)
    batch = batch_of_zeros(policy, fields)
    with blamed_on(name, "prepare(batch, policy)"):
        transitions: object = algorithm.prepare(batch, policy)
    size = NUM_STEPS * NUM_TRAJECTORIES
    if not isinstance(transitions, Transitions) or len(transitions) != size:
        found = f"{len(transitions)} of them" if isinstance(transitions, Transitions) else f"{type(transitions)}"
        raise ConfigError(
            [
                f"{name}: prepare must return the Transitions of all T·B steps, {size} for a batch of {NUM_STEPS} x "
                f"{NUM_TRAJECTORIES}, but returned {found}. Begin with super().prepare(batch, policy)."
            ]
        )
    _try_heads(policy, size)
    sequences = Sequences(batch.initial_memory, batch.resets[:-1]) if policy.state_size else None
    evaluation = policy.evaluate(transitions.observations, transitions.actions, sequences)
    given = {**transitions.columns(), **transitions.observations, **transitions.extra}
    before = {key: tensor._version for key, tensor in given.items()}
    with blamed_on(name, "loss(evaluation, minibatch)"):
        losses = algorithm.loss(evaluation, transitions)
    if changed := [key for key, tensor in given.items() if tensor._version != before[key]]:
        raise ConfigError(
            [f"{name}: loss changes {', '.join(changed)} of its minibatch in place. Compute others beside them."]
        )
    if problems := [f"{name}: {problem}" for problem in _problems(losses)]:
        raise ConfigError(problems)
    return losses


def _try_heads(policy: ActorCritic, size: int) -> None:
    """Calls further heads of the user's encoder with features as losses will see them."""
    heads = getattr(policy.encoder, "heads", None)
    if heads is None:
        return
    name, width = f"encoder={policy.config.encoder}", policy.policy_head.in_features
    source = "the recurrent layers, because of --use_rnn=True" if policy.state_size else "its forward"
    call = f"heads(features), with features [{size}, {width}] of {source}"
    with torch.no_grad(), blamed_on(name, call):
        found: object = heads(torch.zeros(size, width, device=policy.flat.device))
    if not isinstance(found, dict):
        raise ConfigError([f"{name}: heads must return a dict of tensors by name, but returned {type(found)}."])
    wrong = [
        f"{name}: heads must return a tensor of {size} rows as {key!r}, one for each row of features, but it is "
        f"{_shown(head)}."
        for key, head in found.items()
        if not isinstance(head, Tensor) or head.shape[:1] != (size,)
    ]
    if wrong:
        raise ConfigError(wrong)


def try_state(name: str, algorithm: Algorithm) -> None:
    """What would be saved, and whether the algorithm takes it back."""
    with blamed_on(name, "state_dict()"):
        state: object = algorithm.state_dict()
    if not isinstance(state, dict) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise ConfigError([f"{name}: state_dict must return a dict of tensors by name, but returned {_shown(state)}."])
    copied = {key: tensor.clone() for key, tensor in state.items()}
    with blamed_on(name, "load_state_dict(state)"):
        algorithm.load_state_dict(copied)


def _problems(losses: object) -> list[str]:
    if not isinstance(losses, Losses):
        return [f"loss must return sf.Losses(total, terms), but returned {type(losses)}."]
    problems = []
    if not _is_scalar(losses.total) or not losses.total.requires_grad:
        problems.append(
            f"the total of its Losses must be a scalar tensor with gradient, but is {_shown(losses.total)}. Take the "
            "mean over the minibatch, of something that depends on `evaluation`."
        )
    for term, value in losses.terms.items():
        if not _is_scalar(value):
            problems.append(f"the term {term} of its Losses must be a scalar tensor, but is {_shown(value)}.")
        if term in TAKEN:
            problems.append(f"the name of the term {term} is taken by another curve of train/; choose another one.")
    return problems


def _is_scalar(value: object) -> bool:
    return isinstance(value, Tensor) and value.ndim == 0


def _shown(value: object) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    return f"a tensor of shape {list(value.shape)} {'with' if value.requires_grad else 'without'} gradient"


def fields_of(algorithm: Algorithm, info: EnvInfo) -> Mapping[str, StoredField]:
    """The further columns that an algorithm asks for.

    Raises:
        ConfigError: it raises an exception, returns something else, or names columns that nothing writes.
    """
    name = f"algorithm={type(algorithm).__name__}"
    with blamed_on(name, "fields(info)"):
        fields: object = algorithm.fields(info)
    if not isinstance(fields, Mapping) or not all(isinstance(field, StoredField) for field in fields.values()):
        raise ConfigError([f"{name}: fields must return a dict of StoredField by name, but returned {fields!r}."])
    written = last_observation_fields(info)
    unwritten = [key for key, field in fields.items() if not field.from_head and written.get(key) != field]
    if unwritten:
        raise ConfigError(
            [
                f"{name}: nothing writes the field {key!r}. Use head_field(...), whose values come from "
                "heads(features) of the encoder, or last_observation_fields(info)."
                for key in unwritten
            ]
        )
    return fields


def _try_fields(name: str, fields: Mapping[str, StoredField], policy: ActorCritic) -> None:
    """Has the network answer with the heads that fields come from, as acting does."""
    wanted = {key: field for key, field in fields.items() if field.from_head}
    if not wanted:
        return
    heads = getattr(policy.encoder, "heads", None)
    with torch.no_grad(), blamed_on(f"encoder={policy.config.encoder}", "heads(features)"):
        found = (
            {} if heads is None else heads(torch.zeros(2, policy.policy_head.in_features, device=policy.flat.device))
        )
    problems = [
        f"{name}: the field {key!r} has values of shape {list(field.shape)}, but heads(features) of the encoder "
        f"returns {_shown(found[key]) + ' for 2 rows' if key in found else 'nothing under this name'}."
        for key, field in wanted.items()
        if key not in found or found[key].shape != (2, *field.shape)
    ]
    if problems:
        raise ConfigError(problems)


def batch_of_zeros(policy: ActorCritic, further: Mapping[str, StoredField] | None = None) -> Batch:
    """As the batcher would make it, of episodes that do not end."""
    by_step: dict[str, Tensor] = {}
    by_trajectory: dict[str, Tensor] = {}
    for name, field in (slot_fields(policy.info, policy.state_size) | dict(further or {})).items():
        if field.training is TrainingUse.UNUSED:
            continue
        device = torch.device("cpu") if field.training is TrainingUse.ON_HOST else policy.flat.device
        shape = (*field.axes.in_batch(NUM_STEPS, NUM_TRAJECTORIES), *field.shape)
        column = torch.zeros(shape, dtype=getattr(torch, field.dtype), device=device)
        leaf = policy.info.observations.get(name.removeprefix(OBSERVATIONS))
        if leaf is not None and leaf.categories:  # of which 0 need not be one
            column += torch.tensor(leaf.starts, device=device).view(field.shape)
        if name == OBSERVATIONS + ACTION_MASK:  # every action is legal
            column.fill_(1)
        (by_step if field.axes.has_time else by_trajectory)[name] = column
    by_step["valid"] = torch.ones(NUM_STEPS, NUM_TRAJECTORIES, dtype=torch.bool)
    by_trajectory["streams"] = torch.arange(NUM_TRAJECTORIES)
    return Batch(by_step, by_trajectory)
