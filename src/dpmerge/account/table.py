"""`dpmerge account` for a person: tables that fit a terminal, every ε rounded up."""

from __future__ import annotations

import math

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpmerge.account.figures import Account, Figures
from dpmerge.privacy.combination import Bound

DIGITS = 4


def print_account(account: Account, console: Console) -> None:
    """Print what each run, the selection and the combination cost, and what that rests on."""
    spec = account.spec
    count = len(spec.runs)
    console.print(f"[bold]{count} run{'s' if count > 1 else ''}[/], {spec.adjacency}, δ = {spec.delta:g}")
    _print(console, "Each model alone", _singles(account))
    if account.selection is not None:
        vector = ", ".join(f"{probability:g}" for probability in spec.probabilities or [])
        _print(console, f"One model, drawn with probabilities ({vector})", _selection(account.selection))
    if account.combination is not None:
        vector = ", ".join(f"{weight:.4g}" for weight in spec.weights or [])
        noise = f", release noise {spec.release_noise:.4g} added" if spec.release_noise else ""
        _print(console, f"The average with weights ({vector}){noise}", _combination(account))
        console.print(_shortcomings(account), end="")
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


def _print(console: Console, title: str, table: Table) -> None:
    """A heading may be wider than its table, so it is not the table's title."""
    console.print(Text(title, style="bold"))
    console.print(table)


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(columns[0], no_wrap=True)
    for column in columns[1:]:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _singles(account: Account) -> Table:
    table = _table("run", "σ", "steps", "μ", "ε", "ε by RDP", "ε RDP classic")
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


def _selection(figures: Figures) -> Table:
    table = _table("", "ε", "ε by RDP", "ε RDP classic")
    table.add_row("random selection", *_row(figures)[1:])
    return table


def _combination(account: Account) -> Table:
    table = _table("theorem", "μ", "ε", "ε by RDP")
    table.add_column("proof here?")
    for name, bound, figures in _distinct(account):
        verdict = Text("yes", style="green") if bound.certifies else Text("no", style="yellow")
        table.add_row(name, *_row(figures)[:3], verdict)
    return table


def _distinct(account: Account) -> list[tuple[str, Bound, Figures]]:
    """The theorems to show: runs of equal length make both alignments of the trajectory the same."""
    shown_theorems = dict(account.combination or {})
    if shown_theorems["merged_trajectory"][1] == shown_theorems["merged_trajectory_prepended"][1]:
        del shown_theorems["merged_trajectory_prepended"]
    return [(name, bound, figures) for name, (bound, figures) in shown_theorems.items()]


def _shortcomings(account: Account) -> Text:
    """Why each theorem that does not certify does not."""
    lines = Text()
    for name, bound, _ in _distinct(account):
        missing = [premise.name.replace("_", " ") for premise in bound.premises if not premise.holds]
        if not bound.certifies:
            lines.append(f"{name} is no proof here. ", style="yellow")
            lines.append(f"It needs: {missing[0]}.\n" if missing else "It has no formula for these runs.\n")
    return lines


def _conclusion(account: Account) -> Text:
    if account.best is None:
        return Text("No theorem certifies this combination.", style="bold red")
    bound, epsilon = account.best
    text = f"Certified: ε = {shown(epsilon)} at δ = {account.spec.delta:g}, by {bound.theorem}."
    return Text(text, style="bold green")
