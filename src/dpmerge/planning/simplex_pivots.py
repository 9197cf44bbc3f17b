"""The simplex method's last steps, exactly: from a solver's vertex of a random selection to the best one.

Guarantees: what is returned is at least as good as the vertex given, and meets every limit to 1e-12.
Refuses nothing: a basis that cannot be solved ends it, with the best vertex so far.

Why it is needed: a solver's tolerance is relative to the widest score, and a mixture may hinge on candidates whose
scores lie closer together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpmerge.accounting.validation import Array

Indices = npt.NDArray[np.intp]

_MOST_PIVOTS = 100


def pivoted(costs: Array, scores: Array, support: Indices, shares: Array) -> tuple[Indices, Array]:
    """The best vertex reached from one, as candidates and their probabilities; costs are relative to a limit of 1."""
    tableau = _Tableau.of(costs, scores)
    basis = tableau.basis_of(support, shares)
    best = _Vertex(support, shares, float(shares @ scores[support]))
    for _ in range(_MOST_PIVOTS):
        values = tableau.solved(basis)
        if values is None:
            break
        vertex = tableau.vertex(basis, values)
        if vertex.score >= best.score and tableau.is_feasible(vertex):
            best = vertex
        entering = tableau.entering(basis)
        leaving = None if entering is None else tableau.leaving(basis, values, entering)
        if entering is None or leaving is None:
            break
        basis[leaving] = entering
    return best.indices, best.shares


@dataclass(frozen=True)
class _Vertex:
    """Candidates of positive probability, and what they score together."""

    indices: Indices
    shares: Array
    score: float


@dataclass(frozen=True)
class _Tableau:
    """Maximise gains·x with columns·x = 1 and x ≥ 0: a row for each cost, with a slack variable, and Σ π = 1."""

    costs: Array
    scores: Array
    columns: Array
    gains: Array

    @classmethod
    def of(cls, costs: Array, scores: Array) -> _Tableau:
        rows, count = costs.shape
        candidates = np.vstack([costs, np.ones(count)])
        slacks = np.vstack([np.eye(rows), np.zeros(rows)])
        return cls(costs, scores, np.hstack([candidates, slacks]), np.concatenate([scores, np.zeros(rows)]))

    @property
    def candidates(self) -> int:
        return int(self.scores.size)

    def basis_of(self, support: Indices, shares: Array) -> list[int]:
        """The candidates of a vertex, filled up with the slack variables that have most slack."""
        slack = 1 - self.costs[:, support] @ shares
        missing = self.columns.shape[0] - support.size
        return [*support.tolist(), *(self.candidates + np.argsort(-slack)[:missing]).tolist()]

    def solved(self, basis: list[int]) -> Array | None:
        """The values of the basic variables; None where the basis is singular, or its solution negative."""
        square = self.columns[:, basis]
        if len(basis) != square.shape[0] or abs(np.linalg.det(square)) < 1e-250:
            return None
        values = np.linalg.solve(square, np.ones(len(basis)))
        return None if values.min() < -1e-12 else np.asarray(values, dtype=float)

    def vertex(self, basis: list[int], values: Array) -> _Vertex:
        taken = [(i, value) for i, value in zip(basis, values, strict=True) if i < self.candidates and value > 0]
        score = float(sum(share * self.scores[i] for i, share in taken))
        return _Vertex(np.array([i for i, _ in taken], dtype=np.intp), np.array([s for _, s in taken]), score)

    def is_feasible(self, vertex: _Vertex) -> bool:
        """Whether it meets the limits as computed again, without the slack variables."""
        pairs = list(zip(vertex.indices.tolist(), vertex.shares, strict=True))
        spent = sum(share * self.costs[:, i] for i, share in pairs)
        return bool(np.max(spent) <= 1 + 1e-12 and abs(sum(share for _, share in pairs) - 1) < 1e-12)

    def entering(self, basis: list[int]) -> int | None:
        """The variable whose reduced gain is largest; None where none would improve the vertex."""
        prices = np.linalg.solve(self.columns[:, basis].T, self.gains[basis])
        reduced = self.gains - prices @ self.columns
        reduced[basis] = 0.0
        best = int(np.argmax(reduced))
        return best if reduced[best] > 1e-12 * np.abs(self.gains[basis]).max() else None

    def leaving(self, basis: list[int], values: Array, entering: int) -> int | None:
        """The position in the basis that reaches zero first; None where nothing bounds the way."""
        direction = np.linalg.solve(self.columns[:, basis], self.columns[:, entering])
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(direction > 1e-14, np.maximum(values, 0.0) / direction, np.inf)
        first = int(np.argmin(ratios))
        return first if np.isfinite(ratios[first]) else None
