"""Plans against exhaustion: what is planned meets its target by the theorems, and nothing tried is better."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dpmerge.accounting import (
    DEFAULT_ORDERS,
    THEOREMS,
    Checkpoint,
    DpSgd,
    Exposure,
    GaussianProfile,
    LinearCombination,
    largest_mu,
)
from dpmerge.errors import DpmergeError, InvalidInputError, TargetOutOfReachError
from dpmerge.planning.plan import Plan
from dpmerge.planning.planner import plan
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.terms.guarantee import Guarantee
from oracle.planning_brute_force import (
    Prefix,
    best_average,
    best_renyi_selection,
    best_selection,
    best_vertex,
    hidden_state_mu,
    joint_release_mu,
    last_step_mu,
    merged_trajectory_mu,
    mixture_delta,
    noise_to_signal,
    prefix,
    random_simplex,
    smallest_epsilon,
    supports,
)
from planning.synthetic import ladder, portfolio, run_document
from portfolio.portfolios import DP_SGD, HISTORY, add_remove, manifest, replaced

Runs = dict[str, tuple[dict[str, Any], list[int]]]
DELTA = 1e-5


def target(epsilon: float, delta: float = DELTA) -> Guarantee:
    return Guarantee(epsilon=epsilon, delta=delta)


def gaussian_runs(rng: np.random.Generator, *, most_runs: int = 4, adjacency: str = "replace_one") -> Runs:
    """Full-batch runs of unequal schedules, clip norms, lengths and noise."""
    made: Runs = {}
    for place in range(int(rng.integers(1, most_runs + 1))):
        steps = int(rng.integers(1, 21))
        rates = rng.uniform(0.001, 0.05, steps)
        made[f"r{place}"] = (
            run_document(
                f"r{place}",
                noise_multiplier=float(10 ** rng.uniform(1.0, 2.3)),
                steps=steps,
                clip_norm=float(10 ** rng.uniform(-0.5, 1)),
                learning_rate=rates.tolist() if rng.random() < 0.5 else float(rates[0]),
                adjacency=adjacency,
            ),
            sorted({int(step) for step in rng.integers(1, steps + 1, 3)}),
        )
    return made


def prefixes(runs: Runs) -> list[list[Prefix]]:
    return [[prefix(document, step) for step in kept] for document, kept in runs.values()]


def every(runs: Runs) -> list[Prefix]:
    return [p for run in prefixes(runs) for p in run]


def targets(rng: np.random.Generator, runs: Runs, count: int, delta: float = DELTA) -> list[Guarantee]:
    """Targets between the most private checkpoint and the joint release of everything, and one above."""
    least = smallest_epsilon(math.sqrt(min(p.squared_mu for p in every(runs))), delta)
    joint = smallest_epsilon(math.sqrt(math.fsum(max(p.squared_mu for p in run) for run in prefixes(runs))), delta)
    if least == 0:  # a large δ: anything will do
        return [target(float(epsilon), delta) for epsilon in rng.uniform(1e-6, joint + 0.1, count)]
    spread = math.log(max(joint, least * 1.01) / least)
    return [target(least * math.exp(share * spread) * (1 + 1e-6), delta) for share in rng.uniform(0, 1.1, count)]


# 1. random selection


@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.4])
@pytest.mark.parametrize("seed", range(10))
def test_selection_of_gaussian_checkpoints_finds_the_best_pair(seed: int, delta: float) -> None:
    rng = np.random.default_rng([1, seed])
    runs = gaussian_runs(rng, adjacency=str(rng.choice(["replace_one", "add_remove", "zero_out"])))
    made, known = portfolio(runs), every(runs)
    mus, ratios = [math.sqrt(p.squared_mu) for p in known], [p.ratio for p in known]
    for goal in targets(rng, runs, 3, delta):
        found = plan(made, goal, method="select")
        best = best_selection(mus, ratios, goal.epsilon, goal.delta)
        assert best is not None
        assert found.noise_to_signal is not None
        assert best * (1 - 1e-9) <= found.noise_to_signal <= best * (1 + 1e-6)
        require_sound(found, runs)


@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.4])
@pytest.mark.parametrize("seed", range(5))
def test_renyi_selection_of_gaussian_checkpoints_finds_the_best_pair(seed: int, delta: float) -> None:
    rng = np.random.default_rng([2, seed])
    runs = gaussian_runs(rng)
    made, known = portfolio(runs), every(runs)
    ratios, squared = [p.ratio for p in known], [p.squared_mu for p in known]
    solved = 0
    for goal in targets(rng, runs, 4, delta):
        best = best_renyi_selection(squared, ratios, goal.epsilon, goal.delta, DEFAULT_ORDERS.tolist())
        if best is None:
            with pytest.raises(TargetOutOfReachError):
                plan(made, goal, method="select", accounting="rdp")
            continue
        found = plan(made, goal, method="select", accounting="rdp")
        assert found.noise_to_signal is not None
        assert best * (1 - 1e-8) <= found.noise_to_signal <= best * (1 + 1e-6)
        require_sound(found, runs)
        solved += 1
    assert solved or delta == 1e-12 or delta == 0.4


@pytest.mark.parametrize("epsilon", [1.6, 2.2])
def test_selection_of_sampled_checkpoints_finds_the_best_vertex(epsilon: float) -> None:
    """Poisson sampling under add_remove: the two directions are two constraints."""
    documents = {
        "a": run_document("a", noise_multiplier=0.9, steps=9, sampling_rate=0.04, adjacency="add_remove"),
        "b": run_document("b", noise_multiplier=0.7, steps=6, sampling_rate=0.02, adjacency="add_remove"),
    }
    runs: Runs = {"a": (documents["a"], [2, 9]), "b": (documents["b"], [1, 6])}
    made = portfolio(runs)
    profiles = [made.run(name).at(step).run.profile(step) for name, (_, kept) in runs.items() for step in kept]
    costs = np.array([[float(d) for d in profile.deltas(epsilon)] for profile in profiles]).T
    assert not np.allclose(costs[0], costs[1], rtol=1e-3)
    ratios = np.array([p.ratio for p in every(runs)])
    best = best_vertex(costs.tolist(), (-ratios).tolist(), [DELTA, DELTA])
    assert best is not None
    found = plan(made, target(epsilon), method="select")
    assert found.noise_to_signal == pytest.approx(-float(best[0]), rel=1e-6)
    points = np.random.default_rng(0).dirichlet(np.full(ratios.size, 0.4), 20000)
    feasible = (points @ costs.T <= DELTA).all(axis=1)
    assert feasible.any()
    assert (points[feasible] @ ratios).min() >= -float(best[0]) * (1 - 1e-9)
    for direction in range(2):
        spent = math.fsum(
            p * float(c.profile.deltas(epsilon)[direction])
            for c, p in zip(found.candidates, found.probabilities, strict=True)
        )
        assert spent <= DELTA


# 2. linear combination by joint release


@pytest.mark.parametrize("seed", range(20))
def test_no_average_within_the_target_is_better(seed: int) -> None:
    rng = np.random.default_rng([3, seed])
    runs = gaussian_runs(rng, adjacency=str(rng.choice(["replace_one", "add_remove", "zero_out"])))
    made, kept = portfolio(runs), prefixes(runs)
    for goal in targets(rng, runs, 3):
        found = plan(made, goal, method="combine", theorem="joint_release")
        budget = largest_mu(goal.epsilon, goal.delta)
        best = best_average(kept, budget * (1 - 1e-12))
        assert best is not None
        assert found.noise_to_signal is not None
        assert found.noise_to_signal <= best * (1 + 1e-9)
        fitting = [s for s in supports(kept) if math.sqrt(math.fsum(p.squared_mu for p in s)) <= budget * (1 - 1e-9)]
        for _ in range(100):
            support = fitting[int(rng.integers(len(fitting)))]
            weights = random_simplex(rng, len(support))
            assert noise_to_signal(support, weights) >= found.noise_to_signal * (1 - 1e-9)
        require_sound(found, runs)


@pytest.mark.parametrize("seed", range(8))
def test_no_average_within_the_target_is_better_by_renyi_divergence(seed: int) -> None:
    rng = np.random.default_rng([4, seed])
    runs = gaussian_runs(rng)
    made = portfolio(runs)
    orders = np.asarray(DEFAULT_ORDERS)
    penalty = np.log((orders - 1) / orders) - (math.log(DELTA) + np.log(orders)) / (orders - 1)
    for goal in targets(rng, runs, 3):
        room = goal.epsilon - penalty
        budget = math.sqrt(max(0.0, float(np.max(2 * room / orders))))
        best = best_average(prefixes(runs), budget * (1 - 1e-12))
        if best is None:
            with pytest.raises(TargetOutOfReachError):
                plan(made, goal, method="combine", theorem="joint_release", accounting="rdp")
            continue
        found = plan(made, goal, method="combine", theorem="joint_release", accounting="rdp")
        assert found.noise_to_signal is not None
        assert found.noise_to_signal <= best * (1 + 1e-9)
        require_sound(found, runs)


@pytest.mark.parametrize("count", [1, 3, 12])
def test_equal_runs_are_averaged_from_the_first(count: int) -> None:
    made = ladder(count)
    document = run_document("run-1", noise_multiplier=64.0)
    one = prefix(document, 20).squared_mu
    for k in range(1, count + 1):
        goal = target(smallest_epsilon(math.sqrt(k * one), DELTA) * (1 + 1e-7))
        found = plan(made, goal, method="combine", theorem="joint_release")
        (chosen,) = found.candidates
        assert chosen.recipe.names == tuple(f"run-{place}@20" for place in range(1, k + 1))
        assert chosen.recipe.weights == pytest.approx([1 / k] * k, rel=1e-12)


# 3. everything, recomputed

KINDS = (
    "plain",
    "smooth",
    "momentum",
    "nesterov",
    "dampening",
    "aggregate",
    "one_step",
    "add_remove",
    "shuffled",
    "decay",
)


@dataclass(frozen=True)
class Drawn:
    """A random portfolio."""

    kind: str
    runs: Runs

    @property
    def made(self) -> Portfolio:
        return portfolio(self.runs)


def random_portfolio(rng: np.random.Generator, kind: str) -> Drawn:
    """One to three runs of a kind, one to three checkpoints each, last rates sometimes zero."""
    runs: Runs = {}
    for place in range(int(rng.integers(1, 4))):
        steps = 1 if kind == "one_step" else int(rng.integers(2, 16))
        rates = rng.uniform(0.001, 0.02, steps)
        if steps > 2 and rng.random() < 0.2:
            rates[-1] = 0.0
        adjacency = "add_remove" if kind == "add_remove" or rng.random() < 0.2 else "replace_one"
        adjacency = "replace_one" if kind in ("shuffled", "smooth") else adjacency
        adjacency = runs["r0"][0]["adjacency"] if runs else adjacency
        name = f"r{place}"
        document = run_document(
            name,
            noise_multiplier=float(10 ** rng.uniform(0.8, 2.3)),
            steps=steps,
            clip_norm=float(rng.uniform(1.5, 5.0)),
            learning_rate=rates.tolist() if rng.random() < 0.6 else float(rates[0]),
            adjacency=adjacency,
            smooth=kind in ("smooth", "decay") and adjacency == "replace_one",
        )
        facts, optimizer = document["mechanism"], dict(document["mechanism"]["optimizer"])
        if kind == "aggregate":
            facts["clipping"] = "aggregate"
        if kind in ("momentum", "nesterov", "dampening"):
            optimizer["momentum"] = 0.9
        if kind == "nesterov":
            optimizer["nesterov"] = True
        if kind == "dampening":
            optimizer["dampening"] = 0.3
        if kind == "decay":
            optimizer["weight_decay"] = 0.05
        if kind == "shuffled":
            facts["sampling"], facts["steps_per_epoch"] = "shuffled", int(rng.integers(1, 5))
            facts["expected_batch_size"] = 20
        facts["optimizer"] = optimizer
        kept = sorted({int(step) for step in rng.integers(1, steps + 1, int(rng.integers(1, 4)))})
        runs[name] = (document, kept)
    return Drawn(kind, runs)


def recomputed_mu(runs: Runs, theorem: str, names: Sequence[str], weights: Sequence[float], noise: float) -> float:
    """What the named theorem says, from the manifests."""
    support = [prefix(runs[name.split("@")[0]][0], int(name.split("@")[1])) for name in names]
    if theorem == "joint_release":
        return joint_release_mu(support, weights)
    if theorem == "last_step":
        return last_step_mu(support, weights, noise)
    if theorem == "hidden_state":
        return hidden_state_mu(support, weights, noise, beta=0.5, records=100.0)
    assert noise == 0
    return merged_trajectory_mu(support, weights, prepended=theorem.endswith("prepended"))


def require_sound(found: Plan, runs: Runs) -> None:
    """Recompute a plan of Gaussian candidates from scratch: recipe, theorem, premises, cost, noise, guarantee."""
    assert sum(map(Fraction, found.probabilities)) == 1
    assert len(found.candidates) == len(found.probabilities)
    assert len({c.recipe.digest for c in found.candidates}) == len(found.candidates)
    mus, expected = [], 0.0
    for candidate, probability in zip(found.candidates, found.probabilities, strict=True):
        recipe = candidate.recipe
        names, weights, noise = recipe.names, recipe.weights, recipe.release_noise
        assert math.fsum(weights) == pytest.approx(1.0, abs=1e-12)
        checkpoints = [found.portfolio.run(n.split("@")[0]).at(int(n.split("@")[1])) for n in names]
        bound = THEOREMS[candidate.theorem](combination(checkpoints, weights, noise))
        assert bound.certifies, (candidate.theorem, bound.premises)
        assert candidate.proved
        mu = recomputed_mu(runs, candidate.theorem, names, weights, noise)
        assert bound.mu is not None
        assert bound.mu >= mu * (1 - 1e-9), (candidate.theorem, bound.mu, mu)
        assert bound.mu == pytest.approx(mu, rel=1e-6)
        assert isinstance(candidate.profile, GaussianProfile)
        assert candidate.profile.mu >= mu * (1 - 1e-9)
        mus.append(max(mu, candidate.profile.mu))
        support = [prefix(runs[n.split("@")[0]][0], int(n.split("@")[1])) for n in names]
        if len({n.split("@")[0] for n in names}) == len(names):
            ratio = noise_to_signal(support, weights, noise)
            assert candidate.noise_to_signal == pytest.approx(ratio, rel=1e-9)
            expected += probability * ratio
        assert candidate.exposed() == {
            run: max(int(n.split("@")[1]) for n in names if n.split("@")[0] == run)
            for run in {n.split("@")[0] for n in names}
        }
    assert mixture_delta(mus, found.probabilities, found.target.epsilon) <= found.target.delta
    assert mixture_delta(mus, found.probabilities, found.guarantee.epsilon) <= found.target.delta * (1 + 1e-10)
    assert found.guarantee.epsilon <= found.target.epsilon
    assert found.guarantee.delta == found.target.delta
    assert found.noise_to_signal == pytest.approx(expected, rel=1e-9)
    assert found.proved
    assert found.charged
    merges = any(c.theorem != "joint_release" for c in found.candidates)
    assert found.is_final == merges


def combination(checkpoints: Sequence[Checkpoint], weights: Sequence[float], noise: float) -> LinearCombination:
    return LinearCombination(checkpoints=checkpoints, weights=weights, release_noise=noise)


def attempt(made: Portfolio, goal: Guarantee, **settings: Any) -> Plan | None:
    try:
        return plan(made, goal, **settings)
    except TargetOutOfReachError:
        return None


def ratio(found: Plan) -> float:
    assert found.noise_to_signal is not None
    return found.noise_to_signal


@pytest.mark.parametrize("kind", KINDS)
def test_plans_of_random_portfolios_are_sound_and_mix_is_the_best(kind: str) -> None:
    """Twenty portfolios of each kind: sound, mix at least as good as the others, auto as documented."""
    rng = np.random.default_rng([5, KINDS.index(kind)])
    theorems = set()
    for _ in range(20):
        drawn = random_portfolio(rng, kind)
        delta = float(rng.choice([1e-9, 1e-5, 1e-3]))
        goals = targets(rng, drawn.runs, 2, delta)
        for goal in [*goals, target(goals[0].epsilon * 0.3, delta)]:
            theorems |= check_methods(drawn, goal, "rdp" if rng.random() < 0.3 else "pld")
    assert "joint_release" in theorems
    if kind == "smooth":
        assert "hidden_state" in theorems
    if kind in ("aggregate", "one_step"):
        assert {"merged_trajectory", "merged_trajectory_prepended", "last_step"} & theorems


def check_methods(drawn: Drawn, goal: Guarantee, accounting: Any) -> set[str]:
    """The theorems that occurred."""
    made = drawn.made
    found = {
        method: attempt(made, goal, method=method, accounting=accounting)
        for method in ("select", "combine", "mix", "auto")
    }
    best = found["mix"]
    if best is None:
        assert all(other is None for other in found.values()), (drawn, goal, accounting)
        return set()
    for method, other in found.items():
        if other is None:
            continue
        require_sound(other, drawn.runs)
        where = f"{drawn.kind} {goal} {accounting} {method}"
        assert ratio(best) <= ratio(other) * (1 + 1e-7), where
        if method == "auto":
            assert ratio(other) <= 4.1 * ratio(best), where
    assert found["auto"] is not None
    # What select reaches combine reaches too, and the other way round only where merging lowers the cost.
    if found["select"] is not None:
        assert found["combine"] is not None
    return {c.theorem for other in found.values() if other is not None for c in other.candidates}


@pytest.mark.parametrize("theorem", ["joint_release", "last_step", "hidden_state", "merged_trajectory"])
@pytest.mark.parametrize("accounting", ["pld", "rdp"])
def test_a_theorem_asked_for_by_name_is_the_one_used(theorem: Any, accounting: Any) -> None:
    rng = np.random.default_rng([6, len(theorem)])
    for kind in ("smooth", "aggregate", "one_step", "momentum"):
        for _ in range(4):
            drawn = random_portfolio(rng, kind)
            for goal in targets(rng, drawn.runs, 2):
                try:
                    found = plan(drawn.made, goal, method="combine", theorem=theorem, accounting=accounting)
                except DpmergeError:
                    continue
                (chosen,) = found.candidates
                assert chosen.theorem.startswith(theorem)
                if chosen.proved:
                    require_sound(found, drawn.runs)
                else:
                    assert theorem == "merged_trajectory"
                    assert not found.proved


@pytest.mark.parametrize("accounting", ["pld", "rdp"])
@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9])
def test_smooth_models_reach_any_target(share: float, accounting: Any) -> None:
    """Below the most private checkpoint, by release noise; a Gaussian release can be had by any noise at all."""
    rng = np.random.default_rng([7, round(100 * share)])
    for _ in range(5):
        drawn = random_portfolio(rng, "smooth")
        least = smallest_epsilon(math.sqrt(min(p.squared_mu for p in every(drawn.runs))), DELTA)
        for method in ("combine", "mix", "auto"):
            if accounting == "rdp" and least * share < 0.1:
                continue  # below what any order of Rényi divergence converts to
            found = plan(drawn.made, target(least * share), method=method, accounting=accounting)
            require_sound(found, drawn.runs)


@pytest.mark.parametrize(
    ("method", "adjacency"),
    [
        ("select", "add_remove"),
        ("combine", "add_remove"),
        ("mix", "add_remove"),
        ("auto", "replace_one"),
        ("mix", "zero_out"),
        ("auto", "zero_out"),
    ],
)
def test_plans_of_sampled_runs_stay_within_delta_both_ways(method: Any, adjacency: str) -> None:
    """Poisson batches: δ both ways of every candidate, asked of the exposure's own profile."""
    runs: Runs = {}
    for name, noise, rate in (("a", 1.2, 0.05), ("b", 0.9, 0.03)):
        document = run_document(name, noise_multiplier=noise, steps=6, sampling_rate=rate, adjacency=adjacency)
        runs[name] = (document, [2, 6])
    made = portfolio(runs)
    goal = target(2.0)
    found = plan(made, goal, method=method)
    spent = np.zeros(2)
    for candidate, probability in zip(found.candidates, found.probabilities, strict=True):
        assert candidate.theorem == "joint_release"
        checkpoints = [made.run(n.split("@")[0]).at(int(n.split("@")[1])) for n in candidate.recipe.names]
        spent += probability * np.array([float(d) for d in Exposure.of(checkpoints).profile().deltas(goal.epsilon)])
    assert (spent <= DELTA).all()
    assert found.guarantee.epsilon <= goal.epsilon


