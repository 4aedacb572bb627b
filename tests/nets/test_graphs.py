"""Forward passes that are replayed: the padding on the CPU, where a plain call stands for the replay."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor

from sf.nets.fast import acting, graphs
from sf.nets.fast.acting import FastAct, fastest_act
from sf.nets.fast.graphs import Bucketed, Replay, bucket_of, graphed
from sf.nets.fast.tracing import Acting, Program, check
from sf.policy import ActorCritic
from tests.nets.test_acting import CASES, LEAVES, SMALL
from tests.nets.test_actor_critic import discrete, make_policy

needs_cuda = pytest.mark.skipif("not torch.cuda.is_available()", reason="there is no GPU of NVIDIA")
ROWS = (1, 40, 7, 8, 9, 0, 33, 64, 2)


class Called:
    """Calls the program in place of a replay, into the memory of the first results, as graphs do."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, program: Program, places: tuple[Tensor, ...]) -> Replay:
        self.sizes.append(len(places[0]))
        results = tuple([result.clone() for result in program(*places)])

        def replay() -> tuple[Tensor, ...]:
            for result, new in zip(results, program(*places), strict=True):
                result.copy_(new)
            return results

        return replay


def test_buckets_are_powers_of_two() -> None:
    assert [bucket_of(rows) for rows in (1, 8, 9, 16, 17, 255, 256, 257)] == [8, 8, 16, 16, 32, 256, 256, 512]


@pytest.mark.parametrize("name", CASES)
def test_padded_replays_do_what_the_network_does(name: str) -> None:
    action, config = CASES[name]
    network = make_policy(action, **{**SMALL, **config}).requires_grad_(False)
    program, called = Acting(network), Called()
    run = Bucketed(program, called)
    with torch.inference_mode():
        for rows in ROWS:
            example = program.example(rows)
            found, expected = run(*example), program(*example)
            for result, right in zip(found, expected, strict=True):
                torch.testing.assert_close(result, right, rtol=1e-5, atol=1e-5)
            program.change_weights()
    assert called.sizes == [8, 64, 16]
    check(run, network, graphs.ROUNDING)


def test_rows_that_are_missing_are_filled_with_what_the_network_can_take() -> None:
    """Zeros would be no category here."""
    network = make_policy(discrete(3), LEAVES, **SMALL).requires_grad_(False)
    program = Acting(network)
    seen: list[Tensor] = []

    def watched(*places: Tensor) -> tuple[Tensor, ...]:
        seen.append(places[1 + list(network.info.observations).index("kind")].clone())
        results: tuple[Tensor, ...] = program(*places)
        return results

    with torch.inference_mode():
        Bucketed(watched, Called())(*program.example(3))
    assert all((kind[:, 0] >= 1).all() for kind in seen)


def test_memory_survives_in_what_is_handed_out() -> None:
    network = make_policy(discrete(3), use_rnn=True, rnn_size=6).requires_grad_(False)
    act = FastAct(network, Bucketed(Acting(network), Called()))
    observations = {"obs": torch.randn(5, 4)}
    state = expected = torch.rand(5, 6)
    for _ in range(3):
        expected = network.act(observations, expected).state
        state = act(observations, state).state
        torch.testing.assert_close(state, expected)


def test_what_cannot_be_captured_acts_as_it_is_written(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Elsewhere:
        is_cpu = False

    def refuse(network: ActorCritic) -> None:
        raise RuntimeError("no CUDA here")

    network = make_policy(discrete(2))
    monkeypatch.setattr(ActorCritic, "flat", Elsewhere())
    monkeypatch.setattr(acting, "graphed", refuse)
    assert fastest_act(network) == network.act
    assert not caplog.text
    with caplog.at_level(logging.WARNING):
        assert fastest_act(network, cuda_graphs=True) == network.act
    assert "no CUDA here" in caplog.text


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("name", CASES)
def test_gpu_graphs_do_what_the_network_does(name: str) -> None:
    action, config = CASES[name]
    settings = {**SMALL, **config}
    plain = make_policy(action, **settings)
    network = ActorCritic(plain.info, plain.config, "cuda").requires_grad_(False)
    run, program = graphed(network), Acting(network)
    with torch.inference_mode():
        for rows in ROWS:
            example = program.example(rows)
            found = [result.clone() for result in run(*example)]
            for result, right in zip(found, program(*example), strict=True):
                torch.testing.assert_close(result, right, rtol=1e-4, atol=1e-4)
            program.change_weights()
