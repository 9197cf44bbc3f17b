"""`dpmerge verify` and `dpmerge keygen`: certificates, from the reader's side and the maker's."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpmerge.cli.options import INSECURE, LEDGER, PASSPHRASE, require_jobs
from dpmerge.cli.terminal import AsJson, one_line_errors, print_json, say, wide_console
from dpmerge.errors import InvalidInputError, printable

if TYPE_CHECKING:
    from rich.console import Console

    from dpmerge.certificate.checks import Verification


def verify(
    context: typer.Context,
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
    allow_extra: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A file or folder in OUT that the certificate need not cover; repeatable."),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Threads for merging again.")] = 2,
    insecure_permissions: INSECURE = False,
    revocations: Annotated[
        str | None, typer.Option(metavar="FILE|URL", help="A signed list of revocations, on which it must not be.")
    ] = None,
    revocation_key: Annotated[
        list[Path] | None,
        typer.Option(help="A public key that may sign that list; again for each. Default: the certificate's keys."),
    ] = None,
    timestamp_roots: Annotated[
        Path | None,
        typer.Option(metavar="PEM", help="Roots of authorities; of one of them the certificate must have a timestamp."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Is this model what its certificate says, and does the guarantee follow?

    Trusts no stored number: digests, figures and the model card are computed again, the guarantee from the mechanisms
    and the plan inside the certificate. Anything in OUT that is not certified fails, and so does any link. With
    `--portfolio` also that it was made from those runs by who has their salt, and that the ledger beside them (or
    `--ledger`) has charged it. With `--revocations` also that nobody who may has revoked it, or its key.

    Exit codes: 0 verified, 1 not verified (every reason is listed), 2 could not run.

    Example: `dpmerge verify merged --portfolio examples/mnist --rebuild`
    """
    with one_line_errors():
        from dpmerge.releasing.verifying import verify as check

        require_jobs(jobs)
        source = context.get_parameter_source("ledger")
        if portfolio is None and source is not None and source.name == "ENVIRONMENT":
            ledger = None  # one's own ledger says nothing of a stranger's output
        result = check(
            output,
            portfolio=portfolio,
            key=key or None,
            trusted_keys=trusted_keys,
            ledger=ledger,
            rebuild=rebuild,
            allow_extra=allow_extra or (),
            jobs=jobs,
            insecure_permissions=insecure_permissions,
            revocations=revocations,
            revocation_key=revocation_key or None,
            timestamp_roots=timestamp_roots,
        )
    if as_json:
        print_json(result.document())
    else:
        _print(result, wide_console())
    if not result.verified:
        raise typer.Exit(1)


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
        bound = any(check.name == "binding" and check.passed for check in result.checks)
        who = "whoever keeps the portfolio stated those" if bound else "who states those is not known"
        words = f"the figures follow from the terms; {who}"
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
        problem = "passphrase: there is no terminal to ask for it at"
        raise InvalidInputError("passphrase", None, f"give it in {PASSPHRASE}", problem=problem)
    return str(typer.prompt("Passphrase", hide_input=True, confirmation_prompt=True, err=True))
