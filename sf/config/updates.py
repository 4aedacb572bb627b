"""How much is learned from each frame: sizes of the update, from few optimizer steps to many.

Found by `benchmarks/suite.py`; docs/configuration.md has the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

UpdatesName = Literal["auto", "fast", "balanced", "efficient"]
ScheduleName = Literal["constant", "linear", "kl_adaptive_minibatch", "kl_adaptive_epoch", "kl_adaptive_batch"]


@dataclass(frozen=True)
class Updates:
    """What one batch is learned from with."""

    minibatch: int
    """Transitions in a minibatch, at least."""
    most_minibatches: int
    """Most minibatches of a batch."""
    epochs: int
    learning_rate: float
    """That of the first batches, where it follows how far the policy moves."""
    worth: float = 1.0
    """Times the wall time that a frame may take of that with the recipe before, because it takes fewer frames."""

    @property
    def most_steps(self) -> int:
        """Optimizer steps on one batch."""
        return self.epochs * self.most_minibatches


UPDATES: Mapping[UpdatesName, Updates] = {
    "fast": Updates(minibatch=256, most_minibatches=8, epochs=2, learning_rate=7e-4),
    "balanced": Updates(minibatch=128, most_minibatches=16, epochs=8, learning_rate=5e-4, worth=2.5),
    "efficient": Updates(minibatch=64, most_minibatches=32, epochs=10, learning_rate=3e-4, worth=1.25),
}
"""From the most frames per second to the most from each frame."""
