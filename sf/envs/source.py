"""How to make an environment, in a form that travels to other processes."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sf.envs.blame import blamed_on
from sf.envs.contract import describe
from sf.envs.place import entry_point, parameters_of, place_arguments
from sf.errors import EnvError
from sf.spaces import EnvInfo

EXTRAS = {
    "atari": ("ALE/", "atari/"),
    "box2d": ("gymnasium.envs.box2d",),
    "envpool": ("envpool/",),
    "jax": ("gymnax/", "brax/"),
    "craftax": ("craftax/",),
    "jumanji": ("jumanji/",),
    "minigrid": ("minigrid/",),
    "mujoco": ("gymnasium.envs.mujoco", "mujoco/"),
    "pettingzoo": ("pettingzoo/",),
    "playground": ("playground/",),
    "vizdoom": ("vizdoom/",),
    "vmas": ("vmas/",),
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
    vector_factory: Callable[..., Any] | None = None
    """Makes `num_envs` copies that step at once; None leaves it to Gymnasium's `make_vec`."""
    registration: Callable[[], Any] | None = None
    """Gives the `gymnasium.envs.registration.EnvSpec` of the id, for processes in which nothing else registers it."""
    autoreset_mode: str = ""
    """Mode of copies that step at once and name none in their metadata; found by a look, see `sf.envs.autoreset`."""
    worker: int = 0
    """Number of the process that makes them, see `sf.envs.place`."""
    in_tensors: bool = False
    """Whether it is a simulator of `sf.envs.tensors`, whose copies always step as one."""
    max_episode_steps: int | None = None
    """Longest episode; a longer one is truncated. A factory with a parameter of this name sets the limit itself."""

    def make(self, render_mode: str | None = None, index: int = 0) -> Any:
        """A new environment: a `gymnasium.Env` or a multi-agent one.

        Args:
            render_mode: passed on only if it is set.
            index: of the environment in its process, passed on if the environment asks for it, see `sf.envs.place`.

        Raises:
            EnvError: a package is missing, or the constructor raises.
        """
        kwargs = dict(self.kwargs) | ({} if render_mode is None else {"render_mode": render_mode})
        with blamed_on(self.env_id, "the constructor"), _missing_package_explained(self.env_id):
            for module in self.modules:
                importlib.import_module(module)
            if self.factory is None:
                self._expect_registered()
            kwargs = place_arguments(self.maker(), self.worker, index) | kwargs
            limit = self._limit_of_maker(self.factory)
            if limit is not None:
                kwargs["max_episode_steps"] = limit
            if self.factory is not None:
                env = self._one(self.factory(**kwargs))
            else:
                import gymnasium

                # Its checker would repeat on every reset and step of every environment what `probe` checks once.
                env = _without_order_check(gymnasium.make(self.env_id, disable_env_checker=True, **kwargs))
            if self.max_episode_steps is None or limit is not None:
                return env
            from sf.envs.limit import limited  # imports gymnasium

            return limited(env, self.max_episode_steps)

    def _one(self, env: Any) -> Any:
        """What a factory has made.

        Raises:
            EnvError: it is several copies that step at once.
        """
        steps_many = hasattr(env, "step_async") or any(base.__name__ == "VectorEnv" for base in type(env).__mro__)
        if not steps_many or not isinstance(copies := getattr(env, "num_envs", None), int):
            return env
        raise EnvError(
            f"{self.env_id} made {type(env).__name__} of {copies} environments, expected one environment, because sf "
            "makes and steps copies itself. Give the class or function that makes one. Copies that step faster at once "
            "may come beside it, as make_vec of sf.register_env."
        )

    def maker(self) -> Callable[..., Any] | None:
        """The callable that makes an environment: the factory, or the entry point of Gymnasium; None if unknown."""
        return self.factory or entry_point(self.env_id)

    @property
    def offers_vector(self) -> bool:
        """Whether many copies can step at once: the environment has a vector factory or a `vector_entry_point`."""
        if self.vector_factory is not None or self.factory is not None:
            return self.vector_factory is not None
        import gymnasium

        spec = gymnasium.registry.get(self.env_id)
        return spec is not None and spec.vector_entry_point is not None

    @property
    def limits_vector(self) -> bool:
        """Whether copies that step at once keep to `max_episode_steps`, because their maker takes it."""
        return self.max_episode_steps is None or self._limit_of_vector() is not None

    def _limit_of_vector(self) -> int | None:
        """The limit for the maker of many copies; None if it takes no `max_episode_steps`."""
        import gymnasium
        from gymnasium.envs.registration import load_env_creator

        if self.vector_factory is not None:
            return self._limit_of_maker(self.vector_factory)
        spec = gymnasium.registry.get(self.env_id)
        if spec is None:
            return None
        entry = spec.vector_entry_point
        maker = load_env_creator(entry) if isinstance(entry, str) else entry
        return self._limit_of_maker(maker, spec.max_episode_steps)

    def _limit_of_maker(self, maker: Callable[..., Any] | None, own: int | None = None) -> int | None:
        """The limit for a maker of environments; None if there is no limit or the maker takes no `max_episode_steps`.

        A limit that the environment has of its own, `own` or the default of the parameter, stays if it is lower.
        """
        parameter = parameters_of(maker).get("max_episode_steps")
        if self.max_episode_steps is None or parameter is None:
            return None
        limits = (self.max_episode_steps, self.kwargs.get("max_episode_steps"), own, parameter.default)
        return min(limit for limit in limits if isinstance(limit, int))

    def make_vector(self, num_envs: int, seed: int, index: int = 0) -> Any:
        """Copies of the environment as one `gymnasium.vector.VectorEnv`.

        Args:
            num_envs: copies.
            seed: given to a vector factory that has an argument of this name, because some pools take it early.
            index: of the first environment in its process, passed on if the factory asks for it.

        Raises:
            EnvError: a package is missing, the constructor raises, or what it returns is no VectorEnv of this size.
        """
        import gymnasium

        with blamed_on(self.env_id, "the vectorized constructor"), _missing_package_explained(self.env_id):
            for module in self.modules:
                importlib.import_module(module)
            if self.vector_factory is None:
                self._expect_registered()
            asked = self.vector_factory or entry_point(self.env_id, vector=True)
            kwargs = place_arguments(asked, self.worker, index) | dict(self.kwargs)
            if self.max_episode_steps is not None:
                kwargs["max_episode_steps"] = self._limit_of_vector()
            if self.vector_factory is None:
                mode = gymnasium.VectorizeMode.VECTOR_ENTRY_POINT
                with warnings.catch_warnings():
                    warnings.filterwarnings(
                        "ignore", r".*metadata.*autoreset_mode|.*missing AutoresetMode", UserWarning
                    )
                    env: Any = gymnasium.make_vec(self.env_id, num_envs=num_envs, vectorization_mode=mode, **kwargs)
            else:
                takes_seed = "seed" in inspect.signature(self.vector_factory).parameters
                env = self.vector_factory(num_envs=num_envs, **kwargs, **({"seed": seed} if takes_seed else {}))
        num_made = env.num_envs if isinstance(env, gymnasium.vector.VectorEnv) else 0
        if num_made != num_envs:
            found = f"{num_made} environments" if num_made else type(env).__name__
            raise EnvError(
                f"The vector factory of {self.env_id} made {found}, expected a gymnasium.vector.VectorEnv of "
                f"{num_envs}."
            )
        return env

    def _expect_registered(self) -> None:
        """Registers an id that only the process of the look-up knew, such as one of a notebook.

        Raises:
            EnvError: its registration could not be sent here.
        """
        import gymnasium

        if self.env_id in gymnasium.registry:
            return
        if self.registration is not None:
            gymnasium.registry[self.env_id] = self.registration()
            return
        raise EnvError(
            f"Gymnasium does not know {self.env_id} in the processes of the run, although it does in the program that "
            "started it. They import that program anew, without what stands in a function, in a notebook or below "
            'if __name__ == "__main__". Call gymnasium.register at the top level of a module and name that module, '
            f"--env=my_module:{self.env_id}. Or call sf.register_env({self.env_id!r}, MyEnv) in its place, with a "
            "class or function at the top level of a module."
        )

    def make_checked(self, expected: EnvInfo, index: int = 0) -> Any:
        """Like `make`, but refuses an environment that differs from the one that was looked at first."""
        env = self.make(index=index)
        if expected.mask_from_info:
            env = with_mask(env)
        found = describe(env, self.env_id, num_agents=1 if expected.num_agents == 1 and is_gymnasium(env) else None)
        if found != expected:
            raise EnvError(
                f"{self.env_id} is not what it should be. Expected: {expected}. Found: {found}. All environments of a "
                "run need the same agents and spaces, and a policy needs those that it was trained with."
            )
        return env


