"""Timestamps: what an authority signed for this certificate is believed, and nothing that only looks like it."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID
from typer.testing import CliRunner

from certificate.authorities import SHA1, TIME_STAMPING, Authority, authority, der, integer
from certificate.conftest import KeyPair
from certificate.loopback import Answer, served
from dpmerge.certificate.checks import Check, Verification
from dpmerge.certificate.dsse import CERTIFICATE_NAME
from dpmerge.certificate.output_files import LARGEST_TIMESTAMP, TIMESTAMP_NAME
from dpmerge.certificate.timestamp_token import checked, new_request, nonce_of, read_roots
from dpmerge.cli import app
from dpmerge.errors import CannotReadError, CannotWriteError, InvalidInputError, MissingExtraError
from dpmerge.planning.plan import Plan
from dpmerge.releasing.release import release
from dpmerge.releasing.revoking import renew, revoke
from dpmerge.releasing.timestamping import attach_timestamp, fetch_timestamp, request_timestamp
from dpmerge.releasing.verifying import verify

MADE = datetime(2025, 6, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def tsa(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("authorities") / "one")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Of the same names, with other keys."""
    return authority(tmp_path_factory.mktemp("authorities") / "other")


def certificate(out: Path) -> bytes:
    return (out / CERTIFICATE_NAME).read_bytes()


def put(out: Path, response: bytes) -> Path:
    (out / TIMESTAMP_NAME).write_bytes(response)
    return out


def found(result: Verification) -> Check:
    [check] = [check for check in result.checks if check.name == "timestamp"]
    return check


def refused(result: Verification) -> str:
    """Why the timestamp failed, which nothing else did."""
    assert found(result).passed is False
    assert {problem.partition(":")[0] for problem in result.problems} == {"timestamp"}
    return found(result).found[0]


class TestWhatHolds:
    def test_a_release_is_stamped_by_what_openssl_answers(
        self, out: Path, signer: KeyPair, tsa: Authority, tmp_path: Path
    ) -> None:
        before = {path.name: path.read_bytes() for path in out.iterdir()}
        asked = request_timestamp(out, output=tmp_path / "asked.tsq")
        (tmp_path / "answer.tsr").write_bytes(tsa.answer(asked.read_bytes()))
        stamp = attach_timestamp(out, tmp_path / "answer.tsr", roots=tsa.roots, request=asked)
        assert stamp.authority == "CN=An authority"
        assert abs(stamp.existed_by - datetime.now(UTC)) < timedelta(minutes=10)
        assert {path.name: path.read_bytes() for path in out.iterdir() if path.name in before} == before
        result = verify(out, key=signer.public, timestamp_roots=tsa.roots)
        assert result.verified, result.problems
        assert found(result).passed is True

    def test_openssl_verifies_what_was_attached(self, out: Path, tsa: Authority) -> None:
        put(out, tsa.answer(new_request(certificate(out))))
        words = ["openssl", "ts", "-verify", "-in", TIMESTAMP_NAME, "-data", CERTIFICATE_NAME, "-CAfile"]
        done = subprocess.run([*words, str(tsa.roots)], cwd=out, capture_output=True, text=True, check=False)
        assert "Verification: OK" in done.stdout + done.stderr

    def test_a_timestamp_without_roots_is_reported_as_not_checked(self, out: Path, tsa: Authority) -> None:
        result = verify(put(out, tsa.stamp(certificate(out), at=MADE)))
        assert result.verified, result.problems
        assert found(result).passed is None
        assert found(result).found[0].startswith("not checked")

    def test_a_release_without_a_timestamp_has_no_such_check(self, out: Path) -> None:
        assert [check for check in verify(out).checks if check.name == "timestamp"] == []

    def test_a_chain_that_has_expired_since_was_valid_at_the_tokens_time(self, out: Path, tmp_path: Path) -> None:
        retired = authority(tmp_path / "retired", end=MADE + timedelta(days=1))
        assert datetime.now(UTC) > MADE + timedelta(days=2)
        assert verify(put(out, retired.stamp(certificate(out), at=MADE)), timestamp_roots=retired.roots).verified

    def test_the_end_of_the_stated_accuracy_counts(self, tsa: Authority) -> None:
        response = tsa.stamp(b"certificate", at=MADE, accuracy=30)
        assert checked(response, b"certificate", read_roots(tsa.roots)).existed_by == MADE + timedelta(seconds=30)

    def test_one_of_several_roots_is_enough(self, out: Path, tsa: Authority, other: Authority, tmp_path: Path) -> None:
        (tmp_path / "roots.pem").write_bytes(other.roots.read_bytes() + tsa.roots.read_bytes())
        assert verify(put(out, tsa.stamp(certificate(out), at=MADE)), timestamp_roots=tmp_path / "roots.pem").verified


