"""Releases to charge: runs, candidates and requests made in memory, and draws that are not random."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dpmerge.ledger import BudgetScope, Cap, Charge, identities, noise_marks
from dpmerge.ledger.cap_setting import cap_body
from dpmerge.ledger.charge import exposures
from dpmerge.ledger.entries import Entry, following
from dpmerge.ledger.group_locks import require_own_noise, require_stated_groups
from dpmerge.ledger.privacy_filters import Proposal, admit
from dpmerge.ledger.run_checks import require_same_runs
from dpmerge.ledger.state import State
from dpmerge.portfolio.manifest import Manifest
from dpmerge.terms.candidate_terms import CandidateTerms, Choice, Part, Seen, Validation
from dpmerge.terms.release_terms import UNITS, ReleaseTerms
from planning.synthetic import run_document

SCOPE = BudgetScope("patients-2026", "record", "replace_one")


def run(name: str, sigma: float = 8.0, **settings: Any) -> Manifest:
    """A full-batch run of replace_one: μ² = steps·(2/σ)²."""
    return Manifest.model_validate(run_document(name, noise_multiplier=sigma, **settings))


def child(name: str, parent: str, step: int, sigma: float = 8.0, **settings: Any) -> Manifest:
    ancestry = {"start": "private", "run": parent, "step": step}
    return run(name, sigma, ancestry=ancestry, initial_weights=hashlib.sha256(name.encode()).hexdigest(), **settings)


def seeded(name: str, seed: int, sigma: float = 8.0, **settings: Any) -> Manifest:
    return run(name, sigma, noise={"source": "seeded", "seed": seed}, **settings)


def lineage(manifests: Mapping[str, Manifest], name: str, step: int) -> dict[str, int]:
    seen = {name: step}
    origin = manifests[name].ancestry
    if origin.run is not None and origin.step is not None:
        for run_name, at in lineage(manifests, origin.run, origin.step).items():
            seen[run_name] = max(seen.get(run_name, 0), at)
    return seen


def candidate(
    manifests: Mapping[str, Manifest],
    weights: Mapping[str, float],
    *,
    theorem: str = "joint_release",
    seen: Mapping[str, int] | None = None,
    release_noise: float = 0.0,
) -> CandidateTerms:
    """`weights` by run@step."""
    parts, exposed = [], dict(seen or {})
    for name, weight in weights.items():
        run_name, _, step = name.rpartition("@")
        parts.append(Part(run=run_name, step=int(step), weight=weight))
        for each, at in lineage(manifests, run_name, int(step)).items():
            exposed[each] = max(exposed.get(each, 0), at)
    return CandidateTerms(
        parts=parts,
        release_noise=release_noise,
        theorem=theorem,  # type: ignore[arg-type]
        seen=[Seen(run=name, step=step) for name, step in sorted(exposed.items())],
    )


def terms(
    manifests: Iterable[Manifest],
    candidates: Sequence[Mapping[str, float]],
    probabilities: Sequence[float] | None = None,
    *,
    theorem: str = "joint_release",
    kind: str = "data_independent",
    seen: Mapping[str, int] | None = None,
    validation: Validation | None = None,
    release_noise: float = 0.0,
    noise_groups: list[list[str]] | None = None,
) -> ReleaseTerms:
    by_name = {manifest.run: manifest for manifest in manifests}
    made = [
        candidate(by_name, weights, theorem=theorem, seen=seen, release_noise=release_noise) for weights in candidates
    ]
    involved = {each.run for c in made for each in c.seen}
    first = next(iter(by_name.values()))
    return ReleaseTerms(
        dataset=first.dataset.id,
        unit=first.unit,
        adjacency=first.adjacency,
        accounting="pld",
        runs=[manifest.statement for manifest in by_name.values() if manifest.run in involved],
        candidates=made,
        probabilities=exactly(probabilities or [1 / len(made)] * len(made)),
        choice=Choice(kind=kind, rule="by the tests"),  # type: ignore[arg-type]
        validation=validation,
        noise_groups=noise_groups,
    )


def exactly(probabilities: Sequence[float]) -> list[float]:
    units = [round(p * UNITS) for p in probabilities]
    units[-1] += UNITS - sum(units)
    return [unit / UNITS for unit in units]


def request(
    manifests: Iterable[Manifest],
    *candidates: Mapping[str, float] | str,
    final: bool = False,
    key: str | None = None,
    details: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Charge:
    """A request to release one of some candidates: "a@3", or weights by run@step."""
    known = list(manifests)
    made = [{c: 1.0} if isinstance(c, str) else c for c in candidates]
    return Charge.proposed(
        terms=terms(known, made, **settings),
        identities=identities(known),
        marks=noise_marks(known),
        final=final,
        key=key,
        details=details or {},
    )


def drawing(index: int) -> Callable[[Sequence[int]], int]:
    return lambda units: index


first = drawing(0)


def entered(state: State, asked: Charge, index: int) -> Entry:
    """Charge without a database: the rules, then the fold."""
    scope = asked.scope
    if scope.id not in state.scopes:
        opening = following(state.ledger, state.head, kind="opened", scope=scope, body=scope.document())
        state.apply(opening)
    before, runs = state.scopes[scope.id], list(asked.runs)
    require_same_runs(before, runs)
    require_stated_groups(asked)
    require_own_noise(state, scope, runs)
    proposal = Proposal(asked.terms, exposures(asked.body["terms"], asked.identities), asked.final)
    admitted = admit(before.considering(runs), proposal)
    body = asked.body | {
        "release": f"r{state.head[0]}",
        "counted": admitted.counted,
        "cost": admitted.cost,
        "index": index,
    }
    entry = following(state.ledger, state.head, kind="release", scope=scope, body=body)
    state.apply(entry)
    return entry


def capped(cap: Cap, scope: BudgetScope = SCOPE) -> State:
    """A ledger without a database, with nothing in it but a cap."""
    state = State("0" * 32)
    state.apply(following(state.ledger, state.head, kind="opened", scope=scope, body=scope.document()))
    body = cap_body(state.scopes[scope.id], cap)
    state.apply(following(state.ledger, state.head, kind="cap", scope=scope, body=body))
    return state
