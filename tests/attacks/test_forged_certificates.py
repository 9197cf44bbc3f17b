"""Forged certificates beside a portfolio: nobody without its salt, its ledger or its key gets one verified.

An honest release (ε = 0.3, hidden state with release noise) has a public certificate. A forger copies its commitments
into terms that claim release noise of 5 (ε = 0.000657), about the checkpoint s16@20 as it is (ε = 2.258).
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

import dpmerge as dpm
from attacks.faults import must_notice
from attacks.forging import FOREIGN, certificate_in, example_of_0_1, forged
from certificate.outputs import certified
from dpmerge.certificate import keys, predicate
from dpmerge.certificate.checks import Check, Verification
from dpmerge.certificate.dsse import CERTIFICATE_NAME
from dpmerge.certificate.model_card import CARD_NAME
from dpmerge.certificate.predicate import Version
from dpmerge.cli import app
from dpmerge.errors import InvalidInputError
from dpmerge.ledger.charge import Charge
from dpmerge.ledger.identity import identities, noise_marks
from dpmerge.ledger.ledger import Ledger
from dpmerge.planning.plan import Plan
from dpmerge.planning.stated_weights import stated_weights
from dpmerge.releasing import portfolio_match, verifying
from dpmerge.releasing.commitment_salt import SALT_NAME
from dpmerge.releasing.ledger_location import LEDGER_NAME
from dpmerge.releasing.verifying import verify

PLANS = Path(__file__).parents[1] / "data" / "plans"
DELTA = 1e-5
HONEST, CLAIMED, TRUE = 0.3, 0.000657404, 2.258


class Made(NamedTuple):
    home: Path
    out: Path

    @property
    def costly(self) -> bytes:
        return (self.home / "s16" / "step-20.safetensors").read_bytes()


def target(epsilon: float) -> dpm.Guarantee:
    return dpm.Guarantee(epsilon=epsilon, delta=DELTA)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("honest")
    home = example_of_0_1("probe", folder / "probe")
    dpm.release(dpm.plan(dpm.Portfolio.load(home), target(HONEST)), out=folder / "out", final=True)
    return Made(home, folder / "out")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    folder = tmp_path_factory.mktemp("two")
    home = example_of_0_1("mnist", folder / "mnist")
    for name, run in (("cheap", "ladder-1@20"), ("costly", "c2-s32@20")):
        weights = {run: 0.5, "ladder-2@20": 0.5}
        planned = stated_weights(dpm.Portfolio.load(home, contents=False), weights, target(2))
        dpm.release(planned, out=folder / name)
    return home, folder / "cheap", folder / "costly"


def without_ledger(made: Made, folder: Path) -> Path:
    home = shutil.copytree(made.home, folder / "no ledger")
    (home / LEDGER_NAME).unlink()
    return home


def more_noise(declared: dict[str, Any]) -> None:
    declared["terms"]["candidates"][0]["releaseNoise"] = 5.0


def in_a_foreign_ledger(declared: dict[str, Any]) -> None:
    declared["ledger"]["id"] = FOREIGN


def both(declared: dict[str, Any]) -> None:
    more_noise(declared)
    in_a_foreign_ledger(declared)


def failing(result: Verification) -> set[str]:
    return {check.name for check in result.checks if check.passed is False}


class TestMoreNoiseThanWasAdded:
    """Claimed ε = 0.000657 for a model that costs 2.258."""

    def test_verifies_without_portfolio_and_ledger(self, honest: Made, tmp_path: Path) -> None:
        """So that what is refused below is not refused for its figures; and nobody says who states the terms."""
        fake = forged(honest.out, tmp_path / "fake", both, files={"model.safetensors": honest.costly})
        assert verify(fake).content["guarantee"] == {"epsilon": CLAIMED, "delta": DELTA}
        assert verify(fake).verified
        own = stated_weights(dpm.Portfolio.load(honest.home, contents=False), {"s16@20": 1.0}, target(50))
        assert own.terms.epsilon(DELTA) == pytest.approx(TRUE, abs=1e-3)

    @pytest.mark.parametrize("version", [1, 2])
    @pytest.mark.parametrize("words", [more_noise, both], ids=["its own ledger", "a foreign ledger"])
    @pytest.mark.parametrize("ledger", [True, False], ids=["ledger beside", "no ledger"])
    def test_is_refused_beside_the_portfolio(
        self, honest: Made, tmp_path: Path, version: Version, words: Callable[[dict[str, Any]], None], ledger: bool
    ) -> None:
        fake = forged(honest.out, tmp_path / "fake", words, files={"model.safetensors": honest.costly}, version=version)
        home = honest.home if ledger else without_ledger(honest, tmp_path)
        result = verify(fake, portfolio=home)
        assert not result.verified
        by_binding = {"binding"} if version == 2 else set()
        by_ledger = {"ledger"} if ledger or version == 1 else set()
        assert failing(result) == by_binding | by_ledger

    @pytest.mark.parametrize("version", [1, 2])
    def test_is_refused_beside_the_ledger_alone(self, honest: Made, tmp_path: Path, version: Version) -> None:
        fake = forged(honest.out, tmp_path / "fake", both, version=version)
        assert failing(verify(fake, ledger=honest.home / LEDGER_NAME)) == {"ledger"}

    def test_is_refused_by_the_command_line(self, honest: Made, tmp_path: Path) -> None:
        fake = forged(honest.out, tmp_path / "fake", both, files={"model.safetensors": honest.costly}, version=1)
        arguments = ["verify", str(fake), "--portfolio", str(honest.home)]
        result = CliRunner().invoke(app, arguments, env={"COLUMNS": "80", "DPMERGE_LEDGER": None})
        assert result.exit_code == 1
        assert "Verified" not in result.output

    @pytest.mark.parametrize(
        ("owner", "name", "version", "ledger"),
        [
            (verifying, "_charged", 1, True),
            (verifying, "_in_ledger", 1, False),
            (portfolio_match, "_binding", 2, False),
        ],
        ids=["a foreign ledger is a remark", "version 1 needs no ledger", "the binding is not opened"],
    )
    def test_is_noticed_only_with_ledger_and_binding_checked(
        self, honest: Made, tmp_path: Path, owner: object, name: str, version: Version, ledger: bool
    ) -> None:
        def attack(folder: Path) -> None:
            fake = forged(honest.out, folder / "fake", both, version=version)
            home = honest.home if ledger else without_ledger(honest, folder)
            assert not verify(fake, portfolio=home).verified

        must_notice(attack, tmp_path, owner, name, lambda *_: Check("taken out", None))


class TestAnotherModel:
    """Claimed ε = 0.3, the honest terms; the weights are s16@20's (2.258)."""

    @pytest.mark.parametrize("version", [1, 2])
    def test_under_the_honest_terms_fails_verification_beside_the_portfolio(
        self, honest: Made, tmp_path: Path, version: Version
    ) -> None:
        files = {"model.safetensors": honest.costly}
        fake = forged(honest.out, tmp_path / "fake", in_a_foreign_ledger, files=files, version=version)
        assert verify(fake).verified
        for home in (honest.home, without_ledger(honest, tmp_path)):
            assert not verify(fake, portfolio=home).verified

    def test_of_another_size_fails_verification_by_its_size(self, honest: Made, tmp_path: Path) -> None:
        """Noticed before a byte is read, however large it is."""
        out = shutil.copytree(honest.out, tmp_path / "out")
        with (out / "model.safetensors").open("r+b") as file:
            file.truncate(10**12)
        (problem,) = verify(out).problems
        assert problem.startswith("files: model.safetensors has 1,000,000,000,000 bytes; ")


