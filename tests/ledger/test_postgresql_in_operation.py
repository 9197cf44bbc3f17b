"""PostgreSQL as a team has it: roles with their rights, who did what, servers that restart or freeze."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from soak.ledger import postgresql
from sqlalchemy import Connection, Engine

from dpmerge.errors import ApprovalNeededError, LedgerUnavailableError
from dpmerge.ledger import Cap, Ledger
from dpmerge.ledger import postgresql as connections
from ledger.releases import SCOPE, first, request, run
from ledger.test_approvals import ANN, BOB, TWO

A = run("a", 40.0)
CAP = Cap(epsilon=2.0, delta=1e-5, rule="gaussian_filter")
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "team-ledger.md"
ROLES = ("auditor", "releaser", "officer")


@pytest.fixture
def team(database: str) -> Iterator[dict[str, str]]:
    """The addresses of one ledger for each role, with the rights that the page gives them."""
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "DPMERGE_LEDGER": database})
    with Ledger.open(database, create=False) as ledger:
        ledger.charge(request([A], "a@1"), first)
    [sql] = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.S)
    dropped = "; ".join(f"DROP ROLE IF EXISTS dpmerge_{role}" for role in reversed(ROLES))
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(sql)
        for role in ROLES:
            owner.execute(f"CREATE ROLE the_{role} LOGIN IN ROLE dpmerge_{role}")  # type: ignore[call-overload]
    yield {role: database.replace("//postgres:", f"//the_{role}:") for role in ROLES}
    with psycopg.connect(database, autocommit=True) as owner:
        for role in ROLES:
            owner.execute(f"DROP OWNED BY the_{role}; DROP ROLE the_{role}")  # type: ignore[call-overload]
            owner.execute(f"DROP OWNED BY dpmerge_{role}")  # type: ignore[call-overload]
        owner.execute(dropped)  # type: ignore[call-overload]


def test_each_role_may_do_what_the_page_says_and_no_more(team: dict[str, str]) -> None:
    with Ledger.open(team["auditor"]) as ledger:
        assert ledger.verify().ok
        assert ledger.budget_report(SCOPE, 1e-5).release_count == 1
        for forbidden in (
            lambda: ledger.charge(request([A], "a@2"), first),
            lambda: ledger.set_cap(SCOPE, CAP),
        ):
            with pytest.raises(LedgerUnavailableError, match="this database role may not do that .*permission denied"):
                forbidden()
    with Ledger.open(team["releaser"]) as ledger:
        charged = ledger.charge(request([A], "a@2"), first)
        ledger.complete(charged.release_id, files={"m": "0" * 64}, certificate="1" * 64, where="/out")
        pending = ledger.charge(request([A], "a@3"), first)
        for forbidden in (
            lambda: ledger.set_cap(SCOPE, CAP),
            lambda: ledger.abandon(pending.release_id, "why not"),
            lambda: ledger.accept(SCOPE, "trust me"),
        ):
            with pytest.raises(LedgerUnavailableError, match="may not do that .*row-level security.*team-ledger.md"):
                forbidden()
    with Ledger.open(team["officer"]) as ledger:
        ledger.abandon(pending.release_id, "not wanted")
        ledger.set_cap(SCOPE, CAP)
        ledger.accept(SCOPE, "all is here")
        ledger.charge(request([A], "a@3"), first)
        assert ledger.verify().ok


def test_policies_are_an_officers_and_requests_and_approvals_a_releasers(team: dict[str, str]) -> None:
    with Ledger.open(team["releaser"]) as ledger, pytest.raises(LedgerUnavailableError, match="row-level security"):
        ledger.set_policy(TWO)
    with Ledger.open(team["officer"]) as ledger:
        ledger.set_policy(TWO)
    with Ledger.open(team["auditor"]) as ledger:
        assert ledger.policy() == TWO
    with Ledger.open(team["releaser"]) as ledger:
        with pytest.raises(ApprovalNeededError) as waiting:
            ledger.set_cap(SCOPE, CAP, asker=ANN)
        ledger.decide(waiting.value.request, "approved", BOB)
        with pytest.raises(LedgerUnavailableError, match="row-level security"):
            ledger.set_cap(SCOPE, CAP)
    with Ledger.open(team["officer"]) as ledger:
        ledger.set_cap(SCOPE, CAP)
        assert ledger.verify().ok
        assert ledger.is_capped(SCOPE)


def test_nobody_but_the_owner_changes_or_deletes_an_entry(team: dict[str, str]) -> None:
    for role, statement in (
        (role, statement)
        for role in ROLES
        for statement in (
            "UPDATE dpmerge_entries SET kind = 'cap'",
            "DELETE FROM dpmerge_entries",
            "TRUNCATE dpmerge_entries",
        )
    ):
        with psycopg.connect(team[role]) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(statement)  # type: ignore[call-overload]


def test_a_releaser_writes_snapshots(team: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpmerge.ledger.ledger_writer.EVERY", 3)
    for _ in range(6):
        with Ledger.open(team["releaser"]) as ledger:
            ledger.charge(request([A], "a@1"), first)
    with Ledger.open(team["auditor"]) as ledger:
        assert "snapshot" in [entry.kind for entry in ledger.entries()]
        assert ledger.verify().ok


def test_every_entry_says_who_wrote_it(team: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPMERGE_ACTOR", "Ann Example")
    with Ledger.open(team["officer"]) as ledger:
        ledger.set_cap(SCOPE, CAP)
    monkeypatch.setenv("DPMERGE_ACTOR", "Bob")
    with Ledger.open(team["releaser"]) as ledger:
        ledger.charge(request([A], "a@2"), first)
        by = [entry.body["by"] for entry in ledger.entries()][-2:]
    assert by == [{"role": "the_officer", "actor": "Ann Example"}, {"role": "the_releaser", "actor": "Bob"}]


@pytest.mark.parametrize("actor", ["", "a\nb", "x" * 201])
def test_an_actor_that_is_no_line_of_text_is_refused(
    actor: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPMERGE_ACTOR", actor)
    with pytest.raises(ValueError, match="DPMERGE_ACTOR: got .*1 to 200 printable characters"):
        ledger.charge(request([A], "a@1"), first)


def test_in_a_file_the_actor_is_the_user_and_there_is_no_role(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DPMERGE_ACTOR", raising=False)
    monkeypatch.setenv("LOGNAME", "carol")
    ledger.charge(request([A], "a@1"), first)
    assert {canonical["actor"] for canonical in (entry.body["by"] for entry in ledger.entries())} == {"carol"}
    assert {entry.body["by"]["role"] for entry in ledger.entries()} == {None}


def backends(database: str) -> list[int]:
    """The processes of the server that serve others."""
    query = "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
    with psycopg.connect(database) as connection:
        return [row[0] for row in connection.execute(query)]


def test_a_frozen_server_is_an_error_after_the_time_it_has(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend is stopped by a signal, so that only the client's clock goes on."""
    monkeypatch.setattr(connections, "ANSWER_TIMEOUT", 1)
    monkeypatch.setattr(connections, "_MARGIN", 0.5)
    with Ledger.open(database) as ledger:
        ledger.charge(request([A], "a@1"), first)
        frozen = list[int]()

        def freezing(units: object) -> int:
            frozen.extend(backends(database))
            for process in frozen:
                os.kill(process, signal.SIGSTOP)
            return 0

        begun = time.monotonic()
        try:
            with pytest.raises(LedgerUnavailableError, match="did not answer for 1 s"):
                ledger.charge(request([A], "a@2"), freezing, release_id="f" * 32)
            assert time.monotonic() - begun < 10
        finally:
            for process in frozen:
                os.kill(process, signal.SIGCONT)
        assert ledger.release("f" * 32) is None
        assert ledger.verify().ok