def test_a_sampled_run_beside_a_smooth_one_never_makes_a_plan_worse() -> None:
    """One sampled run makes two constraints of one; a full-batch run with release noise has scores far apart."""
    runs: Runs = {
        "a": (run_document("a", noise_multiplier=1.0, steps=6, sampling_rate=0.05, adjacency="add_remove"), [6]),
        "b": (run_document("b", noise_multiplier=20.0, steps=6, adjacency="add_remove", smooth=True), [6]),
    }
    made, without = portfolio(runs), portfolio({"b": runs["b"]})
    found = {method: plan(made, target(0.6), method=method) for method in ("combine", "mix", "auto")}  # type: ignore[arg-type]
    assert ratio(found["mix"]) <= ratio(found["combine"]) * (1 + 1e-7)
    assert ratio(found["auto"]) <= 4.1 * ratio(found["mix"])
    # A further run to choose from cannot make anything worse.
    assert ratio(found["mix"]) <= ratio(plan(without, target(0.6), method="mix")) * (1 + 1e-7)


# 7. auto, and targets above the joint release


@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("method", ["select", "combine", "mix", "auto"])
def test_a_target_above_the_joint_release_lets_averages_use_every_run_to_its_end(method: Any, smooth: bool) -> None:
    """At constant rates a later checkpoint is always better, and another run too: everything is used."""
    rng = np.random.default_rng(12)
    for _ in range(6):
        runs = random_portfolio(rng, "smooth" if smooth else "plain").runs
        for document, kept in runs.values():
            block = document["mechanism"]["blocks"][0]
            block["learning_rate"] = 0.01
            kept[-1] = block["steps"]
        made = portfolio(runs)
        joint = smallest_epsilon(math.sqrt(math.fsum(max(p.squared_mu for p in run) for run in prefixes(runs))), DELTA)
        found = plan(made, target(joint * 1.01), method=method)
        assert found.above_joint_release
        assert found.joint_epsilon == pytest.approx(joint, rel=1e-9)
        below = attempt(made, target(joint * 0.99), method=method)
        assert below is None or not below.above_joint_release
        used = {run.label: step for run, step in found.exposure.steps.items()}
        whole = {name: kept[-1] for name, (_, kept) in runs.items()}
        least = 1 / math.fsum(run[-1].precision for run in prefixes(runs))
        if method in ("combine", "mix"):
            assert used == whole
            assert ratio(found) == pytest.approx(least, rel=1e-7)
        elif method == "auto":  # what adds less than 1 % may be left out
            assert ratio(found) <= least * 1.0102
            assert all(step == whole[name] for name, step in used.items())