class TestPiecesOfTwoCertificates:
    """Two releases of one portfolio, ε 0.05 and 1.05: no piece of the cheap one fits the costly one."""

    @pytest.mark.parametrize(
        "pieces",
        [
            ("binding",),
            ("release", "binding"),
            ("terms", "inputs"),
            ("terms", "inputs", "binding"),
            ("terms", "inputs", "release", "binding"),
            ("terms", "inputs", "release", "binding", "ledger"),
            ("terms", "inputs", "release", "binding", "ledger", "chargedAt", "target", "portfolio", "tools"),
        ],
        ids=" ".join,
    )
    def test_a_costly_model_with_pieces_of_a_cheap_certificate_fails_verification(
        self, two: tuple[Path, Path, Path], tmp_path: Path, pieces: tuple[str, ...]
    ) -> None:
        home, cheap, costly = two
        words = {name: certificate_in(cheap).content[name] for name in pieces}
        fake = forged(costly, tmp_path / "fake", lambda declared: declared.update(words))
        (tmp_path / "home").mkdir()
        bare = shutil.copytree(home, tmp_path / "home" / "mnist", ignore=shutil.ignore_patterns(LEDGER_NAME))
        assert "binding" in failing(verify(fake, portfolio=bare))
        assert not verify(fake, portfolio=home).verified

    def test_both_certificates_verify_unchanged(self, two: tuple[Path, Path, Path]) -> None:
        home, cheap, costly = two
        for out in (cheap, costly):
            assert verify(out, portfolio=home).verified


