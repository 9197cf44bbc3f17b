"""`dpmerge inspect` for a person: tables that fit a terminal, every ε rounded up, every caveat in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpmerge.accounting.rounding import format_up, value_range
from dpmerge.portfolio.inspection import Cost, Inspection, Scope
from dpmerge.portfolio.recorded_runs import Run
from dpmerge.terms.mechanism_schema import DpSgdFacts, HistoryFacts
from dpmerge.terms.theorems import Theorem

MOST_METRICS = 2


def print_inspection(inspection: Inspection, console: Console) -> None:
    """Print what there is, what it costs, what can be averaged by which theorem, and what to beware of."""
    portfolio = inspection.portfolio
    size = portfolio.runs[0].manifest.dataset.size
    records = f" ({size:,} records)" if size else ""
    console.print(
        Text(f"{_count(len(portfolio.runs), 'run')} on {portfolio.dataset}{records}", style="bold"),
        Text(f"unit of privacy: {portfolio.unit}; {portfolio.adjacency}; δ = {inspection.delta:g}\n"),
        sep="\n",
    )
    console.print(Text("Each checkpoint by itself (every iterate up to it is covered)", style="bold"))
    console.print(_checkpoints(inspection))
    for reason in dict.fromkeys(c.reason for costs in inspection.costs.values() for _, c in costs if c.reason):
        console.print(Text(f"no figure: {reason}", style="yellow"))
    shown_metrics, all_metrics = _public_metrics(inspection), _all_public_metrics(inspection)
    if len(all_metrics) > len(shown_metrics):
        console.print(f"Other public metrics (--json has them): {', '.join(all_metrics[MOST_METRICS:])}")
    console.print("Random selection may draw from any checkpoint that has a figure.")
    console.print(Text("\nAverages of several runs, and the theorems that certify them", style="bold"))
    for group, scopes in inspection.groups:
        if len(inspection.groups) > 1:
            console.print(Text(f"among {', '.join(group)}", style="italic"))
        console.print(_scopes(group, scopes))
    console.print(_together(inspection.everything))
    if inspection.caveats:
        console.print(Text("\nCaveats", style="bold"))
        console.print(_caveats(inspection))


def _checkpoints(inspection: Inspection) -> Table:
    metrics = _public_metrics(inspection)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("run", overflow="fold")
    table.add_column("how")
    for name in ("σ", "C", "step", "μ", "ε", *metrics):
        table.add_column(name, justify="right")
    for run in inspection.portfolio.runs:
        described = _described(run)
        for saved, cost in inspection.costs[run.id]:
            values = {m.name: m.value for m in saved.metrics if m.measured_on == "public"}
            scores = [f"{values[name]:.3f}" if name in values else "–" for name in metrics]
            table.add_row(*described, str(saved.step), format_up(cost.mu), format_up(cost.epsilon), *scores)
            described = ["", "", "", ""]
        if not inspection.costs[run.id]:
            table.add_row(*described, "–", "–", "–", *("–" for _ in metrics))
    return table


def _described(run: Run) -> list[str]:
    facts = run.manifest.mechanism
    if not isinstance(facts, DpSgdFacts | HistoryFacts):
        return [run.id, facts.kind.replace("_", " "), "–", "–"]
    noise = value_range(block.noise_multiplier for block in facts.blocks)
    clip = value_range(block.clip_norm for block in facts.blocks) if isinstance(facts, DpSgdFacts) else "–"
    return [run.id, facts.sampling.replace("_", " "), noise, clip]


def _public_metrics(inspection: Inspection) -> list[str]:
    return _all_public_metrics(inspection)[:MOST_METRICS]


def _all_public_metrics(inspection: Inspection) -> list[str]:
    found = (m for run in inspection.portfolio.runs for saved in run.checkpoints for m in saved.metrics)
    return list(dict.fromkeys(m.name for m in found if m.measured_on == "public"))


def _scopes(group: Sequence[str], scopes: Iterable[Scope]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("theorem")
    table.add_column("covers")
    table.add_column("does not cover")
    for scope in scopes:
        covers = Text(_members(group, scope), style="green" if scope.members else "yellow")
        if scope.members and Theorem(scope.theorem).is_final:
            covers.append("\nas the only release of these runs")
        table.add_row(scope.theorem, covers, _missing(group, scope))
    return table


def _members(group: Sequence[str], scope: Scope) -> str:
    """Runs by name where all are covered at their last kept step; else as run@step."""
    if not scope.members:
        return "none"
    steps = {member.rsplit("@", 1)[1] for member in scope.members}
    if len(scope.members) == len(group) and len(steps) == 1:
        everyone = "the run" if len(group) == 1 else f"all {len(group)} runs"
        return f"{everyone} at step {steps.pop()}"
    return ", ".join(scope.members)


def _missing(group: Sequence[str], scope: Scope) -> str:
    reasons: dict[str, list[str]] = {}
    for run, premises in scope.missing.items():
        words = "; ".join(premise.name.replace("_", " ") for premise in premises) or "no formula"
        reasons.setdefault(words, []).append(run)
    return "\n".join(f"{_some(group, runs)} (needs: {words})" for words, runs in reasons.items()) or "–"


def _some(group: Sequence[str], runs: Sequence[str]) -> str:
    return "all" if len(runs) == len(group) and len(group) > 1 else ", ".join(runs)


def _together(cost: Cost) -> Text:
    if cost.epsilon is None:
        return Text(f"Everything at once: no figure ({cost.reason})", style="yellow")
    exact = f" (μ = {format_up(cost.mu)})" if cost.mu is not None else ""
    return Text(f"Everything at once, whatever is done with it: ε = {format_up(cost.epsilon)}{exact}", style="bold")


def _caveats(inspection: Inspection) -> Table:
    """What is true of several runs is said once."""
    same: dict[tuple[str, str], list[str]] = {}
    for caveat in inspection.caveats:
        same.setdefault((caveat.name, caveat.text), []).append(caveat.where)
    runs = [run.id for run in inspection.portfolio.runs]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="yellow", max_width=24)
    grid.add_column()
    for (_, text), places in same.items():
        named = [place for place in places if place in runs]
        where = _some(runs, named) if named else "portfolio"
        grid.add_row("all runs" if where == "all" else where, text)
    return grid


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
