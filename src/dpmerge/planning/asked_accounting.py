"""The accounting asked for, and how a Rényi divergence then becomes an ε.

Guarantees: a conversion is one that exists, and stands only where there is something to convert.
Refuses: a conversion beside `pld`, which has none.
"""

from __future__ import annotations

from typing import get_args

from dpmerge.accounting.renyi import Conversion
from dpmerge.errors import InvalidInputError
from dpmerge.planning.analysis import Accounting


def asked_conversion(accounting: str, conversion: str | None) -> Conversion:
    """The conversion of a Rényi divergence: as asked for, or the improved one.

    Args:
        accounting: `pld` or `rdp`.
        conversion: `classic` (Mironov 2017, the paper's), `improved` (Canonne, Kamath, Steinke 2020), or None.

    Returns:
        The conversion; `improved` where none was asked for.

    Raises:
        InvalidInputError: Another accounting or conversion, or a conversion with `pld`.

    >>> asked_conversion("rdp", None), asked_conversion("rdp", "classic")
    ('improved', 'classic')
    """
    if accounting not in get_args(Accounting):
        raise InvalidInputError("accounting", accounting, ", ".join(get_args(Accounting)))
    if conversion is not None and accounting != "rdp":
        accepted = "none with accounting pld, which is exact; or accounting rdp"
        raise InvalidInputError("conversion", conversion, accepted)
    return known_conversion("improved" if conversion is None else conversion)


def known_conversion(conversion: str) -> Conversion:
    """The same, where Rényi divergence is one of several accountings shown."""
    if conversion not in get_args(Conversion):
        raise InvalidInputError("conversion", conversion, " or ".join(get_args(Conversion)))
    return conversion  # type: ignore[return-value]
