"""What limits a run, from the time that each part has taken: the shares, and the sentence that follows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sf.tools.bench.usage import Usage, shares_of, usage_lines
from sf.tools.bench.verdict import RolloutShares, Shares, verdict

SHARES = Shares(
    used=0.98,
    others=0.01,
    cpu={"environments": 0.5, "framework": 0.2, "inference": 0.1, "learner": 0.19, "other": 0.01},
    busy={"rollout": 0.9, "inference": 0.4, "learner": 0.6},
    rollout=RolloutShares(0.6, 0.2, 0.2),
)
IDLE = {"used": 0.5, "others": 0.0}


def shares(**changes: Any) -> Shares:
    """Busy cores and heavy environments, but for these changes; a part that is named takes most of the CPU time."""
    if part := changes.pop("part", None):
        changes["cpu"] = dict.fromkeys(SHARES.cpu, 0.1) | {part: 0.6}
    if role := changes.pop("busiest", None):
        changes["busy"] = dict.fromkeys(SHARES.busy, 0.5) | {role: 0.93}
    return replace(SHARES, **changes)


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            shares(),
            "the environments are the limit: they take 50% of the CPU time, the cores are busy, and 75% of what the "
            "rollout workers do is inside env.step; more workers than cores will not help",
        ),
        (
            shares(part="framework"),
            "the rollout workers are the limit: what they do around env.step takes 60% of the CPU time and the cores "
            "are busy; larger groups (--num_envs_per_worker) or --vectorization=native will help",
        ),
        (
            shares(part="inference"),
            "inference is the limit: it takes 60% of the CPU time and the cores are busy; larger groups "
            "(--num_envs_per_worker) make a forward pass cheaper per sample",
        ),
        (
            shares(part="learner"),
            "training is the limit: it takes 60% of the CPU time and the cores are busy; fewer --num_epochs, a larger "
            "--batch_size or a smaller network will help",
        ),
        (
            shares(part="other"),
            "what surrounds the training is the limit: it takes 60% of the CPU time and the cores are busy; fewer "
            "processes and evaluations will help",
        ),
        (
            shares(**IDLE, busiest="rollout", rollout=RolloutShares(0.93, 0.05, 0.02)),
            "the environments are the limit: 93% of rollout time is inside env.step and 50% of the cores' time is "
            "idle; more --num_workers will help",
        ),
        (
            shares(**IDLE, busiest="rollout", rollout=RolloutShares(0.3, 0.6, 0.1)),
            "the rollout workers are the limit: 60% of their time is spent around env.step and 50% of the cores' time "
            "is idle; more --num_workers will help",
        ),
        (
            shares(**IDLE, busiest="inference"),
            "inference is the limit: it is busy 93% of its time and 50% of the cores' time is idle; larger groups "
            "(--num_envs_per_worker) or more --policy_workers_per_policy will help",
        ),
        (
            shares(**IDLE, busiest="learner"),
            "training is the limit: it is busy 93% of its time and 50% of the cores' time is idle; fewer --num_epochs, "
            "a larger --batch_size or more --num_learners will help",
        ),
        (
            shares(**IDLE, busy={"rollout": 0.5, "inference": 0.4, "learner": 0.6}),
            "the processes wait for each other (busy: rollout 50%, inference 40%, learner 60%) and 50% of the cores' "
            "time is idle; larger groups (a larger --num_envs_per_worker in fewer workers) or, at the price of lag, a "
            "larger --num_batches_to_accumulate give them more to do at a time",
        ),
        (
            shares(**IDLE, busy={"rollout": 0.5, "inference": 0.4, "learner": 0.6}, mode="sync"),
            "the processes wait for each other (busy: rollout 50%, inference 40%, learner 60%) and 50% of the cores' "
            "time is idle; --async_rl=True lets them work at the same time",
        ),
        (
            shares(part="inference", could_act=True),
            "inference is the limit: it takes 60% of the CPU time and the cores are busy; larger groups "
            "(--num_envs_per_worker) make a forward pass cheaper per sample; rollout workers can act with so small a "
            "network themselves (--policy_workers_per_policy=0)",
        ),
        (
            shares(mode="serial"),
            "one process does everything (environments 50%, framework 20%, inference 10%, learner 19%, other 1%); "
            "--serial_mode=False uses all cores",
        ),
    ],
)
def test_verdict(found: Shares, sentence: str) -> None:
    assert verdict(found) == sentence


START = Usage(
    wall=100.0,
    samples=1000.0,
    machine=50.0,
    cpu={"supervisor": 1.0, "learner-0": 10.0, "inference-0-0": 5.0, "rollout-0": 20.0, "rollout-1": 20.0},
    activities={
        "rollout-0": {"step": 10.0, "wait": 5.0, "write": 5.0},
        "rollout-1": {"step": 10.0, "wait": 5.0, "write": 5.0},
        "inference-0-0": {"forward": 3.0, "wait": 10.0},
        "learner-0": {"update": 9.0, "wait": 1.0},
    },
    timed=1.0,
    inside=0.5,
)
END = Usage(
    wall=110.0,
    samples=51_000.0,
    machine=69.0,
    cpu={"supervisor": 1.5, "learner-0": 15.0, "inference-0-0": 7.5, "rollout-0": 25.0, "rollout-1": 25.0},
    activities={
        "rollout-0": {"step": 15.0, "wait": 9.0, "write": 6.0},
        "rollout-1": {"step": 15.0, "wait": 9.0, "write": 6.0},
        "inference-0-0": {"forward": 6.0, "wait": 17.0},
        "learner-0": {"update": 17.0, "wait": 3.0},
    },
    timed=3.0,
    inside=2.0,
)


class TestUsage:
    def test_shares_between_two_moments(self) -> None:
        usage = END.since(START)
        assert usage.samples_per_s == pytest.approx(5000)
        found = shares_of(usage, cores=2, mode="async")
        assert found.used == pytest.approx(0.9)
        assert found.others == pytest.approx(0.05)
        assert found.idle == pytest.approx(0.05)
        assert found.rollout == pytest.approx((0.375, 0.225, 0.4, 0.0))  # three quarters of a step are inside
        assert found.busy == pytest.approx({"rollout": 0.6, "inference": 0.3, "learner": 0.8})
        parts = {"environments": 0.625 / 1.8, "framework": 0.375 / 1.8, "inference": 0.25 / 1.8, "learner": 0.5 / 1.8}
        assert found.cpu == pytest.approx(parts | {"other": 0.05 / 1.8})

    def test_rollout_workers_that_act_do_the_work_of_inference(self) -> None:
        changed = []
        for usage, acting in ((START, 1.0), (END, 4.0)):
            cpu = {name: seconds for name, seconds in usage.cpu.items() if name != "inference-0-0"}
            activities = {name: dict(own) for name, own in usage.activities.items() if name in cpu}
            for name in ("rollout-0", "rollout-1"):
                activities[name]["wait"] -= acting
                activities[name]["act"] = acting
            changed.append(replace(usage, cpu=cpu, activities=activities))
        found = shares_of(changed[1].since(changed[0]), cores=2, mode="async")
        assert found.rollout == pytest.approx((0.375, 0.225, 0.1, 0.3))
        assert found.busy == pytest.approx({"rollout": 0.9, "learner": 0.8})
        rollout, total = 10.0, 15.5
        assert found.cpu["inference"] == pytest.approx(rollout / total / 3)
        assert found.cpu["environments"] == pytest.approx(rollout / total * 0.375 / 0.9)
        assert sum(found.cpu.values()) == pytest.approx(1)

    def test_a_process_that_reported_nothing_in_between_has_a_line(self) -> None:
        silent = dict(START.activities) | {"rollout-1": END.activities["rollout-1"]}
        usage = END.since(replace(START, activities=silent))
        lines = usage_lines(usage, shares_of(usage, cores=2, mode="async"))
        assert [line.split()[3:] for line in lines if line.startswith("rollout-1")] == [["nothing", "reported"]]
        assert [line.split()[3:] for line in lines if line.startswith("supervisor")] == [[]]
        assert next(line for line in lines if line.startswith("rollout workers:")).endswith("70.0% waiting")

    def test_one_process_divides_its_time_by_what_the_roles_did(self) -> None:
        main_only = replace(START, cpu={"supervisor": 0.0}), replace(END, cpu={"supervisor": 10.0})
        found = shares_of(main_only[1].since(main_only[0]), cores=1, mode="serial")
        assert found.cpu["learner"] == pytest.approx(8 / 23)  # the roles say more than the clock of the process
        assert sum(found.cpu.values()) == pytest.approx(1)
