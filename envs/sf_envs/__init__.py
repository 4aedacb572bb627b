"""Environments that come with sf: small ones of its own, and families of others with the wrappers they need.

Found through the entry-point group `sf.envs`; a package of your own can offer such a table as well.
"""

from __future__ import annotations

ENVIRONMENTS = {
    "sf/CatchPixels-v0": "sf_envs.catch:CatchPixels",
    "sf/TwoAgentEcho-v0": "sf_envs.echo:TwoAgentEcho",
    "sf/Counter-v0": "sf_envs.counter:Counter",
    "sf/DeepSea-v0": "sf_envs.deep_sea:DeepSea",
    "sf/Remember-v0": "sf_envs.remember:Remember",
    "sf/HiddenVelocity-v0": "sf_envs.hidden_velocity:HiddenVelocity",
    "sf/Couriers-v0": "sf_envs.couriers:Couriers",
    "sf/Harvest-v0": "sf_envs.harvest:Harvest",
    "sf/RockPaperScissors-v0": "sf_envs.rock_paper_scissors:RockPaperScissors",
    "sf/TicTacToe-v0": "sf_envs.tictactoe:TicTacToe",
    "central/*": "sf_envs.central:make",
    "multiagent/*": "sf_envs.multiagent:make",
    "atari/*": "sf_envs.atari:make",
    "mujoco/*": "sf_envs.control:make",
    "minigrid/*": "sf_envs.grids:make",
    "vizdoom/*": "sf_envs.doom:make",
    "pettingzoo/*": "sf_envs.zoo:make",
    "envpool/*": "sf_envs.pool:make",
}
"""Id to where the class or function that makes it is; that of a family takes the rest of the id as first argument."""

VECTOR_ENVIRONMENTS = {"envpool/*": "sf_envs.pool:make_vector"}
"""The same for those that step many copies at once."""

TENSOR_ENVIRONMENTS = {
    "sf/Carts-v0": "sf_envs.simulators:carts",
    "gymnax/*": "sf_envs.simulators:gymnax",
    "brax/*": "sf_envs.simulators:brax",
    "craftax/*": "sf_envs.simulators:craftax",
    "jumanji/*": "sf_envs.simulators:jumanji",
    "playground/*": "sf_envs.simulators:playground",
    "vmas/*": "sf_envs.simulators:vmas",
}
"""The same for simulators whose copies are rows of tensors."""
