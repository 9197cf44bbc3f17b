"""Figures that were too small because of what a spec or a manifest could not say, or nobody asked for."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from attacks.faults import must_notice
from dpmerge.account_spec import Spec
from dpmerge.accounting import Adjacency, mechanisms
from dpmerge.cli import app
from dpmerge.errors import InvalidInputError, NoGuaranteeError, TargetOutOfReachError
from dpmerge.planning import plan_table
from dpmerge.planning.candidates import candidate
from dpmerge.planning.plan import Plan
from dpmerge.planning.planner import ReleaseAlternatives, plan
from dpmerge.planning.stated_weights import stated_weights
from dpmerge.portfolio.applicable_theorems import applicable_theorems
from dpmerge.portfolio.manifest import Manifest
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.portfolio_caveats import caveats
from dpmerge.releasing import prepare
from dpmerge.terms.caveats import Caveat
from dpmerge.terms.guarantee import Guarantee
from dpmerge.terms.recipe import Recipe
from dpmerge.terms.release_terms import ReleaseTerms
from oracle import gaussian_mp
from planning.synthetic import portfolio as in_memory
from planning.synthetic import run_document
from portfolio.portfolios import manifest, model, write_portfolio

DELTA = 1e-5
Document = dict[str, Any]


def true_epsilon(mu: float) -> float:
    return float(gaussian_mp.epsilon(mu, DELTA))


class TestNesterovAndDampening:
    """A spec had no word for either, and last_step took the rate for the coefficient of a step's own gradient."""

    CLAIMED, TRUE = 1.176, 2.360
    """One step, σ = 0.7, momentum 0.9, release noise 6.4: Nesterov moves the weights by 1.9 times its gradient."""

    @staticmethod
    def last_step(*runs: Document, steps: int = 1, weights: tuple[float, ...] = (1.0,), noise: float = 0.0) -> float:
        blocks = {"steps": steps, "clip_norm": 1, "learning_rate": 1}
        document = {
            "adjacency": "replace_one",
            "delta": DELTA,
            "runs": [{"blocks": [{**blocks, "noise_multiplier": run.pop("sigma")}], **run} for run in map(dict, runs)],
            "weights": list(weights),
            "release_noise": noise,
        }
        found = Spec.parse(json.dumps(document)).compare().combination
        assert found is not None
        epsilon = found["last_step"][1].epsilon
        assert epsilon is not None
        return epsilon

    def attack(self, _: Path) -> None:
        momentum = {"sigma": 0.7, "momentum": 0.9, "dampening": 0}
        claimed = self.last_step({**momentum, "nesterov": False}, noise=6.4)
        true = self.last_step({**momentum, "nesterov": True}, noise=6.4)
        assert claimed == pytest.approx(self.CLAIMED, abs=1e-3)
        assert true == pytest.approx(self.TRUE, abs=1e-3)
        assert true == pytest.approx(true_epsilon(1.9 * 2 / math.hypot(1.9 * 0.7, 6.4)), rel=1e-9)

    def test_nesterov_counts_in_the_coefficient_of_the_last_step(self, tmp_path: Path) -> None:
        self.attack(tmp_path)

    def test_dampening_counts_in_the_coefficient_of_the_last_step(self) -> None:
        """2.201 without dampening, 2.950 true: the noisier run's last gradient, and its noise, count a tenth."""
        noisy, other = {"sigma": 20, "momentum": 0.9, "nesterov": False}, {"sigma": 4}
        claimed = self.last_step({**noisy, "dampening": 0}, other, steps=2, weights=(0.5, 0.5))
        true = self.last_step({**noisy, "dampening": 0.9}, other, steps=2, weights=(0.5, 0.5))
        before = (2 / 20) ** 2 + (2 / 4) ** 2
        merged = (0.5 * 0.1 * 2 + 0.5 * 2) ** 2 / ((0.5 * 0.1 * 20) ** 2 + (0.5 * 4) ** 2)
        assert true == pytest.approx(true_epsilon(math.sqrt(before + merged)), rel=1e-9)
        assert (claimed, true) == pytest.approx((2.201, 2.950), abs=1e-3)

    @pytest.mark.parametrize("silent", ["nesterov", "dampening"])
    def test_momentum_without_nesterov_or_dampening_stated_is_refused(self, silent: str) -> None:
        facts = {"sigma": 0.7, "momentum": 0.9, "nesterov": False, "dampening": 0}
        del facts[silent]
        with pytest.raises(
            InvalidInputError, match=rf"runs\[0\]\.{silent}: got nothing; accepted: .*momentum must say"
        ):
            self.last_step(facts)

    def test_tests_notice_when_the_gradient_coefficient_is_always_one(self, tmp_path: Path) -> None:
        must_notice(self.attack, tmp_path, mechanisms.Optimizer, "gradient_coefficient", lambda self, first_step: 1.0)


