"""The gradients of a step as its noise left them, and what was made of them before the weights moved.

Guarantees: the noise that was added is as large as the record says, and what moves the weights is computed from the
noised gradients alone: these themselves, or these clipped (by norm or by value) or scaled by one constant.
Refuses: noise of another size, sums longer than the clipped gradients of the batch can be, and gradients that were
changed after the noise in any other way: a sum without its noise put back would be such a change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from opacus.optimizers import DPOptimizer
from scipy.special import gammainccinv, gammaincinv
from torch import Tensor

from dpmerge.errors import RecordingError
from dpmerge.training.half_precision import HALF
from dpmerge.training.sharded_models import SHARDED, local
from dpmerge.training.spot_checks import SpotChecks

RARE = 1e-12
"""With this probability Gaussian noise is outside the bounds that are accepted, on either side."""
CLOSE = 1e-5
"""Relative: gradients that were clipped again, here, differ from those of the loop by rounding."""
_SUM_ERROR = 1e-4
"""Relative: by so much the sum of a batch's clipped gradients may be too long by rounding."""


class NoisedGradients:
    """The noised gradients of the step under way, scaled as the optimizer scales them."""

    def __init__(self, optimizer: DPOptimizer, *, drawn: bool = True) -> None:
        self._optimizer = optimizer
        self._drawn = drawn  # of several processes one draws the noise
        self._parameters = list(optimizer.params)
        # Half precision comes after the noise.
        self._precision = max(torch.finfo(_wide(parameter.dtype)).eps for parameter in self._parameters)
        self._lengths = noise_lengths(sum(local(parameter).numel() for parameter in self._parameters))
        # FSDP divides the sum by the number of ranks, and Opacus the noise.
        self._parts = dist.get_world_size() if type(optimizer) in SHARDED else 1
        self._spot_checks = SpotChecks()
        self._noised: list[Tensor] | None = None
        self._rules: dict[str, float] | None = None  # by which gradients were changed so far, and their constants

    def note(self, rows: int, unrounded: Sequence[Tensor] | None = None) -> None:
        """Noise was just added to the sum of so many clipped gradients, and the result may have been rounded."""
        optimizer = self._optimizer
        noised = [_gradient(parameter) for parameter in self._parameters]
        if not self._drawn:
            self._require_no_noise(noised)
        if self._spot_checks.due():
            self._measure(rows, noised if unrounded is None else list(unrounded))
        # Opacus divides by the number of batches in the step as well: of more than one it is refused (StepReader).
        divisor = optimizer.expected_batch_size if optimizer.loss_reduction == "mean" else 1
        with torch.no_grad():
            self._noised = list(torch._foreach_div(noised, divisor))

    def _measure(self, rows: int, noised: list[Tensor]) -> None:
        """Refuse a sum that is too long for so many clipped gradients, and noise that is not of its size."""
        sums = [self._summed(parameter) for parameter in self._parameters]
        length, clip_norm = _length(sums), float(self._optimizer.max_grad_norm)
        # A model that has gone astray (NaN) is refused where it would be saved.
        if self._parts == 1 and length > rows * clip_norm * (1 + _SUM_ERROR):  # of shards: sharded_sums
            raise RecordingError(
                f"optimizer: the sum of {rows} clipped gradients is {length:.6g} long, longer than {rows} × the clip "
                f"norm {clip_norm:g}; something was added to it that was not clipped: leave p.summed_grad alone"
            )
        if self._drawn:
            with torch.no_grad():
                self._require_noise(length, _length(torch._foreach_sub(noised, sums)))

    def _summed(self, parameter: Tensor) -> Tensor:
        """The sum of clipped gradients, or the shard of it that is here."""
        if type(self._optimizer) in SHARDED:
            return local(self._optimizer.grad_state[parameter]["summed_grad"])
        return parameter.summed_grad.view_as(parameter)  # type: ignore[attr-defined, no-any-return]

    def _require_no_noise(self, noised: list[Tensor]) -> None:
        for parameter, gradient in zip(self._parameters, noised, strict=True):
            if not same(parameter.summed_grad.view_as(parameter), gradient):
                raise RecordingError(
                    "optimizer: something was added to the sum of clipped gradients on a rank that draws no noise; "
                    "Opacus adds the noise on rank 0 alone: leave add_noise and p.grad as they are"
                )

    def _require_noise(self, length: float, found: float) -> None:
        optimizer = self._optimizer
        adjusted = getattr(optimizer, "_adjusted_noise_multiplier", None)
        deviation = float(optimizer.noise_multiplier if adjusted is None else adjusted) * float(optimizer.max_grad_norm)
        deviation /= self._parts
        rounding = 4 * self._precision * (length + found)
        least, most = (deviation * each for each in self._lengths)
        if math.isfinite(found) and not least - rounding <= found <= most + rounding:
            raise RecordingError(
                f"optimizer: the noise of a step is {found:.6g} long; noise of deviation {deviation:g} is between "
                f"{least:.6g} and {most:.6g}; let Opacus' optimizer add it, as make_private returned it"
            )

    @property
    def local(self) -> list[Tensor]:
        """Of several processes: what this one is about to send, wherever it is held."""
        assert self._noised is not None
        return self._noised

    @local.setter
    def local(self, held: list[Tensor]) -> None:
        self._noised = held

    def require_local(self) -> None:
        """Of several processes: what is sent is what the noise left."""
        used = [_gradient(parameter) for parameter in self._parameters]
        if self._noised is None or not all_same(self._noised, used):
            raise RecordingError(
                "optimizer: gradients were changed between the noise and their sum over the ranks; leave p.grad alone "
                "until the ranks have summed it"
            )

    def summed(self) -> None:
        """Of several processes: what is held is now the sum over all of them, and is what moves the weights."""
        with torch.no_grad():
            torch._foreach_copy_([_gradient(parameter) for parameter in self._parameters], self.local)

    @property
    def waiting(self) -> bool:
        """Whether there are noised gradients that no update has used yet."""
        return self._noised is not None

    @property
    def changed(self) -> bool:
        """Whether gradients were ever clipped or scaled after the noise: private still, but no longer SGD's."""
        return self._rules is not None

    def taken(self) -> list[Tensor]:
        """What the update may be computed from; refused if it is going to be computed from something else."""
        assert self._noised is not None
        noised, self._noised = self._noised, None
        used = [_gradient(parameter) for parameter in self._parameters]
        if all_same(noised, used):
            self._rules = None if self._rules is None else _still(self._rules, noised)
            used = noised
        else:
            used = [gradient.clone() for gradient in used]
            found = _rules(noised, used)
            before = self._rules
            self._rules = found if before is None else {n: c for n, c in found.items() if _near(c, before.get(n))}
        if self._rules == {}:
            raise RecordingError(
                "optimizer: gradients were changed between the noise and the update, and not by clipping or scaling "
                "the noised ones by a constant; nobody can say what they hold now: leave p.grad alone after the noise"
            )
        return used


