"""A program of its own: reads one pickled checkpoint with `torch.load(weights_only=True)` and writes safetensors.

Started by `pickled_checkpoints` and by nobody else, as `python -I`; it imports nothing of dpmerge. Whatever the file
does to it, it happens here: without the caller's environment, without a network where the system allows that, under
limits on memory, time, files and further processes that are set before the first byte is read.
Answers with one line of JSON on standard output; an answer is believed by nobody, and so is what it wrote.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Iterator, Mapping
from typing import Any

MODELS = ("module_state_dict", "model_state_dict", "state_dict", "model")
"""Under which names checkpoints keep a model's state_dict; the first is Opacus'."""

ACCOUNTANTS = ("privacy_accountant_state_dict", "accountant_state_dict", "accountant")
WRAPPED = "_module."
"""What GradSampleModule puts before every name."""

NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000
SAFE_SINCE = (2, 10)
"""Earlier versions of torch let pickles round weights_only (CVE-2025-32434, CVE-2026-24747)."""

FEWEST_BYTES = 2**20
TIED = 4
"""So many times the size of its file a model may be in memory: tied tensors are written once for each name."""


class RefusedError(Exception):
    """What is the matter with the file, in words."""


def without_network() -> bool:
    """Leave the caller's network for an empty one; False where the system does not allow that."""
    for flags in (NEW_NETWORK, NEW_USER | NEW_NETWORK):
        try:
            if hasattr(os, "unshare"):
                os.unshare(flags)
            else:
                _unshare(flags)
        except OSError:
            continue
        return True
    return False


def _unshare(flags: int) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "unshare") or libc.unshare(flags) != 0:
        raise OSError(ctypes.get_errno(), "unshare")


def limit(memory: int, seconds: int, written: int) -> None:
    """From here on: so much more memory and time than was used so far, files of this size, no further process."""
    with open("/proc/self/statm" if os.path.exists("/proc/self/statm") else os.devnull) as file:
        pages = (file.read().split() or ["0"])[0]
    mapped = int(pages) * resource.getpagesize()
    used = resource.getrusage(resource.RUSAGE_SELF)
    spent = int(used.ru_utime + used.ru_stime) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (spent + seconds, spent + seconds + 1))  # SIGXCPU, then SIGKILL
    for what, most in (
        (resource.RLIMIT_AS, mapped + memory),
        (resource.RLIMIT_FSIZE, written),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),  # does not bind root
    ):
        resource.setrlimit(what, (most, most))


def state_dict(content: Any) -> Mapping[str, Any]:
    """The model in a checkpoint: what Opacus or another kept under a name, or the whole of it."""
    if not isinstance(content, Mapping):
        raise RefusedError(f"holds a {type(content).__name__}, where a state_dict or a checkpoint with one is read")
    for name in MODELS:
        if isinstance(content.get(name), Mapping):
            return dict(content[name])
    return {name: value for name, value in content.items() if name not in ACCOUNTANTS}


def history(content: Any) -> Any:
    """The accountant's history in a checkpoint, as JSON values; None if there is none."""
    for name in ACCOUNTANTS if isinstance(content, Mapping) else ():
        kept = content.get(name)
        if isinstance(kept, Mapping) and "history" in kept:
            return [list(entry) if isinstance(entry, tuple) else entry for entry in kept["history"]]
    return None


def plain_tensors(state: Mapping[str, Any], torch: Any, size: int) -> Iterator[tuple[str, Any]]:
    """Each tensor by itself in memory, under its own name; nothing that is larger than its file can say."""
    if not state:
        raise RefusedError("holds no tensor")
    wrapped = all(isinstance(name, str) and name.startswith(WRAPPED) for name in state)
    total = 0
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise RefusedError(
                f"holds {str(name)[:80]!r}, a {type(tensor).__name__}, where a state_dict has tensors only"
            )
        total += tensor.numel() * tensor.element_size()
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise RefusedError(f"holds {name[:80]!r}, a tensor that is sparse or quantized")
        if total > TIED * size + FEWEST_BYTES:
            raise RefusedError(f"describes tensors of more than {total:,} bytes in a file of {size:,}")
        yield name.removeprefix(WRAPPED) if wrapped else name, tensor.detach().cpu().clone().contiguous()


def converted(source: int, target: str, memory: int, seconds: int) -> dict[str, Any]:
    """Read the open file, write the model; what the answer says."""
    isolated = without_network()
    import torch
    from safetensors.torch import save_file

    if tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) < SAFE_SINCE:
        raise RefusedError(f"is not read with torch {torch.__version__}: before 2.10 weights_only can be got round")
    torch.set_num_threads(1)
    size = os.fstat(source).st_size
    limit(memory, seconds, TIED * size + 16 * FEWEST_BYTES)
    with os.fdopen(source, "rb") as file:
        content = torch.load(file, map_location="cpu", weights_only=True)
    remembered = history(content)
    save_file(dict(plain_tensors(state_dict(content), torch, size)), target)
    return {"history": remembered, "isolated": isolated}


def main() -> None:
    source, target, memory, seconds = sys.argv[1:]
    try:
        answer = converted(int(source), target, int(memory), int(seconds))
    except RefusedError as refusal:
        answer = {"refused": str(refusal)}
    except ModuleNotFoundError as missing:
        answer = {"missing": str(missing.name)}
    except MemoryError:
        answer = {"refused": f"needs more than the {int(memory):,} bytes of memory that a file of its size may"}
    except BaseException as error:  # whatever it is, it is told and not raised
        words = " ".join(str(error).split())
        answer = {"refused": f"is not read: {type(error).__name__}: {words[:400]}"}
    print(json.dumps(answer), flush=True)
    os._exit(0)  # nothing that was loaded gets a say at the end


if __name__ == "__main__":
    main()
