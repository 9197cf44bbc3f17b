"""Why no plan meets a target, and the smallest ε that something in the portfolio does.

Guarantees: the ε named is that of one candidate that exists, which is named too.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpmerge.accounting.renyi import DEFAULT_ORDERS, Conversion, renyi_epsilon
from dpmerge.accounting.validation import Array
from dpmerge.errors import InvalidInputError, NoGuaranteeError, TargetOutOfReachError
from dpmerge.planning.analysis import Accounting
from dpmerge.planning.candidate_arrays import CandidateArrays
from dpmerge.planning.usable_checkpoints import UsableCheckpoints
from dpmerge.planning.weight_search import covered_checkpoints
from dpmerge.terms.guarantee import Guarantee


def nothing_scored(objective: str, *, predicts_noise: bool) -> InvalidInputError:
    """The objective knows nothing of any candidate."""
    accepted = "an objective that knows these checkpoints"
    if predicts_noise:
        accepted = "saturate, prior or public_evaluation: noise, the default, needs rates, which nobody recorded"
    return InvalidInputError("objective", objective, accepted)


def no_finite_cost(accounting: Accounting) -> NoGuaranteeError:
    """No candidate has a number by this accounting."""
    return NoGuaranteeError(f"No candidate has a finite cost by {accounting} accounting; use pld.")


def smallest_reachable(
    usable: UsableCheckpoints,
    target: Guarantee,
    accounting: Accounting,
    candidates: CandidateArrays,
    scored: npt.NDArray[np.bool_],
    may_add_noise: bool,
    conversion: Conversion = "improved",
) -> NoGuaranteeError:
    """The refusal that names the candidate of least ε; `may_add_noise`: release noise was not tried and may help."""
    epsilons = np.where(scored, candidate_epsilons(candidates, target.delta, accounting, conversion), np.inf)
    least = int(np.argmin(epsilons))
    if np.isinf(epsilons[least]):
        return no_finite_cost(accounting)
    hint = ""
    if may_add_noise and any(covered_checkpoints(usable, "hidden_state", by_name=False)):
        hint = "method combine or mix reaches any ε here, by adding release noise"
    recipe, _ = candidates.entry(least)
    return TargetOutOfReachError(target.epsilon, target.delta, float(epsilons[least]), str(recipe), hint)


def candidate_epsilons(
    candidates: CandidateArrays, delta: float, accounting: Accounting, conversion: Conversion = "improved"
) -> Array:
    """ε of each candidate by itself."""
    if accounting == "rdp":
        return renyi_epsilon(DEFAULT_ORDERS, candidates.curves(DEFAULT_ORDERS), delta, conversion)
    return candidates.epsilons(delta)
