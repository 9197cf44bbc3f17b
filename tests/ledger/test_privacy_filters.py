"""The three rules, by values; and the rule that everybody would think of first, which fails."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest
from scipy.stats import norm

from dpmerge.errors import CapExceededError, InvalidInputError, NoGuaranteeError
from dpmerge.ledger import Cap, Charge, Ledger
from dpmerge.ledger.caps import best_order, gaussian_budget, renyi_budget
from dpmerge.ledger.privacy_filters import selected
from dpmerge.ledger.state import State
from dpmerge.portfolio.manifest import Manifest
from dpmerge.terms.candidate_terms import Validation
from ledger.releases import SCOPE, capped, child, drawing, entered, exactly, first, request, run, seeded
from portfolio.portfolios import manifest

DELTA = 1e-5


def delta_of(mu: float, epsilon: float) -> float:
    """δ of μ-GDP, as any textbook has it."""
    if mu == 0:
        return 0.0
    return float(norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2))


# Checking the average δ of each new plan against the cap


def test_checking_each_draws_average_passes_the_cap_and_the_three_filters_keep_it() -> None:
    """A lucky draw hands the allowance out again: after 1000 releases the true δ is many times the cap's."""
    epsilon, releases = 1.0, 1000
    ladder = run("r", 20.0, steps=400)
    low, high = 5, 400
    mu = {step: math.sqrt(step) * 2 / 20.0 for step in (low, high)}
    delta = {step: delta_of(mu[step], epsilon) for step in (low, high)}
    chance = (0.99 * DELTA - delta[low]) / (delta[high] - delta[low])
    assert 0 < chance < 1
    # Each new plan by itself keeps the average within the cap, however many came before: the naive rule allows all.
    assert (1 - chance) * delta[low] + chance * delta[high] <= DELTA
    lucky = (1 - chance) ** releases
    true = lucky * delta[low] + (1 - lucky) * delta[high]
    assert true > 77 * DELTA
    drawn = np.random.default_rng(0).random((20_000, releases)) < chance
    simulated = np.where(drawn.any(axis=1), delta[high], delta[low]).mean()
    assert simulated == pytest.approx(true, rel=0.3)

    asked = request([ladder], f"r@{low}", f"r@{high}", probabilities=[1 - chance, chance])
    for cap in (
        Cap.of_manifests(epsilon, DELTA, {"r": low}, [ladder]),
        Cap(epsilon=epsilon, delta=DELTA, rule="gaussian_filter"),
    ):
        with pytest.raises(CapExceededError):
            entered(capped(cap), asked, 0)

    state = capped(Cap(epsilon=epsilon, delta=DELTA, rule="renyi_filter", order=12.0))
    allowed = as_many_as_possible(state, [asked] * releases)
    assert allowed < releases
    lucky = (1 - chance) ** allowed
    assert lucky * delta[low] + (1 - lucky) * delta[high] <= DELTA


def as_many_as_possible(state: State, asked: Iterable[Charge]) -> int:
    """How many releases are allowed, of each of which the first candidate is drawn."""
    allowed = 0
    for each in asked:
        try:
            entered(state, each, 0)
        except CapExceededError:
            break
        allowed += 1
    return allowed


# Ceiling


def test_a_ceiling_allows_everything_within_it_and_nothing_else(ledger: Ledger) -> None:
    a, b = run("a", 64.0), run("b", 32.0)
    ledger.set_cap(SCOPE, Cap.of_manifests(1.0, DELTA, {"a": 20, "b": 5}, [a, b]))
    for step in (20, 3, 20, 7):
        ledger.charge(request([a, b], f"a@{step}", {"a@2": 0.5, "b@5": 0.5}), drawing(step % 2))
    with pytest.raises(CapExceededError, match="needed b@6, allowed b@5"):
        ledger.charge(request([a, b], "a@1", "b@6"), first)
    with pytest.raises(CapExceededError, match="needed c@1, allowed no step"):
        ledger.charge(request([run("c", 64.0)], "c@1"), first)
    standing = ledger.budget_report(SCOPE, DELTA)
    assert standing.epsilon is not None
    assert standing.epsilon <= 1.0
    assert standing.left is not None
    assert (standing.left.limit, standing.left.spent) == (25, 25)


