"""Averages of the iterates of a run, kept beside its checkpoints.

Guarantees: the exponential average is computed here, from the weights that the private optimizer left and from nothing
else: after step t the weights of step s count in proportion to decay^(t−s). It costs what the iterates cost.
Refuses: averages with other tensors than the model, or frozen ones that differ; an average to go on from that is not
the one the record kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from dpmerge.errors import InvalidInputError, RecordingError
from dpmerge.files import file_digest, is_file
from dpmerge.portfolio.manifest import SavedAs
from dpmerge.portfolio.manifest_parts import SavedAverage
from dpmerge.training.model_tensors import ModelTensors
from dpmerge.training.noised_gradients import same

BY_RECORDER = "the recorder"


LONGEST_NAME = 80


def require_short(run: str) -> None:
    """An average is called by its run's name and more, and names have an end."""
    if len(run) > LONGEST_NAME:
        raise InvalidInputError("run", run, f"at most {LONGEST_NAME} characters: averages are called by it, and more")


class ExponentialAverage:
    """Of the trained weights, moved after each step."""

    def __init__(self, weights: Sequence[Tensor], decay: float, *, steps: int = 0) -> None:
        self.decay = decay
        self._average = [weight.detach().clone() for weight in weights]
        self._steps = steps

    def step(self, weights: Sequence[Tensor]) -> None:
        """The weights have moved."""
        self._steps += 1
        share = (1 - self.decay) / -math.expm1(self._steps * math.log(self.decay))
        with torch.no_grad():
            torch._foreach_lerp_(self._average, list(weights), min(1.0, share))

    def save(self, folder: Path, step: int, tensors: ModelTensors) -> SavedAverage:
        """Keep it, beside the checkpoint of a step."""
        saved = tensors.save(folder, step, weights=tensors.named(self._average), average="ema")
        return SavedAverage(
            name="ema", decay=self.decay, files=saved.files, weights=saved.weights, vouched_by=BY_RECORDER
        )

    @classmethod
    def resumed(
        cls, folder: Path, saved: SavedAs, tensors: ModelTensors, weights: Sequence[Tensor], decay: float, *, steps: int
    ) -> ExponentialAverage:
        """As it was kept beside the checkpoint that the run goes on from."""
        kept = next((average for average in saved.averages or () if average.name == "ema"), None)
        if kept is None or kept.decay != decay:
            found = "no average" if kept is None else f"one of decay {kept.decay:g}"
            raise RecordingError(
                f"ema: {decay:g}, where the record kept {found} beside step {saved.step}; resume with what it had, or "
                "leave ema out"
            )
        file = folder / kept.files[0].name
        if len(kept.files) != 1 or not is_file(file) or file_digest(file) != kept.files[0].sha256:
            raise RecordingError(
                f"directory: {file} is not the average that the record kept after step {saved.step}; put it back, or "
                "leave ema out"
            )
        content = load_file(file)
        made = cls(weights, decay, steps=steps)
        for average, name in zip(made._average, tensors.names, strict=True):
            average.copy_(content[name])
        return made


def keep_average(folder: Path, step: int, tensors: ModelTensors, weights: Mapping[str, Any], who: str) -> SavedAverage:
    """Keep an average that somebody else computed, and vouches for."""
    state, weights = tensors.state(), tensors.files.names(weights)
    for name in dict.fromkeys([*weights, *tensors.trained]):
        given, own = weights.get(name), state.get(name)
        if own is None or given is None:
            where = "the model" if own is None else "weights"
            raise RecordingError(f"weights: {name} is not in {where}; pass a state_dict of the model's own names")
        if not isinstance(given, Tensor) or given.dtype != own.dtype or given.shape != own.shape:
            raise RecordingError(f"weights: {name} is not {own.dtype} of shape {tuple(own.shape)}, as in the model")
        if name not in tensors.trained and not same(given.to(own.device), own):
            raise RecordingError(f"weights: {name} differs from the model's, though the run does not train it")
    trained = {name: weights[name] for name in tensors.trained}
    saved = tensors.save(folder, step, weights=trained, average="average")
    return SavedAverage(name="average", files=saved.files, weights=saved.weights, vouched_by=who)
