"""One step of the Poisson-subsampled Gaussian with its privacy loss on a grid, from below and from above.

A step is a pair P, Q on the line with a privacy loss that increases in x (add is mirrored to make it so):

    remove       (1-q) N(0) + q N(1)   against   N(0)
    add          N(0)                  against   (1-q) N(0) + q N(-1)
    replace_one  (1-q) N(0) + q N(1)   against   (1-q) N(0) + q N(-1)

all with deviation sigma. The loss is put on the multiples of h in two ways, each of them exact as a statement
about any composition:

    upper: the mass between two neighbouring nodes is moved to the nodes so that its P-mass and its Q-mass
           stay the same. The step is then a coarsening of the new pair, which dominates it (Doroshenko et al.
           2022).
    lower: what lies between two separators around a node is merged into one outcome, which is
           post-processing. A merged outcome has exactly the node's loss once a small part of its heavier side
           is taken out; that part is rounded down to a node, and delta is monotone in the loss.

Both are off by O(h^2) a step, where plain rounding of buckets is off by O(h). Mass beyond the cuts counts as
infinite loss in the upper bound and is ignored in the lower one.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from scipy.integrate import quad
from scipy.special import ndtr

Relation = Literal["remove", "add", "replace_one"]


class Step(NamedTuple):
    """Mass at loss (first + j) h, and the mass at infinite loss."""

    first: int
    mass: np.ndarray
    infinite: float


def cuts(sigma: float) -> tuple[float, float]:
    """Where the line is cut: P-mass at most 3e-16 is given up below, 2e-28 above.

    The upper cut limits a delta of T steps to well above T times 2e-28; a wider one would make the moments
    that tilting needs explode for small q, as one extreme step then outweighs all others.
    """
    return -8.1 * sigma, 11.0 * sigma + 1.0


def components(relation: Relation, q: float) -> tuple[list, list]:
    """(weight, mean) of the components of P and of Q."""
    base, up, down = (1 - q, 0.0), (q, 1.0), (q, -1.0)
    return {
        "remove": ([base, up], [(1.0, 0.0)]),
        "add": ([(1.0, 0.0)], [base, down]),
        "replace_one": ([base, up], [base, down]),
    }[relation]


def loss(x: np.ndarray, relation: Relation, sigma: float, q: float) -> np.ndarray:
    """log P/Q at x; increasing."""
    with np.errstate(divide="ignore"):
        stay, draw = np.log1p(-q), np.log(q)
    value = np.zeros_like(np.asarray(x, dtype=float))
    if relation != "add":
        value = value + np.logaddexp(stay, draw + (2 * x - 1) / (2 * sigma**2))
    if relation != "remove":
        value = value - np.logaddexp(stay, draw + (-2 * x - 1) / (2 * sigma**2))
    return value


def inverse_loss(value: np.ndarray, relation: Relation, sigma: float, q: float) -> np.ndarray:
    """The x of a given loss, minus or plus infinity where the loss never gets there."""
    value = np.asarray(value, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if relation == "replace_one":
            # w = e^(x/sigma^2) solves k w^2 + (1-q)(1 - e^l) w - k e^l = 0 with k = q e^(-1/(2 sigma^2));
            # divided by e^(l/2) it is symmetric: w = e^(l/2) (r + sqrt(r^2 + 1)), r = (1-q) sinh(l/2) / k.
            ratio = (1 - q) * np.sinh(value / 2) / q * np.exp(0.5 / sigma**2)
            return sigma**2 * (value / 2 + np.arcsinh(ratio))
        side = 1.0 if relation == "remove" else -1.0
        # e^l - (1-q) over q, written so that small q and small l keep their digits
        odds = (np.expm1(side * value) + q) / q
        return side * (sigma**2 * np.log(np.where(odds > 0, odds, 0.0)) + 0.5)


def normal_mass(terms: list, sigma: float, low: float, high: float) -> float:
    """Mass of a Gaussian mixture on [low, high], in each case from the nearer tail."""
    total = 0.0
    for weight, mean in terms:
        a, b = (low - mean) / sigma, (high - mean) / sigma
        total += weight * float(ndtr(-a) - ndtr(-b) if a > 0 else ndtr(b) - ndtr(a))
    return total


def _integrate(
    relation: Relation, sigma: float, q: float, edges: np.ndarray, anchors: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Per cell of the loss, between the given edges: its P-mass, and P - e^anchor Q.

    Gauss-Legendre inside each cell, cut further where it is wide in x: differences of distribution functions
    would lose as many digits as the cell is narrow.
    """
    terms, _ = components(relation, q)
    low, high = cuts(sigma)
    inner = np.clip(inverse_loss(edges, relation, sigma, q), low, high)
    x_edges = np.unique(np.concatenate([inner, np.linspace(low, high, 2001)]))
    owner = np.clip(np.searchsorted(inner, x_edges[:-1], side="right") - 1, 0, len(anchors) - 1)
    half, middle = np.diff(x_edges) / 2, (x_edges[1:] + x_edges[:-1]) / 2
    mass, excess = np.zeros(len(anchors)), np.zeros(len(anchors))
    for node, weight in zip(*np.polynomial.legendre.leggauss(6), strict=True):
        x = middle + half * node
        density = sum(w * np.exp(-(((x - m) / sigma) ** 2) / 2) for w, m in terms)
        part = density * half * (weight / (sigma * np.sqrt(2 * np.pi)))
        mass += np.bincount(owner, part, len(mass))
        part *= -np.expm1(anchors[owner] - loss(x, relation, sigma, q))
        excess += np.bincount(owner, part, len(mass))
    return mass, excess


