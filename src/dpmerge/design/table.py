"""`dpmerge design` for a person: what to train, what to average for each target, and what that is worth.

Guarantees: at most 80 columns; every ε and every excess rounded up.
"""

from __future__ import annotations

import math

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpmerge.accounting.rounding import format_up
from dpmerge.design.design import Design
from dpmerge.design.noise_ladder import MOST_RUNS

TOO_NOISY = 2.0
"""The excess from which a design is said not to serve its range."""


def print_design(design: Design, console: Console) -> None:
    """Print the runs, the levels, the comparison with equal runs, and what to do next."""
    count = len(design.runs)
    heading = f"{count} run{'s' if count > 1 else ''} for ε from {design.low:g} to {design.high:g}"
    console.print(Text(heading, style="bold"), highlight=False)
    console.print(Text(f"full batch, {design.steps} steps, {design.adjacency}, δ = {design.delta:g}\n"))
    if design.worst_excess > TOO_NOISY:
        noise = percent(design.worst_excess)
        few = f"Too few runs for this range: up to {noise} noise. Train more, or narrow the range.\n"
        console.print(Text(few, style="bold yellow"))
    console.print(Text("Train these, with one clip norm and one constant learning rate", style="bold"))
    console.print(_runs(design))
    console.print(Text(_kept(design) + "\n"))
    console.print(Text("Then average, for a target ε", style="bold"))
    console.print(_levels(design))
    for paragraph in (_worth(design), _together(design), _convex(design)):
        console.print(Text(paragraph + "\n"))
    words = "Next: record these runs while you train them (docs/reference/recording.md), then"
    console.print(Text(words, style="bold"))
    # The folder is the reader's to name: all of the runs, so that the plan may choose among them.
    console.print(Text(f"  dpmerge plan RUNS --epsilon {design.levels[0].target:g} --delta {design.delta:g}"))


def percent(excess: float) -> str:
    """How much more variance than a model trained for the target, rounded up; from 11 times on as a multiple."""
    above = 100 * (excess - 1)
    if above >= 1000:
        return f"{math.ceil(excess):,}×"
    return f"+{math.ceil(above * 10 - 1e-9) / 10:.1f} %"


def _runs(design: Design) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("run", no_wrap=True)
    for name in ("noise multiplier σ", "μ alone", "ε alone", "relative weight"):
        table.add_column(name, justify="right", no_wrap=True)
    most_private = max(run.noise_multiplier for run in design.runs)
    for run in design.runs:
        weight = (most_private / run.noise_multiplier) ** 2
        table.add_row(
            run.name, f"{run.noise_multiplier:.10g}", format_up(run.mu), format_up(run.epsilon), f"{weight:.4g}"
        )
    return table


def _kept(design: Design) -> str:
    kept = [str(step) for step in design.runs[0].checkpoints]
    if len(kept) == 1:
        return f"Keep the weights of each at the end, step {kept[0]}."
    return f"Keep the weights of each after steps {', '.join(kept[:-1])} and {kept[-1]}."


def _levels(design: Design) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("target ε", "costs ε", "noise"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("average of (run@step), by relative weight")
    for level in design.levels:
        names = Text(", ".join(level.recipe.names))
        table.add_row(f"{level.target:g}", format_up(level.epsilon), percent(level.excess), names)
    return table


def _worth(design: Design) -> str:
    ladder = design.ladder
    words = (
        f"Noise is the variance beyond that of a model trained for the target. Over every target of the range it is at "
        f"most {percent(design.worst_excess)}."
    )
    if not design.reached and design.sought is not None:
        words += f" Less than {percent(design.sought)} was sought, but not found with {MOST_RUNS} runs."
    if ladder.runs_to_match <= ladder.runs:
        return f"{words} Equal runs, the first k averaged, do as well here."
    equal = "One run without checkpoints" if ladder.runs == 1 else f"{ladder.runs} equal runs, the first k averaged,"
    words += (
        f" {equal} would have up to {percent(ladder.worst_excess)}; it takes about "
        f"{ladder.runs_to_match:,} equal runs to match."
    )
    if design.unaveraged_excess > design.worst_excess:
        words += f" Releasing single checkpoints, never averages: at best about {percent(design.unaveraged_excess)}."
    return words


def _together(design: Design) -> str:
    return (
        f"Each row is the cost of one release. Several releases to people who may compare them cost what all the "
        f"checkpoints in them cost together; everything at once: ε = {format_up(design.joint_epsilon)}."
    )


def _convex(design: Design) -> str:
    return (
        f"If the model is convex and smooth (logistic or softmax regression, a linear probe), one run for "
        f"ε = {design.high:g} with release noise serves every target below it: docs/theory/hidden-state.md."
    )
