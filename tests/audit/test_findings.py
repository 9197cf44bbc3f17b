"""Verdicts, how they are rounded and printed, alarms that are confirmed, and the page made of results."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import binom

from dpmerge.auditing.attacks import Attack, Draws
from dpmerge.auditing.confirmation import FRESH, confirmed
from dpmerge.auditing.estimate import estimate_epsilon
from dpmerge.auditing.findings import Claim, Estimate, Finding, Interval
from dpmerge.auditing.gaussian_estimator import gaussian_epsilon
from dpmerge.auditing.printed_figures import above, below, percent, ratio
from dpmerge.auditing.scenario import ScenarioResult, simultaneous
from dpmerge.cli.finding_table import print_claims, print_finding
from dpmerge.errors import InvalidInputError
from reproduction.audit_page import BEGIN, END, table, with_table

DOCS = Path(__file__).parents[2] / "docs"


def finding(bound: float, claimed: float | None, **changes: object) -> Finding:
    estimate = Estimate(quantity="epsilon", bound=bound, given=1e-5, estimator="counting", trials=1000, confidence=0.95)
    claim = Claim(by="joint_release", value=claimed, proved=True)
    return Finding(subject="one", claim=claim, estimate=replace(estimate, **changes))  # type: ignore[arg-type]


class TestVerdicts:
    @pytest.mark.parametrize(
        ("bound", "claimed", "verdict", "tightness"),
        [
            (1.0, 1.0, "tight", 1.0),
            (math.nextafter(1.0, 2.0), 1.0, "violated", math.nextafter(1.0, 2.0)),
            (0.9, 1.0, "tight", 0.9),
            (0.8999, 1.0, "consistent", 0.8999),
            (0.0, 1.0, "consistent", 0.0),
            (0.0, 0.0, "consistent", None),
            (1e-9, 0.0, "violated", math.inf),
            (5.0, None, "consistent", None),
            (5.0, math.inf, "consistent", None),
        ],
    )
    def test_the_ratio_of_bound_and_claim_decides_the_verdict(
        self, bound: float, claimed: float | None, verdict: str, tightness: float | None
    ) -> None:
        found = finding(bound, claimed)
        assert (found.verdict, found.tightness) == (verdict, tightness)
        json.dumps(found.document(), allow_nan=False)

    def test_what_theory_says_never_enters_a_verdict(self) -> None:
        found = finding(0.5, 1.0)
        assert replace(found, claim=replace(found.claim, false_here=True)).verdict == found.verdict


class TestConfirmation:
    def test_a_bound_below_the_claims_is_not_attacked_again(self) -> None:
        seeds: list[int] = []

        def attacked(seed: int) -> Estimate:
            seeds.append(seed)
            return finding(0.9, 1.0).estimate

        assert confirmed(attacked, [finding(0.0, 1.0).claim, finding(0.0, None).claim], 7).bound == 0.9
        assert seeds == [7]

    @pytest.mark.parametrize(("second", "reported"), [(0.8, 0.8), (1.4, 1.2)])
    def test_a_bound_above_a_claim_is_attacked_again_and_the_smaller_one_counts(
        self, second: float, reported: float
    ) -> None:
        bounds = {7: 1.2, 7 + FRESH: second}
        found = confirmed(lambda seed: finding(bounds[seed], 1.0).estimate, [finding(0.0, 1.0).claim], 7)
        assert found.bound == reported

    def test_exact_claims_are_hardly_ever_called_violated_and_false_ones_are(self) -> None:
        """200 audits of μ = 1 that is claimed exactly, then of one claimed as 0.85."""

        def play(rng: np.random.Generator, trials: int, present: bool) -> Draws:
            return Draws(rng.normal(size=trials) + present)

        def violated(claimed: float, seed: int) -> bool:
            claim = Claim(by="x", value=gaussian_epsilon(claimed, 1e-5), proved=True)
            found = confirmed(
                lambda own: estimate_epsilon(
                    Attack(play=play, gaussian=True), delta=1e-5, trials=2000, confidence=0.95, seed=own
                ),
                [claim],
                seed,
            )
            return Finding(subject="x", claim=claim, estimate=found).verdict == "violated"

        assert sum(violated(1.0, seed) for seed in range(200)) <= binom.ppf(0.999, 200, 0.05**2)
        assert sum(violated(0.85, seed) for seed in range(50)) >= 40


class TestPrinting:
    def test_claims_are_rounded_up_and_bounds_down(self) -> None:
        assert (above(1.00001), below(1.99999), above(None), above(math.inf)) == ("1.001", "1.999", "–", "∞")
        assert (above(0.2), below(0.2), below(0.0)) == ("0.2", "0.2", "0")

    def test_a_ratio_is_never_rounded_across_its_verdict(self) -> None:
        assert ratio(0.8999) == "0.899"
        assert (ratio(1.0000001), ratio(9.8949), ratio(math.inf)) == ("1.01", "9.89", "∞")
        assert ratio(None) == "–"

    def test_no_confidence_is_printed_as_100_percent(self) -> None:
        shown = [percent(value) for value in (0.5, 0.95, 0.975, 0.998980, 0.9999999)]
        assert shown == ["50 %", "95 %", "97.5 %", "99.898 %", "99.99999 %"]

    def test_what_is_not_proved_is_not_called_certified(self) -> None:
        out = Console(file=io.StringIO(), width=80)
        found = finding(0.95, 1.0, attacks=2)
        print_finding(replace(found, claim=replace(found.claim, proved=False)), out)
        text = " ".join(out.file.getvalue().split())  # type: ignore[attr-defined]
        assert "certified" not in text
        assert "claimed ε = 1 at δ = 1e-05 by joint_release, not proved for these runs" in text
        assert "a premise fails for these runs, so nothing is proved" in text
        assert "made twice, the smaller bound" in text

    def test_one_run_counts_canaries_and_nothing_is_wider_than_a_terminal(self) -> None:
        out = Console(file=io.StringIO(), width=80)
        one_run = finding(0.5, 1.0, estimator="one_run", mu=Interval(1.0, 0.9, 1.1))
        print_finding(one_run, out)
        print_claims([finding(0.5, 1.0), one_run], out)
        text = out.file.getvalue()  # type: ignore[attr-defined]
        assert "1,000 canaries in one run" in text
        assert "1,000 trials in each world" in text
        assert max(map(len, text.splitlines())) <= 80


class TestPage:
    def results(self) -> dict[str, object]:
        violated = replace(finding(2.0, 1.0), claim=Claim(by="a_rule", value=1.0, proved=False, false_here=True))
        played = [
            ScenarioResult(
                name="one", words="Something.", note="", seconds=1.0, findings=(finding(0.95, 1.0), violated)
            ),
            ScenarioResult(
                name="two",
                words="Else.",
                note="A note.",
                seconds=2.0,
                findings=(replace(finding(0.1, None), subject="two, of three"),),
            ),
        ]
        return {"seed": 0, "confidence": 0.95, "each": 0.975, "scenarios": [p.document() for p in played]}

    def test_the_table_lists_every_claim_with_its_verdict(self) -> None:
        text = table(self.results())
        assert "2 scenarios, 3 claims: 1 violated, 1 tight, 1 consistent" in text
        assert "each alone with 97.5 %" in text
        assert "| [one](#one) | joint release | yes | ε = 1 | ε ≥ 0.95 | 0.95 | tight |" in text
        assert "|  | a rule | no | ε = 1 | ε ≥ 2 | 2 | **violated** |" in text
        assert "| [two](#two) of three | joint release | yes | no number | ε ≥ 0.1 | – | consistent |" in text
        assert "**two**: Else. A note." in text

    def test_only_what_stands_between_the_marks_is_made_anew(self) -> None:
        page = f"before\n{BEGIN}\nstale figures\n{END}\nafter\n"
        made = with_table(page, self.results())
        assert made.startswith("before\n")
        assert made.endswith("\nafter\n")
        assert "stale figures" not in made
        assert with_table(made, self.results()) == made

    def test_a_page_without_the_marks_is_refused(self) -> None:
        with pytest.raises(InvalidInputError, match="a page without"):
            with_table("nothing", self.results())

    def test_the_committed_page_is_made_of_the_committed_results(self) -> None:
        results = json.loads((DOCS / "audit" / "scenarios.json").read_text())
        page = (DOCS / "audit.md").read_text()
        assert with_table(page, results) == page

    def test_the_committed_results_are_as_theory_says(self) -> None:
        results = json.loads((DOCS / "audit" / "scenarios.json").read_text())
        for scenario in results["scenarios"]:
            for found in scenario["findings"]:
                assert (found["verdict"] == "violated") == found["false_here"], scenario["name"]
                assert not (found["proved"] and found["verdict"] == "violated"), scenario["name"]

    def test_the_committed_results_are_tight_where_theory_is_exact(self) -> None:
        results = json.loads((DOCS / "audit" / "scenarios.json").read_text())
        found = {(s["name"], f["claimed_by"]): f for s in results["scenarios"] for f in s["findings"]}
        for scenario, claim in (
            ("single_full_batch", "run"),
            ("selection_visible", "random_selection"),
            ("one_step", "merged_trajectory"),
            ("one_step", "last_step"),
            ("linear_losses", "hidden_state"),
            ("linear_losses_noisier", "hidden_state"),
            ("joint_models", "joint_release"),
        ):
            assert found[scenario, claim]["verdict"] == "tight", scenario
            assert found[scenario, claim]["estimator"] == "gaussian", scenario

    def test_the_committed_results_have_all_counterexamples(self) -> None:
        results = json.loads((DOCS / "audit" / "scenarios.json").read_text())
        plain, total, first, second = (
            next(s for s in results["scenarios"] if s["name"] == name)
            for name in ("logistic", "logistic_total_clipped", "revealed_state", "contraction")
        )
        for scenario, least in ((plain, 3.5), (total, 0.3)):
            assert scenario["seconds"] < 60
            assert scenario["findings"][0]["trials"] >= 10**6
            assert scenario["findings"][0]["lower_bound"] > least
        verdicts = [{f["claimed_by"]: f["verdict"] for f in s["findings"]}["merged_trajectory"] for s in (plain, total)]
        assert verdicts == ["violated", "consistent"]
        assert first["seconds"] + second["seconds"] < 120
        assert min(f["lower_bound"] for f in first["findings"]) >= 9
        mu = second["findings"][0]["mu"]
        assert second["findings"][0]["trials"] >= 10**6
        assert mu["low"] < 4.3953 < mu["high"]


def test_bounds_that_hold_simultaneously_share_their_error() -> None:
    assert simultaneous(0.95, 1) == pytest.approx(0.95)
    assert simultaneous(0.95, 50) == pytest.approx(0.999)
