"""The network under training by `torch.compile`: fewer and larger operations, once they are compiled.

It begins with the first minibatch, whose shape most others have. Its numbers and gradients are compared with those of
the network as it is written. Where the two differ, the network is trained as it is written. The same holds from then on
where torch cannot compile it, for this minibatch or a later one of another shape.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sf.console import Console
from sf.nets.actor_critic import ActorCritic
from sf.nets.outputs import Evaluation
from sf.nets.private import compile_in_one_thread

log = logging.getLogger(__name__)

Evaluate = Callable[..., Evaluation]
"""See `ActorCritic.evaluate`."""

ROUNDING, ROUNDING_OF_BFLOAT16 = 1e-4, 5e-2
"""Sums in another order: differences stay below this share of the largest number."""
MOST_OF_A_REASON = 300
"""Characters; torch adds pages."""


class Compiled:
    """Called like `ActorCritic.evaluate`, which it compiles when it is called for the first time."""

    def __init__(self, network: ActorCritic) -> None:
        self._network = network
        self._evaluate: Evaluate | None = None

    def __call__(self, *arguments: Any) -> Evaluation:
        """The first call takes as long as compiling does, and adds nothing to the gradient either."""
        try:
            if self._evaluate is None:
                self._evaluate = self._checked(arguments)
            return self._evaluate(*arguments)
        except Exception as error:  # of any kind; the network itself can always be trained
            if self._evaluate == self._network.evaluate:
                raise
            log.warning(
                "--torch_compile=True is left out from now on, and training takes as long as without it: %s",
                " ".join([type(error).__name__, *str(error).split()])[:MOST_OF_A_REASON],
            )
            self._evaluate = self._network.evaluate
            return self._evaluate(*arguments)

    def _checked(self, arguments: tuple[Any, ...]) -> Evaluate:
        console, began_s = Console(), time.monotonic()
        console.line("Compiling the network for training, which can take minutes.")
        compiled = _compiled(self._network.evaluate)
        _expect_the_same(self._network, compiled, arguments)
        console.line(f"Compiled the network for training in {time.monotonic() - began_s:.0f} s.")
        return compiled


def _compiled(evaluate: Evaluate) -> Evaluate:
    """In one thread of this process, and kept in a directory into which no other user can put code."""
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:  # torch takes a directory with a known name in /tmp
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sf" / "torchinductor"
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
    compile_in_one_thread()
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
    """The outputs of a network, and the gradient of their mean; that of the network is zero again afterwards."""
    evaluation = evaluate(*arguments)
    network.flat_gradient.zero_()
    torch.stack([evaluation.log_probs, evaluation.entropy, evaluation.normalized_values]).mean().backward()  # type: ignore[no-untyped-call]
    results = [evaluation.log_probs, evaluation.entropy, evaluation.normalized_values, network.flat_gradient]
    results = [result.detach().clone() for result in results]
    network.flat_gradient.zero_()
    return results
