"""`dpmerge timestamp …`: an authority's word for when a certificate existed (RFC 3161)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpmerge.cli.terminal import AsJson, one_line_errors, print_json, say

if TYPE_CHECKING:
    from dpmerge.certificate.timestamp_token import Stamp

app = typer.Typer(
    help="An authority's word for when a certificate existed (RFC 3161).",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

OUT = Annotated[Path, typer.Argument(metavar="OUT", help="The folder of a release.")]
ROOTS = Annotated[Path, typer.Option(metavar="PEM", help="Roots of authorities that are believed.")]


@app.command()
def request(
    out: OUT,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE.tsq", help="Where it goes; no file is ever replaced.")
    ],
    as_json: AsJson = False,
) -> None:
    """Write a request for a timestamp of a certificate, to be sent to an authority by any means.

    It holds the SHA-256 of the certificate's file and a random number, and needs no network.

    Example: `dpmerge timestamp request merged -o merged.tsq`
    """
    with one_line_errors():
        from dpmerge.releasing.timestamping import request_timestamp

        file = request_timestamp(out, output=output)
    if as_json:
        print_json({"request": str(file)})
        return
    say(str(file), f"With the answer: dpmerge timestamp attach {out} ANSWER.tsr --request {file} --roots ROOTS.pem")


@app.command()
def attach(
    out: OUT,
    response: Annotated[Path, typer.Argument(metavar="ANSWER.tsr", help="What the authority has answered.")],
    roots: ROOTS,
    request: Annotated[
        Path | None, typer.Option(metavar="FILE.tsq", help="The request it answers: its nonce is checked as well.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Put an authority's answer beside the certificate, once it has been checked.

    It becomes `privacy-certificate.tsr`; the certificate itself, and its signature, stay as they are.

    Example: `dpmerge timestamp attach merged merged.tsr --request merged.tsq --roots roots.pem`
    """
    with one_line_errors():
        from dpmerge.releasing.timestamping import attach_timestamp

        stamp = attach_timestamp(out, response, roots=roots, request=request)
    _print(out, stamp, as_json)


@app.command()
def fetch(
    out: OUT,
    url: Annotated[str, typer.Option(help="The authority's http(s) address.")],
    roots: ROOTS,
    as_json: AsJson = False,
) -> None:
    """Ask an authority for a timestamp of the certificate, check it, and put it there.

    What is sent is the SHA-256 of the certificate's file, and a random number.

    Example: `dpmerge timestamp fetch merged --url https://tsa.example.org --roots roots.pem`
    """
    with one_line_errors():
        from dpmerge.releasing.timestamping import fetch_timestamp

        stamp = fetch_timestamp(out, url=url, roots=roots)
    _print(out, stamp, as_json)


def _print(out: Path, stamp: Stamp, as_json: bool) -> None:
    if as_json:
        print_json({"out": str(out), "existedBy": stamp.existed_by.isoformat(), "authority": stamp.authority})
        return
    say(f"{out}: existed by {stamp.existed_by.isoformat()}, says {stamp.authority}")
