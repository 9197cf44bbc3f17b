"""What a report shows, as plain data: frontiers, heatmaps, sweeps, recommended plans.
Computed by `frontier`, drawn by `dpmerge.report`.

Guarantees: every curve and panel says by which accounting and theorem its ε holds, and whether that is proved for
these runs. Utilities are of models nobody has released: an analysis is not for release (theory 5).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dpmerge import notebook
from dpmerge.accounting.validation import Array
from dpmerge.errors import printable
from dpmerge.evaluation import score_cache

Accounting = Literal["pld", "rdp"]

BANNER = score_cache.BANNER


@dataclass(frozen=True)
class Utility:
    """What is on the vertical axis."""

    name: str
    higher_is_better: bool
    measured: bool  # on data, by an evaluator; otherwise predicted from the records alone


@dataclass(frozen=True)
class InputModel:
    """A checkpoint as it was trained."""

    name: str
    epsilon: float
    utility: float
    settings: str = ""  # how it was trained, as its owner knows it: C = 2, σ = 64


@dataclass(frozen=True)
class Curve:
    """A frontier: the best utility that a method reaches at each target ε (NaN where it reaches none)."""

    name: str
    method: Literal["select", "combine", "mix"]
    accounting: Accounting
    theorem: str | None  # of the combinations in it; None for random selection of checkpoints
    proved: bool
    epsilons: Array
    utilities: Array


@dataclass(frozen=True)
class Panel:
    """ε over the simplex of three models: row i, column j is weight i/n of the second and j/n of the first model.

    The third model has the rest; NaN where there is none (i + j > n).
    """

    name: str
    method: Literal["select", "combine"]
    accounting: Accounting
    theorem: str | None
    proved: bool
    epsilons: Array


@dataclass(frozen=True)
class Face:
    """Three models and the panels over their simplex."""

    names: tuple[str, str, str]
    resolution: int
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Line:
    """ε against the weight (or probability) of the second of two models."""

    name: str
    method: Literal["select", "combine"]
    accounting: Accounting
    theorem: str | None
    proved: bool
    epsilons: Array


@dataclass(frozen=True)
class Edge:
    """Two models: `lines` compare selection and combination, `theorems` what each theorem says of the combination."""

    names: tuple[str, str]
    weights: Array
    lines: tuple[Line, ...]
    theorems: tuple[Line, ...]


@dataclass(frozen=True)
class Recommendation:
    """The plan for one target: what to release (in words, one line an outcome), what it costs, what to expect.

    It is proved, and chosen without looking at any model. A plan for a target meets every larger target too.
    """

    target: float
    epsilon: float
    utility: float
    theorem: str
    outcomes: tuple[tuple[float, str], ...]  # (probability, recipe in words)
    recipes: tuple[dict[str, Any], ...]  # of each outcome: exact weights and release noise
    final: bool  # it holds only if nothing else of the runs it uses is ever released


@dataclass(frozen=True)
class Analysis:
    """Everything a report shows about a portfolio."""

    title: str
    subtitle: str  # unit, adjacency, δ
    delta: float
    utility: Utility
    models: tuple[InputModel, ...]
    curves: tuple[Curve, ...]
    faces: tuple[Face, ...]
    edges: tuple[Edge, ...]
    recommendations: tuple[Recommendation, ...]  # by increasing target
    joint_epsilon: float  # of everything at once; infinite where there is no number
    caveats: tuple[str, ...]
    banner: str = BANNER  # what stands above whatever shows it
    command: str = "dpmerge plan PORTFOLIO"  # what makes a recommended plan, with its target and δ

    def __repr__(self) -> str:
        found = f"{len(self.curves)} curves, {len(self.recommendations)} plans, {len(self.models)} models"
        return printable(f"Analysis({self.title}: {found} at δ = {self.delta:g}; not for release)")

    def _repr_html_(self) -> str:
        """In a notebook."""
        return notebook.cell_html(self)

    def plot(self) -> Any:
        """The frontier: the best utility of each method at each ε, as a figure of plotly. Not for release."""
        return notebook.figure(self)

    def to_frame(self) -> Any:
        """The points of its frontiers as a frame of pandas. Not for release."""
        return notebook.frame(self)

    def document(self) -> dict[str, Any]:
        """As JSON: NaN as null, infinity as the string "inf"."""
        plain = _plain(self)
        assert isinstance(plain, dict)
        return {"banner": self.banner, **plain}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float):
        return None if math.isnan(value) else "inf" if math.isinf(value) else value
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return value
