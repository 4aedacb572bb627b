"""``sf-report``: one page about runs, to look at and to hand on."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sf.cli.command import run_command
from sf.cli.habits import is_truth_value
from sf.errors import ExitCode, ExperimentError, UsageError

if TYPE_CHECKING:
    from sf.tools.report.figures import Figure
    from sf.tools.report.runs import RunFiles

DESCRIPTION = (
    "A page about runs, while they go on or afterwards. RUN is a name below --train_dir, a directory, or a folder of "
    "runs; the same training with other seeds is one group. Example: sf-report cartpole --open=True"
)
PAGE = "report.html"


@dataclass(frozen=True)
class ReportConfig:
    """What is written, and where to."""

    train_dir: str = "train_dir"
    """Directory that holds the experiments."""
    output: str | None = None
    """The page; None is report.html, in the directory of the run if there is one run."""
    png: str | None = None
    """A directory, for every plot as a PNG."""
    open: bool = False
    """Show the page in a browser."""
    follow: bool = False
    """Write the page anew every 10 seconds as long as one of its runs goes on; a browser that shows it follows."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run_command(_report, arguments)


def _report(arguments: Sequence[str]) -> int:
    from sf.cli.arguments import parse

    names, flags = _names_and_flags(arguments)
    if not names and not {"-h", "--help"} & set(flags):
        raise UsageError("No run is given. Give names or directories: sf-report cartpole --output=page.html")
    config = parse(ReportConfig, flags, "sf-report RUN [RUN...]", DESCRIPTION, ())
    if config.follow:
        if config.png is not None:
            raise UsageError("--png writes plots once, and --follow a page again and again. Give one of them.")
        _follow(names, config)
        return ExitCode.FINISHED
    page, figures, _ = _write(names, config)
    print(f"Wrote {page}")
    if config.png:
        _write_pictures(figures, Path(config.png))
    if config.open:
        _open(page)
    return ExitCode.FINISHED


def _names_and_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Every word without a leading dash is a name, unless a flag before it takes it as its value."""
    names, flags, words = [], [], list(arguments)
    while words:
        word = words.pop(0)
        name = word.removeprefix("--").replace("-", "_")
        if not word.startswith("-"):
            names.append(word)
        elif name in ("open", "follow"):
            flags.append(f"--{name}={words.pop(0) if words and is_truth_value(words[0]) else True}")
        elif name in ReportConfig.__dataclass_fields__ and words and not words[0].startswith("-"):
            flags.append(f"{word}={words.pop(0)}")
        else:
            flags.append(word)
    return names, flags


class Written(NamedTuple):
    """A page on disk."""

    page: Path
    figures: Sequence[Figure]
    lives: bool
    """Whether one of its runs goes on."""


def _follow(names: Sequence[str], config: ReportConfig) -> None:
    from sf.storage.experiment import errors_told
    from sf.tools.report.following import EVERY_S, follow, wait_for_curves

    train_dir = Path(config.train_dir)
    with errors_told(train_dir.absolute()):
        wait_for_curves([place for name in names for place in (Path(name), train_dir / name)])
    first = _write(names, config, EVERY_S)
    _show(first.page, config)
    if first.lives:
        print(f"It is renewed every {EVERY_S} s as long as a run goes on. Ctrl-C ends that.", flush=True)
    follow(first.lives, lambda renewed_s: _write(names, config, renewed_s, is_told=False).lives)
    print(f"No run goes on{' any more' if first.lives else ''}, so the page stays as it is.")


def _write(names: Sequence[str], config: ReportConfig, renewed_s: int | None = None, is_told: bool = True) -> Written:
    """One page, which a browser loads again after `renewed_s`; `is_told` is whether to say what is left out."""
    from datetime import datetime

    from sf.storage.experiment import errors_told
    from sf.tools.report.figures import make_figures
    from sf.tools.report.following import in_one_step
    from sf.tools.report.groups import make_groups
    from sf.tools.report.page import make_page
    from sf.tools.report.runs import find_runs, read_runs

    train_dir = Path(config.train_dir)
    with errors_told(train_dir.absolute()):
        paths = find_runs(names, train_dir)
        runs, without = read_runs(paths, names, train_dir)
    if is_told:
        _tell_what_is_left_out(runs, without)
    groups, lives = make_groups(runs), any(run.state == "running" for run in runs)
    figures = make_figures(groups)
    page = Path(config.output) if config.output else (paths[0] / PAGE if len(paths) == 1 else Path(PAGE))
    text = make_page(groups, figures, datetime.now(), renewed_s if lives else None)
    target = f"--output={config.output}" if config.output else f"{page.absolute()}"
    with _refusals_told(target, "--output"), in_one_step(page) if config.follow else nullcontext(page) as place:
        place.write_text(text, encoding="utf-8")
    return Written(page, figures, lives)


def _tell_what_is_left_out(runs: Sequence[RunFiles], without: Sequence[Path]) -> None:
    from sf.storage.experiment import listed

    if without:
        noun = "run" if len(without) == 1 else "runs"
        print(
            f"Left out {len(without)} {noun} without curves: {listed([run.name for run in without])}.", file=sys.stderr
        )
    if damaged := sum({run.path: run.num_damaged for run in runs}.values()):
        print(f"Left out {damaged} damaged {'line' if damaged == 1 else 'lines'} of metrics.jsonl", file=sys.stderr)


def _show(page: Path, config: ReportConfig) -> None:
    print(f"Wrote {page}", flush=True)
    if config.open:
        _open(page)


def _write_pictures(figures: Sequence[Figure], directory: Path) -> None:
    from sf.tools.report.pictures import write_pictures

    with _refusals_told(f"--png={directory}", "--png"):
        directory.mkdir(parents=True, exist_ok=True)
        write_pictures(figures, directory)
    print(f"Wrote {len(figures)} plots to {directory}")


@contextmanager
def _refusals_told(target: str, flag: str) -> Iterator[None]:
    """Turns refusals of the file system into an error that names the flag and the path."""
    from sf.machine.limits import as_refusal

    try:
        yield
    except OSError as error:
        if told := as_refusal(error):
            raise told from error
        reason = error.strerror or error
        raise ExperimentError(f"{target} cannot be written: {reason}. Choose another path with {flag}.") from None


def _open(page: Path) -> None:
    import webbrowser

    if not webbrowser.open(page.absolute().as_uri()):
        print(f"No browser was found. Open {page.absolute()} in one.")


if __name__ == "__main__":
    sys.exit(main())
