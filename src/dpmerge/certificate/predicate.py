"""What a certificate says: what is declared, and what follows from it.

Guarantees: everything a reader relies on (the guarantee, its profile, premises, caveats) is computed from the declared
terms by `derived`, when the certificate is made and again when it is verified. Predicate facts name unreleased models
by commitments, never by digests, and hold no seed and no score. What version 1 did not say is not read into it.
Refuses: declarations that contradict themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from dpmerge.accounting.gaussian import GaussianProfile
from dpmerge.accounting.renyi import RenyiProfile
from dpmerge.accounting.rounding import LEAST_DELTA, up
from dpmerge.certificate.audited import Audited
from dpmerge.certificate.commitments import CertifiedFile, binding
from dpmerge.errors import DeltaOutOfReachError, InvalidInputError
from dpmerge.terms.candidate_terms import Seen
from dpmerge.terms.caveats import SINCE_2, Caveat
from dpmerge.terms.checkpoint_reference import CheckpointReference
from dpmerge.terms.documents import Strict, Text, schema_of
from dpmerge.terms.portfolio_facts import PortfolioFacts
from dpmerge.terms.release_terms import ReleaseTerms
from dpmerge.terms.run_record import PREMISES_SINCE_2, RunId

Version = Literal[1, 2, 3]
PREDICATE_TYPES: dict[Version, str] = {v: f"urn:dpmerge:privacy-certificate:v{v}" for v in (1, 2, 3)}
NEWEST: Version = 3

Hex256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
ReleaseId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]

CAVEATS_SINCE_2 = SINCE_2 | {"repeated_draw"}
"""Names that version 1 did not know: its certificates are computed again without them, and without newer premises."""
STATED_IN_1 = frozenset({"run", "mechanism", "noise", "ancestry", "tuning", "finished", "recorded_by"})
ANCESTRY_IN_1 = frozenset({"start", "source", "run", "step", "assumed"})
"""What runs stated then. A statement of later facts needs the caveats about them, so it cannot be of version 1."""

_DELTAS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9)
_EPSILONS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


class Target(Strict):
    """What was asked for."""

    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(description="a finite number > 0")
    delta: Annotated[float, Field(gt=0, lt=1)] = Field(description="a number in (0, 1)")


class Input(Strict):
    """A checkpoint that went into a candidate, named without giving it away."""

    run: RunId = Field(description="the name of a stated run")
    step: Annotated[int, Field(ge=0)] = Field(description="an integer ≥ 0")
    commitment: Hex256 = Field(description="64 hexadecimal digits: HMAC-SHA256 under the portfolio's salt")

    @property
    def checkpoint(self) -> CheckpointReference:
        return CheckpointReference(self.run, self.step)


class LedgerEntry(Strict):
    """Where the release was charged, before any of it existed."""

    id: ReleaseId = Field(description="32 hexadecimal digits: which ledger")
    entry: Annotated[int, Field(ge=0)] = Field(description="an integer ≥ 0: the entry's number")
    hash: Hex256 = Field(description="64 hexadecimal digits: the entry's hash")


class Predicate(Strict):
    """The part of a certificate that somebody declares; the rest follows from it."""

    release: ReleaseId = Field(description="32 hexadecimal digits")
    charged_at: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$")] = Field(
        description="an RFC 3339 time in UTC, such as 2026-11-16T12:00:00Z"
    )
    target: Target = Field(description="an object with epsilon and delta")
    terms: ReleaseTerms = Field(description="the terms of the release")
    final: bool = Field(description="true or false: was it declared that nothing else of these runs will be released?")
    portfolio: PortfolioFacts = Field(description="an object")
    adapters: Literal["as_trained", "concatenated"] = Field(
        default="as_trained", description='"as_trained" or "concatenated"'
    )
    donor: RunId | None = Field(
        default=None, description="the run whose configuration files are in the output, where one was named"
    )
    drawn: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="an integer ≥ 0: the candidate that was drawn, where that is revealed"
    )
    inputs: list[Input] = Field(min_length=1, description="a non-empty list of objects with run, step and commitment")
    ledger: LedgerEntry = Field(description="an object with id, entry and hash")
    draw_number: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="an integer ≥ 1, where there are several candidates: how often they were drawn from, this included",
    )
    binding: Hex256 | None = Field(
        default=None, description="64 hexadecimal digits: HMAC-SHA256 of all that is declared and of the files"
    )
    audit: Audited | None = Field(default=None, description="what an attack on the simulated release has shown")
    tools: dict[Text, Text] = Field(description="an object of names and versions")

    @model_validator(mode="after")
    def _consistent(self) -> Predicate:
        if [(each.run, each.step) for each in self.inputs] != self.terms.inputs:
            raise InvalidInputError("inputs", None, "each checkpoint of the candidates once, in order", found="others")
        if self.terms.is_final and not self.final:
            accepted = "true: a theorem used here holds only if nothing else of these runs is ever released"
            raise InvalidInputError("final", False, accepted)
        if self.drawn is not None and not (len(self.terms.candidates) > 1 and self.drawn < len(self.terms.candidates)):
            raise InvalidInputError("drawn", self.drawn, "the number of a candidate, where there are several")
        exact = all(not c.is_final and c.release_noise == 0 for c in self.terms.candidates)
        if self.adapters == "concatenated" and not exact:
            accepted = "joint_release without release noise where adapters are concatenated"
            raise InvalidInputError("adapters", self.adapters, accepted)
        return self

    def declared(self, version: Version = NEWEST) -> dict[str, Any]:
        """What is declared, as JSON values. Until version 2 the records of the runs were in snake_case."""
        document = self.document("camel")
        if version < 3:
            document["terms"]["runs"] = [record.document() for record in self.terms.runs]
        return document

    def binding_of(self, files: Mapping[str, CertifiedFile], salt: bytes, version: Version = NEWEST) -> str:
        """What binds all that is declared to these files; nobody without the release's salt can make one."""
        unbound = {name: value for name, value in self.declared(version).items() if name != "binding"}
        return binding(unbound, files, salt)

    def bound(self, files: Mapping[str, CertifiedFile], salt: bytes, version: Version = NEWEST) -> Predicate:
        """The same, about these files."""
        return self.model_copy(update={"binding": self.binding_of(files, salt, version)})

    def require_version(self, version: Version) -> None:
        """Refuse fields that a version does not have, and missing ones that it must have."""
        has = {"binding": version > 1, "draw_number": version > 1 and len(self.terms.candidates) > 1}
        for name, needed in has.items():
            value, field = getattr(self, name), Predicate.model_fields[name]
            if (value is not None) != needed:
                accepted = str(field.description) if needed else f"nothing in this certificate of version {version}"
                raise InvalidInputError(
                    field.alias or name, value, accepted, found="nothing" if needed else repr(value)
                )
        for stated in self.terms.runs if version == 1 else ():
            facts = stated.document()
            if later := sorted((facts.keys() - STATED_IN_1) | (facts["ancestry"].keys() - ANCESTRY_IN_1)):
                accepted = "what runs stated in version 1; a certificate of version 2 states more"
                raise InvalidInputError(f"terms.runs.{stated.run}", later, accepted, found=", ".join(later))


