"""Candidates for an evaluation: the policies of an experiment at one checkpoint, or one saved policy."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from sf.config import Config, RunConfig
from sf.envs.scripted import ScriptedPolicy
from sf.errors import CheckpointError, ConfigError
from sf.evaluator.cast import Cast
from sf.evaluator.function_policy import FunctionPolicy
from sf.plugins.functions import is_trusted
from sf.policy import GreedyPolicy, Policy, TrainedPolicy, load_policy
from sf.policy.checkpoints import SavedNetwork, load
from sf.policy.collecting import evaluated_policy
from sf.spaces import ActionBounds, EnvInfo
from sf.storage import checkpoint
from sf.storage.experiment import errors_told
from sf.storage.names import policy_of


@dataclass(frozen=True)
class Candidate:
    """Where the policies lie that play together, by policy id; small enough to be sent to a process."""

    name: str
    paths: tuple[Path, ...]
    greedy: bool
    is_folder: bool = False
    """A folder of PolicySaver, no checkpoint."""
    run: RunConfig | None = None
    """Configuration of the newest start; None takes that of the checkpoints, which may be older."""


@dataclass(frozen=True)
class LoadedPolicies:
    """A candidate, ready to play."""

    policies: list[Policy]
    """By policy id; they act on stored observations."""
    info: EnvInfo
    action_bounds: ActionBounds
    run: RunConfig | None
    """Configuration of the experiment; None for a saved policy, which does not remember its environment's arguments."""
    titles: list[str]
    """By policy id: path, version and frames."""

    @property
    def cast(self) -> Cast:
        """The policies and their agents, dealt `by_agent` where the mapping of the training imports a module."""
        mapping = "by_agent" if self.run is None or self.note else self.run.policy_mapping
        return Cast(self.policies, self.action_bounds, mapping)

    @property
    def note(self) -> str:
        """A sentence where the mapping of the training is a function that the command does not name; else nothing."""
        mapping = "" if self.run is None else self.run.policy_mapping
        if ":" not in mapping or is_trusted(mapping):
            return ""
        return (
            f"Agent i plays with policy i modulo their number. In the training the function {mapping} has dealt them, "
            f"which imports a module. If you trust it, name it: --functions {mapping}"
        )


def candidate_of_experiment(directory: Path, which: str, greedy: bool) -> Candidate:
    """The policies of an experiment: its latest or best checkpoints, or the one of this name.

    Raises:
        CheckpointError: there is no such checkpoint.
    """
    paths, run = [], _newest_start(directory)
    there = len(list(directory.glob("checkpoint_p*")))
    for policy_id in range(there if run is None else min(there, run.num_policies)):  # a resumed run may have fewer
        own = directory / f"checkpoint_p{policy_id}"
        if which in ("latest", "best"):
            is_function = run is not None and policy_id in run.scripted
            own = own / checkpoint.BEST if which == "best" and not is_function else own
            saved = checkpoint.load_newest(own, put_aside=False)
            if saved is None:
                raise CheckpointError(f"There is no checkpoint in {own}. Train longer, or look at --train_dir.")
            paths.append(saved.path)
        else:
            paths.append(checkpoint.named(own, which))
    return Candidate(
        f"{directory.name} {which}", tuple(paths), greedy, run=run if which in ("latest", "best") else None
    )


def _newest_start(directory: Path) -> RunConfig | None:
    """Its configuration; None where that is damaged, or of another version."""
    try:
        return Config.from_json(json.loads((directory / "config.json").read_bytes())).run
    except (OSError, ValueError, RecursionError, ConfigError):
        return None


def load_candidate(candidate: Candidate) -> LoadedPolicies:
    """Reads the policies.

    Raises:
        CheckpointError: a path is damaged, or holds a policy that does not play stored observations.
        ConfigError: a policy is a function that is not found, or that nothing but the run names.
    """
    if candidate.is_folder:
        return _load_saved_policy(candidate, candidate.paths[0])
    saved = [load(path) for path in candidate.paths]
    run = candidate.run or saved[0].config.run
    policies, titles = zip(*(_policy_and_title(one, candidate) for one in saved), strict=True)
    return LoadedPolicies([*policies], saved[0].info, saved[0].config.rollout.action_bounds, run, [*titles])


def _policy_and_title(saved: SavedNetwork, candidate: Candidate) -> tuple[Policy, str]:
    """A function of the user, where that is what has acted in the run, else its network.

    Raises:
        ConfigError: the function is not found, or nothing but the run names it.
    """
    run, bounds = candidate.run or saved.config.run, saved.config.rollout.action_bounds
    number = policy_of(saved.path)
    if name := run.scripted.get(number):
        if not is_trusted(name):
            raise ConfigError(
                [
                    f"Policy {number} of {saved.path} is the function {name}, which imports a module. If you trust it, "
                    f"name it: --functions {name}"
                ]
            )
        return FunctionPolicy(ScriptedPolicy(name, saved.info, bounds)), f"{name}, which policy {number} is in the run"
    title = _title(saved.path, saved.version, f", {saved.frames} frames", is_frozen=number in run.frozen)
    return saved.acting_policy(candidate.greedy), title


def _load_saved_policy(candidate: Candidate, path: Path) -> LoadedPolicies:
    with errors_told(path.absolute()):
        policy = load_policy(path)
    greedy = candidate.greedy or isinstance(policy, GreedyPolicy)
    inner = policy.wrapped if isinstance(policy, GreedyPolicy) else policy
    if not isinstance(inner, TrainedPolicy):
        raise CheckpointError(
            f"{path} is a {type(inner).__name__}, but only a TrainedPolicy, greedy or not, can be played."
        )
    acting = evaluated_policy(inner.network)
    if greedy:
        acting = GreedyPolicy(acting)
    titles = [_title(path, policy.get_train_step())]
    return LoadedPolicies([acting], inner.network.info, inner.action_bounds, None, titles)


def _title(path: Path, version: int, more: str = "", is_frozen: bool = False) -> str:
    why = "frozen in this run" if is_frozen else "UNTRAINED: no optimizer step was taken before it was saved"
    untrained = "" if version else f"; {why}"
    return f"{path} (policy_version {version}{more}{untrained})"