Broken = Callable[[Authority, bytes], bytes]
BROKEN: dict[str, tuple[Broken, str]] = {
    "of another digest": (lambda tsa, _: tsa.stamp(b"another", at=MADE), "something else than this certificate"),
    "of a sha1 digest": (lambda tsa, text: tsa.stamp(text, at=MADE, imprint=(SHA1, "sha1")), "other than sha256"),
    "signed by sha1": (lambda tsa, text: tsa.stamp(text, at=MADE, signed_by="sha1"), "algorithm that is not accepted"),
    "bound to no certificate": (
        lambda tsa, text: tsa.stamp(text, at=MADE, bound=False),
        "no signing certificate attribute",
    ),
    "granted with changes": (lambda tsa, text: tsa.stamp(text, at=MADE, status=1), "not granted"),
    "rejected": (lambda _tsa, _text: der(0x30, der(0x30, integer(2))), "not granted"),
    "truncated": (lambda tsa, text: tsa.stamp(text, at=MADE)[:-7], "cannot be read"),
    "with a byte behind it": (lambda tsa, text: tsa.stamp(text, at=MADE) + b"\0", "cannot be read"),
    "empty": (lambda _tsa, _text: b"", "cannot be read"),
    "a request": (lambda _, text: new_request(text), "cannot be read"),
    "after the chain has ended": (
        lambda tsa, text: tsa.stamp(text, at=datetime(2050, 1, 1, tzinfo=UTC)),
        "not valid at its time",
    ),
    "before the chain began": (
        lambda tsa, text: tsa.stamp(text, at=datetime(2020, 1, 1, tzinfo=UTC)),
        "not valid at its time",
    ),
}


