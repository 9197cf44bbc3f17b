"""`dpmerge account` for a person: tables that fit a terminal, every ε rounded up."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpmerge.account.figures import Account, Figures
from dpmerge.privacy.combination import Bound

DIGITS = 4


def print_account(account: Account, console: Console) -> None:
    """Print what each run, the selection and the combination cost, and what that rests on."""
    spec = account.spec
    console.print(f"[bold]{len(spec.runs)} run(s)[/], {spec.adjacency}, δ = {spec.delta:g}")
    console.print(_singles(account))
    if account.selection is not None:
        console.print(_selection(account.selection, spec.probabilities or []))
    if account.combination is not None:
        console.print(_combination(account))
        console.print(_conclusion(account))
    for reason in dict.fromkeys(figures.reason for figures in account.single if figures.reason):
        console.print(f"[yellow]no figure:[/] {reason}", highlight=False)


def shown(value: float | None) -> str:
    """A figure rounded up, so that what is printed still holds."""
    if value is None:
        return "–"
    if math.isinf(value):
        return "∞"
    scale = 10**DIGITS
    return f"{math.ceil(value * scale) / scale:.{DIGITS}f}" if value < 1e6 else f"{value * 1.001:.3g}"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", header_style="dim", pad_edge=False)
    table.add_column(columns[0], no_wrap=True)
    for column in columns[1:]:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _singles(account: Account) -> Table:
    table = _table("Each model alone", "run", "σ", "steps", "μ", "ε", "ε by RDP", "ε RDP classic")
    for position, (run, figures) in enumerate(zip(account.spec.runs, account.single, strict=True), start=1):
        noise = dict.fromkeys(f"{block.noise_multiplier:g}" for block in run.blocks)
        steps = sum(block.steps for block in run.blocks)
        table.add_row(f"{position}", "/".join(noise), str(steps), *_row(figures))
    return table


def _row(figures: Figures) -> list[str]:
    return [
        shown(figures.mu),
        shown(figures.epsilon),
        shown(figures.epsilon_rdp_improved),
        shown(figures.epsilon_rdp_classic),
    ]


def _selection(figures: Figures, probabilities: list[float]) -> Table:
    vector = ", ".join(f"{p:g}" for p in probabilities)
    table = _table(f"Release one, drawn with probabilities ({vector})", "", "ε", "ε by RDP", "ε RDP classic")
    table.add_row("random selection", *_row(figures)[1:])
    return table


def _combination(account: Account) -> Table:
    spec = account.spec
    vector = ", ".join(f"{weight:.4g}" for weight in spec.weights or [])
    noise = f" and release noise {spec.release_noise:g}" if spec.release_noise else ""
    table = _table(f"Release the combination with weights ({vector}){noise}", "theorem", "μ", "ε", "ε by RDP")
    table.add_column("proof here?")
    assert account.combination is not None
    for name, (bound, figures) in account.combination.items():
        table.add_row(name, *_row(figures)[:3], _verdict(bound))
    return table


def _verdict(bound: Bound) -> Text:
    if bound.certifies:
        return Text("yes", style="green")
    missing = [premise.name.replace("_", " ") for premise in bound.premises if not premise.holds]
    return Text("no: " + (f"needs {missing[0]}" if missing else "no formula"), style="yellow")


def _conclusion(account: Account) -> Text:
    if account.best is None:
        return Text("No theorem certifies this combination.", style="bold red")
    bound, epsilon = account.best
    text = f"Certified: ε = {shown(epsilon)} at δ = {account.spec.delta:g}, by {bound.theorem}."
    return Text(text, style="bold green")
