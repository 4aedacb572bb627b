"""Labels with the version of the policy that acted, after TorchRL's `PolicyVersion`."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Generic, Literal, SupportsFloat, TypeVar

import gymnasium
import torch

from sf.replay.storage import leaves

Obs = TypeVar("Obs")
Act = TypeVar("Act")


VersionType = Literal["int", "uuid"] | type
KINDS: dict[VersionType, Literal["int", "uuid"]] = {
    "int": "int",
    int: "int",
    "uuid": "uuid",
    str: "uuid",
    uuid.UUID: "uuid",
}


class PolicyVersion:
    """Counts updates of the weights, and stamps data with the version in force.

    TorchRL stamps the result of a step, which can carry the version before; here a row carries the version that chose
    its action. In `sf-train` the inference workers write the label; this is for loops of one's own.
    """

    def __init__(self, version_type: VersionType = "int", version_key: str = "policy_version") -> None:
        """Starts at version 0, or at a random UUID.

        Args:
            version_type: ``int`` or ``"int"`` for a counter, ``str``, ``uuid.UUID`` or ``"uuid"`` for texts; samplers
                need the counter.
            version_key: under which data is labelled.

        Raises:
            ValueError: there is no such type.
        """
        if version_type not in KINDS:
            raise ValueError(f"version_type={version_type!r} must be 'int' or 'uuid', or the type int or str.")
        self.version_type, self.version_key = KINDS[version_type], version_key
        self.version: int | str = 0 if self.version_type == "int" else str(uuid.uuid4())
        self.history: list[int | str] = [self.version]
        """Every version so far, the present one last."""

    def increment_version(self) -> None:
        """To be called when the weights that act have changed."""
        self.version = self.version + 1 if isinstance(self.version, int) else str(uuid.uuid4())
        self.history.append(self.version)

    def state_dict(self) -> dict[str, Any]:
        """Kind, present version and every version so far."""
        return {"version_type": self.version_type, "version": self.version, "history": list(self.history)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state of `state_dict`.

        Raises:
            ValueError: its versions are of another kind.
        """
        if state["version_type"] != self.version_type:
            raise ValueError(
                f"The state has versions of version_type={state['version_type']!r}, but these are "
                f"{self.version_type!r}. Construct PolicyVersion({state['version_type']!r})."
            )
        self.version, self.history = state["version"], list(state["history"])

    def stamp(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        """The same rows, tensors [n, ...], with a column of the version in force.

        Raises:
            ValueError: the version is a UUID, which no tensor holds.
        """
        if not isinstance(self.version, int):
            raise ValueError("A UUID does not fit into a tensor. Use version_type='int' for rows of a buffer.")
        return {**rows, self.version_key: torch.full((len(leaves(rows)[0]),), self.version, dtype=torch.int64)}

    def wrap(self, env: gymnasium.Env[Obs, Act]) -> gymnasium.Env[Obs, Act]:
        """The environment, whose `info` of each step has the version that chose its action."""
        return _Stamped(env, self)


class _Stamped(gymnasium.Wrapper[Obs, Act, Obs, Act], Generic[Obs, Act]):
    def __init__(self, env: gymnasium.Env[Obs, Act], policy_version: PolicyVersion) -> None:
        super().__init__(env)
        self._policy_version = policy_version

    def step(self, action: Act) -> tuple[Obs, SupportsFloat, bool, bool, dict[str, Any]]:
        """See `gymnasium.Env.step`."""
        version = self._policy_version.version  # before the step, in which the weights may change
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, {**info, self._policy_version.version_key: version}
