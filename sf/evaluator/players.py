"""Players of a match: policies of experiments and of directories, and functions of a user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sf.config import RunConfig
from sf.envs.scripted import ScriptedPolicy
from sf.errors import ConfigError, ExperimentError
from sf.evaluator.candidates import Candidate, LoadedPolicies, candidate_of_experiment, load_candidate
from sf.evaluator.function_policy import FunctionPolicy
from sf.policy import Policy
from sf.policy.saving import POLICY
from sf.spaces import ActionBounds, EnvInfo
from sf.storage import checkpoint
from sf.storage.experiment import errors_told, hint_at
from sf.storage.names import NAME, newest_in

FIRST_POLICY = "checkpoint_p0"


@dataclass(frozen=True)
class NetworkPlayer:
    """A policy that was trained."""

    name: str
    title: str
    """Path, version and frames."""
    policy: Policy
    info: EnvInfo
    """The spaces that it was trained with."""
    action_bounds: ActionBounds
    run: RunConfig | None

    def acting_policy(self, info: EnvInfo, action_bounds: ActionBounds) -> Policy:
        """Its policy, if it fits the spaces of the match.

        Raises:
            ConfigError: it was trained with other ones.
        """
        if not self._fits(info):
            raise ConfigError(
                [
                    f"--match: {self.name} was trained with {self.info}, but {info.env_id} has {info}. All players of "
                    "a match need the spaces of its environment."
                ]
            )
        has_numbers = len(info.action.choices) < len(info.action.columns)
        if has_numbers and self.action_bounds != action_bounds:
            raise ConfigError(
                [
                    f"--match: {self.name} was trained with --action_bounds={self.action_bounds}, and another player "
                    f"with {action_bounds}. All players of a match need the same."
                ]
            )
        return self.policy

    def _fits(self, info: EnvInfo) -> bool:
        """Whether the policy knows all leaves of these spaces, which have those that it reads, and its actions."""
        shown = info.observations
        known = {name: leaf for name, leaf in self.info.observations.items() if name in shown}
        needed = self.policy.time_step_spec.observation.keys()
        return self.info.action == info.action and shown == known and needed <= shown.keys()


@dataclass(frozen=True)
class FunctionPlayer:
    """A function ``module:function``, which knows no environment."""

    name: str
    run = None

    @property
    def title(self) -> str:
        """The same as its name."""
        return self.name

    def acting_policy(self, info: EnvInfo, action_bounds: ActionBounds) -> Policy:
        """The function as a policy for these spaces.

        Raises:
            ConfigError: it is not found, or is no function.
        """
        return FunctionPolicy(ScriptedPolicy(self.name, info, action_bounds))


Player = NetworkPlayer | FunctionPlayer


def find_players(words: Sequence[str], train_dir: Path, checkpoints: Sequence[str], greedy: bool) -> list[Player]:
    """The players that these words name, in their order.

    A word is an experiment, ``module:function``, or a directory: of an experiment, of checkpoints, of one of them, or
    of a saved policy. All policies of an experiment play, at each of the checkpoints.

    Args:
        words: of the command line.
        train_dir: where experiments are.
        checkpoints: latest, best, or names; they count for experiments alone.
        greedy: whether networks take their most likely actions.

    Raises:
        ExperimentError: a word names nothing.
        CheckpointError: a policy cannot be loaded.
    """
    players: list[Player] = []
    for word in words:
        with errors_told((train_dir / word).absolute()):
            candidates = list(_candidates(word, train_dir, checkpoints, greedy))
        if candidates:
            players += [player for candidate in candidates for player in _loaded(candidate)]
        elif ":" in word:
            players.append(FunctionPlayer(word))
        else:
            there = [path.parent.name for path in train_dir.glob(f"*/{FIRST_POLICY}")]
            raise ExperimentError(
                f"--match: {word!r} is no experiment with checkpoints in {train_dir.absolute()}, no directory of "
                f"checkpoints or of a saved policy, and no module:function. {hint_at(word, there)}"
            )
    return players


def _candidates(word: str, train_dir: Path, checkpoints: Sequence[str], greedy: bool) -> list[Candidate]:
    """One for each checkpoint of an experiment, one for any other directory, none for what is no directory."""
    path = Path(word)
    experiment = next((one for one in (train_dir / word, path) if (one / FIRST_POLICY).is_dir()), None)
    if experiment is not None:
        found = [(which, candidate_of_experiment(experiment, which, greedy)) for which in checkpoints]
        names = [word if which == "latest" else f"{word} {which}" for which, _ in found]
        return [replace(one, name=name) for name, (_, one) in zip(names, found, strict=True)]
    if (path / POLICY).exists():
        return [Candidate(word, (path,), greedy, is_folder=True)]
    if NAME.fullmatch(path.name) and path.is_dir():
        return [Candidate(word, (path,), greedy)]
    if newest_in(path) is None or (newest := checkpoint.load_newest(path, put_aside=False)) is None:
        return []
    return [Candidate(word, (newest.path,), greedy)]


def _loaded(candidate: Candidate) -> list[Player]:
    """One player for each policy."""
    loaded: LoadedPolicies = load_candidate(candidate)
    several = len(loaded.policies) > 1
    return [
        NetworkPlayer(
            f"{candidate.name}, policy {index}" if several else candidate.name,
            title,
            policy,
            loaded.info,
            loaded.action_bounds,
            loaded.run,
        )
        for index, (policy, title) in enumerate(zip(loaded.policies, loaded.titles, strict=True))
    ]
