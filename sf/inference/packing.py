"""The answers of a policy side by side, so that a single transfer brings them to the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sf.inference.actors import NO_MEMORY, Answers
from sf.policy import PolicyStep
from sf.shared.arena import Array


class Packing:
    """The places of actions, log-probabilities, values and memory among words of 32 bits, of any meaning."""

    def __init__(self, step: PolicyStep) -> None:
        """Takes the dtypes and shapes of a step, which are the same for every number of rows."""
        self._action_dtype: np.dtype[Any] = np.dtype(str(step.action.dtype).removeprefix("torch."))
        self._action_shape = step.action.shape[1:]
        self._has_memory = isinstance(step.state, Tensor)
        self._heads = {name: head.shape[1:] for name, head in step.info.heads.items()}
        self._stops = np.cumsum([words.shape[1] for words in _columns(step)])[:-1]

    def unpack(self, words: Array) -> Answers:
        """The answers as views of words [B, n] int32."""
        actions, log_probs, values, *rest = np.split(words, self._stops, 1)
        memory = rest.pop(0).view(np.float32) if self._has_memory else NO_MEMORY
        heads = {
            name: part.view(np.float32).reshape(len(words), *shape)
            for (name, shape), part in zip(self._heads.items(), rest, strict=True)
        }
        return Answers(
            actions.view(self._action_dtype).reshape(len(words), *self._action_shape),
            log_probs.view(np.float32)[:, 0],
            values.view(np.float32)[:, 0],
            memory,
            heads,
        )


def packed(step: PolicyStep) -> Tensor:
    """All that the inference worker needs of a step, [B, n] int32 on its device."""
    return torch.cat(_columns(step), 1)


def _columns(step: PolicyStep) -> list[Tensor]:
    columns = [step.action, step.info.log_probability, step.info.value_prediction]
    columns += [step.state] if isinstance(step.state, Tensor) else []
    columns += [head.flatten(1) if head.dim() > 1 else head for head in step.info.heads.values()]
    return [_words_of(column) for column in columns]


def _words_of(column: Tensor) -> Tensor:
    """The bits of [B] or [B, D] as [B, words]."""
    return (column if column.dim() > 1 else column.unsqueeze(1)).contiguous().view(torch.int32)


class PinnedWords:
    """Memory of the host, pinned once, into which the device writes by itself."""

    def __init__(self) -> None:
        self._words = torch.empty(0, dtype=torch.int32)

    def take(self, words: Tensor) -> Array:
        """A copy on the host, good until the next one; returns when it is there."""
        if self._words.numel() < words.numel():
            self._words = torch.empty(words.numel(), dtype=torch.int32, pin_memory=words.is_cuda)
        copied: Array = self._words[: words.numel()].view(words.shape).copy_(words).numpy()
        return copied
