"""The files of a checkpoint: one safetensors file, or a folder that Hugging Face's loaders open as it is.

A PEFT model is kept as PEFT keeps it: `step-100/adapter_model.safetensors` with PEFT's own names, `modules_to_save`
included, and `adapter_config.json`; the base model it adapts is not kept. Where something is saved with the model
(`save_with=[tokenizer]`), the model is `step-100/model.safetensors`, with its configuration and those files beside it.

Guarantees: every file of a folder but the weights was made before the first step, so no training is in it; all of them
have names that a merge copies, and nothing else does.
Refuses: trained tensors that PEFT would not save, several active adapters, files that are not on the list of those that
loaders need: a pickle runs code when it is loaded.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from dpmerge.errors import InvalidInputError, RecordingError
from dpmerge.files import LARGEST_SMALL_FILE
from dpmerge.merging.config_files import ADAPTER_CONFIG, COPIED
from dpmerge.merging.layout import ADAPTER_FILE, MODEL_FILE
from dpmerge.portfolio.run_files import write_atomically

_UNUSED = ".original_module."
"""PEFT's copy of a module that is trained whole (`modules_to_save`) as the base model had it; no adapter runs it."""


@dataclass(frozen=True, kw_only=True)
class ModelFiles:
    """How the checkpoints of one model lie in the folder of its run."""

    adapter: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict)  # from the model's names to those of the file
    small: Mapping[str, bytes] = field(default_factory=dict)  # beside the weights of each checkpoint
    public: Mapping[str, str] = field(default_factory=dict)  # digests of those that somebody vouches to be public

    @classmethod
    def of(cls, model: nn.Module, save_with: Sequence[Any] = ()) -> ModelFiles:
        """As the model's kind, and what is to be saved with it, want it."""
        given = list(save_with)
        renamed = _names_by_peft(model)
        small = {}
        if renamed is not None:
            small[ADAPTER_CONFIG] = _adapter_config(model)
        elif given and hasattr(getattr(model, "config", None), "save_pretrained"):
            own = [model.config, getattr(model, "generation_config", None)]
            given += [each for each in own if each is not None and not any(each is other for other in given)]
        vouched = dict(_saved_by(given))
        return cls(
            adapter=renamed is not None,
            renamed=renamed or {},
            small={**vouched, **small},
            public={name: hashlib.sha256(content).hexdigest() for name, content in sorted(vouched.items())},
        )

    def name_of(self, step: int, average: str | None = None) -> str:
        """The file of the weights after a step, or of an average up to it, within the folder of the run."""
        place = f"step-{step}.{average}" if average else f"step-{step}"
        if self.adapter:
            return f"{place}/{ADAPTER_FILE}"
        return f"{place}/{MODEL_FILE}" if self.small else f"{place}.safetensors"

    def names(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The model's tensors under the names they have in the file."""
        return {self.renamed.get(name, name): value for name, value in values.items()}

    def kept(self, trained: Sequence[str], frozen: Sequence[str], *, trained_only: bool) -> list[str]:
        """Which tensors are in a checkpoint; of an adapter what PEFT saves, trained or not."""
        if self.adapter:
            in_file = set(self.renamed.values())
            if missing := [name for name in trained if name not in in_file]:
                raise RecordingError(
                    f"model.{missing[0]}: trained, and PEFT does not save it with the adapter; name its module in "
                    "modules_to_save, or freeze it"
                )
            return [*trained, *(name for name in frozen if name in in_file)]
        return [*trained] if trained_only else [*trained, *frozen]

    def compared(self, frozen: Iterable[str]) -> list[str]:
        """The frozen tensors that runs must have in common to be averaged: those that the model uses."""
        return [name for name in frozen if not (self.adapter and _UNUSED in f".{name}")]

    def write_small(self, folder: Path, name: str) -> None:
        """The files beside the weights of that name, which are there before the weights are."""
        place = (folder / name).parent
        place.mkdir(exist_ok=True)
        for beside, content in self.small.items():
            write_atomically(place / beside, content)


def _names_by_peft(model: nn.Module) -> dict[str, str] | None:
    """PEFT's name of each tensor it saves; None of another model, or where what it saves is computed first."""
    peft = sys.modules.get("peft")  # who has a PEFT model has imported it
    if peft is None or not isinstance(model, peft.PeftModel):
        return None
    state: dict[str, Tensor] = model.state_dict()
    # Embeddings of the base model are never saved with an adapter here: whether "auto" would, it asks of a server.
    saved = peft.get_peft_model_state_dict(
        model, state_dict=state, adapter_name=_active(model), save_embedding_layers=False
    )
    ours = {id(value): name for name, value in state.items()}
    if any(id(value) not in ours for value in saved.values()):
        return None
    renamed = {ours[id(value)]: name for name, value in saved.items()}
    if twice := set(renamed.values()) & (state.keys() - renamed.keys()):
        raise RecordingError(f"model.{min(twice)}: PEFT saves another tensor under this name; rename the module")
    return renamed


def _active(model: Any) -> str:
    active = model.active_adapters
    if len(active) != 1:
        raise RecordingError(f"model: {len(active)} adapters are active ({', '.join(active)}); train one at a time")
    return str(active[0])


def _adapter_config(model: Any) -> bytes:
    """As PEFT writes it, but sorted, so that the same configuration is the same bytes."""
    config = model.peft_config[_active(model)]
    base = model.get_base_model()
    told: dict[str, Any] = {
        **config.to_dict(),
        "inference_mode": True,
        "base_model_name_or_path": config.base_model_name_or_path or getattr(base, "name_or_path", None) or None,
    }
    if config.task_type is None:
        told["auto_mapping"] = {"base_model_class": type(base).__name__, "parent_library": type(base).__module__}
    return (json.dumps(told, indent=2, sort_keys=True, default=_listed) + "\n").encode()


def _listed(value: Any) -> Any:
    return sorted(value) if isinstance(value, set | frozenset) else str(value)


def _saved_by(given: Iterable[Any]) -> Iterator[tuple[str, bytes]]:
    """What each of these writes when it is asked to save itself."""
    seen = set[str]()
    for place, each in enumerate(given):
        if not hasattr(each, "save_pretrained"):
            accepted = "a tokenizer, processor or configuration, with save_pretrained()"
            raise InvalidInputError(f"save_with[{place}]", None, accepted, found=type(each).__name__)
        with tempfile.TemporaryDirectory(prefix="dpmerge-") as folder:
            each.save_pretrained(folder)
            for path in sorted(Path(folder).rglob("*")):
                if path.is_dir() and not path.is_symlink():
                    continue
                name = path.relative_to(folder).as_posix()
                _require_known(name, path, type(each).__name__)
                if name in seen:
                    accepted = "each file by one of them"
                    raise InvalidInputError(f"save_with[{place}]", None, accepted, found=f"a second {name}")
                seen.add(name)
                yield name, path.read_bytes()


def _require_known(name: str, path: Path, saved_by: str) -> None:
    if name not in COPIED or path.is_symlink() or path.stat().st_size > LARGEST_SMALL_FILE:
        raise RecordingError(
            f"save_with: {saved_by} saves {name}, which is not kept: a pickle or a program runs when it is loaded, and "
            f"other files may hold anything; kept are {', '.join(COPIED)}, each of at most "
            f"{LARGEST_SMALL_FILE // 10**6} MB"
        )
