"""What a browser draws of a report: Chromium loads the page into a frame as wide as a screen and notes what it sees."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sf.cli.report import main
from sf.errors import ExitCode
from tests.helpers.reported import rising, write_run

pytest.importorskip("plotly")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (Debian: apt-get install chromium)")
WATCHER = """<!doctype html><body><iframe id="frame" src="page.html" style="width:%dpx;height:3000px;border:0"></iframe>
<pre id="seen"></pre><script>
const texts = (root, selector) => [...root.querySelectorAll(selector)].map(one => one.textContent);
function look(page) {
  const plots = {};
  for (const place of page.querySelectorAll(".plot")) {
    const box = place.getBoundingClientRect();
    plots[place.dataset.plot] = {
      lines: [...place.querySelectorAll(".scatterlayer .js-line")].filter(
        one => parseFloat(getComputedStyle(one).strokeWidth) > 0).length,
      areas: place.querySelectorAll(".scatterlayer .js-fill").length,
      points: place.querySelectorAll(".scatterlayer .point").length,
      bars: place.querySelectorAll(".barlayer .point path").length,
      ticks: texts(place, ".xtick text").length + texts(place, ".ytick text").length,
      rows: [...place.querySelectorAll(".ytick text")]
        .sort((one, other) => one.getBoundingClientRect().top - other.getBoundingClientRect().top)
        .map(one => one.textContent),
      axes: [...texts(place, ".xtitle"), ...texts(place, ".ytitle")],
      inside: (place.querySelector(".nsewdrag") || place).getBoundingClientRect().width / box.width,
      legend: texts(place, ".legendtext"),
      width: box.width, text: place.innerText.slice(0, 200),
      outside: [...place.querySelectorAll("text")].filter(text => {
        const one = text.getBoundingClientRect();
        return one.width > 0 && (one.left < box.left - 1 || one.right > box.right + 1);
      }).map(text => text.textContent),
      colour: getComputedStyle(place.querySelector(".xtitle") || place).fill,
    };
  }
  return plots;
}
const timer = setInterval(() => {
  const frame = document.getElementById("frame"), page = frame.contentDocument;
  if (!page?.documentElement?.dataset.state) return;
  clearInterval(timer);
  const seen = { state: page.documentElement.dataset.state, plots: look(page) };
  seen.width = frame.contentWindow.innerWidth;
  seen.needed = page.documentElement.scrollWidth;
  for (const button of page.querySelectorAll(".switch button:last-child")) button.click();
  setTimeout(() => {
    seen.switched = look(page);
    document.getElementById("seen").textContent = JSON.stringify(seen);
  }, 300);
}, 50);
</script>"""


def drawn(page: Path, width: int, *flags: str) -> dict[str, Any]:
    """What is seen in a window of this width."""
    assert CHROMIUM is not None
    frame = page.with_name("frame.html")
    frame.write_text(WATCHER.replace("page.html", page.name) % width)
    profile = f"--user-data-dir={page.parent / 'profile'}"
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--allow-file-access-from-files",
        profile,
    ]
    command += ["--enable-logging=stderr", "--virtual-time-budget=20000", *flags, "--dump-dom", frame.as_uri()]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert "CONSOLE" not in done.stderr, done.stderr
    (text,) = re.findall(r'<pre id="seen">(.*?)</pre>', done.stdout, re.S)
    seen: dict[str, Any] = json.loads(html.unescape(text))
    return seen


def report(directory: Path, *runs: Path) -> Path:
    page = directory / "page.html"
    assert main([*map(str, runs), f"--output={page}"]) == ExitCode.FINISHED
    return page


@pytest.fixture
def groups(tmp_path: Path) -> list[Path]:
    return [
        write_run(tmp_path / f"{rate}-{seed}", rising(score + seed), seed=seed, learning_rate=rate)
        for rate, score in ((0.001, 50.0), (0.01, 90.0))
        for seed in (1, 2, 3)
    ]


@pytest.mark.more
@pytest.mark.parametrize("width", [390, 1280])
def test_one_run_is_drawn(width: int, tmp_path: Path) -> None:
    seen = drawn(report(tmp_path, write_run(tmp_path / "run")), width)
    assert seen["state"] == "drawn"
    assert seen["needed"] <= seen["width"] == width, "nothing sticks out to the right"
    plots = seen["plots"]
    assert len(plots) == 7
    assert (plots["reward"]["lines"], plots["reward"]["areas"], plots["reward"]["legend"]) == (1, 1, [])
    assert plots["reward"]["axes"] == ["frames", "return"]
    assert plots["lag"]["lines"] == 3
    assert plots["lag"]["legend"] == ["max", "avg", "min"]
    assert plots["lag-histogram"]["bars"] == 4
    assert plots["lag-sources"]["areas"] == 3
    assert plots["lag-sources"]["legend"] == ["acting, mean 0.5", "queued, mean 0.2", "epochs, mean 1.2"]
    assert plots["lag-effects"]["lines"] == 3
    assert plots["throughput"]["lines"] == 1
    assert plots["time-shares"]["bars"] >= 6
    assert plots["time-shares"]["rows"] == ["rollout", "learner"]
    for name, plot in plots.items():
        assert plot["ticks"] >= 4, name
        assert plot["outside"] == [], name
        assert plot["inside"] > 0.6, f"axes and legend leave room for {name}"
        assert plot["width"] <= width
    assert seen["switched"]["reward-by-time"]["axes"] == ["wall time, seconds", "return"]
    assert seen["switched"]["reward-by-time"]["lines"] == 1


@pytest.mark.more
@pytest.mark.parametrize("width", [390, 1280])
def test_groups_are_drawn(width: int, groups: list[Path], tmp_path: Path) -> None:
    seen = drawn(report(tmp_path, *groups), width)
    assert (seen["state"], seen["needed"] <= seen["width"]) == ("drawn", True)
    plots, labels = seen["plots"], ["learning_rate=0.01", "learning_rate=0.001"]
    assert (plots["reward"]["lines"], plots["reward"]["areas"], plots["reward"]["legend"]) == (2, 2, labels)
    assert plots["scores-1"]["points"] == 2 * (3 + 1)
    assert plots["scores-1"]["rows"] == labels
    assert plots["lag"]["legend"] == labels
    assert plots["lag-sources"]["rows"] == labels
    assert plots["lag-sources"]["bars"] == 6
    assert plots["time-shares"]["rows"] == [label + role for label in labels for role in ("rollout", "learner")]
    assert [name for name, plot in plots.items() if plot["outside"] or plot["inside"] < 0.4] == []


@pytest.mark.more
def test_axes_are_light_in_the_dark(tmp_path: Path) -> None:
    page = report(tmp_path, write_run(tmp_path / "run"))
    colours = [
        drawn(page, 1280, f"--blink-settings=preferredColorScheme={scheme}")["plots"]["reward"]["colour"]
        for scheme in (0, 1)
    ]
    dark, light = (sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in colours)
    assert dark > light + 100


def test_browser_that_is_too_old_is_told(tmp_path: Path) -> None:
    page = report(tmp_path, write_run(tmp_path / "run"))
    page.write_text(page.read_text().replace("<head>", "<head><script>delete window.DecompressionStream;</script>", 1))
    seen = drawn(page, 1280)
    assert seen["state"] == "failed"
    told = "This browser cannot draw the plot: it cannot decompress (DecompressionStream is missing)."
    assert all(plot["text"].startswith(told) for plot in seen["plots"].values())
