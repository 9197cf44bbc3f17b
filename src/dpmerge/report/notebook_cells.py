"""What a notebook shows of a plan, a portfolio, a release, a verification, a finding, an inspection or an analysis.

Guarantees: all that comes from data is text; every ε is rounded up and every lower bound down; what is not proved, not
verified or not for release says so first; nothing is planned or accounted for again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import singledispatch

from dpmerge.accounting.rounding import format_up
from dpmerge.auditing.findings import Finding
from dpmerge.auditing.printed_figures import SYMBOLS, above, below, percent, ratio
from dpmerge.certificate.checks import Verification
from dpmerge.errors import InvalidInputError
from dpmerge.planning.analysis import Analysis
from dpmerge.planning.plan import Plan
from dpmerge.portfolio.inspection import Inspection
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.releasing.release import Release
from dpmerge.report import wording
from dpmerge.report.analysis_tables import models_table, plans_table
from dpmerge.report.page_parts import as_text, table
from dpmerge.report.plots import Table

MOST_ROWS = 30
"""Of a table in a cell; the frame has all."""

_MARKS = {True: "✓", False: "✗", None: "–"}


@singledispatch
def html_of(subject: object) -> str:
    """A piece of HTML of what `dpmerge.notebook.cell_html` says; arguments and errors as there."""
    accepted = "a plan, portfolio, release, verification, finding, inspection or analysis"
    raise InvalidInputError("subject", subject, accepted, found=type(subject).__name__)


@html_of.register
def _(subject: Plan) -> str:
    found, target = subject.guarantee, subject.target
    portfolio = subject.portfolio
    would = "It costs" if subject.proved else "It would cost"
    rows = [
        (f"{probability:.4g}", str(candidate.recipe), format_up(candidate.profile.epsilon(target.delta)))
        for probability, candidate in zip(subject.probabilities, subject.candidates, strict=True)
    ]
    doubts = dict.fromkeys(caveat.text for caveat in subject.caveats)
    return _cell(
        f"Plan for ε = {target.epsilon:g} at δ = {target.delta:g}",
        [
            f"{portfolio.dataset}; unit of privacy: {portfolio.unit}; {portfolio.adjacency}",
            f"{would} ε = {format_up(found.epsilon)} at δ = {found.delta:g}, by {subject.theorem}."
            + (" Final: it holds only if nothing else of its runs is ever released." if subject.is_final else ""),
            f"Chosen by: {subject.chosen_by['rule']}.",
        ],
        [(("probability", "release", "its own ε"), rows)],
        warning="" if subject.proved and subject.charged else "NO GUARANTEE: print(plan) says why.",
        folded=("Caveats", doubts),
    )


@html_of.register
def _(subject: Portfolio) -> str:
    rows = [
        (
            run.id,
            run.settings or "–",
            ", ".join(str(saved.step) for saved in run.checkpoints) or "none",
            run.manifest.ancestry.start,
        )
        for run in subject.runs
    ]
    return _cell(
        f"{len(subject.runs)} run{'' if len(subject.runs) == 1 else 's'} on {subject.dataset}",
        [f"{subject.path}; unit of privacy: {subject.unit}; {subject.adjacency}"],
        [(("run", "trained with", "checkpoints at step", "started from"), rows)],
    )


@html_of.register
def _(subject: Inspection) -> str:
    rows = [
        (saved.name, run.settings or "–", format_up(cost.mu), format_up(cost.epsilon))
        for run in subject.portfolio.runs
        for saved, cost in subject.costs[run.id]
    ]
    everything = subject.everything
    together = (
        f"no figure ({everything.reason})" if everything.epsilon is None else f"ε = {format_up(everything.epsilon)}"
    )
    return _cell(
        f"{len(rows)} checkpoints on {subject.portfolio.dataset}, at δ = {subject.delta:g}",
        [f"Everything at once, whatever is done with it: {together}."],
        [(("checkpoint", "trained with", "μ", "ε"), rows)],
        folded=("Caveats", dict.fromkeys(f"{caveat.where}: {caveat.text}" for caveat in subject.caveats)),
    )


@html_of.register
def _(subject: Release) -> str:
    content = subject.content
    guarantee, terms = content["guarantee"], content["terms"]
    rows = [(f"{each['probability']:.4g}", each["recipe"], str(each["epsilon"])) for each in content["outcomes"]]
    paid = content["choice"]["paidFor"]
    return _cell(
        f"Release {subject.path}" + (" (as it was released before)" if subject.already else ""),
        [
            f"ε = {guarantee['epsilon']} at δ = {guarantee['delta']!r} per {terms['unit']}, {terms['adjacency']}, "
            f"by {content['theorem']}"
            + ("; final: nothing else of its runs can be released" if content["final"] else ""),
            f"{subject.release_id}; certificate {'signed' if subject.signed else 'not signed'}; "
            f"ledger entry {content['ledger']['entry']}",
        ],
        [(("probability", "released", "its own ε"), rows)],
        warning=""
        if content["proved"] and paid
        else "Not proved for these runs, or chosen in a way that is not paid for.",
        folded=("Caveats", sorted({each["name"].replace("_", " ") for each in content["caveats"]})),
    )


@html_of.register
def _(subject: Verification) -> str:
    facts = []
    if subject.verified:
        guarantee = subject.content["guarantee"]
        facts = [f"ε = {guarantee['epsilon']} at δ = {guarantee['delta']!r}, by {subject.content['theorem']}"]
        facts += [] if subject.content["proved"] else ["Not proved for these runs."]
    rows = [(_MARKS[check.passed], check.name, "\n".join(check.found)) for check in subject.checks]
    count = len(subject.problems)
    return _cell(
        f"{'Verified' if subject.verified else 'Not verified'}: {subject.path}",
        facts,
        [(("", "check", "found"), rows)],
        warning="" if subject.verified else f"NOT VERIFIED: {count} reason{'' if count == 1 else 's'}, below.",
    )


@html_of.register
def _(subject: Finding) -> str:
    claim, estimate = subject.claim, subject.estimate
    symbol = SYMBOLS[estimate.quantity]
    rows = [
        ("certified" if claim.proved else "claimed, not proved", f"{symbol} = {above(claim.value)} by {claim.by}"),
        ("shown", f"{symbol} ≥ {below(estimate.bound)} with {percent(estimate.confidence)} confidence"),
        ("tightness", ratio(subject.tightness)),
        ("verdict", subject.verdict),
    ]
    violated = subject.verdict == "violated"
    return _cell(
        f"Audit of {subject.subject}",
        [f"{estimate.trials:,} trials in each world, {estimate.estimator} estimator"],
        [(("", ""), rows)],
        warning="VIOLATED: the attack shows more than is claimed." if violated else "",
    )


@html_of.register
def _(subject: Analysis) -> str:
    plans, models = plans_table(subject), models_table(subject)
    return _cell(
        subject.title,
        [
            subject.subtitle,
            *filter(None, [wording.falls(subject)]),
            "plot() draws its frontier, to_frame() has its points.",
        ],
        [(plans.head, plans.rows), (models.head, models.rows)],
        warning=subject.banner,
        folded=("Caveats", subject.caveats),
    )


def _cell(
    heading: str,
    facts: Iterable[str],
    tables: Iterable[tuple[Sequence[str], Sequence[Sequence[str]]]],
    *,
    warning: str = "",
    folded: tuple[str, Iterable[str]] = ("", ()),
) -> str:
    parts = [f"<p><b>{as_text(heading)}</b></p>"]
    parts += [f'<p role="note"><b>⚠ {as_text(warning)}</b></p>'] if warning else []
    parts += [f"<p>{as_text(fact)}</p>" for fact in facts]
    for head, rows in tables:
        parts.append(table(Table(heading, head, rows[:MOST_ROWS])) if rows else "")
        parts += [f"<p>… and {len(rows) - MOST_ROWS} more</p>"] if len(rows) > MOST_ROWS else []
    name, further = folded
    items = "".join(f"<li>{as_text(each)}</li>" for each in further)
    parts += [f"<details><summary>{as_text(name)}</summary><ul>{items}</ul></details>"] if items else []
    return f'<div class="dpmerge">{"".join(parts)}</div>'