# 8. out of reach


@pytest.mark.parametrize("accounting", ["pld", "rdp"])
@pytest.mark.parametrize("method", ["select", "combine", "mix", "auto"])
def test_a_target_out_of_reach_is_refused_with_the_smallest_that_can_be_planned(method: Any, accounting: Any) -> None:
    rng = np.random.default_rng(13)
    for _ in range(6):
        runs = gaussian_runs(rng)
        made = portfolio(runs)
        mu = math.sqrt(min(p.squared_mu for p in every(runs)))
        if accounting == "pld":
            least = smallest_epsilon(mu, DELTA)
        else:
            orders = np.asarray(DEFAULT_ORDERS)
            penalty = np.log((orders - 1) / orders) - (math.log(DELTA) + np.log(orders)) / (orders - 1)
            least = float(np.min(orders * mu**2 / 2 + penalty))
        with pytest.raises(TargetOutOfReachError) as caught:
            plan(made, target(least * 0.5), method=method, accounting=accounting)
        # last_step may be a little below the single checkpoint, never above.
        assert caught.value.smallest <= least * (1 + 1e-8)
        if method == "select":
            assert caught.value.smallest == pytest.approx(least, rel=1e-8)
        found = plan(made, target(caught.value.smallest * (1 + 1e-6)), method=method, accounting=accounting)
        assert found.guarantee.epsilon <= caught.value.smallest * (1 + 1e-6)
        require_sound(found, runs)


