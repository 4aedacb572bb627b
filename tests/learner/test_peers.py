"""Several learners of one policy: together they do what one does with the whole dataset (row C-X2)."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from sf.config import LearnerConfig, ModelConfig
from sf.errors import InternalError
from sf.learner import ranks
from sf.learner.batch import Batch
from sf.learner.metrics import Summary
from sf.learner.peers import ALONE, Peers, peers_of
from sf.learner.ranks import Ranks
from sf.learner.update import Update
from sf.machine.rank import Rank
from sf.policy import ActorCritic
from sf.shared.arena import Arena, Field
from sf.shared.doorbell import Doorbell
from sf.shared.exchange import OUTBOX_BYTES, PeerLost, exchange_fields
from sf.shared.leaving import leaving_fields
from sf.shared.progress import Progress
from sf.spaces import ActionSpec, EnvInfo, LeafSpec
from tests.helpers.batches import make_batch

INFO = EnvInfo("test", 1, {"obs": LeafSpec((4,), "float32")}, ActionSpec.discrete(3))
STEPS = 8
DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


# ---------------------------------------------------------------------------------------------------------- processes


@contextlib.contextmanager
def of_one_run(number: int) -> Iterator[list[Callable[[], Peers]]]:
    """Makers of the learners of one run, each called in a process of its own."""
    arena, bells = Arena(exchange_fields(1, number)), [Doorbell() for _ in range(number)]
    yield [partial(peers_of, 0, index, arena, bells) for index in range(number)]


@contextlib.contextmanager
def of_several_ranks(number: int) -> Iterator[list[Callable[[], Peers]]]:
    """The same for ranks, beside a store as torchrun has it."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    fields = {"run_state": Field((1,), "int64"), "progress": Field((1,), "int64"), **leaving_fields()}
    yield [
        partial(rank_in, Arena(fields), Doorbell(), Rank(index, number, index, number, "127.0.0.1", store.port))
        for index in range(number)
    ]


def rank_in(arena: Arena, bell: Doorbell, rank: Rank, enough: int | None = None) -> Ranks:
    return Ranks(rank, 0, arena, bell, Progress(arena["progress"], 0), enough)


Makers = Callable[[int], contextlib.AbstractContextManager[list[Callable[[], Peers]]]]
EACH_WAY = pytest.mark.parametrize("makers", [of_one_run, of_several_ranks])


def together(makers: Makers, function: Any, *arguments: list[Any]) -> list[Any]:
    """What a function returns in as many processes as there are arguments, each of which is a learner of policy 0."""
    with makers(len(arguments)) as join:
        return called(function, join, arguments)


def called(function: Any, join: list[Callable[[], Peers]], arguments: Sequence[list[Any]]) -> list[Any]:
    context = multiprocessing.get_context("spawn")
    ends, processes = [], []
    for maker, own in zip(join, arguments, strict=True):
        end, child_end = context.Pipe(duplex=False)
        process = context.Process(target=call, args=(function, maker, own, child_end))
        process.start()
        child_end.close()
        ends.append(end)
        processes.append(process)
    try:
        assert all(end.poll(DEADLINE_S) for end in ends), "the learners wait for each other"
        return [pickle.loads(end.recv_bytes()) for end in ends]
    finally:
        for process in processes:
            process.kill()
            process.join()


def call(function: Any, join: Callable[[], Peers], own: list[Any], end: Connection) -> None:
    torch.set_num_threads(1)
    answer = function(join(), *own)
    # Not `send`, which shares the memory of tensors with a process that may be gone by then.
    end.send_bytes(pickle.dumps(answer))


# ------------------------------------------------------------------------------------------------------------- update


def make_update(config: dict[str, Any], model: dict[str, Any], peers: Peers | None = None) -> Update:
    torch.manual_seed(0)
    policy = ActorCritic(INFO, ModelConfig(encoder_mlp_layers=(16, 16), **model))
    flags = {"num_batches_per_epoch": 2, "num_epochs": 2, "shuffle_minibatches": False, "learning_rate": 1e-3, **config}
    return Update(policy, LearnerConfig(**flags), 8, peers or ALONE)


def random_dataset(seed: int, num_trajectories: int, state_size: int) -> Batch:
    """A dataset that some policy could have collected; its values differ from column to column."""
    random = torch.Generator().manual_seed(seed)
    shape = (STEPS, num_trajectories)
    kind = torch.randint(0, 8, shape, generator=random)
    scale = torch.linspace(0.5, 4.0, num_trajectories)
    return make_batch(
        observations={"obs": scale[:, None] * torch.randn(STEPS + 1, num_trajectories, 4, generator=random) + 1},
        initial_memory=torch.randn(num_trajectories, state_size, generator=random),
        streams=torch.arange(num_trajectories) % 8,
        actions=torch.randint(0, 3, shape, generator=random),
        behavior_log_probs=torch.log(0.2 + 0.2 * torch.rand(shape, generator=random)),
        values=torch.randn(shape, generator=random),
        rewards=scale * torch.randn(shape, generator=random),
        terminated=kind == 0,
        truncated=kind == 1,
        bootstrap_values=torch.randn(num_trajectories, generator=random),
        final_values=torch.randn(shape, generator=random),
        policy_version=torch.randint(-3, 1, shape, generator=random),
        valid=torch.ones(shape, dtype=torch.bool),
    )


