"""What the processor says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from sf.machine.processor import has_bfloat16


@pytest.mark.parametrize(
    ("flags", "has_it"),
    [
        ("fpu avx2 avx512f", False),
        ("fpu avx512_bf16 avx512f", True),
        ("fpu amx_bf16", True),
        ("fpu xavx512_bf16", False),
    ],
)
def test_instructions_for_bfloat16(flags: str, has_it: bool, tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nflags\t\t: {flags}\n\nprocessor\t: 1\nflags\t\t: other\n")
    assert has_bfloat16(cpuinfo) is has_it


def test_a_processor_that_says_nothing_has_none(tmp_path: Path) -> None:
    assert not has_bfloat16(tmp_path / "none")
    (tmp_path / "cpuinfo").write_text("Features : asimd bf16\n")
    assert not has_bfloat16(tmp_path / "cpuinfo")
