"""The state of a simulator in tensors: it is saved with a checkpoint, and a run goes on from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sf.envs.registry import register_env
from sf.errors import EnvError
from sf.run.resume_point import build_where_it_was
from tests.envs.test_tensors import Counting
from tests.helpers.lab import step_until
from tests.tensors.test_tensor_worker import ROWS, STEPS, filled, lab_of


class Saving(Counting):
    """Its state can be saved; what saving returns can be replaced."""

    saved: Any = None

    def save_state(self) -> Any:
        return {"counts": self._counts, "steps": self._steps} if Saving.saved is None else Saving.saved

    def restore_state(self, state: Any) -> None:
        self._counts.copy_(state["counts"])
        self._steps.copy_(state["steps"])


register_env("test/Saving", make_tensors=Saving)


def trained(path: Path, env: str, parts: tuple[int, ...], **flags: Any) -> tuple[Any, torch.Tensor, list[Any]]:
    """A serial run of so many iterations after each other, each but the first one resumed within a trajectory.

    Returns:
        The worker, the last weights, and the episodes of all parts.
    """
    episodes: list[Any] = []
    for number in parts:
        lab = lab_of(path, env, **flags)
        roles: list[Any] = list(build_where_it_was(lab.specs, lab.shared.arena))
        learner, worker = roles
        for role in roles:
            role.tell = lab.told.append
        worker._ring.recall()
        while learner.record["iterations"] < number:
            learner.step()
            worker.step()
            episodes += worker._ring.new_episodes()
        assert worker._t in (STEPS - 1, 0)
        learner.close()
        worker.close()
        lab.experiment.close()
    return worker, learner.network.flat.detach().clone(), episodes


@pytest.mark.parametrize("env", ["sf/Carts-v0", "test/Saving"])
@pytest.mark.parametrize("flags", [{}, {"use_rnn": True, "rnn_size": 8}])
def test_a_simulator_that_saves_its_state_goes_on_bit_for_bit(tmp_path: Path, env: str, flags: dict[str, Any]) -> None:
    worker, at_once, episodes = trained(tmp_path / "whole", env, (30,), **flags)
    again, in_parts, told = trained(tmp_path / "parts", env, (7, 11, 12), **flags)
    assert torch.equal(at_once, in_parts)
    assert [(one.row, one.reward, one.length, one.metrics) for one in told] == [
        (one.row, one.reward, one.length, one.metrics) for one in episodes
    ]
    last, expected = again.state(), worker.state()
    for name in ("simulator", "fields", "memory", "random", "episodes", "metrics"):
        torch.testing.assert_close(last[name], expected[name], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("saved", [[], {"counts": 3}])
def test_a_state_that_is_no_dict_of_tensors_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: Any
) -> None:
    """Before anything is sampled."""
    monkeypatch.setattr(Saving, "saved", saved)
    with pytest.raises(EnvError, match=r"something else from save_state than a dict of name to torch\.Tensor"):
        filled(lab_of(tmp_path, "test/Saving"))


def test_a_state_that_cannot_be_saved_later_on_costs_no_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    lab = lab_of(tmp_path, "test/Saving")
    roles: list[Any] = list(build_where_it_was(lab.specs, lab.shared.arena))
    for role in roles:
        role.tell = lab.told.append
    step_until(roles, lambda: roles[0].record["iterations"] >= 2)
    monkeypatch.setattr(Saving, "save_state", lambda simulator: {"counts": simulator.__dict__["nothing"]})
    for role in roles:
        role.close()
    assert "Warning: test/Saving raised KeyError in save_state." in capfd.readouterr().out
    assert any((tmp_path / "default_experiment" / "checkpoint_p0").glob("checkpoint_*"))


def test_a_state_that_does_not_fit_begins_new_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path, "test/Saving", (2,))
    monkeypatch.setattr(Saving, "saved", {"steps": torch.zeros(ROWS)})
    trained(tmp_path, "test/Saving", (2,))
    trained(tmp_path, "test/Saving", (2,))
    assert "test/Saving raised KeyError in restore_state" in (told := capfd.readouterr().out)
    assert "They begin new episodes." in told
