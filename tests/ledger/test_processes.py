"""Several processes at once, and processes that die: the short version of `python -m soak.ledger`."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from soak.ledger import killed, soak, violations

from dpmerge.ledger import Ledger
from ledger.releases import first, request, run


@pytest.mark.parametrize("rounds", [10])
def test_four_processes_never_pass_a_cap_together(anywhere: str, rounds: int) -> None:
    tallies = soak(anywhere, workers=4, asks=rounds, seed=1)
    assert violations(anywhere, tallies, rounds) == []
    assert sum(len(tally.charged) for tally in tallies) > 0
    assert sum(tally.refused for tally in tallies) > 0


def test_the_soak_notices_an_entry_that_no_worker_reported(tmp_path: Path) -> None:
    where = str(tmp_path / "ledger.db")
    tallies = soak(where, workers=1, asks=3, seed=1)
    short = [type(tallies[0])(tallies[0].charged[1:], tallies[0].completed, tallies[0].refused)]
    assert violations(where, short, 3) != []


def test_a_process_killed_while_charging_leaves_a_whole_ledger(tmp_path: Path) -> None:
    assert killed(str(tmp_path / "ledger.db"), 15, seed=1) == []


def test_two_ledgers_in_one_process_see_each_other(anywhere: str) -> None:
    a = run("a")
    with Ledger.open(anywhere) as one, Ledger.open(anywhere) as two:
        one.charge(request([a], "a@1", key="k"), first)
        assert two.charge(request([a], "a@1", key="k"), first).already
        two.charge(request([a], "a@2"), first)
        assert one.head() == two.head()
        assert one.id == two.id


def test_threads_may_share_a_ledger(ledger: Ledger) -> None:
    a = run("a")
    workers = [
        threading.Thread(target=lambda: [ledger.charge(request([a], "a@1"), first) for _ in range(5)]) for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert ledger.head()[0] == 21
    assert ledger.verify().ok


def test_the_same_key_asked_for_at_once_is_drawn_once(anywhere: str) -> None:
    a, drawn = run("a"), []

    def slow(_: object) -> int:
        drawn.append(1)
        time.sleep(0.05)
        return 0

    def ask() -> None:
        with Ledger.open(anywhere) as own:
            own.charge(request([a], "a@1", "a@2", key="k"), slow)

    workers = [threading.Thread(target=ask) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(drawn) == 1
