"""The Rényi curve of one Poisson-subsampled Gaussian step under add_remove or zero_out.

Guarantees: an upper bound at every order, RENYI_ERROR included.
Refuses nothing: an order at which dp_accounting does not converge is infinite, unless a chord bounds it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np

from dpmerge.accounting.validation import Array

RENYI_ERROR = 1e-14
"""Error allowed for in log E[e^{(α−1)L}] of one subsampled step, absolute and relative."""

_FRACTIONAL_FROM = 2.0  # fractional Rényi orders from here on are taken from dp_accounting, below from chords


@lru_cache(maxsize=256)
def subsampled_renyi(ratio: float, rate: float, orders: tuple[float, ...]) -> Array:
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
    # A second to import, and only sampled runs need it.
    from dp_accounting import NeighboringRelation
    from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(orders.tolist(), NeighboringRelation.ADD_OR_REMOVE_ONE)
    with _quiet_absl():  # an order that does not converge comes out infinite, which is all there is to say
        accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(1.0 / ratio)))
    # A cumulant of rounding size may come out at or below zero, which dp_accounting would convert to ε = 0.
    curve = np.maximum(accountant.rdp, 0.0) * (1 + RENYI_ERROR) + RENYI_ERROR / np.minimum(orders - 1, 1.0)
    return np.where(np.isnan(curve), np.inf, curve)
