"""Object stores, as far as models need them: what an object is, ranges of it, what lies beneath a prefix, new objects.

Guarantees: a range is read of the very version that was looked at first, or an error; where a store cannot promise
that, a change is noticed when the file is closed. An object is made only where there is none. What a store's library
says in its errors is not repeated: it may quote credentials.
Refuses (OSError): objects that have neither a version nor a strong ETag, so that a change could not be seen.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from dpmerge.errors import DpmergeError
from dpmerge.extras import needs_extra
from dpmerge.remote.remote_path import RemotePath

_NOT_BROUGHT = {"gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs"}
"""Packages of stores that could not be tried here: the extra does not bring them."""


@dataclass(frozen=True, kw_only=True)
class ObjectState:
    """One version of an object: `identity` is another as soon as its content is, `pin` asks the store for this one."""

    size: int
    identity: str
    pin: tuple[tuple[str, str], ...] = ()


class Store:
    """Any store that fsspec knows; those below know better how to ask for one version."""

    creates: ClassVar[bool] = False
    """Whether it is known to make an object only where there is none."""

    def __init__(self, scheme: str) -> None:
        with _missing_packages(scheme):
            import fsspec

            made = fsspec.get_filesystem_class(scheme)
        with only_our_words(f"{scheme}://"):
            self.system = made(**self.options())

    def options(self) -> Mapping[str, Any]:
        """How fsspec is to make it."""
        return {"use_listings_cache": False}

    def pinned(self, path: RemotePath) -> RemotePath:
        """The same path as it is now, where a store keeps all states of all its objects."""
        return path

    def forget(self) -> None:
        """What was listed before may have changed."""
        self.system.invalidate_cache()

    def info(self, path: RemotePath) -> Mapping[str, Any]:
        with only_our_words(path):
            self.forget()
            found: Mapping[str, Any] = self.system.info(path.key)
            return found

    def state(self, path: RemotePath) -> ObjectState:
        """What an object is now."""
        found = self.info(path)
        if found.get("type") != "file":
            raise OSError(errno.EISDIR, "is a prefix, and no object", str(path))
        known = ("VersionId", "version_id", "generation", "ETag", "etag")
        marks = [f"{name}={found[name]}" for name in known if _strong(name, found.get(name))]
        if not marks:
            words = "has neither a version nor a strong ETag, so that a change could not be seen; copy it to a disk"
            raise OSError(errno.EOPNOTSUPP, words, str(path))
        return ObjectState(size=int(found["size"]), identity=";".join(marks))

    def read(self, path: RemotePath, state: ObjectState, start: int, end: int) -> bytes:
        """The bytes of a range, of that version where the store can promise it."""
        del state
        with only_our_words(path):
            return bytes(self.system.cat_file(path.key, start=start, end=end))

    def kind(self, path: RemotePath) -> str | None:
        """`file`, `folder` (a prefix with something beneath), or None."""
        try:
            return "file" if self.info(path).get("type") == "file" else "folder"
        except FileNotFoundError:
            return None

    def entries(self, path: RemotePath) -> Iterator[tuple[str, str]]:
        """What lies directly beneath a prefix, in order: names, and whether each is a `file` or a `folder`."""
        with only_our_words(path):
            self.forget()
            listed = self.system.ls(path.key, detail=True)
        for each in sorted(listed, key=lambda each: str(each["name"])):
            name = str(each["name"]).rstrip("/").rpartition("/")[2]
            if name and str(each["name"]).rstrip("/") != path.key:
                yield name, "file" if each["type"] == "file" else "folder"

    def files(self, path: RemotePath) -> dict[str, int]:
        """Every object beneath a prefix, by its name from there, with its size; none if there is none."""
        with only_our_words(path):
            self.forget()
            try:
                found = self.system.find(path.key, detail=True)
            except FileNotFoundError:
                return {}
        start = f"{path.key.rstrip('/')}/"
        return {name[len(start) :]: int(each["size"] or 0) for name, each in found.items() if name.startswith(start)}

    def create(self, path: RemotePath, content: bytes) -> None:
        """Make an object; FileExistsError where there is one."""
        with only_our_words(path):
            self.system.pipe_file(path.key, content, mode="create")

    def replace(self, path: RemotePath, content: bytes) -> None:
        """Make an object, or put another in its place."""
        with only_our_words(path):
            self.system.pipe_file(path.key, content)

    def upload(self, file: Path, path: RemotePath, progress: Callable[[int], object]) -> None:
        """Make an object of a file; FileExistsError where there is one. It is there whole or not at all."""
        with needs_extra("remote", by="a URL"):
            from fsspec.callbacks import Callback

        class Told(Callback):  # type: ignore[misc]
            def relative_update(self, inc: int = 1) -> None:
                progress(inc)

        with only_our_words(path):
            parts = self.parts(file.stat().st_size)
            self.system.put_file(str(file), path.key, callback=Told(), mode="create", **parts)

    def parts(self, size: int) -> Mapping[str, int]:
        """How an object of so many bytes is sent, so that little of it is in memory."""
        del size
        return {}

    def remove(self, path: RemotePath) -> None:
        """Remove an object; nothing happens if there is none."""
        with only_our_words(path):
            try:
                self.system.rm_file(path.key)
            except FileNotFoundError:
                return

    def drop_unfinished(self, path: RemotePath) -> None:
        """Give up what was being uploaded beneath a prefix by a process that died, where a store keeps such parts."""


class MadeWhereThereIsNone(Store):
    """Stores whose fsspec packages offer `mode="create"`; not tried here against the services themselves."""

    creates = True


def store_of(path: RemotePath) -> Store:
    """The store that a path leads to."""
    if path.scheme in ("s3", "s3a"):
        from dpmerge.remote.s3_store import S3Store

        return S3Store("s3")
    if path.scheme == "hf":
        from dpmerge.remote.hub_store import HubStore

        return HubStore("hf")
    if path.scheme in _NOT_BROUGHT:
        return MadeWhereThereIsNone(path.scheme)
    return Store(path.scheme)


def _strong(name: str, value: object) -> bool:
    """A version, or an ETag that promises the same bytes."""
    text = str(value or "").strip()
    return text not in ("", "null", '""') and not (name.lower() == "etag" and text.startswith("W/"))


@contextmanager
def _missing_packages(scheme: str) -> Iterator[None]:
    with needs_extra("remote", by=f"a URL ({scheme}://)"):
        try:
            yield
        except ValueError:  # fsspec knows no such scheme
            raise OSError(errno.EPROTONOSUPPORT, "a scheme that nothing here can read", f"{scheme}://") from None
        except ImportError as missing:
            if isinstance(missing, ModuleNotFoundError) or scheme in ("s3", "hf"):
                # fsspec says in a sentence of its own what it could not import.
                raise (missing.__cause__ if isinstance(missing.__cause__, ImportError) else missing) from None
            words = f"needs {_NOT_BROUGHT.get(scheme, 'a package')}, which no extra brings: pip install it"
            raise OSError(errno.EPROTONOSUPPORT, words, f"{scheme}://") from None


@contextmanager
def only_our_words(path: object) -> Iterator[None]:
    """Whatever a store's library raises is an OSError in our words: its own may quote keys, tokens and requests."""
    try:
        yield
    except (DpmergeError, ImportError):
        raise
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None
    except FileExistsError:
        raise FileExistsError(errno.EEXIST, "is there already", str(path)) from None
    except PermissionError:
        words = "the store does not allow it; credentials are taken from the environment, as its library has it"
        raise PermissionError(errno.EACCES, words, str(path)) from None
    except Exception as error:
        raise _failure(path, error) from None


def _failure(path: object, error: Exception) -> OSError:
    if isinstance(error, OSError) and error.filename == str(path) and error.strerror is not None:
        return error  # ours
    code = _code(error)
    if code in ("PreconditionFailed", "412"):
        return OSError(errno.ESTALE, "was changed while it was read", str(path))
    return OSError(errno.EIO, f"the store failed ({code or type(error).__name__})", str(path))


def _code(error: BaseException | None) -> str | None:
    """The store's own code for what went wrong: a word, never a sentence."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, Mapping):
            code = str(response.get("Error", {}).get("Code", ""))
            return code if code.isalnum() else None
        error = error.__cause__ or error.__context__
    return None
