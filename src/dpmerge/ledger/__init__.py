"""The ledger: everything that has left of a data set, what it has cost, and the cap that holds it."""

from dpmerge.ledger.caps import Cap
from dpmerge.ledger.entries import Book, Entry
from dpmerge.ledger.identity import identities, identity_of, noise_mark, noise_marks
from dpmerge.ledger.ledger import Ledger
from dpmerge.ledger.request import Charged, ChargeRequest, Output, Place
from dpmerge.ledger.standing import Left, ReleaseLine, RunStanding, Standing
from dpmerge.ledger.verification import Verdict
from dpmerge.ledger.witness import check_witness, replace_witness, update_witness

__all__ = [
    "Book",
    "Cap",
    "ChargeRequest",
    "Charged",
    "Entry",
    "Ledger",
    "Left",
    "Output",
    "Place",
    "ReleaseLine",
    "RunStanding",
    "Standing",
    "Verdict",
    "check_witness",
    "identities",
    "identity_of",
    "noise_mark",
    "noise_marks",
    "replace_witness",
    "update_witness",
]