def test_a_connection_that_is_cut_while_committing_is_charged_once_with_one_draw(database: str) -> None:
    draws = list[int]()

    def cut(units: object) -> int:
        draws.append(1)
        serving = backends(database)
        with psycopg.connect(database, autocommit=True) as other:
            for process in serving:
                other.execute("SELECT pg_terminate_backend(%s)", [process])
        return 1

    with Ledger.open(database) as ledger:
        charged = ledger.charge(request([A], "a@1", "a@2"), cut)
        assert (charged.index, charged.already, draws) == (1, False, [1])
        assert [entry.kind for entry in ledger.entries()] == ["opened", "release"]
        assert ledger.verify().ok


def test_a_server_that_crashes_and_recovers_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of its processes is killed: it ends all connections, and takes none until it has recovered."""
    monkeypatch.setattr(connections, "RESTART_PATIENCE", 120.0)  # of a busy machine
    with postgresql() as address, Ledger.open(address) as ledger:
        ledger.charge(request([A], "a@1"), first)

        def crashing(units: object) -> int:
            os.kill(backends(address)[0], signal.SIGKILL)
            return 0

        assert ledger.charge(request([A], "a@2"), crashing).index == 0
        assert [entry.kind for entry in ledger.entries()] == ["opened", "release", "release"]
        assert ledger.verify().ok


def test_a_server_that_is_not_there_is_an_error_when_patience_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patience is had once: who waited for a connection does not wait again for the transaction."""
    monkeypatch.setattr(connections, "RESTART_PATIENCE", 0.3)
    waited, connected = list[float](), connections.connected

    def timed(engine: Engine) -> Connection:
        begun = time.monotonic()
        try:
            return connected(engine)
        finally:
            waited.append(time.monotonic() - begun)

    monkeypatch.setattr(connections, "connected", timed)
    with pytest.raises(LedgerUnavailableError, match="nowhere"):
        Ledger.open(f"postgresql://nobody@/none?host={tmp_path}/nowhere")
    assert len(waited) == 1
    assert waited[0] > 0.1


def test_a_wrong_password_is_not_tried_again(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "RESTART_PATIENCE", 60.0)
    begun = time.monotonic()
    with pytest.raises(LedgerUnavailableError, match="does not exist"):
        Ledger.open(database.replace("//postgres:", "//stranger:"))
    assert time.monotonic() - begun < 10
