"""Plans in scripts and notebooks, and environments that are given as classes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sf.plans import WorkerSet
from tests.helpers.planned import CountingPolicy, TenSteps

ROOT = Path(__file__).parents[2]


class Configured(TenSteps):
    """Takes its settings as a whole, as environments for RLlib do."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.first = config["first"]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset()
        return np.full(1, self.first, np.float32), {}


class Spread(Configured):
    """Takes them one by one."""

    def __init__(self, first: float = 0.0) -> None:
        super().__init__({"first": first})


@pytest.mark.more
@pytest.mark.parametrize("kind", [Configured, Spread])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_environment_is_a_class(kind: type[Configured], num_workers: int) -> None:
    class Inside(kind):  # type: ignore[valid-type,misc]  # known to no module
        pass

    for env in (kind, Inside, lambda config: Inside(config) if kind is Configured else Inside(**config)):
        if num_workers and env is not Inside:
            continue  # one start is enough
        settings = {"env": env, "env_config": {"first": 3.5}, "num_workers": num_workers, "rollout_fragment_length": 10}
        with WorkerSet(CountingPolicy, settings) as workers:
            each: list[Any] = [*workers.remote_workers()] or [workers.local_worker()]
            assert each[0].sample()["obs"][:, 0].tolist() == [3.5, *range(1, 10)]


def run(directory: Path, text: str) -> str:
    """What a script prints, which has no main guard."""
    (directory / "script.py").write_text(text)
    path = os.pathsep.join([str(ROOT), str(ROOT / "envs")])
    command = [sys.executable, str(directory / "script.py")]
    found = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "PYTHONPATH": path}
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert "Restart" not in found.stdout
    return found.stdout


@pytest.mark.more
def test_first_example_of_the_page_is_a_program(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "plans.md").read_text()
    example = text.split("```python\n")[1].partition("```")[0]
    assert 'A2C({"env": "CartPole-v1", "num_workers": 2})' in example
    assert float(run(tmp_path, example)) > 5


SCRIPT = """
import threading
import gymnasium, sf
from sf.plans import ParallelRollouts, WorkerSet
from tests.helpers.planned import CountingPolicy, TenSteps

class Mine(TenSteps):
    pass

class Outer(TenSteps):
    def reset(self, **named):
        gymnasium.make("Named-v0").reset()
        gymnasium.make("Lambda-v0").reset()
        return super().reset(**named)

class Seen:
    def __init__(self, batch):
        self.count = batch.count

def look(batch):
    return Seen(batch)

gymnasium.register("Registered-v0", Mine)
gymnasium.register("Named-v0", "__main__:Mine")
gymnasium.register("Lambda-v0", lambda: Mine())
gymnasium.register("Unsent-v0", lambda lock=threading.Lock(): Mine())
gymnasium.register("Unknown-v0", "__main__:Missing")
sf.register_env("Ours", Mine)
for env in (Outer, "Registered-v0", "Named-v0", "Ours"):
    with WorkerSet(CountingPolicy, {"env": env, "num_workers": 1, "rollout_fragment_length": 10}) as workers:
        rollouts = ParallelRollouts(workers, mode="raw").for_each(look).gather_sync()
        (seen,) = rollouts.take(1)
        print(type(seen) is Seen, seen.count)
        rollouts.close()
"""


@pytest.mark.more
def test_script_without_a_main_guard_has_its_own_environments_and_classes(tmp_path: Path) -> None:
    assert run(tmp_path, SCRIPT).splitlines() == ["True 10"] * 4
