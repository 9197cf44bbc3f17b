"""The recorder of a run, as its training loop sees it.

    with record(model=model, optimizer=optimizer, data_loader=loader, run="adult-s32", dataset="adult-2026",
                adjacency="zero_out", directory="models/adult-s32") as recorder:
        ...  # the training loop, unchanged

Guarantees: the manifest on disk describes exactly the checkpoints beside it, at every moment, kill -9 included.
Refuses: checkpoints of weights that something else than the private optimizer moved, metrics of weights not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from dpmerge.errors import CheckpointError, DpmergeError, RecordingError
from dpmerge.portfolio.manifest import Manifest, Metric
from dpmerge.terms.documents import validated
from dpmerge.training.manifest_writer import ManifestWriter
from dpmerge.training.model_tensors import ModelTensors
from dpmerge.training.opacus_accounting import epsilon_of, warn_other_accounting
from dpmerge.training.processes import Processes
from dpmerge.training.recording_options import CheckpointSchedule
from dpmerge.training.reference_optimizer import ReferenceOptimizer
from dpmerge.training.step_count import StepCount
from dpmerge.training.user_warnings import ChangedWeightsWarning, warn_user
from dpmerge.training.weight_averages import ExponentialAverage, keep_average, require_short


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
        count: StepCount,
        average: ExponentialAverage | None,
        when_closed: Callable[[BaseException | None], None],
    ) -> None:
        self._writer, self._tensors, self._weights, self._schedule = writer, tensors, weights, schedule
        self._count, self._average = count, average
        self._processes, self._when_closed = processes, when_closed
        self._closed = self._compared = False
        self._steps_before = writer.steps

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
        self.say_what_opacus_says(delta)
        return epsilon_of(self.manifest(), delta)

    def say_what_opacus_says(self, delta: float) -> None:
        """Warn, once a run, where Opacus' accountant would say less than is recorded; `record` calls it at the end."""
        if not self._compared and self._writer.taken:
            self._compared = True
            warn_other_accounting(self.manifest(), self._writer.batches.sampler.batches_per_epoch, delta)

    def checkpoint(self, *, weights: Mapping[str, Any] | None = None, who: str | None = None) -> None:
        """Keep the weights as they are now, and say so in the manifest; once a step, however often it is asked for.

        Args:
            weights: a state_dict to keep beside them: an average of the weights so far (SWA, Polyak), made of this
                run's weights up to now and of public data and of nothing else. Joint release and random selection
                cover it, at the cost of the steps so far.
            who: who vouches for that, in every certificate.

        Raises:
            RecordingError: no step has been taken yet, something else than the private optimizer moved the weights,
                values are not finite, or an average is not of this model or nobody vouches for it.
            OSError: the disk is full or cannot be written to; the manifest then is what it was.
        """
        if self.steps == self._steps_before:
            raise RecordingError("checkpoint: no step has been taken yet, so there is nothing to keep; train first")
        if weights is None:
            self._keep()
            return
        self._processes.require_one("weights")
        if who is None:
            raise RecordingError("who: nobody vouches for what is in the average; say who=")
        require_short(str(self._writer.facts["run"]))
        self._keep(swapped=True)
        saved = self._writer.saved
        averages = saved[-1].averages or []
        if all(average.name != "average" for average in averages):
            kept = keep_average(self.folder, self.steps, self._tensors, weights, who)
            saved[-1] = saved[-1].model_copy(update={"averages": [*averages, kept]})
            self._writer.write()

    def _keep(self, *, swapped: bool = False) -> None:
        """Keep what the private optimizer left; `swapped`: whatever is in the model now."""
        writer, tensors = self._writer, self._tensors
        if writer.saved and writer.saved[-1].step == self.steps:
            return
        with self._processes.telling():
            if not swapped:
                self._weights.require_still()
            self._count.require_own()
            left = tensors.named(self._weights.weights) if swapped else None
            try:
                saved = self._processes.save(tensors, self.folder, self.steps, left)
            except CheckpointError:
                # Without ghost clipping weights that are not finite are the doing of noised gradients alone.
                if writer.reader.ghost:
                    writer.stopped_by_private_data()
                    writer.write()
                raise
            average = self._average
            averages = None if average is None else [average.save(self.folder, self.steps, tensors)]
            state = self._weights.state_digest(tensors.names)
            writer.saved.append(saved.model_copy(update={"averages": averages, "optimizer_state": state}))
            if tensors.seen_whole:
                writer.verified = len(writer.saved)
            writer.write()
            self._count.kept(for_good=tensors.seen_whole)

    def after_step(self) -> None:
        """The weights have moved: average them, and keep them if that was asked for in advance."""
        if self._average is not None:
            self._average.step(self._weights.weights)
        if self._schedule.is_due(self.steps):
            self._writer.fixed_steps.append(self.steps)
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
        trained = self.steps > self._steps_before
        if trained:
            self._keep_last()
            self.require_frozen_whole()
        self._processes.agree_on_end(self.steps)
        if trained:
            writer.finished = not writer.refused
            if writer.finished and self.steps not in writer.fixed_steps:
                writer.fixed_steps.append(self.steps)  # fixed if stopping was, which the manifest says
            writer.write()

    def require_frozen_whole(self) -> None:
        """At the close: refuse a frozen base that has changed, and checkpoints kept since it was last seen whole."""
        if self._writer.verified == len(self._writer.saved):
            return
        try:
            self._tensors.require_frozen_whole()
        except DpmergeError:
            self._writer.withdraw_unverified()
            raise
        self._writer.verified = len(self._writer.saved)

    def rescue(self) -> None:
        """The loop broke off, through no fault of the record's: what was learned so far is kept, as unfinished."""
        if self.steps > self._steps_before:
            self._keep(swapped=not self._writer.refused)

    def _keep_last(self) -> None:
        """At the end: an average that was loaded into the model as the last line is not what was trained."""
        moved = not self._writer.refused and not self._weights.still
        self._keep(swapped=moved)
        if moved:
            warn_user(
                f"run {self._writer.facts['run']}: the model's weights were changed after the last step. What is kept "
                "are those that the private optimizer left; to keep an average of them, say "
                "recorder.checkpoint(weights=…, who=…) or ema=.",
                ChangedWeightsWarning,
            )
