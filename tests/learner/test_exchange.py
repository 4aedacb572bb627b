"""The exchange between learners of one policy: how they wait, agree, part and notice what was lost (row C-X2)."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial

import pytest
import torch

from sf.errors import InternalError
from sf.learner import ranks
from sf.learner.peers import Peers, peers_of
from sf.learner.ranks import Ranks
from sf.shared.arena import Arena
from sf.shared.doorbell import Doorbell
from sf.shared.exchange import OUTBOX_BYTES, PeerLost, exchange_fields
from tests.helpers.learners import (
    DEADLINE_S,
    EACH_WAY,
    Makers,
    called,
    of_several_ranks,
    together,
)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def in_this_process(num_learners: int = 2) -> tuple[Arena, list[Peers]]:
    """Learners that may only do together what does not wait."""
    arena, bells = Arena(exchange_fields(1, num_learners)), [Doorbell() for _ in range(num_learners)]
    return arena, [peers_of(0, index, arena, bells) for index in range(num_learners)]


def test_all_train_when_all_are_ready() -> None:
    _, (a, b) = in_this_process()
    for _ in range(3):
        assert not a.are_ready()
        assert not a.are_ready()
        assert b.are_ready()
        assert a.are_ready()


def test_nobody_trains_once_one_has_left() -> None:
    _, (a, b) = in_this_process()
    assert not a.are_ready()
    assert not b.leave()
    assert not a.leave()
    assert not a.are_ready()


def test_who_is_told_to_end_first_trains_on_what_the_others_have_begun() -> None:
    _, (a, b) = in_this_process()
    assert not a.are_ready()
    assert b.are_ready()
    assert a.leave()
    assert not a.leave()
    assert not b.are_ready()
    assert not b.leave()


@pytest.mark.parametrize("is_reaped", [True, False])
def test_peer_that_died_is_named_instead_of_waited_for(is_reaped: bool) -> None:
    """Also where its parent, such as a fork server that stands still, has not taken note of its end."""
    arena, (a, _) = in_this_process()
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | (0 if is_reaped else os.WNOWAIT))
    arena["exchange/pid"][0, 1] = ended.pid
    with pytest.raises(PeerLost, match=rf"learner 0 of policy 0 waited for learner 1 \(pid {ended.pid}\), which has"):
        a.sum(1.0)
    assert not a.leave(), "no learner is left to agree with"
    ended.wait()


def test_peer_that_dies_while_it_is_waited_for_is_named() -> None:
    arena, (a, _) = in_this_process()
    peer = subprocess.Popen(["sleep", "0.2"])
    arena["exchange/pid"][0, 1] = peer.pid
    with pytest.raises(PeerLost, match=f"pid {peer.pid}"):
        a.sum(1.0)
    peer.wait()


def test_what_a_dead_peer_has_said_counts() -> None:
    arena, (a, b) = in_this_process()
    ended = subprocess.Popen(["true"])
    ended.wait()
    arena["exchange/pid"][0, 1] = ended.pid
    assert not b.are_ready()
    assert a.are_ready()


@pytest.mark.alone
def test_fault_h6_cx2_all_ranks_that_are_left_name_the_one_that_died() -> None:
    told = "Rank 2 of 3 has ended without telling the others, so all of them end."
    assert together(of_several_ranks, lost_unless, [False], [False], [True]) == [told, told, ""]


def lost_unless(peers: Peers, ends: bool) -> str:
    assert len(peers.sum(1.0)) == 1
    if ends:
        return ""
    with pytest.raises(PeerLost) as lost:
        peers.sum(1.0)
    assert lost.value.ends_run
    assert not peers.leave(), "no learner is left to agree with"
    return str(lost.value)


@pytest.mark.alone
def test_fault_h3_cx2_a_rank_that_hangs_is_named() -> None:
    """With three seconds instead of a minute."""
    lost, _ = together(of_several_ranks, waiting, [False], [True])
    assert lost == "Rank 1 of 2 has given no sign of life for 3 s, so all of them end."


def waiting(peers: Peers, hangs: bool) -> str:
    peers.sum(1.0)
    if hangs:
        subprocess.Popen(["sh", "-c", f"sleep 8; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
        return ""
    vars(ranks)["HUNG_S"] = 3.0
    with pytest.raises(PeerLost) as lost:
        peers.sum(1.0)
    return str(lost.value)


def test_fault_h4_different_exchanges_at_the_same_time_are_a_fault() -> None:
    _, (a, b) = in_this_process()
    assert not b.are_ready()
    with pytest.raises(InternalError, match=r"learner 0 of policy 0 is out of step: in round 1 it expects 16 bytes"):
        a.sum(1.0, 2.0)


@EACH_WAY
def test_vectors_longer_than_an_outbox(makers: Makers) -> None:
    size = OUTBOX_BYTES // 4 * 2 + 5
    arguments = [1.0, 3.0, size], [5.0, 1.0, size], [float("nan"), 0.0, size]
    found = together(makers, average_and_copy, *arguments)
    for average, copy in found:
        assert average == pytest.approx([2.0] * 2)
        assert copy == [1.0, 7]


def average_and_copy(peers: Peers, value: float, weight: float, size: int) -> tuple[list[float], list[float]]:
    average = torch.full((size,), value)
    peers.mean_(average, weight)
    assert (average == average[0]).all()
    copied = peers.take_from_first({"x": torch.full((size,), value), "n": torch.tensor(7 if value == 1.0 else 0)})
    assert (copied["x"] == copied["x"][0]).all()
    return average[[0, -1]].tolist(), [copied["x"][-1].item(), copied["n"].item()]


def ready_in_turn(peers: Ranks, delay_s: float) -> list[bool]:
    """What a rank sees that has its data so many seconds after the first one, in two datasets."""
    seen = []
    for _ in range(2):
        end_s = time.monotonic() + delay_s
        while time.monotonic() < end_s and not peers.others_wait():
            time.sleep(0.01)
        seen.append(peers.others_wait())
        while not peers.are_ready():
            time.sleep(0.001)
    return seen


def test_late_rank_sees_that_most_others_wait() -> None:
    """And again in the next dataset: the counter of the store begins anew with each."""
    with of_several_ranks(3) as join:
        makers: list[Callable[[], Peers]] = [partial(maker, enough=2) for maker in join]  # type: ignore[call-arg]  # of ranks
        seen = called(ready_in_turn, makers, [[0.0], [0.0], [DEADLINE_S]])
    assert seen[2] == [True, True]


def test_late_rank_of_two_is_waited_for() -> None:
    with of_several_ranks(2) as join:
        assert called(ready_in_turn, join, [[0.0], [0.2]])[1] == [False, False]
