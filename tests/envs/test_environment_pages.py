"""The pages about environments say what the code does."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sf_envs import ENVIRONMENTS, atari, couriers, harvest, hidden_velocity, remember

from sf.envs.source import EXTRAS

PAGES = Path(__file__).parents[2] / "docs" / "environments"


def test_every_family_and_environment_has_its_place() -> None:
    overview = (PAGES / "README.md").read_text()
    own = (PAGES / "built-in.md").read_text()
    for env_id in ENVIRONMENTS:
        family, _, name = env_id.partition("/")
        if name == "*":
            assert f"| `{family}/" in overview
            page = {"central": "../policies/centralised-critic"}.get(family, family)
            assert f"`{family}/" in (PAGES / f"{page}.md").read_text()
        else:
            assert f"| `{env_id}` |" in own


def test_every_extra_has_its_command() -> None:
    shared = {extra: "tensors" for extra in ("craftax", "jax", "jumanji", "playground", "vmas")}
    for extra in EXTRAS:
        assert f'pip install "sf-rl[{extra}]"' in (PAGES / f"{shared.get(extra, extra)}.md").read_text()


@pytest.mark.parametrize(
    ("page", "makers"),
    [
        ("atari.md", [atari.make]),
        ("built-in.md", [remember.Remember, couriers.Couriers, hidden_velocity.HiddenVelocity, harvest.Harvest]),
    ],
    ids=["atari", "built-in"],
)
def test_documented_arguments_and_defaults_are_those_of_the_code(page: str, makers: list[Callable[..., Any]]) -> None:
    expected = {
        name: str(parameter.default)
        for make in makers
        for name, parameter in inspect.signature(make).parameters.items()
        if parameter.default is not parameter.empty and name not in ("render_mode", "max_episode_steps")
    }
    text = (PAGES / page).read_text()
    found = dict(re.findall(r"\| `(\w+)` \| (True|False|[\d.]+) \|", text))
    assert found == expected
