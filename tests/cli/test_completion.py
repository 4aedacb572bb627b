"""Completion in bash and zsh: commands, flags, values, environments and runs."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sf.cli.arguments import flags_of
from sf.cli.completion import SHELLS, main, script
from sf.cli.main import COMMANDS
from sf.config import Config
from sf.errors import ExitCode

ASK = {
    "bash": 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _sf_bash; printf "%s\\n" "${COMPREPLY[@]}"',
    "zsh": 'compdef() { }; source "$0"; _sf_candidates "$@"',
}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("completion")
    for shell in SHELLS:
        (directory / shell).write_text(script(shell))
    return directory


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("cart", "lunar", "cart.before-20261126"):
        (tmp_path / "train_dir" / name).mkdir(parents=True)
        (tmp_path / "train_dir" / name / ".sf-experiment").touch()
    (tmp_path / "other/mine").mkdir(parents=True)
    (tmp_path / "other/mine/.sf-experiment").touch()
    (tmp_path / "train_dir/no_run").mkdir()
    return tmp_path


def answers(scripts: Path, place: Path, *words: str, shell: str = "bash") -> list[str]:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    command = [shell, "-f", "-c", ASK[shell], str(scripts / shell), *words]
    if shell == "bash":
        command.remove("-f")
    return subprocess.run(command, cwd=place, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("sf", "tr"), ["train", "track"]),
        (("sf", "hub", ""), ["push", "pull"]),
        (("sf-bench", "la"), ["latency"]),
        (("sf", "completion", "z"), ["zsh"]),
        (("sf-eval", ""), ["cart", "lunar"]),
        (("sf-eval", "cart", "l"), ["lunar"]),
        (("sf", "report", "c"), ["cart"]),
        (("sf", "hub", "push", ""), ["cart", "lunar"]),
        (("sf-eval", "--experiment", "=", ""), ["cart", "lunar"]),
        (("sf-eval", "--experiment", "l"), ["lunar"]),
        (("sf-eval", "--train_dir", "=", "other", ""), ["mine"]),
        (("sf-eval", "--train_dir", "other", ""), ["mine"]),
        (("sf-eval", "--deterministic", "ca"), ["cart"]),
        (("sf-eval", "--num_episodes=3", "lu"), ["lunar"]),
        (("sf-train", "--env", "=", "CartP"), ["CartPole-v1"]),
        (("sf-train", "--env", "CartP"), ["CartPole-v1"]),
        (("sf-train", "--env", "=", "ata"), ["atari/"]),
        (("sf-train", "--serial"), ["--serial_mode"]),
        (("sf-train", "--devi"), ["--device="]),
        (("sf-train", "--save_con"), ["--save_config="]),
        (("sf-train", "--device", "=", ""), ["cpu", "gpu"]),
        (("sf-bench", "train", "--device", "=", "g"), ["gpu"]),
        (("sf", "ls", "--state", "ki"), ["killed"]),
        (("sf-train", "word"), []),
        (("sf-plan", ""), []),
        (("sf", "nothing", ""), []),
    ],
)
def test_candidates(scripts: Path, place: Path, words: tuple[str, ...], expected: list[str]) -> None:
    assert answers(scripts, place, *words) == expected


def test_both_shells_have_all_of_it(scripts: Path, place: Path) -> None:
    assert answers(scripts, place, "sf", "") == list(COMMANDS)
    (names,) = re.findall(r"^complete .* (sf .*)$", (scripts / "bash").read_text(), re.M)
    assert set(names.split()) >= {"sf", "sf-train", "sf-eval", "sf-hub"}
    flags = answers(scripts, place, "sf", "train", "--")
    assert {flag.strip("-=") for flag in flags} > dict(flags_of(Config)).keys()
    common = [(scripts / shell).read_text().partition("_sf_" + shell)[0].splitlines()[1:] for shell in SHELLS]
    assert common[0] == common[1]


@pytest.mark.parametrize("words", [("sf-train", "--device="), ("sf", "ls", "--state", "")])
def test_zsh_finds_the_same(scripts: Path, place: Path, words: tuple[str, ...]) -> None:
    found = answers(scripts, place, *words, shell="zsh")
    assert found[:1] == (["--device=cpu"] if len(words) == 2 else ["any"])


def test_a_key_completes_in_bash(scripts: Path, place: Path) -> None:
    """As a user types it; a second Tab key shows what there is."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(place)
        os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
    try:
        os.write(terminal, f"PS1='rea''dy> '; bind 'set enable-bracketed-paste off'; source {scripts}/bash\n".encode())
        read_until(terminal, "ready> ")
        os.write(terminal, b"sf ev\t--env=Acro\t lun\t")
        read_until(terminal, "sf eval --env=Acrobot-v1  lunar ")
        os.write(terminal, b"\x15sf-train --preset=\t\t")
        read_until(terminal, "envpool_atari")
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)


def read_until(terminal: int, text: str, timeout_s: float = 60.0) -> None:
    shown, end_s = "", time.monotonic() + timeout_s
    while text not in shown:
        assert time.monotonic() < end_s, shown
        if select.select([terminal], [], [], 0.5)[0]:
            shown += os.read(terminal, 4096).decode()


@pytest.mark.parametrize(("arguments", "found"), [([], "nothing"), (["fish"], "fish"), (["bash", "zsh"], "bash zsh")])
def test_other_shells_are_refused(arguments: list[str], found: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == ExitCode.USAGE
    assert f"UsageError: One shell is expected, bash or zsh, found {found}." in capsys.readouterr().err


def test_the_command_prints_the_script(scripts: Path) -> None:
    command = [sys.executable, "-m", "sf", "completion", "bash"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    own = {line for line in (scripts / "bash").read_text().splitlines() if "-v" not in line}
    assert own <= set(printed.splitlines())  # but for environments, of which other tests have registered some
    assert main(["--help"]) == ExitCode.FINISHED