def predicate(declared: Predicate, version: Version = NEWEST) -> dict[str, Any]:
    """The whole content of a certificate."""
    declared.require_version(version)
    return {**declared.declared(version), **derived(declared, version=version)}


def derived(declared: Predicate, shade: float = 1.0, *, version: Version = NEWEST) -> dict[str, Any]:
    """All that follows from what is declared; `shade` stands for what another machine may compute instead."""
    terms, delta = declared.terms, declared.target.delta
    premises = [p for p in terms.premises if version > 1 or p.name not in PREMISES_SINCE_2]
    epsilon = up(terms.epsilon(delta) * shade)
    audit = declared.audit
    return {
        "guarantee": {"epsilon": epsilon, "delta": delta},
        **({} if audit is None else {"auditFinding": audit.judged(float(epsilon))}),
        "profile": _profile(terms, declared.target, shade),
        "theorem": terms.candidates[0].theorem if len(terms.candidates) == 1 else "random_selection",
        "proved": all(p.holds for p in premises),
        "premises": [{"name": p.name, "holds": p.holds, "vouchedBy": p.vouched_by} for p in premises],
        "choice": _choice(terms),
        "tuning": _tuning(declared),
        "outcomes": [_outcome(terms, place, delta, shade) for place in range(len(terms.candidates))],
        "exposure": _exposure(terms),
        "setting": _setting(terms),
        "baseModels": base_models(terms),
        "caveats": [{"name": c.name, "about": c.where, "text": c.text} for c in caveats(declared, version)],
    }


def caveats(declared: Predicate, version: Version = NEWEST) -> list[Caveat]:
    """What no check can settle, as far as a version speaks of it."""
    own = declared.terms.caveats(declared.target.delta)
    if declared.final and not declared.terms.is_final:
        own.append(Caveat("final", "plan", "declared as the last release of these runs"))
    if declared.draw_number is not None and declared.draw_number > 1:
        text = (
            f"draw {declared.draw_number} of these terms: the same candidates were drawn from before; the guarantee "
            "is of one draw, and does not cover which of several is used"
        )
        own.append(Caveat("repeated_draw", "plan", text))
    every = [*own, *declared.portfolio.caveats()]
    return [caveat for caveat in every if version > 1 or caveat.name not in CAVEATS_SINCE_2]