@pytest.mark.parametrize("method", ["select", "combine", "mix", "auto"])
def test_the_smallest_target_named_can_be_planned_where_noise_is_unknown(method: Any) -> None:
    """The most private model is one whose noise nobody recorded."""
    history = manifest("h", mechanism=replaced(HISTORY, "blocks", 0, "noise_multiplier", to=500.0))
    made = portfolio({"h": (history, (4,)), "a": (run_document("a", noise_multiplier=30.0), (20,))})
    with pytest.raises(TargetOutOfReachError) as caught:
        plan(made, target(1e-4), method=method)
    plan(made, target(caught.value.smallest * (1 + 1e-6)), method=method)


# 9. weird and legal


def one_run(**settings: Any) -> Portfolio:
    return portfolio({"a": (run_document("a", **({"noise_multiplier": 40.0} | settings)), (5, 20))})


def with_parent() -> Portfolio:
    child = run_document(
        "b", noise_multiplier=40.0, ancestry={"start": "private", "run": "a", "step": 10}, initial_weights=None
    )
    runs = {
        "a": (run_document("a", noise_multiplier=60.0), (10, 20)),
        "b": (child, (10, 20)),
        "c": (run_document("c", noise_multiplier=50.0), (20,)),
    }
    return portfolio(runs)


