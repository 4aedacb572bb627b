"""The library that `small_network.c` becomes, and the description of a network in it; no torch is needed.

It is compiled for the machine when it is first needed, see `sf.machine.compiled`.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

from sf.machine.compiled import library

SOURCE = Path(__file__).with_name("small_network.c")
MOST_LAYERS = 8
WIDEST = 256
"""Layers that are wider take torch: with two threads its products are as fast, and beginning them costs little."""
ACTIVATIONS = ("tanh", "relu", "elu")
CATEGORICAL, GAUSSIAN, ADAPTIVE_GAUSSIAN = range(3)

Offsets = ctypes.c_int64 * MOST_LAYERS
Pointer = ctypes.c_void_p


class Network(ctypes.Structure):
    """The same fields in the same order as in `small_network.c`."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("num_inputs", "num_layers", "num_params", "num_towers")),
        ("activation", ctypes.c_int64),
        ("distribution", ctypes.c_int64),
        ("sizes", Offsets),
        ("weights", Offsets * 2),
        ("biases", Offsets * 2),
        *((name, ctypes.c_int64) for name in ("policy_weight", "policy_bias", "value_weight", "value_bias", "log_std")),
        *((name, Pointer) for name in ("parameters", "gradients", "mean", "std")),
        *((name, ctypes.c_float) for name in ("clip", "initial_log_std", "lowest_log_std", "highest_log_std")),
        *((name, Pointer) for name in ("mean_rest", "value_mean", "value_std")),
        ("is_wide", ctypes.c_int64),
    )


class TrajectoryMemory(ctypes.Structure):
    """The same fields in the same order as in `small_network.c`."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("num_policies", "every_row_acts", "num_steps", "num_rows")),
        *((name, Pointer) for name in ("observations", "actions", "log_probs", "values")),
        *((name, Pointer) for name in ("policy_version", "policy_id")),
    )


@functools.cache
def functions() -> Any:
    """The compiled file.

    Raises:
        NoCompilerError: see `library`.
    """
    found = library(SOURCE)
    count = ctypes.c_int64
    found.sf_scratch.argtypes, found.sf_scratch.restype = [Pointer, count], count
    found.sf_acting_scratch.argtypes, found.sf_acting_scratch.restype = [Pointer, count], count
    found.sf_outputs.argtypes, found.sf_outputs.restype = [Pointer, count, *[Pointer] * 4], None
    found.sf_through_outputs.argtypes = [Pointer, count, Pointer, Pointer, count, Pointer]
    found.sf_through_outputs.restype = None
    found.sf_forward.argtypes, found.sf_forward.restype = [Pointer, count, *[Pointer] * 7], None
    found.sf_backward.argtypes, found.sf_backward.restype = [Pointer, count, *[Pointer] * 7], None
    found.sf_values_scratch.argtypes, found.sf_values_scratch.restype = [Pointer, count], count
    found.sf_values.argtypes, found.sf_values.restype = [Pointer, count, *[Pointer] * 3], None
    found.sf_through_values.argtypes = [Pointer, count, *[Pointer] * 3, count, Pointer]
    found.sf_through_values.restype = None
    found.sf_act.argtypes, found.sf_act.restype = [*[Pointer] * 3, count, count, *[Pointer] * 3], None
    return found
