"""The environment that an unknown name may mean."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Collection, Iterable


def unknown_name(name: str, known: Collection[str]) -> str:
    """A sentence about a name that is not known, with the nearest ones that are."""
    if name.startswith("ALE/") and not any(candidate.startswith("ALE/") for candidate in known):
        return f'The Atari environment {name!r} needs an extra: pip install "sf-rl[atari]"'
    family, _, member = name.partition("/")
    families = [pattern.removesuffix("/*") for pattern in known if pattern.endswith("/*")]
    near = [f"{match}/{member or '*'}" for match in _nearest(family, families)] + _nearest(name, known)
    if not name.startswith("ALE/") and (ours := own_name(name)):
        near = [ours]
    elif game := _atari_game(name):
        near = [game]
    if near:
        return f"There is no environment {name!r}. Did you mean {' or '.join(near[:3])}?"
    return (
        f"There is no environment {name!r}, and no similar name. Use a Gymnasium id such as CartPole-v1, module:Id for "
        "an environment that a module registers, or sf.register_env."
    )


def _atari_game(name: str) -> str | None:
    """Our name of the Atari game with this bare name, such as Pong or Pong-v5, where the games are installed."""
    try:
        import ale_py
        import gymnasium
    except ImportError:
        return None
    gymnasium.register_envs(ale_py)
    game = re.sub(r"-v\d+$", "", name)
    return f"atari/{game}" if f"ALE/{game}-v5" in gymnasium.registry else None


def own_name(env_id: str) -> str | None:
    """The name in one of our families of a game or world that Gymnasium knows by `env_id`; None if there is none."""
    name = env_id.rpartition(":")[2]
    if game := re.fullmatch(r"ALE/(\w+)-v\d|(\w+)(?:NoFrameskip|Deterministic)-v\d", name):
        return f"atari/{game[1] or game[2]}"
    world = re.fullmatch(r"MiniGrid-(.+?)(?:-v0)?", name)
    return world and f"minigrid/{world[1]}"


def is_of_old_gym(name: str) -> bool:
    """Whether the predecessor of Gymnasium knows the id, in a version that has a dict of them or an object with one."""
    registry = getattr(sys.modules.get("gym.envs.registration"), "registry", {})
    return name in getattr(registry, "env_specs", registry)


def _nearest(name: str, known: Iterable[str]) -> list[str]:
    by_lower = {candidate.lower(): candidate for candidate in known if not candidate.endswith("/*")}
    return [by_lower[match] for match in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.65)]
