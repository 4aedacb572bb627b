"""Algorithms that learn off-policy as a user starts them: training, resume, evaluation, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from sf.cli.train import parse_config
from sf.config import check
from sf.envs import find_env, probe
from sf.errors import ConfigError, ExitCode
from sf.plugins import ALGORITHMS
from sf.run.sizes import resolve
from tests.helpers.commands import EXPERIMENT, run, summary_of

SMALL = ("--encoder_mlp_layers", "16", "16", "--num_envs_per_worker=4", "--rollout=8")
RUNS = {
    "dqn": "CartPole-v1",
    "sac": "Pendulum-v1",
    "td3": "Pendulum-v1",
    "discrete_sac": "CartPole-v1",
    "drqn": "CartPole-v1",
}
PARTS = {
    "dqn": {"target"},
    "drqn": {"target"},
    "sac": {"critics", "targets", "temperature"},
    "td3": {"critics", "targets", "target"},
    "discrete_sac": {"critics", "targets", "temperature"},
}
MODES: dict[str, tuple[str, ...]] = {
    "async": (),
    "sync": ("--async_rl=False",),
    "serial": ("--async_rl=False", "--serial_mode=True"),
}


def train(folder: Path, algorithm: str, *flags: str) -> Any:
    limit = () if any("env_steps" in flag for flag in flags) else ("--train_for_env_steps=640",)
    learning = () if any("learning_starts" in flag for flag in flags) else ("--learning_starts=100",)
    return run(
        folder, f"--env={RUNS[algorithm]}", f"--algorithm={algorithm}", *SMALL, *limit, *learning,
        "--batch_size=32", "--replay_size=10000", "--seed=3", *flags,
    )  # fmt: skip


def newest(folder: Path) -> dict[str, torch.Tensor]:
    (path,) = sorted((folder / EXPERIMENT / "checkpoint_p0").glob("checkpoint_*"))[-1].glob("*.safetensors")
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys() if not name.startswith("moment.")}  # noqa: SIM118


@pytest.mark.more
@pytest.mark.parametrize(
    ("algorithm", "mode"), [*((name, "serial") for name in RUNS), ("dqn", "sync"), ("sac", "async"), ("td3", "async")]
)
def test_it_trains_in_each_mode(algorithm: str, mode: str, tmp_path: Path) -> None:
    done = train(tmp_path, algorithm, *MODES[mode], "--replay_ratio=0.5")
    assert done.code == ExitCode.FINISHED, done.err
    assert "Policy #0 lag" in done.out
    assert "Warning: the average policy lag" not in done.out  # it is the age of replayed data
    assert summary_of(tmp_path)["frames"] == 640
    if mode == "serial":  # other runs have collected something when they end
        assert "not learned" not in done.out  # what came before the first update lies in the buffer
    # From the batch on with which 100 transitions are there: half an update for each of theirs and of later ones.
    # The version counts steps of the policy, which TD3 takes in every second update.
    updates = (640 - 96) // 2
    assert int(newest(tmp_path)["version"]) == updates // (2 if algorithm == "td3" else 1)


@pytest.mark.more
@pytest.mark.parametrize("algorithm", RUNS)
def test_a_resumed_run_goes_on_with_all_networks(algorithm: str, tmp_path: Path) -> None:
    serial = MODES["serial"]
    assert train(tmp_path, algorithm, *serial).code == ExitCode.FINISHED
    before = newest(tmp_path)
    kept = [name for name in before if name.startswith("algorithm.")]
    parts = {name.split(".")[1] for name in kept}
    assert parts == PARTS[algorithm]
    again = train(tmp_path, algorithm, *serial, "--train_for_env_steps=672", "--learning_starts=600")
    assert again.code == ExitCode.FINISHED, again.err
    assert "replay buffer of policy 0 begins empty" in again.out
    after = newest(tmp_path)
    changed = [name for name in kept if not torch.equal(before[name], after[name])]
    assert not changed  # no step was taken, so all is as it was saved


@pytest.mark.more
@pytest.mark.parametrize("algorithm", ["dqn", "drqn"])
def test_two_policies_learn_each_from_its_own_steps(algorithm: str, tmp_path: Path) -> None:
    done = train(tmp_path, algorithm, *MODES["serial"], "--num_policies=2", "--train_for_env_steps=3000")
    assert done.code == ExitCode.FINISHED, done.err


@pytest.mark.more
@pytest.mark.parametrize("algorithm", ["dqn", "td3"])
def test_serial_runs_repeat_bit_by_bit(algorithm: str, tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        assert train(tmp_path / name, algorithm, *MODES["serial"]).code == ExitCode.FINISHED
        found.append(newest(tmp_path / name))
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.more
def test_its_policy_is_evaluated_without_the_algorithm(tmp_path: Path) -> None:
    assert train(tmp_path, "sac", *MODES["serial"]).code == ExitCode.FINISHED
    done = run(tmp_path, f"--experiment={EXPERIMENT.name}", "--num_episodes=2", "--json", module="sf.cli.evaluate")
    assert done.code == ExitCode.FINISHED, done.err
    assert json.loads(done.out)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--env=CartPole-v1", "--algorithm=sac"), "algorithm=sac needs actions that are numbers"),
        (("--env=Pendulum-v1", "--algorithm=dqn"), "algorithm=dqn chooses among actions"),
        (("--env=CartPole-v1", "--algorithm=dqn", "--use_rnn=True"), "--algorithm=drqn draws trajectories"),
        (("--env=Pendulum-v1", "--algorithm=drqn"), "algorithm=drqn chooses among actions"),
        (("--env=CartPole-v1", "--algorithm=dqn", "--replay=none"), "algorithm=dqn learns from transitions"),
        (("--env=CartPole-v1", "--algorithm=dqn", "--num_epochs=4"), "num_epochs=4 with algorithm=dqn"),
        (("--env=CartPole-v1", "--algorithm=dqn", "--num_learners=2"), "num_learners=2 with algorithm=dqn"),
        (("--env=CartPole-v1", "--replay=uniform"), "replay=uniform draws transitions without the policy"),
        (
            ("--env=CartPole-v1", "--exploration=epsilon_greedy"),
            "exploration=epsilon_greedy does not go with algorithm=ppo",
        ),
        (
            ("--env=CartPole-v1", "--algorithm=ddqn"),
            "registered: appo, discrete_sac, dqn, drqn, ppg, ppo, pqn, rnd, sac, td3",
        ),
        (("--env=CartPole-v1", "--algorithm=td3"), "algorithm=td3 needs actions that are numbers"),
        (("--env=Pendulum-v1", "--algorithm=discrete_sac"), "algorithm=discrete_sac chooses among actions"),
        (("--env=Pendulum-v1", "--algorithm=pqn"), "algorithm=pqn chooses among actions"),
        (("--env=CartPole-v1", "--algorithm=pqn", "--exploration=sample"), "exploration=sample does not go with"),
        (("--env=CartPole-v1", "--algorithm=rnd", "--use_rnn=True"), "use_rnn=True with algorithm=rnd"),
        (("--env=CartPole-v1", "--algorithm=ppg", "--actor_critic_share_weights=True"), "it has two networks"),
        (("--env=CartPole-v1", "--algorithm=appo", "--replay=staleness"), "algorithm=appo learns from each batch"),
    ],
)
def test_what_does_not_go_together_is_refused(flags: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        _prepared(flags)


def _prepared(flags: tuple[str, ...]) -> None:
    """The checks of a run, in their order."""
    config = parse_config((*flags, "--train_for_env_steps=5000"))
    check(config)
    ALGORITHMS.check(config.learner.algorithm)
    info = probe(find_env(config.run.env, config.run.env_arguments, config.run.max_episode_steps))
    check(resolve(config, info, cores=2), info)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--env=CartPole-v1", "--algorithm=sac"), "algorithm=sac needs actions that are numbers"),
        (("--env=CartPole-v1", "--algorithm=dqn", "--use_rnn=True"), "--algorithm=drqn draws trajectories"),
        (
            ("--env=CartPole-v1", "--algorithm=ddqn"),
            "registered: appo, discrete_sac, dqn, drqn, ppg, ppo, pqn, rnd, sac, td3",
        ),
    ],
    ids=["by the environment", "by the flags", "by the name"],
)
def test_a_run_is_refused_before_anything_starts(flags: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    done = run(tmp_path, *flags, "--train_for_env_steps=5000")
    assert done.code == ExitCode.USAGE, done.out
    assert sentence in done.err
    assert not (tmp_path / EXPERIMENT).exists()


def test_scalars_that_become_something_else_end_the_run_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "later_vector.py").write_text(
        "from sf.algorithms.dqn import DQN\n\n\n"
        "class Later(DQN):\n"
        "    calls = 0\n\n"
        "    def update(self, minibatch):\n"
        "        self.calls += 1\n"
        "        found = super().update(minibatch)\n"
        "        return found if self.calls < 3 else {'errors': minibatch.rewards}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings = "--algorithm_defaults=dqn", "--train_for_env_steps=640", "--learning_starts=100", "--batch_size=32"
    mode = "--env=CartPole-v1", *SMALL, *MODES["serial"], *settings, "--replay_size=10000"
    done = run(tmp_path, *mode, "--algorithm=later_vector:Later")
    assert done.code == ExitCode.USAGE, done.err
    assert "algorithm=Later: update must return a dict of scalar tensors by name, but returned {'errors'" in done.err
