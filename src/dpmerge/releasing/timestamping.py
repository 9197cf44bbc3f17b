"""Timestamps for a release that is published: a request, and the answer put beside the certificate.

Guarantees: nothing is put there that was not checked against the given roots, and against the request where that is
known; the certificate and everything it covers stays as it is.
Refuses: answers that prove nothing, and to replace a timestamp: an older one proves more.
"""

from __future__ import annotations

import os
from pathlib import Path

from dpmerge.certificate.dsse import CERTIFICATE_NAME, read_certificate
from dpmerge.certificate.output_files import LARGEST_TIMESTAMP, TIMESTAMP_NAME
from dpmerge.certificate.timestamp_token import LARGEST_REQUEST, Stamp, checked, new_request, nonce_of, read_roots
from dpmerge.certificate.web_documents import fetched
from dpmerge.errors import CannotWriteError
from dpmerge.files import read_bytes
from dpmerge.portfolio.run_files import write_atomically

_ANSWER = "an authority's answer to a timestamp request (.tsr)"


def request_timestamp(out: str | Path, *, output: str | Path) -> Path:
    """Write a request for a timestamp of a release's certificate, to be sent to an authority by any means.

    Args:
        out: The folder of the release.
        output: Where the request goes (.tsq); an existing file is never replaced.

    Returns:
        Where it is.

    Raises:
        InvalidInputError: There is no certificate there.
        CannotWriteError: The file is there already, or cannot be written.
        MissingExtraError: The extra `timestamps` is not installed.
    """
    request = new_request(_certificate(Path(out)))
    return _written(Path(output), request, field="output")


def attach_timestamp(
    out: str | Path, response: str | Path, *, roots: str | Path, request: str | Path | None = None
) -> Stamp:
    """Put an authority's answer beside a release's certificate, once it has been checked.

    Args:
        out: The folder of the release.
        response: The answer (.tsr).
        roots: Roots of authorities that are believed, as PEM.
        request: The request it answers (.tsq): then its nonce is checked as well.

    Returns:
        What it proves.

    Raises:
        InvalidInputError: There is no certificate there, or the answer proves nothing.
        CannotWriteError: There is a timestamp already, or it cannot be written.
        MissingExtraError: The extra `timestamps` is not installed.
    """
    sent = None if request is None else read_bytes(Path(request), LARGEST_REQUEST, "a timestamp request (.tsq)")
    answer = read_bytes(Path(response), LARGEST_TIMESTAMP, _ANSWER)
    return _attached(Path(out), answer, Path(roots), None if sent is None else nonce_of(sent))


def fetch_timestamp(out: str | Path, *, url: str, roots: str | Path) -> Stamp:
    """Ask an authority for a timestamp of a release's certificate, check it, and put it there.

    What the authority learns is the digest of a certificate.

    Args:
        out: The folder of the release.
        url: The authority's http(s) address.
        roots: Roots of authorities that are believed, as PEM.

    Returns:
        What it proves.

    Raises:
        InvalidInputError: There is no certificate there, no answer, or one that proves nothing.
        CannotWriteError: There is a timestamp already, or it cannot be written.
        MissingExtraError: The extra `timestamps` is not installed.
    """
    folder = Path(out)
    _require_none(folder)
    read_roots(Path(roots))
    request = new_request(_certificate(folder))
    headers = {"Content-Type": "application/timestamp-query", "Accept": "application/timestamp-reply"}
    answer = fetched(url, LARGEST_TIMESTAMP, _ANSWER, content=request, headers=headers)
    return _attached(folder, answer, Path(roots), nonce_of(request))


def _attached(folder: Path, answer: bytes, roots: Path, nonce: int | None) -> Stamp:
    _require_none(folder)
    stamp = checked(answer, _certificate(folder), read_roots(roots), nonce=nonce)
    _written(folder / TIMESTAMP_NAME, answer, field="out")
    return stamp


def _certificate(folder: Path) -> bytes:
    """The bytes of the certificate's file, which must be a certificate."""
    text = read_bytes(folder / CERTIFICATE_NAME, accepted=f"a release's folder, with {CERTIFICATE_NAME} in it")
    read_certificate(text)
    return text


def _require_none(folder: Path) -> None:
    if os.path.lexists(folder / TIMESTAMP_NAME):
        problem = f"out: {folder / TIMESTAMP_NAME} is there already, and an older timestamp proves more"
        raise CannotWriteError("out", str(folder), "check it (`dpmerge verify --timestamp-roots`)", problem=problem)


def _written(file: Path, content: bytes, *, field: str) -> Path:
    if os.path.lexists(file):
        raise CannotWriteError(field, str(file), "name another", problem=f"{field}: {file} is there already")
    try:
        write_atomically(file, content, mode=0o644)
    except OSError as error:
        accepted = "a file that can be written"
        raise CannotWriteError.from_os(error, field=field, path=file, accepted=accepted) from None
    return file
