"""Every bad portfolio has a name, and is refused with the error, the file and the field that say what is wrong."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpmerge.errors import (
    CheckpointError,
    DigestMismatchError,
    InvalidInputError,
    ManifestError,
    MissingParentError,
    MixedPortfolioError,
    NotCombinableError,
    NotIndependentError,
    PickleRefusedError,
    PortfolioError,
    PrivateMetricError,
    TensorMismatchError,
    UnsafePathError,
)
from dpmerge.portfolio.manifest import Manifest
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.portfolio_caveats import caveats
from dpmerge.portfolio.tensors import parse_header
from portfolio.portfolios import (
    BLOCK,
    DP_SGD,
    HISTORY,
    INITIAL,
    OTHER_START,
    Document,
    add_remove,
    edit_manifest,
    header_entry,
    manifest,
    model,
    put_file,
    read_manifest,
    replaced,
    safetensors_bytes,
    write_checkpoint,
    write_json,
    write_portfolio,
)

Break = Callable[[Path], object]
LISTING = "schema: dpmerge/portfolio/v1\nruns: [a, b, c]\n"
FIRST_FILE = "checkpoints[0].files[0]"


@dataclass(frozen=True)
class Bad:
    """What is done to a valid portfolio, and the complaint it must lead to."""

    spoil: Break
    error: type[PortfolioError]
    file: str
    field: str
    text: tuple[str, ...]


def set_in(run: str, *path: str | int, to: Any) -> Break:
    return lambda home: edit_manifest(home / run, *path, to=to)


def raw(text: str | bytes) -> Break:
    """The whole manifest of the second run, whatever it is."""
    content = text.encode() if isinstance(text, str) else text
    return lambda home: (home / "b" / "privacy.json").write_bytes(content)


def listed(text: str | bytes) -> Break:
    content = text.encode() if isinstance(text, str) else text
    return lambda home: (home / "portfolio.yaml").write_bytes(content)


def weights(content: bytes, name: str | None = None) -> Break:
    """Other bytes as the first checkpoint of the second run, with a digest that fits."""
    return lambda home: put_file(home / "b", content, name=name)


def header(text: Document | str | bytes, data: bytes = bytes(8)) -> Break:
    return weights(safetensors_bytes(text, data))


def models(**changed: dict[int, Any]) -> Break:
    return lambda home: write_portfolio(home, models=changed)


def manifests(**changed: Document) -> Break:
    return lambda home: write_portfolio(home, manifests=changed)


def linked(target: str) -> Break:
    """A checkpoint's file replaced by a link."""

    def spoil(home: Path) -> None:
        outside = home.parent / "outside.safetensors"
        file = home / "b" / "step-2.safetensors"
        file.rename(outside)
        file.symlink_to(target)

    return spoil


def tied_to(bias: Any) -> Break:
    """Another bias, said to be the weight."""

    def spoil(home: Path) -> None:
        edit_manifest(home / "b", "checkpoints", to=[write_checkpoint(home / "b", 2, model(5, bias=bias))])
        edit_manifest(home / "b", "tensors", "tied", to=[["weight", "bias"]])

    return spoil


def flipped(home: Path) -> None:
    """One bit of a weight, the sign: the file stays valid in every other way."""
    file = home / "b" / "step-2.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 0x80
    file.write_bytes(content)


def truncated(home: Path) -> None:
    put_file(home / "b", (home / "b" / "step-2.safetensors").read_bytes()[:-3])


def sharded_twice(home: Path) -> None:
    """One tensor in both shards of a checkpoint."""
    saved = write_checkpoint(home / "b", 2, model(5), {"bias": np.zeros(2, np.float32)})
    edit_manifest(home / "b", "checkpoints", 0, to=saved)


def copied(home: Path) -> None:
    """The checkpoint of one run among those of another, with everything about it declared correctly."""
    write_portfolio(home, models={"a": {4: model(1)}, "b": {4: model(1)}})


def resaved(home: Path) -> None:
    """The same weights in a file of other bytes."""
    write_portfolio(home, models={"a": {4: model(1)}, "b": {4: model(2)}})
    shards = [{name: tensor} for name, tensor in reversed(model(1).items())]
    edit_manifest(home / "b", "checkpoints", 0, to=write_checkpoint(home / "b", 4, *shards))


def final_weights(home: Path, run: str) -> str:
    return str(read_manifest(home / run)["checkpoints"][-1]["weights"])


def undeclared_parent(home: Path) -> None:
    edit_manifest(home / "b", "initial_weights", to=final_weights(home, "a"))


def undeclared_start_on_disk(home: Path) -> None:
    """A run whose own first checkpoint, before any step, is another run's result."""
    write_portfolio(home, models={"a": {4: model(1)}, "b": {0: model(1), 4: model(2)}})


def hidden_copy(home: Path) -> None:
    """A copy that both runs claim to have started from, though both took steps with noise."""
    write_portfolio(home, models={"a": {4: model(1)}, "b": {4: model(1)}})
    for run in "ab":
        edit_manifest(home / run, "initial_weights", to=final_weights(home, "a"))


def copied_but_for_a_frozen_tensor(home: Path) -> None:
    write_portfolio(home, models={"a": {4: model(1)}, "b": {4: model(1, embedding=np.ones((2, 3), np.float16))}})


def frozen_result_of_another(home: Path) -> None:
    """A head trained on a backbone that another run trained privately, and that nobody declared."""
    backbone = {"embedding": np.full((2, 3), 0.1, np.float16)}
    everything = {"trained": ["weight", "bias", "embedding"], "initial": dict(INITIAL)}
    write_portfolio(
        home,
        runs="ab",
        manifests={"a": manifest("a", tensors=everything)},
        models={"a": {4: model(1, **backbone)}, "b": {4: model(2, **backbone)}},
    )
    (home / "portfolio.yaml").write_text("schema: dpmerge/portfolio/v1\nruns: [a, b]\n")


def child(step: int, run: str = "a") -> Document:
    return {"start": "private", "run": run, "step": step}


def big_manifest(home: Path) -> None:
    document = read_manifest(home / "b")
    (home / "b" / "privacy.json").write_text(json.dumps(document) + " " * 10_000_001)


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"weight": [1.0, 2.0]}))
    return buffer.getvalue()


