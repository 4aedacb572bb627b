"""A policy with memory in a plain Gymnasium loop, without anything that trains.

sf-train --env=CartPole-v1 --use_rnn=True --rnn_type=lstm --stop_at_reward=475 --experiment=memory
python examples/memory_loop.py train_dir/memory
"""

from __future__ import annotations

import sys

import gymnasium

import sf
from sf.policy import NumpyPolicy, StepType, TimeStep


def main() -> None:
    """Plays one episode with the policy of an experiment, or of a directory that PolicySaver wrote."""
    policy = NumpyPolicy(sf.load_policy(sys.argv[1]))
    env = gymnasium.make("CartPole-v1")

    state = policy.get_initial_state()
    time_step = TimeStep.first(env.reset(seed=0)[0])
    total = 0.0
    while time_step.step_type != StepType.LAST:
        step = policy.action(time_step, state)
        time_step = TimeStep.after(*env.step(step.action)[:4])
        state = step.state
        total += float(time_step.reward)
    print(f"return {total:.0f}")
    env.close()


if __name__ == "__main__":
    main()
