"""The state of a whole serial run, so that a resumed one goes on bit for bit as if it had never stopped.

There all roles are between two steps when a checkpoint is written. So the shared memory and the state of each role say
everything, and environments are brought back by their history, see `sf.envs.history`. With several processes there is
no such moment, and a resumed run begins new episodes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sf.console import Console
from sf.errors import EnvError, ResourceError, SfError
from sf.learner.saving import RESUME_POINT, Saver
from sf.learner.worker import Learner
from sf.shared.arena import Arena, Array
from sf.shared.role import Role, RoleGroup, RoleSpec

MOST_BYTES = 256 * 2**20
"""A checkpoint holds no more of the shared memory than this; a run with more begins new episodes."""
_ROLES, _RANDOM = f"{RESUME_POINT}roles", f"{RESUME_POINT}random"
_TENSORS = f"{RESUME_POINT}tensors"
"""Before the names of tensors in the states of roles."""
_TENSOR = "a tensor"
"""In the place of a tensor, before its name."""


def build_where_it_was(specs: Sequence[RoleSpec], arena: Arena) -> list[Role]:
    """The roles of a run in the state of the checkpoint that they go on from; new checkpoints store their state.

    Raises:
        ResourceError: the disk has no room for these checkpoints.
    """
    roles = [spec.build() for spec in specs]
    if not _go_on(roles, arena):
        _close(roles)
        roles = [spec.build() for spec in specs]
    num_bytes, saver = sum(arena[name].nbytes for name in _fields(arena)), _saver(roles)
    if num_bytes <= MOST_BYTES:
        try:
            saver.ensure_room(num_bytes)
        except ResourceError:
            _close(roles)
            raise
        saver.collect_resume_point = lambda: _resume_point(roles, arena)
    return roles


def _close(roles: Sequence[Role]) -> None:
    """Closes roles that never begin."""
    for role in roles:
        if not isinstance(role, Learner):  # which would save weights that it has not trained
            role.close()


def drop_half_done(roles: dict[str, Role], failed: Role) -> None:
    """After a step that raised: no run goes on in the middle of it, and a learner does not save half of it."""
    _saver(list(roles.values())).collect_resume_point = dict
    for name in [name for name, role in roles.items() if role is failed and isinstance(role, Learner)]:
        del roles[name]


def _go_on(roles: Sequence[Role], arena: Arena) -> bool:
    """Brings fresh roles and their shared memory to where the checkpoint says that the run was, if it says so.

    Returns:
        False if the environments do not repeat what they did: then shared memory is as before, and the roles are of no
        use any more.
    """
    resume_point = _saver(roles).resume_point
    if not resume_point:
        if _saver(roles).has_resumed:
            Console().line(f"The environments begin new episodes, {_saver(roles).why_anew}.")
        return True
    fields = {
        name: tensor
        for name, tensor in resume_point.items()
        if name not in (_ROLES, _RANDOM) and not name.startswith(_TENSORS)
    }
    saved = {name.removeprefix(RESUME_POINT): tensor.numpy() for name, tensor in fields.items()}
    states = _with_tensors(json.loads(resume_point[_ROLES].numpy().tobytes()), resume_point)
    own = {name: (arena[name].shape, arena[name].dtype) for name in _fields(arena)}
    same_roles = [("together" in state) for state in states] == [isinstance(role, RoleGroup) for role in roles]
    if {name: (array.shape, array.dtype) for name, array in saved.items()} != own or not same_roles:
        Console().line("The run has another shape than before; its environments begin new episodes.")
        return True
    fresh = {name: arena[name].copy() for name in own}
    _fill(arena, saved)
    try:
        for role, state in zip(roles, states, strict=True):
            role.load_state(state)
    except EnvError as error:
        Console().line(f"{error} They begin new episodes.")
        _fill(arena, fresh)
        return False
    torch.set_rng_state(resume_point[_RANDOM])  # roles that were built after the learner have drawn their weights
    return True


def _saver(roles: Sequence[Role]) -> Saver:
    return next(role.saver for role in roles if isinstance(role, Learner))


def _fill(arena: Arena, arrays: Mapping[str, Array]) -> None:
    for name, array in arrays.items():
        arena[name][...] = array


def _fields(arena: Arena) -> list[str]:
    """All but the counters of the processes, and the words that belong to one start."""
    of_one_start = ("records/", "run_state", "exchange", "allowed_slots", "ranks/")
    return [name for name in arena.fields if not name.startswith(of_one_start)]


def _resume_point(roles: Sequence[Role], arena: Arena) -> dict[str, Tensor]:
    try:
        states = [role.state() for role in roles]
    except SfError as error:  # the policy is saved without it
        Console().line(f"Warning: {error} A resumed run begins new episodes.")
        return {}
    if None in states:
        return {}
    fields = {f"{RESUME_POINT}{name}": torch.from_numpy(arena[name].copy()) for name in _fields(arena)}
    plain = _without_tensors(states, _TENSORS, fields)
    if sum(tensor.nbytes for tensor in fields.values()) > MOST_BYTES:
        return {}
    return fields | {_ROLES: as_text(plain), _RANDOM: torch.get_rng_state()}


def _without_tensors(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """A state in plain JSON types; copies of its tensors are added to `tensors`, by names that begin with `name`."""
    if isinstance(value, Tensor):
        tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {_TENSOR: name}
    if isinstance(value, Mapping):
        return {key: _without_tensors(part, f"{name}/{key}", tensors) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_tensors(part, f"{name}/{index}", tensors) for index, part in enumerate(value)]
    return value


def _with_tensors(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The inverse of `_without_tensors`, with lists in the place of tuples."""
    if isinstance(value, dict):
        if list(value) == [_TENSOR]:
            return tensors[value[_TENSOR]]
        return {key: _with_tensors(part, tensors) for key, part in value.items()}
    return [_with_tensors(part, tensors) for part in value] if isinstance(value, list) else value


def as_text(states: Any) -> Tensor:
    """Bytes that do not depend on the order in which dictionaries came to have their keys."""
    return torch.frombuffer(bytearray(json.dumps(states, sort_keys=True).encode()), dtype=torch.uint8)
