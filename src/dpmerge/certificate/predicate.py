"""What a certificate says: what is declared, and what follows from it.

Guarantees: everything a reader relies on (the guarantee, its profile, premises, caveats) is computed from the declared
terms by `derived`, when the certificate is made and again when it is verified. Declared facts name unreleased models
by commitments, never by digests, and hold no seed and no score. What version 1 did not say is not read into it.
Refuses: declarations that contradict themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from dpmerge.certificate.audited import Audited
from dpmerge.certificate.commitments import CertifiedFile, binding
from dpmerge.certificate.figures import LEAST_DELTA, up
from dpmerge.errors import DeltaOutOfReach, InvalidInput
from dpmerge.planning.terms import Seen, Stated, Terms
from dpmerge.portfolio.caveats import SINCE_2, Caveat
from dpmerge.portfolio.facts import Text
from dpmerge.portfolio.listing import Allowance
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.statement import PREMISES_SINCE_2, RunId
from dpmerge.privacy.gaussian import GaussianProfile
from dpmerge.privacy.renyi import RenyiProfile

Version = Literal[1, 2]
PREDICATE_TYPES: dict[Version, str] = {v: f"urn:dpmerge:privacy-certificate:v{v}" for v in (1, 2)}
NEWEST: Version = 2

Hex256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
ReleaseId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]

CAVEATS_SINCE_2 = SINCE_2 | {"repeated_draw"}
"""Names that version 1 did not know: its certificates are computed again without them, and without newer premises."""
STATED_IN_1 = frozenset({"run", "mechanism", "noise", "ancestry", "tuning", "finished", "recorded_by"})
ANCESTRY_IN_1 = frozenset({"start", "source", "run", "step", "assumed"})
"""What runs stated then. A statement of later facts needs the caveats about them, so it cannot be of version 1."""

_DELTAS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9)
_EPSILONS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


class Target(Stated):
    """What was asked for."""

    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(description="a finite number > 0")
    delta: Annotated[float, Field(gt=0, lt=1)] = Field(description="a number in (0, 1)")


class Input(Stated):
    """A checkpoint that went into a candidate, named without giving it away."""

    run: RunId = Field(description="the name of a stated run")
    step: Annotated[int, Field(ge=0)] = Field(description="an integer ≥ 0")
    commitment: Hex256 = Field(description="64 hexadecimal digits: HMAC-SHA256 under the portfolio's salt")


class PortfolioFacts(Stated):
    """What is known about the portfolio as a whole."""

    complete: bool | None = Field(
        default=None, description="true or false: are these all runs made on this data? Left out if nobody says"
    )
    allowed: list[Allowance] = Field(default_factory=list, description="a list of differences that were averaged over")
    unknown_start: list[RunId] = Field(
        default_factory=list, description="a list of runs whose initial weights are not recorded"
    )

    @classmethod
    def of(cls, portfolio: Portfolio, terms: Terms) -> PortfolioFacts:
        """As far as the runs of a release are concerned."""
        averaged = {p.run for c in terms.candidates if len({q.run for q in c.parts}) > 1 for p in c.parts}
        runs = [portfolio.run(name) for name in sorted(averaged)]
        return cls(
            complete=portfolio.complete,
            allowed=sorted({allowance for allowance, _ in portfolio.differences(runs)} & portfolio.allowed),  # type: ignore[arg-type]
            unknown_start=sorted(run.id for run in runs if run.manifest.initial_weights is None),
        )

    def caveats(self) -> Iterator[Caveat]:
        if self.complete is None:
            text = "nobody says whether these are all runs made on this data; guarantees do not cover dropped ones"
            yield Caveat("completeness_unknown", "portfolio", text)
        elif not self.complete:
            text = "other runs were made on this data; guarantees do not cover which runs were kept"
            yield Caveat("incomplete", "portfolio", text)
        for name in self.allowed:
            yield Caveat(name, "portfolio", f"averaged in spite of {name.replace('_', ' ')}, as allowed")
        if self.unknown_start:
            text = (
                f"initial weights of {', '.join(self.unknown_start)} are not recorded; averaging assumes a common start"
            )
            yield Caveat("initial_weights_unknown", "portfolio", text)


class LedgerEntry(Stated):
    """Where the release was charged, before any of it existed."""

    id: ReleaseId = Field(description="32 hexadecimal digits: which ledger")
    entry: Annotated[int, Field(ge=0)] = Field(description="an integer ≥ 0: the entry's number")
    hash: Hex256 = Field(description="64 hexadecimal digits: the entry's hash")


class Declared(Stated):
    """The part of a certificate that is somebody's word; the rest follows from it."""

    release: ReleaseId = Field(description="32 hexadecimal digits")
    charged_at: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$")] = Field(
        description="an RFC 3339 time in UTC, such as 2026-11-16T12:00:00Z"
    )
    target: Target = Field(description="an object with epsilon and delta")
    terms: Terms = Field(description="the terms of the release")
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
    def _consistent(self) -> Declared:
        if [(each.run, each.step) for each in self.inputs] != input_names(self.terms):
            raise InvalidInput("inputs", None, "each checkpoint of the candidates once, in order", found="others")
        if self.terms.is_final and not self.final:
            accepted = "true: a theorem used here holds only if nothing else of these runs is ever released"
            raise InvalidInput("final", False, accepted)
        if self.drawn is not None and not (len(self.terms.candidates) > 1 and self.drawn < len(self.terms.candidates)):
            raise InvalidInput("drawn", self.drawn, "the number of a candidate, where there are several")
        exact = all(c.theorem == "joint_release" and c.release_noise == 0 for c in self.terms.candidates)
        if self.adapters == "concatenated" and not exact:
            accepted = "joint_release without release noise where adapters are concatenated"
            raise InvalidInput("adapters", self.adapters, accepted)
        return self

    @property
    def unbound(self) -> dict[str, Any]:
        """What is declared, as JSON values, without the binding."""
        return self.model_dump(by_alias=True, exclude_none=True, exclude={"binding"})

    def bound(self, files: Mapping[str, CertifiedFile], salt: bytes) -> Declared:
        """The same about these files, which nobody without the release's salt can say."""
        return self.model_copy(update={"binding": binding(self.unbound, files, salt)})

    def require_version(self, version: Version) -> None:
        """Refuse fields that a version does not have, and missing ones that it must have."""
        has = {"binding": version > 1, "draw_number": version > 1 and len(self.terms.candidates) > 1}
        for name, needed in has.items():
            value, field = getattr(self, name), Declared.model_fields[name]
            if (value is not None) != needed:
                accepted = str(field.description) if needed else f"nothing in this certificate of version {version}"
                raise InvalidInput(field.alias or name, value, accepted, found="nothing" if needed else repr(value))
        for stated in self.terms.runs if version == 1 else ():
            facts = stated.model_dump(exclude_none=True)
            if later := sorted((facts.keys() - STATED_IN_1) | (facts["ancestry"].keys() - ANCESTRY_IN_1)):
                accepted = "what runs stated in version 1; a certificate of version 2 states more"
                raise InvalidInput(f"terms.runs.{stated.run}", later, accepted, found=", ".join(later))


