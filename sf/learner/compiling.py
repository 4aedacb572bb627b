"""What training computes of the network, by `torch.compile`: fewer and larger operations, after minutes of compiling.

It begins with the first minibatch, whose shape the others have. What comes out is compared with the network as it is
written, numbers and gradients, and the network stays as it is where the two differ or there is no compiler.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sf.monitor.console import Console
from sf.policy import ActorCritic, Evaluation

log = logging.getLogger(__name__)

Evaluate = Callable[..., Evaluation]
"""See `ActorCritic.evaluate`."""

ROUNDING, ROUNDING_OF_BFLOAT16 = 1e-4, 5e-2
"""Sums in another order: differences stay below this share of the largest number, and other mistakes do not."""


class Compiled:
    """Called like `ActorCritic.evaluate`, which it compiles when it is called for the first time."""

    def __init__(self, network: ActorCritic) -> None:
        self._network = network
        self._evaluate: Evaluate | None = None

    def __call__(self, *arguments: Any) -> Evaluation:
        """The first call takes as long as compiling does, and adds nothing to the gradient either."""
        if self._evaluate is None:
            self._evaluate = self._choose(arguments)
        return self._evaluate(*arguments)

    def _choose(self, arguments: tuple[Any, ...]) -> Evaluate:
        console, began_s = Console(), time.monotonic()
        console.line("Compiling the network for training, which can take minutes.")
        try:
            compiled = _compiled(self._network.evaluate)
            _expect_the_same(self._network, compiled, arguments)
        except Exception as error:  # whatever torch says; the network itself can always be trained
            first, *_ = str(error).strip().splitlines() or [type(error).__name__]
            log.warning("--torch_compile=True is left out, and training takes as long as without: %s", first)
            return self._network.evaluate
        console.line(f"Compiled the network for training in {time.monotonic() - began_s:.0f} s.")
        return compiled


def _compiled(evaluate: Evaluate) -> Evaluate:
    from torch._inductor import config

    config.compile_threads = 1  # more would be processes that torch starts and keeps
    return torch.compile(evaluate)


def _expect_the_same(network: ActorCritic, compiled: Evaluate, arguments: tuple[Any, ...]) -> None:
    """Compares numbers and gradients with those of the network as it is written.

    Raises:
        ValueError: there is a difference.
    """
    rounding = ROUNDING_OF_BFLOAT16 if network.bf16 else ROUNDING
    rights, founds = _outcome(network, network.evaluate, arguments), _outcome(network, compiled, arguments)
    for found, right in zip(founds, rights, strict=True):
        if not torch.allclose(found, right, rtol=0.0, atol=rounding * float(right.abs().max())):
            raise ValueError(f"it gives other numbers, by up to {float((found - right).abs().max()):.3g}")


def _outcome(network: ActorCritic, evaluate: Evaluate, arguments: tuple[Any, ...]) -> list[Tensor]:
    """What a network puts out, and the gradient of a sum of it; that of the network is zero again afterwards."""
    evaluation = evaluate(*arguments)
    network.flat_gradient.zero_()
    torch.stack([evaluation.log_probs, evaluation.entropy, evaluation.normalized_values]).mean().backward()  # type: ignore[no-untyped-call]
    results = [*(x.detach().clone() for x in evaluation), network.flat_gradient.clone()]
    network.flat_gradient.zero_()
    return results
