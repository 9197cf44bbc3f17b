"""What processes that were killed have left: found where they noted it, and removed if nobody can need it any more.

Guarantees: a file or folder goes only if its lock could be taken, so that no living process is writing it; if it has a
name that only dpmerge gives, in a place that a ledger or a note of dpmerge's names; and, of a staged output, if it is
not that of a release which is still pending or that another ledger charged: its noise may be nowhere else.
Refuses: nothing; what cannot be removed stays.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from dpmerge.certificate.dsse import CERTIFICATE_NAME, read_certificate
from dpmerge.errors import CannotWriteError, InvalidInputError
from dpmerge.files import is_file, nobodys, read_bytes
from dpmerge.ledger.ledger import Ledger
from dpmerge.merging.staging import staged_for
from dpmerge.portfolio.manifest import MANIFEST_NAME
from dpmerge.releasing.commitment_salt import SALT_NAME
from dpmerge.releasing.ledger_location import WITNESS_NAME
from dpmerge.releasing.output_lock import NOTE, lock_of, output_lock

_DIGITS = "[0-9a-f]{8}"
_NOTE = re.compile(re.escape(NOTE).replace(r"\{\}", _DIGITS))
_WRITTEN = "|".join(re.escape(name) for name in (WITNESS_NAME, SALT_NAME, MANIFEST_NAME))
_PARTIAL_FILE = re.compile(rf"\.(?:{_WRITTEN})\.{_DIGITS}\.partial")
_PARTIAL_IMPORT = re.compile(rf"\.import-{_DIGITS}\.partial")
_BESIDE = re.compile(rf"\.(?P<name>.+?)\.(?:lock|{_DIGITS}\.(?:partial|previous))", re.DOTALL)
_LONGEST_PLACE = 10_000


def remove_left_behind(ledger: Ledger, homes: Iterable[Path]) -> Iterator[Path]:
    """Remove what dead processes left of releases in this ledger, and in the folders of these portfolios; what went."""
    for out in _with_leftovers(ledger.places()):
        yield from _of_an_output(ledger, out)
    for home in dict.fromkeys(homes):
        yield from _of_notes(ledger, home)
        for folder in (home, *_inside(home, lambda path: path.is_dir() and not path.is_symlink())):
            yield from _of_files(folder)


def _with_leftovers(places: Iterable[str]) -> Iterator[Path]:
    """Of these places those with something beside them that is named after them; each folder is read once."""
    folders: dict[Path, set[str]] = {}
    for place in places:
        folders.setdefault(Path(place).parent, set()).add(Path(place).name)
    for folder, names in sorted(folders.items()):
        found = (_BESIDE.fullmatch(path.name) for path in _inside(folder, lambda _: True))
        for name in sorted({match["name"] for match in found if match is not None} & names):
            yield folder / name


def _of_notes(ledger: Ledger, home: Path) -> Iterator[Path]:
    """What was left where a note says that a release was being made, and then the note."""
    for note in _inside(home, lambda path: bool(_NOTE.fullmatch(path.name))):
        with nobodys(note) as descriptor:
            if descriptor is None:
                continue
            place = os.fsdecode(os.read(descriptor, _LONGEST_PLACE))
            if place and os.path.isabs(place):
                yield from _of_an_output(ledger, Path(place))
            note.unlink(missing_ok=True)
            yield note


def _of_an_output(ledger: Ledger, out: Path) -> Iterator[Path]:
    """The lock of a place, and what was staged for it."""
    lock, previous = lock_of(out), _previous(out)
    locked = lock.is_file() and not lock.is_symlink()
    if not locked and not previous and not any(staged_for(out)):
        return
    removed: list[Path] = []
    with suppress(CannotWriteError), output_lock(out):  # refused where somebody is making a release
        for path in (*staged_for(out), *(previous if is_file(out / CERTIFICATE_NAME) else ())):
            with nobodys(path) as descriptor:
                if descriptor is not None and (path in previous or _is_needless(ledger, path)):
                    shutil.rmtree(path, ignore_errors=True)
                    removed += [] if path.exists() else [path]
        removed += [lock] if locked else []
    yield from removed


def _previous(out: Path) -> list[Path]:
    """What an output replaced, where two folders cannot be exchanged in one step."""
    named = re.compile(rf"\.{re.escape(out.name)}\.{_DIGITS}\.previous")
    return list(
        _inside(out.parent, lambda path: bool(named.fullmatch(path.name)) and path.is_dir() and not path.is_symlink())
    )


def _is_needless(ledger: Ledger, staged: Path) -> bool:
    """Whether a staged output was never certified, or is of a release of this ledger that is done with."""
    file = staged / CERTIFICATE_NAME
    if not file.exists():
        return True
    try:
        content = read_certificate(read_bytes(file)).content
        charge = ledger.release(content["release"]) if content["ledger"]["id"] == ledger.id else None
    except (InvalidInputError, KeyError, TypeError):
        return False
    return charge is not None and charge.status in ("completed", "abandoned")


def _of_files(folder: Path) -> Iterator[Path]:
    """Documents and imports that were being written."""

    def named(path: Path) -> bool:
        pattern = _PARTIAL_IMPORT if path.is_dir() else _PARTIAL_FILE
        return not path.is_symlink() and bool(pattern.fullmatch(path.name))

    for path in _inside(folder, named):
        with nobodys(path) as descriptor, suppress(OSError):
            if descriptor is None:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
            yield path


def _inside(folder: Path, wanted: Callable[[Path], bool]) -> Iterator[Path]:
    try:
        yield from [path for path in sorted(folder.iterdir()) if wanted(path)]
    except OSError:
        return
