"""The work of a merge: pieces of tensors that fit into memory, done by several threads.

Guarantees: the bytes do not depend on how many threads there are or how large the pieces; pieces enter each digest in
the order of the file; all names of one weight get one draw of release noise.
Refuses: values that are not finite, frozen tensors and integers that differ, a result that does not fit into its dtype.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from dpmerge.errors import CheckpointError, InvalidInputError, TensorMismatchError
from dpmerge.merging.arithmetic import FLOATS, Bytes, Scratch, all_finite, keep_equal
from dpmerge.merging.byte_progress import ByteCount
from dpmerge.merging.checkpoint_input import CheckpointInput
from dpmerge.merging.compiled_kernels import Kernels, kernels
from dpmerge.merging.gaussian_sampler import Array, GaussianSampler, NoiseScratch
from dpmerge.merging.ordered_hash import HashStoppedError, stop_all
from dpmerge.merging.tensor_slices import TensorSlice
from dpmerge.merging.writing import OutputWriter
from dpmerge.portfolio.tensors import SIZES, finite


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of a slice that fits into the buffers, with its place in every digest it belongs to."""

    span: TensorSlice
    offset: int
    length: int
    tickets: tuple[int, ...]
    out_ticket: int


class Buffers:
    """The memory of one thread."""

    def __init__(self, inputs: int, size: int, *, noised: bool, kernels: Kernels | None) -> None:
        self.inputs = [np.zeros(size, np.uint8) for _ in range(inputs)]
        self.out = np.zeros(size, np.uint8)
        self.scratch = Scratch(size, kernels)
        self.noise = np.empty(size // 2 if noised else 0, np.float64)
        self.noise_scratch = NoiseScratch(kernels) if noised else None


@dataclass(kw_only=True)
class MergeWork:
    """Pieces, handed out in order to whichever thread is free."""

    inputs: list[CheckpointInput]
    outputs: list[OutputWriter]
    slices: Iterator[TensorSlice]
    weights: list[float]
    noise: GaussianSampler | None
    buffer: int
    progress: ByteCount

    def __post_init__(self) -> None:
        self._pieces = self._in_order()
        self._handing = threading.Lock()
        self._failed = threading.Event()
        size = sum(output.file.size for output in self.outputs)
        self._kernels = kernels(size, inputs=len(self.inputs), noised=self.noise is not None)

    def done_by(self, jobs: int) -> None:
        """All of it, by so many threads; the first error of any of them is raised."""
        with ThreadPoolExecutor(jobs, thread_name_prefix="merge") as pool:
            try:
                errors = [error for error in pool.map(lambda _: self._take(), range(jobs)) if error is not None]
            except BaseException:
                self._stop()
                raise
        for error in sorted(errors, key=lambda error: isinstance(error, HashStoppedError)):
            raise error

    def _in_order(self) -> Iterator[Piece]:
        for span in self.slices:
            for place in span.places:
                place.source.open()
            out = self.outputs[span.file]
            for offset in range(0, span.length, self.buffer):
                yield Piece(
                    span=span,
                    offset=offset,
                    length=min(self.buffer, span.length - offset),
                    tickets=tuple(p.hash.ticket() if p.hash else 0 for p in span.places),
                    out_ticket=out.hash.ticket() if out.hash else 0,
                )

    def _take(self) -> BaseException | None:
        try:
            buffers = Buffers(len(self.inputs), self.buffer, noised=self.noise is not None, kernels=self._kernels)
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
            stop_all(each.hashes())
        stop_all(output.hash for output in self.outputs if output.hash)

    def _do(self, piece: Piece, buffers: Buffers) -> None:
        span, length = piece.span, piece.length
        words = -(-length // 8) * 8
        read = [buffer[:words] for buffer in buffers.inputs]
        for place, buffer in zip(span.places, read, strict=True):
            buffer[length:] = 0
            place.source.read(buffer.data[:length], place.offset + piece.offset)
        out = self._result(piece, read, buffers).data[:length]
        output = self.outputs[span.file]
        output.write(out, span.start + piece.offset)
        for place, ticket, buffer in zip(span.places, piece.tickets, read, strict=True):
            if place.hash is not None:
                place.hash.feed(ticket, buffer.data[:length])
            place.source.finished(length)
        if output.hash is not None:
            output.hash.feed(piece.out_ticket, out)
        self.progress.add(length)

    def _result(self, piece: Piece, read: list[Bytes], buffers: Buffers) -> Bytes:
        span = piece.span
        same = span.rule in ("equal", "keep_or_average") and self._same(piece, read)
        if span.rule in ("copy", "equal") or same:
            if not all_finite(span.dtype, read[0]):
                self._refuse_values(piece, read, read[0])
            return read[0]
        out, noise = buffers.out[: read[0].size], None
        if span.rule == "average_noised":
            noise = self._drawn(piece, buffers)
        if not buffers.scratch.combine(span.dtype, read, self.weights, out, noise):
            self._refuse_values(piece, read, out)
        if span.rule == "keep_or_average":
            keep_equal(span.dtype, read, out)
        return out

    def _drawn(self, piece: Piece, buffers: Buffers) -> Array:
        """Release noise for the values of a piece, each that of its place in its weight, under whichever name."""
        assert self.noise is not None
        assert buffers.noise_scratch is not None
        size = SIZES[piece.span.dtype]
        noise = buffers.noise[: piece.length // size]
        for part in piece.span.parts(piece.offset, piece.length):
            values = noise[part.begin // size : part.end // size]
            self.noise.draw(piece.span.weight or part.name, part.skipped // size, values, buffers.noise_scratch)
        return noise

    def _same(self, piece: Piece, read: list[Bytes]) -> bool:
        for place, other in enumerate(read[1:], 1):
            if np.array_equal(read[0], other):
                continue
            if piece.span.rule == "equal":
                name = piece.span.tensor_at(piece.offset + int(np.argmax(read[0] != other)))
                first, second = (self.inputs[at].checkpoint for at in (0, place))
                kind = "frozen tensors" if piece.span.dtype in FLOATS else "integers and booleans"
                problem = f"{name}: it has other values in {second.name} than in {first.name}"
                remedy = f"average models whose {kind} are the same"
                raise TensorMismatchError(second.tensors[name][0], name, None, remedy, problem=problem)
            return False
        return True

    def _refuse_values(self, piece: Piece, read: list[Bytes], out: Bytes) -> None:
        """Say whose fault it is that a value is not finite."""
        dtype = piece.span.dtype
        for place, stored in enumerate(read):
            if not finite(dtype, stored.data):
                name = _first_not_finite(piece, stored)
                checkpoint = self.inputs[place].checkpoint
                found = f"NaN or infinity in {checkpoint.name}"
                raise CheckpointError(checkpoint.tensors[name][0], name, None, "finite values only", found=found)
        field = f"tensor {_first_not_finite(piece, out)}"
        problem = f"{field}: merged, its values do not fit into {dtype}"
        raise InvalidInputError(field, None, "merge other checkpoints, or add less release noise", problem=problem)


def _first_not_finite(piece: Piece, stored: Bytes) -> str:
    low, high = 0, stored.size
    while high - low > 8:
        middle = (low + high) // 16 * 8
        low, high = (low, middle) if not all_finite(piece.span.dtype, stored[low:middle]) else (middle, high)
    size = SIZES[piece.span.dtype]
    for at in range(low, high, size):
        if not all_finite(piece.span.dtype, stored[at : at + size]):
            return piece.span.tensor_at(piece.offset + at)
    raise AssertionError("some value is not finite")
