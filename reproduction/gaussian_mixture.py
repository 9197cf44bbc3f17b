"""The exact law of a number drawn from one of several Gaussians, the index untold, against the same law moved.

Guarantees: δ(ε) from closed-form probabilities of the set where the likelihood ratio exceeds e^ε, its ends solved for;
Rényi divergences by the trapezoidal rule in logarithms, which for such analytic integrands is exact to rounding.
At equal variance it is compared with LC, a Gaussian, order by order.
Refuses: probabilities off the simplex, deviations and shifts that are not above zero. It certifies no release: what is
exact for one number does not hold for a model, whose many coordinates reveal the index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.special import expit, gammaincinv, logsumexp, ndtr

from dpmerge.accounting import PrivacyProfile
from dpmerge.accounting.validation import Array, magnitude, simplex

_TAIL = 13.0  # deviations of the widest component: beyond lies a mass of 1e-38
_FINE = 32  # points to a deviation of the narrowest, to find the ends of the set
_COARSE = 16  # the same for the trapezoidal rule: the error is about e^{−2π·16/2}
_NODES = 40  # Gauss–Legendre over the length of the other coordinates: four digits of ε
_LARGEST_EXPONENT = 700.0


@dataclass(frozen=True, eq=False)
class MovedMixture(PrivacyProfile):
    """Σ π_i N(0, σ_i²) against Σ π_i N(shift, σ_i²), both directions alike: x ↦ shift − x exchanges the two.

    >>> mixture = MovedMixture((0.5, 0.5), (1.0, 2.0), 0.1)
    >>> round(mixture.epsilon(1e-5), 3)
    0.15
    """

    probabilities: Sequence[float] | Array
    deviations: Sequence[float]
    shift: float

    def __post_init__(self) -> None:
        for position, deviation in enumerate(self.deviations):
            magnitude(f"deviations[{position}]", deviation, zero=False)
        magnitude("shift", self.shift, zero=False)
        chances = simplex("probabilities", self.probabilities, len(self.deviations))
        drawn = [(p, s) for p, s in zip(chances.tolist(), self.deviations, strict=True) if p > 0]
        object.__setattr__(self, "probabilities", tuple(p for p, _ in drawn))
        object.__setattr__(self, "deviations", tuple(float(s) for _, s in drawn))

    def deltas(self, epsilon: npt.ArrayLike) -> tuple[Array, Array]:
        """P(S) − e^ε Q(S) over S = {x : log p(x)/q(x) > ε}: exact up to rounding, which is not rounded up."""
        points = np.asarray(epsilon, dtype=float)
        found = np.array([self._delta(float(point)) for point in points.ravel()]).reshape(points.shape)
        return found, found

    def renyi_divergence(self, orders: Array) -> Array:
        """log ∫ p^α q^{1−α} / (α − 1)."""
        grid = np.asarray(orders, dtype=float)
        wide, narrow = _TAIL * max(self.deviations), min(self.deviations)
        # The integrand's far mode is where the widest component's is, at −(α − 1)·shift.
        start, end = -(grid.max() - 1) * self.shift - wide, self.shift + wide
        places, step = np.linspace(start, end, int((end - start) / narrow * _COARSE) + 2, retstep=True)
        density = self._log_density(places)
        loss = density - self._log_density(places - self.shift)
        exponents = np.multiply.outer(grid - 1, loss)
        logarithm = logsumexp(exponents + density, axis=-1) + np.log(step)
        # Near one the logarithm has lost digits: ∫ p (e^{(α−1)·loss} − 1) has not.
        small = logarithm < 0.1
        excess = np.expm1(np.minimum(exponents[small], _LARGEST_EXPONENT)) @ np.exp(density) * step
        logarithm[small] = np.log1p(excess)
        return np.asarray(np.maximum(logarithm, 0.0) / (grid - 1))

    def _log_density(self, places: Array) -> Array:
        terms = [
            np.log(p / (s * np.sqrt(2 * np.pi))) - places * places / (2 * s * s)
            for p, s in zip(self.probabilities, self.deviations, strict=True)
        ]
        return np.asarray(np.logaddexp.reduce(terms))

    def _loss(self, places: Array) -> Array:
        return self._log_density(places) - self._log_density(places - self.shift)

    @cached_property
    def _table(self) -> tuple[Array, Array]:
        """The loss on a grid that resolves the narrowest component."""
        wide = _TAIL * max(self.deviations)
        count = int((2 * wide + self.shift) / min(self.deviations) * _FINE) + 2
        places = np.linspace(-wide, wide + self.shift, count)
        return places, self._loss(places)

    def _delta(self, epsilon: float) -> float:
        places, loss = self._table
        above = loss > epsilon
        cells = np.flatnonzero(above[1:] != above[:-1])
        left, right, excess_left, excess_right = places[cells], places[cells + 1], loss[cells], loss[cells + 1]
        # A misplaced end enters δ by its square: two rounds of regula falsi are more than enough.
        for _ in range(2):
            middle = left + (right - left) * (epsilon - excess_left) / (excess_right - excess_left)
            value = self._loss(middle)
            same = (value > epsilon) == (excess_left > epsilon)
            left, excess_left = np.where(same, middle, left), np.where(same, value, excess_left)
            right, excess_right = np.where(same, right, middle), np.where(same, excess_right, value)
        ends = left + (right - left) * (epsilon - excess_left) / (excess_right - excess_left)
        # The loss falls from +∞ to −∞, so the set begins at −∞ and its ends are in turn right and left ones.
        signs = np.where(above[cells], 1.0, -1.0)
        scale = np.exp(min(epsilon, _LARGEST_EXPONENT))
        return max(0.0, float(signs @ (self._below(ends) - scale * self._below(ends - self.shift))))

    def _below(self, places: Array) -> Array:
        terms = [p * ndtr(places / s) for p, s in zip(self.probabilities, self.deviations, strict=True)]
        return np.asarray(np.sum(terms, axis=0))


@dataclass(frozen=True, eq=False)
class MovedVectorMixture(PrivacyProfile):
    """The same for a vector with independent noise in every coordinate, two components, moved along one coordinate.

    The other coordinates say nothing of the data but much of the index. Given them, the moved coordinate is a scalar
    mixture with the index's posterior probabilities, and they have the same law on both sides: δ(ε) is the average of
    the scalar mixtures' over their squared length. With many coordinates it becomes Σ π_i δ_i(ε), the index known.
    """

    probability: float  # of the first component
    deviations: tuple[float, float]
    shift: float
    dimensions: int

    def deltas(self, epsilon: npt.ArrayLike) -> tuple[Array, Array]:
        points = np.asarray(epsilon, dtype=float)
        total = np.zeros(points.shape)
        for weight, mixture in self._given_the_rest:
            total = total + weight * mixture.deltas(points)[0]
        return total, total

    def renyi_divergence(self, orders: Array) -> None:  # noqa: ARG002
        """None: nothing here asks for it."""
        return

    @cached_property
    def _given_the_rest(self) -> list[tuple[float, MovedMixture]]:
        """Scalar mixtures and their weights: Gauss–Legendre over the quantiles of χ² under either component."""
        first, second = self.deviations
        freedom = self.dimensions - 1
        if freedom == 0:
            return [(1.0, MovedMixture((self.probability, 1 - self.probability), self.deviations, self.shift))]
        nodes, weights = np.polynomial.legendre.leggauss(_NODES)
        lengths = 2 * gammaincinv(freedom / 2, (nodes + 1) / 2)
        mixtures = []
        for chance, deviation in ((self.probability, first), (1 - self.probability, second)):
            log_odds = np.log(self.probability / (1 - self.probability)) - freedom * np.log(first / second)
            log_odds = log_odds - deviation**2 * lengths / 2 * (1 / first**2 - 1 / second**2)
            for weight, share in zip(weights / 2, expit(log_odds).tolist(), strict=True):
                mixture = MovedMixture((share, 1 - share), self.deviations, self.shift)
                mixtures.append((float(chance * weight), mixture))
        return mixtures


def equal_variance_weight(probability: float, deviations: tuple[float, float]) -> float:
    """The λ in [0, 1] with λ²σ₁² + (1 − λ)²σ₂² = πσ₁² + (1 − π)σ₂², for σ₁ ≤ σ₂.

    There always is one: what LC reaches, from the precision weights' variance to σ₂², contains [σ₁², σ₂²]. It is the
    only one but for π = 1, where λ = 1 has the same variance too; privacy depends on the variance alone.

    >>> round(equal_variance_weight(0.5, (1.0, 2.0)), 6)
    0.216905
    """
    first, second = deviations[0] ** 2, deviations[1] ** 2
    surplus = second - (probability * first + (1 - probability) * second)  # ≥ 0: σ₂² less the variance wanted
    return float(surplus / (second + np.sqrt(second * second - (first + second) * surplus)))


def deciding_orders(deviation: npt.ArrayLike, shift: npt.ArrayLike, delta: float) -> Array:
    """The order at which the classic conversion of a Gaussian's RDP gives ε at δ: 1 + √(2 log(1/δ))·σ/Δ."""
    return np.asarray(1 + np.sqrt(2 * np.log(1 / delta)) * np.asarray(deviation) / np.asarray(shift))


