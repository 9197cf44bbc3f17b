"""Where a portfolio's ledger is, and whether it is whole.

Guarantees: a ledger that lacks an entry which is known to have been made, by the witness beside the portfolio or by the
certificate of an output, is noticed before anything else is released.
"""

from __future__ import annotations

from pathlib import Path

from dpmerge.certificate.envelope import CERTIFICATE_NAME, read_certificate
from dpmerge.documents import is_file, read_bytes
from dpmerge.errors import InvalidInput, LedgerBroken
from dpmerge.ledger.ledger import Ledger
from dpmerge.ledger.witness import check_witness, update_witness
from dpmerge.portfolio.portfolio import Portfolio

LEDGER_NAME = "privacy-ledger.sqlite"
WITNESS_NAME = ".ledger-witness"


def default_ledger(portfolio: Portfolio) -> Path:
    """The ledger beside a portfolio."""
    return portfolio.path / LEDGER_NAME


def require_whole_ledger(ledger: Ledger, portfolio: Portfolio, out: Path | None) -> None:
    """Notice a ledger that was restored from an older backup: an entry that is known to have been made is not there."""
    check_witness(ledger, portfolio.path / WITNESS_NAME)
    if out is not None and is_file(file := out / CERTIFICATE_NAME):
        try:
            entry = read_certificate(read_bytes(file)).content["ledger"]
            known = entry["id"] != ledger.id or ledger.contains(entry["entry"], entry["hash"])
        except (InvalidInput, KeyError, TypeError):
            return  # not a certificate of ours: whether it may be replaced is another question
        if not known:
            raise LedgerBroken(
                f"{out} was charged in this ledger (entry {entry['entry']}), which has no such entry: it was restored "
                "from an older backup; accepted: `dpmerge ledger recover --adopt` with the outputs made since"
            )


def witness(ledger: Ledger, portfolio: Portfolio) -> None:
    """Remember the newest entry beside the portfolio."""
    update_witness(ledger, portfolio.path / WITNESS_NAME)