def noise_lengths(dimensions: int) -> list[float]:
    """Between which lengths Gaussian noise of deviation 1 is, but for rare cases."""
    # The squared norm of Gaussian noise in d dimensions is χ² with d degrees of freedom.
    half = dimensions / 2
    return [math.sqrt(2 * float(bound(half, RARE))) if half else 0.0 for bound in (gammaincinv, gammainccinv)]


def all_same(ones: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether each is the same as its counterpart."""
    # torch's own loop first: it is made several times a step, of every parameter.
    return all(map(torch.equal, ones, others)) or all(map(same, ones, others))


def same(one: Tensor, other: Tensor) -> bool:
    """Equal in every value; NaN is the same as NaN."""
    if torch.equal(one, other):
        return True
    missing = one.isnan()
    return torch.equal(missing, other.isnan()) and torch.equal(one[~missing], other[~missing])


def _rules(noised: Sequence[Tensor], used: Sequence[Tensor]) -> dict[str, float]:
    """By which rules, with which constants, the gradients used follow from the noised ones alone."""
    before, after = _length(noised), _length(used)
    if not (math.isfinite(before) and math.isfinite(after) and before > 0):
        return {}
    found = {}
    factor = sum(float((n.double() * u.double()).sum()) for n, u in zip(noised, used, strict=True)) / before**2
    if _length([u - factor * n for n, u in zip(noised, used, strict=True)]) <= CLOSE * after:
        found["factor"] = factor
        if factor <= 1:
            found["norm"] = after
    largest = max(float(u.abs().max()) for u in used if u.numel())
    if _length([u - n.clamp(-largest, largest) for n, u in zip(noised, used, strict=True)]) <= CLOSE * after:
        found["value"] = largest
    return found


def _still(rules: dict[str, float], noised: Sequence[Tensor]) -> dict[str, float]:
    """Which rules explain that gradients were left alone this time."""
    largest = {"norm": _length(noised), "value": max(float(n.abs().max()) for n in noised if n.numel())}
    return {name: c for name, c in rules.items() if name in largest and largest[name] <= c * (1 + 10 * CLOSE)}


def _near(constant: float, before: float | None) -> bool:
    return before is not None and math.isclose(constant, before, rel_tol=10 * CLOSE)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in HALF else dtype


def _gradient(parameter: Tensor) -> Tensor:
    if parameter.grad is None:
        raise RecordingError(
            "optimizer: a trained parameter has no gradient after the noise was added; leave p.grad alone"
        )
    return local(parameter.grad)


def _length(tensors: Sequence[Tensor]) -> float:
    """Of all of them as one vector."""
    if not tensors:
        return 0.0
    with torch.no_grad():
        return math.hypot(*(float(norm) for norm in torch._foreach_norm(list(tensors))))
