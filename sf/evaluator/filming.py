"""Films beside the training: the evaluator plays one episode with the newest weights and keeps its pictures.

The environment of a film draws, so it is another one than those of the evaluations, and lives as long as the film is
made. A film that fails is told of and is the last one; the training goes on.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path

from sf.console import Console
from sf.envs import EnvSource
from sf.envs.stepping import Host
from sf.errors import CheckpointError, EnvError, ExportError
from sf.evaluator.cast import Cast
from sf.evaluator.film import Film
from sf.evaluator.playing import Play
from sf.evaluator.watching import Recorder, seen_by
from sf.spaces import EnvInfo
from sf.storage.experiment import Owner
from sf.storage.names import FILMS, INCOMING_FILM, next_film

LONGEST_FILM = 3000
"""Steps of an episode; a longer one is cut, in a film alone."""


@dataclass(frozen=True)
class Stage:
    """What plays in a film."""

    cast: Cast
    source: EnvSource
    info: EnvInfo
    seed: int
    host: Host
    is_shared: bool
    """Whether a training in this process has to find the global generators as they were."""


class Filming:
    """Makes one film after the other, step by step."""

    def __init__(self, stage: Stage, owner: Owner, every: int) -> None:
        """Makes nothing yet.

        Args:
            stage: whose episodes are filmed; with fewer agents than policies, policy 0 plays alone.
            owner: of the directory of the run.
            every: frames of the run between two films.
        """
        self._stage = stage if stage.cast.num_blocks(stage.info) == 1 else replace(stage, cast=stage.cast.alone(0))
        self._owner, self._every, self._next = owner, every, next_film(owner.path, every)
        self._play: Play | None = None
        self._film: Film
        self._path: Path
        self._has_failed = False

    @property
    def is_playing(self) -> bool:
        """Whether a film is being made; then the policies keep their weights."""
        return self._play is not None

    def is_due(self, frames: int) -> bool:
        """Whether a film begins when the run has learned from so many frames."""
        return not self._has_failed and frames >= self._next

    def begin(self, frames: int) -> None:
        """Begins a film with the present weights of the policies."""
        self._next = (frames // self._every + 1) * self._every
        directory = self._owner.path / FILMS
        self._path = directory / f"{frames:012d}.mp4"
        try:
            self._owner.expect_unchanged()
            self._film = Film(directory / INCOMING_FILM)
            stage = self._stage
            steps = min(stage.source.max_episode_steps or LONGEST_FILM, LONGEST_FILM)
            source = seen_by(replace(stage.source, max_episode_steps=steps), Recorder(self._film, speed=1.0))
            self._play = Play(stage.cast, source, stage.info, 1, stage.seed, 1, stage.host, stage.is_shared)
            self._play.start()
        except (EnvError, ExportError, CheckpointError) as error:
            self._fail(error)

    def step(self) -> None:
        """One step of the episode; the film is in the directory when the episode has ended."""
        assert self._play is not None
        try:
            self._play.step()
            if self._play.tally.is_complete:
                self._finish(self._play)
        except (EnvError, ExportError, CheckpointError, OSError) as error:
            self._fail(error)

    def close(self) -> None:
        """Leaves a film that is not complete."""
        if self._play is not None:
            if not self._has_failed:
                Console().line(f"The film {self._path.name} was not completed.")
            self._play.close()
            self._play = None
            with contextlib.suppress(OSError, ExportError):
                self._film.close()
            self._film.path.unlink(missing_ok=True)

    def _finish(self, play: Play) -> None:
        self._film.close()
        self._owner.expect_unchanged()
        self._film.path.replace(self._path)
        # Agents of a policy may not have come.
        told = next(episodes for episodes in play.tally.episodes if episodes.rewards)
        reward, length = told.rewards[0], told.lengths[0]
        Console().line(f"Filmed an episode of {length} steps with a return of {reward:.3f}: {self._path}")
        self._play = None
        play.close()

    def _fail(self, error: Exception) -> None:
        self._has_failed = True
        first_line = str(error).partition("\n")[0]
        Console().line(f"Warning: no more films of this run are made: {first_line}")
        self.close()