def mixed_kinds(adjacency: str = "replace_one") -> Portfolio:
    release = {"kind": "gaussian_release", "sensitivity": 1.0, "standard_deviation": 8.0}
    curve = {"kind": "renyi", "orders": [2.0, 4.0, 16.0, 64.0], "values": [0.01, 0.02, 0.08, 0.32]}
    pairs = {"kind": "approximate_dp", "points": [{"epsilon": 0.5, "delta": 1e-6}, {"epsilon": 0.2, "delta": 1e-4}]}
    documents = {
        "s": manifest("s", mechanism={**DP_SGD, "blocks": [{**DP_SGD["blocks"][0], "noise_multiplier": 30.0}]}),
        "h": manifest("h", mechanism=replaced(HISTORY, "blocks", 0, "noise_multiplier", to=25.0)),
        "g": manifest("g", mechanism=release),
        "r": manifest("r", mechanism=curve),
        "p": manifest("p", mechanism=pairs),
    }
    if adjacency == "add_remove":
        documents = {name: add_remove(document) for name, document in documents.items()}
    documents = {name: {**document, "adjacency": adjacency} for name, document in documents.items()}
    steps = {"s": (2, 4), "h": (2, 4), "g": (1,), "r": (1,), "p": (1,)}
    return portfolio({name: (document, steps[name]) for name, document in documents.items()})


