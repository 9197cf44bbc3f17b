"""Every merged value, bit for bit, against exact rational numbers rounded by hand."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dpmerge.merging.arithmetic import Scratch, all_finite, keep_equal
from merging.models import FLOATS, bits_of, stored, values_of
from oracle.merged_values import FORMATS, decoded, merged


def padded(content: bytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(content.ljust(-(-len(content) // 8) * 8, b"\0"), np.uint8).copy()


def combined(dtype: str, inputs: list[bytes], weights: list[float], noise: Any = None) -> tuple[bytes, bool]:
    buffers = [padded(content) for content in inputs]
    out = np.full_like(buffers[0], 0xAB)
    with np.errstate(all="ignore"):
        good = Scratch(len(out)).combine(dtype, buffers, weights, out, noise)
    return out.tobytes()[: len(inputs[0])], good


@st.composite
def merges(draw: st.DrawFn) -> tuple[str, list[list[int]], list[float], list[float] | None]:
    dtype = draw(st.sampled_from(FLOATS))
    form = FORMATS[dtype]
    infinity = (2**form.exponent - 1) << form.mantissa
    # Either anything at all or numbers of one size, whose sums are full of ties and cancellations.
    near = form.bias << form.mantissa
    sizes = draw(st.sampled_from([st.integers(0, infinity - 1), st.integers(near, near + 40), st.integers(0, 40)]))
    bits = st.builds(lambda size, sign: size | sign << (form.width - 1), sizes, st.integers(0, 1))
    count, length = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    inputs = [draw(st.lists(bits, min_size=length, max_size=length)) for _ in range(count)]
    raw = draw(st.lists(st.floats(1e-6, 1.0) | st.just(1.0), min_size=count, max_size=count))
    weights = [weight / sum(raw) for weight in raw]
    noise = draw(st.none() | st.lists(st.floats(-4, 4), min_size=length, max_size=length))
    return dtype, inputs, weights, noise


@settings(max_examples=600)
@given(merges())
def test_values_are_those_of_the_specification(merge: Any) -> None:
    dtype, inputs, weights, noise = merge
    columns = list(zip(*inputs, strict=True))
    try:
        expected = [merged(c, weights, dtype, noise[i] if noise else None)[0] for i, c in enumerate(columns)]
    except OverflowError:
        assume(False)
    kind = bits_of(dtype, b"").dtype
    contents = [np.array(each, dtype=kind).tobytes() for each in inputs]
    result, good = combined(dtype, contents, weights, None if noise is None else np.array(noise))
    assert good
    assert bits_of(dtype, result).tolist() == expected


@pytest.mark.parametrize("dtype", FLOATS)
def test_values_are_the_exact_sum_up_to_rounding(dtype: str) -> None:
    random = np.random.default_rng(3)
    inputs = [stored(dtype, random.standard_normal(1001)) for _ in range(3)]
    weights = [0.5, 0.2, 0.3]
    result, _ = combined(dtype, inputs, weights)
    exact = sum(w * values_of(dtype, x) for w, x in zip(weights, inputs, strict=True))
    size = sum(w * abs(values_of(dtype, x)) for w, x in zip(weights, inputs, strict=True))
    half_unit = {"F64": 2.0**-53, "F32": 2.0**-24, "F16": 2.0**-11, "BF16": 2.0**-8}[dtype]
    working = 2.0**-53 if dtype == "F64" else 2.0**-24
    # One rounding to the stored dtype, six of the accumulator and its weights.
    assert np.all(abs(values_of(dtype, result) - exact) <= half_unit * abs(exact) * 1.001 + 6 * working * size)


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_half_precision_pattern_survives_a_weight_of_one(dtype: str) -> None:
    width = {"F64": 8, "F32": 4}.get(dtype, 2)
    random = np.random.default_rng(0)
    bits = np.arange(2**16, dtype=np.uint16) if width == 2 else random.integers(0, 256, 8 * 4096, dtype=np.uint8)
    values = bits.view({8: np.uint64, 4: np.uint32, 2: np.uint16}[width])
    infinity = (2 ** FORMATS[dtype].exponent - 1) << FORMATS[dtype].mantissa
    kept = values[(values & np.array(infinity, values.dtype)) != infinity]
    result, good = combined(dtype, [kept.tobytes()], [1.0])
    assert good
    assert result == kept.tobytes()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, -np.nan])
@pytest.mark.parametrize("place", [0, 3, 12])
@pytest.mark.parametrize("which", [0, 1])
def test_an_input_that_is_not_finite_is_noticed(dtype: str, value: float, place: int, which: int) -> None:
    values = [np.ones(13), np.ones(13)]
    values[which][place] = value
    inputs = [stored(dtype, each) for each in values]
    assert not combined(dtype, inputs, [0.25, 0.75])[1]
    assert not all_finite(dtype, np.frombuffer(inputs[which], np.uint8))
    assert all_finite(dtype, np.frombuffer(inputs[1 - which], np.uint8))


@pytest.mark.parametrize("pattern", [0x7C01, 0x7FFF, 0xFC00, 0xFFFF, 0x7C00])
def test_every_kind_of_float16_that_is_not_finite_is_noticed(pattern: int) -> None:
    content = np.array([0, 0, pattern, 0], np.uint16).tobytes()
    assert not combined("F16", [content, bytes(8)], [1e-9, 1 - 1e-9])[1]


@pytest.mark.parametrize("pattern", [0x7F81, 0x7FFF, 0xFF80, 0xFFFF, 0x7F80])
def test_every_kind_of_bfloat16_that_is_not_finite_is_noticed(pattern: int) -> None:
    content = np.array([0, pattern, 0, 0], np.uint16).tobytes()
    assert not combined("BF16", [content, bytes(8)], [1e-9, 1 - 1e-9])[1]


@pytest.mark.parametrize(("dtype", "largest"), [("F16", 65504.0), ("BF16", 3.3895313892515355e38)])
def test_overflow_on_rounding_is_noticed(dtype: str, largest: float) -> None:
    inputs = [stored(dtype, [largest, 1.0])]
    assert combined(dtype, inputs, [1.0], np.array([0.0, 0.0])) == (inputs[0], True)
    half_a_unit = 16.0 if dtype == "F16" else 2.0**119
    below = np.nextafter(np.float32(half_a_unit), np.float32(0)) * 0.99
    assert combined(dtype, inputs, [1.0], np.array([below, 0.0]))[1]
    assert not combined(dtype, inputs, [1.0], np.array([half_a_unit, 0.0]))[1]
    assert not combined(dtype, inputs, [1.0], np.array([2 * half_a_unit, 0.0]))[1]


def test_zero_keeps_its_sign() -> None:
    for dtype in FLOATS:
        negative = stored(dtype, [-0.0, -0.0])
        assert combined(dtype, [negative, negative], [0.5, 0.5])[0] == negative
        assert combined(dtype, [negative, stored(dtype, [0.0, 0.0])], [0.5, 0.5])[0] == stored(dtype, [0.0, 0.0])


def test_what_all_inputs_share_is_kept_where_they_differ_elsewhere() -> None:
    first, second = stored("BF16", [0.1, 0.2, 0.3, 0.4]), stored("BF16", [0.1, 0.5, 0.3, 0.4])
    out = padded(stored("BF16", [9.0, 9.0, 9.0, 9.0]))
    keep_equal("BF16", [padded(first), padded(second), padded(first)], out)
    assert out.tobytes() == stored("BF16", [0.1, 9.0, 0.3, 0.4])


def test_the_oracle_rounds_ties_to_even() -> None:
    # 1 + 2⁻⁸ is half way between 1 and the next bfloat16; so is 1 + 3·2⁻⁸, above.
    assert merged([0x3F80], [1.0], "BF16", 2.0**-8)[0] == 0x3F80
    assert merged([0x3F81], [1.0], "BF16", 2.0**-8)[0] == 0x3F82
    assert decoded(0x0001, FORMATS["F16"]).value == Fraction(1, 2**24)
