"""The merge: checkpoints in, one model out, both as streams.

Guarantees: the written bytes are those `arithmetic` describes for any number of threads and any size of buffers; memory
does not depend on the size of models or tensors; every byte of the inputs is hashed and compared with the manifests in
the pass that merges it, and every byte written is hashed as it is written; all names of one weight get one draw of
release noise.
Refuses, leaving what it wrote to whoever staged the folder: inputs that do not fit together, are not what was recorded,
change, or hold values that are not finite; a result that does not fit into its dtype; a disk that is full.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpmerge.errors import BadCheckpoint, InvalidInput, TensorMismatch
from dpmerge.merging.arithmetic import FLOATS, Bytes, Scratch, all_finite, keep_equal
from dpmerge.merging.layout import layout_like
from dpmerge.merging.noise import Noise, NoiseScratch
from dpmerge.merging.progress import ByteCount, Progressed
from dpmerge.merging.sources import Input, file_header
from dpmerge.merging.stretches import (
    Stretch,
    first_names,
    require_mergeable,
    require_noise_everywhere,
    rules_of,
    stretches_of,
)
from dpmerge.merging.turnstile import Stopped, stop_all
from dpmerge.merging.writing import Output, WrittenFile, write_small
from dpmerge.portfolio.runs import SavedCheckpoint, is_weights
from dpmerge.portfolio.tensors import SIZES, finite

BUFFER = 2**20
"""Stored bytes taken at a time."""

ALL_BUFFERS = 2**24
"""Bytes of what all threads hold of all inputs: where there are very many, less is taken at a time."""


def merge(
    parts: Sequence[tuple[SavedCheckpoint, float]],
    folder: Path,
    *,
    donor: SavedCheckpoint,
    trained: Collection[str] | None,
    release_noise: float = 0.0,
    tied: Sequence[Sequence[str]] = (),
    frozen_may_differ: bool = False,
    jobs: int = 2,
    hashing: bool = True,
    progress: Progressed | None = None,
    buffer: int | None = None,
) -> tuple[WrittenFile, ...]:
    """Write Σ λ_i θ_i, with noise on what was trained, into a folder that exists; the donor gives names and shards.

    Each group of `tied` is the names of one weight. That they hold the same values is for `ties` to see to.
    """
    if jobs < 1:
        raise InvalidInput("jobs", jobs, "an integer ≥ 1")
    require_mergeable(parts, donor)
    if release_noise > 0:
        require_noise_everywhere(donor, trained)
    layout = layout_like(donor, {path: file_header(path).metadata for path in donor.files if is_weights(path)})
    order = [slot.name for file in layout.files for slot in file.slots]
    rules = rules_of(
        donor,
        trained=trained,
        parts=len(parts),
        noised=release_noise > 0,
        frozen_may_differ=frozen_may_differ,
    )
    first = first_names(donor, tied)
    inputs: list[Input] = []
    outputs: list[Output] = []
    try:
        # The whole output is allocated first: a disk that is too small should show now.
        for file in layout.files:
            outputs.append(Output(folder, file, hashing=hashing))
        for checkpoint, _ in parts:
            inputs.append(Input(checkpoint, order, hashing=hashing))
        work = _Work(
            inputs=inputs,
            outputs=outputs,
            stretches=stretches_of(layout, inputs, rules, first),
            weights=[weight for _, weight in parts],
            noise=Noise(release_noise) if release_noise > 0 else None,
            buffer=buffer or max(2**16, min(BUFFER, ALL_BUFFERS // (len(parts) * jobs) // 8 * 8)),
            progress=ByteCount(progress, sum(file.size - len(file.header) for file in layout.files)),
        )
        work.done_by(jobs)
        for each in inputs:
            each.require_weights()
        written = [output.finished() for output in outputs]
    finally:
        for each in inputs:
            each.close()
        for output in outputs:
            output.close()
    if layout.index is not None:
        written.append(write_small(folder, *layout.index, hashing=hashing))
    return tuple(written)


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """A part of a stretch that fits into the buffers, with its place in every digest it belongs to."""

    draw: int  # of release noise: the same number for pieces that hold the same values of one weight, and for no others
    stretch: Stretch
    offset: int
    length: int
    tickets: tuple[int, ...]
    out_ticket: int


class _Buffers:
    """The memory of one thread."""

    def __init__(self, inputs: int, size: int, *, noised: bool) -> None:
        self.inputs = [np.zeros(size, np.uint8) for _ in range(inputs)]
        self.out = np.zeros(size, np.uint8)
        self.scratch = Scratch(size)
        self.noise = NoiseScratch(size // 2 if noised else 0)


@dataclass(kw_only=True)
class _Work:
    """Pieces, handed out in order to whichever thread is free."""

    inputs: list[Input]
    outputs: list[Output]
    stretches: Iterator[Stretch]
    weights: list[float]
    noise: Noise | None
    buffer: int
    progress: ByteCount

    def __post_init__(self) -> None:
        self._pieces = self._in_order()
        self._handing = threading.Lock()
        self._failed = threading.Event()

    def done_by(self, jobs: int) -> None:
        """All of it, by so many threads; the first error of any of them is raised."""
        with ThreadPoolExecutor(jobs, thread_name_prefix="merge") as pool:
            try:
                errors = [error for error in pool.map(lambda _: self._take(), range(jobs)) if error is not None]
            except BaseException:
                self._stop()
                raise
        for error in sorted(errors, key=lambda error: isinstance(error, Stopped)):
            raise error

    def _in_order(self) -> Iterator[_Piece]:
        begun: dict[str, int] = {}
        fresh = 0
        for stretch in self.stretches:
            for place in stretch.places:
                place.source.open()
            out = self.outputs[stretch.file]
            # Of a weight with several names every name is as long and is cut alike, so its pieces have equal numbers.
            draw = fresh if stretch.weight is None else begun.setdefault(stretch.weight, fresh)
            for offset in range(0, stretch.length, self.buffer):
                yield _Piece(
                    draw=draw,
                    stretch=stretch,
                    offset=offset,
                    length=min(self.buffer, stretch.length - offset),
                    tickets=tuple(p.turnstile.ticket() if p.turnstile else 0 for p in stretch.places),
                    out_ticket=out.turnstile.ticket() if out.turnstile else 0,
                )
                draw += 1
            fresh = max(fresh, draw)

    def _take(self) -> BaseException | None:
        try:
            buffers = _Buffers(len(self.inputs), self.buffer, noised=self.noise is not None)
            with np.errstate(all="ignore"):
                while not self._failed.is_set():
                    with self._handing:
                        piece = next(self._pieces, None)
                    if piece is None:
                        return None
                    self._do(piece, buffers)
        except BaseException as error:
            self._stop()
            return error
        return None

    def _stop(self) -> None:
        self._failed.set()
        for each in self.inputs:
            stop_all(each.turnstiles())
        stop_all(output.turnstile for output in self.outputs if output.turnstile)

    def _do(self, piece: _Piece, buffers: _Buffers) -> None:
        stretch, length = piece.stretch, piece.length
        words = -(-length // 8) * 8
        read = [buffer[:words] for buffer in buffers.inputs]
        for place, buffer in zip(stretch.places, read, strict=True):
            buffer[length:] = 0
            place.source.read(buffer.data[:length], place.offset + piece.offset)
        out = self._result(piece, read, buffers).data[:length]
        output = self.outputs[stretch.file]
        output.write(out, stretch.start + piece.offset)
        for place, ticket, buffer in zip(stretch.places, piece.tickets, read, strict=True):
            if place.turnstile is not None:
                place.turnstile.feed(ticket, buffer.data[:length])
            place.source.finished(length)
        if output.turnstile is not None:
            output.turnstile.feed(piece.out_ticket, out)
        self.progress.add(length)

    def _result(self, piece: _Piece, read: list[Bytes], buffers: _Buffers) -> Bytes:
        stretch = piece.stretch
        same = stretch.rule in ("equal", "keep_or_average") and self._same(piece, read)
        if stretch.rule in ("copy", "equal") or same:
            if not all_finite(stretch.dtype, read[0]):
                self._refuse_values(piece, read, read[0])
            return read[0]
        out, noise = buffers.out[: read[0].size], None
        if stretch.rule == "average_noised":
            assert self.noise is not None
            noise = self.noise.draw(piece.draw, piece.length // SIZES[stretch.dtype], buffers.noise)
        if not buffers.scratch.combine(stretch.dtype, read, self.weights, out, noise):
            self._refuse_values(piece, read, out)
        if stretch.rule == "keep_or_average":
            keep_equal(stretch.dtype, read, out)
        return out

    def _same(self, piece: _Piece, read: list[Bytes]) -> bool:
        for place, other in enumerate(read[1:], 1):
            if np.array_equal(read[0], other):
                continue
            if piece.stretch.rule == "equal":
                name = piece.stretch.tensor_at(piece.offset + int(np.argmax(read[0] != other)))
                first, second = (self.inputs[at].checkpoint for at in (0, place))
                kind = "frozen tensors" if piece.stretch.dtype in FLOATS else "integers and booleans"
                accepted = f"{kind} that are the same in all models, as in {first.name}"
                path = second.tensors[name][0]
                raise TensorMismatch(path, name, None, accepted, found=f"other values in {second.name}")
            return False
        return True

    def _refuse_values(self, piece: _Piece, read: list[Bytes], out: Bytes) -> None:
        """Say whose fault it is that a value is not finite."""
        dtype = piece.stretch.dtype
        for place, stored in enumerate(read):
            if not finite(dtype, stored.data):
                name = _first_not_finite(piece, stored)
                checkpoint = self.inputs[place].checkpoint
                found = f"NaN or infinity in {checkpoint.name}"
                raise BadCheckpoint(checkpoint.tensors[name][0], name, None, "finite values only", found=found)
        accepted = f"a merge whose values fit into {dtype}"
        raise InvalidInput(f"tensor {_first_not_finite(piece, out)}", None, accepted, found="one that overflows")


def _first_not_finite(piece: _Piece, stored: Bytes) -> str:
    low, high = 0, stored.size
    while high - low > 8:
        middle = (low + high) // 16 * 8
        low, high = (low, middle) if not all_finite(piece.stretch.dtype, stored[low:middle]) else (middle, high)
    size = SIZES[piece.stretch.dtype]
    for at in range(low, high, size):
        if not all_finite(piece.stretch.dtype, stored[at : at + size]):
            return piece.stretch.tensor_at(piece.offset + at)
    raise AssertionError("some value is not finite")
