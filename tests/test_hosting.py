"""Files for hosts, containers and citations say the same as the package."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import sf
from sf.tools.doctor.software import TRIED

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))


def text_of(name: str) -> str:
    return (ROOT / name).read_text()


def test_workflows_test_the_versions_of_the_classifiers() -> None:
    project = text_of("pyproject.toml")
    classified = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    (matrix,) = re.findall(r"^ *python: (\[.*\])$", text_of(".github/workflows/tests.yml"), re.MULTILINE)
    assert json.loads(matrix) == classified == [f"{major}.{minor}" for major, minor in TRIED]
    assert f'requires-python = ">={classified[0]}"' in project
    others = {found for path in WORKFLOWS for found in re.findall(r'python-version: "(.*)"', path.read_text())}
    assert others == {"3.11"}
    assert "FROM python:3.11-" in text_of("Dockerfile")


def test_the_citation_has_the_version_of_the_package() -> None:
    assert re.findall(r"^version: (.*)$", text_of("CITATION.cff"), re.MULTILINE) == [sf.__version__]


def test_the_container_has_the_pinned_torch() -> None:
    (pinned,) = re.findall(r"^torch==(.*)$", text_of("constraints.txt"), re.MULTILINE)
    assert f'"torch=={pinned}+${{TORCH}}"' in text_of("Dockerfile")
    assert json.loads(text_of(".devcontainer/devcontainer.json"))["build"]["dockerfile"] == "../Dockerfile"


def test_workflows_run_targets_of_the_makefile() -> None:
    named = {found for path in WORKFLOWS for found in re.findall(r"- run: make ([\w-]+)", path.read_text())}
    assert named == {"check", "test", "test-more", "train", "docs"}
    assert all(re.search(rf"^{target}:", text_of("Makefile"), re.MULTILINE) for target in named)


def test_a_report_of_a_fault_asks_for_the_page_of_the_doctor() -> None:
    form = text_of(".github/ISSUE_TEMPLATE/bug.yml")
    assert "sf doctor" in form.partition("id: doctor")[2].partition("required: true")[0]


@pytest.mark.parametrize("path", [*WORKFLOWS, *FORMS, ROOT / "CITATION.cff"], ids=lambda path: path.name)
def test_file_is_yaml(path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    assert isinstance(yaml.safe_load(path.read_text()), dict)
