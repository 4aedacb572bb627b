"""What policies answer, and mistakes in functions of a policy: a sentence that says what to change."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from sf.errors import ConfigError, SfError, UsageError
from sf.plans import LSTMModel, Policy, SampleBatch, WorkerSet, build_q_policy, build_torch_policy
from sf.plans.answers import checked_actions
from sf.plans.program import Program, packed, unpacked
from sf.spaces import ActionColumn, ActionSpec
from tests.helpers.commands import ROOT
from tests.helpers.planned import TEN_STEPS, CountingPolicy, TorchPull, pull

SPACES = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2)
ANSWERS: dict[str, Callable[[int], Any]] = {
    "more": lambda n: (np.zeros(n + 2, int), [], {}),
    "beyond": lambda n: (np.full(n, 5), [], {}),
    "fraction": lambda n: (np.full(n, 0.5), [], {}),
    "column": lambda n: (np.zeros((n, 1), int), [], {}),
    "nothing": lambda n: None,
    "whole": lambda n: (np.ones(n), [], {}),
    "truth": lambda n: (np.ones(n, bool), [], {}),
}


class Answering(Policy):
    """Answers rightly for the batch of zeros, which has four rows."""

    def compute_actions(self, obs_batch: Any, *rest: Any, **more: Any) -> Any:
        rows = len(obs_batch)
        return ANSWERS["whole" if rows == 4 else self.config["kind"]](rows)


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.more)])
@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("more", r"gave int64\[3\] \[0, 0, 0\], expected an array of shape \[1\] with whole numbers from 0 to 1"),
        ("beyond", r"gave int64\[1\] \[5\], expected an array"),
        ("fraction", r"gave float64\[1\] \[0.5\], expected an array"),
        ("column", r"gave int64\[1, 1\] \[\[0\]\], expected an array"),
        ("nothing", "must return a tuple of actions, recurrent states and extra columns, but returned a NoneType"),
    ],
)
def test_actions_that_no_environment_takes_end_the_plan_at_once(kind: str, sentence: str, num_workers: int) -> None:
    settings = {"env": TEN_STEPS, "num_workers": num_workers, "rollout_fragment_length": 5, "kind": kind}
    with WorkerSet(Answering, settings) as workers:
        worker = workers.remote_workers()[0] if num_workers else workers.local_worker()
        with pytest.raises(SfError, match=f"compute_actions of policy 'default_policy' {sentence}"):
            worker.sample()


def test_numbers_of_a_box_are_finite() -> None:
    box = ActionSpec((ActionColumn(low=-1.0, high=1.0),) * 2)
    assert checked_actions(np.array([[0.5, 7.0]]), "mine", 1, box).tolist() == [[0.5, 7.0]]
    with pytest.raises(UsageError, match=r"'mine' gave float64\[1, 2\].*shape \[1, 2\] with finite numbers"):
        checked_actions(np.array([[0.5, np.nan]]), "mine", 1, box)


@pytest.mark.parametrize("kind", ["whole", "truth"])
def test_whole_numbers_of_any_type_are_choices(kind: str) -> None:
    with WorkerSet(Answering, {"env": TEN_STEPS, "rollout_fragment_length": 5, "kind": kind}) as workers:
        assert workers.local_worker().sample()["actions"].tolist() == [1] * 5


def test_a_loss_that_is_not_finite_ends_the_plan_before_the_weights_change() -> None:
    def loss(policy: Any, model: Any, dist_class: Any, batch: SampleBatch) -> Any:
        return pull(policy, model, dist_class, batch) * batch["scale"].mean()

    def scaled(policy: Any, batch: SampleBatch, others: Any = None, episode: Any = None) -> SampleBatch:
        batch["scale"] = np.full(batch.count, np.nan, np.float32)
        return batch

    policy = build_torch_policy("Broken", loss_fn=loss, postprocess_fn=scaled)(*SPACES, {})
    before = policy.get_weights()
    zeros = {"obs": np.zeros((2, 3), np.float32), "actions": np.zeros(2, np.int64)}
    with pytest.raises(UsageError, match="The loss of the policy Broken is nan; its weights are as they were"):
        policy.learn_on_batch(SampleBatch({**zeros, "scale": np.full(2, np.nan, np.float32)}))
    np.testing.assert_equal(policy.get_weights(), before)


def with_second_optimizer() -> Any:
    def optimizers(policy: Any, config: Any) -> Any:
        policy.further = torch.nn.Linear(2, 1)
        policy.second = torch.optim.Adam(policy.further.parameters())
        return torch.optim.Adam(policy.model.parameters())

    return build_torch_policy("Two", loss_fn=pull, optimizer_fn=optimizers)(*SPACES, {})


def test_further_networks_and_optimizers_of_a_policy_are_saved() -> None:
    policy, fresh = with_second_optimizer(), with_second_optimizer()
    torch.autograd.backward(policy.further(torch.ones(3, 2)).sum())
    policy.second.step()
    fresh.set_state(policy.get_state())
    torch.testing.assert_close(fresh.further.state_dict(), policy.further.state_dict())
    torch.testing.assert_close(fresh.second.state_dict()["state"], policy.second.state_dict()["state"])
    earlier = {name: part for name, part in policy.get_state().items() if name != "parts"}
    with_second_optimizer().set_state(earlier)  # of an earlier version


def test_a_recurrent_policy_acts_from_a_state() -> None:
    policy = TorchPull(*SPACES, {"model": {"custom_model": LSTMModel}})
    with pytest.raises(UsageError, match="This policy is recurrent"):
        policy.compute_single_action(np.zeros(3, np.float32))
    _, state, _ = policy.compute_single_action(np.zeros(3, np.float32), policy.get_initial_state())
    assert len(state) == 2


def first_row(policy: Any, batch: SampleBatch, *_: Any) -> SampleBatch:
    return batch.slice(0, 1)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: TorchPull(*SPACES, {"model": {"fcnet_hiddens": [7]}}),
            "'fcnet_hiddens' in model. Did you mean 'hiddens'",
        ),
        (
            lambda: build_q_policy("Q", loss_fn=pull, config={})(SPACES[0], SPACES[0], {}),
            "Q learns values of one choice, but the actions are Box",
        ),
        (
            lambda: build_torch_policy("List", loss_fn=pull, optimizer_fn=lambda *_: [])(*SPACES, {}),
            "optimizer_fn of the policy List must return one torch optimizer",
        ),
        (
            lambda: build_torch_policy("Fewer", loss_fn=pull, postprocess_fn=first_row)(*SPACES, {}),
            "Postprocessing of policy 'Fewer' made 1 rows of 4",
        ),
        (
            lambda: build_torch_policy("S", loss_fn=pull, action_sampler_fn=lambda *_: (1, 2))(*SPACES, {}),
            "action_sampler_fn of the policy S must return actions and log-probabilities as tensors, and",
        ),
    ],
)  # fmt: skip
def test_functions_that_do_not_fit_are_named(make: Callable[[], Any], sentence: str) -> None:
    with pytest.raises((UsageError, ConfigError), match=sentence):
        make()


def test_a_missing_column_is_told_with_those_that_are_there() -> None:
    with pytest.raises(KeyError, match="The batch has no column 'advantage', only obs, advantages"):
        SampleBatch({"obs": [1], "advantages": [2]})["advantage"]


FILE = """
from tests.helpers.planned import TorchPull, pull
from sf.plans import ParallelRollouts, StandardMetricsReporting, TrainOneStep, build_trainer

