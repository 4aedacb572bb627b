"""Policy lag against the number of workers, epochs and minibatches, and the size of a batch: measured beside expected.

    python benchmarks/lag_sizes.py [--env CartPole-v1] [--seconds 8] [--directory results]

One run for each point; all other sizes stay as they are. Runs that have finished are kept in lag_sizes.jsonl and not
repeated. At the end there are a table and a picture.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

BASE = {"num_workers": 1, "num_envs_per_worker": 32, "rollout": 32, "num_epochs": 2, "num_batches_per_epoch": 4}
"""With batches of 1,024 transitions, the data of one sampling round of one worker."""
VARIED: dict[str, dict[str, list[int]]] = {
    "num_workers": {"num_workers": [1, 2, 4]},
    "num_epochs": {"num_epochs": [1, 2, 4, 8]},
    "num_batches_per_epoch, of 256": {"num_batches_per_epoch": [1, 2, 4, 8]},
    "batch_size, 4 per epoch": {"batch_size": [64, 128, 256, 512]},
    "num_batches_to_accumulate": {"num_batches_to_accumulate": [1, 2, 4, 8]},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--directory", type=Path, default=Path("results"))
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    path = options.directory / "lag_sizes.jsonl"
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for title, values in VARIED.items():
        for flag, numbers in values.items():
            for number in numbers:
                if any((run["title"], run["number"]) == (title, number) for run in done):
                    continue
                done.append({"title": title, "number": number, **measure(options.env, options.seconds, flag, number)})
                with path.open("a") as file:
                    file.write(json.dumps(done[-1]) + "\n")
    print("| Flag | Value | Expected avg | Measured avg | Acting | Queued | Epochs | Largest |\n|" + "---|" * 8)
    for run in done:
        lag = run["lag"]
        cells = [run["expected"]["avg"], lag["avg"], lag["acting"], lag["queued"], lag["epochs"], lag["max"]]
        print(f"| {run['title']} | {run['number']} | " + " | ".join(f"{cell:.1f}" for cell in cells) + " |")
    draw(done, options.directory / "lag_sizes.png")


def measure(env: str, seconds: int, flag: str, number: int) -> dict[str, Any]:
    """One run."""
    flags = {"batch_size": 256} | BASE | {flag: number}
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-m", "sf.cli.train", f"--env={env}", f"--train_dir={folder}", "--experiment=run"]
        line += [f"--{name}={value}" for name, value in flags.items()]
        subprocess.run([*line, f"--train_for_seconds={seconds}", "--seed=1"], check=True, stdout=subprocess.DEVNULL)
        summary = json.loads((Path(folder) / "run/summary.json").read_text())
    lag = summary["policies"][0]["lag_of_run"]
    del lag["histogram"]
    return {"expected": summary["expected_lag"], "lag": lag, "fps": summary["fps"]}


def draw(runs: list[dict[str, Any]], picture: Path) -> None:
    """A panel for each flag: the sources of lag as bars, and the expected mean as a line."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, len(VARIED), figsize=(3 * len(VARIED), 3.2), layout="constrained", sharey=True)
    for axes, title in zip(panels, VARIED, strict=True):
        own = [run for run in runs if run["title"] == title]
        places, below = range(len(own)), [0.0] * len(own)
        for source in ("acting", "queued", "epochs"):
            parts = [run["lag"][source] for run in own]
            axes.bar(places, parts, bottom=below, label=source)
            below = [low + part for low, part in zip(below, parts, strict=True)]
        axes.plot(places, [run["expected"]["avg"] for run in own], "k--o", markersize=3, label="expected")
        axes.set_xticks(places, [str(run["number"]) for run in own])
        axes.set_title(title, fontsize="small")
    panels[0].set_ylabel("mean policy lag")
    panels[0].legend(fontsize="small")
    figure.savefig(picture, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
