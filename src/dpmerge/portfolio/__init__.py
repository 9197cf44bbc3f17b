"""Portfolios: what was trained, as its manifests say, and what may be merged with what."""

from dpmerge.portfolio.caveats import Caveat, caveats
from dpmerge.portfolio.inspection import Inspection, inspect
from dpmerge.portfolio.manifest import Manifest
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.runs import Run, SavedCheckpoint
from dpmerge.portfolio.statement import Ancestry

__all__ = ["Ancestry", "Caveat", "Inspection", "Manifest", "Portfolio", "Run", "SavedCheckpoint", "caveats", "inspect"]
