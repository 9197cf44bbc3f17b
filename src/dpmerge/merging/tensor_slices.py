"""What is done to which bytes: neighbouring tensors that are treated alike, taken together.

Guarantees: the slices of a merge cover every byte of every tensor of the output once, in the output's order; within
one the bytes of each input lie together, in the same order. A tensor with several names is a slice under each.
Refuses: models of different names, shapes or dtypes, weights that are not positive, ties of what is not alike.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from dpmerge.errors import InvalidInputError, TensorMismatchError
from dpmerge.merging.arithmetic import FLOATS
from dpmerge.merging.checkpoint_input import CheckpointInput, TensorSource
from dpmerge.merging.layout import Layout
from dpmerge.merging.ordered_hash import OrderedHash
from dpmerge.portfolio.compatibility import tensor_difference
from dpmerge.portfolio.recorded_runs import SavedCheckpoint
from dpmerge.portfolio.tensors import TensorEntry

Rule = Literal["copy", "equal", "average", "average_noised", "keep_or_average"]
"""What becomes of a tensor.

copy             the bytes of the only input
equal            integers, booleans and what no run trained: the same in all inputs
average          Σ w_i x_i
average_noised   the same, and release noise
keep_or_average  what no run trained, where that may differ: kept where it does not, averaged where it does
"""


@dataclass(frozen=True, kw_only=True)
class SliceLocation:
    """Where an input has a slice, and where its bytes are hashed."""

    source: TensorSource
    offset: int
    hash: OrderedHash | None


class TensorPart(NamedTuple):
    """What a piece of a slice holds of one tensor, in bytes."""

    name: str
    skipped: int  # of the tensor, before it
    begin: int  # in the piece
    end: int


@dataclass(frozen=True, kw_only=True)
class TensorSlice:
    """Tensors one after the other."""

    file: int
    rule: Rule
    dtype: str
    slots: tuple[TensorEntry, ...]  # of the output
    places: tuple[SliceLocation, ...]
    weight: str | None = None  # of a tensor with several names: the first of them, by which all are known

    @property
    def start(self) -> int:
        return self.slots[0].start

    @property
    def length(self) -> int:
        return self.slots[-1].end - self.slots[0].start

    def tensor_at(self, offset: int) -> str:
        """The name of the tensor that has the byte so far into the slice."""
        return self.slots[self._place_at(offset)].name

    def parts(self, offset: int, length: int) -> Iterator[TensorPart]:
        """The tensors of a piece of the slice, or of each what is in the piece."""
        for slot in itertools.islice(self.slots, self._place_at(offset), None):
            begin, end = slot.start - self.start - offset, slot.end - self.start - offset
            if begin >= length:
                return
            yield TensorPart(slot.name, max(0, -begin), max(0, begin), min(length, end))

    def _place_at(self, offset: int) -> int:
        return bisect.bisect_right(self._starts, self.start + offset) - 1

    @cached_property
    def _starts(self) -> list[int]:
        return [slot.start for slot in self.slots]


def require_mergeable(parts: Sequence[tuple[SavedCheckpoint, float]], donor: SavedCheckpoint) -> None:
    """All models have the donor's tensors."""
    if not parts:
        raise InvalidInputError("parts", None, "at least one checkpoint", found="none")
    for checkpoint, weight in parts:
        if not 0 < weight <= 1:
            raise InvalidInputError(f"weight of {checkpoint.name}", weight, "a number above 0, at most 1")
        if (difference := tensor_difference(donor, checkpoint)) is not None:
            raise difference


