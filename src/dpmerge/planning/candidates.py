"""Candidates: a recipe, what it exposes, and the theorem that says what it costs.

Guarantees: a candidate's profile is the theorem's own word on exactly this recipe; `proved` is True only where every
premise holds. Models that must not be averaged never are.
Refuses: recipes no theorem asked covers, with the premises that fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from dpmerge.accounting.combination import Bound, LinearCombination, tightest
from dpmerge.accounting.exposure import Exposure
from dpmerge.accounting.mechanisms import DpSgd
from dpmerge.accounting.profile import PrivacyProfile
from dpmerge.accounting.rounding import json_number
from dpmerge.errors import InvalidInputError, NoGuaranteeError
from dpmerge.planning.noise_prediction import is_relative, noise_to_signal
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.trained_tensors import of_the_same_tensors
from dpmerge.terms.recipe import Recipe
from dpmerge.terms.theorems import NAMED, Theorem

AskedTheorem = Literal["auto", "joint_release", "last_step", "hidden_state", "merged_trajectory"]
"""What a person may ask for; `auto` is the tightest of the others that is proved."""

THEOREM_NAMES: tuple[AskedTheorem, ...] = tuple(theorem.value for theorem in NAMED)  # type: ignore[misc]
FINAL_NAMES: tuple[AskedTheorem, ...] = tuple(name for name in THEOREM_NAMES if Theorem(name).is_final)


@dataclass(frozen=True, eq=False)
class Candidate:
    """Something that may be released: how it is made, and what its release costs."""

    recipe: Recipe
    bound: Bound
    exposure: Exposure
    noise_to_signal: float | None

    @property
    def profile(self) -> PrivacyProfile:
        assert self.bound.profile is not None, "a candidate has a cost"
        return self.bound.profile

    @property
    def theorem(self) -> str:
        return self.bound.theorem

    @property
    def proved(self) -> bool:
        return self.bound.certifies

    @property
    def is_final(self) -> bool:
        """Whether its cost holds only as the last release of these runs."""
        return Theorem(self.theorem).is_final

    def exposed(self) -> dict[str, int]:
        """Run → the last step looked at."""
        return {run.label: step for run, step in self.exposure.steps.items()}

    @property
    def lipschitz(self) -> dict[str, float]:
        """Where hidden_state is the theorem: run → the largest factor by which an update pulls two models apart."""
        if self.theorem != "hidden_state":
            return {}
        steps = ((run, step) for run, step in self.exposure.steps.items() if isinstance(run, DpSgd))
        found = ((run.label, run.largest_lipschitz(step)) for run, step in steps)
        return {name: factor for name, factor in found if factor is not None}

    def document(self, delta: float) -> dict[str, Any]:
        return {
            **self.recipe.document(),
            "theorem": self.theorem,
            "proved": self.proved,
            "epsilon": json_number(self.profile.epsilon(delta)),
            "mu": json_number(self.bound.mu),
            "exposure": self.exposed(),
            "noise_to_signal": self.noise_to_signal,
            **({"lipschitz": factors} if (factors := self.lipschitz) else {}),
        }


def require_theorem(theorem: str) -> None:
    if theorem not in get_args(AskedTheorem):
        raise InvalidInputError("theorem", theorem, ", ".join(get_args(AskedTheorem)))


def candidate(portfolio: Portfolio, recipe: Recipe, *, delta: float, theorem: AskedTheorem = "auto") -> Candidate:
    """The recipe with its cost by a theorem, or by the tightest at δ whose premises hold.

    Args:
        portfolio: The runs.
        recipe: Which checkpoints, with which weights and release noise.
        delta: The δ at which theorems are compared.
        theorem: `auto`, or one by name; `merged_trajectory` then gives its number whether or not it is proved here.

    Returns:
        The candidate; `proved` tells whether its premises hold.

    Raises:
        NoGuaranteeError: No theorem asked covers the recipe; the premises that fail are named.
        NotCombinableError: Models that must not be averaged.

    >>> from dpmerge import Portfolio
    >>> average = Recipe.of({"s32@20": 0.5, "s64@20": 0.5})
    >>> found = candidate(Portfolio.load("examples/probe"), average, delta=1e-5)
    >>> found.theorem, round(found.profile.epsilon(1e-5), 4)
    ('hidden_state', 1.1641)
    """
    require_theorem(theorem)
    combination = linear_combination(portfolio, recipe)
    if theorem == "auto":
        bounds = [bound_of(portfolio, recipe, each) for each in Theorem]
        best = tightest(bounds, delta)
        bound = best[0] if best is not None else None
    else:
        bounds = [bound_of(portfolio, recipe, Theorem(theorem))]
        bound = bounds[0]
        if bound.profile is None or not (bound.certifies or theorem == "merged_trajectory"):
            bound = None
    if bound is None:
        raise NoGuaranteeError(f"{recipe}: {'; '.join(map(_shortcoming, bounds))}")
    checkpoints = combination.checkpoints
    ratio = predicted_ratio(portfolio, combination, recipe.release_noise)
    return Candidate(recipe, bound, Exposure.of(checkpoints), ratio)


def predicted_ratio(portfolio: Portfolio, combination: LinearCombination, release_noise: float) -> float | None:
    """The noise-to-signal of a combination, as it is predicted for every checkpoint of this portfolio."""
    relative = is_relative(run.mechanism for run in portfolio.runs)
    return noise_to_signal(combination.checkpoints, combination.weights, release_noise, relative=relative)


def linear_combination(portfolio: Portfolio, recipe: Recipe) -> LinearCombination:
    """The recipe as the mathematics sees it; refused if its models must not be averaged."""
    runs = [portfolio.run(portfolio.saved(name).run) for name in recipe.names]
    distinct = list(dict.fromkeys(runs))
    portfolio.require_combinable(distinct)
    return LinearCombination(
        checkpoints=[run.at(portfolio.saved(name).step) for run, name in zip(runs, recipe.names, strict=True)],
        weights=recipe.weights,
        release_noise=recipe.release_noise,
        shared_affine=portfolio.affine_voucher(distinct),
    )


def covered(portfolio: Portfolio, names: Sequence[str], theorem: AskedTheorem) -> Bound:
    """The theorem's word on the plain average of some checkpoints; its premises do not depend on the weights."""
    return bound_of(portfolio, Recipe.of({name: 1 / len(names) for name in names}), Theorem(theorem))


def bound_of(portfolio: Portfolio, recipe: Recipe, theorem: Theorem) -> Bound:
    """What a theorem says of a recipe: nothing sharper than joint release of runs that trained different tensors."""
    runs = dict.fromkeys(portfolio.run(portfolio.saved(name).run) for name in recipe.names)
    return of_the_same_tensors(theorem.bound(linear_combination(portfolio, recipe)), list(runs))


def _shortcoming(bound: Bound) -> str:
    missing = [premise.name.replace("_", " ") for premise in bound.premises if not premise.holds]
    return f"{bound.theorem} needs {', '.join(missing) or 'a formula for these runs'}"
