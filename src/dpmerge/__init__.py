"""dpmerge: a model for any privacy level, from the differentially private models you already have."""

from typing import TYPE_CHECKING, Any

from dpmerge.errors import (
    BadCheckpoint,
    BadManifest,
    CannotRecord,
    CannotWrite,
    CapExceeded,
    DeltaOutOfReach,
    DigestMismatch,
    DpmergeError,
    EvaluationFailed,
    InvalidInput,
    LedgerBroken,
    LedgerError,
    MissingParent,
    MixedPortfolio,
    NoGuarantee,
    NotCombinable,
    NotIndependent,
    PickleRefused,
    PortfolioError,
    PrivateMetric,
    RunsLocked,
    TargetOutOfReach,
    TensorMismatch,
    UnsafePath,
)

if TYPE_CHECKING:
    from dpmerge.planning.looking import PublicEvaluation
    from dpmerge.planning.objectives import Prior
    from dpmerge.planning.plan import Plan
    from dpmerge.planning.planner import plan
    from dpmerge.planning.target import Guarantee
    from dpmerge.planning.validation import PrivateValidation
    from dpmerge.portfolio import Portfolio
    from dpmerge.releasing.release import release
    from dpmerge.releasing.verifying import verify

__all__ = [
    "BadCheckpoint",
    "BadManifest",
    "CannotRecord",
    "CannotWrite",
    "CapExceeded",
    "DeltaOutOfReach",
    "DigestMismatch",
    "DpmergeError",
    "EvaluationFailed",
    "Guarantee",
    "InvalidInput",
    "LedgerBroken",
    "LedgerError",
    "MissingParent",
    "MixedPortfolio",
    "NoGuarantee",
    "NotCombinable",
    "NotIndependent",
    "PickleRefused",
    "Plan",
    "Portfolio",
    "PortfolioError",
    "Prior",
    "PrivateMetric",
    "PrivateValidation",
    "PublicEvaluation",
    "RunsLocked",
    "TargetOutOfReach",
    "TensorMismatch",
    "UnsafePath",
    "__version__",
    "plan",
    "release",
    "verify",
]

__version__ = "0.1.0"


def __dir__() -> list[str]:
    return __all__


_HOMES = {
    "Guarantee": "dpmerge.planning.target",
    "Plan": "dpmerge.planning.plan",
    "Portfolio": "dpmerge.portfolio",
    "Prior": "dpmerge.planning.objectives",
    "PrivateValidation": "dpmerge.planning.validation",
    "PublicEvaluation": "dpmerge.planning.looking",
    "plan": "dpmerge.planning.planner",
    "release": "dpmerge.releasing.release",
    "verify": "dpmerge.releasing.verifying",
}


def __getattr__(name: str) -> Any:
    """Names with mathematics behind them load when they are first asked for, so that `dpmerge --help` is instant."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
