"""May this release be made? The three rules that keep a cap, and what each release costs under them.

Guarantees: a release is admitted only if every candidate that could be drawn keeps within the cap, on top of all that
has left; its cost is made of its terms alone. Nothing here reads or writes anything.
Refuses: CapExceeded, saying what is left and what would be needed; RunsLocked; NoGuarantee where there is no number.

ceiling          everything ever released lies within one exposure fixed beforehand, whose joint release fits the cap
gaussian_filter  μ² of the high-water mark, plus the largest of each final release, is at most the cap's μ²
renyi_filter     each release costs log Σ π_j e^{(α−1)ρ_j}/(α−1), ρ_j what candidate j adds at the one order α
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dpmerge.errors import CapExceeded, InvalidInput, NoGuarantee
from dpmerge.ledger.caps import MARGIN, gaussian_budget, renyi_budget
from dpmerge.ledger.pricing import joined, renyi_divergence
from dpmerge.ledger.runs import require_unlocked
from dpmerge.ledger.state import BookState
from dpmerge.planning.terms import Terms
from dpmerge.planning.validation import ROUNDING_DELTA
from dpmerge.privacy.gaussian import GaussianProfile, gaussian_epsilon
from dpmerge.privacy.profile import PrivacyProfile

Counted = Literal["theorem", "joint"]
_DIFFERENCE = 4e-15  # relative: of a difference of two sums of a few hundred terms, so that it is not rounded down


@dataclass(frozen=True)
class Admitted:
    """How a release is counted: by its own theorem or as joint release, and its cost in the rule's currency."""

    counted: Counted
    cost: float


@dataclass(frozen=True)
class Proposal:
    """A release as the rules see it: what each candidate exposes (by identity), and the terms."""

    terms: Terms
    exposures: Sequence[Mapping[str, int]]
    final: bool

    @property
    def bounds(self) -> tuple[PrivacyProfile, ...] | None:
        """Each candidate's own theorem's profile, where the release may be counted by it."""
        terms = self.terms
        if not (self.final and terms.is_final and terms.charged and terms.proved):
            return None
        profiles = [bound.profile for bound in terms.bounds]
        return None if any(profile is None for profile in profiles) else tuple(p for p in profiles if p is not None)


def admit(book: BookState, proposal: Proposal) -> Admitted:
    """How the release is counted, or why it may not be made."""
    if proposal.terms.is_final and not proposal.final:
        theorems = sorted({candidate.theorem for candidate in proposal.terms.candidates})
        accepted = "joint_release; or declare the release final, which locks its runs for ever"
        raise InvalidInput("candidates.theorem", theorems, accepted)
    require_unlocked(book, proposal.exposures, final=proposal.final)
    counted: Counted = "joint" if proposal.bounds is None else "theorem"
    if book.cap is None:
        return Admitted(counted, 0.0)
    _require_countable(book, proposal.terms, book.cap)
    rule: str = book.cap["rule"]
    if rule == "ceiling":
        _require_below_ceiling(book, proposal, book.cap)
        return Admitted(counted, 0.0)
    cost = cost_of(book, proposal, rule, book.cap["order"])
    if rule == "gaussian_filter":
        _require_gaussian(book, proposal, book.cap, cost)
    else:
        _require_renyi(book, book.cap, cost)
    return Admitted(counted, cost)


def cost_of(book: BookState, proposal: Proposal, rule: str, order: float | None) -> float:
    """What a release adds to what was spent: of a gaussian_filter only finals do, the high-water mark has the rest."""
    bounds = proposal.bounds
    if rule == "gaussian_filter":
        return 0.0 if bounds is None else max(map(_squared_mu, bounds))
    if rule == "renyi_filter":
        assert order is not None
        if bounds is not None:
            book.prices.require_independent(joined(book.exposed, *proposal.exposures))
            increases = [renyi_divergence(bound, order, "the release") for bound in bounds]
        else:
            increases = [_increase(book, exposure, order) for exposure in proposal.exposures]
        return selected(proposal.terms.probabilities, increases, order)
    return 0.0


def adopted_cost(book: BookState, proposal: Proposal, index: int | None, rule: str, order: float | None) -> float:
    """What a release costs that has left without being charged here: nobody checked the draw, so the most it could."""
    if index is not None and proposal.bounds is not None:
        if rule == "renyi_filter":
            assert order is not None
            return max(renyi_divergence(bound, order, "the release") for bound in proposal.bounds)
        return cost_of(book, proposal, rule, order)
    if rule != "renyi_filter":
        return 0.0
    assert order is not None
    unknown = [joined(*proposal.exposures)] if index is None else proposal.exposures
    return max(_increase(book, exposure, order) for exposure in unknown)


def selected(probabilities: Sequence[float], divergences: Sequence[float], order: float) -> float:
    """log Σ π_j e^{(α−1)ρ_j} / (α−1), rounded up; never more than the largest."""
    largest = max(divergences)
    if not math.isfinite(largest):
        raise NoGuarantee(f"a candidate has no finite Rényi divergence of order {order:g}, so nothing can be counted")
    scaled = (p * math.exp((order - 1) * (d - largest)) for p, d in zip(probabilities, divergences, strict=True))
    value = largest + math.log(math.fsum(scaled)) / (order - 1)
    return max(0.0, min(largest, value + MARGIN * largest))


