"""`--replay=staleness` in training: what enters the buffer, what is drawn, what is told (rows E19 and E20)."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sf.config import LearnerConfig, ReplayConfig
from sf.config.replaying import bytes_of_replayed_transition
from sf.errors import ExitCode
from sf.learner.batch import Batch
from sf.learner.dealing import Minibatch
from sf.learner.peers import Peers
from sf.learner.replayed import ReplayedMinibatches, weight_function
from sf.learner.source import ReleasedAtOnce
from sf.learner.update import Update
from sf.policy import ActorCritic, Sequences
from sf.replay import ReplayBuffer
from sf.replay.storage import leaves
from sf.spaces import ActionColumn, ActionSpec
from tests.helpers.commands import run
from tests.helpers.handed_over import arrays_in, overwrite
from tests.helpers.lab import make_config, make_lab, step_until
from tests.helpers.updates import DISCRETE, act, learner_config, make_policy, one_thread_and_seed

REPLAY = ReplayConfig("staleness", replay_size=200)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    one_thread_and_seed()


def make_update(policy: ActorCritic | None = None, replay: ReplayConfig = REPLAY, **flags: Any) -> Update:
    config = learner_config(num_epochs=2, num_batches_per_epoch=2, **flags)
    return Update(policy or make_policy(), config, replay=replay)


class Seen:
    """Everything that an update was given and drew."""

    def __init__(self, update: Update) -> None:
        self.minibatches: list[Minibatch] = []
        self.versions: list[int] = []
        self.update = update
        source, epoch = update._minibatches, update._minibatches.epoch

        def spied() -> Any:
            for minibatch in epoch():
                self.minibatches.append(minibatch)
                self.versions.append(update.version)
                yield minibatch

        source.epoch = spied  # type: ignore[method-assign]

    def train(self, batch: Batch) -> list[Any]:
        return list(self.update.steps(batch))


def buffer_of(update: Update) -> ReplayBuffer:
    source = update._minibatches
    assert isinstance(source, ReplayedMinibatches)
    assert source._buffer is not None
    return source._buffer


def fingerprints(observations: torch.Tensor) -> list[tuple[float, ...]]:
    return [tuple(row) for row in observations.reshape(-1, observations.shape[-1]).tolist()]


@pytest.mark.parametrize("model", [{}, {"use_rnn": True, "rnn_size": 8}])
def test_e20_staleness_is_that_of_the_drawn_rows_and_is_logged(model: dict[str, Any]) -> None:
    """Each row is known by its observation, so the versions that acted on what was drawn can be looked up."""
    update = make_update(make_policy(**model))
    seen, acted = Seen(update), dict[tuple[float, ...], int]()
    update.want_summary = True
    for dataset in range(4):
        batch = act(update.policy, version=update.version - min(dataset, 2))
        acted |= dict(
            zip(fingerprints(batch.observations["obs"][:-1]), batch.policy_version.flatten().tolist(), strict=True)
        )
        reports = seen.train(batch)
        assert len(reports) == 4
    drawn_again = False
    for minibatch, version in zip(seen.minibatches, seen.versions, strict=True):
        rows = minibatch.transitions
        lags = [version - acted[row] for row in fingerprints(rows.observations["obs"])]
        assert minibatch.lags == pytest.approx((min(lags), sum(lags) / len(lags), max(lags)))
        drawn_again |= max(lags) >= 6
    assert drawn_again, "some came from earlier datasets"
    summary = update.summary()
    last = seen.minibatches[-1].lags
    assert summary["staleness/batch_min"] == last.min == reports[-1].lag_min
    assert summary["staleness/batch_mean"] == pytest.approx(last.mean)
    assert summary["staleness/batch_max"] == last.max == reports[-1].lag_max
    assert summary["max_ratio"] >= summary["mean_ratio"] > 0
    assert 0 < summary["ESS"] <= 1
    assert summary["kl_approx"] == pytest.approx(summary["old_approx_kl"])


def test_e20_effective_sample_size_and_ratios() -> None:
    """The last minibatch counts, under the weights before the last step."""
    update = make_update()
    update.want_summary = True
    seen, evaluate = Seen(update), update._network.evaluate
    evaluations: list[Any] = []

    def kept(*arguments: Any) -> Any:
        evaluations.append(evaluate(*arguments))
        return evaluations[-1]

    update._network.evaluate = kept  # type: ignore[method-assign,assignment]
    seen.train(act(update.policy))
    rows = seen.minibatches[-1].transitions
    ratios = (evaluations[-1].log_probs - rows.behavior_log_probs).exp().double()
    summary = update.summary()
    assert summary["ESS"] == pytest.approx((ratios.sum() ** 2 / (len(ratios) * (ratios**2).sum())).item(), rel=1e-5)
    assert summary["max_ratio"] == pytest.approx(ratios.max().item(), rel=1e-5)
    assert summary["mean_ratio"] == pytest.approx(ratios.mean().item(), rel=1e-5)
    assert summary["kl_approx"] == pytest.approx(-ratios.log().mean().item(), abs=1e-5)


def test_only_own_and_young_transitions_enter() -> None:
    update = make_update(max_policy_lag=5)
    update.version = 7
    batch = act(update.policy, num_steps=4, num_trajectories=6)
    valid, versions = torch.ones(4, 6, dtype=torch.bool), torch.full((4, 6), 7)
    valid[:, 0] = False
    versions[:, 1], versions[:, 2] = 2, 3  # 5 and 4 steps old
    batch = batch.with_columns(valid=valid, policy_version=versions)
    list(update.steps(batch))
    source = update._minibatches
    assert isinstance(source, ReplayedMinibatches)
    assert source._buffer is not None
    assert len(source._buffer) == 4 * 4
    assert set(source._buffer.storage.column("policy_version").tolist()) == {3, 7}


def test_both_limits_at_five() -> None:
    """Lag 4 passes both, lag 5 is refused by `max_policy_lag` alone, lag 6 by both."""
    for limit, lags_taken in (("max_policy_lag", {4}), ("max_staleness", {4, 5})):
        replay = replace(REPLAY, max_staleness=5 if limit == "max_staleness" else -1)
        update = make_update(replay=replay, max_policy_lag=5 if limit == "max_policy_lag" else 1000)
        update.version, seen = 6, Seen(update)
        versions = torch.tensor([[2, 1, 0] * 2] * 8)
        next(iter(update.steps(act(update.policy).with_columns(policy_version=versions))))
        (first,) = seen.minibatches
        assert {first.lags.min, first.lags.max} == {min(lags_taken), max(lags_taken)}


@pytest.mark.parametrize(("staleness", "bound", "limit"), [(-1, None, -1), (-1, 6, 6), (9, 6, 6), (5, 6, 5), (0, 9, 0)])
def test_a_bound_of_the_lag_holds_for_what_is_drawn(staleness: int, bound: int | None, limit: int) -> None:
    config = learner_config(bound_policy_lag=bound)
    made = ReplayedMinibatches(make_policy(), config, replace(REPLAY, max_staleness=staleness), lambda: 0)
    assert made._sampler.max_staleness == limit


def test_values_follow_the_scale_of_the_value_head() -> None:
    """What is drawn has the values and targets that the scale of now gives, not those of the time when it came in."""
    update = make_update()
    normalizer = update.policy.return_normalizer
    assert normalizer is not None
    with torch.no_grad():
        normalizer.mean.fill_(-2.0)
        normalizer.std.fill_(4.0)
    batch, seen = act(update.policy), Seen(update)
    values = dict(zip(fingerprints(batch.observations["obs"][:-1]), batch.values.flatten().tolist(), strict=True))
    seen.train(batch)
    with torch.no_grad():
        normalizer.mean.fill_(3.0)
        normalizer.std.fill_(0.5)
    source = update._minibatches
    assert isinstance(source, ReplayedMinibatches)
    drawn = next(source.epoch()).transitions
    own = [values[row] for row in fingerprints(drawn.observations["obs"])]
    torch.testing.assert_close(drawn.old_values, update.policy.normalize(torch.tensor(own)), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(drawn.value_targets, update.policy.normalize(drawn.returns))


def test_recurrent_policies_draw_whole_trajectories_with_ratio_one(tmp_path: Path) -> None:
    """Unchanged weights give what they gave when acting, on trajectories out of the buffer."""
    lab = make_lab(
        tmp_path, use_rnn=True, rnn_size=8, replay="staleness", rollout=8, num_envs_per_worker=8, strict=True
    )
    roles = lab.build_all()
    learner = roles[0]
    ratios: list[float] = []
    look = learner.update._look_at_first_ratios

    def kept(evaluation: Any, rows: Any, unchanged: bool) -> None:
        if unchanged:
            ratios.extend((evaluation.log_probs - rows.behavior_log_probs).exp().tolist())
        look(evaluation, rows, unchanged)

    learner.update._look_at_first_ratios = kept
    step_until(roles, lambda: learner.update.version >= 1)
    assert len(ratios) == 64
    assert ratios == pytest.approx([1.0] * 64, abs=1e-5)


def test_recurrent_trajectories_go_on_from_their_state_over_ends_and_train_the_steps_of_the_own_policy() -> None:
    """The ratio is 1 only if state, resets and the steps that train come out of the buffer as they went in."""
    policy = make_policy(use_rnn=True, rnn_size=8)
    batch = act(policy)
    batch = Batch(batch.by_step, {**batch.by_trajectory, "initial_memory": torch.randn_like(batch.initial_memory)})
    resets, observations = batch.resets[:-1], batch.observations["obs"][:-1]
    with torch.no_grad():
        sequences = Sequences(batch.initial_memory, resets)
        inputs = {"obs": observations.flatten(0, 1)}, batch.actions.flatten()
        log_probs = policy.evaluate(*inputs, sequences).log_probs.view(resets.shape)
    valid = torch.rand(resets.shape) < 0.7
    batch = batch.with_columns(valid=valid, log_probs=log_probs.where(valid, torch.tensor(5.0)))
    assert resets[1:].any()
    update = make_update(policy)
    found: list[tuple[Any, Any]] = []
    update._look_at_first_ratios = lambda *facts, **_: found.append(facts)  # type: ignore[method-assign]
    next(iter(update.steps(batch)))
    ((evaluation, rows),) = found
    torch.testing.assert_close(evaluation.log_probs, rows.behavior_log_probs, atol=1e-5, rtol=0)
    assert set(fingerprints(rows.observations["obs"])) <= set(fingerprints(observations[valid]))


def test_a_recurrent_trajectory_is_as_old_as_its_oldest_step_that_trains() -> None:
    """And it keeps its own recurrent state where trajectories before it are left out."""
    policy = make_policy(use_rnn=True, rnn_size=8)
    update = make_update(policy)
    update.version = 9
    batch = act(policy, num_steps=4, num_trajectories=4)
    states = torch.arange(4.0).unsqueeze(1).expand(4, policy.state_size)
    batch = Batch(batch.by_step, {**batch.by_trajectory, "initial_memory": states.clone()})
    versions = torch.tensor([[9, 3, 7, 2], [9, 4, 8, 9], [9, 5, 9, 9], [9, 6, 9, 9]])
    valid = torch.ones(4, 4, dtype=torch.bool)
    valid[:, 0] = False
    valid[0, 3] = False  # of which the oldest step belongs to another policy
    next(iter(update.steps(batch.with_columns(valid=valid, policy_version=versions))))
    kept = buffer_of(update).storage.read(torch.arange(3))
    assert kept["policy_version"].tolist() == [3, 7, 9]
    assert kept["initial_state"][:, 0].tolist() == [1.0, 2.0, 3.0]


def test_what_a_buffer_was_given_may_change() -> None:
    for policy in (make_policy(), make_policy(use_rnn=True, rnn_size=8)):
        update, batch = make_update(policy), act(policy)
        next(iter(update.steps(batch)))
        before = buffer_of(update).storage.read(torch.arange(2))
        overwrite([batch.by_step, batch.by_trajectory])
        after = buffer_of(update).storage.read(torch.arange(2))
        for was, now in zip(arrays_in(before), arrays_in(after), strict=True):
            assert torch.equal(torch.as_tensor(was), torch.as_tensor(now))


def test_an_entry_is_stored_without_doubles() -> None:
    """One column with the version that acted; of trajectories the version of the oldest step beside it."""
    recurrent = make_policy(use_rnn=True, rnn_size=8)
    for policy, wanted in ((make_policy(), {"policy_version"}), (recurrent, {"policy_version", "acted"})):
        update = make_update(policy)
        list(update.steps(act(update.policy)))
        assert buffer_of(update).storage.read(torch.tensor([0])).keys() & {"policy_version", "acted"} == wanted


def test_steps_that_would_be_too_old_are_passed_over_and_statistics_take_the_dataset_in(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They change with the last step that is possible, before that version is published."""
    update = make_update(replay=replace(REPLAY, max_staleness=3))
    update.version = 7
    counts = []
    with caplog.at_level(logging.ERROR):
        for report in update.steps(act(update.policy, version=5)):
            counts.append((report.version, report.lag_max, update.statistics.moments["returns"].count.item()))
    assert counts == [(8, 2.0, 0.0), (9, 3.0, 48.0)]
    assert "Passed over 2 of the 4 optimizer steps on a dataset: its newest transition would have been" in caplog.text


