"""The pages as a site: links, anchors, navigation, and the build."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("**/*.md"))]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")


def without_code(text: str) -> str:
    """A page without blocks of code and without code in lines."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return re.sub(r"^ {4}.*$", "", text, flags=re.M)


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as in repositories and in the site."""
    headings = re.findall(r"^#+ (.*)$", without_code(page.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_and_anchors_exist(page: Path) -> None:
    for link, anchor in LINK.findall(without_code(page.read_text())):
        target = (page.parent / link).resolve() if link else page
        assert target.is_file(), link
        assert page.parent == ROOT or target.is_relative_to(DOCS), f"the site does not have {link}"
        assert not anchor or anchor in anchors(target), f"{link}#{anchor}"


def test_navigation_has_every_page_once() -> None:
    entries = re.findall(r"^ +- (?:[\w -]+: )?([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert sorted(entries) == sorted(str(page.relative_to(DOCS)) for page in PAGES[1:])


def test_overview_links_every_page_of_the_first_level() -> None:
    linked = {link for link, _ in LINK.findall((DOCS / "index.md").read_text())}
    assert {page.name for page in DOCS.glob("*.md")} - {"index.md"} <= linked


def test_site_is_built_without_a_warning_and_without_network(tmp_path: Path) -> None:
    pytest.importorskip("zensical")
    shutil.copytree(DOCS, tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    site = tmp_path / "build" / "site"
    for page in PAGES[1:]:
        name = page.relative_to(DOCS).with_suffix(".html")
        html = (site / name.with_name(name.name.replace("README", "index"))).read_text()
        loaded = re.findall(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="(https?:[^"]*)"', html)
        assert loaded == [], f"{page.name} loads from a server"
        assert 'src="' + "../" * (len(name.parts) - 1) + 'assets/copy.js"' in html.replace('src="./', 'src="')
    architecture = (site / "architecture.html").read_text()
    assert 'src="images/processes.svg"' in architecture
    assert (site / "images" / "processes.svg").is_file()
    assert "<th>Process</th>" in architecture


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (Debian: apt-get install chromium)")
def test_copy_buttons_copy_commands_without_prompts_and_output(tmp_path: Path) -> None:
    assert CHROMIUM is not None
    page = """<pre><code>$ sf-train --env=CartPole-v1
64 environments cost $ nothing.
$ sf-eval first
</code></pre><pre><code>print("no command")</code></pre><script>%s</script>"""
    (tmp_path / "page.html").write_text(page % (DOCS / "assets/copy.js").read_text())
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", (tmp_path / "page.html").as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout
    assert re.findall(r'data-copy="([^"]*)"', dom) == ["sf-train --env=CartPole-v1\nsf-eval first"]
