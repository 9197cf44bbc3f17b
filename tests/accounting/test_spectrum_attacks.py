"""Composed losses attacked: oracles from the definitions, corners of (σ, q, n), and faults that must be noticed.

The oracles share no code with what they test: hockey-stick divergences of one step at 60 digits from the definition,
closed forms of composed Gaussians, tilted convolution, and the same discretised composition in extended precision.
"""

from __future__ import annotations

import math
import time

import mpmath
import numpy as np
import pytest

from dpmerge.accounting import LossDistributionProfile, composed_loss, convolution, step_mechanisms
from dpmerge.accounting.composed_loss import ComposedLoss
from dpmerge.accounting.convolution import compose_steps
from dpmerge.accounting.discretised_step import RELATIVE_ERROR, LossPmf
from dpmerge.accounting.loss_distribution import epsilon_curve
from dpmerge.accounting.step_mechanisms import GaussianStep, MixtureStep, PoissonStep, Step
from dpmerge.accounting.step_spectrum import StepSpectrum, centre_of, cumulants_of
from oracle import tilted_convolution

Wide = np.longdouble
PI = Wide("3.14159265358979323846264338327950288")


def sampled(sigma: float, q: float, replace_one: bool = False) -> PoissonStep:
    return PoissonStep(1 / sigma, q, replace_one)


def composed(steps: dict[Step, int]) -> tuple[ComposedLoss, ComposedLoss]:
    return next(compose_steps([steps]))


# One step, at 60 digits.


def divergence(relation: str, ratio: float, rate: float, epsilon: mpmath.mpf) -> mpmath.mpf:
    """sup over events, attained where the loss exceeds ε: an interval of x, as the loss is monotone."""
    r, q, e = mpmath.mpf(ratio), mpmath.mpf(rate), mpmath.e**epsilon

    def above(x: mpmath.mpf) -> mpmath.mpf:
        return mpmath.erfc(x / mpmath.sqrt(2)) / 2

    if relation == "remove":
        if e <= 1 - q:
            return 1 - e
        x = mpmath.log((e - 1 + q) / q) / r + r / 2
        return (1 - q - e) * above(x) + q * above(x - r)
    if relation == "add":
        odds = (1 / e - 1 + q) / q
        if odds <= 0:
            return mpmath.mpf(0)
        x = mpmath.log(odds) / r + r / 2
        return above(-x) - e * ((1 - q) * above(-x) + q * above(r - x))
    a, middle = q * mpmath.exp(-r * r / 2), (1 - q) * (e - 1)
    root = mpmath.sqrt(middle**2 + 4 * a * a * e)
    x = mpmath.log((middle + root) / (2 * a) if middle >= 0 else 2 * e * a / (root - middle)) / r
    return (1 - q) * (1 - e) * above(x) + q * above(x - r) - e * q * above(x + r)


def deficits(step: PoissonStep, relation: str, interval: float, places: list[int]) -> list[tuple[float, float]]:
    """At grid points: by how much δ of the discretised step is too small, and what is promised at most."""
    pmf = step.pmfs(interval)[1 if relation == "add" else 0]
    mass = pmf.probabilities.astype(Wide)
    centre = centre_of(pmf) - pmf.first
    missing = max(Wide(float(pmf.probabilities.sum())) - 1, -Wide(pmf.infinity))
    mass[centre] = 0
    mass[centre] = 1 + missing - mass.sum()  # as the transform has it
    found = []
    for place in (min(max(0, place - pmf.first), mass.size - 1) for place in places):
        distances = np.arange(1, mass.size - place, dtype=Wide) * Wide(interval)
        made = Wide(pmf.infinity) + np.sum(mass[place + 1 :] * -np.expm1(-distances))
        with mpmath.workdps(60):
            loss = mpmath.mpf(pmf.first + place) * mpmath.mpf(interval)
            exact = mpmath.mpf(float(made)) + mpmath.mpf(float(made - Wide(float(made))))
            lacking = float(divergence(relation, step.ratio, step.sampling_rate, loss) - exact)
            found.append((lacking, step.error + RELATIVE_ERROR * float(max(0, 1 - mpmath.e**loss))))
    return found


