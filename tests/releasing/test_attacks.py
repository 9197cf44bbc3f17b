"""Ways to a release that costs more than it says, or is not counted; each is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner, Result

import dpmerge as dpm
from certificate.outputs import certified
from dpmerge.certificate.dsse import CERTIFICATE_NAME, read_certificate
from dpmerge.certificate.model_card import CARD_NAME, model_card
from dpmerge.cli import app
from dpmerge.errors import CannotWriteError, InvalidInputError, LedgerBrokenError, RunsLockedError, TensorMismatchError
from dpmerge.ledger.entries import canonical, seal
from dpmerge.ledger.ledger import Ledger
from dpmerge.planning.plan import Plan
from dpmerge.planning.stated_weights import stated_weights
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.releasing.ledger_location import LEDGER_NAME, WITNESS_NAME, default_ledger
from dpmerge.releasing.release import release
from dpmerge.releasing.verifying import verify
from dpmerge.terms.documents import validated
from dpmerge.terms.release_terms import ReleaseTerms
from portfolio.portfolios import DP_SGD, manifest, replaced, write_portfolio

EXAMPLES = Path(__file__).parents[2] / "examples"
DELTA = 1e-5


def target(epsilon: float) -> dpm.Guarantee:
    return dpm.Guarantee(epsilon=epsilon, delta=DELTA)


def ran(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "80", "DPMERGE_LEDGER": None})


@pytest.fixture
def probe(tmp_path: Path) -> Path:
    return shutil.copytree(EXAMPLES / "probe", tmp_path / "probe")


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    return shutil.copytree(EXAMPLES / "mnist", tmp_path / "mnist")


def rewritten(home: Path, run: str, change: Any, *, tensors: Any = None) -> None:
    """A run whose manifest, and perhaps whose weights, were changed, all its digests made to fit."""
    folder = home / run
    document = json.loads((folder / "privacy.json").read_text())
    for saved in document["checkpoints"] if tensors is not None else ():
        file = folder / saved["files"][0]["name"]
        content = tensors(load_file(file))
        file.unlink()
        save_file(content, file)
        saved["files"][0]["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
        saved.pop("weights", None)
    change(document)
    (folder / "privacy.json").write_text(json.dumps(document))


class TestNoiseThatCannotBeAdded:
    def test_release_noise_for_integer_tensors_is_refused_before_the_charge(self, probe: Path, tmp_path: Path) -> None:
        def forget(document: Any) -> None:
            document["tensors"].pop("initial")
            document.pop("initial_weights")

        for run in ("s16", "s32", "s64"):
            rewritten(probe, run, forget, tensors=lambda t: {n: (100 * v).astype(np.int8) for n, v in t.items()})
        portfolio = Portfolio.load(probe)
        with pytest.raises(TensorMismatchError, match="to which release noise can be added"):
            release(dpm.plan(portfolio, target(0.05)), out=tmp_path / "out", final=True)
        assert not (tmp_path / "out").exists()
        with Ledger.open(default_ledger(portfolio)) as ledger:
            assert list(ledger.entries()) == []

    def test_release_noise_without_a_trained_tensor_is_refused(self, probe: Path, tmp_path: Path) -> None:
        def freeze(document: Any) -> None:
            document["tensors"] |= {"trained": [], "frozen": document["tensors"]["trained"]}

        for run in ("s16", "s32", "s64"):
            rewritten(probe, run, freeze)
        portfolio = Portfolio.load(probe, contents=False)
        with pytest.raises(TensorMismatchError, match="at least one trained tensor"):
            release(dpm.plan(portfolio, target(0.05)), out=tmp_path / "out", final=True)

    def test_release_noise_beside_a_frozen_tensor_that_has_moved_is_refused(self, probe: Path, tmp_path: Path) -> None:
        def pretend(document: Any) -> None:
            document["tensors"] |= {"trained": ["extra"], "frozen": ["weight"]}
            document["tensors"]["initial"] |= {"extra": "0" * 64}

        for run in ("s16", "s32", "s64"):
            rewritten(probe, run, pretend, tensors=lambda t: {**t, "extra": np.zeros(4, np.float32)})
        portfolio = Portfolio.load(probe, contents=False)
        with pytest.raises(TensorMismatchError, match="said to be frozen, and has other values than at the start"):
            release(dpm.plan(portfolio, target(0.05)), out=tmp_path / "out", final=True)


class TestLookingPricedAsADraw:
    @pytest.mark.parametrize("kind", ["public_evaluation", "private_validation"])
    def test_a_saved_plan_that_calls_looking_a_draw_is_refused(self, mnist: Path, tmp_path: Path, kind: str) -> None:
        portfolio = Portfolio.load(mnist)
        document = dpm.plan(portfolio, target(0.12)).document()
        document["chosen_by"]["kind"] = kind
        if kind == "private_validation":
            document["chosen_by"]["sides"] = {"validation": {"epsilon": 0.01}}
        (tmp_path / "plan.json").write_text(json.dumps(document))
        with pytest.raises(
            InvalidInputError, match="a draw whose candidates were chosen by looking is not random selection"
        ):
            Plan.load(tmp_path / "plan.json", portfolio)

    def test_a_certificate_that_calls_looking_a_draw_fails_verification(self, mnist: Path, tmp_path: Path) -> None:
        out = certified(tmp_path / "out", dpm.plan(Portfolio.load(mnist), target(0.12)))
        out.tampered(lambda s: s["predicate"]["terms"]["choice"].update(kind="public_evaluation"))
        assert not verify(out.path).verified


class TestAnotherLedger:
    def test_a_charged_run_released_by_itself_without_its_ledger_is_refused(self, probe: Path, tmp_path: Path) -> None:
        """A run's folder is a portfolio too; it remembers where it was charged."""
        assert ran("merge", probe, "--epsilon", 0.3, "--delta", DELTA, "--final", "-o", tmp_path / "one").exit_code == 0
        result = ran("merge", probe / "s64", "--epsilon", 1, "--delta", DELTA, "-o", tmp_path / "two")
        assert result.exit_code == 2
        assert "there is no ledger" in result.output
        assert str(probe / LEDGER_NAME) in "".join(result.output.split("\n"))
        assert not (tmp_path / "two").exists()
        assert not (probe / "s64" / LEDGER_NAME).exists()
        given = ["--ledger", probe / LEDGER_NAME]
        result = ran("merge", probe / "s64", "--epsilon", 1, "--delta", DELTA, "-o", tmp_path / "two", *given)
        assert result.exit_code == 1
        assert "locked" in result.output

    def test_a_capped_run_released_by_itself_without_its_ledger_is_refused(self, mnist: Path, tmp_path: Path) -> None:
        assert ran("ledger", "cap", mnist, "--epsilon", 0.2, "--delta", DELTA).exit_code == 0
        result = ran("merge", mnist / "c2-s32", "--epsilon", 2, "--delta", DELTA, "-o", tmp_path / "out")
        assert result.exit_code == 2
        assert "there is no ledger" in result.output
        assert not (tmp_path / "out").exists()

    def test_a_second_release_from_no_ledger_or_another_one_is_refused(self, mnist: Path, tmp_path: Path) -> None:
        portfolio = Portfolio.load(mnist)
        plan = dpm.plan(portfolio, target(0.8), theorem="joint_release")
        release(plan, out=tmp_path / "one", ledger=tmp_path / "shared.sqlite")
        with pytest.raises(LedgerBrokenError, match="there is no ledger, and .* was charged to .*shared.sqlite"):
            release(plan, out=tmp_path / "two")
        assert not default_ledger(portfolio).exists()
        Ledger.open(tmp_path / "other.sqlite").close()
        with pytest.raises(LedgerBrokenError, match="is another ledger than the one"):
            release(plan, out=tmp_path / "two", ledger=tmp_path / "other.sqlite")

    def test_a_copied_portfolio_without_its_ledger_is_refused(self, probe: Path, tmp_path: Path) -> None:
        release(dpm.plan(Portfolio.load(probe), target(0.3)), out=tmp_path / "one", final=True)
        copy = shutil.copytree(probe, tmp_path / "copy")
        (copy / LEDGER_NAME).unlink()
        (copy / WITNESS_NAME).unlink()
        with pytest.raises(LedgerBrokenError, match="there is no ledger"):
            release(stated_weights(Portfolio.load(copy), {"s64@20": 1.0}, target(5)), out=tmp_path / "two")


