"""Packages that only some of dpmerge needs, installed as extras: `notebook`, `report`, `torch`, `lightning`,
`huggingface`, `lm-eval`, `postgres`, `timestamps`, `remote`, `ray`, `dask`; and `blake3` and `numba`, without which
merges are only slower.

Guarantees: whatever is missing, the error is one line that names the package, and the extra that brings it.
Refuses: to go on without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from dpmerge.errors import MissingExtraError

Extra = Literal[
    "notebook",
    "report",
    "torch",
    "lightning",
    "huggingface",
    "lm-eval",
    "postgres",
    "timestamps",
    "remote",
    "ray",
    "dask",
    "blake3",
    "numba",
]


@contextmanager
def needs_extra(extra: Extra, *, by: str) -> Iterator[None]:
    """Around the imports of an extra's packages.

    Args:
        extra: The extra that brings them, as pip knows it.
        by: What needs them, in words, for the error.

    Raises:
        MissingExtraError: One of them is not installed, or does not import.

    >>> with needs_extra("report", by="the example"):
    ...     import no_such_package
    Traceback (most recent call last):
    dpmerge.errors.MissingExtraError: the example needs no_such_package: pip install "dpmerge[report]"
    """
    try:
        yield
    except MissingExtraError:
        raise
    except ModuleNotFoundError as missing:
        raise MissingExtraError(by, str(missing.name).split(".")[0], extra) from missing
    except ImportError as broken:  # installed, but not whole: a shared library, a package of its own
        reason = " ".join(str(broken).split())
        raise MissingExtraError(by, f"packages that import, and one does not ({reason})", extra) from broken