@pytest.mark.parametrize("max_staleness", [3, 4, 7])
def test_asynchronous_runs_collect_what_a_small_limit_lets_train(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, max_staleness: int
) -> None:
    """With sampling that is always faster than training; four steps on each batch."""
    sizes: dict[str, Any] = {"num_epochs": 2, "num_batches_per_epoch": 2, "batch_size": 32}
    lab = make_lab(tmp_path, replay="staleness", async_rl=True, max_staleness=max_staleness, **sizes)
    learner, *others = lab.build_all()
    steps, lags = learner.update.steps, []

    def beside_sampling(batch: Batch) -> Any:
        for report in steps(batch):
            lags.append(report.lag_max)
            yield report
            while any([role.step() for role in others]):
                pass

    learner.update.steps = beside_sampling
    step_until([learner, *others], lambda: learner.record["iterations"] == 12)
    assert "Passed over" not in caplog.text
    assert len(lags) == 12 * 4
    assert max(lags) == max_staleness
    assert learner.update.statistics.moments["returns"].count.item() == 12 * 64


def test_slots_of_a_dataset_without_a_step_count_as_unused(tmp_path: Path) -> None:
    """Except those of which another dataset has taken a part that was trained on."""
    sizes: dict[str, Any] = {"num_envs_per_worker": 8, "worker_num_splits": 1, "batch_size": 48}
    lab = make_lab(tmp_path, replay="staleness", async_rl=True, max_policy_lag=4, **sizes)
    learner, *others = lab.build_all()
    step_until(others, lambda: len(lab.slots.waiting_for(0)) == 2)  # 16 trajectories, a dataset takes 6
    assert learner.step()
    learner.update.version += 10
    assert learner.step()
    assert learner.record["iterations"] == 2
    assert lab.slots.unused.sum() == 0, "its first two trajectories were in the first dataset"
    step_until(others, lambda: len(lab.slots.waiting_for(0)) == 1)
    learner.update.version += 20
    assert learner.step()
    assert lab.slots.unused.sum() == 1, "all of the second slot"


