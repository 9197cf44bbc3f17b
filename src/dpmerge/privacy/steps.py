"""Single steps that have no closed form once composed: their privacy loss distributions on a grid.

Guarantees: for each step a pessimistic discretisation in both directions, at whatever grid interval is asked;
composed any number of times it still bounds the truth (connect-the-dots, Doroshenko et al. 2022), up to the step's
`error`, of floating point, in δ. Distributions are those of dp_accounting, without its rounding noise.
Refuses nothing: the run that owns the step has checked its numbers.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import log_ndtr, ndtr

from dpmerge.privacy.domain import Array
from dpmerge.privacy.gaussian import gaussian_delta
from dpmerge.privacy.profile import reflected

STEP_ERROR = 5e-15
"""Absolute error in δ of one step discretised here: 3.4e-15 was the most seen against 80 digits."""

_DP_ACCOUNTING_ERROR = 1e-12
"""The same of one step discretised by dp_accounting, which forms second differences of δ where they cancel."""

RENYI_ERROR = 1e-14
"""Error allowed for in log E[e^{(α−1)L}] of one subsampled step, absolute and relative."""

HOPELESS_RATIO = 500.0
"""Sensitivity over noise beyond which a step is counted as no privacy at all where it would have to be discretised."""

_FRACTIONAL_FROM = 2.0  # fractional Rényi orders from here on are taken from dp_accounting, below from chords

_TAIL_DEVIATIONS = 10.0  # dp_accounting truncates the noise at mass e^-50, ten standard deviations


@dataclass(frozen=True, eq=False)
class LossPmf:
    """A privacy loss distribution on the grid (first + j)·interval, with mass at infinity."""

    interval: float
    first: int
    probabilities: Array
    infinity: float

    @property
    def losses(self) -> Array:
        return np.asarray((self.first + np.arange(self.probabilities.size)) * self.interval)


class Step(ABC):
    """One step whose privacy loss distribution is known; equal steps compare equal, so that runs can count them."""

    @abstractmethod
    def pmfs(self, interval: float) -> tuple[LossPmf, LossPmf]:
        """The discretised losses for removal and addition (one and the same object where symmetric)."""

    @property
    @abstractmethod
    def largest_loss(self) -> float:
        """Roughly the largest loss that is not truncated; chooses the grid, bounds nothing."""

    @property
    @abstractmethod
    def deviation(self) -> float:
        """Roughly the standard deviation of the loss; chooses the grid, bounds nothing."""

    @property
    def error(self) -> float:
        """What rounding may have taken from δ at any ε."""
        return STEP_ERROR

    @property
    def wanted_bins(self) -> int:
        """How many grid points are worth their time: fewer where a grid point is dear and errors do not add up."""
        return 2**16

    @abstractmethod
    def renyi_divergence(self, orders: Array) -> Array | None:
        """The larger of both directions at each order, or None where nothing is proved."""


@dataclass(frozen=True)
class GaussianStep(Step):
    """N(0, 1) against N(μ, 1): closed-form by itself, discretised only to be composed with other steps."""

    mu: float

    def pmfs(self, interval: float) -> tuple[LossPmf, LossPmf]:
        return _gaussian(self.mu, 1.0, False, interval)

    @property
    def largest_loss(self) -> float:
        return _TAIL_DEVIATIONS * self.mu + self.mu**2 / 2

    @property
    def deviation(self) -> float:
        return self.mu

    def renyi_divergence(self, orders: Array) -> Array:
        return np.asarray(orders * (self.mu**2 / 2))


@dataclass(frozen=True)
class PoissonStep(Step):
    """A Poisson-subsampled Gaussian step with sensitivity-to-noise ratio `ratio`.

    add_remove: N(0, 1) against (1−q)N(0, 1) + qN(ratio, 1).
    replace_one: (1−q)N(0, 1) + qN(ratio, 1) against (1−q)N(0, 1) + qN(−ratio, 1); no Rényi curve is known to
    dp_accounting for it (its accountant ignores the relation), so there is none here.
    """

    ratio: float
    sampling_rate: float
    replace_one: bool

    def pmfs(self, interval: float) -> tuple[LossPmf, LossPmf]:
        return _gaussian(self.ratio, self.sampling_rate, self.replace_one, interval)

    @property
    def largest_loss(self) -> float:
        exponent = _TAIL_DEVIATIONS * self.ratio + self.ratio**2 / 2
        if exponent > 700:
            return exponent
        return float(np.log1p(self.sampling_rate * np.expm1(exponent)))

    @property
    def deviation(self) -> float:
        spread = np.sqrt(np.expm1(min(self.ratio**2, 700.0)))
        shift = 2.0 if self.replace_one else 1.0
        return float(shift * min(self.sampling_rate * spread, self.largest_loss))

    def renyi_divergence(self, orders: Array) -> Array | None:
        if self.replace_one:
            return None
        return _subsampled_renyi(self.ratio, self.sampling_rate, tuple(orders.tolist()))


@dataclass(frozen=True)
class MixtureStep(Step):
    """N(0, 1) against Σ p_j N(c_j, 1), c_j ≥ 0: one linear combination of Poisson-subsampled steps."""

    shifts: tuple[float, ...]
    probabilities: tuple[float, ...]

    def pmfs(self, interval: float) -> tuple[LossPmf, LossPmf]:
        return _mixture(self.shifts, self.probabilities, interval)

    @property
    def largest_loss(self) -> float:
        largest = max(self.shifts)
        return _TAIL_DEVIATIONS * largest + largest**2 / 2

    @property
    def deviation(self) -> float:
        return float(np.dot(self.shifts, self.probabilities))

    @property
    def error(self) -> float:
        return _DP_ACCOUNTING_ERROR

    @property
    def wanted_bins(self) -> int:
        return 2**12

    def renyi_divergence(self, orders: Array) -> None:  # noqa: ARG002
        return None


@lru_cache(maxsize=64)
def _gaussian(ratio: float, rate: float, replace_one: bool, interval: float) -> tuple[LossPmf, LossPmf]:
    """A Poisson-subsampled Gaussian step, discretised from its divergences in closed form, all grid points at once."""
    if replace_one:
        symmetric = _discretised("REPLACE", ratio, rate, interval)
        return symmetric, symmetric
    removal = _discretised("REMOVE", ratio, rate, interval)
    return removal, removal if rate == 1 else _discretised("ADD", ratio, rate, interval)


def _discretised(adjacency: str, ratio: float, rate: float, interval: float) -> LossPmf:
    # dp_accounting takes a second to import, and only sampled runs need it: here, and below.
    from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

    loss = GaussianPrivacyLoss(1.0 / ratio, sampling_prob=rate, adjacency_type=AdjacencyType[adjacency])
    bounds = loss.connect_dots_bounds()
    lowest = math.floor(bounds.epsilon_lower / interval)
    highest = max(math.ceil(bounds.epsilon_upper / interval), lowest + 1)
    deltas = _DIVERGENCES[adjacency](np.arange(lowest, highest + 1) * interval, ratio, rate)
    assert np.all(np.isfinite(deltas)), f"divergence of a step with ratio {ratio} and rate {rate} is not a number"
    deltas = np.maximum.accumulate(deltas[::-1])[::-1]  # rounding may break monotony; repaired upwards
    return _connected_dots(interval, lowest, np.minimum(deltas, 1.0))


def _connected_dots(interval: float, lowest: int, deltas: Array) -> LossPmf:
    """The distribution whose divergence joins the given δ's by straight lines in e^ε (Doroshenko et al. 2022).

    Its mass at a grid point is the change of slope there. Written with first differences, which are exact because
    neighbours are within a factor of two, and then with the difference of those: nothing else cancels.
    """
    step = math.expm1(interval)
    falls = np.diff(deltas)
    mass = np.empty(deltas.size)
    mass[0] = 1 - deltas[0] + falls[0] / step
    mass[1:-1] = np.diff(falls) / step - falls[:-1]
    mass[-1] = falls[-1] / math.expm1(-interval)
    return LossPmf(interval, lowest, np.maximum(mass, 0.0), float(deltas[-1]))


def _removal_delta(epsilon: Array, ratio: float, rate: float) -> Array:
    """H_ε((1−q)Q + qP, Q) = q·H_ε′(P, Q) with e^ε′ = 1 + (e^ε − 1)/q; 1 − e^ε where that is not positive."""
    if rate == 1:
        return gaussian_delta(ratio, epsilon)
    certain = -np.expm1(np.minimum(epsilon, 0.0))  # what the undrawn part alone gives, below log(1 − q)
    above = epsilon > np.log1p(-rate)
    size = np.where(above, epsilon, 0.0)
    with np.errstate(divide="ignore", over="ignore"):
        small = np.log1p(np.expm1(np.minimum(size, 1.0)) / rate)
        large = size - np.log(rate) + np.log1p((rate - 1) * np.exp(-np.maximum(size, 1.0)))
    inner = np.where(size > 1.0, large, small)
    amplified = rate * gaussian_delta(ratio, np.where(np.isfinite(inner), inner, 0.0))
    return np.where(above & np.isfinite(inner), amplified, certain)


def _addition_delta(epsilon: Array, ratio: float, rate: float) -> Array:
    """H_ε(Q, (1−q)Q + qP) = w·H_ε′(Q, P) with w = 1 − (1−q)e^ε and e^ε′ = q·e^ε/w; zero where w is not positive."""
    kept = -np.expm1(epsilon + np.log1p(-rate))
    positive = kept > 0
    inner = np.log(rate) + epsilon - np.log(np.where(positive, kept, 1.0))
    return np.where(positive, kept * gaussian_delta(ratio, inner), 0.0)


def _replacement_delta(epsilon: Array, ratio: float, rate: float) -> Array:
    """H_ε((1−q)N(0) + qN(r), (1−q)N(0) + qN(−r)): the loss rises in x, so it is a difference of upper tails.

    The loss equals ε where y = e^{rx} solves A·y² − (1−q)(e^ε − 1)·y − e^ε·A = 0, A = q·e^{−r²/2}.
    """
    size = np.abs(epsilon)
    log_a = np.log(rate) - ratio**2 / 2
    with np.errstate(divide="ignore"):
        log_middle = np.log1p(-rate) + size + np.log(-np.expm1(-size)) if rate < 1 else np.full_like(size, -np.inf)
    # y = (m + √(m² + 4A²e^ε)) / 2A, in logarithms.
    root = np.logaddexp(2 * log_middle, np.log(4) + 2 * log_a + size) / 2
    x = (np.logaddexp(log_middle, root) - np.log(2) - log_a) / ratio
    undrawn = np.exp(log_middle + log_ndtr(-x))
    drawn = rate * (ndtr(ratio - x) - np.exp(size + log_ndtr(-ratio - x)))
    delta = np.clip(drawn - undrawn, 0.0, 1.0)
    return np.where(epsilon < 0, reflected(size, delta), delta)


_DIVERGENCES = {
    "REMOVE": _removal_delta,
    "ADD": _addition_delta,
    "REPLACE": _replacement_delta,
}


@lru_cache(maxsize=64)
def _mixture(shifts: tuple[float, ...], probabilities: tuple[float, ...], interval: float) -> tuple[LossPmf, LossPmf]:
    """dp_accounting's distribution of a mixture; its composition, with an error bound, is ours."""
    from dp_accounting.pld import privacy_loss_distribution as dp_pld

    distribution = dp_pld.from_mixture_gaussian_mechanism(
        1.0, list(shifts), list(probabilities), value_discretization_interval=interval
    )
    return _copied(distribution._pmf_remove), _copied(distribution._pmf_add)


