"""`dpmerge plan` for a person: what is released, what it costs, what is left on the table, what would help."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpmerge.account.table import shown
from dpmerge.planning.advice import Suggestion
from dpmerge.planning.candidates import Candidate
from dpmerge.planning.plan import Plan
from dpmerge.planning.rungs import rungs

MOST_PARTS = 12

THEOREM_WORDS = {
    "joint_release": "everything the runs contain up to these checkpoints is covered, whatever is done with it",
    "last_step": "joint release up to the last update, which is merged before it is seen",
    "hidden_state": "only the merged model is ever seen, and the models are smooth",
    "merged_trajectory": "only the merged model is ever seen, and every update is bounded for any two hidden states",
    "random_selection": "one candidate is drawn, independently of the data and of all noise",
}


def print_plan(plan: Plan, suggestions: Sequence[Suggestion], console: Console) -> None:
    """Print the plan as a person would explain it."""
    console.print(
        Text(f"Target: ε = {plan.target.epsilon:g} at δ = {plan.target.delta:g}", style="bold"),
        Text(f"{plan.portfolio.dataset}; unit of privacy: {plan.portfolio.unit}; {plan.portfolio.adjacency}\n"),
        sep="\n",
    )
    if len(plan.candidates) > 1:
        console.print(Text("Release one of these, drawn at random", style="bold"))
        console.print(_draw(plan))
    for number, candidate in enumerate(plan.candidates, start=1):
        if len(plan.candidates) == 1 or not candidate.recipe.is_one_checkpoint:
            console.print(Text(_heading(candidate, number, len(plan.candidates)), style="bold"))
            console.print(_parts(candidate))
    console.print(_cost(plan))
    console.print(_left(plan))
    for suggestion in suggestions:
        console.print(f"With {suggestion.what}: {suggestion.saves:.0%} less noise.", highlight=False)
    if not suggestions and plan.chosen_by.get("objective") == "noise":
        console.print("No further run or checkpoint with these settings would save 1 % of it.", highlight=False)
    console.print(_choice(plan))
    console.print(Text("\nIt rests on what is vouched for by", style="bold"))
    console.print(_premises(plan))
    if plan.caveats:
        console.print(Text("\nCaveats", style="bold"))
        console.print(_caveats(plan))


def _draw(plan: Plan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("probability", justify="right", no_wrap=True)
    table.add_column("candidate")
    table.add_column("its own ε", justify="right", no_wrap=True)
    for number, (probability, candidate) in enumerate(zip(plan.probabilities, plan.candidates, strict=True), start=1):
        name = candidate.recipe.names[0] if candidate.recipe.is_one_checkpoint else f"merge {number}, below"
        own = shown(candidate.profile.epsilon(plan.target.delta))
        table.add_row(_probability(probability), name, own)
    return table


def _probability(value: float) -> str:
    """Enough digits that a rare candidate is not shown as never drawn."""
    return f"{value:.6f}" if 1e-6 < value < 1 - 1e-6 or value == 1 else f"{value:.3g}"


def _heading(candidate: Candidate, number: int, count: int) -> str:
    which = f"Merge {number}: the" if count > 1 else "Release the"
    if len(candidate.recipe.parts) == 1:
        return f"{which} checkpoint" + (" with noise added" if candidate.recipe.release_noise else "")
    return f"{which} weighted average of {len(candidate.recipe.parts)} checkpoints"


def _parts(candidate: Candidate) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2))
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    parts = sorted(candidate.recipe.parts, key=lambda part: -part[1])
    for name, weight in parts[:MOST_PARTS]:
        table.add_row(f"{weight:.6f}", name)
    if len(parts) > MOST_PARTS:
        table.add_row("…", f"and {len(parts) - MOST_PARTS} more (--json has them)")
    if candidate.recipe.release_noise:
        noise = f"Gaussian noise of standard deviation {candidate.recipe.release_noise:.4g} on every trained weight"
        table.add_row("plus", noise)
    return table


def _cost(plan: Plan) -> Text:
    words = THEOREM_WORDS[plan.theorem.removesuffix("_prepended")]
    verdict = Text(
        f"\nIt costs ε = {shown(plan.guarantee.epsilon)} at δ = {plan.guarantee.delta:g}", style="bold green"
    )
    if not plan.proved:
        verdict.stylize("bold yellow")
    mu = plan.candidates[0].bound.mu if len(plan.candidates) == 1 and plan.accounting == "pld" else None
    exact = f" (μ = {shown(mu)})" if mu is not None else ""
    by = f"{exact}, by {plan.theorem}: {words}."
    verdict.append(by if plan.accounting == "pld" else f"{by} Accounted for by Rényi divergence.", style="not bold")
    if not plan.proved:
        verdict.append("\nNot proved for these runs; see the caveats.", style="bold yellow")
    return verdict


def _left(plan: Plan) -> Text:
    left = plan.target.epsilon - plan.guarantee.epsilon
    text = Text()
    if plan.above_joint_release:
        text.append(
            f"The target is above the joint release of the whole portfolio (ε = {shown(plan.joint_epsilon)}): "
            "anything may be done with all of it, and nothing here can spend more.\n"
        )
    elif left > 5e-4 * plan.target.epsilon:
        text.append(f"Left on the table: {left / plan.target.epsilon:.1%} of ε.\n")
    else:
        text.append("Nothing of the budget is left on the table.\n")
    if plan.noise_to_signal is not None:
        text.append(f"Predicted noise-to-signal: {plan.noise_to_signal:.4g}{_compared(plan, plan.noise_to_signal)}.")
    return text


def _compared(plan: Plan, ratio: float) -> str:
    """How the plan compares with the least noisy checkpoint that meets the target as it is."""
    fitting = [
        (1 / rung.noise.precision, rung)
        for rung in rungs(plan.portfolio, plan.target.delta).usable
        if rung.noise is not None and rung.noise.variance > 0 and rung.epsilon <= plan.target.epsilon
    ]
    if not fitting:
        return ""
    least, best = min(fitting, key=lambda pair: pair[0])
    if ratio < least * 0.999:
        return f", {1 - ratio / least:.0%} less than {best.name}, the best checkpoint within the target"
    if ratio > least * 1.001 and plan.asked["method"] == "auto":
        return (
            f". {best.name} alone would carry less ({least:.4g}), but went only {best.way:.0%} of its run's way; "
            "--method mix would use it"
        )
    return ""


def _choice(plan: Plan) -> Text:
    chosen = plan.chosen_by
    looked = {
        "data_independent": "no model was looked at",
        "public_evaluation": "every model looked at is paid for",
        "uncharged": "NOT paid for",
        "private_validation": "every model scored is paid for",
    }[chosen["kind"]]
    text = Text(f"Chosen by: {chosen['rule']} ({looked}).")
    if "look" in chosen:
        seen = ", ".join(f"{run}@{step}" for run, step in chosen["look"].items())
        text.append(f"\nLook set: everything kept up to {seen}.")
    if "validation" in chosen:
        validation = chosen["validation"]
        text.append(
            f"\nPeople in the validation set pay ε = {shown(validation['guarantee']['epsilon'])} for the choice; one "
            f"person pays at most ε = {shown(validation['one_person_pays']['epsilon'])}, because "
            f"{validation['because']}."
        )
    return text


def _premises(plan: Plan) -> Table:
    vouched: dict[str, list[str]] = {}
    for premise in plan.premises:
        vouched.setdefault(premise.vouched_by, []).append(premise.name.replace("_", " "))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="italic", max_width=30)
    grid.add_column()
    for voucher, names in vouched.items():
        grid.add_row(_voices(voucher), ", ".join(names))
    return grid


def _voices(voucher: str) -> str:
    """Runs recorded in the same way are named together."""
    how: dict[str, list[str]] = {}
    for voice in re.split(r"(?<=\)), ", voucher):
        name, bracket, rest = voice.partition(" (")
        how.setdefault(bracket + rest, []).append(name)
    named = {rest: list(dict.fromkeys(names)) for rest, names in how.items()}
    return ", ".join(
        (f"{len(names)} runs" if len(names) > 2 and rest else ", ".join(names)) + rest for rest, names in named.items()
    )


def _caveats(plan: Plan) -> Table:
    same: dict[str, list[str]] = {}
    for caveat in plan.caveats:
        same.setdefault(caveat.text, []).append(caveat.where)
    involved = {run.label for run in plan.exposure.steps}
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="yellow", max_width=24)
    grid.add_column()
    for text, places in same.items():
        everyone = len(involved) > 1 and set(places) == involved
        grid.add_row("all runs of it" if everyone else ", ".join(places), text)
    return grid
