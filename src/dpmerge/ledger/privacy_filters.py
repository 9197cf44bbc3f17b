"""May this release be made? The three privacy filters of a cap, and what each release costs under them.

Guarantees: a release is admitted only if every candidate that could be drawn keeps within the cap, on top of all that
was released; its cost is made of its terms alone. Nothing here reads or writes anything.
Refuses: CapExceededError, saying what is left and what would be needed; RunsLockedError; NoGuaranteeError where there
is no number.

ceiling          everything ever released lies within one exposure fixed beforehand, whose joint release fits the cap
gaussian_filter  μ² of the high-water mark, plus the largest of each final release, is at most the cap's μ²
renyi_filter     each release costs log Σ π_j e^{(α−1)ρ_j}/(α−1), ρ_j what candidate j adds at the one order α
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dpmerge.accounting.gaussian import GaussianProfile
from dpmerge.accounting.profile import PrivacyProfile
from dpmerge.errors import CapExceededError, InvalidInputError, NoGuaranteeError
from dpmerge.ledger.caps import MARGIN, gaussian_budget, renyi_budget, room
from dpmerge.ledger.group_locks import require_no_selection_of_a_group, require_one_of_a_group
from dpmerge.ledger.run_checks import require_unlocked
from dpmerge.ledger.run_costs import joined, renyi_divergence
from dpmerge.ledger.scope_state import ScopeState
from dpmerge.terms.checkpoint_reference import CheckpointReference
from dpmerge.terms.release_terms import ROUNDING_DELTA, ReleaseTerms

Counted = Literal["theorem", "joint"]
_DIFFERENCE = 4e-15  # relative: of a difference of two sums of a few hundred terms, so that it is not rounded down


@dataclass(frozen=True)
class Admitted:
    """How a release is counted: by its own theorem or as joint release, and its cost in the filter's currency."""

    counted: Counted
    cost: float


@dataclass(frozen=True)
class Proposal:
    """A release as the filters see it: what each candidate exposes (by identity), and the terms."""

    terms: ReleaseTerms
    exposures: Sequence[Mapping[str, int]]
    final: bool

    @property
    def bounds(self) -> tuple[PrivacyProfile, ...] | None:
        """Each candidate's own theorem's profile, where the release may be counted by it."""
        terms = self.terms
        if not (self.final and terms.is_final and terms.charged and terms.proved):
            return None
        profiles = [terms.counted_profile(place) for place in range(len(terms.candidates))]
        return None if any(profile is None for profile in profiles) else tuple(p for p in profiles if p is not None)


def admit(state: ScopeState, proposal: Proposal) -> Admitted:
    """How the release is counted, or why it may not be made."""
    if proposal.terms.is_final and not proposal.final:
        proposal.terms.as_joint_release()  # of runs that share a noise seed there is none, and it says so
        theorems = sorted({candidate.theorem for candidate in proposal.terms.candidates})
        problem = f"{', '.join(theorems)}: holds only for the last release of its runs, and this one is not final"
        remedy = "use joint_release, or declare the release final, which locks its runs"
        raise InvalidInputError("candidates.theorem", theorems, remedy, problem=problem)
    require_unlocked(state, proposal.exposures, final=proposal.final)
    require_one_of_a_group(state, proposal.exposures)
    counted: Counted = "joint" if proposal.bounds is None else "theorem"
    if state.cap is None:
        return Admitted(counted, 0.0)
    _require_countable(state, proposal.terms, state.cap)
    rule: str = state.cap["rule"]
    if rule == "ceiling":
        _require_below_ceiling(state, proposal, state.cap)
        return Admitted(counted, 0.0)
    cost = cost_of(state, proposal, rule, state.cap["order"])
    if rule == "gaussian_filter":
        _require_gaussian(state, proposal, state.cap, cost)
    else:
        _require_renyi(state, state.cap, cost)
    return Admitted(counted, cost)


def cost_of(state: ScopeState, proposal: Proposal, rule: str, order: float | None) -> float:
    """What a release adds to what was spent: of a gaussian_filter only finals do, the high-water mark has the rest."""
    bounds = proposal.bounds
    if rule == "gaussian_filter":
        return 0.0 if bounds is None else max(map(_squared_mu, bounds))
    if rule == "renyi_filter":
        assert order is not None
        if bounds is not None:
            _require_independent(state, proposal)
            increases = [renyi_divergence(bound, order, "the release") for bound in bounds]
        else:
            increases = [_increase(state, exposure, order) for exposure in proposal.exposures]
        return selected(proposal.terms.probabilities, increases, order)
    return 0.0


def adopted_cost(state: ScopeState, proposal: Proposal, index: int | None, rule: str, order: float | None) -> float:
    """What a release costs that was made without being charged here: nobody checked the draw, so the most it could."""
    if index is not None and proposal.bounds is not None:
        if rule == "renyi_filter":
            assert order is not None
            return max(renyi_divergence(bound, order, "the release") for bound in proposal.bounds)
        return cost_of(state, proposal, rule, order)
    if rule != "renyi_filter":
        return 0.0
    assert order is not None
    unknown = [joined(*proposal.exposures)] if index is None else proposal.exposures
    return max(_increase(state, exposure, order) for exposure in unknown)