Facts = tuple[dict[str, Tensor], list[tuple[float, float, float]], float, list[dict[str, float]]]
OF_A_SHARE = "explained_variance", "adv_std"
"""Shown as the means over the shares of all learners, because those of the whole do not follow from them."""


def trained_on(peers: Peers | None, config: Any, model: Any, batches: list[Batch]) -> Facts:
    """State, lags and learning rate after some datasets, and what was shown of each."""
    update = make_update(config, model, peers)
    update.want_summary = True
    lags, summaries = [], []
    for batch in batches:
        batch = batch.with_columns(policy_version=batch.policy_version + update.version)
        lags += [(step.lag_min, step.lag_avg, step.lag_max) for step in update.steps(batch)]
        summaries.append(update.summary())
    return {name: tensor.clone() for name, tensor in update.state_dict().items()}, lags, update.lr, summaries


def split(whole: Batch, sizes: tuple[int, int]) -> list[Batch]:
    """Two shares of which minibatch i, half of each share, makes minibatch i of the whole."""
    first, second = (size // 2 for size in sizes)
    columns: tuple[list[int], list[int]] = ([], [])
    at = 0
    for _ in range(2):
        columns[0].extend(range(at, at + first))
        columns[1].extend(range(at + first, at + first + second))
        at += first + second
    return [whole.trajectories(torch.tensor(own, dtype=torch.int64)) for own in columns]


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[int, int]]] = {
    "half a batch each": ({}, {}, (4, 4)),
    "unequal shares": ({}, {}, (2, 6)),
    "nothing for one": ({}, {}, (0, 8)),
    "one transition too old": ({"max_policy_lag": 3}, {}, (4, 4)),
    "population deviation": ({"advantage_ddof": 0}, {}, (2, 6)),
    "advantages as they are": ({"normalize_advantages": False}, {}, (2, 6)),
    "reward statistics": ({"normalize_rewards": True}, {}, (6, 10)),
    "V-trace": ({"with_vtrace": True}, {}, (2, 6)),
    "early stop": ({"target_kl": 0.035}, {}, (2, 6)),
    "adaptive rate": ({"lr_schedule": "kl_adaptive_minibatch", "lr_schedule_kl_threshold": 0.05}, {}, (2, 6)),
    "adaptive rate per epoch": ({"lr_schedule": "kl_adaptive_epoch", "lr_schedule_kl_threshold": 0.05}, {}, (2, 6)),
    "memory": ({}, {"use_rnn": True, "rnn_size": 8}, (2, 6)),
    "memory and nothing for one": ({"with_vtrace": True}, {"use_rnn": True, "rnn_size": 8}, (0, 8)),
}


@EACH_WAY
def test_cx2_two_learners_with_half_a_batch_each_equal_one_with_the_whole(makers: Makers) -> None:
    """Weights, optimizer, statistics, learning rate, lag and curves of three datasets, and copies to the last bit."""
    expected: dict[str, Facts] = {}
    jobs: tuple[list[Any], list[Any]] = ([], [])
    for name, (config, model, sizes) in CASES.items():
        update = make_update(config, model)
        wholes = [random_dataset(seed, sum(sizes), update.policy.state_size) for seed in range(3)]
        for job, share in zip(jobs, zip(*(split(whole, sizes) for whole in wholes), strict=True), strict=True):
            job.append((config, model, list(share)))
        expected[name] = trained_on(None, config, model, wholes)
    found = together(makers, train_all, *([job] for job in jobs))
    for name, first, second in zip(CASES, *found, strict=True):
        state, lags, rate, summaries = expected[name]
        assert first[1:] == second[1:], name
        assert first[1] == [pytest.approx(lag, abs=1e-9) for lag in lags], name
        assert first[2] == rate, name
        for shown, whole in zip(first[3], summaries, strict=True):
            assert shown.keys() == whole.keys(), name
            for tag in whole.keys() - set(OF_A_SHARE):
                assert shown[tag] == pytest.approx(whole[tag], rel=1e-4, abs=1e-5), (name, tag)
        for key, tensor in state.items():
            assert torch.equal(first[0][key], second[0][key]), (name, key)
            difference = (first[0][key] - tensor).abs().max().item()
            assert difference <= 1e-6 * max(1.0, tensor.abs().max().item()), (name, key, difference)


def test_a_learner_without_a_share_of_the_newest_minibatch_shows_none_of_an_older_one() -> None:
    summary = Summary()
    summary.add_share({"first_ratio_min": torch.tensor(0.9)}, 3)
    summary.add_share({"loss": torch.tensor(2.0), "fraction_clipped": torch.tensor(0.25)}, 3)
    summary.forget_shares()
    assert summary.read() == pytest.approx({"first_ratio_min": 0.9, "clipfrac": 0.25})


