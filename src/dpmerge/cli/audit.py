"""`dpmerge audit`: attack what is certified."""

from __future__ import annotations

from concurrent.futures import Executor
from pathlib import Path
from typing import Annotated

import typer

from dpmerge.cli.options import EXECUTOR, WORKERS_PER_NODE, opened_executor, require_writable
from dpmerge.cli.terminal import AsJson, one_line_errors, print_json, say, wide_console
from dpmerge.errors import InvalidInputError

SCHEMA = "dpmerge/audit/v1"

ELSEWHERE = "; the paper's others are in the repository: python -m reproduction audit --scenario NAME"

SCENARIO = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="Attack a scenario that is installed, or several; `list` lists them, `all` plays all."
    ),
]
TRIALS = Annotated[
    int | None,
    typer.Option(help="Simulated releases in each of the two worlds; default 100,000, or the scenario's own."),
]
CONFIDENCE = Annotated[float, typer.Option(help="With which the lower bound holds.")]
SEED = Annotated[int, typer.Option(help="Of the simulation: the same seed, the same result.")]
PICTURE = Annotated[
    Path | None, typer.Option(metavar="FILE.png", help="Draw true against false alarms, and what is certified.")
]


def audit(
    subject: Annotated[
        Path | None,
        typer.Argument(metavar="PLAN|RELEASE", help="A plan (`dpmerge plan -o`), a release's folder or certificate."),
    ] = None,
    portfolio: Annotated[
        Path | None, typer.Option(help="The portfolio of a plan; a certificate says itself what it was made of.")
    ] = None,
    scenario: SCENARIO = None,
    trials: TRIALS = None,
    confidence: CONFIDENCE = 0.95,
    power: Annotated[
        float | None,
        typer.Option(help="Use as many trials as show 90 % of a figure that is exact, with this probability."),
    ] = None,
    seed: SEED = 0,
    picture: PICTURE = None,
    executor: EXECUTOR = None,
    workers_per_node: WORKERS_PER_NODE = None,
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
            raise InvalidInputError("audit", None, "a plan or a release, or --scenario NAME", found=found)
        require_picture(picture)
        if scenario:
            for name, value in (("portfolio", portfolio), ("power", power)):
                if value is not None:
                    accepted = "nothing beside --scenario, which brings its own runs and trials"
                    raise InvalidInputError(name, str(value), accepted)
            from dpmerge.auditing.installed_scenarios import installed_scenarios
            from dpmerge.cli.scenarios import audit_scenarios

            right = audit_scenarios(
                scenario,
                installed_scenarios,
                trials,
                confidence,
                seed,
                picture,
                as_json,
                elsewhere=ELSEWHERE,
                executor=executor,
                workers_per_node=workers_per_node,
            )
        else:
            assert subject is not None
            with opened_executor(executor, workers_per_node) as workers:
                right = _release(subject, portfolio, trials, confidence, power, seed, picture, workers, as_json)
    if not right:
        raise typer.Exit(1)


def require_picture(picture: Path | None) -> None:
    """Noticed before the audit, not after it."""
    if picture is None:
        return
    from dpmerge.report.trade_off import require_png

    require_png(picture)
    require_writable("picture", picture)


def _release(
    subject: Path,
    portfolio: Path | None,
    trials: int | None,
    confidence: float,
    power: float | None,
    seed: int,
    picture: Path | None,
    executor: Executor | None,
    as_json: bool,
) -> bool:
    """Whether the attack leaves a plan or a release standing."""
    from dpmerge.auditing.audit import audit as attack

    finding = attack(
        subject,
        portfolio=portfolio,
        trials=trials,
        confidence=confidence,
        power=power,
        seed=seed,
        executor=executor,
        tell=lambda line: say(f"note: {line}", err=True),
    )
    if picture is not None:
        from dpmerge.report.trade_off import write_roc

        write_roc([finding], picture)
    if as_json:
        print_json({"schema": SCHEMA, "seed": seed, **finding.document()})
    else:
        from dpmerge.cli.finding_table import print_finding
        from dpmerge.report.trade_off import roc_rows

        console = wide_console()
        print_finding(finding, console)
        for row in roc_rows(finding):
            console.print(row, highlight=False, markup=False)
    return finding.verdict != "violated"
