"""Release noise: Gaussian values that nobody can predict, made where they are needed and kept nowhere.

Guarantees: the bits come from AES-256 in counter mode under a key the operating system gave, one key for each merge and
one range of counters for each buffer of a weight, so that no two values share bits, and all names of one weight share
all of them; they become float64 normals by Box and Muller.

This is a floating-point Gaussian, not an ideal one: each pair is made of a uniform number and an angle of 53 bits each,
no value is beyond 8.58 standard deviations (an ideal one is with probability 1e-17), each is within some units in
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

_SHIFT = np.uint64(11)


class GaussianSampler:
    """Normals of one merge. A key is drawn for each object and never leaves it."""

    def __init__(self, deviation: float, key: bytes | None = None) -> None:
        self._deviation = deviation
        self._key = algorithms.AES(os.urandom(32) if key is None else key)

    def draw(self, piece: int, count: int, scratch: NoiseScratch) -> Array:
        """So many values, which stay until the next draw; `piece` is a number that no others have."""
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
        self._radius = np.empty(_PAIRS, np.float64)

    def box_muller(self, deviation: float, out: Array) -> None:
        """Two independent normals of each pair of 64-bit numbers."""
        pairs = len(out) // 2
        first, second = self._bits[:pairs], self._bits[pairs : 2 * pairs]
        x, y = out[:pairs], out[pairs:]
        radius = angle = self._radius[:pairs]
        np.right_shift(second, _SHIFT, out=second)
        np.copyto(angle, second)
        np.multiply(angle, 2 * math.pi * 2.0**-53, out=angle)
        np.cos(angle, out=x)
        np.sin(angle, out=y)
        np.right_shift(first, _SHIFT, out=first)
        np.copyto(radius, first)
        np.add(radius, 1.0, out=radius)  # in (0, 1] below: the logarithm of zero is never asked for
        np.multiply(radius, 2.0**-53, out=radius)
        np.log(radius, out=radius)
        np.multiply(radius, -2.0, out=radius)
        np.sqrt(radius, out=radius)
        np.multiply(radius, deviation, out=radius)
        np.multiply(x, radius, out=x)
        np.multiply(y, radius, out=y)
