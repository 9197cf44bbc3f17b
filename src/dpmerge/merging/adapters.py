"""LoRA adapters put side by side: the exact merge of what they do to a model, at the price of a higher rank.

Guarantees: with A = [A_1; A_2; …] and B = [λ_1 s_1/s B_1, λ_2 s_2/s B_2, …] the result does s B A = Σ λ_i s_i B_i A_i,
where s_i is the adapters' own scaling; only the scaled B_i are rounded, as `arithmetic` says of one input. Modules that
were trained whole beside them (`modules_to_save`) are averaged, Σ λ_i W_i, as any model is.
Refuses, naming it: settings under which that sum is not what the adapters do, or in which the adapters differ.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpmerge.errors import CheckpointError, InvalidInputError, TensorMismatchError
from dpmerge.files import read_bytes
from dpmerge.merging.adapter_starts import FACTORS
from dpmerge.merging.arithmetic import FLOATS, Bytes, Scratch, all_finite
from dpmerge.merging.checkpoint_input import require_digest, require_known
from dpmerge.merging.config_files import ADAPTER_CONFIG, small_file
from dpmerge.merging.layout import file_names, output_file
from dpmerge.merging.weight_files import header_within
from dpmerge.merging.writing import WrittenFile, write_small
from dpmerge.portfolio.file_digests import FileHash
from dpmerge.portfolio.recorded_runs import Run, SavedCheckpoint
from dpmerge.portfolio.tensors import SIZES, TensorEntry
from dpmerge.terms.documents import strict_json

Located = Sequence[tuple[Run, SavedCheckpoint, float]]

LARGEST_ADAPTER = 4_000_000_000
"""Bytes. Adapters are concatenated in memory."""

_A, _B = FACTORS
_SHARED = (
    "target_modules", "exclude_modules", "fan_in_fan_out", "layers_to_transform", "layers_pattern", "modules_to_save",
)  # fmt: skip
_ABSENT = (
    "rank_pattern", "alpha_pattern", "use_dora", "lora_bias", "layer_replication", "trainable_token_indices",
    "target_parameters", "alora_invocation_tokens", "use_qalora", "use_bdlora", "arrow_config", "kasa_config",
    "monteclora_config",
)  # fmt: skip
_ORDINARY_STARTS = (True, False, "gaussian", "orthogonal", "eva")
"""Ways to begin that leave the base model's weights alone."""


@dataclass(frozen=True, kw_only=True)
class AdapterConfig:
    """What an adapter_config.json says, as far as it changes what the adapter does."""

    file: Path
    content: dict[str, Any]
    rank: int
    alpha: float

    @property
    def rank_stabilised(self) -> bool:
        return bool(self.content.get("use_rslora", False))

    @property
    def scaling(self) -> float:
        return _scaling(self.alpha, self.rank, self.rank_stabilised)

    def saves_whole(self, tensor: str) -> bool:
        """Whether a tensor is of a module that was trained beside the adapter, and not adapted."""
        modules = self.content.get("modules_to_save") or []
        return not tensor.endswith(FACTORS) and any(f".{module}." in f".{tensor}" for module in modules)

    @classmethod
    def read(cls, file: Path) -> AdapterConfig:
        content = strict_json(read_bytes(file), str(file))
        if not isinstance(content, dict) or content.get("peft_type") != "LORA":
            found = content.get("peft_type") if isinstance(content, dict) else content
            raise InvalidInputError(f"{file}: peft_type", found, '"LORA"')
        rank, alpha = content.get("r"), content.get("lora_alpha")
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
            raise InvalidInputError(f"{file}: r", rank, "an integer ≥ 1")
        if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not 0 < alpha < math.inf:
            raise InvalidInputError(f"{file}: lora_alpha", alpha, "a positive number")
        return cls(file=file, content=content, rank=rank, alpha=float(alpha))


def require_one_scaling(parts: Located) -> None:
    """Adapters averaged as trained must be scaled alike, or the average would not be one of what they do."""
    files = [small_file(run, checkpoint, ADAPTER_CONFIG) for run, checkpoint, _ in parts]
    configs = [AdapterConfig.read(file) for file in files if file is not None and _is_lora(file)]
    for config in configs[1:]:
        if config.scaling != configs[0].scaling:
            field, other = f"{config.file}: lora_alpha", configs[0]
            problem = f"{field}: it scales by {config.scaling:g}, and {other.file} by {other.scaling:g}"
            remedy = 'concatenate them, adapters="concatenated" (--adapters concatenated)'
            raise InvalidInputError(field, config.alpha, remedy, problem=problem)


