"""All probabilities, or all weights, that meet a target: what the paper's Algorithms 1 and 2 return.

Guarantees: what is said to be a member is one by the accounting named, rounding included; what rests on a theorem that
is not proved for these runs says so in `banner`, wherever the set is written or drawn.
Refuses: targets that nothing meets, theorems that do not cover these models, grids of more than four of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from dpmerge.accounting import validation
from dpmerge.accounting.random_selection import selection_feasible
from dpmerge.accounting.renyi import Conversion
from dpmerge.accounting.rounding import json_number
from dpmerge.accounting.validation import Array
from dpmerge.errors import InvalidInputError, NoGuaranteeError, TargetOutOfReachError
from dpmerge.evaluation.evaluation_progress import Progressed
from dpmerge.planning.analysis import Accounting
from dpmerge.planning.asked_accounting import asked_conversion
from dpmerge.planning.candidate_search import require_method
from dpmerge.planning.candidates import THEOREM_NAMES, AskedTheorem, candidate
from dpmerge.planning.checkpoint_choice import AskedCheckpoints, asked_checkpoints
from dpmerge.planning.feasible_weights import lattice
from dpmerge.planning.selection_polytope import SelectionPolytope, exact_polytope, renyi_polytopes
from dpmerge.planning.simplex_sweeps import combined_epsilons, proved, selected_epsilons
from dpmerge.planning.usable_checkpoints import UsableCheckpoint, UsableCheckpoints, usable_checkpoints
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.terms.guarantee import Guarantee
from dpmerge.terms.recipe import Recipe
from dpmerge.terms.theorems import Theorem

SetMethod = Literal["select", "combine"]

MOST_GRIDDED = 4
"""Models that a grid is laid over; of five at 0.01 there would be 4.6 million points."""

UNPROVED = "Not proved for these runs: the premises of {} do not hold, so its ε is no guarantee."

_DRAWS = 50
"""How many weightings are drawn for each that is asked for, before a sample is given up."""

_CHUNK = 4096


def feasible_set(
    portfolio: Portfolio,
    *,
    epsilon: float,
    delta: float,
    method: SetMethod = "select",
    accounting: Accounting = "pld",
    conversion: Conversion | None = None,
    theorem: AskedTheorem = "auto",
    checkpoints: AskedCheckpoints = "final",
) -> FeasibleSet:
    """Which probabilities or weights of a portfolio's models meet a target (docs/reference/verbs/feasible.md).

    Args:
        portfolio: The runs, as `Portfolio.load` returns them.
        epsilon: The ε to meet.
        delta: The δ to meet it at.
        method: `select`: probabilities of drawing one model (Algorithm 1); `combine`: weights of an average (2).
        accounting: `pld` (exact) or `rdp` (Rényi divergence).
        conversion: With `rdp`: `improved` (the default) or `classic`, the paper's.
        theorem: By which averages are accounted for; `auto`: the tightest that is proved, weights by weights.
        checkpoints: The models: `final` (the last one kept of each run), `all`, or names, run@step.

    Returns:
        The set: membership of any vector, its ε, a grid, a sample, a picture; of a selection its polytopes too.

    Raises:
        TargetOutOfReachError: Nothing meets the target: no selection, or no average of those looked at.
        NoGuaranteeError: The theorem asked for does not cover these models.
        InvalidInputError: A bad value, a conversion with `pld`, a theorem with `select`, an unknown checkpoint.

    >>> from dpmerge import Portfolio
    >>> models = Portfolio.load("examples/mnist", contents=False)
    >>> names = ["c2-s32@20", "c4-s32@20", "c2-s64@20"]
    >>> found = feasible_set(models, epsilon=0.9, delta=1e-5, checkpoints=names)
    >>> found.vertices.round(4).tolist()
    [[0.0, 0.0, 1.0], [0.0, 0.1338, 0.8662], [0.1338, 0.0, 0.8662]]
    >>> found.contains([[0.05, 0.04, 0.91], [0.5, 0.0, 0.5]]).tolist()
    [True, False]
    """
    validation.instance("portfolio", portfolio, Portfolio, "a Portfolio, as Portfolio.load returns it")
    if method not in get_args(SetMethod):
        raise InvalidInputError("method", method, " or ".join(get_args(SetMethod)))
    target = Guarantee(epsilon=epsilon, delta=delta)
    target.require_target()
    require_method(method, theorem)
    converted = asked_conversion(accounting, conversion)
    usable = asked_checkpoints(usable_checkpoints(portfolio, delta), checkpoints)
    if method == "combine":
        # The theorem's word on the plain average: its premises do not depend on the weights. It refuses by name.
        even = Recipe.of({name: 1 / len(usable.checkpoints) for name in (c.name for c in usable.checkpoints)})
        candidate(portfolio, even, delta=delta, theorem=theorem)
        if theorem == "last_step" and not proved(usable, usable.checkpoints, theorem):
            raise NoGuaranteeError(
                "Sets of weights by last_step are known of full-batch runs; `dpmerge plan --theorem last_step` prices "
                "averages of sampled ones, one by one."
            )
    found = FeasibleSet(usable, target, method, accounting, converted, theorem)
    found.require_member()
    return found


@dataclass(frozen=True, eq=False)
class FeasibleSet:
    """The probabilities (`select`) or weights (`combine`) of some models that meet a target; `feasible_set` makes it.

    >>> from dpmerge import Portfolio
    >>> probe = Portfolio.load("examples/probe", contents=False)
    >>> drawn = feasible_set(probe, epsilon=1.5, delta=1e-5, accounting="rdp", conversion="classic")
    >>> drawn.names, len(drawn.parts) > 1, bool(drawn.contains(drawn.sample(5)).all())
    (('s16@20', 's32@20', 's64@20'), True, True)
    """

    usable: UsableCheckpoints
    target: Guarantee
    method: SetMethod
    accounting: Accounting
    conversion: Conversion
    theorem: AskedTheorem

    @property
    def models(self) -> tuple[UsableCheckpoint, ...]:
        return self.usable.checkpoints

    @property
    def names(self) -> tuple[str, ...]:
        """The models, run@step, in the order of every vector's entries."""
        return tuple(model.name for model in self.models)

    @cached_property
    def proved(self) -> bool:
        """Whether membership is a proof for these runs; False for an unproved theorem asked for by name."""
        return self.method == "select" or self.theorem == "auto" or proved(self.usable, self.models, self.theorem)

    @cached_property
    def theorems(self) -> tuple[str, ...]:
        """By which averages are accounted for: the one asked for, or all that are proved for these models."""
        if self.method == "select":
            return ()
        if self.theorem != "auto":
            return (self.theorem,)
        return tuple(name for name in THEOREM_NAMES if proved(self.usable, self.models, name))

    @property
    def is_final(self) -> bool:
        """Whether an ε in it may hold only if nothing else of these runs is ever released."""
        return any(Theorem(name).is_final for name in self.theorems)

    @property
    def banner(self) -> str:
        """What must stand above whatever shows this set; nothing where all of it is proved."""
        return "" if self.proved else UNPROVED.format(self.theorem)

    @cached_property
    def parts(self) -> tuple[SelectionPolytope, ...]:
        """A selection's set as polytopes whose union it is: one by `pld`, by `rdp` one for each order with a member.

        Raises:
            InvalidInputError: The set is of weights: it is no polytope.
        """
        if self.method == "combine":
            raise InvalidInputError("method", self.method, "select: weights that meet a target are no polytope")
        profiles = [model.profile for model in self.models]
        if self.accounting == "pld":
            return (exact_polytope(profiles, self.target),)
        return tuple(renyi_polytopes(profiles, self.target, self.conversion))

    @cached_property
    def vertices(self) -> Array:
        """The corners of a selection's polytope; by `rdp` those of all parts, of which some may lie within others."""
        corners = [np.zeros((0, len(self.models))), *(part.vertices for part in self.parts)]
        return np.unique(np.vstack(corners), axis=0)

    def contains(self, vectors: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Which rows meet the target, asked of the accounting itself."""
        rows = validation.simplex_rows("vectors", vectors, len(self.models))
        if self._is_linear:
            profiles = [model.profile for model in self.models]
            return selection_feasible(profiles, rows, self.target.epsilon, self.target.delta)
        return np.asarray(self._costs(rows) <= self.target.epsilon)

    @property
    def _is_linear(self) -> bool:
        """Whether membership is two inner products, which need no ε to be solved for."""
        return self.method == "select" and self.accounting == "pld"

    def epsilons(self, vectors: npt.ArrayLike, *, progress: Progressed | None = None) -> Array:
        """ε at the target's δ of each row, feasible or not; at most the target's exactly where `contains` says so."""
        rows = validation.simplex_rows("vectors", vectors, len(self.models))
        found = []
        for start in range(0, len(rows), _CHUNK):
            part = rows[start : start + _CHUNK]
            # What meets the target costs at most that; what does not is shown above it, whichever way it rounds.
            within, above = self.target.epsilon, np.nextafter(self.target.epsilon, np.inf)
            costs = self._costs(part)
            inside = self.contains(part) if self._is_linear else costs <= within
            found.append(np.where(inside, np.minimum(costs, within), np.maximum(costs, above)))
            if progress is not None:
                progress(min(start + _CHUNK, len(rows)), len(rows))
        return np.concatenate(found) if found else np.zeros(0)

    def lattice(self, grid: float = 0.01) -> Array:
        """Every member whose entries are multiples of `grid`, one a row.

        Raises:
            InvalidInputError: More than four models, or a grid that does not divide 1.
        """
        rows = self.grid(grid)
        return np.asarray(rows[self.contains(rows)])

    def grid(self, grid: float = 0.01) -> Array:
        """All multiples of `grid` in the simplex, members or not."""
        if len(self.models) > MOST_GRIDDED:
            found = f"a grid of {len(self.models)} models"
            accepted = f"at most {MOST_GRIDDED} models; name them with checkpoints, or sample the set"
            raise InvalidInputError("grid", grid, accepted, found=found)
        accepted = "1 divided by a whole number, such as 0.01"
        parts = round(1 / validation.positive("grid", grid))
        if parts < 1 or abs(parts * grid - 1) > 1e-9:
            raise InvalidInputError("grid", grid, accepted)
        return lattice(len(self.models), parts)

    def sample(self, count: int, *, seed: int = 0) -> Array:
        """Members drawn at random, one a row: to look at the set, not to draw a release.

        Of a selection: nearly evenly over the polytope; by `rdp` over one of the parts, each as likely. Of an average:
        a number of models, as many of them, weights evenly over their simplex; kept if they meet the target.

        Args:
            count: How many.
            seed: The same seed draws the same.

        Returns:
            The members.

        Raises:
            NoGuaranteeError: So few weights meet the target that drawing did not find as many.
            InvalidInputError: A bad count or seed.
        """
        validation.integer("count", count, least=1, most=1_000_000)
        generator = np.random.Generator(np.random.PCG64(validation.integer("seed", seed, least=0)))
        found = self._drawn_inside(count, generator) if self.method == "select" else self._drawn(count, generator)
        if len(found) < count:
            raise NoGuaranteeError(f"Only {len(found)} of {count} members were found by drawing; ask for fewer.")
        return found

    def _drawn_inside(self, count: int, generator: np.random.Generator) -> Array:
        shares = np.bincount(generator.integers(len(self.parts), size=count), minlength=len(self.parts))
        rows = np.vstack([part.sample(int(n), generator) for part, n in zip(self.parts, shares, strict=True) if n])
        return np.asarray(generator.permutation(rows[self.contains(rows)]))

    def _drawn(self, count: int, generator: np.random.Generator) -> Array:
        kept, size = np.zeros((0, len(self.models))), len(self.models)
        for _ in range(_DRAWS):
            used = generator.random((count, size)).argsort(axis=1) < generator.integers(1, size + 1, size=(count, 1))
            rows = np.where(used, generator.standard_exponential((count, size)), 0.0)
            rows /= rows.sum(axis=1, keepdims=True)
            kept = np.vstack([kept, rows[self.contains(rows)]])
            if len(kept) >= count:
                break
        return kept[:count]

    def plot(self, *, grid: float | None = None) -> Any:
        """A plotly figure of it: a line of two models, a triangle of three, shares of members of any other number.

        Raises:
            MissingExtraError: plotly is not installed: the extra `report` brings it.
        """
        # `report` draws what is planned and is imported by none of it; it is loaded by who asks for a picture.
        return import_module("dpmerge.report.feasible_plot").plotly_figure(self, grid=grid)

    def require_member(self) -> None:
        """Refuse a target that nothing meets; of averages, nothing on a coarse grid, or none of many models alone."""
        alone = np.eye(len(self.models))
        if self.method == "select":
            if any(len(part.vertices) for part in self.parts):
                return
            rows = alone
        else:
            rows = lattice(len(self.models), 20) if len(self.models) <= MOST_GRIDDED else alone
        costs = self._costs(rows)
        if self.method == "combine" and np.any(costs <= self.target.epsilon):
            return
        least = int(np.argmin(costs))
        if np.isinf(costs[least]):
            raise NoGuaranteeError(f"No model has a finite cost by {self.accounting} accounting; use pld.")
        weights: Sequence[float] = rows[least].tolist()
        recipe = Recipe.of(zip(self.names, weights, strict=True))
        raise TargetOutOfReachError(self.target.epsilon, self.target.delta, float(costs[least]), str(recipe))

    def _costs(self, rows: Array) -> Array:
        """ε by the accounting; infinite where no theorem asked has a number."""
        if self.method == "select":
            return selected_epsilons(self.usable, self.models, rows, self.accounting, self.conversion)
        costs, _, _ = combined_epsilons(self.usable, self.models, rows, self.theorem, self.accounting, self.conversion)
        return np.where(np.isnan(costs), np.inf, costs)

    def document(self) -> dict[str, Any]:
        """As JSON: what it is of, and of a selection its inequalities and corners."""
        found: dict[str, Any] = {
            **({"banner": self.banner} if self.banner else {}),
            "target": {"epsilon": self.target.epsilon, "delta": self.target.delta},
            "method": self.method,
            "accounting": self.accounting,
            "conversion": self.conversion if self.accounting == "rdp" else None,
            "theorems": list(self.theorems),
            "final": self.is_final,
            "proved": self.proved,
            "checkpoints": list(self.names),
            "epsilons": [json_number(float(cost)) for cost in self.epsilons(np.eye(len(self.models)))],
        }
        if self.method == "select":
            found["parts"] = [
                {
                    "order": part.order,
                    "coefficients": [[json_number(float(value)) for value in row] for row in part.coefficients],
                    "limit": part.limit,
                    "vertices": part.vertices.tolist(),
                }
                for part in self.parts
            ]
        return found
