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
from dpmerge.cli import (
    audit,
    design,
    example,
    feasible,
    frontier,
    importing,
    ledger,
    manifest,
    merge,
    plan,
    reproduce,
    revocations,
    timestamp,
    verify,
)
from dpmerge.cli.options import ALLOW, HEADERS_ONLY, PORTFOLIO, REHASH
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
app.add_typer(revocations.app, name="revocations")
app.add_typer(timestamp.app, name="timestamp")
for verb in (
    example.example,
    plan.plan,
    design.design,
    feasible.feasible,
    frontier.frontier,
    merge.merge,
    verify.verify,
    verify.keygen,
    audit.audit,
):
    app.command()(verb)
app.command("import")(importing.import_models)
# Whatever options somebody gives it, it says where the experiments are.
app.command(context_settings={"ignore_unknown_options": True})(reproduce.reproduce)


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
        Path,
        typer.Argument(
            metavar="SPEC.json", help="The runs and how they are merged, as JSON; `-` reads standard input."
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """What do training runs cost in privacy: released alone, drawn at random, or averaged?

    Needs no models, only numbers. SPEC.json lists the runs (steps, noise multiplier, clip norm, effective learning
    rates), the adjacency and δ, and optionally `probabilities` (release one, drawn at random) and `weights` (release
    the weighted average).

    For an average all theorems are shown side by side. **proof here?** says whether a figure is proved for *these*
    runs: the paper's `merged_trajectory`, for example, is proved where the total gradient is clipped, and not for
    ordinary DP-SGD, which clips each record's gradient.

    Example: `{"adjacency": "replace_one", "delta": 1e-5, "runs": [{"blocks": [{"steps": 20, "noise_multiplier": 32,
    "clip_norm": 2, "learning_rate": 4}]}]}`
    """
    with one_line_errors():
        from dpmerge.account_spec import Spec
        from dpmerge.cli.account import account_document, print_account

        parsed = Spec.parse(sys.stdin.buffer.read()) if str(spec) == "-" else Spec.read(spec)
        result = parsed.compare()
    if as_json:
        print_json(account_document(parsed, result))
        return
    print_account(parsed, result, wide_console())


@app.command()
def inspect(
    portfolio: PORTFOLIO,
    delta: Annotated[float, typer.Option(help="The δ at which every ε is given.")] = 1e-5,
    headers_only: HEADERS_ONLY = False,
    rehash: REHASH = False,
    allow: ALLOW = None,
    as_json: AsJson = False,
) -> None:
    """What is in this portfolio, what does each model cost in privacy, and which may be averaged?

    Reads every run's `privacy.json` and checkpoints, and checks that they belong together: same data, unit and
    adjacency, same tensors, independent noise, digests as recorded. Then it shows ε at each checkpoint, what releasing
    everything would cost, which theorem covers which runs, and every caveat.

    Example: `dpmerge inspect examples/mnist --delta 1e-5`
    """
    with one_line_errors():
        from dpmerge.portfolio.inspection import inspect as compute

        result = compute(portfolio, delta, headers_only=headers_only, rehash=rehash, allow=allow or ())  # type: ignore[arg-type]
    if as_json:
        print_json(result.document())
        return
    from dpmerge.portfolio.inspection_table import print_inspection

    print_inspection(result, wide_console())
