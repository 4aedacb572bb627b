"""Every command of README and docs is run; what cannot be run here is parsed, and named below with the reason."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sf import errors
from sf.cli.bench import COMMANDS, _without_machine
from sf.cli.bench import _config as bench_config
from sf.cli.plan import settings_of
from sf.cli.train import parse_config
from sf.config import check
from sf.errors import ExitCode
from tests.helpers.commands import EXPERIMENT, Finished, run, started
from tests.helpers.documented import BLOCK, PAGES, ROOT, Command, pattern_of, share_said_by_sf

NOT_RUN = {
    r"pip install": "changes the machine",
    r"python -m sf_examples": "a program of Sample Factory",
    r"make": "installs, tests, or trains for hours; its target and its flags are looked at",
    r"(chrt -r 1 )?python benchmarks/": "measures for minutes to hours; the script and its flags are looked at",
    r"torchrun|srun": "several ranks or machines; tests/run/test_ranks.py starts ranks, and the flags of sf are parsed",
    r"sf-train .*--device=gpu": "needs an accelerator; make bench-gpu",
    r"sf-train .*multiagent/rware": "needs rware, which is no extra",
    r"sf-train .*--torch_compile|sf-bench .*--torch_compile": "compiles for a minute; tests/nets/test_compiling.py",
    r"sf-eval --match (tictactoe|my_run)": "needs a run of a game; tests/cli/test_match.py",
    r"sf-eval HiddenVelocity-v0": "needs a run of that environment; tests/nets/test_observation_groups.py",
    r"sf-report .*--png": "needs Chromium; tests/tools/report/test_drawn.py",
    r"sf completion": "changes the shell of the user; tests/cli/test_completion.py",
    r"sf-track": "tests/tools/tracking/test_tracking.py",
    r"sf-hub": "tests/tools/hub/test_hub.py, with a Hub on this machine",
    r"sf-sweep": "32 runs; tests/tools/sweep/test_sweep.py runs the same file with fewer",
}
"""Beginning of a command to the reason why it is not run here."""
MODULES = {
    "sf": "main", "sf-train": "train", "sf-eval": "evaluate", "sf-enjoy": "enjoy", "sf-export": "export",
    "sf-report": "report", "sf-plan": "plan", "sf-bench": "bench", "sf-track": "track",
}  # fmt: skip
LIMITS = ("--train_for_env_steps", "--train_for_seconds", "--stop_at_reward")
BY_TIME = "--with_pbt|--algorithm=(dqn|drqn|sac|td3|discrete_sac)$"
"""Flags with which one step is refused, because nothing would be learned."""
ALL = list(dict.fromkeys(replace(command, output=()) for page in PAGES for command in page.commands))
INLINE = list(dict.fromkeys(command for page in PAGES for command in page.inline_commands))
IN_ORDER = ("docs/tutorial.md", "docs/migration/stable-baselines3.md", "docs/troubleshooting.md")
"""Pages that are run as a whole."""


def reason_not_to_run(command: Command) -> str | None:
    line = " ".join(command.arguments)
    return next((reason for start, reason in NOT_RUN.items() if re.match(start, line)), None)


def runnable() -> Iterator[object]:
    seen = set()
    for command in ALL:
        if command.page in IN_ORDER or reason_not_to_run(command) or command.arguments in seen:
            continue
        seen.add(command.arguments)
        marks = [] if command.page == "README.md" and command.arguments[0] != "sf-train" else [pytest.mark.slow]
        if "vizdoom" in str(command):
            marks.append(pytest.mark.alone)  # the game has shared memory with names
        yield pytest.param(command, id=str(command), marks=marks)


def without(limits: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """The arguments without these flags and their values."""
    kept: list[str] = []
    skips = False
    for argument in arguments:
        if argument.startswith("--"):
            skips = argument.partition("=")[0] in limits
        if not skips:
            kept.append(argument)
    return kept


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a short run, which has a best checkpoint too."""
    path = tmp_path_factory.mktemp("trained")
    finished = run(path, "--env=CartPole-v1", "--train_for_env_steps=20000", "--num_workers=1")
    assert finished.code == ExitCode.FINISHED, finished.err
    return path / EXPERIMENT


