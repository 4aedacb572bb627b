"""Findings about Python, packages, accelerators and the compiler."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from sf.machine.compiled import NoCompilerError, library
from sf.tools.doctor.findings import Finding

TRIED = tuple((3, minor) for minor in range(10, 15))
"""The versions of Python with which runs and tests were made, those of the classifiers in pyproject.toml."""
EXTRAS = {
    "ale_py": "atari", "envpool": "envpool", "minigrid": "minigrid", "mujoco": "mujoco", "pettingzoo": "pettingzoo",
    "Box2D": "box2d", "onnx": "onnx", "imageio": "video", "matplotlib": "report", "optuna": "sweep",
}  # fmt: skip
"""Modules, and the extra of `sf-rl` that brings each."""


def python() -> Iterator[Finding]:
    """Interpreter and version of `sf`."""
    found = f"{platform.python_version()} ({sys.executable}), sf {version('sf-rl')}"
    is_tried = sys.version_info[:2] in TRIED
    first, last = (".".join(map(str, version)) for version in (TRIED[0], TRIED[-1]))
    advice = "" if is_tried else f"Python {first} to {last} were tried"
    yield Finding("python", "ok" if is_tried else "note", found, advice)


def packages() -> Iterator[Finding]:
    """Versions of what `sf` needs, and the extras that are there."""
    needed = map(Requirement, requires("sf-rl") or ())
    names = sorted({one.name for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})})
    found = []
    for name in names:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            yield Finding("packages", "fail", f"{name} is missing", "Install again: pip install sf-rl")
    yield Finding("packages", "ok", ", ".join(found))
    there = [extra for module, extra in EXTRAS.items() if importlib.util.find_spec(module)]
    yield Finding("extras", "ok", ", ".join(there) or "none")


def accelerators() -> Iterator[Finding]:
    """The build of torch, and what it computes with."""
    import torch

    built_for = torch.version.cuda or getattr(torch.version, "hip", None)
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            known = torch.cuda.get_device_properties(number)
            yield Finding("accelerator", "ok", f"{known.name}, {known.total_memory / 2**30:.0f} GiB, CUDA {built_for}")
        return
    if shutil.which("nvidia-smi") is None:
        yield Finding("accelerator", "ok", f"none, torch {torch.__version__}")
        return
    advice = (
        "Install one for CUDA, see docs/install.md" if built_for is None else "Does nvidia-smi work, and is it hidden?"
    )
    yield Finding("accelerator", "note", f"a driver, but torch {torch.__version__} cannot use it", advice)


def compiler() -> Iterator[Finding]:
    """Whether small networks train and act in C."""
    from sf.learner import small_steps
    from sf.nets.fast import small_networks

    try:
        for source in (small_networks.SOURCE, small_steps.SOURCE):
            library(source)
    except NoCompilerError as error:
        advice = "Small networks then train in torch and act in NumPy, which takes twice as long: install gcc"
        yield Finding("compiler", "note", str(error), advice)
        return
    yield Finding("compiler", "ok", "small networks train and act in C")
