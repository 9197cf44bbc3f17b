"""The weights that meet a target against the theorems' formulas written down again."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dpmerge.accounting import (
    DEFAULT_ORDERS,
    Adjacency,
    Checkpoint,
    DeclaredLipschitz,
    DpSgd,
    GaussianRelease,
    Optimizer,
    RenyiMechanism,
    StepBlock,
)
from dpmerge.errors import DpmergeError, InvalidInputError
from dpmerge.planning.feasible_weights import FeasibleWeights, Weightings, lattice, mu_budget
from dpmerge.terms.guarantee import Guarantee
from oracle import gaussian_mp
from oracle.hidden_state_taut import exact_mu
from oracle.planning_brute_force import (
    Prefix,
    joint_release_mu,
    last_step_mu,
    merged_trajectory_mu,
    random_simplex,
)

Array = npt.NDArray[np.float64]
FACTOR = 0.97
THEOREMS = ("joint_release", "last_step", "merged_trajectory", "hidden_state")


@dataclass(frozen=True)
class Case:
    """The same checkpoints for the library and for the oracle."""

    checkpoints: tuple[Checkpoint, ...]
    prefixes: tuple[Prefix, ...]

    def mu(self, theorem: str, weights: Sequence[float], release_noise: float = 0.0) -> float:
        if theorem == "joint_release":
            return joint_release_mu(self.prefixes, weights)
        if theorem == "last_step":
            return last_step_mu(self.prefixes, weights, release_noise)
        if theorem == "merged_trajectory":
            return merged_trajectory_mu(self.prefixes, weights)
        factors = [[FACTOR if rate > 0 else 1.0 for rate in p.rates] for p in self.prefixes]
        moved, noise = [p.shifts() for p in self.prefixes], [p.deviations() for p in self.prefixes]
        return float(exact_mu(moved, noise, factors, list(weights), release_noise))


def case(
    runs: Sequence[tuple[Sequence[float], float, float]],
    adjacency: str = "replace_one",
    optimizer: dict[str, Any] | None = None,
) -> Case:
    """Runs given as (rates, noise multiplier, clip norm)."""
    facts = optimizer or {}
    k = 2 if adjacency == "replace_one" else 1
    checkpoints, prefixes = [], []
    for rates, noise, clip in runs:
        block = StepBlock(steps=len(rates), noise_multiplier=noise, clip_norm=clip, learning_rate=tuple(rates))
        smoothness = None if facts else DeclaredLipschitz(factors=FACTOR)
        run = DpSgd(
            blocks=(block,), adjacency=Adjacency(adjacency), optimizer=Optimizer(**facts), smoothness=smoothness
        )
        checkpoints.append(Checkpoint(run, len(rates)))
        length = len(rates)
        prefixes.append(Prefix(tuple(rates), (noise,) * length, (clip,) * length, k, **facts))
    return Case(tuple(checkpoints), tuple(prefixes))


def random_case(rng: np.random.Generator, *, optimizer: dict[str, Any] | None = None, zeros: bool = True) -> Case:
    runs = []
    for _ in range(int(rng.integers(2, 5))):
        rates = rng.uniform(0.1, 2.0, int(rng.integers(1, 7)))
        if zeros and rng.random() < 0.3:
            rates[rng.integers(0, rates.size) :] = 0.0
            rates[0] = 1.0
        runs.append((rates.tolist(), float(10 ** rng.uniform(0.5, 2)), float(10 ** rng.uniform(-0.5, 0.5))))
    return case(runs, str(rng.choice(["replace_one", "add_remove"])), optimizer)


def meets(mu: float, target: Guarantee, accounting: str, slack: float = 0.0) -> bool:
    """Whether a Gaussian cost meets a target; slack moves the answer, to keep away from the edge."""
    if accounting == "pld":
        return bool(gaussian_mp.delta(mu * (1 + slack), target.epsilon) <= target.delta)
    orders = np.asarray(DEFAULT_ORDERS)
    penalty = np.log((orders - 1) / orders) - (math.log(target.delta) + np.log(orders)) / (orders - 1)
    return bool(np.min(orders * (mu * (1 + slack)) ** 2 / 2 + penalty) <= target.epsilon)


def target_between(rng: np.random.Generator, mus: Sequence[float], accounting: str) -> Guarantee:
    """A target that some of these costs meet and some do not."""
    levels = np.unique(mus)
    place = int(rng.integers(0, max(levels.size - 1, 1)))
    mu = float((levels[place] + levels[min(place + 1, levels.size - 1)]) / 2)
    delta = float(rng.choice([1e-12, 1e-8, 1e-5, 1e-2]))
    if accounting == "pld":
        return Guarantee(epsilon=max(1e-6, float(gaussian_mp.epsilon(mu, delta))), delta=delta)
    orders = np.asarray(DEFAULT_ORDERS)
    penalty = np.log((orders - 1) / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return Guarantee(epsilon=max(1e-6, float(np.min(orders * mu**2 / 2 + penalty))), delta=delta)


def feasible(c: Case, theorem: Any, accounting: Any, target: Guarantee, release_noise: float = 0.0) -> FeasibleWeights:
    return FeasibleWeights(Weightings(c.checkpoints, theorem, accounting), target, release_noise)


@pytest.mark.parametrize("accounting", ["pld", "rdp"])
@pytest.mark.parametrize("theorem", THEOREMS)
def test_weights_are_feasible_exactly_where_the_formula_meets_the_target(theorem: str, accounting: str) -> None:
    rng = np.random.default_rng([1, len(theorem), len(accounting), ord(theorem[0])])
    inside = outside = 0
    for _ in range(12):
        c = random_case(rng)
        noise = float(rng.choice([0.0, 1.0, 20.0])) if theorem in ("last_step", "hidden_state") else 0.0
        rows = [random_simplex(rng, len(c.checkpoints)) for _ in range(30)]
        mus = [c.mu(theorem, row, noise) for row in rows]
        target = target_between(rng, mus, accounting)
        found = feasible(c, theorem, accounting, target, noise).contains(rows)
        for row, mu, said in zip(rows, mus, found.tolist(), strict=True):
            if meets(mu, target, accounting, 1e-7) != meets(mu, target, accounting, -1e-7):
                continue
            assert said == meets(mu, target, accounting), (theorem, row, mu, target)
            inside, outside = inside + said, outside + (not said)
    assert inside > 15
    assert outside > 15


@pytest.mark.parametrize(
    "optimizer",
    [
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.9, "dampening": 0.5},
        {"weight_decay": 0.1},
    ],
)
def test_last_step_follows_the_formula_for_any_sgd_or_costs_more(optimizer: dict[str, Any]) -> None:
    rng = np.random.default_rng(len(str(optimizer)))
    for _ in range(10):
        c = random_case(rng, optimizer=optimizer)
        rows = [random_simplex(rng, len(c.checkpoints)) for _ in range(10)]
        found = Weightings(c.checkpoints, "last_step").mus(rows)
        acting_at_the_end = all(p.rates[-1] > 0 for p in c.prefixes)
        for row, mu in zip(rows, found.tolist(), strict=True):
            if acting_at_the_end:
                assert mu == pytest.approx(c.mu("last_step", row), rel=1e-12)
            else:  # a heavy ball rolls on: joint release is the most that may be said, and never less than the formula
                assert mu >= c.mu("last_step", row) * (1 - 1e-12)
                assert mu <= joint_release_mu(c.prefixes, row) * (1 + 1e-12)


@pytest.mark.parametrize("dimension", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("resolution", [1, 2, 5, 7])
def test_a_lattice_holds_every_whole_share_once(dimension: int, resolution: int) -> None:
    rows = lattice(dimension, resolution)
    whole = np.rint(rows * resolution)
    assert np.abs(rows * resolution - whole).max() < 1e-12
    assert (rows >= 0).all()
    assert np.abs(rows.sum(axis=1) - 1).max() < 1e-12
    expected = {
        point for point in itertools.product(range(resolution + 1), repeat=dimension) if sum(point) == resolution
    }
    assert {tuple(row) for row in whole.astype(int).tolist()} == expected
    assert len(rows) == len(expected) == math.comb(resolution + dimension - 1, dimension - 1)


@pytest.mark.parametrize("theorem", THEOREMS)
def test_the_feasible_lattice_holds_exactly_the_feasible_points(theorem: str) -> None:
    rng = np.random.default_rng([2, ord(theorem[0])])
    for _ in range(6):
        c = random_case(rng)
        rows = lattice(len(c.checkpoints), 6)
        mus = [c.mu(theorem, row) for row in rows.tolist()]
        target = target_between(rng, mus, "pld")
        found = {tuple(np.rint(row * 6).astype(int).tolist()) for row in feasible(c, theorem, "pld", target).lattice(6)}
        for row, mu in zip(rows, mus, strict=True):
            point = tuple(np.rint(row * 6).astype(int).tolist())
            if meets(mu, target, "pld", 1e-7):
                assert point in found
            if not meets(mu, target, "pld", -1e-7):
                assert point not in found


@pytest.mark.parametrize(("dimension", "resolution"), [(0, 3), (3, 0), (-1, 2), (40, 40)])
def test_impossible_lattices_are_refused(dimension: int, resolution: int) -> None:
    with pytest.raises(InvalidInputError):
        lattice(dimension, resolution)


@pytest.mark.parametrize("accounting", ["pld", "rdp"])
@pytest.mark.parametrize("theorem", THEOREMS)
def test_a_boundary_is_the_last_feasible_point(theorem: str, accounting: str) -> None:
    rng = np.random.default_rng([3, len(theorem), len(accounting)])
    ends = edges = 0
    for _ in range(15):
        c = random_case(rng)
        rows = np.array([random_simplex(rng, len(c.checkpoints)) for _ in range(12)])
        mus = np.array([c.mu(theorem, row) for row in rows.tolist()])
        target = target_between(rng, mus.tolist(), accounting)
        weights = feasible(c, theorem, accounting, target)
        for start, end in itertools.islice(itertools.permutations(range(12), 2), 0, None, 17):
            inside, towards = rows[start], rows[end]
            if np.array_equal(inside, towards) or not meets(mus[start], target, accounting, 1e-7):
                continue
            point = weights.boundary(inside.tolist(), towards.tolist())
            place = float((point - inside) @ (towards - inside) / ((towards - inside) @ (towards - inside)))
            assert np.abs(inside + place * (towards - inside) - point).max() < 1e-12
            assert meets(c.mu(theorem, point.tolist()), target, accounting), (theorem, inside, towards, target)
            assert weights.contains(point[np.newaxis]).all()
            if place >= 1 - 1e-12:
                assert np.array_equal(point, towards) or np.abs(point - towards).max() < 1e-12
                ends += 1
                continue
            edges += 1
            further = inside + min(1.0, place + 1e-9) * (towards - inside)
            if not meets(c.mu(theorem, further.tolist()), target, accounting, 1e-11):
                continue
            # Feasible a step further on: then the step in between must be where it is not (a run that enters).
            between = inside + (place + np.geomspace(1e-15, 1e-9, 40))[:, np.newaxis] * (towards - inside)
            assert not all(meets(c.mu(theorem, row), target, accounting) for row in between.tolist())
    assert edges > 5
    assert ends > 5 or theorem == "joint_release"


@pytest.mark.parametrize("accounting", ["pld", "rdp"])
def test_no_step_is_taken_towards_a_run_that_does_not_fit_beside_the_first(accounting: str) -> None:
    """Two runs that fit one at a time and not together: no step can be taken."""
    c = case([([1.0] * 4, 20.0, 1.0), ([1.0] * 4, 21.0, 1.0), ([1.0] * 4, 100.0, 1.0)])
    alone, both = c.mu("joint_release", [1, 0, 0]), c.mu("joint_release", [1, 1, 0])
    target = target_between(np.random.default_rng(1), [alone * 1.01, both * 0.9], accounting)
    weights = feasible(c, "joint_release", accounting, target)
    assert weights.boundary([1.0, 0.0, 0.0], [0.0, 1.0, 0.0]).tolist() == [1.0, 0.0, 0.0]
    assert weights.boundary([1.0, 0.0, 0.0], [0.5, 0.5, 0.0]).tolist() == [1.0, 0.0, 0.0]
    # The third run fits beside either; and what is inside a face may go all the way.
    assert weights.boundary([1.0, 0.0, 0.0], [0.0, 0.0, 1.0]).tolist() == [0.0, 0.0, 1.0]
    assert weights.boundary([0.5, 0.0, 0.5], [1.0, 0.0, 0.0]).tolist() == [1.0, 0.0, 0.0]
    assert weights.boundary([0.5, 0.0, 0.5], [0.5, 0.0, 0.5]).tolist() == [0.5, 0.0, 0.5]


@pytest.mark.parametrize("theorem", ["last_step", "merged_trajectory"])
@pytest.mark.parametrize("noise", [4.0, 16.0, 64.0, 512.0])
def test_nothing_before_a_boundary_is_infeasible(theorem: str, noise: float) -> None:
    """One step each: the cost is greatest at precision weights, a peak as narrow as the runs' noise is unequal."""
    c = case([([1.0], noise, 1.0), ([1.0], 1.0, 1.0)])
    peak = np.array([1 / noise**2, 1.0]) / (1 + 1 / noise**2)
    edge, top = c.mu(theorem, [0.0, 1.0]), c.mu(theorem, peak.tolist())
    assert top > edge
    target = Guarantee(epsilon=float(gaussian_mp.epsilon((edge + top) / 2, 1e-5)), delta=1e-5)
    assert not meets(top, target, "pld")
    point = feasible(c, theorem, "pld", target).boundary([1.0, 0.0], [0.0, 1.0])
    assert point[1] < peak[1], "the way to the boundary leads through weights that do not meet the target"


