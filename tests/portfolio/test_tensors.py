"""The header reader agrees with the safetensors library on what it accepts, and finiteness with the numbers."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from dpmerge.errors import CheckpointError, PortfolioError
from dpmerge.portfolio import tensors as reader
from dpmerge.portfolio.tensors import finite, parse_header, read_contents, read_header, weights_digest
from portfolio.portfolios import header_entry, safetensors_bytes

DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(lambda name: name != "__metadata__")
Bits = npt.NDArray[Any]


@st.composite
def finite_arrays(draw: st.DrawFn) -> Bits:
    dtype = np.dtype(draw(st.sampled_from(sorted(DTYPES.values()))))
    shape = draw(arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    elements = arrays.from_dtype(dtype, allow_nan=False, allow_infinity=False)
    return np.asarray(draw(arrays.arrays(dtype, shape, elements=elements)))


MODELS = st.dictionaries(NAMES, finite_arrays(), min_size=1, max_size=4)


@given(model=MODELS, metadata=st.none() | st.dictionaries(NAMES, NAMES, max_size=2))
def test_headers_and_contents_agree_with_the_safetensors_library(
    model: dict[str, Bits], metadata: dict[str, str] | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / "model.safetensors"
    content = save(model, metadata=metadata)
    file.write_bytes(content)
    slots = read_header(file)
    found = read_contents(file, slots)
    assert found.sha256 == hashlib.sha256(content).hexdigest()
    theirs = dict(deserialize(content))
    assert {slot.name for slot in slots} == set(theirs) == set(found.tensors)
    for slot in slots:
        other = theirs[slot.name]
        assert (slot.dtype, list(slot.shape)) == (other["dtype"], list(other["shape"]))
        assert content[slot.start : slot.end] == bytes(other["data"]) == model[slot.name].tobytes()
        assert found.tensors[slot.name] == hashlib.sha256(model[slot.name].tobytes()).hexdigest()


@given(MODELS, st.randoms(use_true_random=False))
def test_the_weights_digest_does_not_depend_on_files(model: dict[str, Bits], random: Any) -> None:
    def entry(name: str, tensor: Bits) -> tuple[str, str, tuple[int, ...], str]:
        dtype = next(ours for ours, theirs in DTYPES.items() if np.dtype(theirs) == tensor.dtype)
        return name, dtype, tensor.shape, hashlib.sha256(tensor.tobytes()).hexdigest()

    entries = [entry(name, tensor) for name, tensor in model.items()]
    digest = weights_digest(entries)
    random.shuffle(entries)
    assert weights_digest(entries) == digest
    name, dtype, shape, content = entries[0]
    for other in (
        (name + "x", dtype, shape, content),
        (name, "F32" if dtype != "F32" else "I32", shape, content),
        (name, dtype, (*shape, 1), content),
        (name, dtype, shape, "0" * 64),
    ):
        assert weights_digest([other, *entries[1:]]) != digest


@pytest.mark.parametrize("piece", [8, 16, 2**22])
@given(model=MODELS)
@settings(max_examples=30)
def test_digests_do_not_depend_on_the_size_of_the_pieces_read(
    piece: int, model: dict[str, Bits], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / "model.safetensors"
    file.write_bytes(save(model))
    slots = read_header(file)
    whole = read_contents(file, slots)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "_PIECE", piece)
        assert read_contents(file, slots) == whole


@pytest.mark.parametrize("place", [0, 1, 7, 8, 63])
def test_a_value_that_is_not_finite_is_found_in_any_piece(
    place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.zeros(64, np.float32)
    values[place] = np.nan
    file = tmp_path / "model.safetensors"
    file.write_bytes(save({"fine": np.ones(3, np.float32), "bad": values}))
    monkeypatch.setattr(reader, "_PIECE", 32)
    with pytest.raises(CheckpointError, match="NaN or infinity") as caught:
        read_contents(file, read_header(file))
    assert (caught.value.file, caught.value.field) == (str(file), "bad")


def test_bfloat16_values_are_read_as_float32(tmp_path: Path) -> None:
    """numpy has no such type: −1, the largest value, the smallest normal and subnormal one, and both zeros."""
    data = struct.pack("<6H", 0xBF80, 0x7F7F, 0x0080, 0x0001, 0x0000, 0x8000)
    file = tmp_path / "model.safetensors"
    file.write_bytes(safetensors_bytes({"w": header_entry("BF16", [2, 3], 0, 12)}, data))
    (slot,) = read_header(file)
    assert (slot.dtype, slot.shape) == ("BF16", (2, 3))
    assert read_contents(file, [slot]).tensors == {"w": hashlib.sha256(data).hexdigest()}
    assert dict(deserialize(file.read_bytes()))["w"]["dtype"] == "BF16"


@given(st.sampled_from(["F16", "F32", "F64"]), st.binary(min_size=8, max_size=64))
def test_finite_agrees_with_numpy(dtype: str, content: bytes) -> None:
    content = content[: len(content) // 8 * 8]
    truth = bool(np.all(np.isfinite(np.frombuffer(content, DTYPES[dtype]))))
    assert finite(dtype, content) is truth
    assert finite(dtype, memoryview(content)) is truth


def test_finite_is_right_for_every_16_bit_pattern() -> None:
    for bits in range(2**16):
        pattern = struct.pack("<H", bits)
        half = struct.unpack("<e", pattern)[0]
        brain = struct.unpack("<f", b"\0\0" + pattern)[0]
        assert finite("F16", pattern) is bool(np.isfinite(half))
        assert finite("BF16", pattern) is bool(np.isfinite(brain))


@pytest.mark.parametrize(("dtype", "code"), [("F16", "e"), ("F32", "f"), ("F64", "d")])
def test_finite_is_right_at_the_edges_of_float32_and_float64(dtype: str, code: str) -> None:
    info = np.finfo(np.dtype(DTYPES[dtype]))
    for value in (info.max, info.min, info.tiny, info.smallest_subnormal, -info.smallest_subnormal, 0.0, -0.0):
        assert finite(dtype, struct.pack(f"<{code}", float(value)))
    width = info.bits // 8
    exponent, mantissa = info.bits - 1 - info.nmant, info.nmant
    for sign in (0, 1):
        for fraction in (0, 1, 2**mantissa - 1, 2 ** (mantissa - 1)):
            bits = (sign << (info.bits - 1)) | ((2**exponent - 1) << mantissa) | fraction
            assert not finite(dtype, bits.to_bytes(width, "little"))
            assert not finite(dtype, bytes(width) + bits.to_bytes(width, "little"))


@pytest.mark.parametrize("dtype", sorted(set(DTYPES) - {"F16", "F32", "F64"}))
def test_whole_numbers_are_always_finite(dtype: str) -> None:
    assert finite(dtype, b"\xff" * 16)


def test_an_empty_tensor_is_finite() -> None:
    assert all(finite(dtype, b"") for dtype in ("F16", "BF16", "F32", "F64", "U8"))


ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "U8", "F8_E5M2", "f32", 1]),
        "shape": st.lists(st.integers(-1, 4) | st.sampled_from([True, 1.0, None, 2**64]), max_size=3),
        "data_offsets": st.lists(st.integers(-1, 16), min_size=1, max_size=3),
    },
    optional={"extra": st.none()},
)


@settings(max_examples=500)
@given(st.dictionaries(st.sampled_from(["a", "b", "c", "__metadata__"]), ENTRIES, max_size=3), st.integers(0, 16))
def test_accepted_headers_are_read_alike_by_the_safetensors_library(header: dict[str, Any], length: int) -> None:
    text = json.dumps(header).encode()
    content = safetensors_bytes(text, bytes(length))
    try:
        slots = parse_header(text, length, "model.safetensors")
    except PortfolioError:
        return
    theirs = dict(deserialize(content))
    assert {slot.name: (slot.dtype, list(slot.shape)) for slot in slots} == {
        name: (entry["dtype"], list(entry["shape"])) for name, entry in theirs.items()
    }


ODD_HEADERS = {
    "UTF-16": '{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'.encode("utf-16-le"),
    "surrogate bytes": b'{"\xed\xa0\x80":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}',
    "a lone surrogate": b'{"\\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}',
    "NaN": b'{"a":{"dtype":"U8","shape":[NaN],"data_offsets":[0,0]}}',
    "padding": b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}   ',
    "a byte order mark": b'\xef\xbb\xbf{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}',
    "zeros behind": b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}\0\0',
}


@pytest.mark.parametrize("name", ODD_HEADERS)
def test_headers_the_safetensors_library_refuses_are_refused(name: str) -> None:
    text = ODD_HEADERS[name]
    try:
        theirs = {name for name, _ in deserialize(safetensors_bytes(text, b""))}
    except SafetensorError:
        with pytest.raises(CheckpointError):
            parse_header(text, 0, "model.safetensors")
    else:
        assert {slot.name for slot in parse_header(text, 0, "model.safetensors")} == theirs


def test_a_file_that_changes_between_header_and_contents_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    content = save({"w": np.ones(8, np.float32)})
    file.write_bytes(content)
    slots = read_header(file)
    for changed in (content[:-1], content + b"\0", b""):
        file.write_bytes(changed)
        with pytest.raises(CheckpointError, match="another length than a moment ago"):
            read_contents(file, slots)
    file.unlink()
    with pytest.raises(CheckpointError, match="No such file"):
        read_contents(file, slots)
    with pytest.raises(CheckpointError, match="No such file"):
        read_header(file)
