"""Looks before a run that take torch, each in a process of its own: accelerators, and plugins of users."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from sf.config import Config, note_on_unread_flags
from sf.config.algorithms import draws_trajectories, is_off_policy, values_of
from sf.config.observation_groups import encoders_of
from sf.errors import ConfigError, EnvError, ResourceError
from sf.plugins import ALGORITHMS, ENCODERS, Sent, plugins_to_send, receive_plugins
from sf.processes.disposable import in_disposable_child
from sf.run.specifications import START_S
from sf.shared.fields import StoredField
from sf.shared.slot_fields import last_observation_fields
from sf.spaces import EnvInfo

DECISIVE = "replay", "exploration", "use_rnn", "actor_critic_share_weights"
"""Flags without which an algorithm that needs them does not work."""

Fields = Mapping[str, StoredField]
"""Further columns of a batch, by name."""


class PluginsTried(NamedTuple):
    """What a look at an algorithm says."""

    note: str = ""
    """A sentence about flags that it does not read, or nothing."""
    fields: Mapping[str, StoredField] = {}


def try_plugins(config: Config, changed: list[str], info: EnvInfo) -> PluginsTried:
    """Tries an encoder and an algorithm of the user in a process of its own, because that takes torch.

    A serial run has torch anyway, and constructs them in this process.

    Raises:
        ConfigError: one cannot be imported, or does not do what it has to do.
    """
    used = {ENCODERS: config.model.encoder, ALGORITHMS: config.learner.algorithm}
    texts = {"algorithm": config.learner.algorithm_kwargs, "encoder": config.model.encoder_kwargs}
    settings = {kind: json.loads(text) for kind, text in texts.items()}
    theirs = [
        f"the {plugins.kind} {name}"
        for plugins, name in used.items()
        if not plugins.is_ours(name) or settings[plugins.kind]
    ]
    theirs += [f"the encoder {name}" for name in encoders_of(config.model)[1:] if not ENCODERS.is_ours(name)]
    own = PluginsTried(fields=fields_of_ours(config, info))
    if not theirs:
        return own
    if config.run.serial_mode:
        is_ours = ALGORITHMS.is_ours(config.learner.algorithm)
        return own if not any(settings.values()) and is_ours else _look(config, changed, info)
    what = f"A first look at {' and '.join(theirs)}"
    try:
        found = in_disposable_child(
            _try_plugins, config, changed, info, plugins_to_send(), timeout_s=START_S, what=what
        )
    except EnvError as error:  # what ends badly in such a process is an environment elsewhere
        raise ConfigError([str(error)]) from None
    if isinstance(found, PluginsTried):
        return found
    raise ConfigError(found)


def _try_plugins(config: Config, changed: list[str], info: EnvInfo, plugins: Sent) -> PluginsTried | tuple[str, ...]:
    """What is found, or problems."""
    receive_plugins(plugins)
    try:
        return _look(config, changed, info)
    except ConfigError as error:
        return error.problems


def _look(config: Config, changed: list[str], info: EnvInfo) -> PluginsTried:
    """Constructs a policy and an algorithm; says which flags that one does not read, and which columns it asks for.

    Raises:
        ConfigError: one of them does not do what it has to do.
    """
    import torch

    from sf.learner.off_policy import OffPolicy
    from sf.learner.off_policy_trial import try_update
    from sf.learner.trial import algorithm_of, begin, fields_of, loss_terms_of, unread_flags
    from sf.learner.untrained import note_on_policy_twice, note_on_untrained
    from sf.nets.device import accelerators
    from sf.policy import ActorCritic

    device = torch.device(accelerators()[0] if config.run.device == "gpu" else "cpu")
    policy = ActorCritic(info, config.model, device, config.run.bf16)
    algorithm = algorithm_of(config.learner)
    expect_flags_of_base(config, type(algorithm))
    if isinstance(algorithm, OffPolicy):
        try_update(algorithm, policy)
        return PluginsTried(fields=fields_of(algorithm, info))
    fields = fields_of(algorithm, info)
    begin(algorithm, policy)
    loss_terms_of(algorithm, policy)
    if ALGORITHMS.is_ours(config.learner.algorithm):
        return PluginsTried(fields=fields)
    unread = note_on_unread_flags(config.learner, unread_flags(config.learner, policy, changed))
    notes = note_on_untrained(algorithm, policy), note_on_policy_twice(algorithm, policy), unread
    return PluginsTried(" ".join(filter(None, notes)), fields)


def expect_flags_of_base(config: Config, kind: type) -> None:
    """An algorithm of the user's may derive from one of sf, and needs some of its flags then.

    Raises:
        ConfigError: it cannot work, because the policy acts in another way or nothing is replayed.
    """
    bases, name, given = ALGORITHMS.bases_of(kind), config.learner.algorithm, config.learner.algorithm_defaults
    if ALGORITHMS.is_ours(name) or not bases:
        return
    base = bases[0]
    if given and given not in bases:
        raise ConfigError([f"algorithm_defaults={given}, but algorithm={name} derives from {base}. Use {base}."])
    flags = values_of(base)
    now = {name: value for role in config.to_json().values() for name, value in role.items()}
    differing = {name: value for name, value in flags.items() if now[name] != value}
    if needed := [name for name in DECISIVE if name in differing]:
        remedy = f"Add --algorithm_defaults={base}, which gives all flags the defaults that they have with {base}."
        if given == base:
            remedy = f"Leave --{needed[0]} out."
        raise ConfigError(
            [
                f"algorithm={name} derives from {base}, which needs {needed[0]}="
                f"{flags[needed[0]]}; found {now[needed[0]]}. {remedy}"
            ]
        )


def fields_of_ours(config: Config, info: EnvInfo) -> Fields:
    """The same of an algorithm that comes with sf, without torch."""
    learner = config.learner.algorithm
    return last_observation_fields(info) if is_off_policy(learner) and not draws_trajectories(learner) else {}


def found_accelerators() -> list[str]:
    """Their names, found by a process of its own, because it takes torch.

    Raises:
        ResourceError: there are none, or looking for them does not end well.
    """
    try:
        return in_disposable_child(_look_for_accelerators, timeout_s=START_S, what="A first look at the accelerators")
    except EnvError as error:  # what ends badly in such a process is an environment elsewhere
        raise ResourceError(
            f"Torch could not say within {START_S:.0f} s which accelerators there are, or died of it ({error}). Try "
            "python -c 'import torch; print(torch.accelerator.device_count())', or use --device=cpu."
        ) from None


def _look_for_accelerators() -> list[str]:
    from sf.nets.device import accelerators

    return accelerators()
