"""Small documents from a file or by http(s), read without trusting who sends them.

Guarantees: bounded in bytes and in time; a redirect leads to http(s) only, and from https to nothing less; what an
error shows of an address is host and path, never a query, and never a name or password.
Refuses (InvalidInputError, CannotReadError): other schemes, addresses with a name or password in them, answers that are
not 200, larger or slower than allowed. A request with content is not redirected at all.
"""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPMessage
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from dpmerge.errors import CannotReadError, InvalidInputError
from dpmerge.files import read_bytes

TIMEOUT = 20.0
"""Seconds for each answer of the network."""
LONGEST = 60.0
"""Seconds for a document as a whole."""
MOST_REDIRECTS = 5
_PIECE = 65_536


def is_url(where: str | Path) -> bool:
    return isinstance(where, str) and "://" in where


def read_document(where: str | Path, limit: int, accepted: str) -> bytes:
    """The bytes of a file, or of what is at an http(s) address."""
    return fetched(str(where), limit, accepted) if is_url(where) else read_bytes(Path(where), limit, accepted)


def shown(url: str) -> str:
    """An address as it may be printed."""
    try:
        parts = urlsplit(url)
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        return "an address that is none"
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"


def fetched(
    url: str,
    limit: int,
    accepted: str,
    *,
    content: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    longest: float = LONGEST,
) -> bytes:
    """What a server answers: to a GET, or with `content` to a POST."""
    require_web_address(url)
    request = urllib.request.Request(url, data=content, headers=dict(headers or {}))  # noqa: S310  (checked above)
    ends = time.monotonic() + longest
    try:
        with _opener().open(request, timeout=min(TIMEOUT, longest)) as answer:
            if answer.status != 200:
                raise _unreachable(url, f"the server answered {answer.status}", accepted)
            return _read(url, answer, limit, accepted, ends)
    except urllib.error.HTTPError as error:
        error.close()
        raise _unreachable(url, f"the server answered {error.code}", accepted) from None
    except urllib.error.URLError as error:
        reason = error.reason
        why = str(getattr(reason, "strerror", None) or reason)
        raise _unreachable(url, why if url not in why else "no answer", accepted) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, InvalidInputError):
            raise
        raise _unreachable(url, f"no whole answer ({type(error).__name__})", accepted) from None


def require_web_address(url: str) -> None:
    """Refuse what is no http(s) address, or has a secret in it."""
    needed = "the name of a file, or an address such as https://example.org/revoked.json"
    try:
        parts = urlsplit(url)
        secret = parts.username is not None or parts.password is not None
        host = parts.hostname
    except ValueError:
        raise InvalidInputError("url", None, needed, found="an address that is none") from None
    if secret:
        raise InvalidInputError("url", None, f"{needed}, without a name or password", found="one with them")
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidInputError("url", None, needed, found=shown(url))


def _read(url: str, answer: http.client.HTTPResponse, limit: int, accepted: str, ends: float) -> bytes:
    found = bytearray()
    while piece := answer.read1(_PIECE):
        found += piece
        if len(found) > limit:
            raise InvalidInputError(shown(url), None, f"at most {limit:,} bytes", found="a larger document")
        if time.monotonic() > ends:
            raise _unreachable(url, "it took too long", accepted)
    if answer.length:  # it said how much there would be
        raise _unreachable(url, "the answer ended too early", accepted)
    return bytes(found)


def _unreachable(url: str, why: str, accepted: str) -> CannotReadError:
    return CannotReadError(shown(url), None, f"needed: {accepted}", problem=f"{shown(url)} cannot be read ({why})")


class _Redirects(urllib.request.HTTPRedirectHandler):
    max_redirections = MOST_REDIRECTS
    max_repeats = 2

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        if (why := _why_not_followed(req, newurl)) is not None:
            fp.close()
            raise urllib.error.URLError(why)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _why_not_followed(request: urllib.request.Request, to: str) -> str | None:
    if request.data is not None:
        return "the server sends a request with content elsewhere"
    try:
        require_web_address(to)
    except InvalidInputError:
        return "it leads to something other than http(s)"
    if request.type == "https" and urlsplit(to).scheme != "https":
        return "it leads from https to http"
    return None


def _opener() -> urllib.request.OpenerDirector:
    """Of the handlers that Python has, those for http and https: none opens a file, ftp or data address."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Redirects(),
    ):
        opener.add_handler(handler)
    return opener
