"""`dpmerge plan` for a person: what is released, what it costs, what of the budget is left, what would help.

Guarantees: every ε is rounded up; nothing is planned again.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpmerge.accounting.rounding import format_up
from dpmerge.console import PlainConsole
from dpmerge.planning.candidates import Candidate
from dpmerge.planning.plan import Plan
from dpmerge.planning.single_checkpoint import compared
from dpmerge.planning.suggestions import Suggestion
from dpmerge.terms.checkpoint_reference import CheckpointReference

MOST_PARTS = 12

THEOREM_WORDS = {
    "joint_release": "everything the runs contain up to these checkpoints is covered, whatever is done with it",
    "last_step": "joint release up to the last update, which is merged before it is seen",
    "hidden_state": "only the merged model is ever seen, and the models are smooth",
    "merged_trajectory": "only the merged model is ever seen, and every update is bounded for any two hidden states",
    "random_selection": "one candidate is drawn, independently of the data and of all noise",
}


def explained(plan: Plan, width: int = 80) -> str:
    """The explanation as text."""
    printed = io.StringIO()
    print_plan(plan, None, PlainConsole(file=printed, width=width))
    return "\n".join(line.rstrip() for line in printed.getvalue().splitlines())


def print_plan(plan: Plan, suggested: Sequence[Suggestion] | None, console: Console) -> None:
    """Print the plan as a person would explain it, with suggestions where they were asked for (else None)."""
    portfolio = plan.portfolio
    console.print(
        Text(f"Target: ε = {plan.target.epsilon:g} at δ = {plan.target.delta:g}", style="bold"),
        Text(f"{portfolio.dataset}; unit of privacy: {portfolio.unit}; {portfolio.adjacency}\n"),
        sep="\n",
    )
    if not plan.proved:
        console.print(Text(f"NO GUARANTEE: {_why_not(plan)}\n", style="bold yellow"))
    if len(plan.candidates) > 1:
        console.print(Text("Release one of these, drawn at random", style="bold"))
        console.print(_draw(plan))
    merges = [c for c in plan.candidates if len(plan.candidates) == 1 or not c.recipe.is_one_checkpoint]
    for number, candidate in enumerate(merges, start=1):
        console.print(Text(_heading(candidate, number if len(plan.candidates) > 1 else None), style="bold"))
        console.print(_parts(candidate))
    console.print(_cost(plan))
    console.print(_left(plan))
    if suggested is not None:
        console.print(_suggested(plan, suggested))
    console.print(_choice(plan))
    for note in plan.notes:
        console.print(Text(f"\nNote: {note}", style="yellow"))
    console.print(Text("\nPremises, by who vouches for them", style="bold"))
    console.print(_premises(plan))
    if plan.caveats:
        console.print(Text("\nCaveats", style="bold"))
        console.print(_caveats(plan))


def _why_not(plan: Plan) -> str:
    if not plan.charged:
        return "chosen by looking at models that are not paid for."
    failing = [premise.name.replace("_", " ") for premise in plan.premises if not premise.holds]
    return f"these runs do not meet a premise ({', '.join(failing)})."


def _draw(plan: Plan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("probability", justify="right", no_wrap=True)
    table.add_column("candidate")
    table.add_column("its own ε", justify="right", no_wrap=True)
    merges = 0
    for probability, candidate in zip(plan.probabilities, plan.candidates, strict=True):
        name = candidate.recipe.names[0]
        if not candidate.recipe.is_one_checkpoint:
            merges += 1
            name = f"merge {merges}, below"
        table.add_row(_probability(probability), name, format_up(candidate.profile.epsilon(plan.target.delta)))
    return table


def _probability(value: float) -> str:
    """Enough digits that a rare candidate is not shown as never drawn."""
    return f"{value:.6f}" if 1e-6 < value < 1 - 1e-6 or value == 1 else f"{value:.3g}"


def _heading(candidate: Candidate, number: int | None) -> str:
    which = "Release the" if number is None else f"Merge {number}: the"
    if len(candidate.recipe.parts) == 1:
        return f"{which} checkpoint" + (" with noise added" if candidate.recipe.release_noise else "")
    return f"{which} weighted average of {len(candidate.recipe.parts)} checkpoints"


def _parts(candidate: Candidate) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("weight", justify="right", no_wrap=True)
    table.add_column("checkpoint (run@step)")
    parts = sorted(candidate.recipe.parts, key=lambda part: -part[1])
    for name, weight in parts[:MOST_PARTS]:
        table.add_row(f"{weight:.6f}", name)
    if len(parts) > MOST_PARTS:
        table.add_row("…", f"and {len(parts) - MOST_PARTS} more (--json has them)")
    if candidate.recipe.release_noise:
        noise = f"Gaussian noise of standard deviation {candidate.recipe.release_noise:.6g} on each trained weight"
        table.add_row("plus", noise)
    return table


def _cost(plan: Plan) -> Text:
    words = THEOREM_WORDS[plan.theorem.removesuffix("_prepended")]
    would = "It costs" if plan.proved else "It would cost"
    text = Text(f"{would} ε = {format_up(plan.guarantee.epsilon)} at δ = {plan.guarantee.delta:g}", style="bold green")
    if not plan.proved:
        text.stylize("bold yellow")
    mu = plan.candidates[0].bound.mu if len(plan.candidates) == 1 and "sides" not in plan.chosen_by else None
    exact = f" (μ = {format_up(mu)})" if mu is not None and plan.accounting == "pld" else ""
    text.append(f"{exact}, by {plan.theorem}: {words}.", style="not bold")
    factors = {name: factor for candidate in plan.candidates for name, factor in candidate.lipschitz.items()}
    if factors:
        name = max(factors, key=lambda run: factors[run])
        which = f" ({name}, the most of {len(factors)} runs)" if len(factors) > 1 and factors[name] > 1.0005 else ""
        text.append(
            f" An update pulls two hidden models apart by L = {factors[name]:.4g} at most{which}.", style="not bold"
        )
    if plan.accounting == "rdp":
        text.append(" Accounted for by Rényi divergence.", style="not bold")
    if "sides" in plan.chosen_by:
        sides = plan.chosen_by["sides"]
        text.append(
            f"\nThat is for one person: {format_up(sides['training']['epsilon'])} for being trained on, "
            f"{format_up(sides['validation']['epsilon'])} for the choice on the validation set; {sides['because']}.",
            style="not bold",
        )
    elif "look" in plan.chosen_by:
        text.append(" That is the price of the look set, whatever is released of it.", style="not bold")
    return text


def _left(plan: Plan) -> Text:
    left = plan.target.epsilon - plan.guarantee.epsilon
    text = Text()
    if plan.above_joint_release:
        text.append(
            f"The target is above the joint release of the whole portfolio (ε = {format_up(plan.joint_epsilon)}): "
            "anything may be done with all of it, and nothing here can spend more.\n"
        )
    elif left > 5e-4 * plan.target.epsilon:
        text.append(f"Not used: {left / plan.target.epsilon:.1%} of ε.\n")
    else:
        text.append("All of the budget is used.\n")
    if plan.noise_to_signal is not None:
        text.append(
            f"Predicted noise-to-signal: {plan.noise_to_signal:.4g}{_passed_over(plan, plan.noise_to_signal)}.\n"
        )
    text.append(compared(plan, plan.single_checkpoint))
    return text


def _passed_over(plan: Plan, ratio: float) -> str:
    """What checkpoints that auto did not use would have made possible, and how to have them."""
    if plan.passed_over is None or plan.passed_over >= 0.99 * ratio:
        return ""
    return (
        f", {ratio / plan.passed_over - 1:.0%} more than with checkpoints from the first 80 % of their runs, which "
        "were passed over: models may be unfinished there. Score both on public data (--evaluator), or have "
        "--method mix use them"
    )


def _suggested(plan: Plan, suggested: Sequence[Suggestion]) -> Text:
    if plan.chosen_by.get("objective") != "noise":
        return Text("No suggestions: they compare predicted noise, by which this plan was not chosen.")
    nothing = "One more run or checkpoint with these settings would save less than 1 % of it."
    return Text("\n".join(map(str, suggested)) or nothing)


def _choice(plan: Plan) -> Text:
    chosen = plan.chosen_by
    looked = {
        "data_independent": "no model was looked at",
        "public_evaluation": "every model looked at is paid for",
        "uncharged": "NOT paid for",
        "private_validation": "every model scored is paid for",
    }[chosen["kind"]]
    if chosen["objective"] == "prior":
        looked = "without looking at the models, says who stated them"
    text = Text(f"Chosen by: {chosen['rule']} ({looked}).")
    if "score" in chosen:
        text.append(f" Its score: {chosen['score']:.6g}.")
    if "look" in chosen:
        seen = ", ".join(str(CheckpointReference(run, step)) for run, step in chosen["look"].items())
        text.append(f"\nLook set: everything kept up to {seen}.")
    return text


def _premises(plan: Plan) -> Table:
    vouched: dict[str, list[str]] = {}
    for premise in plan.premises:
        vouched.setdefault(premise.vouched_by, []).append(premise.name.replace("_", " "))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="italic", max_width=30)
    grid.add_column()
    for voucher, names in vouched.items():
        grid.add_row(_vouchers(voucher), ", ".join(names))
    return grid


def _vouchers(voucher: str) -> str:
    """Runs recorded in the same way are named together."""
    how: dict[str, list[str]] = {}
    for each in re.split(r"(?<=\)), ", voucher):
        name, bracket, rest = each.partition(" (")
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
    for text, runs in same.items():
        everyone = len(involved) > 1 and set(runs) == involved
        grid.add_row("all these runs" if everyone else ", ".join(runs), text)
    return grid
