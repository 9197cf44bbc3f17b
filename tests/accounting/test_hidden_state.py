"""The hidden-state theorem: the exact solution against a solver, fifty digits, feasible points and the truth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dpmerge.accounting.hidden_state_shifts import best_shifts, chain_mus, linear_chain_mus, proved_mu
from dpmerge.accounting.update_chain import Chain
from oracle import affine_chains, hidden_state_qp, hidden_state_shifts, hidden_state_taut

factors = st.one_of(st.floats(0.3, 1.6), st.sampled_from([0.0, 0.5, 0.9, 1.0, 1.0, 1.05, 3.0]))


@st.composite
def programs(draw: st.DrawFn, most_steps: int = 7) -> tuple[list[Chain], np.ndarray, float]:
    chains = []
    for _ in range(draw(st.integers(1, 3))):
        steps = draw(st.integers(1, most_steps))
        sizes = st.lists(st.floats(0.05, 5), min_size=steps, max_size=steps)
        chains.append(
            Chain(
                np.array(draw(sizes)),
                np.array(draw(sizes)),
                np.array(draw(st.lists(factors, min_size=steps, max_size=steps))),
            )
        )
    raw = np.array(draw(st.lists(st.floats(0.01, 1), min_size=len(chains), max_size=len(chains))))
    return chains, raw / raw.sum(), draw(st.sampled_from([0.0, 0.0, 0.3, 2.0, 20.0]))


def lists(chains: list[Chain]) -> tuple[list[list[float]], ...]:
    return tuple([getattr(chain, name).tolist() for chain in chains] for name in ("shift", "noise", "lipschitz"))


@given(programs())
def test_mu_equals_the_exact_solution_to_fifty_digits(case: tuple[list[Chain], np.ndarray, float]) -> None:
    chains, weights, tau = case
    truth = float(hidden_state_taut.exact_mu(*lists(chains), weights.tolist(), tau))
    mu = chain_mus(chains, [weights], tau)[0]
    assert mu == pytest.approx(truth, rel=1e-9)
    assert mu >= truth * (1 - 1e-13)


@settings(max_examples=40)
@given(programs(most_steps=5))
def test_mu_equals_the_quadratic_program(case: tuple[list[Chain], np.ndarray, float]) -> None:
    chains, weights, tau = case
    expected = hidden_state_qp.optimal_mu(*lists(chains), weights.tolist(), tau)
    assert chain_mus(chains, [weights], tau)[0] == pytest.approx(expected, rel=1e-6)


@given(programs(), st.integers(0, 2**32 - 1))
def test_no_feasible_shifts_prove_a_smaller_mu(case: tuple[list[Chain], np.ndarray, float], seed: int) -> None:
    chains, weights, tau = case
    mu = chain_mus(chains, [weights], tau)[0]
    rng = np.random.default_rng(seed)
    for _ in range(5):
        shifts = hidden_state_shifts.random_shifts(rng, *lists(chains), weights.tolist())
        proved = hidden_state_shifts.evaluate(shifts, *lists(chains), weights.tolist(), tau)
        assert proved >= mu * (1 - 1e-9)


@given(programs())
def test_the_best_shifts_are_feasible_and_prove_mu(case: tuple[list[Chain], np.ndarray, float]) -> None:
    """Feasible in rational arithmetic, and worth what is claimed."""
    chains, weights, tau = case
    shifts = best_shifts(chains, weights, tau)
    projected = hidden_state_shifts.project([s.tolist() for s in shifts], *lists(chains), weights.tolist())
    proved = hidden_state_shifts.evaluate(projected, *lists(chains), weights.tolist(), tau)
    mu = chain_mus(chains, [weights], tau)[0]
    assert proved == pytest.approx(mu, rel=1e-8)
    assert proved_mu(chains, weights, tau, shifts) == pytest.approx(mu, rel=1e-8)


@given(programs(), st.integers(0, 2**32 - 1))
def test_infeasible_shifts_prove_no_less_than_the_optimum(
    case: tuple[list[Chain], np.ndarray, float], seed: int
) -> None:
    """Whatever a solver hands over, the price is that of a feasible point: never below the optimum."""
    chains, weights, tau = case
    rng = np.random.default_rng(seed)
    nonsense = [rng.normal(0, 10, chain.shift.size) for chain in chains]
    assert proved_mu(chains, weights, tau, nonsense) >= chain_mus(chains, [weights], tau)[0] * (1 - 1e-9)


@given(programs())
def test_mu_is_never_below_the_exact_value_of_linear_losses(case: tuple[list[Chain], np.ndarray, float]) -> None:
    chains, weights, tau = case
    exact = affine_chains.merged_final_mu(
        [
            affine_chains.Chain(c.lipschitz.tolist(), 1.0, (c.noise / c.shift).tolist(), c.shift.tolist())
            for c in chains
        ],
        weights.tolist(),
        1.0,
        tau,
    )
    assert linear_chain_mus(chains, [weights], tau)[0] == pytest.approx(exact, rel=1e-10)
    mu = chain_mus(chains, [weights], tau)[0]
    assert mu >= exact * (1 - 1e-9)
    if hidden_state_shifts.linear_check(*lists(chains), weights.tolist(), tau):
        assert mu == pytest.approx(exact, rel=1e-9)


@given(programs())
def test_unbounded_factors_give_the_last_step_theorem(case: tuple[list[Chain], np.ndarray, float]) -> None:
    chains, weights, tau = case
    earlier = sum(float(np.sum((c.shift[:-1] / c.noise[:-1]) ** 2)) for c in chains)
    moved = sum(w * c.shift[-1] for w, c in zip(weights, chains, strict=True))
    variance = sum((w * c.noise[-1]) ** 2 for w, c in zip(weights, chains, strict=True)) + tau**2
    expected = np.sqrt(earlier + moved**2 / variance)
    for factor in (np.inf, 1e30):
        stretched = [Chain(c.shift, c.noise, np.full(c.shift.size, factor)) for c in chains]
        assert chain_mus(stretched, [weights], tau)[0] == pytest.approx(expected, rel=1e-9)
        shifts = best_shifts(stretched, weights, tau)
        assert proved_mu(stretched, weights, tau, shifts) == pytest.approx(expected, rel=1e-9)
    assert chain_mus(chains, [weights], tau)[0] <= expected * (1 + 1e-9)


@given(programs(), st.integers(0, 2), st.floats(1, 3))
def test_a_larger_lipschitz_factor_never_costs_less(
    case: tuple[list[Chain], np.ndarray, float], which: int, by: float
) -> None:
    chains, weights, tau = case
    assume(which < len(chains))
    larger = list(chains)
    larger[which] = Chain(chains[which].shift, chains[which].noise, chains[which].lipschitz * by)
    before, after = (chain_mus(c, [weights], tau)[0] for c in (chains, larger))
    assert after >= before * (1 - 1e-9)


@given(programs(), st.just(0.0) | st.floats(1e-30, 5), st.floats(1, 4))
def test_more_release_noise_or_noise_never_costs_more(
    case: tuple[list[Chain], np.ndarray, float], more: float, scale: float
) -> None:
    chains, weights, tau = case
    mu = chain_mus(chains, [weights], tau)[0]
    assert chain_mus(chains, [weights], tau + more)[0] <= mu * (1 + 1e-9)
    quieter = [Chain(c.shift, c.noise * scale, c.lipschitz) for c in chains]
    assert chain_mus(quieter, [weights], tau)[0] <= mu * (1 + 1e-9)


@given(programs())
def test_permuting_runs_changes_nothing(case: tuple[list[Chain], np.ndarray, float]) -> None:
    chains, weights, tau = case
    there = chain_mus(chains, [weights], tau)[0]
    back = chain_mus(chains[::-1], [weights[::-1]], tau)[0]
    assert there == pytest.approx(back, rel=1e-12)


@given(programs())
def test_a_run_of_weight_zero_does_not_count(case: tuple[list[Chain], np.ndarray, float]) -> None:
    chains, weights, tau = case
    noiseless = Chain(np.ones(3), np.zeros(3), np.ones(3))
    alone = chain_mus(chains, [weights], tau)[0]
    beside = chain_mus([*chains, noiseless], [[*weights, 0.0]], tau)[0]
    assert beside == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("c", [0.3, 0.9, 0.99, 1.1])
@pytest.mark.parametrize("steps", [1, 2, 10, 60])
def test_one_run_costs_the_published_bound(c: float, steps: int) -> None:
    """√((1 − cᵀ)/(1 + cᵀ)·(1 + c)/(1 − c))·k/σ (Bok, Su, Altschuler 2024)."""
    k, sigma = 2.0, 7.0
    chain = Chain(np.full(steps, k), np.full(steps, sigma), np.full(steps, c))
    published = np.sqrt((1 - c**steps) / (1 + c**steps) * (1 + c) / (1 - c)) * k / sigma
    mu = chain_mus([chain], [[1.0]])[0]
    if c <= 1:
        assert mu == pytest.approx(published, rel=1e-10)
    else:
        assert mu >= published * (1 - 1e-10)


def test_many_weights_or_release_noises_at_once_equal_one_by_one() -> None:
    rng = np.random.default_rng(3)
    rates = np.linspace(4, 0.2, 20)
    chains = [Chain(2 * rates, sigma * rates, np.full(20, L)) for sigma, L in ((64, 1.0), (32, 0.97), (16, 1.02))]
    rows = rng.dirichlet([1, 1, 1], 70_000)
    many = chain_mus(chains, rows, 50.0)
    for place in rng.integers(0, rows.shape[0], 30):
        one = proved_mu(chains, rows[place], 50.0, best_shifts(chains, rows[place], 50.0))
        assert many[place] == pytest.approx(one, rel=1e-10)
    taus = np.geomspace(0.1, 1e4, 50)
    along = chain_mus(chains, [0.5, 0.3, 0.2], taus)
    assert along.shape == (50,)
    assert np.all(np.diff(along) <= 1e-12)


def test_runs_without_noise_cost_infinity_unless_release_noise_is_added() -> None:
    noiseless = Chain(np.ones(5), np.zeros(5), np.full(5, 0.9))
    noisy = Chain(np.ones(5), np.full(5, 3.0), np.full(5, 0.9))
    alone = chain_mus([noiseless], [[1.0]], [0.0, 2.0])
    assert alone[0] == np.inf
    assert alone[1] == pytest.approx(sum(0.9**t for t in range(5)) / 2.0)
    shifts = best_shifts([noiseless, noisy], np.array([0.1, 0.9]), 1.0)
    mu = chain_mus([noiseless, noisy], [[0.1, 0.9]], 1.0)[0]
    assert proved_mu([noiseless, noisy], np.array([0.1, 0.9]), 1.0, shifts) == pytest.approx(mu, rel=1e-12)
    first_only = Chain(np.ones(3), np.array([0.0, 1.0, 1.0]), np.ones(3))
    reference = hidden_state_taut.exact_mu([[1, 1, 1]], [[0, 1, 1]], [[1, 1, 1]], [1.0], 0.5)
    assert chain_mus([first_only], [[1.0]], 0.5)[0] == pytest.approx(float(reference), rel=1e-12)


@pytest.mark.parametrize("factor", [1.2, 2.0, 50.0])
def test_long_expanding_runs_are_not_priced_below_the_truth(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of factors far beyond the precision of a double must not make the number smaller."""
    monkeypatch.setattr(hidden_state_taut, "DIGITS", 300)
    steps = 60
    chain = Chain(np.full(steps, 1.0), np.geomspace(1, 30, steps), np.full(steps, factor))
    mu = chain_mus([chain], [[1.0]], 5.0)[0]
    truth = float(hidden_state_taut.exact_mu(*lists([chain]), [1.0], 5.0))
    assert truth * (1 - 1e-12) <= mu <= truth * 1.02


