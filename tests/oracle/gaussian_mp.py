"""Gaussian differential privacy at fifty digits.

A mechanism that is mu-GDP and tight has, in both directions, the hockey-stick divergence

    delta(eps) = Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2)            (Balle and Wang 2018)

and the Renyi divergence alpha mu^2 / 2 (Mironov 2017). Composition is closed: mu^2 = sum of mu_t^2.

Every number given as a float is taken at its exact binary value; a string such as "1e-300" is read in
decimal. Results are `mpf` with at least fifty correct digits, so that a delta far below the smallest float
survives; wrap them in `float` where that does not matter. `math.inf` as mu means no privacy, 0 no leak.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from mpmath import mp, mpf

Number = float | int | str | mpf
Conversion = Literal["classic", "improved"]

DIGITS = 50


def _read(value: Number) -> mpf:
    """The number itself: `mpf` alone would round it to the ambient precision, fifteen digits by default."""
    with mp.workdps(4 * DIGITS):
        return mpf(value)


def _working_digits(mu: mpf, eps: mpf) -> int:
    """Digits that leave fifty after cancellation.

    With x = eps/mu - mu/2 the two terms agree to about mu/(1 + |x|), and Phi(-x) loses twice the digits of
    x because its relative error is x^2 times that of x.
    """
    size = 1 + abs(eps) / mu + mu
    lost = 3 * mp.log10(size) + max(mpf(0), -mp.log10(mu))
    return DIGITS + 15 + int(lost)


def _profile(mu: mpf, eps: mpf) -> tuple[mpf, mpf]:
    """delta(eps) and -delta'(eps) = e^eps Phi(-eps/mu - mu/2)."""
    slope = mp.exp(eps) * mp.ncdf(-eps / mu - mu / 2)
    return mp.ncdf(-eps / mu + mu / 2) - slope, slope


def delta(mu: Number, eps: Number) -> mpf:
    """Hockey-stick divergence of order e^eps between N(0, 1) and N(mu, 1), for any real eps."""
    mu, eps = _read(mu), _read(eps)
    if mu < 0:
        raise ValueError(f"mu must not be negative: {mu}")
    if mu == mp.inf:
        return mpf(1)
    if mu == 0:
        with mp.workdps(DIGITS + 15):
            return max(mpf(0), -mp.expm1(eps))
    with mp.workdps(_working_digits(mu, eps)):
        return _profile(mu, eps)[0]


def epsilon(mu: Number, delta: Number) -> mpf:
    """Smallest eps >= 0 with delta(mu, eps) <= delta."""
    return rs_epsilon([mu], [1], delta)


def _support(mus: Sequence[Number], probabilities: Sequence[Number]) -> list[tuple[mpf, mpf]]:
    pairs = [(_read(m), _read(p)) for m, p in zip(mus, probabilities, strict=True)]
    return [(m, p) for m, p in pairs if p > 0]


def rs_delta(mus: Sequence[Number], probabilities: Sequence[Number], eps: Number) -> mpf:
    """Random selection with public index: sum of pi_i delta_i(eps)."""
    with mp.workdps(DIGITS + 15):
        return mp.fsum(p * delta(m, eps) for m, p in _support(mus, probabilities))


def rs_epsilon(mus: Sequence[Number], probabilities: Sequence[Number], delta: Number) -> mpf:
    """Smallest eps >= 0 with sum of pi_i delta_i(eps) <= delta (random selection, hockey-stick form)."""
    target = _read(delta)
    pairs = _support(mus, probabilities)
    with mp.workdps(DIGITS + 15):
        # A non-private candidate loses everything whatever eps is, so it takes its probability off delta.
        target -= mp.fsum(p for m, p in pairs if m == mp.inf)
    pairs = [(m, p) for m, p in pairs if 0 < m < mp.inf]
    if not pairs:
        return mpf(0) if target >= 0 else mp.inf
    if target <= 0:
        return mp.inf
    if target >= 1:
        return mpf(0)
    with mp.workdps(DIGITS):
        # delta(eps) <= Phi(-x) <= exp(-x^2/2) with x = eps/mu - mu/2, so here every term is below the target.
        high = max(m**2 / 2 + m * mp.sqrt(-2 * mp.log(target)) for m, _ in pairs)
    digits = max(_working_digits(m, high) for m, _ in pairs)
    with mp.workdps(digits):

        def excess(eps: mpf) -> tuple[mpf, mpf]:
            terms = [_profile(m, eps) for m, _ in pairs]
            total = mp.fsum(p * value for (_, p), (value, _) in zip(pairs, terms, strict=True))
            slope = mp.fsum(p * value for (_, p), (_, value) in zip(pairs, terms, strict=True))
            return mp.log(total / target), -slope / total

        if excess(mpf(0))[0] <= 0:
            return mpf(0)
        return _root(excess, mpf(0), high, mpf(10) ** -(DIGITS + 8))


def _root(excess, low: mpf, high: mpf, tolerance: mpf) -> mpf:
    """Newton from the right inside a shrinking bracket.

    For one Gaussian log delta is concave, and Newton descends to the root without ever leaving the bracket;
    a mixture is not log-concave, and bisection catches the steps that jump out.
    """
    eps = high
    for _ in range(1000):
        value, slope = excess(eps)
        if value > 0:
            low = eps
        else:
            high = eps
        step = eps - value / slope
        new = step if low <= step <= high else (low + high) / 2
        if abs(new - eps) <= tolerance * high or high - low <= tolerance * high:
            return new
        eps = new
    raise ArithmeticError("no convergence")


def _to_epsilon(renyi: mpf, alpha: mpf, delta: mpf, conversion: Conversion) -> mpf:
    """An (alpha, renyi) Renyi bound as an (eps, delta) bound, before clamping."""
    if conversion == "classic":  # Mironov 2017
        return renyi - mp.log(delta) / (alpha - 1)
    if conversion == "improved":  # Canonne, Kamath, Steinke 2020, proposition 12
        return renyi + mp.log((alpha - 1) / alpha) - (mp.log(delta) + mp.log(alpha)) / (alpha - 1)
    raise ValueError(f"unknown conversion: {conversion}")


def rdp_epsilon(mu: Number, delta: Number, orders: Sequence[Number], conversion: Conversion) -> mpf:
    """Least eps over the orders alpha > 1 from the Renyi divergence alpha mu^2 / 2, clamped at 0."""
    return rs_rdp_epsilon([mu], [1], delta, orders, conversion)


def rs_rdp_epsilon(
    mus: Sequence[Number],
    probabilities: Sequence[Number],
    delta: Number,
    orders: Sequence[Number],
    conversion: Conversion,
) -> mpf:
    """Random selection, Renyi form: eps_alpha = log(sum of pi_i e^((alpha-1) eps_alpha_i)) / (alpha-1)."""
    with mp.workdps(DIGITS + 20):
        pairs = _support(mus, probabilities)
        best = mp.inf
        for alpha in map(_read, orders):
            if alpha <= 1:
                raise ValueError(f"order must exceed 1: {alpha}")
            moment = mp.fsum(p * mp.exp((alpha - 1) * alpha * m**2 / 2) for m, p in pairs)
            best = min(best, _to_epsilon(mp.log(moment) / (alpha - 1), alpha, _read(delta), conversion))
        return max(mpf(0), best)
