"""Policies from scratch and from functions, and postprocessing: rows D1 and D5 to D9."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from sf.errors import UsageError
from sf.nets.threads import one_thread
from sf.plans import (
    ParallelRollouts,
    SampleBatch,
    StandardMetricsReporting,
    TorchModel,
    build_torch_policy,
    build_trainer,
    compute_advantages,
)
from sf.plans.models import LSTMModel
from tests.helpers.planned import TEN_STEPS, CountingPolicy, TorchPull, pull

ORACLES: dict[str, Any] = json.loads((Path(__file__).parents[1] / "oracles.json").read_text())
SPACES = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2)


def test_d1_weights_of_a_policy_from_scratch_round_trip() -> None:
    policy = CountingPolicy(*SPACES, {})
    policy.set_weights({"w": 7.25})
    assert policy.get_weights() == {"w": 7.25}


def test_d1_weights_of_another_network_are_refused() -> None:
    policy, other = TorchPull(*SPACES, {}), TorchPull(*SPACES, {"model": {"hiddens": [8]}})
    with pytest.raises(UsageError, match=r"size mismatch.*the weights of a network with the same parameters"):
        policy.set_weights(other.get_weights())


def batch_of(policy: Any, rows: int = 8) -> SampleBatch:
    obs = np.random.default_rng(1).normal(size=(rows, 3)).astype(np.float32)
    actions, _, extra = policy.compute_actions(obs)
    return SampleBatch({"obs": obs, "actions": actions, "rewards": np.ones(rows, np.float32), **extra})


def test_d5_hooks_and_their_order() -> None:
    calls: list[str] = []

    def spy(name: str, result: Any = None) -> Any:
        def hook(*arguments: Any) -> Any:
            calls.append(name)
            return result(*arguments) if callable(result) else result

        return hook

    policy_class = build_torch_policy(
        "Spied",
        loss_fn=spy("loss_fn", pull),
        get_default_config=spy("get_default_config", lambda: {"lr": 0.5, "mine": 1}),
        stats_fn=spy("stats_fn", lambda policy, batch: {"rows": len(batch["actions"])}),
        postprocess_fn=spy("postprocess_fn", lambda policy, batch, others, episode: batch),
        extra_action_out_fn=spy(
            "extra_action_out_fn", lambda *_: {"extra": torch.ones(1).expand(_[1]["obs"].shape[0])}
        ),
        extra_grad_process_fn=spy("extra_grad_process_fn", {"norm": 2.0}),
        extra_learn_fetches_fn=spy("extra_learn_fetches_fn", {"fetched": 3}),
        optimizer_fn=spy(
            "optimizer_fn", lambda policy, config: torch.optim.SGD(policy.model.parameters(), config["lr"])
        ),
        validate_spaces=spy("validate_spaces"),
        before_init=spy("before_init"),
        before_loss_init=spy("before_loss_init"),
        after_init=spy("after_init"),
        make_model=spy("make_model", lambda policy, obs, act, config: TorchModel(obs, act, 2, {})),
    )
    policy = policy_class(*SPACES, {"mine": 2})
    assert policy_class.__name__ == "Spied"
    assert policy.config == {"lr": 0.5, "mine": 2}
    assert isinstance(policy.optimizer, torch.optim.SGD)
    set_up = [name for name in calls if "init" in name or name in ("validate_spaces", "make_model", "loss_fn")]
    assert set_up == ["validate_spaces", "before_init", "make_model", "before_loss_init", "loss_fn", "after_init"]
    assert calls.index("postprocess_fn") < calls.index("loss_fn") < calls.index("stats_fn")
    calls.clear()
    info = policy.learn_on_batch(batch_of(policy))
    assert calls == ["extra_action_out_fn", "loss_fn", "extra_grad_process_fn", "stats_fn", "extra_learn_fetches_fn"]
    assert info == {"rows": 8, "norm": 2.0, "fetched": 3}


def test_d5_replaced_actions_and_halves_of_learning() -> None:
    applied: list[Any] = []
    policy_class = build_torch_policy(
        "Replaced",
        loss_fn=lambda *_: torch.zeros((), requires_grad=True),
        make_model_and_action_dist=lambda policy, obs, act, config: (torch.nn.Linear(3, 2), None),
        action_sampler_fn=lambda policy, model, columns, states: (torch.ones(len(columns["obs"])).long(), None, []),
        compute_gradients_fn=lambda policy, batch: ([type(policy).__name__], {"rows": batch.count}),
        apply_gradients_fn=lambda policy, gradients: applied.append(gradients),
    )
    policy = policy_class(*SPACES, {})
    assert policy.compute_actions(np.zeros((3, 3), np.float32))[0].tolist() == [1, 1, 1]
    assert policy.learn_on_batch(batch_of(policy)) == {"rows": 8}
    assert applied == [["Replaced"]]

    def inputs(policy: Any, model: Any, columns: Any, states: Any) -> Any:
        from sf.plans import TorchCategorical

        return torch.tensor([[-50.0, 50.0]]).expand(len(columns["obs"]), 2), TorchCategorical, []

    other = TorchPull.with_updates(action_distribution_fn=inputs)(*SPACES, {})
    assert other.compute_actions(np.zeros((3, 3), np.float32))[0].tolist() == [1, 1, 1]
    with pytest.raises(UsageError, match="has no los_fn"):
        build_torch_policy("Wrong", loss_fn=pull, los_fn=pull)


def test_d6_methods_of_mixins_win_and_they_are_set_up_before_the_loss() -> None:
    class Schedule:
        def start_schedule(self) -> None:
            self.rate = 0.25

    class KLCoefficient:
        kl_coeff = 0.2

        def update_kl(self, kl: float) -> None:
            self.kl_coeff *= 1.5 if kl > 0.02 else 1.0

    class Value:
        def get_initial_state(self) -> list[Any]:
            return []

        def postprocess_trajectory(self, batch: Any, other: Any = None, episode: Any = None) -> Any:
            batch["from_mixin"] = np.ones(batch.count)
            return batch

    seen: list[float] = []

    def loss(policy: Any, model: Any, dist_class: Any, batch: SampleBatch) -> Any:
        seen.append(policy.rate)
        assert "from_mixin" in batch
        return pull(policy, model, dist_class, batch)

    policy = build_torch_policy(
        "Mixed", loss_fn=loss, mixins=[Schedule, KLCoefficient, Value],
        before_loss_init=lambda policy, *_: policy.start_schedule(),
    )(*SPACES, {})  # fmt: skip
    assert seen == [0.25]
    policy.update_kl(1.0)
    assert policy.kl_coeff == pytest.approx(0.3)


@pytest.mark.parametrize("hook", ["before_loss_init", "after_init"])
def test_d6_constructor_of_a_mixin_is_called_by_a_hook_and_by_nothing_else(hook: str) -> None:
    """So the mixins of RLlib are written."""

    class Schedule:
        def __init__(self, config: dict[str, Any]) -> None:
            self.rates = [*getattr(self, "rates", []), config["lr"]]

        def on_global_var_update(self, global_vars: dict[str, Any]) -> None:
            super().on_global_var_update(global_vars)  # type: ignore[misc]  # of the policy
            self.rates.append(global_vars["timestep"])

    def set_up(policy: Any, obs_space: Any, action_space: Any, config: dict[str, Any]) -> None:
        Schedule.__init__(policy, config)

    policy = build_torch_policy("Mixed", loss_fn=pull, mixins=[Schedule], **{hook: set_up})(*SPACES, {"lr": 0.5})
    policy.on_global_var_update({"timestep": 3})
    assert (policy.rates, policy.global_timestep) == ([0.5, 3], 3)


def test_d6_constructor_of_a_mixin_of_a_trainer_is_called_by_a_hook() -> None:
    class Curriculum:
        def __init__(self, level: int) -> None:
            self.level = level

    def plan(workers: Any, config: Any) -> Any:
        return StandardMetricsReporting(ParallelRollouts(workers), workers, config)

    trainer_class = build_trainer(
        "Mixed", execution_plan=plan, default_policy=TorchPull, mixins=(Curriculum,),
        before_init=lambda trainer: Curriculum.__init__(trainer, 3),
    )  # fmt: skip
    with trainer_class({"env": TEN_STEPS}) as trainer:
        assert trainer.level == 3  # type: ignore[attr-defined]  # of the mixin


def test_d7_with_updates_leaves_the_original() -> None:
    def other_loss(*arguments: Any) -> Any:
        return 2 * pull(*arguments)

    changed = TorchPull.with_updates(loss_fn=other_loss, name="Twice")
    assert (TorchPull.hooks.loss_fn, changed.hooks.loss_fn, changed.__name__) == (pull, other_loss, "Twice")
    assert TorchPull.__name__ == "TorchPull"

    def plan(workers: Any, config: Any) -> Any:
        raise NotImplementedError

    def other_plan(workers: Any, config: Any) -> Any:
        raise NotImplementedError

    trainer = build_trainer("One", execution_plan=plan, default_policy=TorchPull, default_config={"x": 1})
    another = trainer.with_updates(execution_plan=other_plan, name="Two")
    assert (trainer.execution_plan, another.execution_plan) == (plan, other_plan)
    assert (trainer.name, another.name, another.default_policy, another.default_config["x"]) == (
        "One",
        "Two",
        TorchPull,
        1,
    )


def test_d8_dummy_batch_finds_the_columns_that_are_read() -> None:
    moved: list[set[str]] = []

    def loss(policy: Any, model: Any, dist_class: Any, batch: SampleBatch) -> Any:
        moved.append(set(batch))
        return (model.from_batch(batch)[0].mean(1) * batch["advantages"]).mean()

    def postprocess(policy: Any, batch: SampleBatch, others: Any, episode: Any) -> SampleBatch:
        return compute_advantages(batch, 0.0, use_gae=False, use_critic=False)

    policy = build_torch_policy("Reads", loss_fn=loss, postprocess_fn=postprocess)(*SPACES, {})
    assert policy.columns_read == {"obs", "advantages"}
    batch = policy.postprocess_trajectory(batch_of(policy))
    policy.learn_on_batch(batch)
    assert {"rewards", "actions", "action_logp"} <= batch.keys()
    assert moved[-1] == {"obs", "advantages"}, "columns that nothing reads are not moved"


def test_gradients_and_steps_are_those_of_torch() -> None:
    policy = TorchPull(*SPACES, {"lr": 0.1})
    batch = batch_of(policy)
    before, state = policy.get_weights(), policy.get_state()
    policy.learn_on_batch(batch)
    whole = policy.get_weights()
    other = TorchPull(*SPACES, {"lr": 0.1})
    other.set_state(state)
    gradients, _ = other.compute_gradients(batch)
    np.testing.assert_equal(other.get_weights(), before)
    other.apply_gradients(gradients)
    np.testing.assert_equal(other.get_weights(), whole)
    assert not all(np.array_equal(before[name], whole[name]) for name in before)


@pytest.mark.parametrize("case", ORACLES["D9"]["cases"], ids=lambda case: str(case["inputs"]["last_r"]))
def test_d9_discounted_returns(case: dict[str, Any]) -> None:
    inputs = case["inputs"]
    batch = SampleBatch({"rewards": np.array(inputs["rewards"], np.float32)})
    compute_advantages(batch, inputs["last_r"], inputs["gamma"], use_gae=False, use_critic=False)
    assert batch["advantages"].tolist() == pytest.approx(case["expected"]["advantages"])


def test_d9_estimation_against_a_slow_loop() -> None:
    random = np.random.default_rng(3)
    rewards, values, gamma, lambda_ = random.normal(size=9), random.normal(size=9), 0.97, 0.8
    batch = SampleBatch({"rewards": rewards.astype(np.float32), "vf_preds": values.astype(np.float32)})
    compute_advantages(batch, 0.7, gamma, lambda_)
    after = [*values[1:], 0.7]
    errors = [rewards[t] + gamma * after[t] - values[t] for t in range(9)]
    wanted = [sum((gamma * lambda_) ** (k - t) * errors[k] for k in range(t, 9)) for t in range(9)]
    assert batch["advantages"] == pytest.approx(wanted, abs=1e-5)
    assert batch["value_targets"] == pytest.approx(np.array(wanted) + values, abs=1e-5)
    plain = SampleBatch({"rewards": rewards, "vf_preds": values})
    compute_advantages(plain, 0.7, gamma, use_gae=False)
    returns = [sum(gamma ** (k - t) * [*rewards, 0.7][k] for k in range(t, 10)) for t in range(9)]
    assert plain["advantages"] == pytest.approx(np.array(returns) - values, abs=1e-5)
    short, long = (SampleBatch({"rewards": rewards, "vf_preds": values}) for _ in range(2))
    compute_advantages(short, 0.7)
    compute_advantages(long, 0.7, 0.9, 1.0, use_gae=True, use_critic=True)
    assert short["advantages"].tolist() == long["advantages"].tolist()


def test_lstm_goes_through_a_batch_as_it_does_step_by_step() -> None:
    torch.manual_seed(1)
    model = LSTMModel(gym.spaces.Discrete(4), SPACES[1], 2, {"lstm_cell_size": 8})
    names, wanted = ("obs", "eps_id", "unroll_id", "t", "s0", "s1"), []
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for episode, length in enumerate([3, 1, 4]):
        states = [torch.randn(1, 8), torch.randn(1, 8)]
        for t in range(length):
            obs = torch.tensor([(3 * episode + t) % 4])
            for name, value in zip(columns, (obs, episode, 5, t, *states), strict=True):
                columns[name].append(value)
            outputs, states = model({"obs": obs}, states)
            wanted.append(outputs)
    batch = {name: torch.tensor(columns[name]) for name in ("eps_id", "unroll_id", "t")}
    batch |= {
        "obs": torch.cat(columns["obs"]),
        "state_in_0": torch.cat(columns["s0"]),
        "state_in_1": torch.cat(columns["s1"]),
    }
    torch.testing.assert_close(model.from_batch(batch)[0], torch.cat(wanted))


@pytest.mark.parametrize(
    ("hook", "returned", "message"),
    [
        (
            "loss_fn",
            None,
            "loss_fn of the policy Wrong must return a scalar tensor with gradient, but",
        ),
        ("loss_fn", torch.zeros(3), r"but returned a tensor of shape \[3\]"),
        ("postprocess_fn", None, "postprocess_fn of the policy Wrong must return the SampleBatch that it was given"),
        ("stats_fn", 3, "stats_fn of the policy Wrong must return a dict of statistics, but returned a int"),
        ("extra_action_out_fn", [], "extra_action_out_fn of the policy Wrong must return a dict of columns"),
    ],
)
def test_hook_that_returns_something_else_is_named(hook: str, returned: Any, message: str) -> None:
    policy_class = build_torch_policy("Wrong", **{"loss_fn": pull, hook: lambda *_: returned})
    with pytest.raises(UsageError, match=message):
        policy_class(*SPACES, {})


def test_policy_without_a_loss_is_refused() -> None:
    with pytest.raises(UsageError, match="The policy Lost has no loss"):
        build_torch_policy("Lost")


class Dropping(TorchModel):
    """Drops at random."""

    def features(self, obs: Any) -> Any:
        return torch.nn.functional.dropout(super().features(obs), 0.5, self.training)


def test_a_network_that_drops_at_random_acts_as_it_trains() -> None:
    policy = build_torch_policy(
        "Dropper",
        loss_fn=lambda policy, model, dist_class, batch: model({"obs": batch["obs"]})[0].mean(),
        make_model=lambda policy, obs_space, action_space, config: Dropping(obs_space, action_space, 2, {}),
    )(*SPACES, {})
    seen = torch.ones(50, 3)
    assert len(policy.model({"obs": seen})[0].unique(dim=0)) == 1
    policy.model.train()
    assert len(policy.model({"obs": seen})[0].unique(dim=0)) > 1


def test_a_policy_may_learn_in_training_mode() -> None:
    """As the page says it: the loss turns it on, and the statistics turn it off."""
    spread: list[int] = []

    def loss(policy: Any, model: Any, dist_class: Any, batch: SampleBatch) -> Any:
        model.train()
        logits, _ = model({"obs": batch["obs"]})
        spread.append(len(logits.unique(dim=0)))
        return logits.mean()

    policy = build_torch_policy(
        "Dropper",
        loss_fn=loss,
        stats_fn=lambda policy, batch: {"mode": float(policy.model.eval().training)},
        make_model=lambda policy, obs_space, action_space, config: Dropping(obs_space, action_space, 2, {}),
    )(*SPACES, {})
    rows = SampleBatch({"obs": np.ones((50, 3), np.float32)})
    assert policy.learn_on_batch(rows)["mode"] == 0
    assert spread[-1] > 1
    assert len(policy.model({"obs": torch.ones(50, 3)})[0].unique(dim=0)) == 1


def test_a_cell_of_an_lstm_has_64_units_where_nothing_else_is_said() -> None:
    assert [state.shape for state in LSTMModel(*SPACES, 2, {}).get_initial_state()] == [(64,), (64,)]


def test_a_block_with_one_thread_has_one_and_gives_the_others_back() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
