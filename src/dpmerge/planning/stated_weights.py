"""Weights that somebody states, as a plan: one merge, chosen without having looked at the models."""

from __future__ import annotations

from collections.abc import Mapping

from dpmerge.planning.candidates import AskedTheorem, candidate
from dpmerge.planning.plan import Plan
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.terms.candidate_terms import CandidateTerms, Choice
from dpmerge.terms.documents import made
from dpmerge.terms.guarantee import Guarantee
from dpmerge.terms.noise_groups import groups_among
from dpmerge.terms.recipe import Recipe
from dpmerge.terms.release_terms import ReleaseTerms


def stated_weights(
    portfolio: Portfolio, weights: Mapping[str, float], target: Guarantee, *, theorem: AskedTheorem = "joint_release"
) -> Plan:
    """The plan of one linear combination.

    Args:
        portfolio: whose checkpoints are combined.
        weights: run@step → weight; they sum to one, and must not come from looking at the models.
        target: what has to be met.
        theorem: by which it is priced.

    Returns:
        A plan whose choice is vouched for by whoever stated the weights.

    Raises:
        InvalidInputError: the weights are no recipe of this portfolio.
        NoGuaranteeError: the theorem has no figure for it.
        TargetOutOfReachError: it does not meet the target.
    """
    recipe = Recipe.of(weights)
    chosen = candidate(portfolio, recipe, delta=target.delta, theorem=theorem)
    involved = chosen.exposed()
    terms = made(
        ReleaseTerms,
        dataset=portfolio.dataset,
        unit=portfolio.unit,
        adjacency=portfolio.adjacency.value,
        accounting="pld",
        runs=[run.manifest.statement for run in portfolio.runs if run.id in involved],
        candidates=[CandidateTerms.of(recipe.parts, chosen.theorem, involved)],
        probabilities=[1.0],
        choice=Choice.stated("weights stated beforehand", "weights_stated_without_looking_at_the_models"),
        noise_groups=groups_among({run.id: run.mechanism for run in portfolio.runs if run.id in involved}),
    )
    return Plan.of_terms(portfolio, terms, target, asked={"method": "stated", "theorem": theorem})
