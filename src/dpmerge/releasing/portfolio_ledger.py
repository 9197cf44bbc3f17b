"""A ledger together with the portfolio it counts: `dpm.Ledger`, and what `dpmerge ledger …` does.

Guarantees: every verb of the command line is a method here and nothing more; a ledger that lacks entries which the
portfolio's head checkpoints have seen is said to be in doubt, and nothing is capped or finished with it.
Refuses: a portfolio without a ledger (LedgerError), unless it is to be capped; recovering while entries are missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from securesystemslib.signer import CryptoSigner

from dpmerge.certificate.keys import Passphrase
from dpmerge.errors import ApprovalNeededError, CannotWriteError, InvalidInputError, LedgerError
from dpmerge.ledger.approval_policy import Policy
from dpmerge.ledger.budget_report import BudgetReport
from dpmerge.ledger.caps import Rule
from dpmerge.ledger.chain_verification import Verdict
from dpmerge.ledger.entries import BudgetScope
from dpmerge.ledger.head_checkpoint import update_head_checkpoint
from dpmerge.portfolio.manifest import write_atomically
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.run_files import require_replaceable
from dpmerge.releasing import recover
from dpmerge.releasing.approving import ApprovingLedger, asker_of
from dpmerge.releasing.ceiling import portfolio_cap
from dpmerge.releasing.kept_beside import kept_folder
from dpmerge.releasing.ledger_location import (
    is_missing,
    ledger_of,
    require_not_lost,
    require_shared,
    require_whole_ledger,
    why_not_whole,
    witness,
    witnesses_below,
)
from dpmerge.releasing.leftovers import remove_left_behind
from dpmerge.releasing.settings import ReleaseSettings
from dpmerge.remote.remote_path import location
from dpmerge.terms.portfolio_facts import Allowance


@dataclass(frozen=True, kw_only=True)
class RecoveryStep:
    """One thing a recovery did: with which release or output, and whether something is still to be mended.

    `request` is what waits for approval: then nothing was done. `removed` is a file or folder that a killed process
    had left.
    """

    outcome: str
    release: str | None = None
    out: str | None = None
    request: str | None = None
    removed: str | None = None
    unsolved: bool = False


class PortfolioLedger(ApprovingLedger):
    """What was released of a portfolio's data, what it has cost, and the cap on it; `dpm.Ledger`.

    Example:
        >>> import shutil, tempfile
        >>> import dpmerge as dpm
        >>> folder = tempfile.TemporaryDirectory()
        >>> models = shutil.copytree("examples/mnist", folder.name + "/mnist")
        >>> report = dpm.Ledger.cap(models, epsilon=2, delta=1e-5, privacy_filter="gaussian_filter")
        >>> with dpm.Ledger.of(models) as ledger:
        ...     print([report.epsilon for report in ledger.reports(delta=1e-5)], ledger.verify().ok)
        [0.0] True
        >>> folder.cleanup()
    """

    _portfolio: Path | None = None

    @classmethod
    def of(
        cls,
        portfolio: Portfolio | str | Path | None = None,
        *,
        ledger: str | Path | None = None,
        create: bool = False,
        insecure_permissions: bool = False,
    ) -> Self:
        """The ledger of a portfolio, or one that is named.

        Args:
            portfolio: A Portfolio, a folder of runs, one run's folder, or a portfolio.yaml.
            ledger: A file, or a database's URL; default: beside the portfolio.
            create: Make the ledger if there is none.
            insecure_permissions: Go on although others may read the private key or the salt, or write the ledger.

        Returns:
            The ledger, to be used in a `with` or closed.

        Raises:
            LedgerError: There is no ledger there, or it cannot be used.
            InvalidInputError: Neither a portfolio nor a ledger is given.
        """
        where = ledger_of(portfolio, ledger)
        home = None
        if portfolio is not None:
            home = portfolio.path if isinstance(portfolio, Portfolio) else location(portfolio, "portfolio")
        if is_missing(where) and (create or isinstance(where, Path)):
            require_not_lost(where, () if home is None else witnesses_below(home))
        if not create and isinstance(where, Path) and not where.exists():
            raise LedgerError(
                f"{where}: there is no ledger: nothing has been released or capped; name another, ledger=… (--ledger)"
            )
        opened = cls.open(where, create=create, insecure_permissions=insecure_permissions)
        opened._portfolio = home
        opened._insecure = insecure_permissions
        return opened

    @property
    def doubt(self) -> str | None:
        """Why this may not be the whole ledger, by what the portfolio remembers of it; None if nothing is missing."""
        return None if self._portfolio is None else why_not_whole(self, self._portfolio)

    def reports(self, *, delta: float = 1e-5, newest: int | None = None) -> list[BudgetReport]:
        """What was released of each budget scope, what it has cost together, and what is left under its cap.

        Args:
            delta: The δ at which ε is given.
            newest: List so many of the newest releases of each; by default all.

        Returns:
            One report for each data set, unit and adjacency.
        """
        return [self.budget_report(scope, delta, newest=newest) for scope in self.scopes()]

    @classmethod
    def cap(
        cls,
        portfolio: Portfolio | str | Path,
        *,
        epsilon: float,
        delta: float,
        privacy_filter: Rule = "ceiling",
        ceiling: Sequence[str] | None = None,
        order: float | None = None,
        ledger: str | Path | None = None,
        allow: Iterable[Allowance] = (),
        requester_key: str | Path | None = None,
        passphrase: Passphrase = None,
        insecure_permissions: bool = False,
    ) -> BudgetReport:
        """Promise that everything ever released of the portfolio's data keeps within (ε, δ).

        Args:
            portfolio: Runs on the data to be protected.
            epsilon: The ε that everything together may cost …
            delta: … at this δ.
            privacy_filter: What decides whether a release fits: "ceiling", "gaussian_filter" or "renyi_filter".
            ceiling: For "ceiling": how far runs may ever be looked at, as run@step; default: what fits.
            order: For "renyi_filter": the one Rényi order; default: the best for Gaussians.
            ledger: A file, or a database's URL; default: beside the portfolio. Made if there is none.
            allow: Checks of the portfolio to be waived, as in `Portfolio.load`.
            requester_key: Your private key, to sign the request where a second person has to approve.
            passphrase: The key's, or a function that asks for it.
            insecure_permissions: Go on although others may write the ledger.

        Returns:
            The data's budget, with the cap.

        Raises:
            CapExceededError: What has been released already does not fit.
            ApprovalNeededError: Others have to approve it first; it was requested.
            LedgerBrokenError: The portfolio has seen entries that the ledger lacks.
        """
        if not isinstance(portfolio, Portfolio):
            portfolio = Portfolio.load(portfolio, contents=False, allow=tuple(allow))
        made = portfolio_cap(portfolio, epsilon, delta, privacy_filter, ceiling, order)
        asker = asker_of(requester_key, passphrase, insecure_permissions=insecure_permissions)
        scope = BudgetScope(portfolio.dataset, portfolio.unit, portfolio.adjacency.value)
        # Opened, and perhaps made, last: what cannot be capped leaves no empty ledger.
        with cls.of(portfolio.path, ledger=ledger, create=True, insecure_permissions=insecure_permissions) as opened:
            require_whole_ledger(opened, portfolio, None)
            opened.set_cap(scope, made, asker=asker)
            witness(opened, portfolio)
            return opened.budget_report(scope, delta)

    def set_policy(self, policy: Policy, *, asker: CryptoSigner | None = None) -> None:
        """As in any ledger; and the portfolio remembers it, so that a ledger put back to before it is noticed."""
        if (doubt := self.doubt) is not None:
            raise LedgerError(doubt)
        super().set_policy(policy, asker=asker)
        for path in () if self._portfolio is None else witnesses_below(self._portfolio):
            update_head_checkpoint(self, path)

    def verify(self) -> Verdict:
        """Every entry read again, every cost counted again, and compared with what the portfolio has seen.

        Returns:
            Whether the ledger holds; if not, at which entry and why, or in `doubt` what is missing.
        """
        verdict, doubt = super().verify(), self.doubt
        return replace(verdict, ok=verdict.ok and doubt is None, doubt=doubt)

    def export(self, output: str | Path | None = None) -> dict[str, Any]:
        """Every entry, as JSON values. Not for release: it names runs that have not been released.

        Args:
            output: A file to write it to, too, for its owner alone.

        Returns:
            The document.

        Raises:
            CannotWriteError: The file cannot be written.
        """
        document = super().export()
        if output is not None:
            require_replaceable(Path(output), document["schema"])
            try:
                write_atomically(Path(output), (json.dumps(document, indent=1) + "\n").encode())
            except OSError as error:
                accepted = "a file that can be written"
                raise CannotWriteError.from_os(error, field="output", path=output, accepted=accepted) from None
        return document

    def recover(
        self,
        *,
        abandon: Sequence[str] = (),
        adopt: Sequence[str | Path] = (),
        key: str | Path | None = None,
        accept: bool = False,
        jobs: int = 2,
        executor: Executor | None = None,
        requester_key: str | Path | None = None,
        passphrase: Passphrase = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> list[RecoveryStep]:
        """Finish what was charged and not finished; or give it up; or count what a restored ledger has lost.

        After finishing, locks and half-written files that processes left when they were killed are removed.

        Args:
            abandon: Pending releases to give up, by the start of their id; they stay charged. Nothing else is done.
            adopt: Outputs whose entries the ledger has lost. Nothing is finished then.
            key: The public key that adopted outputs are signed with; without it every run counts whole.
            accept: Vouch that every output that is missing was adopted; that is recorded in the ledger.
            jobs: Threads for merging.
            executor: Where files of weights are read and written, as for `dpm.release`.
            requester_key: Your private key, to sign the request where a second person has to approve `abandon` or
                `accept`.
            passphrase: That of the private keys, or a function that asks for it.
            progress: Called with bytes done and bytes in all.

        Returns:
            What was done, and with which release.

        Raises:
            LedgerError: Entries are missing, and nothing was adopted or accepted.
        """
        asker = asker_of(requester_key, passphrase, insecure_permissions=self._insecure)
        if abandon:
            return self._abandoned(abandon, asker)
        if adopt or accept:
            return list(self._counted_again(adopt, key, accept, asker))
        require_shared(self.where if self._database.is_sqlite else "postgresql://", executor)
        if (doubt := self.doubt) is not None:
            raise LedgerError(doubt)
        return [*self._finished(jobs, executor, passphrase, progress), *self._cleaned()]

    def _cleaned(self) -> Iterator[RecoveryStep]:
        beside = Path(self.where).parent if self._database.is_sqlite else None
        settings = (ReleaseSettings.read(charge.details) for charge in self.pending())
        homes = [self._portfolio, beside, *(each.home for each in settings)]
        for path in remove_left_behind(self, [_folder(home) for home in homes if home is not None]):
            yield RecoveryStep(removed=str(path), outcome="removed: whoever was writing it is gone")

    def _abandoned(self, starts: Sequence[str], asker: CryptoSigner | None) -> list[RecoveryStep]:
        ids = [self._pending_id(start) for start in starts]
        return [_or_waiting(partial(self._abandon, each, asker), release=each) for each in ids]

    def _abandon(self, release_id: str, asker: CryptoSigner | None) -> RecoveryStep:
        recover.abandon(self, release_id, asker=asker)
        return RecoveryStep(release=release_id, outcome="abandoned")

    def _pending_id(self, start: str) -> str:
        """The pending release whose id begins so."""
        ids = [pending.release_id for pending in self.pending()]
        found = [each for each in ids if each.startswith(start)]
        known = self.release(start)
        if known is not None and known.status == "abandoned":
            return start  # named in full: what is left of it in a store is removed
        if len(found) != 1:
            raise InvalidInputError("abandon", start, f"a pending release: {', '.join(ids) or 'there is none'}")
        return found[0]

    def _counted_again(
        self, outputs: Sequence[str | Path], key: str | Path | None, accept: bool, asker: CryptoSigner | None
    ) -> Iterator[RecoveryStep]:
        if self._portfolio is None:
            raise InvalidInputError("portfolio", None, "the portfolio the outputs were made from", found="nothing")
        portfolio = Portfolio.load(self._portfolio, contents=False)
        how = "adopted" if key is not None else "adopted; no key, so every run counts as released to its last step"
        for out in outputs:
            release = recover.adopt(self, location(out, "adopt"), portfolio, key=key)
            yield RecoveryStep(release=release, out=str(out), outcome=how)
        doubt = self.doubt
        if accept and doubt is not None:
            yield _or_waiting(partial(self._accept, portfolio, asker))
        elif accept:
            yield RecoveryStep(outcome="nothing to accept: the ledger has all that is known to have been charged")
        elif doubt is not None:
            remedy = "name every other output made since, then confirm that this is all, accept=True (--accept)"
            yield RecoveryStep(outcome=remedy)

    def _accept(self, portfolio: Portfolio, asker: CryptoSigner | None) -> RecoveryStep:
        recover.accept(self, portfolio, asker=asker)
        return RecoveryStep(outcome="the ledger counts as whole again; the ledger records that somebody said so")

    def _finished(
        self,
        jobs: int,
        executor: Executor | None,
        passphrase: Passphrase,
        progress: Callable[[int, int], object] | None,
    ) -> Iterator[RecoveryStep]:
        for each in recover.recover(
            self,
            moved_to=self._portfolio,
            jobs=jobs,
            executor=executor,
            progress=progress,
            passphrase=passphrase,
            insecure_permissions=self._insecure,
        ):
            outcome = "still pending" if each.pending else "finished"
            outcome += "" if each.problem is None else f": {each.problem}"
            unsolved = each.pending or each.problem is not None
            yield RecoveryStep(release=each.release_id, out=each.out, outcome=outcome, unsolved=unsolved)


def _folder(portfolio: Path) -> Path:
    return kept_folder(portfolio.parent if portfolio.suffix in (".yaml", ".yml") else portfolio).absolute()


def _or_waiting(step: Callable[[], RecoveryStep], *, release: str | None = None) -> RecoveryStep:
    """What was done; or which request waits for approval, so that what else was asked for is done nevertheless."""
    try:
        return step()
    except ApprovalNeededError as error:
        return RecoveryStep(release=release, request=error.request, outcome=str(error), unsolved=True)
