"""Rényi curves and their conversion to (ε, δ).

Guarantees: ε(δ) and δ(ε) are proved by the chosen conversion at the best order of the grid, clamped at zero.
Refuses: curves with negative or NaN values (a conversion would turn them into ε = 0), orders not above 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from dpmerge.accounting import validation
from dpmerge.accounting.profile import PrivacyProfile, reflected
from dpmerge.accounting.validation import Array
from dpmerge.errors import InvalidInputError

Conversion = Literal["classic", "improved"]

DEFAULT_ORDERS: Array = np.concatenate([np.arange(11, 111) / 10, np.arange(12.0, 64.0), [128.0, 256.0, 512.0, 1024.0]])
"""1.1 to 11 by tenths, 12 to 63 by ones, then powers of two to 1024: 156 orders."""


@dataclass(frozen=True, eq=False)
class RenyiProfile(PrivacyProfile):
    """A Rényi curve (theory 2.3).

    Args:
        orders: Above 1, ascending.
        values: At each order an upper bound on the divergence in both directions.
        conversion: How it becomes an ε:

    `classic`: ε = RDP(α) + log(1/δ)/(α−1) (Mironov 2017, the paper's).
    `improved`: ε = RDP(α) + log((α−1)/α) − (log δ + log α)/(α−1) (Canonne, Kamath, Steinke 2020).

    >>> from dpmerge.accounting.gaussian import GaussianProfile
    >>> curve = RenyiProfile.of(GaussianProfile(1.0))
    >>> round(curve.epsilon(1e-5), 6), round(curve.converted("classic").epsilon(1e-5), 6)
    (4.728507, 5.298526)
    """

    orders: Array
    values: Array
    conversion: Conversion = field(default="improved", kw_only=True)

    def __post_init__(self) -> None:
        orders = validation.orders("orders", self.orders)
        values = np.asarray(self.values, dtype=float)
        accepted = f"{orders.size} numbers ≥ 0, one for each order (infinity where nothing is known)"
        if values.shape != orders.shape or np.any(np.isnan(values)) or np.any(values < 0):
            raise InvalidInputError("values", list(np.ravel(values)), accepted)
        if self.conversion not in get_args(Conversion):
            raise InvalidInputError("conversion", self.conversion, " or ".join(get_args(Conversion)))
        object.__setattr__(self, "orders", orders)
        object.__setattr__(self, "values", values)

    @classmethod
    def of(cls, profile: PrivacyProfile, orders: Sequence[float] | Array = DEFAULT_ORDERS) -> RenyiProfile:
        """The curve of another profile on a grid; infinite everywhere if none is known for it."""
        grid = validation.orders("orders", orders)
        values = profile.renyi_divergence(grid)
        return cls(grid, np.full_like(grid, np.inf) if values is None else values)

    def converted(self, conversion: Conversion) -> RenyiProfile:
        """The same curve read through the other conversion."""
        return RenyiProfile(self.orders, self.values, conversion=conversion)

    def epsilon(self, delta: float) -> float:
        self.check_delta(delta)
        return float(renyi_epsilon(self.orders, self.values, delta, self.conversion))

    def deltas(self, epsilon: npt.ArrayLike) -> tuple[Array, Array]:
        points = np.asarray(epsilon, dtype=float)
        size = np.abs(points)[..., np.newaxis]
        finite = np.isfinite(self.values)
        orders, values = self.orders[finite], self.values[finite]
        log_delta = (orders - 1) * (values - size)
        if self.conversion == "improved":
            log_delta = log_delta + (orders - 1) * np.log1p(-1 / orders) - np.log(orders)
        delta = np.exp(np.minimum(log_delta.min(axis=-1, initial=0.0), 0.0))
        delta = np.where(points < 0, reflected(size[..., 0], delta), delta)
        return delta, delta

    def renyi_divergence(self, orders: Array) -> Array:
        """At given orders exactly; between and below them the next larger order's value (curves increase in α)."""
        padded = np.append(np.minimum.accumulate(self.values[::-1])[::-1], np.inf)
        return np.asarray(padded[np.searchsorted(self.orders, orders)])


def renyi_epsilon(orders: Array, values: Array, delta: float, conversion: Conversion) -> Array:
    """min over orders of the converted ε, clamped at zero; `values` may have leading axes (many curves)."""
    penalty = renyi_penalty(orders, delta, conversion)
    converted = values + penalty
    # Rounded up by the error of the sum, so that converting back does not exceed δ.
    rounded = converted + 4e-15 * (values + np.abs(penalty))
    return np.where(converted.min(axis=-1) <= 0, 0.0, rounded.min(axis=-1))


def renyi_penalty(orders: Array, delta: float, conversion: Conversion) -> Array:
    """What a conversion adds to RDP(α) at each order to make it an ε at δ."""
    if conversion == "classic":
        return np.asarray(-np.log(delta) / (orders - 1))
    return np.asarray(np.log1p(-1 / orders) - (np.log(delta) + np.log(orders)) / (orders - 1))
