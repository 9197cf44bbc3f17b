"""What one logical step really did, read from the optimizer at the moment it does it.

Guarantees: clip norm, noise and rate are those the step used, seen after the noise was added and before the weights
move.
Refuses, before the step is taken: noise scaled for one clip norm and gradients clipped to another, clip norms that
change within a step, gradients accumulated over several draws, batch normalisation that sees the batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

import torch
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleHooksFastGradientClipping
from opacus.grad_sample.grad_sample_module_fast_gradient_clipping_fsdp import (
    GradSampleHooksFastGradientClippingFSDP,
    GradSampleModuleFastGradientClippingFSDP,
)
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping, DPPerLayerOptimizer
from torch import nn

from dpmerge.errors import RecordingError
from dpmerge.terms.mechanism_schema import OptimizerFacts
from dpmerge.training.distributed_models import DISTRIBUTED, require_recordable
from dpmerge.training.half_precision import HALF
from dpmerge.training.processes import Processes
from dpmerge.training.sharded_models import SHARDED
from dpmerge.training.step_blocks import RecordedStep

KNOWN_GHOSTS = (GradSampleModuleFastGradientClipping, GradSampleHooksFastGradientClipping)
SHARDED_GHOSTS = (GradSampleModuleFastGradientClippingFSDP, GradSampleHooksFastGradientClippingFSDP)
KNOWN_OPTIMIZERS = (DPOptimizer, DPPerLayerOptimizer, DPOptimizerFastGradientClipping, *DISTRIBUTED, *SHARDED)

_SETTINGS = ("momentum", "nesterov", "dampening", "weight_decay")


class StepReader:
    """Reads each step from the optimizer and checks that it is one the manifest can describe."""

    def __init__(self, model: Any, module: nn.Module, optimizer: DPOptimizer, processes: Processes) -> None:
        require_recordable(optimizer)
        if type(optimizer) not in KNOWN_OPTIMIZERS:
            known = ", ".join(kind.__name__ for kind in KNOWN_OPTIMIZERS)
            raise RecordingError(
                f"optimizer: a {type(optimizer).__name__}; recorded are those make_private returns for flat and "
                f"per_layer clipping: {known} (adaptive clipping releases more than gradients)"
            )
        self._optimizer, self._processes = optimizer, processes
        self._ghost = isinstance(optimizer, DPOptimizerFastGradientClipping)
        if self._ghost:
            require_single_precision(parameter.dtype for parameter in optimizer.params)
        ghosts = SHARDED_GHOSTS if processes.sharded else KNOWN_GHOSTS
        if self._ghost and type(model) not in ghosts:
            known = ", ".join(kind.__name__ for kind in ghosts)
            raise RecordingError(
                f"model: a {type(model).__name__}; with ghost clipping pass what make_private returned, which does the "
                f"clipping: {known} (adaptive clipping releases more than gradients)"
            )
        self._model = model
        self._normalisation = [
            (name, layer)
            for name, layer in module.named_modules()
            if isinstance(layer, nn.modules.batchnorm._BatchNorm)
        ]
        self._settings = _settings(optimizer)
        self._divisor = self.divisor
        self._clip_norms: set[float] = set()
        self._ghost_rows: list[int] = []
        self.uniform = True
        self.batches_waiting = 1
        """Of how many passes gradients wait to be clipped; a step of more than one is refused when it is taken."""
        self.require_no_batch_statistics()

    @property
    def flat_clipping(self) -> bool:
        return not isinstance(self._optimizer, DPPerLayerOptimizer)

    @property
    def loss_reduction(self) -> Literal["mean", "sum"]:
        return "mean" if self._optimizer.loss_reduction == "mean" else "sum"

    @property
    def divisor(self) -> float:
        """By what the sum of clipped gradients is divided, by each process and by their number."""
        optimizer = self._optimizer
        if optimizer.loss_reduction != "mean":
            return 1.0
        return float(optimizer.expected_batch_size) * self._processes.world

    @property
    def clip_norm(self) -> float:
        """To what a record's whole gradient is clipped now; layers clipped apart add up as sides of a right angle."""
        if isinstance(self._optimizer, DPPerLayerOptimizer):
            norms = torch.tensor([float(norm) for norm in self._optimizer.max_grad_norms], dtype=torch.float64)
            return float(norms.norm())
        return float(self._model.max_grad_norm if self._ghost else self._optimizer.max_grad_norm)

    def noise_multiplier(self) -> float:
        """The noise a step would get now, as a multiple of what gradients are clipped to."""
        clip_norm, scaled_for = self.clip_norm, float(self._optimizer.max_grad_norm)
        multiplier = float(self._optimizer.noise_multiplier)
        return multiplier if scaled_for == clip_norm else multiplier * scaled_for / clip_norm

    @property
    def ghost(self) -> bool:
        """Whether gradients are clipped in backward(), by the model, and not by the optimizer."""
        return self._ghost

    def factors_computed(self, rows: int) -> None:
        """Ghost clipping: the clip factors of so many rows were computed, in backward()."""
        self._clip_norms.add(self.clip_norm)
        self._ghost_rows.append(rows)
        if self._processes.sharded:
            layers = self._model.iterate_submodules(self._model._module)
            norms = [norm for layer in layers for norm in layer.norm_sample]
        else:
            norms = [parameter._norm_sample for parameter in self._model.trainable_parameters]
        require_single_precision(norm.dtype for norm in norms)
        self._processes.factors_computed()

    def clipped(self) -> int:
        """A physical batch is about to be added to the step's sum; of how many rows?"""
        self._clip_norms.add(self.clip_norm)
        if self._ghost:
            return self._rows_of_ghost()
        waiting = [grad_samples(parameter) for parameter in self._optimizer.params]
        self.batches_waiting = max(map(len, waiting))
        rows = {len(parts[0]) if len(parts) == 1 else sum(map(len, parts)) for parts in waiting}
        if len(rows) > 1:
            raise RecordingError(
                f"model: {' and '.join(map(str, sorted(rows)))} gradients for different weights of one batch; each "
                "record must have one of each, so let records come first in every layer (batch_first)"
            )
        return rows.pop()

    def _rows_of_ghost(self) -> int:
        computed, self._ghost_rows = self._ghost_rows, []
        if len(computed) != 1:
            raise RecordingError(
                f"criterion: {len(computed)} clipped backward passes in one step; call backward() once, on what the "
                "criterion that make_private returned gives: it does the clipping"
            )
        return computed[0]

    def moved(self, step: RecordedStep) -> RecordedStep:
        """The optimizer has moved the weights; the step with the rate that did it."""
        # Settings may have changed since the last step, or by a hook after the noise was added.
        self.uniform &= self._rate() == step.learning_rate and _settings(self._optimizer) == self._settings
        return replace(step, learning_rate=max(self._rate(), step.learning_rate))

    def _rate(self) -> float:
        return max(float(group["lr"]) for group in self._optimizer.param_groups) / self.divisor

    def read(self, sampling_rate: float) -> RecordedStep:
        """The step that is about to move the weights."""
        optimizer, clip_norm = self._optimizer, self.clip_norm
        if self.divisor != self._divisor:
            raise RecordingError(
                "optimizer.expected_batch_size: changed in the course of the run; leave it as make_private set it"
            )
        if self._clip_norms - {clip_norm}:
            raise RecordingError(
                f"optimizer.max_grad_norm: changed within one logical step ({sorted({*self._clip_norms, clip_norm})}); "
                "let the scheduler step once a logical step"
            )
        self._clip_norms.clear()
        scaled_for = float(optimizer.max_grad_norm)
        # Opacus keeps the norm of several layers in single precision.
        if abs(scaled_for - clip_norm) > 1e-6 * clip_norm:
            raise RecordingError(
                f"optimizer.max_grad_norm: noise is scaled for {scaled_for:g} but gradients are clipped to "
                f"{clip_norm:g}; clip schedulers do not reach {'ghost' if self._ghost else 'per_layer'} clipping"
            )
        if getattr(optimizer, "_adjusted_noise_multiplier", None) is not None:
            raise RecordingError(
                "optimizer: adaptive clipping releases a count beside the gradient, which is not recorded; use flat or "
                "per_layer clipping"
            )
        if optimizer.accumulated_iterations != 1:
            raise RecordingError(
                f"optimizer: gradients of {optimizer.accumulated_iterations} batches in one step, in which a record "
                "may be more than once; call optimizer.step() for each batch, or use BatchMemoryManager"
            )
        self.require_no_batch_statistics()
        rates = {float(group["lr"]) for group in optimizer.param_groups}
        self.uniform &= len(rates) == 1
        return RecordedStep(self.noise_multiplier(), clip_norm, max(rates) / self._divisor, sampling_rate)

    def settings(self) -> dict[str, Any]:
        """What several processes must have in common."""
        optimizer = self._optimizer
        inner = type(optimizer.original_optimizer)
        groups = [{name: group[name] for name in group if name != "params"} for group in optimizer.param_groups]
        return {
            "optimizer": [type(optimizer).__name__, f"{inner.__module__}.{inner.__qualname__}", groups],
            "noise_multiplier": float(optimizer.noise_multiplier),
            "max_grad_norm": self.clip_norm,
            "expected_batch_size": self.divisor,
            "loss_reduction": self.loss_reduction,
        }

    def require_no_batch_statistics(self) -> None:
        """Batch normalisation mixes the records of a batch and keeps their statistics without noise."""
        for name, layer in self._normalisation:
            if layer.training or layer.running_mean is None:
                buffers = [f"{name}.{key}".lstrip(".") for key, _ in layer.named_buffers(recurse=False)]
                kept = f"private data flows into {', '.join(buffers)}" if buffers else "records of a batch are mixed"
                raise RecordingError(
                    f"model.{name}: {type(layer).__name__} in training mode: {kept}; use GroupNorm "
                    "(opacus.validators.ModuleValidator.fix), or keep the layer in eval mode"
                )

    def optimizer_facts(self) -> OptimizerFacts:
        """The optimizer as theorems see it; settings that differ or change leave only joint release."""
        facts = self._optimizer_facts()
        rounded = sorted({str(p.dtype).removeprefix("torch.") for p in self._optimizer.params if p.dtype in HALF})
        # No theorem but joint release and selection knows updates that are rounded.
        return OptimizerFacts(name=f"{facts.name}, rounded to {' and '.join(rounded)}") if rounded else facts

    def _optimizer_facts(self) -> OptimizerFacts:
        inner = self._optimizer.original_optimizer
        if type(inner) is not torch.optim.SGD:
            # With its module: other libraries call other things SGD.
            kind = type(inner)
            known = kind.__module__.startswith("torch.optim")
            return OptimizerFacts(name=kind.__name__.lower() if known else f"{kind.__module__}.{kind.__qualname__}")
        if any(group.get("maximize") for group in self._optimizer.param_groups):
            return OptimizerFacts(name="sgd that climbs (maximize)")
        if not self.uniform or len({repr(group) for group in self._settings}) > 1:
            return OptimizerFacts(name="sgd with settings that differ or change")
        momentum, nesterov, dampening, decay = self._settings[0]
        return OptimizerFacts(
            name="sgd",
            momentum=float(momentum),
            nesterov=bool(nesterov),
            dampening=float(dampening),
            weight_decay=float(decay),
        )


def _settings(optimizer: DPOptimizer) -> list[tuple[Any, ...]]:
    return [tuple(group.get(name, 0) for name in _SETTINGS) for group in optimizer.param_groups]


def grad_samples(parameter: torch.Tensor) -> list[torch.Tensor]:
    """The gradients, row by row, that wait to be clipped."""
    samples = parameter.grad_sample  # type: ignore[attr-defined]
    return samples if isinstance(samples, list) else [samples]


def require_single_precision(dtypes: Iterable[torch.dtype]) -> None:
    """Ghost clipping clips in backward(), before anybody could see to its precision."""
    low = next((dtype for dtype in dtypes if dtype not in (torch.float32, torch.float64)), None)
    if low is not None:
        raise RecordingError(
            f"model: ghost clipping in {low} (autocast?): the gradients that are summed are others than those whose "
            'norms were measured, so they may be longer than the clip norm; use grad_sample_mode="hooks", which '
            "record() clips in float32, or ghost clipping in float32 without autocast"
        )
