"""Where a portfolio's ledger is, and whether it is whole.

Guarantees: a ledger that lacks an entry which is known to have been made, by a head checkpoint beside the portfolio
or by the certificate of an output, is noticed before anything else is released.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Executor
from pathlib import Path

from dpmerge.certificate.dsse import CERTIFICATE_NAME, read_certificate
from dpmerge.errors import InvalidInputError, LedgerBrokenError, LedgerError
from dpmerge.executors.named_executors import is_remote
from dpmerge.files import is_file, read_bytes
from dpmerge.ledger.head_checkpoint import check_head_checkpoint, read_head_checkpoint, update_head_checkpoint
from dpmerge.ledger.ledger import Ledger
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.releasing.kept_beside import kept_folder
from dpmerge.remote.remote_path import is_url, location

LEDGER_NAME = "privacy-ledger.sqlite"
WITNESS_NAME = ".ledger-witness"


def ledger_of(portfolio: Portfolio | str | Path | None, ledger: str | Path | None = None) -> str | Path:
    """The ledger that was named, or the one beside a portfolio."""
    if ledger is not None:
        return ledger
    if portfolio is None:
        raise InvalidInputError("ledger", None, "a portfolio, or ledger=FILE|URL (--ledger)", found="neither")
    path = portfolio.path if isinstance(portfolio, Portfolio) else location(portfolio, "portfolio")
    if is_url(path):
        raise _named_by_nobody(path)
    if not path.exists():
        remedy = "name a folder of runs, or a portfolio.yaml"
        raise InvalidInputError("portfolio", str(path), remedy, problem=f"portfolio: {path} is not there")
    return (path.parent if path.suffix in (".yaml", ".yml") else path) / LEDGER_NAME


def default_ledger(portfolio: Portfolio) -> Path:
    """The ledger beside a portfolio; beside one in a store there can be none."""
    if is_url(portfolio.path):
        raise _named_by_nobody(portfolio.path)
    return portfolio.path / LEDGER_NAME


def _named_by_nobody(path: Path) -> InvalidInputError:
    problem = f"ledger: {path} is in an object store, where nothing can be locked, so no ledger is kept beside it"
    remedy = "name one, ledger=FILE|URL (--ledger or DPMERGE_LEDGER), and the same one every time"
    return InvalidInputError("ledger", None, remedy, problem=problem)


def witnesses(portfolio: Portfolio) -> list[Path]:
    """Where a portfolio's ledger is remembered: beside it, and in the folder of every run, released from or not.

    A run that is named alone, listed elsewhere or copied still knows which ledger counts it. What is in a store
    is remembered on this machine.
    """
    return [
        kept_folder(folder, create=True) / WITNESS_NAME
        for folder in dict.fromkeys([portfolio.path, *(run.folder for run in portfolio.runs)])
    ]


def _remembering(portfolio: Portfolio) -> list[Path]:
    """Those, and what a portfolio brought along when it was copied to a store."""
    folders = dict.fromkeys([portfolio.path, *(run.folder for run in portfolio.runs)])
    return witnesses(portfolio) + [folder / WITNESS_NAME for folder in folders if is_url(folder)]


def witnesses_below(portfolio: Path) -> list[Path]:
    """The same of a portfolio that has not been loaded."""
    portfolio = location(portfolio)
    home = portfolio.parent if portfolio.suffix in (".yaml", ".yml") else portfolio
    if is_url(home):
        places = [home, *home.iterdir()]
        return [found / WITNESS_NAME for place in places for found in (kept_folder(place), place)]
    return sorted({home / WITNESS_NAME, *home.glob(f"*/{WITNESS_NAME}")})


def is_missing(place: str | Path) -> bool:
    """Whether a ledger is a file that is not there yet; of a database nobody can tell before it is opened."""
    return (isinstance(place, Path) or "://" not in place) and not Path(place).exists()


def _is_a_file(place: str | Path) -> bool:
    return isinstance(place, Path) or "://" not in place or place.startswith("sqlite:")


def opened_ledger(place: str | Path, portfolio: Portfolio, insecure_permissions: bool = False) -> Ledger:
    """The ledger, made if nothing was ever charged; one that was lost is not replaced by an empty one."""
    if is_missing(place):
        require_not_lost(place, _remembering(portfolio))
    return Ledger.open(place, insecure_permissions=insecure_permissions)


def require_shared(place: str | Path, executor: Executor | None) -> None:
    """Refuse a ledger in a file where the work is done on several machines: from each of them somebody may release."""
    if executor is None or not is_remote(executor) or not _is_a_file(place):
        return
    raise LedgerError(
        f"{place}: is a ledger in a file, which one machine can use, and the executor's workers may be on others; a "
        "ledger that several machines use must be PostgreSQL: name it, ledger=postgresql://… (--ledger or "
        "DPMERGE_LEDGER)"
    )


def require_not_lost(place: str | Path, remembered: Iterable[Path]) -> None:
    """Of a ledger that is not there: no head checkpoint says that something was charged."""
    for path in remembered:
        if (seen := read_head_checkpoint(path)) is not None:
            raise LedgerBrokenError(
                f"{place}: there is no ledger, and {path} was charged to {seen.where or seen.ledger}; name "
                "that one, ledger=… (--ledger or DPMERGE_LEDGER), or bring it back"
            )


def why_not_whole(ledger: Ledger, portfolio: Path) -> str | None:
    """What a portfolio remembers that a ledger lacks; asked of its folder and of every run's in it."""
    try:
        for path in witnesses_below(portfolio):
            check_head_checkpoint(ledger, path)
    except LedgerBrokenError as error:
        return str(error)
    return None


def require_whole_ledger(ledger: Ledger, portfolio: Portfolio, out: Path | None) -> None:
    """Notice a ledger that was restored from an older backup: an entry that is known to have been made is not there."""
    for path in _remembering(portfolio):
        check_head_checkpoint(ledger, path)
    if out is not None and is_file(file := out / CERTIFICATE_NAME):
        try:
            entry = read_certificate(read_bytes(file)).content["ledger"]
            known = entry["id"] != ledger.id or ledger.contains(entry["entry"], entry["hash"])
        except (InvalidInputError, KeyError, TypeError):
            return  # not a certificate of ours: whether it may be replaced is another question
        if not known:
            raise LedgerBrokenError(
                f"{out} was charged in this ledger (entry {entry['entry']}), which has no such entry: it was restored "
                "from an older backup; run `dpmerge ledger recover --adopt` with the outputs made since"
            )


def witness(ledger: Ledger, portfolio: Portfolio) -> None:
    """Remember the newest entry beside the portfolio and in the folders of its runs."""
    for path in witnesses(portfolio):
        update_head_checkpoint(ledger, path)
