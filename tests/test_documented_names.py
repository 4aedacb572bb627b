"""The flags and the names that the pages mention exist, also in the tables of those that come from other libraries."""

from __future__ import annotations

import importlib
import re
import shlex

import pytest

from sf.cli.arguments import _problems, flags_of
from sf.cli.doctor import DoctorConfig
from sf.cli.enjoy import EnjoyConfig
from sf.cli.evaluate import EvaluationConfig
from sf.cli.export import ExportConfig
from sf.cli.habits import rewritten
from sf.cli.hub import PullConfig, PushConfig
from sf.cli.report import ReportConfig
from sf.cli.runs import RunsConfig
from sf.cli.sweep import SweepConfig
from sf.cli.track import TrackConfig
from sf.config import Config
from sf.config.plan import PlanConfig
from sf.monitor import tags
from tests.helpers.documented import BLOCK, PAGES, Page

OTHERS = {
    "torchrun": ("--nnodes", "--nproc-per-node", "--rdzv-endpoint", "--standalone", "--max-restarts"),
    "docker": ("--shm-size", "--tmpfs"),
    "sf-bench predict": ("--cores", "--gpus"),
    "benchmarks": ("--vectorization native --envs-per-group 256", "--candidates", "--statistics"),
    "examples/plans": ("--sample_async",),
    "any": (
        "--help",
        "--help all",
        "--help learner",
        "--flag",
        "--no-flag",
        "--flag value",
        "--name",
        "--version",
        "--config",
        "--save_config",
    ),
}
"""Program to those of its flags that the pages mention."""
COMMANDS = (
    Config, DoctorConfig, EvaluationConfig, EnjoyConfig, ExportConfig, PlanConfig, PullConfig, PushConfig, ReportConfig,
    RunsConfig, SweepConfig, TrackConfig,
)  # fmt: skip
MIGRATION = [page for page in PAGES if page.name.startswith("docs/migration/")]
CURVES = {f"train/{tag}" for curve in tags.TRAIN for tag in curve.tags.split()} | {
    tag for curve in tags.RUN + tags.FAULTS + tags.EVALUATION for tag in curve.tags.split()
}


def problem(flag: str) -> str:
    """Why no command takes this flag, with this value if it has one; empty if one does."""
    if flag.partition("=")[0] in (other for flags in OTHERS.values() for other in flags):
        return ""
    words = shlex.split(re.sub("=(N|x|NAME)$", "", flag))
    told = []
    for config in COMMANDS:
        flags = dict(flags_of(config))
        told.append("; ".join(_problems(flags, rewritten(flags, words))))
    found = "" in told or any(" needs a value: " in one for one in told)  # the second of a flag without a value
    return "" if found else told[0]


@pytest.mark.parametrize("page", [page for page in PAGES if page not in MIGRATION], ids=lambda page: page.name)
def test_flags_in_the_lines_of_a_page_exist(page: Page) -> None:
    for code in re.findall(r"`(--\w[^`\n]*)`", BLOCK.sub("", page.text)):
        assert problem(code) == "", code


def ours(page: Page) -> list[str]:
    """The code in the second column of the tables, and in lists of flags."""
    rows = re.findall(r"^\| (.*?) \| (.*?) \| (.*?) ?\|$", page.text, re.M)
    assert len(rows) > 30
    lists = re.findall(r"^(`--\w+`(?:,? ?`--\w+`)*,?)$", page.text, re.M)
    return [code for text in [row[1] for row in rows] + lists for code in re.findall(r"`([^`]+)`", text)]


@pytest.mark.parametrize("page", MIGRATION, ids=lambda page: page.name)
def test_what_takes_the_place_of_another_name_exists(page: Page) -> None:
    flags = names = curves = 0
    for code in ours(page):
        if code.startswith("--"):
            flags += 1
            assert problem(code) == "", code
        elif code.startswith("sf."):
            names += 1
            module, _, name = code.rpartition(".")
            assert hasattr(importlib.import_module(module), name), code
        elif "/" in code and page.name.endswith("stable-baselines3.md"):
            curves += 1
            assert code in CURVES, code
    assert flags > 25
    assert names > 5
    assert curves > 5 or "sample-factory" in page.name
