"""What a hostile reader tried: each would be a false guarantee, a missing mark, or a traceback."""

from __future__ import annotations

import io
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import dpmerge as dpm
from dpmerge import accounting as dp
from dpmerge.accounting.premises import Premise
from dpmerge.errors import EvaluationError, InvalidInputError, NoGuaranteeError, TargetOutOfReachError
from dpmerge.planning.analysis import Analysis
from dpmerge.planning.candidates import candidate
from dpmerge.planning.feasible_weights import rounded_up
from dpmerge.planning.frontier import frontier
from dpmerge.planning.look_set import look_set
from dpmerge.planning.plan_table import explained, print_plan
from dpmerge.planning.usable_checkpoints import usable_checkpoints
from dpmerge.terms.recipe import Recipe
from planning.synthetic import ladder, portfolio, run_document

EXAMPLES = Path(__file__).parents[2] / "examples"
DELTA = 1e-5


def target(epsilon: float, delta: float = DELTA) -> dpm.Guarantee:
    return dpm.Guarantee(epsilon=epsilon, delta=delta)


@pytest.fixture(scope="module")
def probe() -> dpm.Portfolio:
    return dpm.Portfolio.load(EXAMPLES / "probe")


@pytest.fixture(scope="module")
def mnist() -> dpm.Portfolio:
    return dpm.Portfolio.load(EXAMPLES / "mnist")


def of_unknown_noise() -> dpm.Portfolio:
    unknown = {"source": "unknown"}
    return portfolio(
        {
            "a": (run_document("a", noise_multiplier=64), [10, 20]),
            "b": (run_document("b", noise_multiplier=60, noise=unknown), [10, 20]),
            "c": (run_document("c", noise_multiplier=60), [20]),
        }
    )


@pytest.mark.parametrize("method", ["auto", "select", "combine", "mix"])
@pytest.mark.parametrize("objective", ["noise", "saturate"])
def test_runs_of_unknown_noise_are_never_averaged_with_others(method: Any, objective: Any) -> None:
    made = dpm.plan(of_unknown_noise(), target(0.8), method=method, objective=objective)
    for chosen in made.candidates:
        runs = {name.split("@")[0] for name in chosen.recipe.names}
        assert runs == {"b"} or "b" not in runs


def test_a_look_set_without_a_joint_cost_is_refused() -> None:
    known = usable_checkpoints(of_unknown_noise(), DELTA)
    look = look_set(known, target(1.0), None, "pld")
    assert look.exposure.profile().epsilon(DELTA) <= 1.0
    with pytest.raises(NoGuaranteeError, match="nobody says where the noise of b came from"):
        look_set(known, target(1.0), ["a@20", "b@20"], "pld")


def test_frontiers_of_runs_of_unknown_noise_hold_no_average_of_them() -> None:
    unknown = {"source": "unknown"}
    both = portfolio(
        {
            "a": (run_document("a", noise_multiplier=64, noise=unknown), [20]),
            "b": (run_document("b", noise_multiplier=60, noise=unknown), [20]),
        }
    )
    found = frontier(both, DELTA, targets=4)
    best_single = min(model.utility for model in found.models)
    for curve in found.curves:
        if curve.proved:
            assert np.nanmin(curve.utilities) >= best_single * (1 - 1e-9)


def test_what_is_printed_costs_no_more_than_is_printed_beside_it(probe: dpm.Portfolio) -> None:
    for epsilon in (0.05, 0.11, 0.3, 0.47, 0.8):
        made = dpm.plan(probe, target(epsilon))
        [chosen] = made.candidates
        text = explained(made)
        [noise] = [float(words.split("deviation ")[1].split()[0]) for words in [" ".join(text.split())]]
        if len(chosen.recipe.parts) == 1:
            printed = Recipe.of(chosen.recipe.parts, release_noise=noise)
            assert candidate(probe, printed, delta=DELTA).profile.epsilon(DELTA) <= epsilon
            assert str(printed) == str(chosen.recipe)


