"""A release that is wanted, before it is made: its terms, and the target they have to meet.

Guarantees: whether it came from a plan, from a plan's file or from weights somebody states, it is priced afresh from
the portfolio's own records; no figure of a file is believed.
Refuses: plans that name other runs than the portfolio has, or that no longer meet their target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dpmerge.account.table import shown
from dpmerge.documents import read_bytes, strict_json, validated
from dpmerge.errors import InvalidInput, NoGuarantee, TargetOutOfReach
from dpmerge.planning.candidates import Theorem, candidate
from dpmerge.planning.plan import SCHEMA, Plan
from dpmerge.planning.target import Guarantee
from dpmerge.planning.terms import CandidateTerms, Choice, Seen, Terms, part_of
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.recipe import Recipe


@dataclass(frozen=True, eq=False)
class Planned:
    """Terms that meet a target, of a portfolio whose models may be merged as they say."""

    portfolio: Portfolio
    terms: Terms
    target: Guarantee
    asked: Mapping[str, str] = field(default_factory=dict)  # in whose words; the same words mean the same release

    def __post_init__(self) -> None:
        for each in self.terms.candidates:
            runs = list(dict.fromkeys(self.portfolio.run(part.run) for part in each.parts))
            self.portfolio.require_combinable(runs)
            for part in each.parts:
                self.portfolio.saved(f"{part.run}@{part.step}")
        for stated in self.terms.runs:
            if self.portfolio.run(stated.run).manifest.statement != stated:
                accepted = f"what the manifest of {stated.run} says"
                raise InvalidInput(f"runs.{stated.run}", None, accepted, found="something else")
        epsilon = self.terms.epsilon(self.target.delta)
        if not epsilon <= self.target.epsilon:
            words = " or ".join(str(each.recipe) for each in self.terms.candidates[:3])
            raise TargetOutOfReach(self.target.epsilon, self.target.delta, epsilon, words)

    @classmethod
    def of(cls, plan: Plan) -> Planned:
        return cls(plan.portfolio, Terms.of(plan), plan.target)

    def lasting(self) -> Planned:
        """The same, priced so that other releases of these runs may follow: as joint releases."""
        if not self.terms.is_final:
            return self
        candidates = [each.model_copy(update={"theorem": "joint_release"}) for each in self.terms.candidates]
        terms = self.terms.model_copy(update={"candidates": candidates})
        document = terms.document()  # copies keep what was cached of the original; a fresh reading does not
        repriced = validated(Terms, document, "terms")
        try:
            return replace(self, terms=repriced)
        except TargetOutOfReach as error:
            locked = ", ".join(sorted({seen.run for each in candidates for seen in each.seen}))
            raise NoGuarantee(
                f"epsilon: got {self.target.epsilon:g} at delta {self.target.delta:g}; accepted: at least "
                f"{shown(error.smallest)} for a release that others may follow, or a final one (--final), which locks "
                f"{locked} for ever"
            ) from None


def stated_weights(
    portfolio: Portfolio, weights: Mapping[str, float], target: Guarantee, *, theorem: Theorem = "joint_release"
) -> Planned:
    """One merge with weights that somebody states, without having looked at the models."""
    recipe = Recipe.of(weights)
    chosen = candidate(portfolio, recipe, delta=target.delta, theorem=theorem)
    involved = chosen.exposed()
    terms = Terms(
        dataset=portfolio.dataset,
        unit=portfolio.unit,
        adjacency=portfolio.adjacency.value,
        accounting="pld",
        runs=[run.manifest.statement for run in portfolio.runs if run.id in involved],
        candidates=[
            CandidateTerms(
                parts=[part_of(name, weight) for name, weight in recipe.parts],
                release_noise=0.0,
                theorem=chosen.theorem,  # type: ignore[arg-type]
                seen=[Seen(run=run, step=step) for run, step in sorted(involved.items())],
            )
        ],
        probabilities=[1.0],
        choice=Choice.stated("weights stated beforehand", "weights_stated_without_looking_at_the_models"),
    )
    return Planned(portfolio, terms, target)


def read_planned(path: Path, portfolio: Portfolio) -> Planned:
    """The plan that `dpmerge plan -o` saved, priced again."""
    try:
        return _planned(strict_json(read_bytes(path), "plan"), portfolio)
    except InvalidInput as error:
        raise error.within(str(path)) if type(error) is InvalidInput else error from None


def _planned(document: Any, portfolio: Portfolio) -> Planned:
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        found = document.get("schema") if isinstance(document, dict) else document
        raise InvalidInput("schema", found, f"{SCHEMA}, as `dpmerge plan -o FILE` writes it")
    try:
        chosen_by = document["chosen_by"]
        named = [name.rpartition("@")[0] for each in document["candidates"] for name in each["weights"]]
        involved = {*named, *(run for each in document["candidates"] for run in each["exposure"])}
        content = {
            "dataset": document["dataset"],
            "unit": document["unit"],
            "adjacency": document["adjacency"],
            "accounting": document["accounting"],
            "runs": [
                run.manifest.statement.model_dump(exclude_none=True) for run in portfolio.runs if run.id in involved
            ],
            "candidates": [_candidate(each) for each in document["candidates"]],
            "probabilities": document["probabilities"],
            "choice": {
                "kind": chosen_by["kind"],
                "rule": chosen_by["rule"],
                "premises": [
                    {"name": p["name"], "holds": p["holds"], "vouchedBy": p["vouched_by"]}
                    for p in chosen_by["premises"]
                ],
            },
        }
        if "sides" in chosen_by:
            content["validation"] = {"epsilon": chosen_by["sides"]["validation"]["epsilon"]}
            for premise in content["choice"]["premises"]:
                if premise["name"] == "training_and_validation_people_disjoint":
                    content["validation"]["disjointVouchedBy"] = premise["vouchedBy"]
        target = Guarantee(**document["target"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        found = f"something else ({type(error).__name__}: {error})"
        raise InvalidInput("plan", None, "a plan as `dpmerge plan -o FILE` writes it", found=found) from None
    if unknown := sorted(involved - {run.id for run in portfolio.runs}):
        known = ", ".join(run.id for run in portfolio.runs)
        raise InvalidInput("candidates", unknown[0], f"runs of this portfolio: {known}")
    terms = validated(Terms, content, "plan")
    for name in ("dataset", "unit"):
        if getattr(terms, name) != getattr(portfolio, name):
            raise InvalidInput(name, getattr(terms, name), f"{getattr(portfolio, name)!r}, as in the portfolio")
    if terms.adjacency != portfolio.adjacency.value:
        raise InvalidInput("adjacency", terms.adjacency, f"{portfolio.adjacency.value!r}, as in the portfolio")
    target.require_target()
    return Planned(portfolio, terms, target)


def _candidate(document: Mapping[str, Any]) -> dict[str, Any]:
    parts = [part_of(name, weight).model_dump(by_alias=True) for name, weight in document["weights"].items()]
    seen = [{"run": run, "step": step} for run, step in sorted(document["exposure"].items())]
    return {
        "parts": parts,
        "releaseNoise": document["release_noise"],
        "theorem": document["theorem"],
        "seen": seen,
    }


def _premise(document: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": document["name"], "holds": document["holds"], "vouchedBy": document["vouched_by"]}
