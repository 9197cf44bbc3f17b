"""A manifest says the same after being written and read, its schema agrees, and writing it never leaves half of one."""

from __future__ import annotations

import copy
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmerge.errors import ManifestError, PortfolioError
from dpmerge.ledger.identity import identity_of
from dpmerge.portfolio.manifest import Manifest, json_schema
from portfolio.manifests import Document, manifests
from portfolio.portfolios import manifest

VALIDATOR = jsonschema.Draft202012Validator(json_schema())


def objects(value: Any) -> Iterator[Document]:
    """Every object inside a document, except `tools`, whose fields are free."""
    if isinstance(value, dict):
        yield value
        for name, inner in value.items():
            if name not in ("tools", "values"):  # any name is a field of these
                yield from objects(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from objects(inner)


@given(manifests())
def test_a_manifest_survives_being_written(document: Document) -> None:
    read = Manifest.parse(json.dumps(document))
    again = Manifest.parse(read.text())
    assert again == read
    assert again.text() == read.text()
    assert Manifest.parse(read.text().encode()) == read
    assert json.loads(read.text()) == read.document()


@given(manifests())
def test_writing_a_manifest_keeps_every_field(document: Document) -> None:
    written = json.loads(Manifest.parse(json.dumps(document)).text())

    def contained(said: Any, kept: Any) -> bool:
        if isinstance(said, dict):
            return all(name in kept and contained(value, kept[name]) for name, value in said.items())
        if isinstance(said, list):
            return len(said) == len(kept) and all(contained(a, b) for a, b in zip(said, kept, strict=True))
        return bool(said == kept)

    assert contained(document, written)


def test_the_json_schema_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())
    assert json_schema()["$id"] == "dpmerge/run/v1"


@given(manifests())
def test_the_schema_accepts_what_the_reader_accepts(document: Document) -> None:
    VALIDATOR.validate(document)
    VALIDATOR.validate(Manifest.parse(json.dumps(document)).document())


@given(manifests(), st.data())
def test_schema_and_reader_refuse_an_unknown_field_anywhere(document: Document, data: st.DataObject) -> None:
    changed = copy.deepcopy(document)
    data.draw(st.sampled_from(list(objects(changed))), label="where")["unheard_of"] = 1
    assert not VALIDATOR.is_valid(changed)
    with pytest.raises(ManifestError, match="unknown field"):
        Manifest.parse(json.dumps(changed))


@given(manifests(), st.data())
def test_what_the_schema_refuses_the_reader_refuses(document: Document, data: st.DataObject) -> None:
    """One value anywhere becomes something else; the reader may be stricter than the schema, never laxer."""
    changed = copy.deepcopy(document)
    place = data.draw(st.sampled_from([o for o in objects(changed) if o]), label="where")
    name = data.draw(st.sampled_from(sorted(place)), label="field")
    odd = st.sampled_from([None, True, -1, 0, 0.5, 1e300, "", "x", [], {}, [None], "0" * 64, 2**64])
    place[name] = data.draw(odd, label="value")
    try:
        read = Manifest.parse(json.dumps(changed))
    except PortfolioError:
        return
    VALIDATOR.validate(changed)
    assert Manifest.parse(read.text()) == read


@pytest.mark.parametrize("text", ["", "\ud800"])
def test_names_of_tools_can_be_written_again(text: str, tmp_path: Path) -> None:
    """Whatever was accepted can be written and read."""
    try:
        read = Manifest.parse(json.dumps(manifest("a", tools={text: "1.0"})))
    except ManifestError:
        return
    read.write(tmp_path / "privacy.json")
    assert Manifest.read(tmp_path / "privacy.json") == read


def test_many_tensors_take_time_in_proportion() -> None:
    """A list as long as a manifest allows must not keep the reader busy for hours."""
    names = [f"layer.{place}.weight" for place in range(20_000)]
    document = json.dumps(manifest("a", tensors={"trained": names}))
    begun = time.perf_counter()
    Manifest.parse(document)
    assert time.perf_counter() - begun < 1


def test_writing_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    first, second = (Manifest.parse(json.dumps(manifest(name))) for name in "ab")
    for each in (first, second):
        each.write(tmp_path / "privacy.json")
        assert Manifest.read(tmp_path / "privacy.json") == each
        assert [file.name for file in tmp_path.iterdir()] == ["privacy.json"]


class Interrupted(BaseException):
    """Not an Exception: as a signal or an exit would be."""


def fail(*arguments: object, **options: object) -> None:
    raise Interrupted


@pytest.mark.parametrize("broken", [(os, "fsync"), (Path, "replace")], ids=["flushing", "renaming"])
@pytest.mark.parametrize("reason", [Interrupted(), OSError(28, "No space left on device")], ids=["stop", "disk full"])
def test_an_interrupted_write_leaves_the_old_file_whole(
    broken: tuple[Any, str], reason: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "privacy.json"
    first, second = (Manifest.parse(json.dumps(manifest(name))) for name in "ab")
    first.write(file)
    before = file.read_bytes()

    def interrupted(*arguments: object, **options: object) -> None:
        raise reason

    with monkeypatch.context() as patched:
        patched.setattr(*broken, interrupted)
        with pytest.raises(type(reason)):
            second.write(file)
    assert file.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["privacy.json"]
    second.write(file)
    assert Manifest.read(file) == second


def test_an_interrupted_first_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(Interrupted):
        Manifest.parse(json.dumps(manifest("a"))).write(tmp_path / "privacy.json")
    assert list(tmp_path.iterdir()) == []


def test_whoever_reads_while_it_is_written_finds_a_whole_manifest(tmp_path: Path) -> None:
    file = tmp_path / "privacy.json"
    versions = [Manifest.parse(json.dumps(manifest("a", unit=unit))) for unit in ("record", "user")]
    versions[0].write(file)
    stop = threading.Event()

    def write() -> None:
        place = 0
        while not stop.is_set():
            place += 1
            versions[place % 2].write(file)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(50):
            assert Manifest.read(file) in versions
    finally:
        stop.set()
        writer.join()


@settings(max_examples=30)
@given(document=manifests())
def test_a_written_manifest_is_read_from_disk(document: Document, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / "privacy.json"
    read = Manifest.parse(json.dumps(document))
    read.write(file)
    assert Manifest.read(file) == read


def test_tied_tensors_may_be_stated_or_left_out() -> None:
    """Known to be none is not the same as not stated, and neither is part of what a run's cost is computed from."""
    facts = manifest("a")["tensors"]
    found = {}
    for name, tied in {"not stated": None, "none": [], "one": [["bias", "weight"]]}.items():
        document = manifest("a", tensors=facts if tied is None else {**facts, "tied": tied})
        read = Manifest.parse(json.dumps(document))
        assert read.tensors is not None
        assert read.tensors.tied == tied
        assert read.document()["tensors"].get("tied") == tied
        found[name] = (read.statement, identity_of(read))
    assert found["not stated"] == found["none"] == found["one"]


@pytest.mark.parametrize("schema", ["dpmerge/run/v1", "dpmerge/run/v99"])
def test_a_schema_under_the_name_that_the_code_has_for_it_is_refused(schema: str) -> None:
    document = {**manifest(), "schema": schema, "schema_": "dpmerge/run/v1"}
    with pytest.raises(ManifestError, match="schema_: got an unknown field"):
        Manifest.parse(json.dumps(document).encode(), "privacy.json")
