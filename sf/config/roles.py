"""Parts of the configuration, a frozen dataclass per role: a field is a flag of ``sf-train``, its text the help.

None as a default means that `sf.run.sizes` chooses the value from the environment and the number of cores.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from sf.config.ranges import ABOVE_0, AT_LEAST_0, AT_LEAST_1, SEED, Range

FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""Name of a function in place of a directory."""


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
    """If the experiment exists: resume continues it, restart moves it aside, overwrite deletes it later on."""
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
    """Steps in one trajectory. None makes 32; or 128, of 16 environments, in serial and synchronous runs with
    vectors, and for recurrent policies on vectors."""
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
    noise_correlation: Annotated[float, Range(0, 1, open_high=True)] = 0.0
    """Correlation of the noise of a Box action with that of the step before. 0.97 helps to move something heavy."""


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
