"""What ranks of `torchrun` reach in a whole run: seconds between two datasets, for each number of ranks.

    python benchmarks/ranks_run.py [--ranks 1 2 4] [--repeats 3] [--sampling-ms 0 200] [--output results/ranks_run.json]
    chrt -r 1 python benchmarks/ranks_run.py --delays 1

CartPole in synchronous mode, each rank on one core: rank r on core r modulo the number of cores. So a rank alone has
what each of two ranks has, and four ranks on two cores have half of it. An algorithm notes the time of each dataset.

With `--sampling-ms` it also sleeps before each, as if environments were slow. Each rank draws a lognormal time of this
mean, with a deviation of 30 %. A sleep takes no core, so four ranks on two cores are nearly as good as on four. With
`--delays` every rank is also on a host of its own, see `hosts.py`, which takes root; 1 rank is measured on none.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

import sf
from benchmarks.hosts import Network, enter, joined
from sf.learner.batch import Batch
from sf.learner.dataset import Transitions
from sf.policy import ActorCritic

CLOCK = "RANKS_RUN_CLOCK"
"""Environment variable with the file of `ClockedPPO`."""
SAMPLING = "RANKS_RUN_SAMPLING_MS"
"""Environment variable with the mean of its sleep."""
SPREAD = 0.3
"""Standard deviation of the sleep, as a fraction of the mean."""
EPOCHS, MINIBATCHES = 4, 4
FLAGS = (
    "--env=CartPole-v1", "--async_rl=False", "--num_workers=1", "--num_envs_per_worker=16", "--rollout=32",
    "--batch_size=512", f"--num_epochs={EPOCHS}", f"--num_batches_per_epoch={MINIBATCHES}", "--seed=1",
    "--algorithm=benchmarks.ranks_run:ClockedPPO",
)  # fmt: skip
WARM_UP = 5
"""Datasets that are left out."""
PORT = 29400
TOLD = re.compile(r"The exchange between learners takes (\d+) % of an optimizer step \(([\d.]+) ms\)")


class ClockedPPO(sf.PPO):
    """PPO that notes on rank 0 when each dataset is complete on all ranks, and then sleeps if it is told to."""

    _draws: np.random.Generator | None = None

    def prepare(self, batch: Batch, policy: ActorCritic) -> Transitions:
        """See `sf.Algorithm.prepare`."""
        path = os.environ.get(CLOCK)
        if path and os.environ.get("RANK", "0") == "0":
            with open(path, "a") as file:
                file.write(f"{time.perf_counter()}\n")
        if mean_s := float(os.environ.get(SAMPLING, "0")) / 1e3:
            self._draws = self._draws or np.random.default_rng(int(os.environ.get("RANK", "0")))
            time.sleep(float(lognormal(self._draws, mean_s, SPREAD, (1,))[0]))
        return super().prepare(batch, policy)


def lognormal(draws: np.random.Generator, mean: float, spread: float, shape: tuple[int, ...]) -> Any:
    """Numbers with this mean, and a standard deviation of `spread` times it."""
    sigma = np.sqrt(np.log1p(spread**2))
    return draws.lognormal(np.log(mean) - sigma**2 / 2, sigma, shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--delays", nargs="*", type=float, default=[], help="ms between hosts, in each direction")
    parser.add_argument("--sampling-ms", nargs="+", type=float, default=[0.0, 200.0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=12)
    parser.add_argument("--output", type=Path, default=Path("results/ranks_run.json"), help="rows are added to it")
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = json.loads(options.output.read_text()) if options.output.exists() else []
    networks: list[Network | None] = [None, *(Network(delay / 1e3) for delay in options.delays)]
    cases = [
        (count, network, sampling_ms)
        for sampling_ms in options.sampling_ms
        for network in networks
        for count in options.ranks
        if count > 1 or network is None
    ]
    for _ in range(options.repeats):  # in turns, because a shared machine is noisy for minutes
        for case in cases:
            rows.append(train(*case, options.seconds))
            options.output.write_text(json.dumps(rows))
            print(describe(rows[-1]), flush=True)


def describe(row: dict[str, Any]) -> str:
    where = "one machine" if row["delay_s"] is None else f"hosts, {1e3 * row['delay_s']:g} ms"
    gap_ms, sleep = 1e3 * statistics.fmean(row["gaps_s"]), f"{row['sampling_ms']:g} ms of sleep"
    told = row["told"] or "exchange below 20 %"
    return f"{row['ranks']} ranks, {where}, {sleep}: {gap_ms:.1f} ms for a dataset on average, {told}"


def train(count: int, network: Network | None, sampling_ms: float, seconds: int) -> dict[str, Any]:
    """One run: the gaps between datasets of rank 0, and what its learner spent on them."""
    with tempfile.TemporaryDirectory() as folder, _hosts(count, network) as hosts:
        clock, flags = Path(folder) / "clock", [*FLAGS, f"--train_dir={folder}", "--experiment=run"]
        flags.append(f"--train_for_seconds={seconds}")
        variables = {CLOCK: str(clock), SAMPLING: str(sampling_ms)}
        commands = [[sys.executable, "-m", "torch.distributed.run", *_meeting(count, index, hosts)] for index in hosts]
        agents = [
            subprocess.Popen(
                [*command, "--no-python", "bash", "-c", _on_own_core(index), sys.executable, *flags],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                preexec_fn=partial(enter, *host) if host else None,
                env=os.environ | variables | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
            )
            for command, (index, host) in zip(commands, hosts.items(), strict=True)
        ]  # fmt: skip
        outputs = [agent.communicate()[0] for agent in agents]
        if any(agent.returncode for agent in agents):
            raise RuntimeError("\n".join(outputs))
        stamps = [float(line) for line in (clock.read_text()).split()]
        summary = json.loads((Path(folder) / "run/summary.json").read_text())
    told = TOLD.search("".join(outputs))
    gaps = [later - earlier for earlier, later in itertools.pairwise(stamps)][WARM_UP:]
    return {
        "ranks": count,
        "sampling_ms": sampling_ms,
        "delay_s": None if network is None else network.delay_s,
        "gaps_s": gaps,
        "update_s": summary["seconds"]["learner-0"]["update"] / (len(gaps) + WARM_UP),
        "fps": summary["fps"],
        "told": f"exchange {told[1]} % of a step, {told[2]} ms" if told else "",
    }


def _on_own_core(index: int) -> str:
    place = "LOCAL_RANK" if index < 0 else str(index)
    return f'exec taskset -c $(({place} % {os.cpu_count() or 1})) "$0" -m sf.cli.train "$@"'


def _meeting(count: int, index: int, hosts: dict[int, tuple[str, str] | None]) -> list[str]:
    if index < 0:
        return ["--standalone", f"--nproc-per-node={count}"]
    first = hosts[0]
    assert first is not None
    return [
        f"--nnodes={count}", "--nproc-per-node=1", f"--node-rank={index}",
        f"--master-addr={first[1]}", f"--master-port={PORT}",
    ]  # fmt: skip


@contextlib.contextmanager
def _hosts(count: int, network: Network | None) -> Iterator[dict[int, tuple[str, str] | None]]:
    """Index of a host to its namespace and address; -1 for this machine."""
    if network is None:
        yield {-1: None}
        return
    with joined(count, network) as hosts:
        yield dict(enumerate(hosts))


if __name__ == "__main__":
    main()
