"""What an attack achieves beside what a certificate allows: true against false alarms, as a plot and for a terminal.

Guarantees: the line of a claim is the best any attack could do if the claim is true; an attack's point above it, beyond
its error, is a violation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from dpmerge.accounting.validation import Array
from dpmerge.auditing.findings import Claim, Finding
from dpmerge.auditing.printed_figures import SYMBOLS, above
from dpmerge.errors import InvalidInputError
from dpmerge.report import styles
from dpmerge.report.plot_pictures import write_plot_pictures
from dpmerge.report.plot_text import text_rows
from dpmerge.report.plots import COLOURS, Plot, Series

WIDTH = 78
ATTACK, LIMIT = "●", "·"
_POINTS = 120
ATTACKS = styles.OTHERS[0]


def allowed_rates(deltas: Callable[[float], float], epsilons: Sequence[float], false: Array) -> Array:
    """The most true alarms that (ε, δ(ε)) allows at these rates of false ones, whichever of the ε says least.

    t ≤ e^ε f + δ, and 1 − f ≤ e^ε (1 − t) + δ (Wasserman and Zhou 2010; Kairouz, Oh, Viswanath 2015).
    """
    most = np.ones_like(false)
    for epsilon in epsilons:
        delta, grown = deltas(epsilon), np.exp(min(epsilon, 700.0))
        most = np.minimum(most, np.minimum(grown * false + delta, 1 - (1 - false - delta) / grown))
    return np.asarray(np.clip(most, 0.0, 1.0))


def claimed_rates(finding: Finding, false: Array) -> Array | None:
    """The line of a claim; None where nothing is promised."""
    claim, given = finding.claim, finding.estimate.given
    if claim.value is None or not np.isfinite(claim.value):
        return None
    if claim.deltas is None:
        point = (claim.value, given) if finding.estimate.quantity == "epsilon" else (given, claim.value)
        return allowed_rates(lambda _: point[1], [point[0]], false)
    reach = max(2 * claim.value, float(-np.log(false.min())), 1.0)
    epsilons = np.concatenate([[0.0], np.geomspace(1e-3, 1.0, 30), np.linspace(1.0, reach, 60)])
    return allowed_rates(claim.deltas, epsilons.tolist(), false)


def roc_plot(findings: Sequence[Finding], name: str) -> Plot:
    """One attack beside all claims about what it attacked."""
    roc = findings[0].estimate.roc
    assert roc is not None, "an attack with scores has a curve"
    estimate = findings[0].estimate
    series = [Series(name="the attack", x=roc.false, y=roc.true, colour=ATTACKS, marks="dots")]
    false = np.geomspace(max(float(roc.false[roc.false > 0].min(initial=1.0)), 1e-7), 1.0, _POINTS)
    for place, finding in enumerate(findings):
        line = claimed_rates(finding, false)
        if line is not None:
            series.append(
                Series(
                    name=f"the most that {_called(finding.claim)} allows, {_figure(finding)} ({finding.verdict})",
                    x=false,
                    y=line,
                    colour=_colour(finding.claim, place),
                    dashed=not finding.claim.proved,
                )
            )
    return Plot(
        name=name,
        heading="How well can one record be told from its absence, and what is certified?",
        words=(
            "An attacker sees only what is released and says whether one record was in the data. Up: how often that is "
            "said when it is; across: when it is not. No attack can be above the line of a claim that is true. Dashed: "
            "not proved for these runs."
        ),
        across="false alarms: the record is not there",
        up="true alarms: it is",
        series=tuple(series),
        log_x=True,
        log_y=True,
        note=f"{findings[0].subject}: {estimate.trials:,} simulated releases with the record, as many without",
    )


def write_roc(findings: Sequence[Finding], file: Path) -> Path:
    """The plot as a picture."""
    require_png(file)
    (written,) = write_plot_pictures([roc_plot(findings, file.stem)], file.parent)
    return written


def require_png(file: Path) -> None:
    if file.suffix != ".png":
        raise InvalidInputError("picture", str(file), "the name of a file that ends in .png")


def roc_rows(finding: Finding) -> Iterator[str]:
    """The same for a terminal: the attack and one claim."""
    roc = finding.estimate.roc
    if roc is None or not (roc.false > 0).any():
        return
    plot = roc_plot([finding], "roc")
    names = ("true alarms", f"the most that {_called(finding.claim)} allows")
    series = tuple(
        replace(each, name=name, letter=letter)
        for each, name, letter in zip(plot.series, names, (ATTACK, LIMIT), strict=False)
    )
    yield from text_rows(replace(plot, series=series, note=""), WIDTH)


def _figure(finding: Finding) -> str:
    return f"{SYMBOLS[finding.estimate.quantity]} = {above(finding.claim.value)}"


def _colour(claim: Claim, place: int) -> str:
    """That of its theorem; of another claim, one that no theorem has."""
    others = (*styles.OTHERS[1:], COLOURS["select"], COLOURS["mix"])
    return COLOURS.get(claim.by, others[place % len(others)])


def _called(claim: Claim) -> str:
    return claim.by.replace("_", " ")
