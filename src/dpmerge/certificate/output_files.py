"""The files of an output beside its certificate: those it is about, unchanged, and nothing else.

Guarantees: every subject is an ordinary file inside the folder, of the size and digest stated; whatever else lies there
(weights in any format, configuration, code, links, pipes) is named and fails, unless it was named as an exception.
A timestamp of the certificate may lie beside it: made later, it cannot be covered.
No link is followed. An index is part of what is certified, and so is every file it points to.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath

from dpmerge.certificate.checks import Check
from dpmerge.certificate.commitments import CertifiedFile
from dpmerge.certificate.dsse import CERTIFICATE_NAME, Certificate
from dpmerge.certificate.model_card import CARD_NAME
from dpmerge.errors import InvalidInputError
from dpmerge.files import LARGEST_SMALL_FILE, file_digest, file_size, read_bytes
from dpmerge.remote.remote_path import RemotePath
from dpmerge.terms.documents import strict_json

TIMESTAMP_NAME = "privacy-certificate.tsr"
"""A timestamp of the certificate's file, as an authority sent it."""
LARGEST_TIMESTAMP = 100_000
"""Bytes. With a long chain of certificates it has some 10,000; nobody hides a model in it."""
_INDEX = ".index.json"
_LARGEST_INDEX = 64_000_000
_SHOWN = 20


def wrong_files(path: Path, certificate: Certificate) -> list[str]:
    """What is wrong with the files that a certificate is about."""
    found = ((name, _wrong(path, name, file)) for name, file in sorted(certificate.subjects.items()))
    return [reason for _, reason in found if reason is not None]


def file_checks(path: Path, certificate: Certificate, allow_extra: Iterable[str] = ()) -> Iterator[Check]:
    """Whether the folder holds what is certified, and no more than that and the exceptions (files or folders)."""
    allowed = {_relative(name) for name in allow_extra}
    wrong = wrong_files(path, certificate)
    if not wrong:
        wrong += _pointing_elsewhere(path, certificate.subjects)
    own = {*certificate.subjects, CARD_NAME, CERTIFICATE_NAME, *timestamp_in(path)}
    excepted = []
    for name, what in _entries(path, allowed):
        if name in allowed and name not in own:
            excepted.append(name)
        elif what != "file":
            wrong += [] if name in certificate.subjects else [f"{name} is {what}"]
        elif name not in own:
            wrong.append(f"{name} is not covered by the certificate")
    more = [f"… and {len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else []
    yield Check("files", not wrong, (*wrong[:_SHOWN], *more))
    if excepted:
        yield Check("other files", None, (f"not covered, as allowed: {', '.join(sorted(excepted))}",))


def timestamp_in(path: Path) -> Iterator[str]:
    """The name of the timestamp, where there is one of a size that one can have."""
    try:
        found = (path / TIMESTAMP_NAME).lstat()
    except OSError:
        return
    if stat.S_ISREG(found.st_mode) and found.st_size <= LARGEST_TIMESTAMP:
        yield TIMESTAMP_NAME


def _relative(name: str) -> str:
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts:
        raise InvalidInputError("allow-extra", name, "the name of a file or folder inside the output")
    return str(path)


def _entries(path: Path, allowed: Collection[str]) -> Iterator[tuple[str, str]]:
    """Everything in a folder by its relative name, and what it is; not what is below an exception or a link."""
    if isinstance(path, RemotePath):
        from dpmerge.remote.stores import store_of

        try:
            yield from ((name, "file") for name in sorted(store_of(path).files(path)) if not _below(name, allowed))
            yield from ((name, "file") for name in sorted(allowed) if (path / name).exists())
        except OSError as error:
            yield ".", f"a prefix that cannot be listed ({error.strerror})"
        return
    left = [""]
    while left:
        folder = left.pop()
        try:
            with os.scandir(path / folder) as listed:
                found = sorted(listed, key=lambda entry: entry.name)
        except OSError as error:
            yield folder or ".", f"a folder that cannot be read ({error.strerror})"
            continue
        for entry in found:
            name = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_symlink():
                yield name, "a link"
            elif name not in allowed and entry.is_dir(follow_symlinks=False):
                left.append(name)
            else:
                ordinary = name in allowed or entry.is_file(follow_symlinks=False)
                yield name, "file" if ordinary else "not an ordinary file"


def _below(name: str, allowed: Collection[str]) -> bool:
    return any(PurePosixPath(name).is_relative_to(each) for each in allowed)


def _wrong(path: Path, name: str, certified: CertifiedFile) -> str | None:
    parts = PurePosixPath(name).parts
    if not name.isprintable() or name.startswith("/") or ".." in parts or "\\" in name:
        return f"{name!r} leads out of the folder"
    try:
        file = path / name
        if isinstance(path, RemotePath):
            if certified.size is None:
                require_plausible(file, file_size(file))
            return None if file_digest(file, certified.size) == certified.sha256 else _other(name)
        if any((path / Path(*parts[:depth])).is_symlink() for depth in range(1, len(parts) + 1)):
            inside = file.resolve().is_relative_to(path.resolve())
            return f"{name} is a link" if inside else f"{name} is a link out of the folder"
        found = file.lstat()
        if not stat.S_ISREG(found.st_mode):
            return f"{name} is not an ordinary file"
        if certified.size is not None and found.st_size != certified.size:
            return f"{name} has {found.st_size:,} bytes; {certified.size:,} were certified"
        if certified.size is None:
            require_plausible(file, found.st_size)
        digest = file_digest(file, certified.size)
    except (OSError, RuntimeError) as error:  # links that go round in circles
        return f"{name} cannot be read ({getattr(error, 'strerror', None) or error})"
    return None if digest == certified.sha256 else _other(name)


def _other(name: str) -> str:
    return f"{name} is not the file that was certified"


def require_plausible(file: Path, size: int) -> None:
    """Refuse (OSError) to read to its end what could not be a file of a release, where no size is certified.

    Weights say in their header how long they are; all other files of a release are small.
    """
    if size <= LARGEST_SMALL_FILE:
        return
    if file.suffix != ".safetensors":
        raise OSError(errno.EFBIG, f"{size:,} bytes, more than a release has in such a file", str(file))
    from dpmerge.safetensors_header import read_header

    try:
        read_header(file)
    except InvalidInputError:
        raise OSError(errno.EFBIG, f"{size:,} bytes, which is not what its header says", str(file)) from None


def _pointing_elsewhere(path: Path, subjects: Collection[str]) -> Iterator[str]:
    """Indexes that have weights loaded from files that nobody certified."""
    for name in sorted(subjects):
        if not name.lower().endswith(_INDEX):
            continue
        try:
            content = strict_json(read_bytes(path / name, _LARGEST_INDEX, "an index"), name)
        except InvalidInputError as error:
            yield f"{name} cannot be read as an index ({error})"
            continue
        places = content.get("weight_map") if isinstance(content, dict) else None
        for place in sorted({str(each) for each in places.values()} if isinstance(places, dict) else ()):
            if str(PurePosixPath(name).parent / place) not in subjects:
                yield f"{name} points to {place}, which the certificate does not cover"
