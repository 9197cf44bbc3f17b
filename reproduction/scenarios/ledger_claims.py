"""What the ledger lets out, and what it says that has cost: the project's own rules, asked as anybody would ask them.

Guarantees: every answer is that of a real ledger, made for the occasion and thrown away, so that a rule that lets out
too much shows as an attack that finds more than is claimed; nothing about the attack enters it.
Refuses: runs that start from other runs, and rates of a mean; no scenario of several releases has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np

from dpmerge.auditing.claims import Part
from dpmerge.auditing.findings import Claim
from dpmerge.auditing.schedules import Schedule
from dpmerge.errors import CapExceededError, InvalidInputError, NoGuaranteeError
from dpmerge.ledger import BudgetScope, Cap, Charge, Ledger
from dpmerge.terms.candidate_terms import CandidateTerms, Choice, Seen
from dpmerge.terms.candidate_terms import Part as PartTerms
from dpmerge.terms.release_terms import UNITS, ReleaseTerms
from dpmerge.terms.run_record import RunRecord
from dpmerge.terms.theorems import Theorem

Outcome = Literal["released", "again", "refused"]
"""A new release; the bytes of an earlier one, sent again; or nothing."""

Rule = Literal["ceiling", "gaussian_filter", "renyi_filter"]

DATASET, UNIT, WHO = "the records", "record", "the scenario"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A release as somebody asks for it: of the candidates, each a weighted average, one is drawn.

    `looked_at` are further checkpoints that were looked at to choose. Asking again with one `key` is asking for the
    same release.
    """

    candidates: Sequence[Sequence[Part]]
    probabilities: Sequence[float] = (1.0,)
    theorem: str = "joint_release"
    release_noise: float = 0.0
    final: bool = False
    key: str | None = None
    chosen: Literal["data_independent", "public_evaluation", "uncharged"] = "data_independent"
    looked_at: Sequence[tuple[Schedule, int]] = ()


@dataclass(frozen=True, kw_only=True)
class CapRule:
    """A cap and the rule that keeps it; for a ceiling, run → the last step that may ever be looked at."""

    epsilon: float
    delta: float
    rule: Rule
    order: float | None = None
    ceiling: Sequence[tuple[Schedule, int]] = ()


@dataclass(frozen=True)
class Transcript:
    """What became of each request, and ε of everything that has left, by the ledger's word (None: it has none)."""

    outcomes: tuple[Outcome, ...]
    epsilon: float | None


def transcript(
    requests: Sequence[Asked],
    *,
    delta: float,
    cap: CapRule | None = None,
    draws: Mapping[int, int] | None = None,
    seeds: Mapping[str, int] | None = None,
) -> Transcript:
    """Ask for these releases in turn.

    `draws`: request → the candidate that is drawn, the first where it is not said. `seeds`: run → the seed of its
    noise, where it was not the operating system's.
    """
    drawn, outcomes = draws or {}, list[Outcome]()
    scope = BudgetScope(DATASET, UNIT, requests[0].candidates[0][0][0].adjacency)
    with TemporaryDirectory() as folder, Ledger.open(Path(folder) / "ledger.db") as ledger:
        if cap is not None:
            ledger.set_cap(scope, _cap(cap, seeds or {}))
        for place, asked in enumerate(requests):
            try:
                charged = ledger.charge(_request(asked, seeds or {}), _always(drawn.get(place, 0)))
            except NoGuaranteeError:
                outcomes.append("refused")
            else:
                outcomes.append("again" if charged.already else "released")
        return Transcript(tuple(outcomes), ledger.budget_report(scope, delta).epsilon)


def accepts(cap: CapRule) -> bool:
    """Whether a new ledger lets this ceiling be set."""
    run, step = cap.ceiling[0]
    try:
        transcript([Asked(candidates=[[(run, step, 1.0)]])], delta=cap.delta, cap=cap)
    except CapExceededError:
        return False
    return True


def terms_of(asked: Asked, seeds: Mapping[str, int] | None = None) -> ReleaseTerms:
    """The terms of a release, by which certificates and the ledger price it."""
    runs = {run.name: run for candidate in asked.candidates for run, _, _ in candidate}
    runs |= {run.name: run for run, _ in asked.looked_at}
    return ReleaseTerms(
        dataset=DATASET,
        unit=UNIT,
        adjacency=next(iter(runs.values())).adjacency,
        accounting="pld",
        runs=[statement(run, seeded=run.name in (seeds or {})) for run in runs.values()],
        candidates=[_candidate(asked, parts) for parts in asked.candidates],
        probabilities=_in_units(asked.probabilities),
        choice=Choice(kind=asked.chosen, rule=f"by {WHO}"),
    )


def release_claim(by: str, asked: Asked, delta: float, *, false_here: bool = False) -> Claim:
    """What a certificate would say of one release; of a choice that is not paid for it says that it is not proved."""
    terms = terms_of(asked)
    return Claim(
        by=by,
        value=terms.epsilon(delta),
        proved=terms.proved and terms.charged,
        false_here=false_here,
        mu=terms.mu,
        deltas=terms.delta,
    )


