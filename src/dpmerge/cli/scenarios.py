"""Scenarios attacked and told: of those that are installed for `dpmerge audit --scenario`, or of a wider list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from dpmerge.auditing.audit import require_settings
from dpmerge.auditing.installed_scenarios import chosen_scenarios
from dpmerge.auditing.scenario import AuditScenario, ScenarioResult, play_together, simultaneous
from dpmerge.cli.audit import SCHEMA
from dpmerge.cli.finding_table import claims_table, print_claims
from dpmerge.cli.options import opened_executor
from dpmerge.cli.terminal import print_json, wide_console
from dpmerge.errors import InvalidInputError
from dpmerge.evaluation.evaluation_progress import show_progress
from dpmerge.report.trade_off import roc_rows, write_roc


def audit_scenarios(
    asked: Sequence[str],
    offered: Callable[[], Mapping[str, AuditScenario]],
    trials: int | None,
    confidence: float,
    seed: int,
    picture: Path | None,
    as_json: bool,
    *,
    elsewhere: str = "",
    executor: str | None = None,
    workers_per_node: int | None = None,
) -> bool:
    """Attack the scenarios asked for and print what was found; whether everything came out as theory says."""
    require_settings(trials, confidence, seed)
    known = offered()
    chosen = chosen_scenarios([name for name in asked if name != "list"], known, elsewhere=elsewhere)
    if picture is not None and (len(chosen) != 1 or "list" in asked):
        raise InvalidInputError("picture", str(picture), "one scenario, for there is one picture of each")
    if "list" in asked:
        _print_list(known, as_json)
        return True
    with opened_executor(executor, workers_per_node) as workers, show_progress(None, "scenarios") as progress:
        results = play_together(
            chosen,
            trials=trials,
            confidence=confidence,
            seed=seed,
            progress=progress,
            executor=workers,
            known=offered,
        )
    if picture is not None:
        write_roc(results[0].findings, picture)
    if as_json:
        each, documents = simultaneous(confidence, len(chosen)), [result.document() for result in results]
        print_json({"schema": SCHEMA, "seed": seed, "confidence": confidence, "each": each, "scenarios": documents})
    else:
        _print_results(results)
    return all(result.as_theory_says for result in results)


def _print_list(known: Mapping[str, AuditScenario], as_json: bool) -> None:
    if as_json:
        print_json({"schema": SCHEMA, "scenarios": {name: scenario.words for name, scenario in known.items()}})
        return
    grid = Table.grid(padding=(0, 2))
    for name, scenario in known.items():
        grid.add_row(Text(name, style="bold"), Text(scenario.words))
    wide_console().print(grid)


def _print_results(results: Sequence[ScenarioResult]) -> None:
    console = wide_console()
    findings = [finding for result in results for finding in result.findings]
    if len(results) == 1:
        (one,) = results
        console.print(Text(f"{one.name}: {one.words}"))
        print_claims(one.findings, console)
        for row in roc_rows(max(one.findings, key=lambda finding: finding.tightness or 0.0)):
            console.print(row, highlight=False, markup=False)
        if one.note:
            console.print(Text(one.note))
    else:
        console.print(claims_table(findings))
    if false := [f.subject for f in findings if f.verdict == "violated" and not f.claim.false_here]:
        words = "another seed or a higher confidence tells a false alarm from a real one"
        console.print(Text(f"VIOLATED, though theory says it holds: {_listed(false)}; {words}.", style="bold red"))
    if missed := [f.subject for f in findings if f.verdict != "violated" and f.claim.false_here]:
        words = f"Not shown, though theory says it is violated: {_listed(missed)}; more trials may show it."
        console.print(Text(words, style="yellow"))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(names))
