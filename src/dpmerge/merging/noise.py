"""Release noise: Gaussian values that nobody can predict, made where they are needed and kept nowhere.

Guarantees: the bits come from AES-256 in counter mode under a key the operating system gave, one key for each merge and
one range of counters for each buffer, so that no two values share bits; they become float64 normals by Box and Muller.

This is a floating-point Gaussian, not an ideal one: each pair is made of a uniform number of 53 bits and an angle of 55
bits, no value is beyond 8.58 standard deviations (an ideal one is with probability 1e-17), each is within some units in
the last place of a float64, and the sum with the model is rounded to the model's dtype. The accounting takes the noise
for ideal; who can tell values apart by their lowest bits could learn more than it says.
"""

from __future__ import annotations

import math
import os

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

Array = npt.NDArray[np.float64]

_PAIRS = 2**15
"""Pairs made at a time: few enough for the cache, and enough for threads not to wait for each other's interpreter."""

_SHIFT = np.int64(11)
_UNSIGNED_SHIFT = np.uint64(11)
_LOWEST = np.int64(1)
_SECOND = np.uint64(2)
_TO_SIGN = np.uint64(62)

# Coefficients of sine and cosine up to π/4, as in fdlibm: errors below 2⁻⁵⁸ before rounding.
_SINE = (
    1.58969099521155010221e-10, -2.50507602534068634195e-08, 2.75573137070700676789e-06,
    -1.98412698298579493134e-04, 8.33333333332248946124e-03, -1.66666666666666324348e-01,
)  # fmt: skip
_COSINE = (
    -1.13596475577881948265e-11, 2.08757232129817482790e-09, -2.75573143513906633035e-07,
    2.48015872894767294178e-05, -1.38888888888741095749e-03, 4.16666666666666019037e-02,
)  # fmt: skip


class Noise:
    """Normals of one merge. A key is drawn for each object and never leaves it."""

    def __init__(self, deviation: float, key: bytes | None = None) -> None:
        self._deviation = deviation
        self._key = algorithms.AES(os.urandom(32) if key is None else key)

    def draw(self, piece: int, count: int, scratch: NoiseScratch) -> Array:
        """So many values, which stay until the next draw; `piece` is a number that no other call has."""
        # Eight bytes say which piece, eight count blocks within it.
        stream = Cipher(self._key, modes.CTR(piece.to_bytes(8, "big") + bytes(8))).encryptor()
        for start in range(0, count, 2 * _PAIRS):
            pairs = min(_PAIRS, -(-(count - start) // 2))
            stream.update_into(scratch.zeros[: 16 * pairs], scratch.random)
            scratch.box_muller(self._deviation, scratch.values[start : start + 2 * pairs])
        return scratch.values[:count]


class NoiseScratch:
    """The arrays of one thread, for pieces of at most `largest` values."""

    def __init__(self, largest: int) -> None:
        self.values = np.empty(-(-largest // (2 * _PAIRS)) * 2 * _PAIRS, np.float64)
        self.zeros = memoryview(bytes(16 * _PAIRS))
        self.random = bytearray(16 * _PAIRS + 15)  # the cipher asks for room for another block
        self._bits = np.frombuffer(self.random, np.uint64, 2 * _PAIRS)
        self._radius, self._angle, self._square = (np.empty(_PAIRS, np.float64) for _ in range(3))
        self._integers = np.empty(_PAIRS, np.int64)

    def box_muller(self, deviation: float, out: Array) -> None:
        """Two independent normals of each pair of 64-bit numbers."""
        pairs = len(out) // 2
        first, second = self._bits[:pairs], self._bits[pairs : 2 * pairs]
        x, y = out[:pairs], out[pairs:]
        self._on_circle(second, x, y)
        radius = self._radius[:pairs]
        np.right_shift(first, _UNSIGNED_SHIFT, out=first)
        np.copyto(radius, first)
        np.add(radius, 1.0, out=radius)  # in (0, 1] below: the logarithm of zero is never asked for
        np.multiply(radius, 2.0**-53, out=radius)
        np.log(radius, out=radius)
        np.multiply(radius, -2.0, out=radius)
        np.sqrt(radius, out=radius)
        np.multiply(radius, deviation, out=radius)
        np.multiply(x, radius, out=x)
        np.multiply(y, radius, out=y)

    def _on_circle(self, bits: npt.NDArray[np.uint64], x: Array, y: Array) -> None:
        """Uniform points of the circle: numpy's own sine takes most of the time of such a sampler.

        53 bits give an angle from -π/4 to π/4; one more decides whether the point is on the left or the right, and
        another whether its coordinates are exchanged.
        """
        count = len(bits)
        angle, square, integers = self._angle[:count], self._square[:count], self._integers[:count]
        np.right_shift(bits.view(np.int64), _SHIFT, out=integers)
        np.copyto(angle, integers)
        np.multiply(angle, math.pi / 4 * 2.0**-52, out=angle)
        np.multiply(angle, angle, out=square)
        _polynomial(_COSINE, square, x)
        np.multiply(x, square, out=x)
        np.subtract(x, 0.5, out=x)
        np.multiply(x, square, out=x)
        np.add(x, 1.0, out=x)
        _polynomial(_SINE, square, y)
        np.multiply(y, square, out=y)
        np.multiply(y, angle, out=y)
        np.add(y, angle, out=y)
        left = integers.view(np.uint64)
        np.bitwise_and(bits, _SECOND, out=left)
        np.left_shift(left, _TO_SIGN, out=left)
        np.bitwise_xor(x.view(np.uint64), left, out=x.view(np.uint64))
        exchanged, difference = integers, square.view(np.int64)
        np.bitwise_and(bits.view(np.int64), _LOWEST, out=exchanged)
        np.negative(exchanged, out=exchanged)  # all bits, or none
        np.bitwise_xor(x.view(np.int64), y.view(np.int64), out=difference)
        np.bitwise_and(difference, exchanged, out=difference)
        np.bitwise_xor(x.view(np.int64), difference, out=x.view(np.int64))
        np.bitwise_xor(y.view(np.int64), difference, out=y.view(np.int64))


def _polynomial(coefficients: tuple[float, ...], at: Array, out: Array) -> None:
    np.multiply(at, coefficients[0], out=out)
    for coefficient in coefficients[1:-1]:
        np.add(out, coefficient, out=out)
        np.multiply(out, at, out=out)
    np.add(out, coefficients[-1], out=out)
