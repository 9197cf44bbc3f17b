"""How many steps a run has begun, on disk before each of them: `steps.json`, beside the manifest.

Guarantees: whenever a process dies, the count on disk is at least the number of steps for which noise was drawn, and
the settings beside it are no better than those of any step since the last checkpoint (the last one that cannot be
withdrawn any more). Closed as it should be, the count is exact. Counts are reserved ahead in blocks, as long as about
two hundred times what one write takes and at most a tenth of the steps so far, or eight: after a kill a block's steps
may be charged that never were. One process counts: who goes on with a run takes the file over.
Refuses: files that are no such count; to count on, or to write a manifest, in a folder that another process has taken
over; to take over a count while another process counts on. What it trusts: that nobody puts an older file back.
"""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, get_args

from pydantic import Field

from dpmerge.errors import InvalidInputError, RecordingError
from dpmerge.files import is_file, read_bytes
from dpmerge.portfolio.run_files import write_atomically
from dpmerge.terms.documents import NonNegative, Positive, Strict, strict_json, validated

COUNT_NAME = "steps.json"
_LARGEST = 10_000
_WRITING_SHARE = 0.005
"""Of the time of training, at most, for writing counts."""
_LONGEST_BLOCK = 1_000
_FIRST_BLOCK = 8
_STEPS_A_BLOCK = 10
"""A kill may charge a tenth of the steps so far in addition, or eight: a short run must not become a long one."""


RecordLosses = Literal["unknown", "vouched", "checked"]
"""Whether each record had a loss of its own, the worst first."""


def worse_losses(*known: RecordLosses) -> RecordLosses:
    return min(known, key=get_args(RecordLosses).index)


class StepSettings(NamedTuple):
    """What a step's cost depends on."""

    noise_multiplier: float
    clip_norm: float
    sampling_rate: float
    steps_per_epoch: int = 1  # so many of them, in a row, are one pass over shuffled data; of other data each is one
    record_losses: RecordLosses = "unknown"

    def worse(self, other: StepSettings | None) -> StepSettings:
        """What is no better than either: less noise, more of the data, more passes, less known of the losses."""
        if other is None:
            return self
        return StepSettings(
            noise_multiplier=min(self.noise_multiplier, other.noise_multiplier),
            clip_norm=max(self.clip_norm, other.clip_norm),
            sampling_rate=max(self.sampling_rate, other.sampling_rate),
            steps_per_epoch=min(self.steps_per_epoch, other.steps_per_epoch),
            record_losses=worse_losses(self.record_losses, other.record_losses),
        )


class CountFile(Strict):
    """What is on disk: so many steps may have been begun, those since the last checkpoint with these settings."""

    schema_: Literal["dpmerge/steps/v1"] = Field(alias="schema", description='"dpmerge/steps/v1"')
    run: str = Field(description="the run's name")
    stream: str | None = Field(default=None, description="the run's first stream of noise")
    process: str = Field(description="drawn at random by the process that counts")
    steps: Annotated[int, Field(ge=0)] = Field(description="an integer ≥ 0: no more steps than this were begun")
    noise_multiplier: NonNegative = Field(description="a finite number ≥ 0: the smallest")
    clip_norm: Positive = Field(description="a finite number > 0")
    sampling_rate: Annotated[float, Field(gt=0, le=1)] = Field(description="a number in (0, 1]: the largest")
    steps_per_epoch: Annotated[int, Field(ge=1)] = Field(
        description="an integer ≥ 1: so many were one pass over shuffled data; 1 of others, or if they were not"
    )
    record_losses: RecordLosses = Field(description="`checked`, `vouched` or `unknown`, as in the manifest: the worst")

    @classmethod
    def read(cls, folder: Path) -> CountFile | None:
        """The count of a folder; None if there is none."""
        path = folder / COUNT_NAME
        if not is_file(path):
            return None
        try:
            return validated(cls, strict_json(read_bytes(path, _LARGEST), "count"), "count")
        except InvalidInputError as error:
            raise RecordingError(
                f"directory: {path} is no count of steps ({error}), so nobody knows how many steps were lost; begin a "
                "new run in a folder of its own"
            ) from None

    @property
    def worst(self) -> StepSettings:
        """No step since the last checkpoint had worse settings."""
        return StepSettings(
            self.noise_multiplier, self.clip_norm, self.sampling_rate, self.steps_per_epoch, self.record_losses
        )


