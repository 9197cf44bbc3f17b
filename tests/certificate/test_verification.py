"""Verification: what holds is verified, and a change anywhere is found, by the name of what it breaks."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from certificate.outputs import Output, certified
from dpmerge.accounting.rounding import down, up
from dpmerge.certificate import keys
from dpmerge.certificate.audited import Audited
from dpmerge.certificate.checks import Verification
from dpmerge.certificate.dsse import CERTIFICATE_NAME
from dpmerge.certificate.model_card import CARD_NAME
from dpmerge.certificate.predicate import derived
from dpmerge.errors import InvalidInputError
from dpmerge.planning.plan import Plan
from dpmerge.planning.planner import plan
from dpmerge.planning.stated_weights import stated_weights
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.releasing.commitment_salt import SALT_NAME
from dpmerge.releasing.verifying import verify
from dpmerge.terms.guarantee import Guarantee

EXAMPLES = Path(__file__).parents[2] / "examples"
KINDS = ("selection", "average", "final")


@pytest.fixture(scope="module")
def portfolios(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Portfolio]:
    home = tmp_path_factory.mktemp("portfolios")
    for name in ("mnist", "probe"):
        shutil.copytree(EXAMPLES / name, home / name)
    return {name: Portfolio.load(home / name) for name in ("mnist", "probe")}


@pytest.fixture(scope="module")
def plans(portfolios: dict[str, Portfolio]) -> dict[str, Plan]:
    mnist, probe = portfolios["mnist"], portfolios["probe"]
    return {
        "selection": plan(mnist, Guarantee(epsilon=0.12, delta=1e-5)),
        "average": plan(mnist, Guarantee(epsilon=0.8, delta=1e-5)),
        "final": plan(probe, Guarantee(epsilon=0.3, delta=1e-5)),
    }


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "signing.pem"
    keys.generate(path)
    return path


def public(key: Path) -> Path:
    return key.with_name(key.name + ".pub")


@pytest.fixture(params=KINDS)
def output(request: pytest.FixtureRequest, tmp_path: Path, plans: dict[str, Plan]) -> Output:
    return certified(tmp_path / "out", plans[request.param])


@pytest.fixture
def average(tmp_path: Path, plans: dict[str, Plan]) -> Output:
    return certified(tmp_path / "out", plans["average"])


@pytest.fixture
def selection(tmp_path: Path, plans: dict[str, Plan]) -> Output:
    return certified(tmp_path / "out", plans["selection"])


def failing(result: Verification) -> set[str]:
    return {check.name for check in result.checks if check.passed is False}


class TestWhatHolds:
    def test_an_output_verifies_by_itself(self, output: Output) -> None:
        result = verify(output.path)
        assert result.verified, result.problems
        assert {c.name: c.passed for c in result.checks}["signature"] is None

    def test_an_output_verifies_beside_its_portfolio_without_a_ledger(self, output: Output) -> None:
        result = verify(output.path, portfolio=output.portfolio)
        assert result.verified, result.problems
        assert {"manifests", "commitments", "binding"} <= {c.name for c in result.checks if c.passed}
        assert {c.name: c.passed for c in result.checks}["ledger"] is None, "there is none to ask"

    def test_a_signature_is_checked_with_its_key(self, tmp_path: Path, plans: dict[str, Plan], key: Path) -> None:
        signed = certified(tmp_path / "out", plans["average"], key=key)
        assert {c.name: c.passed for c in verify(signed.path, key=public(key)).checks}["signature"] is True

    def test_a_signature_without_a_key_is_reported_as_unchecked(
        self, tmp_path: Path, plans: dict[str, Plan], key: Path
    ) -> None:
        result = verify(certified(tmp_path / "out", plans["average"], key=key).path)
        assert result.verified
        assert [c.found for c in result.checks if c.name == "signature"] == [
            ("signed, but no key was given to check it with",)
        ]

    def test_the_same_release_gives_the_same_bytes(self, tmp_path: Path, plans: dict[str, Plan], key: Path) -> None:
        one, other = (certified(tmp_path / name, plans["selection"], key=key).path for name in ("one", "other"))
        for name in (CERTIFICATE_NAME, CARD_NAME):
            assert (one / name).read_bytes() == (other / name).read_bytes()

    def test_the_stated_epsilon_is_the_plans_rounded_up(self, output: Output) -> None:
        exact = output.declared.terms.epsilon(1e-5)
        stated = output.statement["predicate"]["guarantee"]["epsilon"]
        assert exact <= stated < exact * (1 + 1e-5)
        assert stated <= output.declared.target.epsilon

    def test_another_machine_that_computes_a_little_less_or_more_agrees(self, output: Output) -> None:
        for shade in (1 - 3e-12, 1 + 3e-12):
            other = {**output.statement["predicate"], **derived(output.declared, shade)}
            output.tampered(lambda s, other=other: s.update(predicate=other))
            assert failing(verify(output.path)) <= {"model card"}


class TestFigures:
    @pytest.mark.parametrize(
        ("value", "above", "below"),
        [(0.2, 0.2, 0.2), (0.12345678, 0.123457, 0.123456), (1.0000001, 1.00001, 1.0), (0.0, 0.0, 0.0)],
    )
    def test_are_rounded_to_six_digits(self, value: float, above: float, below: float) -> None:
        assert (up(value), down(value)) == (above, below)

    def test_infinity_is_written_as_the_word_inf(self) -> None:
        assert up(float("inf")) == "inf"


DERIVED = {
    "an ε lowered by one in its sixth digit": ("guarantee", "epsilon", lambda v: round(v - 10 ** _place(v), 12)),
    "an ε raised by one in its sixth digit": ("guarantee", "epsilon", lambda v: round(v + 10 ** _place(v), 12)),
    "an ε that is text": ("guarantee", "epsilon", str),
    "another δ": ("guarantee", "delta", lambda v: v * 10),
    "another theorem": ("theorem", None, lambda _: "last_step"),
    "a premise that holds no more": ("premises", 0, lambda p: {**p, "holds": not p["holds"]}),
    "another voucher": ("premises", 0, lambda p: {**p, "vouchedBy": "the regulator"}),
    "a premise less": ("premises", None, lambda v: v[1:]),
    "a caveat less": ("caveats", None, lambda v: v[1:]),
    "a caveat that says something else": ("caveats", 0, lambda c: {**c, "text": "none"}),
    "a choice that is called paid for": ("choice", "paidFor", lambda v: not v),
    "tuning that is called covered": ("tuning", "covered", lambda v: not v),
    "a proof that is none": ("proved", None, lambda v: not v),
    "a smaller δ at an ε": ("profile", "deltaAtEpsilon", lambda v: [{**v[0], "delta": v[0]["delta"] / 2}, *v[1:]]),
    "a smaller ε at a δ": ("profile", "epsilonAtDelta", lambda v: [{**v[0], "epsilon": v[0]["epsilon"] / 2}, *v[1:]]),
    "a candidate of less cost": ("outcomes", 0, lambda o: {**o, "epsilon": o["epsilon"] / 2}),
    "another recipe in words": ("outcomes", 0, lambda o: {**o, "recipe": "nothing"}),
    "an exposure of fewer steps": ("exposure", 0, lambda e: {**e, "step": e["step"] - 1}),
    "another setting": ("setting", "unit", lambda _: "user"),
    "a base model": ("baseModels", None, lambda _: ["somebody/something"]),
}


def _place(value: float) -> int:
    return int(f"{value:e}".split("e")[1]) - 5


@pytest.mark.parametrize("what", DERIVED)
def test_a_changed_figure_that_follows_from_the_terms_fails_verification(output: Output, what: str) -> None:
    field, inner, change = DERIVED[what]

    def tamper(statement: dict[str, Any]) -> None:
        content = statement["predicate"]
        if inner is None:
            content[field] = change(content[field])
        else:
            content[field][inner] = change(content[field][inner])

    result = verify(output.tampered(tamper))
    assert "guarantee" in failing(result), what
    assert not result.verified


def test_an_unknown_field_in_a_certificate_is_a_problem_that_names_it(average: Output) -> None:
    result = verify(average.tampered(lambda s: s["predicate"].update(approvedBy="everybody")))
    assert [p for p in result.problems if "approvedBy" in p]


def test_a_missing_field_in_a_certificate_is_a_problem_that_names_it(average: Output) -> None:
    for name in ("guarantee", "caveats", "setting"):
        path = average.tampered(lambda s, name=name: s["predicate"].pop(name))
        assert f"guarantee: {name} is missing" in verify(path).problems


def test_every_reason_for_a_failed_verification_is_listed(average: Output) -> None:
    (average.path / "model.safetensors").write_bytes(b"other")

    def tamper(statement: dict[str, Any]) -> None:
        statement["predicate"]["guarantee"]["epsilon"] = 0.1
        statement["predicate"]["proved"] = False

    problems = " ".join(verify(average.tampered(tamper)).problems)
    assert all(word in problems for word in ("model.safetensors", "guarantee.epsilon", "proved"))


TERMS = {
    "more noise than was used": lambda t: t["runs"][0]["mechanism"]["blocks"][0].update(noise_multiplier=1e3),
    "fewer steps than were taken": lambda t: [
        t["runs"][0]["mechanism"]["blocks"][0].update(steps=1, learning_rate=[0.1]),
    ],
    "another weight": lambda t: t["candidates"][0]["parts"][0].update(weight=0.5),
    "an earlier step": lambda t: t["candidates"][0]["parts"][0].update(step=1),
    "less seen": lambda t: t["candidates"][0]["seen"][0].update(step=1),
    "another theorem for a candidate": lambda t: t["candidates"][0].update(theorem="merged_trajectory"),
    "another adjacency": lambda t: t.update(adjacency="add_remove"),
    "another accounting": lambda t: t.update(accounting="rdp"),
    "a choice of another kind": lambda t: t["choice"].update(kind="uncharged"),
    "noise of another source": lambda t: t["runs"][0]["noise"].update(source="os_entropy"),
    "a start that is unknown": lambda t: t["runs"][0]["ancestry"].update(start="unknown"),
    "tuning that is unknown": lambda t: t["runs"][0].update(tuning="unknown"),
    "a run under another name": lambda t: t["runs"][0].update(run="other"),
}


@pytest.mark.parametrize("what", TERMS)
def test_changed_terms_fail_verification(selection: Output, what: str) -> None:
    result = verify(selection.tampered(lambda s: TERMS[what](s["predicate"]["terms"])))
    assert failing(result) & {"guarantee", "schema"}, what


def test_swapped_probabilities_fail_verification(selection: Output) -> None:
    def swap(statement: dict[str, Any]) -> None:
        statement["predicate"]["terms"]["probabilities"].reverse()

    assert "guarantee" in failing(verify(selection.tampered(swap)))


def test_probabilities_that_no_draw_has_fail_verification_by_the_schema(selection: Output) -> None:
    def round_them(statement: dict[str, Any]) -> None:
        statement["predicate"]["terms"]["probabilities"] = [0.1, 0.9]

    assert "schema" in failing(verify(selection.tampered(round_them)))


DECLARED = {
    "the dataset": lambda p: p["terms"].update(dataset="other"),
    "the unit": lambda p: p["terms"].update(unit="user"),
    "completeness": lambda p: p["portfolio"].update(complete=False),
    "a commitment": lambda p: p["inputs"][0].update(commitment="0" * 64),
    "the release's id": lambda p: p.update(release="0" * 32),
}


@pytest.mark.parametrize("what", DECLARED)
def test_a_declaration_other_than_the_portfolios_fails_verification_beside_it(average: Output, what: str) -> None:
    path = average.tampered(lambda s: DECLARED[what](s["predicate"]))
    found = failing(verify(path, portfolio=average.portfolio))
    assert found & {"manifests", "commitments"}, what
    assert "binding" in found


WHATEVER = {
    "the time": lambda s: s["predicate"].update(chargedAt="2020-01-01T00:00:00Z"),
    "the ledger's entry": lambda s: s["predicate"]["ledger"].update(entry=4),
    "a tool's version": lambda s: s["predicate"]["tools"].update(dpmerge="9"),
    "the target": lambda s: s["predicate"]["target"].update(epsilon=9.0),
    "a file's digest": lambda s: s["subject"][0]["digest"].update(sha256="0" * 64),
    "a file's name": lambda s: s["subject"][0].update(name="other"),
    "a file's size": lambda s: s["subject"][0]["annotations"].update(size=9),
    "the draw's number": lambda s: s["predicate"].update(drawNumber=7),
}


@pytest.mark.parametrize("what", WHATEVER)
def test_a_changed_declaration_no_longer_fits_its_binding(selection: Output, what: str) -> None:
    result = verify(selection.tampered(WHATEVER[what]), portfolio=selection.portfolio)
    assert "binding" in failing(result), what


@pytest.mark.parametrize("what", [*WHATEVER, *DECLARED, *TERMS])
def test_a_signature_fails_verification_after_any_change_of_the_certificate(
    tmp_path: Path, plans: dict[str, Plan], key: Path, what: str
) -> None:
    signed = certified(tmp_path / "out", plans["selection"], key=key)
    changes = WHATEVER | {name: (lambda s, c=c: c(s["predicate"])) for name, c in DECLARED.items()}
    changes |= {name: (lambda s, c=c: c(s["predicate"]["terms"])) for name, c in TERMS.items()}
    assert "signature" in failing(verify(signed.tampered(changes[what]), key=public(key)))


class TestSignatures:
    def test_a_changed_signature_fails_verification(self, tmp_path: Path, plans: dict[str, Plan], key: Path) -> None:
        out = certified(tmp_path / "out", plans["average"], key=key).path
        envelope = json.loads((out / CERTIFICATE_NAME).read_text())
        signature = bytearray(base64.b64decode(envelope["signatures"][0]["sig"]))
        signature[7] ^= 1
        envelope["signatures"][0]["sig"] = base64.b64encode(signature).decode()
        (out / CERTIFICATE_NAME).write_text(json.dumps(envelope))
        assert failing(verify(out, key=public(key))) == {"signature"}

    def test_a_signature_that_is_not_base64_fails_verification(
        self, tmp_path: Path, plans: dict[str, Plan], key: Path
    ) -> None:
        out = certified(tmp_path / "out", plans["average"], key=key).path
        envelope = json.loads((out / CERTIFICATE_NAME).read_text())
        envelope["signatures"][0]["sig"] = "!"
        (out / CERTIFICATE_NAME).write_text(json.dumps(envelope))
        assert failing(verify(out, key=public(key))) == {"signature"}

    def test_a_signature_of_another_key_fails_verification(
        self, tmp_path: Path, plans: dict[str, Plan], key: Path
    ) -> None:
        other, _ = keys.generate(tmp_path / "other.pem")
        assert failing(verify(certified(tmp_path / "out", plans["average"], key=key).path, key=other)) == {"signature"}

    def test_a_removed_signature_fails_verification_only_where_a_key_is_given(
        self, tmp_path: Path, plans: dict[str, Plan], key: Path
    ) -> None:
        out = certified(tmp_path / "out", plans["average"], key=key).path
        envelope = json.loads((out / CERTIFICATE_NAME).read_text())
        (out / CERTIFICATE_NAME).write_text(json.dumps({**envelope, "signatures": []}))
        assert failing(verify(out, key=public(key))) == {"signature"}
        assert verify(out).verified

    def test_an_invalid_signature_beside_a_valid_one_does_not_fail_verification(
        self, tmp_path: Path, plans: dict[str, Plan], key: Path
    ) -> None:
        out = certified(tmp_path / "out", plans["average"], key=key).path
        envelope = json.loads((out / CERTIFICATE_NAME).read_text())
        good = envelope["signatures"][0]
        for order in ([good, {**good, "sig": "AAAA"}], [{**good, "sig": "AAAA"}, good]):
            (out / CERTIFICATE_NAME).write_text(json.dumps({**envelope, "signatures": order}))
            assert verify(out, key=public(key)).verified

    def test_verifying_with_a_private_key_is_refused(self, key: Path, average: Output) -> None:
        with pytest.raises(InvalidInputError, match="got a private key; accepted: an ed25519 public key"):
            verify(average.path, key=key)

    def test_generating_a_key_over_an_existing_one_is_refused(self, key: Path) -> None:
        before = key.read_bytes()
        with pytest.raises(InvalidInputError, match="no key is ever overwritten"):
            keys.generate(key)
        assert key.read_bytes() == before

    def test_a_generated_private_key_is_readable_by_its_owner_alone(self, key: Path) -> None:
        assert key.stat().st_mode & 0o777 == 0o600

    def test_reading_a_file_that_is_no_key_is_refused(self, tmp_path: Path, average: Output) -> None:
        (tmp_path / "none").write_text("none")
        for read in (keys.read_private, keys.read_public):
            with pytest.raises(InvalidInputError, match="which holds no such key; accepted: an ed25519"):
                read(tmp_path / "none")


class TestFiles:
    def test_changed_weights_fail_verification(self, average: Output) -> None:
        (average.path / "model.safetensors").write_bytes(b"weightt")
        assert verify(average.path).problems == ["files: model.safetensors is not the file that was certified"]

    def test_a_changed_configuration_file_fails_verification(self, average: Output) -> None:
        (average.path / "config.json").write_bytes(b"[]")
        assert failing(verify(average.path)) == {"files"}

    def test_a_changed_model_card_fails_verification(self, average: Output) -> None:
        card = average.path / CARD_NAME
        card.write_text(card.read_text().replace("ε = 0.7", "ε = 0.6"))
        assert failing(verify(average.path)) == {"model card"}

    def test_a_missing_model_card_fails_verification(self, average: Output) -> None:
        (average.path / CARD_NAME).unlink()
        assert failing(verify(average.path)) == {"model card"}

    def test_a_missing_certified_file_fails_verification(self, average: Output) -> None:
        (average.path / "config.json").unlink()
        assert "config.json cannot be read" in verify(average.path).problems[0]

    @pytest.mark.parametrize("name", ["other.safetensors", "sub/pytorch_model.bin", ".gitattributes"])
    def test_a_file_that_is_not_certified_fails_verification(self, average: Output, name: str) -> None:
        (average.path / name).parent.mkdir(exist_ok=True)
        (average.path / name).write_bytes(b"more")
        assert verify(average.path).problems == [f"files: {name} is not covered by the certificate"]

    def test_an_allowed_extra_file_is_named_and_does_not_fail_verification(self, average: Output) -> None:
        (average.path / ".gitattributes").write_text("x")
        result = verify(average.path, allow_extra=[".gitattributes"])
        assert result.verified
        assert any(".gitattributes" in reason for c in result.checks for reason in c.found)

    @pytest.mark.parametrize("name", ["../config.json", "/etc/hostname", "a\\b"])
    def test_a_certified_name_that_leads_out_of_the_folder_fails_verification(self, average: Output, name: str) -> None:
        path = average.tampered(lambda s: s["subject"][0].update(name=name))
        assert "leads out of the folder" in " ".join(verify(path).problems)

    def test_a_certified_file_replaced_by_a_link_fails_verification(self, average: Output, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").write_bytes(b"{}")
        (average.path / "config.json").unlink()
        (average.path / "config.json").symlink_to(tmp_path / "elsewhere")
        assert verify(average.path).problems == ["files: config.json is a link out of the folder"]
        (average.path / "config.json").unlink()
        (average.path / "config.json").symlink_to(tmp_path / "out" / "model.safetensors")
        assert verify(average.path).problems == ["files: config.json is a link"]


class TestForm:
    def test_verifying_a_folder_without_a_certificate_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInputError, match="there is no certificate; name a folder that holds"):
            verify(tmp_path)

    @pytest.mark.parametrize(
        "text",
        ["", "[]", "{", '{"payload": 3}', '{"payload": "e30=", "payloadType": "text/plain", "signatures": []}'],
    )
    def test_a_certificate_that_is_no_envelope_fails_verification_by_its_form(self, average: Output, text: str) -> None:
        (average.path / CERTIFICATE_NAME).write_text(text)
        assert failing(verify(average.path)) == {"form"}

    def test_another_predicate_type_fails_verification_by_its_form(self, average: Output) -> None:
        assert failing(verify(average.tampered(lambda s: s.update(predicateType="urn:other")))) == {"form"}

    def test_another_statement_type_fails_verification_by_its_form(self, average: Output) -> None:
        path = average.tampered(lambda s: s.update(_type="https://in-toto.io/Statement/v0.1"))
        assert failing(verify(path)) == {"form"}

    def test_a_certified_file_named_twice_fails_verification_by_its_form(self, average: Output) -> None:
        path = average.tampered(lambda s: s["subject"].append(s["subject"][0]))
        assert failing(verify(path)) == {"form"}

    def test_a_final_theorem_that_is_not_declared_final_fails_verification(
        self, tmp_path: Path, plans: dict[str, Plan]
    ) -> None:
        out = certified(tmp_path / "out", plans["final"])
        assert failing(verify(out.tampered(lambda s: s["predicate"].update(final=False)))) == {"schema"}


class TestPortfolio:
    def test_a_missing_or_different_salt_fails_the_commitments(
        self, average: Output, portfolios: dict[str, Portfolio]
    ) -> None:
        salt = average.portfolio.path / SALT_NAME
        kept = salt.read_text()
        try:
            salt.unlink()
            assert failing(verify(average.path, portfolio=average.portfolio)) == {"commitments"}
            salt.touch(0o600)
            salt.write_text("0" * 64)
            assert failing(verify(average.path, portfolio=average.portfolio)) == {"commitments", "binding"}
        finally:
            salt.write_text(kept)

    def test_another_portfolio_fails_manifests_commitments_and_binding(
        self, average: Output, portfolios: dict[str, Portfolio]
    ) -> None:
        found = failing(verify(average.path, portfolio=portfolios["probe"]))
        assert found == {"manifests", "commitments", "binding"}

    def test_a_manifest_that_was_edited_is_noticed(self, average: Output, tmp_path: Path) -> None:
        copy = tmp_path / "copy"
        shutil.copytree(average.portfolio.path, copy)
        run = average.declared.terms.runs[0].run
        file = copy / run / "privacy.json"
        document = json.loads(file.read_text())
        document["mechanism"]["blocks"][0]["noise_multiplier"] *= 2
        file.write_text(json.dumps(document))
        assert f"manifests: the manifest of {run} says something else" in verify(average.path, portfolio=copy).problems

    def test_a_checkpoint_that_was_changed_is_noticed(self, average: Output, tmp_path: Path) -> None:
        copy = tmp_path / "copy"
        shutil.copytree(average.portfolio.path, copy)
        each = average.declared.inputs[0]
        file = copy / each.run / f"step-{each.step}.safetensors"
        content = bytearray(file.read_bytes())
        recorded = hashlib.sha256(content).hexdigest()
        content[-1] ^= 1
        file.write_bytes(content)
        found = hashlib.sha256(content).hexdigest()
        name = f"{each.run}@{each.step}"
        assert verify(average.path, portfolio=copy).problems == [
            f"commitments: {name}: step-{each.step}.safetensors is not the file that was recorded: it has the digest "
            f"{found}, and {recorded} was recorded"
        ]

    def test_no_digest_seed_or_score_of_an_unreleased_model_is_in_it(self, output: Output) -> None:
        text = json.dumps(output.statement)
        for run in output.portfolio.runs:
            private = [run.manifest.noise.stream, run.manifest.initial_weights]
            private += [d for c in run.checkpoints for d in (*c.file_digests, c.weights)]
            private += [value for c in run.checkpoints for value in (c.digests or {}).values()]
            assert not [p for p in private if p and p in text]
            assert f'"seed": {run.manifest.noise.seed}' not in text
        assert "accuracy" not in text


def test_two_releases_of_one_checkpoint_have_different_commitments(
    portfolios: dict[str, Portfolio], tmp_path: Path
) -> None:
    from dpmerge.certificate.commitments import release_salt
    from dpmerge.releasing.commitment_salt import checkpoint_commitment, salt_of
    from dpmerge.terms.checkpoint_reference import CheckpointReference

    portfolio = portfolios["mnist"]
    salts = [release_salt(salt_of(portfolio, create=True), name) for name in ("a" * 32, "b" * 32)]
    one, other = (checkpoint_commitment(portfolio, CheckpointReference("c2-s32", 20), salt) for salt in salts)
    assert one != other


def test_a_certificate_of_stated_weights_says_who_vouches_for_them(
    portfolios: dict[str, Portfolio], tmp_path: Path
) -> None:
    target = Guarantee(epsilon=2.0, delta=1e-5)
    planned = stated_weights(portfolios["mnist"], {"c2-s32@20": 0.5, "c2-s64@20": 0.5}, target)
    content = certified(tmp_path / "out", planned).statement["predicate"]
    premise = {
        "name": "weights_stated_without_looking_at_the_models",
        "holds": True,
        "vouchedBy": "whoever stated them",
    }
    assert premise in content["premises"]


def test_a_revealed_draw_is_shown_with_its_own_cost(tmp_path: Path, plans: dict[str, Plan]) -> None:
    out = certified(tmp_path / "out", plans["selection"], drawn=1)
    assert verify(out.path).verified
    own = out.statement["predicate"]["outcomes"][1]["epsilon"]
    assert f"given that, ε = {own}" in (out.path / CARD_NAME).read_text()


class TestAudits:
    """A certificate may carry what an attack has shown; what follows from that is computed again."""

    SHOWN = Audited(lower_bound=0.1, estimator="gaussian", trials=1000, confidence=0.95, seed=0)

    def test_a_certificate_and_its_card_carry_the_audit(self, tmp_path: Path, plans: dict[str, Plan]) -> None:
        out = certified(tmp_path / "out", plans["average"], audit=self.SHOWN)
        assert verify(out.path).verified
        content = out.statement["predicate"]
        assert content["audit"]["lowerBound"] == 0.1
        assert content["auditFinding"]["verdict"] == "consistent"
        assert "shows ε ≥ 0.1 at the certificate's δ" in (out.path / CARD_NAME).read_text()

    @pytest.mark.parametrize(
        ("field", "name", "value"), [("auditFinding", "verdict", "tight"), ("auditFinding", "tightness", 0.95)]
    )
    def test_a_better_finding_than_follows_from_the_audit_fails_verification(
        self, tmp_path: Path, plans: dict[str, Plan], field: str, name: str, value: object
    ) -> None:
        out = certified(tmp_path / "out", plans["average"], audit=self.SHOWN)
        result = verify(out.tampered(lambda statement: statement["predicate"][field].update({name: value})))
        assert "guarantee" in failing(result)

    def test_a_finding_without_an_audit_fails_verification(self, average: Output) -> None:
        found = {"verdict": "tight", "tightness": 1.0}
        result = verify(average.tampered(lambda s: s["predicate"].update({"auditFinding": found})))
        assert "guarantee" in failing(result)

    def test_a_bound_above_the_certified_epsilon_fails_verification(
        self, tmp_path: Path, plans: dict[str, Plan]
    ) -> None:
        out = certified(tmp_path / "out", plans["average"], audit=self.SHOWN)
        result = verify(out.tampered(lambda s: s["predicate"]["audit"].update({"lowerBound": 50.0})))
        assert "guarantee" in failing(result)
        assert any("at most the certified ε" in problem for problem in result.problems)

    def test_a_bound_equal_to_the_certified_epsilon_is_tight(self) -> None:
        shown = self.SHOWN.model_copy(update={"lower_bound": 0.7})
        assert shown.judged(0.7) == {"verdict": "tight", "tightness": 1.0}
        assert self.SHOWN.judged(0.1113) == {"verdict": "consistent", "tightness": 0.89}
        with pytest.raises(InvalidInputError, match="at most the certified ε"):
            shown.judged(0.6999999)

    def test_an_infinite_certified_epsilon_is_consistent_with_any_bound(self) -> None:
        assert self.SHOWN.judged(float("inf")) == {"verdict": "consistent", "tightness": 0.0}

    def test_a_zero_bound_on_a_zero_epsilon_is_consistent(self) -> None:
        shown = self.SHOWN.model_copy(update={"lower_bound": 0.0})
        assert shown.judged(0.0) == {"verdict": "consistent", "tightness": 0.0}