def standing_claim(by: str, made: Transcript) -> Claim:
    """What the ledger says of all that has left."""
    return Claim(by=by, value=made.epsilon, proved=made.epsilon is not None)


def transcript_claim(by: str, made: Transcript) -> Claim:
    """What the ledger says of all that was asked for; nothing where it refused some of it."""
    return Claim(by=by, value=None, proved=False) if "refused" in made.outcomes else standing_claim(by, made)


def statement(run: Schedule, *, seeded: bool = False) -> RunRecord:
    """What the run states about itself. Where no step pulls states apart, that is of a Huber regression."""
    if run.parent is not None:
        raise InvalidInputError("parent", run.parent[0].name, "a run that starts from public weights")
    if run.divisor != 1:
        raise InvalidInputError("divisor", run.divisor, "1: rates of the sum of gradients")
    facts: dict[str, Any] = {
        "kind": "dp_sgd",
        "blocks": list(_blocks(run)),
        "sampling": run.sampling,
        "clipping": "aggregate" if run.aggregate else "per_example",
        "flat_clipping": True,
        "optimizer": {
            "name": run.optimizer,
            "momentum": run.momentum,
            "nesterov": run.nesterov,
            "dampening": run.dampening,
            "weight_decay": run.weight_decay,
        },
        "loss_reduction": "sum",
        "public_divisor": True,
    }
    if run.steps_per_epoch is not None:
        facts["steps_per_epoch"] = run.steps_per_epoch
    if run.stretches is not None and float(np.max(run.stretches)) <= 1:
        # One record whose curvature is at most 2/η: an update is a step of at most 2/β on a convex loss.
        bound = math.sqrt(2 / float(np.max(run.rates)))
        facts["smoothness"] = {"kind": "huber", "feature_bound": bound, "records": 1, "vouched_by": WHO}
    return RunRecord.model_validate(
        {
            "run": run.name,
            "mechanism": facts,
            "noise": {"source": "seeded" if seeded else "os_entropy"},
            "ancestry": {"start": "random"},
            "tuning": "none",
            "recorded_by": {"how": "hand", "who": WHO},
        }
    )


def _blocks(run: Schedule) -> Sequence[dict[str, Any]]:
    """Steps of equal noise, clip norm and sampling are told together."""
    facts = zip(
        run.noise_multipliers.tolist(), run.clip_norms.tolist(), run.sampling_rates.tolist(), run.rates.tolist(),
        strict=True,
    )  # fmt: skip
    blocks = []
    for (noise, clip, sampled), steps in groupby(facts, key=lambda step: step[:3]):
        rates = [step[3] for step in steps]
        block = {"steps": len(rates), "noise_multiplier": noise, "clip_norm": clip, "learning_rate": rates}
        blocks.append(block | ({"sampling_rate": sampled} if sampled < 1 else {}))
    return blocks


def _candidate(asked: Asked, parts: Sequence[Part]) -> CandidateTerms:
    seen: dict[str, int] = {}
    for run, step in [*((run, step) for run, step, _ in parts), *asked.looked_at]:
        seen[run.name] = max(seen.get(run.name, 0), step)
    return CandidateTerms(
        parts=[PartTerms(run=run.name, step=step, weight=weight) for run, step, weight in parts],
        release_noise=asked.release_noise,
        theorem=Theorem(asked.theorem),
        seen=[Seen(run=name, step=step) for name, step in sorted(seen.items())],
    )


def _in_units(probabilities: Sequence[float]) -> list[float]:
    """Probabilities that a draw over whole numbers has; the first one takes what is left by rounding."""
    units = [round(p * UNITS) for p in probabilities]
    units[0] += UNITS - sum(units)
    return [unit / UNITS for unit in units]


def _request(asked: Asked, seeds: Mapping[str, int]) -> Charge:
    terms = terms_of(asked, seeds)
    names = list(terms.statements)
    return Charge.proposed(
        terms=terms,
        identities={name: _identity(name) for name in names},
        marks={name: _mark(name, seeds) for name in names},
        final=asked.final,
        key=asked.key,
        details={},
    )


def _always(index: int) -> Callable[[Sequence[int]], int]:
    return lambda _: index


def _cap(cap: CapRule, seeds: Mapping[str, int]) -> Cap:
    return Cap(
        epsilon=cap.epsilon,
        delta=cap.delta,
        rule=cap.rule,
        order=cap.order,
        ceiling={_identity(run.name): step for run, step in cap.ceiling},
        statements={_identity(run.name): statement(run, seeded=run.name in seeds) for run, _ in cap.ceiling},
        marks={_identity(run.name): _mark(run.name, seeds) for run, _ in cap.ceiling},
    )


def _identity(name: str) -> str:
    return sha256(name.encode()).hexdigest()


def _mark(name: str, seeds: Mapping[str, int]) -> str | None:
    return sha256(f"seed:{seeds[name]}".encode()).hexdigest() if name in seeds else None
