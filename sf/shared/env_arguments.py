"""Arguments of environments that differ between the policies of a run: the director writes them, workers read them."""

from __future__ import annotations

from collections.abc import Sequence

from sf.shared.arena import Field

ENV_ARGUMENTS = "population/env_arguments"
"""Name of the shared array [policies, names]; a number is written as a whole, and one is not read with another."""


def env_argument_fields(num_policies: int, names: Sequence[str]) -> dict[str, Field]:
    """The shared array of these arguments."""
    return {ENV_ARGUMENTS: Field((num_policies, len(names)), "float64")}
