"""Inputs that are almost valid: documents and bytes, changed in ways that respect their structure, or do not.

Guarantees: the inputs depend on the seed alone; most get past the first check of what reads them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

Document = dict[str, Any]
Place = tuple[Any, Any]

MANIFEST, HEADER, FILE, LISTING = "manifest", "header", "file", "listing"
TARGETS = (MANIFEST, HEADER, FILE, LISTING)
_SHARES = (52, 32, 10, 6)

_LARGEST_LISTING = 20_000
"""Bytes. YAML takes its time, and longer listings reach nothing that shorter ones do not."""

DIGEST = "0123456789abcdef" * 4
_BLOCK: Document = {
    "steps": 3, "noise_multiplier": 2.5, "clip_norm": 1, "learning_rate": [0.1, 0.2, 0.3], "sampling_rate": 1
}  # fmt: skip
_DP_SGD: Document = {
    "kind": "dp_sgd", "blocks": [_BLOCK, {**_BLOCK, "learning_rate": 0.5}], "sampling": "poisson",
    "clipping": "per_example", "flat_clipping": True,
    "optimizer": {"name": "sgd", "momentum": 0, "nesterov": False, "dampening": 0, "weight_decay": 0.01},
    "loss_reduction": "mean", "expected_batch_size": 64, "public_divisor": True,
    "smoothness": {"kind": "logistic", "feature_bound": 1, "beta": 0.25, "records": 1000, "vouched_by": "us"},
    "affine_map": {"id": "mean", "vouched_by": "us"},
}  # fmt: skip
_MECHANISMS: tuple[Document, ...] = (
    _DP_SGD,
    {"kind": "accountant_history", "blocks": [{"steps": 6, "noise_multiplier": 1.5, "sampling_rate": 1}],
     "sampling": "shuffled", "steps_per_epoch": 2, "clipping": "aggregate", "public_divisor": False},
    {"kind": "gaussian_release", "sensitivity": 1, "standard_deviation": 2},
    {"kind": "gaussian_release", "sensitivity": 1, "standard_deviation": 2, "noise_on": "weights"},
    {"kind": "gaussian_dp", "mu": 0.5},
    {"kind": "renyi", "orders": [1.5, 2, 8, 64], "values": [0.1, 0.2, 0.9, 7]},
    {"kind": "approximate_dp", "points": [{"epsilon": 0, "delta": 0.4}, {"epsilon": 2, "delta": 1e-6}]},
    {"kind": "non_private"},
)  # fmt: skip
_NOISES: tuple[Document, ...] = (
    {"source": "os_entropy", "generator": "philox", "secure_rng": True, "stream": "0123456789abcdef" * 2},
    {"source": "seeded", "seed": 42},
    {"source": "unknown"},
)
_ANCESTRIES: tuple[Document, ...] = (
    {"start": "random"},
    {"start": "public", "source": "a model hub"},
    {"start": "private", "run": "parent", "step": 1},
    {"start": "unknown"},
)


def valid_manifests() -> list[Document]:
    """One manifest of each kind of mechanism, with every field some manifest may have."""
    documents = []
    for place, mechanism in enumerate(_MECHANISMS):
        last = sum(block["steps"] for block in mechanism["blocks"]) if "blocks" in mechanism else 1
        document: Document = {
            "schema": "dpmerge/run/v1",
            "run": f"run-{place}",
            "dataset": {"id": "patients"} if place % 2 else {"id": "patients", "size": 1000},
            "unit": "record",
            "adjacency": "add_remove" if place % 2 else ("replace_one", "zero_out")[place // 2 % 2],
            "mechanism": mechanism,
            "noise": _NOISES[place % len(_NOISES)],
            "ancestry": _ANCESTRIES[place % len(_ANCESTRIES)],
            "initial_weights": DIGEST,
            "tensors": {"trained": ["weight", "bias"], "frozen": ["embedding"]},
            "tuning": "none",
            "checkpoints": [
                {
                    "step": last,
                    "files": [{"name": "model.safetensors", "sha256": DIGEST}],
                    "weights": DIGEST,
                    "metrics": [{"name": "accuracy", "value": 0.5, "measured_on": "public", "data": "test"}],
                }
            ],
            "finished": True,
            "recorded_by": {"how": "recorder", "who": "us"},
            "tools": {"python": "3"},
        }
        documents.append(document)
    return documents


def valid_headers() -> list[tuple[Document, bytes]]:
    """Headers of safetensors files and the data that goes with them."""

    def entry(dtype: str, shape: list[int], start: int, end: int) -> Document:
        return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}

    ones = struct.pack("<6f", *[1.0] * 6)
    return [
        ({"weight": entry("F32", [3, 2], 0, 24)}, ones),
        ({"a": entry("BF16", [4], 0, 8), "b": entry("F64", [], 8, 16), "c": entry("U8", [8], 16, 24)}, ones),
        ({"__metadata__": {"format": "pt"}, "empty": entry("F16", [0, 7], 0, 0), "x": entry("I64", [3], 0, 24)}, ones),
        ({"embedding.weight": entry("F16", [2, 2, 3], 0, 24), "__metadata__": {"step": "1"}}, ones),
        ({}, b""),
    ]


LISTINGS = (
    "schema: dpmerge/portfolio/v1\nruns: [a, b]\ncomplete: true\nallow: [different_initial_weights]\n",
    "schema: dpmerge/portfolio/v1\nruns:\n- a\n- b\n",
    '{"schema": "dpmerge/portfolio/v1", "runs": ["a"], "complete": null, "allow": []}',
)

_NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 3, 0.0, -0.0, 0.5, 1.0, 1.5, 1e-300, 5e-324, 1e-30, 1e30, 1e300, 1.7976931348623157e308, 1e6, 10**7,
    10**7 + 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63), 10**18, 10**19, 10**400, float("nan"),
    float("inf"), float("-inf"),
)  # fmt: skip
_TEXTS: tuple[Any, ...] = (
    "", " ", "a", "record", "..", "../x", "/etc/passwd", "a/../b", "a\\b", "a\0b", "a\nb", "\x1b[31m", "x.pt",
    "x.safetensors", "x" * 300, "x" * 501, "x" * 300 + ".safetensors", "é", "e\u0301", "\u202e", "\u2028", "\ufeff",
    "😀", "\ud800", "\udfff\ud800", "dp_sgd", "renyi", "non_private", "poisson", "shuffled", "unknown", "private",
    "seeded", "kind", "__metadata__", "__class__", "{}", "%s", "{0}", "F32", "F8_E4M3", "BOOL", DIGEST, DIGEST[:32],
    DIGEST.upper(),
)  # fmt: skip
_OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], [{}], {"": None}, [None], {"kind": "dp_sgd"})
_FRAGMENTS = (
    b"NaN", b"-Infinity", b"1e999", b"-0", b"0" * 20, b"9" * 4300, b"9" * 4301, b"1.", b".5", b"00", b"0x1", b"null",
    b"{}", b"[]", b"[[[[", b"]]]]", b"{" * 50, b'"', b"\\u0000", b"\\ud800", b"\\uD83D\\uDE00", b"\\", b"\0", b"\xff",
    b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xc0\x80", b"\xf4\x90\x80\x80", b",", b":", b"//", b"\r\n", b"\t", b"'",
    b'"__metadata__":{},', b'"dtype":"F32",',
)  # fmt: skip
_YAML_FRAGMENTS = (
    b"!!int ''", b"!!bool maybe", b"!!float ''", b"!!timestamp x", b"!!binary '*'", b"!!set {a}", b"!!omap [a]",
    b"!!null x", b"!!python/object/apply:os.getcwd []", b"&a", b"*a", b"&a [*a]", b"<<: {a: 1}", b"? [a]\n: b",
    b"=: 1", b"|\n x", b">\n", b"---\n", b"...\n", b"%YAML 1.1\n", b"%TAG ! x\n", b"!x y", b"- - - -",
    b"{a: {b: {c: ", b"[" * 300, b"~", b"2001-99-99", b"1:2:3", b"0b_", b"0o7", b".inf", b"yes", b'"\\ud800"',
    b'"\\0"', b'"\\e"', b"\xff\xfe", b"#", b"\t", b"a: b: c", b"''",
)  # fmt: skip


class Inputs:
    """A stream of inputs, each for one target, that depends on the seed alone."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self._manifests = [json.dumps(document) for document in valid_manifests()]
        self._headers = [(json.dumps(header), data) for header, data in valid_headers()]

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        while True:
            yield self.draw(self.random.choices(TARGETS, _SHARES)[0])

    def draw(self, target: str) -> tuple[str, bytes]:
        """One input for a target. For a header it is a whole file too: its length, itself, the data."""
        if target == MANIFEST:
            return target, self._text(self.random.choice(self._manifests), _FRAGMENTS)
        if target == LISTING:
            return target, self._listing()[:_LARGEST_LISTING]
        return target, self._safetensors()

    def _listing(self) -> bytes:
        text = self.random.choice(LISTINGS)
        if text.startswith("{"):
            return self._text(text, _YAML_FRAGMENTS)
        return self._damaged(text.encode(), _YAML_FRAGMENTS, self.random.choice((1, 1, 2, 4)))

    def _safetensors(self) -> bytes:
        header, data = self.random.choice(self._headers)
        text = self._text(header, _FRAGMENTS)
        length = len(text)
        match self.random.randrange(12):
            case 0:
                data = data[: self.random.randrange(len(data) + 1)]
            case 1:
                data += bytes(self.random.randrange(20))
            case 2:
                data = self.random.randbytes(len(data))
            case 3:
                length = self.random.choice((0, 1, length - 1, length + 1, 2**31, 2**63, 2**64 - 1, 32_000_001))
        whole = struct.pack("<Q", max(length, 0)) + text + data
        return self._damaged(whole, _FRAGMENTS, 1) if self.random.random() < 0.05 else whole

    def _text(self, text: str, fragments: tuple[bytes, ...]) -> bytes:
        """JSON text changed as a document, as text, or both."""
        how = self.random.random()
        if how < 0.8:
            document = json.loads(text)
            for _ in range(self.random.choice((1, 1, 1, 2, 3))):
                document = self._changed(document)
            text = json.dumps(document, ensure_ascii=self.random.random() < 0.7)
        content = text.encode("utf-8", "surrogatepass")
        if how > 0.7:
            content = self._damaged(content, fragments, self.random.choice((1, 1, 2)))
        return content

    def _changed(self, document: Any) -> Any:
        places = list(_places(document))
        if not places:
            return self._value()
        self.random.choice(_CHANGES)(self, places)
        return document

    def _value(self) -> Any:
        value = self.random.choice(self.random.choice((_NUMBERS, _TEXTS, _OTHERS)))
        return json.loads(json.dumps(value)) if isinstance(value, dict | list) else value

    def _replace(self, places: list[Place]) -> None:
        container, key = self.random.choice(places)
        container[key] = self._value()

    def _replace_alike(self, places: list[Place]) -> None:
        """A value of the same type, so that what follows the check of types is reached."""
        container, key = self.random.choice(places)
        value = container[key]
        if isinstance(value, bool):
            container[key] = not value
        elif isinstance(value, int | float):
            container[key] = self.random.choice(_NUMBERS) if self.random.random() < 0.5 else self._near(value)
        elif isinstance(value, str):
            container[key] = self.random.choice(_TEXTS)
        elif isinstance(value, list) and value:
            container[key] = value * self.random.choice((0, 2, 3, 70))

    def _near(self, value: float) -> float:
        if isinstance(value, int):
            return self.random.choice((value + 1, value - 1, -value, value * 2, value // 2))
        return self.random.choice((value + 1, value - 1, -value, value * 2, value / 2))

    def _remove(self, places: list[Place]) -> None:
        container, key = self.random.choice(places)
        del container[key]

    def _add(self, places: list[Place]) -> None:
        container, _ = self.random.choice(places)
        if isinstance(container, dict):
            container[str(self.random.choice(_TEXTS))] = self._value()
        else:
            container.insert(self.random.randrange(len(container) + 1), self._value())

    def _swap(self, places: list[Place]) -> None:
        container, key = self.random.choice(places)
        other, other_key = self.random.choice(places)
        if not _contains(container[key], other) and not _contains(other[other_key], container):
            container[key], other[other_key] = other[other_key], container[key]

    def _copy(self, places: list[Place]) -> None:
        container, key = self.random.choice(places)
        other, other_key = self.random.choice(places)
        if not _contains(other[other_key], container):
            container[key] = json.loads(json.dumps(other[other_key]))

    def _rename(self, places: list[Place]) -> None:
        container, key = self.random.choice(places)
        if isinstance(container, dict):
            container[str(self.random.choice(_TEXTS))] = container.pop(key)

    def _wrap(self, places: list[Place]) -> None:
        container, key = self.random.choice(places)
        for _ in range(self.random.choice((1, 1, 2, 20, 200))):
            container[key] = [container[key]] if self.random.random() < 0.7 else {"a": container[key]}

    def _damaged(self, content: bytes, fragments: tuple[bytes, ...], times: int) -> bytes:
        """Bytes flipped, cut, repeated, replaced, without any regard for what they mean."""
        for _ in range(times):
            content = self._damage(content, fragments)
        return content

    def _damage(self, content: bytes, fragments: tuple[bytes, ...]) -> bytes:
        draw = self.random.randrange
        here = draw(len(content) + 1)
        there = min(len(content), here + draw(1, 30))
        match draw(9):
            case 0 if content and here < len(content):
                flipped = content[here] ^ (1 << draw(8))
                return content[:here] + bytes([flipped]) + content[here + 1 :]
            case 1:
                return content[:here]
            case 2:
                return content[:here] + content[there:]
            case 3:
                return content[:there] + content[here:]
            case 4:
                return content[:here] + self.random.choice(fragments) + content[here:]
            case 5:
                return self._at_a_value(content, self.random.choice(fragments))
            case 6:
                return self._twice(content)
            case 7:
                return self._at_a_value(content, self._deep())
            case _:
                return content[:here] + self.random.randbytes(draw(1, 5)) + content[there:]

    def _at_a_value(self, content: bytes, value: bytes) -> bytes:
        """The value after some colon replaced by other text."""
        parts = content.split(b":")
        place = self.random.randrange(len(parts))
        ends = [end for end in (parts[place].find(mark) for mark in (b",", b"}", b"]", b"\n")) if end >= 0]
        rest = parts[place][min(ends) :] if ends else b""
        parts[place] = b" " + value + rest
        return b":".join(parts)

    def _twice(self, content: bytes) -> bytes:
        """Some field named twice."""
        parts = content.split(b", ")
        place = self.random.randrange(len(parts))
        return b", ".join([*parts[:place], parts[place], *parts[place:]])

    def _deep(self) -> bytes:
        opened, closed = self.random.choice(((b"[", b"]"), (b'{"a":', b"}")))
        levels = self.random.choice((10, 30, self.random.randrange(100), self.random.randrange(900, 1000)))
        return opened * levels + (b"1" if opened != b"[" else b"") + closed * levels


Change = Callable[[Inputs, list[Place]], None]
_CHANGES: tuple[Change, ...] = (
    Inputs._replace,
    Inputs._replace_alike,
    Inputs._replace_alike,
    Inputs._replace_alike,
    Inputs._remove,
    Inputs._add,
    Inputs._swap,
    Inputs._copy,
    Inputs._rename,
    Inputs._wrap,
)


def _places(value: Any) -> Iterator[Place]:
    """Everything inside a document that can be replaced."""
    stack = [value] if isinstance(value, dict | list) else []
    while stack:
        container = stack.pop()
        keys = list(container) if isinstance(container, dict) else range(len(container))
        for key in keys:
            yield container, key
            if isinstance(container[key], dict | list):
                stack.append(container[key])


def _contains(outer: Any, inner: Any) -> bool:
    return outer is inner or any(container[key] is inner for container, key in _places([outer]))
