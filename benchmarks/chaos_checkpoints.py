"""Checkpoints under fire: killed while they are saved, read and resumed from, and damaged."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

from sf.errors import ExperimentError
from sf.storage.experiment import expect_free


def saving(count: int) -> str:
    """A process that does nothing but save, again and again."""
    import torch

    from sf.storage import checkpoint

    torch.set_num_threads(1)
    directory = Path(tempfile.mkdtemp())
    tensors = {"weights": torch.randn(20_000), "moments": torch.randn(20_000)}
    newest = 0
    try:
        for _ in range(count):
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(reader)  # else it would not see that this process has gone
                _save_forever(directory, tensors, newest, writer)
            os.close(writer)
            time.sleep(random.uniform(0.0, 0.06))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            with os.fdopen(reader) as told:
                durable = max([newest, *(int(line) for line in told if line.endswith("\n"))])
            loaded = checkpoint.load_newest(directory)
            version = loaded.version if loaded else 0
            assert version >= durable, f"version {durable} was durable, {version} is the newest"
            if loaded is not None:
                assert int(loaded.tensors["version"]) == version
            newest = version
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return f"{count} kills within {newest:,} saves: every time a whole checkpoint, and the newest one never went back"


def _save_forever(directory: Path, tensors: dict[str, Any], version: int, writer: int) -> NoReturn:
    import torch

    from sf.storage import checkpoint

    try:
        while True:
            version += 1
            checkpoint.save(directory, version, version, tensors | {"version": torch.tensor(version)}, {}, keep=2)
            os.write(writer, f"{version}\n".encode())
    finally:
        traceback.print_exc()
        os._exit(1)  # what is above belongs to the other process


def reading(count: int) -> str:
    """Every look finds a whole checkpoint, and never an older one than the look before."""
    import torch

    from sf.storage import checkpoint

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _save_forever(Path(name), {"weights": torch.randn(20_000)}, 0, writer)
        try:
            os.close(writer)
            with os.fdopen(reader) as told:
                told.readline()
                versions = []
                for _ in range(count):
                    time.sleep(random.uniform(0.0, 0.01))
                    loaded = checkpoint.load_newest(Path(name), put_aside=False)
                    assert loaded is not None
                    assert int(loaded.tensors["version"]) == loaded.version
                    versions.append(loaded.version)
                    while select.select([told], [], [], 0.0)[0]:
                        told.readline()  # else the pipe would be full
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert versions == sorted(versions)
    return f"{count} looks within {versions[-1]:,} saves: every time a whole checkpoint, and never an older one"


def resume(count: int) -> str:
    """Frames go on from the newest checkpoint, the schedule is where they are, and no point is there twice."""
    seconds, in_vain = 0.0, 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        experiment = Path(name, "run")
        line = [sys.executable, "-m", "sf.cli.train", "--env=CartPole-v1", f"--train_dir={name}", "--experiment=run"]
        line += ["--save_every_sec=1", "--experiment_summaries_interval=1", "--lr_schedule=linear"]
        line += ["--train_for_env_steps=100_000_000", "--seed=1"]
        newest = 0
        for number in range(count):
            log, who_acts = Path(name, "log.txt"), f"--policy_workers_per_policy={number % 2}"
            with log.open("w") as out:
                process = subprocess.Popen(
                    [*line, who_acts], stdout=out, stderr=subprocess.STDOUT, start_new_session=True
                )
            began = time.monotonic()
            while "Fps is" not in log.read_text() and random.random() > 0.002:  # one in a few is killed before
                assert process.poll() is None, log.read_text()
                time.sleep(0.02)
            time.sleep(random.uniform(0.0, 5.0))
            process.kill()
            process.wait()
            seconds += time.monotonic() - began
            _wait_until_free(Path(name))
            found = re.search(r"Resumed from .*, (\d+) frames", text := log.read_text())
            if newest and (found or "Fps is" in text):  # else it was killed before it had looked for one
                assert found, f"a start from zero beside a checkpoint of {newest} frames:\n{text}"
                assert int(found[1]) == newest, (newest, text)
            frames = [int(one.name.rpartition("_")[2]) for one in experiment.glob("checkpoint_p0/checkpoint_*")]
            assert max(frames, default=0) >= newest
            newest = max(frames, default=0)
            in_vain += found is None
        curves = experiment / "metrics.jsonl"
        lines = curves.read_text().splitlines(keepends=True) if curves.exists() else []  # all killed before the first
        points = [json.loads(text) for text in lines if text.endswith("\n")]
        xs = [point["frames"] for point in points]
        assert xs == sorted(xs), "a point is there twice"
        rates = [point["train/lr"] for point in points if "train/lr" in point]
        assert rates == sorted(rates, reverse=True), "the schedule went back"
    early = f"{in_vain} of them at the first start or before a resume"
    return (
        f"{count} kills, {early}: {newest:,} frames after {seconds:.0f} s; {len(points)} points in order, none with a "
        "learning rate above that of the one before"
    )


def _wait_until_free(directory: Path) -> None:
    """A process that is just being born holds what its parent held, the lock too, until it has begun as a program."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(ExperimentError):
            return expect_free(str(directory), "run")
        time.sleep(0.1)
    raise AssertionError("the lock of a run that was killed 30 s ago is held")


def damage(count: int) -> str:
    """Every mutation of any of the three files must be found."""
    import torch

    from sf.storage import checkpoint, sealed

    found = 0
    with tempfile.TemporaryDirectory() as name:
        path = checkpoint.save(Path(name), 1, 1, {"weights": torch.randn(500)}, {"some": "data"})
        files = sorted(path.iterdir())
        contents = {file: file.read_bytes() for file in files}
        for number in range(count):
            file = random.choice(files)
            content = bytearray(contents[file])
            if number % 10 == 0:
                del content[random.randrange(len(content)) :]
            else:
                content[random.randrange(len(content))] ^= 1 << random.randrange(8)
            file.write_bytes(content)
            try:
                sealed.verify(path, (checkpoint.TENSORS, checkpoint.STATE))
            except (sealed.DamagedError, sealed.UnknownFormatError):
                found += 1
            file.write_bytes(contents[file])
    assert found == count, f"{count - found} of {count} were not found"
    return f"{found:,} of {count:,} mutations found"