def own_loss(*arguments):
    return pull(*arguments)

def plan(workers, config):
    return StandardMetricsReporting(ParallelRollouts(workers).for_each(TrainOneStep(workers)), workers, config)

Mine = build_trainer("Mine", default_policy=TorchPull.with_updates(loss_fn=own_loss), execution_plan=plan)
with Mine({"env": "CartPole-v1", "num_workers": 1}) as trainer:
    print("iteration", trainer.train()["training_iteration"])
"""


@pytest.mark.more
def test_a_file_that_trains_at_its_end_needs_no_main_guard(tmp_path: Path) -> None:
    (tmp_path / "own_plan.py").write_text(FILE)
    line = [sys.executable, "-m", "sf.cli.plan", "own_plan.py", "--env=CartPole-v1", "--train_for_env_steps=1000"]
    environment = os.environ | {"PYTHONPATH": ROOT}
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("iteration 1\n") == 1


def test_a_module_that_workers_do_not_find_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("loaded_from_elsewhere")
    exec("def mapping(agent): return 'default_policy'", vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    text = packed("A plan", Program({}, module.mapping))
    monkeypatch.delitem(sys.modules, module.__name__)
    with pytest.raises(UsageError, match="Workers do not find the module 'loaded_from_elsewhere', which the plan"):
        unpacked(text)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"train_batch_size": 0}, "train_batch_size=0 must be 1 or more"),
        ({"multiagent": {"policy": {}}}, "There is no setting 'policy' in multiagent. Did you mean 'policies'?"),
    ],
)
def test_settings_of_a_trainer_that_do_nothing_are_refused(settings: dict[str, Any], sentence: str) -> None:
    from sf.plans import build_trainer

    trainer = build_trainer("One", execution_plan=lambda *_: None, default_policy=CountingPolicy)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=sentence):
        trainer({"env": TEN_STEPS, **settings})
    if "multiagent" in settings:
        with pytest.raises(ConfigError, match=sentence):
            trainer.with_updates(default_config=settings)({"env": TEN_STEPS})
