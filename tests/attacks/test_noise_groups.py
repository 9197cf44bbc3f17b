"""Runs that share a noise seed: what comes to light if two of them are seen, and every way in which that is tried.

Two models of one seed, trained alike on two clip norms, give their noise away by subtraction; so the joint cost of two
is unknown, and one selection among them is all there is. The claimed number is checked against the mixture of the two
Gaussian profiles, written down from the theorem.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import norm

import dpmerge as dpm
from dpmerge.errors import (
    CapExceededError,
    InvalidInputError,
    NoGuaranteeError,
    NotCombinableError,
    RunsLockedError,
)
from dpmerge.ledger import Cap, Ledger
from dpmerge.ledger.charge import Output
from dpmerge.planning.plan import Plan
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.releasing.ledger_location import default_ledger
from dpmerge.releasing.prepare import prepare
from dpmerge.releasing.release import release
from dpmerge.releasing.verifying import verify
from ledger.releases import SCOPE, drawing, first, request, run, seeded, terms
from portfolio.portfolios import BLOCK, DP_SGD, edit_manifest, manifest, model, read_manifest, replaced, write_portfolio

DELTA = 1e-5
SEED = 987654321
NOISE = {"a": 8.0, "b": 24.0, "c": 16.0}
GROUP = [["a", "b"]]


def document(name: str, noise: dict[str, Any] | None = None) -> dict[str, Any]:
    mechanism = replaced(DP_SGD, "blocks", to=[BLOCK | {"noise_multiplier": NOISE[name]}])
    seeds = {"noise": noise} if noise else {}
    return manifest(name, mechanism=mechanism, **seeds)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """a and b have one seed (as torch sees it); c has noise of its own."""
    documents = {
        "a": document("a", {"source": "seeded", "seed": SEED}),
        "b": document("b", {"source": "seeded", "seed": SEED + 2**32}),
        "c": document("c"),
    }
    return write_portfolio(tmp_path / "models", runs=documents, manifests=documents)


def gaussian_delta(mu: float, epsilon: float) -> float:
    return float(norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2))


def mu(name: str, steps: int = 4) -> float:
    return math.sqrt(steps) * 2 / NOISE[name]


def drawn_between(models: Path, epsilon: float, *names: str) -> Plan:
    return dpm.plan(
        Portfolio.load(models), epsilon=epsilon, delta=DELTA, method="select", objective="saturate", checkpoints=names
    )


def test_one_selection_among_them_costs_the_mixture_and_locks_the_group(models: Path, tmp_path: Path) -> None:
    plan = drawn_between(models, 1.0, "a@4", "b@4")
    assert sorted(candidate.recipe.names for candidate in plan.candidates) == [("a@4",), ("b@4",)]
    assert plan.is_final
    assert plan.terms.noise_groups == GROUP
    cost = sum(
        p * gaussian_delta(mu(candidate.recipe.names[0][0]), plan.guarantee.epsilon)
        for p, candidate in zip(plan.probabilities, plan.candidates, strict=True)
    )
    assert cost == pytest.approx(DELTA, rel=1e-6)
    assert gaussian_delta(mu("a"), 1.0) > DELTA > gaussian_delta(mu("b"), 1.0), "the draw is what meets the target"
    made = release(plan, out=tmp_path / "out", final=True)
    assert made.content["final"]
    assert {"name": "nothing_else_of_these_runs_is_ever_released", "holds": True} in [
        {"name": p["name"], "holds": p["holds"]} for p in made.content["premises"]
    ]
    assert any(
        c["name"] == "noise_group" and "a and b share a noise seed" in c["text"] for c in made.content["caveats"]
    )
    [voices] = [p["vouchedBy"] for p in made.content["premises"] if p["name"] == "independent_noise"]
    assert voices.count("seen without others of its seed") == 2, "they are not said to be independent of each other"
    assert str(SEED) not in json.dumps(made.content["terms"]), "the seed itself stays where it is"
    assert verify(tmp_path / "out", portfolio=models).verified


def test_it_has_to_be_final(models: Path, tmp_path: Path) -> None:
    plan = drawn_between(models, 1.0, "a@4", "b@4")
    with pytest.raises(NoGuaranteeError, match=r"one is all that may ever be released; make it a final release"):
        release(plan, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    notes: list[str] = []
    other = prepare(Portfolio.load(models), epsilon=1.0, delta=DELTA, note=notes.append)
    assert {name for candidate in other.candidates for name in candidate.recipe.names} <= {"c@2", "c@4"}
    assert any(note.startswith("planned without a, b (of runs that share a noise seed") for note in notes)
    shutil.rmtree(models / "c")
    with pytest.raises(RunsLockedError, match="all runs share a noise seed with another"):
        prepare(Portfolio.load(models), epsilon=1.0, delta=DELTA)
    with pytest.raises(NoGuaranteeError, match="make it a final release"):
        prepare(Portfolio.load(models), epsilon=5.0, delta=DELTA, weights={"a@4": 1.0})


def released(models: Path, out: Path, *names: str) -> None:
    release(drawn_between(models, 1.0, *names), out=out, final=True)


@pytest.mark.parametrize("name", ["a@4", "b@4", "a@2", "b@2"])
@pytest.mark.parametrize("final", [False, True])
def test_any_second_release_is_refused_at_whatever_step(models: Path, tmp_path: Path, name: str, final: bool) -> None:
    released(models, tmp_path / "out", "a@2", "b@4")
    with pytest.raises((RunsLockedError, NoGuaranteeError), match=r"locked|one is all that may ever be released"):
        release(drawn_between(models, 5.0, name), out=tmp_path / "again", final=final)
    assert not (tmp_path / "again").exists()


def test_a_run_of_the_group_that_was_no_candidate_is_locked_too(models: Path, tmp_path: Path) -> None:
    released(models, tmp_path / "out", "b@4", "b@2")
    with pytest.raises(RunsLockedError, match="a: shares its noise seed with b, and final release"):
        release(drawn_between(models, 5.0, "a@4"), out=tmp_path / "again", final=True)


def test_another_portfolio_with_the_same_ledger_is_no_way_round(models: Path, tmp_path: Path) -> None:
    """Renamed, alone in a folder of its own, so that nothing there tells of a group."""
    released(models, tmp_path / "out", "a@4", "b@4")
    for name, seed in (("z", SEED), ("y", SEED + 2**32)):
        elsewhere = tmp_path / name
        others = {name: {2: model(77), 4: model(78)}}
        write_portfolio(elsewhere, runs=[name], manifests={name: document("a") | {"run": name}}, models=others)
        edit_manifest(elsewhere / name, "noise", to={"source": "seeded", "seed": seed})
        alone = dpm.plan(Portfolio.load(elsewhere), epsilon=5.0, delta=DELTA)
        assert not alone.is_final
        for final in (False, True):
            with pytest.raises(RunsLockedError, match=f"{name}: shares its noise seed with a, and final release"):
                release(alone, out=tmp_path / "again", ledger=default_ledger(Portfolio.load(models)), final=final)


def test_a_run_released_before_its_group_was_known_closes_the_group(models: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    shutil.copytree(models / "a", alone / "a")
    plan = dpm.plan(Portfolio.load(alone), epsilon=5.0, delta=DELTA)
    release(plan, out=tmp_path / "out", ledger=default_ledger(Portfolio.load(models)))
    for names in (("a@4", "b@4"), ("b@4",), ("a@4",)):
        with pytest.raises((RunsLockedError, NoGuaranteeError), match=r"seen before|the same noise seed"):
            release(drawn_between(models, 5.0, *names), out=tmp_path / "again", final=True)


def test_averages_of_two_are_refused_wherever_they_are_asked_for(models: Path) -> None:
    portfolio = Portfolio.load(models)
    both = {"a@4": 0.5, "b@4": 0.5}
    with pytest.raises(NotCombinableError, match="a and b share a noise seed"):
        prepare(portfolio, epsilon=50.0, delta=DELTA, weights=both, final=True)
    for theorem in ("auto", "joint_release", "last_step", "merged_trajectory"):
        plan = dpm.plan(portfolio, epsilon=3.0, delta=DELTA, method="combine", theorem=theorem)  # type: ignore[arg-type]
        for candidate in plan.candidates:
            assert not {"a", "b"} <= {name[0] for name in candidate.recipe.names}
    with pytest.raises(NoGuaranteeError, match="share a noise seed"):
        portfolio.everything().profile()
    assert dpm.plan(portfolio, epsilon=3.0, delta=DELTA).joint_epsilon is None


def test_one_of_them_may_be_averaged_with_a_run_of_other_noise(models: Path, tmp_path: Path) -> None:
    halves = {"a@4": 0.5, "c@4": 0.5}
    portfolio = Portfolio.load(models)
    plan = prepare(portfolio, epsilon=3.0, delta=DELTA, weights=halves, theorem="joint_release", final=True)
    joint = math.hypot(mu("a"), mu("c"))
    assert gaussian_delta(joint, plan.terms.epsilon(DELTA)) == pytest.approx(DELTA, rel=1e-3)
    release(plan, out=tmp_path / "out", final=True)
    with pytest.raises(RunsLockedError, match=r"c \(release .*locked by a final release"):
        release(drawn_between(models, 5.0, "c@4"), out=tmp_path / "again")


def test_a_plan_file_that_hides_the_group_is_priced_with_it(models: Path, tmp_path: Path) -> None:
    saved = drawn_between(models, 1.0, "a@4", "b@4").document()
    half = saved["candidates"][0] | {
        "weights": {"a@4": 0.5, "b@4": 0.5}, "exposure": {"a": 4, "b": 4}, "theorem": "joint_release",
    }  # fmt: skip
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(saved | {"candidates": [half], "probabilities": [1.0], "final": False}))
    with pytest.raises(InvalidInputError, match="a and b share a noise seed"):
        Plan.load(file, Portfolio.load(models))


def test_looking_at_two_of_them_to_choose_is_refused(models: Path) -> None:
    portfolio = Portfolio.load(models)

    def score(merged: Any) -> float:
        return 1.0

    both = dpm.PublicEvaluation(evaluator=score, look=["a@4", "b@4"])
    with pytest.raises(NoGuaranteeError, match="share a noise seed"):
        dpm.plan(portfolio, epsilon=50.0, delta=DELTA, objective=both)
    chosen = dpm.plan(portfolio, epsilon=50.0, delta=DELTA, objective=dpm.PublicEvaluation(evaluator=score))
    assert not {"a", "b"} <= set(chosen.candidates[0].exposed())
    by_looking = [seeded("a", 42), seeded("b", 42)]
    for kind in ("public_evaluation", "uncharged"):
        with pytest.raises(ValueError, match="what a choice by looking at both costs nobody knows"):
            terms(by_looking, [{"a@3": 1.0}, {"b@3": 1.0}], kind=kind, noise_groups=GROUP)


def test_terms_that_do_not_tell_of_the_group_are_not_charged(tmp_path: Path) -> None:
    """Whoever makes terms by hand: the ledger goes by the seeds' marks."""
    pair = [seeded("a", 42), seeded("b", 42)]
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        for groups in (None, [["a"], ["b"]]):
            with pytest.raises(NoGuaranteeError, match="b and a were made with the same noise seed.*terms do not say"):
                ledger.charge(request(pair, "a@3", "b@3", final=True, noise_groups=groups), first)
        with pytest.raises(NoGuaranteeError, match="one is all that may ever be released"):
            ledger.charge(request(pair, "a@3", "b@3", noise_groups=GROUP), first)
        with pytest.raises(ValueError, match="a and b share a noise seed"):
            request(pair, {"a@3": 0.5, "b@3": 0.5}, final=True, noise_groups=GROUP)
        ledger.charge(request(pair, "a@3", "b@3", final=True, noise_groups=GROUP), first)
        report = ledger.budget_report(SCOPE, DELTA)
        assert [(each.name, each.step, each.locked_by is not None) for each in report.runs] == [
            ("a", 3, True), ("b", 0, True),
        ]  # fmt: skip
        assert report.epsilon is not None
        assert gaussian_delta(math.sqrt(3) * 2 / 8.0, report.epsilon) == pytest.approx(DELTA, rel=1e-3)
        assert ledger.verify().ok


