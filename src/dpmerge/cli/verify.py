"""`dpmerge verify` and `dpmerge keygen`: certificates, from the reader's side and the maker's."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpmerge.cli.options import INSECURE, LEDGER, PASSPHRASE, loaded_portfolio, require_jobs
from dpmerge.cli.terminal import AsJson, one_line_errors, print_json, say, wide_console
from dpmerge.errors import InvalidInput, printable

if TYPE_CHECKING:
    from rich.console import Console

    from dpmerge.certificate.checks import Check, Verification


def verify(
    output: Annotated[Path, typer.Argument(metavar="OUT", help="The folder of a release.")],
    portfolio: Annotated[
        Path | None, typer.Option(help="What it was made from: opens the commitments, compares the manifests.")
    ] = None,
    key: Annotated[
        list[Path] | None, typer.Option(help="A public key it may be signed with; again for each, one is enough.")
    ] = None,
    trusted_keys: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A list of such keys, with the times they are trusted in.")
    ] = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Merge again and compare the bytes.")] = False,
    ledger: LEDGER = None,
    jobs: Annotated[int, typer.Option(help="Threads for merging again.")] = 2,
    insecure_permissions: INSECURE = False,
    as_json: AsJson = False,
) -> None:
    """Is this model what its certificate says, and does the guarantee follow?

    Trusts no stored number: digests, figures and the model card are computed again, the guarantee from the mechanisms
    and the plan inside the certificate. With `--portfolio` also that it was made from those runs, and that the ledger
    beside them has charged it.

    Exit codes: 0 verified, 1 not verified (every reason is listed), 2 could not run.

    Example: `dpmerge verify merged --portfolio examples/mnist --rebuild`
    """
    with one_line_errors():
        from dpmerge.certificate.verification import verify as check

        require_jobs(jobs)
        if portfolio is None and rebuild:
            raise InvalidInput("portfolio", None, "the portfolio it was made from, for --rebuild", found="nothing")
        result = check(
            output,
            portfolio=portfolio,
            key=key or None,
            trusted_keys=trusted_keys,
            insecure_permissions=insecure_permissions,
        )
        if rebuild and portfolio is not None and result.declared is not None:
            from dpmerge.releasing.rebuilding import rebuilt

            allowed = result.declared.portfolio.allowed
            loaded = loaded_portfolio(portfolio, headers_only=True, allow=allowed)
            result = result.with_check(rebuilt(result, loaded, jobs=jobs))
        if portfolio is not None or ledger is not None:
            result = _with_ledger(result, portfolio, ledger, insecure_permissions)
    if as_json:
        print_json(result.document())
    else:
        _print(result, wide_console())
    if not result.verified:
        raise typer.Exit(1)


def _with_ledger(
    result: Verification, portfolio: Path | None, where: str | None, insecure_permissions: bool
) -> Verification:
    """Whether the release was charged, where the ledger can be asked."""
    from dpmerge.certificate.checks import Check
    from dpmerge.cli.options import ledger_place

    declared = result.declared
    if declared is None:
        return result
    place = ledger_place(portfolio, where)
    if where is None and not Path(place).exists():
        words = "there is no ledger beside the portfolio; --ledger names one"
        return result.with_check(Check("ledger", None, (words,)))
    from dpmerge.ledger.ledger import Ledger

    with Ledger.open(place, create=False, insecure_permissions=insecure_permissions) as ledger:
        if ledger.id != declared.ledger.id:
            return result.with_check(Check("ledger", None, (f"charged in another one, {declared.ledger.id}",)))
        charged = ledger.contains(declared.ledger.entry, declared.ledger.hash)
        known = ledger.release(declared.release)
    return result.with_check(_charged(charged, known, result))


def _charged(charged: bool, known: object, result: Verification) -> Check:
    from dpmerge.certificate.checks import Check, file_digest
    from dpmerge.certificate.envelope import CERTIFICATE_NAME
    from dpmerge.ledger.request import Charged

    if not isinstance(known, Charged) or not (charged or known.adopted):
        return Check("ledger", False, ("has no such entry: it was restored from an older backup, or never charged",))
    declared = result.declared
    assert declared is not None
    if known.output is not None and dict(known.output.files) != dict(result.files):
        return Check("ledger", False, ("recorded other files for this release",))
    if known.terms != declared.terms or known.final != declared.final:
        return Check("ledger", False, ("charged other terms for this release",))
    if declared.drawn is not None and known.index is not None and known.index != declared.drawn:
        return Check("ledger", False, ("drew another candidate for this release",))
    if known.output is not None and known.output.certificate != file_digest(result.path / CERTIFICATE_NAME):
        return Check("ledger", False, ("recorded another certificate for this release",))
    return Check("ledger", True)


def _print(result: Verification, console: Console) -> None:
    from rich.padding import Padding
    from rich.text import Text

    marks = {True: ("✓", "green"), False: ("✗", "bold red"), None: ("–", "yellow")}
    for check in result.checks:
        mark, style = marks[check.passed]
        console.print(Text(f"{mark} {check.name}", style=style))
        for reason in check.found:
            console.print(Padding(Text(printable(reason)), (0, 0, 0, 4)))
    if not result.verified:
        count = len(result.problems)
        console.print(Text(f"\nNOT VERIFIED: {count} reason{'' if count == 1 else 's'}, above.", style="bold red"))
        return
    content = result.content
    guarantee, terms = content["guarantee"], content["terms"]
    proved = "" if content["proved"] else ", under assumptions these runs do not meet"
    paid = "" if content["choice"]["paidFor"] else ", not counting how it was chosen"
    console.print(
        Text(
            f"\nVerified: ε = {guarantee['epsilon']} at δ = {guarantee['delta']!r} per {terms['unit']} "
            f"({terms['adjacency']}) by {content['theorem']}{proved}{paid}",
            style="bold" if content["proved"] and not paid else "bold yellow",
        )
    )
    unchecked = [check.found[0] for check in result.checks if check.name == "signature" and check.passed is None]
    if unchecked:
        words = "the figures follow from the terms; who states those is not known"
        console.print(Text(f"{unchecked[0].capitalize()}: {words}."))
    doubts = sorted({caveat["name"].replace("_", " ") for caveat in content["caveats"]})
    if doubts:
        console.print(Text(f"Caveats, in the model card: {', '.join(doubts)}."))


def keygen(
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the private key goes; FILE.pub is beside it.")],
    passphrase: Annotated[
        bool,
        typer.Option("--passphrase", help=f"Lock the private key with one: from {PASSPHRASE}, or asked for."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a key pair (ed25519) to sign certificates with.

    The private key is for `dpmerge merge --key`, and for nobody else; the public one, FILE.pub, is for everybody who
    wants to check with `dpmerge verify --key`. No file is ever overwritten. A key with a passphrase asks for it when it
    signs, or takes it from DPMERGE_KEY_PASSPHRASE.

    Example: `dpmerge keygen -o signing-key.pem`
    """
    with one_line_errors():
        from dpmerge.certificate.keys import generate

        public, identity = generate(output, _new_passphrase() if passphrase else None)
        if as_json:
            print_json({"private": str(output), "public": str(public), "keyid": identity})
            return
    say(f"Private key: {output} (keep it to yourself)", f"Public key:  {public}", f"Key id:      {identity}")


def _new_passphrase() -> str:
    if (given := os.environ.get(PASSPHRASE)) is not None:
        return given
    if not sys.stdin.isatty():
        raise InvalidInput("passphrase", None, f"{PASSPHRASE}, or a terminal to ask at", found="neither")
    return str(typer.prompt("Passphrase", hide_input=True, confirmation_prompt=True, err=True))
