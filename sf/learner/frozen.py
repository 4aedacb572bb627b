"""A policy that acts and does not learn: an earlier self or an opponent, out of the checkpoint of another run."""

from __future__ import annotations

from pathlib import Path

import torch

from sf.console import Console
from sf.errors import CheckpointError
from sf.learner.batch import Batch
from sf.learner.worker import Learner
from sf.policy import checkpoints
from sf.storage.differences import tensor_differences
from sf.storage.names import NAME, list_checkpoints


class FrozenLearner(Learner):
    """Publishes weights once and gives every trajectory back. Its version and frames stay as they are."""

    def _resume(self) -> int:
        """Goes on with its own checkpoint where a run is resumed, and begins with that of the other run else."""
        frames = super()._resume()
        if name := self.config.run.scripted.get(self.policy_id):
            Console().line(f"Policy {self.policy_id} is the function {name}, and does not learn.")
        elif self.saver.has_resumed:
            counts = "; --frozen_policies counts at its beginning" if self.config.run.frozen[self.policy_id] else ""
            Console().line(f"Policy {self.policy_id} stays as this run has it{counts}.")
        elif not (named := self.config.run.frozen[self.policy_id]):
            Console().line(f"Policy {self.policy_id} stays as it begins, at random, and does not learn.")
        else:
            path = self._take(Path(named))
            Console().line(f"Policy {self.policy_id} is {path}, and does not learn.")
        return frames

    def _take(self, directory: Path) -> Path:
        """Takes the variables of a checkpoint, or of the newest one in a directory, which may be that of a run.

        Returns:
            The path of the checkpoint.

        Raises:
            CheckpointError: there is none, or it is another network than the policies of this run have.
        """
        if NAME.fullmatch(directory.name):
            saved = checkpoints.load(directory)
        else:
            has_some = bool(list_checkpoints(directory))
            saved = checkpoints.load_newest(directory if has_some else directory / "checkpoint_p0")
        there = saved.network.variables()
        if differences := tensor_differences(self.network.variables(), there):
            raise CheckpointError(
                f"{saved.path} holds another network than the policies of this run:\n  "
                + "\n  ".join(differences)
                + "\nUse the flags of the model that it was trained with."
            )
        with torch.no_grad():
            for name, variable in self.network.variables().items():
                variable.copy_(there[name])
        return saved.path

    def _train(self, batch: Batch) -> None:
        """Gives the trajectories back, on which the other policies train."""
        if self.source.release():
            self._wake_workers()
        if self._admission is not None:
            self._admission.batch_is_over(self.update.version, self.source.num_used)
            self._admit()
        self.record.lap("batch")