def test_a_descendant_of_one_of_them_is_one_of_them(tmp_path: Path) -> None:
    """Trained on from a with the seed that a had: the line exposes both."""
    parent = seeded("a", 42)
    kid = seeded("kid", 42, ancestry={"start": "private", "run": "a", "step": 5}, initial_weights="0" * 64)
    with pytest.raises(ValueError, match="a and kid share a noise seed"):
        request([parent, kid], "kid@3", final=True, noise_groups=[["a", "kid"]])
    with (
        Ledger.open(tmp_path / "ledger.sqlite") as ledger,
        pytest.raises(NoGuaranteeError, match="made with the same noise seed"),
    ):
        ledger.charge(request([parent, kid], "kid@3", final=True), first)


def test_a_ceiling_never_allows_a_draw_between_them(tmp_path: Path) -> None:
    pair = [seeded("a", 42, 64.0), seeded("b", 42, 64.0)]
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.set_cap(SCOPE, Cap.of_manifests(1.0, DELTA, {"a": 20}, pair))
        with pytest.raises(CapExceededError, match="no ceiling holds both"):
            ledger.charge(request(pair, "a@3", "b@3", final=True, noise_groups=GROUP), first)
        ledger.charge(request(pair, "a@3", final=True, noise_groups=[["a"]]), first)
        with pytest.raises(RunsLockedError, match="locked"):
            ledger.charge(request(pair, "a@3", final=True, noise_groups=[["a"]]), first)


