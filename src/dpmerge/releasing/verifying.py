"""`dpmerge verify` and `dpm.verify`: an output, its certificate, the portfolio it was made from and their ledger.

Guarantees: a ledger that is given, or lies beside the portfolio, must have the release with these terms, files and this
very certificate; another ledger, a missing entry or a different one fails. Where there is none to ask, that is said,
and is no pass. A certificate of version 1, whose commitments anybody can copy, is believed beside a portfolio only
where the ledger has it: writing version 1 gains a forger nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from dpmerge.certificate.checks import Check, Verification
from dpmerge.certificate.dsse import CERTIFICATE_NAME
from dpmerge.certificate.predicate import Predicate
from dpmerge.certificate.trust import Keys
from dpmerge.certificate.verification import check_output
from dpmerge.errors import InvalidInputError
from dpmerge.files import file_digest
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.releasing.commitment_salt import kept_private
from dpmerge.releasing.portfolio_match import provenance
from dpmerge.remote.remote_path import is_url

if TYPE_CHECKING:
    from dpmerge.ledger.charge import Charge
    from dpmerge.ledger.ledger import Ledger


def verify(
    out: str | Path,
    *,
    portfolio: Portfolio | str | Path | None = None,
    key: Keys = None,
    trusted_keys: str | Path | None = None,
    ledger: str | Path | None = None,
    rebuild: bool = False,
    allow_extra: Iterable[str] = (),
    jobs: int = 2,
    insecure_permissions: bool = False,
    revocations: str | Path | None = None,
    revocation_key: Keys = None,
    timestamp_roots: str | Path | None = None,
) -> Verification:
    """Check a release: its files, its figures, and as far as they are given its portfolio and its ledger.

    Args:
        out: The folder of the release.
        portfolio: What it was made from, loaded or by its path: opens the commitments and compares the manifests.
        key: The public key it must be signed with, or several of which one must have been used.
        trusted_keys: A file of such keys, with the times they are trusted in.
        ledger: Where it was charged, a file or a database's URL; by default beside the portfolio.
        rebuild: Merge again, and compare the bytes.
        allow_extra: Files and folders in `out` that the certificate need not cover.
        jobs: Threads for merging again.
        insecure_permissions: Go on although others may read the portfolio's salt or write the ledger.
        revocations: A list of revocations on which it must not be, a file or an http(s) address. A list that cannot be
            read, is stale or is not signed as it should be fails, and so does a certificate that none of the given keys
            has signed.
        revocation_key: The public key that list must be signed with, or several; by default those of the certificate.
        timestamp_roots: Roots, as PEM, of authorities of which its certificate must have a timestamp.

    Returns:
        What was found, a check for each thing that was looked at; `verified` if none of them failed.

    Raises:
        InvalidInputError: There is no certificate there, or a key or the roots cannot be read.
        MissingExtraError: Roots were given, and the extra `timestamps` is not installed.
        LedgerError: The ledger that was named cannot be read.

    >>> from tempfile import TemporaryDirectory
    >>> from dpmerge.examples import write_example
    >>> from dpmerge import Portfolio, plan, release
    >>> with TemporaryDirectory() as place:
    ...     _ = write_example("mnist", f"{place}/models")
    ...     models = Portfolio.load(f"{place}/models")
    ...     _ = release(plan(models, epsilon=0.12, delta=1e-5), out=f"{place}/merged")
    ...     found = verify(f"{place}/merged", portfolio=models)
    >>> found.verified, [check.name for check in found.checks if check.passed is None]
    (True, ['signature'])
    """
    if rebuild and portfolio is None:
        remedy = "name the portfolio it was made from, portfolio=… (--portfolio)"
        raise InvalidInputError("portfolio", None, remedy, problem="portfolio: nothing to rebuild the output from")
    result = check_output(
        out,
        key=key,
        trusted_keys=trusted_keys,
        allow_extra=allow_extra,
        revocations=revocations,
        revocation_key=revocation_key,
        timestamp_roots=timestamp_roots,
    )
    declared = result.declared
    if declared is None:
        return result
    loaded = None
    if portfolio is not None:
        loaded = _loaded(portfolio, declared)
        for check in kept_private(loaded, insecure_permissions):
            result = result.with_check(check)
        result = made_from(result, loaded)
        if rebuild:
            from dpmerge.releasing.rebuild import rebuilt

            result = result.with_check(rebuilt(result, loaded, jobs=jobs))
    if loaded is not None or ledger is not None:
        result = result.with_check(_in_ledger(result, declared, loaded, ledger, insecure_permissions))
    return result


def _loaded(portfolio: Portfolio | str | Path, declared: Predicate) -> Portfolio:
    """Headers only: of the weights, those that went in are read when their commitments are opened."""
    if isinstance(portfolio, Portfolio):
        return portfolio
    return Portfolio.load(portfolio, contents=False, allow=declared.portfolio.allowed)


def made_from(result: Verification, portfolio: Portfolio) -> Verification:
    """With the checks that need the portfolio, and not its ledger."""
    assert result.certificate is not None
    assert result.declared is not None
    for check in provenance(result.certificate, result.declared, portfolio):
        result = result.with_check(check)
    return result


def _in_ledger(
    result: Verification,
    declared: Predicate,
    portfolio: Portfolio | None,
    where: str | Path | None,
    insecure_permissions: bool,
) -> Check:
    """Whether the release was charged, where the ledger can be asked."""
    from dpmerge.ledger.ledger import Ledger
    from dpmerge.releasing.ledger_location import default_ledger

    if where is None:
        assert portfolio is not None
        where = None if is_url(portfolio.path) else default_ledger(portfolio)
        if where is None or not where.exists():
            words = "there is no ledger beside the portfolio; name one, ledger=… (--ledger)"
            unbound = f"{words}; without it no certificate of version 1 is believed beside a portfolio"
            return Check("ledger", False, (unbound,)) if result.version == 1 else Check("ledger", None, (words,))
    with Ledger.open(where, create=False, insecure_permissions=insecure_permissions) as ledger:
        return _charged(ledger, result, declared)


def _charged(ledger: Ledger, result: Verification, declared: Predicate) -> Check:
    known = ledger.release(declared.release)
    if known is None:
        lacks = "has no such entry: it was restored from an older backup, or never charged"
        other = f"has no such entry: the certificate says that it was charged in another one, {declared.ledger.id}"
        return Check("ledger", False, (lacks if ledger.id == declared.ledger.id else other,))
    if (wrong := _otherwise(ledger, known, result, declared)) is not None:
        return Check("ledger", False, (wrong,))
    if known.adopted and known.signed_by is None:
        words = "adopted after entries were lost, with no signature: the ledger knows of it from its certificate alone"
        return Check("ledger", False if result.version == 1 else None, (words,))
    return Check("ledger", True)


def _otherwise(ledger: Ledger, known: Charge, result: Verification, declared: Predicate) -> str | None:
    """In what the ledger's release is not the certificate's."""
    stated, entry = declared.ledger, known.entry
    if not known.adopted and (stated.id, stated.entry, stated.hash) != (ledger.id, entry.seq, entry.hash):
        return "has another entry for this release than the certificate names"
    if known.terms != declared.terms or known.final != declared.final:
        return "charged other terms for this release"
    if declared.drawn is not None and known.index is not None and known.index != declared.drawn:
        return "drew another candidate for this release"
    if declared.draw_number is not None and not known.adopted and known.draw_number != declared.draw_number:
        return f"counts this as draw {known.draw_number} of these terms, and the certificate as {declared.draw_number}"
    if known.output is None:
        return "charged this release, and never sealed what it is: nothing of it was published"
    if dict(known.output.files) != dict(result.files):
        return "recorded other files for this release"
    if known.output.certificate != file_digest(result.path / CERTIFICATE_NAME):
        return "recorded another certificate for this release"
    return None