WRITTEN_BY_0_1 = {
    "mnist-0.1": (
        "438d9e728cc15c17853127907b6d4f43f88a3b22b72957b28abf6b38b4da7df4",
        "3cfec30e1b1608566e50ff6ace195f95c3ed036f46f66fcc0c513f6a23ecef74",
    ),
    "mnist-0.8": (
        "f18b55d442c1d8a8c489afa794038a5eab43abc321c752bd6d124cd4afd45446",
        "be5560c74145b973aad73eb8bc17849f14901705317f3846338fea76ca77a432",
    ),
    "probe-0.3": (
        "9938cdb5ddaea09dfd61fe9b3e8069e9cdb1d7822dc001706e9a3a5dea350d39",
        "ae6d2769f0bcf8d171dd83d2fc36eb0af4bfa0c8478b28ca9f964589ebf4143a",
    ),
}
"""A plan of tests/data/plans → SHA-256 of certificate and card as version 0.1 wrote them, with the salt below."""


class TestVersionOne:
    """What 0.1 wrote still verifies, as version 1; writing it today gains nothing."""

    @staticmethod
    def planned(home: Path, name: str) -> Plan:
        (home / SALT_NAME).write_text("5a" * 32)
        (home / SALT_NAME).chmod(0o600)
        return Plan.load(PLANS / f"{name}.json", dpm.Portfolio.load(home, contents=False))

    @pytest.mark.parametrize("name", WRITTEN_BY_0_1)
    def test_a_certificate_of_version_1_has_the_bytes_that_0_1_wrote(self, tmp_path: Path, name: str) -> None:
        """A release ordered by 0.1 is finished, and handed out again, with the certificate it always had."""
        example = name.split("-")[0]
        home = example_of_0_1(example, tmp_path / example)
        out = certified(tmp_path / "out", self.planned(home, name), version=1).path
        found = [hashlib.sha256((out / file).read_bytes()).hexdigest() for file in (CERTIFICATE_NAME, CARD_NAME)]
        assert tuple(found) == WRITTEN_BY_0_1[name]
        result = verify(out)
        assert result.verified
        assert [c.passed for c in result.checks if c.name == "version"] == [None]

    def test_a_certificate_of_version_1_fails_verification_without_its_ledger(self, tmp_path: Path) -> None:
        """Made by who has the salt, even: a forger's would look the same."""
        home = example_of_0_1("probe", tmp_path / "probe")
        out = certified(tmp_path / "out", self.planned(home, "probe-0.3"), version=1).path
        result = verify(out, portfolio=home)
        assert failing(result) == {"ledger"}
        assert "no certificate of version 1 is believed" in " ".join(result.problems)

    def test_a_certificate_cannot_be_of_two_versions(self, honest: Made, tmp_path: Path) -> None:
        with pytest.raises(InvalidInputError, match="binding"):
            forged(honest.out, tmp_path / "one", lambda d: d.update(binding="0" * 64), version=1)
        with pytest.raises(InvalidInputError, match="binding: got nothing"):
            forged(honest.out, tmp_path / "two", lambda d: d.pop("binding"))

    @pytest.mark.parametrize("facts", ["STATED_IN_1", "ANCESTRY_IN_1"])
    def test_a_certificate_of_version_1_with_later_facts_fails_verification(
        self, honest: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: str
    ) -> None:
        """Here a fact of 0.1 stands for a later one."""
        old = forged(honest.out, tmp_path / "old", version=1)
        assert verify(old).verified
        later = {"STATED_IN_1": "tuning", "ANCESTRY_IN_1": "start"}[facts]
        monkeypatch.setattr(predicate, facts, getattr(predicate, facts) - {later})
        assert failing(verify(old)) == {"schema"}
        assert verify(honest.out).verified

    @pytest.mark.parametrize("name", ["CAVEATS_SINCE_2", "PREMISES_SINCE_2"])
    def test_a_certificate_of_version_1_has_no_later_caveats_or_premises(
        self, honest: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        """Here a caveat and a premise of 0.1 stand for later ones: version 2 has them, version 1 has not."""
        later = {"CAVEATS_SINCE_2": "seeded_noise", "PREMISES_SINCE_2": "full_batch"}[name]
        monkeypatch.setattr(predicate, name, getattr(predicate, name) | {later})
        old = forged(honest.out, tmp_path / "old", version=1)
        words = {"CAVEATS_SINCE_2": "caveats", "PREMISES_SINCE_2": "premises"}[name]
        assert later not in {each["name"] for each in certificate_in(old).content[words]}
        assert later in {each["name"] for each in certificate_in(honest.out).content[words]}
        assert verify(old).verified
        assert verify(honest.out).verified

    @pytest.mark.parametrize("version", [1, 2])
    def test_a_release_charged_and_never_sealed_fails_verification(self, tmp_path: Path, version: Version) -> None:
        """Its entry and terms are there; which files it is, the ledger does not know."""
        home = example_of_0_1("probe", tmp_path / "probe")
        planned = self.planned(home, "probe-0.3")
        manifests = [run.manifest for run in planned.portfolio.runs]
        named = {"identities": identities(manifests), "marks": noise_marks(manifests)}
        request = Charge.proposed(terms=planned.terms, final=True, details={}, **named)
        with Ledger.open(home / LEDGER_NAME) as ledger:
            entry = ledger.charge(request, lambda _: 0, release_id="0123456789abcdef0123456789abcdef").entry
            place = {"id": ledger.id, "entry": entry.seq, "hash": entry.hash}
        out = certified(tmp_path / "out", planned, version=version, ledger=place).path
        result = verify(out, portfolio=home)
        assert failing(result) == {"ledger"}
        assert "never sealed" in " ".join(result.problems)


class TestALedger:
    def test_without_a_ledger_the_ledger_check_is_left_open(self, honest: Made, tmp_path: Path) -> None:
        result = verify(honest.out, portfolio=without_ledger(honest, tmp_path))
        assert {c.name: c.passed for c in result.checks}["ledger"] is None
        assert result.verified

    def test_that_is_another_one_fails_verification(self, honest: Made, tmp_path: Path) -> None:
        Ledger.open(tmp_path / "other.sqlite").close()
        for portfolio in (None, honest.home):
            result = verify(honest.out, portfolio=portfolio, ledger=tmp_path / "other.sqlite")
            assert failing(result) == {"ledger"}

    def test_that_has_the_release_passes_with_binding_and_rebuild(self, honest: Made) -> None:
        result = verify(honest.out, portfolio=honest.home, ledger=honest.home / LEDGER_NAME, rebuild=True)
        checks = {check.name: check.passed for check in result.checks}
        assert (checks["binding"], checks["ledger"], checks["rebuild"]) == (True, True, None)
        assert dpm.verify is verify

    def test_without_the_signed_release_fails_verification(self, honest: Made, tmp_path: Path) -> None:
        """The signature is the signer's word; the ledger is asked all the same."""
        keys.generate(tmp_path / "key")
        fake = forged(honest.out, tmp_path / "fake", both, key=tmp_path / "key")
        assert verify(fake, key=tmp_path / "key.pub").verified
        assert failing(verify(fake, key=tmp_path / "key.pub", portfolio=honest.home)) == {"binding", "ledger"}


class TestTwoSpellingsOfAField:
    """Claimed: what a reader of the document sees. True: what the verifier reads, if names that look alike were one."""

    @staticmethod
    def rewritten(honest: Made, out: Path, version: Version, change: Callable[[dict[str, Any]], object]) -> Path:
        """The same certificate with the records of its runs written otherwise; its card still fits."""
        forged(honest.out, out, version=version)
        envelope = json.loads((out / CERTIFICATE_NAME).read_text())
        statement = json.loads(base64.b64decode(envelope["payload"]))
        for run in statement["predicate"]["terms"]["runs"]:
            change(run["mechanism"]["blocks"][0])
        envelope["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
        (out / CERTIFICATE_NAME).write_text(json.dumps(envelope))
        return out

    @pytest.mark.parametrize("version", [1, 2, 3])
    @pytest.mark.parametrize("name", ["ſteps", "Steps"])
    def test_a_field_name_that_looks_like_another_fails_verification(
        self, honest: Made, tmp_path: Path, version: Version, name: str
    ) -> None:
        def both_names(block: dict[str, Any]) -> None:
            block[name] = block["steps"]
            block["steps"] = 9999

        fake = self.rewritten(honest, tmp_path / "fake", version, both_names)
        assert failing(verify(fake)) == {"schema"}

    @pytest.mark.parametrize(
        ("version", "other"), [(1, "noiseMultiplier"), (2, "noiseMultiplier"), (3, "noise_multiplier")]
    )
    def test_a_field_in_the_case_of_another_version_fails_verification(
        self, honest: Made, tmp_path: Path, version: Version, other: str
    ) -> None:
        own = "noiseMultiplier" if version == 3 else "noise_multiplier"
        for place, change in {
            "beside": lambda block: block.update({other: 2 * block[own]}),
            "instead": lambda block: block.update({other: block.pop(own)}),
        }.items():
            assert failing(verify(self.rewritten(honest, tmp_path / place, version, change))) == {"schema"}

    @pytest.mark.parametrize("version", [1, 2])
    def test_the_records_of_runs_are_in_snake_case_until_version_2(
        self, honest: Made, tmp_path: Path, version: Version
    ) -> None:
        old = forged(honest.out, tmp_path / "old", version=version)
        assert "noise_multiplier" in json.dumps(certificate_in(old).content["terms"]["runs"])
        assert "noise_multiplier" not in json.dumps(certificate_in(honest.out).content["terms"]["runs"])
        assert verify(old).verified
