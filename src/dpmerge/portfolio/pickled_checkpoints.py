"""Pickled checkpoints (`.pt`), turned into safetensors by a process that can do no harm if it is led astray.

A pickle can run code when it is loaded. `weights_only=True` is meant to keep it from that, and has been got round
before; so the file is read elsewhere (`unpickling_process`): no environment but what Python needs, no open files but
this one, no network where the system allows, limits on memory, processor time, size of files and further processes, and
an end after a time. What comes back is checked like any stranger's file.

Guarantees: the target is there whole, or not at all; whatever happens is one named error.
Refuses (`PickleRefusedError`): what torch does not load as plain tensors, what breaks a limit, what answers nonsense.
Cannot keep from it: reading and writing files of the same user, if weights_only is got round once more.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpmerge.errors import InvalidInputError, MissingExtraError, PickleRefusedError
from dpmerge.files import read_bytes, regular_descriptor
from dpmerge.portfolio import unpickling_process
from dpmerge.terms.documents import strict_json

SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
SAVE_INSTEAD = "save safetensors.torch.save_file(model.state_dict(), …) and the accountant's history as JSON"

LEAST_MEMORY = 512 * 2**20
"""Bytes beside what torch itself takes."""

MEMORY_A_BYTE = 6
"""Of memory for each byte of the file: loaded once, cloned, and written."""

LEAST_SECONDS, SECONDS_A_GIGABYTE = 60, 120
TO_START = 120
"""Seconds for Python and torch to be there, on a machine with other things to do."""

_WAIT = 0.02


@dataclass(frozen=True)
class Unpickled:
    """What came out besides the weights: the accountant's history as it stood there, and how it was read."""

    history: Any
    isolated: bool  # from the network


def unpickled(source: Path, target: Path) -> Unpickled:
    """Write the tensors of a pickled checkpoint as safetensors to a file that does not exist yet.

    Raises:
        PickleRefusedError: it cannot be read as plain tensors within the limits.
        MissingExtraError: torch is not installed.
    """
    try:
        descriptor = regular_descriptor(source)
    except OSError as error:
        raise _refused(source, f"cannot be opened: {error.strerror}") from None
    try:
        size = os.fstat(descriptor).st_size
        with tempfile.TemporaryDirectory(prefix=".unpickling-", dir=target.parent) as place:
            written = Path(place) / target.name
            answer = _answer(source, descriptor, size, written)
            if "missing" in answer:
                raise MissingExtraError("reading pickled checkpoints", str(answer["missing"]), "torch")
            if "refused" in answer or not written.is_file() or written.is_symlink():
                raise _refused(source, str(answer.get("refused", "gave no model")))
            written.rename(target)
    finally:
        os.close(descriptor)
    return Unpickled(answer.get("history"), answer.get("isolated") is True)


def _answer(source: Path, descriptor: int, size: int, target: Path) -> dict[str, Any]:
    """What the process says of the file; how it ended, where it says nothing."""
    memory = LEAST_MEMORY + MEMORY_A_BYTE * size
    seconds = LEAST_SECONDS + SECONDS_A_GIGABYTE * size // 2**30
    place, told = target.parent, target.parent / "answer.json"
    program = [sys.executable, "-I", "-B", unpickling_process.__file__]
    with told.open("xb") as answers:
        process = subprocess.Popen(  # noqa: S603  (ourselves)
            [*program, str(descriptor), target.name, str(memory), str(seconds)],
            stdin=subprocess.DEVNULL,
            stdout=answers,
            stderr=subprocess.DEVNULL,
            pass_fds=(descriptor,),
            cwd=place,
            env={"HOME": ".", "TMPDIR": ".", "OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8"},
            start_new_session=True,
        )
        ended = _waited_for(process, time.monotonic() + TO_START + seconds)
    if not ended:
        raise _refused(source, f"was not read within {TO_START + seconds} seconds")
    if process.returncode < 0:
        name = signal.Signals(-process.returncode).name
        limits = {"SIGXCPU": f"more than {seconds} seconds of processor time", "SIGXFSZ": "files larger than its own"}
        raise _refused(source, f"needs {limits[name]}" if name in limits else f"ends its reader by {name}")
    try:
        answer = strict_json(read_bytes(told), "answer")
    except InvalidInputError:
        answer = None
    if not isinstance(answer, dict):
        raise _refused(source, "ends its reader without an answer")
    return answer


def _waited_for(process: subprocess.Popen[bytes], until: float) -> bool:
    """Whether it ended by itself in time; with it goes whatever it started."""
    ended = False
    try:
        while not ended and time.monotonic() < until:
            # Left as it is, its group keeps its number until the others are ended too.
            ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            if not ended:
                time.sleep(_WAIT)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return ended


def _refused(source: Path, why: str) -> PickleRefusedError:
    problem = f"file: a pickle that {why}"
    return PickleRefusedError(source, "file", source, f"{SAVE_INSTEAD}, if you trust who made it", problem=problem)
