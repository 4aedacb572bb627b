"""The place of this run among several that train one policy together, as ``torchrun`` says it.

``torchrun`` starts one complete run for each rank and tells it in environment variables which one it is. They are read
here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sf.errors import ConfigError

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Set by ``torchrun`` for each process that it starts."""
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"


@dataclass(frozen=True)
class Rank:
    """One of several runs that train together; by default the only one."""

    rank: int = 0
    world_size: int = 1
    """How many there are."""
    local_rank: int = 0
    """The place among those on this machine."""
    local_world_size: int = 1
    """How many are on this machine."""
    host: str = ""
    """Where the store of ``torchrun`` is."""
    port: int = 0
    start: int = 0
    """Which start of all ranks this is, counted from 1 by rank 0; 0 where it is not known yet.

    ``torchrun`` counts too, but on each machine for itself.
    """
    goes_on: bool = False
    """Whether an earlier start has taken the directory of the experiment, as rank 0 knows it."""

    @property
    def is_alone(self) -> bool:
        """Whether the run is an ordinary one."""
        return self.world_size == 1

    @property
    def is_first(self) -> bool:
        """Rank 0 alone writes files and reports."""
        return self.rank == 0

    def share_of(self, cores: int) -> int:
        """The cores of this machine that one rank takes, at least 1."""
        return max(1, cores // self.local_world_size)

    def sampling_seed(self, seed: int) -> int:
        """The seed of environments and actions, of which no two ranks have the same; `seed` is that of the run."""
        return seed if self.is_first else int(np.random.SeedSequence([seed, self.rank]).generate_state(1)[0])


ALONE = Rank()


def rank_of(variables: Mapping[str, str]) -> Rank:
    """The rank that environment variables name; `ALONE` where they name none, or the only one.

    Raises:
        ConfigError: some of the variables are missing or contradict each other.
    """
    if not variables.get("RANK") and not variables.get("WORLD_SIZE"):
        return ALONE
    if missing := [name for name in VARIABLES if not variables.get(name)]:
        raise _refused(f"there is no {' and no '.join(missing)}")
    numbers = {name: _number(name, variables[name]) for name in VARIABLES if name != "MASTER_ADDR"}
    rank, size, local, local_size, port = numbers.values()
    if not (rank < size and local < local_size <= size):
        raise _refused(f"RANK={rank} of WORLD_SIZE={size}, LOCAL_RANK={local} of LOCAL_WORLD_SIZE={local_size}")
    if size == 1:
        return ALONE
    if variables.get(AGENT_STORE) != "True":
        raise _refused(f"{AGENT_STORE}={variables.get(AGENT_STORE, '')} shows that torchrun keeps no store")
    return Rank(rank, size, local, local_size, variables["MASTER_ADDR"], port)


def _number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise _refused(f"{name}={text!r} is no number")
    return int(text)


def _refused(found: str) -> ConfigError:
    return ConfigError(
        [
            f"The environment variables of torchrun do not fit together: {found}. Start ranks with "
            "torchrun --nproc-per-node=N -m sf.cli.train, or unset WORLD_SIZE and RANK for an ordinary run."
        ]
    )
