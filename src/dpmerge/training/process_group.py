"""The processes that train one model, and how the recorder of each talks to those of the others.

Guarantees: what is exchanged goes through a gloo group of the recorder's own, so that it is never mixed up with what
the loop or Opacus send; everybody gets the same answers; a process that is gone, or does not answer in time, is an
error on the others and never a wait without end. Nothing that arrives is unpickled.
Why a process left is noted in the store that torch.distributed keeps, where it outlives the process.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from dpmerge.errors import RecordingError

GRACE = timedelta(seconds=10)
"""So long a process that leaves waits for the others to hear of it."""
SIZE = 144
"""Bytes of a message."""
_TEXT, _REASON = b"text", "left"


class ProcessGroup:
    """All processes of `torch.distributed`, in the order of their ranks."""

    def __init__(self) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.timeout = _timeout()
        self.patience = self.timeout
        try:
            self._group: Any = dist.new_group(backend="gloo", timeout=self.timeout)
        except RuntimeError as error:
            raise _lost(error) from error
        # Numbered alike on all ranks, so that a second record does not read the notes of the first.
        self._store = distributed_c10d.PrefixStore(
            f"dpmerge {self._group.group_name}", distributed_c10d._get_default_store()
        )

    def gather(self, message: bytes) -> list[bytes]:
        """What each rank says, in messages of one size; everybody is asked, and everybody waits for the last one."""
        return self._gather(message.ljust(SIZE, b"\0"))

    def gather_texts(self, text: str) -> list[str]:
        """The same, of texts of any length."""
        content = text.encode()
        lengths = self.gather(_TEXT + len(content).to_bytes(8, "little"))
        # Who leaves says so in a message of the common size: gloo ends a process that gets one of another.
        if not all(each.startswith(_TEXT) for each in lengths):
            raise RecordingError("record: another process has left; every rank calls record() with the same arguments")
        ends = [int.from_bytes(each[len(_TEXT) :][:8], "little") for each in lengths]
        heard = self._gather(content.ljust(max(ends), b" "))
        return [each[:end].decode() for each, end in zip(heard, ends, strict=True)]

    def _gather(self, message: bytes) -> list[bytes]:
        mine = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        heard = [torch.empty_like(mine) for _ in range(self.world)]
        try:
            if self.patience < self.timeout:
                dist.all_gather(heard, mine, group=self._group, async_op=True).wait(self.patience)
            else:
                dist.all_gather(heard, mine, group=self._group)
        except RuntimeError as error:
            raise _lost(error) from error
        return [each.numpy().tobytes() for each in heard]

    def note(self, reason: str) -> None:
        """Say why this process leaves, to whoever asks later."""
        self.patience = min(GRACE, self.timeout)
        with suppress(RuntimeError):
            self._store.set(_REASON, reason)

    def noted(self) -> str | None:
        """Why the last process that left did so; None if none said."""
        try:
            return self._store.get(_REASON).decode() if self._store.check([_REASON]) else None
        except RuntimeError:
            return None

    def close(self) -> None:
        """All is said."""
        with suppress(RuntimeError, ValueError):
            dist.destroy_process_group(self._group)


def _timeout() -> timedelta:
    """How long the loop's own group waits for a process."""
    group = distributed_c10d._get_default_group()
    for device in ("cpu", "cuda"):
        with suppress(RuntimeError, AttributeError):
            return group._get_backend(torch.device(device)).options._timeout
    return distributed_c10d.default_pg_timeout


def _lost(error: RuntimeError) -> RecordingError:
    said = str(error).splitlines()[0]
    return RecordingError(
        f"record: another process is gone, or did not answer in time ({said}); every rank calls record(), takes every "
        "step and calls checkpoint() with the others. What was kept before stays, as unfinished"
    )
