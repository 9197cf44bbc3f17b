"""Composition of mechanisms known only by their (eps_i, delta_i).

The dominating pair of an (eps, delta)-DP mechanism is randomised response: with probability delta the loss is
infinite, otherwise it is eps with probability e^eps / (1 + e^eps) and -eps with the rest (Kairouz, Oh,
Viswanath 2015). The optimal composition is therefore a sum over sign vectors, taken here one by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

Pairs = Sequence[tuple[float, float]]


def _losses(pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
    """Loss and probability of each of the 2^n sign vectors, given that no loss is infinite."""
    if len(pairs) > 20:
        raise ValueError("more than 2^20 sign vectors")
    loss, probability = np.zeros(1), np.ones(1)
    for eps, _ in pairs:
        yes = 1 / (1 + math.exp(-eps))
        no = 1 / (1 + math.exp(eps))
        loss = np.concatenate([loss + eps, loss - eps])
        probability = np.concatenate([probability * yes, probability * no])
    return loss, probability


def _log_finite(pairs: Pairs) -> float:
    """log of the probability that no loss is infinite, prod (1 - delta_i)."""
    return math.fsum(math.log1p(-delta) if delta < 1 else -math.inf for _, delta in pairs)


def optimal_delta(eps: float, pairs: Pairs) -> float:
    """1 - prod (1 - delta_i) (1 - sum over sign vectors of probability (1 - e^(eps - loss))+)."""
    loss, probability = _losses(pairs)
    above = loss > eps
    finite = math.fsum(probability[above] * -np.expm1(eps - loss[above]))
    return -math.expm1(_log_finite(pairs) + (math.log1p(-finite) if finite < 1 else -math.inf))


def optimal_epsilon(delta: float, pairs: Pairs) -> float:
    """Smallest eps >= 0 with optimal_delta(eps) <= delta; infinite if the infinite losses alone exceed delta.

    Between two neighbouring losses delta is A - e^eps B, so the root is exact once its interval is known.
    """
    if -math.expm1(_log_finite(pairs)) > delta:
        return math.inf
    if optimal_delta(0.0, pairs) <= delta:
        return 0.0
    target = -math.expm1(math.log1p(-delta) - _log_finite(pairs))
    loss, probability = _losses(pairs)
    order = np.argsort(loss)[::-1]
    loss, probability = loss[order], probability[order]
    a, b = np.cumsum(probability), np.cumsum(probability * np.exp(-loss))
    at_next = a - np.exp(np.append(loss[1:], -np.inf)) * b
    interval = int(np.argmax(at_next >= target))
    return max(0.0, math.log((a[interval] - target) / b[interval]))


def homogeneous_delta(i: int, count: int, eps: float, delta: float) -> float:
    """`count` equal mechanisms are ((count - 2i) eps, this)-DP, 0 <= i <= count/2 (their theorem 3.3)."""

    def term(j: int) -> float:
        return math.comb(count, j) * (math.exp((count - j) * eps) - math.exp((count - 2 * i + j) * eps))

    top = math.fsum(term(j) for j in range(i))
    finite = top / (1 + math.exp(eps)) ** count
    return -math.expm1(count * math.log1p(-delta) + math.log1p(-finite))


def basic(pairs: Pairs) -> tuple[float, float]:
    """Sums of eps_i and of delta_i (Dwork, Kenthapadi, McSherry, Mironov, Naor 2006)."""
    return math.fsum(eps for eps, _ in pairs), math.fsum(delta for _, delta in pairs)


def advanced(eps: float, delta: float, count: int, slack: float) -> tuple[float, float]:
    """eps sqrt(2 N log(1/slack)) + N eps (e^eps - 1) at N delta + slack (Dwork, Rothblum, Vadhan 2010)."""
    composed = eps * math.sqrt(2 * count * -math.log(slack)) + count * eps * math.expm1(eps)
    return composed, count * delta + slack


def total_variation_limit(eps_target: float, delta_target: float, eps_other: float, delta: float) -> float:
    """No free lunch: the largest total variation by which a merger's output may move when only the less
    private model changes, if it is to be (eps_target, delta_target)-DP whatever the mechanisms are.
    """
    top = (delta_target + math.expm1(eps_target)) * (math.exp(eps_other) + 1)
    bottom = math.exp(eps_other + eps_target) + delta * math.exp(eps_target) + delta - 1
    return top / bottom