def test_noise_is_rounded_up_to_what_is_printed() -> None:
    noise = np.concatenate([10.0 ** np.linspace(-12, 12, 999), [0.0, 0.123456, 1.0, np.inf]])
    rounded = rounded_up(noise)
    assert np.all(rounded >= noise)
    assert np.all(rounded[np.isfinite(rounded)] <= noise[np.isfinite(noise)] * (1 + 1.1e-5))
    assert [float(f"{value:.6g}") for value in rounded.tolist()] == rounded.tolist()


def test_recommendations_carry_exact_recipes_and_say_what_is_final(probe: dpm.Portfolio) -> None:
    found = frontier(probe, DELTA, targets=6)
    assert any(r.final for r in found.recommendations)
    assert any("nothing else of their runs is ever released" in text for text in found.caveats)
    for plan in found.recommendations:
        profiles = [candidate(probe, recipe_of(r), delta=DELTA).profile for r in plan.recipes]
        drawn = dp.SelectionProfile(tuple(profiles), tuple(p for p, _ in plan.outcomes))
        assert drawn.epsilon(DELTA) <= plan.target


def recipe_of(document: dict[str, Any]) -> Recipe:
    return Recipe.of(document["weights"], release_noise=document["release_noise"])


def test_an_analysis_with_scores_warns_of_choosing_by_looking(probe: dpm.Portfolio) -> None:
    evaluator = f"linear:{EXAMPLES / 'probe' / 'public.npz'}"
    found: Analysis = frontier(probe, DELTA, targets=3, evaluator=evaluator, evaluations=30)
    assert "choose by looking" in found.caveats[0]


def test_a_failing_premise_is_not_hidden_by_one_of_its_name_that_holds(mnist: dpm.Portfolio) -> None:
    made = dpm.plan(mnist, target(0.5), method="mix")
    first, second = made.candidates
    words = "nobody: it fails"
    from dataclasses import replace

    failing = replace(first, bound=replace(first.bound, premises=(Premise("p", False, words),)))
    holding = replace(second, bound=replace(second.bound, premises=(Premise("p", True, f"{words}, says somebody"),)))
    for candidates in ((failing, holding), (holding, failing)):
        changed = replace(made, candidates=candidates)
        assert not changed.proved
        assert [p.holds for p in changed.premises if p.name == "p"] == [False]


@pytest.mark.parametrize("kind", [dpm.PublicEvaluation, dpm.PrivateValidation])
def test_an_unknown_accounting_is_refused_by_every_objective(probe: dpm.Portfolio, kind: Any) -> None:
    settings = {"epsilon": 0.1} if kind is dpm.PrivateValidation else {}
    objective = kind(evaluator=lambda _: 1, evaluations=2, **settings)
    with pytest.raises(InvalidInputError, match="accounting: got 'gdp'"):
        dpm.plan(probe, target(0.5), objective=objective, accounting="gdp")  # type: ignore[arg-type]


LEAKS: dict[str, Any] = {
    "a decimal": lambda _: Decimal(75) / Decimal(1000),
    "text": lambda _: "75 of 1000 right",
    "a pair": lambda _: (75, 1000),
    "a share": lambda _: 0.075,
    "an exception": lambda _: 1 / 0 if False else int("only 75 right"),
}


@pytest.mark.parametrize("case", LEAKS)
def test_what_goes_wrong_on_a_private_set_is_not_repeated(probe: dpm.Portfolio, case: str) -> None:
    objective = dpm.PrivateValidation(evaluator=LEAKS[case], epsilon=0.1, evaluations=3)
    with pytest.raises(EvaluationError) as caught:
        dpm.plan(probe, target(0.5), objective=objective)
    seen = [str(caught.value), repr(caught.value.__cause__), repr(caught.value.__context__)]
    assert not any("75" in text for text in seen)


def test_a_person_in_both_sets_is_charged_for_both(probe: dpm.Portfolio) -> None:
    with pytest.raises(InvalidInputError, match="less than the target's 0.5"):
        dpm.plan(probe, target(0.5), objective=dpm.PrivateValidation(evaluator=lambda _: 1, epsilon=0.6))
    made = dpm.plan(probe, target(0.5), objective=dpm.PrivateValidation(evaluator=lambda _: 1, epsilon=0.2))
    assert made.guarantee.epsilon <= 0.5
    assert made.guarantee.epsilon >= 0.2 + made.chosen_by["sides"]["training"]["epsilon"]
    assert "drawn_on_private_data" in {caveat.name for caveat in made.caveats}


