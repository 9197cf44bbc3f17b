"""Every scenario of the repository, by name, in the order of docs/audit.md."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from dpmerge.auditing import logistic_scenarios
from dpmerge.auditing.installed_scenarios import installed_scenarios
from dpmerge.auditing.scenario import AuditScenario, Scenario
from reproduction.scenarios import (
    averages,
    convex,
    counterexamples,
    multiple_releases,
    null_records,
    runs,
    seeds,
    selection_leakage,
)
from reproduction.scenarios.canary_scenarios import CANARIES, CanaryScenario


@cache
def simulated_scenarios() -> dict[str, Scenario]:
    """Those that train nothing; `logistic` and its like are installed with dpmerge."""
    parts = (
        runs,
        null_records,
        averages,
        convex,
        logistic_scenarios,
        counterexamples,
        selection_leakage,
        multiple_releases,
        seeds,
    )
    return {scenario.name: scenario for part in parts for scenario in part.SCENARIOS}


def scenarios(data: Path | None = None) -> dict[str, AuditScenario]:
    """Those, and the ones of real training; `data` is a folder with MNIST."""
    real = {name: CanaryScenario(name=name, data=data) for name in CANARIES}
    return {**simulated_scenarios(), **real}


def all_scenarios(data: Path | None = None) -> dict[str, AuditScenario]:
    """Those, and what other installed packages offer."""
    own = scenarios(data)
    return own | {name: each for name, each in installed_scenarios().items() if name not in own}
