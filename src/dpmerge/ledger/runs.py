"""Are these the runs they seem to be? What is checked before anything is counted.

Guarantees: a run that was charged before states the same as then; no two runs of a book share seeded noise; no run of
one data set is charged in the book of another; a final release is of runs that nobody has seen.
Refuses (NoGuarantee, RunsLocked, InvalidInput): anything else, naming run and field.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from dpmerge.errors import InvalidInput, NoGuarantee, RunsLocked
from dpmerge.ledger.entries import Book
from dpmerge.ledger.pricing import joined
from dpmerge.ledger.state import BookState, State

Stated = tuple[str, dict[str, Any], str | None]
"""Identity, statement (parents by identity), noise mark."""


def require_same_runs(book: BookState, runs: Iterable[Stated]) -> None:
    """Refuse a run whose statement has changed, and runs that share their noise with another."""
    marks = {known.mark: known for known in book.runs.values() if known.mark is not None}
    owners = {mark: (known.identity, known.name) for mark, known in marks.items()}
    for identity, statement, mark in runs:
        known = book.runs.get(identity)
        if known is not None and (field := first_difference(known.statement, statement)) is not None:
            raise NoGuarantee(
                f"{statement['run']}: {field} is not what it was when the run was first charged (as {known.name}); "
                "a run does not change after it was made, so one of the two records is wrong"
            )
        if mark is None:
            continue
        if known is not None and known.mark is not None and known.mark != mark:
            raise NoGuarantee(f"{statement['run']}: noise.seed is not what it was when the run was first charged")
        other, name = owners.setdefault(mark, (identity, statement["run"]))
        if other != identity:
            raise NoGuarantee(
                f"{statement['run']} and {name} were made with the same noise seed: their noise is not independent, "
                "and together they cost more than their sum"
            )


def first_difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """The first field in which two statements differ, the run's name aside."""
    return _difference({**before, "run": None}, {**after, "run": None}, "")


def _difference(before: Any, after: Any, path: str) -> str | None:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted({*before, *after}):
            place = f"{path}.{name}" if path else name
            if name not in before or name not in after:
                return place
            if (found := _difference(before[name], after[name], place)) is not None:
                return found
        return None
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for position, (old, new) in enumerate(zip(before, after, strict=True)):
            if (found := _difference(old, new, f"{path}[{position}]")) is not None:
                return found
        return None
    return None if before == after else path


def require_own_book(state: State, book: Book, runs: Iterable[Stated]) -> None:
    """Refuse a run that is known as one of other data, and a data set whose name is nearly another's."""
    others = [other for other in state.books.values() if other.book.dataset != book.dataset]
    for other in others:
        if _folded(other.book.dataset) == _folded(book.dataset):
            accepted = f"{other.book.dataset!r}, as it was written before; or a name that nobody takes for it"
            raise InvalidInput("dataset", book.dataset, accepted)
    for identity, statement, _ in runs:
        for other in others:
            if identity in other.runs:
                raise NoGuarantee(
                    f"{statement['run']}: dataset {book.dataset!r} is not what it was when the run was first charged "
                    f"({other.book.dataset!r}); a run is of one data set"
                )


def _folded(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", unicodedata.normalize("NFKC", name).casefold()).strip()


def require_unlocked_elsewhere(
    state: State, book: Book, exposures: Iterable[Mapping[str, int]], *, final: bool
) -> None:
    """A run is locked, or was seen, whatever unit or adjacency it was counted under."""
    touched = sorted(joined(*exposures))
    for other in state.books.values():
        if other.book != book:
            require_unlocked(other, [dict.fromkeys((run for run in touched if run in other.runs), 0)], final=final)


def require_unlocked(book: BookState, exposures: Iterable[Mapping[str, int]], *, final: bool) -> None:
    """Refuse runs that a final release has locked, and a final release of runs seen before."""
    touched = sorted(joined(*exposures))
    if locked := [run for run in touched if run in book.locks]:
        raise RunsLocked(
            f"{_named(book, locked, book.locks)}: locked by a final release, which holds only if nothing else of its "
            "runs is ever released"
        )
    if final and (seen := [run for run in touched if run in book.exposed]):
        raise RunsLocked(
            f"{_named(book, seen, book.seen_in)}: seen before, so that no release of them can be final; without "
            "--final it is charged as joint release"
        )


def _named(book: BookState, identities: list[str], releases: Mapping[str, str]) -> str:
    shown = [f"{book.runs[run].name} (release {releases[run]})" for run in identities[:5]]
    more = f" and {len(identities) - 5} more" if len(identities) > 5 else ""
    return ", ".join(shown) + more