def test_counts_may_come_from_the_ready_made_classifier(probe: dpm.Portfolio) -> None:
    from dpmerge.evaluation.evaluators import load_evaluator

    scorer = load_evaluator(f"linear:{EXAMPLES / 'probe' / 'public.npz'}")
    made = dpm.plan(probe, target(0.8), objective=dpm.PrivateValidation(evaluator=scorer, epsilon=0.2, evaluations=6))
    assert made.chosen_by["evaluations"] == 6


@pytest.mark.parametrize("method", ["auto", "select", "combine", "mix"])
@pytest.mark.parametrize("count", [1, 2])
def test_models_that_cost_nothing_at_a_large_delta_are_planned_at_epsilon_zero(method: Any, count: int) -> None:
    made = dpm.plan(ladder(count), target(1.0, 0.4), method=method)
    assert made.guarantee.epsilon == 0
    assert frontier(ladder(count), 0.4, targets=2).models


@pytest.mark.parametrize("epsilon", [0.02, 0.05, 0.2, 0.5])
def test_release_noise_by_renyi_divergence_meets_the_target(epsilon: float) -> None:
    smooth = ladder(1, smooth=True)
    plans = {m: dpm.plan(smooth, target(epsilon), method=m, accounting="rdp") for m in ("auto", "combine", "mix")}  # type: ignore[arg-type]
    assert {made.guarantee.epsilon <= epsilon for made in plans.values()} == {True}
    assert plans["mix"].noise_to_signal == pytest.approx(plans["combine"].noise_to_signal, rel=1e-6)


@pytest.mark.parametrize("epsilon", [1e-308, 1e-25, 1e-6])
def test_absurdly_small_targets_are_met_or_refused(epsilon: float) -> None:
    try:
        made = dpm.plan(ladder(1, smooth=True), target(epsilon))
    except (TargetOutOfReachError, NoGuaranteeError):
        return
    assert made.guarantee.epsilon <= epsilon


@pytest.mark.parametrize("epsilon", [0.0, math.inf, math.nan, -1.0, 1e308])
def test_senseless_targets_are_refused(epsilon: float) -> None:
    with pytest.raises(InvalidInputError, match="epsilon: got"):
        dpm.plan(ladder(1), target(epsilon))


def test_the_wrong_things_are_refused_by_type(mnist: dpm.Portfolio) -> None:
    with pytest.raises(InvalidInputError, match=r"portfolio: got a str; accepted: a Portfolio"):
        dpm.plan("examples/mnist", target(1.0))  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=r"target: got a tuple; accepted: a Guarantee"):
        dpm.plan(mnist, (0.8, 1e-5))  # type: ignore[arg-type]


@pytest.mark.parametrize("theorem", ["last_step", "hidden_state", "merged_trajectory"])
def test_a_theorem_asked_for_covers_single_checkpoints_too(theorem: Any) -> None:
    smooth = ladder(2, [1, 20], smooth=True)
    own = smooth.run("run-1").mechanism.profile(20).epsilon(DELTA)
    made = dpm.plan(smooth, target(own * 1.0001), method="combine", theorem=theorem)
    assert made.theorem == theorem
    with pytest.raises(TargetOutOfReachError) if theorem != "hidden_state" else pytest.raises(InvalidInputError):
        dpm.plan(smooth, target(1e-4 if theorem != "hidden_state" else 0.0), method="combine", theorem=theorem)


def test_runs_without_rates_are_refused_with_the_objectives_that_need_none() -> None:
    from portfolio.portfolios import HISTORY, manifest

    history = portfolio({name: (manifest(name, mechanism=HISTORY), [2, 4]) for name in "ab"})
    with pytest.raises(
        InvalidInputError, match=r"objective: got 'noise'; accepted: saturate, prior or public_evaluation"
    ):
        dpm.plan(history, target(4.0))
    assert dpm.plan(history, target(4.0), objective="saturate").guarantee.epsilon <= 4


