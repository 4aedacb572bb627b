"""What `torchrun` says of a rank (row C-X2)."""

from __future__ import annotations

import re

import pytest

from sf.errors import ConfigError
from sf.machine.rank import ALONE, Rank, rank_of

TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "5",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}  # fmt: skip


def test_rank_is_read_from_the_variables_of_torchrun() -> None:
    assert rank_of(TORCHRUN) == Rank(3, 4, 1, 2, "a", 5)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"HOME": "/"},
        TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
    ],
)
def test_without_others_a_run_is_an_ordinary_one(variables: dict[str, str]) -> None:
    assert rank_of(variables) == ALONE


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"RANK": ""}, "there is no RANK"),
        ({"MASTER_ADDR": "", "MASTER_PORT": ""}, "there is no MASTER_ADDR and no MASTER_PORT"),
        ({"RANK": "-1"}, "RANK='-1' is no number"),
        ({"RANK": "4"}, "RANK=4 of WORLD_SIZE=4, LOCAL_RANK=1 of LOCAL_WORLD_SIZE=2"),
        ({"LOCAL_RANK": "2"}, "RANK=3 of WORLD_SIZE=4, LOCAL_RANK=2 of LOCAL_WORLD_SIZE=2"),
        ({"LOCAL_WORLD_SIZE": "5"}, "LOCAL_RANK=1 of LOCAL_WORLD_SIZE=5"),
        ({"TORCHELASTIC_USE_AGENT_STORE": "False"}, "TORCHELASTIC_USE_AGENT_STORE=False shows that torchrun keeps no"),
    ],
)
def test_variables_that_do_not_fit_are_refused_in_one_sentence(change: dict[str, str], found: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(found)) as refused:
        rank_of(TORCHRUN | change)
    assert len(refused.value.problems) == 1
    assert "torchrun --nproc-per-node=N -m sf.cli.train" in str(refused.value)


def test_each_rank_samples_with_a_seed_of_its_own_and_a_run_that_is_alone_with_that_of_the_user() -> None:
    seeds = [Rank(rank, 3).sampling_seed(7) for rank in range(3)]
    assert seeds[0] == ALONE.sampling_seed(7) == 7
    assert len(set(seeds)) == 3


def test_ranks_of_one_machine_share_its_cores() -> None:
    assert [Rank(0, 8, 0, 4).share_of(cores) for cores in (8, 7, 3)] == [2, 1, 1]
    assert ALONE.share_of(7) == 7
