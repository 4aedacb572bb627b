"""`sf-plan`: console, curves, checkpoints, resume, signals and bad input."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import sf
from examples.plans.a2c import A2C as A2CTrainer
from examples.plans.dqn import DQN
from sf.cli.plan import import_file, main, settings_of, trainer_in
from sf.config.plan import PlanConfig
from sf.errors import CheckpointError, ConfigError, ExitCode, UsageError
from sf.plans.blame import blamed_on_plan
from sf.plans.running import note_on_finished_plan, run_plan
from sf.storage.experiment import Experiment
from sf.storage.runs import runs_in

A2C = "examples/plans/a2c.py"
SMALL = "--env=CartPole-v1", "--rollout_fragment_length=20", "--train_batch_size=80", "--num_envs_per_worker=2"


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "sf.cli.plan", *arguments, f"--train_dir={tmp_path}"]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.more
def test_run_shows_lines_curves_and_checkpoints_and_goes_on(tmp_path: Path) -> None:
    first = run(tmp_path, A2C, *SMALL, "--train_for_env_steps=2000", "--seed=1")
    assert first.returncode == ExitCode.FINISHED, first.stderr
    assert "Policy #0 lag: (min: 0.0, avg: 0.0, max: 0.0)" in first.stdout, "each batch is of the newest policy"
    assert re.search(r"Slots: (\d+) allocated = \1 learned", first.stdout), "every fragment was trained on"
    assert "The run has ended: train_for_env_steps reached." in first.stdout
    folder = tmp_path / "a2c-CartPole-v1"
    points = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    tags = {tag for point in points for tag in point}
    assert {"reward/reward", "train/policy_loss", "train/grad_norm", "lag/queued", "faults/restarts"} <= tags
    assert list((folder / ".summary" / "0").iterdir())
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["frames"] >= 2000
    assert summary["policies"][0]["lag_of_run"]["max"] == 0
    wanted = summary["frames"] + 1000
    again = run(tmp_path, A2C, *SMALL, f"--train_for_env_steps={wanted}", "--seed=1")
    assert again.returncode == ExitCode.FINISHED, again.stderr
    assert "Goes on from" in again.stdout
    after = json.loads((folder / "summary.json").read_text())
    assert after["frames"] >= wanted
    assert after["new_frames"] == after["frames"] - summary["frames"]
    nothing_left = run(tmp_path, A2C, *SMALL, f"--train_for_env_steps={wanted}", "--seed=1")
    assert nothing_left.returncode == ExitCode.FINISHED, nothing_left.stderr
    assert f"{after['frames']} frames were learned before in {folder}" in nothing_left.stdout
    assert "nothing was started" in nothing_left.stdout
    assert "Goes on from" not in nothing_left.stdout
    limits = PlanConfig(train_dir=str(tmp_path), experiment=folder.name, train_for_env_steps=wanted)
    assert note_on_finished_plan(limits, "CartPole-v1") is not None
    assert note_on_finished_plan(limits, "Other-v1") is None, "which is refused"
    for other in ({"restart_behavior": "restart"}, {"train_for_env_steps": None}, {"train_for_env_steps": 10**9}):
        assert note_on_finished_plan(replace(limits, **other), "CartPole-v1") is None
    (folder / "summary.json").write_text(json.dumps(after | {"exit_code": int(ExitCode.SIGINT)}))
    assert note_on_finished_plan(limits, "CartPole-v1") is None, "it was stopped"


@pytest.mark.more
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, ExitCode.SIGINT), (signal.SIGTERM, ExitCode.SIGTERM)])
def test_signal_saves_and_ends_in_order(tmp_path: Path, number: signal.Signals, code: ExitCode) -> None:
    line = [sys.executable, "-u", "-m", "sf.cli.plan", A2C, *SMALL, f"--train_dir={tmp_path}", "--num_workers=1"]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    out = ""
    while "Fps is" not in out:
        out += process.stdout.readline()
    time.sleep(0.5)
    process.send_signal(number)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == code, out + rest
    assert "Saved" in rest
    assert f"stopped by {number.name}" in rest
    assert list((tmp_path / "a2c-CartPole-v1" / "checkpoints").glob("checkpoint_*"))


@pytest.mark.more
def test_a_plan_of_an_earlier_version_is_not_begun_at_zero(tmp_path: Path) -> None:
    assert run(tmp_path, A2C, *SMALL, "--train_for_env_steps=200").returncode == ExitCode.FINISHED
    (tmp_path / "a2c-CartPole-v1" / "plan.pt").write_bytes(b"old")
    refused = run(tmp_path, A2C, *SMALL, "--train_for_env_steps=400")
    assert refused.returncode == ExitCode.CHECKPOINT, refused.stderr
    assert "plan.pt was written by an earlier version of sf" in refused.stderr


def test_a_run_is_not_gone_on_with_in_another_environment(tmp_path: Path) -> None:
    settings = {"num_workers": 0, "rollout_fragment_length": 20, "train_batch_size": 20}
    limits = PlanConfig(train_dir=str(tmp_path), train_for_env_steps=20)
    assert run_plan(A2CTrainer, settings | {"env": "Acrobot-v1"}, limits) == ExitCode.FINISHED
    assert [run.env for run in runs_in(tmp_path)] == ["Acrobot-v1"]
    with pytest.raises(
        ConfigError, match=r"env: expected 'Acrobot-v1', as in the run of .*, found 'CartPole-v1'\. Take"
    ):
        run_plan(A2CTrainer, settings | {"env": "CartPole-v1"}, limits)
    again = replace(limits, restart_behavior="restart")
    assert run_plan(A2CTrainer, settings | {"env": "CartPole-v1"}, again) == ExitCode.FINISHED


@pytest.mark.parametrize(("left", "begins"), [(".incoming-1", True), ("damaged_checkpoint_000000001_1", False)])
def test_only_an_earlier_checkpoint_is_gone_on_from(tmp_path: Path, left: str, begins: bool) -> None:
    """A kill before the first save, or during it, leaves a directory without one."""
    Experiment(str(tmp_path), "default_plan", "resume").close()
    (tmp_path / "default_plan" / "checkpoints" / left).mkdir(parents=True)
    settings = {"env": "CartPole-v1", "num_workers": 0, "rollout_fragment_length": 20, "train_batch_size": 20}
    limits = PlanConfig(train_dir=str(tmp_path), train_for_env_steps=20)
    if begins:
        assert run_plan(A2CTrainer, settings, limits) == ExitCode.FINISHED
    else:
        with pytest.raises(CheckpointError, match="start from zero with --restart_behavior=restart"):
            run_plan(A2CTrainer, settings, limits)


@pytest.mark.more
def test_a_few_lucky_episodes_end_no_plan(tmp_path: Path) -> None:
    """CartPole returns more than 5 in any episode, so the first 100 of them end the plan, and not the first one."""
    found = run(tmp_path, A2C, *SMALL, "--stop_at_reward=5", "--seed=1")
    assert found.returncode == ExitCode.FINISHED, found.stderr
    assert "stop_at_reward reached" in found.stdout
    summary = json.loads((tmp_path / "a2c-CartPole-v1" / "summary.json").read_text())
    assert summary["policies"][0]["episodes"] >= 100


@pytest.mark.more
def test_short_episodes_that_report_first_end_no_plan(tmp_path: Path) -> None:
    flags = ("--num_workers=1", "--num_envs_per_worker=8", "--rollout_fragment_length=20", "--train_batch_size=160")
    limits = ("--stop_at_reward=0.95", "--train_for_env_steps=20000", "--seed=1")
    found = run(tmp_path, A2C, "--env=tests.environments.luck:Lottery-v0", *flags, *limits)
    assert found.returncode == ExitCode.FINISHED, found.stderr
    assert "train_for_env_steps reached" in found.stdout


@pytest.mark.more
def test_plan_of_a_file_that_no_module_name_leads_to(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(Path(A2C).read_text())
    found = run(tmp_path, str(tmp_path / "mine.py"), *SMALL, "--train_for_env_steps=400", "--num_workers=1")
    assert found.returncode == ExitCode.FINISHED, found.stderr


@pytest.mark.more
def test_a3c_ends_in_order_with_fragments_under_way(tmp_path: Path) -> None:
    found = run(tmp_path, "examples/plans/a3c.py", "--env=CartPole-v1", "--train_for_seconds=2")
    assert found.returncode == ExitCode.FINISHED, found.stderr
    assert "Restart" not in found.stdout


@pytest.mark.more
def test_operator_that_fails_is_named_and_ends_the_plan(tmp_path: Path) -> None:
    text = (
        Path(A2C).read_text().replace("    return Standard", "    train = train.for_each(divides)\n    return Standard")
    )
    text = text.replace("def plan(", "def divides(item: Any) -> Any:\n    return 1 / 0\n\n\ndef plan(")
    (tmp_path / "failing.py").write_text(text)
    found = run(tmp_path, str(tmp_path / "failing.py"), *SMALL, "--num_workers=1")
    assert found.returncode == ExitCode.INTERNAL
    assert "The operator divides raised ZeroDivisionError: division by zero" in found.stderr + found.stdout


TYPED = {
    "loss": ("distribution = dist_class(outputs, model)", "distribution = dist_clas(outputs, model)"),
    "plan": ("rollouts = Parallel", "rollouts = Paralel"),
    "file": ("A2C = build_trainer", "A2C = build_trainr"),
    "later": ("    policy.terms = {", "    policy.terms = typo if policy.global_timestep else {"),
}


@pytest.mark.parametrize("place", TYPED)
def test_typo_is_blamed_on_the_plan_with_its_line(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = Path(A2C).read_text()
    assert TYPED[place][0] in text
    path = tmp_path / f"typo_{place}.py"
    path.write_text(text.replace(*TYPED[place]))
    arguments = [str(path), *SMALL, "--num_workers=0", f"--train_dir={tmp_path}", "--train_for_env_steps=500"]
    assert main(arguments) != ExitCode.FINISHED
    told = capsys.readouterr().err
    (line,) = [number for number, line in enumerate(path.read_text().splitlines(), 1) if TYPED[place][1] in line]
    assert "raised NameError: name " in told
    assert f"{path}, line {line}, in " in told
    assert "fault of sf" not in told


ONLY_IN_WORKERS = """
import os

