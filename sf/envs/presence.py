"""Which agents of an environment take part: they may come, go and come back within an episode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sf.envs.contract import flag
from sf.errors import EnvError

IS_ACTIVE = "is_active"
"""Entry of an agent's info: whether it takes part from this observation on, as in Sample Factory."""


class Presence:
    """Follows the agents of one environment.

    An agent is there from `reset` on unless its info has ``is_active=False``. It is gone after its end, and comes back
    in a later step whose info has ``is_active=True``. Of one that is not there only rewards are looked at.
    """

    def __init__(self, num_agents: int, subject: str = "it") -> None:
        """Begins with all of these agents; the subject begins sentences on what is wrong."""
        self._num_agents, self._subject = num_agents, subject
        self.absent: set[int] = set()
        """Agents that are not there; none in most environments."""
        self.present = list(range(num_agents))
        """The others, in order."""

    def begin(self, infos: Any) -> None:
        """An episode begins; infos are those of `reset`, of which one that is no list tells nothing.

        Raises:
            EnvError: it has another length, or no agent is there.
        """
        told = infos if isinstance(infos, (list, tuple)) else ()
        if told and len(told) != self._num_agents:
            raise EnvError(f"{self._subject} returned {len(told)} infos from reset, expected {self._num_agents}.")
        self._change({agent for agent, info in enumerate(told) if self._says(info, "reset") is False})
        if not self.present:
            raise EnvError(
                f"{self._subject} returned {IS_ACTIVE}=False for each of {self._num_agents} agents from reset. Let at "
                "least one of them begin."
            )

    def arrivals(self, infos: Sequence[Any]) -> set[int]:
        """Absent agents that take part from the observation on which came with these infos of a step."""
        return {agent for agent in self.absent if (info := infos[agent]) and self._says(info)}

    def end(self, over: Iterable[int]) -> bool:
        """These agents have ended; says whether none is left, which ends the episode."""
        self._change(self.absent.union(over))
        return not self.present

    def come(self, arrivals: Iterable[int]) -> None:
        """These agents are there from now on."""
        self._change(self.absent.difference(arrivals))

    def expect_end(self, agent: int, info: Any, has_ended: bool) -> None:
        """Refuse an agent that leaves without an end: the value of its last observation would be unknown.

        Raises:
            EnvError: it has neither terminated nor been truncated, and its info says that it is not there any more.
        """
        if has_ended or agent in self.absent or self._says(info) is not False:
            return
        raise EnvError(
            f"{self._subject} returned {IS_ACTIVE}=False for agent {agent} from step, and the agent has not ended. "
            "Return terminated or truncated for it, with its last observation."
        )

    def expect_begun(self, agent: int, *ends: Any) -> None:
        """Refuse an agent that comes and ends in the same step.

        Raises:
            EnvError: one of its flags is set.
        """
        if any(flag(one, "an end", self._subject) for one in ends):
            raise EnvError(
                f"{self._subject} returned {IS_ACTIVE}=True for agent {agent} from step, with terminated or truncated. "
                "An agent that comes has an observation to act on; let it end in a later step."
            )

    def _change(self, absent: set[int]) -> None:
        self.absent = absent
        self.present = [agent for agent in range(self._num_agents) if agent not in absent]

    def _says(self, info: Any, call: str = "step") -> bool | None:
        """What an info says of its agent, if anything."""
        if not isinstance(info, Mapping) or IS_ACTIVE not in info:
            return None
        return flag(info[IS_ACTIVE], IS_ACTIVE, self._subject, call)
