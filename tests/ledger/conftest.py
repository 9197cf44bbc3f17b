"""A ledger in a file, and one in a real PostgreSQL."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from soak.ledger import postgresql
from sqlalchemy import create_engine, text

from dpmerge.ledger import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db") as opened:
        yield opened


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    with postgresql() as address:
        yield address


@pytest.fixture
def database(server: str) -> str:
    """The address of an empty database."""
    name = f"ledger_{secrets.token_hex(4)}"
    engine = create_engine(server.replace("postgresql://", "postgresql+psycopg://"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return server.replace("/postgres?", f"/{name}?")


@pytest.fixture(params=["sqlite", "postgresql"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty ledger, of either kind."""
    if request.param == "postgresql":
        address: str = request.getfixturevalue("database")
        return address
    return str(tmp_path / "ledger.db")