class TestNoiseThatIsNotOnTheWeights:
    """Two noisy statistics s₁, s₂ (sensitivity 1, deviations 2 and 0.5), and models made of them: (s₁, 0) and (0, s₂).

    Their average shows both statistics as they are. Stated as Gaussian releases, last_step took the deviations for
    noise on the weights, of which an average hides some.
    """

    CLAIMED, TRUE = 4.227, 10.379
    DEVIATIONS: ClassVar = {"a": 2.0, "b": 0.5}
    RECIPE = Recipe.of({"a@1": 0.5, "b@1": 0.5})

    def documents(self, **stated: Any) -> dict[str, Document]:
        facts = {"kind": "gaussian_release", "sensitivity": 1.0, **stated}
        return {
            name: manifest(name, mechanism={**facts, "standard_deviation": deviation})
            for name, deviation in self.DEVIATIONS.items()
        }

    def portfolio(self, **stated: Any) -> Portfolio:
        return in_memory({name: (document, (1,)) for name, document in self.documents(**stated).items()})

    def attack(self, _: Path) -> None:
        found = candidate(self.portfolio(), self.RECIPE, delta=DELTA)
        assert found.theorem == "joint_release"
        assert found.profile.epsilon(DELTA) == pytest.approx(self.TRUE, abs=1e-3)
        assert found.profile.epsilon(DELTA) == pytest.approx(true_epsilon(math.hypot(1 / 2, 1 / 0.5)), rel=1e-9)
        for theorem in ("last_step", "hidden_state", "merged_trajectory"):
            with pytest.raises(NoGuaranteeError, match=theorem):
                candidate(self.portfolio(), self.RECIPE, delta=DELTA, theorem=theorem)  # type: ignore[arg-type]

    def test_an_average_of_noise_not_said_to_be_on_the_weights_costs_joint_release(self, tmp_path: Path) -> None:
        self.attack(tmp_path)

    def test_a_plan_of_noise_not_said_to_be_on_the_weights_has_a_caveat(self) -> None:
        found = plan(self.portfolio(), Guarantee(epsilon=11, delta=DELTA), objective="saturate", method="combine")
        assert "noise_not_said_to_be_on_the_weights" in {caveat.name for caveat in found.caveats}
        words = str(found)
        assert 'noise_on: "weights"' in " ".join(words.split())

    def test_noise_stated_to_be_on_the_weights_is_a_premise_of_last_step(self) -> None:
        found = candidate(self.portfolio(noise_on="weights"), self.RECIPE, delta=DELTA)
        assert found.theorem == "last_step"
        assert found.profile.epsilon(DELTA) == pytest.approx(self.CLAIMED, abs=1e-3)
        [premise] = [p for p in found.bound.premises if p.name == "noise_in_units_of_the_weights"]
        assert premise.holds
        assert premise.vouched_by == "a (recorded in training), b (recorded in training)"

    def test_a_model_known_by_its_mu_is_covered_by_joint_release_and_selection_alone(self) -> None:
        facts = {name: {"kind": "gaussian_dp", "mu": 1 / deviation} for name, deviation in self.DEVIATIONS.items()}
        documents = {name: manifest(name, mechanism=each) for name, each in facts.items()}
        portfolio = in_memory({name: (document, (1,)) for name, document in documents.items()})
        found = candidate(portfolio, self.RECIPE, delta=DELTA)
        assert found.theorem == "joint_release"
        assert found.profile.epsilon(DELTA) == pytest.approx(self.TRUE, abs=1e-3)
        selected = plan(portfolio, Guarantee(epsilon=5, delta=DELTA), method="select", objective="saturate")
        assert selected.guarantee.epsilon <= 5
        assert selected.proved
        within = {
            each.theorem: each.certifies for each in applicable_theorems(Manifest.parse(json.dumps(documents["a"])))
        }
        assert within == {
            "joint_release": True, "last_step": False, "hidden_state": False, "merged_trajectory": False,
        }  # fmt: skip

    def test_an_average_of_runs_known_by_their_mu_in_a_spec_costs_joint_release(self) -> None:
        runs = [{"kind": "gaussian_dp", "mu": 0.5}, {"kind": "gaussian_dp", "mu": 2}]
        spec = {"adjacency": "replace_one", "delta": DELTA, "runs": runs, "weights": [0.5, 0.5]}
        found = Spec.parse(json.dumps({**spec, "probabilities": [0.9, 0.1]})).compare()
        assert found.best is not None
        assert found.best[0].theorem == "joint_release"
        assert found.best[1] == pytest.approx(self.TRUE, abs=1e-3)
        assert found.selection is not None
        assert found.selection.epsilon is not None
        assert found.combination is not None
        assert {name: bound.certifies for name, (bound, _) in found.combination.items()} == {
            "joint_release": True,
            "last_step": False,
            "merged_trajectory": False,
            "merged_trajectory_prepended": False,
            "hidden_state": False,
        }

    def test_older_terms_and_plans_that_do_not_state_it_are_priced_by_last_step(self, tmp_path: Path) -> None:
        """The terms of an older plan, and the plan's file: last_step of releases that say nothing of their units."""
        stated = stated_weights(
            self.portfolio(noise_on="weights"),
            {"a@1": 0.5, "b@1": 0.5},
            Guarantee(epsilon=5, delta=DELTA),
            theorem="last_step",
        )
        document = stated.terms.document()
        for run in document["runs"]:
            del run["mechanism"]["noise_on"]
        older = ReleaseTerms.model_validate(document)
        assert older.candidates[0].theorem == "last_step"
        assert older.proved
        assert older.epsilon(DELTA) == pytest.approx(self.CLAIMED, abs=1e-3)
        assert "noise_in_units_of_the_weights" not in {premise.name for premise in older.premises}
        written = plan(
            self.portfolio(noise_on="weights"), Guarantee(epsilon=5, delta=DELTA), method="combine", theorem="last_step"
        )
        file = tmp_path / "plan.json"
        file.write_text(json.dumps(written.document()))
        assert Plan.load(file, self.portfolio()).terms.candidates[0].theorem == "last_step"

    def test_tests_notice_when_unstated_noise_is_taken_to_be_on_the_weights(self, tmp_path: Path) -> None:
        def as_stated(self: Manifest, parent: Any, noise_group: str | None = None) -> Any:
            return self.statement.mechanism_from(Adjacency(self.adjacency), parent, noise_group)

        must_notice(self.attack, tmp_path, Manifest, "mechanism_from", as_stated)


