"""Configuration: sizes, and what is refused in which words."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sf.config import (
    Config,
    InferenceConfig,
    LearnerConfig,
    ModelConfig,
    RolloutConfig,
    RunConfig,
    check,
    checks,
    samples_per_iteration,
    samples_per_round,
    steps_per_round,
    sync_ratio,
)
from sf.errors import ConfigError
from sf.run.sizes import resolve
from sf.spaces import ActionColumn, ActionSpec, EnvInfo, LeafSpec
from tests.helpers.configs import env_info, make


def from_oracle(inputs: dict[str, int], async_rl: bool = False) -> Config:
    """The inputs of rows A8 and A11."""
    return make(
        run={"num_policies": inputs.get("num_policies", 1), "async_rl": async_rl},
        rollout={name: inputs[name] for name in ("num_workers", "num_envs_per_worker", "rollout")},
        learner={
            name: inputs[name] for name in ("batch_size", "num_batches_per_epoch", "num_epochs") if name in inputs
        },
    )


def refusal(config: Config, info: EnvInfo | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        check(config, info)
    return str(caught.value)


class TestSyncSizes:
    def test_a11_table_is_accepted_and_refused_exactly(self, oracles: dict[str, Any]) -> None:
        for case in oracles["A11"]["cases"]:
            config, expected = from_oracle(case["inputs"]), case["expected"]
            info = env_info(case["inputs"]["agents_per_env"])
            assert samples_per_round(config, info.num_agents) == expected["samples_per_round"]
            assert samples_per_iteration(config) == expected["samples_per_iteration"]
            assert float(sync_ratio(config, info.num_agents)) == expected["ratio"]
            if expected["accepted"]:
                check(config, info)
                continue
            message = refusal(config, info)
            for number in ("samples_per_iteration", "samples_per_round", "ratio"):
                assert str(expected[number]) in message
            assert "--async_rl=True" in message

    def test_a11_message_says_what_to_change(self) -> None:
        config = make(
            run={"async_rl": False},
            rollout={"num_workers": 16, "num_envs_per_worker": 8},
            learner={"batch_size": 512, "num_batches_per_epoch": 4},
        )
        assert refusal(config, env_info()) == (
            "batch_size=512 x num_batches_per_epoch=4 = 2048 transitions in a training iteration, but num_workers=16 x "
            "num_envs_per_worker=8 x rollout=32 = 4096 in a sampling round, a ratio of 0.5. Synchronous mode trains on "
            "1, 2, 3, ... whole rounds: use --batch_size=1024, or collect asynchronously with --async_rl=True."
        )

    def test_a11_agents_and_policies_share_a_round(self) -> None:
        config = make(
            run={"async_rl": False, "num_policies": 2},
            rollout={"num_workers": 2, "num_envs_per_worker": 4},
            learner={"batch_size": 256, "num_batches_per_epoch": 1},
        )
        check(config, env_info(num_agents=2))  # 512 transitions in a round, half of them for each policy
        assert "x 4 agents x rollout=32 / num_policies=2 = 512 in a sampling round" in refusal(config, env_info(4))

    def test_a11_asynchronous_mode_accepts_every_ratio(self, oracles: dict[str, Any]) -> None:
        for case in oracles["A11"]["cases"]:
            check(from_oracle(case["inputs"], async_rl=True), env_info())

    def test_a8_steps_per_round_and_the_lag_that_follows(self, oracles: dict[str, Any]) -> None:
        for case in oracles["A8"]["cases"]:
            steps = steps_per_round(from_oracle(case["inputs"]), case["inputs"]["agents_per_env"])
            assert steps == case["expected"]["F"]
            assert steps - 1 == case["expected"]["max_lag"]
            assert float((steps - 1) / 2) == case["expected"]["mean_lag"]

    def test_a10_flags_of_zero_lag_a2c_are_accepted(self) -> None:
        config = make(
            run={"async_rl": False},
            rollout={"num_workers": 2, "num_envs_per_worker": 4},
            learner={"batch_size": 256, "num_batches_per_epoch": 1, "num_epochs": 1},
        )
        check(config, env_info())


class TestRefusals:
    @pytest.mark.parametrize(
        ("role", "values", "message"),
        [
            ("rollout", {"num_workers": 0}, "num_workers=0 must be at least 1."),
            ("rollout", {"rollout": -3}, "rollout=-3 must be at least 1."),
            ("rollout", {"worker_num_splits": 0}, "worker_num_splits=0 must be at least 1."),
            ("learner", {"gamma": 1.5}, "gamma=1.5 must be at least 0 and at most 1."),
            ("learner", {"adam_beta2": 1.0}, "adam_beta2=1.0 must be at least 0 and below 1."),
            ("learner", {"learning_rate": 0.0}, "learning_rate=0.0 must be above 0."),
            ("learner", {"learning_rate": float("nan")}, "learning_rate=nan must be a finite number."),
            ("learner", {"max_grad_norm": float("inf")}, "max_grad_norm=inf must be a finite number."),
            ("model", {"encoder_mlp_layers": (64, 0)}, "encoder_mlp_layers=64 0 must be at least 1."),
            ("run", {"keep_checkpoints": 1}, "keep_checkpoints=1 must be at least 2."),
            ("run", {"seed": -1}, "seed=-1 must be at least 0 and at most 4294967295."),
            ("run", {"stop_at_reward": float("-inf")}, "stop_at_reward=-inf must be a finite number."),
            ("run", {"env": " "}, "env=' ' must be the id of an environment, for example --env=CartPole-v1."),
            ("run", {"train_dir": ""}, "train_dir='' must be a path, for example --train_dir=train_dir."),
            (
                "learner",
                {"lr_adaptive_min": 0.1, "lr_adaptive_max": 0.01},
                "lr_adaptive_min=0.1 is above lr_adaptive_max=0.01. Exchange them.",
            ),
            (
                "learner",
                {"batch_size": 33, "num_batches_per_epoch": 2},
                "batch_size=33 x num_batches_per_epoch=2 = 66 transitions are no whole number of trajectories of "
                "rollout=32 steps. Use a --batch_size that is a multiple of 32.",
            ),
        ],
    )
    def test_fault_g1_value_is_refused_in_one_sentence(self, role: str, values: dict[str, Any], message: str) -> None:
        assert refusal(make(**{role: values})) == message

    def test_cx2_learners_that_take_turns_in_one_process(self) -> None:
        assert refusal(make(run={"serial_mode": True}, learner={"num_learners": 2})) == (
            "num_learners=2 with serial_mode=True: learners of a policy wait for each other, so each needs a process "
            "of its own. Use --serial_mode=False, or --num_learners=1."
        )

    def test_s3_environments_that_form_no_equal_groups(self) -> None:
        """Where both were given: a derived number of groups never contradicts a given number of environments."""
        others: list[dict[str, Any]] = [{}, {"model": {"use_rnn": True}}, {"run": {"serial_mode": True}}]
        for other in (*others, {"run": {"device": "gpu"}}):
            for envs in (1, 5):
                config = make(rollout={"num_envs_per_worker": envs}, **other)
                check(config)
                resolved = resolve(config, env_info(), cores=2)
                check(resolved, env_info())
                assert resolved.rollout.worker_num_splits == 1
        assert refusal(make(rollout={"num_envs_per_worker": 5, "worker_num_splits": 2})) == (
            "num_envs_per_worker=5 cannot form worker_num_splits=2 equal groups. A worker steps its groups in turn, so "
            "they need the same size: use --num_envs_per_worker=4 or 6, or --worker_num_splits=1."
        )
        assert "use --num_envs_per_worker=3, or" in refusal(
            make(rollout={"num_envs_per_worker": 2, "worker_num_splits": 3})
        )

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("{", "(Expecting property name enclosed in double quotes: line 1 column 2 (char 1))"),
            ("[1]", "is not a JSON object. Write it like"),
            ("null", "is not a JSON object. Write it like"),
            ("{'a': 1}", "with double quotes inside"),
        ],
    )
    def test_env_kwargs_that_are_no_json_object(self, text: str, why: str) -> None:
        message = refusal(make(run={"env_kwargs": text}))
        assert message.startswith(f"env_kwargs={text!r} is not a JSON object")
        assert why in message

    @pytest.mark.parametrize("has_it", [True, False])
    def test_bfloat16_on_a_cpu_needs_instructions_for_it(self, has_it: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(checks, "has_bfloat16", lambda: has_it)
        rough = make(run={"bf16": True})
        if has_it:
            check(rough)
        else:
            assert "has no instructions for bfloat16 (avx512_bf16 or amx_bf16)" in refusal(rough)

    def test_what_workers_cannot_compute_without_torch_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(checks, "has_bfloat16", lambda: True)
        acting = InferenceConfig(policy_workers_per_policy=0)
        for rnn, bf16, named in ((True, False, "use_rnn=True"), (False, True, "bf16=True")):
            config = replace(make(model={"use_rnn": rnn}, run={"bf16": bf16}), inference=acting)
            assert f"That is not possible with {named}, only with one vector" in refusal(config)

    def test_bfloat16_is_too_rough_for_strict(self) -> None:
        message = refusal(make(run={"device": "gpu", "bf16": True}, learner={"strict": True}))
        assert message == (
            "strict=True with bf16=True: in bfloat16 the ratios of an unchanged policy are off by more than strict "
            "allows. Use --strict=False, or --bf16=False."
        )

    def test_env_kwargs_become_arguments(self) -> None:
        config = make(run={"env_kwargs": '{"continuous": true, "gravity": -9.5}'})
        check(config)
        assert config.run.env_arguments == {"continuous": True, "gravity": -9.5}

    def test_all_problems_are_told_at_once(self) -> None:
        config = make(
            run={"experiment": "../x", "env_kwargs": "[]"},
            rollout={"num_envs_per_worker": 5, "worker_num_splits": 2},
            learner={"gamma": 2.0, "num_epochs": 0},
        )
        with pytest.raises(ConfigError) as caught:
            check(config)
        assert len(caught.value.problems) == 5
        assert str(caught.value) == "\n".join(caught.value.problems)


class TestExperimentNames:
    @pytest.mark.parametrize("name", ["default_experiment", "a", "_x", "run-1.2", "A" * 100])
    def test_fault_g3_plain_names_are_accepted(self, name: str) -> None:
        check(make(run={"experiment": name}))

    @pytest.mark.parametrize(
        "name", ["", ".", "..", "a/b", "/a", "../a", "-a", ".hidden", "a\0b", "a b", "ä", "a\n", "A" * 101, "a:b", "~"]
    )
    def test_fault_g3_names_that_could_leave_the_directory_are_refused(self, name: str) -> None:
        message = refusal(make(run={"experiment": name}))
        assert message.startswith(f"experiment={name!r} cannot name a directory: use 1 to 100 of the characters")

    @given(st.text())
    def test_fault_g3_an_accepted_name_is_a_plain_entry_of_train_dir(self, name: str) -> None:
        config = make(run={"experiment": name, "train_dir": "root"})
        try:
            check(config)
        except ConfigError:
            return
        assert config.run.experiment_dir.parent == Path("root")
        assert config.run.experiment_dir.resolve().parent == Path("root").resolve()


class TestStorage:
    def test_json_gives_back_the_same_configuration(self) -> None:
        config = make(
            run={"seed": 3, "stop_at_reward": -250.0},
            rollout={"num_workers": 2},
            model={"encoder_mlp_layers": (32, 16, 8)},
            learner={"lr_schedule": "linear"},
        )
        assert Config.from_json(json.loads(json.dumps(config.to_json()))) == config

    def test_missing_parts_have_their_defaults(self) -> None:
        assert Config.from_json({"run": {"env": "Toy-v0"}}) == Config(RunConfig("Toy-v0"))
        assert Config.from_json({"run": {"env": "Toy-v0"}, "learner": {"gamma": 1}}).learner.gamma == 1.0

    @pytest.mark.parametrize("value", [True, False])
    def test_flags_that_are_gone_are_left_out_of_earlier_configurations(self, value: bool) -> None:
        assert Config.from_json({"run": {"env": "Toy-v0", "cuda_graphs": value}}) == Config(RunConfig("Toy-v0"))
        with pytest.raises(ConfigError, match=r"model\.cuda_graphs is unknown"):
            Config.from_json({"run": {"env": "Toy-v0"}, "model": {"cuda_graphs": value}})

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            ([], "Configuration: the file must be a JSON object, found []."),
            ({"run": 3}, "Configuration: run must be a JSON object, found 3."),
            ({"run": {"env": "x", "sed": 1}}, "Configuration: run.sed is unknown. Did you mean seed?"),
            ({"run": {"env": "x", "zzzz": 1}}, "Configuration: run.zzzz is unknown. Remove it."),
            ({"run": {}}, "Configuration: run.env is missing."),
            ({"run": {"env": 7}}, "Configuration: run.env must be a text, found 7."),
            ({"run": {"env": "x", "seed": "1"}}, "Configuration: run.seed must be an integer or null, found '1'."),
            ({"run": {"env": "x", "seed": True}}, "Configuration: run.seed must be an integer or null, found True."),
            ({"run": {"env": "x", "async_rl": 1}}, "Configuration: run.async_rl must be true or false, found 1."),
            (
                {"run": {"env": "x", "device": "tpu"}},
                "Configuration: run.device must be one of cpu, gpu, found 'tpu'.",
            ),
            (
                {"run": {"env": "x"}, "model": {"encoder_mlp_layers": [64, "64"]}},
                "Configuration: model.encoder_mlp_layers must be a list of numbers, found [64, '64'].",
            ),
        ],
    )
    def test_fault_g4_a_file_edited_by_hand_is_checked(self, data: Any, message: str) -> None:
        with pytest.raises(ConfigError) as caught:
            Config.from_json(data)
        assert message in caught.value.problems


def test_configuration_needs_neither_torch_nor_gymnasium_nor_numpy() -> None:
    code = "import sf.config, sys; print([m for m in ('torch', 'gymnasium', 'numpy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_c35_minibatches_of_a_policy_with_memory_are_whole_trajectories() -> None:
    info = EnvInfo("Toy-v0", 1, {"obs": LeafSpec((4,), "float32")}, ActionSpec.discrete(2))
    rollout, learner = RolloutConfig(rollout=64), LearnerConfig(batch_size=80, num_batches_per_epoch=4)
    config = Config(RunConfig("Toy-v0"), rollout, learner=learner, model=ModelConfig(use_rnn=True))
    assert refusal(resolve(config, info, cores=2), info) == (
        "use_rnn=True trains on whole trajectories, and the 5 trajectories of a batch cannot be dealt to "
        "num_batches_per_epoch=4 equal minibatches. Use a --num_batches_per_epoch that divides 5."
    )


@pytest.mark.parametrize(
    ("rollout", "learner", "use_rnn", "message"),
    [
        (
            {"num_workers": 2},
            {"num_learners": 3, "batch_size": 96},
            False,
            "num_learners=3 cannot share the 4 groups of environments (num_workers=2 x worker_num_splits=2) evenly. "
            "Use a --num_learners that divides 4, or another --num_workers.",
        ),
        (
            {"num_workers": 2},
            {"num_learners": 2, "batch_size": 160, "num_batches_per_epoch": 1},
            False,
            "num_learners=2 cannot share the 5 trajectories of a batch (batch_size=160 x num_batches_per_epoch=1 "
            "transitions, rollout=32) evenly. Use a --num_learners that divides 5, or another --batch_size.",
        ),
        (
            {"num_workers": 2},
            {"num_learners": 2, "batch_size": 32, "num_batches_per_epoch": 2},
            True,
            "use_rnn=True trains on whole trajectories, and the 1 trajectories that each learner has of a batch cannot "
            "be dealt to num_batches_per_epoch=2 equal minibatches. Use a --num_batches_per_epoch that divides 1.",
        ),
    ],
)
def test_cx2_learners_share_evenly(rollout: Any, learner: Any, use_rnn: bool, message: str) -> None:
    info = EnvInfo("Toy-v0", 1, {"obs": LeafSpec((4,), "float32")}, ActionSpec.discrete(2))
    model = ModelConfig(use_rnn=use_rnn)
    config = Config(RunConfig("Toy-v0"), RolloutConfig(**rollout), learner=LearnerConfig(**learner), model=model)
    assert refusal(resolve(config, info, cores=2), info) == message


class TestInferenceWorkersWithoutWork:
    MESSAGE = (
        "policy_workers_per_policy=2 with num_workers=1: each rollout worker is served by one inference worker of a "
        "policy, so some would serve none. Use --policy_workers_per_policy=1 or less, or --num_workers=2 or more."
    )

    def test_given_sizes_are_refused_before_the_environment_is_known(self) -> None:
        rollout = RolloutConfig(num_workers=1, num_envs_per_worker=4, worker_num_splits=1)
        config = Config(RunConfig("Toy-v0"), rollout, inference=InferenceConfig(policy_workers_per_policy=2))
        assert refusal(config) == self.MESSAGE

    def test_the_only_worker_of_serial_mode_is_refused_once_it_is_chosen(self) -> None:
        run, inference = RunConfig("Toy-v0", serial_mode=True), InferenceConfig(policy_workers_per_policy=2)
        config = Config(run, inference=inference)
        check(config)
        assert refusal(resolve(config, env_info(), cores=4), env_info()) == self.MESSAGE

    @pytest.mark.parametrize(("inference", "workers"), [(2, 2), (3, 4), (5, 8), (11, 16), (20, 32)])
    @pytest.mark.parametrize("learners", [1, 2])
    def test_sizes_left_open_follow_the_inference_workers(self, inference: int, workers: int, learners: int) -> None:
        config = Config(
            RunConfig("Toy-v0"),
            inference=InferenceConfig(policy_workers_per_policy=inference),
            learner=LearnerConfig(num_learners=learners),
        )
        resolved = resolve(config, env_info(), cores=1)
        assert resolved.rollout.num_workers == workers
        check(resolved, env_info())


def test_squashed_actions_need_finite_bounds() -> None:
    columns = (ActionColumn(low=-1.0, high=1.0), ActionColumn(low=0.0))
    info = EnvInfo("Toy-v0", 1, {"obs": LeafSpec((4,), "float32")}, ActionSpec(columns))
    config = Config(RunConfig("Toy-v0"), RolloutConfig(action_bounds="tanh"))
    assert refusal(resolve(config, info, cores=2), info) == (
        "action_bounds=tanh squashes actions into their bounds, but Toy-v0 has actions without finite bounds: a number "
        "from -1 to 1, a number from 0 to inf. Use --action_bounds=scale, which only clips those, or give them finite "
        "bounds: gymnasium.wrappers.TransformAction(env, lambda action: action, Box(-1, 1, shape)), say."
    )


@pytest.mark.parametrize(
    ("learner", "run", "names"),
    [
        ({"lr_schedule": "linear"}, {}, "lr_schedule=linear"),
        ({"ppo_clip_anneal": True, "lr_schedule": "linear"}, {}, "lr_schedule=linear and ppo_clip_anneal=True"),
        ({"ppo_clip_anneal": True}, {"stop_at_reward": 9.0}, "ppo_clip_anneal=True"),
        ({"lr_schedule": "linear"}, {"train_for_seconds": 9}, ""),
        ({"ppo_clip_anneal": True}, {"train_for_env_steps": 9}, ""),
        ({"lr_schedule": "kl_adaptive_epoch"}, {}, ""),
    ],
)
def test_schedules_to_the_end_of_a_run_need_an_end(learner: Any, run: Any, names: str) -> None:
    config = Config(RunConfig("Toy-v0", **run), learner=LearnerConfig(**learner))
    if not names:
        return check(config)
    message = f"^{names}: what shrinks in the course of a run needs its end. Give --train_for_env_steps or --train"
    with pytest.raises(ConfigError, match=message):
        check(config)
