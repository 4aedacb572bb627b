"""Evaluation from a program: the numbers of `sf-eval`, as an object."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sf.api.env_ids import expect_env_id
from sf.errors import UsageError
from sf.plugins.functions import trust_functions

if TYPE_CHECKING:
    from sf.evaluator.candidates import Candidate
    from sf.evaluator.summary import ReturnSummary
    from sf.policy import Policy


def evaluate(
    policy: Policy | str | Path,
    env: str | None = None,
    episodes: int = 100,
    seed: int = 0,
    *,
    deterministic: bool = False,
    checkpoint: str = "latest",
    policy_id: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    max_episode_steps: int | None = None,
    num_workers: int | None = None,
    functions: Sequence[str] = (),
) -> ReturnSummary:
    """Play whole episodes with a policy; returns the numbers of ``sf-eval`` with the same arguments.

    From 512 episodes on, processes are started that import the main script again. A script that plays so many calls
    this below ``if __name__ == "__main__":``, or sets `num_workers` to 1.

    Args:
        policy: as `load_policy` returns it, or the directory of a run or of a saved policy.
        env: id of the environment; None takes that of the run.
        episodes: how many count; every environment plays a fixed number of them.
        seed: of environments and actions. The same seed and number of processes give the same episodes.
        deterministic: the most likely action instead of one drawn as in training; a `GreedyPolicy` always takes it.
        checkpoint: of a run: latest, best, or the name of one.
        policy_id: of a run with several policies, which all play: the one whose numbers are returned.
        env_kwargs: arguments of the environment; None takes those of the run.
        max_episode_steps: longer episodes are cut; None takes the limit of the run, or 27,000 steps.
        num_workers: processes that play; None takes one per core if there is enough to do.
        functions: those ``module:function`` of its policy mapping and its frozen policies that may be imported.

    Raises:
        UsageError: an argument is refused, or this is no place to start processes from.
        SfError: the policy cannot be loaded, or the environment fails or has other spaces.
    """
    import torch

    from sf.evaluator.shares import default_num_workers
    from sf.evaluator.summary import summarize
    from sf.processes.callers import expect_place_for_processes

    _check(policy, env, episodes=episodes, seed=seed, num_workers=num_workers, max_episode_steps=max_episode_steps)
    num_workers = min(num_workers or default_num_workers(episodes), episodes)
    if num_workers > 1:
        expect_place_for_processes("sf.evaluate")
    from sf.nets.threads import one_thread  # with torch; the numbers of `sf-eval`, which computes with one

    trust_functions(functions)
    with _candidate(policy, checkpoint, deterministic) as candidate, one_thread():
        from sf.cli.experiments import environment
        from sf.config.as_flags import as_flags
        from sf.evaluator.candidates import load_candidate
        from sf.evaluator.observed import info_for
        from sf.evaluator.playing import LONGEST_EPISODE
        from sf.evaluator.shares import evaluate as play

        with torch.random.fork_rng(devices=[]):  # networks draw their first weights
            loaded = load_candidate(candidate)
        if loaded.note:
            warnings.warn(loaded.note, stacklevel=2)
        if not 0 <= policy_id < len(loaded.policies):
            raise UsageError(f"policy_id={policy_id}, but {policy} has the policies 0 to {len(loaded.policies) - 1}.")
        kwargs = None if env_kwargs is None else as_flags("env_kwargs", dict(env_kwargs))[0].partition("=")[2]
        source = environment(env, kwargs, loaded.run, max_episode_steps, LONGEST_EPISODE)
        info = info_for(loaded.policies, loaded.info, source)
        played = play(candidate, loaded, source, info, episodes, seed, num_workers, is_shared=True)
    return summarize(played[policy_id])


def _check(policy: Any, env: Any, seed: Any, **counts: Any) -> None:
    from sf.policy import Policy

    if not isinstance(policy, (str, Path, Policy)):
        raise UsageError(
            f"policy is a {type(policy).__name__}, expected one of sf.load_policy, or the directory of a run."
        )
    if env is not None:
        expect_env_id(env)
    if env is None and isinstance(policy, Policy):
        raise UsageError("A policy does not know its environment. Name it: sf.evaluate(policy, 'CartPole-v1').")
    if type(seed) is not int or seed < 0:
        raise UsageError(f"seed={seed!r}, expected an integer of at least 0.")
    for name, count in counts.items():
        if not (type(count) is int and count >= 1) and not (count is None and name != "episodes"):
            raise UsageError(f"{name}={count!r}, expected an integer of at least 1.")


@contextmanager
def _candidate(policy: Policy | str | Path, checkpoint: str, deterministic: bool) -> Iterator[Candidate]:
    """The policy as the evaluator takes it, which loads it in every process that plays."""
    from sf.evaluator.candidates import Candidate, candidate_of_experiment

    if isinstance(policy, (str, Path)):
        path = Path(policy)
        if (path / "checkpoint_p0").is_dir():
            yield candidate_of_experiment(path, checkpoint, deterministic)
        else:
            yield Candidate(path.name, (path,), deterministic, is_folder=True)
        return
    with tempfile.TemporaryDirectory(prefix="sf-policy-") as directory:
        path = _saved(policy, Path(directory) / "policy")
        yield Candidate(policy.name, (path,), deterministic, is_folder=True)


def _saved(policy: Policy, path: Path) -> Path:
    from sf.policy import GreedyPolicy, PolicySaver, TrainedPolicy

    inner = policy.wrapped if isinstance(policy, GreedyPolicy) else policy
    if type(inner) is not TrainedPolicy:
        raise UsageError(
            f"policy is a {type(inner).__name__}, but only a TrainedPolicy, greedy or not, can be played here, such as "
            "one of sf.load_policy."
        )
    return PolicySaver(policy, train_step=policy.get_train_step()).save(path)
