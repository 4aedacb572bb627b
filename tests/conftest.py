"""What all tests share."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("sf", deadline=None)  # a machine that stands still for a moment has shown nothing
settings.load_profile("sf")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # by a shell without jobs that has started this in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def oracles() -> dict[str, Any]:
    """Inputs and expected outputs by contract row."""
    data: dict[str, Any] = json.loads((Path(__file__).parent / "oracles.json").read_text())
    return data
