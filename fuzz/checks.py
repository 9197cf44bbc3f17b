"""What must be true of every input: it is refused by name in one line, or what was made of it holds together."""

from __future__ import annotations

import json
from pathlib import Path

import safetensors

from dpmerge.errors import DpmergeError, PortfolioError
from dpmerge.portfolio.manifest import Manifest
from dpmerge.portfolio.portfolio_file import read_listing
from dpmerge.portfolio.tensors import TensorEntry, parse_header, read_contents, read_header
from fuzz.mutations import FILE, HEADER, LISTING, MANIFEST


class ViolationError(AssertionError):
    """A promise of the readers that an input broke."""


class Checks:
    """The readers, each fed with bytes; `folder` is theirs to write inputs to."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "model.safetensors"
        self.listing = folder / "portfolio.yaml"
        for name in ("a", "b"):
            (folder / name).mkdir(exist_ok=True)
            (folder / name / "privacy.json").write_text("{}")

    def check(self, target: str, content: bytes) -> str:
        """ "accepted", or the name of the error it was refused with; anything else is raised."""
        try:
            {MANIFEST: self._manifest, HEADER: self._header, FILE: self._file, LISTING: self._listing}[target](content)
        except DpmergeError as error:
            self._complaint(error)
            return type(error).__name__
        return "accepted"

    def _complaint(self, error: DpmergeError) -> None:
        message = str(error)
        if not isinstance(error, PortfolioError):
            raise ViolationError(f"an error without a file: {message!r}") from error
        if len(message.splitlines()) != 1 or len(message) > 5000:
            raise ViolationError(f"a message that is not one line: {message!r}") from error

    def _manifest(self, content: bytes) -> None:
        manifest = Manifest.parse(content)
        if Manifest.parse(manifest.text().encode()) != manifest:
            raise ViolationError("a manifest that says something else once written and read")
        manifest.statement.voice.encode()

    def _header(self, content: bytes) -> None:
        length = int.from_bytes(content[:8], "little")
        text = content[8 : 8 + length]
        slots = parse_header(text, max(len(content) - 8 - len(text), 0), self.file)
        if length == len(text):
            _agrees(content, slots)

    def _file(self, content: bytes) -> None:
        self.file.write_bytes(content)
        slots = read_header(self.file)
        _agrees(content, slots)
        found = read_contents(self.file, slots)
        if set(found.tensors) != {slot.name for slot in slots}:
            raise ViolationError("tensors of the header that were not read")

    def _listing(self, content: bytes) -> None:
        self.listing.write_bytes(content)
        listing = read_listing(self.listing)
        if not set(listing.runs) <= {"a", "b"}:
            raise ViolationError(f"folders that are none: {listing.runs}")


def _agrees(content: bytes, slots: tuple[TensorEntry, ...]) -> None:
    """Whoever else reads the file must find the same tensors there, or refuse it."""
    position = 8 + int.from_bytes(content[:8], "little")
    for slot in slots:
        if slot.start != position:
            raise ViolationError(f"bytes of no tensor, or of two, before {slot.name!r}")
        position = slot.end
    if position != len(content):
        raise ViolationError("bytes of no tensor at the end")
    try:
        theirs = safetensors.deserialize(content)
    except safetensors.SafetensorError:
        return
    ours = {slot.name: [slot.dtype, list(slot.shape)] for slot in slots}
    if ours != {name: [entry["dtype"], list(entry["shape"])] for name, entry in theirs}:
        raise ViolationError(f"tensors the library reads otherwise: {json.dumps(ours)}")
