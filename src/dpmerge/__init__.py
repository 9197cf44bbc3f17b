"""dpmerge: a model for any privacy level, from the differentially private models you already have."""

from typing import TYPE_CHECKING, Any

from dpmerge.errors import (
    BadCheckpoint,
    BadManifest,
    CannotRecord,
    DeltaOutOfReach,
    DigestMismatch,
    DpmergeError,
    InvalidInput,
    MissingParent,
    MixedPortfolio,
    NoGuarantee,
    NotCombinable,
    NotIndependent,
    PickleRefused,
    PortfolioError,
    PrivateMetric,
    TensorMismatch,
    UnsafePath,
)

if TYPE_CHECKING:
    from dpmerge.portfolio import Portfolio

__all__ = [
    "BadCheckpoint",
    "BadManifest",
    "CannotRecord",
    "DeltaOutOfReach",
    "DigestMismatch",
    "DpmergeError",
    "InvalidInput",
    "MissingParent",
    "MixedPortfolio",
    "NoGuarantee",
    "NotCombinable",
    "NotIndependent",
    "PickleRefused",
    "Portfolio",
    "PortfolioError",
    "PrivateMetric",
    "TensorMismatch",
    "UnsafePath",
    "__version__",
]

__version__ = "0.1.0"


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Names with mathematics behind them load when they are first asked for, so that `dpmerge --help` is instant."""
    if name == "Portfolio":
        from dpmerge.portfolio import Portfolio

        return Portfolio
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
