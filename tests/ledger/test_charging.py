"""Charging: once for each key, before anything leaves, and for the runs that were really there."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from dpmerge.errors import InvalidInputError, LedgerError, NoGuaranteeError, RunsLockedError
from dpmerge.ledger import BudgetScope, Charge, Ledger, identities, identity_of, noise_mark
from dpmerge.planning.planner import plan
from dpmerge.terms.candidate_terms import Validation
from dpmerge.terms.guarantee import Guarantee
from ledger.releases import SCOPE, child, drawing, first, request, run, seeded
from planning.synthetic import ladder

A, B = run("a"), run("b", 4.0)


def test_a_release_is_charged_drawn_and_found_again(anywhere: str) -> None:
    with Ledger.open(anywhere) as ledger:
        charged = ledger.charge(request([A, B], "a@3", "b@2", details={"out": "here"}, key="k"), drawing(1))
        assert (charged.index, charged.status, charged.already, charged.details) == (
            1,
            "pending",
            False,
            {"out": "here"},
        )
        assert charged.ledger == ledger.id
        assert ledger.contains(charged.entry.seq, charged.entry.hash)
        assert ledger.head() == (charged.entry.seq, charged.entry.hash)
    with Ledger.open(anywhere, create=False) as again:
        found = again.release(charged.release_id)
        assert found is not None
        assert (found.index, found.terms, found.entry) == (1, charged.terms, charged.entry)
        assert [each.release_id for each in again.pending()] == [charged.release_id]
        assert again.by_key(SCOPE, "k") == found
        assert again.scopes() == [SCOPE]
        assert again.verify().ok


def test_a_planned_release_can_be_charged(ledger: Ledger) -> None:
    portfolio = ladder(3, noise=[64.0, 32.0, 16.0])
    made = plan(portfolio, Guarantee(epsilon=1.2, delta=1e-5)).terms
    manifests = [each.manifest for each in portfolio.runs]
    marks = {each.run: noise_mark(each) for each in manifests}
    asked = Charge.proposed(terms=made, identities=identities(manifests), marks=marks, final=made.is_final, details={})
    charged = ledger.charge(asked, first)
    assert charged.terms == made
    standing = ledger.budget_report(SCOPE, 1e-5)
    assert standing.epsilon is not None
    assert ledger.verify().ok


def test_the_same_key_gives_the_same_draw(ledger: Ledger) -> None:
    asked = request([A, B], "a@3", "b@2", key="monday")
    before = ledger.charge(asked, drawing(0))
    again = ledger.charge(asked, drawing(1))
    assert (again.release_id, again.index, again.already) == (before.release_id, 0, True)
    assert len(list(ledger.entries())) == 2


@pytest.mark.parametrize(
    "other",
    [
        request([A, B], "a@3", "b@3", key="monday"),
        request([A, B], "a@3", "b@2", key="monday", final=True),
        # The same names and terms, trained again: other noise, so other runs.
        request([run("a", noise={"source": "os_entropy", "stream": "f" * 32}), B], "a@3", "b@2", key="monday"),
    ],
    ids=["terms", "final", "runs"],
)
def test_the_same_key_for_something_else_is_refused(ledger: Ledger, other: Charge) -> None:
    ledger.charge(request([A, B], "a@3", "b@2", key="monday"), first)
    with pytest.raises(InvalidInputError, match="^request-key: 'monday' was used before, .* with other") as refused:
        ledger.charge(other, first)
    assert refused.value.field == "request-key"


def test_the_same_key_in_another_budget_scope_is_another_release(ledger: Ledger) -> None:
    other = run("a", dataset={"id": "others", "size": 100}, noise={"source": "os_entropy", "stream": "e" * 32})
    one = ledger.charge(request([A], "a@3", key="monday"), first)
    two = ledger.charge(request([other], "a@3", key="monday"), first)
    assert one.release_id != two.release_id
    assert len(ledger.scopes()) == 2


def test_a_release_id_chosen_beforehand_is_charged_once(ledger: Ledger) -> None:
    chosen = "0123456789abcdef" * 2
    one = ledger.charge(request([A], "a@3"), first, release_id=chosen)
    two = ledger.charge(request([A], "a@3"), first, release_id=chosen)
    assert (one.already, two.already, two.entry) == (False, True, one.entry)
    with pytest.raises(InvalidInputError, match="^release: .* was used before, for a release with other terms"):
        ledger.charge(request([A], "a@4"), first, release_id=chosen)


def test_a_draw_that_fails_charges_nothing(ledger: Ledger) -> None:
    def broken(_: object) -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ledger.charge(request([A], "a@3"), broken)
    with pytest.raises(LedgerError, match="the draw gave 7; accepted: an integer from 0 to 0"):
        ledger.charge(request([A], "a@3"), drawing(7))
    assert ledger.head()[0] == 0
    assert ledger.charge(request([A], "a@3"), first).entry.seq == 2


def test_a_release_is_completed_once(ledger: Ledger) -> None:
    charged = ledger.charge(request([A], "a@3"), first)
    output = {"files": {"model.safetensors": "0" * 64}, "certificate": "1" * 64, "where": "/out"}
    ledger.complete(charged.release_id, **output)
    ledger.complete(charged.release_id, **output)
    assert ledger.pending() == []
    done = ledger.release(charged.release_id)
    assert done is not None
    assert done.output is not None
    assert (done.status, done.output.files, done.output.where) == ("completed", output["files"], "/out")
    with pytest.raises(InvalidInputError, match="is completed, and not as these files; publish what was sealed"):
        ledger.complete(charged.release_id, **{**output, "certificate": "2" * 64})
    with pytest.raises(InvalidInputError, match="is completed: only a pending one can be abandoned"):
        ledger.abandon(charged.release_id, "changed my mind")
    with pytest.raises(InvalidInputError, match="the id of a release in this ledger"):
        ledger.complete("nothing", **output)


def test_a_sealed_release_accepts_no_other_output(ledger: Ledger) -> None:
    charged = ledger.charge(request([A], "a@3"), first)
    output = {"files": {"model.safetensors": "0" * 64}, "certificate": "1" * 64, "where": "/out"}
    ledger.seal(charged.release_id, **output)
    ledger.seal(charged.release_id, **output)
    [pending] = ledger.pending()
    assert pending.output is not None
    assert pending.output.certificate == "1" * 64
    for again in (ledger.seal, ledger.complete):
        with pytest.raises(InvalidInputError, match="is sealed, and not as these files; publish what was sealed"):
            again(charged.release_id, **{**output, "certificate": "2" * 64})
    ledger.complete(charged.release_id, **output)
    assert [entry.kind for entry in ledger.entries()] == ["opened", "release", "sealed", "completed"]
    ledger.seal(charged.release_id, **output)
    assert ledger.verify().ok


def test_an_abandoned_release_stays_charged(ledger: Ledger) -> None:
    charged = ledger.charge(request([A], "a@3"), first)
    ledger.abandon(charged.release_id, "the disk was full")
    ledger.abandon(charged.release_id, "the disk was full")
    with pytest.raises(InvalidInputError, match="is abandoned, and not as these files"):
        ledger.complete(charged.release_id, files={}, certificate="0" * 64, where="/out")
    standing = ledger.budget_report(SCOPE, 1e-5)
    assert standing.runs[0].step == 3
    assert standing.epsilon == pytest.approx(A.statement.mechanism_from(*_free()).profile(3).epsilon(1e-5))


def _free() -> tuple[object, None]:
    from dpmerge.accounting.exposure import Adjacency

    return Adjacency.REPLACE_ONE, None


# Which run is which


def test_a_runs_identity_is_of_its_noise_stream_or_seed() -> None:
    assert identity_of(A) == identity_of(run("renamed", noise=A.noise.model_dump(exclude_none=True)))
    assert identity_of(A) != identity_of(run("a", noise={"source": "os_entropy", "stream": "f" * 32}))
    assert noise_mark(A) is None
    one, two = seeded("a", 42), seeded("a", 42 + 2**32)
    assert noise_mark(one) == noise_mark(two)
    assert identity_of(one) != identity_of(two)
    for changed in (seeded("b", 42), seeded("a", 42, 9.0), seeded("a", 42, steps=21), seeded("a", 43)):
        assert identity_of(changed) != identity_of(one)


def test_a_run_whose_record_has_changed_is_refused(ledger: Ledger) -> None:
    ledger.charge(request([A], "a@3"), first)
    edited = run("a", 16.0)
    with pytest.raises(NoGuaranteeError, match=r"^a: mechanism.blocks\[0\].noise_multiplier is not what it was"):
        ledger.charge(request([edited], "a@3"), first)


def test_a_run_under_another_name_is_the_same_run(ledger: Ledger) -> None:
    ledger.charge(request([A], "a@3"), first)
    renamed = run("z", noise=A.noise.model_dump(exclude_none=True))
    ledger.charge(request([renamed], "z@5"), first)
    standing = ledger.budget_report(SCOPE, 1e-5)
    assert [(each.name, each.step) for each in standing.runs] == [("a", 5)]


def test_a_parent_under_another_name_is_the_same_parent(ledger: Ledger) -> None:
    noise = A.noise.model_dump(exclude_none=True)
    kid = child("kid", "a", 5)
    ledger.charge(request([A, kid], "kid@2"), first)
    renamed, later = run("z", noise=noise), child("kid", "z", 5, noise=kid.noise.model_dump(exclude_none=True))
    ledger.charge(request([renamed, later], "kid@4"), first)
    standing = ledger.budget_report(SCOPE, 1e-5)
    assert [(each.name, each.step) for each in standing.runs] == [("a", 5), ("kid", 4)]


def test_runs_with_the_same_seed_are_refused_across_portfolios(ledger: Ledger) -> None:
    ledger.charge(request([seeded("a", 42)], "a@3"), first)
    with pytest.raises(NoGuaranteeError, match="b and a were made with the same noise seed"):
        ledger.charge(request([seeded("b", 42 + 2**32)], "b@3"), first)


def test_one_run_under_two_names_in_one_request_is_refused() -> None:
    twin = run("z", noise=A.noise.model_dump(exclude_none=True))
    with pytest.raises(NoGuaranteeError, match="are one run under two names"):
        request([A, twin], {"a@3": 0.5, "z@3": 0.5})


def test_a_run_of_other_data_is_refused(ledger: Ledger) -> None:
    ledger.charge(request([A], "a@3"), first)
    moved = run("a", dataset={"id": "somebody-else", "size": 100})
    with pytest.raises(NoGuaranteeError, match="a run is of one data set"):
        ledger.charge(request([moved], "a@3"), first)


@pytest.mark.parametrize("name", ["Patients-2026", "patients 2026", "patients_2026 "])
def test_a_data_set_whose_name_is_nearly_anothers_is_refused(ledger: Ledger, name: str) -> None:
    ledger.charge(request([A], "a@3"), first)
    with pytest.raises(InvalidInputError, match="^dataset: .* as it was written before"):
        ledger.charge(request([run("b", dataset={"id": name, "size": 100})], "b@3"), first)


def test_several_runs_of_unknown_noise_source_have_no_epsilon(ledger: Ledger) -> None:
    for name in ("a", "b"):
        ledger.charge(request([run(name, noise={"source": "unknown"})], f"{name}@3"), first)
    standing = ledger.budget_report(SCOPE, 1e-5)
    assert standing.epsilon is None
    assert "nobody says where the noise of a, b came from" in str(standing.why)


# Final releases

ONE, TWO = run("one", 2.0, steps=1), run("two", 0.5, steps=1)
PAIR = {"one@1": 0.99, "two@1": 0.01}


def test_two_merged_releases_do_not_add_up_so_the_second_is_refused(ledger: Ledger) -> None:
    """σ = (2, .5), one step: 4.43 and 4.48 claimed, 25.4 true."""
    ledger.charge(request([ONE, TWO], PAIR, theorem="merged_trajectory", final=True), first)
    assert ledger.budget_report(SCOPE, 1e-5).epsilon == pytest.approx(4.43, abs=0.01)
    second = {"one@1": 0.98, "two@1": 0.02}
    with pytest.raises(RunsLockedError, match="^(one|two) \\(release [0-9a-f]{32}\\), .*: locked by a final release"):
        ledger.charge(request([ONE, TWO], second, theorem="merged_trajectory", final=True), first)
    with pytest.raises(RunsLockedError):
        ledger.charge(request([ONE, TWO], second), first)
    with pytest.raises(RunsLockedError):
        ledger.charge(request([ONE], "one@1"), first)


def test_two_merged_releases_without_final_cost_their_joint_release(ledger: Ledger) -> None:
    ledger.charge(request([ONE, TWO], PAIR), first)
    ledger.charge(request([ONE, TWO], {"one@1": 0.98, "two@1": 0.02}), first)
    assert ledger.budget_report(SCOPE, 1e-5).epsilon == pytest.approx(25.4, abs=0.05)


def test_a_sharper_theorem_needs_a_final_release(ledger: Ledger) -> None:
    with pytest.raises(InvalidInputError, match="declare the release final"):
        ledger.charge(request([ONE, TWO], PAIR, theorem="merged_trajectory"), first)


def test_a_final_release_of_runs_seen_before_is_refused(ledger: Ledger) -> None:
    ledger.charge(request([ONE], "one@1"), first)
    with pytest.raises(RunsLockedError, match=r"^one \(release .*\): seen before"):
        ledger.charge(request([ONE, TWO], PAIR, theorem="merged_trajectory", final=True), first)


def test_candidates_that_were_not_drawn_are_locked_too(ledger: Ledger) -> None:
    ledger.charge(request([ONE, TWO], "one@1", "two@1", final=True), drawing(0))
    standing = ledger.budget_report(SCOPE, 1e-5)
    assert [(each.name, each.step, each.locked_by is not None) for each in standing.runs] == [
        ("one", 1, True),
        ("two", 0, True),
    ]
    with pytest.raises(RunsLockedError, match="^two"):
        ledger.charge(request([TWO], "two@1"), first)


def test_ancestors_are_locked_and_descendants_with_them(ledger: Ledger) -> None:
    parent, kid = run("parent"), child("kid", "parent", 5)
    ledger.charge(request([parent], "parent@3", final=True), first)
    with pytest.raises(RunsLockedError, match="^parent"):
        ledger.charge(request([parent, kid], "kid@2"), first)


def test_an_unproved_theorem_is_counted_as_joint_release(ledger: Ledger) -> None:
    long = [run("one", 2.0, steps=3), run("two", 4.0, steps=3)]
    merged = {"one@3": 0.5, "two@3": 0.5}
    ledger.charge(request(long, merged, theorem="merged_trajectory", final=True), first)
    squared = 3 * (2 / 2.0) ** 2 + 3 * (2 / 4.0) ** 2
    from dpmerge.accounting.gaussian import GaussianProfile

    expected = GaussianProfile(squared**0.5).epsilon(1e-5)
    assert ledger.budget_report(SCOPE, 1e-5).epsilon == pytest.approx(expected, rel=1e-9)


# Standing


def test_final_releases_and_the_high_water_mark_compose(ledger: Ledger) -> None:
    from dpmerge.accounting.gaussian import GaussianProfile

    ledger.charge(request([A], "a@3"), first)
    ledger.charge(request([A, B], "a@2", "b@2"), drawing(1))
    ledger.charge(request([ONE, TWO], PAIR, theorem="merged_trajectory", final=True), first)
    weighted = (2 * 0.99 + 2 * 0.01) ** 2 / ((0.99 * 2) ** 2 + (0.01 * 0.5) ** 2)
    squared = 3 * (2 / 8) ** 2 + 2 * (2 / 4) ** 2 + weighted
    expected = GaussianProfile(squared**0.5).epsilon(1e-6)
    standing = ledger.budget_report(SCOPE, 1e-6)
    assert standing.epsilon == pytest.approx(expected, rel=1e-9)
    assert [line.theorem for line in standing.releases] == ["joint_release"] * 2 + ["merged_trajectory"]
    assert any("only a cap is a guarantee" in caveat for caveat in standing.caveats)


def test_epsilons_of_private_validations_add_up(ledger: Ledger) -> None:
    alone = ledger.charge(request([A], "a@3"), first)
    before = ledger.budget_report(SCOPE, 1e-5).epsilon
    assert before is not None
    assert alone.status == "pending"
    for _ in range(2):
        asked = request([A], "a@3", kind="private_validation", validation=Validation(epsilon=0.5))
        ledger.charge(asked, first)
    assert ledger.budget_report(SCOPE, 1e-5).epsilon == pytest.approx(before + 1.0)
    apart = Validation(epsilon=2.0 * before, disjoint_vouched_by="the tests")
    ledger.charge(request([A], "a@3", kind="private_validation", validation=apart), first)
    assert ledger.budget_report(SCOPE, 1e-5).epsilon == pytest.approx(2 * before + 1.0)


def test_every_checkpoint_looked_at_is_exposed_whatever_is_drawn(ledger: Ledger) -> None:
    ledger.charge(request([A, B], "a@3", "b@2", kind="uncharged"), first)
    assert [(each.name, each.step) for each in ledger.budget_report(SCOPE, 1e-5).runs] == [("a", 3), ("b", 2)]


def test_other_budget_scopes_of_the_same_data_are_a_caveat(ledger: Ledger) -> None:
    other = run("a", unit="patient")
    ledger.charge(request([A], "a@3"), first)
    ledger.charge(request([other], "a@3"), first)
    assert any("other budget scopes" in caveat for caveat in ledger.budget_report(SCOPE, 1e-5).caveats)
    assert BudgetScope("patients-2026", "patient", "replace_one") in ledger.scopes()


def test_an_empty_budget_scope_has_epsilon_zero(ledger: Ledger) -> None:
    standing = ledger.budget_report(SCOPE, 1e-5)
    assert (standing.epsilon, standing.runs, standing.releases) == (0.0, (), ())


def test_the_ledger_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger.open(path) as ledger:
        ledger.charge(request([A], "a@3"), first)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    with Ledger.open(f"sqlite:///{path}") as ledger:
        assert ledger.head()[0] == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_export_has_everything_and_says_that_it_is_private(ledger: Ledger) -> None:
    charged = ledger.charge(request([A], "a@3"), first)
    exported = ledger.export()
    assert exported["banner"].startswith("not for release")
    assert [entry["kind"] for entry in exported["entries"]] == ["opened", "release"]
    assert exported["entries"][1]["body"]["release"] == charged.release_id
    assert exported["head"] == {"seq": 2, "hash": charged.entry.hash}


def test_an_invalid_request_names_the_field() -> None:
    made = request([A], "a@3")
    with pytest.raises(InvalidInputError, match="^identities: .*one for every run of the terms"):
        Charge.proposed(terms=made.terms, identities={}, marks=made.marks, details={})
    with pytest.raises(InvalidInputError, match="^request-key"):
        request([A], "a@3", key="a\nb")
    with pytest.raises(InvalidInputError, match="values that JSON can hold"):
        request([A], "a@3", details={"x": float("nan")})
