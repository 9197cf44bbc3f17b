"""`dpmerge ledger policy`, `approve` and `deny`: a second person for what cannot be taken back."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpmerge.cli.options import INSECURE, LEDGER, LEDGER_OF, REQUESTER_KEY, asked_passphrase, opened_ledger
from dpmerge.cli.terminal import AsJson, one_line_errors, print_json, say
from dpmerge.errors import InvalidInputError

if TYPE_CHECKING:
    from dpmerge.ledger.waiting_requests import WaitingRequest

REQUEST = Annotated[str, typer.Argument(metavar="REQUEST", help="The beginning of its id, 12 digits or more.")]
KEY = Annotated[Path, typer.Option(help="Your private key: of somebody whom the policy names.")]
YES = Annotated[bool, typer.Option("--yes", help="Do not ask whether that is meant.")]


def policy(
    portfolio: LEDGER_OF = None,
    approvals: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="So many people stand behind a final release, a cap, `--accept`, `--abandon` and a new policy, the "
            "one who asks included: 2 is who asks and one more, 1 is nobody else.",
        ),
    ] = None,
    person: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE",
            help="Who counts, and the file of their public key; repeat it for everybody. Default: as before.",
        ),
    ] = None,
    days: Annotated[
        int | None, typer.Option(help="For how long a request is open. Default: as before, and 7 at first.")
    ] = None,
    requester_key: REQUESTER_KEY = None,
    ledger: LEDGER = None,
    insecure_permissions: INSECURE = False,
    as_json: AsJson = False,
) -> None:
    """Say how many people must agree, and who they are; without options, print the policy in force.

    A policy that asks for others is changed by its own rules: the change is requested (exit code 3), approved, and
    then made by the same command.

    Example: `dpmerge ledger policy examples/mnist`
    """
    changed = (approvals, person, days) != (None, None, None)
    with (
        one_line_errors(as_json=as_json),
        opened_ledger(portfolio, ledger, insecure_permissions, create=changed) as opened,
    ):
        from dpmerge.ledger.waiting_requests import described_policy

        found = opened.change_policy(
            approvals=approvals,
            people=None if person is None else _people(person),
            days=days,
            requester_key=requester_key,
            passphrase=asked_passphrase,
        )
        if as_json:
            print_json(found.body())
        else:
            say(described_policy(found))


def approve(
    request: REQUEST,
    key: KEY,
    portfolio: LEDGER_OF = None,
    ledger: LEDGER = None,
    yes: YES = False,
    insecure_permissions: INSECURE = False,
    as_json: AsJson = False,
) -> None:
    """Approve exactly what a request asks for, with your signature; whoever asked cannot.

    It is shown first, and asked about at a terminal. Once nobody is missing any more, the command that asked for it
    carries it out, once.

    Example: `dpmerge ledger approve 3f2a9c41d07be586 examples/mnist --key bob.pem`
    """
    with one_line_errors(), opened_ledger(portfolio, ledger, insecure_permissions) as opened:
        found = opened.request(request)
        _confirm(found, "Approve this?", yes=yes, as_json=as_json)
        found = opened.approve(found.id, key=key, passphrase=asked_passphrase)
        if as_json:
            print_json(request_document(found))
        elif found.missing:
            say(f"approved; {found.needed} must approve it, too")
        else:
            say("approved; the command that asked for it carries it out now, once")


def deny(
    request: REQUEST,
    key: KEY,
    portfolio: LEDGER_OF = None,
    ledger: LEDGER = None,
    yes: YES = False,
    insecure_permissions: INSECURE = False,
    as_json: AsJson = False,
) -> None:
    """Close a request for good; whoever asked for it withdraws it so.

    Example: `dpmerge ledger deny 3f2a9c41d07be586 examples/mnist --key bob.pem`
    """
    with one_line_errors(), opened_ledger(portfolio, ledger, insecure_permissions) as opened:
        found = opened.request(request)
        _confirm(found, "Deny this?", yes=yes, as_json=as_json)
        found = opened.deny(found.id, key=key, passphrase=asked_passphrase)
        if as_json:
            print_json(request_document(found))
        else:
            say("denied; nothing was done, and it has to be asked for anew")


def request_document(request: WaitingRequest) -> dict[str, Any]:
    return dataclasses.asdict(request)


def request_lines(request: WaitingRequest) -> list[str]:
    """A request for a person."""
    who = f"{request.asked_by}{f' ({request.actor})' if request.actor else ''}"
    approved = f"approved by {', '.join(request.approved_by)}; " if request.approved_by else ""
    missing = f"{request.needed} must approve it" if request.missing else "ready"
    return [
        f"request {request.short_id}: {request.what}",
        f"  asked for by {who} {_minute(request.time)}, open until {_minute(request.expires)} UTC; {approved}{missing}",
    ]


def _minute(time: str) -> str:
    return time[:16].replace("T", " ")


def _confirm(request: WaitingRequest, question: str, *, yes: bool, as_json: bool) -> None:
    """Show what is decided on, and ask; where nobody can be asked, it has to be said beforehand."""
    say(*request_lines(request), err=as_json)
    if yes:
        return
    if as_json or not sys.stdin.isatty():
        problem = "yes: there is nobody to ask whether that is meant"
        raise InvalidInputError("yes", None, "look at it, and say so beforehand (--yes)", problem=problem)
    if not typer.confirm(question, err=True):
        raise typer.Abort


def _people(given: list[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for text in given:
        name, equals, file = text.partition("=")
        if not (name and equals and file) or name in found:
            raise InvalidInputError("person", text, "NAME=FILE, a person and the file of their public key, each once")
        found[name] = Path(file)
    return found
