"""Revocations: what is on a list fails, whatever was done to hide it; a list that does not hold is never a pass."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from certificate.conftest import KeyPair, key_pair
from certificate.loopback import Answer, served
from certificate.outputs import certified
from dpmerge.certificate.checks import Check, Verification
from dpmerge.certificate.dsse import CERTIFICATE_NAME, PAYLOAD_TYPE, read_certificate
from dpmerge.certificate.keys import read_private
from dpmerge.certificate.revocation_list import (
    LIST_PAYLOAD_TYPE,
    LIST_TYPE,
    MOST_ENTRIES,
    Revocations,
    list_bytes,
    payload_digest,
    read_list,
)
from dpmerge.cli import app
from dpmerge.errors import CannotWriteError, InvalidInputError
from dpmerge.planning.plan import Plan
from dpmerge.releasing.json_schemas import json_schema
from dpmerge.releasing.revoking import read_revocations, renew, revoke
from dpmerge.releasing.verifying import verify

VERSION_0_1 = Path(__file__).parents[1] / "data" / "version_0_1"
UNKNOWN = "not known whether it is revoked: "


def found(result: Verification) -> Check:
    [check] = [check for check in result.checks if check.name == "revocations"]
    return check


def why(result: Verification) -> str:
    """Why it failed, for revocations and nothing else."""
    check = found(result)
    assert check.passed is False
    assert {problem.partition(":")[0] for problem in result.problems} == {"revocations"}
    return " / ".join(check.found)


def digest(out: Path) -> str:
    return payload_digest(read_certificate((out / CERTIFICATE_NAME).read_bytes()))


def content(by: KeyPair, /, **fields: Any) -> dict[str, Any]:
    """What a list says, today and with nothing on it, unless a test says otherwise."""
    now = datetime.now(UTC)
    return {
        "_type": LIST_TYPE,
        "issuer": by.id,
        "sequence": 1,
        "issued": stated(now - timedelta(hours=1)),
        "nextUpdate": stated(now + timedelta(days=1)),
        "entries": [],
        **fields,
    }


def stated(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def signed(file: Path, by: KeyPair, **fields: Any) -> Path:
    """A list that a test writes by itself."""
    made = Revocations.model_validate(content(by, **fields), by_alias=True, by_name=False)
    file.write_bytes(list_bytes(made, read_private(by.private)))
    return file


def entry(**fields: Any) -> dict[str, Any]:
    return {"reason": "withdrawn", "revokedAt": "2025-03-01T00:00:00Z", **fields}


class TestVerifying:
    def test_what_is_not_on_the_list_is_verified(self, out: Path, signer: KeyPair, tmp_path: Path) -> None:
        listed = signed(tmp_path / "revoked.json", signer, entries=[entry(certificate="0" * 64)])
        result = verify(out, key=signer.public, revocations=listed)
        assert result.verified, result.problems
        assert found(result).passed is True

    def test_a_revoked_certificate_fails_with_its_reason(self, out: Path, signer: KeyPair, tmp_path: Path) -> None:
        listed = tmp_path / "revoked.json"
        revoke(listed, out, key=signer.private, reason="epsilon_too_small", note="a step was not counted")
        said = why(verify(out, key=signer.public, revocations=listed))
        assert "epsilon_too_small (a step was not counted)" in said

    def test_a_certificate_signed_again_with_another_trusted_key_stays_revoked(
        self, tmp_path: Path, averaged: Plan, signer: KeyPair, office: KeyPair
    ) -> None:
        one, other = (
            certified(tmp_path / name, averaged, key=key.private).path
            for name, key in (("one", signer), ("other", office))
        )
        listed = tmp_path / "revoked.json"
        revoke(listed, one, key=signer.private, reason="withdrawn")
        keys = [signer.public, office.public]
        assert "withdrawn" in why(verify(other, key=keys, revocations=listed))

    @pytest.mark.parametrize("how", ["white space", "another signature", "order of fields"])
    def test_an_envelope_written_otherwise_stays_revoked(
        self, how: str, out: Path, signer: KeyPair, tmp_path: Path
    ) -> None:
        listed = tmp_path / "revoked.json"
        revoke(listed, out, key=signer.private, reason="withdrawn")
        file = out / CERTIFICATE_NAME
        envelope = json.loads(file.read_text())
        if how == "another signature":
            envelope["signatures"].append({"keyid": "0" * 64, "sig": "AAAA"})
        if how == "order of fields":
            envelope = dict(reversed(envelope.items()))
        before = file.read_bytes()
        file.write_text(json.dumps(envelope, indent=3 if how == "white space" else None))
        assert file.read_bytes() != before
        assert "withdrawn" in why(verify(out, key=signer.public, revocations=listed))

    def test_a_certificate_that_nobody_signed_cannot_pass_as_not_revoked(
        self, tmp_path: Path, averaged: Plan, office: KeyPair
    ) -> None:
        unsigned = certified(tmp_path / "unsigned", averaged).path
        listed = signed(tmp_path / "revoked.json", office)
        assert verify(unsigned).verified
        said = why(verify(unsigned, revocations=listed, revocation_key=office.public))
        assert "no key that was given has signed it" in said

    def test_an_unsigned_certificate_on_the_list_fails_with_the_reason(
        self, tmp_path: Path, averaged: Plan, office: KeyPair
    ) -> None:
        unsigned = certified(tmp_path / "unsigned", averaged).path
        listed = signed(tmp_path / "revoked.json", office, entries=[entry(certificate=digest(unsigned))])
        assert "revoked by list 1" in why(verify(unsigned, revocations=listed, revocation_key=office.public))

    def test_certificates_of_version_0_1_can_be_revoked(self, tmp_path: Path, office: KeyPair) -> None:
        old = VERSION_0_1 / "releases" / "signed"
        listed = signed(tmp_path / "revoked.json", office)
        given = {"key": VERSION_0_1 / "signing.pem.pub", "revocations": listed, "revocation_key": office.public}
        assert verify(old, **given).verified
        revoke(listed, old, key=office.private, reason="superseded")
        assert "superseded" in why(verify(old, **given))


class TestRevokedKeys:
    def test_everything_a_revoked_key_signed_fails(
        self, out: Path, signer: KeyPair, office: KeyPair, tmp_path: Path
    ) -> None:
        listed = tmp_path / "revoked.json"
        revoke(listed, key=office.private, public_key=signer.public, reason="withdrawn")
        said = why(verify(out, key=signer.public, revocations=listed, revocation_key=office.public))
        assert "its key is revoked" in said

    def test_a_key_revoked_since_a_time_takes_with_it_what_has_no_timestamp(
        self, out: Path, signer: KeyPair, office: KeyPair, tmp_path: Path
    ) -> None:
        """Whatever time the certificate states: who has the key can write any."""
        listed = tmp_path / "revoked.json"
        after = stated(datetime.now(UTC))
        revoke(listed, key=office.private, public_key=signer.public, reason="key_compromised", since=after)
        said = why(verify(out, key=signer.public, revocations=listed, revocation_key=office.public))
        assert "no checked timestamp shows that it is older" in said

    def test_a_certificate_that_another_trusted_key_has_signed_too_stays(
        self, out: Path, averaged: Plan, signer: KeyPair, office: KeyPair, tmp_path: Path
    ) -> None:
        again = certified(tmp_path / "again", averaged, key=office.private).path
        one, other = (json.loads((each / CERTIFICATE_NAME).read_text()) for each in (out, again))
        assert one["payload"] == other["payload"]
        one["signatures"] += other["signatures"]
        (out / CERTIFICATE_NAME).write_text(json.dumps(one))
        listed = signed(tmp_path / "revoked.json", office, entries=[entry(key=signer.id)])
        both = [signer.public, office.public]
        assert verify(out, key=both, revocations=listed).verified
        assert "its key is revoked" in why(
            verify(out, key=signer.public, revocations=listed, revocation_key=office.public)
        )

    def test_a_list_may_revoke_the_key_it_is_signed_with(self, out: Path, signer: KeyPair, tmp_path: Path) -> None:
        listed = signed(tmp_path / "revoked.json", signer, entries=[entry(key=signer.id)])
        assert "its key is revoked" in why(verify(out, key=signer.public, revocations=listed))

    def test_a_key_of_another_name_in_the_certificate_changes_nothing(
        self, out: Path, signer: KeyPair, office: KeyPair, tmp_path: Path
    ) -> None:
        listed = signed(tmp_path / "revoked.json", office, entries=[entry(key=signer.id)])
        envelope = json.loads((out / CERTIFICATE_NAME).read_text())
        envelope["signatures"][0]["keyid"] = "0" * 64
        (out / CERTIFICATE_NAME).write_text(json.dumps(envelope))
        result = verify(out, key=signer.public, revocations=listed, revocation_key=office.public)
        assert not result.verified


def _unsigned(text: dict[str, Any]) -> None:
    text["signatures"] = []


def _changed(text: dict[str, Any]) -> None:
    payload = json.loads(base64.b64decode(text["payload"]))
    text["payload"] = base64.b64encode(json.dumps({**payload, "sequence": 99}).encode()).decode()


def _certificates_type(text: dict[str, Any]) -> None:
    text["payloadType"] = PAYLOAD_TYPE


class TestListsThatDoNotHold:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (_unsigned, "the list is not signed"),
            (_changed, "not signed with a key that may revoke, or was changed since"),
            (_certificates_type, "payloadType"),
        ],
    )
    def test_a_list_that_was_changed_fails(
        self, change: Callable[[dict[str, Any]], None], words: str, out: Path, signer: KeyPair, tmp_path: Path
    ) -> None:
        listed = signed(tmp_path / "revoked.json", signer)
        text = json.loads(listed.read_text())
        change(text)
        listed.write_text(json.dumps(text))
        assert words in why(verify(out, key=signer.public, revocations=listed))

    def test_a_list_signed_with_a_key_that_may_not_revoke_fails(
        self, out: Path, signer: KeyPair, office: KeyPair, tmp_path: Path
    ) -> None:
        listed = signed(tmp_path / "revoked.json", office)
        assert "not signed with a key that may revoke" in why(verify(out, key=signer.public, revocations=listed))
        mine = signed(tmp_path / "mine.json", signer)
        given = {"key": signer.public, "revocations": mine, "revocation_key": office.public}
        assert "not signed with a key that may revoke" in why(verify(out, **given)), "only those that are named"

    def test_a_list_that_names_another_issuer_than_its_signer_fails(
        self, out: Path, signer: KeyPair, office: KeyPair, tmp_path: Path
    ) -> None:
        listed = signed(tmp_path / "revoked.json", signer, issuer=office.id)
        both = [signer.public, office.public]
        assert "not signed with a key that may revoke" in why(verify(out, key=both, revocations=listed))

    def test_a_stale_list_fails_and_says_so(self, out: Path, signer: KeyPair, tmp_path: Path) -> None:
        listed = signed(
            tmp_path / "revoked.json", signer, issued="2025-01-01T00:00:00Z", nextUpdate="2025-01-31T00:00:00Z"
        )
        said = why(verify(out, key=signer.public, revocations=listed))
        assert said.startswith(UNKNOWN)
        assert "stale: a newer one was due by 2025-01-31T00:00:00Z" in said

    def test_a_stale_list_does_not_even_revoke_quietly(self, out: Path, signer: KeyPair, tmp_path: Path) -> None:
        times = {"issued": "2025-01-01T00:00:00Z", "nextUpdate": "2025-01-31T00:00:00Z"}
        listed = signed(tmp_path / "revoked.json", signer, entries=[entry(certificate=digest(out))], **times)
        assert "stale" in why(verify(out, key=signer.public, revocations=listed))

    def test_a_list_from_the_future_fails(self, out: Path, signer: KeyPair, tmp_path: Path) -> None:
        times = {"issued": "2099-01-01T00:00:00Z", "nextUpdate": "2099-01-31T00:00:00Z"}
        listed = signed(tmp_path / "revoked.json", signer, **times)
        assert "issued in the future" in why(verify(out, key=signer.public, revocations=listed))

    def test_a_list_signed_after_its_keys_time_fails(
        self, out: Path, signer: KeyPair, office: KeyPair, tmp_path: Path
    ) -> None:
        keys = tmp_path / "keys.yaml"
        keys.write_text(
            "schema: dpmerge/trusted-keys/v1\nkeys:\n"
            f"  - key: {signer.public}\n"
            f"  - {{key: {office.public}, name: the old office, not_after: 2025-01-01}}\n"
        )
        listed = signed(tmp_path / "revoked.json", office)
        said = why(verify(out, trusted_keys=keys, revocations=listed))
        assert "the list was issued" in said
        assert "when the old office was no longer trusted" in said

    def test_a_list_that_is_not_there_fails(self, out: Path, signer: KeyPair, tmp_path: Path) -> None:
        assert why(verify(out, key=signer.public, revocations=tmp_path / "none.json")).startswith(UNKNOWN)

    def test_a_certificate_in_the_place_of_a_list_fails(self, out: Path, signer: KeyPair) -> None:
        said = why(verify(out, key=signer.public, revocations=out / CERTIFICATE_NAME))
        assert said.startswith(UNKNOWN)

    def test_a_list_without_any_key_is_refused(self, out: Path, signer: KeyPair, tmp_path: Path) -> None:
        listed = signed(tmp_path / "revoked.json", signer)
        with pytest.raises(InvalidInputError, match="no key to check the list with"):
            verify(out, revocations=listed)

    def test_a_key_without_a_list_is_refused(self, out: Path, signer: KeyPair) -> None:
        with pytest.raises(InvalidInputError, match="no list that it could have signed"):
            verify(out, key=signer.public, revocation_key=signer.public)


class TestForm:
    """Of what is inside the envelope; each is signed by whoever writes nonsense."""

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ('"sequence": 1, "sequence": 2', "the same field twice"),
            ('"sequence": 1, "more": 2', "an unknown field"),
            ('"sequence": NaN', "sequence"),
            ('"sequence": Infinity', "sequence"),
            ('"sequence": 0', "sequence"),
            ('"sequence": true', "sequence"),
            ('"sequence": 1.0', "sequence"),
            ('"sequence": 9007199254740993', "sequence"),
            ('"sequence": "1"', "sequence"),
        ],
    )
    def test_a_sequence_that_is_none_is_refused(self, text: str, words: str, signer: KeyPair) -> None:
        plain = json.dumps(content(signer))
        assert read_list(enveloped(plain)).content.sequence == 1
        with pytest.raises(InvalidInputError, match=words):
            read_list(enveloped(plain.replace('"sequence": 1', text)))

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"issued": "2025-13-01T00:00:00Z"}, "issued"),
            ({"issued": "2025-01-01"}, "issued"),
            ({"issued": "2025-01-01T00:00:00+02:00"}, "issued"),
            ({"nextUpdate": "2020-01-01T00:00:00Z"}, "a time after issued"),
            ({"issuer": "me"}, "issuer"),
            ({"_type": "urn:dpmerge:revocations:v2"}, "_type"),
            ({"entries": None}, "entries"),
            ({"entries": [entry()]}, "both or neither"),
            ({"entries": [entry(certificate="0" * 64, key="0" * 64)]}, "both or neither"),
            ({"entries": [entry(certificate="0" * 63)]}, "entries.*certificate"),
            ({"entries": [entry(certificate="A" * 64)]}, "entries.*certificate"),
            ({"entries": [entry(certificate="0" * 64, since="2025-01-01T00:00:00Z")]}, "since"),
            ({"entries": [entry(key="0" * 64, since="2025-02-30T00:00:00Z")]}, "since"),
            ({"entries": [entry(key="0" * 64, reason="bored")]}, "reason"),
            ({"entries": [entry(key="0" * 64, note="two\nlines")]}, "note"),
            ({"entries": [entry(key="0" * 64, note="x" * 501)]}, "note"),
            ({"entries": [{"key": "0" * 64, "reason": "withdrawn"}]}, "revokedAt"),
            ({"entries": [entry(key="0" * 64)] * (MOST_ENTRIES + 1)}, "entries"),
        ],
    )
    def test_content_that_is_not_a_lists_is_refused(self, change: dict[str, Any], words: str, signer: KeyPair) -> None:
        with pytest.raises(InvalidInputError, match=words):
            read_list(enveloped(json.dumps({**content(signer), **change})))

    def test_a_file_beyond_the_limit_is_refused(self) -> None:
        with pytest.raises(InvalidInputError, match="at most 10,000,000 bytes"):
            read_list(b" " * 10_000_001)

    def test_the_longest_list_can_be_read(self, signer: KeyPair, tmp_path: Path) -> None:
        entries = [entry(certificate=f"{each:064x}", note="x" * 100) for each in range(MOST_ENTRIES)]
        listed = signed(tmp_path / "revoked.json", signer, entries=entries)
        assert len(read_list(listed.read_bytes()).content.entries) == MOST_ENTRIES


def enveloped(payload: str) -> bytes:
    text = base64.b64encode(payload.encode()).decode()
    return json.dumps({"payloadType": LIST_PAYLOAD_TYPE, "payload": text, "signatures": []}).encode()


class TestMaking:
    def test_a_list_grows_and_loses_nothing(self, out: Path, signer: KeyPair, office: KeyPair, tmp_path: Path) -> None:
        listed = tmp_path / "revoked.json"
        first = renew(listed, key=signer.private)
        second = revoke(listed, out, key=signer.private, reason="withdrawn")
        third = revoke(listed, key=signer.private, public_key=office.public, reason="key_compromised")
        fourth = renew(listed, key=signer.private, days=7)
        assert [each.content.sequence for each in (first, second, third, fourth)] == [1, 2, 3, 4]
        assert fourth.content.entries == third.content.entries
        assert third.content.entries[:1] == second.content.entries
        assert read_list(listed.read_bytes()).content == fourth.content
        assert [path.name for path in tmp_path.iterdir() if "revoked" in path.name] == ["revoked.json"]

    def test_lists_made_at_once_lose_nothing(self, signer: KeyPair, tmp_path: Path) -> None:
        listed = tmp_path / "revoked.json"
        keys = [key_pair(tmp_path, f"key-{number}") for number in range(6)]

        def add(key: KeyPair) -> None:
            revoke(listed, key=signer.private, public_key=key.public, reason="withdrawn")

        threads = [threading.Thread(target=add, args=(key,)) for key in keys]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        made = read_list(listed.read_bytes()).content
        assert made.sequence == 6
        assert {each.key for each in made.entries} == {key.id for key in keys}

    def test_what_is_revoked_is_not_entered_twice(self, out: Path, signer: KeyPair, tmp_path: Path) -> None:
        listed = tmp_path / "revoked.json"
        revoke(listed, out, key=signer.private, reason="withdrawn")
        before = listed.read_bytes()
        with pytest.raises(InvalidInputError, match="revoked already"):
            revoke(listed, out, key=signer.private, reason="superseded")
        assert listed.read_bytes() == before

    def test_a_key_may_turn_out_to_have_been_stolen_earlier(
        self, signer: KeyPair, office: KeyPair, tmp_path: Path
    ) -> None:
        listed = tmp_path / "revoked.json"
        given: dict[str, Any] = {"key": office.private, "public_key": signer.public, "reason": "key_compromised"}
        revoke(listed, **given, since="2025-03-01")
        with pytest.raises(InvalidInputError, match="revoked already"):
            revoke(listed, **given, since="2025-04-01")
        revoke(listed, **given, since="2025-02-01")
        last = revoke(listed, **given)
        assert [each.since for each in last.content.entries] == ["2025-03-01T00:00:00Z", "2025-02-01T00:00:00Z", None]

    def test_a_list_that_others_have_signed_or_changed_is_not_extended(
        self, out: Path, signer: KeyPair, office: KeyPair, tmp_path: Path
    ) -> None:
        listed = signed(tmp_path / "revoked.json", office)
        before = listed.read_bytes()
        with pytest.raises(InvalidInputError, match="not signed with this key, or was changed"):
            revoke(listed, out, key=signer.private, reason="withdrawn")
        assert listed.read_bytes() == before

    def test_a_list_is_handed_over_to_another_key(
        self, out: Path, signer: KeyPair, office: KeyPair, tmp_path: Path
    ) -> None:
        listed = signed(tmp_path / "revoked.json", signer, entries=[entry(key="0" * 64)], sequence=41)
        made = renew(listed, key=office.private, previous_key=signer.public)
        assert (made.content.sequence, made.content.issuer, len(made.content.entries)) == (42, office.id, 1)
        assert verify(out, key=signer.public, revocations=listed, revocation_key=office.public).verified

    def test_a_file_that_is_no_list_is_left_as_it_is(self, out: Path, signer: KeyPair) -> None:
        before = (out / CERTIFICATE_NAME).read_bytes()
        with pytest.raises(InvalidInputError, match="is no list of revocations"):
            renew(out / CERTIFICATE_NAME, key=signer.private)
        assert (out / CERTIFICATE_NAME).read_bytes() == before

    def test_a_disk_that_is_full_leaves_the_list_as_it_was(
        self, out: Path, signer: KeyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        listed = tmp_path / "revoked.json"
        renew(listed, key=signer.private)
        before = listed.read_bytes()

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(CannotWriteError, match="No space left"):
            revoke(listed, out, key=signer.private, reason="withdrawn")
        assert listed.read_bytes() == before
        assert [path.name for path in tmp_path.iterdir() if "revoked" in path.name] == ["revoked.json"]

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ({}, "name a release or a public key"),
            ({"certificate": "merged", "public_key": "office"}, "name a release or a public key"),
            ({"certificate": "merged", "since": "2025-01-01"}, "since"),
            ({"public_key": "office", "since": "yesterday"}, "since"),
            ({"public_key": "office", "since": "2099-01-01"}, "that has passed"),
            ({"public_key": "office", "days": 0}, "days"),
            ({"public_key": "office", "days": 5000}, "days"),
            ({"public_key": "office", "reason": "bored"}, "reason"),
            ({"public_key": "office", "note": "a\x1b[31m"}, "note"),
            ({"certificate": "nowhere"}, "nowhere"),
        ],
    )
    def test_what_cannot_be_revoked_is_refused_and_nothing_is_written(
        self, given: dict[str, Any], words: str, out: Path, signer: KeyPair, office: KeyPair, tmp_path: Path
    ) -> None:
        places = {"merged": out, "office": office.public, "nowhere": tmp_path / "nowhere"}
        named = {name: places.get(value, value) for name, value in given.items()}
        with pytest.raises(InvalidInputError, match=words):
            revoke(tmp_path / "revoked.json", key=signer.private, **{"reason": "withdrawn", **named})
        assert not (tmp_path / "revoked.json").exists()

    def test_a_list_in_no_folder_is_refused(self, signer: KeyPair, tmp_path: Path) -> None:
        with pytest.raises(CannotWriteError, match="a folder that exists"):
            renew(tmp_path / "none" / "revoked.json", key=signer.private)

    def test_a_list_is_for_everybody_to_read(self, signer: KeyPair, tmp_path: Path) -> None:
        renew(tmp_path / "revoked.json", key=signer.private)
        assert (tmp_path / "revoked.json").stat().st_mode & 0o444 == 0o444

    def test_what_is_written_fits_the_published_schema(
        self, out: Path, signer: KeyPair, office: KeyPair, tmp_path: Path
    ) -> None:
        listed = tmp_path / "revoked.json"
        revoke(listed, out, key=signer.private, reason="withdrawn", note="why")
        given: dict[str, Any] = {"public_key": office.public, "reason": "key_compromised", "since": "2025-03-01"}
        document = revoke(listed, key=signer.private, **given).document()
        jsonschema.validate(document, json_schema("revocations"))
        document["entries"][0]["reason"] = "bored"
        with pytest.raises(jsonschema.ValidationError, match="bored"):
            jsonschema.validate(document, json_schema("revocations"))


class TestByAddress:
    def test_a_list_is_read_from_a_server(self, out: Path, signer: KeyPair, tmp_path: Path) -> None:
        good = signed(tmp_path / "good.json", signer).read_bytes()
        bad = signed(tmp_path / "bad.json", signer, entries=[entry(certificate=digest(out))]).read_bytes()
        with served({"/good": Answer(good), "/bad": Answer(bad)}) as where:
            assert verify(out, key=signer.public, revocations=f"{where}/good").verified
            assert "revoked by list 1" in why(verify(out, key=signer.public, revocations=f"{where}/bad"))

    def test_a_server_that_is_not_there_is_no_pass(self, out: Path, signer: KeyPair) -> None:
        with served({}) as where:
            pass
        said = why(verify(out, key=signer.public, revocations=f"{where}/list?token=s3cret"))
        assert said.startswith(UNKNOWN)
        assert "s3cret" not in said

    def test_an_answer_other_than_the_list_is_no_pass(self, out: Path, signer: KeyPair, tmp_path: Path) -> None:
        good = signed(tmp_path / "good.json", signer).read_bytes()
        pages = {
            "/gone": Answer(good, status=404),
            "/other": Answer(good, status=203),
            "/page": Answer(b"<html>"),
            "/short": Answer(good[:-20], length=len(good)),
            "/endless": Answer(b" " * 10_000_001),
            "/file": Answer(status=302, headers={"Location": f"file://{tmp_path}/good.json"}),
            "/circle": Answer(status=302, headers={"Location": "/circle"}),
        }
        with served(dict(pages)) as where:
            for page in pages:
                assert why(verify(out, key=signer.public, revocations=where + page)).startswith(UNKNOWN), page


class TestCommands:
    def test_the_commands_say_what_was_revoked_and_why(self, out: Path, signer: KeyPair, tmp_path: Path) -> None:
        listed = str(tmp_path / "revoked.json")
        keys = ["--key", str(signer.private)]
        assert run("revocations", "renew", listed, *keys).exit_code == 0
        options = ["--key", str(signer.public), "--revocations", listed]
        assert run("verify", str(out), *options).exit_code == 0
        added = run("revocations", "add", listed, str(out), *keys, "--reason", "epsilon_too_small", "--json")
        assert json.loads(added.stdout)["entries"][0]["certificate"] == digest(out)
        verified = run("verify", str(out), *options, "--json")
        assert verified.exit_code == 1
        assert "epsilon_too_small" in json.loads(verified.stdout)["problems"][0]
        assert json.loads(verified.stdout)["guarantee"] is None
        shown = run("revocations", "show", listed, "--key", str(signer.public))
        assert (shown.exit_code, digest(out) in shown.stdout) == (0, True)

    def test_a_list_that_does_not_count_is_shown_with_why(
        self, signer: KeyPair, office: KeyPair, tmp_path: Path
    ) -> None:
        times = {"issued": "2025-01-01T00:00:00Z", "nextUpdate": "2025-01-31T00:00:00Z"}
        stale = signed(tmp_path / "stale.json", signer, **times)
        shown = run("revocations", "show", str(stale))
        assert (shown.exit_code, "stale" in shown.stdout) == (1, True)
        assert read_revocations(signed(tmp_path / "good.json", signer), key=signer.public).problems == ()
        [problem] = read_revocations(tmp_path / "good.json", key=office.public).problems
        assert "not signed with a key that may revoke" in problem

    def test_a_file_that_is_no_list_cannot_be_shown(self, out: Path) -> None:
        result = run("revocations", "show", str(out / CERTIFICATE_NAME))
        assert result.exit_code == 2
        assert len(result.stderr.splitlines()) == 1


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))
