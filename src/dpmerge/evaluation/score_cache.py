"""Scores that were already paid for, in memory or in a file: JSON lines, appended as each result arrives.

Guarantees: whatever was stored before an interrupt or a crash is found again; the file is its owner's alone (0600).
A last line that a crash cut off is dropped. Not for release: it holds figures of models nobody has released.
Refuses: files that are no score cache, which are left as they are, and files with a broken line before the last.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dpmerge.errors import CannotWriteError, InvalidInputError
from dpmerge.remote.remote_path import is_url, location
from dpmerge.terms.documents import strict_json
from dpmerge.terms.recipe import Recipe

SCHEMA = "dpmerge/scores/v1"
BANNER = "Analysis, not for release: it shows figures of models that have not been released."
_HEADER = (json.dumps({"schema": SCHEMA, "banner": BANNER}) + "\n").encode()
_REMEDY = "name a file of scores that dpmerge wrote, or a new one"
_ACCEPTED_FILE = "a file that can be read and written"
_FIELDS = {"key", "recipe", "score"}


class ScoreCache:
    """Scores by key; with a file, also those of earlier sessions. Close it, or use it as a context.

    Args:
        path: a file of scores, made if it is not there; without it scores are kept in memory.

    Raises:
        InvalidInputError: a file that is no score cache, has a broken line, or cannot be read and written.

    Example:
        >>> with ScoreCache() as scores:
        ...     scores.store("key", Recipe.of({"a@20": 1.0}), 0.75)
        ...     scores["key"], "another" in scores
        (0.75, False)
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self._scores: dict[str, float] = {}
        self._owners: list[object] = []
        self._file: int | None = None
        self._path = path
        if path is not None:
            if is_url(place := location(path, "cache")):
                accepted = "a file on disk: scores are added to it one by one, and a store's objects are written whole"
                raise InvalidInputError("cache", str(place), accepted)
            self._open(place)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __contains__(self, key: str) -> bool:
        return key in self._scores

    def __getitem__(self, key: str) -> float:
        return self._scores[key]

    def __len__(self) -> int:
        return len(self._scores)

    def store(self, key: str, recipe: Recipe, score: float, *, durable: bool = True) -> None:
        """Keep a score; in the file too, if there is one and the key means the same in another session."""
        self._scores[key] = score
        if durable and self._file is not None:
            self._append((json.dumps({"key": key, "recipe": str(recipe), "score": score}) + "\n").encode())

    def _append(self, line: bytes) -> None:
        assert self._file is not None
        try:
            # One write for one line: an interrupt falls before or after it.
            if os.write(self._file, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self.close()  # a line after half a line could not be read again
            accepted = "a file that can be written"
            raise CannotWriteError.from_os(error, field="cache", path=self._path, accepted=accepted) from None

    def session_name(self, evaluator: object) -> str:
        """A name for an object that has none of its own, good for as long as this cache is."""
        if not any(owner is evaluator for owner in self._owners):
            self._owners.append(evaluator)  # kept alive, so that no other object gets its id
        name = getattr(evaluator, "__qualname__", type(evaluator).__qualname__)
        return f"{getattr(evaluator, '__module__', '')}.{name} {id(evaluator)}"

    def _open(self, path: Path) -> None:
        try:
            # Not blocking: opened for reading, a named pipe would wait for somebody to write.
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o600)
        except OSError as error:
            raise CannotWriteError.from_os(error, field="cache", path=path, accepted=_ACCEPTED_FILE) from None
        except ValueError as error:  # a name no file can have
            raise InvalidInputError("cache", path, _ACCEPTED_FILE, found=f"an error: {error}") from None
        try:
            self._resume(path, file)
        except BaseException:
            os.close(file)
            raise
        self._file = file

    def _resume(self, path: Path, file: int) -> None:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise InvalidInputError("cache", path, _REMEDY, problem=f"cache: {path} is no ordinary file")
        with os.fdopen(os.dup(file), "rb") as reader:
            content = reader.read()
        whole, end, torn = content.rpartition(b"\n")
        lines = whole.split(b"\n") if end else []
        if not lines and not _HEADER.startswith(torn):
            raise InvalidInputError("cache", path, _REMEDY, problem=f"cache: {path} is something else")
        for number, line in enumerate(lines, start=1):
            _read(path, number, line, self._scores)
        os.fchmod(file, 0o600)
        if torn:
            os.ftruncate(file, len(whole) + len(end))
        if not lines:
            os.write(file, _HEADER)


def _read(path: Path, number: int, line: bytes, scores: dict[str, float]) -> None:
    try:
        content: Any = strict_json(line, "line")
    except InvalidInputError as error:
        raise _broken(path, number, str(error.found)) from None
    if number == 1:
        schema = content.get("schema") if isinstance(content, dict) else None
        if schema != SCHEMA:
            found = "something else" if schema is None else f"of the schema {schema!r}, and not {SCHEMA}"
            raise InvalidInputError("cache", path, _REMEDY, problem=f"cache: {path} is {found}")
        return
    if not isinstance(content, dict) or set(content) != _FIELDS:
        raise _broken(path, number, "no object with key, recipe and score")
    key, score = content["key"], content["score"]
    if not isinstance(key, str) or not isinstance(score, float) or not math.isfinite(score):
        raise _broken(path, number, f"the score {score!r} of {key!r}")
    scores[key] = score


def _broken(path: Path, number: int, found: str) -> InvalidInputError:
    field, accepted = f"{path}, line {number}", "one score; remove the line, or the file, to have it computed again"
    return InvalidInputError(field, None, accepted, found=found)