def predicate(declared: Declared, version: Version = NEWEST) -> dict[str, Any]:
    """The whole content of a certificate."""
    declared.require_version(version)
    return {**declared.model_dump(by_alias=True, exclude_none=True), **derived(declared, version=version)}


def derived(declared: Declared, shade: float = 1.0, *, version: Version = NEWEST) -> dict[str, Any]:
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


def caveats(declared: Declared, version: Version = NEWEST) -> list[Caveat]:
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


def machine_error(terms: Terms) -> float:
    """By how much, relatively, another machine may come to other figures: closed forms agree to many digits."""
    exact = terms.accounting == "pld" and all(isinstance(b.profile, GaussianProfile) for b in terms.bounds)
    return 1e-11 if exact or isinstance(terms.profile, RenyiProfile) else 1e-7


def base_models(terms: Terms) -> list[str]:
    """The public models that training started from."""
    sources = {s.ancestry.source for s in terms.runs if s.ancestry.start == "public" and s.ancestry.source}
    return sorted(source for source in sources if source is not None)


def _profile(terms: Terms, target: Target, shade: float) -> dict[str, Any]:
    at_delta = []
    for point in sorted({*_DELTAS, target.delta}, reverse=True):
        try:
            at_delta.append({"delta": point, "epsilon": up(terms.epsilon(point) * shade)})
        except DeltaOutOfReach:
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


def _choice(terms: Terms) -> dict[str, Any]:
    return {"paidFor": terms.charged, "how": terms.choice.kind, "rule": terms.choice.rule}


def _tuning(declared: Declared) -> dict[str, Any]:
    unknown = [s.run for s in declared.terms.runs if s.tuning == "unknown"]
    reasons = [f"how the hyperparameters of {', '.join(unknown)} were chosen is not recorded"] if unknown else []
    if not declared.portfolio.complete:
        reasons.append("it is not stated that these are all runs made on this data")
    covered = "hyperparameters were fixed, tuned on public data or paid for, and all runs on this data are stated"
    return {"covered": not reasons, "because": "; ".join(reasons) or covered}


def _outcome(terms: Terms, place: int, delta: float, shade: float) -> dict[str, Any]:
    candidate, bound = terms.candidates[place], terms.bounds[place]
    epsilon = bound.epsilon(delta)
    return {
        "probability": terms.probabilities[place],
        "recipe": str(candidate.recipe),
        "theorem": candidate.theorem,
        "epsilon": up((float("inf") if epsilon is None else epsilon) * shade),
        **({} if bound.mu is None else {"mu": up(bound.mu * shade)}),
    }


def _exposure(terms: Terms) -> list[dict[str, Any]]:
    """The furthest any candidate looks into each run."""
    furthest: dict[str, int] = {}
    for seen in (seen for candidate in terms.candidates for seen in candidate.seen):
        furthest[seen.run] = max(furthest.get(seen.run, 0), seen.step)
    return [Seen(run=run, step=step).model_dump(by_alias=True) for run, step in sorted(furthest.items())]


def _setting(terms: Terms) -> dict[str, Any]:
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


def input_names(terms: Terms) -> list[tuple[str, int]]:
    """Every checkpoint that some candidate is made of."""
    return sorted({(part.run, part.step) for candidate in terms.candidates for part in candidate.parts})
