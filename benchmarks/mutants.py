"""Plants small mistakes in the core, one at a time, and counts those that the tests notice.

    python benchmarks/mutants.py [--sample 300] [--seed 1] [--only sf/learner]

mutmut makes the mutants (an operator, an argument, a constant, a condition) and runs the tests that execute the changed
function. [tool.mutmut] in pyproject.toml says which modules and which tests. A sample of 300 takes hours on two
cores, `--sample 0` takes all of them, a night. The command can be stopped at will: verdicts are kept below
build/mutants, and only those that are missing are found. Those of a function are dropped when its code changes; `rm -r
build/mutants` drops all, which better tests need.

The table counts by package. A mutant that changes nothing a caller could see is not counted: its kind stands with the
reason in tests/equivalent_mutants.json. Every other survivor is printed as a difference.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import site
import subprocess
import sys
import venv
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STAGE = ROOT / "build" / "mutants"
EQUIVALENT = ROOT / "tests" / "equivalent_mutants.json"
PYTHON = STAGE / "python" / "bin" / "python"
NOT_RUN = None
NOTICED = {1, 3, 36, 24, -24, 152, 255, -11, -9}
"""Verdicts of mutmut: tests failed (1), stumbled (3), or took many times their time."""
WITHOUT_STATISTICS = 'import os; os.environ.get("MUTANT_UNDER_TEST") != "stats" or os.environ.pop("MUTANT_UNDER_TEST")'
"""What a process of a test does first. mutmut does not count its functions, and stumbles in another folder."""
A_FIRST_MUTANT = "sf.learner.returns.x_gae__mutmut_1"
COLUMNS = ["mutants", "killed", "equivalent", "survived"]


def lay_out() -> bool:
    """Copies the files that git knows to the stage, the packages below src/; says whether any has changed."""
    has_changed = False
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        source, target = ROOT / name, STAGE / re.sub(r"^(envs/)?(?=sf(_envs)?/)", "src/", name)
        if source.is_file() and not (target.exists() and source.read_bytes() == target.read_bytes()):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
            has_changed = True
    return has_changed


def make_interpreter() -> None:
    """One that finds the packages of the stage before those of this interpreter.

    Processes that tests start execute the mutants as well then, and code may be edited while the command runs.
    """
    venv.create(PYTHON.parents[1], with_pip=False, clear=True)
    (packages,) = PYTHON.parents[1].glob("lib/python*/site-packages")
    lines = [STAGE / "mutants" / "src", *site.getsitepackages(), WITHOUT_STATISTICS]
    (packages / "stage.pth").write_text("".join(f"{line}\n" for line in lines))


def mutmut(*arguments: str) -> str:
    """Its output, without the spinner."""
    finished = subprocess.run(
        [PYTHON, "-m", "mutmut", *arguments], cwd=STAGE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if finished.returncode:
        lines = re.split(r"[\r\n]+", finished.stdout)
        sys.exit(
            "mutmut failed:\n" + "\n".join(line for line in lines[-200:] if not re.match(r"^\W? ?[A-Z]\w+ing ", line))
        )
    return finished.stdout


def verdicts() -> dict[str, int | None]:
    """Mutant to the exit code of its tests."""
    found: dict[str, int | None] = {}
    for path in sorted(STAGE.rglob("*.meta")):
        found |= json.loads(path.read_text())["exit_code_by_key"]
    return found


def look_with_whole_files(mutant: str) -> int:
    """The exit code of the tests of the package and of those that name the module; other processes may run it. Kept."""
    path = STAGE / "by_whole_files.json"
    kept: dict[str, int] = json.loads(path.read_text()) if path.exists() else {}
    if mutant not in kept:
        module, stage = mutant.split(".x")[0], STAGE / "mutants"
        tests = stage / "tests" / module.split(".")[1]
        files = [
            str(file.relative_to(stage))
            for file in sorted(stage.glob("tests/**/test_*.py"))
            if module in file.read_text() or tests in file.parents
        ]
        environment = os.environ | {"MUTANT_UNDER_TEST": mutant, "PYTHONPATH": str(stage / "src")}
        command = [PYTHON, "-m", "pytest", "-x", "-q", "-m", "not slow and not gpu and not alone", *files]
        kept[mutant] = 0
        if files:
            try:
                kept[mutant] = subprocess.run(
                    command, cwd=stage, env=environment, capture_output=True, timeout=600
                ).returncode
            except subprocess.TimeoutExpired:
                kept[mutant] = 36
        path.write_text(json.dumps(kept))
    return kept[mutant]


def package_of(mutant: str) -> str:
    """The folder of its module, or the module where that lies directly in `sf`."""
    first, second, *rest = mutant.split(".x")[0].split(".")
    return f"{first}/{second}" if rest else f"{first}/{second}.py"


def difference_of(mutant: str) -> list[str]:
    """The lines that the mutant removes and adds."""
    lines = mutmut("show", mutant).splitlines()
    return [f"{line[0]} {line[1:].strip()}" for line in lines if re.match(r"[+-](?!\+\+|--)", line)]


def report(sample: Iterable[str]) -> None:
    """Prints the table, then the survivors."""
    found = verdicts()
    kinds = [re.compile(kind["difference"], re.DOTALL) for kind in json.loads(EQUIVALENT.read_text())]
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    survivors: list[str] = []
    for mutant in sample:
        verdict, difference = "killed", ""
        if found[mutant] not in NOTICED and look_with_whole_files(mutant) not in NOTICED:
            difference = "\n".join(difference_of(mutant))
            verdict = "equivalent" if any(kind.search(difference) for kind in kinds) else "survived"
        for package in (package_of(mutant), "all"):
            counts[package]["mutants"] += 1
            counts[package][verdict] += 1
        if verdict == "survived":
            survivors.append(f"{mutant}\n{difference}")
    print("| module | " + " | ".join(COLUMNS) + " | noticed |\n|---|" + "---:|" * (len(COLUMNS) + 1))
    for package, counted in sorted(counts.items(), key=lambda item: (item[0] == "all", item[0])):
        share = counted["killed"] / max(1, counted["mutants"] - counted["equivalent"])
        print(f"| {package} | " + " | ".join(str(counted[name]) for name in COLUMNS) + f" | {100 * share:.0f} % |")
    print("\n" + "\n\n".join(survivors))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sample", type=int, default=300, help="number of mutants; 0 takes all of them")
    parser.add_argument("--seed", type=int, default=1, help="another seed draws other mutants")
    parser.add_argument("--only", default="", help="the start of a path, such as sf/learner")
    args = parser.parse_args()
    has_changed = lay_out()
    make_interpreter()
    if has_changed or not verdicts():
        mutmut("run", A_FIRST_MUTANT)  # makes all of them, and learns which tests execute which function
    found = verdicts()
    sample = sorted(one for one in found if one.replace(".", "/").startswith(args.only.removesuffix(".py")))
    if args.sample:
        sample = random.Random(args.seed).sample(sample, min(args.sample, len(sample)))
    if missing := [one for one in sample if found[one] is NOT_RUN]:
        mutmut("run", *missing)
    report(sorted(sample))


if __name__ == "__main__":
    main()