def train_all(peers: Peers, jobs: list[Any]) -> list[Facts]:
    return [trained_on(peers, *job) for job in jobs]


@EACH_WAY
def test_cx2_after_100_steps_two_learners_have_the_parameters_of_one(makers: Makers) -> None:
    wholes = [random_dataset(seed, 8, 0) for seed in range(25)]
    model: dict[str, Any] = {"normalize_returns": True}
    state, *_ = trained_on(None, {}, model, wholes)
    assert state["version"] == 100
    shares = zip(*(split(whole, (4, 4)) for whole in wholes), strict=True)
    for ((found, *_),) in together(makers, train_all, *([[({}, model, list(share))]] for share in shares)):
        for key, tensor in state.items():
            limit = 1e-6 if re.search("statistics|normalizer", key) else 1e-5
            assert (found[key] - tensor).abs().max().item() <= limit * max(1.0, tensor.abs().max().item()), key


@EACH_WAY
@pytest.mark.parametrize("normalize_rewards", [False, True])
def test_fault_b9_h4_what_one_cannot_learn_nobody_learns(makers: Makers, normalize_rewards: bool) -> None:
    """The share of one learner is no number: both skip its minibatches, and train on the next dataset."""
    good, bad = random_dataset(1, 4, 0), random_dataset(2, 4, 0)
    bad.rewards.fill_(float("nan"))
    jobs = [good, bad, normalize_rewards], [good, good, normalize_rewards]
    for before, after, skipped, steps in together(makers, train_and_skip, *jobs):
        assert any(name.startswith("reward_scaling.") for name in before) == normalize_rewards
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert (skipped, steps) == (4, [4, 0, 4])


def train_and_skip(peers: Peers, first: Batch, second: Batch, normalize_rewards: bool) -> Any:
    update = make_update({"normalize_advantages": False, "normalize_rewards": normalize_rewards}, {}, peers)
    steps = [len(list(update.steps(first)))]
    before = {name: tensor.clone() for name, tensor in update.state_dict().items()}
    steps.append(len(list(update.steps(second))))
    after = {name: tensor.clone() for name, tensor in update.state_dict().items()}
    steps.append(len(list(update.steps(first))))
    return before, after, update.num_skipped, steps


class Counting:
    """A process group that counts what is asked of it."""

    def __init__(self, group: Any) -> None:
        self.group, self.number = group, 0

    def __getattr__(self, name: str) -> Any:
        self.number += 1
        return getattr(self.group, name)


def test_cx2_an_optimizer_step_takes_one_exchange_between_ranks() -> None:
    """What else there is comes once in an epoch, or in a dataset."""
    share = random_dataset(1, 8, 0)
    for found in together(of_several_ranks, exchanges_of, [share], [share]):
        few, many = found
        assert many - few == 2 * (8 - 4)


def exchanges_of(peers: Ranks, share: Batch) -> list[int]:
    numbers = []
    peers._group = counting = Counting(peers._group)
    for num_minibatches in (4, 8):
        update = make_update({"num_batches_per_epoch": num_minibatches, "num_epochs": 2}, {}, peers)
        before = counting.number
        assert len(list(update.steps(share))) == 2 * num_minibatches
        numbers.append(counting.number - before)
    return numbers


def test_fault_b9_statistics_take_in_no_dataset_of_which_a_step_was_skipped() -> None:
    """One trajectory of four is no number: of the minibatches of two, those without it are trained on."""
    good, bad = random_dataset(1, 4, 0), random_dataset(2, 4, 0)
    bad.rewards[:, 0] = float("nan")
    update = make_update({"normalize_advantages": False}, {"normalize_returns": True})
    list(update.steps(good))
    before = {name: tensor.clone() for name, tensor in update.state_dict().items()}
    assert len(list(update.steps(bad))) == update.num_skipped == 2
    after = update.state_dict()
    for name, tensor in after.items():
        assert torch.isfinite(tensor).all(), name
        assert not re.search("statistics|normalizer", name) or torch.equal(tensor, before[name]), name
    assert not torch.equal(after["optimizer.exp_avg"], before["optimizer.exp_avg"])
    list(update.steps(good))
    assert update.state_dict()["statistics.returns.count"] > before["statistics.returns.count"]


# ----------------------------------------------------------------------------------------------------------- exchange


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


def test_peer_that_died_is_named_instead_of_waited_for() -> None:
    arena, (a, _) = in_this_process()
    ended = subprocess.Popen(["true"])
    ended.wait()
    arena["exchange/pid"][0, 1] = ended.pid
    with pytest.raises(PeerLost, match=rf"learner 0 of policy 0 waited for learner 1 \(pid {ended.pid}\), which has"):
        a.sum(1.0)
    assert not a.leave(), "no learner is left to agree with"


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
