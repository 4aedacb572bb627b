"""Names of torch that are not public, all in one place, because each may change with a version.

`sf.processes.private` has those of Python. The versions with which both were tried are in tests/test_private_names.py.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store, TCPStore, Work

__all__ = ["PrefixStore", "Store", "TCPStore", "Work", "adam_step", "compile_in_one_thread", "gloo_group"]


def adam_step(
    parameters: Tensor, gradient: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, step: Tensor, lr: float, beta1: float,
    beta2: float, eps: float,
) -> None:  # fmt: skip
    """One step of Adam in one operation, without the checks of `torch.optim.Adam`.

    Args:
        parameters, gradient, exp_avg, exp_avg_sq: [n], changed in place but for the gradient.
        step: scalar, the number of this step.
        lr, beta1, beta2, eps: of Adam.
    """
    torch._fused_adam_(
        [parameters], [gradient], [exp_avg], [exp_avg_sq], [], [step], lr=lr, beta1=beta1, beta2=beta2, eps=eps,
        weight_decay=0.0, amsgrad=False, maximize=False,
    )  # fmt: skip


def compile_in_one_thread() -> None:
    """Has `torch.compile` start no processes, which torch would keep."""
    from torch._inductor import config

    config.compile_threads = 1


def gloo_group(store: Store, rank: int, world_size: int, host: str | None, limit: timedelta) -> Any:
    """The group of processes of gloo, with one thread.

    Args:
        store: that all of them reach.
        rank: of this process.
        world_size: processes.
        host: name of the network device by its address; None for the one that torch chooses.
        limit: after which a call fails.
    """
    gloo: Any = ProcessGroupGloo  # whose stubs know no constructor with options
    options = gloo._Options()
    options._timeout, options._threads = limit, 1
    options._devices = [gloo.create_default_device() if host is None else gloo.create_device(hostname=host)]
    return gloo(store, rank, world_size, options)