def test_final_releases_lie_within_the_ceiling_too(ledger: Ledger) -> None:
    one, two = run("one", 8.0, steps=1), run("two", 2.0, steps=1)
    merged = {"one@1": 0.99, "two@1": 0.01}
    ledger.set_cap(SCOPE, Cap.of_manifests(2.0, DELTA, {"one": 1}, [one, two]))
    with pytest.raises(CapExceededError, match="needed two@1"):
        ledger.charge(request([one, two], merged, theorem="merged_trajectory", final=True), first)


def test_the_joint_release_of_a_ceiling_fits_the_cap(ledger: Ledger) -> None:
    a = run("a", 8.0)
    fits = max(step for step in range(1, 21) if delta_of(math.sqrt(step) * 2 / 8, 2.0) <= DELTA)
    assert 1 <= fits < 20
    with pytest.raises(
        CapExceededError, match=r"the joint release of the ceiling has δ .* at ε 2, above the 1e-05 of the cap"
    ):
        ledger.set_cap(SCOPE, Cap.of_manifests(2.0, DELTA, {"a": fits + 1}, [a]))
    ledger.set_cap(SCOPE, Cap.of_manifests(2.0, DELTA, {"a": fits}, [a]))
    assert ledger.verify().ok


def test_a_ceiling_includes_the_ancestors_of_its_runs(ledger: Ledger) -> None:
    parent, kid = run("parent", 64.0), child("kid", "parent", 5, 64.0)
    ledger.set_cap(SCOPE, Cap.of_manifests(1.0, DELTA, {"kid": 5}, [parent, kid]))
    ledger.charge(request([parent, kid], "kid@5"), first)
    ledger.charge(request([parent, kid], "parent@5"), first)
    with pytest.raises(CapExceededError, match="needed parent@6, allowed parent@5"):
        ledger.charge(request([parent, kid], "parent@6"), first)


def test_a_record_edited_after_the_ceiling_was_priced_is_refused(ledger: Ledger) -> None:
    ledger.set_cap(SCOPE, Cap.of_manifests(1.0, DELTA, {"a": 20}, [run("a", 64.0)]))
    with pytest.raises(NoGuaranteeError, match=r"noise_multiplier is not what it was"):
        ledger.charge(request([run("a", 8.0)], "a@20"), first)


def test_a_ceiling_of_runs_with_one_seed_is_refused(ledger: Ledger) -> None:
    pair = [seeded("a", 42, 64.0), seeded("b", 42, 64.0)]
    with pytest.raises(NoGuaranteeError, match="a and b share a noise seed"):
        ledger.set_cap(SCOPE, Cap.of_manifests(1.0, DELTA, {"a": 1, "b": 1}, pair))


def test_a_ceiling_of_runs_that_descend_from_themselves_is_refused(ledger: Ledger) -> None:
    circle = [child("a", "b", 5, 64.0), child("b", "a", 5, 64.0)]
    with pytest.raises(InvalidInputError, match="accepted: a parent that does not descend from this run"):
        ledger.set_cap(SCOPE, Cap.of_manifests(1.0, DELTA, {"a": 1}, circle))


# Gaussian filter


