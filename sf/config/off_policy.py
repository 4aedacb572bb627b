"""Flags that an algorithm and its replay buffer must agree on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sf.config.roles import Config
from sf.plugins import ALGORITHMS

if TYPE_CHECKING:
    from sf.spaces import EnvInfo


def off_policy_problems(config: Config) -> list[str]:
    """A sentence for every flag that cannot go with the algorithm, as far as the flags alone say."""
    name, replay = ALGORITHMS.short(config.learner.algorithm), config.replay.replay
    if name == ALGORITHMS.default:
        return _of_ppo(config)
    if name in ALGORITHMS.built_in and replay != "uniform":
        return [
            f"algorithm={name} learns from transitions that are drawn again and again, but replay={replay}. Leave "
            "--replay out, or use --replay=uniform."
        ]
    return _of_off_policy(config) if replay == "uniform" else []


def _of_ppo(config: Config) -> list[str]:
    problems = []
    if config.replay.replay == "uniform":
        problems.append(
            "replay=uniform draws transitions without the policy that chose them, which algorithm=ppo needs for its "
            "ratios. Use --replay=staleness --staleness_weight=uniform, or --algorithm=dqn or sac."
        )
    if config.model.exploration == "epsilon_greedy":
        problems.append(
            "exploration=epsilon_greedy follows the best output, but algorithm=ppo learns probabilities. Leave it out, "
            "or use --algorithm=dqn."
        )
    return problems


def _of_off_policy(config: Config) -> list[str]:
    learner, model, name = config.learner, config.model, config.learner.algorithm
    passes = 1 if learner.num_epochs is None else learner.num_epochs
    unfit = {
        "use_rnn=True": (model.use_rnn, "it draws single transitions, and recurrent layers need what came before them"),
        f"num_epochs={passes}": (passes != 1, "it passes over no batch; --replay_ratio says how many steps there are"),
        "normalize_returns=True": (model.normalize_returns, "its targets are in units of the reward"),
        f"num_learners={learner.num_learners}": (learner.num_learners > 1, "a buffer belongs to one learner"),
        f"bound_policy_lag={learner.bound_policy_lag}": (
            learner.bound_policy_lag is not None, "it learns from policies of any age"
        ),
        f"target_policy_lag={learner.target_policy_lag}": (
            learner.target_policy_lag is not None, "it learns from policies of any age"
        ),
        f"max_staleness={config.replay.max_staleness}": (
            config.replay.max_staleness >= 0, "it learns from policies of any age"
        ),
    }  # fmt: skip
    return [f"{flag} with algorithm={name}: {why}. Leave it out." for flag, (is_set, why) in unfit.items() if is_set]


def action_problems(config: Config, info: EnvInfo) -> list[str]:
    """A sentence if the actions of the environment are of another kind than the algorithm is made for."""
    name, action = ALGORITHMS.short(config.learner.algorithm), info.action
    if name == "dqn" and not (action.choices and action.is_scalar):
        return [f"algorithm=dqn chooses among actions, a Discrete space; found {action}. {_other(info)}"]
    if name == "sac" and action.choices:
        return [f"algorithm=sac needs actions that are numbers, a Box; found {action}. {_other(info)}"]
    return []


def _other(info: EnvInfo) -> str:
    """What fits instead."""
    action = info.action
    if not action.choices:
        return "Use --algorithm=sac or ppo."
    return "Use --algorithm=dqn or ppo." if action.is_scalar else "Use --algorithm=ppo."
