"""The configuration: a frozen dataclass per role. A field is a flag of ``sf-train``, the sentence below it its help.

None as a default means that `sf.run.sizes` chooses the value from the environment and the number of cores.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from sf.config.population import PopulationConfig
from sf.config.ranges import ABOVE_0, AT_LEAST_0, AT_LEAST_1, BELOW_1, SEED, UNIT, Range
from sf.config.self_play import MAPPING as SELF_PLAY
from sf.config.self_play import SelfPlayConfig
from sf.config.storage import dump, load, without
from sf.config.updates import UPDATES, Updates, UpdatesName

FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""Name of a function in place of a directory."""
DEFAULT_ENTROPY_COEFF = 0.01
"""Usual for a few discrete actions."""


@dataclass(frozen=True)
class RunConfig:
    """The training: its environment, its directory, and its end."""

    env: str
    """Environment: a Gymnasium id such as CartPole-v1, or module:Id to import the module first."""
    preset: Literal[
        "none", "auto", "classic", "classic_fast", "atari", "atari_lstm", "atari_fast", "mujoco",
        "mujoco_paper", "mujoco_fast", "ippo", "mappo", "microrts", "envpool_atari", "envpool_pong",
    ] = "none"  # fmt: skip
    """Known hyperparameters in place of the defaults below, see --help --preset=...; auto chooses by environment."""
    env_kwargs: str = "{}"
    """Arguments of the environment as a JSON object, such as {"continuous": true}."""
    max_episode_steps: Annotated[int, AT_LEAST_1] | None = None
    """Truncate episodes after this many steps; None leaves their end to the environment."""
    experiment: str = "default_experiment"
    """Name of the run and of its directory below train_dir; the command names it after the environment."""
    train_dir: str = "train_dir"
    """Directory that holds the experiments."""
    restart_behavior: Literal["resume", "restart", "overwrite"] = "resume"
    """If the experiment exists: resume continues it, restart moves it aside, overwrite deletes it."""
    seed: Annotated[int, SEED] | None = None
    """Seed of environments, actions and initial weights; None draws one and stores it."""
    async_rl: bool = True
    """Collect experience while training; False waits for each update, which gives exact lag."""
    serial_mode: bool = False
    """Run all roles in one process, for debugging and for runs that repeat bit by bit."""
    num_policies: Annotated[int, AT_LEAST_1] = 1
    """Policies trained at once; policy_mapping deals them to the agents at the start of each episode."""
    policy_mapping: str = "random"
    """With several policies: random deals them as evenly as possible, by_agent gives agent i policy i modulo their
    number, by_team does so with teams such as red_0 and red_1, self_play lets policy 0 play one of the others, and
    module:function is called with agent, episode and random numbers and returns the policy."""
    policies_to_train: tuple[int, ...] | None = None
    """Numbers of the policies that learn; the others act as they are in the checkpoints of the run, or as they begin.
    None trains all that are not frozen."""
    frozen_policies: str = "{}"
    """Policies that act and do not learn, as JSON: number of the policy to the directory of a run or a checkpoint,
    or to module:function, which gets an observation and random numbers and returns an action."""
    device: Literal["cpu", "gpu"] = "cpu"
    """Where inference and training run."""
    bf16: bool = False
    """Compute the encoder in bfloat16, which is faster and less exact, on accelerators and some processors."""
    train_for_env_steps: Annotated[int, AT_LEAST_1] | None = None
    """Stop after this many environment frames, the frames before a resume included; None sets no such limit."""
    train_for_seconds: Annotated[int, AT_LEAST_1] | None = None
    """Stop this many seconds after the training has begun, or has been resumed; None sets no such limit."""
    stop_at_reward: float | None = None
    """Stop when the mean return of the last stop_at_reward_episodes episodes that began before all that still go on
    reaches this value."""
    stop_at_reward_episodes: Annotated[int, AT_LEAST_1] = 100
    """Episodes of each policy behind stop_at_reward; with fewer the run goes on."""
    score: str = "reward"
    """Number of an episode that stop_at_reward and the best checkpoint look at: reward, or env/NAME, one that the
    environment reports, such as env/success."""
    save_every_sec: Annotated[int, AT_LEAST_1] = 120
    """Seconds between two checkpoints."""
    keep_checkpoints: Annotated[int, Range(2)] = 2
    """Number of newest checkpoints that are kept; two at least, so that one damaged file loses little."""
    save_best_every_sec: Annotated[int, AT_LEAST_1] = 5
    """Least number of seconds between two checkpoints of the best policy so far."""
    save_milestones_sec: int = -1
    """Seconds between two checkpoints that are kept for ever; -1 keeps none."""
    experiment_summaries_interval: Annotated[int, AT_LEAST_1] = 10
    """Most seconds between two points of the averaged curves; in a young run there is one after each iteration."""
    dashboard: bool = False
    """Draw reward, rates, lag, time shares and faults on a terminal, below the lines; elsewhere there are lines."""
    stats_avg: Annotated[int, AT_LEAST_1] = 100
    """Number of newest episodes and reports that the averaged curves cover."""
    with_wandb: bool = False
    """Send the curves to Weights & Biases as well."""
    with_trackio: bool = False
    """Give the curves to trackio as well, which keeps them on this machine."""
    wandb_project: str = "sf"
    """Name of the project there."""
    wandb_user: str | None = None
    """User or team at Weights & Biases; None is the default of the account."""
    wandb_group: str | None = None
    """Group of runs there."""
    wandb_tags: str = ""
    """Words for the run at Weights & Biases, with commas between them."""

    @property
    def frame_limit(self) -> float:
        """`train_for_env_steps`, infinite where there is none."""
        return math.inf if self.train_for_env_steps is None else self.train_for_env_steps

    @property
    def time_limit_s(self) -> float:
        """`train_for_seconds`, infinite where there is none."""
        return math.inf if self.train_for_seconds is None else self.train_for_seconds

    @property
    def experiment_dir(self) -> Path:
        """The directory that holds everything the run writes."""
        return Path(self.train_dir) / self.experiment

    @property
    def env_arguments(self) -> dict[str, Any]:
        """`env_kwargs` as keyword arguments."""
        arguments: dict[str, Any] = json.loads(self.env_kwargs)
        return arguments

    @property
    def frozen(self) -> dict[int, str]:
        """`frozen_policies` by number, and nothing for others that are not among `policies_to_train`."""
        named = {int(number): path for number, path in json.loads(self.frozen_policies).items()}
        trained = self.policies_to_train
        others = [] if trained is None else [p for p in range(self.num_policies) if p not in trained]
        return dict.fromkeys(others, "") | named

    @property
    def scripted(self) -> dict[int, str]:
        """Those of them that are functions."""
        return {number: name for number, name in self.frozen.items() if FUNCTION.fullmatch(name)}


