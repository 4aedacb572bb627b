"""The part of the configuration that says how policies learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from sf.config.ranges import ABOVE_0, AT_LEAST_0, AT_LEAST_1, BELOW_1, UNIT, Range
from sf.config.updates import UPDATES, ScheduleName, Updates, UpdatesName

DEFAULT_ENTROPY_COEFF = 0.01
"""Usual for a few discrete actions."""


@dataclass(frozen=True)
class LearnerConfig:
    """How the policy is updated."""

    algorithm: str = "ppo"
    """How the policy learns: ppo, appo, ppg, rnd, pqn, dqn, drqn, sac, td3, discrete_sac, or module:Name of a subclass
    of sf.Algorithm."""
    algorithm_kwargs: str = "{}"
    """Further keyword arguments of dqn, sac or an algorithm of your own, as JSON."""
    algorithm_defaults: str = ""
    """The algorithm of sf, such as dqn, whose defaults all flags have with one of your own that derives from it."""
    updates: UpdatesName = "auto"
    """How much to learn from each frame where flags below are open. On 2,048 transitions fast makes 16 optimizer steps
    of 256, balanced 128 of 128, and efficient 320 of 64; auto chooses by the cost of a frame."""
    batch_size: Annotated[int, AT_LEAST_1] | None = None
    """Transitions in one minibatch; None divides one sampling round into num_batches_per_epoch parts."""
    num_learners: Annotated[int, AT_LEAST_1] = 1
    """Learner processes for each policy, which share every batch and average their gradients."""
    ranks_to_wait_for: Annotated[float, Range(0, 1, open_low=True)] = 0.6
    """Share of the ranks of torchrun that have their batch when the others train with what they have of theirs, at
    least a quarter; 1 waits for all. In asynchronous mode."""
    num_batches_per_epoch: Annotated[int, AT_LEAST_1] | None = None
    """Minibatches in one batch. None makes as many as updates says, or with a batch_size about as many as one sampling
    round has."""
    num_epochs: Annotated[int, AT_LEAST_1] | None = None
    """Passes over each batch; None makes as many as updates says."""
    num_batches_to_accumulate: Annotated[int, AT_LEAST_1] = 2
    """Batches that may wait or train before collection pauses, in asynchronous mode."""
    max_policy_lag: Annotated[int, AT_LEAST_1] = 1000
    """Transitions whose policy is this many optimizer steps old, or older, are left out."""
    bound_policy_lag: Annotated[int, AT_LEAST_0] | str | None = None
    """No transition that is more optimizer steps old is trained on: a group begins a trajectory only if it can be used
    in time, and the rest is left out. 2b counts batches, the one that is trained on among them."""
    target_policy_lag: Annotated[float, AT_LEAST_0] | None = None
    """Keep the average policy lag near this, by the number of trajectories in flight; in asynchronous mode."""
    gamma: Annotated[float, UNIT] = 0.99
    """Discount of future rewards."""
    gae_lambda: Annotated[float, UNIT] = 0.95
    """Decay of the advantage estimate over time."""
    ppo_clip_ratio: Annotated[float, ABOVE_0] = 0.2
    """The probability ratio is clipped to 1 minus and plus this."""
    ppo_clip_ratio_high: Annotated[float, ABOVE_0] | None = None
    """The same for the upper limit alone, 1 plus this; None for ppo_clip_ratio."""
    ppo_dual_clip: Annotated[float, AT_LEAST_0] = 0.0
    """Where the advantage is negative, limit the loss to this multiple of it (Ye et al. 2020); 0 for no limit."""
    objective: Literal["ppo", "decoupled", "truncated"] = "ppo"
    """Correction for stale data. ppo clips ratios to the policy that acted. decoupled clips ratios to the policy at the
    start of the iteration, weighted by how likely that one finds the action. truncated limits importance weights."""
    proximal_policy: Literal["evaluated", "interpolated"] = "evaluated"
    """Where the decoupled objective gets that policy from: one pass over the batch, or interpolation by version."""
    importance_weight_max: Annotated[float, AT_LEAST_1] = 2.0
    """Largest importance weight of the decoupled and the truncated objective; below 1 it would weaken fresh data."""
    recompute_advantages: bool = False
    """Compute advantages anew before each epoch, with the values of then, instead of those of the acting policy."""
    ess_lr: bool = False
    """Multiply the learning rate by the effective sample size of the minibatch, the share that importance ratios
    leave."""
    ppo_clip_form: Literal["symmetric", "reciprocal"] = "symmetric"
    """Reciprocal clips the ratio to 1/(1+e) and 1+e instead, after limiting it to 0.05 and 20 (Sample Factory)."""
    ppo_clip_anneal: bool = False
    """Let both clip ranges shrink to zero by the end of the run, see lr_schedule."""
    target_kl: Annotated[float, AT_LEAST_0] = 0.0
    """End an iteration after the epoch whose last minibatch has moved the policy further than this; 0 never does."""
    ppo_clip_value: Annotated[float, AT_LEAST_0] = 1.0
    """Largest change of a value in one iteration that is rewarded by the value loss; 0 switches clipping off."""
    value_loss_coeff: Annotated[float, AT_LEAST_0] = 0.5
    """Weight of the value loss."""
    exploration_loss_coeff: Annotated[float, AT_LEAST_0] | None = None
    """Weight of the entropy bonus; None takes 0.01, or 0 if all actions are numbers, whose deviation it would widen."""
    kl_loss_coeff: Annotated[float, AT_LEAST_0] = 0.0
    """Weight of a penalty on the KL divergence from the policy that acted."""
    learning_rate: Annotated[float, ABOVE_0] | None = None
    """Step size of Adam; None takes that of updates."""
    lr_schedule: ScheduleName | None = None
    """How the learning rate changes: not at all, to zero at the end of the run, or with the policy's change. The end is
    train_for_env_steps or train_for_seconds, whichever is nearer. None is kl_adaptive_batch with PPO and algorithms of
    your own, or constant with a learning_rate or num_epochs of your own; the other algorithms have theirs."""
    lr_schedule_kl_threshold: Annotated[float, ABOVE_0] | None = None
    """KL divergence that the adaptive schedules aim at: in the mean over a minibatch, an epoch, or the last epoch of a
    batch. None takes 0.008, or 0.012 for the last epoch."""
    lr_adaptive_min: Annotated[float, ABOVE_0] = 1e-6
    """Smallest learning rate of the adaptive schedules."""
    lr_adaptive_max: Annotated[float, ABOVE_0] | None = None
    """Largest learning rate of the adaptive schedules. None takes 0.01, or 2.25 times the first one where it changes
    after batches: two steps up. A policy that has learned its task would be moved on without that limit."""
    adam_eps: Annotated[float, ABOVE_0] = 1e-5
    """Added to the denominator of Adam."""
    adam_beta1: Annotated[float, BELOW_1] = 0.9
    """Decay of Adam's first moment."""
    adam_beta2: Annotated[float, BELOW_1] = 0.999
    """Decay of Adam's second moment."""
    max_grad_norm: Annotated[float, AT_LEAST_0] = 0.5
    """Largest norm of the gradient; 0 switches clipping off."""
    shuffle_minibatches: bool = True
    """Draw minibatches at random in each epoch instead of in the order of the trajectories."""
    normalize_advantages: bool = True
    """Shift and scale the advantages of each minibatch to mean 0 and deviation 1."""
    advantage_ddof: Annotated[int, Range(0, 1)] = 1
    """1 for the sample deviation of the advantages, 0 for that of the population."""
    normalize_rewards: bool = False
    """Divide rewards by the running deviation of their discounted sums, then limit them to plus and minus 10."""
    statistics_initial_count: Annotated[float, AT_LEAST_0] = 0.0
    """Samples that the mean 0 and deviation 1 count for with which running statistics begin; 0 takes the first data."""
    value_bootstrap: bool = True
    """Continue the return of a truncated episode with the value of its final observation."""
    with_vtrace: bool = False
    """Correct for lag with V-trace instead of generalized advantage estimation."""
    vtrace_rho: Annotated[float, ABOVE_0] = 1.0
    """Limit of the importance weight of the temporal difference in V-trace."""
    vtrace_c: Annotated[float, ABOVE_0] = 1.0
    """Limit of the importance weight of the trace in V-trace."""
    native_update: bool = True
    """Train networks of a few small layers and recurrent layers in C, where there is a compiler, and act with the
    former in rollout workers; else with torch and NumPy alone."""
    torch_compile: bool = False
    """Compile the network for training when it begins, which takes from seconds to minutes."""
    strict: bool = False
    """Stop with an error if a policy that has not changed since acting finds other probabilities than it acted with."""

    @property
    def num_minibatches(self) -> int:
        """`num_batches_per_epoch` where it is filled in, see `sf.run.sizes`."""
        if self.num_batches_per_epoch is None:
            raise ValueError("num_batches_per_epoch is None; it follows from a resolved configuration.")
        return self.num_batches_per_epoch

    @property
    def recipe(self) -> Updates:
        """What `updates` stands for; outside of a run auto is fast."""
        return UPDATES["fast" if self.updates == "auto" else self.updates]

    @property
    def epochs(self) -> int:
        """`num_epochs`, or that of the recipe."""
        return self.recipe.epochs if self.num_epochs is None else self.num_epochs

    @property
    def base_algorithm(self) -> str:
        """The algorithm whose defaults the flags have."""
        return self.algorithm_defaults or self.algorithm

    @property
    def steps_per_batch(self) -> int:
        """K, optimizer steps on one batch."""
        return self.epochs * self.num_minibatches

    @property
    def lag_bound(self) -> int | None:
        """`bound_policy_lag` in optimizer steps: N batches of K steps each end with a lag of N K - 1."""
        bound = self.bound_policy_lag
        return int(bound[:-1]) * self.steps_per_batch - 1 if isinstance(bound, str) else bound

    @property
    def initial_rate(self) -> float:
        """`learning_rate`, or that of the recipe."""
        return self.recipe.learning_rate if self.learning_rate is None else self.learning_rate

    @property
    def schedule(self) -> ScheduleName:
        """`lr_schedule` where it is filled in, see `sf.run.updates`; else constant."""
        return self.lr_schedule or "constant"

    @property
    def kl_threshold(self) -> float:
        """`lr_schedule_kl_threshold`, or that of the schedule."""
        own = 0.012 if self.schedule == "kl_adaptive_batch" else 0.008
        return own if self.lr_schedule_kl_threshold is None else self.lr_schedule_kl_threshold

    @property
    def largest_rate(self) -> float:
        """`lr_adaptive_max`, or that of the schedule."""
        own = float(f"{2.25 * self.initial_rate:.9g}") if self.schedule == "kl_adaptive_batch" else 0.01
        return own if self.lr_adaptive_max is None else self.lr_adaptive_max

    @property
    def entropy_coeff(self) -> float:
        """`exploration_loss_coeff`, or that for a choice."""
        return DEFAULT_ENTROPY_COEFF if self.exploration_loss_coeff is None else self.exploration_loss_coeff
