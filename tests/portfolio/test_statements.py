"""What a run states beyond its mechanism: by what it was stopped and scheduled, and whether records mix in its loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dpmerge.errors import ManifestError
from dpmerge.planning.planner import plan
from dpmerge.planning.stated_weights import stated_weights
from dpmerge.portfolio.manifest import Manifest
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.terms.caveats import SINCE_2, run_caveats
from dpmerge.terms.guarantee import Guarantee
from dpmerge.terms.run_record import OWN_LOSSES, PREMISES_SINCE_2, own_losses
from portfolio.portfolios import HISTORY, manifest, model, replaced, write_run

NEW = ("stopping", "schedule", "record_losses")
TARGET = Guarantee(epsilon=5.0, delta=1e-5)
FIXED = {"stopping": "fixed", "schedule": "fixed"}


def names(**fields: Any) -> set[str]:
    return {caveat.name for caveat in run_caveats(Manifest.model_validate(manifest(**fields)).statement)}


def test_statements_of_version_1_are_not_given_new_fields() -> None:
    """A statement of version 0.1 is hashed and compared as it was written: nothing is filled in."""
    old = Manifest.model_validate(manifest())
    assert [getattr(old, name) for name in NEW] == [None, None, None]
    stated = old.statement.model_dump(exclude_none=True)
    assert set(stated) == {"run", "mechanism", "noise", "ancestry", "tuning", "finished", "recorded_by"}
    assert stated["ancestry"] == {"start": "random", "assumed": False}


@pytest.mark.parametrize("name", ["stopping", "schedule"])
@pytest.mark.parametrize(
    ("said", "caveat"),
    [("fixed", None), ("public", None), ("private", "private"), ("unknown", "unknown"), (None, "unknown")],
)
def test_private_or_unknown_stopping_and_schedules_are_caveats(name: str, said: str | None, caveat: str | None) -> None:
    found = names(**(FIXED | {name: said}), record_losses="vouched")
    assert found == (set() if caveat is None else {f"{name}_{caveat}"})
    assert found <= SINCE_2


def test_an_imported_guarantee_needs_no_statement_on_stopping_or_schedules() -> None:
    pair = {"kind": "approximate_dp", "points": [{"epsilon": 1, "delta": 1e-5}]}
    assert names(mechanism=pair) == set()
    assert names(mechanism=pair, stopping="private") == {"stopping_private"}


@pytest.mark.parametrize("mechanism", [None, HISTORY], ids=["dp_sgd", "history"])
def test_record_losses_nobody_vouches_for_are_a_caveat(mechanism: Any) -> None:
    given = FIXED | ({} if mechanism is None else {"mechanism": mechanism})
    for said in (None, "unknown"):
        assert names(**given, record_losses=said) == {"record_losses_unknown"}
    for said in ("checked", "vouched"):
        assert names(**given, record_losses=said) == set()


def test_aggregate_clipping_needs_no_premise_on_record_losses() -> None:
    mechanism = replaced(manifest()["mechanism"], "clipping", to="aggregate")
    assert names(**FIXED, mechanism=mechanism) == set()
    stated = Manifest.model_validate(manifest(mechanism=mechanism, record_losses="vouched")).statement
    assert list(own_losses([stated])) == []


def test_record_losses_checked_is_refused_from_anybody_but_the_recorder() -> None:
    for how in ("hand", "opacus_history"):
        with pytest.raises(ManifestError, match='record_losses: got \'checked\'; accepted: "vouched" or "unknown"'):
            Manifest.parse(json.dumps(manifest(record_losses="checked", recorded_by={"how": how})))


@pytest.fixture
def portfolio(tmp_path: Path) -> Portfolio:
    """Three runs: checked by the recorder, vouched for by somebody, and nobody says."""
    said = {
        "a": {"record_losses": "checked"},
        "b": {"record_losses": "vouched", "recorded_by": {"how": "hand", "who": "the statistics team"}},
        "c": {},
    }
    for place, (run, fields) in enumerate(said.items()):
        write_run(tmp_path / run, manifest(run, **fields), {4: model(place)})
    return Portfolio.load(tmp_path)


def test_a_plan_names_who_vouches_for_each_run(portfolio: Portfolio) -> None:
    """Also in its terms, of which the certificate is made; and no theorem is contradicted by silence."""
    weights = {"a@4": 0.25, "b@4": 0.25, "c@4": 0.5}
    terms = stated_weights(portfolio, weights, TARGET).terms
    [premise] = [premise for premise in terms.premises if premise.name == OWN_LOSSES]
    assert premise.holds
    assert premise.vouched_by == ("a (checked by the recorder), b (vouched for by the statistics team); nobody for c")
    assert {premise.name} == PREMISES_SINCE_2
    assert terms.proved
    assert [c.where for c in terms.caveats(1e-5) if c.name == "record_losses_unknown"] == ["c"]


def test_premises_leave_out_runs_that_are_not_involved(portfolio: Portfolio) -> None:
    terms = stated_weights(portfolio, {"c@4": 1.0}, TARGET).terms
    assert OWN_LOSSES not in {premise.name for premise in terms.premises}


def test_a_plan_and_its_terms_have_the_same_premises(portfolio: Portfolio) -> None:
    made = plan(portfolio, TARGET)
    assert made.premises == made.terms.premises
    assert OWN_LOSSES in {premise.name for premise in made.premises}
    assert "each record has its own loss" in str(made)
