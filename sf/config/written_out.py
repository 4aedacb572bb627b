"""Which networks NumPy can compute, where it is the faster one, and how their variables lie in one vector.

`sf.nets.fast.numpy_network` and `sf.learner.propagation` have the formulas. Here no network is imported, so that the
configuration can be checked without one.
"""

from __future__ import annotations

import itertools
import math

from sf.config.model import ModelConfig
from sf.plugins import ENCODERS
from sf.spaces import ACTION_MASK, EnvInfo
from sf.spaces.images import image_layout

MOST_PRODUCTS = 600_000
"""Multiplications of a forward pass: 128 rows of a network with 4,700 weights, 8 rows with 70,000."""

WIDEST_MEMORY = 256
"""Recurrent layers that are wider take torch, whose products use several threads."""


def is_written_out(info: EnvInfo, config: ModelConfig) -> bool:
    """Whether all parts of a policy are written out."""
    return not missing_layers(config) and not missing_spaces(info, config)


def missing_layers(config: ModelConfig) -> list[str]:
    """Settings of the network that are not written out."""
    missing = {
        f"encoder={config.encoder}": config.encoder != ENCODERS.default,
        "use_rnn=True": config.use_rnn,
        "encoder_per_key=True": config.encoder_per_key,
        "layer_norm=True": config.layer_norm,
        "critic_mlp_layers": config.critic_mlp_layers is not None,
        "critic_encoder": config.critic_encoder is not None,
    }
    return [name for name, is_set in missing.items() if is_set]


def missing_spaces(info: EnvInfo, config: ModelConfig) -> list[str]:
    """Observations and actions that are not written out."""
    leaves, missing = [leaf for name, leaf in info.observations.items() if name != ACTION_MASK], []
    if ACTION_MASK in info.observations:
        missing.append("an action mask")
    if len(leaves) != 1:
        missing.append(f"observations of {len(leaves)} parts")
    elif leaves[0].categories:
        missing.append("observations that are categories")
    elif image_layout(leaves[0], config.encoder_conv_architecture):
        missing.append("observations that are images")
    if info.action.choices and not info.action.is_scalar:
        missing.append("actions that are neither one Discrete nor one Box")
    return missing


def layout(info: EnvInfo, config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all variables, in the order in which `ActorCritic.flat` holds them."""
    (leaf,) = info.observations.values()
    towers = ["encoder"] if config.shares_weights else ["encoder", "value_encoder"]
    sizes = [leaf.size, *config.encoder_mlp_layers]
    shapes: dict[str, tuple[int, ...]] = {}
    for tower in towers:
        for index, (num_inputs, num_outputs) in enumerate(itertools.pairwise(sizes)):
            shapes |= _linear(f"{tower}.mlp.layers.{index}.", num_inputs, num_outputs)
    numbers = 0 if info.action.is_scalar else len(info.action.columns)
    has_noise = bool(numbers) and config.exploration == "noise"
    if numbers and not config.adaptive_stddev and not has_noise:
        shapes["distribution.log_std"] = (numbers,)
    num_params = (
        info.action.choices[0] if info.action.is_scalar else numbers * (1 + (config.adaptive_stddev and not has_noise))
    )
    shapes |= _linear("policy_head.", sizes[-1], num_params) | _linear("value_head.", sizes[-1], 1)
    if config.normalize_input:
        names = ("mean", "std", "mean_rest") if leaf.is_wide else ("mean", "std")
        shapes |= {f"inputs.readers.0.normalizer.{name}": leaf.shape for name in names}
    if config.exploration == "epsilon_greedy" and info.action.is_scalar:
        shapes["distribution.epsilon"] = ()
    if has_noise:
        shapes["distribution.log_noise"] = ()
    if config.normalize_returns:
        shapes |= {f"return_normalizer.{name}": () for name in ("mean", "std")}
    return shapes


def size_of(info: EnvInfo, config: ModelConfig) -> int:
    """Numbers in the vector of all variables."""
    return sum(math.prod(shape) for shape in layout(info, config).values())


def is_small(info: EnvInfo, config: ModelConfig, num_rows: int) -> bool:
    """Whether a forward pass of so many rows takes less time than with torch."""
    return num_rows * size_of(info, config) <= MOST_PRODUCTS


def _linear(prefix: str, num_inputs: int, num_outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{prefix}weight": (num_outputs, num_inputs), f"{prefix}bias": (num_outputs,)}
