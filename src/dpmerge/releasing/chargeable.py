"""A plan as a charge, and whether a portfolio's ledger would take it.

Guarantees: nothing is charged or written. What is allowed now may not be later: what decides is the charge itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpmerge.errors import DpmergeError, LedgerError
from dpmerge.ledger.charge import Charge
from dpmerge.ledger.identity import identity_of, noise_mark
from dpmerge.ledger.ledger import Ledger
from dpmerge.planning.plan import Plan
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.releasing.ledger_location import default_ledger, is_missing
from dpmerge.remote.remote_path import is_url
from dpmerge.terms.release_terms import ReleaseTerms


def proposed_charge(
    portfolio: Portfolio,
    terms: ReleaseTerms,
    *,
    details: Mapping[str, Any],
    final: bool,
    request_key: str | None = None,
) -> Charge:
    """What is to be charged for a release on these terms; `details` are for whoever has to finish it."""
    manifests = {record.run: portfolio.run(record.run).manifest for record in terms.runs}
    return Charge.proposed(
        terms=terms,
        identities={name: identity_of(manifest) for name, manifest in manifests.items()},
        marks={name: noise_mark(manifest) for name, manifest in manifests.items()},
        final=final,
        key=request_key,
        details=details,
    )


def why_not_chargeable(
    plan: Plan, ledger: str | Path | None = None, *, insecure_permissions: bool = False
) -> str | None:
    """Why a plan could not be released as things are; None if its ledger has nothing against it, or is not there yet.

    A plan by a theorem that holds only for the last release of its runs is asked about as a final release.

    Args:
        plan: What would be released.
        ledger: A file or a database's URL; by default the file beside the plan's portfolio.
        insecure_permissions: Ask a ledger that everybody may write to.

    Returns:
        What the ledger would refuse it with: locked runs, or the cap on this data; or why it cannot be asked.

    Example:
        >>> import dpmerge as dpm
        >>> why_not_chargeable(dpm.plan(dpm.Portfolio.load("examples/probe"), epsilon=1, delta=1e-5)) is None
        True
    """
    if ledger is None and is_url(plan.portfolio.path):
        return None  # beside a portfolio in a store there is none
    where = default_ledger(plan.portfolio) if ledger is None else ledger
    if is_missing(where):
        return None
    try:
        with Ledger.open(where, create=False, insecure_permissions=insecure_permissions) as opened:
            opened.require_chargeable(
                proposed_charge(plan.portfolio, plan.terms, details={}, final=plan.terms.is_final)
            )
    except LedgerError as error:
        return f"the ledger cannot be asked: {error}"
    except DpmergeError as error:
        return f"the ledger would refuse this release: {error}"
    return None
