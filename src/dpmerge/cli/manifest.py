"""`dpmerge manifest`: write, check, upgrade the record of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpmerge.cli.options import INSECURE, LEDGER
from dpmerge.cli.terminal import FAILED, AsJson, one_line_errors, print_json, say, wide_console

if TYPE_CHECKING:
    from dpmerge.portfolio.manifest_check import ManifestCheck

app = typer.Typer(
    help="The record of a run: `privacy.json`, beside its checkpoints.",
    # --out, as version 0.1 called it, is --output; click shows an alias in the help, and not this.
    context_settings={"token_normalize_func": lambda name: "output" if name == "out" else name},
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Out = Annotated[Path, typer.Option("--output", "-o", help="Where to write; an existing file is never replaced.")]
Delta = Annotated[float, typer.Option(help="The δ at which its ε is given.")]


@app.command()
def new(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="`dp_sgd`, `gaussian_release`, `gaussian_dp`, `renyi`, `approximate_dp` or `non_private`.",
        ),
    ],
    out: Out = Path("run.yaml"),
    as_json: AsJson = False,
) -> None:
    """Write a template to fill in, for a model that was trained without the recorder.

    Every field that has to be stated is empty, with what it means, what is accepted and an example. Then
    `dpmerge manifest check run.yaml` lists what is missing, and `dpmerge manifest write run.yaml` writes the manifest.

    Example: `dpmerge manifest new approximate_dp -o models/partner/run.yaml`
    """
    with one_line_errors():
        from dpmerge.portfolio.manifest_template import write_template

        path = write_template(kind, out)
    if as_json:
        print_json({"file": str(path), "kind": kind})
    else:
        say(f"{path}: fill it in, then dpmerge manifest check {path}")


@app.command()
def write(
    draft: Annotated[Path, typer.Argument(metavar="FILE", help="A template that was filled in.")],
    out: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Default: `privacy.json` beside it; an existing file is never replaced."),
    ] = None,
    delta: Delta = 1e-5,
    as_json: AsJson = False,
) -> None:
    """Write the manifest that a filled template states, with the digests of its checkpoints.

    Example: `dpmerge manifest write models/partner/run.yaml`
    """
    with one_line_errors():
        from dpmerge.accounting import validation
        from dpmerge.portfolio.manifest import MANIFEST_NAME
        from dpmerge.portfolio.manifest_check import ManifestCheck
        from dpmerge.portfolio.manifest_draft import write_manifest

        validation.delta("--delta", delta)
        manifest = write_manifest(draft, out)
        path = draft.parent if out is None else out
        path = path / MANIFEST_NAME if path.is_dir() else path
        _report(ManifestCheck(path=path, delta=delta, manifest=manifest), as_json)


@app.command()
def check(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A privacy.json, the folder it is in, or a template (`.yaml`).")
    ],
    delta: Delta = 1e-5,
    as_json: AsJson = False,
) -> None:
    """Is this manifest valid, are its checkpoints what it says, and what can it prove?

    Of one that is not valid every field is listed that is missing or wrong, with what to write there.
    """
    with one_line_errors():
        from dpmerge.portfolio.manifest_check import check_manifest

        _report(check_manifest(file, delta), as_json)


@app.command()
def upgrade(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE|FOLDER...", help="Manifests, folders of runs, or a portfolio.yaml."),
    ],
    vouched_by: Annotated[str, typer.Option(help="Who vouches for what is added: a person or team.")],
    values: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="`stopping`, `schedule`, `record_losses`, `tensors.tied`, `model`, `ancestry.independent_of` or "
            "`mechanism.noise_on`; again for each.",
        ),
    ] = None,
    ledger: LEDGER = None,
    insecure_permissions: INSECURE = False,
    as_json: AsJson = False,
) -> None:
    """State what manifests of version 0.1 could not, in the name of who vouches for it.

    Nothing that was stated is changed, and a manifest that lacks nothing stays as it is, byte for byte. A run that a
    ledger has charged keeps its statement: the ledger and the certificates made from it hold it to that. Only
    `tensors.tied` is added to it, which is no part of the statement. Without `--set` only what the weights show is
    added: that no two trained tensors are one weight. With the extra `blake3` installed, files also get their BLAKE3,
    read together with the SHA-256 that was recorded.

    Example: `dpmerge manifest upgrade models --vouched-by Ann --set stopping=fixed --set schedule=fixed`
    """
    with one_line_errors():
        from dpmerge.releasing.manifest_upgrade import parsed_value, upgrade_manifests

        stated = dict(parsed_value(text) for text in values or ())
        done = upgrade_manifests(
            files, vouched_by=vouched_by, values=stated, ledger=ledger, insecure_permissions=insecure_permissions
        )
    if as_json:
        print_json({"manifests": [each.document() for each in done]})
    else:
        say(*(line for each in done for line in str(each).splitlines()))


@app.command()
def schema(
    document: Annotated[
        str,
        typer.Argument(
            metavar="DOCUMENT", help="`run` (a manifest), `plan`, `certificate`, `ledger` or `revocations`."
        ),
    ] = "run",
    as_json: AsJson = False,  # noqa: ARG001  (it is JSON anyway)
) -> None:
    """Print the JSON Schema of manifests, or of another document that dpmerge writes.

    Example: `dpmerge manifest schema certificate`
    """
    with one_line_errors():
        from dpmerge.releasing.json_schemas import json_schema

        found = json_schema(document)
    print_json(found)


def _report(check: ManifestCheck, as_json: bool) -> None:
    if as_json:
        print_json(check.document())
    elif check.valid:
        _print_check(check)
    else:
        say(*(f"error: {line}" for line in check.complaints()), err=True)
    if not check.valid:
        raise typer.Exit(FAILED)


def _print_check(check: ManifestCheck) -> None:
    """Say that the manifest is valid, what the run costs, and what it can and cannot prove."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from dpmerge.accounting.rounding import format_up

    manifest, cost, console = check.manifest, check.cost, wide_console()
    assert manifest is not None, "only what is valid is printed as a table"
    kept = f"{len(manifest.checkpoints)} checkpoint{'' if len(manifest.checkpoints) == 1 else 's'}"
    console.print(Text(f"{check.path}: valid, run {manifest.run}, {manifest.mechanism.kind}, {kept}", style="bold"))
    figure = f"no figure ({cost.reason})" if cost.reason else f"ε = {format_up(cost.epsilon)} at δ = {check.delta:g}"
    console.print(f"Released alone, with all its iterates: {figure}", highlight=False)
    table = Table("theorem", "within reach?", "what is missing", box=box.SIMPLE_HEAD, pad_edge=False)
    for each in check.theorems:
        verdict = Text("yes", style="green") if each.certifies else Text("no", style="yellow")
        table.add_row(each.theorem, verdict, "\n".join(each.words()))
    console.print(table)
    if check.path.suffix in (".yaml", ".yml"):
        console.print(f"Nothing is written yet: dpmerge manifest write {check.path}", highlight=False)
