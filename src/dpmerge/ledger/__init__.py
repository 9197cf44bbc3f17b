"""The ledger: everything released of a data set, what it has cost, and the cap on it."""

from dpmerge.ledger.budget_report import BudgetLeft, BudgetReport, ReleaseLine, RunBudget
from dpmerge.ledger.caps import Cap
from dpmerge.ledger.chain_verification import Verdict
from dpmerge.ledger.charge import Charge, Output
from dpmerge.ledger.entries import BudgetScope, Entry
from dpmerge.ledger.head_checkpoint import check_head_checkpoint, replace_head_checkpoint, update_head_checkpoint
from dpmerge.ledger.identity import identities, identity_of, noise_mark, noise_marks
from dpmerge.ledger.ledger import Ledger

__all__ = [
    "BudgetLeft",
    "BudgetReport",
    "BudgetScope",
    "Cap",
    "Charge",
    "Entry",
    "Ledger",
    "Output",
    "ReleaseLine",
    "RunBudget",
    "Verdict",
    "check_head_checkpoint",
    "identities",
    "identity_of",
    "noise_mark",
    "noise_marks",
    "replace_head_checkpoint",
    "update_head_checkpoint",
]
