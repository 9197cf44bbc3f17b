"""What the processes of one run agree on: before its first step, at each step, at each checkpoint and at its end.

Guarantees: a step is recorded only if every rank takes it, with the same noise multiplier, clip norm, sampling rate,
learning rate and divisor, on shares that are together every record once; empty batches are steps like any other. What
moves the weights is the sum of what the ranks sent. A checkpoint is kept only if all ranks have the same weights, and
what one rank finds wrong or cannot tell is in the record, which rank 0 alone writes.
A rank that disagrees, refuses, dies or skips a step ends the recording on all of them; what was kept stays, unfinished.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opacus.optimizers import DPOptimizer
from torch import Tensor

from dpmerge.errors import RecordingError
from dpmerge.portfolio.manifest import File, SavedAs
from dpmerge.training.distributed_sampling import RecordShares
from dpmerge.training.distributed_start import agree_on_start
from dpmerge.training.model_tensors import ModelTensors
from dpmerge.training.noise_generators import RunGenerators
from dpmerge.training.process_group import GRACE, ProcessGroup
from dpmerge.training.processes import Processes
from dpmerge.training.rank_messages import Event, Word, disagreement, left
from dpmerge.training.rank_sums import RankSum
from dpmerge.training.step_blocks import RecordedStep

if TYPE_CHECKING:
    from dpmerge.training.manifest_writer import ManifestWriter


class SeveralProcesses(Processes):
    """The processes of `torch.distributed`, each with a recorder of its own."""

    def __init__(self) -> None:
        self._group = ProcessGroup()
        self.rank, self.world = self._group.rank, self._group.world
        self._over = False
        self._writer: ManifestWriter | None = None
        self._sent: list[Word] = []

    @property
    def several(self) -> bool:
        return True

    def tell(self, error: BaseException) -> None:
        if self._over:
            return
        self._over = True
        why = f"{error}" if isinstance(error, RecordingError) else f"{type(error).__name__}: {error}"
        self._group.note(json.dumps({"rank": self.rank, "why": why, "seen": self._seen()}))
        with suppress(RecordingError):
            self._group.gather(self._word(Event.LEAVING, 0).packed())

    def agree_on_start(
        self, facts: Mapping[str, Any], optimizer: DPOptimizer, generators: RunGenerators, dataset: Any, records: int
    ) -> None:
        try:
            used = [generators.batches, *([generators.noise] if self.draws_noise else [])]
            key = agree_on_start(self._group, facts, generators=used, dataset=dataset, records=records)
        except RecordingError as error:
            raise self._ended(self._why() or str(error)) from error
        self._shares = RecordShares(key, records)
        self._sum_of(key, list(optimizer.params))

    def _sum_of(self, key: int, parameters: Sequence[Tensor]) -> None:
        self._sum = RankSum(key, parameters)

    def follow(self, writer: ManifestWriter) -> None:
        self._writer = writer

    def share(self, records: Tensor) -> int:
        return self._shares.fingerprint(records)

    def agree_on_step(
        self, number: int, step: RecordedStep, *, divisor: float, rows: int, share: int, noised: Sequence[Tensor]
    ) -> list[Tensor]:
        projection, length = self._sum.hold(noised)
        own = self._word(
            Event.STEP,
            number,
            **self._facts(step, divisor=divisor, rows=rows, share=share),
            projection=projection,
            length=length,
        )
        self._sent = self._exchange(own)
        self._require(lambda: self._shares.require_partition([each.share for each in self._sent]))
        return self._sum.gradients()

    @staticmethod
    def _facts(step: RecordedStep, *, divisor: float, rows: int, share: int) -> dict[str, Any]:
        return {
            "noise_multiplier": step.noise_multiplier,
            "clip_norm": step.clip_norm,
            "sampling_rate": step.sampling_rate,
            "learning_rate": step.learning_rate,
            "divisor": divisor,
            "rows": rows,
            "share": share,
        }

    def sum(self, divisor: int) -> None:
        self._sum.reduce(divisor)
        sent, length = [each.projection for each in self._sent], sum(each.length for each in self._sent)
        if not self._sum.agrees(divisor=divisor, sent=sent, length=length):
            raise RecordingError(
                f"record: what arrived on rank {self.rank} is not the sum of what the ranks sent; leave "
                "torch.distributed.all_reduce as it is"
            )

    def require_one(self, option: str) -> None:
        raise RecordingError(
            f"{option}: recorded on one process only; leave it out on several (a run of several processes that is "
            "broken off keeps its checkpoints, and a new run may name it in ancestry=)"
        )

    def save(
        self, tensors: ModelTensors, folder: Path, step: int, weights: Mapping[str, Tensor] | None = None
    ) -> SavedAs:
        digest = tensors.digest(weights)
        heard = self._exchange(self._word(Event.CHECKPOINT, step, digest=bytes.fromhex(digest)))
        other = next((rank for rank, word in enumerate(heard) if word.digest != heard[0].digest), None)
        if other is not None:
            raise self._ended(
                f"model: rank {other} has other weights than rank 0 after step {step}; let the private optimizer alone "
                "move them, on every rank, with the same settings"
            )
        saved = tensors.save(folder, step, weights=weights) if self.writes else None
        file = self._written(tensors, step, saved)
        return saved or SavedAs(step=step, files=[file], weights=digest)

    def _written(self, tensors: ModelTensors, step: int, saved: SavedAs | None) -> File:
        """What the process that writes has written, told to all of them."""
        own = ("", None) if saved is None else (saved.files[0].sha256, saved.files[0].blake3)
        sha256, blake3 = (
            self._exchange(self._word(Event.SAVED, step, digest=bytes.fromhex(each or "")))[0].digest for each in own
        )
        name = tensors.files.name_of(step)
        return File(name=name, sha256=sha256.hex(), blake3=blake3.hex() if any(blake3) else None)

    def agree_on_end(self, steps: int) -> None:
        self._exchange(self._word(Event.END, steps))

    def hurry(self) -> None:
        self._group.patience = min(GRACE, self._group.timeout)

    def close(self) -> None:
        if not self._over:
            self._over = True
            self._group.close()

    def _exchange(self, own: Word) -> list[Word]:
        """What all ranks say; refused if one leaves, does something else or says another number."""
        if self._over:
            raise RecordingError("record: the processes no longer agree, as was said; the recording has ended")
        try:
            heard = [Word.of(each) for each in self._group.gather(own.packed())]
        except RecordingError as lost:
            raise self._ended(self._why() or str(lost)) from lost
        self._take([word.seen for word in heard])
        gone = left(heard)
        if gone is not None:
            raise self._ended(self._why() or f"record: rank {gone} has left; what was kept stays, as unfinished")
        differs = disagreement(heard)
        if differs is not None:
            raise self._ended(differs)
        return heard

    def _require(self, check: Callable[[], None]) -> None:
        """A check that has the same result on all ranks."""
        try:
            check()
        except RecordingError as error:
            raise self._ended(str(error)) from error

    def _ended(self, why: str) -> RecordingError:
        self._over = True
        if self._writer is not None:
            self._writer.refused = True
            self._writer.write()  # what another rank found may have taken something back
        return RecordingError(why)

    def _why(self) -> str | None:
        """What a rank that left has said."""
        noted = self._group.noted()
        if noted is None:
            return None
        said = json.loads(noted)
        self._take([said["seen"]])
        return f"record: rank {said['rank']} has left ({said['why']}); what was kept before stays, as unfinished"

    def _word(self, event: Event, number: int, **facts: Any) -> Word:
        checked, smooth, uniform, stopped_freely = self._seen()
        return Word(event, number, checked, smooth, uniform, stopped_freely, **facts)

    def _seen(self) -> list[bool]:
        writer = self._writer
        if writer is None:
            return [True] * 4
        return [
            writer.checked_here,
            writer.smoothness is not None,
            writer.reader.uniform,
            writer.facts["stopping"] != "private",
        ]

    def _take(self, seen: Sequence[Sequence[bool]]) -> None:
        """The record says what holds on all ranks."""
        writer = self._writer
        if writer is None:
            return
        checked, smooth, uniform, stopped_freely = (all(each) for each in zip(*seen, strict=True))
        writer.checked_elsewhere = checked
        writer.reader.uniform &= uniform
        if not stopped_freely:
            writer.stopped_by_private_data()
        if not smooth and writer.smoothness is not None:
            writer.forget_smoothness()
