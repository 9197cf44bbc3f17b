"""Is a portfolio's salt kept from others? Who reads it can test what unreleased models were trained on.

Guarantees: a salt that others may read is named before anything is charged, and when an output is verified.
"""

from __future__ import annotations

from collections.abc import Iterator

from dpmerge.certificate.checks import Check
from dpmerge.certificate.commitments import SALT_NAME
from dpmerge.errors import InvalidInput
from dpmerge.permissions import SALT, too_open
from dpmerge.portfolio.portfolio import Portfolio


def require_private_salt(portfolio: Portfolio, insecure_permissions: bool) -> None:
    """Refuse a salt that others may read."""
    if not insecure_permissions and (found := too_open(portfolio.path / SALT_NAME, SALT)) is not None:
        raise InvalidInput("salt", str(portfolio.path / SALT_NAME), "a salt for who keeps the portfolio", found=found)


def kept_private(portfolio: Portfolio, insecure_permissions: bool) -> Iterator[Check]:
    """A check that fails (or is only a remark) if the salt is open to others; none if it is not."""
    if (found := too_open(portfolio.path / SALT_NAME, SALT)) is not None:
        yield Check("permissions", None if insecure_permissions else False, (f"the portfolio's salt is {found}",))