def is_gymnasium(env: Any) -> bool:
    """Whether it is a `gymnasium.Env`, whose fields mean what they like."""
    import gymnasium

    return isinstance(env, gymnasium.Env)


def with_mask(env: Any) -> Any:
    """The environment with `info["action_mask"]` as part of its observation."""
    from sf.envs.masks import MaskFromInfo  # imports gymnasium

    return MaskFromInfo(env)


def _without_order_check(env: Any) -> Any:
    """Takes out the wrapper that looks in each step whether there was a reset before; for all users of ours there was.

    It takes half a microsecond of a step, of which CartPole has five.
    """
    from gymnasium import Wrapper
    from gymnasium.wrappers import OrderEnforcing

    if isinstance(env, OrderEnforcing):
        return env.env
    outer = env
    while isinstance(outer, Wrapper):
        if isinstance(outer.env, OrderEnforcing):
            outer.env = outer.env.env
            break
        outer = outer.env
    return env


@contextmanager
def _missing_package_explained(env_id: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not (isinstance(error, ImportError) or type(error).__name__ == "DependencyNotInstalled"):
            raise
        if "gymnasium-robotics" in str(error):
            raise EnvError(
                f"{env_id} is no more: Gymnasium has removed versions 2 and 3. Take mujoco/{env_id.partition('-v')[0]}."
            ) from error
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