def test_another_error_of_a_draw_ends_the_run() -> None:
    update = make_update()

    def broken(staleness: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no memory")

    source = update._minibatches
    assert isinstance(source, ReplayedMinibatches)
    source._sampler._weight_fn = broken
    with pytest.raises(RuntimeError, match="no memory"):
        list(update.steps(act(update.policy)))


def test_everything_too_old_passes_over_a_dataset(caplog: pytest.LogCaptureFixture) -> None:
    update = make_update(replay=replace(REPLAY, max_staleness=3))
    update.version = 50
    with caplog.at_level(logging.ERROR):
        assert list(update.steps(act(update.policy, version=10))) == []
    assert "All 48 entries are older than max_staleness=3 at consumer version 50" in caplog.text
    assert update.summary() == {}


@pytest.mark.parametrize(("name", "weights"), [("inverse", [1, 0.5, 0.2]), ("uniform", [1, 1, 1])])
def test_weights_by_name(name: str, weights: list[float]) -> None:
    weigh = weight_function(replace(REPLAY, staleness_weight=name), LearnerConfig(num_batches_per_epoch=4))  # type: ignore[arg-type]
    assert weigh(torch.tensor([0, 1, 4])).tolist() == pytest.approx(weights)


def test_exponential_weights_fall_by_e_for_each_dataset() -> None:
    weigh = weight_function(
        replace(REPLAY, staleness_weight="exponential"), LearnerConfig(num_batches_per_epoch=4, num_epochs=2)
    )
    found = weigh(torch.tensor([0, 8, 16])).double()
    assert (found[:-1] / found[1:]).tolist() == pytest.approx([2.718281828] * 2, rel=1e-5)


def test_exponential_weights_of_old_rows_alone_are_not_zero() -> None:
    weigh = weight_function(replace(REPLAY, staleness_weight="exponential"), LearnerConfig(num_batches_per_epoch=4))
    found = weigh(torch.tensor([1_000_008, 1_000_000]))
    assert (found[1] / found[0]).item() == pytest.approx(2.718281828, rel=1e-5)


@pytest.mark.parametrize("model", [{}, {"use_rnn": True, "rnn_size": 8, "rnn_type": "lstm"}])
@pytest.mark.parametrize("flags", [{}, {"objective": "decoupled", "proximal_policy": "interpolated"}])
@pytest.mark.parametrize("action", [DISCRETE, ActionSpec((ActionColumn(low=-1.0, high=1.0),) * 40)])
def test_memory_is_that_of_the_columns(action: ActionSpec, flags: dict[str, Any], model: dict[str, Any]) -> None:
    policy = make_policy(action, **model)
    update = make_update(policy, **flags)
    list(update.steps(act(policy)))
    entry = buffer_of(update).storage.read(torch.tensor([0]))
    found = sum(leaf.numel() * leaf.element_size() for leaf in leaves(entry)) / (8 if model else 1)
    config = make_config(rollout=8, **flags, **model)
    assert bytes_of_replayed_transition(config, policy.info) == found


class OthersWait(Peers):
    """Most other ranks always have their share."""

    def others_wait(self) -> bool:
        return True


def test_a_late_rank_gives_back_the_slots_of_a_part_of_its_share(tmp_path: Path) -> None:
    """They go back at once where the batch is copied into a buffer, as those of a whole share do."""
    lab = make_lab(tmp_path, async_rl=True, replay="staleness", rollout=8, num_envs_per_worker=8, worker_num_splits=2)
    roles = lab.build_all()
    learner, workers = roles[0], roles[1:]
    learner.peers, learner.cuts.least = OthersWait(), 1
    seen: list[int] = []
    for _ in range(3):
        step_until(workers, lambda: len(lab.slots.waiting_for(0)) > 0)
        batch = learner.cuts.next(learner.source, learner.peers)
        assert batch is not None
        seen.append(batch.rewards.shape[1])
        assert learner.cuts.was_cut == (seen[-1] < learner._batcher.trajectories)
        assert isinstance(learner.source, ReleasedAtOnce)
        learner.source.release()
    assert len(seen) == 3


def test_parts_of_late_ranks_are_counted_and_told_once(tmp_path: Path) -> None:
    learner = make_lab(tmp_path).build("learner-0")
    told = []
    for num_ranks in (0, 1, 2, 0):
        told.append("A rank has contributed the part of its batch" in learner.cuts.note(learner.record, num_ranks))
    assert told == [False, True, False, False]
    assert learner.record["cut_short"] == 3


@pytest.mark.parametrize("async_rl", [True, False])
def test_slots_are_free_before_training_where_sampling_goes_on(tmp_path: Path, async_rl: bool) -> None:
    lab = make_lab(tmp_path, replay="staleness", async_rl=async_rl)
    roles = lab.build_all()
    learner = roles[0]
    assert isinstance(learner.source, ReleasedAtOnce) is async_rl
    step_until(roles[1:], lambda: len(lab.slots.waiting_for(0)) == lab.slots.topology.num_groups)
    filled, released_when_training = lab.slots.filled.sum(), []
    steps = learner.update.steps

    def looked_at(batch: Batch) -> Any:
        released_when_training.append(int(lab.slots.released.sum()))
        yield from steps(batch)

    learner.update.steps = looked_at
    assert learner.step()
    assert released_when_training == [filled if async_rl else 0]
    assert lab.slots.released.sum() == filled


@pytest.mark.slow
def test_e20_run_learns_cartpole_and_says_that_a_resumed_buffer_is_empty(tmp_path: Path) -> None:
    base = "--env=CartPole-v1", f"--train_dir={tmp_path}", "--experiment=replayed", "--replay=staleness", "--seed=1"
    flags = *base, "--serial_mode=True"  # a seed is one result, whatever else the machine does
    finished = run(tmp_path / "first", *flags, "--stop_at_reward=400", "--train_for_env_steps=600000")
    assert finished.code == ExitCode.FINISHED, finished.err
    assert "stop_at_reward reached" in finished.out
    assert "Policy lag is not forecast: replay=staleness draws transitions of any age.\n" in finished.out
    assert re.search(
        r"^Policy #0 lag over the run: avg [\d.]+ \(acting 0.0, queued [\d.]+, epochs 0.0\), max [\d.]+$",
        finished.out,
        re.M,
    )
    assert "expected_lag" not in json.loads((tmp_path / "replayed" / "summary.json").read_text())
    tags: set[str] = set()
    for line in (tmp_path / "replayed" / "metrics.jsonl").read_text().splitlines():
        tags |= json.loads(line).keys()
    wanted = {"staleness/batch_min", "staleness/batch_mean", "staleness/batch_max", "ESS", "max_ratio", "mean_ratio"}
    assert {f"train/{name}" for name in wanted | {"kl_approx"}} <= tags
    resumed = run(tmp_path / "second", *flags, "--train_for_seconds=1")
    assert resumed.code == ExitCode.FINISHED, resumed.err
    assert "The replay buffer of policy 0 begins empty: checkpoints do not hold it." in resumed.out
