"""How well `sf-bench predict` knows another machine: two cores from a run on one, and one core from a run on two.

    python benchmarks/predictions.py [--rounds 3] [--seconds 12] [TASK ...]

Each round runs a task on one core and on two, and predicts each from the other. Printed are medians of what was
predicted and of what was measured, and their ratio, of all rounds and of each.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys

FAST = ("--updates=fast",)
TASKS = {
    "cartpole": ("--env=CartPole-v1", *FAST),
    "cartpole-single": ("--env=CartPole-v1", "--vectorization=none", *FAST),
    "cartpole-synchronous": ("--env=CartPole-v1", "--async_rl=False", *FAST),
    "halfcheetah": ("--env=HalfCheetah-v5", *FAST),
}
HERE = re.compile(r"^([\d,.]+) samples/s here,", re.MULTILINE)
THERE = re.compile(r"^\d+ cores?[^:]*: ([\d,.]+) samples/s", re.MULTILINE)


def predicted(task: str, cores: int, there: int, seconds: int) -> tuple[float, float]:
    """Samples per second of a run on so many cores, with processes of the sizes that it would have there, and there."""
    usable = sorted(os.sched_getaffinity(0))[:cores]
    line = [sys.executable, "-m", "sf.cli.bench", "predict", f"--cores={there}", *TASKS[task]]
    line.append(f"--train_for_seconds={seconds}")
    done = subprocess.run(line, capture_output=True, text=True, preexec_fn=lambda: os.sched_setaffinity(0, usable))
    found = HERE.search(done.stdout), THERE.search(done.stdout)
    if None in found:
        sys.exit(f"sf-bench predict has failed on {task}:\n{done.stdout}{done.stderr}")
    if "Other programs took" in done.stdout:
        print(done.stdout.splitlines()[-1], file=sys.stderr)
    rate, guess = (float(match[1].replace(",", "")) for match in found if match)
    return rate, guess


def main() -> None:
    """Prints one line per task and direction."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=list(TASKS), choices=[[], *TASKS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=12)
    arguments = parser.parse_args()
    for task in arguments.tasks:
        rates: dict[int, list[float]] = {1: [], 2: []}
        guesses: dict[int, list[float]] = {1: [], 2: []}
        for round_number in range(arguments.rounds):
            for cores in (1, 2) if round_number % 2 == 0 else (2, 1):
                rates[cores].append(predicted(task, cores, cores, arguments.seconds)[0])
                guesses[cores].append(predicted(task, 3 - cores, cores, arguments.seconds)[1])
        for cores in (1, 2):
            rate, guess = statistics.median(rates[cores]), statistics.median(guesses[cores])
            by_round = ", ".join(f"{a / b:.2f}" for a, b in zip(guesses[cores], rates[cores], strict=True))
            print(
                f"{task}, {cores} of 2 cores: predicted {guess:,.0f}, measured {rate:,.0f}, {guess / rate:.2f} times; "
                f"by round {by_round}",
                flush=True,
            )


if __name__ == "__main__":
    main()
