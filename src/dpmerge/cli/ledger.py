"""`dpmerge ledger …`: what has left of the data, what it has cost, and the cap that holds it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpmerge.cli.options import ALLOW, INSECURE, LEDGER, asked_passphrase, ledger_place, loaded_portfolio
from dpmerge.cli.terminal import AsJson, bytes_shown, one_line_errors, print_json, say, wide_console
from dpmerge.errors import InvalidInput, LedgerError, printable

if TYPE_CHECKING:
    from dpmerge.ledger.ledger import Ledger
    from dpmerge.ledger.standing import Standing

app = typer.Typer(
    help="What has left of the data, what it has cost together, and the cap that holds it.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

WHERE = Annotated[
    Path | None,
    typer.Argument(metavar="[PORTFOLIO]", help="The portfolio beside which the ledger is; or give `--ledger`."),
]
AT_DELTA = Annotated[float, typer.Option(help="The δ at which ε is given.")]


@app.command()
def show(
    where: WHERE = None,
    ledger: LEDGER = None,
    delta: AT_DELTA = 1e-5,
    insecure_permissions: INSECURE = False,
    as_json: AsJson = False,
) -> None:
    """Every release, every run that was looked at, and the cap.

    Example: `dpmerge ledger show examples/mnist`
    """
    with one_line_errors(), _opened(where, ledger, insecure_permissions) as opened:
        standings = [opened.standing(book, delta) for book in opened.books()]
        doubt = _doubt(opened, where)
        _warn(doubt)
        if as_json:
            print_json({"ledger": opened.id, "doubt": doubt, "books": [_document(each) for each in standings]})
            return
        from dpmerge.ledger.ledger_table import print_standing

        console = wide_console()
        if not standings:
            console.print(f"{printable(opened.where)}: nothing has been released or capped yet")
        for each in standings:
            print_standing(each, console)


@app.command()
def spent(
    where: WHERE = None,
    ledger: LEDGER = None,
    delta: AT_DELTA = 1e-5,
    insecure_permissions: INSECURE = False,
    as_json: AsJson = False,
) -> None:
    """What everything that has left costs together: one line for each book.

    Example: `dpmerge ledger spent examples/mnist --delta 1e-5`
    """
    with one_line_errors(), _opened(where, ledger, insecure_permissions) as opened:
        standings = [opened.standing(book, delta) for book in opened.books()]
        _warn(_doubt(opened, where))
        if as_json:
            names = ("book", "delta", "epsilon", "why", "cap", "left", "caveats")
            print_json([{name: _document(each)[name] for name in names} for each in standings])
            return
        from dpmerge.ledger.ledger_table import cost_line

        for each in standings:
            say(cost_line(each))
        if not standings:
            say("ε = 0: nothing has been released")


@app.command()
def cap(
    portfolio: Annotated[Path, typer.Argument(metavar="PORTFOLIO", help="Runs on the data to be protected.")],
    epsilon: Annotated[float, typer.Option(help="Everything that ever leaves keeps within this ε …")],
    delta: Annotated[float, typer.Option(help="… at this δ.")],
    rule: Annotated[
        str,
        typer.Option(
            help="`ceiling` (what may ever be looked at is fixed now), `gaussian_filter` (full-batch runs) or "
            "`renyi_filter` (also draws and sampled runs)."
        ),
    ] = "ceiling",
    ceiling: Annotated[
        str | None,
        typer.Option(metavar="RUN@STEP,…", help="For ceiling: how far runs may ever be looked at; default: what fits."),
    ] = None,
    order: Annotated[
        float | None, typer.Option(help="For renyi_filter: the one Rényi order; default: the best for Gaussians.")
    ] = None,
    ledger: LEDGER = None,
    allow: ALLOW = None,
    insecure_permissions: INSECURE = False,
    as_json: AsJson = False,
) -> None:
    """Promise that everything ever released of this data keeps within (ε, δ).

    The rule that guards it is fixed with it. A release that would pass the cap is refused (exit code 1), nothing
    charged. Set it before the first release: set later, it holds only if whoever set it did not look at what had left.

    Example: `dpmerge ledger cap examples/mnist --epsilon 2 --delta 1e-5 --rule gaussian_filter`
    """
    with one_line_errors():
        from dpmerge.ledger.entries import Book
        from dpmerge.ledger.ledger import Ledger

        loaded = loaded_portfolio(portfolio, headers_only=True, allow=allow)
        made = _cap(loaded, epsilon, delta, rule, ceiling, order)
        book = Book(loaded.dataset, loaded.unit, loaded.adjacency.value)
        place = ledger_place(portfolio, ledger)
        with Ledger.open(place, insecure_permissions=insecure_permissions) as opened:
            from dpmerge.releasing.place import require_whole_ledger, witness

            require_whole_ledger(opened, loaded, None)
            opened.set_cap(book, made)
            witness(opened, loaded)
            result = opened.standing(book, delta)
        if as_json:
            print_json(_document(result))
            return
        from dpmerge.ledger.ledger_table import print_standing

        print_standing(result, wide_console())


def _cap(loaded: Any, epsilon: float, delta: float, rule: str, ceiling: str | None, order: float | None) -> Any:
    from dpmerge.ledger.caps import Cap

    if rule != "ceiling":
        if ceiling is not None:
            raise InvalidInput("ceiling", ceiling, f"nothing with the rule {rule}")
        return Cap(epsilon=epsilon, delta=delta, rule=rule, order=order)  # type: ignore[arg-type]
    if order is not None:
        raise InvalidInput("order", order, "nothing with the rule ceiling")
    from dpmerge.releasing.ceiling import ceiling_steps

    names = None if ceiling is None else [part.strip() for part in ceiling.split(",")]
    steps = ceiling_steps(loaded, epsilon, delta, names)
    return Cap.of_manifests(epsilon, delta, steps, [run.manifest for run in loaded.runs])


@app.command()
def recover(
    where: WHERE = None,
    ledger: LEDGER = None,
    abandon: Annotated[
        list[str] | None, typer.Option(metavar="RELEASE", help="Give this pending release up; it stays charged.")
    ] = None,
    adopt: Annotated[
        list[Path] | None,
        typer.Option(metavar="OUT", help="Count this output, whose entry the ledger has lost (restored backup)."),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(help="The public key that adopted outputs are signed with; without it every run counts whole."),
    ] = None,
    accept: Annotated[
        bool,
        typer.Option("--accept", help="Vouch that every output that is missing was adopted; noted for ever."),
    ] = False,
    jobs: Annotated[int, typer.Option(help="Threads for merging.")] = 2,
    insecure_permissions: INSECURE = False,
    as_json: AsJson = False,
) -> None:
    """Finish what was charged and not finished, with the same draw; or count what a restored ledger has lost.

    A release that was killed after it was charged is pending. It is made now, exactly as it was ordered, or given up
    with `--abandon` (it stays charged: nobody can prove that nothing left). After a ledger was restored from an older
    backup, name every output made since with `--adopt`, and confirm with `--accept` that there are no others. A
    certificate that nobody signed may be forged: without `--key` everything that any run holds counts as released.

    Example: `dpmerge ledger recover examples/mnist`
    """
    with one_line_errors("what is not finished stays pending"), _opened(where, ledger, insecure_permissions) as opened:
        if abandon:
            done = _given_up(opened, abandon)
        elif adopt or accept:
            done = _counted_again(opened, where, adopt or [], key, accept)
        elif (doubt := _doubt(opened, where)) is not None:
            raise LedgerError(doubt)
        else:
            done = _finished(opened, where, jobs, insecure_permissions)
    problems = any(line["outcome"].startswith(("still pending", "finished:")) for line in done)
    if as_json:
        print_json(done)
    else:
        for line in done:
            say(" ".join(str(line[name]) for name in ("release", "out", "outcome") if name in line))
        if not done:
            say("Nothing is pending.")
    if problems:
        raise typer.Exit(2)


def _given_up(opened: Ledger, abandon: list[str]) -> list[dict[str, Any]]:
    from dpmerge.releasing import recovery

    ids = [_whole_id(opened, start) for start in abandon]
    for each in ids:
        recovery.abandon(opened, each)
    return [{"release": each, "outcome": "abandoned"} for each in ids]


def _counted_again(
    opened: Ledger, where: Path | None, adopt: list[Path], key: Path | None, accept: bool
) -> list[dict[str, Any]]:
    from dpmerge.releasing import recovery

    if where is None:
        raise InvalidInput("portfolio", None, "the portfolio the outputs were made from", found="nothing")
    loaded = loaded_portfolio(where, headers_only=True, allow=None)
    how = "adopted" if key is not None else "adopted; no --key, so every run counts as released to its last step"
    done = [{"release": recovery.adopt(opened, o, loaded, key=key), "out": str(o), "outcome": how} for o in adopt]
    doubt = _doubt(opened, where)
    if accept and doubt is not None:
        recovery.accept(opened, loaded)
        done.append({"outcome": "the ledger counts as whole again; that somebody said so is noted for ever"})
    elif accept:
        done.append({"outcome": "nothing to accept: the ledger has all that is known to have been charged"})
    elif doubt is not None:
        done.append({"outcome": "name every other output made since, then confirm with --accept that this is all"})
    return done


def _finished(opened: Ledger, where: Path | None, jobs: int, insecure: bool) -> list[dict[str, Any]]:
    from dpmerge.releasing import recovery

    done = []
    with bytes_shown("merging") as progress:
        for each in recovery.recover(
            opened,
            moved_to=where,
            jobs=jobs,
            progress=progress,
            passphrase=asked_passphrase,
            insecure_permissions=insecure,
        ):
            outcome = "still pending" if each.pending else "finished"
            outcome += "" if each.problem is None else f": {each.problem}"
            done.append({"release": each.release_id, "out": each.out, "outcome": outcome})
    return done


@app.command()
def verify(
    where: WHERE = None, ledger: LEDGER = None, insecure_permissions: INSECURE = False, as_json: AsJson = False
) -> None:
    """Walk the chain and count every cost again; exit code 1 names the first entry that does not hold.

    Example: `dpmerge ledger verify examples/mnist`
    """
    with one_line_errors(), _opened(where, ledger, insecure_permissions) as opened:
        verdict = opened.verify()
        doubt = _doubt(opened, where)
    if as_json:
        print_json({**dataclasses.asdict(verdict), "ok": verdict.ok and doubt is None, "doubt": doubt})
    elif verdict.ok and doubt is not None:
        _warn(doubt)
    elif verdict.ok:
        say(f"{verdict.count} entries, each sealed to the one before; every cost comes out as charged")
    else:
        say(f"entry {verdict.broken}: {verdict.why}", err=True)
    if not verdict.ok or doubt is not None:
        raise typer.Exit(1)


@app.command()
def export(
    where: WHERE = None,
    ledger: LEDGER = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="A file; default: standard output.")] = None,
    insecure_permissions: INSECURE = False,
) -> None:
    """Every entry as JSON. Not for release: it names runs that nobody has seen.

    Example: `dpmerge ledger export examples/mnist -o ledger.json`
    """
    with one_line_errors(), _opened(where, ledger, insecure_permissions) as opened:
        document = opened.export()
        if output is None:
            print_json(document)
            return
        import json

        from dpmerge.portfolio.manifest import write_atomically

        try:
            write_atomically(output, (json.dumps(document, indent=1) + "\n").encode())
        except OSError as error:
            found = f"{output} ({error.strerror})"
            raise InvalidInput("output", str(output), "a file that can be written", found=found) from None


def _whole_id(opened: Ledger, start: str) -> str:
    """The release whose id begins so, as `show` prints it."""
    ids = [pending.release_id for pending in opened.pending()]
    found = [each for each in ids if each.startswith(start)]
    if len(found) != 1:
        raise InvalidInput("abandon", start, f"a pending release: {', '.join(ids) or 'there is none'}")
    return found[0]


def _doubt(opened: Ledger, where: Path | None) -> str | None:
    """Why this may not be the whole ledger of the portfolio, by what the portfolio remembers of it."""
    from dpmerge.releasing.place import why_not_whole

    return None if where is None else why_not_whole(opened, where)


def _warn(doubt: str | None) -> None:
    if doubt is not None:
        say(f"warning: {' '.join(doubt.split())}", err=True)


def _opened(where: Path | None, ledger: str | None, insecure_permissions: bool) -> Ledger:
    from dpmerge.ledger.ledger import Ledger

    place = ledger_place(where, ledger)
    if isinstance(place, Path) and not place.exists():
        raise LedgerError(f"{place}: there is no ledger; accepted: one in which something was released or capped")
    return Ledger.open(place, create=False, insecure_permissions=insecure_permissions)


def _document(standing: Standing) -> dict[str, Any]:
    document = dataclasses.asdict(standing)
    if standing.cap is not None:
        kept = ("epsilon", "delta", "rule", "order")
        document["cap"] = {name: document["cap"][name] for name in kept}
        document["cap"]["ceiling"] = {r.name: r.ceiling for r in standing.runs if r.ceiling is not None}
    return document
