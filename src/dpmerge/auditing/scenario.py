"""A scenario: something released, an attack on it, and what is claimed of it; and how scenarios are played.

Guarantees: a claim is called violated only where the attack, repeated on fresh trials, shows more; the bounds of all
scenarios that are played together hold together with the confidence asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Protocol

from dpmerge.auditing.attacks import Attack
from dpmerge.auditing.confirmation import confirmed
from dpmerge.auditing.estimate import estimate_delta, estimate_epsilon
from dpmerge.auditing.findings import Claim, Estimate, Finding, Quantity
from dpmerge.auditing.outputs import Part
from dpmerge.auditing.schedules import Schedule
from dpmerge.executors.task_runs import run_tasks

DELTA = 1e-5


@dataclass(frozen=True, kw_only=True)
class ScenarioResult:
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


class AuditScenario(Protocol):
    """What can be played: `Scenario`, or a package's own that trains real models, say."""

    @property
    def name(self) -> str: ...

    @property
    def words(self) -> str:
        """One sentence: what is released, and what the attacker does."""
        ...

    def play(self, *, trials: int | None, confidence: float, seed: int) -> ScenarioResult:
        """Attack it, and put what that shows beside each claim; `trials` None: as many as suit it."""
        ...


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A simulated one. `attack` and `claims` are made when asked for: listing scenarios costs nothing.

    `given` is the δ of claims about ε, or the ε of claims about δ.
    """

    name: str
    words: str  # one sentence: what is released, and what the attacker does
    attack: Callable[[], Attack]
    claims: Callable[[], tuple[Claim, ...]]
    quantity: Quantity = "epsilon"
    given: float = DELTA
    trials: int = 1_000_000
    note: str = ""  # what else is shown by it, such as an exact value

    def estimate(self, *, trials: int | None, confidence: float, seed: int) -> Estimate:
        """The lower bound that attacking it shows."""
        number = self.trials if trials is None else trials
        attack = self.attack()
        if self.quantity == "epsilon":
            return estimate_epsilon(attack, delta=self.given, trials=number, confidence=confidence, seed=seed)
        return estimate_delta(attack, epsilon=self.given, trials=number, confidence=confidence, seed=seed)

    def play(self, *, trials: int | None, confidence: float, seed: int) -> ScenarioResult:
        """Attack it, and put what that shows beside each claim."""
        begun = time.perf_counter()
        claims = self.claims()
        found = confirmed(lambda own: self.estimate(trials=trials, confidence=confidence, seed=own), claims, seed)
        return ScenarioResult(
            name=self.name,
            words=self.words,
            note=self.note,
            findings=tuple(Finding(subject=self.name, claim=claim, estimate=found) for claim in claims),
            seconds=time.perf_counter() - begun,
        )


def play_together(
    scenarios: Sequence[AuditScenario],
    *,
    trials: int | None,
    confidence: float,
    seed: int,
    progress: Callable[[int, int], object] = lambda *_: None,
    executor: Executor | None = None,
    known: Callable[[], Mapping[str, AuditScenario]] | None = None,
) -> list[ScenarioResult]:
    """Each in turn, or where the executor says, with bounds that hold together with this confidence.

    Scenarios hold functions that do not travel: another process finds them by name in what `known` gives there.
    """
    each = simultaneous(confidence, len(scenarios))
    if executor is not None and known is not None:
        found: dict[str, ScenarioResult] = {}

        def enter(name: str, result: ScenarioResult, late: bool) -> None:
            found[name] = result
            if not late:
                progress(len(found), len(scenarios))

        calls = {scenario.name: (known, scenario.name, trials, each, seed) for scenario in scenarios}
        run_tasks(executor, _play_named, calls, enter, named=lambda name: f"the scenario {name}")
        return [found[scenario.name] for scenario in scenarios]
    results = []
    for place, scenario in enumerate(scenarios):
        progress(place, len(scenarios))
        results.append(scenario.play(trials=trials, confidence=each, seed=seed))
    return results


def _play_named(
    known: Callable[[], Mapping[str, AuditScenario]], name: str, trials: int | None, confidence: float, seed: int
) -> ScenarioResult:
    return known()[name].play(trials=trials, confidence=confidence, seed=seed)


def simultaneous(confidence: float, count: int) -> float:
    """What each of several bounds needs so that all hold together (Bonferroni)."""
    return 1 - (1 - confidence) / count


def two_runs(weights: tuple[float, float], first: dict[str, Any], second: dict[str, Any], **both: Any) -> list[Part]:
    """The last models of two runs; what is said of `both` may be said otherwise of one."""
    runs = [Schedule.of(f"run-{k + 1}", **{**both, **facts}) for k, facts in enumerate((first, second))]
    return [(run, run.steps, weight) for run, weight in zip(runs, weights, strict=True)]