DEFAULT_ROLLOUT = 32


@dataclass(frozen=True)
class RolloutConfig:
    """How experience is collected."""

    num_workers: Annotated[int, AT_LEAST_1] | None = None
    """Rollout worker processes; None takes as many as the cores can use."""
    num_envs_per_worker: Annotated[int, AT_LEAST_1] | None = None
    """Environments in each rollout worker; None gives 64 environments over all workers, or fewer, see `rollout`."""
    worker_num_splits: Annotated[int, AT_LEAST_1] | None = None
    """Groups of environments in a worker; one steps while the others wait for actions. None makes 2, or 1 where rollout
    workers act for themselves or have an odd number of environments."""
    rollout: Annotated[int, AT_LEAST_1] | None = None
    """Steps in one trajectory. None makes 32; or 128, of 16 environments, for a Box in serial and synchronous runs."""
    vectorization: Literal["auto", "none", "native", "envpool", "tensors"] = "auto"
    """Step the environments of a group at once: native if they offer it, out of EnvPool, or not at all. Those in
    tensors can also act and learn on their device, in one process."""
    env_frameskip: Annotated[int, AT_LEAST_1] = 1
    """Frames that the environment simulates in one step."""
    summaries_use_frameskip: bool = True
    """Count simulated frames instead of steps in reports, limits and curves."""
    reward_scale: Annotated[float, ABOVE_0] = 1.0
    """Rewards are multiplied by this before training; reported returns are not."""
    reward_clip: Annotated[float, ABOVE_0] | None = None
    """Scaled rewards are limited to plus and minus this; None limits nothing."""
    action_bounds: Literal["scale", "clip", "tanh"] = "scale"
    """How Box actions are kept in their bounds: scale maps -1 to 1 to finite bounds and clips, clip only clips,
    and tanh squashes into finite bounds."""

    @property
    def steps(self) -> int:
        """Steps in one trajectory, where a choice is still open those of most runs."""
        return DEFAULT_ROLLOUT if self.rollout is None else self.rollout

    @property
    def frames_per_step(self) -> int:
        """Frames that one environment step counts for."""
        return self.env_frameskip if self.summaries_use_frameskip else 1


