"""Transitions that an off-policy algorithm draws again and again: a ring of whole trajectories on the host.

The observation after a step is the next one of its trajectory, except after a step that was truncated: the next one
belongs to another episode. Where the batch has the last observation of the episode, that one follows; else the step is
not drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sf.learner.batch import Batch
from sf.learner.last_observations import LastObservations
from sf.learner.priorities import Priorities
from sf.learner.stored_trajectories import StoredTrajectories
from sf.replay import NothingToDraw
from sf.shared.slot_fields import HAS_LAST_OBSERVATION

MOST_BYTES_AT_ONCE = 8 * 2**20
"""Largest observations of minibatches that are drawn together."""
MOST_ROUNDS = 100
"""Most rounds of draws, after which those that may be drawn are looked for one by one."""


@dataclass(frozen=True)
class Experience:
    """N transitions of up to n steps, on the device that trains."""

    observations: dict[str, Tensor]
    """[N, *shape] per leaf."""
    actions: Tensor
    """[N] or [N, d], as they were drawn."""
    rewards: Tensor
    """[N] the discounted sum over the steps."""
    next_observations: dict[str, Tensor]
    """[N, *shape] per leaf, after the last of the steps."""
    discounts: Tensor
    """[N] weight of the value of the next observation: gamma to the number of steps, 0 where the episode ended."""
    versions: Tensor
    """[N] int64 on the host, of the policy that chose the action."""
    places: Tensor
    """[N] int64 on the host, where they lie in the ring; for `Priorities.update`."""
    weights: Tensor
    """[N] of each transition in a mean: 1, or what takes back an uneven draw."""

    def __len__(self) -> int:
        return len(self.actions)

    def split(self, size: int) -> Iterator[Experience]:
        """Parts of `size` transitions, without a copy."""
        if len(self) == size:
            yield self
            return
        columns = {name: torch.split(getattr(self, name), size) for name in COLUMNS}
        observations, following = (
            {name: torch.split(leaf, size) for name, leaf in leaves.items()}
            for leaves in (self.observations, self.next_observations)
        )
        for part in range(len(columns["actions"])):
            yield Experience(
                observations={name: leaf[part] for name, leaf in observations.items()},
                next_observations={name: leaf[part] for name, leaf in following.items()},
                **{name: column[part] for name, column in columns.items()},
            )


COLUMNS = "actions", "rewards", "discounts", "versions", "places", "weights"


class ExperienceRing:
    """The newest trajectories; the oldest ones make room."""

    def __init__(self, size: int, gamma: float, num_steps: int = 1, priorities: Priorities | None = None) -> None:
        """Takes memory with the first batch.

        Args:
            size: transitions that it holds, rounded down to whole trajectories.
            gamma: discount of a step.
            num_steps: n, rewards that are summed before the value of an observation follows. Fewer where the trajectory
                or the episode ends before.
            priorities: how likely each transition is drawn; None for all alike.
        """
        self._priorities = priorities
        self._gamma, self._num_steps = gamma, num_steps
        self._stored = StoredTrajectories(size)
        self._observations: dict[str, Tensor] = {}
        """The stored ones, with trajectories one after the other."""
        self._columns: dict[str, Tensor] = {}
        """The same of other columns."""
        self._drawable = torch.zeros(0, dtype=torch.bool)
        self._last = LastObservations(0)
        self._steps = 0
        self.num_added = 0
        """Transitions that came in so far."""

    def add(self, batch: Batch) -> int:
        """Takes in the transitions of the own policy; returns how many may be drawn."""
        truncated = batch.truncated.cpu()
        if batch.last_observations:
            known = batch[HAS_LAST_OBSERVATION] & truncated
            drawable = batch.valid & (~truncated | known)
        else:
            known, drawable = torch.zeros_like(truncated), batch.valid & ~truncated
        columns = {
            "actions": batch.actions,
            "rewards": batch.rewards,
            "terminated": batch.terminated,
            "truncated": truncated,
            "known": known,
            "versions": batch.policy_version,
            "drawable": drawable,
        }
        for part, rows in self._stored.put(batch, columns, {}):
            if not self._steps:
                self._lay_out()
            places = (rows.unsqueeze(-1) * self._steps + torch.arange(self._steps)).flatten()
            if batch.last_observations:
                leaves = {
                    name: leaf[:, part].transpose(0, 1).flatten(0, 1).cpu()
                    for name, leaf in batch.last_observations.items()
                }
                self._last.take_in(places, known[:, part].t().flatten(), leaves)
            if self._priorities is not None:
                self._priorities.take_in(self._drawable, places)
        self.num_added += int(batch.valid.sum())
        return int(drawable.sum())

    def _lay_out(self) -> None:
        """Views of what is stored, in which a transition has one place."""
        self._steps = self._stored.num_steps
        self._observations = {name: leaf.flatten(0, 1) for name, leaf in self._stored.observations.items()}
        self._columns = {name: column.flatten(0, 1) for name, column in self._stored.columns.items()}
        self._drawable = self._columns["drawable"]
        self._last = LastObservations(len(self._drawable))

    def draw(
        self, number: int, generator: torch.Generator | None = None, device: torch.device | None = None
    ) -> Experience:
        """Transitions that are all alike likely, or by priority.

        Args:
            number: N.
            generator: of the random numbers; None for the one of torch.
            device: where they go.

        Raises:
            NothingToDraw: there are none.
        """
        places, weights = self._places(number, generator)
        rows, steps = places // self._steps, places % self._steps
        rewards, last, discounts = self._ahead(places, steps)
        first = places + rows  # a row has one observation more than steps
        following = {name: leaf.index_select(0, first + last) for name, leaf in self._observations.items()}
        self._last.put(places + last - 1, following)

        def there(column: Tensor) -> Tensor:
            return column if device is None else column.to(device, non_blocking=True)

        return Experience(
            {name: there(leaf.index_select(0, first)) for name, leaf in self._observations.items()},
            there(self._columns["actions"].index_select(0, places)),
            there(rewards),
            {name: there(leaf) for name, leaf in following.items()},
            there(discounts),
            self._columns["versions"].index_select(0, places),
            places,
            there(weights),
        )

    def minibatches(self, number: int, size: int, device: torch.device | None = None) -> Iterator[Experience]:
        """So many draws of `size` transitions; several at once where nothing that is learned changes the next draw.

        Raises:
            NothingToDraw: see `draw`.
        """
        row = sum(leaf[:1].nbytes for leaf in self._observations.values())
        at_once = 1 if self._priorities is not None else max(1, MOST_BYTES_AT_ONCE // max(1, 2 * row * size))
        while number > 0:
            several = min(number, at_once)
            number -= several
            yield from self.draw(several * size, device=device).split(size)

    def _places(self, number: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Places [N] of transitions that may be drawn, in the flattened ring, and their weights [N]."""
        end = self._stored.filled * self._steps
        if not self._drawable[:end].any():
            raise NothingToDraw("Every transition in the buffer was truncated, or chosen by another policy.")
        if self._priorities is not None:
            return self._priorities.draw(number, generator)
        return self._any_places(number, end, generator), torch.ones(number)

    def _any_places(self, number: int, end: int, generator: torch.Generator | None) -> Tensor:
        found, missing = list[Tensor](), number
        for _ in range(MOST_ROUNDS):
            places = torch.randint(end, (missing,), generator=generator)
            places = places[self._drawable[places]]
            found.append(places)
            missing -= len(places)
            if not missing:
                return torch.cat(found)
        some = self._drawable[:end].nonzero()[:, 0]
        return torch.cat([*found, some[torch.randint(len(some), (missing,), generator=generator)]])

    def _ahead(self, places: Tensor, steps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sum of rewards, number of steps until the next observation, and the weight of its value; [N] each."""
        columns = self._columns
        rewards = columns["rewards"].index_select(0, places)
        ended = columns["terminated"].index_select(0, places)
        taken = torch.ones_like(places)
        discounts = torch.full_like(rewards, self._gamma)
        truncated, known = columns["truncated"], columns["known"]
        going = ~ended
        if self._num_steps > 1:
            going = going & ~truncated.index_select(0, places)
        for ahead in range(1, self._num_steps):
            going = going & (steps + ahead < self._steps)
            there = torch.where(going, places + ahead, places)
            is_cut = truncated.index_select(0, there)
            going = going & (~is_cut | known.index_select(0, there))
            rewards = torch.where(going, rewards + discounts * columns["rewards"].index_select(0, there), rewards)
            discounts = torch.where(going, discounts * self._gamma, discounts)
            taken += going
            ends = going & columns["terminated"].index_select(0, there)
            ended, going = ended | ends, going & ~ends & ~is_cut
        return rewards, taken, discounts.masked_fill_(ended, 0.0)
