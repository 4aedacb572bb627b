"""Rows that belong to several policies: who acts, who trains, and when a slot is free."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from sf_envs.echo import EPISODE_STEPS, TwoAgentEcho

from sf.envs import register_env
from tests.helpers.lab import make_lab, step_until

register_env("test/TwoAgentEcho", TwoAgentEcho)


def test_two_policies_share_slots_and_train_on_their_own_rows(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, "test/TwoAgentEcho", num_policies=2, num_envs_per_worker=6, rollout=24)
    roles = lab.build_all()
    learners = roles[:2]
    seen: list[dict[str, torch.Tensor]] = []
    for policy_id, learner in enumerate(learners):
        assemble = learner.source._assemble

        def spy(pieces, policy_id=policy_id, assemble=assemble):  # type: ignore[no-untyped-def]
            batch = assemble(pieces)
            seen.append(
                {"policy": torch.tensor(policy_id), "valid": batch.valid.clone(), "version": batch.policy_version}
            )
            assert torch.isfinite(batch.values[batch.valid]).all()
            assert torch.isfinite(batch.behavior_log_probs[batch.valid]).all()
            assert torch.isfinite(batch.final_values[batch.valid & batch.truncated]).all()
            return batch

        learner.source._assemble = spy
    step_until(roles, lambda: all(learner.record["iterations"] >= 6 for learner in learners))
    assert all(entry["valid"].any(dim=0).all() for entry in seen)  # no trajectory without a step of the own policy
    trained = sum(int(entry["valid"].sum()) for entry in seen)
    frames = sum(learner.frames for learner in learners)
    assert frames == trained
    assert all(learner.update.version >= 6 for learner in learners)


def test_a_row_keeps_its_policy_for_the_whole_episode(tmp_path: Path) -> None:
    lab = make_lab(
        tmp_path, "test/TwoAgentEcho", num_policies=2, num_envs_per_worker=8, rollout=24, worker_num_splits=1,
        batch_size=192, num_batches_per_epoch=1,
    )  # fmt: skip
    roles = lab.build_all()
    owners: list[np.ndarray] = []
    release = roles[0].source.release

    def spy(was_trained_on: bool) -> int:
        owners.append(lab.slots.policy_id[0].copy())
        released: int = release(was_trained_on)
        return released

    roles[0].source.release = spy
    step_until(roles, lambda: len(owners) >= 8)
    stream = np.concatenate(owners)
    episodes = stream[: len(stream) // EPISODE_STEPS * EPISODE_STEPS].reshape(-1, EPISODE_STEPS, stream.shape[1])
    assert (episodes == episodes[:, :1]).all()
    pairs = episodes[:, 0].reshape(len(episodes), -1, 2)
    assert (pairs.sum(axis=-1) == 1).all()  # each environment plays policy 0 against policy 1
    assert 0 < pairs[..., 0].mean() < 1  # and who plays which part is drawn anew
