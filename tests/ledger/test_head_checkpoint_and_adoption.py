"""A ledger restored from an older backup is refused, and what was released is counted again."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from dpmerge.accounting.gaussian import GaussianProfile
from dpmerge.errors import CapExceededError, InvalidInputError, LedgerBrokenError, NoGuaranteeError, RunsLockedError
from dpmerge.ledger import (
    Cap,
    Charge,
    Ledger,
    Output,
    check_head_checkpoint,
    replace_head_checkpoint,
    update_head_checkpoint,
)
from ledger.releases import SCOPE, drawing, first, request, run

A, B = run("a"), run("b", 4.0)
ONE, TWO = run("one", 2.0, steps=1), run("two", 0.5, steps=1)
PAIR = {"one@1": 0.99, "two@1": 0.01}


def adopt(ledger: Ledger, asked: Charge, *, index: int | None = 0, release_id: str = "f" * 32) -> None:
    ledger.adopt(
        release_id,
        asked,
        output=Output({"m": "1" * 64}, "2" * 64, "/out"),
        entry=(9, "0" * 64),
        index=index,
        signed_by="3" * 64,
    )


def epsilon(squared: float) -> Any:
    return pytest.approx(GaussianProfile(squared**0.5).epsilon(1e-5), rel=1e-9)


def test_a_ledger_restored_from_a_backup_is_refused(tmp_path: Path) -> None:
    path, backup, witness = tmp_path / "ledger.db", tmp_path / "backup.db", tmp_path / "witness.json"
    with Ledger.open(path) as ledger:
        check_head_checkpoint(ledger, witness)
        ledger.charge(request([A], "a@3"), first)
        update_head_checkpoint(ledger, witness)
        shutil.copy(path, backup)
        lost = ledger.charge(request([A, B], "a@3", "b@2"), drawing(1))
        update_head_checkpoint(ledger, witness)
        check_head_checkpoint(ledger, witness)
    assert stat.S_IMODE(witness.stat().st_mode) == 0o600
    shutil.copy(backup, path)
    with Ledger.open(path) as restored:
        with pytest.raises(
            LedgerBrokenError, match=r"lacks entry 3, .*older backup.*dpmerge ledger recover --adopt OUT"
        ):
            check_head_checkpoint(restored, witness)
        with pytest.raises(LedgerBrokenError):
            update_head_checkpoint(restored, witness)
        restored.adopt(
            lost.release_id,
            request([A, B], "a@3", "b@2"),
            output=Output({}, "2" * 64, ""),
            entry=(lost.entry.seq, lost.entry.hash),
            index=lost.index,
            signed_by="3" * 64,
        )
        replace_head_checkpoint(restored, witness)
        check_head_checkpoint(restored, witness)
        standing = restored.budget_report(SCOPE, 1e-5)
        assert standing.epsilon == epsilon(3 * (2 / 8) ** 2 + 2 * (2 / 4) ** 2)
        assert any("adopted" in caveat for caveat in standing.caveats)
        assert restored.verify().ok


def test_another_ledger_than_the_checkpoints_is_refused(tmp_path: Path) -> None:
    witness = tmp_path / "witness.json"
    with Ledger.open(tmp_path / "one.db") as one, Ledger.open(tmp_path / "two.db") as two:
        update_head_checkpoint(one, witness)
        with pytest.raises(LedgerBrokenError, match="is another ledger than the one"):
            check_head_checkpoint(two, witness)


def test_a_head_checkpoint_never_moves_back(tmp_path: Path) -> None:
    witness = tmp_path / "witness.json"
    with Ledger.open(tmp_path / "one.db") as ledger:
        ledger.charge(request([A], "a@3"), first)
        update_head_checkpoint(ledger, witness)
        before = witness.read_bytes()
        update_head_checkpoint(ledger, witness)
        assert witness.read_bytes() == before
        witness.write_text("{}")
        with pytest.raises(LedgerBrokenError, match=r"witness.json: ledger: got nothing"):
            check_head_checkpoint(ledger, witness)


def test_a_ledger_restored_under_an_open_connection_is_refused(tmp_path: Path) -> None:
    path, backup = tmp_path / "ledger.db", tmp_path / "backup.db"
    with Ledger.open(path) as ledger:
        ledger.charge(request([A], "a@3"), first)
        shutil.copy(path, backup)
        ledger.charge(request([A], "a@4"), first)
        ledger.head()
        shutil.copy(backup, path)
        with pytest.raises(LedgerBrokenError, match="entry 3, which was there before, is gone or changed"):
            ledger.charge(request([A], "a@1"), first)


def test_adopting_twice_changes_nothing(ledger: Ledger) -> None:
    adopt(ledger, request([A, B], "a@3", "b@2"), index=1)
    adopt(ledger, request([A, B], "a@3", "b@2"), index=1)
    assert ledger.head()[0] == 2
    with pytest.raises(LedgerBrokenError, match="with other terms than its certificate's"):
        adopt(ledger, request([A, B], "a@3", "b@3"), index=1)
    found = ledger.release("f" * 32)
    assert isinstance(found, Charge)
    assert (found.adopted, found.status, found.index) == (True, "completed", 1)
    with pytest.raises(InvalidInputError, match="^index"):
        adopt(ledger, request([A, B], "a@3", "b@2"), index=2, release_id="e" * 32)


def test_adopting_without_an_index_exposes_every_candidate(ledger: Ledger) -> None:
    adopt(ledger, request([A, B], "a@3", "b@2"), index=None)
    assert ledger.budget_report(SCOPE, 1e-5).epsilon == epsilon(3 * (2 / 8) ** 2 + 2 * (2 / 4) ** 2)
    assert ledger.verify().ok


def test_an_adopted_final_release_locks_its_runs(ledger: Ledger) -> None:
    adopt(ledger, request([ONE, TWO], PAIR, theorem="merged_trajectory", final=True))
    assert ledger.budget_report(SCOPE, 1e-5).epsilon == pytest.approx(4.43, abs=0.01)
    with pytest.raises(RunsLockedError):
        ledger.charge(request([ONE], "one@1"), first)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["final first", "final last"])
def test_a_final_release_whose_runs_were_seen_counts_as_joint_release(ledger: Ledger, order: tuple[int, int]) -> None:
    both = [request([ONE, TWO], PAIR, theorem="merged_trajectory", final=True), request([ONE], "one@1")]
    ledger.charge(both[order[0]], first)
    adopt(ledger, both[order[1]])
    standing = ledger.budget_report(SCOPE, 1e-5)
    assert standing.epsilon == epsilon((2 / 2) ** 2 + (2 / 0.5) ** 2)
    assert any("cannot be vouched for" in caveat for caveat in standing.caveats)
    assert ledger.verify().ok
    for rule in ("gaussian_filter", "renyi_filter"):
        with pytest.raises(CapExceededError, match="can be vouched for"):
            ledger.set_cap(SCOPE, Cap(epsilon=50.0, delta=1e-5, rule=rule))  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", ["ceiling", "gaussian_filter", "renyi_filter"])
def test_an_adopted_release_counts_even_beyond_the_cap(ledger: Ledger, rule: str) -> None:
    if rule == "ceiling":
        ledger.set_cap(SCOPE, Cap.of_manifests(2.0, 1e-5, {"a": 2}, [A]))
    else:
        ledger.set_cap(SCOPE, Cap(epsilon=2.0, delta=1e-5, rule=rule))  # type: ignore[arg-type]
    adopt(ledger, request([A], "a@20"))
    assert ledger.verify().ok
    with pytest.raises(CapExceededError):
        ledger.charge(request([A], "a@1"), first)
    standing = ledger.budget_report(SCOPE, 1e-5)
    assert standing.epsilon is not None
    assert standing.epsilon > 2.0
    if rule != "ceiling":
        assert standing.left is not None
        assert standing.left.left == 0


@pytest.mark.parametrize("rule", ["gaussian_filter", "renyi_filter"])
def test_after_an_adopted_release_without_a_number_nothing_is_allowed_under_the_cap(ledger: Ledger, rule: str) -> None:
    ledger.set_cap(SCOPE, Cap(epsilon=2.0, delta=1e-5, rule=rule))  # type: ignore[arg-type]
    adopt(ledger, request([run("p", 1.0, sampling_rate=0.01)], "p@20"))
    with pytest.raises(NoGuaranteeError):
        ledger.charge(request([A], "a@1"), first)
    assert ledger.verify().ok
    left = ledger.budget_report(SCOPE, 1e-5).left
    assert left is not None