def concatenate(parts: Located, folder: Path, *, donor: SavedCheckpoint) -> tuple[WrittenFile, ...]:
    """Write the concatenated adapter and its configuration."""
    configs = [_config(run, checkpoint) for run, checkpoint, _ in parts]
    for config in configs:
        _require_plain(config, configs[0])
    lead = next(config for config, (_, checkpoint, _) in zip(configs, parts, strict=True) if checkpoint is donor)
    merged = _merged_config(configs, lead)
    scaling = _scaling(merged["lora_alpha"], merged["r"], merged["use_rslora"])
    factors = [w * c.scaling / scaling for c, (_, _, w) in zip(configs, parts, strict=True)]
    models = [_Adapter(checkpoint, config) for config, (_, checkpoint, _) in zip(configs, parts, strict=True)]
    for model in models[1:]:
        _require_same_modules(models[0], model)
    slots, pieces = [], []
    for name, (_, slot) in donor.tensors.items():
        if lead.saves_whole(name):
            shape, stored = slot.shape, _combined(name, slot, models, [weight for _, _, weight in parts])
        else:
            stored = _concatenated(name, models, factors)
            shape = (merged["r"], slot.shape[1]) if name.endswith(_A) else (slot.shape[0], merged["r"])
        slots.append(TensorEntry(name, slot.dtype, shape, 0, stored.nbytes))
        pieces.append(stored.tobytes())
    metadata = models[[checkpoint for _, checkpoint, _ in parts].index(donor)].metadata
    file = output_file(file_names(donor.files)[0], slots, for_pytorch=metadata.get("format") == "pt")
    text = json.dumps(merged, indent=2, sort_keys=True) + "\n"
    return (
        write_small(folder, ADAPTER_CONFIG, text.encode()),
        write_small(folder, file.name, b"".join([file.header, *pieces])),
    )


class _Adapter:
    """The bytes of an adapter's tensors, read whole and compared with what was recorded."""

    def __init__(self, checkpoint: SavedCheckpoint, config: AdapterConfig) -> None:
        self.checkpoint, self.config = checkpoint, config
        if len(checkpoint.files) != 1:
            problem = f"{checkpoint.name} is in {len(checkpoint.files)} files"
            remedy = "only an adapter in one file can be concatenated"
            raise InvalidInputError(f"files of {checkpoint.name}", None, remedy, problem=problem)
        path = checkpoint.files[0]
        content = read_bytes(path, LARGEST_ADAPTER, "a readable safetensors file")
        require_digest(checkpoint, path, FileHash(content).digests())
        header = header_within(path, content)
        require_known(checkpoint, path, header)
        self.metadata = header.metadata
        self._content = np.frombuffer(content, np.uint8)
        for name, (_, slot) in checkpoint.tensors.items():
            self._require_low_rank(name, slot)
            if not all_finite(slot.dtype, self.stored(name)):
                raise CheckpointError(path, name, None, "finite values only", found="NaN or infinity")

    def stored(self, name: str) -> Bytes:
        """A copy, since a file's tensors need not lie where their dtype could be read."""
        slot = self.checkpoint.tensors[name][1]
        return self._content[slot.start : slot.end].copy()

    def _require_low_rank(self, name: str, slot: TensorEntry) -> None:
        if self.config.saves_whole(name) and slot.dtype in FLOATS:
            return
        rank = slot.shape[0 if name.endswith(_A) else -1] if len(slot.shape) == 2 else None
        if not name.endswith(FACTORS) or slot.dtype not in FLOATS or rank != self.config.rank:
            accepted = f"matrices lora_A and lora_B of rank {self.config.rank} and modules_to_save, in floats"
            found = f"{list(slot.shape)} of {slot.dtype}"
            raise TensorMismatchError(self.checkpoint.files[0], name, None, accepted, found=found)


def _config(run: Run, checkpoint: SavedCheckpoint) -> AdapterConfig:
    file = small_file(run, checkpoint, ADAPTER_CONFIG)
    if file is None:
        place = str(checkpoint.files[0].parent)
        problem = f"{place}: there is no {ADAPTER_CONFIG}, which adapters to be concatenated need"
        raise InvalidInputError(place, None, "put it beside the weights", problem=problem)
    return AdapterConfig.read(file)