FORGETFUL = {
    "zero after an explosion": (1.0, 1e300, 1e300, 0.0, 1.0, 1.0),
    "zero at the end": (1.0, 2.0, 3.0, 0.0),
    "two zeros": (1.0, 0.0, 1e300, 0.0, 0.5),
}


@pytest.mark.parametrize("name", FORGETFUL)
def test_a_factor_of_zero_forgets_what_came_before(name: str) -> None:
    factors = np.array(FORGETFUL[name])
    chain = Chain(np.full(factors.size, 0.2), np.full(factors.size, 0.1), factors)
    start = int(np.flatnonzero(factors[1:] == 0)[-1]) + 1
    rest = Chain(chain.shift[start:], chain.noise[start:], factors[start:])
    expected = chain_mus([rest], [[1.0]], 0.3)[0]
    assert chain_mus([chain], [[1.0]], 0.3)[0] == pytest.approx(expected, rel=1e-12)
    weights = np.array([1.0])
    assert proved_mu([chain], weights, 0.3, best_shifts([chain], weights, 0.3)) == pytest.approx(expected, rel=1e-9)


def test_contraction_after_expansion_does_not_underflow() -> None:
    """The product over the second half is far below the smallest double; over all steps it is one."""
    truth = 0.0
    for half in (5, 50, 1000):
        factors = np.array([10.0] * half + [0.1] * half)
        chain = Chain(np.full(2 * half, 0.2), np.full(2 * half, 0.1), factors)
        if half == 5:  # the linear value is exact for some losses; longer runs cost no less
            truth = linear_chain_mus([chain], [[1.0]], 0.3)[0]
        mu = chain_mus([chain], [[1.0]], 0.3)[0]
        weights = np.array([1.0])
        proved = proved_mu([chain], weights, 0.3, best_shifts([chain], weights, 0.3))
        assert mu >= truth * (1 - 1e-9)
        assert proved == pytest.approx(mu, rel=1e-6)