def _nodes(relation: Relation, sigma: float, q: float, h: float) -> np.ndarray:
    """Integers j such that the nodes j h enclose every loss between the cuts."""
    first, last = (float(loss(np.array(x), relation, sigma, q)) / h for x in cuts(sigma))
    if last - first > 2e7:
        raise ValueError("grid too fine")
    return np.arange(int(np.floor(first)), int(np.floor(last)) + 2)


@lru_cache(maxsize=32)
def upper_step(relation: Relation, sigma: float, q: float, h: float) -> Step:
    """A pair on the grid that dominates the step."""
    nodes = _nodes(relation, sigma, q, h)
    mass, excess = _integrate(relation, sigma, q, nodes * h, nodes[:-1] * h)
    up = np.clip(excess / -np.expm1(-h), 0.0, mass)
    out = np.append(mass - up, 0.0) + np.append(0.0, up)
    low, high = cuts(sigma)
    terms, _ = components(relation, q)
    out[1] += normal_mass(terms, sigma, -np.inf, low)  # at most the loss at the cut, inside the first cell
    return Step(int(nodes[0]), out, normal_mass(terms, sigma, high, np.inf))


@lru_cache(maxsize=32)
def lower_step(relation: Relation, sigma: float, q: float, h: float) -> Step:
    """A pair on the grid that the step dominates; what its mass is short of 1 is loss -infinity."""
    nodes = _nodes(relation, sigma, q, h)
    # Any separators between the nodes are sound. The second round moves those of the first to where the two
    # sides of a node balance to first order, which leaves a part of order h^2 to be rounded down.
    shift = np.zeros(len(nodes) + 1)
    for last in (False, True):
        edges = np.empty(2 * len(nodes) + 1)
        edges[1::2] = nodes * h
        edges[0::2] = (np.append(nodes, nodes[-1] + 1) - 0.5) * h + shift
        mass, excess = _integrate(relation, sigma, q, edges, np.repeat(nodes * h, 2))
        left, right = mass[0::2], mass[1::2]
        lacking, surplus = np.maximum(-excess[0::2], 0.0), np.maximum(excess[1::2], 0.0)
        if not last:
            total = left + right
            wanted = np.divide(lacking - surplus, total, out=np.zeros_like(total), where=total > 0)
            wanted = np.clip(wanted, -0.4 * h, 0.4 * h)
            shift = (np.append(wanted, wanted[-1]) + np.append(wanted[0], wanted)) / 2
    keep = np.divide(surplus, lacking, out=np.ones_like(left), where=lacking > surplus)
    out = keep * left + right  # what the right side has too much rounds down to the same node
    out[:-1] += (1 - keep[1:]) * left[1:]
    return Step(int(nodes[0]), out, 0.0)


def one_step_delta(eps: float, relation: Relation, sigma: float, q: float) -> float:
    """The exact hockey-stick divergence of one step: the loss is increasing, so it is two upper tails."""
    cut = float(inverse_loss(np.asarray(eps), relation, sigma, q))
    p_terms, q_terms = components(relation, q)
    p, base = (normal_mass(terms, sigma, cut, np.inf) for terms in (p_terms, q_terms))
    return p - float(np.exp(eps)) * base if base > 0 else p


def two_step_delta(eps: float, relation: Relation, sigma: float, q: float) -> float:
    """The exact divergence of two steps: quadrature of the one-step divergence over the first outcome."""
    terms, _ = components(relation, q)

    def integrand(x: float) -> float:
        density = sum(w * np.exp(-(((x - m) / sigma) ** 2) / 2) for w, m in terms)
        rest = eps - float(loss(np.asarray(x), relation, sigma, q))
        return float(density) / (sigma * np.sqrt(2 * np.pi)) * one_step_delta(rest, relation, sigma, q)

    # The one-step divergence has a kink where the rest leaves the range of the loss.
    ends = (np.log1p(-q), -np.log1p(-q)) if q < 1 else ()
    kinks = [float(inverse_loss(np.asarray(eps + end), relation, sigma, q)) for end in ends]
    grid = np.linspace(-14 * sigma - 1, 14 * sigma + 1, 57)
    edges = np.unique([*grid, *(x for x in kinks if abs(x) < grid[-1])])
    return sum(quad(integrand, *pair, epsabs=0, epsrel=1e-11, limit=200)[0] for pair in pairwise(edges))
