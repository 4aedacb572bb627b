"""The documentation says what the code does."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from sf.config import Config
from sf.config.fields import typed_fields

DOCS = Path(__file__).parent.parent / "docs"
SAMPLE_FACTORY = {
    "async_rl": "True", "serial_mode": "False", "num_epochs": "1", "num_batches_per_epoch": "1", "batch_size": "1024",
    "rollout": "32", "num_envs_per_worker": "2", "worker_num_splits": "2", "policy_workers_per_policy": "1",
    "num_batches_to_accumulate": "2", "max_policy_lag": "1000", "gamma": "0.99", "gae_lambda": "0.95",
    "ppo_clip_ratio": "0.1", "ppo_clip_value": "1.0", "learning_rate": "0.0001", "adam_eps": "1e-06",
    "max_grad_norm": "4.0", "exploration_loss_coeff": "0.003", "value_loss_coeff": "0.5",
    "shuffle_minibatches": "False",
    "normalize_input": "True", "normalize_returns": "True", "use_rnn": "True", "rnn_size": "512",
    "encoder_mlp_layers": "(512, 512)", "nonlinearity": "elu", "adaptive_stddev": "True", "value_bootstrap": "False",
}  # fmt: skip


def default_values() -> dict[str, object]:
    """Flag to default, over all roles."""
    defaults: dict[str, object] = {}
    for role in typed_fields(Config).values():
        defaults |= {field.name: field.default for field in fields(role)}
    return defaults


def test_a27_documented_defaults_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|", (DOCS / "configuration.md").read_text(), re.M)
    ours = {name: mine.strip() for name, mine, _ in rows}
    theirs = {name: other.strip() for name, _, other in rows}
    assert theirs.items() >= SAMPLE_FACTORY.items()
    defaults = default_values()
    for name in ours:
        expected = ("derived", "None") if defaults[name] is None else (str(defaults[name]),)
        assert ours[name] in expected, name


ROW = re.compile(
    r"^\| (C[\w-]+) \| [^|]+ \| `([\w.]+)` in `([\w/.]+)` \| `(test_\w+)` in `([\w/]+\.py)` \|([^|]*)\|$", re.M
)


def is_defined(source: str, name: str) -> bool:
    """Whether a file of ours has a class, a function, or a method of a class of this name."""
    nodes: list[Any] = [ast.parse((DOCS.parent / source).read_text())]
    for part in name.split("."):
        nodes = [child for node in nodes for child in node.body if getattr(child, "name", None) == part]
    return bool(nodes)


def test_ppo_details_name_what_exists() -> None:
    rows = ROW.findall((DOCS / "ppo-details.md").read_text())
    assert {row[0] for row in rows} == {*(f"C{n}" for n in range(1, 38)), "C-X1", "C-X2", "C-X3", "C-X4", "C-R1"}
    flags = default_values()
    for row, name, source, test, file, used in rows:
        assert is_defined(source, name), f"{row}: there is no {name} in {source}"
        assert re.search(rf"test_(\w+_)?{row.lower().replace('-', '')}_", test), f"{row}: {test}"
        assert f"def {test}(" in (DOCS.parent / "tests" / file).read_text(), f"{row}: {test} is not in {file}"
        for flag in re.findall(r"`(\w+)`", used):
            assert flag in flags, row


def test_functions_of_the_reading_hour_exist() -> None:
    """By default, and otherwise."""
    page = (DOCS / "contributing.md").read_text()
    hour = page[page.index("## Read the code in an hour") : page.index("## Add to the pages")]
    named = re.findall(r"`([\w.]+)` in `([\w/.]+)`", hour)
    assert len(named) >= 14
    assert [name for name, source in named if not is_defined(source, name)] == []