STEPS = [  # (σ, q, n): n only chooses the grid
    (0.3025, 4.27e-5, 700_000),
    (0.1626, 6.6e-6, 7_000_000),
    (1.0, 0.01, 1000),
    (1.0, 1e-6, 10_000_000),
    (0.15, 1e-9, 1000),
    (30.0, 1e-9, 10_000_000),
    (0.1, 1.0, 50),
    (300.0, 1.0, 10),
    (0.04, 0.8, 200_000),
]


@pytest.mark.parametrize(("sigma", "q", "steps"), STEPS)
@pytest.mark.parametrize("relation", ["remove", "add", "replace_one"])
def test_one_step_lacks_no_more_than_its_error_at_sixty_digits(
    sigma: float, q: float, steps: int, relation: str
) -> None:
    step = sampled(sigma, q, relation == "replace_one")
    interval = convolution._fitting_interval({step: steps})
    random = np.random.default_rng(1)
    sizes = (interval, 5 * interval, step.deviation, 0.3, 3.0, step.largest_loss)
    places = [int(size * random.uniform(-1, 1) / interval) for size in sizes for _ in range(2)]
    for lacking, promised in deficits(step, relation, interval, [-1, 0, 1, *places]):
        assert lacking <= promised


@pytest.mark.parametrize("ratio", [200.0, 500.0])
@pytest.mark.parametrize("relation", ["remove", "replace_one"])
def test_steps_of_next_to_no_noise_lack_no_more_than_their_error(ratio: float, relation: str) -> None:
    """Losses of a hundred thousand, whose own rounding is seen in δ."""
    step = PoissonStep(ratio, 1.0, relation == "replace_one")
    interval = convolution._fitting_interval({step: 1})
    mu = 2 * ratio if step.replace_one else ratio
    places = [int((mu**2 / 2 + x * mu) / interval) for x in np.linspace(-2, 2, 9)]
    pairs = deficits(step, relation, interval, places)
    assert all(lacking <= promised for lacking, promised in pairs)


def test_a_lower_error_of_rarely_drawn_steps_would_be_noticed() -> None:
    """The part below zero is needed: without it an addition lacks forty times its error."""
    step = sampled(0.3025248533873591, 4.273824931952222e-05)
    interval = 4e-4
    pairs = deficits(step, "add", interval, list(range(-5030, -4990)))
    assert max(lacking for lacking, _ in pairs) > 10 * step.error


# Many steps: closed form, tilting, both ways of evaluation.


@pytest.mark.parametrize(
    ("sigma", "steps"), [(0.1, 1), (0.3, 3), (2.0, 50), (1e3, 10_000_000), (40.0, 100_000), (1e6, 10_000_000)]
)
@pytest.mark.parametrize("replace_one", [False, True])
def test_composed_gaussians_are_never_below_their_law_either_way(sigma: float, steps: int, replace_one: bool) -> None:
    """At grid points, between them, at zero, below it and beyond the window."""
    side = composed({sampled(sigma, 1.0, replace_one): steps})[0]
    mu = (2 if replace_one else 1) * math.sqrt(steps) / sigma
    top = side.epsilon(10 * side.slack)
    grid = math.floor(top / 2 / side.interval) * side.interval
    points = np.array([-top / 3, -1e-3 * top, 0.0, grid, top / 2, top * 0.9, 10 * top + 1])
    with mpmath.workdps(60):
        truth = [float(divergence("remove", mu, 1.0, mpmath.mpf(float(point)))) for point in points]
    ways = [side._by_tail_sums(points)] + ([side._by_frequencies(points)] if side.is_short else [])
    for finite in ways:
        assert np.all(side.infinity + np.maximum(finite, 0.0) >= np.array(truth) * (1 - 1e-14))


@pytest.mark.parametrize(("sigma", "q", "steps"), [(1.5, 0.01, 2000), (2.0, 3e-4, 300_000), (8.0, 0.7, 40)])
@pytest.mark.parametrize("relation", ["remove", "add"])
def test_sampled_steps_are_between_the_truth_and_a_little_more(
    sigma: float, q: float, steps: int, relation: str
) -> None:
    side = composed({sampled(sigma, q): steps})[1 if relation == "add" else 0]
    delta = max(1e-9, 10 * side.slack)
    truth = tilted_convolution.epsilon_bounds(delta, relation, sigma, q, steps)  # type: ignore[arg-type]
    few = side.epsilon(delta)
    many = side._between_grid_points(delta)
    for epsilon in (few, many):
        assert truth.lower <= epsilon <= truth.upper * (1.01 if q >= 1e-4 else 1.05) + 2e-3


