"""Random numbers of one call from a seed of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

Seed = int | torch.Generator | None
"""Seed of one call: a number, a generator that gives one, or None for the global generator as it is."""


@contextlib.contextmanager
def seeded(seed: Seed, device: torch.device) -> Iterator[None]:
    """Inside the block the global generator of this device is as it is after the seed; then it is put back."""
    if seed is None:
        yield
        return
    if isinstance(seed, torch.Generator):
        number = int(torch.randint(2**62, (), generator=seed, device=seed.device))
    else:
        number = int(seed)  # which may be one of NumPy
    if device.type == "cpu":
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(number)  # and not those of accelerators, which would not be put back
            yield
        return
    generators, index = torch.get_device_module(device), torch.empty(0, device=device).device.index
    with generators.device(index), torch.random.fork_rng([index], device_type=device.type):
        generators.manual_seed(number)
        yield


def generator_for(seed: Seed, device: torch.device) -> torch.Generator | None:
    """The generator that a seed stands for; None for the global one."""
    return seed if seed is None or isinstance(seed, torch.Generator) else torch.Generator(device).manual_seed(int(seed))