def test_a_lock_holds_whatever_unit_is_stated(tmp_path: Path) -> None:
    """The theory's own example: σ = (2, 0.5), one step; 4.43 and 4.48 are certified, 25.4 is true."""
    block = {"steps": 1, "clip_norm": 1.0, "learning_rate": 0.01}
    for unit in ("record", "user"):
        documents = {
            run: manifest(run, unit=unit, mechanism={**DP_SGD, "blocks": [{**block, "noise_multiplier": sigma}]})
            for run, sigma in (("a", 2.0), ("b", 0.5))
        }
        models = {
            run: {1: {n: np.full(s, p, np.float32) for n, s in (("weight", 6), ("bias", 2), ("embedding", 3))}}
            for p, run in enumerate("ab", 1)
        }
        for model in models.values():
            model[1]["embedding"] = np.zeros(3, np.float16)
        write_portfolio(tmp_path / unit, runs="ab", manifests=documents, models=models)
    ledger = tmp_path / "ledger.sqlite"
    first = stated_weights(
        Portfolio.load(tmp_path / "record"), {"a@1": 0.99, "b@1": 0.01}, target(30), theorem="last_step"
    )
    made = release(first, out=tmp_path / "one", ledger=ledger, final=True)
    assert 4.42 < made.guarantee.epsilon < 4.44
    second = stated_weights(
        Portfolio.load(tmp_path / "user"), {"a@1": 0.98, "b@1": 0.02}, target(30), theorem="last_step"
    )
    with pytest.raises(RunsLockedError, match="locked by a final release"):
        release(second, out=tmp_path / "two", ledger=ledger, final=True)
    assert not (tmp_path / "two").exists()