class TestBrokenTokens:
    @pytest.mark.parametrize(("broken", "words"), BROKEN.values(), ids=BROKEN.keys())
    def test_a_token_that_does_not_check_fails_verification(
        self, broken: Broken, words: str, out: Path, signer: KeyPair, tsa: Authority
    ) -> None:
        put(out, broken(tsa, certificate(out)))
        assert words in refused(verify(out, key=signer.public, timestamp_roots=tsa.roots))

    def test_a_token_of_another_root_fails(self, out: Path, tsa: Authority, other: Authority) -> None:
        put(out, tsa.stamp(certificate(out), at=MADE))
        assert "given roots" in refused(verify(out, timestamp_roots=other.roots))

    def test_a_root_that_comes_with_the_token_is_not_believed(
        self, out: Path, tsa: Authority, other: Authority
    ) -> None:
        put(out, other.stamp(certificate(out), at=MADE, more=[other.roots]))
        assert "given roots" in refused(verify(out, timestamp_roots=tsa.roots))

    def test_an_authoritys_certificate_that_had_expired_fails(self, out: Path, tmp_path: Path) -> None:
        """What an authority signs today with a certificate of yesterday."""
        expired = authority(tmp_path / "expired", end=MADE - timedelta(days=1))
        put(out, expired.answer(new_request(certificate(out))))
        assert "not valid at its time" in refused(verify(out, timestamp_roots=expired.roots))

    @pytest.mark.parametrize(
        "purpose",
        [
            {"purposes": ()},
            {"critical": False},
            {"purposes": (ExtendedKeyUsageOID.SERVER_AUTH,)},
            {"purposes": (TIME_STAMPING, ExtendedKeyUsageOID.SERVER_AUTH)},
        ],
        ids=["none", "not critical", "another", "another beside it"],
    )
    def test_a_signer_that_is_not_for_timestamping_alone_fails(
        self, purpose: dict[str, Any], out: Path, tmp_path: Path
    ) -> None:
        wrong = authority(tmp_path / "wrong", **purpose)
        put(out, wrong.stamp(certificate(out), at=MADE))
        assert "not for timestamping" in refused(verify(out, timestamp_roots=wrong.roots))

    def test_a_certificate_signed_by_sha1_fails(self, out: Path, tmp_path: Path) -> None:
        weak = authority(tmp_path / "weak", weak=True)
        put(out, weak.stamp(certificate(out), at=MADE))
        assert "algorithm that is not accepted" in refused(verify(out, timestamp_roots=weak.roots))

    def test_a_token_bound_to_another_certificate_of_the_same_key_fails(self, out: Path, tmp_path: Path) -> None:
        """The second certificate has the name, the number and the key of the first."""
        one = authority(tmp_path / "one")
        first = one.stamp(certificate(out), at=MADE)
        put(out, first)
        assert verify(out, timestamp_roots=one.roots).verified
        old, new = one.twin()
        assert len(old) == len(new)
        assert first.count(old) == 1
        put(out, first.replace(old, new))
        assert "names another certificate" in refused(verify(out, timestamp_roots=one.roots))

    def test_two_certificates_of_one_name_and_number_fail(self, out: Path, tmp_path: Path) -> None:
        one = authority(tmp_path / "one")
        one.twin()
        put(out, one.stamp(certificate(out), at=MADE, more=[one.folder / "twin.pem"]))
        assert "more than once" in refused(verify(out, timestamp_roots=one.roots))

    def test_bytes_that_were_changed_prove_nothing_else(self, tsa: Authority) -> None:
        """A changed token is refused, or says the very same: fields that nobody signs, and nothing reads."""
        roots = read_roots(tsa.roots)
        good = tsa.stamp(b"certificate", at=MADE)
        wanted = checked(good, b"certificate", roots)
        draw, refusals = random.Random(1), 0  # noqa: S311
        for _ in range(1500):
            changed = bytearray(good)
            changed[draw.randrange(len(good))] = draw.randrange(256)
            try:
                assert checked(bytes(changed), b"certificate", roots) == wanted
            except InvalidInputError:
                refusals += 1
        assert refusals > 1300

    def test_a_timestamp_that_is_missing_fails_where_roots_are_given(self, out: Path, tsa: Authority) -> None:
        assert "there is none" in refused(verify(out, timestamp_roots=tsa.roots))

    def test_a_certificate_signed_once_more_is_not_the_one_that_was_stamped(self, out: Path, tsa: Authority) -> None:
        """The token is of the file, signatures included: who steals a key later cannot use an old token."""
        put(out, tsa.stamp(certificate(out), at=MADE))
        envelope = json.loads(certificate(out))
        envelope["signatures"].append({"keyid": "0" * 64, "sig": "AAAA"})
        (out / CERTIFICATE_NAME).write_text(json.dumps(envelope))
        assert "something else than this certificate" in refused(verify(out, timestamp_roots=tsa.roots))

    @pytest.mark.parametrize(
        "content", [b"", b"nothing", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
    )
    def test_roots_that_are_none_are_refused_beforehand(self, content: bytes, out: Path, tmp_path: Path) -> None:
        (tmp_path / "roots.pem").write_bytes(content)
        with pytest.raises(InvalidInputError, match="which holds no certificate"):
            verify(out, timestamp_roots=tmp_path / "roots.pem")

    def test_roots_of_which_none_is_a_root_are_refused(self, out: Path, tsa: Authority) -> None:
        with pytest.raises(InvalidInputError, match="no root"):
            verify(out, timestamp_roots=tsa.folder / "tsa.pem")


class TestTheFile:
    def test_a_file_too_large_for_a_timestamp_is_not_covered(self, out: Path) -> None:
        put(out, b"x" * LARGEST_TIMESTAMP)
        assert verify(out).verified
        put(out, b"x" * (LARGEST_TIMESTAMP + 1))
        assert verify(out).problems == [f"files: {TIMESTAMP_NAME} is not covered by the certificate"]

    def test_a_link_in_its_place_fails(self, out: Path, tsa: Authority, tmp_path: Path) -> None:
        (tmp_path / "elsewhere.tsr").write_bytes(tsa.stamp(certificate(out), at=MADE))
        (out / TIMESTAMP_NAME).symlink_to(tmp_path / "elsewhere.tsr")
        assert verify(out).problems == [f"files: {TIMESTAMP_NAME} is a link"]

    def test_a_folder_in_its_place_hides_nothing(self, out: Path) -> None:
        (out / TIMESTAMP_NAME).mkdir()
        (out / TIMESTAMP_NAME / "model.safetensors").write_bytes(b"other weights")
        assert not verify(out).verified

    def test_the_name_in_another_folder_is_not_covered(self, out: Path) -> None:
        (out / "sub").mkdir()
        (out / "sub" / TIMESTAMP_NAME).write_bytes(b"x")
        assert verify(out).problems == [f"files: sub/{TIMESTAMP_NAME} is not covered by the certificate"]

    def test_a_release_that_is_handed_out_again_has_its_timestamp(self, averaged: Plan, tmp_path: Path) -> None:
        first, again = tmp_path / "first", tmp_path / "again"
        release(averaged, out=first, request_key="once")
        put(first, b"a timestamp")
        release(averaged, out=again, request_key="once")
        assert (again / TIMESTAMP_NAME).read_bytes() == b"a timestamp"
        assert certificate(again) == certificate(first)


class TestAttaching:
    def test_an_answer_to_another_request_is_not_attached(self, out: Path, tsa: Authority, tmp_path: Path) -> None:
        one, two = (request_timestamp(out, output=tmp_path / name) for name in ("one.tsq", "two.tsq"))
        assert nonce_of(one.read_bytes()) != nonce_of(two.read_bytes())
        (tmp_path / "answer.tsr").write_bytes(tsa.answer(one.read_bytes()))
        with pytest.raises(InvalidInputError, match="it answers another request"):
            attach_timestamp(out, tmp_path / "answer.tsr", roots=tsa.roots, request=two)
        assert not (out / TIMESTAMP_NAME).exists()
        attach_timestamp(out, tmp_path / "answer.tsr", roots=tsa.roots, request=one)

    @pytest.mark.parametrize(("broken", "words"), BROKEN.values(), ids=BROKEN.keys())
    def test_a_token_that_does_not_check_is_not_attached(
        self, broken: Broken, words: str, out: Path, tsa: Authority, tmp_path: Path
    ) -> None:
        (tmp_path / "answer.tsr").write_bytes(broken(tsa, certificate(out)))
        with pytest.raises(InvalidInputError, match=words):
            attach_timestamp(out, tmp_path / "answer.tsr", roots=tsa.roots)
        assert not (out / TIMESTAMP_NAME).exists()

    @pytest.mark.parametrize(
        "content", [b"", b"0", der(0x30, integer(1), der(0x30))], ids=["empty", "none", "no nonce"]
    )
    def test_a_request_that_is_none_is_refused(self, content: bytes, out: Path, tsa: Authority, tmp_path: Path) -> None:
        (tmp_path / "asked.tsq").write_bytes(content)
        (tmp_path / "answer.tsr").write_bytes(tsa.stamp(certificate(out), at=MADE))
        with pytest.raises(InvalidInputError, match="timestamp request"):
            attach_timestamp(out, tmp_path / "answer.tsr", roots=tsa.roots, request=tmp_path / "asked.tsq")

    def test_a_timestamp_is_never_replaced(self, out: Path, tsa: Authority, tmp_path: Path) -> None:
        put(out, first := tsa.stamp(certificate(out), at=MADE))
        (tmp_path / "answer.tsr").write_bytes(tsa.stamp(certificate(out), at=MADE + timedelta(days=1)))
        with pytest.raises(CannotWriteError, match="there already"):
            attach_timestamp(out, tmp_path / "answer.tsr", roots=tsa.roots)
        assert (out / TIMESTAMP_NAME).read_bytes() == first

    def test_a_request_never_replaces_a_file(self, out: Path, tmp_path: Path) -> None:
        (tmp_path / "mine.tsq").write_bytes(b"mine")
        with pytest.raises(CannotWriteError, match="there already"):
            request_timestamp(out, output=tmp_path / "mine.tsq")
        assert (tmp_path / "mine.tsq").read_bytes() == b"mine"

    def test_a_folder_without_a_certificate_is_refused(self, tsa: Authority, tmp_path: Path) -> None:
        with pytest.raises(CannotReadError, match="a release's folder"):
            request_timestamp(tmp_path, output=tmp_path / "asked.tsq")
        assert not (tmp_path / "asked.tsq").exists()

    def test_a_timestamp_is_fetched_from_an_authority(self, out: Path, signer: KeyPair, tsa: Authority) -> None:
        with served({"/tsa": lambda asked: Answer(tsa.answer(asked))}) as where:
            fetch_timestamp(out, url=f"{where}/tsa", roots=tsa.roots)
        assert verify(out, key=signer.public, timestamp_roots=tsa.roots).verified

    def test_an_authority_that_answers_something_else_is_refused(
        self, out: Path, tsa: Authority, other: Authority
    ) -> None:
        pages = {
            "/old": Answer(tsa.stamp(certificate(out), at=MADE)),  # of this certificate, without the nonce
            "/other": lambda asked: Answer(other.answer(asked)),
            "/page": Answer(b"<html>"),
            "/large": Answer(b"0" * (LARGEST_TIMESTAMP + 1)),
            "/moved": Answer(status=307, headers={"Location": "/other"}),
            "/none": Answer(status=500),
        }
        with served(dict(pages)) as where:
            for page in pages:
                with pytest.raises(InvalidInputError):
                    fetch_timestamp(out, url=where + page, roots=tsa.roots)
                assert not (out / TIMESTAMP_NAME).exists(), page


class TestBesideRevokedKeys:
    @pytest.fixture
    def stamped(self, out: Path, tsa: Authority) -> Path:
        return put(out, tsa.stamp(certificate(out), at=MADE, accuracy=10))

    def revoked(self, listed: Path, signer: KeyPair, office: KeyPair, since: datetime | None) -> Path:
        given = None if since is None else since.isoformat()
        revoke(listed, key=office.private, public_key=signer.public, reason="key_compromised", since=given)
        return listed

    @pytest.mark.parametrize(
        ("later", "passes"),
        [
            (timedelta(days=1), True),
            (timedelta(seconds=11), True),
            (timedelta(seconds=10), False),
            (timedelta(0), False),
        ],
    )
    def test_what_existed_before_a_key_was_stolen_stays_valid(
        self,
        later: timedelta,
        passes: bool,
        stamped: Path,
        signer: KeyPair,
        office: KeyPair,
        tsa: Authority,
        tmp_path: Path,
    ) -> None:
        listed = self.revoked(tmp_path / "revoked.json", signer, office, MADE + later)
        result = verify(
            stamped, key=signer.public, revocations=listed, revocation_key=office.public, timestamp_roots=tsa.roots
        )
        assert result.verified is passes, result.problems
        if not passes:
            assert "its timestamp is not older" in result.problems[0]

    def test_a_timestamp_that_is_not_checked_saves_nothing(
        self, stamped: Path, signer: KeyPair, office: KeyPair, tmp_path: Path
    ) -> None:
        listed = self.revoked(tmp_path / "revoked.json", signer, office, MADE + timedelta(days=1))
        result = verify(stamped, key=signer.public, revocations=listed, revocation_key=office.public)
        assert "no checked timestamp shows that it is older" in result.problems[0]

    def test_a_timestamp_of_somebody_elses_root_saves_nothing(
        self, stamped: Path, signer: KeyPair, office: KeyPair, other: Authority, tmp_path: Path
    ) -> None:
        listed = self.revoked(tmp_path / "revoked.json", signer, office, MADE + timedelta(days=1))
        result = verify(
            stamped, key=signer.public, revocations=listed, revocation_key=office.public, timestamp_roots=other.roots
        )
        assert {problem.partition(":")[0] for problem in result.problems} == {"timestamp", "revocations"}

    def test_a_key_revoked_for_good_takes_everything_with_it(
        self, stamped: Path, signer: KeyPair, office: KeyPair, tsa: Authority, tmp_path: Path
    ) -> None:
        listed = self.revoked(tmp_path / "revoked.json", signer, office, None)
        result = verify(
            stamped, key=signer.public, revocations=listed, revocation_key=office.public, timestamp_roots=tsa.roots
        )
        assert "its key is revoked" in result.problems[0]

    def test_a_certificate_that_is_revoked_itself_is_saved_by_no_timestamp(
        self, stamped: Path, signer: KeyPair, tsa: Authority, tmp_path: Path
    ) -> None:
        listed = tmp_path / "revoked.json"
        revoke(listed, stamped, key=signer.private, reason="epsilon_too_small")
        result = verify(stamped, key=signer.public, revocations=listed, timestamp_roots=tsa.roots)
        assert "epsilon_too_small" in result.problems[0]


class TestCommands:
    def test_the_commands_request_attach_and_verify(
        self, out: Path, signer: KeyPair, tsa: Authority, tmp_path: Path
    ) -> None:
        asked, answer, listed = tmp_path / "asked.tsq", tmp_path / "answer.tsr", tmp_path / "revoked.json"
        assert run("timestamp", "request", out, "-o", asked).exit_code == 0
        answer.write_bytes(tsa.answer(asked.read_bytes()))
        made = run("timestamp", "attach", out, answer, "--request", asked, "--roots", tsa.roots, "--json")
        assert json.loads(made.stdout)["authority"] == "CN=An authority"
        renew(listed, key=signer.private)
        options = ["--key", signer.public, "--revocations", listed, "--timestamp-roots", tsa.roots]
        verified = run("verify", out, *options)
        assert verified.exit_code == 0, verified.stdout
        assert "✓ timestamp" in verified.stdout

    def test_fetching_prints_what_is_proved(self, out: Path, tsa: Authority) -> None:
        with served({"/tsa": lambda asked: Answer(tsa.answer(asked))}) as where:
            result = run("timestamp", "fetch", out, "--url", f"{where}/tsa", "--roots", tsa.roots)
        assert (result.exit_code, "says CN=An authority" in result.stdout) == (0, True)

    def test_a_token_that_does_not_check_exits_with_2_and_one_line(
        self, out: Path, tsa: Authority, tmp_path: Path
    ) -> None:
        (tmp_path / "answer.tsr").write_bytes(b"nothing")
        result = run("timestamp", "attach", out, tmp_path / "answer.tsr", "--roots", tsa.roots)
        assert result.exit_code == 2
        assert len(result.stderr.splitlines()) == 1

    def test_without_the_extra_nothing_passes(self, out: Path, tsa: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
        put(out, tsa.stamp(certificate(out), at=MADE))
        monkeypatch.setitem(__import__("sys").modules, "rfc3161_client", None)
        assert verify(out).verified
        with pytest.raises(MissingExtraError, match="timestamps"):
            verify(out, timestamp_roots=tsa.roots)


def run(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_openssl_is_there() -> None:
    assert shutil.which("openssl"), "these tests have openssl sign tokens"
