"""`dpmerge import`: runs of a portfolio from models that were trained without the recorder."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpmerge.cli.terminal import AsJson, one_line_errors, print_json, say, wide_console

if TYPE_CHECKING:
    from dpmerge.portfolio.import_questions import Question
    from dpmerge.portfolio.manifest_check import ManifestCheck
    from dpmerge.portfolio.model_import import ImportedRun

_WITHOUT = "where there is no history."


def import_models(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...",
            help="Of each run its folder: a model (`.safetensors` or `.pt`) and `history.json`, unless the history is "
            "in an Opacus checkpoint.",
        ),
    ],
    allow_pickle: Annotated[
        bool,
        typer.Option(
            "--allow-pickle",
            help="Read `.pt` files, by torch.load(weights_only=True) in a process of its own under limits; they are "
            "kept as safetensors beside.",
        ),
    ] = False,
    run: Annotated[str | None, typer.Option(help="A name for the run, of one folder; default: the folder's.")] = None,
    dataset: Annotated[
        str | None, typer.Option(help="A name for the private data, yours; never a digest of it.")
    ] = None,
    adjacency: Annotated[
        str | None, typer.Option(help="Which data sets are neighbours: `replace_one`, `add_remove`, ….")
    ] = None,
    unit: Annotated[str, typer.Option(help="Whose privacy one record is.")] = "record",
    size: Annotated[int | None, typer.Option(help="The number of records, where it is public.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help=f"σ, {_WITHOUT}")] = None,
    sampling_rate: Annotated[float | None, typer.Option(help=f"The chance to be in a batch, {_WITHOUT}")] = None,
    steps: Annotated[int | None, typer.Option(help=f"How many steps were taken, {_WITHOUT}")] = None,
    sampling: Annotated[
        str | None, typer.Option(help="How batches were really drawn: `full_batch`, `poisson`, `shuffled`, `unknown`.")
    ] = None,
    steps_per_epoch: Annotated[int | None, typer.Option(help="For shuffled batches.")] = None,
    clipping: Annotated[
        str, typer.Option(help="`per_example`, as Opacus clips, or `aggregate`: the sum of a batch.")
    ] = "per_example",
    public_divisor: Annotated[
        bool | None,
        typer.Option(
            "--public-divisor/--no-public-divisor",
            help="The sum of gradients was divided by a fixed number, or by one made of the public number of records "
            "(under add_remove: by a public constant), never by the size of the batch that was drawn.",
        ),
    ] = None,
    noise_source: Annotated[str | None, typer.Option(help="`os_entropy`, `seeded` or `unknown`.")] = None,
    noise_seed: Annotated[int | None, typer.Option(help="The seed, if the noise was seeded.")] = None,
    start: Annotated[str | None, typer.Option(help="`random`, `public`, `private` or `unknown`.")] = None,
    public_source: Annotated[str | None, typer.Option(help="Which public checkpoint it started from.")] = None,
    parent: Annotated[str | None, typer.Option(help="The private parent, as `run@step`.")] = None,
    tuning: Annotated[str, typer.Option(help="`none`, `public`, `charged` or `unknown`.")] = "unknown",
    stopping: Annotated[
        str | None,
        typer.Option(help="When to stop was `fixed`, or decided by `public` or `private` data, or is `unknown`."),
    ] = None,
    schedule: Annotated[str | None, typer.Option(help="Likewise for rates, clip norms and noise that changed.")] = None,
    record_losses: Annotated[
        str | None, typer.Option(help="`vouched` if each record had a loss of its own (--who says so), or `unknown`.")
    ] = None,
    who: Annotated[str | None, typer.Option(help="Who vouches for what a history does not say.")] = None,
    delta: Annotated[float, typer.Option(help="The δ at which ε is given.")] = 1e-5,
    as_json: AsJson = False,
) -> None:
    """Make runs of models that were trained without the recorder: from `.pt` or safetensors, and Opacus' history.

    Put each model into a folder of its own, with the accountant's history beside it, saved by
    `json.dump(privacy_engine.accountant.state_dict(), file)` as `history.json`; a checkpoint made by
    `PrivacyEngine.save_checkpoint` has it inside. Without any history say `--noise-multiplier`, `--sampling-rate` and
    `--steps`.

    A history knows noise, rates and steps. It does not know whether batches were really sampled, by what gradients were
    divided, where noise and weights came from: that is asked for at a terminal, and otherwise listed. Learning rates
    are not needed: such models can be drawn at random and released jointly, and no sharper theorem covers them.

    Models with one `--noise-seed` are a group: one of them, drawn in a final release, is all that may ever be released.

    Example: `dpmerge import models/a models/b models/c --allow-pickle --dataset adult --adjacency add_remove
    --sampling poisson --public-divisor --noise-source os_entropy --start random --who Ann`
    """
    stated = {n: v for n, v in locals().items() if n not in ("folders", "delta", "as_json")}
    with one_line_errors():
        from dpmerge.accounting import validation
        from dpmerge.portfolio.model_import import import_models as imported

        validation.delta("--delta", delta)
        made = imported(folders, **stated, ask=_asked if _at_a_terminal() and not as_json else None)
        _report(made, delta, as_json)


def _at_a_terminal() -> bool:
    return sys.stdin.isatty()


def _asked(question: Question) -> str:
    """The answer of who sits at the terminal, asked again until it is one."""
    from dpmerge.errors import InvalidInputError

    while True:
        say(f"{question.words} ({question.accepted})", err=True)
        answer: str = typer.prompt(question.name.replace("_", " "), err=True)
        try:
            question.parsed(answer)
        except InvalidInputError as error:
            say(str(error), err=True)
        else:
            return answer


def _report(made: list[ImportedRun], delta: float, as_json: bool) -> None:
    from dpmerge.portfolio.manifest_check import ManifestCheck
    from dpmerge.portfolio.shared_seeds import noise_groups

    checks = [ManifestCheck(path=each.path, delta=delta, manifest=each.manifest) for each in made]
    grouped = sorted(noise_groups(each.manifest for each in made))
    if as_json:
        runs = [
            {
                **check.document(),
                "random_selection": check.cost.reason is None,
                "converted": list(each.converted),
                "read_without_network": each.isolated if each.converted else None,
            }
            for each, check in zip(made, checks, strict=True)
        ]
        print_json({"runs": runs, "noise_group": grouped})
        return
    _print_runs(checks, delta, grouped)
    for each in made:
        for name in each.converted:
            say(f"Converted: {each.path.parent / name}; the pickle beside it is not needed any more.")
    if not all(each.isolated for each in made):
        say("note: this system does not let a process leave the network; pickles were read with it there", err=True)
    if grouped:
        say(f"{', '.join(grouped)} share a noise seed: one of them, drawn in a final release, is all that may leave.")
    if (between := _between(checks)) is not None:
        how = f"--method select --objective saturate --epsilon {between} --delta {delta:g}"
        say(f"Next: dpmerge merge {made[0].path.parent.parent} {how}{' --final' if grouped else ''} -o merged")


def _between(checks: list[ManifestCheck]) -> str | None:
    """An ε between those of the runs, which a draw among them meets; None where none of them has one."""
    from dpmerge.accounting.rounding import format_up

    costs = [each for each in (check.cost.epsilon for check in checks) if each is not None and math.isfinite(each)]
    return format_up((min(costs) + max(costs)) / 2, 3) if costs else None


def _print_runs(checks: list[ManifestCheck], delta: float, grouped: list[str]) -> None:
    """What each run costs, what it lets one do, and which theorems do not cover it, for want of what."""
    from rich import box
    from rich.table import Table

    from dpmerge.accounting.rounding import format_up

    table = Table("run", f"ε at δ = {delta:g}", "can be", "not covered by", box=box.SIMPLE_HEAD, pad_edge=False)
    for check in checks:
        assert check.manifest is not None, "what is not valid is not written"
        if check.cost.reason:
            table.add_row(check.manifest.run, "no figure", "nothing yet", check.cost.reason)
            continue
        lacking: dict[str, list[str]] = {}
        for each in check.theorems:
            if not each.certifies:
                lacking.setdefault(each.words()[0], []).append(each.theorem)
        why = "\n".join(f"{', '.join(theorems)}: needs {words}" for words, theorems in lacking.items())
        alone = check.manifest.run in grouped
        able = "drawn once\n(random selection)" if alone else "drawn (random selection),\nreleased jointly"
        table.add_row(check.manifest.run, format_up(check.cost.epsilon), able, why)
    wide_console().print(table)