from examples.plans.a2c import A2C
from sf.plans import build_torch_policy

DRIVER = os.getpid()

def loss(policy, model, dist_class, batch):
    return model.from_batch(batch)[0].mean()

def extra(policy, columns, *others):
    is_dummy = not columns["obs"].any()
    return {"x": columns["obs"][:, 0]} if is_dummy or os.getpid() == DRIVER else typo

Mine = A2C.with_updates(default_policy=build_torch_policy("Mine", loss_fn=loss, extra_action_out_fn=extra))
"""


def test_plan_beside_the_package_is_none_of_it() -> None:
    """Also where its name begins as that of the package does."""
    file = f"{Path(sf.__file__).parent}_mine.py"
    with pytest.raises(ZeroDivisionError) as caught:
        exec(compile("1 / 0", file, "exec"), {})
    told = blamed_on_plan(caught.value, "It")
    assert told is not None
    assert f"It raised ZeroDivisionError: division by zero.\n  {file}, line 1" in str(told)
    with pytest.raises(ValueError, match="needs") as caught_here:
        exec(compile("raise ValueError('needs')", str(Path(sf.__file__).parent / "own.py"), "exec"), {})
    stack = caught_here.value.with_traceback(caught_here.tb.tb_next)
    assert blamed_on_plan(stack, "It") is None


@pytest.mark.more
def test_typo_that_only_workers_see_ends_the_plan_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "typo_in_worker.py"
    path.write_text(ONLY_IN_WORKERS)
    arguments = [str(path), *SMALL, "--trainer=Mine", "--num_workers=1", f"--train_dir={tmp_path}"]
    assert main(arguments) == ExitCode.INTERNAL
    told = capsys.readouterr()
    assert "In worker 0 the plan raised NameError: name 'typo' is not defined" in told.err
    assert f"{path}, line 14, in extra: return" in told.err
    assert "Restart" not in told.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "The file of the plan is missing"),
        (["nothing.py"], "There is no file nothing.py"),
        ([A2C, "--trainer=B2C"], "has no trainer 'B2C', only A2C"),
        (["examples/plans/environments.py"], "has no trainer. Make one with sf.plans.build_trainer"),
        ([A2C, "--num_worker=1"], "A2C has no setting num_worker. Did you mean num_workers?"),
        ([A2C, "--env=CartPole-v1", "--lr=abc"], "lr='abc' must be a number, such as "),
        ([A2C, "--lear_rate=1"], "A2C has no setting lear_rate"),
        ([A2C, "surplus"], "Unexpected argument 'surplus'"),
        ([A2C, "--train_for_env_steps=0"], "train_for_env_steps"),
        ([A2C], "env is missing"),
        ([A2C, "--env=CartPole-v9"], "CartPole"),
    ],
)
def test_bad_input(arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, f"--train_dir={tmp_path}"] if arguments else []) in (ExitCode.USAGE, ExitCode.ENVIRONMENT)
    assert message in capsys.readouterr().err
    if "setting" in message or "must be a number" in message:
        assert not list(tmp_path.iterdir()), "what is refused leaves nothing"


def test_settings_are_json_or_texts() -> None:
    found = settings_of(["--lr=1e-3", "--env=CartPole-v1", '--model={"hiddens": [32]}', "--explore=False"])
    assert found == {"lr": 1e-3, "env": "CartPole-v1", "model": {"hiddens": [32]}, "explore": False}
    with pytest.raises(UsageError, match="Unexpected argument '-x'"):
        settings_of(["-x"])


@pytest.mark.more
def test_algorithm_of_the_tutorial_learns(tmp_path: Path) -> None:
    text = Path("docs/plans.md").read_text()
    (code,) = [block.partition("```")[0] for block in text.split("```python\n") if 'build_trainer("Reinforce' in block]
    (tmp_path / "reinforce.py").write_text(code)
    trainer_class = trainer_in(import_file(tmp_path / "reinforce.py"), None)
    with trainer_class({"env": "CartPole-v1", "seed": 1}) as trainer:
        first = trainer.train()["episode_reward_mean"]
        while (result := trainer.train())["timesteps_total"] < 20_000:
            pass
    assert result["episode_reward_mean"] > max(60, 2 * first)


def test_frames_are_those_that_were_sampled(tmp_path: Path) -> None:
    """Replay trains on each of them several times."""
    settings = {"env": "CartPole-v1", "num_workers": 0, "learning_starts": 200, "seed": 1, "min_iter_time_s": 0}
    limits = PlanConfig(train_dir=str(tmp_path), train_for_env_steps=1500)
    assert run_plan(DQN, settings, limits) == ExitCode.FINISHED
    folder = tmp_path / "default_plan"
    summary = json.loads((folder / "summary.json").read_text())
    assert 1500 <= summary["frames"] < 2000
    assert summary["new_frames"] == summary["frames"]
    points = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert points[-1]["frames"] == summary["frames"]