class StepCount:
    """The count of the run under way; `settings` reads what a step would be taken with now."""

    def __init__(
        self,
        folder: Path,
        *,
        run: str,
        stream: str | None,
        settings: Callable[[], StepSettings],
        begun: int = 0,
        each_draw: bool = False,
        writes: bool = True,
    ) -> None:
        self._writes = writes
        self._path, self._run, self._stream, self._settings = folder / COUNT_NAME, run, stream, settings
        self._process = secrets.token_hex(16)
        self._each_draw = each_draw  # is a step, of Poisson batches; others may be drawn and not used
        self._begun = self._drawn = self._reserved = begun
        self._leaves_something = begun > 0
        self._worst: StepSettings | None = None  # since the last checkpoint
        self._written: StepSettings | None = None
        self._seen: StepSettings | None = None  # already in what is on disk
        self._since, self._at, self._block = time.monotonic(), begun, 1

    @property
    def begun(self) -> int:
        """Steps for which noise was drawn."""
        return self._begun

    def carry(self, lost: StepSettings) -> None:
        """Steps before this process, since the last checkpoint, were taken with these settings."""
        self._worst = lost.worse(self._worst)

    def kept(self, *, for_good: bool = True) -> None:
        """A checkpoint is on disk, and the manifest says so: what counts from now on is what comes after it, unless it
        may be withdrawn yet."""
        self._leaves_something = True
        if for_good:
            self._worst = self._seen = None

    def drawing(self) -> None:
        """A batch is about to be drawn: that one more step may be begun is on disk."""
        self._drawn += self._each_draw
        self._require(max(self._drawn, self._begun + 1))

    def _require(self, upto: int) -> None:
        settings = self._settings()
        if upto <= self._reserved and settings == self._seen:
            return
        self._worst = settings.worse(self._worst)
        if upto > self._reserved or self._worst.worse(self._written) != self._written:
            self._reserve(upto)
        self._seen = settings

    def noising(self) -> None:
        """Noise is about to be drawn for one more step."""
        self._require(self._begun + 1)
        self._begun += 1

    def _reserve(self, upto: int) -> None:
        taken, now = max(self._begun - self._at, 1), time.monotonic()
        each = (now - self._since) / taken
        self._reserved = max(self._reserved, upto + self._block - 1)
        self._write(self._reserved)
        took = time.monotonic() - now
        worth_it = math.ceil(took / (_WRITING_SHARE * max(each, 1e-9)))
        self._block = max(1, min(_LONGEST_BLOCK, worth_it, max(_FIRST_BLOCK, self._begun // _STEPS_A_BLOCK)))
        self._since, self._at = time.monotonic(), self._begun

    def begin(self) -> None:
        """The loop begins: what is on disk of a run that goes on is what is counted of it, here from now on."""
        if self._begun:
            self._write(self._begun)

    def take_over(self, found: CountFile) -> None:
        """The process that counted before is at its end, and if it is not it finds out at its next count."""
        if CountFile.read(self._path.parent) != found:
            raise RecordingError(
                f"directory: another process counts steps in {self._path.parent} just now; end it, then resume"
            )
        mine = found.model_copy(update={"process": self._process})
        write_atomically(self._path, (json.dumps(mine.document()) + "\n").encode())

    def require_own(self) -> None:
        """Refuse to go on where another process does: each would hide the other's steps."""
        found = CountFile.read(self._path.parent) if self._writes else None
        if found is not None and found.process != self._process:
            raise RecordingError(
                f"directory: another process has begun to record in {self._path.parent}; let one go on, and end the "
                "other"
            )

    def __enter__(self) -> StepCount:
        return self

    def __exit__(self, *_: object) -> None:
        """The loop has ended: the count is exact. A run that leaves no checkpoint leaves no count."""
        try:
            self.require_own()
        except RecordingError:
            return  # it is another's now
        if not self._writes:
            return
        if self._leaves_something:
            self._write(self._begun)
            self._reserved = self._begun
        else:
            self._path.unlink(missing_ok=True)

    def _write(self, steps: int) -> None:
        if not self._writes:
            return
        self.require_own()
        worst = self._worst or self._settings()
        content = CountFile(
            schema="dpmerge/steps/v1",
            run=self._run,
            stream=self._stream,
            process=self._process,
            steps=steps,
            noise_multiplier=worst.noise_multiplier,
            clip_norm=worst.clip_norm,
            sampling_rate=worst.sampling_rate,
            steps_per_epoch=worst.steps_per_epoch,
            record_losses=worst.record_losses,
        )
        self._written = worst
        write_atomically(self._path, (json.dumps(content.document()) + "\n").encode())