class TestSaturateOnImportedRuns:
    """`merge --objective saturate` answered "objective: got 'noise'": a hint was planned for by another rule."""

    @staticmethod
    def merge(home: Path, *arguments: str) -> Result:
        for seed, (name, epsilon) in enumerate((("a", 0.5), ("b", 2.0))):
            points = [{"epsilon": epsilon, "delta": 1e-6}]
            document = manifest(name, mechanism={"kind": "approximate_dp", "points": points})
            write_portfolio(home, runs=[name], manifests={name: document}, models={name: {1: model(seed)}})
        asked = ["merge", str(home), "--delta", "1e-5", "-o", str(home.with_name("out")), *arguments]
        return CliRunner().invoke(app, asked, env={"COLUMNS": "80"})

    def attack(self, folder: Path) -> None:
        result = self.merge(folder / "runs", "--epsilon", "1", "--objective", "saturate")
        assert result.exit_code == 0, result.output

    def test_saturate_makes_a_release_of_imported_runs(self, tmp_path: Path) -> None:
        self.attack(tmp_path)

    def test_a_target_out_of_reach_is_the_error_that_is_told(self, tmp_path: Path) -> None:
        result = self.merge(tmp_path / "runs", "--epsilon", "0.01", "--objective", "saturate")
        assert result.exit_code == 1
        assert "objective" not in result.stderr
        assert "0.01" in result.stderr

    def test_tests_notice_when_the_hint_is_planned_by_another_objective(self, tmp_path: Path) -> None:
        def by_noise(portfolio: Portfolio, target: Guarantee, **_: object) -> ReleaseAlternatives:
            return ReleaseAlternatives(joint=plan(portfolio, target), final=None)

        must_notice(self.attack, tmp_path, prepare, "release_alternatives", by_noise)


