"""Checkpoints that are no longer what was recorded are noticed before anything is charged for them.

Claimed after such a release: ε is spent for ever, or the runs are locked. True: nothing was made, and never can be.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from soak.kills import LOOSE, drawn_from, loaded, noised

from attacks.faults import must_notice
from attacks.places import WEIGHTS, charges, forget, place, ran
from dpmerge.errors import CheckpointError, DigestMismatchError, DpmergeError
from dpmerge.ledger.caps import Cap
from dpmerge.ledger.entries import BudgetScope
from dpmerge.ledger.ledger import Ledger
from dpmerge.planning.plan import Plan
from dpmerge.planning.stated_weights import stated_weights
from dpmerge.releasing import preconditions
from dpmerge.releasing.ledger_location import LEDGER_NAME
from dpmerge.releasing.release import release

SCOPE = BudgetScope("soaked", "record", "replace_one")


@pytest.fixture(scope="module", autouse=True)
def _clean() -> Iterator[None]:
    yield
    forget()


def one_bit(file: Path) -> None:
    """Of the last value; its header, and so all that is read without reading everything, is as it was."""
    content = bytearray(file.read_bytes())
    content[-4] ^= 1
    file.write_bytes(content)


def final(home: Path) -> tuple[Plan, dict[str, Any]]:
    return noised(loaded(home)), {"final": True}


def capped(home: Path) -> tuple[Plan, dict[str, Any]]:
    with Ledger.open(home / LEDGER_NAME) as ledger:
        ledger.set_cap(SCOPE, Cap(epsilon=60.0, delta=1e-5, rule="gaussian_filter"))
    return stated_weights(loaded(home), {"b@20": 0.5, "c@20": 0.5}, LOOSE), {}


def drawn(home: Path) -> tuple[Plan, dict[str, Any]]:
    return drawn_from(loaded(home), [{"a@20": 0.5, "b@20": 0.5}, {"c@20": 1.0}]), {}


Asked = Callable[[Path], tuple[Plan, dict[str, Any]]]


def rot(asked: Asked) -> Callable[[Path], None]:
    def attack(folder: Path) -> None:
        home = place(folder, released=False) / "portfolio"
        planned, how = asked(home)
        file = home / "c" / "step-20.safetensors"
        kept = file.read_bytes()
        one_bit(file)
        with pytest.raises(DpmergeError) as raised:
            release(planned, out=folder / "new", **how)
        assert charges(home) == 0, "charged for a checkpoint that has rotted"
        assert isinstance(raised.value, DigestMismatchError)
        assert "step-20.safetensors" in str(raised.value)
        assert not (folder / "new").exists()
        file.write_bytes(kept)
        release(planned, out=folder / "new", **how)  # nothing is locked, and nothing is pending
        assert charges(home) == 1

    return attack


EVERY = pytest.mark.parametrize("asked", [final, capped, drawn], ids=lambda asked: asked.__name__)


@EVERY
def test_a_flipped_bit_in_a_checkpoint_is_refused_before_the_charge(tmp_path: Path, asked: Asked) -> None:
    rot(asked)(tmp_path)


@EVERY
def test_tests_notice_when_checkpoints_are_not_read_before_the_charge(tmp_path: Path, asked: Asked) -> None:
    must_notice(rot(asked), tmp_path, preconditions, "require_recorded", lambda *_: None)


def test_tests_notice_when_the_cap_is_not_asked_for_before_the_charge(tmp_path: Path) -> None:
    must_notice(rot(capped), tmp_path, Ledger, "is_capped", lambda *_: False)


def test_a_flipped_bit_in_a_checkpoint_is_refused_by_the_command_line_before_the_charge(tmp_path: Path) -> None:
    home = place(tmp_path, released=False) / "portfolio"
    one_bit(home / "c" / "step-20.safetensors")
    result = ran("merge", home, *WEIGHTS, "--final", "-o", tmp_path / "new")
    assert result.exit_code == 2
    assert "is charged" not in result.stderr
    assert charges(home) == 0


def test_values_that_are_not_finite_though_recorded_are_noticed_before_the_charge(tmp_path: Path) -> None:
    """The digest is right: it was taken of weights that had diverged."""
    home = place(tmp_path, released=False) / "portfolio"
    file, record = home / "c" / "step-20.safetensors", home / "c" / "privacy.json"
    file.write_bytes(file.read_bytes()[:-4] + struct.pack("<f", float("nan")))
    document = json.loads(record.read_text())
    for saved in document["checkpoints"]:
        if saved["step"] == 20:
            saved["files"][0]["sha256"] = sha256(file.read_bytes()).hexdigest()
            saved.pop("weights", None)
    record.write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match="NaN or infinity"):
        release(noised(loaded(home)), out=tmp_path / "new", final=True)
    assert charges(home) == 0
