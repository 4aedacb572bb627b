"""Draws by freshness out of a million rows, beside TorchRL's sampler where it is installed; in turns, on one core.

    pip install torchrl
    python benchmarks/replay_draws.py [--rows 1000000] [--batch 4096] [--rounds 20]

Both samplers read the same versions. Times are medians in milliseconds for the indices of one batch.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from sf.replay import StalenessAwareSampler, TensorStorage

VERSIONS = 1000
"""So many versions have acted, each equally often."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    versions = torch.randint(0, VERSIONS, (options.rows,))
    for limit in (-1, VERSIONS // 10):
        draws = {"sf": sf_draw(versions, limit, options.batch)}
        try:
            draws["torchrl"] = torchrl_draw(versions, limit, options.batch)
        except ImportError:
            print("TorchRL is not installed: pip install torchrl")
        seconds: dict[str, list[float]] = {name: [] for name in draws}
        for _ in range(options.rounds):
            for name, draw in draws.items():
                start = time.perf_counter()
                draw()
                seconds[name].append(time.perf_counter() - start)
        medians = {name: statistics.median(each) for name, each in seconds.items()}
        shown = ", ".join(f"{name} {1000 * median:.1f} ms" for name, median in medians.items())
        ratio = f"; torchrl / sf {medians['torchrl'] / medians['sf']:.2f}" if "torchrl" in medians else ""
        print(f"max_staleness={limit}: {options.batch} of {options.rows}: {shown}{ratio}")


def sf_draw(versions: Tensor, limit: int, batch: int) -> Callable[[], object]:
    """One draw of ours."""
    storage, sampler = TensorStorage(len(versions)), StalenessAwareSampler(limit)
    storage.write(0, {"policy_version": versions}, len(versions))
    sampler.consumer_version = VERSIONS
    return lambda: sampler.sample(storage, batch)


def torchrl_draw(versions: Tensor, limit: int, batch: int) -> Callable[[], object]:
    """One draw of TorchRL's."""
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage
    from torchrl.data.replay_buffers.samplers import StalenessAwareSampler as Theirs

    storage, sampler = LazyTensorStorage(len(versions)), Theirs(max_staleness=limit)
    storage.set(range(len(versions)), TensorDict({"policy_version": versions}, [len(versions)]))
    sampler.consumer_version = VERSIONS
    return lambda: sampler.sample(storage, batch)


if __name__ == "__main__":
    main()
