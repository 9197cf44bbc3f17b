"""`auto` averages where there is reason to; whatever is planned stands beside the checkpoint the user had."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dpmerge as dpm
from dpmerge.errors import TargetOutOfReachError
from dpmerge.planning.averaging_reasons import averaged_with_reason, model_kind
from planning.synthetic import portfolio, run_document

DELTA = 1e-5
PUBLIC = {"start": "public", "source": "resnet-18"}
TRAINED_WHOLE = {"trained": ["weight", "bias"], "frozen": []}


def made(count: int = 4, *, noise: float = 64.0, **settings: Any) -> dpm.Portfolio:
    names = [f"run-{place}" for place in range(1, count + 1)]
    return portfolio({name: (run_document(name, noise_multiplier=noise, **settings), [10, 20]) for name in names})


def sizes(plan: dpm.Plan) -> set[int]:
    return {len(candidate.recipe.names) for candidate in plan.candidates}


REASONS = {
    "a linear model": {"model": "linear"},
    "a smooth model": {"model": "smooth"},
    "stated smoothness": {"model": None, "smooth": True},
    "one public start, trained whole": {"model": "network", "ancestry": PUBLIC, "tensors": TRAINED_WHOLE},
    "one public start of an unknown model": {"model": None, "ancestry": PUBLIC, "tensors": TRAINED_WHOLE},
}
NO_REASONS = {
    "a network from a random start": {"model": "network"},
    "an unknown model from a random start": {"model": None},
    "an unknown start": {"model": "network", "ancestry": {"start": "public", "assumed": True}},
    "adapters of a public model": {"model": "network", "ancestry": PUBLIC},
    "a network of stated smoothness": {"model": "network", "smooth": True},
    "a public start whose weights are not known": {
        "model": None, "ancestry": PUBLIC, "tensors": {"trained": ["weight"]}, "initial_weights": None,
    },
}  # fmt: skip


@pytest.mark.parametrize("settings", REASONS.values(), ids=REASONS)
def test_auto_averages_with_a_reason(settings: dict[str, Any]) -> None:
    plan = dpm.plan(made(**settings), epsilon=2.0, delta=DELTA)
    assert max(sizes(plan)) > 1
    assert plan.notes == []


@pytest.mark.parametrize("settings", NO_REASONS.values(), ids=NO_REASONS)
def test_auto_averages_nothing_without_a_reason_and_says_so(settings: dict[str, Any]) -> None:
    loaded = made(**settings)
    plan = dpm.plan(loaded, epsilon=2.0, delta=DELTA)
    assert sizes(plan) == {1}
    [note] = plan.notes
    assert "were not considered" in note
    assert "--method mix averages all the same" in note
    assert ("field `model`" in note) == (model_kind(loaded.runs[0]) is None)
    assert note in " ".join(str(plan).split())


@pytest.mark.parametrize("method", ["combine", "mix"])
def test_averages_that_were_asked_for_without_a_reason_are_made_with_a_note(method: Any) -> None:
    plan = dpm.plan(made(model="network"), epsilon=2.0, delta=DELTA, method=method)
    assert max(sizes(plan)) > 1
    assert any("far worse than each model in it" in note for note in plan.notes)
    assert not dpm.plan(made(model="linear"), epsilon=2.0, delta=DELTA, method=method).notes


def test_what_is_released_by_default_is_what_auto_plans() -> None:
    from dpmerge.planning.planner import release_alternatives

    found = release_alternatives(made(model="network"), dpm.Guarantee(epsilon=2.0, delta=DELTA))
    assert isinstance(found.joint, dpm.Plan)
    assert sizes(found.joint) == {1}
    assert found.final is not None
    assert sizes(found.final) == {1}


def test_different_public_starts_are_no_reason() -> None:
    runs = {
        name: (
            run_document(
                name, noise_multiplier=64, model="network", ancestry=PUBLIC, tensors=TRAINED_WHOLE,
                initial_weights=digit * 64,
            ),
            [20],
        )
        for name, digit in (("a", "a"), ("b", "b"), ("c", "a"))
    }  # fmt: skip
    kept = averaged_with_reason(portfolio(runs).runs)
    assert [run.id for run in kept] == ["a", "c"]


def test_unfinished_checkpoints_of_networks_are_used_only_where_nothing_else_meets_the_target() -> None:
    """Three times less noise would bring an early checkpoint of a less noisy run into the plan of a linear model."""
    documents = {
        "quiet": (run_document("quiet", noise_multiplier=64, clip_norm=0.5, steps=80, model="network"), [4, 16, 80]),
        "loud": (run_document("loud", noise_multiplier=64, model="network"), [4, 20]),
    }
    within = portfolio(documents)
    plan = dpm.plan(within, epsilon=0.6, delta=DELTA)
    assert [c.recipe.names for c in plan.candidates] == [("loud@20",)]
    linear = {name: ({**document, "model": "linear"}, kept) for name, (document, kept) in documents.items()}
    assert dpm.plan(portfolio(linear), epsilon=0.6, delta=DELTA).noise_to_signal < plan.noise_to_signal  # type: ignore[operator]
    least = dpm.plan(within, epsilon=0.25, delta=DELTA)
    assert {name for c in least.candidates for name in c.recipe.names} <= {"loud@4", "quiet@4"}


def test_every_plan_stands_beside_the_least_private_finished_checkpoint_within_the_target() -> None:
    loaded = dpm.Portfolio.load("examples/mnist")
    plan = dpm.plan(loaded, epsilon=0.12, delta=DELTA)
    single = plan.single_checkpoint
    assert single is not None
    assert single.name.startswith("ladder-")
    assert single.epsilon == pytest.approx(0.0505, abs=1e-4)
    assert plan.document()["single_checkpoint"]["checkpoint"] == single.name
    assert plan.noise_to_signal is not None
    assert single.noise_to_signal is not None
    share = 1 - plan.noise_to_signal / single.noise_to_signal
    assert f"It has {share:.0%} less predicted noise than {single.name} alone" in " ".join(str(plan).split())


def test_a_plan_that_is_that_checkpoint_says_so_and_one_below_all_has_none() -> None:
    loaded = dpm.Portfolio.load("examples/probe")
    alone = dpm.plan(loaded, epsilon=100.0, delta=DELTA, method="select")
    assert f"That is {alone.candidates[0].recipe.names[0]} alone" in " ".join(str(alone).split())
    assert dpm.plan(loaded, epsilon=0.01, delta=DELTA).single_checkpoint is None


def test_auto_never_costs_more_noise_than_the_finished_checkpoint_it_stands_beside() -> None:
    rng = np.random.default_rng(5)
    for _ in range(12):
        levels = rng.uniform(20, 200, 4)
        kind = rng.choice(["linear", "network"])
        runs = {
            f"r{n}": (run_document(f"r{n}", noise_multiplier=float(s), model=str(kind)), [5, 10, 20])
            for n, s in enumerate(levels)
        }
        plan = dpm.plan(portfolio(runs), epsilon=float(rng.uniform(0.3, 2)), delta=DELTA)
        single = plan.single_checkpoint
        if single is not None and plan.noise_to_signal is not None and single.noise_to_signal is not None:
            assert plan.noise_to_signal <= single.noise_to_signal * 1.021, (
                "auto may give up two per cent for simplicity"
            )


def test_a_delta_above_one_in_the_number_of_records_is_noted() -> None:
    loaded = made(model="linear")  # a hundred records
    assert not dpm.plan(loaded, epsilon=2.0, delta=0.009).notes
    [note] = dpm.plan(loaded, epsilon=2.0, delta=0.02).notes
    assert note.startswith("δ = 0.02 is above one in 100 records")


def adam(name: str, **settings: Any) -> dict[str, Any]:
    document = run_document(name, noise_multiplier=64, **settings)
    document["mechanism"] = {**document["mechanism"], "optimizer": {"name": "adam"}}
    return document


def test_the_clip_norm_does_not_decide_the_weights_of_runs_trained_by_adam() -> None:
    """By the formula of SGD a run with ten times the clip norm would get a hundredth of the weight."""
    loaded = portfolio({"a": (adam("a", clip_norm=1.0), [20]), "b": (adam("b", clip_norm=10.0), [20])})
    plan = dpm.plan(loaded, epsilon=5.0, delta=DELTA, method="combine")
    assert dict(plan.candidates[0].recipe.parts) == pytest.approx({"a@20": 0.5, "b@20": 0.5})
    assert any("relative to the clip norm: a, b used an optimizer that is not SGD" in note for note in plan.notes)
    by_sgd = portfolio(
        {n: (run_document(n, noise_multiplier=64, clip_norm=c), [20]) for n, c in (("a", 1.0), ("b", 10.0))}
    )
    weights = dict(dpm.plan(by_sgd, epsilon=5.0, delta=DELTA, method="combine").candidates[0].recipe.parts)
    assert weights["a@20"] > 0.98


def test_relative_noise_is_its_formula() -> None:
    loaded = portfolio({"a": (adam("a", clip_norm=3.0), [5, 20])})
    [candidate] = dpm.plan(loaded, epsilon=5.0, delta=DELTA, method="combine").candidates
    assert candidate.noise_to_signal == pytest.approx(20 * (0.01 * 64) ** 2 / (20 * 0.01) ** 2)


def scored(tensors: Any) -> float:
    return float(np.asarray(tensors["weight"]).sum())


def test_auto_with_an_evaluator_looks_and_pays_for_everything_it_could_look_at() -> None:
    loaded = dpm.Portfolio.load("examples/probe")
    objective = dpm.PublicEvaluation(evaluator=scored, evaluations=6)
    plan = dpm.plan(loaded, epsilon=1.0, delta=DELTA, objective=objective)
    assert plan.chosen_by["kind"] == "public_evaluation"
    assert len(plan.candidates) == 1
    assert plan.theorem == "joint_release"
    assert set(plan.exposure.steps.values()) == set(plan.chosen_by["look"].values())


def test_auto_without_room_to_look_does_not_look_and_says_so() -> None:
    def never(tensors: Any) -> float:
        raise AssertionError("a model was looked at")

    loaded = dpm.Portfolio.load("examples/probe")
    objective = dpm.PublicEvaluation(evaluator=never, evaluations=6)
    plan = dpm.plan(loaded, epsilon=0.05, delta=DELTA, objective=objective)
    assert plan.chosen_by["kind"] == "data_independent"
    assert plan.notes[0].startswith("No model could be looked at within the target, so none was")
    with pytest.raises(TargetOutOfReachError):
        dpm.plan(loaded, epsilon=0.05, delta=DELTA, objective=objective, method="combine")


def test_who_prepares_a_release_is_told_the_notes_of_its_plan(tmp_path: Any) -> None:
    from dpmerge.releasing.prepare import prepare

    told: list[str] = []
    asked = {"epsilon": 2.0, "delta": DELTA, "ledger": tmp_path / "ledger.sqlite", "note": told.append}
    prepare(made(model="network"), method="combine", **asked)  # type: ignore[arg-type]
    assert any("far worse than each model in it" in text for text in told)
    told.clear()
    prepare(made(model="network"), weights={"run-1@20": 0.5, "run-2@20": 0.5}, **asked)  # type: ignore[arg-type]
    assert any("far worse than each model in it" in text for text in told)
    told.clear()
    prepare(made(model="linear"), **asked)  # type: ignore[arg-type]
    assert not any("average" in text.lower() for text in told)
