"""`sf-sweep` on engines that are installed: the local cluster of submitit, and a Ray of this machine."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from sf.cli.sweep import main
from sf.errors import ExitCode
from tests.helpers.commands import run

HEAD = 'sweep = "small"\njobs = 2\n'
FLAGS = '[flags]\nenv = "CartPole-v1"\nserial_mode = true\nnum_envs_per_worker = 4\nrollout = 16\n'
VALUES = "train_for_env_steps = 600\n[values]\nnum_epochs = [1, 2]\n"


def expect_two_trials(path: Path) -> None:
    trials = json.loads((path / "train_dir/small/results.json").read_text())["trials"]
    assert [trial["flags"]["num_epochs"] for trial in trials] == [1, 2]
    assert [each["state"] for trial in trials for each in trial["runs"]] == ["finished", "finished"]


@pytest.mark.more
def test_jobs_of_submitit(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    (tmp_path / "sweep.toml").write_text(f'{HEAD}time_limit_s = 100\n{FLAGS}{VALUES}[slurm]\ncluster = "local"\n')
    finished = run(tmp_path, "sweep.toml", "--backend=slurm", module="sf.cli.sweep")
    assert finished.code == ExitCode.FINISHED, finished.err
    expect_two_trials(tmp_path)


@pytest.mark.alone
def test_trials_of_ray_tune(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    (tmp_path / "sweep.toml").write_text(f"{HEAD}{FLAGS}{VALUES}[ray]\ncpu = 1\n")
    finished = run(tmp_path, "sweep.toml", "--backend=ray", module="sf.cli.sweep")
    assert finished.code == ExitCode.FINISHED, finished.err
    expect_two_trials(tmp_path)


@pytest.mark.parametrize(("backend", "package", "extra"), [("slurm", "submitit", "slurm"), ("ray", "ray", "ray")])
def test_missing_extra_is_told(
    backend: str,
    package: str,
    extra: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.chdir(tmp_path)
    Path("sweep.toml").write_text(HEAD + FLAGS)
    assert main(["sweep.toml", f"--backend={backend}"]) == ExitCode.USAGE
    assert f'pip install "sf-rl[{extra}]"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('cluster = "local"', "Give time_limit_s, or timeout_min in [slurm]."),
        ('cluster = "local"\ntimeout_min = 5\npartition = "gpu"', "submitit refuses [slurm]:"),
        ('cluster = "lsf"\ntimeout_min = 5', "submitit refuses [slurm]:"),
        ("timeout_min = 5", "There is no sbatch here."),
    ],
)
def test_wrong_table_of_slurm_is_told(
    table: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.chdir(tmp_path)
    Path("sweep.toml").write_text(f"{HEAD}{FLAGS}[slurm]\n{table}\n")
    assert main(["sweep.toml", "--backend=slurm"]) == ExitCode.USAGE
    assert message in capsys.readouterr().err
