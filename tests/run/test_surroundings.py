"""How a program was started: without standard streams, from standard input, with arguments that are not for modules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sf.envs import find_env
from sf.errors import EnvCrashed, ExitCode
from tests.helpers.commands import ROOT, TIMEOUT_S

TRAIN = "-m", "sf.cli.train", "--train_for_env_steps=1500", "--num_workers=1", "--num_envs_per_worker=4", "--seed=1"


def shell(path: Path, redirections: str, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", f'exec "$0" "$@" {redirections}', sys.executable, *arguments], cwd=path, input=text or None,
        capture_output=True, text=True, timeout=TIMEOUT_S, env={"PYTHONPATH": ROOT, "PATH": "/usr/bin:/bin"},
        check=False,
    )  # fmt: skip


@pytest.mark.more
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_run_does_not_need_its_standard_streams(closed: str, tmp_path: Path) -> None:
    finished = shell(tmp_path, closed, *TRAIN, "--env=CartPole-v1")
    assert finished.returncode == ExitCode.FINISHED, finished.stderr
    assert list(tmp_path.glob("train_dir/CartPole-v1/checkpoint_p0/checkpoint_*"))


SCRIPT = """
import gymnasium
import sf

class Mine(gymnasium.wrappers.TimeLimit):
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1").unwrapped, 50)

class MyPPO(sf.PPO):
    pass

if __name__ == "__main__":
    sf.register_env("Mine", Mine)
    result = sf.train("Mine", algorithm=MyPPO, train_for_env_steps=1500, num_workers=1)
    print(result.exit_reason)
"""


@pytest.mark.more
def test_a_program_from_standard_input_trains(tmp_path: Path) -> None:
    finished = shell(tmp_path, "", "-", text=SCRIPT)
    assert finished.returncode == ExitCode.FINISHED, finished.stderr
    assert "train_for_env_steps reached" in finished.stdout


READS = """
import argparse
import gymnasium

parser = argparse.ArgumentParser()
parser.add_argument("--size", type=int{more})
size = parser.parse_args().size
gymnasium.register("Reads-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=50)
"""


@pytest.mark.more
def test_a_module_that_reads_arguments_on_import_gets_none_of_ours(tmp_path: Path) -> None:
    (tmp_path / "reads.py").write_text(READS.format(more=", default=3"))
    finished = shell(tmp_path, "", *TRAIN, "--env=reads:Reads-v0")
    assert finished.returncode == ExitCode.FINISHED, finished.stderr


def test_a_module_that_ends_the_program_on_import_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ends.py").write_text(READS.format(more=", required=True"))
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.argv)
    with pytest.raises(EnvCrashed, match=r"ends:Reads-v0 raised SystemExit in the import of ends"):
        find_env("ends:Reads-v0")
    assert sys.argv == before


OWN_ARGUMENTS = """
import argparse
import sys
import threading

import gymnasium
import sf

parser = argparse.ArgumentParser()
parser.add_argument("steps", type=int)
steps = parser.parse_args().steps
lock = threading.Lock()


class Limited(gymnasium.wrappers.TimeLimit):
    def __init__(self):
        with lock:
            super().__init__(gymnasium.make("CartPole-v1").unwrapped, steps)


if __name__ == "__main__":
    sf.register_env("Limited", Limited)
    result = sf.train("Limited", train_for_env_steps=1500, num_workers=1, experiment_summaries_interval=1)
    print("longest", max(length for _, length in result.metrics["len/len_max"]))
"""


@pytest.mark.more
def test_a_script_with_arguments_and_a_lock_trains_with_them_in_all_processes(tmp_path: Path) -> None:
    """Its class stands at the top level, where workers find it; neither it nor its lock has to be sent."""
    (tmp_path / "script.py").write_text(OWN_ARGUMENTS)
    finished = shell(tmp_path, "", "script.py", "7")
    assert finished.returncode == ExitCode.FINISHED, finished.stderr
    assert "longest 7" in finished.stdout


def test_the_own_file_of_a_program_without_standard_output_stays_its_own(tmp_path: Path) -> None:
    code = (
        'file = open("mine.txt", "w")\nfrom sf.output import open_closed_streams\nopen_closed_streams()\nprint("ours")'
    )
    (tmp_path / "script.py").write_text(code)
    assert shell(tmp_path, ">&-", "script.py").returncode == 0
    assert (tmp_path / "mine.txt").read_text() == ""
