"""dpmerge: a model for any privacy level, from the differentially private models you already have.

The verbs of the command line are functions here: `import_models`, `inspect`, `plan`, `feasible_set`, `frontier`,
`prepare` and `release` (together what `dpmerge merge` does), `verify`, `audit`; `Ledger` is what was released and what
it has cost. The errors they raise are in `dpmerge.errors`; where work is done, in `dpmerge.executors`.
"""

from typing import TYPE_CHECKING, Any

from dpmerge import errors
from dpmerge.errors import DpmergeError

if TYPE_CHECKING:
    from dpmerge.auditing.audit import audit as audit
    from dpmerge.evaluation.path_evaluator import path_evaluator as path_evaluator
    from dpmerge.planning.feasible_set import feasible_set as feasible_set
    from dpmerge.planning.frontier import frontier as frontier
    from dpmerge.planning.objectives import Prior as Prior
    from dpmerge.planning.plan import Plan as Plan
    from dpmerge.planning.planner import plan as plan
    from dpmerge.planning.private_selection import PrivateValidation as PrivateValidation
    from dpmerge.planning.public_selection import PublicEvaluation as PublicEvaluation
    from dpmerge.portfolio import Portfolio as Portfolio
    from dpmerge.portfolio.inspection import inspect as inspect
    from dpmerge.portfolio.model_import import import_models as import_models
    from dpmerge.releasing.portfolio_ledger import PortfolioLedger
    from dpmerge.releasing.prepare import prepare as prepare
    from dpmerge.releasing.release import release as release
    from dpmerge.releasing.verifying import verify as verify
    from dpmerge.terms.guarantee import Guarantee as Guarantee

    Ledger = PortfolioLedger

__version__ = "0.2.0"

# A public name and where it is defined; one more is one more line here (and one above, for type checkers).
_HOMES = {
    "Guarantee": "dpmerge.terms.guarantee",
    "Ledger": "dpmerge.releasing.portfolio_ledger:PortfolioLedger",
    "Plan": "dpmerge.planning.plan",
    "Portfolio": "dpmerge.portfolio",
    "Prior": "dpmerge.planning.objectives",
    "PrivateValidation": "dpmerge.planning.private_selection",
    "PublicEvaluation": "dpmerge.planning.public_selection",
    "audit": "dpmerge.auditing.audit",
    "feasible_set": "dpmerge.planning.feasible_set",
    "frontier": "dpmerge.planning.frontier",
    "import_models": "dpmerge.portfolio.model_import",
    "inspect": "dpmerge.portfolio.inspection",
    "path_evaluator": "dpmerge.evaluation.path_evaluator",
    "plan": "dpmerge.planning.planner",
    "prepare": "dpmerge.releasing.prepare",
    "release": "dpmerge.releasing.release",
    "verify": "dpmerge.releasing.verifying",
}

__all__ = ["DpmergeError", "__version__", "errors"]
__all__ += list(_HOMES)


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Names with mathematics behind them load when they are first asked for, so that `dpmerge --help` is instant."""
    if name in _HOMES:
        from importlib import import_module

        module, _, renamed = _HOMES[name].partition(":")
        return getattr(import_module(module), renamed or name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