def test_a_boundary_from_infeasible_weights_is_refused() -> None:
    c = case([([1.0] * 4, 20.0, 1.0), ([1.0] * 4, 200.0, 1.0)])
    target = target_between(
        np.random.default_rng(1), [c.mu("joint_release", [0, 1]), c.mu("joint_release", [1, 0])], "pld"
    )
    with pytest.raises(DpmergeError):
        feasible(c, "joint_release", "pld", target).boundary([1.0, 0.0], [0.0, 1.0])


@pytest.mark.parametrize("accounting", ["pld", "rdp"])
@pytest.mark.parametrize("epsilon", [1e-6, 1e-2, 1.0, 30.0, 500.0])
@pytest.mark.parametrize("delta", [1e-300, 1e-12, 1e-5, 0.4])
def test_the_budget_meets_the_target_and_a_little_more_does_not(accounting: Any, epsilon: float, delta: float) -> None:
    target = Guarantee(epsilon=epsilon, delta=delta)
    budget = mu_budget(target, accounting)
    assert budget >= 0
    if budget > 0:
        assert meets(budget, target, accounting, -1e-13 if accounting == "rdp" else 0.0)
    assert not meets(max(budget, 1e-9) * (1 + 1e-7), target, accounting)


def test_runs_without_steps_are_refused_by_all_theorems_but_joint_release() -> None:
    curve = RenyiMechanism(orders=(2.0, 4.0), values=(0.01, 0.02), adjacency=Adjacency.REPLACE_ONE)
    c = case([([1.0] * 4, 50.0, 1.0)])
    checkpoints = (Checkpoint(curve, 1), c.checkpoints[0])
    target = Guarantee(epsilon=4.0, delta=1e-5)
    joint = FeasibleWeights(Weightings(checkpoints, "joint_release", "rdp"), target)
    assert joint.contains([[0.0, 1.0]]).tolist() == [True]
    for theorem in ("last_step", "merged_trajectory", "hidden_state"):
        with pytest.raises(DpmergeError):
            FeasibleWeights(Weightings(checkpoints, theorem), target).contains([[0.5, 0.5]])


def test_gaussian_releases_are_weighted_as_single_steps() -> None:
    releases = tuple(
        Checkpoint(GaussianRelease(sensitivity=1.0, standard_deviation=s, adjacency=Adjacency.REPLACE_ONE), 1)
        for s in (2.0, 5.0)
    )
    for weights in ([0.5, 0.5], [0.1, 0.9], [1.0, 0.0]):
        noise = math.hypot(weights[0] * 2.0, weights[1] * 5.0)
        assert Weightings(releases, "last_step").mus([weights])[0] == pytest.approx(1 / noise, rel=1e-12)