def selected(probabilities: Sequence[float], divergences: Sequence[float], order: float) -> float:
    """log Σ π_j e^{(α−1)ρ_j} / (α−1), rounded up; never more than the largest."""
    largest = max(divergences)
    if not math.isfinite(largest):
        raise NoGuaranteeError(
            f"a candidate has no finite Rényi divergence of order {order:g}, so nothing can be counted"
        )
    scaled = (p * math.exp((order - 1) * (d - largest)) for p, d in zip(probabilities, divergences, strict=True))
    value = largest + math.log(math.fsum(scaled)) / (order - 1)
    return max(0.0, min(largest, value + MARGIN * largest))


def _increase(state: ScopeState, exposure: Mapping[str, int], order: float) -> float:
    state.prices.require_independent(joined(state.exposed, exposure))
    present = state.high_water
    if all(present.get(run, -1) >= step for run, step in exposure.items()):
        return 0.0
    after = state.prices.divergence(joined(present, exposure), order)
    before = state.prices.divergence(present, order)
    return max(0.0, after - before) + _DIFFERENCE * after if math.isfinite(after) else math.inf


def _require_independent(state: ScopeState, proposal: Proposal) -> None:
    """One of the candidates is seen, beside all that was: of that each run has noise of its own."""
    state.prices.require_known_noise(joined(state.exposed, *proposal.exposures))
    for exposure in proposal.exposures:
        state.prices.require_independent(joined(state.exposed, exposure))


def _squared_mu(profile: PrivacyProfile) -> float:
    if not isinstance(profile, GaussianProfile):
        raise NoGuaranteeError(
            "the privacy filter gaussian_filter adds up Gaussian guarantees only, and this release has another"
        )
    return profile.mu * profile.mu


def _require_countable(state: ScopeState, terms: ReleaseTerms, cap: Mapping[str, Any]) -> None:
    """What a cap can never cover, and what it costs the people of validation sets."""
    if state.conflict is not None and cap["rule"] != "ceiling":  # the ceiling covers whatever is within it
        raise CapExceededError(f"the cap on {state.scope} cannot be vouched for any more: {state.conflict}")
    if not terms.charged:
        raise CapExceededError(
            f"{state.scope} has a cap, and how this release was chosen is not charged; choose without looking at "
            "models, or with tuning charged"
        )
    if terms.validation is None:
        return
    if terms.validation.disjoint_vouched_by is None:
        raise CapExceededError(
            f"{state.scope} has a cap, and nobody vouches that the validation set has none of its people; use a "
            "disjoint validation set, and say who vouches for it"
        )
    total = math.nextafter(state.validation_apart + terms.validation.epsilon, math.inf)
    if total > cap["epsilon"] or ROUNDING_DELTA * (len(state.releases) + 1) > cap["delta"]:
        left = max(0.0, cap["epsilon"] - state.validation_apart)
        raise CapExceededError(
            f"the people of the validation set have ε {left:.6g} left under the cap, and this choice needs "
            f"{terms.validation.epsilon:.6g}"
        )


def beyond(ceiling: Mapping[str, int], exposure: Mapping[str, int]) -> list[str]:
    """The runs of an exposure that are not within a ceiling."""
    return sorted(run for run, step in exposure.items() if step > ceiling.get(run, -1))


def ceiling_of(cap: Mapping[str, Any]) -> dict[str, int]:
    return {run["identity"]: run["step"] for run in cap["ceiling"]}


def _require_below_ceiling(state: ScopeState, proposal: Proposal, cap: Mapping[str, Any]) -> None:
    require_no_selection_of_a_group(state, proposal.exposures)
    ceiling = ceiling_of(cap)
    for exposure in (state.exposed, joined(*proposal.exposures)):
        if over := beyond(ceiling, exposure):
            names = {run: state.runs[run].name for run in over[:5] if run in state.runs}
            needed = ", ".join(str(CheckpointReference(name, exposure[run])) for run, name in names.items())
            allowed = [
                str(CheckpointReference(state.runs[run].name, ceiling[run])) if run in ceiling else "no step"
                for run in over[:5]
            ]
            raise CapExceededError(
                f"the privacy filter ceiling allows nothing beyond what was fixed beforehand: needed "
                f"{needed or f'{len(over)} runs that it does not have'}, allowed {', '.join(allowed)}"
            )


def _require_gaussian(state: ScopeState, proposal: Proposal, cap: Mapping[str, Any], cost: float) -> None:
    limit = gaussian_budget(cap["epsilon"], cap["delta"])
    _require_independent(state, proposal)
    if proposal.bounds is not None:
        marks = [state.prices.squared_mu(state.high_water)]
    else:
        marks = [state.prices.squared_mu(joined(state.high_water, exposure)) for exposure in proposal.exposures]
    needed = max(marks) + state.spent + cost
    if not needed * (1 + MARGIN) <= limit:
        used = state.prices.squared_mu(state.high_water) + state.spent
        fits = f"; of runs not seen yet, ε up to about {room(limit, used, cap['delta']):.4g} fits"
        raise _exceeded("gaussian_filter", "μ²", limit, used, needed, fits)


def _require_renyi(state: ScopeState, cap: Mapping[str, Any], cost: float) -> None:
    limit = renyi_budget(cap["epsilon"], cap["delta"], cap["order"])
    needed = state.spent + cost
    if not needed * (1 + MARGIN) <= limit:
        raise _exceeded("renyi_filter", f"Rényi divergence of order {cap['order']:g}", limit, state.spent, needed)


def _exceeded(rule: str, currency: str, limit: float, used: float, needed: float, fits: str = "") -> CapExceededError:
    return CapExceededError(
        f"the privacy filter {rule} has {max(0.0, limit - used):.6g} of {limit:.6g} left (in {currency}), and this "
        f"release could need {needed - used:.6g}{fits}"
    )