def test_shifts_that_are_not_numbers_prove_no_less_than_the_optimum() -> None:
    chain = Chain(np.ones(4), np.ones(4), np.ones(4))
    best = chain_mus([chain], [[1.0]])[0]
    for nonsense in (np.nan, np.inf, -np.inf):
        assert proved_mu([chain], np.array([1.0]), 0.0, [np.full(4, nonsense)]) >= best * (1 - 1e-12)


@pytest.mark.parametrize("small", [1e-3, 2e-16, 1e-16, 1e-17, 1e-25])
def test_a_last_step_that_is_tiny_beside_the_rest_still_counts(small: float) -> None:
    chain = Chain(np.array([1.0, small]), np.array([1.0, small]), np.ones(2))
    assert chain_mus([chain], [[1.0]])[0] == pytest.approx(np.sqrt(2), rel=1e-9)
    wide = Chain(np.array([3.66e10, 8.25e-23]), np.array([1.29e37, 7.81e-32]), np.array([1.0, 7.02e-8]))
    truth = float(hidden_state_taut.exact_mu(*lists([wide]), [1.0], 0.0))
    assert chain_mus([wide], [[1.0]])[0] >= truth * (1 - 1e-9)


def test_extreme_sizes_are_never_priced_below_fifty_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hidden_state_taut, "DIGITS", 200)
    rng = np.random.default_rng(5)
    for _ in range(150):
        chains = []
        for _ in range(rng.integers(1, 3)):
            steps = int(rng.integers(1, 6))
            sizes = 10.0 ** rng.uniform(-25, 25, (2, steps))
            chains.append(Chain(sizes[0], sizes[1], 10.0 ** rng.uniform(-8, 8, steps)))
        weights = rng.dirichlet(np.ones(len(chains)))
        tau = float(rng.choice([0.0, 1e-10, 1.0, 1e10]))
        truth = float(hidden_state_taut.exact_mu(*lists(chains), weights.tolist(), tau))
        assert chain_mus(chains, [weights], tau)[0] >= truth * (1 - 1e-9)
        assert proved_mu(chains, weights, tau, best_shifts(chains, weights, tau)) >= truth * (1 - 1e-9)


def test_the_linear_value_is_a_lower_bound_however_large_the_factors() -> None:
    chain = Chain(np.array([0.001, 0.1, 0.001]), np.array([1.0, 100.0, 100.0]), np.array([0.001, 0.5, 1e200]))
    assert linear_chain_mus([chain], [[1.0]], 0.0)[0] <= chain_mus([chain], [[1.0]], 0.0)[0]
    endless = Chain(np.ones(3), np.ones(3), np.full(3, np.inf))
    assert linear_chain_mus([endless], [[1.0]], 1.0)[0] <= chain_mus([endless], [[1.0]], 1.0)[0]


def test_sizes_at_the_edge_of_their_domain_are_told_apart() -> None:
    """Slopes of 1e-300 and less must not look alike: pooling steps that rise would make the bound too small."""
    tiny = Chain(np.array([1e-60, 1e-58, 1e-56]), np.full(3, 1e-88), np.array([1.0, 1e-30, 1e-28]))
    scaled = Chain(tiny.shift * 1e60, tiny.noise * 1e60, tiny.lipschitz)
    assert chain_mus([tiny], [[1.0]])[0] == pytest.approx(chain_mus([scaled], [[1.0]])[0], rel=1e-9)
