"""Portfolios: what was trained, as its manifests say, and what may be merged with what."""

from dpmerge.portfolio.inspection import Inspection, inspect
from dpmerge.portfolio.manifest import Manifest
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.portfolio_caveats import caveats
from dpmerge.portfolio.recorded_runs import Run, SavedCheckpoint
from dpmerge.terms.caveats import Caveat
from dpmerge.terms.run_record import Ancestry

__all__ = ["Ancestry", "Caveat", "Inspection", "Manifest", "Portfolio", "Run", "SavedCheckpoint", "caveats", "inspect"]
