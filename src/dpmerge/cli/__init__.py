"""The command line: thin, one function a verb.

Exit codes: 0 done; 1 no such guarantee, or not verified: nothing was charged; 2 bad input or a failure, after a charge
with a note that says so; 130 interrupted; 141 nobody reads what is printed. Errors are one line on standard error,
never a traceback.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dpmerge import __version__
from dpmerge.cli import audit, design, frontier, ledger, manifest, merge, plan, reproduce, verify
from dpmerge.cli.terminal import AsJson, one_line_errors, print_json, say, tolerate_narrow_encodings, wide_console


class _Verbs(TyperGroup):
    """Whatever a verb did not foresee still ends in one line: a file that cannot be read, a disk that is full."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        with one_line_errors():
            return super().invoke(ctx)


app = typer.Typer(
    name="dpmerge",
    cls=_Verbs,
    help="A model for any privacy level, from the differentially private models you already have.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.add_typer(manifest.app, name="manifest")
app.add_typer(ledger.app, name="ledger")
for verb in (
    plan.plan,
    design.design,
    frontier.frontier,
    merge.merge,
    verify.verify,
    verify.keygen,
    audit.audit,
    reproduce.reproduce,
):
    app.command()(verb)


def _version(wanted: bool) -> None:
    if wanted:
        say(f"dpmerge {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[  # noqa: ARG001
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """A model for any privacy level, from the differentially private models you already have."""
    tolerate_narrow_encodings()


@app.command()
def account(
    spec: Annotated[
        Path, typer.Argument(metavar="SPEC.json", help="Runs and how they are merged; `-` reads standard input.")
    ],
    as_json: AsJson = False,
) -> None:
    """What do these runs cost, released alone, drawn at random, or combined?

    SPEC.json lists the runs (steps, noise multiplier, clip norm, effective learning rates), the adjacency and δ, and
    optionally `probabilities` (release one, drawn at random) and `weights` (release the weighted average).

    For a combination all theorems are shown side by side. **proof here?** says whether a figure is proved for *these*
    runs: the paper's `merged_trajectory`, for one, is a theorem where the total gradient is clipped, and none for
    ordinary DP-SGD, which clips each record's.

    Example: `{"adjacency": "replace_one", "delta": 1e-5, "runs": [{"blocks": [{"steps": 20, "noise_multiplier": 32,
    "clip_norm": 2, "learning_rate": 4}]}]}`
    """
    with one_line_errors():
        from dpmerge.account.figures import account as compute
        from dpmerge.account.spec import Spec

        parsed = Spec.parse(sys.stdin.buffer.read()) if str(spec) == "-" else Spec.read(spec)
        result = compute(parsed)
    if as_json:
        print_json(result.document())
        return
    from dpmerge.account.table import print_account

    print_account(result, wide_console())


@app.command()
def inspect(
    portfolio: Annotated[
        Path, typer.Argument(metavar="PORTFOLIO", help="A folder of runs, one run's folder, or a portfolio.yaml.")
    ],
    delta: Annotated[float, typer.Option(help="The δ at which every ε is given.")] = 1e-5,
    headers_only: Annotated[
        bool, typer.Option("--headers-only", help="Do not read the weights: faster, but digests are not checked.")
    ] = False,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="Average in spite of `different_initial_weights` or `different_frozen_tensors`."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What is in this portfolio, what does it cost, and what may be merged with what?

    Reads every run's `privacy.json` and checkpoints, and checks that they belong together: same data, unit and
    adjacency, same tensors, independent noise, digests as recorded. Then it shows ε at each checkpoint, what releasing
    everything would cost, which theorem covers which runs, and every caveat.

    Example: `dpmerge inspect examples/mnist --delta 1e-5`
    """
    with one_line_errors():
        from dpmerge.portfolio.inspection import inspect as compute
        from dpmerge.portfolio.portfolio import Portfolio

        loaded = Portfolio.load(portfolio, contents=not headers_only, allow=allow or ())  # type: ignore[arg-type]
        result = compute(loaded, delta)
    if as_json:
        print_json(result.document())
        return
    from dpmerge.portfolio.inspection_table import print_inspection

    print_inspection(result, wide_console())
