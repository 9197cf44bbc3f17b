"""Privacy loss distributions with few atoms: what is known of models trained elsewhere.

Guarantees: a profile made from (ε, δ) pairs dominates every mechanism that satisfies all of them. A profile is
convex in e^ε and runs through (e^ε = 0, δ = 1), so the chords between known points are upper bounds, and the
lower hull of the points *is* a privacy loss distribution (its atoms are the points); one pair gives Kairouz, Oh
and Viswanath's randomised response. Atoms compose exactly; only when they become too many are they rounded, up.
Refuses: points with ε < 0, δ outside [0, 1], NaN.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpmerge.accounting import validation
from dpmerge.accounting.profile import SUM_ROUNDING, PrivacyProfile
from dpmerge.accounting.validation import Array
from dpmerge.errors import InvalidInputError

MOST_ATOMS = 2**15
_LARGEST_EXPONENT = 700.0  # e^700 still is a double
_MERGE_RELATIVE = 1e-13  # atoms closer than this are one: sums of the same ε's in another order


@dataclass(frozen=True, eq=False)
class DiscreteProfile(PrivacyProfile):
    """Atoms of privacy loss, the same in both directions, with mass at infinity; `from_points` makes them of (ε, δ).

    Args:
        losses: Where the atoms are, ascending.
        probabilities: What each has.
        infinity: What has no finite loss: δ at every ε is at least this.

    >>> round(DiscreteProfile.from_points([(1.0, 1e-6)]).epsilon(1e-6), 6)
    1.0
    """

    losses: Array
    probabilities: Array
    infinity: float

    @classmethod
    def from_points(cls, points: Iterable[tuple[float, float]]) -> DiscreteProfile:
        """The least private mechanism that is (ε, δ)-DP for every given point.

        Args:
            points: Pairs (ε, δ), all of them known to hold.

        Returns:
            A profile that dominates every mechanism of which they hold.

        Raises:
            InvalidInputError: No point, ε < 0, or δ outside [0, 1].

        >>> profile = DiscreteProfile.from_points([(1.0, 1e-6)])
        >>> round(profile.delta(1.0), 18), round(profile.delta(0.5), 6)
        (1e-06, 0.28765)
        """
        known = []
        for position, (epsilon, delta) in enumerate(points):
            known.append(
                (
                    _not_tiny(validation.non_negative(f"points[{position}].epsilon", epsilon)),
                    validation.fraction(f"points[{position}].delta", delta, zero=True),
                )
            )
        if not known:
            raise InvalidInputError("points", [], "at least one (epsilon, delta) pair")
        losses, deltas = _hull(known)
        # The atom at a vertex is its change of slope, as in connect-the-dots: δ has slope −Σ_{l > ε} p e^{−l} in e^ε.
        # Slopes are taken in units of the vertex's own e^{−ε}, so that nothing overflows.
        falls, gaps = np.diff(deltas), np.diff(losses)
        before = np.concatenate([[deltas[0] - 1], falls / -np.expm1(-gaps)])
        after = np.append(falls / np.expm1(np.minimum(gaps, _LARGEST_EXPONENT)), 0.0)
        return cls(losses, np.maximum(after - before, 0.0), float(deltas[-1]))

    def deltas(self, epsilon: npt.ArrayLike) -> tuple[Array, Array]:
        points = np.asarray(epsilon, dtype=float)
        flat = np.ravel(points)
        delta = np.empty(flat.shape)
        block = max(1, 2**22 // self.losses.size)
        for start in range(0, flat.size, block):
            part = flat[start : start + block, np.newaxis]
            shares = -np.expm1(np.minimum(part - self.losses, 0.0))
            finite = shares @ self.probabilities
            # Beyond the last atom nothing is summed, and δ is the mass at infinity, exactly: a model known to be
            # (ε, δ)-DP is so at that very δ.
            delta[start : start + block] = np.where(finite > 0, (self.infinity + finite) * SUM_ROUNDING, self.infinity)
        clipped = np.minimum(delta, 1.0).reshape(points.shape)
        return clipped, clipped

    def epsilon(self, delta: float) -> float:
        """The smallest ε with δ(ε) ≤ δ: at the last atom at the latest, where δ becomes flat."""
        found, last = super().epsilon(delta), max(float(self.losses[-1]), 0.0)
        return min(found, last) if self.delta(last) <= delta else found

    def renyi_divergence(self, orders: Array) -> Array:
        """log Σ p e^{(α−1)l} / (α−1): infinite as soon as δ > 0 at ε = ∞."""
        if self.infinity > 0:
            return np.full_like(orders, np.inf)
        occupied = self.probabilities > 0
        exponents = np.multiply.outer(orders - 1, self.losses[occupied]) + np.log(self.probabilities[occupied])
        largest = exponents.max(axis=-1)
        sums = largest + np.log(np.exp(exponents - largest[:, np.newaxis]).sum(axis=-1))
        return np.asarray(np.maximum(sums / (orders - 1), 0.0))

    def convolved(self, other: DiscreteProfile) -> DiscreteProfile:
        """Both mechanisms released: losses add, masses multiply."""
        losses = np.nextafter(np.add.outer(self.losses, other.losses).ravel(), np.inf)  # never rounded down
        mass = np.multiply.outer(self.probabilities, other.probabilities).ravel()
        losses, mass = _merged(losses, mass)
        infinity = self.infinity + other.infinity - self.infinity * other.infinity
        if self.infinity > 0 and other.infinity > 0:
            infinity = float(np.nextafter(infinity * SUM_ROUNDING, 1.0))
        return DiscreteProfile(losses, mass, infinity)


@dataclass(frozen=True, eq=False)
class ShiftedProfile(PrivacyProfile):
    """Atoms released together with another mechanism: δ±(ε) = ∞-mass + Σ p_j δ±_base(ε − l_j), exactly."""

    atoms: DiscreteProfile
    base: PrivacyProfile

    def deltas(self, epsilon: npt.ArrayLike) -> tuple[Array, Array]:
        points = np.asarray(epsilon, dtype=float)
        plus, minus = self.base.deltas(np.subtract.outer(points, self.atoms.losses))
        mass = self.atoms.probabilities
        return (
            np.minimum(1.0, (self.atoms.infinity + plus @ mass) * SUM_ROUNDING),
            np.minimum(1.0, (self.atoms.infinity + minus @ mass) * SUM_ROUNDING),
        )

    @property
    def least_delta(self) -> float:
        return self.base.least_delta

    def renyi_divergence(self, orders: Array) -> Array | None:
        base = self.base.renyi_divergence(orders)
        return None if base is None else base + self.atoms.renyi_divergence(orders)


def _not_tiny(epsilon: float) -> float:
    """ε rounded up to a size whose differences can be divided by."""
    return max(epsilon, validation.SMALLEST) if epsilon > 0 else 0.0


def _hull(known: list[tuple[float, float]]) -> tuple[Array, Array]:
    """Vertices (ε, δ) of the lower convex hull, in e^ε, of the points, their reflections and (−∞, 1)."""
    points = {epsilon: 1.0 for epsilon, _ in known}
    for epsilon, delta in known:
        points[epsilon] = min(points[epsilon], delta)
    # Both directions satisfy every point, so each holds at −ε too: δ(−ε) ≤ 1 − e^{−ε}(1 − δ(ε)).
    for epsilon, delta in list(points.items()):
        if epsilon > 0:
            points[-epsilon] = float(-np.expm1(-epsilon) + np.exp(-epsilon) * delta)
    hull: list[tuple[float, float]] = []
    lowest = 1.0
    for epsilon in sorted(points):
        if points[epsilon] >= lowest and hull:  # δ cannot rise with ε: such a point says nothing new
            continue
        lowest = min(lowest, points[epsilon])
        vertex = (epsilon, points[epsilon])
        while hull and not _turns_up(hull[-2] if len(hull) > 1 else None, hull[-1], vertex):
            hull.pop()
        hull.append(vertex)
    return np.array([e for e, _ in hull]), np.array([d for _, d in hull])


def _turns_up(first: tuple[float, float] | None, middle: tuple[float, float], last: tuple[float, float]) -> bool:
    """Whether the slope in e^ε rises at `middle`; `first` None stands for (e^ε = 0, δ = 1)."""
    # Scaled by e^{−middle}, so that large ε do not overflow; and by expm1, so that tiny steps are not rounded to none.
    width = 1.0 if first is None else -np.expm1(first[0] - middle[0])
    before_delta = 1.0 if first is None else first[1]
    left = (middle[1] - before_delta) / width
    right = (last[1] - middle[1]) / np.expm1(min(last[0] - middle[0], _LARGEST_EXPONENT))
    return bool(right > left)


def _merged(losses: Array, mass: Array) -> tuple[Array, Array]:
    """Sort; join equal losses; if still too many, round losses up to a grid (pessimistic)."""
    order = np.argsort(losses)
    losses, mass = losses[order], mass[order]
    scale = max(float(np.abs(losses).max()), 1e-300)
    losses, mass = _joined(losses, mass, np.diff(losses) > _MERGE_RELATIVE * scale)
    if losses.size > MOST_ATOMS:
        grid = (losses[-1] - losses[0]) / (MOST_ATOMS - 1)
        cells = np.ceil((losses - losses[0]) / grid)
        losses, mass = _joined(losses, mass, np.diff(cells) > 0)
    return losses, mass


def _joined(losses: Array, mass: Array, breaks: npt.NDArray[np.bool_]) -> tuple[Array, Array]:
    """Each group of neighbours becomes one atom at its largest loss, so that δ can only rise."""
    starts = np.concatenate([[0], np.flatnonzero(breaks) + 1])
    ends = np.append(starts[1:], losses.size) - 1
    return losses[ends], np.add.reduceat(mass, starts)