def odd_portfolios() -> dict[str, Portfolio]:
    zero_end = [0.01] * 3 + [0.0] * 17
    return {
        "one run": one_run(),
        "one checkpoint": ladder(1),
        "one smooth checkpoint": ladder(1, smooth=True),
        "twelve equal runs": ladder(12, (5, 20)),
        "twelve equal smooth runs": ladder(12, smooth=True),
        "rates zero at the end": one_run(learning_rate=zero_end),
        "smooth rates zero at the end": one_run(learning_rate=zero_end, smooth=True),
        "rates all zero": one_run(learning_rate=[0.0] * 20),
        "smooth rates all zero": one_run(learning_rate=[0.0] * 20, smooth=True),
        "step 0 kept": ladder(3, (0, 20)),
        "only step 0 kept": ladder(2, (0,)),
        "smooth step 0 kept": ladder(2, (0, 20), smooth=True),
        "histories only": portfolio({n: (manifest(n, mechanism=HISTORY), (2, 4)) for n in "ab"}),
        "all kinds": mixed_kinds(),
        "all kinds, add_remove": mixed_kinds("add_remove"),
        "all kinds, zero_out": mixed_kinds("zero_out"),
        "a private parent": with_parent(),
        "tiny noise": one_run(noise_multiplier=1e-3),
        "huge noise": one_run(noise_multiplier=1e9),
        "no noise": one_run(noise_multiplier=0.0),
        "tiny rates": one_run(learning_rate=1e-12),
        "huge rates": one_run(learning_rate=1e12),
        "smooth huge rates": one_run(learning_rate=1e3, smooth=True),
        "noise far apart": ladder(4, noise=[1e-2, 1.0, 1e3, 1e6]),
        "smooth, noise far apart": ladder(3, noise=[1.0, 1e3, 1e6], smooth=True),
    }