def _increase(book: BookState, exposure: Mapping[str, int], order: float) -> float:
    book.prices.require_independent(joined(book.exposed, exposure))
    present = book.high_water
    if all(present.get(run, -1) >= step for run, step in exposure.items()):
        return 0.0
    after = book.prices.divergence(joined(present, exposure), order)
    before = book.prices.divergence(present, order)
    return max(0.0, after - before) + _DIFFERENCE * after if math.isfinite(after) else math.inf


def _squared_mu(profile: PrivacyProfile) -> float:
    if not isinstance(profile, GaussianProfile):
        raise NoGuarantee("the rule gaussian_filter adds up Gaussian guarantees only, and this release has another")
    return profile.mu * profile.mu


def _require_countable(book: BookState, terms: Terms, cap: Mapping[str, Any]) -> None:
    """What a cap can never cover, and what it costs the people of validation sets."""
    if book.conflict is not None and cap["rule"] != "ceiling":  # the ceiling covers whatever is within it
        raise CapExceeded(f"the cap on {book.book} cannot be vouched for any more: {book.conflict}")
    if not terms.charged:
        raise CapExceeded(
            f"{book.book} has a cap, and how this release was chosen is not charged; accepted: a choice without "
            "looking, or one that pays for its look set"
        )
    if terms.validation is None:
        return
    if terms.validation.disjoint_vouched_by is None:
        raise CapExceeded(
            f"{book.book} has a cap, and nobody vouches that the validation set has none of its people; accepted: "
            "a validation set that is disjoint"
        )
    total = math.nextafter(book.validation_apart + terms.validation.epsilon, math.inf)
    if total > cap["epsilon"] or ROUNDING_DELTA * (len(book.releases) + 1) > cap["delta"]:
        left = max(0.0, cap["epsilon"] - book.validation_apart)
        raise CapExceeded(
            f"the people of the validation set have ε {left:.6g} left under the cap, and this choice needs "
            f"{terms.validation.epsilon:.6g}"
        )


def beyond(ceiling: Mapping[str, int], exposure: Mapping[str, int]) -> list[str]:
    """The runs of an exposure that are not within a ceiling."""
    return sorted(run for run, step in exposure.items() if step > ceiling.get(run, -1))


def ceiling_of(cap: Mapping[str, Any]) -> dict[str, int]:
    return {run["identity"]: run["step"] for run in cap["ceiling"]}


def _require_below_ceiling(book: BookState, proposal: Proposal, cap: Mapping[str, Any]) -> None:
    ceiling = ceiling_of(cap)
    for exposure in (book.exposed, joined(*proposal.exposures)):
        if over := beyond(ceiling, exposure):
            needed = ", ".join(f"{book.runs[run].name}@{exposure[run]}" for run in over[:5] if run in book.runs)
            allowed = [f"{book.runs[run].name}@{ceiling[run]}" if run in ceiling else "no step" for run in over[:5]]
            raise CapExceeded(
                f"the rule ceiling allows nothing beyond what was fixed beforehand: needed "
                f"{needed or f'{len(over)} runs that it does not have'}, allowed {', '.join(allowed)}"
            )


def _require_gaussian(book: BookState, proposal: Proposal, cap: Mapping[str, Any], cost: float) -> None:
    limit = gaussian_budget(cap["epsilon"], cap["delta"])
    book.prices.require_independent(joined(book.exposed, *proposal.exposures))
    if proposal.bounds is not None:
        marks = [book.prices.squared_mu(book.high_water)]
    else:
        marks = [book.prices.squared_mu(joined(book.high_water, exposure)) for exposure in proposal.exposures]
    needed = max(marks) + book.spent + cost
    if not needed * (1 + MARGIN) <= limit:
        used = book.prices.squared_mu(book.high_water) + book.spent
        room = gaussian_epsilon(math.sqrt(max(0.0, limit - used)), cap["delta"])
        fits = f"; of runs not seen yet, ε up to about {float(room):.4g} fits"
        raise _exceeded("gaussian_filter", "μ²", limit, used, needed, fits)


def _require_renyi(book: BookState, cap: Mapping[str, Any], cost: float) -> None:
    limit = renyi_budget(cap["epsilon"], cap["delta"], cap["order"])
    needed = book.spent + cost
    if not needed * (1 + MARGIN) <= limit:
        raise _exceeded("renyi_filter", f"Rényi divergence of order {cap['order']:g}", limit, book.spent, needed)


def _exceeded(rule: str, currency: str, limit: float, used: float, needed: float, fits: str = "") -> CapExceeded:
    return CapExceeded(
        f"the rule {rule} has {max(0.0, limit - used):.6g} of {limit:.6g} left (in {currency}), and this release "
        f"could need {needed - used:.6g}{fits}"
    )
