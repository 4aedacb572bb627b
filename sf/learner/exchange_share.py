"""Says once when learners that train together spend much of their steps on the exchange."""

from __future__ import annotations

MOST = 0.2
"""A larger share of the training time is worth a sentence."""
LEAST_STEPS = 200
"""With fewer steps the share says little: the first ones warm up."""


class ExchangeShare:
    """Adds up the time of datasets."""

    def __init__(self) -> None:
        self._steps, self._train_s, self._exchange_s, self._is_told = 0, 0.0, 0.0, False

    def add(self, steps: int, train_s: float, exchange_s: float) -> str:
        """A sentence, if this dataset makes it worth one.

        Args:
            steps: on the dataset.
            train_s: seconds for them.
            exchange_s: those of them that were spent on the exchange, waiting for other learners included.
        """
        self._steps += steps
        self._train_s += train_s
        self._exchange_s += exchange_s
        if self._is_told or self._steps < LEAST_STEPS or self._exchange_s <= MOST * self._train_s:
            return ""
        self._is_told = True
        each_ms = 1e3 * self._exchange_s / self._steps
        return (
            f"The exchange between learners takes {100 * self._exchange_s / self._train_s:.0f} % of an optimizer step "
            f"({each_ms:.2g} ms). A larger --batch_size or fewer --num_epochs make it matter less."
        )
