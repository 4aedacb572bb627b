"""The card of a published run: the page that the Hub shows, with metadata for its search and its tables."""

from __future__ import annotations

import json
import shlex

from sf import __version__
from sf.config.as_flags import as_flags
from sf.console import rounded
from sf.evaluator.summary import CONFIDENCE, ReturnSummary
from sf.monitor.run_summary import versions
from sf.tools.hub.folder import FILM, PublishedScores
from sf.tools.report.reproduction import command
from sf.tools.report.runs import RunFiles


def card(run: RunFiles, scores: PublishedScores, repo: str, no_film: str = "") -> str:
    """The text of README.md.

    Args:
        run, scores: what was published.
        repo: where it is going to be.
        no_film: why there is none; nothing if there is one.
    """
    parts = [
        _metadata(run, scores),
        f"# {scores.env}, trained with sf",
        f"A policy for `{scores.env}` that `sf` {__version__} has trained: asynchronous PPO with exact policy lag. "
        + (f"There is no film: {no_film}" if no_film else f"An episode is in [{FILM}]({FILM})."),
        "## Play it",
        _playing(scores, repo),
        "## Scores",
        _table(scores),
        "## Training",
        _training(run),
    ]
    return "\n\n".join(parts) + "\n"


def _metadata(run: RunFiles, scores: PublishedScores) -> str:
    """YAML for the Hub; texts are written as JSON, which is YAML as well."""
    algorithm = str(run.flags["algorithm"])
    tags = [scores.env, "reinforcement-learning", "deep-reinforcement-learning", "sf", algorithm]
    lines = ["---", "library_name: sf", "tags:", *(f"- {_text(tag)}" for tag in tags), "model-index:"]
    for policy_id, summary in enumerate(scores.policies):
        name = f"{algorithm}, policy {policy_id}" if len(scores.policies) > 1 else algorithm
        lines += [
            f"- name: {_text(name)}",
            "  results:",
            "  - task:",
            "      type: reinforcement-learning",
            "      name: reinforcement-learning",
            "    dataset:",
            f"      name: {_text(scores.env)}",
            f"      type: {_text(scores.env)}",
            "    metrics:",
            "    - type: mean_reward",
            f"      value: {_text(f'{rounded(summary.mean, 2)} +/- {rounded(summary.std, 2)}')}",
            "      name: mean_reward",
            "      verified: false",
        ]
    return "\n".join([*lines, "---"])


def _text(text: str) -> str:
    return json.dumps(text)


def _playing(scores: PublishedScores, repo: str) -> str:
    name = repo.partition("/")[2]
    flags: dict[str, object] = {"experiment": name}
    flags |= {"checkpoint": scores.which} if scores.which != "latest" else {}
    flags |= scores.trusted
    lines = [
        'pip install "sf-rl[hub]"',
        _line("sf-hub pull", {"repo": repo}),
        _line("sf-enjoy", flags),
    ]
    which = "" if scores.which == "latest" else f', "{scores.which}"'
    lines = ["```", *lines, "```", "", "Or in Python, after the pull:", ""]
    lines += ["```python", "import sf", "", f'policy = sf.load_policy("train_dir/{name}"{which})']
    lines += ["action, state = policy.predict(observation)", "```"]
    if scores.played:
        lines += ["", "The scores again:", "", "```", _line("sf-eval", flags | scores.played), "```"]
    return "\n".join(lines)


def _line(program: str, flags: dict[str, object]) -> str:
    return f"{program} {shlex.join(word for name, value in flags.items() for word in as_flags(name, value))}"


def _table(scores: PublishedScores) -> str:
    head = ("policy", "mean", f"{CONFIDENCE:.0%} interval", "std", "min", "median", "max", "length", "episodes")
    rows = [head, ("---",) * len(head)]
    rows += [_row(policy_id, summary) for policy_id, summary in enumerate(scores.policies)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(policy_id: int, one: ReturnSummary) -> tuple[str, ...]:
    numbers = (one.std, one.minimum, one.quantiles[2], one.maximum, one.mean_length)
    interval = f"{rounded(one.low, 2)} to {rounded(one.high, 2)}"
    rest = (*(rounded(number, 2) for number in numbers), str(one.num_episodes))
    return (str(policy_id), rounded(one.mean, 2), interval, *rest)


def _training(run: RunFiles) -> str:
    lines = ["```", command(run), "```", ""]
    summary = run.summary or {}
    for policy_id, policy in enumerate(summary.get("policies", [])):
        if not {"frames", "policy_version"} <= policy.keys():
            continue
        line = f"- Policy {policy_id}: {policy['frames']:,} frames, {policy['policy_version']:,} optimizer steps."
        lag = policy["lag_of_run"]
        if {"avg", "max"} <= lag.keys() and lag["avg"] >= 0:
            line += (
                f" Policy lag of the last start: {lag['avg']:.2f} on average, {lag['max']:.0f} at most (optimizer "
                "steps between acting and learning)."
            )
        lines.append(line)
    if {"wall_time_s", "fps"} <= summary.keys():
        lines.append(f"- {summary['wall_time_s']:,.0f} s at {summary['fps']:,.0f} frames per second in the last start.")
    else:
        lines.append("- The run goes on, was killed, or was pulled, so its length and its policy lag are not known.")
    lines.append(f"- Published with {', '.join(f'{name} {version}' for name, version in versions().items())}.")
    return "\n".join(lines)