def test_sixty_five_points_at_once_agree_with_one_at_a_time() -> None:
    steps: dict[Step, int] = {sampled(1.0, 0.01): 700, GaussianStep(0.3): 1, sampled(3.0, 0.2): 40}
    for one, many in zip(composed(steps), composed(steps), strict=True):
        points = np.linspace(-1, 6, 65)
        singly = np.array([float(one.delta(np.asarray(point))) for point in points])
        together = many.delta(points)
        np.testing.assert_allclose(together, singly, rtol=1e-8, atol=one.slack)
        assert np.all(np.diff(together) <= 1e-16)


def test_epsilon_rises_with_steps_and_rate_and_falls_with_noise() -> None:
    def cost(sigma: float, q: float, n: int) -> float:
        return LossDistributionProfile.of({sampled(sigma, q): n}).epsilon(1e-6)

    assert np.all(np.diff([cost(1.0, 0.01, n) for n in (1, 3, 10, 100, 1000, 10_000)]) > 0)
    assert np.all(np.diff([cost(1.0, q, 100) for q in (1e-4, 1e-3, 0.01, 0.1, 0.5, 1.0)]) > 0)
    assert np.all(np.diff([cost(sigma, 0.01, 100) for sigma in (0.2, 0.5, 1.0, 2.0, 5.0)]) < 0)


# Rounding: the same discretised composition in extended precision.


def in_extended_precision(steps: dict[Step, int], side: ComposedLoss, direction: int, epsilon: float) -> float:
    """Σ p_j (1 − e^{ε − l_j})₊ over the window: every transform summed as it is defined."""
    k = np.arange(side.spectrum.size)[:, np.newaxis]
    log_modulus, phase = np.zeros(k.size, Wide), np.zeros(k.size, Wide)
    for step, count in steps.items():
        pmf = step.pmfs(side.interval)[direction]
        mass = pmf.probabilities.astype(Wide)
        places = pmf.first - centre_of(pmf) + np.arange(mass.size)
        half = PI * (k * places % side.length).astype(Wide) / side.length
        missing = max(Wide(float(pmf.probabilities.sum())) - 1, -Wide(pmf.infinity))
        x, y = (mass * -2 * np.sin(half) ** 2).sum(axis=1) + missing, (-mass * np.sin(2 * half)).sum(axis=1)
        log_modulus += count * np.log1p(2 * x + x**2 + y**2) / 2
        phase += count * np.arctan2(y, 1 + x)
    index = min(max(math.floor(epsilon / side.interval) + 1 - side.first, 0), side.bins)
    losses = side.first + np.arange(index, side.bins)
    payoff = -np.expm1(Wide(epsilon) - losses.astype(Wide) * Wide(side.interval))
    total = Wide(0)
    for frequency in range(k.size):
        angle = 2 * PI * (frequency * (losses - side.centre) % side.length).astype(Wide) / side.length
        size = (1 if frequency == 0 else 2) * np.exp(log_modulus[frequency])
        total += size * (payoff * np.cos(angle + phase[frequency])).sum()
    return float(total / side.length)


ROUNDED: list[tuple[dict[Step, int], int]] = [
    ({sampled(5.0, 1e-4): 1_000_000}, 0),
    ({sampled(10.0, 1e-3): 10_000_000}, 0),
    ({sampled(1e3, 0.5): 10_000_000}, 1),
]


@pytest.mark.parametrize(("steps", "direction"), ROUNDED)
def test_the_slack_covers_what_rounding_takes_both_ways(steps: dict[Step, int], direction: int) -> None:
    side = composed(steps)[direction]
    point = side.epsilon(10 * side.slack) / 2
    exact = in_extended_precision(steps, side, direction, point)
    rounding = side.slack - sum(count * step.error for step, count in steps.items())
    for finite in (side._by_frequencies(np.array(point)), side._by_tail_sums(np.array(point))):
        assert float(finite) + rounding >= exact
        assert float(finite) <= exact * (1 + 1e-6) + side.slack


