"""The recorder: two lines around an Opacus loop, and the run's record is true.

    with record(model=model, optimizer=optimizer, data_loader=loader, run="adult-s32", dataset="adult-2026",
                adjacency="replace_one", directory="models/adult-s32") as recorder:
        ...  # the training loop, unchanged

Guarantees: the manifest on disk describes exactly the checkpoints beside it, at every moment, kill -9 included; each
logical step is recorded as it was taken; the accountant's own hook keeps running.
Refuses, before the step it concerns: whatever cannot be recorded truthfully (`CannotRecord`, one line, with the cure).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from opacus.optimizers import DPOptimizer

from dpmerge.documents import Strict, validated
from dpmerge.errors import CannotRecord
from dpmerge.portfolio.facts import DpSgdFacts, HistoryFacts, SmoothnessFacts
from dpmerge.portfolio.manifest import MANIFEST_NAME, Manifest, Metric, SavedAs
from dpmerge.training.batches import Batches
from dpmerge.training.ghost import GhostGradients
from dpmerge.training.loss_watch import LossWatch
from dpmerge.training.noise import NoiseWatch
from dpmerge.training.noised_gradients import NoisedGradients
from dpmerge.training.reference_optimizer import ReferenceOptimizer
from dpmerge.training.saving import ModelTensors
from dpmerge.training.separate_records import SeparateRecords
from dpmerge.training.steps import MOST_BLOCKS, Step, StepReader, coarse_history, folded

MOST_RATES = 100_000
"""So many steps with a rate each fit into a manifest; of longer schedules it keeps what an accountant would."""


class Recorder:
    """What `record` hands out: the run so far."""

    def __init__(
        self,
        *,
        folder: Path,
        facts: dict[str, Any],
        reader: StepReader,
        tensors: ModelTensors,
        batches: Batches,
        records: SeparateRecords,
        vouched: bool,
        smoothness: SmoothnessFacts | None,
        public_divisor: bool,
        source: NoiseWatch,
        optimizer: DPOptimizer,
        due: Collection[int],
        every: int | None,
    ) -> None:
        self.folder = folder
        self._facts = facts
        self._reader = reader
        self._tensors = tensors
        self._batches = batches
        self._records = records
        self._vouched = vouched
        self._smoothness = smoothness
        self._public_divisor = public_divisor
        self._source = source
        self._optimizer = optimizer
        self._due = frozenset(due)
        self._every = every
        self._taken: list[Step] = []
        self._saved: list[SavedAs] = []
        self._loss: LossWatch | None = None
        self._gradients: GhostGradients | None = None
        self._noised = NoisedGradients(optimizer)
        self._reference = ReferenceOptimizer(optimizer)
        self._read = False
        self._gradients_used: Sequence[torch.Tensor] = ()
        self._finished = False
        self._refused = False  # something was, though the loop may have gone on

    @property
    def steps(self) -> int:
        """Logical steps taken so far."""
        return len(self._taken)

    def manifest(self, *, upto: int | None = None) -> Manifest:
        """The record of the first `upto` steps (by default all)."""
        taken = self._taken[:upto]
        if not taken:
            raise CannotRecord("no step has been taken yet, so there is nothing to record")
        losses = self._records.record_losses(linked=self._batches.linked, vouched=self._vouched)
        facts = {**self._facts, "record_losses": losses}
        return manifest_of(facts, self._mechanism(taken), checkpoints=self._saved, finished=self._finished)

    def _mechanism(self, taken: Sequence[Step]) -> DpSgdFacts | HistoryFacts:
        blocks = folded(taken)
        rates = sum(len(block.learning_rate) for block in blocks if isinstance(block.learning_rate, list))
        if len(blocks) > MOST_BLOCKS or rates > MOST_RATES:
            return HistoryFacts(
                kind="accountant_history",
                blocks=coarse_history(taken),
                sampling=self._batches.sampling.value,
                steps_per_epoch=self._batches.steps_per_epoch,
                clipping="per_example",
                public_divisor=self._public_divisor,
            )
        return DpSgdFacts(
            kind="dp_sgd",
            blocks=blocks,
            sampling=self._batches.sampling.value,
            steps_per_epoch=self._batches.steps_per_epoch,
            clipping="per_example",
            flat_clipping=self._reader.flat_clipping,
            optimizer=self._reader.optimizer_facts(),
            loss_reduction=self._reader.loss_reduction,
            expected_batch_size=self._reader.divisor if self._reader.loss_reduction == "mean" else None,
            public_divisor=self._public_divisor,
            smoothness=self._smoothness,
        )

    def epsilon(self, delta: float) -> float:
        """What all steps so far cost, released at once; a private parent's cost is the portfolio's to add."""
        return self.manifest().mechanism_from(None).profile().epsilon(delta)

    def checkpoint(self) -> None:
        """Keep the weights as they are now, and say so in the manifest."""
        if not self._taken:
            raise CannotRecord("checkpoint: no step has been taken yet, so there is nothing to keep")
        if self._saved and self._saved[-1].step == self.steps:
            return
        self._reference.require_still()
        saved = self._tensors.save(self.folder, self.steps)
        self._saved.append(saved)
        self._write()

    def metric(
        self, name: str, value: float, *, measured_on: Literal["public", "private", "training"], data: str | None = None
    ) -> None:
        """Note a figure of merit of the last checkpoint, and the data it was measured on."""
        self._reference.require_still()
        if not self._saved or self._saved[-1].step != self.steps:
            raise CannotRecord(
                f"metric {name}: the weights after step {self.steps} were not kept; checkpoint() keeps them"
            )
        last = self._saved[-1]
        described = {"name": name, "value": value, "measured_on": measured_on, "data": data}
        noted = validated(Metric, described, "metric")
        self._saved[-1] = last.model_copy(update={"metrics": [*last.metrics, noted]})
        self._write()

    def finish(self) -> None:
        """The run ended as planned: keep the last weights, and say so."""
        try:
            self._batches.require_used_up()
        except CannotRecord:
            # Every step was what it is said to be; only that it was the last one may be the doing of that batch.
            self._facts |= {"stopping": "private"}
            self.rescue()
            raise
        if self._taken:
            self.checkpoint()
            self._finished = not self._refused
            self._write()

    def rescue(self) -> None:
        """The loop broke off, through no fault of the record's: what was learned so far is kept, as unfinished."""
        if self._taken:
            self.checkpoint()

    def _write(self) -> None:
        """Replace the manifest by one that covers what was saved, up to the last checkpoint and no further."""
        self.manifest(upto=self._saved[-1].step).write(self.folder / MANIFEST_NAME)

    def watch(self, loss: LossWatch | None, gradients: GhostGradients | None) -> None:
        """What else is looked at before a batch is added."""
        self._loss, self._gradients = loss, gradients

    def clipped(self) -> None:
        """A physical batch is about to be clipped, or was in backward(), and added to the step's sum."""
        if self._loss is not None:
            self._require_stated_loss(self._loss)
        self._source.require_undisturbed(self._optimizer.generator)
        rows = self._reader.clipped()
        self._batches.clipped(rows, self._records.entered())
        if self._gradients is not None:
            self._gradients.require_untouched()
        try:
            self._records.require_own(rows)
        except CannotRecord:
            self._records.doubt()
            if self._saved:
                self._write()
            raise

    def require_still(self) -> None:
        """Before a pass whose gradients are kept: they are those of the recorded weights."""
        self._reference.require_still()

    def _require_stated_loss(self, loss: LossWatch) -> None:
        """Refuse a loss that is not the stated one, and forget what was derived from it, of earlier steps too."""
        try:
            loss.require_used()
            loss.require_stated(self._reader.clip_norm, ghost=self._reader.ghost)
        except CannotRecord:
            self._smoothness = None
            if self._saved:
                self._write()
            raise

    def refused(self) -> None:
        """Something could not be recorded; if the loop goes on all the same, the run did not end as planned."""
        self._refused = True

    def noised(self) -> None:
        """Noise has been added to the sum of the step's clipped gradients."""
        self._noised.note(self._batches.rows)

    def before_step(self, optimizer: DPOptimizer) -> None:
        """The noise has been added; the weights have not moved."""
        try:
            step = self._reader.read(self._batches.sampling_rate)
            self._tensors.require_untouched()
            self._batches.stepped()
        finally:
            self._batches.settled()
            self._source.used(optimizer.generator)
        self._taken.append(step)
        self._read = True

    def before_inner_step(self, *_: Any) -> None:
        """After all other hooks: what is about to move the weights."""
        if not (self._read and self._noised.waiting):
            raise CannotRecord("optimizer: the inner optimizer was stepped by itself, without clipping and noise")
        self._read = False
        try:
            self._gradients_used = self._noised.taken()
        except CannotRecord:
            self._taken.pop()  # the weights do not move
            raise
        self._reader.uniform &= not self._noised.changed

    def after_inner_step(self, *_: Any) -> None:
        self._reference.step(self._gradients_used)
        self._taken[-1] = self._reader.moved(self._taken[-1])
        if self.steps in self._due or (self._every and self.steps % self._every == 0):
            self.checkpoint()


def manifest_of(facts: dict[str, Any], mechanism: Strict, *, checkpoints: list[SavedAs], finished: bool) -> Manifest:
    """A manifest of these facts, refused in one line if one of them is wrong."""
    content = {**facts, "mechanism": mechanism, "checkpoints": checkpoints, "finished": finished}
    return validated(Manifest, content, "manifest")
