"""One logical step, observed from its first clipped gradient to the weights it leaves.

Guarantees: a step is in the record exactly if it moved the weights and every check of it passed; what is found wrong
later takes back what earlier checkpoints claimed by it.
Refuses, before the weights move wherever that is possible, what cannot be recorded truthfully (`RecordingError`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from opacus.optimizers import DPOptimizer

from dpmerge.accounting.training_settings import Sampling
from dpmerge.errors import RecordingError
from dpmerge.training.batches import Batches
from dpmerge.training.float32_gradients import Float32Gradients
from dpmerge.training.ghost_clipping import GhostGradients
from dpmerge.training.manifest_writer import ManifestWriter
from dpmerge.training.model_tensors import ModelTensors
from dpmerge.training.noise_generators import NoiseStreamCheck
from dpmerge.training.noised_gradients import NoisedGradients
from dpmerge.training.process_agreement import SeveralProcesses
from dpmerge.training.processes import Processes
from dpmerge.training.realised_divisor import RealisedDivisorCheck
from dpmerge.training.reference_optimizer import ReferenceOptimizer
from dpmerge.training.separate_records_check import SeparateRecordsCheck
from dpmerge.training.stated_loss_check import StatedLossCheck
from dpmerge.training.step_count import StepCount
from dpmerge.training.step_reader import StepReader


class StepObserver:
    """Makes all checks of a step, in the order in which the optimizer comes to them."""

    def __init__(
        self,
        *,
        writer: ManifestWriter,
        optimizer: DPOptimizer,
        tensors: ModelTensors,
        weights: ReferenceOptimizer,
        noise_stream: NoiseStreamCheck,
        processes: Processes,
        count: StepCount,
        after_step: Callable[[], None],
    ) -> None:
        self._writer, self._optimizer = writer, optimizer
        self._reader: StepReader = writer.reader
        self._batches: Batches = writer.batches
        self._separate_records: SeparateRecordsCheck = writer.separate_records
        self._tensors, self._weights, self._noise_stream = tensors, weights, noise_stream
        self._processes, self.count, self._after_step = processes, count, after_step
        self.gradients = Float32Gradients(optimizer)
        self._noised = NoisedGradients(optimizer, drawn=processes.draws_noise)
        self._realised_divisor = RealisedDivisorCheck()
        self._gradients_used: Sequence[torch.Tensor] = ()
        self._read = False
        self._summed = False  # of several processes: the gradients of all of them
        self.stated_loss: StatedLossCheck | None = None
        self.ghost_gradients: GhostGradients | None = None

    def noting_refusals(self, check: Callable[..., None]) -> Callable[..., None]:
        """The same, and it is known when something was refused, also where the loop goes on in spite of it."""

        def checked(*args: Any) -> None:
            try:
                check(*args)
            except RecordingError as error:
                self._writer.refused = True
                self._processes.tell(error)
                raise

        return checked

    def before_pass(self) -> None:
        """A pass begins whose gradients are kept: they are those of the recorded weights."""
        self._weights.require_still()

    def clipped(self) -> None:
        """A physical batch is about to be clipped, or was in backward(), and added to the step's sum."""
        if self.stated_loss is not None:
            self._require_stated_loss(self.stated_loss)
        self._noise_stream.require_undisturbed(self._optimizer.generator)
        rows = self._reader.clipped()
        self._batches.clipped(rows, self._separate_records.entered())
        if self.ghost_gradients is not None:
            self.ghost_gradients.require_untouched()
        try:
            self._separate_records.require_separate(rows, batches=self._reader.batches_waiting)
        except RecordingError:
            self._writer.write()  # what was called checked is so no longer
            raise

    def _require_stated_loss(self, loss: StatedLossCheck) -> None:
        try:
            loss.require_used()
            loss.require_stated(self._reader.clip_norm, ghost=self._reader.ghost)
        except RecordingError:
            self._writer.forget_smoothness()
            raise

    def noised(self, unrounded: Sequence[torch.Tensor] | None = None) -> None:
        """Noise has been added to the sum of the step's clipped gradients, which may have been rounded since."""
        self._noised.note(self._batches.rows, unrounded)

    def before_step(self, optimizer: DPOptimizer) -> None:
        """The noise has been added; the weights have not moved."""
        rows = self._batches.rows
        try:
            step = self._reader.read(self._batches.sampler.rate)
            if self._batches.sampling is Sampling.POISSON:
                self._realised_divisor.require_other(step.learning_rate, self._batches.rows)
            self._tensors.require_untouched()
            self._batches.stepped()
        finally:
            self._batches.step_ends()
            self._noise_stream.used(optimizer.generator)
        if isinstance(self._processes, SeveralProcesses):
            self._noised.local = self._processes.agree_on_step(
                self._writer.steps + 1,
                step,
                divisor=self._reader.divisor,
                rows=rows,
                share=self._batches.share,
                noised=self._noised.local,
            )
        self._writer.taken.append(step)
        self._read, self._summed = True, self._processes.sharded or not self._processes.several

    def sum_over_ranks(self) -> None:
        """Of several processes: what each sends is what its noise left, and what arrives is the sum of that."""
        try:
            self._noised.require_local()
            self._processes.sum(self._processes.world if self._reader.loss_reduction == "mean" else 1)
            self._noised.summed()
        except BaseException:
            if self._read:
                self._read = False
                self._writer.taken.pop()  # the weights do not move
            raise
        self._summed = True

    def before_inner_step(self, *_: Any) -> None:
        """After all other hooks: what is about to move the weights."""
        if not (self._read and self._noised.waiting):
            raise RecordingError(
                "optimizer: the inner optimizer was stepped by itself, without clipping and noise; step the one that "
                "make_private returned"
            )
        self._read = False
        try:
            if not self._summed:
                raise RecordingError(
                    "optimizer: the weights were about to move by the gradients of one process alone, of which only "
                    "rank 0 has noise; step the optimizer that make_private returned, which sums them first"
                )
            self._gradients_used = self._noised.taken()
        except RecordingError:
            self._writer.taken.pop()  # the weights do not move
            self._batches.not_stepped()
            raise
        self._reader.uniform &= not self._noised.changed

    def after_inner_step(self, *_: Any) -> None:
        """The weights have moved."""
        torch.clear_autocast_cache()  # casts of the old weights, which a loop within one autocast would go on using
        self._weights.step(self._gradients_used)
        taken = self._writer.taken
        taken[-1] = self._reader.moved(taken[-1])
        self._after_step()