@dataclass(frozen=True)
class InferenceConfig:
    """How actions are computed."""

    policy_workers_per_policy: Annotated[int, AT_LEAST_0] | None = None
    """Inference processes per policy; with 0 rollout workers act. None: 0 for small networks on the CPU, else 1."""


@dataclass(frozen=True)
class ModelConfig:
    """The network and the preparation of its inputs."""

    encoder: str = "auto"
    """Network from observations to features: auto, a name given to sf.register_model, or module:Name."""
    encoder_kwargs: str = "{}"
    """Further keyword arguments of an encoder of your own, as JSON."""
    encoder_mlp_layers: tuple[Annotated[int, AT_LEAST_1], ...] = (64, 64)
    """Sizes of the layers for vector observations."""
    encoder_per_key: bool = False
    """Give each vector of a Dict or Tuple layers of its own instead of one network for all of them side by side."""
    nonlinearity: Literal["tanh", "relu", "elu"] = "tanh"
    """Function between layers."""
    layer_norm: bool = False
    """Normalize the outputs of each linear layer of the encoders before the nonlinearity; pqn needs it."""
    encoder_conv_architecture: Literal["convnet_simple", "convnet_atari", "resnet_impala", "convnet_microrts"] = (
        "convnet_simple"
    )
    """Convolutions for image observations."""
    encoder_conv_mlp_layers: tuple[Annotated[int, AT_LEAST_1], ...] = (512,)
    """Sizes of the layers after the convolutions."""
    actor_critic_share_weights: bool | None = None
    """Use one network for actions and values, with two heads. None: two networks for a Box, one for choices, pictures,
    recurrent policies and algorithms with critics of their own."""
    policy_keys: tuple[str, ...] | None = None
    """Keys of a Dict observation that the policy reads; None for all. Evaluations need no others."""
    critic_keys: tuple[str, ...] | None = None
    """Keys of a Dict observation that the network of the values reads in training; None for all."""
    critic_mlp_layers: tuple[Annotated[int, AT_LEAST_1], ...] | None = None
    """Sizes of the layers for vectors in the network of the values; None for encoder_mlp_layers."""
    critic_encoder: str | None = None
    """Encoder of the network of the values, as for encoder; None for that of the policy."""
    use_rnn: bool = False
    """Make the policy recurrent."""
    rnn_type: Literal["gru", "lstm"] = "gru"
    """Kind of the recurrent layers."""
    rnn_size: Annotated[int, AT_LEAST_1] = 128
    """Size of each recurrent layer."""
    rnn_num_layers: Annotated[int, AT_LEAST_1] = 1
    """Number of recurrent layers."""
    normalize_input: bool = True
    """Shift and scale observations by their running mean and deviation."""
    normalize_returns: bool = True
    """Let the value head predict returns scaled by their running deviation; values stay when that changes (PopArt)."""
    obs_subtract_mean: float = 0.0
    """Subtracted from observations that are not normalized."""
    obs_scale: Annotated[float, ABOVE_0] = 1.0
    """Divides observations that are not normalized, after the subtraction; of others it is the unit of the epsilon."""
    scale_pixels: bool = True
    """Divide uint8 images by their upper bound, or by obs_scale if it is not 1; False treats them as other numbers."""
    obs_clip: Annotated[float, ABOVE_0] = 10.0
    """Normalized observations are limited to plus and minus this."""
    adaptive_stddev: bool = False
    """Let the network choose the deviation of Box actions for each observation."""
    initial_stddev: Annotated[float, ABOVE_0] = 1.0
    """Deviation of Box actions at the start."""
    exploration: Literal["sample", "epsilon_greedy", "noise"] = "sample"
    """How actions are drawn: by their probability, the best choice but for a share epsilon of the steps (dqn, pqn), or
    numbers with noise (td3)."""

    @property
    def log_stddev_limits(self) -> tuple[float, float]:
        """Least and largest logarithm of the deviation of Box actions.

        The largest free deviation is e² = 7.4, or 7.4 times the initial one if that is above 1. A wider one draws
        little but the bounds of an action that is scaled to -1 and 1. One of `adaptive_stddev` has no gradient beyond
        its limit, which therefore is out of reach.
        """
        return -10.0, 5.0 if self.adaptive_stddev else 2.0 + max(0.0, math.log(self.initial_stddev))

    @property
    def shares_weights(self) -> bool:
        """Whether there is one network for actions and values, which is so where nothing says otherwise."""
        return self.actor_critic_share_weights is not False and not self.has_own_critic

    @property
    def has_own_critic(self) -> bool:
        """Whether the network of the values reads other keys than that of the policy, or has other layers."""
        policy, critic = (None if keys is None else set(keys) for keys in (self.policy_keys, self.critic_keys))
        return policy != critic or self.critic_mlp_layers is not None or self.critic_encoder is not None

    @property
    def memory_size(self) -> int:
        """Numbers in the recurrent state of one agent; 0 without recurrent layers."""
        if not self.use_rnn:
            return 0
        networks = 1 if self.shares_weights else 2
        return networks * self.rnn_num_layers * self.rnn_size * (2 if self.rnn_type == "lstm" else 1)


