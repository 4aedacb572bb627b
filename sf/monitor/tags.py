"""Every curve of a run, with its unit and its meaning; `python -m sf.cli.reference` makes a page of it.

Formulas: r is the probability ratio exp(log π_now - log π_acting), A the advantage, V the value, R its target.
"""

from __future__ import annotations

from typing import NamedTuple


class TagRow(NamedTuple):
    """One row: tags that share a meaning, the unit, and the meaning."""

    tags: str
    """Separated by spaces."""
    unit: str
    meaning: str


RUN = (
    TagRow("perf/_fps", "frames/s", "over the last 2 reports, as on the console"),
    TagRow("perf/_sample_throughput", "samples/s", "over at most 10 reports, before frame skip"),
    TagRow("reward/reward reward/reward_min reward/reward_max", "return", "over the last `stats_avg` episodes"),
    TagRow("len/len len/len_min len/len_max", "steps", "likewise"),
    TagRow(
        "policy_stats/avg_true_objective policy_stats/avg_true_objective_min policy_stats/avg_true_objective_max",
        "",
        '`info["true_objective"]` of the last step of an episode, its return if there is none',
    ),
    TagRow(
        "env/*",
        "",
        'numbers of the environment\'s own, from `info["metrics"]`, over those of the '
        "last `stats_avg` episodes that have it; see [metrics](../metrics.md#numbers-of-your-own)",
    ),
    TagRow(
        "agents/*",
        "return",
        "`agents/0/reward` and so on: mean return of each agent of an environment with 2 to 16 of them, over its "
        "episodes among the last `stats_avg` of the policy; `agents/0/env/NAME` for numbers of the environment's own",
    ),
    TagRow(
        "user/*",
        "",
        "numbers that a [callback](../policy.md#training-from-a-program) has returned: their mean since the previous "
        "point",
    ),
    TagRow(
        "pbt/*", "", "with `--with_pbt`: each flag of the [space](../policies/populations.md), as the policy has it now"
    ),
    TagRow(
        "self_play/elo self_play/score self_play/snapshots self_play/score_against_*",
        "",
        "with `--self_play`: rating of policy 0, its scores against the pool and against each frozen policy, and the "
        "[snapshots](../policies/self-play.md) in the pool",
    ),
    TagRow("self_play/snapshot self_play/snapshot_frames", "", "the snapshot that a seat plays, and its frames"),
    TagRow("stats/avg_request_count", "groups", "served by one forward pass"),
    TagRow(
        "stats/step_policy stats/wait_policy",
        "s",
        "per forward pass: computing, waiting; where rollout workers act for themselves, they step environments "
        "meanwhile, and policy 0 has the time of all policies",
    ),
    TagRow(
        "stats/clipped_rewards",
        "share",
        "rewards since the start that `--reward_clip` has limited; only with that flag",
    ),
    TagRow(
        "lag/acting lag/queued lag/epochs",
        "steps",
        "mean [policy lag](../policy-lag.md#seeing-it) by source since the previous point; they add up to the mean lag",
    ),
    TagRow(
        "lag/histogram",
        "transitions",
        "by their lag in an optimizer step since the previous point, each step of lag up to 1,023 by itself: a "
        "histogram in TensorBoard, a list that begins with lag 0 in `metrics.jsonl`",
    ),
    TagRow(
        "slots/allocated slots/learned slots/free slots/in_flight",
        "slots",
        "all hand-outs so far, by outcome; with the discarded ones they add up",
    ),
    TagRow(
        "stats/master_process_memory_mb stats/memory_learner stats/memory_policy_worker",
        "MB",
        "resident memory; that of a policy worker is that of a rollout worker where those act for themselves",
    ),
    TagRow(
        "stats/gpu_mem_learner stats/gpu_cache_learner stats/gpu_mem_policy_worker stats/gpu_cache_policy_worker",
        "MB",
        "on an accelerator: memory of tensors, and memory that torch has taken from the device",
    ),
)
"""Every `experiment_summaries_interval` seconds."""

FAULTS = (
    TagRow("faults/restarts", "workers", "replaced since the start"),
    TagRow(
        "faults/restarts_signal faults/restarts_exception faults/restarts_hang faults/restarts_memory "
        "faults/restarts_exit",
        "workers",
        "after a signal, an exception, a hang, a kill by the kernel for memory, or an end of the worker by itself",
    ),
    TagRow(
        "faults/oldest_heartbeat",
        "s",
        "time since the last progress of the most silent process; of time in which the supervisor could not look (a "
        "callback), 1 s counts",
    ),
    TagRow(
        "faults/discarded_worker_died",
        "slots",
        "trajectories of a group that a worker was filling when it died",
    ),
    TagRow("faults/discarded_not_learned", "slots", "complete trajectories that waited when the run ended"),
    TagRow(
        "faults/discarded_unused",
        "slots",
        "trajectories that a learner took and made no optimizer step on: all too old, or a gradient that is no number",
    ),
    TagRow(
        "faults/unread_episodes",
        "episodes",
        "that are in no mean, because more than 20,000 per second and worker, or in a serial run, ended",
    ),
    TagRow(
        "faults/failed_saves",
        "checkpoints",
        "that could not be written since the start; each is a warning on the console",
    ),
    TagRow(
        "faults/checkpoint_age",
        "s",
        "age of the checkpoint that a resume would take, the oldest of several policies; since the last begin of the "
        "run if that is later",
    ),
    TagRow(
        "faults/skipped_steps",
        "steps",
        "optimizer steps that were not taken since the start, because the gradient was not finite",
    ),
    TagRow(
        "faults/dropped_nonfinite",
        "trajectories",
        "of one environment that a NaN or an infinity spoiled, with `--on_nonfinite=drop`",
    ),
)
"""Tags of the whole run, in the files of policy 0, at the same times."""