def test_filters_count_the_draw_and_go_on_with_other_runs(tmp_path: Path) -> None:
    """Gaussian: the largest μ² of what may be drawn. Rényi: log Σ π e^{(α−1)ρ}/(α−1), whatever is drawn."""
    pair, other = [seeded("a", 42, 8.0), seeded("b", 42, 32.0)], run("c", 16.0)
    squared = {"a": 3 * (2 / 8) ** 2, "b": 3 * (2 / 32) ** 2, "c": 5 * (2 / 16) ** 2}
    order = 8.0
    mixture = math.log(sum(0.5 * math.exp((order - 1) * order * squared[name] / 2) for name in "ab")) / (order - 1)
    caps = {
        squared["a"] + squared["c"]: Cap(epsilon=5.0, delta=DELTA, rule="gaussian_filter"),
        mixture + order * squared["c"] / 2: Cap(epsilon=20.0, delta=DELTA, rule="renyi_filter", order=order),
    }
    for place, (spent, cap) in enumerate(caps.items()):
        for index in (0, 1):
            with Ledger.open(tmp_path / f"{place}-{index}.sqlite") as ledger:
                ledger.set_cap(SCOPE, cap)
                ledger.charge(request(pair, "a@3", "b@3", final=True, noise_groups=GROUP), drawing(index))
                ledger.charge(request([other], "c@5"), first)
                left = ledger.budget_report(SCOPE, DELTA).left
                assert left is not None
                assert left.spent == pytest.approx(spent, rel=1e-9)
                with pytest.raises(RunsLockedError, match="locked"):
                    ledger.charge(request(pair, "b@3", final=True, noise_groups=[["b"]]), first)
                assert ledger.verify().ok