def test_the_gaussian_filter_counts_the_high_water_mark_and_the_largest_of_every_final_release(ledger: Ledger) -> None:
    limit = gaussian_budget(4.0, DELTA)
    assert delta_of(math.sqrt(limit), 4.0) == pytest.approx(DELTA, rel=1e-9)
    ledger.set_cap(SCOPE, Cap(epsilon=4.0, delta=DELTA, rule="gaussian_filter"))
    a = run("a", 8.0)
    ledger.charge(request([a], "a@2", "a@5"), first)
    pairs = [run(name, 4.0, steps=1) for name in ("p", "q")]
    candidates = ({"p@1": 0.5, "q@1": 0.5}, {"p@1": 0.9, "q@1": 0.1})
    ledger.charge(request(pairs, *candidates, theorem="merged_trajectory", final=True), first)
    dearest = max((2 * 1.0) ** 2 / (16 * (w * w + (1 - w) ** 2)) for w in (0.5, 0.9))
    left = ledger.budget_report(SCOPE, DELTA).left
    assert left is not None
    assert left.spent == pytest.approx(2 * (2 / 8) ** 2 + dearest, rel=1e-12)
    assert left.limit == limit
    most = math.floor((limit - dearest) / (2 / 8) ** 2)
    with pytest.raises(
        CapExceededError, match=r"the privacy filter gaussian_filter has .* left \(in μ²\), and this release could need"
    ):
        ledger.charge(request([a], "a@1", f"a@{most + 1}"), first)
    ledger.charge(request([a], f"a@{most}"), first)
    assert ledger.verify().ok


def test_a_release_exactly_at_the_cap_is_decided_on_the_safe_side() -> None:
    """Of all noise multipliers near the one that just fits, none that is allowed breaks the cap."""
    mu = math.sqrt(gaussian_budget(1.0, DELTA))
    allowed = []
    for place in range(-20, 21):
        state = capped(Cap(epsilon=1.0, delta=DELTA, rule="gaussian_filter"))
        noise = 2 / mu * (1 + place * 1e-13)
        allowed += [place] * as_many_as_possible(state, [request([run("a", noise, steps=1)], "a@1")])
    assert min(allowed) > 0
    assert 20 in allowed


def test_the_gaussian_filter_refuses_sampled_runs() -> None:
    state = capped(Cap(epsilon=4.0, delta=DELTA, rule="gaussian_filter"))
    with pytest.raises(NoGuaranteeError, match="adds up full-batch runs only"):
        entered(state, request([run("a", 1.0, sampling_rate=0.01)], "a@5"), 0)


# Rényi filter


def divergence(sigma: float, step: int, order: float) -> float:
    return order * step * (2 / sigma) ** 2 / 2


def test_a_draw_costs_the_log_mean_exponential_of_its_candidates_divergences() -> None:
    order = 8.0
    a = run("a", 40.0)
    state = capped(Cap(epsilon=2.0, delta=DELTA, rule="renyi_filter", order=order))
    found = state.scopes[SCOPE.id]
    probabilities = exactly([0.75, 0.25])
    entered(state, request([a], "a@2", "a@10", probabilities=probabilities), 1)
    added = [divergence(40.0, step, order) for step in (2, 10)]
    first_cost = math.log(0.75 * math.exp(7 * added[0]) + 0.25 * math.exp(7 * added[1])) / 7
    assert found.spent == pytest.approx(first_cost, rel=1e-10)
    # The mark is at 10 now: what lies below adds nothing, whatever was drawn.
    entered(state, request([a], "a@2", "a@10"), 0)
    assert found.spent == pytest.approx(first_cost, rel=1e-10)
    entered(state, request([a], "a@12"), 0)
    assert found.spent == pytest.approx(first_cost + divergence(40.0, 2, order), rel=1e-10)


def test_the_renyi_budget_is_the_conversion_at_one_order() -> None:
    epsilon, order = 2.0, 8.0
    budget = renyi_budget(epsilon, DELTA, order)
    converted = budget + math.log((order - 1) / order) - (math.log(DELTA) + math.log(order)) / (order - 1)
    assert converted == pytest.approx(epsilon, rel=1e-10)
    assert converted <= epsilon
    with pytest.raises(InvalidInputError, match="^cap.order: got 2.0; accepted: an order at which something is left"):
        Cap(epsilon=2.0, delta=DELTA, rule="renyi_filter", order=2.0)


