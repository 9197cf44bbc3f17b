"""`dpmerge revocations …`: a signed list of certificates and keys that are no longer to be believed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpmerge.cli.options import INSECURE, asked_passphrase
from dpmerge.cli.terminal import AsJson, one_line_errors, print_json, say

if TYPE_CHECKING:
    from dpmerge.certificate.revocation_list import RevocationList

app = typer.Typer(
    help="A signed list of certificates and keys that are no longer to be believed.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

LIST = Annotated[Path, typer.Argument(metavar="LIST", help="The file of the list; a new one if there is none.")]
KEY = Annotated[Path, typer.Option(help="The private key to sign the list with.")]
DAYS = Annotated[int, typer.Option(help="How long the list counts; sign it again before then.")]
PREVIOUS = Annotated[
    Path | None, typer.Option(help="The public key that the list was signed with before, where that was another.")
]


@app.command()
def add(
    listed: LIST,
    key: KEY,
    reason: Annotated[
        str,
        typer.Option(help="`epsilon_too_small`, `false_statement`, `key_compromised`, `superseded` or `withdrawn`."),
    ],
    certificate: Annotated[
        Path | None, typer.Argument(metavar="OUT", help="The folder of a release, or its certificate.")
    ] = None,
    public_key: Annotated[
        Path | None, typer.Option(help="Revoke a key instead, with everything that it has signed.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Of a key: what a timestamp shows to be older than this stays valid."),
    ] = None,
    note: Annotated[str | None, typer.Option(metavar="TEXT", help="More about the reason, one line.")] = None,
    days: DAYS = 30,
    previous_key: PREVIOUS = None,
    insecure_permissions: INSECURE = False,
    as_json: AsJson = False,
) -> None:
    """Revoke a certificate, or a key: enter it into a list, and sign the list again.

    Nothing is ever taken off a list, and its number grows each time it is signed. Publish it where people look for it;
    they check with `dpmerge verify OUT --key … --revocations LIST`.

    Example: `dpmerge revocations add revoked.json merged --key signing.pem --reason epsilon_too_small`
    """
    with one_line_errors():
        from dpmerge.releasing.revoking import revoke

        found = revoke(
            listed,
            certificate,
            key=key,
            reason=reason,  # type: ignore[arg-type]
            public_key=public_key,
            since=since,
            note=note,
            days=days,
            previous_key=previous_key,
            passphrase=asked_passphrase,
            insecure_permissions=insecure_permissions,
        )
    _print_written(listed, found, as_json)


@app.command()
def renew(
    listed: LIST,
    key: KEY,
    days: DAYS = 30,
    previous_key: PREVIOUS = None,
    insecure_permissions: INSECURE = False,
    as_json: AsJson = False,
) -> None:
    """Sign a list again as it is, so that it counts for longer; or make an empty one.

    A list that is past its time proves nothing: who verifies with it is told so, and fails.

    Example: `dpmerge revocations renew revoked.json --key signing.pem --days 30`
    """
    with one_line_errors():
        from dpmerge.releasing.revoking import renew as sign_again

        found = sign_again(
            listed,
            key=key,
            days=days,
            previous_key=previous_key,
            passphrase=asked_passphrase,
            insecure_permissions=insecure_permissions,
        )
    _print_written(listed, found, as_json)


@app.command()
def show(
    listed: Annotated[str, typer.Argument(metavar="LIST", help="The file of a list, or its http(s) address.")],
    key: Annotated[
        list[Path] | None, typer.Option(help="A public key it may be signed with; again for each, one is enough.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What is on a list of revocations, and does it count?

    Exit codes: 0 it counts (without `--key`: its signature was not checked), 1 it does not, 2 could not run.

    Example: `dpmerge revocations show revoked.json --key signing.pem.pub`
    """
    with one_line_errors():
        from dpmerge.releasing.revoking import read_revocations

        found = read_revocations(listed, key=key or None)
        if as_json:
            print_json(found.document())
        else:
            _print_entries(found.listed)
            checked = "signed with a given key" if found.signature_checked else "signature not checked (--key)"
            say(*(f"NOT TO BE BELIEVED: {why}" for why in found.problems) if found.problems else (checked,))
    if found.problems:
        raise typer.Exit(1)


def _print_written(file: Path, found: RevocationList, as_json: bool) -> None:
    if as_json:
        print_json({"file": str(file), **found.document()})
        return
    say(str(file))
    _print_entries(found)


def _print_entries(found: RevocationList) -> None:
    content = found.content
    say(f"List {content.sequence} of {content.issued}, counts until {content.next_update}")
    for each in content.entries:
        named = f"certificate {each.certificate}" if each.certificate is not None else f"key {each.key}"
        say(f"  {named}", f"    {each.words()}")
    if not content.entries:
        say("  nothing is revoked")