@dataclass(frozen=True)
class LearnerConfig:
    """How the policy is updated."""

    algorithm: str = "ppo"
    """How the policy learns: ppo, appo, ppg, rnd, pqn, dqn, sac, td3, discrete_sac, or module:Name of a subclass of
    sf.Algorithm."""
    algorithm_kwargs: str = "{}"
    """Further keyword arguments of dqn, sac or an algorithm of your own, as JSON."""
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
    lr_schedule: Literal["constant", "linear", "kl_adaptive_minibatch", "kl_adaptive_epoch"] = "constant"
    """How the learning rate changes: not at all, to zero at the end of the run, or with the policy's change. The end is
    train_for_env_steps or train_for_seconds, whichever is nearer."""
    lr_schedule_kl_threshold: Annotated[float, ABOVE_0] = 0.008
    """KL divergence that the adaptive schedules aim at."""
    lr_adaptive_min: Annotated[float, ABOVE_0] = 1e-6
    """Smallest learning rate of the adaptive schedules."""
    lr_adaptive_max: Annotated[float, ABOVE_0] = 1e-2
    """Largest learning rate of the adaptive schedules."""
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
    """Train networks of a few small layers in C, where there is a compiler, and act with them in rollout workers; else
    with torch and NumPy alone."""
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
    def entropy_coeff(self) -> float:
        """`exploration_loss_coeff`, or that for a choice."""
        return DEFAULT_ENTROPY_COEFF if self.exploration_loss_coeff is None else self.exploration_loss_coeff


@dataclass(frozen=True)
class ReplayConfig:
    """Whether, and how, transitions are trained on again."""

    replay: Literal["none", "staleness", "uniform"] = "none"
    """Train on every transition of the newest batch, on minibatches drawn by freshness from a buffer of many, or, for
    algorithms that learn off-policy, on transitions that are all alike likely."""
    replay_ratio: Annotated[float, ABOVE_0] = 1.0
    """Optimizer steps for each transition that was collected, with replay=uniform."""
    learning_starts: Annotated[int, AT_LEAST_0] = 1000
    """Transitions that are collected before the first optimizer step, with replay=uniform."""
    replay_size: Annotated[int, AT_LEAST_1] = 2_000_000
    """Transitions in the buffer; the oldest ones make room for new ones."""
    max_staleness: int = -1
    """Transitions whose policy is more optimizer steps old than this are not drawn; -1 for no limit."""
    staleness_weight: Literal["inverse", "exponential", "uniform"] = "inverse"
    """How likely a transition of staleness s is drawn: 1/(s+1), exp(-s/steps per batch), or all alike."""


