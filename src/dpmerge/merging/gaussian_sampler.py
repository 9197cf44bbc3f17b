"""Release noise: Gaussian values that nobody can predict, made where they are needed and kept nowhere.

Guarantees: the bits come from AES-256 in counter mode. A merge has one key, which the operating system gave; each
weight has a key of its own, derived from it by the weight's name, and value i of a weight has bits of its own in that
stream, 64 for each value, so that no two values share bits, any slice of a weight can be made alone, and all names of
one weight share its values. They become float64 normals by Box and Muller, computed with nothing but IEEE additions,
multiplications, divisions and roots: the same key gives the same bits on every machine.

This is a floating-point Gaussian, not an ideal one: each pair is made of a uniform number and an angle of 53 bits each,
no value is beyond 8.58 standard deviations (an ideal one is with probability 1e-17), each is within 2e-15 of what its
bits stand for, relatively, and the sum with the model is rounded to the model's dtype. The accounting takes the noise
for ideal; who can tell values apart by their lowest bits could learn more than it says.
"""

from __future__ import annotations

import hmac
import math
import os
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dpmerge.merging.compiled_kernels import Kernels

Array = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]

SAMPLER = "aes-256-ctr box-muller 2"
"""What turns a key into values; another number where any bit would differ."""

PAIRS = 2**14
"""Pairs of a block, made at a time: few enough for the cache, enough for threads not to wait for the interpreter."""

BLOCK = 2 * PAIRS
"""Values of a block: the first of each pair, then the second of each."""

_11, _62 = np.uint64(11), np.uint64(62)
_52 = np.int64(52)
_ONE = np.uint64(1)
_BELOW_QUADRANT = np.uint64(2**62 - 1)
_SIGN = np.uint64(2**63)
_ROOT_HALF = np.int64(0x3FE6A09E667F3BCD)  # the bits of √½

_SIN = (
    1.5707963267948966,
    -0.6459640975062462,
    0.07969262624616565,
    -0.004681754135304255,
    0.0001604411847130916,
    -3.5988430204672576e-06,
    5.6921364280986254e-08,
    -6.684416831856085e-10,
    5.87297574479995e-12,
)
"""sin(π/2 · t) = t · P(t²) for t in [0, 1], to 4e-17; a test computes it with fifty digits."""

_LOG = (
    2.0,
    0.6666666666666765,
    0.3999999999930191,
    0.2857142876073828,
    0.22222197046404274,
    0.18183632241617026,
    0.153125131147383,
    0.14809867572313062,
)
"""log((1 + r) / (1 − r)) = r · P(r²) for |r| ≤ (√2 − 1) / (√2 + 1), to 3e-18."""


