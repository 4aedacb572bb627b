"""Several learners of one policy: together they do what one does with the whole dataset (row C-X2)."""

from __future__ import annotations

import multiprocessing
import pickle
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
from torch import Tensor

from sf.arena import Arena
from sf.config import LearnerConfig, ModelConfig
from sf.doorbell import Doorbell
from sf.exchange import exchange_fields
from sf.learner.batch import Batch
from sf.learner.peers import Peers, peers_of
from sf.learner.update import Update
from sf.policy import Policy
from sf.spaces import ActionSpec, EnvInfo, LeafSpec

INFO = EnvInfo("test", 1, {"obs": LeafSpec((4,), "float32")}, ActionSpec.discrete(3))
STEPS = 8
DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


# ---------------------------------------------------------------------------------------------------------- processes


def together(function: Any, *arguments: list[Any]) -> list[Any]:
    """What a function returns in as many processes as there are arguments, each of which is a learner of policy 0."""
    context = multiprocessing.get_context("spawn")
    arena, bells = Arena(exchange_fields(1, len(arguments))), [Doorbell() for _ in arguments]
    ends, processes = [], []
    for index, own in enumerate(arguments):
        end, child_end = context.Pipe(duplex=False)
        process = context.Process(target=call, args=(function, index, arena, bells, own, child_end))
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


def call(function: Any, index: int, arena: Arena, bells: list[Doorbell], own: list[Any], end: Connection) -> None:
    torch.set_num_threads(1)
    answer = function(peers_of(0, index, arena, bells), *own)
    # Not `send`, which shares the memory of tensors with a process that may be gone by then.
    end.send_bytes(pickle.dumps(answer))


# ------------------------------------------------------------------------------------------------------------- update


def make_update(config: dict[str, Any], model: dict[str, Any], peers: Peers | None = None) -> Update:
    torch.manual_seed(0)
    policy = Policy(INFO, ModelConfig(encoder_mlp_layers=(16, 16), **model))
    flags = {"num_batches_per_epoch": 2, "num_epochs": 2, "shuffle_minibatches": False, "learning_rate": 1e-3, **config}
    return Update(policy, LearnerConfig(**flags), 8, *([peers] if peers else []))


def random_dataset(seed: int, num_trajectories: int, state_size: int) -> Batch:
    """A dataset that some policy could have collected; its values differ from column to column."""
    random = torch.Generator().manual_seed(seed)
    shape = (STEPS, num_trajectories)
    kind = torch.randint(0, 8, shape, generator=random)
    scale = torch.linspace(0.5, 4.0, num_trajectories)
    return Batch(
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


Facts = tuple[dict[str, Tensor], list[tuple[float, float, float]], float]


def trained_on(peers: Peers | None, config: Any, model: Any, batches: list[Batch]) -> Facts:
    """State, lags and learning rate after some datasets."""
    update = make_update(config, model, peers)
    lags = []
    for batch in batches:
        batch.policy_version = batch.policy_version + update.version
        lags += [(step.lag_min, step.lag_avg, step.lag_max) for step in update.steps(batch)]
    return {name: tensor.clone() for name, tensor in update.state_dict().items()}, lags, update.lr


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
    "early stop": ({"target_kl": 1e-3}, {}, (2, 6)),
    "adaptive rate": ({"lr_schedule": "kl_adaptive_minibatch", "lr_schedule_kl_threshold": 0.05}, {}, (2, 6)),
    "adaptive rate per epoch": ({"lr_schedule": "kl_adaptive_epoch", "lr_schedule_kl_threshold": 0.05}, {}, (2, 6)),
    "memory": ({}, {"use_rnn": True, "rnn_size": 8}, (2, 6)),
    "memory and nothing for one": ({"with_vtrace": True}, {"use_rnn": True, "rnn_size": 8}, (0, 8)),
}


def test_cx2_two_learners_with_half_a_batch_each_equal_one_with_the_whole() -> None:
    """Weights, optimizer, statistics, learning rate and lag, after three datasets, and the copies to the last bit."""
    expected: dict[str, Facts] = {}
    jobs: tuple[list[Any], list[Any]] = ([], [])
    for name, (config, model, sizes) in CASES.items():
        update = make_update(config, model)
        wholes = [random_dataset(seed, sum(sizes), update.policy.state_size) for seed in range(3)]
        for job, share in zip(jobs, zip(*(split(whole, sizes) for whole in wholes), strict=True), strict=True):
            job.append((config, model, list(share)))
        expected[name] = trained_on(None, config, model, wholes)
    found = together(train_all, *([job] for job in jobs))
    for name, first, second in zip(CASES, *found, strict=True):
        state, lags, rate = expected[name]
        assert first[1:] == second[1:], name
        assert first[1] == [pytest.approx(lag, abs=1e-9) for lag in lags], name
        assert first[2] == rate, name
        for key, tensor in state.items():
            assert torch.equal(first[0][key], second[0][key]), (name, key)
            difference = (first[0][key] - tensor).abs().max().item()
            assert difference <= 1e-6 * max(1.0, tensor.abs().max().item()), (name, key, difference)


def train_all(peers: Peers, jobs: list[Any]) -> list[Facts]:
    return [trained_on(peers, *job) for job in jobs]
