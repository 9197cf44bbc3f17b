"""A release from end to end: charged, drawn, merged, certified, recorded; or refused, and then nothing happened."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import dpmerge as dpm
from dpmerge.certificate import keys
from dpmerge.errors import (
    CannotWriteError,
    CapExceededError,
    InvalidInputError,
    LedgerBrokenError,
    NoGuaranteeError,
    RunsLockedError,
)
from dpmerge.ledger.caps import Cap
from dpmerge.ledger.entries import BudgetScope
from dpmerge.ledger.ledger import Ledger
from dpmerge.planning.plan import Plan
from dpmerge.planning.stated_weights import stated_weights
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.releasing.available_runs import available
from dpmerge.releasing.ledger_location import LEDGER_NAME, default_ledger
from dpmerge.releasing.rebuild import rebuilt
from dpmerge.releasing.release import release

EXAMPLES = Path(__file__).parents[2] / "examples"
DELTA = 1e-5


@pytest.fixture
def mnist(tmp_path: Path) -> Portfolio:
    return Portfolio.load(shutil.copytree(EXAMPLES / "mnist", tmp_path / "mnist"))


@pytest.fixture
def probe(tmp_path: Path) -> Portfolio:
    return Portfolio.load(shutil.copytree(EXAMPLES / "probe", tmp_path / "probe"))


def target(epsilon: float) -> dpm.Guarantee:
    return dpm.Guarantee(epsilon=epsilon, delta=DELTA)


def joint(portfolio: Portfolio, epsilon: float, **how: Any) -> dpm.Plan:
    return dpm.plan(portfolio, target(epsilon), theorem="joint_release", **how)


def averaged(portfolio: Portfolio, weights: Mapping[str, float]) -> dict[str, np.ndarray[Any, Any]]:
    """The float64 average, from the files themselves."""
    total: dict[str, np.ndarray[Any, Any]] = {}
    for name, weight in weights.items():
        for tensor, values in load_file(portfolio.saved(name).files[0]).items():
            total[tensor] = total.get(tensor, 0.0) + weight * values.astype(np.float64)
    return total


def entries(portfolio: Portfolio) -> list[str]:
    with Ledger.open(default_ledger(portfolio)) as ledger:
        assert ledger.verify().ok
        return [entry.kind for entry in ledger.entries()]


class TestWhatComesOut:
    def test_a_released_average_is_the_float64_average_of_its_inputs(self, mnist: Portfolio, tmp_path: Path) -> None:
        plan = joint(mnist, 0.8)
        made = release(plan, out=tmp_path / "out")
        assert made.guarantee.epsilon == pytest.approx(plan.guarantee.epsilon, rel=1e-5)
        assert plan.guarantee.epsilon <= made.guarantee.epsilon <= 0.8
        expected = averaged(mnist, dict(plan.candidates[0].recipe.parts))
        found = load_file(tmp_path / "out" / "model.safetensors")
        assert set(found) == set(expected)
        for name, values in found.items():
            np.testing.assert_allclose(values, expected[name], rtol=3e-7, atol=5e-8)
        assert entries(mnist) == ["opened", "release", "sealed", "completed"]

    def test_a_released_draw_is_the_candidate_that_was_drawn(self, mnist: Portfolio, tmp_path: Path) -> None:
        plan = joint(mnist, 0.12)
        made = release(plan, out=tmp_path / "out", reveal_draw=True)
        drawn = plan.candidates[made.content["drawn"]]
        expected = averaged(mnist, dict(drawn.recipe.parts))
        found = load_file(tmp_path / "out" / "model.safetensors")
        for name, values in found.items():
            np.testing.assert_allclose(values, expected[name], rtol=3e-7, atol=5e-8)

    def test_a_release_of_one_checkpoint_is_that_file_byte_for_byte(self, mnist: Portfolio, tmp_path: Path) -> None:
        planned = stated_weights(mnist, {"c2-s64@20": 1.0}, target(2.0))
        release(planned, out=tmp_path / "out")
        original = mnist.saved("c2-s64@20").files[0].read_bytes()
        assert (tmp_path / "out" / "model.safetensors").read_bytes() == original

    def test_release_noise_has_the_planned_size(self, probe: Portfolio, tmp_path: Path) -> None:
        plan = dpm.plan(probe, target(0.12))
        noise = plan.candidates[0].recipe.release_noise
        assert noise > 0
        release(plan, out=tmp_path / "out", final=True)
        expected = averaged(probe, dict(plan.candidates[0].recipe.parts))
        found = load_file(tmp_path / "out" / "model.safetensors")
        added = np.concatenate([(found[name] - expected[name]).ravel() for name in found])
        assert added.std() == pytest.approx(noise, rel=0.05)  # 7,850 values: five standard errors are 4 %
        assert abs(added.mean()) < 6 * noise / np.sqrt(added.size)

    def test_the_draws_follow_the_probabilities(self, mnist: Portfolio, tmp_path: Path) -> None:
        plan = joint(mnist, 0.12)
        drawn = []
        for number in range(40):
            made = release(plan, out=tmp_path / f"out-{number}", reveal_draw=True)
            drawn.append(made.content["drawn"])
        share, expected = np.mean(drawn), plan.probabilities[1]
        assert abs(share - expected) < 5 * np.sqrt(expected * (1 - expected) / 40)
        assert len(set(drawn)) == 2

    def test_a_signed_release_verifies_with_portfolio_key_and_rebuild(self, mnist: Portfolio, tmp_path: Path) -> None:
        keys.generate(tmp_path / "key")
        release(joint(mnist, 0.12), out=tmp_path / "out", key=tmp_path / "key")
        result = dpm.verify(tmp_path / "out", portfolio=mnist, key=tmp_path / "key.pub")
        assert result.verified, result.problems
        assert rebuilt(result, mnist).passed is True

    def test_a_release_with_noise_cannot_be_rebuilt(self, probe: Portfolio, tmp_path: Path) -> None:
        release(dpm.plan(probe, target(0.12)), out=tmp_path / "out", final=True)
        check = rebuilt(dpm.verify(tmp_path / "out"), probe)
        assert check.passed is None
        assert "never written down" in check.found[0]

    def test_a_rebuild_of_other_weights_fails(self, mnist: Portfolio, tmp_path: Path) -> None:
        release(joint(mnist, 0.8), out=tmp_path / "out")
        result = dpm.verify(tmp_path / "out")
        changed = result.__class__(**{**vars(result), "files": {"model.safetensors": "0" * 64}})
        check = rebuilt(changed, mnist)
        assert check.passed is False
        assert "model.safetensors came out differently" in check.found[0]

    def test_the_same_release_gives_the_same_bytes_for_any_number_of_threads(
        self, mnist: Portfolio, tmp_path: Path
    ) -> None:
        plan = joint(mnist, 0.8)
        outs = []
        for jobs in (1, 2, 3):
            release(plan, out=tmp_path / f"out-{jobs}", jobs=jobs)
            outs.append((tmp_path / f"out-{jobs}" / "model.safetensors").read_bytes())
        assert len(set(outs)) == 1

    def test_a_release_of_a_listing_names_the_listing_and_carries_its_caveat(
        self, mnist: Portfolio, tmp_path: Path
    ) -> None:
        listing = mnist.path / "few.yaml"
        listing.write_text("schema: dpmerge/portfolio/v1\nruns: [c2-s32, c2-s64]\ncomplete: false\n")
        few = Portfolio.load(listing)
        made = release(joint(few, 0.8), out=tmp_path / "out")
        assert "incomplete" in {caveat["name"] for caveat in made.content["caveats"]}
        assert dpm.verify(tmp_path / "out", portfolio=listing).verified
        with Ledger.open(default_ledger(few)) as ledger:
            assert ledger.release(made.release_id).details["portfolio"] == str(listing)  # type: ignore[union-attr]


class TestPlansFromFiles:
    @pytest.mark.parametrize("epsilon", [0.12, 0.8])
    def test_a_plan_saved_and_loaded_has_the_same_terms(self, mnist: Portfolio, tmp_path: Path, epsilon: float) -> None:
        plan = joint(mnist, epsilon)
        (tmp_path / "plan.json").write_text(json.dumps(plan.document()))
        read = Plan.load(tmp_path / "plan.json", mnist)
        assert read.terms == plan.terms
        assert release(read, out=tmp_path / "out").guarantee.epsilon <= epsilon

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda p: p.update(schema="dpmerge/plan/v9"), "accepted: dpmerge/plan/v1"),
            (lambda p: p.update(dataset="other"), "accepted: 'mnist-train', as in the portfolio"),
            (
                lambda p: p.pop("candidates"),
                r"plan\.json: candidates: got nothing; accepted: a non-empty list of candidates",
            ),
            (lambda p: p["candidates"][0].update(weights={"nobody@20": 1.0}), "nobody"),
            (lambda p: p["candidates"][0].update(weights={"c2-s32@19": 1.0}), "at least step 19 of c2-s32"),
            (lambda p: p["candidates"][0].update(theorem="wishful"), "accepted: joint_release, last_step"),
            (
                lambda p: p["candidates"][0].update(exposure={}),
                r"exposure: got \{\}; accepted: .*last step looked at",
            ),
            (lambda p: p["candidates"][0].update(release_noise=-1.0), "accepted: a finite number ≥ 0"),
            (lambda p: p.update(probabilities=[0.5]), "multiples of 2⁻⁵³ that sum to exactly 1"),
            (lambda p: p["chosen_by"].update(kind="by_eye"), "data_independent"),
        ],
    )
    def test_a_plan_that_was_edited_is_refused(
        self, mnist: Portfolio, tmp_path: Path, change: Any, message: str
    ) -> None:
        document = joint(mnist, 0.8).document()
        change(document)
        (tmp_path / "plan.json").write_text(json.dumps(document))
        with pytest.raises(InvalidInputError, match=message):
            Plan.load(tmp_path / "plan.json", mnist)

    def test_a_plan_whose_figures_were_edited_is_priced_again(self, mnist: Portfolio, tmp_path: Path) -> None:
        document = joint(mnist, 0.8).document()
        document["target"]["epsilon"] = document["guarantee"]["epsilon"] = 0.1
        (tmp_path / "plan.json").write_text(json.dumps(document))
        with pytest.raises(NoGuaranteeError, match="no release meets ε = 0.1 at δ = 1e-05; the smallest is ε = 0.7997"):
            Plan.load(tmp_path / "plan.json", mnist)

    def test_a_plan_of_runs_whose_manifest_changed_is_priced_again(self, mnist: Portfolio, tmp_path: Path) -> None:
        (tmp_path / "plan.json").write_text(json.dumps(joint(mnist, 0.8).document()))
        file = mnist.path / "c2-s32" / "privacy.json"
        document = json.loads(file.read_text())
        document["mechanism"]["blocks"][0]["noise_multiplier"] /= 2
        file.write_text(json.dumps(document))
        with pytest.raises(NoGuaranteeError, match="the smallest is ε = "):
            Plan.load(tmp_path / "plan.json", Portfolio.load(mnist.path))


class TestFinalReleases:
    def test_a_final_plan_above_its_target_as_joint_release_is_refused_unless_final(
        self, probe: Portfolio, tmp_path: Path
    ) -> None:
        plan = dpm.plan(probe, target(0.12))
        assert plan.is_final
        with pytest.raises(
            NoGuaranteeError,
            match=r"that others may follow this has .* final=True \(--final\)",
        ):
            release(plan, out=tmp_path / "out")
        assert not (tmp_path / "out").exists()
        assert not default_ledger(probe).exists()

    def test_a_final_plan_that_meets_its_target_as_joint_release_is_released_as_that(
        self, probe: Portfolio, tmp_path: Path
    ) -> None:
        plan = dpm.plan(probe, target(3.0), theorem="hidden_state", method="combine")
        loose = plan
        made = release(Plan.of_terms(probe, loose.terms, target(20.0)), out=tmp_path / "out")
        assert made.content["theorem"] == "joint_release"
        assert made.guarantee.epsilon > plan.guarantee.epsilon
        assert made.content["final"] is False

    def test_a_final_release_locks_its_runs(self, probe: Portfolio, tmp_path: Path) -> None:
        made = release(dpm.plan(probe, target(0.12)), out=tmp_path / "out", final=True)
        locked = {seen["run"] for seen in made.content["exposure"]}
        with pytest.raises(RunsLockedError, match="locked by a final release"):
            release(stated_weights(probe, {f"{min(locked)}@1": 1.0}, target(5.0)), out=tmp_path / "other")
        left = available(probe, default_ledger(probe), final=False, delta=DELTA)
        assert {run.id for run in left.runs} == {run.id for run in probe.runs} - locked

    def test_a_final_release_of_runs_seen_before_is_refused(self, probe: Portfolio, tmp_path: Path) -> None:
        release(stated_weights(probe, {"s64@1": 1.0}, target(5.0)), out=tmp_path / "one")
        with pytest.raises(RunsLockedError, match="seen before"):
            release(dpm.plan(probe, target(0.12)), out=tmp_path / "other", final=True)
        assert not (tmp_path / "other").exists()


class TestNothingHappens:
    """A release that is refused leaves no output, no entry, no leftovers."""

    def test_where_the_output_is_taken(self, mnist: Portfolio, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "precious").write_text("x")
        with pytest.raises(CannotWriteError, match="is not empty; name another, or overwrite it .* overwrite=True"):
            release(joint(mnist, 0.8), out=tmp_path / "out")
        assert (tmp_path / "out" / "precious").read_text() == "x"
        assert entries(mnist) == []

    def test_where_the_output_would_be_in_a_runs_folder(self, mnist: Portfolio) -> None:
        with pytest.raises(CannotWriteError, match="overlaps"):
            release(joint(mnist, 0.8), out=mnist.path / "c2-s32" / "out")

    def test_where_the_key_file_is_no_key(self, mnist: Portfolio, tmp_path: Path) -> None:
        (tmp_path / "key").write_text("nonsense")
        with pytest.raises(InvalidInputError, match="accepted: an ed25519 private key"):
            release(joint(mnist, 0.8), out=tmp_path / "out", key=tmp_path / "key")
        assert not default_ledger(mnist).exists()

    def test_where_the_donor_is_not_in_every_candidate(self, mnist: Portfolio, tmp_path: Path) -> None:
        with pytest.raises(InvalidInputError, match="donor: got 'c4-s32'; accepted: a run of the recipe"):
            release(joint(mnist, 0.12), out=tmp_path / "out", donor="c4-s32")
        assert entries(mnist) == []

    def test_where_the_cap_is_reached(self, mnist: Portfolio, tmp_path: Path) -> None:
        scope = BudgetScope(mnist.dataset, mnist.unit, mnist.adjacency.value)
        with Ledger.open(default_ledger(mnist)) as ledger:
            ledger.set_cap(scope, Cap(epsilon=0.5, delta=DELTA, rule="gaussian_filter"))
        with pytest.raises(CapExceededError, match="the privacy filter gaussian_filter has"):
            release(joint(mnist, 0.8), out=tmp_path / "out")
        assert entries(mnist) == ["opened", "cap"]
        assert [path.name for path in tmp_path.iterdir()] == ["mnist"]

    def test_where_the_plan_is_not_a_plan(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInputError, match="accepted: a Plan, as dpm.plan returns it"):
            release("plan", out=tmp_path / "out")  # type: ignore[arg-type]


class TestReleasingAgain:
    def test_overwriting_replaces_the_whole(self, mnist: Portfolio, tmp_path: Path) -> None:
        release(joint(mnist, 0.8), out=tmp_path / "out")
        (tmp_path / "out" / "stale.txt").write_text("x")
        made = release(joint(mnist, 0.3), out=tmp_path / "out", overwrite=True)
        assert made.guarantee.epsilon <= 0.3
        assert not (tmp_path / "out" / "stale.txt").exists()
        assert dpm.verify(tmp_path / "out", portfolio=mnist).verified

    def test_the_same_request_key_gives_the_same_release(self, mnist: Portfolio, tmp_path: Path) -> None:
        plan = joint(mnist, 0.12)
        first = release(plan, out=tmp_path / "out", request_key="a customer")
        before = {f.name: f.read_bytes() for f in (tmp_path / "out").iterdir()}
        again = release(plan, out=tmp_path / "out", request_key="a customer")
        assert (again.already, again.release_id) == (True, first.release_id)
        release(plan, out=tmp_path / "elsewhere", request_key="a customer")
        assert {f.name: f.read_bytes() for f in (tmp_path / "elsewhere").iterdir()} == before
        assert entries(mnist).count("release") == 1

    def test_the_same_request_key_for_something_else_is_refused(self, mnist: Portfolio, tmp_path: Path) -> None:
        release(joint(mnist, 0.12), out=tmp_path / "out", request_key="a customer")
        with pytest.raises(InvalidInputError, match="request-key"):
            release(joint(mnist, 0.8), out=tmp_path / "other", request_key="a customer")
        assert not (tmp_path / "other").exists()

    def test_an_output_that_is_gone_is_made_again_with_the_same_bytes(self, mnist: Portfolio, tmp_path: Path) -> None:
        plan = joint(mnist, 0.12)
        release(plan, out=tmp_path / "out", request_key="k")
        before = {f.name: f.read_bytes() for f in (tmp_path / "out").iterdir()}
        shutil.rmtree(tmp_path / "out")
        release(plan, out=tmp_path / "out", request_key="k")
        assert {f.name: f.read_bytes() for f in (tmp_path / "out").iterdir()} == before

    def test_an_output_with_noise_that_is_gone_is_not_made_again(self, probe: Portfolio, tmp_path: Path) -> None:
        plan = dpm.plan(probe, target(0.12))
        release(plan, out=tmp_path / "out", final=True, request_key="k")
        shutil.rmtree(tmp_path / "out")
        with pytest.raises(CannotWriteError, match="was never written down; .* other noise is another release"):
            release(plan, out=tmp_path / "out", final=True, request_key="k")
        assert not (tmp_path / "out").exists()

    def test_a_ledger_that_lost_the_entry_of_an_output_is_noticed(self, mnist: Portfolio, tmp_path: Path) -> None:
        release(joint(mnist, 0.12), out=tmp_path / "one")
        shutil.copy(mnist.path / LEDGER_NAME, tmp_path / "backup")
        release(joint(mnist, 0.8), out=tmp_path / "two")
        shutil.copy(tmp_path / "backup", mnist.path / LEDGER_NAME)
        with pytest.raises(LedgerBrokenError, match="restored from an older backup"):
            release(joint(mnist, 0.3), out=tmp_path / "three")
        (mnist.path / ".ledger-witness").unlink()
        with pytest.raises(LedgerBrokenError, match="restored from an older backup"):
            release(joint(mnist, 0.3), out=tmp_path / "two", overwrite=True)
        assert dpm.verify(tmp_path / "two").verified


def test_a_release_by_the_public_names_verifies(mnist: Portfolio, tmp_path: Path) -> None:
    made = dpm.release(joint(mnist, 0.8), out=tmp_path / "out")
    assert dpm.verify(tmp_path / "out", portfolio=mnist.path).verified
    assert made.document()["guarantee"]["delta"] == DELTA
