"""What is installed: dependencies, folders, commands. Row S1."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DEPENDENCIES = {
    "torch", "numpy", "packaging", "gymnasium", "cloudpickle", "faster-fifo", "signal-slot-mp", "tensorboardx",
    "tyro", "rich", "safetensors", "setproctitle", "psutil", "tomli",
}  # fmt: skip
EXTRAS = {
    "atari", "box2d", "craftax", "dev", "docs", "envpool", "hub", "jax", "jumanji", "minigrid", "mujoco", "mutants",
    "notebook", "onnx", "pettingzoo", "playground", "ray", "report", "results", "slurm", "sweep", "trackio",
    "video", "vizdoom", "vmas", "wandb",
}  # fmt: skip
PACKAGES = sorted(str(file.parent.relative_to(ROOT)).replace("/", ".") for file in ROOT.glob("sf/**/__init__.py"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without network."""
    pytest.importorskip("hatchling")
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", str(target), str(ROOT)], check=True, capture_output=True)
    (path,) = target.glob("*.whl")
    return path


def test_s1_dependencies_of_the_wheel_are_the_documented_ones(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    required = metadata.get_all("Requires-Dist") or []
    hard = {re.split(r"[^\w.-]", line)[0].lower() for line in required if "extra ==" not in line}
    assert hard == DEPENDENCIES
    assert set(metadata.get_all("Provides-Extra") or []) == EXTRAS


def test_readme_of_the_wheel_has_no_links_into_the_repository(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    text = metadata.get_payload()
    assert isinstance(text, str)
    assert metadata["Description-Content-Type"] == "text/markdown"
    targets = re.findall(r"\]\(([^)]*)\)|<img src=\"([^\"]*)", text)
    assert [one or other for one, other in targets if not (one or other).startswith("https://")] == []
    assert "Tutorial (`docs/tutorial.md`)" in text


@pytest.mark.parametrize(
    ("remote", "home"),
    [
        ("https://github.com/someone/sf.git\n", "https://github.com/someone/sf"),
        ("https://token@gitlab.com/group/team/sf", "https://gitlab.com/group/team/sf"),
        ("git@github.com:someone/sf.git", "https://github.com/someone/sf"),
        ("ssh://git@git.example.org:2222/someone/sf.git/", "https://git.example.org/someone/sf"),
        ("/home/someone/sf", None),
        ("../sf", None),
        ("", None),
    ],
)
def test_package_names_the_repository_that_it_was_built_from(tmp_path: Path, remote: str, home: str | None) -> None:
    pytest.importorskip("hatchling")
    sources = tmp_path / "sources"
    for name in (
        "hatch_build.py",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "sf/__init__.py",
        "envs/sf_envs/__init__.py",
    ):
        (sources / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, sources / name)
    subprocess.run(["git", "init", "--quiet", sources], check=True)
    if remote:
        subprocess.run(["git", "-C", sources, "remote", "add", "origin", remote.strip()], check=True)
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path), "-t"]
    subprocess.run([*build, "sdist"], cwd=sources, check=True, capture_output=True)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.glob("sf_rl-*/")
    subprocess.run([*build, "wheel"], cwd=unpacked, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = Parser().parsestr(archive.read(name).decode()).get_all("Project-URL") or []
    ends = {
        "Homepage": "",
        "Documentation": "/tree/HEAD/docs",
        "Changelog": "/blob/HEAD/CHANGELOG.md",
        "Issues": "/issues",
    }
    assert sorted(lines) == sorted(f"{word}, {home}{end}" for word, end in ends.items() if home)


def test_public_names_are_listed_before_they_are_loaded() -> None:
    code = "import sys, sf; print(set(sf.__all__) <= set(dir(sf)), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.split() == ["True", "False"]


def test_s1_wheel_holds_sf_and_sf_envs_and_nothing_called_envs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        top = {name.partition("/")[0] for name in archive.namelist()}
        fast = ("sf/nets/fast/small_network.c", "sf/nets/fast/recurrent.c", "sf/nets/fast/vectors.h")
        for name in ("sf/tools/report/page.html", "sf/learner/small_steps.c", *fast):
            assert name in archive.namelist(), "what is no Python is there as well"
        assert {"sf/py.typed", "sf_envs/py.typed"} <= set(archive.namelist())
    assert {name for name in top if not name.endswith(".dist-info")} == {"sf", "sf_envs"}


@pytest.mark.more
def test_s1_installed_wheel_imports_and_its_commands_run(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path, with_pip=False)
    python = tmp_path / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True)
    # The dependencies of this environment, without its own copy of sf: links in there are not followed from here.
    (site,) = tmp_path.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    assert {"sf", "sf.cli", "sf.rollout", "sf.inference", "sf.learner"} <= set(PACKAGES)
    for module in (*PACKAGES, "sf_envs"):
        code = f"import {module}; print({module}.__file__)"
        done = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path, env={})
        assert done.stdout.startswith(str(site)), module
    commands = {path.name for path in (tmp_path / "bin").glob("sf-*")}
    assert {"sf-train", "sf-eval"} < commands
    for name in commands:
        done = subprocess.run([tmp_path / "bin" / name, "--help"], check=True, capture_output=True, text=True, env={})
        assert f"usage: {name}" in done.stdout
    code = "from sf.envs import find_env; print(find_env('sf/CatchPixels-v0').make())"
    done = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path, env={})
    assert "CatchPixels" in done.stdout