UNPLANNABLE = (
    "only step 0 kept",
    "histories only",
    "no noise",
    "tiny noise",
    "rates all zero",
    "smooth rates all zero",
)
GOALS = [(1e-6, 1e-5), (0.3, 1e-5), (3.0, 1e-12), (500.0, 1e-5), (1.0, 0.4), (0.05, 0.4), (1.0, 1e-300), (40.0, 1e-300)]


@pytest.mark.parametrize("name", sorted(odd_portfolios()))
def test_odd_portfolios_are_planned_or_refused(name: str) -> None:
    made = odd_portfolios()[name]
    planned = 0
    for epsilon, delta in GOALS:
        goal = target(epsilon, delta)
        for method in ("select", "combine", "mix", "auto"):
            for accounting in ("pld", "rdp"):
                try:
                    found = plan(made, goal, method=method, accounting=accounting)  # type: ignore[arg-type]
                except DpmergeError:
                    continue
                planned += 1
                require_within(found)
                found.document()
    assert planned or name in UNPLANNABLE


@pytest.mark.parametrize("objective", ["noise", "saturate"])
@pytest.mark.parametrize("theorem", ["auto", "joint_release", "last_step", "hidden_state", "merged_trajectory"])
def test_odd_portfolios_meet_their_target_by_every_theorem_and_objective(theorem: Any, objective: Any) -> None:
    for made in odd_portfolios().values():
        for epsilon, delta in ((0.3, 1e-5), (4.0, 1e-5)):
            try:
                found = plan(made, target(epsilon, delta), theorem=theorem, objective=objective)
            except DpmergeError:
                continue
            require_within(found)


