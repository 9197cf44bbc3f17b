"""How far one update can pull two hidden states apart: Lipschitz factors from facts about the loss.

Guarantees: a factor returned here bounds the Lipschitz constant of θ ↦ θ − η·(mean clipped gradient + m·θ) on any
dataset of at most `records` records, for a run that meets the premises listed beside it.
Refuses (returns no factors, with the failing premise): features or records unbounded, a softmax whose clipping
could act, a clipped total where per-example clipping is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from dpmerge.accounting import validation
from dpmerge.accounting.validation import Array
from dpmerge.errors import InvalidInputError

SmoothKind = Literal["logistic", "huber", "squared", "softmax", "declared"]

OPACUS_CLIP_MARGIN = 2e-6
"""Opacus scales by C/(norm + 1e-6): a gradient is left alone only if it stays this far below the clip norm."""


@dataclass(frozen=True, kw_only=True)
class Smoothness:
    """What is known of a run's per-example loss.

    logistic, huber, squared: a one-output generalised linear model whose feature vector, bias included, has norm at
    most `feature_bound`. Clipping its gradient keeps it the gradient of a convex function. squared means ½(u − y)²;
    for other scalings, or class weights, state a larger `beta`.
    softmax: softmax regression with cross-entropy; covered while the clip norm is so large that it never acts.
    declared: `beta` bounds the Lipschitz constant of the clipped gradient itself; nothing is assumed convex.

    Args:
        kind: One of these.
        feature_bound: The largest norm of a feature vector, bias included.
        beta: Lipschitz constant of one record's gradient; for `declared` it has to be given.
        records: A bound on the number of records.
        divisor: The public constant by which the sum of gradients was divided, so that learning rate = effective rate ×
            divisor. It matters to weight decay, which is not divided.
        vouched_by: Who says so.

    Raises:
        InvalidInputError: A value outside its domain.

    (theory 9.5.)

    >>> Smoothness(kind="logistic", feature_bound=2.0, records=100).factors(np.array([0.001]), 0.0).round(6)
    array([1.])
    """

    kind: SmoothKind
    feature_bound: float | None = None
    beta: float | None = None
    records: int | None = None
    divisor: float | None = None
    vouched_by: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(SmoothKind):
            raise InvalidInputError("smoothness.kind", self.kind, ", ".join(get_args(SmoothKind)))
        if self.feature_bound is not None:
            validation.magnitude("smoothness.feature_bound", self.feature_bound, zero=False)
        if self.beta is not None:
            validation.magnitude("smoothness.beta", self.beta, zero=True)
        elif self.kind == "declared":
            raise InvalidInputError("smoothness.beta", None, "a number ≥ 0: a declared smoothness is its beta")
        if self.records is not None:
            validation.integer("smoothness.records", self.records, least=1, most=10**18)
        if self.divisor is not None:
            validation.magnitude("smoothness.divisor", self.divisor, zero=False)

    @property
    def gradient_lipschitz(self) -> float | None:
        """β, the Lipschitz constant of one record's gradient; None if the features are unbounded."""
        if self.kind == "declared":
            return self.beta
        if self.feature_bound is None:
            return None
        square = self.feature_bound**2
        by_kind = {"logistic": square / 4, "huber": square, "squared": square, "softmax": square / 2}[self.kind]
        return max(by_kind, self.beta or 0.0)  # a stated β may only make it worse

    @property
    def least_clip_norm(self) -> float:
        """The clip norm from which the kind is covered: 0, or for softmax the largest possible gradient norm."""
        if self.kind != "softmax" or self.feature_bound is None:
            return 0.0
        return float(np.sqrt(2) * self.feature_bound + OPACUS_CLIP_MARGIN)

    def factors(self, rates: Array, weight_decay: float) -> Array | None:
        """L for each step of the given *effective* rates (of the sum of gradients); None if a bound is missing.

        The sum's curvature lies between 0 and n·β for convex losses of up to n records, so with effective rate η and
        divisor d the update's linear part lies between 1 − ηdm and 1 − ηdm − ηnβ: L = max(|1 − ηdm|, |1 − ηdm − ηnβ|).
        Not convex: |1 − ηdm| + ηnβ.
        """
        beta = self.gradient_lipschitz
        if beta is None or self.records is None or (weight_decay > 0 and self.divisor is None):
            return None
        shrunk = rates * (self.divisor or 0.0) * weight_decay
        curved = rates * self.records * beta
        kept = 1 - shrunk
        convex = self.kind != "declared"
        factors = np.maximum(np.abs(kept), np.abs(kept - curved)) if convex else np.abs(kept) + curved
        # Rounded up by the error of the differences: a factor that only rounds to zero must not forget the past.
        return np.asarray(factors + 2.0**-50 * (1 + shrunk + curved))


@dataclass(frozen=True, kw_only=True)
class DeclaredLipschitz:
    """Lipschitz factors of the whole update map, stated by somebody.

    Args:
        factors: One number, or one for each step.
        vouched_by: Who says so.

    Raises:
        InvalidInputError: A factor below 0.

    >>> DeclaredLipschitz(factors=1).per_step(3)
    array([1., 1., 1.])
    """

    factors: float | Sequence[float]
    vouched_by: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.factors, Sequence | np.ndarray) and not isinstance(self.factors, str):
            object.__setattr__(self, "factors", tuple(self.factors))
        values = self.factors if isinstance(self.factors, tuple) else (self.factors,)
        for value in values:
            validation.non_negative("lipschitz", value, infinite=True)

    def per_step(self, steps: int) -> Array:
        """One factor a step."""
        if not isinstance(self.factors, tuple):
            return np.full(steps, self.factors, dtype=float)
        if len(self.factors) != steps:
            raise InvalidInputError("lipschitz", f"{len(self.factors)} numbers", f"one number, or {steps}: one a step")
        return np.asarray(self.factors, dtype=float)