def test_without_slack_a_composition_of_ten_million_steps_is_below_itself() -> None:
    """What rounding takes is real: the check above fails once the slack is put to zero."""
    steps, direction = ROUNDED[1]
    side = composed(steps)[direction]
    point = side.epsilon(10 * side.slack) / 2
    exact = in_extended_precision(steps, side, direction, point)
    scaled = 1 + RELATIVE_ERROR * sum(steps.values())
    assert float(side._by_frequencies(np.array(point))) / scaled < exact


def test_terms_of_very_coarse_grids_do_not_blow_up_the_summation_error() -> None:
    assert composed_loss.summation_error(np.ones(100, complex), 200.0, 2**19) < 1e-11


# The window and the frequencies that are dropped.


@pytest.mark.parametrize(
    ("step", "count"),
    [(sampled(1.0, 0.3), 7), (sampled(0.4, 0.02), 40), (sampled(3.0, 0.5), 64), (GaussianStep(2.0), 1)],
)
def test_what_lies_outside_the_window_is_at_most_what_is_put_back(step: Step, count: int) -> None:
    """By convolving the distribution with itself, on a coarse grid, all numbers positive."""
    interval = 0.02
    for direction in (0, 1):
        grid = convolution._Grid(interval, direction, [{step: count}])
        low, high = grid.windows[0]
        pmf = step.pmfs(interval)[direction]
        mass = np.ones(1)
        for _ in range(count):
            mass = np.convolve(mass, pmf.probabilities)
        places = count * (pmf.first - centre_of(pmf)) + np.arange(mass.size)
        assert math.fsum(mass[places < low]) <= convolution._TAIL
        assert math.fsum(mass[places > high]) <= convolution._TAIL
        # The check can fail: half as wide a window would leave too much outside.
        middle, reach = (low + high) / 2, (high - low) / 2
        assert math.fsum(mass[np.abs(places - middle) > reach / 2]) > convolution._TAIL


def test_cumulants_by_powers_are_those_of_the_definition() -> None:
    pmf = sampled(0.7, 0.01).pmfs(8e-3)[0]
    orders = np.array([-400.0, -3.0, -0.01, 1e-6, 0.5, 8.0, 90.0, 3000.0])
    with mpmath.workdps(40):
        losses = [(pmf.first + j - centre_of(pmf)) * mpmath.mpf(pmf.interval) for j in range(pmf.probabilities.size)]
        for order, found in zip(orders, cumulants_of(pmf, centre_of(pmf), orders), strict=True):
            terms = (mpmath.mpf(p) * mpmath.exp(order * x) for p, x in zip(pmf.probabilities, losses, strict=True))
            assert found == pytest.approx(float(mpmath.log(mpmath.fsum(terms))), rel=1e-12, abs=1e-13)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 20.0])
