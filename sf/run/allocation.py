"""The memory of a run: shared among its processes, or on the device of the one that a simulator in tensors has."""

from __future__ import annotations

import math
from collections.abc import Mapping

from sf.config import Config
from sf.config.pbt_space import env_arguments
from sf.machine.limits import ensure_room_for_processes
from sf.run.topology import Sizes
from sf.shared.arena import Arena, Field
from sf.shared.context import FieldsOnDevice
from sf.shared.env_arguments import ENV_ARGUMENTS, env_argument_fields
from sf.shared.exchange import exchange_fields
from sf.shared.fields import StoredField
from sf.shared.leaving import leaving_fields
from sf.shared.matches import match_fields
from sf.shared.records import BEGAN_S, mark_lag_unknown, record_fields
from sf.shared.slot_fields import slot_fields, slot_memory
from sf.shared.told import told_fields
from sf.shared.topology import Topology
from sf.spaces import EnvInfo


def room_on_device(topology: Topology, info: EnvInfo, extra_fields: Mapping[str, StoredField] | None) -> FieldsOnDevice:
    """Where trajectories of a simulator in tensors lie, once their device is known."""
    from sf.tensors.fields import TensorFields  # with torch

    return TensorFields(topology, slot_fields(info, topology.memory_size) | dict(extra_fields or {}))


def make_arena(
    config: Config,
    sizes: Sizes,
    info: EnvInfo,
    extra_fields: Mapping[str, StoredField] | None,
    in_tensors: bool = False,
) -> Arena:
    """All that roles share in memory of the host.

    Raises:
        ResourceError: there is not enough of it.
    """
    topology = sizes.topology
    num_policies, num_inference = topology.num_policies, topology.num_policies * topology.inference_per_policy
    fields = slot_memory(topology, info, extra_fields, in_tensors)
    fields |= record_fields(topology.num_workers, num_inference, num_policies, topology.num_learners)
    fields |= exchange_fields(num_policies, topology.num_learners) | leaving_fields()
    if config.self_play.self_play:
        fields |= match_fields(topology.num_workers)
    if names := env_arguments(config):
        fields |= env_argument_fields(num_policies, names)
    others = 0
    if not config.run.serial_mode:
        others = ensure_room_for_processes(sizes.num_with_torch, topology.num_workers, sizes.num_further_threads)
    fields |= {"run_state": Field((1,), "int64"), BEGAN_S: Field((1,), "float64", math.nan)} | told_fields()
    arena = Arena(fields, others=others)
    mark_lag_unknown(arena)
    if names:
        arena[ENV_ARGUMENTS][:] = [float(config.run.env_arguments[name]) for name in names]
    return arena
