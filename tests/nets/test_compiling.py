"""Training with `torch.compile`: the same as without it, and without it where that cannot be had."""

from __future__ import annotations

import copy
import logging
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from sf.config import check
from sf.errors import ConfigError
from sf.learner.update import Update
from sf.nets.fast import compiling
from sf.nets.fast.compiling import Compiled, Evaluate, _expect_the_same
from sf.policy import ActorCritic, Evaluation
from sf.run.preparation import prepare
from tests.helpers.commands import expect_exact_ledger, run, running
from tests.helpers.lab import make_config
from tests.helpers.updates import act, learner_config, make_policy, one_thread_and_seed, train

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of torch about itself
]

SMALL = (
    "--env=CartPole-v1", "--num_workers=1", "--num_envs_per_worker=8", "--policy_workers_per_policy=1", "--seed=1",
    "--torch_compile=True",
)  # fmt: skip
LEFT_OUT = "--torch_compile=True is left out from now on, and training takes as long as without it"
MEMORY = {"use_rnn": True, "rnn_size": 8}


@pytest.fixture(autouse=True)
def _compile_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    one_thread_and_seed()


def trained(policy: ActorCritic, **changes: Any) -> ActorCritic:
    """What becomes of a copy in three datasets of two minibatches; the last one has fewer transitions."""
    torch.manual_seed(1)
    update = Update(
        copy.deepcopy(policy), learner_config(num_batches_per_epoch=2, shuffle_minibatches=False, **changes)
    )
    for _ in range(2):
        train(update, act(update.policy, num_trajectories=4, version=update.version))
    train(update, act(update.policy, num_trajectories=2, version=update.version))
    assert update.version == 6
    return update.policy


@pytest.mark.slow
@pytest.mark.parametrize("config", [{}, MEMORY])
def test_compiled_training_is_the_same(config: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    policy = make_policy(**config)
    with caplog.at_level(logging.WARNING):
        compiled = trained(policy, torch_compile=True)
    assert not caplog.text
    torch.testing.assert_close(compiled.flat, trained(policy).flat, rtol=0.0, atol=1e-4)
    assert (compiled.flat - policy.flat).abs().max() > 1e-3, "it was trained"


@pytest.mark.parametrize("possible", [(), (16,)])
def test_what_cannot_be_compiled_is_trained_as_it_is_written(
    possible: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the first minibatch nor, later on, one of another size."""

    def only_possible(evaluate: Evaluate) -> Evaluate:
        def run(observations: dict[str, torch.Tensor], actions: torch.Tensor) -> Evaluation:
            if len(actions) not in possible:
                raise RuntimeError("no compiler here\nand much more")
            return evaluate(observations, actions)

        return run

    policy = make_policy(encoder_per_key=True)  # of which no way back is written out
    monkeypatch.setattr(compiling, "_compiled", only_possible)
    with caplog.at_level(logging.WARNING):
        found = trained(policy, torch_compile=True)
    assert [one.message for one in caplog.records] == [f"{LEFT_OUT}: RuntimeError no compiler here and much more"]
    assert torch.equal(found.flat, trained(policy).flat)


def test_what_the_network_raises_itself_is_raised() -> None:
    with pytest.raises(KeyError):
        Compiled(make_policy())({}, torch.zeros(6))


def test_compiler_is_needed_for_training_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What was trained with it is loaded where there is none."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    config = make_config(torch_compile=True, train_dir=str(tmp_path))
    check(config)
    with pytest.raises(
        ConfigError, match="torch_compile=True needs a C\\+\\+ compiler, but there is no no-such-compiler"
    ):
        prepare(config)


@pytest.mark.parametrize("wrong", ["values", "gradients"])
def test_wrong_numbers_are_noticed(wrong: str) -> None:
    policy = make_policy()
    observations, actions = {"obs": torch.randn(6, 4)}, torch.zeros(6, dtype=torch.int64)

    def compiled(*arguments: Any) -> Evaluation:
        right = policy.evaluate(*arguments)
        values = right.normalized_values
        return right._replace(normalized_values=1.01 * values if wrong == "values" else values.detach())

    _expect_the_same(policy, policy.evaluate, (observations, actions))
    with pytest.raises(ValueError, match="it gives other numbers, by up to"):
        _expect_the_same(policy, compiled, (observations, actions))
    assert not policy.flat_gradient.any(), "nothing of the comparison is left"


@pytest.mark.slow
def test_whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    finished = run(tmp_path, *SMALL, "--strict=True", "--train_for_env_steps=20000")
    assert finished.code == 0, finished.err
    assert "Compiled the network for training in " in finished.out
    assert not finished.err
    assert (tmp_path / "sf" / "torchinductor").stat().st_mode & 0o777 == 0o700, "nobody else can put code there"
    expect_exact_ledger(tmp_path, finished)


@pytest.mark.more
def test_fault_e3_second_signal_ends_the_compiler_as_well(tmp_path: Path) -> None:
    with running(tmp_path, *SMALL) as command:
        command.wait_for(lambda: command.named("g++"), "the compiler")
        command.process.send_signal(signal.SIGTERM)
        command.wait_for(lambda: not command.named("sf-rollout"), "the first signal to be followed by who can")
        assert command.process.poll() is None, "it should need the second one"
        command.process.send_signal(signal.SIGTERM)
        assert command.process.wait(10) == 143
        assert not command.named("g++")
        command.finish()