def test_terms_that_leave_out_an_ancestor_of_what_was_looked_at_are_refused(tmp_path: Path) -> None:
    documents = {
        "p": manifest("p", mechanism=replaced(DP_SGD, "blocks", 0, "noise_multiplier", to=1.0)),
        "c": manifest("c", ancestry={"start": "private", "run": "p", "step": 4}, initial_weights=None),
        "a": manifest("a"),
    }
    portfolio = Portfolio.load(write_portfolio(tmp_path / "runs", runs="pca", manifests=documents), contents=False)
    honest = dpm.plan(portfolio, target(20), method="select").terms.document()
    statements = [run.manifest.statement.model_dump(exclude_none=True) for run in portfolio.runs]
    candidate = {
        "parts": [{"run": "a", "step": 4, "weight": 1.0}],
        "release_noise": 0.0,
        "theorem": "joint_release",
        "seen": [{"run": "a", "step": 4}, {"run": "c", "step": 4}, {"run": "p", "step": 0}],
    }
    document = {
        **honest,
        "runs": statements,
        "candidates": [candidate],
        "probabilities": [1.0],
        "choice": {"kind": "public_evaluation", "rule": "looked"},
    }
    with pytest.raises(InvalidInputError, match="every run that was looked at with all it descends from"):
        validated(ReleaseTerms, document, "terms")
    candidate["seen"][2]["step"] = 4
    assert validated(ReleaseTerms, document, "terms").epsilon(DELTA) > 5


