"""What `dpmerge account` prints: tables that fit a terminal, every ε rounded up, and the same as JSON."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpmerge.account_spec import GaussianDpSpec, Spec
from dpmerge.accounting.combination import Bound
from dpmerge.accounting.comparison import Comparison, Figures
from dpmerge.accounting.premises import Premise, only_release
from dpmerge.accounting.rounding import format_up, json_number, value_range


def account_document(spec: Spec, account: Comparison) -> dict[str, Any]:
    """As the JSON that `--json` prints."""
    result: dict[str, Any] = {"adjacency": spec.adjacency, "delta": spec.delta}
    result["single"] = [_numbers(figures) for figures in account.single]
    if account.selection is not None:
        numbers = _numbers(account.selection)
        del numbers["mu"]
        result["random_selection"] = {"epsilon_pld": numbers.pop("epsilon"), **numbers}
    if account.combination is not None:
        result["linear_combination"] = {
            name: {
                **_numbers(figures),
                "certifies": bound.certifies,
                "premises": [{"name": p.name, "holds": p.holds, "vouched_by": p.vouched_by} for p in bound.premises],
            }
            for name, (bound, figures) in account.combination.items()
        }
        result["auto"] = {
            "theorem": account.best[0].theorem if account.best else None,
            "epsilon": json_number(account.best[1]) if account.best else None,
        }
    return result


def _numbers(figures: Figures) -> dict[str, float | str | None]:
    return {
        name: json_number(getattr(figures, name))
        for name in ("mu", "epsilon", "epsilon_rdp_classic", "epsilon_rdp_improved")
    }


def print_account(spec: Spec, account: Comparison, console: Console) -> None:
    """Print what each run, the selection and the combination cost, and what that rests on."""
    count = len(spec.runs)
    heading = Text(f"{count} run{'s' if count > 1 else ''}", style="bold")
    console.print(heading.append(f", {spec.adjacency}, δ = {spec.delta:g}", style="not bold"))
    _print(console, "Each model alone, all its iterates released", _singles(spec, account))
    if account.selection is not None:
        vector = ", ".join(f"{probability:g}" for probability in spec.probabilities or [])
        _print(console, f"One model, drawn with probabilities ({vector})", _selection(account.selection))
        console.print("Before the draw; once it is known which one was drawn, that model's own ε holds.\n")
    if account.combination is not None:
        vector = ", ".join(f"{weight:.4g}" for weight in spec.weights or [])
        noise = f", release noise {spec.release_noise:.4g} added" if spec.release_noise else ""
        _print(console, f"The average with weights ({vector}){noise}", _combination(account))
        console.print(_shortcomings(spec, account), end="")
        _print_conclusion(console, account)
    for reason in dict.fromkeys(figures.reason for figures in account.single if figures.reason):
        console.print(Text.assemble(("no figure:", "yellow"), f" {reason}"))


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


def _singles(spec: Spec, account: Comparison) -> Table:
    table = _table("run", "σ", "C", "steps", "μ", "ε", "ε by RDP", "RDP classic")
    for position, (run, figures) in enumerate(zip(spec.runs, account.single, strict=True), start=1):
        if isinstance(run, GaussianDpSpec):
            table.add_row(f"{position}", "–", "–", "–", *_row(figures))
            continue
        noise = value_range(block.noise_multiplier for block in run.blocks)
        clip = value_range(block.clip_norm for block in run.blocks)
        steps = sum(block.steps for block in run.blocks)
        table.add_row(f"{position}", noise, clip, str(steps), *_row(figures))
    return table


def _row(figures: Figures) -> list[str]:
    return [
        format_up(figures.mu),
        format_up(figures.epsilon),
        format_up(figures.epsilon_rdp_improved),
        format_up(figures.epsilon_rdp_classic),
    ]


def _selection(figures: Figures) -> Table:
    table = _table("", "ε", "ε by RDP", "RDP classic")
    table.add_row("random selection", *_row(figures)[1:])
    return table


def _combination(account: Comparison) -> Table:
    table = _table("theorem", "μ", "ε", "ε by RDP")
    table.add_column("proof here?")
    for name, bound, figures in _distinct(account):
        verdict = Text("yes", style="green") if bound.certifies else Text("no", style="yellow")
        table.add_row(name, *_row(figures)[:3], verdict)
    return table


def _distinct(account: Comparison) -> list[tuple[str, Bound, Figures]]:
    """The theorems to show: runs of equal length make both alignments of the trajectory the same."""
    shown_theorems = dict(account.combination or {})
    if shown_theorems["merged_trajectory"][1] == shown_theorems["merged_trajectory_prepended"][1]:
        del shown_theorems["merged_trajectory_prepended"]
    return [(name, bound, figures) for name, (bound, figures) in shown_theorems.items()]


def _shortcomings(spec: Spec, account: Comparison) -> Text:
    """Why each theorem that does not certify does not."""
    lines = Text()
    for name, bound, _ in _distinct(account):
        if not bound.certifies:
            missing = [_words(p) for p in bound.premises if not p.holds]
            lines.append(f"{name} is no proof here. ", style="yellow")
            lines.append(f"It needs: {'; '.join(missing)}.\n" if missing else "It has no formula for these runs.\n")
    if spec.release_noise:
        lines.append("Release noise counts in last_step and hidden_state only.\n")
    return lines


def _words(premise: Premise) -> str:
    """A premise in words, with what would state it in the spec."""
    remedy = _REMEDIES.get(premise.name)
    _, _, detail = premise.vouched_by.partition(" (")
    words = premise.name.replace("_", " ")
    if detail:
        words += f" ({detail}"
    return f"{words} [{remedy}]" if remedy else words


_REMEDIES = {
    "smoothness_known": "give smoothness or lipschitz for every run of positive weight",
    "number_of_records_bounded": "give smoothness.batch_size",
    "features_bounded": "give smoothness.feature_bound",
}


def _print_conclusion(console: Console, account: Comparison) -> None:
    if account.best is None:
        console.print(Text("No theorem certifies this combination.", style="bold red"))
        return
    bound, epsilon = account.best
    certified = f"Certified: ε = {format_up(epsilon)} at δ = {account.delta:g}, by {bound.theorem}"
    console.print(Text(certified, style="bold green"))
    final = only_release()
    if final in bound.premises:
        console.print(
            "if nothing else of these runs is ever released and the weights were not chosen by looking at the models."
        )
    else:
        console.print("whatever rule chose the weights, if it looked at no other runs.")
    vouched: dict[str, list[str]] = {}
    for premise in bound.premises:
        if premise != final:
            vouched.setdefault(premise.vouched_by, []).append(premise.name.replace("_", " "))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(max_width=26)
    grid.add_column()
    for voucher, names in vouched.items():
        grid.add_row(Text(voucher, style="italic"), ", ".join(names))
    console.print("It rests on what is vouched for by")
    console.print(grid)
