"""The inner loops of a merge, compiled by numba where it is installed (extra `numba`): the same bytes, sooner.

Guarantees: every sum, product, quotient, root and rounding is one IEEE operation, in the order that `arithmetic` and
`gaussian_sampler` have; numba is not asked to reorder or to fuse any. A test compares the bytes.
Refuses: nothing; where numba is missing or does not work, numpy does the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Coefficients = tuple[float, ...]

WORTH_IT, WORTH_IT_NOISED = 2**30, 2**27
"""Bytes of an output: below, importing numba takes longer than it saves."""

_BLOCK, _PAIRS = 2048, 512
"""Values, and pairs of them, at a time: few enough for the fastest cache."""

_16 = np.uint32(16)
_ONE = np.uint32(1)
_HALF_LESS_ONE = np.uint32(0x7FFF)
_INFINITE = np.uint32(0x7F80)


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """Compiled."""

    combine_bf16: Callable[[tuple[Array, ...], Array, Array, Array], bool]
    box_muller: Callable[[Array, Coefficients, Coefficients, Array, Array], None]


def kernels(size: int, *, inputs: int, noised: bool) -> Kernels | None:
    """What is compiled, where an output of so many bytes is worth it and numba works; tried before it is used."""
    return _compiled(inputs) if size >= (WORTH_IT_NOISED if noised else WORTH_IT) else None


@cache
def _compiled(inputs: int) -> Kernels | None:
    # Whatever is wrong with numba, or with what it kept on disk, a merge that is charged must go on without it.
    for kept in (True, False):
        with suppress(Exception):
            return _tried(inputs, kept)
    return None


def _tried(inputs: int, kept: bool) -> Kernels:
    from numba import njit

    # Kept on disk by the time of this file, so that all that the code depends on must be in it, or an argument.
    compiled = njit(nogil=True, cache=kept, error_model="numpy")
    made = Kernels(combine_bf16=compiled(combine_bf16), box_muller=compiled(box_muller))
    words, nothing = tuple(np.zeros(4, np.uint16) for _ in range(inputs)), np.empty(0)
    made.combine_bf16(words, np.zeros(inputs, np.float32), nothing, np.zeros(4, np.uint16))
    pairs, some = np.zeros((1, 2), np.uint64), np.zeros(1)
    made.box_muller(pairs, (0.0,) * 9, (0.0,) * 8, some, some.copy())
    return made


def combine_bf16(inputs: tuple[Array, ...], weights: Array, noise: Array, out: Array) -> bool:
    """Σ w_i x_i + noise of 16-bit words, each the upper half of a float32; rounded to nearest, ties to even.

    Noise may be shorter than the words, which are then padded. Whether all values are finite.
    """
    total, term = np.empty(_BLOCK, np.float32), np.empty(_BLOCK, np.float32)
    sums, bits = total.view(np.uint32), term.view(np.uint32)
    wrong = np.uint32(0)
    for start in range(0, len(out), _BLOCK):
        count = min(_BLOCK, len(out) - start)
        first, weight = inputs[0][start : start + count], weights[0]
        for i in range(count):
            bits[i] = np.uint32(first[i]) << _16
        for i in range(count):
            total[i] = term[i] * weight
        for k in range(1, len(inputs)):
            stored, weight = inputs[k][start : start + count], weights[k]
            for i in range(count):
                bits[i] = np.uint32(stored[i]) << _16
            for i in range(count):
                total[i] += term[i] * weight
        drawn = noise[start : start + count]
        for i in range(len(drawn)):
            total[i] += np.float32(drawn[i])
        rounded = out[start : start + count]
        for i in range(count):
            word = sums[i]
            high = (word + _HALF_LESS_ONE + ((word >> _16) & _ONE)) >> _16
            rounded[i] = np.uint16(high)
            wrong |= np.uint32((high & _INFINITE) == _INFINITE)
    return bool(wrong == 0)


_LOG_2 = math.log(2)
_11, _52, _62 = np.uint64(11), np.int64(52), np.uint64(62)
_BIT = np.uint64(1)
_BELOW_QUADRANT = np.uint64(2**62 - 1)
_SIGN = np.uint64(2**63)
_ROOT_HALF = np.int64(0x3FE6A09E667F3BCD)  # the bits of √½


def box_muller(words: Array, sine: Coefficients, log: Coefficients, x: Array, y: Array) -> None:
    """Two normals of each pair of 64-bit numbers, as `NoiseScratch.box_muller` describes them; by these polynomials.

    Written out, and in one loop after the other, so that each loop is compiled to vector instructions.
    """
    mantissa, exponent, share = np.empty(_PAIRS), np.empty(_PAIRS, np.int64), np.empty(_PAIRS)
    stored, x_bits, y_bits = mantissa.view(np.int64), x.view(np.uint64), y.view(np.uint64)
    for start in range(0, len(x), _PAIRS):
        count = min(_PAIRS, len(x) - start)
        for i in range(count):
            angle = words[start + i, 1]
            odd = np.float64(np.int64((angle >> _62) & _BIT))
            share[i] = abs(odd - np.float64(np.int64((angle & _BELOW_QUADRANT) >> _11)) * 2.0**-51)
            mantissa[i] = (np.float64(np.int64(words[start + i, 0] >> _11)) + 1.0) * 2.0**-53
        for i in range(count):
            exponent[i] = (stored[i] - _ROOT_HALF) >> _52
            stored[i] -= exponent[i] << _52
        for i in range(count):
            r = (mantissa[i] - 1.0) / (mantissa[i] + 1.0)
            s = r * r
            p = ((s * log[7] + log[6]) * s + log[5]) * s + log[4]
            p = (((p * s + log[3]) * s + log[2]) * s + log[1]) * s + log[0]
            radius = math.sqrt((p * r + np.float64(exponent[i]) * _LOG_2) * -2.0)
            t = share[i]
            s = t * t
            p = (((s * sine[8] + sine[7]) * s + sine[6]) * s + sine[5]) * s + sine[4]
            p = (((p * s + sine[3]) * s + sine[2]) * s + sine[1]) * s + sine[0]
            y[start + i] = p * t * radius
            t = 1.0 - share[i]
            s = t * t
            p = (((s * sine[8] + sine[7]) * s + sine[6]) * s + sine[5]) * s + sine[4]
            p = (((p * s + sine[3]) * s + sine[2]) * s + sine[1]) * s + sine[0]
            x[start + i] = p * t * radius
        for i in range(count):
            angle = words[start + i, 1]
            y_bits[start + i] |= angle & _SIGN
            x_bits[start + i] |= ((angle << _BIT) ^ angle) & _SIGN
