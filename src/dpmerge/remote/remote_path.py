"""URLs as paths: `s3://bucket/models` is named, joined and compared as a folder on disk is.

Guarantees: what takes a remote path for a local one fails (OSError) before it touches any disk; a path that was
accepted holds no password, token or query.
Refuses (InvalidInputError, which never repeats the URL): user:password@, ?query, #fragment, chains of URLs, `..`.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PosixPath
from urllib.parse import unquote, urlsplit

from dpmerge.errors import CannotReadError, InvalidInputError

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL | re.IGNORECASE)
_NAMED_BY_ACCOUNT = ("abfs", "abfss", "az", "adl")
"""Schemes in which container@account is a place, and not who asks."""


class RemotePath(PosixPath):
    """An object, or a prefix, in a store.

    >>> path = location("s3://models/portfolio") / "a" / "privacy.json"
    >>> str(path), path.name, str(path.parent), path.scheme
    ('s3://models/portfolio/a/privacy.json', 'privacy.json', 's3://models/portfolio/a', 's3')
    """

    def __str__(self) -> str:
        scheme, _, rest = super().__str__().partition(":")
        return f"{scheme}://{rest.lstrip('/')}"

    def __fspath__(self) -> str:
        raise OSError(errno.EOPNOTSUPP, "is a URL, where a file or folder on disk is needed", str(self))

    @property
    def scheme(self) -> str:
        return self.parts[0].rstrip(":").lower()

    @property
    def key(self) -> str:
        """What comes after the scheme."""
        return str(self).partition("://")[2]

    def absolute(self) -> RemotePath:
        return self

    def resolve(self, strict: bool = False) -> RemotePath:  # noqa: ARG002
        return self

    def is_symlink(self) -> bool:
        return False

    def exists(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        return self._kind() is not None

    def is_file(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        return self._kind() == "file"

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        return self._kind() == "folder"

    def iterdir(self) -> Iterator[RemotePath]:  # type: ignore[override]
        from dpmerge.remote.stores import store_of

        return (self / name for name, _ in store_of(self).entries(self))

    def glob(self, pattern: str, **_: object) -> Iterator[RemotePath]:  # type: ignore[override]
        """What lies directly in it and is called so."""
        return (path for path in self.iterdir() if fnmatchcase(path.name, pattern))

    def _kind(self) -> str | None:
        from dpmerge.remote.stores import store_of

        return store_of(self).kind(self)


def is_url(place: object) -> bool:
    """Whether something is a path, or text, that leads to a store."""
    if isinstance(place, Path):
        return isinstance(place, RemotePath)
    return isinstance(place, str) and "://" in place and not place.lower().startswith("file://")


def location(place: str | Path, field: str = "path") -> Path:
    """The path that somebody named: on disk, or in a store.

    Args:
        place: A path, or a URL; file:// is a path on disk.
        field: What it was named for, for the error.

    Raises:
        InvalidInputError: A URL that cannot be written down: it holds a secret, or leads nowhere.

    >>> location("models/a")
    PosixPath('models/a')
    >>> location("s3://key:secret@models/a")
    Traceback (most recent call last):
    dpmerge.errors.InvalidInputError: path: got a URL with a user or password in it; accepted: scheme://bucket/key
    """
    if isinstance(place, RemotePath):
        return place
    text = str(place)
    if isinstance(place, Path) and ":/" in text:  # a command line has made a path of it, and one slash of two
        text = re.sub(r"^([A-Za-z][A-Za-z0-9+.-]+):/(?=[^/])", r"\1://", text)
    found = _URL.fullmatch(text)
    if found is None:
        return Path(place)
    if found[1].lower() == "file":
        return Path(unquote(urlsplit(text).path))
    if (wrong := _unacceptable(found[1].lower(), found[2])) is not None:
        raise InvalidInputError(field, None, "scheme://bucket/key", found=f"a URL {wrong}")
    return RemotePath(f"{found[1].lower()}://{found[2]}")


def pinned(path: Path) -> Path:
    """The same path; of a store that keeps all its states (the hub's commits), as it is now and for good."""
    if not isinstance(path, RemotePath):
        return path
    from dpmerge.remote.stores import store_of

    try:
        return store_of(path).pinned(path)
    except OSError as error:
        raise CannotReadError.from_os(error, path=path, accepted="a store that answers") from None


def without_commit(url: str) -> str:
    """The URL of a portfolio, whichever commit of the hub it names."""
    return re.sub(r"^(hf://[^@]+)@[^/]+", r"\1", url)


def _unacceptable(scheme: str, rest: str) -> str | None:
    where, _, key = rest.partition("/")
    if "@" in where and (scheme not in _NAMED_BY_ACCOUNT or ":" in where.partition("@")[0]):
        return "with a user or password in it"
    if "?" in rest or "#" in rest:
        return "with a query or fragment in it"
    if "::" in rest or "://" in rest:
        return "within a URL"
    if not where or not rest.isprintable() or "\\" in rest or ".." in key.split("/") or "." in key.split("/"):
        return "that leads nowhere"
    return None
