"""Portfolios of the hub, against a stub of its API: one commit is read, and named from then on."""

from __future__ import annotations

from pathlib import Path

import pytest
from soak.kills import average

import dpmerge as dpm
from dpmerge.errors import DpmergeError
from remote.hub_stub import HubStub


def test_a_portfolio_is_read_of_one_commit(hub: HubStub, tmp_path: Path) -> None:
    first = hub.main
    loaded = dpm.Portfolio.load("hf://lab/portfolio")
    assert str(loaded.path) == f"hf://lab/portfolio@{first}"
    assert [run.id for run in loaded.runs] == ["a", "b", "c"]
    assert hub.sent < 6 * 2**16 + 50_000, "headers alone"
    files = dict(hub.commits[first])
    hub.commit({name: content[:-4] + bytes(4) if "step" in name else content for name, content in files.items()})
    assert hub.main != first
    made = dpm.release(average(loaded), out=tmp_path / "out", ledger=tmp_path / "ledger.db")
    assert dpm.verify(made.path, portfolio=loaded, ledger=tmp_path / "ledger.db").verified
    assert not [each for each in hub.asked if "/resolve/main/" in each]
    # What is on the branch now is not what was recorded.
    newer = dpm.Portfolio.load("hf://lab/portfolio")
    assert newer.path != loaded.path
    with pytest.raises(DpmergeError, match="digest"):
        dpm.release(average(newer), out=tmp_path / "two", ledger=tmp_path / "ledger.db")


def test_commits_of_one_portfolio_share_their_salt_and_their_ledger(hub: HubStub, tmp_path: Path) -> None:
    dpm.release(average(dpm.Portfolio.load("hf://lab/portfolio")), out=tmp_path / "one", ledger=tmp_path / "ledger.db")
    hub.commit({**hub.commits[hub.main], "README.md": b"something new"})
    with pytest.raises(DpmergeError, match="name that one"):
        dpm.release(average(dpm.Portfolio.load("hf://lab/portfolio")), out=tmp_path / "two", ledger=tmp_path / "new.db")
    salts = list((tmp_path / "private").rglob(".commitment-salt"))
    assert len(salts) == 1


def test_a_repository_that_is_not_there_is_an_error_of_ours(hub: HubStub) -> None:
    with pytest.raises(DpmergeError, match="hf://lab/nothing"):
        dpm.Portfolio.load("hf://lab/nothing")
