"""What an exchange between ranks costs, in milliseconds, on one machine and between hosts.

    python benchmarks/ranks.py [--ranks 2 4] [--seconds 2] [--output results/ranks.json]
    chrt -r 1 python benchmarks/ranks.py --hosts [--delays 0 1 10] [--losses 0 0.01]

It measures `sf.learner.ranks.Ranks`, so gloo as a run uses it: the mean of a gradient, and the sum of one number. With
`--hosts` each rank is in a network namespace, see `hosts.py`, which takes root. So does `chrt`: the real-time priority
keeps other work on the cores out of the figures. Prints the median and the 95th percentile of rank 0.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from torch._C._distributed_c10d import TCPStore

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.hosts import Network, enter, joined
from sf.learner.ranks import Ranks
from sf.machine.rank import Rank
from sf.shared.arena import Arena, Field
from sf.shared.doorbell import Doorbell
from sf.shared.leaving import leaving_fields
from sf.shared.progress import Progress

SIZES = {"one number": 1, "CartPole": 9_155, "Nature CNN": 1_687_719}
"""Numbers in a gradient: of two networks with two layers of 64 each, and of the convolutions of Mnih et al. 2015."""
WARM_UP = 10
LEAST, MOST = 20, 2000
"""Exchanges that are measured."""
DEADLINE_S = 300.0


@dataclass(frozen=True)
class Measured:
    """One row of the table."""

    ranks: int
    delay_s: float | None
    """Between two hosts; None on one machine."""
    loss: float
    numbers: int
    median_s: float
    late_s: float
    """The 95th percentile."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--hosts", action="store_true", help="each rank in a network namespace; takes root")
    parser.add_argument("--delays", nargs="+", type=float, default=[0, 1, 10], help="ms, in each direction")
    parser.add_argument("--losses", nargs="+", type=float, default=[0, 0.01], help="fractions of packets")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each size")
    parser.add_argument("--output", type=Path, default=Path("results/ranks.json"), help="rows are added to it")
    options = parser.parse_args()
    networks: list[Network | None] = [None]
    if options.hosts:
        networks = [Network(delay / 1e3, loss) for loss in options.losses for delay in options.delays]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    rows = json.loads(options.output.read_text()) if options.output.exists() else []
    print("| Ranks | Network |" + "".join(f" {name} |" for name in SIZES))
    print("|---|---|" + "---|" * len(SIZES))
    for network in networks:
        for count in options.ranks:
            measured = measure(count, network, options.seconds)
            cells = [f"{1e3 * row.median_s:.3g} ({1e3 * row.late_s:.3g})" for row in measured]
            print("| " + " | ".join([str(count), str(network or "one machine"), *cells]) + " |", flush=True)
            rows += [asdict(row) for row in measured]
            options.output.write_text(json.dumps(rows, indent=1))


def measure(count: int, network: Network | None, seconds: float) -> list[Measured]:
    """All sizes among as many ranks."""
    context = multiprocessing.get_context("spawn")
    with hosts_of(count, network) as hosts:
        ends, processes = [], []
        port = _free_port()
        for index in range(count):
            end, its_end = context.Pipe(duplex=False)
            local = (index, count) if network is None else (0, 1)
            rank = Rank(index, count, *local, hosts[0][1], port)
            processes.append(context.Process(target=exchange, args=(rank, *hosts[index], seconds, its_end)))
            processes[-1].start()
            ends.append(end)
        try:
            if not ends[0].poll(DEADLINE_S):
                raise TimeoutError(f"{count} ranks with {network} do not end.")
            times = ends[0].recv()
        finally:
            for process in processes:
                process.kill()
                process.join()
    delay_s, loss = (None, 0.0) if network is None else (network.delay_s, network.loss)
    return [
        Measured(count, delay_s, loss, numbers, float(np.median(its)), float(np.quantile(its, 0.95)))
        for numbers, its in zip(SIZES.values(), times, strict=True)
    ]


@contextlib.contextmanager
def hosts_of(count: int, network: Network | None) -> Iterator[list[tuple[str, str]]]:
    """A namespace and an address for each rank; no namespace on one machine."""
    if network is None:
        yield [("", "127.0.0.1")] * count
        return
    with joined(count, network) as hosts:
        yield hosts


def exchange(rank: Rank, namespace: str, address: str, seconds: float, end: Connection) -> None:
    """In a process of its own: sends the seconds of each exchange, one list for each size."""
    if namespace:
        enter(namespace, address)
    torch.set_num_threads(1)
    store = TCPStore(rank.host, rank.port, is_master=True, wait_for_workers=False) if rank.is_first else None
    fields = {"run_state": Field((1,), "int64"), "progress": Field((1,), "int64"), **leaving_fields()}
    arena = Arena(fields)
    ranks = Ranks(rank, 0, arena, Doorbell(), Progress(arena["progress"], 0))
    times = [timed(ranks, numbers, seconds) for numbers in SIZES.values()]
    end.send(times)
    time.sleep(DEADLINE_S)  # the store is needed until all have ended
    del store


def timed(ranks: Ranks, numbers: int, seconds: float) -> list[float]:
    """Seconds of each of as many exchanges as fit."""
    vector = torch.full((numbers,), 1e-3)

    def once() -> float:
        began_s = time.perf_counter()
        if numbers == 1:
            ranks.sum(1.0)
        else:
            ranks.mean_(vector, 512.0)
        return time.perf_counter() - began_s

    for _ in range(WARM_UP):
        once()
    each_s = torch.tensor([float(np.mean([once() for _ in range(WARM_UP)]))])
    ranks.mean_(each_s, 1.0)  # so all make as many
    count = int(min(MOST, max(LEAST, seconds / each_s.item())))
    return [once() for _ in range(count)]


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


if __name__ == "__main__":
    main()
