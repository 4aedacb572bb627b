"""Environments that draw from global generators: evaluations repeat, and change nothing of the training."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sf.config import ModelConfig
from sf.envs import EnvSource, probe
from sf.envs.generators import GlobalGenerators
from sf.evaluator.cast import Cast
from sf.evaluator.playing import play
from sf.policy import ActorCritic, CollectPolicy
from sf.shared.messages import EvaluationDone
from tests.environments.luck import DRAWS, Luck
from tests.helpers.lab import make_lab, step_until

KINDS = list(DRAWS)


@pytest.mark.parametrize("kind", KINDS)
def test_an_evaluation_repeats(kind: str) -> None:
    """As of sf-eval: another one with the same seed plays the same episodes, whatever the process drew before."""
    source = EnvSource("Luck", {"kind": kind}, Luck)
    info = probe(source)
    policy = CollectPolicy(ActorCritic(info, ModelConfig()), validate_args=False)
    (first,), (again,), (other,) = (play(Cast([policy]), source, info, num_episodes=5, seed=seed) for seed in (3, 3, 4))
    assert first.rewards == again.rewards
    assert len(set(first.rewards)) == 5
    assert first.rewards != other.rewards


def trained(path: Path, kind: str, iterations: int, **flags: Any) -> tuple[torch.Tensor, list[float]]:
    """Weights of a serial run, and the scores of its evaluations."""
    lab = make_lab(path, f"tests.environments.luck:Luck-{kind}", **flags)
    roles = lab.build_all()
    step_until(roles, lambda: roles[0].record["iterations"] >= iterations)
    weights = roles[0].network.flat.clone()
    for role in roles:
        role.close()
    return weights, [message.reward for message in lab.told if isinstance(message, EvaluationDone)]


@pytest.mark.parametrize("kind", KINDS)
def test_in_serial_mode_training_and_evaluation_do_not_change_each_other(kind: str, tmp_path: Path) -> None:
    evaluations = {"eval_every_steps": 64, "eval_share": 1.0, "eval_episodes": 3}
    weights, scores = trained(tmp_path / "with", kind, 12, **evaluations)
    assert len(scores) >= 3
    assert len(set(scores)) == 1, "no policy can change the score"
    alone, _ = trained(tmp_path / "without", kind, 12)
    assert torch.equal(weights, alone)


def test_shared_generators_are_put_back_also_after_an_exception() -> None:
    own = GlobalGenerators([7], is_shared=True)
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    with own:
        drawn = [draw() for draw in DRAWS.values()]
    with pytest.raises(ZeroDivisionError), own:
        raise ZeroDivisionError
    with own:
        drawn += [draw() for draw in DRAWS.values()]
    after = [draw() for draw in DRAWS.values()]
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    assert after == [draw() for draw in DRAWS.values()]
    assert len(set(drawn)) == 6, "its own go on"
    own.seed()
    with own:
        assert [draw() for draw in DRAWS.values()] == drawn[:3]
