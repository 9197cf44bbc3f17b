"""A folder that appears whole or not at all.

Guarantees: until `publish` the target is as it was; then it is there with every byte flushed to disk. With `overwrite`
there is no moment without a whole target where the kernel can exchange two folders. Whatever fails leaves nothing (or
what was to be kept); a process that dies leaves a folder known by its name and its missing lock, which can be resumed,
or goes when the target is next staged.
Refuses: targets that are files, links or folders with something in them, that overlap the inputs or cannot be written.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from dpmerge.errors import CannotWriteError
from dpmerge.files import is_at, sync_folder, try_lock
from dpmerge.merging.atomic_folders import exchange, files_in, flush

_NOT_EMPTY = (errno.ENOTEMPTY, errno.EEXIST)


class StagedFolder:
    """A place to write in, beside the target, which takes the target's place when it is published.

    Args:
        target: the folder that is to appear.
        overwrite: replace a target that is there, and not empty.
        inputs: folders that are read meanwhile, which the target must not overlap.
        resumed: a folder that a dead process had staged for this target, and settled.

    Raises:
        CannotWriteError: on entering, a target that is not accepted; later, a disk that cannot be written to.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as home:
        ...     with StagedFolder(Path(home) / "merged") as staged:
        ...         _ = (staged.path / "model.txt").write_text("whole")
        ...         before = (Path(home) / "merged").exists()
        ...         staged.publish()
        ...     before, (Path(home) / "merged" / "model.txt").read_text()
        (False, 'whole')
    """

    def __init__(
        self, target: str | Path, overwrite: bool = False, *, inputs: Iterable[Path] = (), resumed: Path | None = None
    ) -> None:
        self._resumed = resumed
        self._kept = resumed is not None
        self.target = Path(os.path.abspath(target))
        self._overwrite = overwrite
        self._inputs = tuple(inputs)
        self._descriptor: int | None = None
        self._mode = 0o755
        self.path = self.target

    def __enter__(self) -> StagedFolder:
        require_writable(self.target, overwrite=self._overwrite, inputs=self._inputs)
        try:
            if self._resumed is None:
                remove_leftovers(self.target)
                self._stage()
            else:
                self._resume(self._resumed)
        except OSError as error:
            raise _failed(self.target, error) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor is not None:  # not published
            if not self._kept:
                shutil.rmtree(self.path, ignore_errors=True)
            self._unlock()

    def keep(self) -> None:
        """From now on, what is staged here stays, though publishing it may fail: somebody may resume it."""
        self._kept = True

    def settle(self) -> None:
        """Flush everything to disk, so that it is whole whatever happens."""
        try:
            for file in files_in(self.path):
                flush(file, self._mode & 0o666)
            for folder in (each for each in self.path.rglob("*") if each.is_dir()):
                folder.chmod(self._mode)
                sync_folder(folder)
            sync_folder(self.path)
        except OSError as error:
            raise _failed(self.target, error) from None

    def publish(self) -> None:
        """Flush everything to disk and put it in the target's place."""
        if self._descriptor is None:
            problem = f"{self.target}: nothing is staged for it any more"
            raise CannotWriteError(str(self.target), None, "a folder is published once", problem=problem)
        self.settle()
        try:
            self.path.chmod(self._mode)
            self._put_in_place()
            sync_folder(self.target.parent)
        except OSError as error:
            raise _failed(self.target, error) from None
        self._unlock()
        self.path = self.target

    def _stage(self) -> None:
        while self._descriptor is None:
            path = self._made()
            # Until it is locked another process may take the folder for a dead one's, and remove it.
            try:
                path.chmod(0o700)
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                if try_lock(descriptor) and is_at(path, descriptor):
                    self._descriptor, self.path = descriptor, path
            except OSError:
                shutil.rmtree(path, ignore_errors=True)
                raise
            finally:
                if self._descriptor is None:
                    os.close(descriptor)

    def _resume(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            ours = try_lock(descriptor)
        except OSError:
            os.close(descriptor)
            raise
        if not ours:
            os.close(descriptor)
            problem = f"{self.target}: another process is writing to {path.name}"
            raise CannotWriteError(str(self.target), None, "wait until it has ended", problem=problem)
        with suppress(FileNotFoundError):
            self._made().rmdir()
        self._descriptor, self.path = descriptor, path

    def _made(self) -> Path:
        path = self.target.with_name(f".{self.target.name}.{secrets.token_hex(4)}.partial")
        path.mkdir(0o755)
        with suppress(FileNotFoundError):  # taken for a dead process's, and removed
            self._mode = stat.S_IMODE(path.stat().st_mode)  # what the umask leaves of it
        return path

    def _unlock(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _put_in_place(self) -> None:
        try:
            # The system call itself refuses a target that is not an empty folder.
            self.path.rename(self.target)
            return
        except OSError as error:
            if error.errno not in _NOT_EMPTY:
                raise
        if not self._overwrite:
            raise _present(self.target)
        if exchange(self.path, self.target):
            shutil.rmtree(self.path, ignore_errors=True)  # what was the target
            return
        previous = self.path.with_suffix(".previous")
        self.target.rename(previous)
        try:
            self.path.rename(self.target)
        except OSError:
            previous.rename(self.target)
            raise
        shutil.rmtree(previous, ignore_errors=True)


def require_writable(target: Path, *, overwrite: bool, inputs: Iterable[Path] = ()) -> None:
    """Refuse a target before any work is done for it."""
    if not target.name:
        raise CannotWriteError(str(target), target, "a folder that is not the root")
    if target.is_symlink():
        raise CannotWriteError(str(target), target, "name another", problem=f"{target}: is a link, and no folder")
    if target.exists():
        if not target.is_dir():
            raise CannotWriteError(str(target), target, "name another", problem=f"{target}: is a file, and no folder")
        if not overwrite and any(target.iterdir()):
            raise _present(target)
    if not target.parent.is_dir():
        problem = f"{target}: {target.parent} is no folder"
        raise CannotWriteError(str(target), target, "make it, or name a target in another", problem=problem)
    if not os.access(target.parent, os.W_OK | os.X_OK):
        problem = f"{target}: no permission to write to {target.parent}"
        raise CannotWriteError(str(target), target, "name a target in another folder", problem=problem)
    place = target.resolve()
    for folder in inputs:
        other = folder.resolve()
        if place.is_relative_to(other) or other.is_relative_to(place):
            problem = f"{target}: overlaps {folder}, which is read"
            raise CannotWriteError(str(target), target, "name a target apart from it", problem=problem)


def staged_for(target: Path) -> Iterator[Path]:
    """The folders that merges for a target are writing, or left when they were killed."""
    pattern = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{8}}\.partial")
    for path in sorted(target.parent.iterdir()) if target.parent.is_dir() else ():
        if pattern.fullmatch(path.name) and not path.is_symlink() and path.is_dir():
            yield path


def remove_leftovers(target: Path) -> tuple[Path, ...]:
    """Remove what merges for the same target left when they were killed; those that still run hold their lock."""
    removed: list[Path] = []
    with suppress(OSError):  # what cannot be removed now is removed another time
        for path in staged_for(target):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if try_lock(descriptor):
                    shutil.rmtree(path, ignore_errors=True)
                    removed.append(path)
            finally:
                os.close(descriptor)
    return tuple(removed)


def _present(target: Path) -> CannotWriteError:
    remedy = "name another, or overwrite it where that is offered: overwrite=True (--overwrite)"
    return CannotWriteError(str(target), target, remedy, problem=f"{target}: is not empty")


def no_locks(target: Path, error: OSError) -> CannotWriteError:
    """A file system that has no locks, or none left: whether somebody else writes there cannot be known."""
    accepted = "a place on a disk whose file system locks files (a local one; on NFS its lock service must run)"
    return CannotWriteError.from_os(error, field="output", path=target, accepted=accepted, failed="cannot lock")


def _failed(target: Path, error: OSError) -> CannotWriteError:
    if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP):
        return no_locks(target, error)
    accepted = "a place that can be written to"
    return CannotWriteError.from_os(error, field="output", path=target, accepted=accepted)