class TestInANotebook:
    """`str(plan)` was empty: in a notebook rich shows what it prints below the cell, whatever file it is given."""

    @staticmethod
    def made() -> Plan:
        runs = {name: (run_document(name, noise_multiplier=40.0), (20,)) for name in "ab"}
        return plan(in_memory(runs), Guarantee(epsilon=2, delta=DELTA))

    def attack(self, _: Path) -> None:
        outside = str(self.made())
        shown: list[object] = []
        with pytest.MonkeyPatch.context() as notebook:
            notebook.setattr("rich.console._is_jupyter", lambda: True)
            notebook.setattr("rich.jupyter.display", lambda *what: shown.append(what))
            inside = str(self.made())
        assert "It costs ε = " in outside
        assert inside == outside
        assert shown == []

    def test_a_plan_as_text_is_the_same_in_a_notebook(self, tmp_path: Path) -> None:
        self.attack(tmp_path)

    def test_tests_notice_when_the_console_looks_for_a_notebook(self, tmp_path: Path) -> None:
        must_notice(self.attack, tmp_path, plan_table, "PlainConsole", Console)


class TestUpdatesThatExpand:
    """hidden_state is listed as covering logistic regression with steps far above 2/β: L is said to be 249, not 1."""

    @staticmethod
    def portfolio(rate: float, records: int = 100, steps: int = 3) -> Portfolio:
        """β = R²/4 = 1 for features up to 2: a rate of the mean up to 2 keeps L at 1, one of 250 makes it 249."""
        facts = {"kind": "logistic", "feature_bound": 2.0, "records": records, "vouched_by": "the tests"}
        runs = {}
        for name, noise in (("a", 40.0), ("b", 20.0)):
            document = run_document(name, noise_multiplier=noise, steps=steps, learning_rate=rate / 100)
            document["mechanism"] = {**document["mechanism"], "smoothness": facts}
            runs[name] = (document, (steps,))
        return in_memory(runs)

    @staticmethod
    def planned(portfolio: Portfolio) -> Plan:
        return plan(portfolio, Guarantee(epsilon=0.1, delta=DELTA), method="combine", theorem="hidden_state")

    def attack(self, _: Path) -> None:
        portfolio = self.portfolio(250.0)
        found = {caveat.name: caveat.text for caveat in caveats(portfolio)}
        assert "L = 249 at most" in found.get("updates_expand", "")
        made = self.planned(portfolio)
        assert "updates_expand" in {caveat.name for caveat in made.caveats}
        assert "L = 249" in str(made)
        for factors in (each["lipschitz"] for each in made.document()["candidates"]):
            assert list(factors.values()) == pytest.approx([249.0] * len(factors))

    def test_a_plan_of_expanding_updates_has_a_caveat_that_states_l(self, tmp_path: Path) -> None:
        self.attack(tmp_path)

    def test_small_steps_have_l_one_and_no_caveat(self) -> None:
        portfolio = self.portfolio(1.0)
        assert not {"updates_expand", "records_far_from_the_batch"} & {caveat.name for caveat in caveats(portfolio)}
        made = self.planned(portfolio)
        assert "by L = 1 at most." in " ".join(str(made).split())

    def test_twenty_expanding_steps_put_the_target_out_of_reach(self) -> None:
        """249²⁰ times apart: no noise helps, and that is said (it ended in NaN)."""
        with pytest.raises(TargetOutOfReachError, match="no release meets ε = 0.1 at"):
            self.planned(self.portfolio(250.0, steps=20))

    def test_plans_by_other_theorems_have_no_caveat_of_expanding_updates(self) -> None:
        made = plan(self.portfolio(250.0), Guarantee(epsilon=2, delta=DELTA), theorem="joint_release")
        assert "updates_expand" not in {caveat.name for caveat in made.caveats}

    def test_a_bound_on_the_records_far_above_the_batch_is_a_caveat(self) -> None:
        """A rate of 1 keeps L at 1 for 100 records; for a million it is 9,999."""
        portfolio = self.portfolio(1.0, records=10**6)
        found = {caveat.name: caveat.text for caveat in caveats(portfolio)}
        assert "1,000,000, where a batch has 100" in found["records_far_from_the_batch"]
        assert "L = 9999 at most" in found["updates_expand"]

    def test_two_models_are_pulled_apart_by_l_at_the_steepest_point(self) -> None:
        """Two states on either side of the steepest point of 100 logistic losses, a rate of 250 for their mean."""
        feature, records, apart = 2.0, 100, 1e-6
        states = np.array([-apart, apart]) / 2
        moved = states + 250 / records * records * feature * (0.5 - 1 / (1 + np.exp(-feature * states)))
        assert abs(moved[1] - moved[0]) / apart == pytest.approx(249, rel=1e-6)

    def test_tests_notice_when_expanding_updates_are_no_caveat(self, tmp_path: Path) -> None:
        def silent(_: object) -> Iterator[Caveat]:
            return iter(())

        must_notice(
            self.attack, tmp_path, import_module("dpmerge.portfolio.portfolio_caveats"), "_smoothness_caveats", silent
        )
