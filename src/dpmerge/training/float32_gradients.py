"""Clipping, summing and noise in single precision, whatever precision the loop computes in.

Guarantees, of every step of a recorded run but under ghost clipping: gradients of records are in float32 (or float64)
before they are measured; a record of which any value is not finite counts as zero, as a whole, and nothing is stopped
by it, for stopping would tell; autocast does not reach clipping, sums and noise. So each record adds at most the clip
norm, whatever its gradient was. Trained parameters in half precision get their noised gradient rounded once, after the
noise: a function of what is private already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from opacus.optimizers import DPOptimizer, DPPerLayerOptimizer
from opacus.optimizers.optimizer import _check_processed_flag, _generate_noise, _mark_as_processed
from torch import Tensor

from dpmerge.training.half_precision import HALF, without_autocast

_SMALL = 1e-6
"""Opacus adds it to a norm before it divides by it."""


class Float32Gradients:
    """Does what the optimizer's class does for a step, in single precision."""

    def __init__(self, optimizer: DPOptimizer) -> None:
        self._optimizer = optimizer
        self._parameters = list(optimizer.params)
        self._rounded = any(parameter.dtype in HALF for parameter in self._parameters)
        # The class' own: what hangs on the instance could put other gradients in the place of those seen to here.
        self._add: Callable[[], Any] = (
            self._add_clipped if self._rounded else lambda: type(optimizer).clip_and_accumulate(optimizer)
        )

    def widen(self) -> None:
        """A physical batch waits to be clipped: its gradients in half precision become float32."""
        for parameter in self._parameters:
            samples = getattr(parameter, "grad_sample", None)
            if isinstance(samples, list):
                parameter.grad_sample = [_wide(sample) for sample in samples]
            elif samples is not None:
                parameter.grad_sample = _wide(samples)

    def clip_and_accumulate(self) -> None:
        """Add the clipped gradients of a physical batch to the step's sum; a record that is not finite adds zero."""
        self.widen()
        before = [None if p.summed_grad is None else p.summed_grad.clone() for p in self._parameters]
        with without_autocast(self._parameters[0].device):
            self._add()
            # One value that is not finite makes its clip factor 0 or NaN, and either shows in the sum; if not, it
            # added nothing.
            if all(math.isfinite(float(p.summed_grad.sum())) for p in self._parameters):
                return
            for parameter, summed in zip(self._parameters, before, strict=True):
                parameter.summed_grad = summed
            self._zero_what_is_not_finite()
            self._add()

    def _zero_what_is_not_finite(self) -> None:
        """Record by record, over all parameters."""
        samples = [self._optimizer._get_flat_grad_sample(parameter) for parameter in self._parameters]
        finite = torch.stack([_finite_rows(sample).to(samples[0].device) for sample in samples]).all(dim=0)
        for parameter, sample in zip(self._parameters, samples, strict=True):
            keep = finite.to(sample.device).reshape(-1, *[1] * (sample.dim() - 1))
            cleaned = torch.where(keep, sample, 0.0)
            as_list = isinstance(parameter.grad_sample, list)
            parameter.grad_sample = [cleaned] if as_list else cleaned

    def _add_clipped(self) -> None:
        """What Opacus does, which would round gradients, clip factors and sums to the parameters' precision."""
        optimizer = self._optimizer
        for parameter in self._parameters:
            _check_processed_flag(parameter.grad_sample)
        samples = [optimizer._get_flat_grad_sample(parameter) for parameter in self._parameters]
        norms = [s.reshape(len(s), p.numel()).norm(2, dim=1) for s, p in zip(samples, self._parameters, strict=True)]
        if isinstance(optimizer, DPPerLayerOptimizer):
            limits: Sequence[float] = optimizer.max_grad_norms
        else:
            whole = torch.stack([norm.to(norms[0].device) for norm in norms]).norm(2, dim=0)
            norms, limits = [whole] * len(norms), [float(optimizer.max_grad_norm)] * len(norms)
        for parameter, sample, norm, limit in zip(self._parameters, samples, norms, limits, strict=True):
            factor = (limit / (norm + _SMALL)).clamp(max=1.0).to(sample)
            clipped = torch.einsum("i,i...", factor, sample)
            known = parameter.summed_grad
            parameter.summed_grad = clipped if known is None else known + clipped
            _mark_as_processed(parameter.grad_sample)

    def add_noise(self) -> list[Tensor] | None:
        """Add the noise of a step; the noised sums as they were before they were rounded, if they were."""
        optimizer = self._optimizer
        with without_autocast(self._parameters[0].device):
            if not self._rounded:
                type(optimizer).add_noise(optimizer)
                return None
            noised = []
            for parameter in self._parameters:
                summed: Tensor = parameter.summed_grad
                _check_processed_flag(summed)
                noise = _generate_noise(
                    std=float(optimizer.noise_multiplier) * float(optimizer.max_grad_norm),
                    reference=summed,
                    generator=optimizer.generator,
                    secure_mode=optimizer.secure_mode,
                )
                noised.append((summed + noise).view_as(parameter))
                parameter.grad = noised[-1].to(parameter.dtype)
                _mark_as_processed(summed)
            return noised


def _wide(sample: Tensor) -> Tensor:
    if sample.dtype not in HALF:
        return sample
    wide = sample.float()
    if hasattr(sample, "_processed"):
        _mark_as_processed(wide)  # used already: Opacus refuses to use it again
    return wide


def _finite_rows(sample: Tensor) -> Tensor:
    return sample.isfinite().reshape(len(sample), -1).all(dim=1)
