"""What a plan is chosen by, when no model is looked at: the noise it is predicted to carry, the budget, a prior.

Guarantees: scores depend on the records and on what the user states, never on a model; choosing by them costs nothing.
Refuses: priors for checkpoints that are not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from dpmerge.accounting import validation
from dpmerge.accounting.premises import Premise
from dpmerge.accounting.validation import Array
from dpmerge.errors import InvalidInputError
from dpmerge.planning.candidate_arrays import CandidateBatch
from dpmerge.planning.usable_checkpoints import UsableCheckpoints


class Objective(Protocol):
    """Scores candidates without looking at any model; higher is better, NaN is not to be chosen."""

    @property
    def name(self) -> str: ...

    @property
    def uses_release_noise(self) -> bool:
        """Whether it knows what noise does to a model; otherwise it would have it for nothing."""
        ...

    def scores(self, batch: CandidateBatch, usable: UsableCheckpoints) -> Array: ...

    def drawbacks(self, batch: CandidateBatch, usable: UsableCheckpoints) -> Array:
        """From 0 to 1, what speaks against a candidate that scores as well as others."""
        ...

    def premises(self) -> tuple[Premise, ...]:
        """What has to be true of the choice itself."""
        ...

    def document(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class LeastNoise:
    """The default: the least predicted noise-to-signal, expected over the draw."""

    name: str = field(default="noise", init=False)
    uses_release_noise: bool = field(default=True, init=False)

    def scores(self, batch: CandidateBatch, usable: UsableCheckpoints) -> Array:  # noqa: ARG002
        return np.asarray(-batch.noise_to_signal)

    def drawbacks(self, batch: CandidateBatch, usable: UsableCheckpoints) -> Array:
        """Of equally noisy merges the one of fewer and more private runs: less is used up, and less is locked."""
        own = np.array(
            [checkpoint.epsilon if np.isfinite(checkpoint.epsilon) else 0.0 for checkpoint in batch.checkpoints]
        )
        dearest = (
            max(
                (checkpoint.epsilon for checkpoint in usable.checkpoints if np.isfinite(checkpoint.epsilon)),
                default=0.0,
            )
            or 1.0
        )
        count = np.count_nonzero(batch.rows, axis=1) / len(usable.portfolio.runs)
        return np.asarray((count + batch.rows @ own / dearest) / 2)

    def document(self) -> dict[str, Any]:
        return {"kind": "data_independent", "objective": self.name, "rule": "least predicted noise-to-signal"}

    def premises(self) -> tuple[Premise, ...]:
        return ()


@dataclass(frozen=True)
class Saturate:
    """The paper's rule: spend the budget, and of candidates of equal cost take the less private models."""

    name: str = field(default="saturate", init=False)
    uses_release_noise: bool = field(default=False, init=False)

    def scores(self, batch: CandidateBatch, usable: UsableCheckpoints) -> Array:
        own = np.array([checkpoint.epsilon for checkpoint in batch.checkpoints])
        with np.errstate(invalid="ignore"):
            towards = batch.rows @ np.where(np.isfinite(own), own, 0.0)
        return np.asarray(batch.epsilons(usable.delta) + 1e-6 * towards)

    def drawbacks(self, batch: CandidateBatch, usable: UsableCheckpoints) -> Array:  # noqa: ARG002
        return np.zeros(len(batch))

    def document(self) -> dict[str, Any]:
        return {"kind": "data_independent", "objective": self.name, "rule": "spend the budget towards the less private"}

    def premises(self) -> tuple[Premise, ...]:
        return ()


@dataclass(frozen=True)
class Prior:
    """Utilities the user states for checkpoints; an average has the average of them (theory 5).

    They must not come from looking at these models: whoever states them vouches for that.

    Args:
        utilities: run@step → number, more is better; checkpoints without one are not used.

    Raises:
        InvalidInputError: No utility, or one that is not finite.

    >>> import dpmerge as dpm
    >>> portfolio = dpm.Portfolio.load("examples/probe")
    >>> dpm.plan(portfolio, epsilon=1, delta=1e-5, objective=Prior({"s32@20": 0.9, "s64@20": 0.8})).candidates[0].recipe
    Recipe(s64@20)
    """

    utilities: Mapping[str, float]
    name: str = field(default="prior", init=False)
    uses_release_noise: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if not self.utilities:
            raise InvalidInputError("prior", {}, "a utility for at least one checkpoint: run@step=number")
        stated = {name: validation.number(f"prior of {name}", value) for name, value in self.utilities.items()}
        for name, value in stated.items():
            if not np.isfinite(value):
                raise InvalidInputError(f"prior of {name}", value, "a finite number")
        object.__setattr__(self, "utilities", stated)

    def scores(self, batch: CandidateBatch, usable: UsableCheckpoints) -> Array:
        for name in self.utilities:
            usable[name]
        stated = np.array([self.utilities.get(checkpoint.name, np.nan) for checkpoint in batch.checkpoints])
        silent = ((batch.rows > 0) & np.isnan(stated)).any(axis=1)
        return np.where(silent, np.nan, batch.rows @ np.nan_to_num(stated))

    def drawbacks(self, batch: CandidateBatch, usable: UsableCheckpoints) -> Array:  # noqa: ARG002
        return np.zeros(len(batch))

    def document(self) -> dict[str, Any]:
        return {
            "kind": "data_independent",
            "objective": self.name,
            "rule": "utilities stated beforehand",
            "prior": dict(self.utilities),
        }

    def premises(self) -> tuple[Premise, ...]:
        return (Premise("utilities_stated_without_looking_at_the_models", True, "whoever stated them"),)


OBJECTIVES: dict[str, type[LeastNoise] | type[Saturate]] = {"noise": LeastNoise, "saturate": Saturate}


def objective_named(objective: Objective | str) -> Objective:
    """The objective itself, or the one of a name that needs nothing more."""
    if not isinstance(objective, str):
        return objective
    if objective not in OBJECTIVES:
        accepted = f"{', '.join(OBJECTIVES)}, or a Prior, a PublicEvaluation or a PrivateValidation"
        raise InvalidInputError("objective", objective, accepted)
    return OBJECTIVES[objective]()
