"""Random kills of ranks under ``torchrun``, which starts all of them again: the run must go on after each.

python benchmarks/chaos_ranks.py [--kills=50] [--ranks=2]

A process of a random rank is killed one to four seconds after training has gone on. What is lost is the time between
the kill and the checkpoint that the next start resumes from, or the start before where it has saved nothing yet. It may
be one save interval, and some time for the save itself.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

SAVE_EVERY_S = 3
SLACK_S = 2.0
"""For the save itself, and for the noticing of a dead rank on a busy machine."""
DEADLINE_S = 180.0
VICTIMS = "sf-train", "sf-learner-0", "sf-rollout-0"


class Ranks:
    """One run of ``torchrun``."""

    def __init__(self, path: Path, number: int, kills: int) -> None:
        """Starts it."""
        self.path, self.experiment = path, path / "CartPole-v1"
        self.out = path / "out.txt"
        launcher = "torch.distributed.run", "--standalone", f"--nproc-per-node={number}", f"--max-restarts={kills + 5}"
        flags = (
            "--env=CartPole-v1", "--num_workers=1", "--num_envs_per_worker=8", f"--save_every_sec={SAVE_EVERY_S}",
            "--seed=1", f"--train_dir={path}", "--train_for_env_steps=1000000000",
        )  # fmt: skip
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *launcher, "-m", "sf.cli.train", *flags],
                stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def members(self, name: str) -> list[psutil.Process]:
        """Processes of all ranks that have this name."""
        found = []
        for one in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if one.name() == name[:15]:
                    found.append(one)
            except psutil.NoSuchProcess:
                continue
        return found

    def frames(self) -> int:
        """That the newest line of metrics tells of."""
        try:
            lines = (self.experiment / "metrics.jsonl").read_text().splitlines()
            return max((json.loads(line).get("frames") or 0) for line in lines[-3:])
        except (OSError, ValueError):
            return 0

    def resumed(self) -> int:
        """How often rank 0 has resumed from a checkpoint."""
        return self.out.read_text(errors="replace").count("Resumed from")

    def saved_s(self) -> float:
        """When the newest checkpoint was written."""
        return max((path.stat().st_mtime for path in (self.experiment / "checkpoint_p0").glob("*")), default=0.0)


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Looks ten times a second.

    Raises:
        SystemExit: it takes too long.
    """
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"FAILED: no {what} within {DEADLINE_S:.0f} s")
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=2)
    given = parser.parse_args()
    lost, began_s = list[float](), time.time()
    with tempfile.TemporaryDirectory() as directory:
        run = Ranks(Path(directory), given.ranks, given.kills)
        try:
            for kill in range(given.kills):
                before = run.frames()
                wait_until(lambda before=before: run.frames() > before and run.saved_s(), "training")
                time.sleep(random.uniform(1.0, 4.0))
                name = random.choice(VICTIMS)
                if not (victims := run.members(name)):
                    raise SystemExit(f"FAILED: there is no process {name}")
                resumed = run.resumed()
                killed_s, saved_s = time.time(), run.saved_s()
                random.choice(victims).kill()
                if name != "sf-rollout-0":  # which its own run replaces
                    wait_until(lambda resumed=resumed: run.resumed() > resumed, "resume")
                    lost.append(max(0.0, killed_s - max(saved_s, began_s)))
                    began_s = time.time()
                print(f"kill {kill + 1}: {name}, lost {lost[-1] if lost else 0:.1f} s at most", flush=True)
            before = run.frames()
            wait_until(lambda: run.frames() > before, "training after the last kill")
        finally:
            run.process.terminate()
            run.process.wait(DEADLINE_S)
    worst = max(lost, default=0.0)
    print(f"{given.kills} kills, {len(lost)} new starts of all ranks, {worst:.1f} s of training lost at most")
    if worst > SAVE_EVERY_S + SLACK_S:
        raise SystemExit(f"FAILED: more than the {SAVE_EVERY_S} s between two saves")


if __name__ == "__main__":
    main()
