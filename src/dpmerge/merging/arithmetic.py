"""What a merged value is, bit by bit, computed on one buffer of stored bytes at a time.

Guarantees: with weights w_i each rounded once to the accumulator's precision (float32; float64 for F64), inputs x_i in
the recipe's order and z the release noise, a value is  fl(… fl(fl(w_1 x_1) + fl(w_2 x_2)) + …), then, where there is
noise, fl(that + fl(z)), then rounded once to the stored dtype: every fl and the last rounding to nearest, ties to even.
A value depends on its own inputs alone, so neither buffers nor threads can change a bit of it. Stored values that are
not finite are always noticed.
Refuses: nothing; who calls decides what to say about values that are not finite.

numpy has no bfloat16 and converts float16 one value at a time. Both are read here as pairs in a 32-bit word, the even
places in its lower half and the odd ones in its upper: each half becomes a float32 with one or three vector operations.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmerge.merging.compiled_kernels import Kernels
from dpmerge.portfolio.tensors import SIZES

Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]

FLOATS = ("F64", "F32", "F16", "BF16")

_SIGNED = {8: np.int64, 4: np.int32, 2: np.int16, 1: np.int8}
_UNSIGNED = {8: np.uint64, 4: np.uint32, 2: np.uint16, 1: np.uint8}
_INFINITY = {"F64": 0x7FF0000000000000, "F32": 0x7F800000, "F16": 0x7C00, "BF16": 0x7F80}
"""The bits of +infinity: what is stored as this or more, the sign aside, is not finite."""

_16 = np.uint32(16)
_UPPER = np.uint32(0xFFFF0000)
_ONE = np.uint32(1)
_HALF_LESS_ONE = np.uint32(0x7FFF)
_F16_SHIFT = np.int32(3)
_F16_FIELDS = np.uint32(0x8FFFE000)
_F16_BIAS = np.float32(2.0**112)

assert sys.byteorder == "little", "safetensors are little-endian, and so are the words read here"


def weight_of(dtype: str, weight: float) -> np.floating[Any]:
    """The weight as it is multiplied with: rounded once."""
    return np.float64(weight) if dtype == "F64" else np.float32(weight)


def all_finite(dtype: str, stored: Bytes) -> bool:
    """Whether no value is NaN or infinite: two reductions over the bits, without a temporary array."""
    if dtype not in _INFINITY or not stored.size:
        return True
    width, infinity = SIZES[dtype], _INFINITY[dtype]
    positive = int(stored.view(_SIGNED[width]).max())
    negative = int(stored.view(_UNSIGNED[width]).max())
    return positive < infinity and negative < infinity + (1 << (8 * width - 1))


class Scratch:
    """The arrays one thread computes in, for buffers of at most `largest` stored bytes; loops compiled or not."""

    def __init__(self, largest: int, kernels: Kernels | None = None) -> None:
        self.largest = largest
        self._kernels = kernels
        self._sum = np.empty(largest, np.uint8)
        self._term = np.empty(largest, np.uint8)

    def combine(
        self, dtype: str, inputs: Sequence[Bytes], weights: Sequence[float], out: Bytes, noise: Array | None
    ) -> bool:
        """Write Σ w_i x_i + noise to `out`; False if a value of an input or of the result is not finite.

        Buffers hold whole words of eight bytes; what lies in the last one beyond the values must be finite, such as 0.
        """
        rounded = [weight_of(dtype, weight) for weight in weights]
        if self._kernels is not None and dtype == "BF16":
            words = tuple(stored.view(np.uint16) for stored in inputs)
            drawn = np.empty(0) if noise is None else noise
            return self._kernels.combine_bf16(words, np.array(rounded, np.float32), drawn, out.view(np.uint16))
        if dtype in ("F64", "F32"):
            precision = np.float64 if dtype == "F64" else np.float32
            total, term = out.view(precision), self._term[: out.size].view(precision)
            np.multiply(inputs[0].view(precision), rounded[0], out=total)
            for stored, weight in zip(inputs[1:], rounded[1:], strict=True):
                np.multiply(stored.view(precision), weight, out=term)
                np.add(total, term, out=total)
            if noise is not None:
                _add_noise(total, noise, term)
            return all_finite(dtype, out)
        for lane in (0, 1):
            total = self._sum[: out.size].view(np.float32)
            term = self._term[: out.size].view(np.float32)
            _read_half(dtype, lane, inputs[0].view(np.uint32), rounded[0], total)
            for stored, weight in zip(inputs[1:], rounded[1:], strict=True):
                _read_half(dtype, lane, stored.view(np.uint32), weight, term)
                np.add(total, term, out=total)
            if noise is not None:
                _add_noise(total, noise[lane::2], term)
            _STORE[dtype](lane, total, term, out)
        # The way float16 is read here makes an infinity a number, so that its inputs must be looked at.
        return all_finite(dtype, out) and (dtype != "F16" or all(all_finite(dtype, stored) for stored in inputs))


def keep_equal(dtype: str, inputs: Sequence[Bytes], out: Bytes) -> None:
    """Where all inputs hold the same bits, `out` holds them too, whatever the sum was rounded to."""
    kind = _UNSIGNED[SIZES[dtype]]
    first = inputs[0].view(kind)
    same = np.ones(first.shape, bool)
    for stored in inputs[1:]:
        same &= stored.view(kind) == first
    np.copyto(out.view(kind), first, where=same)


def _add_noise(total: Array, noise: Array, term: Array) -> None:
    count = len(noise)  # fewer than there are places, where the last word is not full
    np.copyto(term[:count], noise, casting="same_kind")
    np.add(total[:count], term[:count], out=total[:count])


def _read_half(dtype: str, lane: int, words: Array, weight: Any, out: Array) -> None:
    """The weight times the values in one half of each word, rounded once."""
    bits = out.view(np.uint32)
    if lane:
        np.bitwise_and(words, _UPPER, out=bits)
    else:
        np.left_shift(words, _16, out=bits)
    if dtype == "F16":
        # Exponent and mantissa moved to a float32's places give x · 2⁻¹¹², subnormals included; the weight, at most
        # one, makes up for it exactly.
        np.right_shift(out.view(np.int32), _F16_SHIFT, out=out.view(np.int32))
        np.bitwise_and(bits, _F16_FIELDS, out=bits)
        weight = weight * _F16_BIAS
    np.multiply(out, weight, out=out)


def _store_bf16(lane: int, total: Array, term: Array, out: Bytes) -> None:
    """Round to nearest even: add half a unit less one, and one more where the last bit kept is odd."""
    bits, odd, words = total.view(np.uint32), term.view(np.uint32), out.view(np.uint32)
    # A NaN cannot be carried over into a number by this: NaNs that arise from bfloat16 have lower halves of zero.
    np.right_shift(bits, _16, out=odd)
    np.bitwise_and(odd, _ONE, out=odd)
    np.add(bits, _HALF_LESS_ONE, out=bits)
    np.add(bits, odd, out=bits)
    if lane:
        np.bitwise_and(bits, _UPPER, out=bits)
        np.bitwise_or(words, bits, out=words)
    else:
        np.right_shift(bits, _16, out=words)


def _store_f16(lane: int, total: Array, term: Array, out: Bytes) -> None:  # noqa: ARG001
    np.copyto(out.view(np.float16)[lane::2], total, casting="same_kind")


_STORE = {"BF16": _store_bf16, "F16": _store_f16}
