"""How training grows with ranks, from measured parts: 8 to 128 ranks, with and without a rule for stragglers.

    chrt -r 1 python benchmarks/ranks.py; chrt -r 1 python benchmarks/ranks.py --hosts
    chrt -r 1 python benchmarks/ranks_run.py --delays 1
    python benchmarks/ranks_simulated.py [--directory results] [--picture docs/images/ranks-simulated.png]

First it fits the exchange to `ranks.json` and predicts the runs of `ranks_run.json`, so that the error is seen. Then it
extrapolates. The rule for stragglers is that of DD-PPO (Wijmans et al. 2020, arXiv:1911.00357), in `sf`
``--ranks_to_wait_for``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.ranks import SIZES
from benchmarks.ranks_run import EPOCHS, MINIBATCHES, lognormal

Array = npt.NDArray[np.float64]

MEANS, GATHERS = EPOCHS * MINIBATCHES, 2 * EPOCHS + 6
"""Exchanges of a dataset: a mean for each step; two of few numbers for each epoch, and six for the dataset."""
ENOUGH = 0.6
"""The fraction of ranks whose complete datasets end the sampling of the others."""
LEAST_SHARE = 0.25
"""Share of a dataset that each rank contributes at least."""
DATASETS = 4000
MANY = (2, 4, 8, 16, 32, 64, 128)
DD_PPO = 107
"""Its published speedup on 128 GPUs."""


def hops_of_gather(ranks: int) -> int:
    """Times that an exchange of few numbers waits for the network: each rank but one is asked, and answers."""
    return 2 * (ranks - 1)


def hops_of_mean(ranks: int) -> int:
    """The same for a gradient of one packet per rank, in the ring of gloo; found with 2 and 4 ranks, and true of 8."""
    return 4 * ranks - 3


@dataclass(frozen=True)
class Exchange:
    """Its cost: a hop takes the delay of the network, and time of the processes."""

    gather_hop_s: float
    mean_hop_s: float

    def gather_s(self, ranks: int, delay_s: float) -> float:
        """An exchange of few numbers."""
        return hops_of_gather(ranks) * (delay_s + self.gather_hop_s)

    def mean_s(self, ranks: int, delay_s: float) -> float:
        """A gradient of a small network."""
        return hops_of_mean(ranks) * (delay_s + self.mean_hop_s) if ranks > 1 else 0.0

    def dataset_s(self, ranks: int, delay_s: float, means: int = MEANS, gathers: int = GATHERS) -> float:
        """All exchanges of a dataset."""
        return means * self.mean_s(ranks, delay_s) + gathers * self.gather_s(ranks, delay_s)


def fitted(rows: list[dict[str, Any]]) -> Exchange:
    """The exchange that fits measurements without loss best; those of one network, see `crowding`."""

    def hop_s(numbers: int, hops: Any) -> float:
        own = [row for row in rows if row["numbers"] == numbers and not row["loss"]]
        each = [(row["median_s"] / hops(row["ranks"]) - (row["delay_s"] or 0.0)) / crowding(row) for row in own]
        weights = [1 / row["median_s"] for row in own]
        return max(0.0, float(np.average(each, weights=weights)))

    return Exchange(hop_s(SIZES["one number"], hops_of_gather), hop_s(SIZES["CartPole"], hops_of_mean))


def crowding(row: dict[str, Any]) -> float:
    """Ranks for each core, where these and not the network set the pace; at least 1."""
    return max(1.0, row["ranks"] / (os.cpu_count() or 1)) if row["delay_s"] is None else 1.0


def pace(sampling_s: Array, learn_s: float, has_rule: bool) -> float:
    """Datasets per second of all ranks.

    Args:
        sampling_s: [datasets, ranks] time in which each rank would complete its dataset.
        learn_s: of each rank for a dataset, exchange included.
        has_rule: whether sampling ends when `ENOUGH` of the ranks have theirs and all have `LEAST_SHARE` of it.
    """
    waited_s = sampling_s.max(axis=1)
    if has_rule:
        enough = math.ceil(ENOUGH * sampling_s.shape[1])
        waited_s = np.maximum(np.sort(sampling_s, axis=1)[:, enough - 1], LEAST_SHARE * waited_s)
    shares = np.minimum(1.0, waited_s[:, None] / sampling_s)
    return float(shares.sum() / (waited_s + learn_s).sum())


def speedup(ranks: int, sampling_s: float, spread: float, learn_s: float, exchange_s: float, has_rule: bool) -> float:
    """Pace of as many ranks, relative to one of the same kind."""
    draws = lognormal(np.random.default_rng(1), sampling_s, spread, (DATASETS, ranks))
    return pace(draws, learn_s + exchange_s, has_rule) * (sampling_s + learn_s)


def predicted_gap_s(one: dict[str, Any], row: dict[str, Any], exchange: Exchange) -> float:
    """Mean seconds for a dataset of a run, from the gaps of one rank; work that shares a core takes longer."""
    gaps = np.asarray(one["gaps_s"])
    work_s = gaps.mean() - row["sampling_ms"] / 1e3
    crowd = max(1.0, row["ranks"] / (os.cpu_count() or 1))
    slowest = np.random.default_rng(1).choice(gaps, (DATASETS, row["ranks"])).max(axis=1).mean()
    hop = exchange if row["delay_s"] is not None else Exchange(*(crowd * each for each in vars(exchange).values()))
    return float(slowest + (crowd - 1) * work_s + hop.dataset_s(row["ranks"], row["delay_s"] or 0.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=Path("results"))
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    rows = json.loads((options.directory / "ranks.json").read_text())
    machine = fitted([row for row in rows if row["delay_s"] is None])
    hosts = fitted([row for row in rows if row["delay_s"] is not None])
    print_fit(rows, machine, hosts)
    print_runs(json.loads((options.directory / "ranks_run.json").read_text()), machine, hosts)
    curves = extrapolated(machine)
    print_curves(curves)
    if options.picture:
        draw(curves, options.picture)


def print_fit(rows: list[dict[str, Any]], machine: Exchange, hosts: Exchange) -> None:
    """Measured and predicted milliseconds of one exchange."""
    print(f"A hop takes the delay, and {machine} on one machine, {hosts} between hosts.\n")
    print("| Ranks | Delay | Numbers | Measured | Predicted | Error |\n|---|---|---|---|---|---|")
    for row in rows:
        if row["numbers"] == SIZES["Nature CNN"] or row["loss"]:
            continue
        exchange = hosts if row["delay_s"] is not None else machine
        cost = exchange.gather_s if row["numbers"] == 1 else exchange.mean_s
        guess = cost(row["ranks"], row["delay_s"] or 0.0) * crowding(row)
        place = "one machine" if row["delay_s"] is None else f"{1e3 * row['delay_s']:g} ms"
        print(f"| {row['ranks']} | {place} | {row['numbers']} | {_against(row['median_s'], guess)} |")


def print_runs(runs: list[dict[str, Any]], machine: Exchange, hosts: Exchange) -> None:
    """Measured and predicted milliseconds of a dataset, for the mean over all repeats."""
    kinds: dict[tuple[Any, ...], dict[str, Any]] = {}
    for run in runs:
        kind = run["sampling_ms"], run["delay_s"], run["ranks"]
        if kind in kinds:
            kinds[kind]["gaps_s"] += run["gaps_s"]
        else:
            kinds[kind] = run
    print("\n| Ranks | Network | Sleep | Datasets | Measured | Predicted | Error |\n|---|---|---|---|---|---|---|")
    for (sampling_ms, delay_s, ranks), run in kinds.items():
        if ranks == 1:
            continue
        one = kinds[sampling_ms, None, 1]
        guess_s = predicted_gap_s(one, run, machine if delay_s is None else hosts)
        place = "one machine" if delay_s is None else f"{1e3 * delay_s:g} ms"
        cells = _against(statistics.fmean(run["gaps_s"]), guess_s)
        print(f"| {ranks} | {place} | {sampling_ms:g} ms | {len(run['gaps_s'])} | {cells} |")


def _against(measured_s: float, guess_s: float) -> str:
    error = 100 * (guess_s / measured_s - 1)
    return f"{1e3 * measured_s:.3g} ms | {1e3 * guess_s:.3g} ms | {error:+.0f} %"


@dataclass(frozen=True)
class Curve:
    """Speedups of a case for each of `MANY`."""

    name: str
    has_rule: bool
    speedups: list[float]


SAMPLING_S, LEARN_S, SPREAD = (0.2, 5.0), (0.02, 1.0), 0.3
"""Datasets of slow and of very slow environments, and their deviation; assumed, as is the time to learn from them."""
DELAYS_S = (0.00005, 0.001, 0.01)
"""A data center, a campus, a country."""


def extrapolated(exchange: Exchange) -> list[Curve]:
    """All cases; processes take as long for a hop as those of one machine with a core for each."""
    return [
        Curve(
            f"{sampling_s:g} s, {1e3 * delay_s:g} ms",
            has_rule,
            [
                speedup(ranks, sampling_s, SPREAD, learn_s, exchange.dataset_s(ranks, delay_s), has_rule)
                for ranks in MANY
            ],
        )
        for sampling_s, learn_s in zip(SAMPLING_S, LEARN_S, strict=True)
        for delay_s in DELAYS_S
        for has_rule in (False, True)
    ]


def print_curves(curves: list[Curve]) -> None:
    """Speedups without and with the rule."""
    print("\n| Sampling, delay | Rule |" + "".join(f" {ranks} |" for ranks in MANY))
    print("|---|---|" + "---|" * len(MANY))
    for curve in curves:
        cells = " | ".join(f"{each:.2g}" if each < 10 else f"{each:.0f}" for each in curve.speedups)
        print(f"| {curve.name} | {'yes' if curve.has_rule else 'no'} | {cells} |")


def draw(curves: list[Curve], picture: Path) -> None:
    """One line for each case, and the published point."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    axes.plot(MANY, MANY, color="0.7", linewidth=1, label="linear")
    colors: dict[str, str] = {}
    for curve in curves:
        color = colors.setdefault(curve.name, f"C{len(colors)}")
        style, label = ("-", f"{curve.name}, rule") if curve.has_rule else ("--", curve.name)
        axes.plot(MANY, curve.speedups, style, color=color, linewidth=1.3, label=label)
    axes.plot([128], [DD_PPO], "k*", markersize=10, label="DD-PPO, published")
    axes.set(xscale="log", yscale="log", xlabel="ranks", ylabel="samples per second, relative to 1 rank")
    axes.set_xticks(MANY, [str(ranks) for ranks in MANY])
    axes.minorticks_off()
    axes.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1.0, 0.5), title="sampling, delay")
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=90)
    plt.close(figure)


if __name__ == "__main__":
    main()
