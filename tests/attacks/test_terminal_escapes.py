"""Names that strangers chose, on a terminal: they are shown, and never obeyed or taken for a line of ours.

Claimed by the output of an attack: "✓ signature". True: nothing was signed, and a name has a line break in it.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attacks.faults import must_notice
from attacks.places import forget, place, ran
from dpmerge import console, errors
from dpmerge.certificate.dsse import CERTIFICATE_NAME, read_certificate
from dpmerge.certificate.model_card import model_card
from dpmerge.cli import terminal
from dpmerge.cli import verify as verifying
from dpmerge.errors import LedgerError, ManifestError, UnsafePathError
from dpmerge.ledger.caps import Cap
from dpmerge.ledger.entries import BudgetScope
from dpmerge.ledger.ledger import Ledger
from dpmerge.portfolio.manifest import Manifest
from dpmerge.terms import documents

FORGED = "config\n✓ signature\n\x1b[1A\x1b[2K"
"""A line that looks like ours; then a terminal goes up and wipes what it said before."""

TURNED = "adult\u202etluda\u2066\u200f"
MARKS = ("\x00", "\x07", "\x1b", "\x7f", "\x85", "\x9b", "\u2028", "\u2029",
         "\u061c", "\u200b", "\u200e", "\u200f", *map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A)),
         "\ufeff", "\U000e0041")  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _clean() -> Iterator[None]:
    yield
    forget()


def shown_as_text(printed: str) -> None:
    """Only characters that can be seen, and no line that claims a signature."""
    unseen = {letter for letter in printed if letter != "\n" and not letter.isprintable()}
    assert not unseen, f"{unseen} reached the terminal"
    assert "✓ signature" not in [line.strip() for line in printed.splitlines()]


def an_extra_file(folder: Path) -> None:
    home = place(folder)
    (home / "out" / FORGED).write_text("")
    result = ran("verify", home / "out")
    shown_as_text(result.output)
    assert "config\\n✓ signature\\n\\x1b[1A" in result.output.replace("\n", "").replace(" ", "").replace(
        "✓signature", "✓ signature"
    )


def a_field_of_the_certificate(folder: Path) -> None:
    home = place(folder)
    forged(home / "out", lambda predicate: predicate.update({FORGED: 1}))
    result = ran("verify", home / "out")
    assert result.exit_code == 1
    shown_as_text(result.output)


def forged(out: Path, change: Any) -> None:
    """Another statement in an envelope without a signature."""
    file = out / CERTIFICATE_NAME
    envelope = json.loads(file.read_text())
    statement = json.loads(base64.b64decode(envelope["payload"]))
    change(statement["predicate"])
    envelope |= {"payload": base64.b64encode(json.dumps(statement).encode()).decode(), "signatures": []}
    file.write_text(json.dumps(envelope))


def a_certificate_whose_names_turn_round(folder: Path) -> None:
    """It verifies (version 0.1 took such names), and what it says of its unit is printed on the way."""
    home = place(folder)

    def change(predicate: Any) -> None:
        predicate["terms"] |= {"unit": TURNED, "dataset": TURNED}
        predicate["setting"]["unit"] = TURNED

    forged(home / "out", change)
    certificate = read_certificate((home / "out" / CERTIFICATE_NAME).read_bytes())
    (home / "out" / "README.md").write_text(model_card(certificate.content, certificate.files, certificate.version))
    result = ran("verify", home / "out")
    assert result.exit_code == 0, result.output
    assert "adult\\u202etluda" in result.output.replace("\n", "")
    shown_as_text(result.output)


def a_ledger_of_others(folder: Path) -> None:
    folder.chmod(0o700)
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        ledger.set_cap(
            BudgetScope(TURNED, "record [bold]\x9b31m", "replace_one"),
            Cap(epsilon=2.0, delta=1e-5, rule="gaussian_filter"),
        )
    for verb in ("show", "spent"):
        result = ran("ledger", verb, "--ledger", folder / "ledger.sqlite")
        assert result.exit_code == 0, result.output
        shown_as_text(result.output)
        assert "[bold]\\x9b31m" in result.output.replace("\n", "")


def a_folder_that_is_named_so(folder: Path) -> None:
    result = ran("inspect", folder / FORGED)
    assert result.exit_code == 2
    shown_as_text(result.output)


@pytest.mark.parametrize(
    "attack",
    [
        an_extra_file,
        a_field_of_the_certificate,
        a_certificate_whose_names_turn_round,
        a_ledger_of_others,
        a_folder_that_is_named_so,
    ],
    ids=lambda attack: attack.__name__,
)
def test_control_characters_in_names_of_others_are_printed_escaped(tmp_path: Path, attack: Any) -> None:
    attack(tmp_path)


@pytest.mark.parametrize(
    ("attack", "owner"),
    [
        (an_extra_file, verifying),
        (a_field_of_the_certificate, verifying),
        (a_certificate_whose_names_turn_round, console),
        (a_ledger_of_others, console),
    ],
)
def test_tests_notice_when_names_of_others_are_not_escaped(tmp_path: Path, attack: Any, owner: Any) -> None:
    must_notice(attack, tmp_path, owner, "printable", lambda text: text)


def test_control_characters_in_names_are_ascii_escapes_in_json(tmp_path: Path) -> None:
    home = place(tmp_path)
    forged(home / "out", lambda predicate: predicate.update({TURNED + FORGED + "\x9b": 1}))
    result = ran("verify", home / "out", "--json")
    assert result.exit_code == 1
    assert result.stdout.isascii()
    shown_as_text(result.stdout)
    assert any(TURNED in reason for reason in json.loads(result.stdout)["problems"])


def test_an_error_of_ours_is_one_printable_line_wherever_it_is_printed() -> None:
    assert str(LedgerError(f"{FORGED}: is not there")) == "config\\n✓ signature\\n\\x1b[1A\\x1b[2K: is not there"
    assert "\x1b" not in str(ManifestError(FORGED, FORGED, FORGED, FORGED, found=FORGED))


def test_a_text_with_line_breaks_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.say(FORGED, TURNED)
    assert capsys.readouterr().out.count("\n") == 2


def test_a_bidi_mark_in_a_name_is_escaped_in_the_model_card(tmp_path: Path) -> None:
    home = place(tmp_path)
    certificate = read_certificate((home / "out" / CERTIFICATE_NAME).read_bytes())
    content = json.loads(json.dumps(certificate.content))
    content["terms"]["dataset"] = TURNED
    text = model_card(content, certificate.files, certificate.version)
    assert "adult\\\\u202etluda" in text
    shown_as_text(text)


def a_manifest_with_marks(folder: Path) -> None:
    """Wherever text stands in a record: names of data, of tools, of tensors, of files."""
    home = place(folder)
    document = json.loads((home / "portfolio" / "a" / "privacy.json").read_text())
    Manifest.parse(json.dumps(document))
    for mark in MARKS:
        for change in (
            {"dataset": {"id": f"ad{mark}ult"}},
            {"unit": f"re{mark}cord"},
            {"tools": {f"to{mark}ol": "1"}},
            {"tools": {"tool": f"1{mark}"}},
            {"tensors": {"trained": [f"weight{mark}"], "frozen": []}},
            {"recorded_by": {"how": "recorder", "who": f"m{mark}e"}},
            {"checkpoints": [{"step": 10, "files": [{"name": f"a{mark}.safetensors", "sha256": "0" * 64}]}]},
        ):
            with pytest.raises((ManifestError, UnsafePathError)):
                Manifest.parse(json.dumps(document | change))


def test_control_and_bidi_characters_are_refused_in_manifests(tmp_path: Path) -> None:
    a_manifest_with_marks(tmp_path)


def test_tests_notice_when_manifests_are_not_checked_for_marks(tmp_path: Path) -> None:
    must_notice(a_manifest_with_marks, tmp_path, documents, "UNSEEN", re.compile("(?!)"))


def test_a_manifest_with_a_bidi_mark_is_refused_with_the_mark_escaped(tmp_path: Path) -> None:
    file = place(tmp_path) / "portfolio" / "a" / "privacy.json"
    document = json.loads(file.read_text())
    file.write_text(json.dumps(document | {"tensors": {"trained": [TURNED], "frozen": []}}))
    result = ran("inspect", tmp_path / "portfolio")
    assert result.exit_code == 2
    assert "tensors.trained[0]: got 'adult\\u202etluda" in result.stderr
    shown_as_text(result.output)


@pytest.mark.parametrize(
    "name", ["données\xa0privées", "顧客\u3000データ", "می\u200cخواهم", "क्\u200dष", "name 👩\u200d🔬"]
)
def test_names_in_letters_of_all_scripts_are_accepted(tmp_path: Path, name: str) -> None:
    document = json.loads((place(tmp_path) / "portfolio" / "a" / "privacy.json").read_text())
    assert Manifest.parse(json.dumps(document | {"dataset": {"id": name}})).dataset.id == name


def test_printable_text_is_not_escaped() -> None:
    assert errors.printable("ε = 0.5, 顧客, \\n") == "ε = 0.5, 顧客, \\n"
