"""A model's tensors, on their way to disk.

Guarantees: a checkpoint file appears whole or not at all, its digests are of the bytes that were written, and every
value in it is finite.
`model_files` says under which names, and in which file.
Refuses: state that is no tensor, tensors the run did not train but that changed all the same, trained parameters that
share memory or are not those of the start.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from opacus.optimizers import DPOptimizer
from safetensors.torch import save_file
from torch import Tensor, nn

from dpmerge.errors import RecordingError
from dpmerge.files import sync_folder
from dpmerge.portfolio.manifest import File, SavedAs, Tensors
from dpmerge.portfolio.samples import StartSample, places
from dpmerge.portfolio.tensors import read_contents, read_header, weights_digest
from dpmerge.training.frozen_tensors import FrozenTensors, changed, tensor_digests
from dpmerge.training.model_files import ModelFiles
from dpmerge.training.sharded_models import like, local, reshard, whole
from dpmerge.training.tied_weights import require_own_memory, tied_names

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


class ModelTensors:
    """The tensors of a model, told apart by whether the optimizer trains them."""

    def __init__(
        self, model: nn.Module, optimizer: DPOptimizer, *, trained_only: bool, save_with: Sequence[Any] = ()
    ) -> None:
        self._model = model
        self.files = ModelFiles.of(model, save_with)
        in_training = {id(parameter) for parameter in optimizer.params}
        parameters = self._named_parameters()
        named = {name: id(value) for name, value in parameters.items()}
        state = self.state()
        self.trained = [name for name in state if named.get(name) in in_training]
        self.frozen = [name for name in state if named.get(name) not in in_training]
        if elsewhere := in_training - {named[name] for name in self.trained}:
            raise RecordingError(
                f"model: the optimizer trains {len(elsewhere)} tensors that are not in it; pass the whole model"
            )
        self._in_file = self.files.kept(self.trained, self.frozen, trained_only=trained_only)
        self._parameters = {name: parameters[name] for name in self.trained}
        require_own_memory(self._parameters)
        self._places = {id(parameter): place for place, parameter in enumerate(optimizer.params)}
        here = _here(state)
        self._frozen_tensors = [here[name] for name in self.frozen]
        self._unsaved = {name: value for name, value in model.named_buffers() if name not in state}
        self._frozen_versions = self._written()
        self._initial = tensor_digests(state, state)
        self._frozen_digests = {name: self._initial[name] for name in self.frozen}
        # Of a model in shards each process looks at what it holds.
        cut = any(here[name] is not state[name] for name in self.frozen)
        self._frozen = FrozenTensors(here, tensor_digests(here, self.frozen) if cut else self._frozen_digests)
        self.initial_weights = self._weights(state, self._initial)
        self.start_sample = StartSample.of({n: _sample(v) for n, v in state.items() if v.is_floating_point()})

    def facts(self) -> Tensors:
        """For the manifest."""
        frozen = self.files.compared(self.frozen)
        digest = weights_digest((n, "", (), self._frozen_digests[n]) for n in frozen) if frozen else None
        return Tensors(
            trained=self.trained,
            initial={name: self._initial[name] for name in self._kept()},
            frozen=self._in_file[len(self.trained) :],
            frozen_weights=digest,
            tied=tied_names(self._parameters),
        )

    def require_untouched(self) -> None:
        """Refuse tensors that were written to although nobody trains them; by torch's own count, so at once."""
        written = self._written()
        if written != self._frozen_versions:
            pairs = zip([*self.frozen, *self._unsaved], written, self._frozen_versions, strict=True)
            raise changed(next(name for name, now, before in pairs if now != before))

    def _written(self) -> list[int]:
        watched = [*self._frozen_tensors, *self._unsaved.values()]
        return [0 if tensor.is_inference() else tensor._version for tensor in watched]

    def named(self, weights: Sequence[Tensor]) -> dict[str, Tensor]:
        """Values for the trained parameters, in the optimizer's order, under all their names."""
        return {name: weights[self._places[id(parameter)]] for name, parameter in self._parameters.items()}

    @property
    def names(self) -> list[str]:
        """One name of each trained parameter, in the optimizer's order."""
        named = {self._places[id(parameter)]: name for name, parameter in reversed(self._parameters.items())}
        return [named[place] for place in sorted(named)]

    def digest(self, weights: Mapping[str, Tensor] | None = None) -> str:
        """The digest of the weights as they are now, as `save` would state it, without writing them."""
        state = self._checked_state() | dict(weights or {})
        return self._weights(state, tensor_digests(state, self._kept()))

    def held(self, weights: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """What goes into a file now, checked: of a model in shards, those of this process."""
        state = self._checked_state()
        kept = {name: state[name] for name in self._kept()}
        return kept | {name: like(value, kept[name]) for name, value in (weights or {}).items() if name in kept}

    def _checked_state(self) -> dict[str, Tensor]:
        state = self.state()
        self._require_frozen(state)
        self._require_same_parameters()
        return state

    def save(
        self,
        folder: Path,
        step: int,
        *,
        weights: Mapping[str, Tensor] | None = None,
        average: str | None = None,
        gathered: Mapping[str, Tensor] | None = None,
    ) -> SavedAs:
        """Write the weights after a step, durably, under their final name; nothing is ever overwritten.

        `weights` are to stand for the model's own: what was there before they were swapped, or an `average` of them.
        `gathered` is all that `held` has, of a model in shards.
        """
        state = self.held(weights) if gathered is None else dict(gathered)
        name = self.files.name_of(step, average)
        file = folder / name
        if file.exists():
            raise RecordingError(f"directory: {file} is there already; a record needs a folder of its own")
        self.files.write_small(folder, name)
        beside = file.with_name(f".{file.name}.partial")
        kept = {key: _plain(state[key]) for key in self._kept()} if gathered is None else state
        try:
            save_file(kept, beside, metadata={"format": "pt"})
            slots = read_header(beside)
            contents = read_contents(beside, slots)
            with beside.open("rb") as written:
                os.fsync(written.fileno())
            beside.replace(file)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        for place in dict.fromkeys([file.parent, folder]):
            sync_folder(place)
        digest = weights_digest((s.name, s.dtype, s.shape, contents.tensors[s.name]) for s in slots)
        return SavedAs(
            step=step, files=[File(name=name, sha256=contents.sha256, blake3=contents.file.blake3)], weights=digest
        )

    def _kept(self) -> list[str]:
        return self._in_file

    def _named_parameters(self) -> dict[str, nn.Parameter]:
        reshard(self._model)
        return self.files.names(dict(self._model.named_parameters(remove_duplicate=False)))

    def state(self) -> dict[str, Tensor]:
        """The model's tensors now, by name."""
        reshard(self._model)
        state = self.files.names(self._model.state_dict())
        for name, value in state.items():
            if not isinstance(value, Tensor) or value.dtype not in DTYPES:
                kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
                accepted = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
                raise RecordingError(f"model.{name}: {kind}; accepted: tensors of {accepted}")
        return state

    def _require_same_parameters(self) -> None:
        """Names that were tied, or untied, in mid-run are not what the optimizer trains and the record describes."""
        now = self._named_parameters()
        for name, parameter in self._parameters.items():
            if now.get(name) is not parameter:
                raise RecordingError(
                    f"model.{name}: another parameter than at the start of the record, so not the one the optimizer "
                    "trains; tie weights, or replace them, before make_private"
                )
        require_own_memory(self._parameters)

    def _weights(self, state: Mapping[str, Tensor], digests: Mapping[str, str]) -> str:
        kept = self._kept()
        return weights_digest((n, DTYPES[state[n].dtype], tuple(state[n].shape), digests[n]) for n in kept)

    @property
    def seen_whole(self) -> bool:
        """Whether all frozen tensors are looked at, bit by bit, whenever the weights are saved."""
        return self._frozen.small or len(self._in_file) == len(self.trained) + len(self.frozen)

    def _require_frozen(self, state: Mapping[str, Tensor]) -> None:
        """What changes without noise is a release of the data it changed with."""
        state = _here(state)
        if self.seen_whole:
            self._frozen.require_same(state)
        else:
            self.require_untouched()
            self._frozen.require_same_sample(state)

    def require_frozen_whole(self) -> None:
        """Refuse frozen tensors of which one bit has changed since the record began."""
        self._frozen.require_same(_here(self.state()))


def _here(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What this process holds of each tensor."""
    return {name: local(value) for name, value in state.items()}


def _plain(value: Tensor) -> Tensor:
    """A copy of its own on the CPU: tied tensors are written under each of their names."""
    return value.detach().to("cpu", copy=True).contiguous()


def _sample(value: Tensor) -> npt.NDArray[np.float64]:
    """Some values, for whoever asks later whether this start was near another run's weights."""
    flat = whole(value.detach()).reshape(-1)
    chosen = flat[torch.from_numpy(places(flat.numel())).to(flat.device)]
    return np.asarray(chosen.to("cpu", torch.float64).numpy())