TRAIN = (
    TagRow(
        "version_diff_min version_diff_avg version_diff_max", "steps", "version before the step - version that acted"
    ),
    TagRow("num_sgd_steps", "steps", "optimizer steps so far"),
    TagRow("lr actual_lr", "", "learning rate; times the fraction of transitions young enough to train on"),
    TagRow("skipped_steps", "steps", "optimizer steps not taken because the gradient was not finite"),
    TagRow("grad_norm", "", "L2 norm over all parameters, before clipping"),
    TagRow("adam_max_second_moment", "", "largest entry of Adam's second moment"),
    TagRow(
        "loss",
        "",
        "`policy_loss` + `value_loss_coeff` · `value_loss` + `exploration_loss` + `kl_loss`, or as an algorithm says",
    ),
    TagRow("policy_loss", "", "mean(max(-A·r, -A·clip(r, 1-ε, 1+ε)))"),
    TagRow("value_loss", "", "½ · mean(max((V-R)², (V_clipped-R)²)), in units of normalized returns"),
    TagRow("exploration_loss", "", "-`exploration_loss_coeff` · entropy"),
    TagRow("kl_loss", "", "`kl_loss_coeff` · KL divergence; only with that flag"),
    TagRow("entropy", "nats", "mean entropy of the action distributions"),
    TagRow(
        "fraction_clipped",
        "share",
        "of |r - 1| > ε; of the range and the ratio that `--objective` and the clip flags choose",
    ),
    TagRow(
        "clipfrac",
        "share",
        "mean of `fraction_clipped` over all minibatches of the iteration, weighted with their sizes",
    ),
    TagRow(
        "ratio_at_lag/* ESS_at_lag/* clipped_at_lag/*",
        "",
        "mean r, effective sample size (Σr)² / (N Σr²) and clipped share of the transitions with this lag, over all "
        "minibatches of the iteration; * is 0, 1, 2-3, 4-7, ..., 128+",
    ),
    TagRow("kl_divergence kl_divergence_max", "nats", "mean and maximum of (r - 1) - log r (k3)"),
    TagRow(
        "old_approx_kl half_mean_squared_log_ratio approx_kl",
        "nats",
        "k1 = mean(-log r), k2 = mean((log r)²)/2, k3; in `metrics.jsonl` only",
    ),
    TagRow(
        "staleness/batch_min staleness/batch_mean staleness/batch_max",
        "steps",
        "with [replay](../replay.md): lag of the minibatch that was drawn",
    ),
    TagRow(
        "ESS max_ratio mean_ratio kl_approx",
        "",
        "with replay: (Σr)² / (N Σr²), largest and mean r, mean(-log r) of the minibatch",
    ),
    TagRow("ratio_min ratio_mean ratio_max", "", "minimum of r, mean of |1 - r|, maximum of r"),
    TagRow(
        "first_ratio_min first_ratio_max",
        "",
        "extremes of r in the first minibatch of the iteration: 1 if the policy has not changed since acting",
    ),
    TagRow("max_abs_logprob", "", "largest |log π|"),
    TagRow("stddev", "", "mean standard deviation of Box actions, in units of what the policy draws"),
    TagRow("value value_delta value_delta_max", "reward", "mean V; mean and largest change since acting"),
    TagRow("explained_variance", "share", "1 - Var(R - V)/Var(R), acting values"),
    TagRow("adv_min adv_max adv_std", "reward", "advantages before normalization"),
    TagRow(
        "returns_running_mean returns_running_std *_running_mean *_running_std",
        "",
        "statistics in use: of returns, and of each leaf of the observation (`obs` where there is one), averaged over "
        "its elements",
    ),
    TagRow("valids_fraction same_policy_fraction", "share", "transitions trained on; those of this policy"),
)
"""Below ``train/``: the last minibatch of an iteration."""

EVALUATION = (
    TagRow(
        "eval/reward eval/reward_std eval/reward_min eval/reward_max", "return", "over the episodes of the evaluation"
    ),
    TagRow("eval/len", "steps", "mean length"),
    TagRow("eval/episodes", "episodes", "number of episodes"),
    TagRow("eval/policy_version eval/frames", "", "the evaluated policy"),
)
"""After each evaluation, with ``--eval_every_steps``."""
