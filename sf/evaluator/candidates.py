"""Candidates for an evaluation: the policies of an experiment at one checkpoint, or one saved policy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sf.config import RunConfig
from sf.errors import CheckpointError
from sf.policy import GreedyPolicy, Policy, TrainedPolicy, load_policy
from sf.policy.checkpoints import load
from sf.policy.collecting import evaluated_policy
from sf.spaces import ActionBounds, EnvInfo
from sf.storage import checkpoint
from sf.storage.experiment import errors_told


@dataclass(frozen=True)
class Candidate:
    """Where the policies lie that play together, by policy id; small enough to be sent to a process."""

    name: str
    paths: tuple[Path, ...]
    greedy: bool
    is_folder: bool = False
    """A folder of PolicySaver, no checkpoint."""


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
    def mapping(self) -> str:
        """The mapping of policies to agents in the training."""
        return "by_agent" if self.run is None else self.run.policy_mapping


def candidate_of_experiment(directory: Path, which: str, greedy: bool) -> Candidate:
    """The policies of an experiment: its latest or best checkpoints, or the one of this name.

    Raises:
        CheckpointError: there is no such checkpoint.
    """
    paths = []
    num_policies = len(list(directory.glob("checkpoint_p*")))
    for policy_id in range(num_policies):
        own = directory / f"checkpoint_p{policy_id}"
        if which in ("latest", "best"):
            own = own / checkpoint.BEST if which == "best" else own
            saved = checkpoint.load_newest(own, put_aside=False)
            if saved is None:
                raise CheckpointError(f"There is no checkpoint in {own}. Train longer, or look at --train_dir.")
            paths.append(saved.path)
        else:
            paths.append(checkpoint.named(own, which))
    return Candidate(f"{directory.name} {which}", tuple(paths), greedy)


def load_candidate(candidate: Candidate) -> LoadedPolicies:
    """Reads the policies.

    Raises:
        CheckpointError: a path is damaged, or holds a policy that does not play stored observations.
    """
    if candidate.is_folder:
        return _load_saved_policy(candidate, candidate.paths[0])
    saved = [load(path) for path in candidate.paths]
    return LoadedPolicies(
        [one.acting_policy(candidate.greedy) for one in saved],
        saved[0].info,
        saved[0].config.rollout.action_bounds,
        saved[0].config.run,
        [_title(one.path, one.version, f", {one.frames} frames") for one in saved],
    )


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


def _title(path: Path, version: int, more: str = "") -> str:
    untrained = "" if version else "; UNTRAINED: no optimizer step was taken before it was saved"
    return f"{path} (policy_version {version}{more}{untrained})"