def machine_error(terms: ReleaseTerms) -> float:
    """By how much, relatively, another machine may come to other figures: closed forms agree to many digits."""
    return 1e-7 if is_numerical(terms) else 1e-11


def is_numerical(terms: ReleaseTerms) -> bool:
    """Whether costs come from distributions composed on a grid: another version may have had a coarser one."""
    exact = terms.accounting == "pld" and all(isinstance(b.profile, GaussianProfile) for b in terms.bounds)
    return not exact and not isinstance(terms.profile, RenyiProfile)


def base_models(terms: ReleaseTerms) -> list[str]:
    """The public models that training started from."""
    sources = {s.ancestry.source for s in terms.runs if s.ancestry.start == "public" and s.ancestry.source}
    return sorted(source for source in sources if source is not None)


def _profile(terms: ReleaseTerms, target: Target, shade: float) -> dict[str, Any]:
    at_delta = []
    for point in sorted({*_DELTAS, target.delta}, reverse=True):
        try:
            at_delta.append({"delta": point, "epsilon": up(terms.epsilon(point) * shade)})
        except DeltaOutOfReachError:
            continue
    at_epsilon = [
        {"epsilon": point, "delta": up(min(1.0, max(terms.delta(point) * shade, LEAST_DELTA)))}
        for point in sorted({*_EPSILONS, target.epsilon})
    ]
    mu = terms.mu
    return {
        "epsilonAtDelta": at_delta,
        "deltaAtEpsilon": at_epsilon,
        **({} if mu is None else {"mu": up(mu * shade)}),
    }


def _choice(terms: ReleaseTerms) -> dict[str, Any]:
    return {"paidFor": terms.charged, "how": terms.choice.kind, "rule": terms.choice.rule}


def _tuning(declared: Predicate) -> dict[str, Any]:
    unknown = [s.run for s in declared.terms.runs if s.tuning == "unknown"]
    reasons = [f"how the hyperparameters of {', '.join(unknown)} were chosen is not recorded"] if unknown else []
    if not declared.portfolio.complete:
        reasons.append("it is not stated that these are all runs made on this data")
    covered = "hyperparameters were fixed, tuned on public data or paid for, and all runs on this data are stated"
    return {"covered": not reasons, "because": "; ".join(reasons) or covered}


def _outcome(terms: ReleaseTerms, place: int, delta: float, shade: float) -> dict[str, Any]:
    candidate, bound = terms.candidates[place], terms.bounds[place]
    epsilon = bound.epsilon(delta)
    return {
        "probability": terms.probabilities[place],
        "recipe": str(candidate.recipe),
        "theorem": candidate.theorem,
        "epsilon": up((float("inf") if epsilon is None else epsilon) * shade),
        **({} if bound.mu is None else {"mu": up(bound.mu * shade)}),
    }


def _exposure(terms: ReleaseTerms) -> list[dict[str, Any]]:
    """The furthest any candidate looks into each run."""
    furthest: dict[str, int] = {}
    for seen in (seen for candidate in terms.candidates for seen in candidate.seen):
        furthest[seen.run] = max(furthest.get(seen.run, 0), seen.step)
    return [Seen(run=run, step=step).document() for run, step in sorted(furthest.items())]


def _setting(terms: ReleaseTerms) -> dict[str, Any]:
    return {
        "model": "central",
        "trusted": "whoever trained the runs, keeps them and made this release",
        "covers": "training of the stated runs on the stated data, and this merge; no other access to that data",
        "released": "the files of this release, and nothing else of the runs",
        "alone": "by itself; what all releases from this data cost together is counted in the ledger of their owner",
        "unit": terms.unit,
        "adjacency": terms.adjacency,
        "arithmetic": "real numbers: as for DP-SGD itself, the rounding of floating-point noise is not accounted for",
    }


DERIVED = (
    "guarantee", "auditFinding", "profile", "theorem", "proved", "premises", "choice", "tuning", "outcomes",
    "exposure", "setting", "baseModels", "caveats",
)  # fmt: skip
"""What follows from the rest, and is computed again by whoever verifies."""


def certificate_schema() -> dict[str, Any]:
    """The published JSON Schema of a certificate's predicate, in its newest version."""
    schema = schema_of(Predicate, PREDICATE_TYPES[NEWEST], "A privacy certificate", case="camel")
    follows = {name: {"description": "follows from what is declared; computed again when verified"} for name in DERIVED}
    return {**schema, "properties": {**schema["properties"], **follows}}