def test_a_non_private_run_may_be_drawn_when_asked_for_and_is_marked() -> None:
    mixed = portfolio(
        {
            "a": (run_document("a", noise_multiplier=64), [20]),
            "open": (run_document("open", noise_multiplier=0), [20]),
        }
    )
    made = dpm.plan(mixed, target(0.6), method="select", non_private=["open"])
    assert made.probabilities[[c.recipe.names[0] for c in made.candidates].index("open@20")] <= DELTA
    assert "non_private" in {caveat.name for caveat in made.caveats}
    assert json.loads(json.dumps(made.document(), allow_nan=False))
    print_plan(made, [], Console(file=io.StringIO(), width=80))
    assert "open@20" not in str(dpm.plan(mixed, target(0.6)).document()["candidates"])
    with pytest.raises(InvalidInputError, match="non_private: got a, which has some"):
        dpm.plan(mixed, target(0.6), non_private=["a"])


def test_the_repr_of_a_plan_is_one_line_with_its_epsilon(mnist: dpm.Portfolio) -> None:
    made = dpm.plan(mnist, target(0.8))
    assert repr(made).startswith("Plan(0.987 × c2-s32@12 + 0.00433 × (ladder-1…3@20); ε = 0.799697 at δ = 1e-05")
    assert len(repr(made)) < 200
    assert "Premises, by who vouches for them" in str(made)


def test_an_unknown_checkpoint_is_refused_with_a_name_alike(mnist: dpm.Portfolio) -> None:
    with pytest.raises(InvalidInputError, match="such as c2-s64@20"):
        usable_checkpoints(mnist, DELTA)["c2-s64@2"]


def test_what_auto_passes_over_is_said(mnist: dpm.Portfolio) -> None:
    made = dpm.plan(mnist, target(0.6))
    assert made.passed_over is not None
    assert made.passed_over == pytest.approx(dpm.plan(mnist, target(0.6), method="mix").noise_to_signal, rel=1e-6)
    said = " ".join(str(made).split())
    assert "which were passed over: models may be unfinished there" in said
    assert "Score both on public data (--evaluator), or have --method mix use them" in said


@pytest.mark.parametrize("who", ["", "  "])
def test_nobody_vouches_with_an_empty_name(who: str) -> None:
    with pytest.raises(InvalidInputError, match="disjoint: got"):
        dpm.PrivateValidation(evaluator=lambda _: 1, epsilon=0.1, disjoint_vouched_by=who)


def test_private_validation_of_units_needs_a_bound_on_their_records() -> None:
    patients = portfolio({"a": (run_document("a", noise_multiplier=64, unit="patient"), [20])})
    with pytest.raises(InvalidInputError, match="records per unit: got nothing; accepted: a bound on how many"):
        dpm.plan(patients, target(1.0), objective=dpm.PrivateValidation(evaluator=lambda _: 1, epsilon=0.1))


def test_the_draw_spends_epsilon_over_the_records_of_a_unit(
    monkeypatch: pytest.MonkeyPatch, probe: dpm.Portfolio
) -> None:
    from dpmerge.planning import private_selection

    used: list[float] = []

    def noted(counts: Any, epsilon: float) -> int:
        used.append(epsilon)
        return 0

    monkeypatch.setattr(private_selection, "exponential_choice", noted)
    for records in (None, 1, 4):
        objective = dpm.PrivateValidation(
            evaluator=lambda tensors: int(abs(tensors["weight"]).sum()),
            epsilon=0.2,
            evaluations=2,
            records_per_unit=records,
        )
        dpm.plan(probe, target(0.8), objective=objective)
    assert used[:2] == [0.2, 0.2]
    assert 0.05 * (1 - 1e-15) <= used[2] < 0.05


