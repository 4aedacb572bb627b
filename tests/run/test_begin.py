"""When a run begins: with all of its roles, and never before."""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from sf.processes.process import RUNNING, STOPPING, wait_for_begin
from sf.shared.arena import Arena
from sf.shared.progress import Progress
from sf.shared.records import BEGAN_S
from tests.helpers.commands import run, summary_of


def words(began_s: float = math.nan) -> Arena:
    arena: Arena = {"run_state": np.array([RUNNING]), BEGAN_S: np.array([began_s])}  # type: ignore[assignment]
    return arena


@pytest.mark.parametrize(("word", "value"), [(BEGAN_S, 3.0), ("run_state", STOPPING)])
def test_a_role_that_is_ready_waits_for_the_others_or_the_end(word: str, value: float) -> None:
    arena = words()
    progress = Progress(np.zeros(1, np.int64), 0)
    waiting = threading.Thread(target=wait_for_begin, args=(arena, progress))
    waiting.start()
    time.sleep(0.05)
    seen = progress.word[0]
    time.sleep(0.2)
    assert progress.word[0] != seen, "a role that waits is alive"
    assert waiting.is_alive()
    arena[word][0] = value
    waiting.join(5.0)
    assert not waiting.is_alive()


def test_a_successor_does_not_wait() -> None:
    wait_for_begin(words(began_s=1.0), Progress(np.zeros(1, np.int64), 0))


@pytest.mark.more
def test_limits_and_curves_count_from_the_first_frame_however_late_a_worker_is(tmp_path: Path) -> None:
    """Its environment takes three seconds to make; the others would reach the limit many times in that."""
    late = "--env=tests.environments.late_worker:LateWorker-v0", "--num_workers=2", "--updates=fast"
    finished = run(tmp_path, *late, "--stop_at_reward=9", "--train_for_env_steps=100000000")
    assert finished.code == 0, finished.err
    summary = summary_of(tmp_path)
    assert summary["exit_reason"] == "stop_at_reward reached"
    assert summary["frames"] < 100_000
    assert summary["fps"] > 0