@pytest.mark.parametrize("q", [1e-6, 0.01, 0.6, 1.0])
def test_dropped_frequencies_are_no_larger_than_beyond(sigma: float, q: float) -> None:
    step = sampled(sigma, q)
    interval = max(1e-4 if sigma < 10 else 1e-6, step.largest_loss / 2**13)
    for pmf in step.pmfs(interval):
        length, kept = 2**15, 600
        spectrum = StepSpectrum.of(pmf, length, kept)
        turned = np.zeros(length)
        turned[: pmf.probabilities.size] = pmf.probabilities
        assert spectrum.beyond >= np.log(np.abs(np.fft.fft(turned))[kept : length // 2 + 1].max()) - 1e-13


def test_the_sign_of_the_transform_matters() -> None:
    """A mirrored spectrum gives δ of another direction: comparing with quadrature would notice it."""
    side = composed({sampled(0.5, 0.05): 300})[0]
    mirrored = ComposedLoss(**{**side.__dict__, "spectrum": side.spectrum.conj()})
    far = np.array(side.epsilon(1e-7))
    lower = tilted_convolution.delta_bounds(float(far), "remove", 0.5, 0.05, 300).lower
    assert float(side.delta(far)) >= lower > 2 * float(mirrored.delta(far))


def test_a_window_that_is_too_small_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    lower = tilted_convolution.delta_bounds(2.0, "remove", 1.0, 0.01, 1000).lower
    assert float(composed({sampled(1.0, 0.01): 1000})[0].delta(np.array(2.0))) >= lower
    whole = convolution._Grid._window
    monkeypatch.setattr(convolution._Grid, "_window", lambda *a: tuple(end // 4 for end in whole(*a)))
    assert float(composed({sampled(1.0, 0.01): 1000})[0].delta(np.array(2.0))) < lower


# Corners: crashes, endless loops, memory.


@pytest.mark.parametrize(
    ("sigma", "q", "steps"),
    [
        (0.02, 0.5, 10_000_000),  # an addition on two grid points, half a point off centre
        (0.002, 0.5, 10_000_000),  # a grid coarser than e^709
        (0.002, 1.0, 1),
        (1e6, 1e-9, 10_000_000),
    ],
)
def test_corners_end_in_a_number(sigma: float, q: float, steps: int) -> None:
    began = time.monotonic()
    profile = LossDistributionProfile.of({sampled(sigma, q): steps})
    assert profile.least_delta < 1e-5
    assert 0 <= profile.epsilon(1e-5) < np.inf
    for epsilon in (-np.inf, -1e300, -1.0, 0.0, 1e300, np.inf):
        assert all(0 <= float(delta) <= 1 for delta in profile.deltas(epsilon))
    assert time.monotonic() - began < 30


def test_strong_gaussian_steps_that_are_always_drawn_have_a_distribution() -> None:
    for mu in (3.0, 4.0, 40.0, 500.0):
        assert GaussianStep(mu).pmfs(0.1)[0].probabilities.sum() == pytest.approx(1, abs=1e-9)


def test_hundreds_of_different_steps_have_a_grid() -> None:
    """None of which has a hundredth of the variance."""
    steps: dict[Step, int] = {sampled(float(sigma), 0.01): 1 for sigma in np.linspace(1.0, 1.01, 300)}
    assert 0 < convolution._fitting_interval(steps) <= convolution.COARSEST_INTERVAL


def test_a_curve_of_tiny_steps_and_one_of_little_noise_fits_into_memory() -> None:
    tiny, loud = sampled(100.0, 1e-6), sampled(0.2, 0.5)
    profiles = [LossDistributionProfile.of({tiny: 1000}), LossDistributionProfile.of({tiny: 1000, loud: 1})]
    first, second = epsilon_curve(profiles, 1e-5)
    assert first == 0
    assert second >= tilted_convolution.epsilon_bounds(1e-5, "remove", 0.2, 0.5, 1).lower


def test_a_mixture_of_little_noise_takes_seconds() -> None:
    step = MixtureStep((0.0, 100.0), (0.9, 0.1))
    assert step.largest_loss / convolution._fitting_interval({step: 1}) <= convolution._MOST_DEAR_BINS


def test_steps_of_equal_numbers_are_one_and_other_kinds_are_not_mixed_up() -> None:
    assert PoissonStep(1, 1, False) == PoissonStep(1.0, 1.0, False)
    gaussian, always = GaussianStep(1.0), PoissonStep(1.0, 1.0, False)
    replaced, half = PoissonStep(1.0, 1.0, True), PoissonStep(1.0, 0.5, False)
    costs = [LossDistributionProfile.of({step: 1}).epsilon(1e-5) for step in (gaussian, always, replaced, half)]
    again = [composed({step: 1})[0].epsilon(1e-5) for step in (half, replaced, always, gaussian)][::-1]
    np.testing.assert_allclose(costs, again, rtol=1e-12)
    assert costs[0] == costs[1] < costs[2]
    assert costs[3] < costs[0]


def test_every_kind_of_step_says_what_rounding_takes() -> None:
    for step in (GaussianStep(1.0), sampled(1.0, 0.01), MixtureStep((0.0, 1.0), (0.5, 0.5))):
        assert 0 < step.error <= step_mechanisms.MIXTURE_ERROR
        assert isinstance(step.pmfs(1e-2)[0], LossPmf)