def _copied(pmf: Any) -> LossPmf:
    dense = pmf.to_dense_pmf()
    return LossPmf(
        interval=float(dense._discretization),
        first=int(dense._lower_loss),
        probabilities=np.asarray(dense._probs, dtype=float),
        infinity=float(dense._infinity_mass),
    )


@lru_cache(maxsize=256)
def _subsampled_renyi(ratio: float, rate: float, orders: tuple[float, ...]) -> Array:
    """dp_accounting's curve at whole orders and at fractional ones above _FRACTIONAL_FROM; chords elsewhere.

    dp_accounting adds up the absolute values of an alternating series for fractional orders: an upper bound that
    for small orders is loose (by 3.4 times at α = 1.5, σ = 4, q = 0.3) or does not converge. But (α−1)·RDP(α) is
    convex and zero at α = 1, so that the chord between two whole orders is an upper bound as well.
    """
    grid = np.asarray(orders)
    nodes = np.unique(np.maximum(np.concatenate([np.floor(grid), np.ceil(grid)]), 2.0))
    node_curve = _accounted_renyi(ratio, rate, nodes)
    chord = np.interp(grid - 1, np.append(0.0, nodes - 1), np.append(0.0, (nodes - 1) * node_curve)) / (grid - 1)
    fractional = (grid != np.floor(grid)) & (grid > _FRACTIONAL_FROM)
    curve = np.array(chord, dtype=float)
    if np.any(fractional):
        curve[fractional] = np.fmin(chord[fractional], _accounted_renyi(ratio, rate, grid[fractional]))
    return np.where(np.isnan(curve), np.inf, curve)


@contextmanager
def _quiet_absl() -> Iterator[None]:
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _accounted_renyi(ratio: float, rate: float, orders: Array) -> Array:
    from dp_accounting import NeighboringRelation
    from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(orders.tolist(), NeighboringRelation.ADD_OR_REMOVE_ONE)
    with _quiet_absl():  # an order that does not converge comes out infinite, which is all there is to say
        accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(1.0 / ratio)))
    # A cumulant of rounding size may come out at or below zero, which dp_accounting would convert to ε = 0.
    curve = np.maximum(accountant.rdp, 0.0) * (1 + RENYI_ERROR) + RENYI_ERROR / np.minimum(orders - 1, 1.0)
    return np.where(np.isnan(curve), np.inf, curve)
