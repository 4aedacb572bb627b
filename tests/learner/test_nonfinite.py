"""NaN and infinity from environments and in gradients: refused by default, dropped on request, never learned."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from sf.envs import EnvSource, find_env, probe, probe_and_time
from sf.envs.probe import NUM_STEPS
from sf.errors import EnvError
from sf.learner.dataset import with_gae
from sf.learner.training import MOST_SKIPPED_IN_A_ROW, NonFiniteGradient
from sf.shared.messages import SaveRequest, TrainSummary
from sf.shared.records import learner_record
from sf.shared.requests import Requests
from sf.storage.checkpoint import load_newest
from tests.environments.toys import BAD, Leaky, Toy
from tests.helpers.commands import run
from tests.helpers.lab import Lab, make_lab, step_until

LEAKS = [(where, bad) for where in ("reward", "observation", "final") for bad in BAD]


def leaky_lab(path: Path, where: str, bad: str, **flags: Any) -> Lab:
    kwargs = f'{{"where": "{where}", "bad": "{bad}"}}'
    return make_lab(path, "tests.environments.toys:Leaky-v0", env_kwargs=kwargs, **flags)


@pytest.mark.parametrize(("where", "bad"), LEAKS)
def test_fault_b7_b8_refused_by_default(tmp_path: Path, where: str, bad: str) -> None:
    roles = leaky_lab(tmp_path, where, bad).build_all()
    with pytest.raises(EnvError, match=r"returned a non-finite .*--on_nonfinite=drop"):
        step_until(roles, lambda: False)


@pytest.mark.parametrize("bad", ["nan", "inf"])
@pytest.mark.parametrize("where", ["reward", "observation", "final"])
def test_fault_b7_b8_first_look_drops_what_the_run_drops(where: str, bad: str) -> None:
    """And begins a new episode after an observation that is no number."""
    source = find_env("tests.environments.toys:Leaky-v0", {"where": where, "bad": bad, "every": 5})
    assert probe_and_time(source, 0.0, drop_nonfinite=True).notes == []
    with pytest.raises(EnvError, match=r"finite.*--on_nonfinite=drop"):
        probe_and_time(source, 0.0)


def steady_lab(path: Path, number: float, dtype: str, after: int = 0, num_envs: int = 4) -> Lab:
    kwargs = json.dumps({"number": number, "dtype": dtype, "after": after})
    return make_lab(path, "tests.environments.toys:Steady-v0", env_kwargs=kwargs, num_envs_per_worker=num_envs)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("number", "dtype"), [(2e18, "float32"), (2e18, "float64"), (1e300, "float64")])
def test_large_numbers_that_cancel_are_refused_all_the_same(tmp_path: Path, number: float, dtype: str) -> None:
    roles = steady_lab(tmp_path, number, dtype, after=NUM_STEPS).build_all()  # which the first look takes
    with pytest.raises(EnvError, match=r"non-finite observation: .*--on_nonfinite=drop"):
        step_until(roles, lambda: False)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_that_are_only_large_together_are_taken(tmp_path: Path, dtype: str) -> None:
    """Rewards and observations of all rows, the sum of whose squares is no float32."""
    lab = steady_lab(tmp_path, 9e17, dtype, num_envs=1024)
    worker, slots = lab.build("rollout-0"), lab.slots
    requests = Requests(lab.shared.topology, lab.arena)
    for _ in range(20):
        worker.step()
        requests.answered[:, 0] = requests.request
    assert (slots.observations["obs"] == np.dtype(dtype).type(9e17)).any()


@pytest.mark.parametrize("flags", [{}, {"use_rnn": True, "rnn_size": 8}], ids=["mlp", "gru"])
@pytest.mark.parametrize(("where", "bad"), LEAKS)
def test_fault_b7_b8_dropped_on_request(tmp_path: Path, where: str, bad: str, flags: dict[str, Any]) -> None:
    """Nothing that leads to it is trained on, everything else is; parameters and statistics stay finite."""
    lab = leaky_lab(tmp_path, where, bad, on_nonfinite="drop", strict=True, **flags)
    roles = lab.build_all()
    learner, rollout = roles[0], roles[-1]
    trained: list[int] = []
    steps = learner.update.steps

    def looked_at(batch: Any) -> Any:
        trained.append(int(batch.valid.sum()))
        for tensor in (batch.rewards, *batch.observations.values()):
            assert torch.isfinite(tensor).all()
        assert (batch.rewards[batch.valid] == 1).all(), "rewards that were replaced are trained on"
        return steps(batch)

    learner.update.steps = looked_at
    step_until(roles, lambda: len(trained) == 24)
    assert rollout.record["dropped"] >= 8 * 24 * 8 // 37 - 8
    share = sum(trained) / (24 * 64)
    assert 0.6 < share < 0.95, "steps before the fault in the same trajectory are lost, later ones are not"
    for name, tensor in learner.update.state_dict().items():
        assert torch.isfinite(tensor).all(), name


def test_fault_b8_no_way_out_of_a_bad_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = leaky_lab(tmp_path, "reward", "nan", on_nonfinite="drop")
    monkeypatch.setattr(Leaky, "reset", lambda *_, **__: (np.full(2, np.nan, np.float32), {}))
    with pytest.raises(EnvError, match="first one of an episode"):
        step_until(lab.build_all(), lambda: False)


@pytest.mark.more
def test_fault_b7_whole_run(tmp_path: Path) -> None:
    env = "--env=tests.environments.toys:Leaky-v0", "--num_workers=1", "--num_envs_per_worker=8"
    finished = run(tmp_path, *env, "--on_nonfinite=drop", "--train_for_env_steps=20000")
    assert finished.code == 0, finished.err
    warnings = [
        line for line in finished.lines if "returned a non-finite reward: nan. Its trajectory is dropped" in line
    ]
    assert 3 < len(warnings) < 20, "ever more rarely"
    assert "'nan'" not in finished.out


def test_fault_b9_step_with_a_broken_gradient_is_skipped(tmp_path: Path) -> None:
    """The parameters are bit-equal before and after; training goes on; ten in a row end it."""
    lab = make_lab(tmp_path, num_batches_per_epoch=2, batch_size=32, normalize_advantages=False)
    roles = lab.build_all()
    learner = roles[0]
    batches: list[Any] = []
    steps = learner.update.steps

    def kept(batch: Any) -> Any:
        batches.append(batch)
        return steps(batch)

    learner.update.steps = kept
    step_until(roles, lambda: len(batches) == 1)
    good = batches[0]
    broken = good.with_columns(rewards=torch.full_like(good.rewards, float("nan")))
    update = learner.update
    before = {name: tensor.clone() for name, tensor in update.state_dict().items()}
    assert list(steps(broken)) == []
    for name, tensor in update.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert update.num_skipped == 2
    assert len(list(steps(good))) == 2, "the count begins again"
    often = itertools.chain.from_iterable(steps(broken) for _ in range(MOST_SKIPPED_IN_A_ROW))
    with pytest.raises(NonFiniteGradient, match=f"{MOST_SKIPPED_IN_A_ROW} gradients in a row were not finite"):
        list(often)


def test_fault_b9_dataset_without_a_step_has_no_summary(tmp_path: Path) -> None:
    lab = make_lab(tmp_path)
    roles = lab.build_all()
    learner = roles[0]
    step_until(roles[1:], lambda: len(lab.slots.waiting_for(0)) == lab.slots.topology.num_groups)
    lab.slots.rewards[:] = np.nan
    assert learner.step()
    assert learner.update.num_skipped == 1
    assert not [told for told in lab.told if isinstance(told, TrainSummary)]
    step_until(roles, lambda: learner.record["iterations"] >= 2)
    ends = [told for told in lab.told if isinstance(told, TrainSummary) and told.is_last]
    assert len(ends) == 1, "it does not put off the next one"


def test_fault_b9_the_minibatch_is_kept_for_a_look(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    from sf.errors import InternalError

    lab = make_lab(tmp_path)
    roles = lab.build_all()
    learner = roles[0]
    step_until(roles, lambda: learner.record["iterations"] >= 2)
    learner._save(SaveRequest("periodic", None))
    last = learner.network.flat.clone()
    assemble = learner.source.next

    def spoiled() -> Any:
        batch = assemble()
        return batch and batch.with_columns(rewards=torch.full_like(batch.rewards, float("nan")))

    learner.source.next = spoiled
    with pytest.raises(InternalError, match=r"The last minibatch is in .*non_finite_minibatch\.safetensors"):
        step_until(roles, lambda: False)
    assert learner_record(lab.arena, 0).read()["skipped_steps"] == MOST_SKIPPED_IN_A_ROW
    (path,) = tmp_path.rglob("non_finite_minibatch.safetensors")
    assert torch.isnan(load_file(path)["advantages"]).all()
    assert torch.equal(learner.network.flat, last), "what is saved next is as good"
    saved = load_newest(learner.saver.directory)
    assert saved is not None
    assert all(torch.isfinite(tensor).all() for tensor in saved.tensors.values() if tensor.is_floating_point())


@pytest.mark.parametrize("obstacle", ["the directory is gone", "another file is in its place"])
def test_fault_b9_d3_minibatch_that_cannot_be_written_is_told(tmp_path: Path, obstacle: str) -> None:
    lab = make_lab(tmp_path)
    roles = lab.build_all()
    saver = roles[0].saver
    if obstacle == "the directory is gone":
        shutil.rmtree(lab.config.run.experiment_dir)
    else:
        (saver.directory / "non_finite_minibatch.safetensors").mkdir()
    step_until(roles[1:], lambda: len(lab.slots.waiting_for(0)) > 0)
    transitions = with_gae(roles[0].source.next(), roles[0].network, lab.config.learner)
    assert "minibatch could not be written to" in saver.keep_for_a_look(transitions.tensors())
    assert Path(lab.config.run.experiment_dir).exists() == (obstacle != "the directory is gone")


def test_a_number_that_is_not_finite_is_found_in_a_long_observation() -> None:
    wide = np.zeros((20, 30), np.float32)
    wide[[4, 7], [17, 2]] = np.nan, np.inf
    space = spaces.Box(-1, 1, (20, 30))
    with pytest.raises(EnvError, match=r"(?s)holds NaN: .* \(nan at \[4, 17\]; 2 of 600 numbers\)\. Observations"):
        probe(EnvSource("Wide", {"observation": wide, "observation_space": space}, Toy))