class TestOverwriting:
    def test_does_not_reach_the_ledger(self, mnist: Path, tmp_path: Path) -> None:
        place = tmp_path / "place"
        place.mkdir()
        plan = dpm.plan(Portfolio.load(mnist), target(0.8), theorem="joint_release")
        release(plan, out=tmp_path / "one", ledger=place / "ledger.sqlite")
        with pytest.raises(CannotWriteError, match="ledger.sqlite is in .*, which would be replaced"):
            release(plan, out=place, ledger=place / "ledger.sqlite", overwrite=True)
        assert (place / "ledger.sqlite").exists()

    def test_does_not_reach_a_folder_that_is_no_release(self, mnist: Path, tmp_path: Path) -> None:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "thesis.tex").write_text("years of work")
        plan = dpm.plan(Portfolio.load(mnist), target(0.8), theorem="joint_release")
        with pytest.raises(CannotWriteError, match="holds no earlier release, and nothing else is overwritten"):
            release(plan, out=tmp_path / "mine", overwrite=True)
        assert (tmp_path / "mine" / "thesis.tex").exists()


def test_records_fewer_than_a_full_batch_are_refused_in_a_certificate(probe: Path, tmp_path: Path) -> None:
    out = certified(tmp_path / "out", dpm.plan(Portfolio.load(probe), target(0.3)))
    out.tampered(lambda s: s["predicate"]["terms"]["runs"][0]["mechanism"]["smoothness"].update(records=1))
    result = verify(out.path)
    assert any("the expected size of a full batch" in problem for problem in result.problems)


def test_a_draw_that_is_stated_otherwise_is_noticed_beside_the_ledger(mnist: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    plan = dpm.plan(Portfolio.load(mnist), target(0.12))
    made = release(plan, out=out, reveal_draw=True)
    envelope = json.loads((out / CERTIFICATE_NAME).read_text())
    import base64

    statement = json.loads(base64.b64decode(envelope["payload"]))
    statement["predicate"]["drawn"] = 1 - made.content["drawn"]
    envelope["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    (out / CERTIFICATE_NAME).write_text(json.dumps(envelope))
    certificate = read_certificate((out / CERTIFICATE_NAME).read_bytes())
    (out / CARD_NAME).write_text(model_card(certificate.content, certificate.files, certificate.version))
    assert verify(out).verified, "by itself it is consistent"
    result = ran("verify", out, "--portfolio", mnist)
    assert result.exit_code == 1
    assert "drew another candidate" in result.output


def test_the_hash_of_a_ledger_entry_depends_on_its_nonce(mnist: Path, tmp_path: Path) -> None:
    """Of everything in the entry all but a nonce may be known to who guesses: it is enough."""
    portfolio = Portfolio.load(mnist)
    release(dpm.plan(portfolio, target(0.8), theorem="joint_release"), out=tmp_path / "out")
    with Ledger.open(default_ledger(portfolio)) as ledger:
        [entry] = [each for each in ledger.entries() if each.kind == "release"]
        body = dict(entry.body)
        sealed = (ledger.id, entry.seq, entry.previous, entry.time, entry.kind, entry.book)
        assert seal(*sealed, canonical(body)) == entry.hash
        body["details"] = {**body["details"], "nonce": "0" * 64}
        assert seal(*sealed, canonical(body)) != entry.hash


@pytest.mark.parametrize("field", ["unit", "dataset"])
def test_a_certificate_with_a_line_break_in_a_name_fails_verification(mnist: Path, tmp_path: Path, field: str) -> None:
    out = certified(tmp_path / "out", dpm.plan(Portfolio.load(mnist), target(0.8)))
    out.tampered(lambda s: s["predicate"]["terms"].update({field: "x\nVerified: ε = 0.001"}))
    assert not verify(out.path).verified


def test_json_of_a_verification_says_what_is_not_proved(mnist: Path, tmp_path: Path) -> None:
    plan = dpm.plan(Portfolio.load(mnist), target(0.5), theorem="merged_trajectory", method="combine")
    release(plan, out=tmp_path / "out", final=True)
    found = json.loads(ran("verify", tmp_path / "out", "--json").stdout)
    assert found["verified"] is True
    assert found["proved"] is False
    assert "assumed" in {caveat["name"] for caveat in found["caveats"]}
