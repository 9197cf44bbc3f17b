"""What the ranks of a run say to each other at each step, and in what they disagree."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple


class Event(IntEnum):
    """What a rank is about to do when it asks the others."""

    STEP, CHECKPOINT, SAVED, END, LEAVING = range(5)


_DOING = {
    Event.STEP: "takes step {}",
    Event.CHECKPOINT: "keeps the weights after step {}",
    Event.SAVED: "has kept the weights after step {}",
    Event.END: "ends after step {}",
}


class Word(NamedTuple):
    """What a rank says: numbers of a fixed size, so that it costs one exchange."""

    event: int
    number: int
    # Whether this rank has seen nothing that speaks against it:
    checked: bool = True
    smooth: bool = True
    uniform: bool = True
    stopped_freely: bool = True
    # The same on all ranks:
    noise_multiplier: float = 0.0
    clip_norm: float = 0.0
    sampling_rate: float = 0.0
    learning_rate: float = 0.0
    divisor: float = 0.0
    # Of this rank:
    rows: int = 0
    share: int = 0
    projection: float = 0.0
    length: float = 0.0
    arrived: float = 0.0
    noise: float = 0.0
    digest: bytes = b""

    @classmethod
    def of(cls, message: bytes) -> Word:
        return cls(*_LAYOUT.unpack_from(message))

    def packed(self) -> bytes:
        return _LAYOUT.pack(*self)

    @property
    def seen(self) -> tuple[bool, ...]:
        return self.checked, self.smooth, self.uniform, self.stopped_freely


_LAYOUT = struct.Struct("<bq????dddddqQdddd32s")
SAME = ("noise_multiplier", "clip_norm", "sampling_rate", "learning_rate", "divisor")


def left(heard: Sequence[Word]) -> int | None:
    """The first rank that leaves; None if all go on."""
    return next((rank for rank, word in enumerate(heard) if word.event == Event.LEAVING), None)


def disagreement(heard: Sequence[Word]) -> str | None:
    """In what the ranks differ, in words that say what to do; None if they agree."""
    first = heard[0]
    for rank, word in enumerate(heard):
        if (word.event, word.number) != (first.event, first.number):
            doing = [_DOING[Event(each.event)].format(each.number) for each in (first, word)]
            return (
                f"record: rank 0 {doing[0]}, but rank {rank} {doing[1]}; every rank takes a step for each of its "
                "batches, empty ones too, and calls checkpoint() with the others"
            )
        for name in SAME:
            one, other = getattr(first, name), getattr(word, name)
            if one != other:
                return (
                    f"optimizer: {name} is {one:g} on rank 0 and {other:g} on rank {rank}; schedule it alike on every "
                    "rank"
                )
    return None
