"""`dpmerge merge` for a person: what was made, what it costs, what to do next."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from dpmerge.errors import printable
from dpmerge.releasing.release import Release


def print_release(made: Release, console: Console) -> None:
    """Print what was released, as its certificate states it."""
    content = made.content
    guarantee, terms, outcomes = content["guarantee"], content["terms"], content["outcomes"]
    place = printable(str(made.path))
    console.print(Text(place + (" (as it was released before)" if made.already else ""), style="bold"))
    unproved = "" if content["proved"] else " NOT PROVED for these runs:"
    unpaid = "" if content["choice"]["paidFor"] else " (how it was chosen is not paid for)"
    console.print(
        Text(
            f"{unproved}ε = {guarantee['epsilon']} at δ = {guarantee['delta']!r} per {terms['unit']}, "
            f"{terms['adjacency']}, by {content['theorem']}{unpaid}".strip(),
            style="bold green" if not unproved and not unpaid else "bold yellow",
        )
    )
    if len(outcomes) == 1:
        console.print(f"Made of: {outcomes[0]['recipe']}", highlight=False)
    else:
        console.print(f"Drawn from {len(outcomes)} candidates, independently of the data:", highlight=False)
        for outcome in outcomes:
            line = f"  {outcome['probability']:.6f}  {outcome['recipe']} (its own ε = {outcome['epsilon']})"
            console.print(line, highlight=False)
        if "drawn" in content:
            console.print(f"It is: {outcomes[content['drawn']]['recipe']}", highlight=False)
    if content["final"]:
        locked = ", ".join(seen["run"] for seen in content["exposure"])
        console.print(Text(f"Final: nothing else of {locked} can be released any more.", style="yellow"))
    if "audit" in content:
        audit, found = content["audit"], content["auditFinding"]
        words = f"an attack shows ε ≥ {audit['lowerBound']}, {found['tightness']} of it ({found['verdict']})"
        console.print(f"Audited: {words}.", highlight=False)
    size = f"{len(made.files)} file{'' if len(made.files) == 1 else 's'}"
    signed = "signed" if made.signed else "not signed (--key signs it)"
    console.print(f"{size}; certificate {signed}; ledger entry {content['ledger']['entry']}.", highlight=False)
    caveats = sorted({caveat["name"].replace("_", " ") for caveat in content["caveats"]})
    if caveats:
        console.print(f"Caveats, in the model card: {', '.join(caveats)}.", highlight=False)
    console.print(f"\nCheck it: dpmerge verify {place}", highlight=False, soft_wrap=True)
