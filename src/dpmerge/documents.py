"""Strict JSON documents: the one reader of every file a person may have written.

Guarantees: only regular files are read, and none is waited for; what is accepted has each field once, no unknown ones
and the right types; the first problem is told in one line that names the field, what stood there and what is accepted.
Refuses: anything above a size limit, bytes that are not UTF-8, broken or deeply nested JSON, duplicate fields.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from dpmerge.errors import InvalidInput

LARGEST_DOCUMENT = 10_000_000
"""Bytes. A document is read whole before anything in it is believed."""

LARGEST_SMALL_FILE = 64_000_000
"""Bytes of what is no weights beside a model. The largest tokenizers have about 30 MB."""

MOSTLY_HOLES = 2**30
"""Bytes above which a file must be on disk by a thousandth at least: weights have no holes."""


class Strict(BaseModel):
    """A frozen piece of a document: unknown fields and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


Model = TypeVar("Model", bound=Strict)


def regular_descriptor(path: str | Path) -> int:
    """A descriptor of a regular file, to read from; an OSError for anything else.

    Opened without waiting: a pipe would keep who opens it waiting for a writer, a device could give bytes for ever,
    and so would a file of a few blocks that says it has hundreds of gigabytes.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        # Where no block is counted at all, the file system does not count them.
        if found.st_size > MOSTLY_HOLES and 0 < 512 * found.st_blocks < found.st_size // 1000:
            raise OSError(errno.EINVAL, f"{found.st_size:,} bytes, nearly all of them holes", str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_regular(path: str | Path) -> BinaryIO:
    """A regular file, open for reading; an OSError for anything else."""
    return os.fdopen(regular_descriptor(path), "rb")


def read_bytes(path: Path, limit: int = LARGEST_DOCUMENT, accepted: str = "a readable JSON file") -> bytes:
    """The file's content, never more than `limit` bytes of it."""
    try:
        with open_regular(path) as file:
            content = file.read(limit + 1)
    except (OSError, ValueError) as error:  # a name no file can have is a ValueError
        found = f"an error: {getattr(error, 'strerror', None) or error}"
        raise InvalidInput(str(path), path, accepted, found=found) from None
    if len(content) > limit:
        raise InvalidInput(str(path), path, f"at most {limit:,} bytes", found="a larger file")
    return content


def is_file(path: Path) -> bool:
    """Whether there is a file that can be seen; a name no file can have is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def strict_json(text: str | bytes, name: str) -> Any:
    """The value of JSON text in which no object has a field twice."""
    accepted = "one JSON object"
    try:
        # Left to itself the parser would guess at UTF-16 and accept surrogates.
        plain = text.decode("utf-8") if isinstance(text, bytes) else text
        return json.loads(plain, object_pairs_hook=without_duplicates)
    except InvalidInput:
        raise
    except UnicodeDecodeError as error:
        found = f"bytes that are not UTF-8 ({error.reason})"
        raise InvalidInput(name, text, "JSON text in UTF-8", found=found) from None
    except RecursionError:
        raise InvalidInput(name, text, accepted, found="JSON nested too deeply") from None
    except ValueError as error:
        raise InvalidInput(name, text, accepted, found=f"broken JSON ({error})") from None


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object's fields, each of which may be named once, in text that can be written down."""
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise InvalidInput(name, value, "each field once", found="the same field twice")
        if not name.isascii() and any("\ud800" <= letter <= "\udfff" for letter in name):
            raise InvalidInput(ascii(name), value, "Unicode text", found="half of a surrogate pair")
        fields[name] = value
    return fields


UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Controls, and marks that turn text round or that nobody sees. (Joiners are letters to some scripts, and are not.)"""


def require_seen(content: Any, place: str = "") -> None:
    """Refuse text, names of fields included, that would show something else than it says."""
    if isinstance(content, str):
        if UNSEEN.search(content):
            raise InvalidInput(place, content, "text without control characters and marks that turn text round")
    elif isinstance(content, dict):
        for name, value in content.items():
            require_seen(name, place)
            require_seen(value, f"{place}.{name}" if place else name)
    elif isinstance(content, list):
        for number, value in enumerate(content):
            require_seen(value, f"{place}[{number}]")


def validated(model: type[Model], content: Any, name: str) -> Model:
    """The content as a `model`, or the first thing wrong with it."""
    try:
        return model.model_validate(content, by_alias=True, by_name=False)
    except ValidationError as error:
        raise _explained(error, model, name) from None
    except RecursionError:
        raise InvalidInput(name, content, "one JSON object", found="JSON nested too deeply") from None


def _explained(error: ValidationError, model: type[Strict], name: str) -> InvalidInput:
    problems = [_Place(problem, model) for problem in error.errors(include_url=False)]
    # Of a value that fits neither of two types the branch that got furthest says most.
    same = [place for place in problems if place.fields == problems[0].fields]
    return max(same, key=lambda place: place.depth).error(name)


class _Place:
    """Where in a document a problem is, in the words of the model that describes it."""

    def __init__(self, problem: Any, model: type[Strict]) -> None:
        self.problem = problem
        self.path = ""
        self.fields: list[str] = []
        self.depth = 0
        self.owners: list[type[Strict]] = [model]
        self.field: FieldInfo | None = None
        self.in_list = False
        for part in problem["loc"]:
            self._enter(part)

    def _enter(self, part: int | str) -> None:
        if isinstance(part, int):
            self.path += f"[{part}]"
            self.depth += 1
            self.in_list = True
            return
        fields = {field.alias or name: field for o in self.owners for name, field in o.model_fields.items()}
        tagged = [o for o in self.owners if _tag(o) == part]
        unknown = self.problem["type"] == "extra_forbidden" and part == self.problem["loc"][-1]
        if part in fields and not (tagged and len(self.owners) > 1):
            self.field = fields[part]
            self.owners = list(models_in(self.field.annotation))
            self.in_list = False
            self._name(part)
        elif tagged and not (unknown and len(self.owners) == 1):
            self.owners = tagged
        elif unknown:
            self._name(part)

    def _name(self, part: str) -> None:
        self.path += f".{part}" if self.path else part
        self.fields.append(part)

    def error(self, name: str) -> InvalidInput:
        value, kind = self.problem["input"], self.problem["type"]
        if kind == "extra_forbidden":
            return InvalidInput(self.path, value, self._known(), found="an unknown field")
        accepted = str(self.field.description) if self.field is not None else "one JSON object with " + self._known()
        if self.owners and self.in_list and self.field is not None:
            accepted = "an object with " + self._known()
        if kind == "missing":
            return InvalidInput(self.path, value, accepted, found="nothing")
        if kind == "value_error":
            # A rule that concerns several fields explains itself.
            reason = self.problem["ctx"]["error"]
            if isinstance(reason, InvalidInput):
                return reason.within(self.path) if self.path else reason
        return InvalidInput(self.path or name, value, accepted)

    def _known(self) -> str:
        fields = ((name, field) for owner in self.owners for name, field in owner.model_fields.items())
        return ", ".join(dict.fromkeys(field.alias or name for name, field in fields))


def _tag(model: type[Strict]) -> str | None:
    """The value of `kind` by which a union tells its members apart, if this is such a member."""
    kind = model.model_fields.get("kind")
    values = get_args(kind.annotation) if kind is not None else ()
    return str(values[0]) if len(values) == 1 else None


def models_in(annotation: Any) -> Iterator[type[Strict]]:
    if isinstance(annotation, type) and issubclass(annotation, Strict):
        yield annotation
    for part in get_args(annotation):
        yield from models_in(part)
