"""The numbers of a policy, drawn beside the picture: how far the episode is, its value, and the choice of an action."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sf.policy import PolicyStep
from sf.shared.arena import Array
from sf.spaces import ActionSpec

WIDTH = 240
LEAST_HEIGHT = 240
"""Least height of a picture; smaller ones are enlarged, so that the panel beside them can be read."""
MARGIN = 10
FONT_SIZE, LINE_HEIGHT = 12, 16
SCALE_WIDTH = 54
"""Left of the curve of the value, for its lowest and highest number."""
VALUES_SHOWN = 200
INK, FAINT, BAR, CHOSEN = (230, 230, 230), (140, 140, 140), (70, 110, 160), (190, 110, 30)


class EpisodeSoFar(NamedTuple):
    """The present episode."""

    step: int = 0
    total: float = 0.0
    """Sum of the rewards of the first agent."""


BEGINNING = EpisodeSoFar()


class Panel:
    """Draws one picture after the other."""

    def __init__(self, action: ActionSpec) -> None:
        self.action = action
        self.names: Sequence[str] = ()
        """Names of the choices, see `sf.evaluator.action_names`; empty where they have none."""
        self.values: deque[float] = deque(maxlen=VALUES_SHOWN)

    def draw(self, step: PolicyStep, height: int, episode: EpisodeSoFar = BEGINNING) -> Array:
        """uint8[height, WIDTH, 3] of the first agent; empty before the first step."""
        from PIL import Image, ImageDraw, ImageFont

        picture = Image.new("RGB", (WIDTH, height))
        if step.info != ():
            canvas = ImageDraw.Draw(picture)
            canvas.font = ImageFont.load_default(FONT_SIZE)
            canvas.text((MARGIN, MARGIN // 2), f"step {episode.step:,}   return {_shown(episode.total)}", fill=INK)
            top = MARGIN // 2 + LINE_HEIGHT
            if step.info.value_prediction != ():
                self.values.append(float(step.info.value_prediction[0]))
                top = self._draw_values(canvas, top, height // 3)
            self._draw_actions(canvas, step, top, height)
        return np.asarray(picture)

    def _draw_values(self, canvas: Any, top: int, height: int) -> int:
        """The curve of the value, with its lowest and highest number at the left; returns where it ends."""
        canvas.text((MARGIN, top), f"value {_shown(self.values[-1])}", fill=INK)
        top += LINE_HEIGHT + 4
        bottom = max(top + LINE_HEIGHT, top + height - 2 * LINE_HEIGHT)
        low, high = min(self.values), max(self.values)
        left = MARGIN + SCALE_WIDTH
        xs = np.linspace(left, WIDTH - MARGIN, VALUES_SHOWN)
        ys = [bottom - (value - low) / ((high - low) or 1.0) * (bottom - top) for value in self.values]
        for number, place in ((high, top), (low, bottom)):
            canvas.text((left - 4, place), _shown(number), fill=FAINT, anchor="rm")
            canvas.line([(left, place), (WIDTH - MARGIN, place)], fill=(60, 60, 60))
        if len(ys) > 1:
            canvas.line(list(zip(xs.tolist(), ys, strict=False)), fill=(230, 150, 60), width=2)
        return bottom + MARGIN

    def _draw_actions(self, canvas: Any, step: PolicyStep, top: int, height: int) -> None:
        """A bar per choice with its probability, a number per component of a Box."""
        shown = bars(self.action, step, self.names)
        room = max(0, height - top) // LINE_HEIGHT
        if len(shown) > room:  # the likeliest ones, and the one that was chosen, in their order
            kept = sorted(range(len(shown)), key=lambda index: (shown[index][2], shown[index][1]))[len(shown) - room :]
            shown = [shown[index] for index in sorted(kept)] if room else []
        for label, share, is_chosen in shown:
            length = (WIDTH - 2 * MARGIN) * share
            color = CHOSEN if is_chosen else BAR
            canvas.rectangle([MARGIN, top, MARGIN + length, top + LINE_HEIGHT - 3], fill=color)
            canvas.text((MARGIN + 3, top), label, fill=INK)
            top += LINE_HEIGHT


def _shown(number: float) -> str:
    """With four digits; whole from a thousand on."""
    return f"{number:,.0f}" if 1e3 <= abs(number) < 1e7 else f"{number:.4g}"


def bars(action: ActionSpec, step: PolicyStep, names: Sequence[str] = ()) -> list[tuple[str, float, bool]]:
    """Label, length from 0 to 1 and whether it was chosen, for each choice and component of the first agent."""
    found: list[tuple[str, float, bool]] = []
    logits, first = step.info.action_params[0, : sum(action.choices)], 0
    chosen = step.action[0].reshape(-1)
    for index, column in enumerate(action.columns):
        if column.num_choices:
            probs = logits[first : first + column.num_choices].softmax(-1).tolist()
            first += column.num_choices
            for choice, prob in enumerate(probs):
                name = names[choice] if names else str(choice + column.start)
                found.append((f"{name}: {prob:.2f}", prob, choice == int(chosen[index])))
        else:
            number = float(chosen[index])
            low, high = max(column.low, -1e3), min(column.high, 1e3)
            share = float(np.clip((number - low) / (high - low), 0.0, 1.0)) if np.isfinite(high - low) else 0.5
            found.append((f"{number:+.2f}", share, True))
    return found
