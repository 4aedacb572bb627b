"""Flags that an algorithm and its replay buffer must agree on."""

from __future__ import annotations

from sf.config.algorithms import VALUES, draws_trajectories, is_off_policy, values_of
from sf.config.whole import Config
from sf.plugins import ALGORITHMS


def off_policy_problems(config: Config) -> list[str]:
    """A sentence for every flag that cannot go with the algorithm, as far as the flags alone say."""
    name, replay = ALGORITHMS.short(config.learner.algorithm), config.replay.replay
    problems = _of_exploration(name, config.model.exploration)
    if is_off_policy(name) and replay != "uniform":
        problems.append(
            f"algorithm={name} learns from transitions that are drawn again and again, but replay={replay}. Leave "
            "--replay out, or use --replay=uniform."
        )
        return problems
    if ALGORITHMS.is_ours(name) and not is_off_policy(name):
        return problems + _of_on_policy(config, name)
    return problems + (_of_off_policy(config) + _of_start(config) if replay == "uniform" else [])


def _of_exploration(name: str, exploration: str) -> list[str]:
    """Whether the policy acts as the algorithm learns; those of users are not known."""
    wanted = values_of(name).get("exploration", "sample")
    if not (name == ALGORITHMS.default or name in ALGORITHMS.built_in) or exploration == wanted:
        return []
    fitting = [other for other in VALUES if values_of(other).get("exploration") == exploration]
    return [
        f"exploration={exploration} does not go with algorithm={name}, whose policy acts by exploration={wanted}. "
        f"Leave it out, or use --algorithm={' or '.join(fitting or [ALGORITHMS.default])}."
    ]


def _of_on_policy(config: Config, name: str) -> list[str]:
    replay, problems = config.replay.replay, []
    if replay == "uniform":
        problems.append(
            f"replay=uniform draws transitions without the policy that chose them, which algorithm={name} needs. Use "
            "--replay=staleness --staleness_weight=uniform, or --algorithm=dqn or sac."
        )
    elif replay != "none" and name != ALGORITHMS.default:
        problems.append(
            f"algorithm={name} learns from each batch as it comes, but replay={replay} draws from older ones. Leave "
            "it out, or use --algorithm=ppo."
        )
    if config.model.use_rnn and name in {"ppg", "rnd"}:
        problems.append(f"use_rnn=True with algorithm={name}: its networks have no memory. Leave it out.")
    lags = {"bound_policy_lag": config.learner.bound_policy_lag, "target_policy_lag": config.learner.target_policy_lag}
    problems += [
        f"{flag}={value} with algorithm=ppg: its auxiliary phases take many steps on earlier batches. Leave it out."
        for flag, value in lags.items()
        if value is not None and name == "ppg"
    ]
    if config.model.actor_critic_share_weights and name == "ppg":
        problems.append("actor_critic_share_weights=True with algorithm=ppg: it has two networks. Leave it out.")
    return problems


def _of_off_policy(config: Config) -> list[str]:
    learner, model, name = config.learner, config.model, config.learner.algorithm
    passes = 1 if learner.num_epochs is None else learner.num_epochs
    is_ours = ALGORITHMS.is_ours(ALGORITHMS.short(name))  # one of the user's is asked by the trial
    has_no_memory = is_ours and not draws_trajectories(name)
    unfit = {
        "use_rnn=False": (
            not model.use_rnn and draws_trajectories(name),
            "it is for policies with a memory; --algorithm=dqn does without",
        ),
        "use_rnn=True": (
            model.use_rnn and has_no_memory,
            "it draws single transitions, and recurrent layers need what came before them. For choices "
            "--algorithm=drqn draws trajectories, and --algorithm=ppo has a memory for all actions",
        ),
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


def _of_start(config: Config) -> list[str]:
    """Whether the run is long enough to learn anything."""
    steps = config.run.frame_limit / config.rollout.frames_per_step / config.run.num_policies
    if steps > config.replay.learning_starts:
        return []
    return [
        f"learning_starts={config.replay.learning_starts} with {steps:,.0f} steps for each policy: the run would "
        "end before it learned. Use a larger --train_for_env_steps, or a smaller --learning_starts."
    ]