@dataclass(frozen=True, eq=False)
class RenyiComparison:
    """At equal variance: the RDP of the true mixture over LC's αΔ²/2σ², for one π and many orders and shifts."""

    probability: float
    deviations: tuple[float, float]

    @property
    def deviation(self) -> float:
        """Of LC, and of the mixture."""
        first, second = self.deviations
        return float(np.sqrt(self.probability * first**2 + (1 - self.probability) * second**2))

    def ratios(self, shift: float, orders: Array) -> Array:
        """At least one where the theorem's inequality holds."""
        mixture = MovedMixture((self.probability, 1 - self.probability), self.deviations, shift)
        return np.asarray(mixture.renyi_divergence(orders) / (orders * (shift / self.deviation) ** 2 / 2))

    def reach(self, shifts: Array, orders: Array, accuracy: float = 1e-3) -> tuple[Array, Array, int]:
        """For each order the shift up to which the inequality holds and one just above, at which it first fails.

        The first is zero where it never holds among `shifts`, the second infinite where it never fails; otherwise
        bisected to `accuracy`. Third, at how many shifts and orders it holds again beyond the first failure.
        """
        holds = np.array([self.ratios(float(shift), orders) >= 1 for shift in shifts])
        again = int(np.sum(holds & np.logical_or.accumulate(~holds, axis=0)))
        held, failed = np.full(orders.size, shifts[-1]), np.full(orders.size, np.inf)
        for column in np.flatnonzero(~holds.all(axis=0)):
            place = int(np.argmin(holds[:, column]))
            low, high = (shifts[place - 1] if place else 0.0), shifts[place]
            while low > 0 and high > low * (1 + accuracy):
                middle = float(np.sqrt(low * high))
                fits = self.ratios(middle, orders[[column]])[0] >= 1
                low, high = (middle, high) if fits else (low, middle)
            held[column], failed[column] = low, high
        return held, failed, again