def test_a_selection_of_which_nobody_knows_the_draw_has_no_number_any_more(tmp_path: Path) -> None:
    """Adopted after its entry was lost: either may have been seen, and nothing follows for both."""
    pair = [seeded("a", 42, 64.0), seeded("b", 42, 64.0)]
    lost = request(pair, "a@3", "b@3", final=True, noise_groups=GROUP)
    output = Output({"model.safetensors": "0" * 64}, "1" * 64, "out")
    for signed_by in ("a key", None):
        with Ledger.open(tmp_path / f"{signed_by}.sqlite") as ledger:
            ledger.set_cap(SCOPE, Cap(epsilon=5.0, delta=DELTA, rule="gaussian_filter"))
            ledger.adopt("f" * 32, lost, output=output, entry=(2, "2" * 64), index=None, signed_by=signed_by)
            report = ledger.budget_report(SCOPE, DELTA)
            assert report.epsilon is None
            assert "a and b share a noise seed" in (report.why or "")
            with pytest.raises(NoGuaranteeError, match="share a noise seed"):
                ledger.charge(request([run("c", 64.0)], "c@3"), first)
            assert ledger.verify().ok


def test_a_group_release_of_a_seed_used_under_another_unit_is_refused(tmp_path: Path) -> None:
    """Another budget scope of the same data: what was seen there was seen."""
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.charge(request([seeded("a", 42, unit="person")], "a@3"), first)
        with pytest.raises(NoGuaranteeError, match="b and a were made with the same noise seed"):
            ledger.charge(request([seeded("b", 42)], "b@3"), first)


def test_a_certificate_without_its_group_no_longer_fits(models: Path, tmp_path: Path) -> None:
    released(models, tmp_path / "out", "a@4", "b@4")
    assert verify(tmp_path / "out", portfolio=models).verified
    for name in "ab":
        seeds = {"source": "seeded", "seed": {"a": SEED, "b": SEED + 1}[name]}
        edit_manifest(models / name, "noise", to=seeds)
        assert read_manifest(models / name)["noise"] == seeds
    found = verify(tmp_path / "out", portfolio=models)
    assert not found.verified
    assert any("which runs share a noise seed" in problem for problem in found.problems)