def one_tensor(dtype: str, values: bytes, size: int) -> Break:
    return header({"bad": header_entry(dtype, [len(values) // size], 0, len(values))}, values)


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


def without(document: Document, field: str) -> Document:
    return {name: value for name, value in document.items() if name != field}


def entry(**changed: Any) -> Document:
    return {"bad": {**header_entry("F32", [2], 0, 8), **changed}}


B = "b/privacy.json"
W = "b/step-2.safetensors"
TEXT = json.dumps(manifest("b"))
PICKLED = ("a format that can run code when loaded", "safetensors.torch.save_file")
POINTS = {"kind": "approximate_dp", "points": [{"epsilon": 1, "delta": 1e-6}]}
SMOOTH = {"kind": "logistic", "feature_bound": 1.0, "records": 100, "vouched_by": "the team"}

NOT_FINITE: dict[str, tuple[str, int, dict[str, bytes]]] = {
    "F64": ("F64", 8, {n: struct.pack("<d", float(n)) for n in ("nan", "inf", "-inf")}),
    "F32": ("F32", 4, {n: struct.pack("<f", float(n)) for n in ("nan", "inf", "-inf")}),
    "F16": ("F16", 2, {n: struct.pack("<e", float(n)) for n in ("nan", "inf", "-inf")}),
    "BF16": ("BF16", 2, {"nan": b"\xc0\x7f", "inf": b"\x80\x7f", "-inf": b"\x80\xff"}),
}

UNKNOWN_FIELDS: dict[str, tuple[Document, tuple[str | int, ...], str]] = {
    "the manifest": (manifest("b"), (), "extra"),
    "the dataset": (manifest("b"), ("dataset",), "dataset.extra"),
    "the noise": (manifest("b"), ("noise",), "noise.extra"),
    "the ancestry": (manifest("b"), ("ancestry",), "ancestry.extra"),
    "the tensors": (manifest("b"), ("tensors",), "tensors.extra"),
    "the record": (manifest("b"), ("recorded_by",), "recorded_by.extra"),
    "dp_sgd": (manifest("b"), ("mechanism",), "mechanism.extra"),
    "a block": (manifest("b"), ("mechanism", "blocks", 0), "mechanism.blocks[0].extra"),
    "the optimizer": (manifest("b"), ("mechanism", "optimizer"), "mechanism.optimizer.extra"),
    "the smoothness": (
        manifest("b", mechanism={**DP_SGD, "smoothness": SMOOTH}),
        ("mechanism", "smoothness"),
        "mechanism.smoothness.extra",
    ),
    "the affine map": (
        manifest("b", mechanism={**DP_SGD, "affine_map": {"id": "m", "vouched_by": "x"}}),
        ("mechanism", "affine_map"),
        "mechanism.affine_map.extra",
    ),
    "a history": (manifest("b", mechanism=HISTORY), ("mechanism",), "mechanism.extra"),
    "a block of history": (
        manifest("b", mechanism=HISTORY),
        ("mechanism", "blocks", 0),
        "mechanism.blocks[0].extra",
    ),
    "a Gaussian release": (
        manifest("b", mechanism={"kind": "gaussian_release", "sensitivity": 1, "standard_deviation": 1}),
        ("mechanism",),
        "mechanism.extra",
    ),
    "a Rényi curve": (
        manifest("b", mechanism={"kind": "renyi", "orders": [2], "values": [1]}),
        ("mechanism",),
        "mechanism.extra",
    ),
    "points": (manifest("b", mechanism=POINTS), ("mechanism",), "mechanism.extra"),
    "a point": (manifest("b", mechanism=POINTS), ("mechanism", "points", 0), "mechanism.points[0].extra"),
    "a non-private model": (manifest("b", mechanism={"kind": "non_private"}), ("mechanism",), "mechanism.extra"),
}

BAD: dict[str, Bad] = {
    # Runs that do not belong together.
    "different dataset": Bad(
        set_in("b", "dataset", "id", to="others"), MixedPortfolioError, B, "dataset.id", ("'others'", "a/privacy.json")
    ),
    "different size": Bad(set_in("b", "dataset", "size", to=99), MixedPortfolioError, B, "dataset.size", ("99", "100")),
    "different unit": Bad(set_in("c", "unit", to="user"), MixedPortfolioError, "c/privacy.json", "unit", ("'user'",)),
    "different adjacency": Bad(
        manifests(b=add_remove(manifest("b"))), MixedPortfolioError, B, "adjacency", ("'add_remove'", "'replace_one'")
    ),
    "two runs with one name": Bad(
        set_in("b", "run", to="a"), MixedPortfolioError, B, "run", ("a name of its own", "a/privacy.json")
    ),
    "different tensor names": Bad(
        lambda home: _other_model(home, extra=np.zeros(1, np.float32)),
        TensorMismatchError, W, "tensor names", ("'extra'", "b@2"),
    ),
    "different shapes": Bad(
        lambda home: _other_model(home, weight=np.zeros((2, 3), np.float32)),
        TensorMismatchError, W, "weight.shape", ("[2, 3]", "[2, 3] here, [3, 2] in a@2"),
    ),
    "different dtypes": Bad(
        lambda home: _other_model(home, bias=np.zeros(2, np.float64)),
        TensorMismatchError, W, "bias.dtype", ("F64", "F64 here, F32 in a@2"),
    ),
    "shapes that differ within a run": Bad(
        lambda home: _other_model(home, place=1, bias=np.zeros(3, np.float32)),
        TensorMismatchError, "b/step-4.safetensors", "bias.shape", ("[3]", "[2]"),
    ),
    # Shared noise.
    "the same stream twice": Bad(
        set_in("b", "noise", "stream", to=manifest("a")["noise"]["stream"]),
        NotIndependentError, B, "noise.stream", ("a/privacy.json", "not independent"),
    ),
    "weights copied to another run": Bad(
        copied, NotIndependentError, "b/step-4.safetensors", "weights", ("b@4", "a@4 has the same", "share their noise")
    ),
    "weights copied into other shards": Bad(
        resaved, NotIndependentError, "b/step-4-1.safetensors", "weights", ("b@4", "a@4 has the same")
    ),
    "a copy that says it is its own start": Bad(
        hidden_copy, NotIndependentError, "b/step-4.safetensors", "weights", ("b@4", "a@4")
    ),
    "trained weights copied, a frozen tensor changed": Bad(
        copied_but_for_a_frozen_tensor, NotIndependentError, "b/step-4.safetensors", "weights", ("b@4", "a@4")
    ),
    # Ancestry.
    "a private parent that is not there": Bad(
        set_in("b", "ancestry", to=child(2, "gone")), MissingParentError, B, "ancestry.run",
        ("'gone'", "must be counted")
    ),
    "a parent's step that it never took": Bad(
        set_in("b", "ancestry", to=child(5)), MissingParentError, B, "ancestry.step", ("5", "from 0 to 4")
    ),
    "its own parent": Bad(
        manifests(b=manifest("b", initial_weights=None, ancestry=child(2, "b"))),
        MissingParentError, B, "ancestry.run", ("b → b", "does not descend"),
    ),
    "parents in a circle": Bad(
        manifests(
            a=manifest("a", initial_weights=None, ancestry=child(2, "b")),
            b=manifest("b", initial_weights=None, ancestry=child(2, "c")),
            c=manifest("c", initial_weights=None, ancestry=child(2, "a")),
        ),
        MissingParentError, "a/privacy.json", "ancestry.run", ("a → b → c → a", "does not descend"),
    ),
    "an undeclared parent": Bad(
        undeclared_parent, MissingParentError, B, "ancestry", ("stated as random", "state start private, run a, step 4")
    ),
    "a parent declared at another step": Bad(
        lambda home: (undeclared_parent(home), edit_manifest(home / "b", "ancestry", to=child(2))),
        MissingParentError, B, "ancestry", ("a@2", "run a, step 4: the initial weights came from there"),
    ),
    "a parent whose weights are others": Bad(
        set_in("b", "ancestry", to=child(4)), MissingParentError, B, "initial_weights", ("not those of a@4",)
    ),
    "a start on disk that is another run's result": Bad(undeclared_start_on_disk, PortfolioError, "*", "*", ("a@4",)),
    "a start on disk that is not the recorded one": Bad(
        models(b={0: model(7), 4: model(8)}), PortfolioError, "*", "*", ("initial",)
    ),
    "a frozen tensor that another run trained": Bad(
        frozen_result_of_another, PortfolioError, "*", "*", ("embedding",)
    ),
    "one result saved as two steps": Bad(
        models(b={1: model(7), 4: model(7)}), PortfolioError, "*", "*", ("b@1", "b@4")
    ),
    "a frozen tensor that moves": Bad(
        models(b={2: model(7), 4: model(8, embedding=np.ones((2, 3), np.float16))}),
        PortfolioError, "*", "*", ("embedding",),
    ),
    # Digests and contents.
    "one bit flipped": Bad(
        flipped, DigestMismatchError, B, f"{FIRST_FILE}.sha256", ("the file that was recorded",)
    ),
    "a wrong digest of the weights": Bad(
        set_in("b", "checkpoints", 0, "weights", to="0" * 64),
        DigestMismatchError, B, "checkpoints[0].weights", ("0" * 64, "the weights that were recorded"),
    ),
    "a file that is missing": Bad(
        lambda home: (home / "b" / "step-2.safetensors").unlink(),
        CheckpointError, B, f"{FIRST_FILE}.name", ("'step-2.safetensors', which is not there",),
    ),
    "a folder in place of a file": Bad(
        lambda home: ((home / "b" / "step-2.safetensors").unlink(), (home / "b" / "step-2.safetensors").mkdir()),
        CheckpointError, B, f"{FIRST_FILE}.name", ("which is not there",),
    ),
    "a tensor listed that is not in the file": Bad(
        set_in("b", "tensors", "trained", to=["weight", "bias", "head"]),
        TensorMismatchError, B, "tensors", ("'head' is not in the file", "b@2"),
    ),
    "a tensor in the file that is not listed": Bad(
        set_in("b", "tensors", "trained", to=["weight"]), TensorMismatchError, B, "tensors",
        ("'bias' is not in the manifest",)
    ),
    "a tensor in two shards": Bad(
        sharded_twice, CheckpointError, "b/step-2-2.safetensors", "bias",
        ("another file of this checkpoint has it too", "each tensor in one")
    ),
    "a tensor listed twice": Bad(
        set_in("b", "tensors", "frozen", to=["embedding", "bias"]), ManifestError, B, "tensors",
        ("'bias'", "each tensor")
    ),
    "a tie of one tensor": Bad(
        set_in("b", "tensors", "tied", to=[["weight"]]), ManifestError, B, "tensors.tied[0]", ("at least two trained",)
    ),
    "ties that are no lists": Bad(
        set_in("b", "tensors", "tied", to=["weight", "bias"]), ManifestError, B, "tensors.tied[0]", ("a list of lists",)
    ),
    "a tie of a tensor with itself": Bad(
        set_in("b", "tensors", "tied", to=[["weight", "weight"]]),
        ManifestError, B, "tensors.tied[0]", ("'weight'", "each tensor once"),
    ),
    "a tensor in two ties": Bad(
        manifests(b=manifest("b", tensors={"trained": ["weight", "bias"], "frozen": ["embedding"],
                                           "tied": [["weight", "bias"], ["bias", "weight"]]})),
        ManifestError, B, "tensors.tied[1]", ("'bias'", "each tensor once"),
    ),
    "a tie of a frozen tensor": Bad(
        set_in("b", "tensors", "tied", to=[["weight", "embedding"]]),
        ManifestError, B, "tensors.tied[0]", ("'embedding'", "names of trained tensors", "needs no tie"),
    ),
    "a tie of a tensor that is not there": Bad(
        set_in("b", "tensors", "tied", to=[["weight", "head"]]), ManifestError, B, "tensors.tied[0]", ("'head'",)
    ),
    "a tie of different shapes": Bad(
        set_in("b", "tensors", "tied", to=[["weight", "bias"]]),
        TensorMismatchError, W, "bias.shape", ("(2,), where weight has (3, 2)", "one weight"),
    ),
    "a tie of different dtypes": Bad(
        tied_to(np.ones((3, 2), np.float16)), TensorMismatchError, W, "bias.dtype", ("F16, where weight has F32",)
    ),
    "a tie of different values": Bad(
        tied_to(np.ones((3, 2), np.float32)),
        TensorMismatchError,
        W,
        "bias",
        ("other values than weight in b@2", "one weight"),
    ),
    "no tensor at all": Bad(header({}, b""), CheckpointError, B, "checkpoints[0].files", ("no tensor at all",)),
    # Safetensors that are not.
    "a zip renamed": Bad(weights(zipped()), PickleRefusedError, W, "file", ("a pickle or a zip", "save_file")),
    "a pickle renamed": Bad(
        weights(pickle.dumps({"weight": [1.0] * 100}, protocol=2)), PickleRefusedError, W, "file",
        ("a pickle or a zip",)
    ),
    "an empty file": Bad(weights(b""), CheckpointError, W, "header length", ("8 bytes that give a length",)),
    "seven bytes": Bad(weights(bytes(7)), CheckpointError, W, "header length", ("8 bytes that give a length",)),
    "a header of no length": Bad(weights(bytes(8)), CheckpointError, W, "header", ("begins with {",)),
    "a header longer than the file": Bad(
        weights(struct.pack("<Q", 1000) + b"{}"), CheckpointError, W, "header length", ("1000", "within the file")
    ),
    "a header of 2⁶⁴ − 1 bytes": Bad(
        weights(b"\xff" * 8 + b"{}"), CheckpointError, W, "header length", ("18446744073709551615", "32,000,000")
    ),
    "a truncated file": Bad(truncated, CheckpointError, W, "*.data_offsets", ("two integers in order, at most",)),
    "a header that begins with a space": Bad(
        header(" " + json.dumps(entry())), CheckpointError, W, "header", ("begins with {",)
    ),
    "a header that is a list": Bad(header("[]", b""), CheckpointError, W, "header", ("begins with {",)),
    "a header that is broken JSON": Bad(header("{", b""), CheckpointError, W, "header: header", ("broken JSON",)),
    "a header with text behind": Bad(header("{}{}", b""), CheckpointError, W, "header: header", ("broken JSON",)),
    "a header that is not UTF-8": Bad(
        header(b'{"\xff\xfe": 1}', b""), CheckpointError, W, "header: header", ("not UTF-8",)
    ),
    "a header in UTF-16": Bad(
        header(json.dumps(entry()).encode("utf-16-le")), CheckpointError, W, "header: header", ("JSON",)
    ),
    "a header with surrogates as bytes": Bad(
        header(b'{"\xed\xa0\x80": ' + json.dumps(header_entry("F32", [2], 0, 8)).encode() + b"}"),
        CheckpointError, W, "header: header", ("not UTF-8",),
    ),
    "a header nested deeply": Bad(
        header('{"a": ' + deep(100_000) + "}", b""), CheckpointError, W, "header: header", ("nested too deeply",)
    ),
    "a tensor named twice": Bad(
        header('{"t": {"dtype":"F32","shape":[2],"data_offsets":[0,8]}, "t": {"dtype":"F32","shape":[2],'
               '"data_offsets":[0,8]}}'),
        CheckpointError, W, "header: t", ("the same field twice",),
    ),
    "a tensor named twice, once with escapes": Bad(
        header('{"t": {"dtype":"F32","shape":[2],"data_offsets":[0,8]}, "\\u0074": {"dtype":"F32","shape":[2],'
               '"data_offsets":[0,8]}}'),
        CheckpointError, W, "header: t", ("the same field twice",),
    ),
    "metadata twice": Bad(
        header('{"__metadata__": {}, "__metadata__": {}}', b""),
        CheckpointError, W, "header: __metadata__", ("the same field twice",),
    ),
    "a metadata key twice": Bad(
        header('{"__metadata__": {"k": "1", "k": "2"}}', b""), CheckpointError, W, "header: k",
        ("the same field twice",)
    ),
    "a dtype twice": Bad(
        header('{"t": {"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}'),
        CheckpointError, W, "header: dtype", ("the same field twice",),
    ),
    "metadata that is not text": Bad(
        header({"__metadata__": {"k": 1}}, b""), CheckpointError, W, "__metadata__", ("values are text",)
    ),
    "metadata that is a list": Bad(header({"__metadata__": []}, b""), CheckpointError, W, "__metadata__", ("object",)),
    "an entry that is a number": Bad(
        header({"bad": 3}, b""), CheckpointError, W, "bad", ("dtype, shape and data_off",)
    ),
    "an entry without a shape": Bad(
        header({"bad": {"dtype": "F32", "data_offsets": [0, 8]}}), CheckpointError, W, "bad", ("dtype, shape and data",)
    ),
    "an entry with more": Bad(header(entry(stride=[1])), CheckpointError, W, "bad", ("dtype, shape and data_offsets",)),
    "an unknown dtype": Bad(header(entry(dtype="F8_E4M3")), CheckpointError, W, "bad.dtype", ("'F8_E4M3'", "BF16")),
    "a dtype that is a list": Bad(header(entry(dtype=["F32"])), CheckpointError, W, "bad.dtype", ("['F32']",)),
    "a shape that is true": Bad(header(entry(shape=[True, 2])), CheckpointError, W, "bad.shape", ("integers ≥ 0",)),
    "a negative shape": Bad(header(entry(shape=[-1, -2])), CheckpointError, W, "bad.shape", ("integers ≥ 0",)),
    "a fractional shape": Bad(header(entry(shape=[2.0])), CheckpointError, W, "bad.shape", ("integers ≥ 0",)),
    "a shape that is a number": Bad(header(entry(shape=2)), CheckpointError, W, "bad.shape", ("integers ≥ 0",)),
    "a shape beyond 2⁶³": Bad(header(entry(shape=[2**63, 0])), CheckpointError, W, "bad.shape", ("integers ≥ 0",)),
    "a shape whose product wraps round": Bad(
        header(entry(shape=[2**62, 4])), CheckpointError, W, "bad.data_offsets", ("8 bytes",)
    ),
    "65 dimensions": Bad(header(entry(shape=[1] * 65)), CheckpointError, W, "bad.shape", ("at most 64",)),
    "a shape that is too small": Bad(
        header(entry(shape=[1])), CheckpointError, W, "bad.data_offsets", ("8 bytes", "1 values of 4 bytes")
    ),
    "offsets beyond the file": Bad(
        header(entry(shape=[4], data_offsets=[0, 16])), CheckpointError, W, "bad.data_offsets", ("[0, 16]", "at most 8")
    ),
    "offsets in reverse": Bad(
        header(entry(data_offsets=[8, 0])), CheckpointError, W, "bad.data_offsets", ("two integers in order",)
    ),
    "negative offsets": Bad(
        header(entry(data_offsets=[-8, 0])), CheckpointError, W, "bad.data_offsets", ("two integers in order",)
    ),
    "three offsets": Bad(header(entry(data_offsets=[0, 4, 8])), CheckpointError, W, "bad.data_offsets", ("two",)),
    "an offset that is NaN": Bad(
        header('{"bad": {"dtype":"F32","shape":[2],"data_offsets":[0,NaN]}}'),
        CheckpointError, W, "bad.data_offsets", ("two integers",),
    ),
    "tensors that overlap": Bad(
        header({"bad": header_entry("F32", [2], 0, 8), "worse": header_entry("F32", [1], 4, 8)}),
        CheckpointError, W, "worse", ("[4, 8]", "begin at 8"),
    ),
    "tensors at one place": Bad(
        header({"bad": header_entry("F32", [2], 0, 8), "worse": header_entry("F32", [2], 0, 8)}),
        CheckpointError, W, "worse", ("[0, 8]", "begin at 8"),
    ),
    "a hole between tensors": Bad(
        header({"bad": header_entry("F32", [1], 0, 4), "worse": header_entry("F32", [1], 8, 12)}, bytes(12)),
        CheckpointError, W, "worse", ("[8, 12]", "begin at 4"),
    ),
    "a hole before the first tensor": Bad(
        header({"bad": header_entry("F32", [1], 4, 8)}), CheckpointError, W, "bad", ("[4, 8]", "begin at 0")
    ),
    "bytes behind the last tensor": Bad(
        header({"bad": header_entry("F32", [1], 0, 4)}), CheckpointError, W, "data", ("got 8", "4 bytes, as the header")
    ),
    # Names of files.
    "a name that leads up": Bad(
        set_in("b", "checkpoints", 0, "files", 0, "name", to="../a/step-2.safetensors"),
        UnsafePathError, B, f"{FIRST_FILE}.name", ("'../a/step-2.safetensors'", "without .."),
    ),
    "an absolute name": Bad(
        set_in("b", "checkpoints", 0, "files", 0, "name", to="/etc/x.safetensors"),
        UnsafePathError, B, f"{FIRST_FILE}.name", ("'/etc/x.safetensors'",),
    ),
    "a name with a backslash": Bad(
        set_in("b", "checkpoints", 0, "files", 0, "name", to="..\\x.safetensors"),
        UnsafePathError, B, f"{FIRST_FILE}.name", ("x.safetensors",),
    ),
    "a name with a drive": Bad(
        set_in("b", "checkpoints", 0, "files", 0, "name", to="c:x.safetensors"),
        UnsafePathError, B, f"{FIRST_FILE}.name", ("'c:x.safetensors'",),
    ),
    "a name with a NUL": Bad(
        set_in("b", "checkpoints", 0, "files", 0, "name", to="x\0.safetensors"),
        UnsafePathError, B, f"{FIRST_FILE}.name", ("\\x00",),
    ),
    "a name with a line break": Bad(
        set_in("b", "checkpoints", 0, "files", 0, "name", to="x\n.safetensors"),
        UnsafePathError, B, f"{FIRST_FILE}.name", ("\\n",),
    ),
    "a name that goes down and up": Bad(
        set_in("b", "checkpoints", 0, "files", 0, "name", to="a/../b.safetensors"),
        UnsafePathError, B, f"{FIRST_FILE}.name", ("'a/../b.safetensors'",),
    ),
    "a name with an empty part": Bad(
        set_in("b", "checkpoints", 0, "files", 0, "name", to="a//b.safetensors"),
        UnsafePathError, B, f"{FIRST_FILE}.name", ("'a//b.safetensors'",),
    ),
    "a name with a dot part": Bad(
        set_in("b", "checkpoints", 0, "files", 0, "name", to="./b.safetensors"),
        UnsafePathError, B, f"{FIRST_FILE}.name", ("'./b.safetensors'",),
    ),
    "a link out of the folder": Bad(
        linked("../../outside.safetensors"), UnsafePathError, B, f"{FIRST_FILE}.name",
        ("a link out", "is a link out of the run's folder")
    ),
    "a link to itself": Bad(
        linked("step-2.safetensors"), PortfolioError, B, f"{FIRST_FILE}.name", ("step-2.safetensors",)
    ),
    "a name longer than any file's": Bad(
        set_in("b", "checkpoints", 0, "files", 0, "name", to="x" * 400 + ".safetensors"),
        PortfolioError, B, f"{FIRST_FILE}.name", ("xxx",),
    ),
    "a name that is no weights'": Bad(
        set_in("b", "checkpoints", 0, "files", 0, "name", to="model.h5"),
        CheckpointError, B, f"{FIRST_FILE}.name", ("'model.h5'", "a .safetensors file"),
    ),
    **{
        f"weights in {suffix}": Bad(
            set_in("b", "checkpoints", 0, "files", 0, "name", to=f"model{suffix}"),
            PickleRefusedError, B, f"{FIRST_FILE}.name", (f"'model{suffix}'", *PICKLED),
        )
        for suffix in (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".PT")
    },
    # The manifest's text.
    "a manifest above 10 MB": Bad(
        big_manifest, ManifestError, B, "file", ("at most 10,000,000 bytes", "a larger file")
    ),
    "a manifest that is not UTF-8": Bad(
        raw(TEXT.replace("record", "\xff").encode("latin-1")), ManifestError, B, "manifest", ("not UTF-8",)
    ),
    "a manifest in UTF-16": Bad(raw(TEXT.encode("utf-16")), ManifestError, B, "manifest", ("JSON",)),
    "a manifest that is empty": Bad(raw(""), ManifestError, B, "manifest", ("broken JSON",)),
    "a manifest that is cut off": Bad(raw(TEXT[:-1]), ManifestError, B, "manifest", ("broken JSON",)),
    "a manifest that is a list": Bad(raw("[]"), ManifestError, B, "manifest", ("[]", "one JSON object with schema")),
    "a manifest that is null": Bad(raw("null"), ManifestError, B, "manifest", ("None", "one JSON object")),
    "a field twice": Bad(raw(TEXT[:-1] + ', "unit": "user"}'), ManifestError, B, "unit", ("the same field twice",)),
    "a nested field twice": Bad(
        raw(TEXT.replace('{"id":', '{"id": "other", "id":')), ManifestError, B, "id", ("the same field twice",)
    ),
    "a manifest nested deeply": Bad(
        raw(TEXT.replace('"record"', deep(100_000))), ManifestError, B, "manifest", ("nested too deeply",)
    ),
    "noise that is NaN": Bad(
        raw(TEXT.replace("8.0", "NaN")), ManifestError, B, "mechanism.blocks[0].noise_multiplier", ("got nan", "finite")
    ),
    "noise that is 1e999": Bad(
        raw(TEXT.replace("8.0", "1e999")), ManifestError, B, "mechanism.blocks[0].noise_multiplier", ("inf", "finite")
    ),
    "an integer of 5000 digits": Bad(
        raw(TEXT.replace("8.0", "8" * 5000)), ManifestError, B, "manifest", ("broken JSON",)
    ),
    "another version": Bad(
        set_in("b", "schema", to="dpmerge/run/v2"), ManifestError, B, "schema", ("'dpmerge/run/v2'", "dpmerge/run/v1")
    ),
    **{
        f"unknown field of {name}": Bad(
            raw(json.dumps(replaced(document, *path, "extra", to=1))), ManifestError, B, field, ("an unknown field",)
        )
        for name, (document, path, field) in UNKNOWN_FIELDS.items()
    },
    "unknown field of a checkpoint": Bad(
        set_in("b", "checkpoints", 0, "extra", to=1), ManifestError, B, "checkpoints[0].extra", ("an unknown field",)
    ),
    "unknown field of a file": Bad(
        set_in("b", "checkpoints", 0, "files", 0, "extra", to=1), ManifestError, B, f"{FIRST_FILE}.extra", ("unknown",)
    ),
    "unknown field of a metric": Bad(
        set_in("b", "checkpoints", 0, "metrics",
               to=[{"name": "accuracy", "value": 0.5, "measured_on": "public", "extra": 1}]),
        ManifestError, B, "checkpoints[0].metrics[0].extra", ("an unknown field",),
    ),
    **{
        f"no {field}": Bad(raw(json.dumps(without(manifest("b"), field))), ManifestError, B, field, ("got nothing",))
        for field in ("schema", "run", "dataset", "unit", "adjacency", "mechanism", "noise", "ancestry", "tuning",
                      "recorded_by")
    },
    # The manifest's facts.
    "a run named like a path": Bad(
        set_in("b", "run", to="../b"), ManifestError, B, "run", ("'../b'", "letters, digits")
    ),
    "a run's name with a line break": Bad(set_in("b", "run", to="b\n"), ManifestError, B, "run", ("'b\\n'",)),
    **{
        f"a dataset named by a digest ({name})": Bad(
            set_in("b", "dataset", "id", to=digest), ManifestError, B, "dataset.id", ("a digest of the data",)
        )
        for name, digest in {
            "sha256": hashlib.sha256(b"").hexdigest(),
            "prefixed": "sha256:" + "0" * 64,
            "upper case": "SHA256:" + "A" * 64,
            "md5": "md5-" + "0" * 32,
        }.items()
    },
    "a size under add_remove": Bad(
        set_in("b", "adjacency", to="add_remove"), ManifestError, B, "dataset.size",
        ("100", "left out under add_remove")
    ),
    "a bound on records below the size": Bad(
        set_in("b", "mechanism", "smoothness", to={**SMOOTH, "records": 99}),
        ManifestError, B, "mechanism.smoothness.records", ("99", "100"),
    ),
    "a mean without a divisor": Bad(
        raw(json.dumps(manifest("b", mechanism=without(DP_SGD, "expected_batch_size")))),
        ManifestError, B, "mechanism.expected_batch_size", ("got None", "where loss_reduction is mean"),
    ),
    "a sum with a divisor": Bad(
        set_in("b", "mechanism", "loss_reduction", to="sum"),
        ManifestError, B, "mechanism.expected_batch_size", ("left out where it is sum",),
    ),
    "full batches that sample": Bad(
        set_in("b", "mechanism", "blocks", 0, "sampling_rate", to=0.5),
        ManifestError, B, "mechanism.blocks[0].sampling_rate", ("0.5", "only poisson ones have a rate"),
    ),
    "shuffled without an epoch": Bad(
        set_in("b", "mechanism", "sampling", to="shuffled"), ManifestError, B, "mechanism.steps_per_epoch",
        ("shuffled",)
    ),
    "rates that do not fit the steps": Bad(
        set_in("b", "mechanism", "blocks", 0, "learning_rate", to=[0.1, 0.2]),
        ManifestError, B, "mechanism.blocks[0].learning_rate", ("2 numbers", "or 4"),
    ),
    "a mechanism of unknown kind": Bad(
        set_in("b", "mechanism", "kind", to="dpsgd"), ManifestError, B, "mechanism", ("one of dp_sgd, accountant",)
    ),
    "a mechanism without a kind": Bad(
        set_in("b", "mechanism", to={}), ManifestError, B, "mechanism", ("one of dp_sgd, accountant_history",)
    ),
    "Rényi orders out of order": Bad(
        raw(json.dumps(manifest("b", mechanism={"kind": "renyi", "orders": [4, 2], "values": [1, 1]}))),
        ManifestError, B, "mechanism.orders", ("strictly increasing",),
    ),
    "a Rényi value missing": Bad(
        raw(json.dumps(manifest("b", mechanism={"kind": "renyi", "orders": [2, 4], "values": [1]}))),
        ManifestError, B, "mechanism.values", ("2 numbers",),
    ),
    "δ above one": Bad(
        raw(json.dumps(manifest("b", mechanism={"kind": "approximate_dp", "points": [{"epsilon": 1, "delta": 1.5}]}))),
        ManifestError, B, "mechanism.points[0].delta", ("1.5", "[0, 1]"),
    ),
    "seeded without a seed": Bad(
        set_in("b", "noise", to={"source": "seeded"}), ManifestError, B, "noise.seed", ("got None", "is seeded")
    ),
    "a seed without seeding": Bad(
        set_in("b", "noise", "seed", to=1), ManifestError, B, "noise.seed", ("got 1", "left out otherwise")
    ),
    "entropy without a stream": Bad(
        set_in("b", "noise", to={"source": "os_entropy"}), ManifestError, B, "noise.stream", ("None", "32 hexadecimal")
    ),
    "a private start without a parent": Bad(
        set_in("b", "ancestry", to={"start": "private"}), ManifestError, B, "ancestry.run", ("where start is private",)
    ),
    "a private start without a step": Bad(
        set_in("b", "ancestry", to={"start": "private", "run": "a"}), ManifestError, B, "ancestry.step", ("got None",)
    ),
    "a parent of a public start": Bad(
        set_in("b", "ancestry", to={"start": "public", "run": "a", "step": 2}),
        ManifestError, B, "ancestry.run", ("'a'", "left out otherwise"),
    ),
    "checkpoints out of order": Bad(
        lambda home: edit_manifest(home / "b", "checkpoints", to=read_manifest(home / "b")["checkpoints"][::-1]),
        ManifestError, B, "checkpoints[1].step", ("got 2", "increasing order"),
    ),
    "one step twice": Bad(
        set_in("b", "checkpoints", 1, "step", to=2), ManifestError, B, "checkpoints[1].step", ("2", "increasing order")
    ),
    "a step beyond the run": Bad(
        set_in("b", "checkpoints", 1, "step", to=5), ManifestError, B, "checkpoints[1].step", ("5", "up to the run's 4")
    ),
    "one file twice": Bad(
        set_in("b", "checkpoints", 1, "files", 0, "name", to="step-2.safetensors"),
        ManifestError, B, "checkpoints[1].files[0].name", ("'step-2.safetensors'", "each file once"),
    ),
    "a checkpoint without files": Bad(
        set_in("b", "checkpoints", 0, "files", to=[]), ManifestError, B, "checkpoints[0].files", ("got []", "non-empty")
    ),
    "steps beyond reason": Bad(
        set_in("b", "mechanism", "blocks", 0, "steps", to=10**12),
        ManifestError, B, "mechanism.blocks[0].steps", ("1000000000000", "from 1 to"),
    ),
    "steps beyond reason in total": Bad(
        set_in("b", "mechanism", "blocks", to=[{**BLOCK, "steps": 9_000_000}] * 2),
        ManifestError, B, "mechanism.steps of all blocks", ("18000000", "from 1 to 10000000"),
    ),
    "a metric that is infinite": Bad(
        set_in("b", "checkpoints", 0, "metrics",
               to=[{"name": "loss", "value": float("inf"), "measured_on": "public"}]),
        ManifestError, B, "checkpoints[0].metrics[0].value", ("inf", "a finite number"),
    ),
    # portfolio.yaml.
    "a listing with an unknown field": Bad(
        listed(LISTING + "extra: 1\n"), ManifestError, "portfolio.yaml", "extra",
        ("an unknown field", "complete, allow")
    ),
    "a listing of a folder that is not there": Bad(
        listed("schema: dpmerge/portfolio/v1\nruns: [a, gone]\n"),
        ManifestError, "portfolio.yaml", "runs[1]", ("'gone'", "a folder with a privacy.json"),
    ),
    "a listing that leads up": Bad(
        listed("schema: dpmerge/portfolio/v1\nruns: [a, ../b]\n"), UnsafePathError, "portfolio.yaml", "runs[1]",
        ("'../b'",)
    ),
    "a listing that leads up and down": Bad(
        listed("schema: dpmerge/portfolio/v1\nruns: [a/../b]\n"), UnsafePathError, "portfolio.yaml", "runs[0]",
        ("a/../b",)
    ),
    "a listing of an absolute folder": Bad(
        listed("schema: dpmerge/portfolio/v1\nruns: [/etc]\n"), UnsafePathError, "portfolio.yaml", "runs[0]",
        ("'/etc'",)
    ),
    "a listing of an endless name": Bad(
        listed(f"schema: dpmerge/portfolio/v1\nruns: [{'x' * 400}]\n"),
        PortfolioError, "portfolio.yaml", "runs[0]", ("xxx",),
    ),
    "a listing that names a run twice": Bad(
        listed("schema: dpmerge/portfolio/v1\nruns: [a, a]\n"), PortfolioError, "*", "*", ("a",)
    ),
    "a listing with an alias": Bad(
        listed("schema: dpmerge/portfolio/v1\nruns: &r [a]\nallow: *r\n"),
        ManifestError, "portfolio.yaml", "listing", ("an alias", "YAML without aliases"),
    ),
    "a listing with a field twice": Bad(
        listed(LISTING + "runs: [a]\n"), ManifestError, "portfolio.yaml", "runs", ("the same field twice",)
    ),
    "a listing with a Python object": Bad(
        listed(LISTING + "allow: !!python/object/apply:os.getcwd []\n"),
        ManifestError, "portfolio.yaml", "portfolio", ("broken YAML", "python/object"),
    ),
    **{
        f"a listing with the tag {tag}": Bad(
            listed(LISTING + f"complete: {tag}\n"), ManifestError, "portfolio.yaml", "*", ("accepted",)
        )
        for tag in ("!!bool maybe", "!!int ''", "!!float ''", "!!timestamp x", "!!binary '*'", "!!set [a]", "!x y")
    },
    "a listing that is a list": Bad(listed("[a, b]"), ManifestError, "portfolio.yaml", "portfolio", ("['a', 'b']",)),
    "a listing that is empty": Bad(listed(""), ManifestError, "portfolio.yaml", "portfolio", ("got None",)),
    "a listing that is broken": Bad(listed("{a: ["), ManifestError, "portfolio.yaml", "portfolio", ("broken YAML",)),
    "a listing nested deeply": Bad(
        listed("[" * 5000), ManifestError, "portfolio.yaml", "portfolio", ("broken YAML",)
    ),
    "a listing of two documents": Bad(
        listed(f"{LISTING}---\n{LISTING}"), ManifestError, "portfolio.yaml", "portfolio", ("broken YAML",)
    ),
    "a listing that is not UTF-8": Bad(
        listed(LISTING.encode() + b"\xff\xff\n"), ManifestError, "portfolio.yaml", "portfolio", ("broken YAML",)
    ),
    "a listing above 100 kB": Bad(
        listed(LISTING + "#" * 1_000_000), ManifestError, "portfolio.yaml", "*", ("at most 100,000 bytes",)
    ),
    "a listing without runs": Bad(
        listed("schema: dpmerge/portfolio/v1\nruns: []\n"), ManifestError, "portfolio.yaml", "runs", ("non-empty",)
    ),
    "a listing of a number": Bad(
        listed("schema: dpmerge/portfolio/v1\nruns: [1]\n"), ManifestError, "portfolio.yaml", "runs[0]", ("got 1",)
    ),
    "a listing of another version": Bad(
        listed(LISTING.replace("v1", "v2")), ManifestError, "portfolio.yaml", "schema", ("v2", "dpmerge/portfolio/v1")
    ),
    "an unknown allowance": Bad(
        listed(LISTING + "allow: [everything]\n"), ManifestError, "portfolio.yaml", "allow[0]", ("'everything'",)
    ),
    **{
        f"{name} in {dtype}": Bad(
            one_tensor(dtype, bytes(size) + value, size), CheckpointError, W, "bad",
            ("NaN or infinity", "finite values")
        )
        for dtype, size, values in NOT_FINITE.values()
        for name, value in values.items()
    },
}  # fmt: skip


def _other_model(home: Path, *, place: int = 0, **tensors: Any) -> None:
    """The second run with other tensors in one of its checkpoints, and no list that contradicts them."""
    checkpoints = {2: model(10), 4: model(11)}
    checkpoints[(2, 4)[place]] |= tensors
    write_portfolio(home, manifests={"b": manifest("b", tensors=None)}, models={"b": checkpoints})


def everything_under(home: Path) -> dict[str, bytes]:
    """The content of all files of a folder, links not followed."""
    return {
        str(path.relative_to(home)): path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        for path in home.rglob("*")
    }


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return write_portfolio(tmp_path / "runs")


@pytest.mark.parametrize("name", BAD)
def test_a_bad_portfolio_is_refused_by_name_file_and_field(name: str, home: Path) -> None:
    bad = BAD[name]
    bad.spoil(home)
    before = everything_under(home)
    with pytest.raises(PortfolioError) as caught:
        Portfolio.load(home)
    assert everything_under(home) == before
    error = caught.value
    assert isinstance(error, bad.error)
    if bad.file != "*":
        assert Path(error.file) == home / bad.file
    assert error.field.endswith(bad.field.removeprefix("*")) if bad.field.startswith("*") else error.field == bad.field
    message = str(error)
    if error.problem is None:  # a bad value
        assert message.startswith(f"{error.file}: {error.field}: got ")
        assert "; accepted: " in message
    else:  # what is wrong, and what to do
        assert message.startswith(f"{error.file}: {error.field}: ")
        assert message.endswith(f"; {error.accepted}")
        assert error.accepted
    assert len(message.splitlines()) == 1
    for fragment in bad.text:
        assert fragment in message


def test_the_portfolio_the_bad_ones_are_made_from_loads(home: Path) -> None:
    before = everything_under(home)
    loaded = Portfolio.load(home)
    assert [run.id for run in loaded.runs] == ["a", "b", "c"]
    loaded.require_combinable(loaded.runs)
    assert [len(group) for group in loaded.combinable()] == [3]
    assert everything_under(home) == before


def test_a_listing_names_its_runs_and_whether_they_are_complete(home: Path) -> None:
    (home / "b").rename(home.parent / "elsewhere")
    (home / "b").mkdir()
    (home / "b" / "model.bin").write_bytes(b"")
    (home / "portfolio.yaml").write_text("schema: dpmerge/portfolio/v1\nruns: [c, a]\ncomplete: true\n")
    for path in (home, home / "portfolio.yaml"):
        loaded = Portfolio.load(path)
        assert [run.id for run in loaded.runs] == ["c", "a"]
        assert loaded.complete is True
        assert loaded.ignored == ("b",)


def test_a_complete_listing_that_leaves_out_a_run_is_refused(home: Path) -> None:
    (home / "portfolio.yaml").write_text("schema: dpmerge/portfolio/v1\nruns: [c, a]\ncomplete: true\n")
    with pytest.raises(
        ManifestError, match="complete: b is a run on patients-2026 too, and is not listed; list it, or say false"
    ):
        Portfolio.load(home)


def test_shards_are_read_as_one_checkpoint(home: Path) -> None:
    shards = [{name: tensor} for name, tensor in model(5).items()]
    edit_manifest(home / "b", "checkpoints", 0, to=write_checkpoint(home / "b", 2, *shards))
    assert set(Portfolio.load(home).saved("b@2").tensors) == {"weight", "bias", "embedding"}


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="a folder without any run; needed: folders with a privacy.json") as caught:
        Portfolio.load(tmp_path)
    assert (caught.value.file, caught.value.field) == (str(tmp_path), "runs")


@pytest.mark.parametrize("name", ["gone", "gone.yaml", "nul\0", "x" * 400])
def test_a_folder_that_does_not_exist_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="no such folder; needed: a folder of runs, or a portfolio.yaml") as caught:
        Portfolio.load(tmp_path / name)
    assert (caught.value.file, caught.value.field) == (str(tmp_path / name), "path")


def test_a_file_instead_of_a_folder_is_refused(home: Path) -> None:
    with pytest.raises(ManifestError, match="it is a file; needed: a folder of runs"):
        Portfolio.load(home / "a" / "step-2.safetensors")


def test_a_portfolio_error_can_be_pickled(home: Path) -> None:
    """As it is when it crosses to another process."""
    (home / "b" / "privacy.json").write_text("{")
    with pytest.raises(ManifestError) as caught:
        Portfolio.load(home)
    for again in (copy.copy(caught.value), pickle.loads(pickle.dumps(caught.value))):  # noqa: S301
        assert (str(again), again.file, again.field) == (str(caught.value), caught.value.file, caught.value.field)


def test_an_unknown_allowance_is_refused(home: Path) -> None:
    with pytest.raises(InvalidInputError, match="allow: got 'all'; accepted: different_initial_weights"):
        Portfolio.load(home, allow=["all"])  # type: ignore[list-item]


def test_deeply_nested_documents_are_refused() -> None:
    """Between what the parser can follow and what can be shown there is no gap."""
    for depth in range(800, 1010):
        for text in (TEXT.replace('"record"', deep(depth)), TEXT.replace('"dp_sgd"', deep(depth)), deep(depth)):
            with pytest.raises(ManifestError):
                Manifest.parse(text)
        for text in (
            '{"a": ' + deep(depth) + "}",
            '{"a": {"dtype": ' + deep(depth) + ', "shape": 0, "data_offsets": 0}}',
        ):
            with pytest.raises(CheckpointError):
                parse_header(text.encode(), 0, "x.safetensors")


MULTILINE: dict[str, Break] = {
    "manifest": lambda home: edit_manifest(home / "b", "x\ny\x1b[31m", to=1),
    "manifest, nested": lambda home: edit_manifest(home / "b", "noise", "x\ny", to=1),
    "manifest, twice": lambda home: (home / "b" / "privacy.json").write_text('{"x\\ny": 1, "x\\ny": 2}'),
    "header": lambda home: put_file(home / "b", safetensors_bytes({"x\ny": 3}, b"")),
    "header, twice": lambda home: put_file(home / "b", safetensors_bytes('{"x\\u2028y": 3, "x\\u2028y": 3}', b"")),
    "listing": lambda home: (home / "portfolio.yaml").write_text(LISTING + '"x\\ny\\e[31m": 1\n'),
    "listing, twice": lambda home: (home / "portfolio.yaml").write_text(LISTING + '"x\\ny": 1\n"x\\ny": 1\n'),
}


@pytest.mark.parametrize("name", MULTILINE)
def test_error_messages_are_one_line_whatever_the_names(name: str, home: Path) -> None:
    """Names come from strangers: they must not forge a second line of output, nor move the cursor."""
    MULTILINE[name](home)
    with pytest.raises(PortfolioError) as caught:
        Portfolio.load(home)
    assert len(str(caught.value).splitlines()) == 1
    assert "\x1b" not in str(caught.value)


# What loads, but not without a word.


def names_of(portfolio: Portfolio) -> set[str]:
    return {caveat.name for caveat in caveats(portfolio)}


def other_frozen(home: Path) -> str:
    """The third run keeps another embedding."""
    other = {"embedding": np.ones((2, 3), np.float16)}
    write_portfolio(home, models={"c": {2: model(20, **other), 4: model(21, **other)}})
    return "different_frozen_tensors"


def other_start(home: Path) -> str:
    edit_manifest(home / "c", "initial_weights", to=OTHER_START)
    return "different_initial_weights"


DIFFERENT = {
    "frozen tensors": (other_frozen, "tensors.frozen: embedding"),
    "initial weights": (other_start, "initial_weights"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_models_with_different_starts_or_frozen_tensors_are_not_averaged_unless_allowed(name: str, home: Path) -> None:
    spoil, field = DIFFERENT[name]
    allowance: Any = spoil(home)
    loaded = Portfolio.load(home)
    assert "not_combinable" in names_of(loaded)
    assert [[run.id for run in group] for group in loaded.combinable()] == [["a", "b"], ["c"]]
    loaded.require_combinable(loaded.runs[:2])
    with pytest.raises(NotCombinableError, match=f"allow {allowance}") as caught:
        loaded.require_combinable(loaded.runs)
    assert (Path(caught.value.file), caught.value.field) == (home / "c" / "privacy.json", field)

    other = next(each for each in ("different_initial_weights", "different_frozen_tensors") if each != allowance)
    with pytest.raises(NotCombinableError):
        Portfolio.load(home, allow=[other]).require_combinable(loaded.runs)  # type: ignore[list-item]
    allowed = Portfolio.load(home, allow=[allowance])
    allowed.require_combinable(allowed.runs)
    assert [len(group) for group in allowed.combinable()] == [3]
    assert not any("refused" in caveat.text for caveat in caveats(allowed))
    (home / "portfolio.yaml").write_text(LISTING + f"allow: [{allowance}]\n")
    listed_allowance = Portfolio.load(home)
    listed_allowance.require_combinable(listed_allowance.runs)


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_run_without_recorded_tensors_does_not_hide_differences_of_others(name: str, home: Path) -> None:
    """Comparing every run with the first alone would let the unknown first vouch for the rest."""
    spoil, _ = DIFFERENT[name]
    spoil(home)
    for field in ("tensors", "initial_weights"):
        write_json(home / "a" / "privacy.json", without(read_manifest(home / "a"), field))
    loaded = Portfolio.load(home)
    with pytest.raises(NotCombinableError):
        loaded.require_combinable(loaded.runs)
    assert not any({"b", "c"} <= {run.id for run in group} for group in loaded.combinable())
    assert "not_combinable" in names_of(loaded)


@pytest.mark.parametrize("measured_on", ["private", "training"])
def test_planning_by_a_private_metric_is_refused(measured_on: str, home: Path) -> None:
    metrics = [
        {"name": "accuracy", "value": 0.9, "measured_on": measured_on},
        {"name": "loss", "value": 0.4, "measured_on": "public"},
    ]
    edit_manifest(home / "b", "checkpoints", 0, "metrics", to=metrics)
    loaded = Portfolio.load(home)
    assert "private_metrics" in names_of(loaded)
    assert loaded.saved("b@2").metric("loss") == 0.4
    refusals = (("accuracy", PrivateMetricError, f"measured on {measured_on} data"), ("f1", ManifestError, "loss"))
    for name, kind, fragment in refusals:
        with pytest.raises(kind, match=fragment) as caught:
            loaded.saved("b@2").metric(name)
        assert Path(caught.value.file) == home / "b" / "privacy.json"
        assert caught.value.field == "checkpoints[step 2].metrics"


def test_what_is_doubtful_is_a_caveat(home: Path) -> None:
    assert "completeness_unknown" in names_of(Portfolio.load(home))
    edit_manifest(home / "a", "noise", to={"source": "seeded", "seed": 7, "secure_rng": False})
    edit_manifest(home / "b", "noise", to={"source": "unknown"})
    edit_manifest(home / "b", "tuning", to="unknown")
    edit_manifest(home / "b", "finished", to=False)
    edit_manifest(home / "c", "checkpoints", to=[])
    write_json(home / "c" / "privacy.json", without(read_manifest(home / "c"), "initial_weights"))
    (home / "portfolio.yaml").write_text(LISTING + "complete: false\n")
    (home / "dropped").mkdir()
    (home / "dropped" / "model.bin").write_bytes(b"")
    assert names_of(Portfolio.load(home, contents=False)) == {
        "incomplete",
        "contents_not_read",
        "ignored",
        "initial_weights_unknown",
        "correlated_checkpoints",
        "seeded_noise",
        "noise_unknown",
        "insecure_generator",
        "tuning_unknown",
        "stopping_unknown",
        "schedule_unknown",
        "record_losses_unknown",
        "start_not_kept",
        "unfinished",
        "no_checkpoint",
    }


def test_reading_headers_only_leaves_digests_unchecked_and_is_a_caveat(home: Path) -> None:
    flipped(home)
    loaded = Portfolio.load(home, contents=False)
    assert "contents_not_read" in names_of(loaded)


def test_a_copied_model_is_found_by_recorded_digests_without_reading_contents(home: Path) -> None:
    """Even where no content is read, two runs cannot list one and the same file."""
    copied(home)
    for run in "ab":
        document = read_manifest(home / run)
        del document["checkpoints"][0]["weights"]
        write_json(home / run / "privacy.json", document)
    with pytest.raises(NotIndependentError):
        Portfolio.load(home, contents=False)


def test_a_long_line_of_descendants_is_accounted_for_or_refused(tmp_path: Path) -> None:
    """However long, it is accounted for or refused by name."""
    length = 700
    for place in range(length):
        document = manifest(f"r{place:04d}", initial_weights=None, tensors=None)
        if place + 1 < length:
            document["ancestry"] = child(4, f"r{place + 1:04d}")
        (tmp_path / document["run"]).mkdir()
        write_json(tmp_path / document["run"] / "privacy.json", document)
    try:
        loaded = Portfolio.load(tmp_path)
    except PortfolioError:
        return
    assert loaded.run("r0000").mechanism.profile().epsilon(1e-5) > 100
