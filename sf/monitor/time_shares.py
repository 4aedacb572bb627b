"""Where the time went: one line per process, and one sentence that names what holds the run back."""

from __future__ import annotations

from collections.abc import Mapping

WAIT, ACT = "wait", "act"
"""Activities: nothing; what a rollout worker does that acts for itself."""

Seconds = Mapping[str, Mapping[str, float]]
"""Process name to activity to seconds."""

_ADVICE = {
    "acting": "Acting holds the run back: give it larger groups with more --num_envs_per_worker.",
    "inference": "Inference holds the run back: give it larger groups with more --num_envs_per_worker.",
    "learner": "Training holds the run back: lower --num_epochs or take a larger --batch_size.",
}
_REPLAY_ADVICE = "Training holds the run back: lower --replay_ratio, or take a smaller --batch_size."
"""Where a learner draws its minibatches from a buffer, at a fixed rate per frame."""
ROLES = "rollout", "inference", "learner"
FULL = 0.85
"""Share of the cores that processes ask for from which on the machine is full."""
OVERFULL = 1.05
"""Share from which on they take cores from each other."""
_BUSY = 0.6
"""Below this share no role is the bottleneck: they wait for each other."""

TURNS = "In serial mode the roles take turns, so none holds the run back; what a role takes is its line without wait."
"""Instead of the name of a bottleneck."""


def time_share_table(seconds: Seconds) -> str:
    """Lines of text, one per process: the share of each activity in the time of that process."""
    names = [name for name in seconds if sum(seconds[name].values()) > 0]
    width = max((len(name) for name in names), default=0)
    return "\n".join(f"  {name:<{width}}  {shares_text(seconds[name])}" for name in names)


def bottleneck(seconds: Seconds, asked: float = 0.0, cores: int = 1, replays: bool = False) -> str:
    """One sentence about the role that waits least.

    Args:
        seconds: of each process.
        asked: cores that all processes together want, on average; 0 if that is not known.
        cores: that the run may use.
        replays: whether the algorithm learns off-policy from a buffer.
    """
    is_full = asked >= FULL * cores
    asks = f"the run asks for {asked:.1f} of {cores} {'core' if cores == 1 else 'cores'}"
    busy = {role: share for role in ROLES if (share := _busy_share(seconds, role)) is not None}
    if not busy:
        return _most_of_it(seconds)
    role = max(busy, key=lambda role: busy[role])
    shares = ", ".join(f"{role} {100 * share:.0f}%" for role, share in busy.items())
    if busy[role] < _BUSY:
        what = "the cores, of which none is free" if is_full else "each other or for the cores"
        return f"No role holds the run back (busy: {shares}): they wait for {what}."
    what = "acting" if role == "rollout" and _act_more_than_step(seconds) else role
    if what == "rollout":
        workers = f"add --num_workers, because {asks}" if asked else "add --num_workers if cores are free"
        if is_full:
            workers = (
                f"{asks}, so the machine is full and more --num_workers will not help; a core more would give up to "
                f"{100 / cores:.0f} %"
            )
        return f"The environments hold the run back: {workers}. (Busy: {shares}.)"
    advice = _REPLAY_ADVICE if replays and what == "learner" else _ADVICE[what]
    if what == "learner" and asked >= OVERFULL * cores and _workers_fill_a_core(seconds):
        advice = f"{advice.rstrip('.')}, or try fewer --num_workers, because {asks}."
    return f"{advice} (Busy: {shares}.)"


def _most_of_it(seconds: Seconds) -> str:
    """What processes of other roles, such as the driver of a plan, take most of their time for."""
    total = {name: sum(activities.values()) for name, activities in seconds.items()}
    name = max(total, key=lambda name: total[name], default="")
    if not name or not total[name]:
        return "No process has reported where its time went."
    activity, most_s = max(seconds[name].items(), key=lambda item: item[1])
    return f"Most of the time of {name} goes into {activity}: {100 * most_s / total[name]:.0f} %."


def _workers_fill_a_core(seconds: Seconds) -> bool:
    """Whether there are several rollout workers that together do more than one of them could do."""
    workers = _processes(seconds, "rollout")
    return len(workers) > 1 and len(workers) * (_busy_share(seconds, "rollout") or 0.0) > 1.0


def shares_text(activities: Mapping[str, float]) -> str:
    """One process on one line, which says so if it has not reported any time."""
    total = sum(activities.values())
    if not total:
        return "nothing reported"
    by_share = sorted(activities.items(), key=lambda item: -item[1])
    return "  ".join(f"{activity} {100 * seconds / total:5.1f}%" for activity, seconds in by_share)


def _act_more_than_step(seconds: Seconds) -> bool:
    """Whether rollout workers that act for themselves take longer for that than for their environments."""
    own = _processes(seconds, "rollout")
    return sum(x.get(ACT, 0.0) for x in own) > sum(x.get("step", 0.0) for x in own)


def _processes(seconds: Seconds, role: str) -> list[Mapping[str, float]]:
    """The seconds of those that have this role."""
    return [activities for name, activities in seconds.items() if name.split("-")[0] == role]


def _busy_share(seconds: Seconds, role: str) -> float | None:
    """Share of the time in which the processes of a role did anything but wait; None if there are none."""
    own = _processes(seconds, role)
    total = sum(sum(activities.values()) for activities in own)
    return 1 - sum(activities.get(WAIT, 0.0) for activities in own) / total if total > 0 else None