def _is_lora(file: Path) -> bool:
    content = strict_json(read_bytes(file), str(file))
    return isinstance(content, dict) and content.get("peft_type") == "LORA"


def _scaling(alpha: float, rank: int, rank_stabilised: bool) -> float:
    return alpha / (math.sqrt(rank) if rank_stabilised else rank)


def _require_plain(config: AdapterConfig, first: AdapterConfig) -> None:
    content = config.content
    if content.get("bias", "none") != "none":
        raise InvalidInputError(f"{config.file}: bias", content["bias"], '"none", to be concatenated')
    for field in _ABSENT:
        if content.get(field):
            raise InvalidInputError(f"{config.file}: {field}", content[field], "nothing there, to be concatenated")
    if (start := content.get("init_lora_weights", True)) not in _ORDINARY_STARTS:
        accepted = "a start that leaves the base model as it is, to be concatenated"
        raise InvalidInputError(f"{config.file}: init_lora_weights", start, accepted)
    for field in _SHARED:
        if _unordered(content.get(field)) != _unordered(first.content.get(field)):
            accepted = f"{first.content.get(field)!r}, as in {first.file}"
            raise InvalidInputError(f"{config.file}: {field}", content.get(field), accepted)


def _unordered(value: Any) -> Any:
    return sorted(map(str, value)) if isinstance(value, list) else value or None


def _merged_config(configs: Sequence[AdapterConfig], lead: AdapterConfig) -> dict[str, Any]:
    rank = sum(config.rank for config in configs)
    stabilised = all(config.rank_stabilised for config in configs)
    scalings = {config.scaling for config in configs}
    scaling = scalings.pop() if len(scalings) == 1 else 1.0
    alpha = scaling * (math.sqrt(rank) if stabilised else rank)
    whole = int(alpha) if alpha.is_integer() else alpha
    return {**lead.content, "r": rank, "lora_alpha": whole, "use_rslora": stabilised}


def _require_same_modules(first: _Adapter, other: _Adapter) -> None:
    """The same matrices, but for their ranks."""
    for name in sorted({*first.checkpoint.tensors, *other.checkpoint.tensors}):
        kinds = []
        for model in (first, other):
            slot = model.checkpoint.tensors.get(name, (None, None))[1]
            whole = first.config.saves_whole(name)
            kinds.append(slot and (slot.dtype, slot.shape if whole else slot.shape[1 if name.endswith(_A) else 0]))
        if kinds[0] != kinds[1]:
            problem = f"{name}: it is another one, or missing, in {first.checkpoint.name}"
            remedy = "concatenate adapters of the same modules, sizes and dtypes"
            raise TensorMismatchError(other.checkpoint.files[0], name, None, remedy, problem=problem)


def _concatenated(name: str, models: Sequence[_Adapter], factors: Sequence[float]) -> Bytes:
    if name.endswith(_A):
        return np.concatenate([model.stored(name) for model in models])
    columns = []
    for model, factor in zip(models, factors, strict=True):
        slot = model.checkpoint.tensors[name][1]
        scaled = _combined(name, slot, [model], [factor])
        columns.append(scaled.reshape(slot.shape[0], slot.shape[1] * SIZES[slot.dtype]))
    return np.concatenate(columns, axis=1)


def _combined(name: str, slot: TensorEntry, models: Sequence[_Adapter], weights: Sequence[float]) -> Bytes:
    """Σ w_i x_i of one tensor of some adapters."""
    inputs = [_whole_words(model.stored(name)) for model in models]
    out = np.empty_like(inputs[0])
    with np.errstate(all="ignore"):
        fits = Scratch(out.size).combine(slot.dtype, inputs, weights, out, None)
    if not fits:
        which = ", ".join(model.checkpoint.name for model in models)
        problem = f"tensor {name}: scaled, the values of {which} do not fit into {slot.dtype}"
        raise InvalidInputError(f"tensor {name}", None, "merge other checkpoints", problem=problem)
    return out[: slot.end - slot.start]


def _whole_words(stored: Bytes) -> Bytes:
    words = np.zeros(-(-stored.size // 8) * 8, np.uint8)
    words[: stored.size] = stored
    return words