@dataclass(frozen=True)
class EvalConfig:
    """How the policy is evaluated while it is trained, on environments of its own."""

    eval_every_steps: Annotated[int, AT_LEAST_0] = 0
    """Frames between two evaluations; 0 for none. With evaluations the best checkpoint is the one of the best score."""
    eval_episodes: Annotated[int, AT_LEAST_1] = 20
    """Episodes in one evaluation."""
    eval_deterministic: bool = True
    """Take the most likely actions instead of drawing them."""
    eval_share: Annotated[float, Range(0, 1, open_low=True)] = 0.1
    """Share of one core that evaluations may take at most."""
    film_every_steps: Annotated[int, AT_LEAST_0] = 0
    """Frames between two films of an episode, which the evaluator makes beside its evaluations; 0 for none."""


@dataclass(frozen=True)
class FaultConfig:
    """The reactions when a part of the run breaks."""

    max_restarts: Annotated[int, AT_LEAST_0] = 10
    """Restarts of one rollout or inference worker within a minute; after that the run goes on without it or ends."""
    restart_learner: bool = False
    """When a learner dies, begin again from the last checkpoint, max_restarts times a minute; else the run ends."""
    on_nonfinite: Literal["raise", "drop"] = "raise"
    """If a reward or an observation is NaN or infinite: end the run, or reset that environment and drop its steps."""
    env_init_timeout: Annotated[float, ABOVE_0] = 120.0
    """Longest construction of one environment in seconds; a worker that takes longer hangs and is restarted."""
    env_reset_timeout: Annotated[float, ABOVE_0] = 120.0
    """Longest reset of one environment in seconds."""
    env_step_timeout: Annotated[float, ABOVE_0] = 60.0
    """Longest step of one environment in seconds."""


REMOVED = {"run": ("cuda_graphs",)}
"""Flags of earlier versions that changed no result; configurations of earlier runs still carry them."""


@dataclass(frozen=True)
class Config:
    """Everything that can be set; each role receives its own part."""

    run: RunConfig
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    inference: InferenceConfig = field(default_factory=InferenceConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    evaluation: EvalConfig = field(default_factory=EvalConfig)
    self_play: SelfPlayConfig = field(default_factory=SelfPlayConfig)
    population: PopulationConfig = field(default_factory=PopulationConfig)
    faults: FaultConfig = field(default_factory=FaultConfig)

    @property
    def seats(self) -> tuple[int, ...]:
        """Policies that play as snapshots of policy 0."""
        others = range(1, self.run.num_policies if self.self_play.self_play else 1)
        return tuple(policy for policy in others if policy not in self.run.frozen)

    @property
    def acting_only(self) -> frozenset[int]:
        """Policies that act and do not learn."""
        return frozenset({*self.run.frozen, *self.seats})

    @property
    def num_shares(self) -> int:
        """Policies among which the steps of all agents are dealt evenly.

        In self-play policy 0 has most of them, and its batches count those of the others as well.
        """
        return 1 if self.self_play.self_play else self.run.num_policies

    @property
    def mapping(self) -> str:
        """`policy_mapping`, or that of self-play where none is named."""
        is_free = self.self_play.self_play and self.run.policy_mapping == "random"
        return SELF_PLAY if is_free else self.run.policy_mapping

    @property
    def workers_act(self) -> bool:
        """Whether rollout workers act for themselves."""
        return self.inference.policy_workers_per_policy == 0

    @property
    def groups_per_worker(self) -> int:
        """`worker_num_splits`, or what it is if left open: double buffering is for workers that wait for actions.

        As long as it is open whether they do, the answer is 2, except for an odd number of environments.
        """
        is_odd = (self.rollout.num_envs_per_worker or 0) % 2 == 1
        return self.rollout.worker_num_splits or (1 if self.workers_act or is_odd else 2)

    @property
    def datasets_in_flight(self) -> int:
        """Batches that may exist at once; a synchronous run holds the one it trains on."""
        return self.learner.num_batches_to_accumulate if self.run.async_rl else 1

    def to_json(self) -> dict[str, Any]:
        """Role to field to value, in plain JSON types."""
        data: dict[str, Any] = dump(self)
        return data

    @classmethod
    def from_json(cls, data: Any) -> Config:
        """The inverse of `to_json`; ConfigError with every unknown name and wrong type in `data`."""
        return load(cls, without(data, REMOVED))