class GaussianSampler:
    """Normals of one merge. A key is drawn for each object and never leaves it."""

    def __init__(self, deviation: float, key: bytes | None = None) -> None:
        self._deviation = deviation
        self._key = os.urandom(32) if key is None else key

    def weight_key(self, weight: str) -> bytes:
        """The key of one weight, by the name it is known by: it tells its values, and nothing of any other's."""
        return hmac.digest(self._key, f"{SAMPLER}\0{weight}".encode(), "sha256")

    def draw(self, weight: str, start: int, out: Array, scratch: NoiseScratch) -> None:
        """Values `start` and on of a weight, by the name it is known by."""
        own = self.weight_key(weight)
        end = start + len(out)
        for block in range(start // BLOCK, -(-end // BLOCK)):
            first = block * BLOCK
            low, high = max(start, first), min(end, first + BLOCK)
            made = scratch.block(own, block, low - first, high - first)
            np.multiply(made, self._deviation, out=out[low - start : high - start])


class WorkerSampler(GaussianSampler):
    """Normals of the weights whose keys were handed over, and of no other: what a worker is told."""

    def __init__(self, deviation: float, keys: Mapping[str, bytes]) -> None:
        super().__init__(deviation, key=b"")
        self._keys = keys

    def weight_key(self, weight: str) -> bytes:
        return self._keys[weight]


class NoiseScratch:
    """The arrays of one thread; its loops compiled, where somebody did that."""

    def __init__(self, kernels: Kernels | None = None) -> None:
        self._kernels = kernels
        self._zeros = memoryview(bytes(16 * PAIRS))
        self.random = bytearray(16 * PAIRS + 15)  # the cipher asks for room for another block
        self._words = np.frombuffer(self.random, np.uint64, 2 * PAIRS).reshape(PAIRS, 2)
        self.values = np.empty(BLOCK, np.float64)
        self._bits = np.empty(PAIRS, np.uint64)
        self._floats = [np.empty(PAIRS, np.float64) for _ in range(3)]

    def block(self, key: bytes, number: int, start: int, end: int) -> Array:
        """Values of one block, from `start` to `end`, until the next is made; of 16 bytes a pair."""
        # Of a range within one half only its own pairs are needed.
        begun, stop = (start, end) if end <= PAIRS else (start - PAIRS, end - PAIRS) if start >= PAIRS else (0, PAIRS)
        counter = (number * PAIRS + begun).to_bytes(16, "big")
        stream = Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor()
        stream.update_into(self._zeros[: 16 * (stop - begun)], memoryview(self.random)[16 * begun :])
        self.box_muller(begun, stop)
        return self.values[start:end]

    def box_muller(self, begun: int, stop: int) -> None:
        """Two independent normals of each of these pairs of 64-bit numbers.

        The first has 53 bits for the radius √(−2 log u). The second has two for the quadrant and 51 for the angle,
        a share t of a right angle, of which odd quadrants take 1 − t, so that only signs are left to be set.
        """
        words, bits = self._words[begun:stop], self._bits[begun:stop]
        x, y = self.values[begun:stop], self.values[PAIRS + begun : PAIRS + stop]
        if self._kernels is not None:
            self._kernels.box_muller(words, _SIN, _LOG, x, y)
            return
        share, radius, square = (array[begun:stop] for array in self._floats)
        angles = words[:, 1]
        np.bitwise_and(angles, _BELOW_QUADRANT, out=bits)
        np.right_shift(bits, _11, out=bits)
        np.copyto(share, bits)
        np.multiply(share, 2.0**-51, out=share)
        np.right_shift(angles, _62, out=bits)
        np.bitwise_and(bits, _ONE, out=bits)
        np.copyto(y, bits)
        np.subtract(y, share, out=share)
        np.absolute(share, out=share)
        _quarter_sine(share, y, square)
        np.subtract(1.0, share, out=share)
        _quarter_sine(share, x, square)
        _radius(words[:, 0], bits, radius, share, square)
        np.multiply(x, radius, out=x)
        np.multiply(y, radius, out=y)
        signs = y.view(np.uint64)
        np.bitwise_and(angles, _SIGN, out=bits)
        np.bitwise_or(signs, bits, out=signs)
        signs = x.view(np.uint64)
        np.left_shift(angles, _ONE, out=bits)
        np.bitwise_xor(bits, angles, out=bits)
        np.bitwise_and(bits, _SIGN, out=bits)
        np.bitwise_or(signs, bits, out=signs)


def _quarter_sine(share: Array, out: Array, square: Array) -> None:
    """sin(π/2 · share)."""
    np.multiply(share, share, out=square)
    _polynomial(_SIN, square, out)
    np.multiply(out, share, out=out)


def _radius(uniform: Words, bits: Words, out: Array, ratio: Array, square: Array) -> None:
    """√(−2 log u), u = (the upper 53 bits and one) / 2⁵³: never zero, so that its logarithm is finite.

    u = m · 2^e with m from √½ to √2; log m is a series in (m − 1) / (m + 1), small and without cancellation.
    """
    np.right_shift(uniform, _11, out=bits)
    np.copyto(out, bits)
    np.add(out, 1.0, out=out)
    np.multiply(out, 2.0**-53, out=out)
    stored = out.view(np.int64)
    exponent = bits.view(np.int64)
    np.subtract(stored, _ROOT_HALF, out=exponent)
    np.right_shift(exponent, _52, out=exponent)
    np.left_shift(exponent, _52, out=square.view(np.int64))
    np.subtract(stored, square.view(np.int64), out=stored)  # m
    np.subtract(out, 1.0, out=ratio)
    np.add(out, 1.0, out=out)
    np.divide(ratio, out, out=ratio)
    np.multiply(ratio, ratio, out=square)
    _polynomial(_LOG, square, out)
    np.multiply(out, ratio, out=out)
    np.copyto(square, exponent)
    np.multiply(square, math.log(2), out=square)
    np.add(out, square, out=out)
    np.multiply(out, -2.0, out=out)
    np.sqrt(out, out=out)


def _polynomial(coefficients: tuple[float, ...], at: Array, out: Array) -> None:
    np.multiply(at, coefficients[-1], out=out)
    for coefficient in coefficients[-2:0:-1]:
        np.add(out, coefficient, out=out)
        np.multiply(out, at, out=out)
    np.add(out, coefficients[0], out=out)
