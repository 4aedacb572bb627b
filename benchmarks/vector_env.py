"""`sf.vector_env` against Gymnasium's `AsyncVectorEnv`, in turn, on the same random actions.

python benchmarks/vector_env.py [--env=HalfCheetah-v5] [--num_envs=64] [--rounds=3] [--seconds=8]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium

import sf


def steps_per_second(make: Callable[[], Any], seconds: float) -> float:
    """Environment steps, after some that do not count."""
    env = make()
    try:
        env.reset(seed=0)
        env.action_space.seed(0)
        actions = [env.action_space.sample() for _ in range(50)]
        for action in actions:
            env.step(action)
        began_s, count = time.perf_counter(), 0
        while (took_s := time.perf_counter() - began_s) < seconds:
            env.step(actions[count % len(actions)])
            count += 1
        return count * env.num_envs / took_s
    finally:
        env.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--num_envs", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    given = parser.parse_args()
    single = partial(gymnasium.make, given.env)
    ratios = []
    for _ in range(given.rounds):
        ours = steps_per_second(lambda: sf.vector_env(given.env, num_envs=given.num_envs), given.seconds)
        theirs = steps_per_second(lambda: gymnasium.vector.AsyncVectorEnv([single] * given.num_envs), given.seconds)
        ratios.append(ours / theirs)
        print(
            f"{given.env}, {given.num_envs} environments: sf {ours:,.0f}/s, AsyncVectorEnv {theirs:,.0f}/s", flush=True
        )
    print(f"median ratio {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