@pytest.mark.parametrize("method", ["select", "combine", "mix", "auto"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_delta_at_which_every_model_costs_nothing_lets_averages_use_all_of_them(count: int, method: Any) -> None:
    """δ = 0.4: by it alone every model here is private, at ε = 0."""
    found = plan(ladder(count), target(1.0, 0.4), method=method)
    assert found.guarantee.epsilon <= 1.0
    if method != "select":
        assert len(found.exposure.steps) == count


@pytest.mark.parametrize("method", ["select", "combine", "mix", "auto"])
def test_models_of_unknown_noise_are_not_said_to_be_out_of_reach(method: Any) -> None:
    """Nothing is wrong with the target: the refusal gives the reason, and what would be accepted."""
    made = portfolio({name: (manifest(name, mechanism=HISTORY), (2, 4)) for name in "ab"})
    with pytest.raises(InvalidInputError, match="accepted: saturate, prior or public_evaluation"):
        plan(made, target(4.0), method=method)


@pytest.mark.parametrize("method", ["combine", "mix", "auto"])
@pytest.mark.parametrize("epsilon", [0.02, 0.05, 0.2, 0.5])
def test_release_noise_reaches_any_target_by_renyi_divergence(epsilon: float, method: Any) -> None:
    found = plan(ladder(1, smooth=True), target(epsilon), method=method, accounting="rdp")
    # Release noise is rounded up to six digits.
    assert epsilon * (1 - 1e-5) <= found.guarantee.epsilon <= epsilon


def require_within(found: Plan) -> None:
    """The mixture's δ at the target, summed from the candidates' own profiles, both ways."""
    assert sum(map(Fraction, found.probabilities)) == 1
    assert found.guarantee.epsilon <= found.target.epsilon
    profiles = [candidate.profile for candidate in found.candidates]
    if found.accounting == "pld":
        for direction in range(2):
            spent = math.fsum(
                p * float(profile.deltas(found.target.epsilon)[direction])
                for profile, p in zip(profiles, found.probabilities, strict=True)
            )
            assert spent <= found.target.delta * (1 + 1e-10)
    for candidate in found.candidates:
        checkpoints = [found.portfolio.run(n.split("@")[0]).at(int(n.split("@")[1])) for n in candidate.recipe.names]
        bound = THEOREMS[candidate.theorem](
            combination(checkpoints, candidate.recipe.weights, candidate.recipe.release_noise)
        )
        assert bound.certifies == candidate.proved


def test_a_child_is_charged_with_its_parents_steps() -> None:
    """b started from a@10: releasing b@10 costs ten steps of a as well, b@10 and a@20 twenty of them."""
    made = with_parent()
    parent = prefix(run_document("a", noise_multiplier=60.0), 10).squared_mu
    own = prefix(run_document("b", noise_multiplier=40.0), 20).squared_mu
    lone = prefix(run_document("c", noise_multiplier=50.0), 20).squared_mu
    joint = smallest_epsilon(math.sqrt(2 * parent + own + lone), DELTA)
    found = plan(made, target(joint * 1.01))
    assert found.joint_epsilon == pytest.approx(joint, rel=1e-9)
    rng = np.random.default_rng(0)
    for epsilon in rng.uniform(0.4, joint, 12):
        for method in ("select", "combine", "mix", "auto"):
            found = plan(made, target(float(epsilon)), method=method)  # type: ignore[arg-type]
            mus = []
            for candidate in found.candidates:
                steps: dict[str, int] = {}
                for name in candidate.recipe.names:
                    run, step = name.split("@")
                    steps[run] = max(steps.get(run, 0), int(step))
                if "b" in steps:
                    steps["a"] = max(steps.get("a", 0), 10)
                noise = {"a": 60.0, "b": 40.0, "c": 50.0}
                whole = math.sqrt(math.fsum(step * (2 / noise[run]) ** 2 for run, step in steps.items()))
                assert candidate.exposed() == steps
                assert isinstance(candidate.profile, GaussianProfile)
                if candidate.theorem == "joint_release":
                    assert candidate.profile.mu == pytest.approx(whole, rel=1e-9)
                mus.append(candidate.profile.mu)
            assert mixture_delta(mus, found.probabilities, float(epsilon)) <= DELTA


def test_runs_of_equal_settings_share_no_exposure() -> None:
    """Twelve runs of identical settings are twelve runs: no two share an exposure."""
    made = ladder(12)
    assert len({id(run.mechanism) for run in made.runs}) == 12
    assert all(isinstance(run.mechanism, DpSgd) for run in made.runs)
    found = plan(made, target(50.0), method="combine")
    assert len(found.exposure.steps) == 12
