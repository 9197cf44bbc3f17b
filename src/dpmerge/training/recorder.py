"""The recorder of a run, as its training loop sees it.

    with record(model=model, optimizer=optimizer, data_loader=loader, run="adult-s32", dataset="adult-2026",
                adjacency="replace_one", directory="models/adult-s32") as recorder:
        ...  # the training loop, unchanged

Guarantees: the manifest on disk describes exactly the checkpoints beside it, at every moment, kill -9 included.
Refuses: checkpoints of weights that something else than the private optimizer moved, metrics of weights not kept.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from dpmerge.errors import RecordingError
from dpmerge.portfolio.manifest import Manifest, Metric
from dpmerge.terms.documents import validated
from dpmerge.training.manifest_writer import ManifestWriter
from dpmerge.training.model_tensors import ModelTensors
from dpmerge.training.processes import Processes
from dpmerge.training.recording_options import CheckpointSchedule
from dpmerge.training.reference_optimizer import ReferenceOptimizer


class Recorder:
    """What `record` hands out: the run so far.

    Made by `record`; every method may be called within its block, and `manifest`, `epsilon` and `metric` (of the last
    weights) after it.
    """

    def __init__(
        self,
        *,
        writer: ManifestWriter,
        tensors: ModelTensors,
        weights: ReferenceOptimizer,
        schedule: CheckpointSchedule,
        processes: Processes,
        when_closed: Callable[[BaseException | None], None],
    ) -> None:
        self._writer, self._tensors, self._weights, self._schedule = writer, tensors, weights, schedule
        self._processes, self._when_closed = processes, when_closed
        self._closed = False

    @property
    def folder(self) -> Path:
        """Where checkpoints and manifest are."""
        return self._writer.folder

    @property
    def steps(self) -> int:
        """Logical steps taken so far."""
        return self._writer.steps

    @property
    def record_losses_doubts(self) -> list[str]:
        """Why the manifest cannot say `checked` of `record_losses`; empty where it can.

        For example `["the operation Div"]` of a loss that is halved.
        """
        return self._writer.separate_records.doubts

    def manifest(self, *, upto: int | None = None) -> Manifest:
        """The record of the run, whether or not its weights were kept.

        Args:
            upto: how many of its first steps it covers; by default all.

        Returns:
            The manifest, as it would be written to `privacy.json`.

        Raises:
            RecordingError: no step has been taken yet.
        """
        return self._writer.manifest(upto=upto)

    def epsilon(self, delta: float) -> float:
        """What all steps so far cost, released at once.

        Args:
            delta: the δ at which ε is asked for, between 0 and 1.

        Returns:
            ε, rounded up; of a run with a private parent the portfolio adds the parent's cost, and only it can.

        Raises:
            RecordingError: no step has been taken yet.
            InvalidInputError: `delta` is not between 0 and 1.
        """
        return self.manifest().mechanism_from(None).profile().epsilon(delta)

    def checkpoint(self) -> None:
        """Keep the weights as they are now, and say so in the manifest; once a step, however often it is asked for.

        Raises:
            RecordingError: no step has been taken yet, something else than the private optimizer moved the weights, or
                values are not finite.
            OSError: the disk is full or cannot be written to; the manifest then is what it was.
        """
        writer = self._writer
        if not writer.taken:
            raise RecordingError("checkpoint: no step has been taken yet, so there is nothing to keep; train first")
        if writer.saved and writer.saved[-1].step == self.steps:
            return
        with self._processes.telling():
            self._weights.require_still()
            writer.saved.append(self._processes.save(self._tensors, self.folder, self.steps))
            writer.write()

    def checkpoint_if_due(self) -> None:
        """After a step: keep the weights if they were asked for in advance."""
        if self._schedule.is_due(self.steps):
            self.checkpoint()

    def metric(
        self, name: str, value: float, *, measured_on: Literal["public", "private", "training"], data: str | None = None
    ) -> None:
        """Note a figure of merit of the last checkpoint, and the data it was measured on.

        Args:
            name: of the figure, such as `accuracy`.
            value: the figure.
            measured_on: `public` data, `private` data, or the `training` data itself.
            data: which data, in words.

        Raises:
            RecordingError: the weights as they are now were not kept, or something else changed them.
            InvalidInputError: one of the arguments is not what it should be.
        """
        self._weights.require_still()
        saved = self._writer.saved
        if not saved or saved[-1].step != self.steps:
            raise RecordingError(
                f"metric {name}: the weights after step {self.steps} were not kept; checkpoint() keeps them"
            )
        described = {"name": name, "value": value, "measured_on": measured_on, "data": data}
        noted = validated(Metric, described, "metric")
        saved[-1] = saved[-1].model_copy(update={"metrics": [*saved[-1].metrics, noted]})
        self._writer.write()

    def close(self, error: BaseException | None = None) -> None:
        """The loop has ended: keep the last weights, and leave model, optimizer and loader as they were found.

        Closing twice is harmless, and so is closing after an error. `record` closes by itself.

        Args:
            error: what ended the loop, if it broke off; the run is then kept as unfinished.

        Raises:
            RecordingError: the last weights are not those of the record; what was kept before stays, as unfinished.
            OSError: the disk is full or cannot be written to.
        """
        if not self._closed:
            self._closed = True
            self._when_closed(error)

    def finish(self) -> None:
        """The run ended as planned: keep the last weights, and say so. `record` calls this at the end of its block."""
        writer = self._writer
        try:
            writer.batches.require_used_up()
        except RecordingError:
            # Every step was what it is said to be; only that it was the last one may be the doing of that batch.
            writer.stopped_by_private_data()
            self.rescue()
            raise
        if writer.taken:
            self.checkpoint()
        self._processes.agree_on_end(self.steps)
        if writer.taken:
            writer.finished = not writer.refused
            writer.write()

    def rescue(self) -> None:
        """The loop broke off, through no fault of the record's: what was learned so far is kept, as unfinished."""
        if self._writer.taken:
            self.checkpoint()
