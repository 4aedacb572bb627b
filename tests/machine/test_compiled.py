"""C files that are compiled when they are first needed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sf.machine.compiled import NoCompilerError, library


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "answer.c"
    source.write_text("int answer(void) { return 42; }")
    return source


@pytest.fixture
def needs_compiler() -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")


@pytest.mark.usefixtures("needs_compiler")
def test_a_file_is_compiled_once_and_again_after_a_change(source: Path, tmp_path: Path) -> None:
    assert library(source).answer() == 42
    (made,) = (tmp_path / "cache/sf").iterdir()
    before = made.stat().st_mtime_ns
    assert library(source).answer() == 42
    source.write_text("int answer(void) { return 43; }")
    assert library(source).answer() == 43
    assert made.stat().st_mtime_ns == before


@pytest.mark.usefixtures("needs_compiler")
def test_a_file_is_compiled_again_after_a_change_of_one_that_it_includes(source: Path) -> None:
    included = source.with_name("number.h")
    source.write_text('#include "number.h"\nint answer(void) { return NUMBER; }')
    for number in (42, 43):
        included.write_text(f"#define NUMBER {number}\n")
        assert library(source).answer() == number


@pytest.mark.usefixtures("needs_compiler")
def test_a_file_with_an_error_leaves_nothing(source: Path, tmp_path: Path) -> None:
    source.write_text("int answer(void) { return nothing; }")
    with pytest.raises(NoCompilerError, match="nothing"):
        library(source)
    assert list((tmp_path / "cache/sf").iterdir()) == []


def test_no_compiler(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(NoCompilerError, match="there is no C compiler no-such-compiler"):
        library(source)


def test_no_place_for_the_result(source: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(NoCompilerError):
        library(source)


@pytest.mark.usefixtures("needs_compiler")
def test_a_user_without_a_home(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(NoCompilerError, match="home"):
        library(source)
