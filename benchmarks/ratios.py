"""What parts of `sf` are worth beside each other or beside a plain loop, and the least that they must be: a table.

    python benchmarks/ratios.py [--only plan updates ...] [--sb3 PYTHON]

Where one side of a ratio becomes faster, the other falls behind without a change of its own. So all of them are
measured together, one after the other: a quarter of an hour on a machine at rest. It ends with code 1 where one is
below its least value. `--sb3` names an interpreter with stable-baselines3; ratios to it are left out without.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
SB3 = "--sb3"


class Ratio(NamedTuple):
    """One line of the output of a benchmark, with the number that counts."""

    name: str
    line: str
    """The beginning of the line up to its number, as a regular expression; the last number is taken."""
    least: float


class Benchmark(NamedTuple):
    """A benchmark of this directory, and the ratios that it prints."""

    command: str
    ratios: tuple[Ratio, ...]


BENCHMARKS = {
    "plan": Benchmark(
        "plan_speed.py --rounds 3 --seconds 8",
        (
            Ratio("PPO plan beside sf-train", "PPO plan / sf-train =", 0.70),
            Ratio("A2C plan, one batch ahead, beside Stable-Baselines3", "A2C plan, ahead / SB3 A2C =", 3.0),
            Ratio("A2C plan beside Stable-Baselines3", "A2C plan / SB3 A2C =", 2.0),
        ),
    ),
    "off-policy": Benchmark(
        "off_policy.py --frames 3000 --rounds 2 --threads 1",
        (
            Ratio("SAC beside a loop of one page, one thread", r"sac: sf: .*,", 1.5),
            Ratio("DQN beside a loop of one page, one thread", r"dqn: sf: .*,", 1.5),
        ),
    ),
    "updates": Benchmark(
        "off_policy_updates.py",
        (
            Ratio("an update of SAC beside that of the loop", "sac: median: .*,", 1.5),
            Ratio("an update of DQN beside that of the loop", "dqn: median: .*,", 2.0),
        ),
    ),
}


def measured(benchmark: Benchmark, sb3: str | None) -> list[tuple[Ratio, float]]:
    """Runs it.

    Raises:
        SystemExit: it fails, or prints other lines than expected.
    """
    script, *flags = benchmark.command.split()
    line = [sys.executable, str(HERE / script), *flags, *([SB3, sb3] if sb3 and script == "plan_speed.py" else [])]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(line)} has failed:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
    wanted = [ratio for ratio in benchmark.ratios if sb3 or "SB3" not in ratio.line]
    return [(ratio, found(ratio, done.stdout)) for ratio in wanted]


def found(ratio: Ratio, output: str) -> float:
    """The number in the output of its benchmark.

    Raises:
        SystemExit: there is no such line.
    """
    if number := re.search(rf"^{ratio.line} ([\d.]+)", output, re.MULTILINE):
        return float(number[1])
    sys.exit(f"No line of the benchmark begins with {ratio.line!r}:\n{output}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS))
    parser.add_argument(SB3, metavar="PYTHON")
    given = parser.parse_args()
    print("| | measured | at least |\n|---|---:|---:|", flush=True)
    too_small = False
    for name in given.only:
        for ratio, value in measured(BENCHMARKS[name], given.sb3):
            print(
                f"| {ratio.name} | {value:.2f}{' **too small**' * (value < ratio.least)} | {ratio.least:.2f} |",
                flush=True,
            )
            too_small |= value < ratio.least
    return 1 if too_small else 0


if __name__ == "__main__":
    sys.exit(main())
