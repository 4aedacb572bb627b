"""What the processor can compute."""

from __future__ import annotations

from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
BFLOAT16 = {"avx512_bf16", "amx_bf16"}
"""Names of instructions in the list of flags."""


def has_bfloat16(cpuinfo: Path = CPUINFO) -> bool:
    """Whether it multiplies numbers of type bfloat16; others emulate it, which takes longer than float32."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return False
    flags = next((line.partition(":")[2] for line in lines if line.startswith("flags")), "")
    return not BFLOAT16.isdisjoint(flags.split())
