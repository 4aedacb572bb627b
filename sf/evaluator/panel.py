"""The numbers of a policy, drawn beside the picture: its value over time and the probabilities of its actions."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from sf.policy import PolicyStep
from sf.shared.arena import Array
from sf.spaces import ActionSpec

WIDTH = 240
MARGIN = 10
VALUES_SHOWN = 200
BAR_HEIGHT = 14
INK, FAINT, BAR, CHOSEN = (230, 230, 230), (90, 90, 90), (70, 110, 160), (230, 150, 60)


class Panel:
    """Draws one picture after the other."""

    def __init__(self, action: ActionSpec) -> None:
        self.action = action
        self.values: deque[float] = deque(maxlen=VALUES_SHOWN)

    def draw(self, step: PolicyStep, height: int) -> Array:
        """uint8[height, WIDTH, 3] of the first agent; empty before the first step."""
        from PIL import Image, ImageDraw

        picture = Image.new("RGB", (WIDTH, height))
        if step.info != ():
            self.values.append(float(step.info.value_prediction[0]))
            canvas = ImageDraw.Draw(picture)
            top = self._draw_values(canvas, height // 3)
            self._draw_actions(canvas, step, top, height)
        return np.asarray(picture)

    def _draw_values(self, canvas: Any, height: int) -> int:
        """The curve of the value; returns where it ends."""
        canvas.text((MARGIN, MARGIN // 2), f"value {self.values[-1]:.2f}", fill=INK)
        top, bottom = 2 * MARGIN + 4, max(height, 3 * MARGIN + 4)
        low, high = min(self.values), max(self.values)
        xs = np.linspace(MARGIN, WIDTH - MARGIN, VALUES_SHOWN)
        ys = [bottom - (value - low) / ((high - low) or 1.0) * (bottom - top) for value in self.values]
        canvas.line([(MARGIN, bottom), (WIDTH - MARGIN, bottom)], fill=FAINT)
        if len(ys) > 1:
            canvas.line(list(zip(xs.tolist(), ys, strict=False)), fill=CHOSEN, width=2)
        return bottom + MARGIN

    def _draw_actions(self, canvas: Any, step: PolicyStep, top: int, height: int) -> None:
        """A bar per choice with its probability, a number per component of a Box."""
        for label, share, is_chosen in bars(self.action, step):
            if top + BAR_HEIGHT > height:
                break
            length = (WIDTH - 2 * MARGIN) * share
            color = CHOSEN if is_chosen else BAR
            canvas.rectangle([MARGIN, top, MARGIN + length, top + BAR_HEIGHT - 3], fill=color)
            canvas.text((MARGIN + 3, top - 1), label, fill=INK)
            top += BAR_HEIGHT


def bars(action: ActionSpec, step: PolicyStep) -> list[tuple[str, float, bool]]:
    """Label, length from 0 to 1 and whether it was chosen, for each choice and component of the first agent."""
    found: list[tuple[str, float, bool]] = []
    logits, first = step.info.action_params[0, : sum(action.choices)], 0
    chosen = step.action[0].reshape(-1)
    for index, column in enumerate(action.columns):
        if column.num_choices:
            probs = logits[first : first + column.num_choices].softmax(-1).tolist()
            first += column.num_choices
            for choice, prob in enumerate(probs):
                found.append((f"{choice + column.start}: {prob:.2f}", prob, choice == int(chosen[index])))
        else:
            number = float(chosen[index])
            low, high = max(column.low, -1e3), min(column.high, 1e3)
            share = float(np.clip((number - low) / (high - low), 0.0, 1.0)) if np.isfinite(high - low) else 0.5
            found.append((f"{number:+.2f}", share, True))
    return found
