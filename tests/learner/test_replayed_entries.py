"""Entries of the buffer of `--replay=staleness`: their columns, and whole trajectories of recurrent policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sf.config.replaying import bytes_of_replayed_transition
from sf.learner.batch import Batch
from sf.policy import Sequences
from sf.replay.storage import leaves
from sf.spaces import ActionColumn, ActionSpec
from tests.helpers.handed_over import arrays_in, overwrite
from tests.helpers.lab import make_config, make_lab, step_until
from tests.helpers.replayed import buffer_of, fingerprints, make_update
from tests.helpers.updates import DISCRETE, act, make_policy, one_thread_and_seed


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    one_thread_and_seed()


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