@pytest.mark.more
@pytest.mark.parametrize("command", list(runnable()))
def test_command_runs(command: Command, trained: Path, tmp_path: Path) -> None:
    program, *arguments = command.arguments
    (page,) = (page for page in PAGES if page.name == command.page)
    for name, text in page.files.items():
        (tmp_path / name).write_text(text)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    if program == "sf":
        shutil.copytree(trained, tmp_path / "train_dir" / "cartpole")
    elif program in ("sf-eval", "sf-enjoy", "sf-export", "sf-report"):
        for name in {re.sub("^--experiment=", "", argument) for argument in arguments}:
            if re.fullmatch(r"\w[\w.-]*", name):
                shutil.copytree(trained, tmp_path / "train_dir" / name)
        if program == "sf-eval":
            arguments = [*without(["--num_episodes"], arguments), "--num_episodes=2"]
    elif arguments != ["--help"]:
        by_time = program == "sf-bench" or any(re.match(BY_TIME, argument) for argument in arguments)
        limit = "--train_for_seconds=2" if by_time else "--train_for_env_steps=1"
        arguments = [*without(LIMITS, arguments), limit]
    finished = run_program(program, arguments, tmp_path)
    assert finished.code == ExitCode.FINISHED, finished.err


@pytest.mark.slow
def test_commands_of_the_readme_run_one_after_the_other_in_one_directory(trained: Path, tmp_path: Path) -> None:
    """Each training some frames further than the one before, which may have been of the same environment."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copytree(trained, tmp_path / "train_dir" / "cartpole")
    commands = [command for command in PAGES[0].commands if not reason_not_to_run(command)]
    assert len(commands) > 15
    for number, command in enumerate(commands, start=1):
        program, *arguments = command.arguments
        if program in ("sf-train", "sf-plan") and arguments != ["--help"]:
            arguments = [*without(LIMITS, arguments), f"--train_for_env_steps={4000 * number}"]
        if "--with_pbt" in arguments:  # whose first decision comes after millions of frames
            arguments += ["--pbt_start_mutation=1000", "--pbt_period_env_steps=1000"]
        line = [sys.executable, "-m", "sf", *([] if program == "sf" else [program.removeprefix("sf-")]), *arguments]
        with started(tmp_path, *line, python_path=f"{ROOT}:{ROOT / 'envs'}") as running:
            assert running.finish().code == ExitCode.FINISHED, f"{command}\n{running.err_file.read_text()}"
    names = {path.name for path in (tmp_path / "train_dir").iterdir()}
    assert {"LunarLander-v3", "CartPole-v1", "sf-Remember-v0", "cartpole"} <= names


def run_program(program: str, arguments: Sequence[str], path: Path) -> Finished:
    """Runs a command of sf, or a script in this directory."""
    if program == "python":
        script, *arguments = arguments
        return run(path, *arguments, module=script.removesuffix(".py"), python_path=f"{ROOT}:{ROOT / 'envs'}:{path}")
    return run(path, *arguments, module=f"sf.cli.{MODULES[program]}", python_path=f"{ROOT}:{ROOT / 'envs'}")


@pytest.mark.more
@pytest.mark.parametrize("name", [*IN_ORDER[:-1], pytest.param(IN_ORDER[-1], marks=pytest.mark.slow)])
def test_page_runs_from_top_to_bottom(name: str, tmp_path: Path) -> None:
    """With the output that it shows, but for times and numbers; an error that is shown has its exit code."""
    (page,) = (page for page in PAGES if page.name == name)
    for file, text in page.files.items():
        (tmp_path / file).write_text(text)
    for command in page.commands:
        if reason_not_to_run(command):
            continue
        finished = run_program(command.arguments[0], command.arguments[1:], tmp_path)
        assert finished.code == code_shown(command), f"{command}\n{finished.err}"
        said = {pattern_of(line) for line in (finished.out + finished.err).splitlines()}
        for line in command.output:
            assert pattern_of(line) in said or is_share(line) or is_of_machine(line), f"{command} does not say {line}"


@pytest.mark.more
def test_lines_of_runs_are_sentences_of_the_code() -> None:
    (page,) = (page for page in PAGES if page.name == "docs/troubleshooting.md")
    shown = [line for _, text in page.blocks if not text.lstrip().startswith("$ ") for line in text.splitlines()]
    inline = re.findall(r"`([^`\n]+)`", BLOCK.sub("", page.text))
    shown += [code for code in inline if re.search("hold|full|inside", code)]
    shown += [line for page in PAGES for line in re.findall(r"^ *(\[20[\d-]+ .*)$", page.text, re.M)]
    assert len(shown) > 40
    for line in filter(str.strip, shown):
        for sentence in re.split(r"(?<=\.) ", re.sub(r"^\[.*?\]\[\d+\] |^\w+Error: ", "", line)):
            # The first words of a report are put together in a loop.
            assert sentence.startswith("Fps is (") or share_said_by_sf(sentence) >= 0.5, f"{line}: {sentence}"


def code_shown(command: Command) -> int:
    """Code of the error that ends its output, 0 without one."""
    for line in command.output:
        error = getattr(errors, line.partition(":")[0], None)
        if isinstance(error, type) and issubclass(error, errors.SfError):
            return error.exit_code
    return ExitCode.FINISHED


def is_share(line: str) -> bool:
    """A line of the table of time shares; processes and activities depend on the machine."""
    return re.match(r"  [\w-]+  +\w+ +[\d.]+%", line) is not None


def is_of_machine(line: str) -> bool:
    """A sentence about its speed: what is chosen, how much is learned from a batch, and what holds the run back."""
    speaks_of_it = re.search("[Bb]usy: |Chosen: |Each batch is learned from ", line) is not None
    return speaks_of_it and share_said_by_sf(line) > 0.2


@pytest.mark.parametrize("command", ALL + INLINE, ids=str)
def test_command_is_understood(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    program, *arguments = [argument.replace("…", "CartPole-v1") for argument in command.arguments]
    if "sf.cli.train" in arguments:
        program, arguments = "sf-train", arguments[arguments.index("sf.cli.train") + 1 :]
    arguments = [argument for argument in arguments if argument != "&"]
    if program == "sf-train" and arguments and "--help" not in arguments and command.page != "docs/troubleshooting.md":
        check(parse_config(arguments))
    elif program == "sf-bench" and len(arguments) > 1:
        assert arguments[0] in COMMANDS
        flags = _without_machine(arguments[1:])[0] if arguments[0] == "predict" else arguments[1:]
        bench_config(arguments[0], flags)
    elif program == "sf-plan":
        settings_of(arguments[1:])
    elif program == "make":
        expect_target(arguments)
    elif script := next((each for each in arguments if each.startswith("benchmarks/")), None):
        expect_flags(ROOT / script, arguments)


def expect_target(arguments: Sequence[str]) -> None:
    """The Makefile has the target, and a command takes the flags that it hands on."""
    target, *variables = arguments
    text = (ROOT / "Makefile").read_text()
    assert re.search(rf"^{target}:", text, re.M)
    for variable in variables:
        name, _, value = variable.partition("=")
        assert re.search(rf"^{name} \?=", text, re.M)
        if name == "ARGS":
            check(parse_config(value.split()))
        elif name == "MUTANTS_ARGS":
            expect_flags(ROOT / "benchmarks" / "mutants.py", value.split())


def expect_flags(script: Path, arguments: Sequence[str]) -> None:
    text = script.read_text()
    for argument in arguments:
        if argument.startswith("--"):
            assert f'"{argument.partition("=")[0]}"' in text, f"{script.name} has no {argument}"


def test_default_of_make_train_is_understood() -> None:
    (arguments,) = re.findall(r"^ARGS \?= (.*)$", (ROOT / "Makefile").read_text(), re.M)
    check(parse_config(arguments.split()))


def test_every_reason_is_needed_and_true() -> None:
    for start, reason in NOT_RUN.items():
        assert any(re.match(start, " ".join(command.arguments)) for command in ALL), start
        assert all((ROOT / file).is_file() for file in re.findall(r"tests/[\w/]+\.py", reason)), reason


@pytest.mark.slow
def test_program_of_the_readme_runs(tmp_path: Path) -> None:
    (code,) = (text for language, text in PAGES[0].blocks if language == "python")
    (tmp_path / "program.py").write_text(code)
    assert run_program("python", ["program.py"], tmp_path).code == ExitCode.FINISHED


def test_python_of_pages_compiles() -> None:
    blocks = [(page.name, text) for page in PAGES for language, text in page.blocks if language == "python"]
    assert len(blocks) > 10
    for name, text in blocks:
        compile(text, name, "exec")
