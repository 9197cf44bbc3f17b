"""Choosing by looking: what is charged, what is looked at, what is marked."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from dpmerge import Guarantee, Portfolio, plan
from dpmerge.accounting import Exposure
from dpmerge.errors import EvaluationError, InvalidInputError, TargetOutOfReachError
from dpmerge.evaluation.evaluators import load_evaluator
from dpmerge.planning.look_set import look_set
from dpmerge.planning.plan_table import print_plan
from dpmerge.planning.private_selection import PrivateValidation, exponential_choice
from dpmerge.planning.public_selection import PublicEvaluation
from dpmerge.planning.usable_checkpoints import usable_checkpoints

EXAMPLES = Path(__file__).parents[2] / "examples"
TARGET = Guarantee(epsilon=0.8, delta=1e-5)


@pytest.fixture(scope="module")
def mnist() -> Portfolio:
    return Portfolio.load(EXAMPLES / "mnist")


@pytest.fixture(scope="module")
def accuracy() -> Any:
    return load_evaluator(f"linear:{EXAMPLES / 'mnist' / 'public.npz'}")


def joint(portfolio: Portfolio, look: Mapping[str, int]) -> float:
    exposed = Exposure.of(portfolio.run(name).at(step) for name, step in look.items())
    return exposed.profile().epsilon(TARGET.delta)


def test_the_whole_look_set_is_charged_whatever_comes_out(mnist: Portfolio, accuracy: Any) -> None:
    made = plan(mnist, TARGET, objective=PublicEvaluation(evaluator=accuracy, evaluations=60))
    look = made.chosen_by["look"]
    assert made.guarantee.epsilon == joint(mnist, look) <= TARGET.epsilon
    assert {run.label: step for run, step in made.exposure.steps.items()} == look
    assert set(made.candidates[0].recipe.names) < {f"{run}@{step}" for run, step in look.items()} | {
        c.name for c in mnist.checkpoints()
    }
    assert made.theorem == "joint_release"
    assert made.charged
    assert made.chosen_by["score"] == pytest.approx(accuracy_of(mnist, made, accuracy), abs=1e-12)
    assert "looked" in {caveat.name for caveat in made.caveats}
    premises = {premise.name for premise in made.premises}
    assert {"evaluation_data_public", "look_set_fixed_before_looking", "independent_noise"} <= premises


def accuracy_of(portfolio: Portfolio, made: Any, evaluator: Any) -> float:
    from dpmerge.evaluation.evaluate import evaluate

    return evaluate(portfolio, [made.candidates[0].recipe], evaluator)[0]


def test_nothing_outside_the_look_set_is_read(mnist: Portfolio, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpmerge.evaluation import merged_model

    read: Counter[str] = Counter()
    before = merged_model.StoredModel.read

    def noted(self: Any, tensor: str) -> Any:
        read[self.name] += 1
        return before(self, tensor)

    monkeypatch.setattr(merged_model.StoredModel, "read", noted)
    made = plan(mnist, TARGET, objective=PublicEvaluation(evaluator=lambda t: float(np.sum(t["bias"])), evaluations=40))
    look = made.chosen_by["look"]
    assert read
    for name in read:
        run, step = name.split("@")
        assert int(step) <= look.get(run, 0)


def test_the_look_set_does_not_depend_on_any_model(mnist: Portfolio, accuracy: Any) -> None:
    known = usable_checkpoints(mnist, TARGET.delta)
    seen = {checkpoint.name for checkpoint in look_set(known, TARGET, None, "pld").latest}
    for evaluator in (accuracy, lambda tensors: -float(np.abs(tensors["weight"]).sum())):
        made = plan(mnist, TARGET, objective=PublicEvaluation(evaluator=evaluator, evaluations=25))
        assert {f"{run}@{step}" for run, step in made.chosen_by["look"].items()} == seen


def test_the_best_of_what_was_tried_is_taken(mnist: Portfolio, accuracy: Any) -> None:
    look = ["c2-s64@20", "ladder-1@20"]
    single = plan(mnist, TARGET, method="select", objective=PublicEvaluation(evaluator=accuracy, look=look))
    merged = plan(mnist, TARGET, objective=PublicEvaluation(evaluator=accuracy, look=look))
    best = max(mnist.saved(f"c2-s64@{step}").metric("accuracy") for step in (8, 12, 16, 20))
    assert single.chosen_by["score"] == pytest.approx(best, abs=1.1e-3)
    assert merged.chosen_by["score"] >= single.chosen_by["score"]
    assert single.method == "select"
    assert single.chosen_by["evaluations"] == 5


def test_a_declared_look_set_above_the_target_is_refused_with_its_cost(mnist: Portfolio, accuracy: Any) -> None:
    with pytest.raises(
        TargetOutOfReachError, match=r"the smallest is ε = 1\.18.*\(the look set c2-s32@20, c2-s64@20\)"
    ):
        plan(mnist, TARGET, objective=PublicEvaluation(evaluator=accuracy, look=["c2-s32@20", "c2-s64@20", "c2-s64@8"]))


def test_a_look_set_holds_the_earlier_checkpoints_of_its_runs_too(mnist: Portfolio, accuracy: Any) -> None:
    known = usable_checkpoints(mnist, TARGET.delta)
    look = look_set(known, TARGET, ["c2-s64@12", "c2-s64@20"], "pld")
    assert [checkpoint.name for checkpoint in look.latest] == ["c2-s64@20"]
    assert [checkpoint.name for checkpoint in look.everything] == ["c2-s64@8", "c2-s64@12", "c2-s64@16", "c2-s64@20"]


@pytest.mark.parametrize("theorem", ["last_step", "hidden_state", "merged_trajectory"])
def test_looking_is_refused_with_any_theorem_but_joint_release(mnist: Portfolio, accuracy: Any, theorem: Any) -> None:
    with pytest.raises(InvalidInputError, match="voids all other theorems"):
        plan(mnist, TARGET, theorem=theorem, objective=PublicEvaluation(evaluator=accuracy))


@pytest.mark.parametrize("method", ["auto", "select", "combine", "mix"])
def test_uncharged_plans_are_marked_everywhere(mnist: Portfolio, accuracy: Any, method: Any) -> None:
    objective = PublicEvaluation(evaluator=accuracy, tuning="uncharged", evaluations=80)
    made = plan(mnist, TARGET, method=method, objective=objective)
    document = made.document()
    assert not made.charged
    assert document["charged"] is False
    assert document["proved"] is False
    assert document["chosen_by"]["looked_at"]
    assert document["chosen_by"]["kind"] == "uncharged"
    assert "uncharged" in {caveat["name"] for caveat in document["caveats"]}
    assert made.guarantee.epsilon <= TARGET.epsilon
    printed = io.StringIO()
    print_plan(made, [], Console(width=80, file=printed))
    assert "NOT paid for" in printed.getvalue()


def test_uncharged_selection_draws_between_two_models_at_the_target(mnist: Portfolio, accuracy: Any) -> None:
    objective = PublicEvaluation(evaluator=accuracy, tuning="uncharged")
    made = plan(mnist, Guarantee(epsilon=0.2, delta=1e-5), method="select", objective=objective)
    assert len(made.candidates) == 2
    assert made.guarantee.epsilon == pytest.approx(0.2, rel=1e-6)


def test_a_private_validation_set_is_charged_beside_the_training_set(mnist: Portfolio, accuracy: Any) -> None:
    asked: list[int] = []

    def right(tensors: Any) -> int:
        asked.append(1)
        return round(1000 * accuracy(tensors))

    made = plan(mnist, TARGET, objective=PrivateValidation(evaluator=right, epsilon=0.1, evaluations=20))
    sides = made.chosen_by["sides"]
    assert sides["validation"] == {"epsilon": 0.1, "delta": 2.0**-500}
    assert sides["training"]["epsilon"] == joint(mnist, made.chosen_by["look"])
    assert Fraction(made.guarantee.epsilon) >= Fraction(sides["training"]["epsilon"]) + Fraction(0.1)
    assert made.guarantee.epsilon <= TARGET.epsilon
    assert len(asked) == made.chosen_by["evaluations"] == 20
    assert not any("score" in name or "count" in name for name in made.chosen_by)
    apart = PrivateValidation(evaluator=right, epsilon=0.5, evaluations=5, disjoint_vouched_by="the data team")
    made = plan(mnist, TARGET, objective=apart)
    assert made.guarantee.epsilon == max(joint(mnist, made.chosen_by["look"]), 0.5)
    assert "training_and_validation_people_disjoint" in {premise.name for premise in made.premises}


@pytest.mark.parametrize("score", [0.5, -1.0])
def test_a_private_score_that_is_no_count_is_refused_without_naming_it(mnist: Portfolio, score: float) -> None:
    with pytest.raises(EvaluationError) as caught:
        plan(mnist, TARGET, objective=PrivateValidation(evaluator=lambda _: score, epsilon=0.5))
    assert str(score) not in str(caught.value)


def test_the_exponential_mechanism_draws_with_its_exact_probabilities() -> None:
    counts, epsilon = [3, 5, 0], 0.8
    size = 0

    def below(total: int) -> int:
        nonlocal size
        size = total
        return 0

    exponential_choice(counts, epsilon, below=below)
    # Walk the integers: where the answer changes, so many draws belong to each.
    edges = [0]
    for place in range(len(counts)):
        low, high = edges[-1], size
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (
                (middle, high)
                if exponential_choice(counts, epsilon, below=lambda _, m=middle: m) <= place
                else (low, middle)
            )
        edges.append(high)
    shares = [float(Fraction(b - a, size)) for a, b in pairwise(edges)]
    weights = [math.exp(epsilon * count / 2) for count in counts]
    assert shares == pytest.approx([weight / sum(weights) for weight in weights], rel=1e-12)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 30.0])
def test_one_record_changes_every_probability_by_at_most_e_to_the_epsilon(epsilon: float) -> None:
    def exact(counts: list[int]) -> list[float]:
        best = max(counts)
        weights = [math.exp(epsilon * (count - best) / 2) for count in counts]
        return [weight / sum(weights) for weight in weights]

    counts = [40, 41, 7, 39]
    worst = 0.0
    for change in np.ndindex(*(3,) * len(counts)):
        after = [count + c - 1 for count, c in zip(counts, change, strict=True)]
        for a, b in zip(exact(counts), exact(after), strict=True):
            worst = max(worst, abs(math.log(a / b)))
    assert worst <= epsilon * (1 + 1e-9)
