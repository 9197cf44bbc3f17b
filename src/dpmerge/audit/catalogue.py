"""All built-in scenarios, by name, and how one is played."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from dpmerge.audit.confirmation import confirmed
from dpmerge.audit.estimate import estimate_delta, estimate_epsilon
from dpmerge.audit.findings import Estimate, Finding
from dpmerge.audit.scenarios import averages, choosing, convex, counterexamples, logistic, runs, seeds, several
from dpmerge.audit.scenarios.scenario import Scenario
from dpmerge.errors import InvalidInput


@cache
def scenarios() -> Mapping[str, Scenario]:
    """Every scenario, in the order of the documentation."""
    parts = (runs, averages, convex, logistic, counterexamples, choosing, several, seeds)
    return {scenario.name: scenario for part in parts for scenario in part.SCENARIOS}


def named(name: str) -> Scenario:
    """The scenario of this name."""
    if name not in scenarios():
        raise InvalidInput("scenario", name, f"all, or one of {', '.join(scenarios())}")
    return scenarios()[name]


@dataclass(frozen=True, kw_only=True)
class Played:
    """A scenario, and what attacking it has shown."""

    name: str
    words: str
    note: str
    seconds: float
    findings: tuple[Finding, ...]

    @property
    def as_theory_says(self) -> bool:
        """Whether exactly the claims are violated that are false for it."""
        return all((finding.verdict == "violated") == finding.claim.false_here for finding in self.findings)

    def document(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "name": self.name,
            "words": self.words,
            "note": self.note,
            "seconds": self.seconds,
            "findings": [{**finding.document(), "false_here": finding.claim.false_here} for finding in self.findings],
        }


def shown(scenario: Scenario, *, trials: int | None, confidence: float, seed: int) -> Estimate:
    """What attacking it shows."""
    number = scenario.trials if trials is None else trials
    attack = scenario.attack()
    if scenario.quantity == "epsilon":
        return estimate_epsilon(attack, delta=scenario.given, trials=number, confidence=confidence, seed=seed)
    return estimate_delta(attack, epsilon=scenario.given, trials=number, confidence=confidence, seed=seed)


def play(scenario: Scenario, *, trials: int | None, confidence: float, seed: int) -> Played:
    """Attack it, and put what that shows beside each claim."""
    begun = time.perf_counter()
    claims = scenario.claims()
    found = confirmed(lambda own: shown(scenario, trials=trials, confidence=confidence, seed=own), claims, seed)
    return Played(
        name=scenario.name,
        words=scenario.words,
        note=scenario.note,
        findings=tuple(Finding(subject=scenario.name, claim=claim, estimate=found) for claim in claims),
        seconds=time.perf_counter() - begun,
    )


def simultaneous(confidence: float, count: int) -> float:
    """What each of several bounds needs so that all hold together (Bonferroni)."""
    return 1 - (1 - confidence) / count
