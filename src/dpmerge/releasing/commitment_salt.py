"""A portfolio's salt: the secret that its commitments are made with, kept beside it and never renewed.

Guarantees: of two processes one makes the salt, and both use it; a salt that others may read is named before anything
is charged, and when an output is verified: who reads it can test what unreleased models were trained on.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from dpmerge.certificate.checks import Check
from dpmerge.certificate.commitments import commitment
from dpmerge.errors import CannotWriteError, InvalidInputError, ManifestError
from dpmerge.files import is_file, partial_file, read_bytes, sync_folder
from dpmerge.permissions import SALT, too_open
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.releasing.kept_beside import kept_folder
from dpmerge.remote.remote_path import is_url
from dpmerge.terms.checkpoint_reference import CheckpointReference

SALT_NAME = ".commitment-salt"


def salt_file(portfolio: Portfolio, *, create: bool = False) -> Path:
    """Where the salt is, or goes: beside the portfolio, or in the private home for one in a store."""
    path = kept_folder(portfolio.path, create=create) / SALT_NAME
    if is_url(portfolio.path) and not path.exists() and is_file(portfolio.path / SALT_NAME):
        problem = f"the portfolio's salt is in a store, {portfolio.path / SALT_NAME}: who may read it cannot be seen"
        raise InvalidInputError("salt", None, f"move it to {path}, for your eyes only", problem=problem)
    return path


def salt_of(portfolio: Portfolio, *, create: bool = False) -> bytes:
    """The portfolio's salt, made when it is first needed."""
    path = salt_file(portfolio, create=create)
    if create and not path.exists():
        _make(path)
    try:
        salt = bytes.fromhex(read_bytes(path, 100, "the portfolio's salt, without which no commitment opens").decode())
    except (ValueError, UnicodeDecodeError) as error:
        if isinstance(error, InvalidInputError):
            raise
        salt = b""
    if len(salt) != 32:
        raise ManifestError(path, "salt", None, "64 hexadecimal digits", found="something else")
    return salt


def _make(path: Path) -> None:
    try:
        with partial_file(path) as (beside, file):
            file.write(secrets.token_hex(32).encode())
            file.flush()
            os.fsync(file.fileno())
            # A link fails where there is one already: of two processes one makes the salt, and both use it.
            os.link(beside, path)
            sync_folder(path.parent)
    except FileExistsError:
        pass
    except OSError as error:
        accepted = "a folder that can be written to"
        raise CannotWriteError.from_os(error, field="portfolio", path=path, accepted=accepted) from None


def checkpoint_commitment(portfolio: Portfolio, checkpoint: CheckpointReference, salt: bytes) -> str:
    """The commitment to a checkpoint as the portfolio records it."""
    saved = portfolio.saved(str(checkpoint))
    return commitment(
        checkpoint,
        portfolio.run(checkpoint.run).manifest.statement,
        file_digests=saved.file_digests,
        weights=saved.recorded_weights,
        salt=salt,
    )


def require_private_salt(portfolio: Portfolio, insecure_permissions: bool) -> None:
    """Refuse a salt that others may read."""
    if not insecure_permissions and (found := too_open(path := salt_file(portfolio), SALT)) is not None:
        problem = f"the portfolio's salt is no secret: {found}"
        raise InvalidInputError("salt", str(path), "keep it to yourself", problem=problem)


def kept_private(portfolio: Portfolio, insecure_permissions: bool) -> Iterator[Check]:
    """A check that fails (or is only a remark) if the salt is open to others; none if it is not."""
    if (found := too_open(salt_file(portfolio), SALT)) is not None:
        yield Check("permissions", None if insecure_permissions else False, (f"the portfolio's salt is {found}",))
