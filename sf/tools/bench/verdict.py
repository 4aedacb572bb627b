"""One sentence that names the limit of a run and a remedy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

Part = Literal["environments", "framework", "inference", "learner", "other"]
Role = Literal["rollout", "inference", "learner"]
ROLES: tuple[Role, ...] = "rollout", "inference", "learner"
Mode = Literal["async", "sync", "serial"]

ROOM = 0.15
"""Share of the cores that must be idle before something else than the cores is called the limit."""
BUSY = 0.85
"""Share of its time in which a role that holds the others back does anything but wait."""


WORTH_SAVING = 0.15
"""Share of the CPU time that inference workers take, from which on another way of acting is proposed."""


class RolloutShares(NamedTuple):
    """Shares of the time of all rollout workers; they add up to one."""

    inside: float
    """Inside `env.step`, and `env.reset` where episodes end."""
    framework: float
    waiting: float
    acting: float = 0.0
    """Where no inference workers do that."""


@dataclass(frozen=True)
class Shares:
    """Where the time of a run went."""

    used: float
    """Share of the cores' time that this run used."""
    others: float
    """By other programs, and by other virtual machines."""
    cpu: Mapping[Part, float]
    """Shares of the CPU time of this run; they add up to one."""
    busy: Mapping[Role, float]
    """Share of the time in which the processes of a role do anything but wait."""
    rollout: RolloutShares
    mode: Mode = "async"
    could_act: bool = False
    """The rollout workers leave it to others to choose actions, and could do it themselves."""

    @property
    def idle(self) -> float:
        return max(0.0, 1.0 - self.used - self.others)


def verdict(shares: Shares) -> str:
    """A sentence that names the limit, its reason, and a remedy."""
    if shares.mode == "serial":
        parts = ", ".join(f"{part} {share:.0%}" for part, share in shares.cpu.items())
        return f"one process does everything ({parts}); --serial_mode=False uses all cores"
    sentence = _limit_with_idle_cores(shares) if shares.idle >= ROOM else _limit_with_busy_cores(shares)
    if not (shares.could_act and shares.cpu["inference"] >= WORTH_SAVING):
        return sentence
    return f"{sentence}; rollout workers can act with so small a network themselves (--policy_workers_per_policy=0)"


def _limit_with_idle_cores(shares: Shares) -> str:
    idle = f"{shares.idle:.0%} of the cores' time is idle"
    role = max(shares.busy, key=lambda role: shares.busy[role])
    if shares.busy[role] < BUSY:
        waits = ", ".join(f"{role} {share:.0%}" for role, share in shares.busy.items())
        advice = (
            "larger groups (a larger --num_envs_per_worker in fewer workers) or, at the price of lag, a larger "
            "--num_batches_to_accumulate give them more to do at a time"
            if shares.mode == "async"
            else "--async_rl=True lets them work at the same time"
        )
        return f"the processes wait for each other (busy: {waits}) and {idle}; {advice}"
    if role == "rollout":
        inside, framework, _, acting = shares.rollout
        what = f"the environments are the limit: {inside:.0%} of rollout time is inside env.step"
        if acting > max(inside, framework):
            what = f"acting is the limit: it takes {acting:.0%} of the time of the rollout workers"
        elif inside < framework:
            what = f"the rollout workers are the limit: {framework:.0%} of their time is spent around env.step"
        return f"{what} and {idle}; more --num_workers will help"
    advice = {
        "inference": "larger groups (--num_envs_per_worker) or more --policy_workers_per_policy will help",
        "learner": "fewer --num_epochs, a larger --batch_size or more --num_learners will help",
    }[role]
    return f"{_NAMES[role]} is the limit: it is busy {shares.busy[role]:.0%} of its time and {idle}; {advice}"


def _limit_with_busy_cores(shares: Shares) -> str:
    part = max(shares.cpu, key=lambda part: shares.cpu[part])
    takes = f"{shares.cpu[part]:.0%} of the CPU time"
    if part == "environments":
        inside = shares.rollout.inside / (1 - shares.rollout.waiting)
        return (
            f"the environments are the limit: they take {takes}, the cores are busy, and {inside:.0%} of what the "
            "rollout workers do is inside env.step; more workers than cores will not help"
        )
    if part == "framework":
        return (
            f"the rollout workers are the limit: what they do around env.step takes {takes} and the cores are busy; "
            "larger groups (--num_envs_per_worker) or --vectorization=native will help"
        )
    advice = {
        "inference": "larger groups (--num_envs_per_worker) make a forward pass cheaper per sample",
        "learner": "fewer --num_epochs, a larger --batch_size or a smaller network will help",
        "other": "fewer processes and evaluations will help",
    }[part]
    name = "acting" if part == "inference" and shares.rollout.acting else _NAMES[part]
    return f"{name} is the limit: it takes {takes} and the cores are busy; {advice}"


_NAMES = {"inference": "inference", "learner": "training", "other": "what surrounds the training"}
