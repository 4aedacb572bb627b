"""Modules that a fork server loads in advance, so that roles load none while they work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.commands import ROOT

LOADED_WHILE_TRAINING = """
import importlib, json, sys
from pathlib import Path
from sf.processes.spare import MODULES, NETWORKS
from sf.shared.ledger import Ledger
from tests.helpers.lab import make_lab, step_until

lab = make_lab(Path(sys.argv[1]), "Pendulum-v1")
for module in MODULES[NETWORKS]:
    importlib.import_module(module)
before = set(sys.modules)
step_until(lab.build_all(), lambda: Ledger.of(lab.slots, has_ended=False).learned > 0)
print(json.dumps(sorted(set(sys.modules) - before)))
"""


@pytest.mark.more
def test_roles_load_nothing_large_when_they_work(tmp_path: Path) -> None:
    """What one loads after the fork it loads alone, and its first steps take that time."""
    line = [sys.executable, "-c", LOADED_WHILE_TRAINING, str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, check=True, cwd=ROOT, timeout=100)
    late = json.loads(done.stdout.splitlines()[-1])
    assert len(late) < 5, late


FIRST_STEP = """
import importlib, sys
from sf.processes.spare import MODULES, NETWORKS
for name in MODULES[NETWORKS]:
    importlib.import_module(name)
from tests.helpers.updates import Update, act, learner_config, make_policy, train
update = Update(make_policy(), learner_config())
update.want_summary = True
batch, before = act(update.policy), set(sys.modules)
train(update, batch)
print(*set(sys.modules) - before)
"""


@pytest.mark.more
def test_a_learner_loads_nothing_in_its_first_step() -> None:
    command = [sys.executable, "-c", FIRST_STEP]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout.split() == []