def require_noise_everywhere(donor: SavedCheckpoint, trained: Collection[str] | None) -> None:
    """Noise that misses what was trained would certify a model that left as it was."""
    reached = [name for name in donor.tensors if trained is None or name in trained]
    for name in reached:
        path, slot = donor.tensors[name]
        if slot.dtype not in FLOATS:
            accepted = f"trained tensors of {', '.join(FLOATS)}, to which release noise can be added"
            accepted += "" if trained is not None else "; or a manifest that says which tensors were trained"
            raise TensorMismatchError(path, f"{name}.dtype", slot.dtype, accepted)
    if not any(donor.tensors[name][1].dtype in FLOATS for name in reached):
        accepted = "at least one trained tensor, to which release noise can be added"
        raise TensorMismatchError(donor.manifest_file, "tensors.trained", None, accepted, found="none")


def first_names(donor: SavedCheckpoint, tied: Iterable[Sequence[str]]) -> dict[str, str]:
    """For each name of a tensor with several names the first of them; all of them are alike."""
    first = {name: group[0] for group in tied for name in group}
    for name, known_as in first.items():
        (path, slot), (_, other) = donor.tensors[name], donor.tensors[known_as]
        if (slot.dtype, slot.shape) != (other.dtype, other.shape):
            accepted = f"{list(other.shape)} of {other.dtype}, as {known_as}, which is said to be the same weight"
            raise TensorMismatchError(path, name, None, accepted, found=f"{list(slot.shape)} of {slot.dtype}")
    return first


def rules_of(
    donor: SavedCheckpoint, *, trained: Collection[str] | None, parts: int, noised: bool, frozen_may_differ: bool
) -> Mapping[str, Rule]:
    """What becomes of each tensor; where it is not known what was trained, every float tensor was."""
    return {name: _rule(slot.dtype, trained is None or name in trained, parts, noised, frozen_may_differ)
            for name, (_, slot) in donor.tensors.items()}  # fmt: skip


def _rule(dtype: str, trained: bool, parts: int, noised: bool, frozen_may_differ: bool) -> Rule:
    if dtype in FLOATS and trained and noised:
        return "average_noised"
    if parts == 1:
        return "copy"
    if dtype not in FLOATS:
        return "equal"
    if trained:
        return "average"
    return "keep_or_average" if frozen_may_differ else "equal"


def slices_of(
    layout: Layout, inputs: Sequence[CheckpointInput], rules: Mapping[str, Rule], first: Mapping[str, str]
) -> Iterator[TensorSlice]:
    """The work, in the order of the output's bytes; `first` is what `first_names` says."""
    for number, file in enumerate(layout.files):
        run: list[TensorEntry] = []
        at: tuple[SliceLocation, ...] = ()
        for slot in file.slots:
            if slot.end == slot.start:
                continue
            places = tuple(_place(each, slot.name) for each in inputs)
            alone = slot.name in first or (run and run[0].name in first)
            if run and (alone or not _continues(run, at, slot, places, rules)):
                yield _slice(number, run, at, rules, first)
                run = []
            at = at if run else places
            run.append(slot)
        if run:
            yield _slice(number, run, at, rules, first)


def _slice(
    file: int,
    run: list[TensorEntry],
    places: tuple[SliceLocation, ...],
    rules: Mapping[str, Rule],
    first: Mapping[str, str],
) -> TensorSlice:
    name, dtype = run[0].name, run[0].dtype
    return TensorSlice(
        file=file, rule=rules[name], dtype=dtype, slots=tuple(run), places=places, weight=first.get(name)
    )


def _place(each: CheckpointInput, name: str) -> SliceLocation:
    path, slot = each.checkpoint.tensors[name]
    return SliceLocation(source=each.sources[path], offset=slot.start, hash=each.hash_of(name))


def _continues(
    run: list[TensorEntry],
    at: tuple[SliceLocation, ...],
    slot: TensorEntry,
    places: tuple[SliceLocation, ...],
    rules: Mapping[str, Rule],
) -> bool:
    """Whether a tensor can be taken together with those before it."""
    if slot.dtype != run[0].dtype or rules[slot.name] != rules[run[0].name]:
        return False
    so_far = run[-1].end - run[0].start
    return all(
        new.source is old.source and new.hash is old.hash and new.offset == old.offset + so_far
        for new, old in zip(places, at, strict=True)
    )