def test_the_default_order_is_the_best_for_a_gaussian_that_fits_the_cap() -> None:
    cap = Cap(epsilon=2.0, delta=DELTA, rule="renyi_filter")
    assert cap.order == best_order(2.0, DELTA)
    # How many equal full-batch steps fit: no other order of the grid allows more.
    allowed = {order: renyi_budget(2.0, DELTA, order) / order for order in (6.0, 8.0, 10.0, 12.0, 16.0, 20.0, 32.0)}
    assert renyi_budget(2.0, DELTA, cap.order) / cap.order >= 0.98 * max(allowed.values())


@pytest.mark.parametrize("rates", [None, 0.01])
def test_the_renyi_filter_refuses_before_the_cap_is_passed(rates: float | None) -> None:
    sigma = 40.0 if rates is None else 1.0
    settings = {} if rates is None else {"sampling_rate": rates, "adjacency": "add_remove"}
    a = run("a", sigma, steps=3000, **settings)
    scope = SCOPE if rates is None else request([a], "a@1").scope
    cap = Cap(epsilon=2.0, delta=DELTA, rule="renyi_filter")
    state = capped(cap, scope)
    allowed = as_many_as_possible(state, (request([a], f"a@{step}") for step in range(10, 3000, 10)))
    released = state.scopes[scope.id].exposed
    assert list(released.values()) == [10 * allowed]
    assert 0 < allowed < 299
    assert state.scopes[scope.id].prices.joint(released).epsilon(DELTA) <= 2.0


def test_the_log_mean_exponential_lies_between_its_smallest_and_largest_term() -> None:
    assert selected([1.0], [0.5], 4.0) == pytest.approx(0.5, rel=1e-11)
    assert 0.1 <= selected([0.5, 0.5], [0.1, 900.0], 1024.0) <= 900.0
    assert selected([2.0**-53, 1 - 2.0**-53], [700.0, 0.0], 2.0) == pytest.approx(700 - 53 * math.log(2), rel=1e-9)
    with pytest.raises(NoGuaranteeError):
        selected([0.5, 0.5], [0.1, math.inf], 2.0)


# What no cap covers


@pytest.mark.parametrize("rule", ["ceiling", "gaussian_filter", "renyi_filter"])
def test_under_a_cap_an_uncharged_choice_is_refused(ledger: Ledger, rule: str) -> None:
    a = run("a", 64.0)
    set_cap(ledger, rule, a)
    with pytest.raises(CapExceededError, match="how this release was chosen is not charged"):
        ledger.charge(request([a], "a@1", kind="uncharged"), first)
    with pytest.raises(CapExceededError, match="nobody vouches that the validation set"):
        ledger.charge(request([a], "a@1", kind="private_validation", validation=Validation(epsilon=0.1)), first)
    apart = Validation(epsilon=0.4, disjoint_vouched_by="the tests")
    for _ in range(2):
        ledger.charge(request([a], "a@1", kind="private_validation", validation=apart), first)
    with pytest.raises(CapExceededError, match="the people of the validation set have ε 0.2 left"):
        ledger.charge(request([a], "a@1", kind="private_validation", validation=apart), first)


@pytest.mark.parametrize("rule", ["gaussian_filter", "renyi_filter"])
def test_under_a_cap_a_release_without_an_epsilon_is_refused(ledger: Ledger, rule: str) -> None:
    set_cap(ledger, rule, run("a", 64.0))
    bare = Manifest.model_validate(manifest("n", mechanism={"kind": "non_private"}))
    with pytest.raises((NoGuaranteeError, CapExceededError)):
        ledger.charge(request([bare], "n@1"), first)
    unknown = run("u", 64.0, noise={"source": "unknown"})
    ledger.charge(request([unknown], "u@1"), first)
    with pytest.raises(NoGuaranteeError, match="nobody says where the noise of u came from"):
        ledger.charge(request([run("a", 64.0)], "a@1"), first)


def set_cap(ledger: Ledger, rule: str, over: Manifest) -> None:
    if rule == "ceiling":
        ledger.set_cap(SCOPE, Cap.of_manifests(1.0, DELTA, {over.run: 20}, [over]))
    else:
        ledger.set_cap(SCOPE, Cap(epsilon=1.0, delta=DELTA, rule=rule))  # type: ignore[arg-type]


