"""The terms of a release: everything its cost depends on, as a document that stands by itself.

Guarantees: the cost is computed from what is written here, the records of the runs, the candidates and their
probabilities, and from nothing else: whoever has the terms can price the release again. No stored figure is believed.
Refuses: candidates of runs that are not stated, probabilities that no draw over whole numbers has, unknown fields.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field, model_validator

from dpmerge.accounting.combination import Bound, LinearCombination
from dpmerge.accounting.exposure import Adjacency, AdjacencyName, Checkpoint, Exposure, Mechanism
from dpmerge.accounting.gaussian import GaussianProfile
from dpmerge.accounting.premises import Premise, independent_draw, of_all
from dpmerge.accounting.profile import PrivacyProfile
from dpmerge.accounting.random_selection import SelectionProfile
from dpmerge.accounting.renyi import RenyiProfile
from dpmerge.errors import InvalidInputError, NoGuaranteeError
from dpmerge.terms.ancestry import mechanisms_of
from dpmerge.terms.candidate_terms import CandidateTerms, Choice, Validation
from dpmerge.terms.caveats import Caveat, release_caveats, run_caveats
from dpmerge.terms.checkpoint_reference import CheckpointReference
from dpmerge.terms.documents import Strict, Text, validated
from dpmerge.terms.noise_groups import group_caveats, group_names, group_premises, require_one_of_a_group
from dpmerge.terms.run_record import ADJACENCY, RunId, RunRecord, shared_map_voucher, stated_premises
from dpmerge.terms.theorems import Theorem

UNITS = 2**53
"""Probabilities are multiples of 1/UNITS: exact as floats, and drawn by whole numbers."""

ROUNDING_DELTA = 2.0**-500
"""What rounding weights up to whole numbers costs in δ: less than twice 2⁻⁵¹² for each of at most a thousand."""


class ReleaseTerms(Strict):
    """The terms of one release of a portfolio."""

    dataset: Text = Field(description="text: the data's name")
    unit: Text = Field(description="text: whose privacy is protected")
    adjacency: AdjacencyName = Field(description=ADJACENCY)
    accounting: Literal["pld", "rdp"] = Field(description='"pld" or "rdp"')
    runs: list[RunRecord] = Field(min_length=1, description="a non-empty list of runs as their manifests state them")
    candidates: list[CandidateTerms] = Field(min_length=1, description="a non-empty list of candidates")
    probabilities: list[Annotated[float, Field(gt=0, le=1)]] = Field(description="numbers in (0, 1], one a candidate")
    choice: Choice = Field(description="an object with kind and rule")
    validation: Validation | None = Field(default=None, description="an object with epsilon")
    noise_groups: list[list[RunId]] | None = Field(
        default=None,
        description="a list of lists: runs that share a noise seed with one another, or with a run that is not here",
    )

    @model_validator(mode="after")
    def _consistent(self) -> ReleaseTerms:
        if len({statement.run for statement in self.runs}) != len(self.runs):
            raise InvalidInputError("runs", [s.run for s in self.runs], "each run once")
        _require_units(self.probabilities, len(self.candidates))
        for place, candidate in enumerate(self.candidates):
            self._require_seen(f"candidates[{place}]", candidate)
        require_one_of_a_group(self)
        if self.choice.kind in ("public_evaluation", "private_validation"):
            if any(candidate.is_final for candidate in self.candidates):
                accepted = "joint_release: a choice made by looking voids all other theorems"
                raise InvalidInputError("candidates.theorem", [c.theorem.value for c in self.candidates], accepted)
            if len(self.candidates) > 1:
                accepted = "one candidate: a draw whose candidates were chosen by looking is not random selection"
                raise InvalidInputError("candidates", len(self.candidates), accepted)
        if (self.choice.kind == "private_validation") != (self.validation is not None):
            raise InvalidInputError(
                "validation", None, "the cost of the choice, for private_validation and nothing else"
            )
        return self

    def _require_seen(self, where: str, candidate: CandidateTerms) -> None:
        """What was looked at is stated in full: all the candidate is made of, and all that anything descends from."""
        seen = {each.run: each.step for each in candidate.seen}
        if len(seen) != len(candidate.seen):
            raise InvalidInputError(f"{where}.seen", list(seen), "each run once")
        for run in (*seen, *(part.run for part in candidate.parts)):
            if run not in self.statements:
                raise InvalidInputError(where, run, f"runs that are stated: {', '.join(self.statements)}")
        exposed = {run.label: step for run, step in Exposure.of(self._checkpoints(candidate)).steps.items()}
        for run, step in exposed.items():
            if seen.get(run, -1) < step:
                accepted = f"at least step {step} of {run}, which the candidate is made of or descends from"
                raise InvalidInputError(f"{where}.seen", seen.get(run), accepted)
        if candidate.is_final and seen != exposed:
            accepted = "what the candidate is made of, and no more, unless it is priced as a joint release"
            raise InvalidInputError(f"{where}.seen", seen, accepted)
        looked = {run.label: step for run, step in self.exposure(candidate).steps.items()}
        if looked != seen:
            accepted = "every run that was looked at with all it descends from"
            raise InvalidInputError(f"{where}.seen", seen, accepted)
        candidate.recipe  # noqa: B018  weights that are no recipe are refused here

    @cached_property
    def statements(self) -> dict[str, RunRecord]:
        return {statement.run: statement for statement in self.runs}

    @cached_property
    def mechanisms(self) -> Mapping[str, Mechanism]:
        return mechanisms_of(self.statements, Adjacency(self.adjacency), group_names(self.noise_groups))

    def _checkpoints(self, candidate: CandidateTerms) -> list[Checkpoint]:
        return [Checkpoint(self.mechanisms[part.run], part.step) for part in candidate.parts]

    def exposure(self, candidate: CandidateTerms) -> Exposure:
        """All that was looked at to make a candidate."""
        return Exposure.of(Checkpoint(self.mechanisms[seen.run], seen.step) for seen in candidate.seen)

    def bound(self, candidate: CandidateTerms) -> Bound:
        """What a candidate's theorem says of it; joint release is of everything that was looked at."""
        if not candidate.is_final:
            seen = [Checkpoint(run, step) for run, step in self.exposure(candidate).steps.items()]
            joint = LinearCombination(checkpoints=seen, weights=[1 / len(seen)] * len(seen))
            return Theorem.JOINT_RELEASE.bound(joint)
        support = dict.fromkeys(part.run for part in candidate.parts)
        return candidate.theorem.bound(
            LinearCombination(
                checkpoints=self._checkpoints(candidate),
                weights=[part.weight for part in candidate.parts],
                release_noise=candidate.release_noise,
                shared_affine=shared_map_voucher(self.statements[run].mechanism for run in support),
            )
        )

    @cached_property
    def bounds(self) -> tuple[Bound, ...]:
        return tuple(self.bound(candidate) for candidate in self.candidates)

    def counted_profile(self, place: int) -> PrivacyProfile | None:
        """What a ledger counts for a candidate: its bound, but with every pass over shuffled data counted whole.

        Filters add costs up while releases are chosen by what was seen; a share of a pass is for fixed steps alone.
        """
        bound, candidate = self.bounds[place], self.candidates[place]
        if bound.profile is None or candidate.is_final:
            return bound.profile
        return self.exposure(candidate).profile()

    @cached_property
    def profile(self) -> PrivacyProfile:
        """What the release costs the people the models were trained on."""
        members = []
        for candidate, bound in zip(self.candidates, self.bounds, strict=True):
            if bound.profile is None:
                missing = "; ".join(p.name.replace("_", " ") for p in bound.premises if not p.holds)
                raise NoGuaranteeError(f"{candidate.recipe}: {candidate.theorem} has no figure for it ({missing})")
            members.append(bound.profile)
        whole = members[0] if len(members) == 1 else SelectionProfile(tuple(members), tuple(self.probabilities))
        return RenyiProfile.of(whole) if self.accounting == "rdp" else whole

    def epsilon(self, delta: float) -> float:
        """ε at δ for one person, who may be in the training and in the validation set."""
        if self.validation is None:
            return self.profile.epsilon(delta)
        training = self.profile.epsilon(math.nextafter(delta, 0.0))
        if self.validation.disjoint_vouched_by is not None:
            return max(training, self.validation.epsilon)
        return math.nextafter(training + self.validation.epsilon, math.inf)

    def delta(self, epsilon: float) -> float:
        """δ at ε, likewise; 1 where nothing is known."""
        if self.validation is None:
            return self.profile.delta(epsilon)
        if epsilon < self.validation.epsilon:
            return 1.0
        disjoint = self.validation.disjoint_vouched_by is not None
        left = epsilon if disjoint else math.nextafter(epsilon - self.validation.epsilon, 0.0)
        return min(1.0, math.nextafter(self.profile.delta(left) + ROUNDING_DELTA, 1.0))

    @property
    def mu(self) -> float | None:
        """The one number of a Gaussian guarantee, where it is one."""
        profile = self.profile
        return profile.mu if isinstance(profile, GaussianProfile) and self.validation is None else None

    @property
    def premises(self) -> tuple[Premise, ...]:
        return of_all(self._each_premise())

    def _each_premise(self) -> Iterator[Premise]:
        for bound in self.bounds:
            yield from bound.premises
        yield from stated_premises(self.runs)
        yield from group_premises(self.noise_groups)
        if len(self.candidates) > 1:
            yield independent_draw()
        for premise in self.choice.premises:
            yield Premise(premise.name, premise.holds, premise.vouched_by)

    @property
    def proved(self) -> bool:
        return all(premise.holds for premise in self.premises)

    @property
    def charged(self) -> bool:
        """Whether the guarantee covers how the release was chosen."""
        return self.choice.kind != "uncharged"

    @property
    def is_final(self) -> bool:
        """Whether it holds only if nothing else of these runs is ever released."""
        return bool(self.noise_groups) or any(candidate.is_final for candidate in self.candidates)

    @property
    def units(self) -> tuple[int, ...]:
        """The probabilities as whole numbers, to draw by."""
        return tuple(int(probability * UNITS) for probability in self.probabilities)

    def caveats(self, delta: float) -> list[Caveat]:
        """What a reader should know that no check can settle."""
        own = release_caveats(
            premises=self.premises,
            kind=self.choice.kind,
            drawn=len(self.candidates) > 1,
            without_privacy=any(b.profile is None or math.isinf(b.profile.epsilon(delta)) for b in self.bounds),
            final=self.is_final,
        )
        groups = group_caveats(self.noise_groups)
        return [*own, *groups, *(caveat for record in self.runs for caveat in run_caveats(record))]

    @property
    def inputs(self) -> list[CheckpointReference]:
        """Every checkpoint that some candidate is made of."""
        return sorted({part.checkpoint for candidate in self.candidates for part in candidate.parts})

    def as_joint_release(self) -> ReleaseTerms:
        """The same release, priced so that others of these runs may follow it (theory 6.2).

        Raises:
            NoGuaranteeError: of runs that share a noise seed no other release may follow.
        """
        if not self.is_final:
            return self
        if self.noise_groups:
            raise NoGuaranteeError(
                f"{', '.join(self.noise_groups[0])}: of runs that share a noise seed one is all that may ever be "
                "released; make it a final release, final=True (--final), which locks all of them, or use other runs"
            )
        candidates = [each.model_copy(update={"theorem": Theorem.JOINT_RELEASE}) for each in self.candidates]
        # Copies keep what was cached of the original; a fresh reading does not.
        document = self.model_copy(update={"candidates": candidates}).document()
        return validated(ReleaseTerms, document, "terms")


def _require_units(probabilities: list[float], candidates: int) -> None:
    whole = [probability * UNITS for probability in probabilities]
    if len(whole) != candidates or any(not each.is_integer() for each in whole) or sum(map(int, whole)) != UNITS:
        accepted = f"{candidates} multiples of 2⁻⁵³ that sum to exactly 1"
        raise InvalidInputError("probabilities", probabilities, accepted)