@pytest.mark.parametrize("epsilon", [0.1, 0.7])
def test_a_plan_never_exceeds_its_own_target(epsilon: float) -> None:
    runs = ladder(3)
    cost = runs.run("run-1").mechanism.profile(20).epsilon(DELTA)
    objective = dpm.PrivateValidation(evaluator=lambda _: 1, epsilon=epsilon, look=["run-1@20"])
    with pytest.raises(TargetOutOfReachError):
        dpm.plan(runs, target(cost + epsilon), objective=objective)
    made = dpm.plan(runs, target((cost + epsilon) * (1 + 1e-9)), objective=objective)
    assert made.guarantee.epsilon <= made.target.epsilon
    assert made.guarantee.delta <= made.target.delta
    with pytest.raises(InvalidInputError, match="delta: got 1e-300"):
        dpm.plan(runs, target(50.0, 1e-300), objective=objective)
    from dataclasses import replace

    with pytest.raises(NoGuaranteeError, match="is none"):
        replace(made, guarantee=target(99.0))


@pytest.mark.parametrize("evaluations", [1, 9, 40])
def test_uncharged_plans_by_a_theorem_asked_for_are_not_proved(probe: dpm.Portfolio, evaluations: int) -> None:
    objective = dpm.PublicEvaluation(evaluator=lambda _: 1.0, tuning="uncharged", evaluations=evaluations)
    for method in ("auto", "combine", "mix"):
        try:
            made = dpm.plan(probe, target(1.0), method=method, theorem="hidden_state", objective=objective)  # type: ignore[arg-type]
        except NoGuaranteeError:
            continue
        assert not made.proved


def test_auto_falls_back_where_a_theorem_covers_only_early_checkpoints() -> None:
    runs = {
        "a": (run_document("a", noise_multiplier=64), [20]),
        "b": (run_document("b", noise_multiplier=64, smooth=True), [10]),
    }
    made = dpm.plan(portfolio(runs), target(0.3), theorem="hidden_state")
    assert made.theorem == "hidden_state"
    assert [name for c in made.candidates for name in c.recipe.names] == ["b@10"]


def test_runs_without_rates_have_a_frontier_with_an_evaluator(tmp_path: Path) -> None:
    from portfolio.portfolios import HISTORY, manifest, write_portfolio

    home = write_portfolio(tmp_path, runs="ab", manifests={n: manifest(n, mechanism=HISTORY) for n in "ab"})
    found = frontier(dpm.Portfolio.load(home), DELTA, targets=3, evaluator=lambda tensors: float(tensors["bias"].sum()))
    assert found.recommendations == ()
    assert any("no plan is recommended" in text for text in found.caveats)
    assert not np.isnan(found.curves[1].utilities[-1])


def test_a_plan_without_any_renyi_bound_is_refused_with_its_reason() -> None:
    runs = {"a": (run_document("a", noise_multiplier=1.0, steps=4, sampling_rate=0.1), [4])}
    with pytest.raises(NoGuaranteeError, match="No candidate has a finite cost by rdp accounting; use pld"):
        dpm.plan(portfolio(runs), target(3.0), accounting="rdp")


def test_an_attribute_of_an_evaluator_does_not_multiply_its_counts(
    monkeypatch: pytest.MonkeyPatch, probe: dpm.Portfolio
) -> None:
    from dpmerge.planning import private_selection

    class Counting:
        records = 1000

        def __call__(self, tensors: Any) -> int:
            return 7

    seen: list[list[int]] = []

    def noted(counts: Any, epsilon: float) -> int:
        seen.append(list(counts))
        return 0

    monkeypatch.setattr(private_selection, "exponential_choice", noted)
    objective = dpm.PrivateValidation(evaluator=Counting(), epsilon=0.2, evaluations=3)
    dpm.plan(probe, target(0.8), objective=objective)
    assert seen == [[7, 7, 7]]


@pytest.mark.parametrize("epsilon", [0.3, 0.8, 1.2])
def test_look_sets_fit_the_target_by_both_accountings(mnist: dpm.Portfolio, epsilon: float) -> None:
    known = usable_checkpoints(mnist, DELTA)
    by_rdp, by_pld = (look_set(known, target(epsilon), None, a) for a in ("rdp", "pld"))  # type: ignore[arg-type]
    assert dp.RenyiProfile.of(by_rdp.exposure.profile()).epsilon(DELTA) <= epsilon
    assert by_pld.exposure.profile().epsilon(DELTA) <= epsilon
    with pytest.raises(TargetOutOfReachError, match="the smallest is ε = 0.0505"):
        look_set(known, target(0.01), None, "pld")
