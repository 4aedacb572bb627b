"""How to make an environment, in a form that travels to other processes."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sf.envs.blame import blamed_on
from sf.envs.contract import describe
from sf.errors import EnvError
from sf.spaces import EnvInfo

EXTRAS = {
    "atari": ("ALE/", "atari/"),
    "box2d": ("gymnasium.envs.box2d",),
    "envpool": ("envpool/",),
    "minigrid": ("minigrid/",),
    "mujoco": ("gymnasium.envs.mujoco", "mujoco/"),
    "pettingzoo": ("pettingzoo/",),
    "vizdoom": ("vizdoom/",),
}
"""Extra of our package to the beginnings of the ids or of the modules of the environments that need it."""


@dataclass(frozen=True)
class EnvSource:
    """Everything a process needs to make one environment."""

    env_id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment."""
    factory: Callable[..., Any] | None = None
    """Makes the environment; None leaves it to `gymnasium.make`."""
    modules: tuple[str, ...] = ()
    """Imported before the environment is made, because they register it with Gymnasium."""

    def make(self, render_mode: str | None = None) -> Any:
        """A new environment: a `gymnasium.Env` or a multi-agent one. `render_mode` is passed on only if it is set.

        Raises:
            EnvError: a package is missing, or the constructor raises.
        """
        kwargs = dict(self.kwargs) | ({} if render_mode is None else {"render_mode": render_mode})
        with blamed_on(self.env_id, "the constructor"), _missing_package_explained(self.env_id):
            for module in self.modules:
                importlib.import_module(module)
            if self.factory is not None:
                return self.factory(**kwargs)
            import gymnasium

            # Gymnasium's checker would repeat on every reset and step of every environment what `probe` checks once.
            return gymnasium.make(self.env_id, disable_env_checker=True, **kwargs)

    def make_checked(self, expected: EnvInfo) -> Any:
        """Like `make`, but refuses an environment that differs from the one that was looked at first."""
        env = self.make()
        if expected.mask_from_info:
            env = with_mask(env)
        found = describe(env, self.env_id)
        if found != expected:
            raise EnvError(
                f"{self.env_id} is not what it should be. Expected: {expected}. Found: {found}. All environments of a "
                "run need the same agents and spaces, and a policy needs those that it was trained with."
            )
        return env


def with_mask(env: Any) -> Any:
    """The environment with `info["action_mask"]` as part of its observation."""
    from sf.envs.masks import MaskFromInfo  # imports gymnasium

    return MaskFromInfo(env)


@contextmanager
def _missing_package_explained(env_id: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not (isinstance(error, ImportError) or type(error).__name__ == "DependencyNotInstalled"):
            raise
        extra = next((extra for extra, start in EXTRAS.items() if _entry_point(env_id).startswith(start)), None)
        if extra is None:
            raise EnvError(f"{env_id} needs a package that is not installed: {error}") from error
        raise EnvError(
            f"{env_id} needs a package that is not installed ({error.__cause__ or error}). "
            f'Install it with: pip install "sf-rl[{extra}]"'
        ) from error


def _entry_point(env_id: str) -> str:
    """The module that defines a Gymnasium environment, or its id if that is not known."""
    import gymnasium

    spec = gymnasium.registry.get(env_id)
    return spec.entry_point if spec is not None and isinstance(spec.entry_point, str) else env_id