# Setting and changing a cap


def test_a_cap_set_later_counts_earlier_releases(ledger: Ledger) -> None:
    a = run("a", 40.0)
    for step in (4, 2, 8):
        ledger.charge(request([a], f"a@{step}", "a@1"), first)
    order = 8.0
    ledger.set_cap(SCOPE, Cap(epsilon=2.0, delta=DELTA, rule="renyi_filter", order=order))
    half = [exactly([0.5, 0.5])[0]] * 2
    expected, mark = 0.0, 0
    for step in (4, 2, 8):
        added = [max(0.0, divergence(40.0, each, order) - divergence(40.0, mark, order)) for each in (step, 1)]
        expected += selected(half, added, order)
        mark = max(mark, step)
    standing = ledger.budget_report(SCOPE, DELTA)
    assert standing.left is not None
    assert standing.left.spent == pytest.approx(expected, rel=1e-9)
    assert any("before the cap was set: 3" in caveat for caveat in standing.caveats)
    assert ledger.verify().ok


@pytest.mark.parametrize("rule", ["ceiling", "gaussian_filter", "renyi_filter"])
def test_a_cap_below_what_was_spent_is_refused(ledger: Ledger, rule: str) -> None:
    ledger.charge(request([run("dear", 1.0)], "dear@20"), first)
    refusal = "was released and is above the ceiling"
    if rule != "ceiling":
        refusal = f"what was released already has ε of about [0-9.]+ by {rule}, above the [0-9.]+ of the cap"
    with pytest.raises(CapExceededError, match=refusal):
        set_cap(ledger, rule, run("a", 64.0))


def test_a_cap_cannot_change_its_filter_or_order(ledger: Ledger) -> None:
    ledger.set_cap(SCOPE, Cap(epsilon=2.0, delta=DELTA, rule="renyi_filter", order=8.0))
    with pytest.raises(
        InvalidInputError,
        match="^cap.privacy_filter: the cap was .* renyi_filter, and gaussian_filter would",
    ):
        ledger.set_cap(SCOPE, Cap(epsilon=2.0, delta=DELTA, rule="gaussian_filter"))
    with pytest.raises(InvalidInputError, match="^cap.order: the cap was first set with 8.0, and 9.0 would"):
        ledger.set_cap(SCOPE, Cap(epsilon=2.0, delta=DELTA, rule="renyi_filter", order=9.0))
    ledger.charge(request([run("a", 40.0)], "a@8"), first)
    ledger.set_cap(SCOPE, Cap(epsilon=1.9, delta=DELTA, rule="renyi_filter", order=8.0))
    cap = ledger.budget_report(SCOPE, DELTA).cap
    assert cap is not None
    assert cap.epsilon == 1.9
    assert ledger.verify().ok


def test_a_cap_after_an_uncharged_choice_is_refused(ledger: Ledger) -> None:
    ledger.charge(request([run("a", 64.0)], "a@1", kind="uncharged"), first)
    with pytest.raises(CapExceededError, match="no cap covers it"):
        ledger.set_cap(SCOPE, Cap(epsilon=2.0, delta=DELTA, rule="gaussian_filter"))
    assert any("does not cover how 1" in caveat for caveat in ledger.budget_report(SCOPE, DELTA).caveats)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"rule": "hope"}, "cap.privacy_filter"),
        ({"rule": "ceiling"}, "cap.ceiling"),
        ({"rule": "gaussian_filter", "order": 8.0}, "cap.order"),
        ({"rule": "renyi_filter", "order": 1.0}, "cap.order"),
        ({"rule": "gaussian_filter", "delta": 0.0}, "cap.delta"),
        ({"rule": "gaussian_filter", "epsilon": math.inf}, "cap.epsilon"),
        ({"rule": "ceiling", "ceiling": {"0" * 64: 1}}, "cap.statements"),
    ],
)
def test_an_invalid_cap_names_the_field(settings: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        Cap(**{"epsilon": 1.0, "delta": DELTA, **settings})  # type: ignore[arg-type]
    assert refused.value.field == field
