"""The checkpoints of a learner: written by one run, read by the next."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from sf.config import Config
from sf.config.effects import without_effect
from sf.config.given import given_flags
from sf.console import Console
from sf.errors import CheckpointError, ResourceError
from sf.learner.changes import algorithm_named_in, flag_of, notes_on_changes, refused_changes, value_in
from sf.learner.training import Training
from sf.shared.messages import CheckpointSaved, SaveRequest
from sf.spaces import EnvInfo
from sf.storage import checkpoint
from sf.storage.experiment import Owner
from sf.storage.given import read_given, way_back
from sf.storage.lines import last_frames
from sf.storage.names import list_checkpoints
from sf.storage.task import changes_of_task, has_score

RANDOM_STATE = "random.torch"
ALGORITHM = "algorithm."
"""How the names of tensors begin that an algorithm keeps beside the policy."""
RESUME_POINT = "moment."
"""How the names of tensors begin that are of the run, not of the policy."""
MOST_KEPT = 4096
"""Transitions of a minibatch that broke the training."""


class Saver:
    """Saves and restores one learner: policy, optimizer, statistics, schedule, counters, random state."""

    def __init__(
        self, owner: Owner, policy_id: int, config: Config, info: EnvInfo, update: Training, world_size: int = 1
    ):
        self.directory, self.update = owner.checkpoints(policy_id), update
        self._owner, self._policy_id = owner, policy_id
        self.keep = config.run.keep_checkpoints
        # As it will be read back: JSON knows lists and no tuples.
        self.description = json.loads(
            json.dumps({"config": config.to_json(), "env": info.to_json(), "world_size": world_size})
        )
        self._given, self._without_effect = given_flags(config), without_effect(config.model, info)
        self.best_reward = -math.inf
        self.collect_resume_point: Callable[[], Mapping[str, torch.Tensor]] = dict
        """Tensors for the newest checkpoints that say where the whole run is, see `sf.run.resume_point`."""
        self.resume_point: dict[str, torch.Tensor] = {}
        """Its tensors in the checkpoint that this learner goes on from."""
        self.has_resumed = False
        self.why_anew = "because the checkpoint does not say where they were"
        """Why environments begin new episodes where there is no resume point."""

    def ensure_room(self, num_bytes: int = 0) -> None:
        """Compares what the checkpoints will take beside those that are there with what the disk has left.

        Args:
            num_bytes: of the resume point in each of the newest checkpoints.

        Raises:
            ResourceError: it is not enough.
        """
        tensors = self._tensors()
        each = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        kept, best = len(list_checkpoints(self.directory)), (self.directory / checkpoint.BEST).is_dir()
        # Those that are kept, the best one, and one that is being written before another goes.
        needed = each * max(1, self.keep + 2 - kept - best) + num_bytes * max(1, self.keep + 1 - kept)
        left = shutil.disk_usage(self.directory).free
        if needed > left:
            raise ResourceError(
                f"Checkpoints of {_mebibytes(each + num_bytes)} need {_mebibytes(needed)} in {self.directory}, which "
                f"has {_mebibytes(left)} left. Make room, choose another --train_dir, or lower --keep_checkpoints."
            )

    def resume(self) -> int:
        """Continues from the newest checkpoint; returns the frames trained on so far, 0 if there is none.

        Raises:
            CheckpointError: there are checkpoints and none can be used, or the newest one is of another policy.
        """
        newest = checkpoint.load_newest(self.directory) or self._newest_of_others()
        if newest is None:
            if any(self._owner.path.glob(f"checkpoint_p*/{checkpoint.BEGINNING}*")):
                Console().line(
                    f"Other policies of this run have checkpoints, and policy {self._policy_id} has none: IT BEGINS AT "
                    "ZERO."
                )
            elif frames := last_frames(self._owner.path, self._policy_id):
                Console().line(
                    f"An earlier start has learned from {frames:,} frames, and there is no checkpoint of it: THE RUN "
                    "BEGINS AT ZERO."
                )
            return 0
        if differences := refused_changes(newest.data, self.description, self._without_effect):
            raise CheckpointError(
                f"{newest.path} was made with another environment, model or normalization:\n  "
                + "\n  ".join(self._with_advice(differences, newest.data))
                + "\nUse the same flags, or start anew with --restart_behavior=restart or another --experiment."
            )
        self.has_resumed, tensors = True, dict(newest.tensors)
        self.resume_point = {name: tensors.pop(name) for name in newest.tensors if name.startswith(RESUME_POINT)}
        if self.resume_point and (changed := changes_of_task(newest.data, self.description)):
            self.resume_point = {}
            self.why_anew = f"because --{' and --'.join(changed)} {'have' if changed[1:] else 'has'} changed"
        torch.set_rng_state(tensors.pop(RANDOM_STATE))
        kept = {
            name.removeprefix(ALGORITHM): tensors.pop(name) for name in newest.tensors if name.startswith(ALGORITHM)
        }
        schedule = newest.data["config"]["learner"].get("lr_schedule") or "constant"
        if not schedule.startswith("kl_adaptive"):  # its rate says nothing to one that follows the policy
            tensors["learning_rate"] = torch.tensor(self.update.lr, dtype=torch.float64)
        self.update.load_state_dict(tensors)
        note_on_algorithm = self._resume_algorithm(kept, newest)
        best = checkpoint.load_spare(self.directory / checkpoint.BEST)
        if best is not None and has_score(best.data, self.description):
            self.best_reward = best.data["reward"]
        Console().line(f"Resumed from {newest.path} (policy_version {newest.version}, {newest.env_steps} frames)")
        for note in notes_on_changes(newest.data, self.description) if self._policy_id == 0 else ():  # the same for all
            Console().line(note)
        if note_on_algorithm:
            Console().line(note_on_algorithm)
        return newest.env_steps

    def _with_advice(self, differences: Sequence[str], before: object) -> Iterator[str]:
        """Each of them, with the flag that brings the earlier value back where a default is in its place now."""
        earlier = read_given(self._owner.path)  # of the earlier start: this one has written nothing yet
        for line in differences:
            is_flag = line.startswith("config.")  # other lines are about the environment
            note = way_back(flag_of(line), value_in(before, line), self._given, earlier) if is_flag else ""
            yield f"{line} ({note})" if note else line

    def _tensors(self) -> dict[str, torch.Tensor]:
        """The state of the update and of its algorithm, not copied."""
        of_algorithm = self.update.algorithm.state_dict()
        return self.update.state_dict() | {f"{ALGORITHM}{name}": tensor for name, tensor in of_algorithm.items()}

    def _resume_algorithm(self, state: dict[str, torch.Tensor], newest: checkpoint.Checkpoint) -> str:
        """Gives the algorithm its own state; returns a sentence where it cannot go on as it was.

        Raises:
            CheckpointError: the state does not fit the same algorithm.
        """
        algorithm, own = self.update.algorithm, self.update.algorithm.state_dict()
        before, now = (algorithm_named_in(data) for data in (newest.data, self.description))
        if before == now and (state or not own):
            try:
                algorithm.load_state_dict(state)
            except CheckpointError as error:
                raise CheckpointError(
                    f"{newest.path} holds another state of algorithm={now} than it keeps now:\n  {error}\nUse the "
                    "algorithm as it was, which makes all of its parts in the constructor or the first `prepare`. Or "
                    "start anew with --restart_behavior=restart or another --experiment."
                ) from None
            return ""
        told = []
        algorithm.begin(self.update.acting)  # again, because a target network is a copy of the policy that was loaded
        if state:
            told.append(f"The state that algorithm={before} kept beside the policy is dropped: {_parts(state)}.")
        if own:
            told.append(f"The state that algorithm={now} keeps beside the policy begins anew: {_parts(own)}.")
        return " ".join(["Warning:", *told]) if told else ""

    def _newest_of_others(self) -> checkpoint.Checkpoint | None:
        """The newest of the best one, milestones and snapshots, of a run that was killed before it had saved another.

        Raises:
            CheckpointError: there were some, and none can be used.
        """
        found: list[checkpoint.Checkpoint | None] = []
        damaged: list[CheckpointError] = []
        for name in checkpoint.SPARE:
            try:
                found.append(checkpoint.load_newest(self.directory / name))
            except CheckpointError as error:
                damaged.append(error)
        there = [one for one in found if one is not None]
        whole = [one for one in there if RANDOM_STATE in one.tensors]
        if damaged and not whole:
            raise damaged[0]
        if there and not whole:
            Console().line(
                f"{there[0].path} holds a policy without its optimizer, as an evaluation saves it, and there is no "
                f"other checkpoint in {self.directory} to go on from. THE RUN BEGINS AT ZERO."
            )
        return max(whole, key=lambda one: one.version, default=None)

    def save(self, policy_id: int, request: SaveRequest, frames: int) -> CheckpointSaved | None:
        """Writes what was asked for; None if the best checkpoint on disk is better.

        An error is part of the answer, because training goes on without this checkpoint.
        """
        directory, keep = self._place(request)
        if request.kind == "best" and (request.reward is None or request.reward <= self.best_reward):
            return None
        tensors = self._tensors() | {RANDOM_STATE: torch.get_rng_state()}
        resume_point: dict[str, torch.Tensor] = {}
        if request.kind == "periodic":
            resume_point.update(self.collect_resume_point())
        version = self.update.version
        data = self.description | {"reward": request.reward, "is_trained": version > 0}
        try:
            self._owner.expect_unchanged()
            # A checkpoint of this name may be there already. A serial run that was stopped before it learned anything
            # new is further than the checkpoint that it went on from. A run that went back to an older one comes by
            # once more.
            again = bool(resume_point) or request.kind != "periodic"
            path = checkpoint.save(directory, version, frames, tensors | resume_point, data, keep, replace=again)
        except CheckpointError as error:
            return CheckpointSaved(policy_id, request.kind, str(directory), version, str(error))
        if request.kind == "best":
            assert request.reward is not None
            self.best_reward = request.reward
        return CheckpointSaved(policy_id, request.kind, str(path), version)

    def keep_for_a_look(self, minibatch: Mapping[str, torch.Tensor]) -> str:
        """Writes columns [N, ...] that broke the training, a few rows of each; returns where they are, for the user."""
        path = self.directory / "non_finite_minibatch.safetensors"
        try:
            self._owner.expect_unchanged()
            save_file({name: column[:MOST_KEPT].detach().cpu().clone() for name, column in minibatch.items()}, path)
        except (OSError, SafetensorError, CheckpointError) as error:
            return f"Their minibatch could not be written to {path}: {error}."
        return f"The last minibatch is in {path}."

    def _place(self, request: SaveRequest) -> tuple[Path, int | None]:
        match request.kind:
            case "best":
                return self.directory / checkpoint.BEST, 1
            case "pool":
                return self.directory / checkpoint.POOL, None
            case "milestone":
                return self.directory / checkpoint.MILESTONES, None
            case _:
                return self.directory, self.keep


def _parts(state: Mapping[str, torch.Tensor]) -> str:
    """The attributes of an algorithm that tensors belong to."""
    return ", ".join(sorted({name.partition(".")[0] for name in state}))


def _mebibytes(num_bytes: float) -> str:
    """With two digits where there is less than 1."""
    size = num_bytes / 2**20
    return f"{size:,.0f} MiB" if size >= 1 else f"{size:.2g} MiB"
