"""Keys, salts and ledgers that the wrong people can use; keys with passphrases; keys that are trusted for a time.

Claimed: "signed", "committed", "charged". True, if others read the key or the salt, or write the ledger: by anybody.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

import dpmerge as dpm
from attacks.faults import must_notice
from attacks.places import WEIGHTS, charges, forget, place, ran
from dpmerge import permissions
from dpmerge.certificate import keys, trust
from dpmerge.certificate.dsse import CERTIFICATE_NAME, read_certificate
from dpmerge.cli import options
from dpmerge.errors import InvalidInputError, LedgerError, ManifestError
from dpmerge.ledger import urls as ledger_places
from dpmerge.ledger.ledger import Ledger
from dpmerge.releasing import commitment_salt
from dpmerge.releasing.commitment_salt import SALT_NAME
from dpmerge.releasing.ledger_location import LEDGER_NAME

PASSPHRASE = "correct horse battery staple"  # noqa: S105


@pytest.fixture(scope="module", autouse=True)
def _clean() -> Iterator[None]:
    yield
    forget()


@pytest.fixture(autouse=True)
def _no_passphrase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DPMERGE_KEY_PASSPHRASE", raising=False)


def refused(home: Path, *merge: object, words: str, code: int = 2) -> None:
    """By `merge`, which charges nothing, until it is told that this is known."""
    before = charges(home / "portfolio")
    asked = ("merge", home / "portfolio", *WEIGHTS, "-o", home / "new", *merge)
    result = ran(*asked)
    assert result.exit_code == code, result.output
    assert words in result.stderr
    assert "chmod" in result.stderr
    assert not (home / "new").exists()
    assert charges(home / "portfolio") == before
    result = ran(*asked, "--insecure-permissions")
    assert result.exit_code == 0, result.output


def a_key_that_others_read(folder: Path) -> None:
    home = place(folder)
    (home / "key").chmod(0o604)
    refused(home, "--key", home / "key", words="which others may read (mode 0604")


def a_key_that_the_group_reads(folder: Path) -> None:
    home = place(folder)
    (home / "key").chmod(0o640)
    refused(home, "--key", home / "key", words="which its group may read (mode 0640")


def a_salt_that_others_read(folder: Path) -> None:
    home = place(folder)
    salt = home / "portfolio" / SALT_NAME
    salt.chmod(0o644)
    result = ran("verify", home / "out", "--portfolio", home / "portfolio", "--json")
    assert result.exit_code == 1
    assert any("salt" in problem and "mode 0644" in problem for problem in json.loads(result.stdout)["problems"])
    told = ran("verify", home / "out", "--portfolio", home / "portfolio", "--insecure-permissions")
    assert told.exit_code == 0, told.output
    assert "which others may read (mode 0644" in " ".join(told.stdout.split())
    refused(home, words="which others may read (mode 0644")


def a_ledger_that_others_write(folder: Path) -> None:
    home = place(folder)
    ledger = home / "portfolio" / LEDGER_NAME
    for verb in ("show", "spent", "verify", "export", "recover"):
        ledger.chmod(0o606)
        result = ran("ledger", verb, home / "portfolio")
        assert result.exit_code == 2, result.output
        assert "which others may write (mode 0606" in result.stderr
        assert ran("ledger", verb, home / "portfolio", "--insecure-permissions").exit_code == 0
        assert ledger.stat().st_mode & 0o777 == 0o606, "mended behind somebody's back"
    assert ran("verify", home / "out", "--portfolio", home / "portfolio").exit_code == 2
    refused_by_ledger(home)


def refused_by_ledger(home: Path) -> None:
    asked = ("merge", home / "portfolio", *WEIGHTS, "-o", home / "new")
    assert ran(*asked).exit_code == 2
    assert not (home / "new").exists()
    assert ran(*asked, "--insecure-permissions").exit_code == 0


def a_ledger_that_others_replace(folder: Path) -> None:
    home = place(folder)
    (home / "portfolio").chmod(0o757)
    result = ran("ledger", "show", home / "portfolio")
    assert result.exit_code == 2
    assert "which others may write (mode 0757" in result.stderr
    (home / "portfolio").chmod(0o1777)  # as /tmp: others can add files, and not replace ours
    assert ran("ledger", "show", home / "portfolio").exit_code == 0


OPEN = [
    a_key_that_others_read,
    a_key_that_the_group_reads,
    a_salt_that_others_read,
    a_ledger_that_others_write,
    a_ledger_that_others_replace,
]


@pytest.mark.parametrize("attack", OPEN, ids=lambda attack: attack.__name__)
def test_a_key_salt_or_ledger_open_to_others_is_refused(tmp_path: Path, attack: Callable[[Path], None]) -> None:
    attack(tmp_path)


@pytest.mark.parametrize(
    ("attack", "owner", "name"),
    [
        (a_key_that_others_read, keys, "too_open"),
        (a_key_that_the_group_reads, keys, "too_open"),
        (a_salt_that_others_read, commitment_salt, "too_open"),
        (a_ledger_that_others_write, ledger_places, "too_open"),
        (a_ledger_that_others_replace, ledger_places, "replaceable"),
    ],
)
def test_tests_notice_when_modes_are_not_looked_at(tmp_path: Path, attack: Any, owner: Any, name: str) -> None:
    must_notice(attack, tmp_path, owner, name, lambda *_: None)


def test_a_ledger_or_salt_open_to_others_is_refused_from_python(tmp_path: Path) -> None:
    home = place(tmp_path)
    (home / "portfolio" / LEDGER_NAME).chmod(0o602)
    with pytest.raises(LedgerError, match="which others may write"):
        Ledger.open(home / "portfolio" / LEDGER_NAME)
    Ledger.open(home / "portfolio" / LEDGER_NAME, insecure_permissions=True).close()
    (home / "portfolio" / LEDGER_NAME).chmod(0o600)
    (home / "portfolio" / SALT_NAME).chmod(0o644)
    found = dpm.verify(home / "out", portfolio=home / "portfolio")
    assert [problem.split(":")[0] for problem in found.problems] == ["permissions"]
    assert dpm.verify(home / "out", portfolio=home / "portfolio", insecure_permissions=True).verified


def test_a_team_may_share_a_portfolio_by_its_group(tmp_path: Path) -> None:
    home = place(tmp_path)
    (home / "portfolio" / SALT_NAME).chmod(0o640)
    (home / "portfolio").chmod(0o2770)
    assert permissions.too_open(home / "portfolio" / LEDGER_NAME, permissions.LEDGER) is None
    assert ran("verify", home / "out", "--portfolio", home / "portfolio").exit_code == 0
    assert ran("merge", home / "portfolio", *WEIGHTS, "-o", home / "new").exit_code == 0


class TestPassphrases:
    def test_a_key_with_a_passphrase_signs_only_with_that_passphrase(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        home = place(tmp_path)
        monkeypatch.setenv("DPMERGE_KEY_PASSPHRASE", PASSPHRASE)
        made = ran("keygen", "-o", home / "locked", "--passphrase")
        assert made.exit_code == 0, made.output
        assert PASSPHRASE not in made.output
        assert b"ENCRYPTED PRIVATE KEY" in (home / "locked").read_bytes()
        assert (home / "locked").stat().st_mode & 0o777 == 0o600
        asked = ("merge", home / "portfolio", *WEIGHTS, "-o", home / "new", "--key", home / "locked")
        before = charges(home / "portfolio")
        for wrong, words in (
            (None, "has a passphrase, and there is no terminal"),
            ("guessed", "the passphrase is not that of"),
        ):
            if wrong is None:
                monkeypatch.delenv("DPMERGE_KEY_PASSPHRASE")
            else:
                monkeypatch.setenv("DPMERGE_KEY_PASSPHRASE", wrong)
            result = ran(*asked)
            assert result.exit_code == 2
            assert words in result.stderr
            assert charges(home / "portfolio") == before
        monkeypatch.setenv("DPMERGE_KEY_PASSPHRASE", PASSPHRASE)
        assert ran(*asked).exit_code == 0
        assert ran("verify", home / "new", "--key", home / "locked.pub").exit_code == 0
        ledger = (home / "portfolio" / LEDGER_NAME).read_bytes()
        assert PASSPHRASE.encode() not in ledger

    def test_a_passphrase_is_asked_for_once_at_a_terminal(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[str] = []

        def prompt(words: str, **how: bool) -> str:
            assert how["hide_input"]
            asked.append(words)
            return PASSPHRASE

        monkeypatch.setattr(typer, "prompt", prompt)
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
        assert {options.asked_passphrase(tmp_path / "key") for _ in range(3)} == {PASSPHRASE}
        assert asked == [f"Passphrase of {tmp_path / 'key'}"]

    def test_recovery_asks_for_the_passphrase_again(self, tmp_path: Path) -> None:
        home = place(tmp_path)
        public, _ = keys.generate(home / "locked", PASSPHRASE)
        portfolio = dpm.Portfolio.load(home / "portfolio", contents=False)
        from dpmerge.planning.stated_weights import stated_weights
        from dpmerge.releasing.recover import recover

        def asking(path: Path) -> str:
            asked.append(path)
            if len(asked) > 1:
                raise InvalidInputError("key", str(path), "its passphrase", found="nobody at the terminal")
            return PASSPHRASE

        asked: list[Path] = []
        planned = stated_weights(portfolio, {"a@20": 1.0}, dpm.Guarantee(epsilon=50.0, delta=1e-5))
        with pytest.raises(InvalidInputError, match="nobody at the terminal") as raised:
            dpm.release(planned, out=home / "new", key=home / "locked", passphrase=asking)  # type: ignore[arg-type]
        assert "is charged" in raised.value.__notes__[0]
        with Ledger.open(home / "portfolio" / LEDGER_NAME) as ledger:
            (stuck,) = recover(ledger)
            assert stuck.pending
            assert "has a passphrase, and none was given" in str(stuck.problem)
            (done,) = recover(ledger, passphrase=PASSPHRASE)
            assert done.problem is None
        assert dpm.verify(home / "new", key=public).verified

    def test_a_key_without_a_passphrase_is_read_without_asking(self, tmp_path: Path) -> None:
        keys.generate(tmp_path / "key")
        keys.read_private(tmp_path / "key", passphrase=PASSPHRASE)

        def asking(path: Path) -> str:
            raise AssertionError("asked")

        keys.read_private(tmp_path / "key", passphrase=asking)

    def test_an_empty_passphrase_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInputError, match="at least one character"):
            keys.generate(tmp_path / "key", "")
        assert not (tmp_path / "key").exists()


def certificate_of(home: Path) -> dict[str, Any]:
    return dict(read_certificate((home / "out" / CERTIFICATE_NAME).read_bytes()).content)


def key_file(home: Path, *listed: dict[str, str]) -> Path:
    file = home / "trusted.yaml"
    file.write_text(json.dumps({"schema": "dpmerge/trusted-keys/v1", "keys": listed}))
    return file


def signature(home: Path, *asked: object) -> tuple[int, dict[str, Any]]:
    result = ran("verify", home / "out", *asked, "--json")
    (check,) = [each for each in json.loads(result.stdout)["checks"] if each["check"] == "signature"]
    return result.exit_code, check


def a_key_that_was_not_trusted_then(folder: Path) -> None:
    """A key that expired, or was not yet valid, when the release says it was charged."""
    home = place(folder)
    for period, words in (
        ({"not_after": "2020-01-01"}, "no longer trusted (until 2020-01-01"),
        ({"not_before": "2100-01-01"}, "before ours was trusted (from 2100-01-01"),
        ({"not_before": "2019-01-01", "not_after": "2020-01-01"}, "no longer trusted"),
    ):
        code, check = signature(home, "--trusted-keys", key_file(home, {"key": "key.pub", "name": "ours", **period}))
        assert code == 1, check
        assert words in check["found"][0]


class TestTrustedKeys:
    def test_a_key_not_trusted_at_the_time_of_the_charge_fails_verification(self, tmp_path: Path) -> None:
        a_key_that_was_not_trusted_then(tmp_path)

    def test_tests_notice_when_the_period_of_a_key_is_not_looked_at(self, tmp_path: Path) -> None:
        must_notice(a_key_that_was_not_trusted_then, tmp_path, trust.TrustedKey, "why_not", lambda *_: None)

    def test_a_key_is_trusted_at_the_second_it_begins_and_not_at_the_one_it_ends(self, tmp_path: Path) -> None:
        home = place(tmp_path)
        moment = certificate_of(home)["chargedAt"]
        around = {"not_before": moment, "not_after": "2999-12-31T23:59:59Z"}
        code, _ = signature(home, "--trusted-keys", key_file(home, {"key": "key.pub", **around}))
        assert code == 0
        code, check = signature(home, "--trusted-keys", key_file(home, {"key": "key.pub", "not_after": moment}))
        assert (code, check["passed"]) == (1, False)

    def test_one_fitting_key_of_several_is_enough_and_is_named(self, tmp_path: Path) -> None:
        home = place(tmp_path)
        other, _ = keys.generate(home / "other")
        third, _ = keys.generate(home / "third")
        assert signature(home, "--key", other, "--key", home / "key.pub")[0] == 0
        assert signature(home, "--key", other, "--key", third)[1]["found"] == [
            "not made with any of 2 keys, or changed since"
        ]
        listed = key_file(home, {"key": "other.pub", "name": "theirs"}, {"key": "key.pub", "name": "ours"})
        assert signature(home, "--trusted-keys", listed) == (
            0,
            {"check": "signature", "passed": True, "found": ["with ours"]},
        )
        assert dpm.verify(home / "out", key=[other, home / "key.pub"]).verified
        assert not dpm.verify(home / "out", key=[other, third]).verified
        assert dpm.verify(home / "out", trusted_keys=listed).verified

    def test_an_expired_key_beside_a_valid_one_does_not_fail_verification(self, tmp_path: Path) -> None:
        home = place(tmp_path)
        old = {"key": "key.pub", "name": "old", "not_after": "2020-01-01"}
        code, check = signature(home, "--trusted-keys", key_file(home, old, {"key": "key.pub", "name": "new"}))
        assert (code, check["found"]) == (0, ["with new"])

    def test_trusted_keys_in_yaml_may_have_dates_and_contain_the_key(self, tmp_path: Path) -> None:
        home = place(tmp_path)
        text = (home / "key.pub").read_text().replace("\n", "\n      ")
        (home / "keys.yaml").write_text(
            "schema: dpmerge/trusted-keys/v1\nkeys:\n  - name: ours\n    not_before: 2020-01-31\n"
            f"    not_after: 2999-01-01T00:00:00Z\n    key: |\n      {text}\n"
        )
        assert signature(home, "--trusted-keys", home / "keys.yaml")[0] == 0

    @pytest.mark.parametrize(
        ("listed", "words"),
        [
            ({"key": "key.pub", "not_before": "soon"}, "not_before: got 'soon'; accepted: a date"),
            ({"key": "key.pub", "not_before": "2026-01-02", "not_after": "2026-01-01"}, "a time after not_before"),
            ({"key": "key"}, "a private key"),
            ({"key": "nobody.pub"}, "No such file"),
            ({"key": "key.pub", "until": "2026-01-01"}, "an unknown field"),
        ],
    )
    def test_an_invalid_list_of_trusted_keys_is_refused(
        self, tmp_path: Path, listed: dict[str, str], words: str
    ) -> None:
        home = place(tmp_path)
        result = ran("verify", home / "out", "--trusted-keys", key_file(home, listed))
        assert result.exit_code == 2
        assert words in result.stderr

    def test_a_key_with_a_period_is_not_trusted_for_a_certificate_without_a_time(self, tmp_path: Path) -> None:
        home = place(tmp_path)
        (key,) = trust.read_trusted(key_file(home, {"key": "key.pub", "not_after": "2999-01-01"}))
        assert "does not say when" in str(key.why_not(None))
        assert "does not say when" in str(key.why_not("yesterday"))

    def test_an_empty_list_of_trusted_keys_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ManifestError):
            trust.read_trusted(key_file(tmp_path))
        with pytest.raises(InvalidInputError, match="at least one key"):
            dpm.verify(place(tmp_path) / "out", key=[])


def test_a_portfolio_from_version_control_is_told_how_to_mend_its_salt(tmp_path: Path) -> None:
    """Git keeps no modes: after a checkout the salt is readable by all."""
    home = place(tmp_path)
    salt = home / "portfolio" / SALT_NAME
    shutil.copyfile(salt, home / "copy")
    salt.unlink()
    shutil.copyfile(home / "copy", salt)
    salt.chmod(0o644)
    result = ran("merge", home / "portfolio", *WEIGHTS, "-o", home / "new")
    assert result.exit_code == 2
    assert "chmod 640 mends it" in result.stderr
    salt.chmod(0o640)
    assert ran("merge", home / "portfolio", *WEIGHTS, "-o", home / "new").exit_code == 0
