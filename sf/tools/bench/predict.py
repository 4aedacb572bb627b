"""What a run would do on another machine, from the CPU time that a sample takes in a run here.

    samples/s = min(workers / t_rollout, inference workers / t_inference, learners / t_learner, cores / t_all)

Each process has a core of its own as long as there are enough. What the machines differ in beside their cores is not
known here: their speed, the memory that all cores share, and a GPU. With a GPU the update takes no core.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sf.tools.bench.usage import Usage

IDLE = 0.15
"""Share of idle cores from which on rollout workers that work wait inside their environments, as for a simulator."""
MOST_LEARNERS = 16


@dataclass(frozen=True)
class Loads:
    """Seconds per sample of a run that was measured."""

    rollout: float
    """CPU time of the rollout workers."""
    inference: float
    learner: float
    other: float
    worker: float
    """Time that one rollout worker takes for a sample, in which it may sleep."""
    learner_wall: float
    """Time that one learner takes for a sample, on all cores that it wants."""
    used: float
    """Share of its cores that the run used, where they were the limit; else 1."""

    @classmethod
    def of(cls, usage: Usage, cores: int) -> Loads:
        """From the growth of all counters over a run on so many cores."""
        cpu = {role: 0.0 for role in ("rollout", "inference", "learner")}
        work, other = dict.fromkeys(cpu, 0.0), 0.0
        for name, seconds in usage.cpu.items():
            role = name.split("-")[0]
            if role in cpu:
                cpu[role] += seconds
            else:
                other += seconds
        for name, activities in usage.activities.items():
            role = name.split("-")[0]
            if role in work:
                work[role] += sum(seconds for activity, seconds in activities.items() if activity != "wait")
        own = sum(cpu.values()) + other
        is_full = usage.machine == 0.0 or usage.machine / (usage.wall * cores) > 1 - IDLE
        each = {role: seconds / usage.samples for role, seconds in cpu.items()}
        return cls(
            **each,
            other=other / usage.samples,
            worker=each["rollout"] if is_full else max(each["rollout"], work["rollout"] / usage.samples),
            learner_wall=min(each["learner"], work["learner"] / usage.samples),
            used=min(1.0, own / (usage.wall * cores)) if is_full else 1.0,
        )


@dataclass(frozen=True)
class Machine:
    """A machine, and the processes of a run on it."""

    cores: int
    gpus: int
    num_workers: int
    num_inference: int
    """0 where rollout workers act."""
    num_learners: int
    takes_turns: bool = False
    """Sampling and training, as in synchronous mode."""


@dataclass(frozen=True)
class Prediction:
    """Samples per second, and what holds the run back."""

    rate: float
    limit: str


def predict(loads: Loads, machine: Machine) -> Prediction:
    """The rate of a run on a machine."""
    on_cores = loads.rollout + loads.inference + loads.other + (0.0 if machine.gpus else loads.learner)
    rates = {
        "the cores": machine.cores * loads.used / on_cores,
        "the rollout workers": machine.num_workers / loads.worker,
    }
    if machine.num_inference and loads.inference:
        rates["the inference workers"] = machine.num_inference / loads.inference
    if not machine.gpus and loads.learner_wall:
        rates["the learners" if machine.num_learners > 1 else "the learner"] = machine.num_learners / loads.learner_wall
    limit = min(rates, key=rates.__getitem__)
    if machine.takes_turns:  # each has all cores while it is on
        sampling = max(loads.worker / machine.num_workers, (loads.rollout + loads.inference) / machine.cores)
        training = 0.0 if machine.gpus else loads.learner_wall / machine.num_learners
        limit = "the rollout workers" if sampling > training else "the learner"
        return Prediction(1 / (sampling + training + loads.other / machine.cores), f"mostly {limit}")
    return Prediction(rates[limit], limit)


def best(loads: Loads, machine: Machine) -> tuple[Machine, Prediction]:
    """The numbers of workers and learners with which a machine would be fastest; of equals the fewest processes."""
    options = [
        replace(
            machine,
            num_workers=workers,
            num_inference=machine.num_inference and max(1, workers // 4),
            num_learners=learners,
        )
        for learners in range(1, 2 if machine.gpus else min(MOST_LEARNERS, machine.cores) + 1)
        for workers in range(learners, machine.cores + 1, learners)  # whose groups the learners share evenly
    ]
    found = [(option, predict(loads, option)) for option in options]
    return max(found, key=lambda one: (round(one[1].rate, 6), -one[0].num_workers - one[0].num_learners))


def prediction_lines(loads: Loads, here: float, chosen: Machine) -> Iterator[str]:
    """The lines for the user.

    Args:
        loads: of the run that was measured.
        here: its samples per second.
        chosen: the other machine, with the processes that a run would have there by itself.
    """
    each = {name: getattr(loads, name) for name in ("rollout", "inference", "learner", "other")}
    yield f"{here:,.0f} samples/s here, in processes of the sizes that they have there. CPU time per sample:"
    yield from (f"  {name:<10} {1e6 * seconds:10.2f} us" for name, seconds in each.items())
    own, (other, most) = predict(loads, chosen), best(loads, chosen)
    where = f"{chosen.cores} cores" + (f" and {chosen.gpus} GPUs" if chosen.gpus else "")
    yield (
        f"{where}: {own.rate:,.0f} samples/s with {_processes(chosen)}, which a run takes by itself; the limit: "
        f"{own.limit}"
    )
    if most.rate > 1.05 * own.rate:
        flags = f"--num_workers={other.num_workers} --num_learners={other.num_learners}"
        yield f"{where}: {most.rate:,.0f} samples/s with {_processes(other)} ({flags}); the limit: {most.limit}"
    if chosen.gpus:
        yield "The update is taken to be no limit on a GPU, whose speed is not known here."


def _processes(machine: Machine) -> str:
    inference = f", {machine.num_inference} inference workers" if machine.num_inference else ""
    learners = "1 learner" if machine.num_learners == 1 else f"{machine.num_learners} learners"
    return f"{machine.num_workers} rollout workers{inference} and {learners}"
