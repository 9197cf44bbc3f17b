"""What the verbs have in common: their options, the portfolio they load, files they refuse beforehand."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpmerge.errors import CannotWriteError, InvalidInputError, printable
from dpmerge.remote.remote_path import is_url

if TYPE_CHECKING:
    from dpmerge.portfolio.portfolio import Portfolio
    from dpmerge.releasing.portfolio_ledger import PortfolioLedger

PASSPHRASE = "DPMERGE_KEY_PASSPHRASE"  # noqa: S105  (where it is, not what it is)

PORTFOLIO = Annotated[
    Path, typer.Argument(metavar="PORTFOLIO", help="A folder of runs, one run's folder, a portfolio.yaml, or its URL.")
]
DELTA = Annotated[float, typer.Option(help="The δ of every guarantee.")]
EVALUATOR = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:FUNCTION",
        help="The function that scores a merged model; or `linear:FILE.npz`, the accuracy of a linear classifier on "
        "that data; or `lm_eval:TASK`, a language model's benchmark.",
    ),
]
CACHE = Annotated[
    Path | None, typer.Option(help="Keep scores in this file: the same command goes on from there after an interrupt.")
]
JOBS = Annotated[
    int,
    typer.Option(help="Threads that call the evaluator; more than 1 only if it may be called from several at once."),
]
EXECUTOR = Annotated[
    str | None,
    typer.Option(
        metavar="WHERE",
        help="Where independent work is done: `threads:N`, `processes:N`, `ray` (this machine, or RAY_ADDRESS), "
        "`ray://HOST:PORT`, `dask://HOST:PORT`, or `module:function`, which returns a concurrent.futures.Executor.",
    ),
]
WORKERS_PER_NODE = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="With Ray: pieces of work at a time on each node; default: one a GPU, or else one a core."
    ),
]
CONVERSION = Annotated[
    str | None,
    typer.Option(help="With `rdp`: `improved` (the default), or `classic`, the paper's, by which ε is larger."),
]
CHECKPOINTS = Annotated[
    str,
    typer.Option(
        metavar="WHICH",
        help="The models: `all`, `final` (the last one kept of each run), or run@step, comma-separated.",
    ),
]
ALLOW = Annotated[
    list[str] | None,
    typer.Option(
        help="Average runs although they have `different_initial_weights` or `different_frozen_tensors`; repeatable."
    ),
]
LEDGER = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|URL",
        envvar="DPMERGE_LEDGER",
        help="The ledger of releases: a file, or postgresql://…; default: the one beside the portfolio.",
    ),
]
LEDGER_OF = Annotated[
    Path | None,
    typer.Argument(
        metavar="PORTFOLIO", help="The portfolio whose ledger is meant: a folder of runs. Or give `--ledger`."
    ),
]
REQUESTER_KEY = Annotated[
    Path | None,
    typer.Option(
        envvar="DPMERGE_REQUESTER_KEY",
        help="Your private key, to sign the request where the ledger's policy asks for a second person.",
    ),
]
HEADERS_ONLY = Annotated[
    bool,
    typer.Option("--headers-only", help="Read the headers of weight files only: faster, but digests are not checked."),
]

REHASH = Annotated[
    bool,
    typer.Option("--rehash", help="Read every weight: digests that are remembered of unchanged files are not used."),
]
INSECURE = Annotated[
    bool,
    typer.Option(
        "--insecure-permissions",
        help="Go on although other users may read the private key or the salt, or write the ledger.",
    ),
]


def loaded_portfolio(path: Path, headers_only: bool, allow: Iterable[str] | None, *, rehash: bool = False) -> Portfolio:
    from dpmerge.portfolio.portfolio import Portfolio

    contents = False if headers_only else None
    return Portfolio.load(path, contents=contents, rehash=rehash, allow=tuple(allow or ()))  # type: ignore[arg-type]


def require_writable(field: str, file: Path | None) -> None:
    """Refuse before hours of work what cannot be written after them."""
    if file is None or is_url(file):
        return
    try:
        taken = not file.name or (file.exists() and not file.is_file())
    except OSError as error:
        raise CannotWriteError.from_os(error, field=field, path=file, accepted="the name of a file") from None
    if taken:
        raise InvalidInputError(field, str(file), "name another", problem=f"{field}: {file} is no ordinary file")
    require_folder(field, file.parent)


def require_folder(field: str, folder: Path) -> None:
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        problem = f"{field}: {folder} is no folder that can be written to"
        raise InvalidInputError(field, str(folder), "make it, or name another", problem=problem)


def ledger_place(portfolio: Path | None, ledger: str | None) -> str | Path:
    """The ledger that was named, or the one beside a portfolio."""
    from dpmerge.releasing.ledger_location import ledger_of

    return ledger_of(portfolio, ledger)


def opened_ledger(
    portfolio: Path | None, ledger: str | None, insecure_permissions: bool, *, create: bool = False
) -> PortfolioLedger:
    from dpmerge.releasing.portfolio_ledger import PortfolioLedger

    return PortfolioLedger.of(portfolio, ledger=ledger, create=create, insecure_permissions=insecure_permissions)


def asked_passphrase(key: Path) -> str:
    """The passphrase of a key: from DPMERGE_KEY_PASSPHRASE, or asked for at a terminal, once."""
    if (given := os.environ.get(PASSPHRASE)) is not None:
        return given
    if not sys.stdin.isatty():
        problem = f"key: {key} has a passphrase, and there is no terminal to ask for it at"
        raise InvalidInputError("key", str(key), f"give it in {PASSPHRASE}", problem=problem)
    return _typed_passphrase(key)


@cache
def _typed_passphrase(key: Path) -> str:
    return str(typer.prompt(f"Passphrase of {printable(str(key))}", hide_input=True, err=True))


def require_jobs(jobs: int) -> None:
    if jobs < 1:
        raise InvalidInputError("jobs", jobs, "an integer ≥ 1")


@contextmanager
def opened_executor(
    name: str | None, workers_per_node: int | None, *, jobs: int = 1, gpus: bool = False
) -> Iterator[Executor | None]:
    """Where independent work is done, as long as the context is; None: here, one piece after the other."""
    require_jobs(jobs)
    if name is None:
        if workers_per_node is not None:
            raise InvalidInputError("workers-per-node", workers_per_node, "--executor ray or ray://HOST:PORT beside it")
        name = f"threads:{jobs}" if jobs > 1 else None
    elif jobs > 1:
        raise InvalidInputError("jobs", jobs, f"no --jobs beside --executor {name}, which says it")
    if name is None:
        yield None
        return
    from dpmerge.executors.named_executors import open_executor

    with open_executor(name, workers_per_node=workers_per_node, gpus=gpus) as executor:
        yield executor


def to_go_on(cache: Path | None, evaluator: str | None, *, private: bool = False) -> str:
    """What to say to who interrupts."""
    if evaluator is None or private:
        return ""
    kept = f"scores so far are in {cache}, the same command goes on from there"
    return kept if cache is not None else "--cache FILE would have kept the scores"


def numbers(field: str, text: str | None) -> dict[str, float]:
    """name=number, separated by commas."""
    accepted = "run@step=number, separated by commas"
    if text is None:
        raise InvalidInputError(field, None, accepted, found="nothing")
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = (piece.strip() for piece in part.rpartition("="))
        try:
            value = float(number)
        except ValueError:
            raise InvalidInputError(field, part, accepted) from None
        if not name or name in found:
            raise InvalidInputError(field, part, accepted + ", each once")
        found[name] = value
    return found
