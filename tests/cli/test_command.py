"""What a command says of an exception that nothing expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from sf.cli.command import run_command
from sf.errors import ExitCode


def test_an_exception_of_the_users_code_is_not_called_a_fault_of_sf(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file := tmp_path / "mine.py").write_text("def loss():\n    return 1 / 0\n")
    names: dict[str, object] = {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    assert run_command(lambda _: names["loss"](), []) == ExitCode.INTERNAL  # type: ignore[operator]
    told = capsys.readouterr().err
    assert "ZeroDivisionError" in told
    assert told.endswith(f"It was raised in loss, line 2 of {file}, or in what that line calls.\n")
