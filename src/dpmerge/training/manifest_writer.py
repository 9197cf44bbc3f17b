"""The record of a run so far, and the manifest on disk.

Guarantees: the manifest covers the checkpoints that were saved, up to the last one and no further; replaced as a whole.
Forgets what turns out not to be true, of earlier checkpoints too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpmerge.errors import RecordingError
from dpmerge.files import sync_folder
from dpmerge.portfolio.manifest import MANIFEST_NAME, Manifest, ResumedSegment, SavedAs
from dpmerge.terms.documents import Strict, validated
from dpmerge.terms.mechanism_schema import DpSgdFacts, HistoryFacts, SmoothnessFacts
from dpmerge.training.batches import Batches
from dpmerge.training.separate_records_check import SeparateRecordsCheck
from dpmerge.training.step_blocks import RecordedStep, coarse_history, fits_a_manifest, fold_steps
from dpmerge.training.step_count import RecordLosses, worse_losses
from dpmerge.training.step_reader import StepReader


@dataclass(kw_only=True)
class ManifestWriter:
    """What was said about the run at its start, and what was seen since."""

    folder: Path
    facts: dict[str, Any]
    reader: StepReader
    batches: Batches
    separate_records: SeparateRecordsCheck
    vouched: bool  # that records are separate
    smoothness: SmoothnessFacts | None
    writes: bool = True  # of several processes one does
    checked_elsewhere: bool = True  # on all other processes each record had a loss of its own
    taken: list[RecordedStep] = field(default_factory=list)
    saved: list[SavedAs] = field(default_factory=list)
    fixed_steps: list[int] = field(default_factory=list)  # kept because it was settled before the first step
    verified: int = 0  # of these, how many were kept when all frozen tensors were last seen to be those of the start
    resumed: list[ResumedSegment] = field(default_factory=list)
    losses_before: RecordLosses | None = None  # what the manifest said of them when the run was resumed
    may_write: Callable[[], None] = lambda: None
    history_only: bool = False  # because the manifest was, when the run was resumed
    finished: bool = False
    refused: bool = False  # something was, though the loop may have gone on

    @property
    def steps(self) -> int:
        return len(self.taken)

    @property
    def record_losses(self) -> RecordLosses:
        """Whether each record had a loss of its own: checked, vouched or unknown."""
        found = self.separate_records.record_losses(
            linked=self.batches.linked and self.checked_elsewhere, vouched=self.vouched
        )
        return found if self.losses_before is None else worse_losses(found, self.losses_before)

    @property
    def losses_so_far(self) -> RecordLosses:
        """The same of the steps up to now alone: that none was looked at yet is no doubt of those there were."""
        undoubted = not self.separate_records.doubted and self.batches.linked
        return "checked" if undoubted else "vouched" if self.vouched else "unknown"

    @property
    def checked_here(self) -> bool:
        """Whether this process, for its part, saw that each record had a loss of its own."""
        return self.separate_records.checked and self.batches.linked

    def manifest(self, *, upto: int | None = None) -> Manifest:
        """The record of the first `upto` steps (by default all)."""
        taken = self.taken[:upto]
        if not taken:
            raise RecordingError("record: no step has been taken yet, so there is nothing to record; train first")
        facts = {**self.facts, "record_losses": self.record_losses, "resumed": self._resumed(len(taken)) or None}
        return manifest_of(facts, self._mechanism(taken), checkpoints=self.saved, finished=self.finished)

    def _resumed(self, upto: int) -> list[ResumedSegment]:
        """The stretches of which a step is covered, and at once those for which somebody vouched."""
        kept = []
        for each in self.resumed:
            if each.after + each.lost_steps <= upto and (each.after < upto or each.unseen_steps):
                kept.append(each)
            elif each.unseen_steps and each.after <= upto:
                kept.append(each.model_copy(update={"lost_steps": 0}))
        return kept

    def _mechanism(self, taken: Sequence[RecordedStep]) -> DpSgdFacts | HistoryFacts:
        blocks = fold_steps(taken)
        passes = self.batches.passes(len(taken))
        order = self.batches.secret_order([step for step in self.fixed_steps if step <= len(taken)])
        if self.history_only or not fits_a_manifest(blocks):
            return HistoryFacts(
                kind="accountant_history",
                blocks=coarse_history(taken),
                sampling=self.batches.sampling.value,
                steps_per_epoch=self.batches.steps_per_epoch,
                passes=passes,
                order=order,
                clipping="per_example",
                public_divisor=True,  # refused at the start otherwise
            )
        return DpSgdFacts(
            kind="dp_sgd",
            blocks=blocks,
            sampling=self.batches.sampling.value,
            steps_per_epoch=self.batches.steps_per_epoch,
            passes=passes,
            order=order,
            clipping="per_example",
            flat_clipping=self.reader.flat_clipping,
            optimizer=self.reader.optimizer_facts(),
            loss_reduction=self.reader.loss_reduction,
            expected_batch_size=self.reader.divisor if self.reader.loss_reduction == "mean" else None,
            public_divisor=True,  # refused at the start otherwise
            smoothness=self.smoothness,
        )

    def write(self) -> None:
        """Replace the manifest by one that covers what was saved."""
        if self.saved and self.writes:
            self.may_write()
            self.manifest(upto=self.saved[-1].step).write(self.folder / MANIFEST_NAME)

    def forget_smoothness(self) -> None:
        """The loss was not the stated one: nothing that was derived from it holds, of earlier steps either."""
        self.smoothness = None
        self.write()

    def withdraw_unverified(self) -> None:
        """Frozen tensors have changed, nobody knows when: nothing is said any more of what was kept since."""
        self.saved = self.saved[: self.verified]
        self.finished, self.refused = False, True
        self.write()
        if not self.saved:
            (self.folder / MANIFEST_NAME).unlink(missing_ok=True)
            sync_folder(self.folder)

    def stopped_by_private_data(self) -> None:
        """That the last step was the last may be the doing of a batch that was left out."""
        self.facts |= {"stopping": "private"}


def manifest_of(facts: dict[str, Any], mechanism: Strict, *, checkpoints: list[SavedAs], finished: bool) -> Manifest:
    """A manifest of these facts, refused in one line if one of them is wrong."""
    content = {**facts, "mechanism": mechanism, "checkpoints": checkpoints, "finished": finished}
    return validated(Manifest, content, "manifest")
