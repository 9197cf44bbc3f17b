"""Noise groups: runs that share a noise seed, as the terms of a release state them.

Two models of one seed may cancel each other's noise, so that what they cost together is unknown and may be infinite.
One of them, drawn by a random selection, costs what a draw costs: candidates may depend on one another as they like,
as long as the draw does not depend on them (theory 3).

Guarantees: a candidate sees one run of a group at most, ancestors included, and nobody looked at two to choose.
Refuses: anything else, naming the runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from dpmerge.accounting.exposure import Mechanism, one_seed, shared_noise
from dpmerge.accounting.premises import Premise, only_release
from dpmerge.errors import InvalidInputError
from dpmerge.terms.caveats import Caveat

if TYPE_CHECKING:
    from dpmerge.terms.release_terms import ReleaseTerms

Groups = list[list[str]]
"""Group by group the runs that a release touches; of a run that shares its seed with an untouched one, it alone."""

ONE_OF_THEM = "one run of a noise group at most: draw one of them (method select), and average none with another"


def groups_among(runs: Mapping[str, Mechanism]) -> Groups | None:
    """Of some runs, those that share a noise seed with one another or with a run outside; None if no run does."""
    found: dict[str, list[str]] = {}
    for name, run in runs.items():
        if run.noise_group is not None:
            found.setdefault(run.noise_group, []).append(name)
    return sorted(map(sorted, found.values())) or None


def group_names(groups: Groups | None) -> dict[str, str]:
    """Run → a name for its group."""
    return {run: f"group {place}" for place, members in enumerate(groups or ()) for run in members}


def require_one_of_a_group(terms: ReleaseTerms) -> None:
    """Refuse groups of runs that are not stated, and candidates or choices that see two runs of one."""
    groups = terms.noise_groups or []
    members = [run for group in groups for run in group]
    if not all(groups) or len(set(members)) < len(members) or not set(members) <= set(terms.statements):
        accepted = "lists of runs that are stated, none of them empty, each run in one"
        raise InvalidInputError("noise_groups", groups, accepted)
    for place, candidate in enumerate(terms.candidates):
        if (pair := shared_noise(terms.mechanisms[seen.run] for seen in candidate.seen)) is not None:
            problem = f"candidates[{place}]: {one_seed(*pair)}"
            raise InvalidInputError(f"candidates[{place}].seen", pair, ONE_OF_THEM, problem=problem)
    if terms.choice.kind != "data_independent":
        for group in groups:
            if len(group) > 1:
                problem = f"choice: {one_seed(*group[:2])}; what a choice by looking at both costs nobody knows"
                remedy = "choose without looking at the models, or look at one of them at most"
                raise InvalidInputError("choice.kind", terms.choice.kind, remedy, problem=problem)


def group_premises(groups: Groups | None) -> Iterator[Premise]:
    """A selection from a group is all that may ever leave of it."""
    if groups:
        yield only_release()


def group_caveats(groups: Sequence[Sequence[str]] | None, where: str = "plan") -> Iterator[Caveat]:
    for group in groups or ():
        if len(group) > 1:
            who = f"{', '.join(group[:-1])} and {group[-1]} share a noise seed"
        else:
            who = f"{group[0]} shares its noise seed with other runs"
        text = f"{who}: one of them, drawn once in a final release, is all that may ever be released of them"
        yield Caveat("noise_group", where, text)
