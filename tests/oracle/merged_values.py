"""What a merged value is, from the words of its specification: exact rational numbers, rounded by hand.

Slow, and shares nothing with the package: no numpy, no floating point, no bits moved about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Format:
    """A binary floating-point format: bits of the exponent and of the stored mantissa."""

    exponent: int
    mantissa: int

    @property
    def bias(self) -> int:
        return 2 ** (self.exponent - 1) - 1

    @property
    def width(self) -> int:
        return 1 + self.exponent + self.mantissa


FORMATS = {"F64": Format(11, 52), "F32": Format(8, 23), "F16": Format(5, 10), "BF16": Format(8, 7)}


@dataclass(frozen=True)
class Number:
    """A rational number, with the sign that a zero has."""

    value: Fraction
    negative: bool

    @classmethod
    def of(cls, value: float) -> Number:
        return cls(Fraction(value), value < 0)


def decoded(bits: int, form: Format) -> Number:
    """The number of a bit pattern, which must be finite."""
    negative = bool(bits >> (form.width - 1))
    exponent = bits >> form.mantissa & (2**form.exponent - 1)
    mantissa = Fraction(bits & (2**form.mantissa - 1), 2**form.mantissa)
    assert exponent != 2**form.exponent - 1
    size = mantissa * _power(1 - form.bias) if exponent == 0 else (1 + mantissa) * _power(exponent - form.bias)
    return Number(-size if negative else size, negative)


def rounded(number: Number, form: Format) -> Number:
    """To nearest, ties to even, subnormals included; overflow is an error."""
    size = abs(number.value)
    exponent = _exponent(size, form)
    unit = _power(exponent - form.mantissa)
    size = round(size / unit) * unit  # Python rounds halves of a Fraction to even
    if size >= _power(form.bias + 1):
        raise OverflowError
    return Number(-size if number.negative else size, number.negative)


def encoded(number: Number, form: Format) -> int:
    """The bit pattern of a number that the format has."""
    size, sign = abs(number.value), int(number.negative) << (form.width - 1)
    if size < _power(1 - form.bias):
        return sign | _whole(size / _power(1 - form.bias - form.mantissa))
    exponent = _exponent(size, form)
    mantissa = _whole((size / _power(exponent) - 1) * 2**form.mantissa)
    return sign | (exponent + form.bias) << form.mantissa | mantissa


def merged(
    bits: Sequence[int], weights: Sequence[float], dtype: str, noise: float | None = None
) -> tuple[int, Fraction]:
    """The stored bits of Σ w_i x_i + noise, and the exact sum with the weights as given."""
    form = FORMATS[dtype]
    working = FORMATS["F64" if dtype == "F64" else "F32"]
    inputs = [decoded(each, form) for each in bits]
    total: Number | None = None
    for weight, value in zip(weights, inputs, strict=True):
        factor = rounded(Number.of(weight), working)
        term = rounded(Number(factor.value * value.value, value.negative), working)
        total = term if total is None else _sum(total, term, working)
    assert total is not None
    if noise is not None:
        total = _sum(total, rounded(Number.of(noise), working), working)
    exact = sum((Fraction(w) * x.value for w, x in zip(weights, inputs, strict=True)), Fraction(noise or 0))
    return encoded(rounded(total, form), form), exact


def _sum(one: Number, other: Number, form: Format) -> Number:
    value = one.value + other.value
    # A sum of zero is positive unless both were negative zeros.
    negative = one.negative and other.negative if value == 0 else value < 0
    return rounded(Number(value, negative), form)


def _exponent(size: Fraction, form: Format) -> int:
    """The power of two at or below a number, or that of the format's subnormals."""
    if size < _power(1 - form.bias):
        return 1 - form.bias
    guess = size.numerator.bit_length() - size.denominator.bit_length()
    return guess if size >= _power(guess) else guess - 1


def _power(exponent: int) -> Fraction:
    return Fraction(2) ** exponent


def _whole(value: Fraction) -> int:
    assert value.denominator == 1
    return value.numerator
