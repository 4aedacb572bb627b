"""Configuration: what is filled in where the user has left it open."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sf.config import InferenceConfig, RolloutConfig, check
from sf.envs.step_time import StepTime
from sf.envs.vectorization import PAYS_FROM
from sf.errors import ConfigError
from sf.run.sizes import resolve, wants_step_time
from tests.helpers.configs import env_info, make


class TestDefaults:
    @pytest.mark.parametrize("cores", [1, 2, 3, 4, 6, 8, 12, 24, 64, 256])
    def test_environments_and_batch_do_not_depend_on_the_cores(self, cores: int) -> None:
        resolved = resolve(make(), env_info(), cores)
        workers, envs = resolved.rollout.num_workers, resolved.rollout.num_envs_per_worker
        assert workers is not None
        assert envs is not None
        assert workers * envs == 64
        assert workers <= min(cores, 32)
        assert (resolved.learner.batch_size, resolved.learner.num_batches_per_epoch) == (256, 8)
        check(resolved, env_info())
        check(replace(resolved, run=replace(resolved.run, async_rl=False)), env_info())

    @pytest.mark.parametrize(
        ("rollout", "cores", "expected"),
        [
            ({}, 4, (4, 16)),
            ({"worker_num_splits": 1}, 16, (16, 4)),
            ({"worker_num_splits": 3}, 4, (2, 33)),
            ({"num_workers": 3}, 8, (3, 22)),
            ({"num_workers": 100}, 8, (100, 2)),
            ({"num_workers": 100, "worker_num_splits": 1}, 8, (100, 1)),
            ({"num_envs_per_worker": 8}, 4, (4, 8)),
            ({"num_envs_per_worker": 32}, 4, (2, 32)),
            ({"num_envs_per_worker": 128}, 4, (1, 128)),
            ({"num_workers": 2, "num_envs_per_worker": 6}, 4, (2, 6)),
        ],
    )
    def test_missing_sizes_follow_from_given_ones(
        self, rollout: dict[str, int], cores: int, expected: tuple[int, int]
    ) -> None:
        resolved = resolve(make(rollout=rollout, learner={"num_batches_per_epoch": 1}), env_info(), cores).rollout
        assert (resolved.num_workers, resolved.num_envs_per_worker) == expected
        check(make(rollout={"num_workers": expected[0], "num_envs_per_worker": expected[1]} | rollout))

    @pytest.mark.parametrize(
        ("step_us", "cpu_us", "cores", "workers"),
        [
            (10, 10, 2, 2),
            (10, 10, 64, 4),
            (1, 1, 8, 1),
            (1000, 1000, 2, 2),
            (1000, 1000, 64, 32),
            (2000, 1000, 2, 4),
            (2000, 1, 2, 32),
            (30, 1, 2, 8),
        ],
    )
    def test_workers_follow_from_the_time_of_a_step(self, step_us: int, cpu_us: int, cores: int, workers: int) -> None:
        """Few where a step takes no time, one per core where it computes, more where it waits; always 64 copies."""
        step = StepTime(1e-6 * step_us, 1e-6 * cpu_us)
        rollout = resolve(make(), env_info(), cores, step).rollout
        assert (rollout.num_workers, rollout.num_envs_per_worker) == (workers, 64 // workers)
        shared = make(learner={"num_learners": 4})
        resolved = resolve(shared, env_info(), cores, step)
        check(resolved, env_info())
        with_inference = replace(shared, inference=InferenceConfig(policy_workers_per_policy=1))
        assert resolve(with_inference, env_info(), 2).rollout.num_workers == 2

    @pytest.mark.parametrize(
        ("settings", "acts"),
        [
            ({}, True),
            ({"run": {"async_rl": False}}, True),
            ({"run": {"num_policies": 2}}, True),
            ({"run": {"device": "gpu"}}, False),
            ({"run": {"serial_mode": True}}, False),
            ({"model": {"use_rnn": True}}, False),
            ({"model": {"encoder_mlp_layers": (512, 512)}}, False),
            ({"rollout": {"num_workers": 2, "num_envs_per_worker": 96}}, True),
            ({"rollout": {"num_workers": 2, "num_envs_per_worker": 192}}, False),
            ({"rollout": {"num_workers": 1}, "learner": {"num_learners": 2}}, False),
            ({"rollout": {"num_workers": 2}, "learner": {"num_learners": 2}}, True),
        ],
    )
    def test_workers_act_for_themselves_with_small_networks_on_the_cpu(self, settings: Any, acts: bool) -> None:
        resolved = resolve(make(**settings), env_info(), cores=2)
        assert resolved.inference.policy_workers_per_policy == (0 if acts else 1)
        assert resolved.rollout.worker_num_splits == (1 if acts else 2)
        check(resolved, env_info())
        assert resolve(resolved, env_info(), cores=2) == resolved

    @pytest.mark.parametrize(
        ("layers", "cores", "workers", "inference"),
        [
            ((64, 64), 8, 1, 0),
            ((128, 128), 2, 2, 0),
            ((128, 128), 1, 1, 1),
            ((256, 256), 8, 8, 0),
            ((512, 512), 4, 1, 1),
        ],
    )
    def test_workers_whose_groups_would_be_too_large_for_acting_are_more(
        self, layers: tuple[int, ...], cores: int, workers: int, inference: int
    ) -> None:
        """As far as there are cores; environments that take no time have one worker otherwise."""
        resolved = resolve(make(model={"encoder_mlp_layers": layers}), env_info(), cores, StepTime(1e-6, 1e-6))
        assert (resolved.rollout.num_workers, resolved.inference.policy_workers_per_policy) == (workers, inference)

    @pytest.mark.parametrize("inference", [None, 1])
    @pytest.mark.parametrize("cores", [1, 2, 8, 64])
    @pytest.mark.parametrize("cpu_ms", [0.3, 2.0])
    @pytest.mark.parametrize("start_s", [0.1, 60.0])
    def test_environments_that_step_as_one_stay_together(
        self, inference: int | None, cores: int, cpu_ms: float, start_s: float
    ) -> None:
        """However much they wait, and however long they take to begin, which fewer of them would not shorten."""
        step = StepTime(2e-3 / 64, 1e-3 * cpu_ms / 64, start_s, copies=64)
        config = replace(make(), inference=InferenceConfig(policy_workers_per_policy=inference))
        rollout = resolve(config, env_info(), cores, step).rollout
        assert rollout.num_workers is not None
        assert rollout.num_envs_per_worker is not None
        splits = rollout.worker_num_splits or 1
        assert splits == (1 if inference is None else 2)
        assert rollout.num_workers * rollout.num_envs_per_worker == 64
        assert rollout.num_envs_per_worker // splits >= PAYS_FROM
        assert rollout.num_workers == min(cores, 4 // splits)

    def test_a_long_start_leaves_half_of_the_first_round_to_steps(self) -> None:
        """64 of them take 10 ms x 32 steps each for a first trajectory: too long beside 6 s of start."""
        slow = StepTime(0.01, 0.01, start_s=6.0, copies=64)
        assert resolve(make(), env_info(), 1, slow).rollout.num_envs_per_worker == PAYS_FROM

    @pytest.mark.parametrize(("cpu_us", "inference"), [(1000, 0), (700, 0), (500, 1)])
    def test_environments_that_wait_have_an_inference_process(self, cpu_us: int, inference: int) -> None:
        resolved = resolve(make(), env_info(), 2, StepTime(1e-3, 1e-6 * cpu_us))
        assert resolved.inference.policy_workers_per_policy == inference

    @pytest.mark.parametrize("given", [0, 1, 2])
    def test_who_acts_is_not_changed_where_it_was_given(self, given: int) -> None:
        config = replace(make(), inference=InferenceConfig(policy_workers_per_policy=given))
        assert resolve(config, env_info(), cores=2).inference.policy_workers_per_policy == given

    @pytest.mark.parametrize(
        ("settings", "wanted"),
        [
            ({}, True),
            ({"run": {"serial_mode": True}}, False),
            ({"run": {"async_rl": False}}, False),
            ({"rollout": {"num_workers": 2}}, True),
            ({"rollout": {"num_envs_per_worker": 8}}, False),
            ({"rollout": {"num_envs_per_worker": 8}, "learner": {"updates": "auto"}}, True),
            ({"rollout": {"num_envs_per_worker": 8}, "learner": {"updates": "auto", "num_epochs": 3}}, False),
            ({"run": {"serial_mode": True}, "learner": {"updates": "auto"}}, False),
        ],
    )
    def test_time_is_taken_only_where_it_decides_and_nothing_repeats(self, settings: Any, wanted: bool) -> None:
        assert wants_step_time(make(**settings)) is wanted

    @pytest.mark.parametrize(
        ("step", "rollout", "inference", "expected"),
        [
            (StepTime(0.005, 0.005), {}, 0, (2, 32, 1)),
            (StepTime(0.020, 0.020), {}, 0, (2, 8, 1)),
            (StepTime(0.020, 0.020), {}, 1, (2, 8, 2)),
            (StepTime(0.020, 0.020), {"num_workers": 4}, 0, (4, 8, 1)),
            (StepTime(0.020, 0.020), {"rollout": 128}, 0, (2, 2, 1)),
            (StepTime(0.020, 0.020), {"num_envs_per_worker": 32}, 0, (2, 32, 1)),
            (StepTime(0.700, 0.700), {}, 0, (2, 1, 1)),
            (StepTime(0.700, 0.700), {}, 1, (2, 1, 1)),
            (StepTime(0.700, 0.700), {"worker_num_splits": 2}, 1, (2, 2, 2)),
            (StepTime(0.700, 0.001), {}, 1, (32, 1, 1)),
            (StepTime(0.001, 0.001, start_s=2.0), {}, 0, (2, 4, 1)),
            (StepTime(0.052, 0.052, start_s=1.0), {}, 0, (2, 2, 1)),
            (StepTime(0.020, 0.020), {"worker_num_splits": 3}, 1, (2, 15, 3)),
        ],
    )
    def test_there_are_fewer_environments_where_a_first_round_would_take_long(
        self, step: StepTime, rollout: Any, inference: int, expected: tuple[int, int, int]
    ) -> None:
        """With resets and constructors, ten seconds at most where that is possible."""
        config = make(rollout=rollout, learner={"num_batches_per_epoch": 1})
        config = replace(config, inference=InferenceConfig(policy_workers_per_policy=inference))
        resolved = resolve(config, env_info(), 2, step)
        check(resolved, env_info())
        sizes = resolved.rollout
        assert (sizes.num_workers, sizes.num_envs_per_worker, sizes.worker_num_splits) == expected

    @pytest.mark.parametrize("num_learners", range(2, 9))
    @pytest.mark.parametrize("rollout", [{}, {"num_envs_per_worker": 8}, {"num_envs_per_worker": 5}])
    @pytest.mark.parametrize("inference", [0, 1])
    def test_derived_workers_can_be_shared_by_the_learners_that_were_given(
        self, num_learners: int, rollout: Any, inference: int
    ) -> None:
        learner = {"num_learners": num_learners, "num_batches_per_epoch": 1}
        config = make(rollout=rollout, learner=learner)
        config = replace(config, inference=InferenceConfig(policy_workers_per_policy=inference))
        check(resolve(config, env_info(), cores=2), env_info())

    def test_serial_mode_has_one_worker_with_all_environments(self) -> None:
        resolved = resolve(make(run={"serial_mode": True}), env_info(), cores=8).rollout
        assert (resolved.num_workers, resolved.num_envs_per_worker) == (1, 64)

    @pytest.mark.parametrize("num_policies", [1, 2, 3])
    def test_each_policy_learns_from_as_much_as_one_alone(self, num_policies: int) -> None:
        resolved = resolve(make(run={"num_policies": num_policies}), env_info(num_agents=2), cores=2)
        assert (resolved.learner.batch_size, resolved.learner.num_batches_per_epoch) == (512, 8)
        check(resolved, env_info(num_agents=2))
        config = make(run={"num_policies": num_policies, "async_rl": False}, learner={"num_batches_per_epoch": 4})
        resolved = resolve(config, env_info(num_agents=2), cores=2)
        assert resolved.learner.batch_size == 1024
        check(resolved, env_info(num_agents=2))

    @pytest.mark.parametrize(
        ("envs", "settings", "expected"),
        [
            (4, {}, (128, 1)),
            (8, {}, (256, 1)),
            (15, {}, (480, 1)),
            (16, {}, (256, 2)),
            (20, {}, (320, 2)),  # 640 are no two of 256 and a rest
            (40, {}, (256, 5)),
            (56, {}, (256, 7)),
            (512, {}, (2048, 8)),
            (40, {"model": {"use_rnn": True}}, (256, 5)),
            (24, {"model": {"use_rnn": True}, "rollout": {"rollout": 50}}, (300, 4)),
            (44, {"model": {"use_rnn": True}}, (352, 4)),  # 11 trajectories each
            (44, {}, (352, 4)),
            (16, {"learner": {"batch_size": 128}}, (128, 4)),
            (16, {"learner": {"batch_size": 300}}, (300, 8)),  # 75 trajectories of 32 steps
            (64, {"learner": {"batch_size": 2000}}, (2000, 2)),
            (64, {"learner": {"batch_size": 1000}}, (1000, 4)),
            (64, {"learner": {"batch_size": 333}}, (333, 32)),
            (64, {"learner": {"batch_size": 512}, "run": {"async_rl": False}}, (512, 4)),
            (60, {"learner": {"batch_size": 512}, "run": {"async_rl": False}}, (512, 15)),  # 4 rounds of 1,920
            (64, {"learner": {"batch_size": 4096}, "run": {"async_rl": False}}, (4096, 1)),
            (16, {"learner": {"batch_size": 4096}}, (4096, 1)),
            (16, {"learner": {"num_batches_per_epoch": 4}}, (128, 4)),
            (16, {"learner": {"batch_size": 64, "num_batches_per_epoch": 16}}, (64, 16)),
        ],
    )
    def test_minibatches_are_up_to_eight_of_at_least_256(self, envs: int, settings: Any, expected: Any) -> None:
        """And of whole trajectories where the policy has a memory; what is given stays."""
        rollout = {"num_workers": 1, "num_envs_per_worker": envs} | settings.pop("rollout", {})
        learner = resolve(make(rollout=rollout, **settings), env_info(), cores=2).learner
        assert (learner.batch_size, learner.num_batches_per_epoch) == expected

    def test_batch_size_that_cannot_be_derived_is_explained(self) -> None:
        config = make(learner={"num_batches_per_epoch": 3})
        with pytest.raises(
            ConfigError, match=r"num_batches_per_epoch=3 does not divide the 2048 transitions of a sampl"
        ):
            resolve(config, env_info(), cores=4)

    def test_seed_is_drawn_once_and_kept(self) -> None:
        drawn = resolve(make(), env_info(), cores=2)
        assert drawn.run.seed is not None
        assert resolve(drawn, env_info(), cores=2) == drawn
        assert resolve(make(run={"seed": 7}), env_info(), cores=2).run.seed == 7

    def test_synchronous_mode_holds_one_dataset(self) -> None:
        assert make(learner={"num_batches_to_accumulate": 3}).datasets_in_flight == 3
        assert make(run={"async_rl": False}).datasets_in_flight == 1

    def test_frames_count_the_frameskip_only_if_asked(self) -> None:
        assert RolloutConfig(env_frameskip=4).frames_per_step == 4
        assert RolloutConfig(env_frameskip=4, summaries_use_frameskip=False).frames_per_step == 1
