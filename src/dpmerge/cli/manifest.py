"""`dpmerge manifest`: write, import, check the record of a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpmerge.cli.terminal import AsJson, one_line_errors, print_json, say, wide_console

if TYPE_CHECKING:
    from dpmerge.portfolio.manifest import Manifest

app = typer.Typer(
    help="The record of a run: `privacy.json`, beside its checkpoints.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Out = Annotated[Path, typer.Option("--out", "-o", help="Where to write; an existing file is never replaced.")]
Run = Annotated[str | None, typer.Option(help="A name for the run.")]
DatasetId = Annotated[str | None, typer.Option(help="A name for the private data, yours; never a digest of it.")]
AdjacencyName = Annotated[str | None, typer.Option(help="`replace_one` or `add_remove`.")]
Unit = Annotated[str, typer.Option(help="Whose privacy one record is.")]
SamplingKind = Annotated[
    str | None, typer.Option(help="`full_batch`, `poisson`, `shuffled` or `unknown`: how batches were really drawn.")
]
StepsPerEpoch = Annotated[int | None, typer.Option(help="For shuffled batches.")]
PublicDivisor = Annotated[
    bool, typer.Option("--public-divisor", help="The expected batch size was fixed without looking at the data.")
]
NoiseSource = Annotated[str | None, typer.Option(help="`os_entropy`, `seeded` or `unknown`.")]
NoiseSeed = Annotated[int | None, typer.Option(help="The seed, if the noise was seeded.")]
Start = Annotated[str | None, typer.Option(help="`random`, `public`, `private` or `unknown`.")]
PublicSource = Annotated[str | None, typer.Option(help="Which public checkpoint it started from.")]
Parent = Annotated[str | None, typer.Option(help="The private parent, as `run@step`.")]
Tuning = Annotated[str, typer.Option(help="`none`, `public`, `charged` or `unknown`.")]
Stopping = Annotated[
    str | None,
    typer.Option(help="When to stop was `fixed`, or decided by `public` or `private` data, or is `unknown`."),
]
Schedule = Annotated[str | None, typer.Option(help="Likewise for rates, clip norms and noise that changed.")]
RecordLosses = Annotated[
    str | None, typer.Option(help="`vouched` if each record had a loss of its own (--who says so), or `unknown`.")
]
Delta = Annotated[float, typer.Option(help="The δ at which its ε is given.")]
Who = Annotated[str | None, typer.Option(help="Who vouches for this.")]
Size = Annotated[int | None, typer.Option(help="The public number of records (under replace_one).")]
Kept = Annotated[
    list[str] | None,
    typer.Option(
        "--checkpoint", help="`STEP=FILE.safetensors` (of shards: their index), beside the manifest; again for each."
    ),
]


@app.command()
def new(
    out: Out = Path("privacy.json"),
    run: Run = None,
    dataset: DatasetId = None,
    adjacency: AdjacencyName = None,
    kind: Annotated[
        str | None,
        typer.Option(help="`dp_sgd`, `gaussian_release`, `gaussian_dp`, `renyi`, `approximate_dp` or `non_private`."),
    ] = None,
    size: Size = None,
    unit: Unit = "record",
    steps: Annotated[int | None, typer.Option(help="dp_sgd: how many steps.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="dp_sgd: σ.")] = None,
    clip_norm: Annotated[float | None, typer.Option(help="dp_sgd: C.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="dp_sgd: as given to the optimizer.")] = None,
    loss_reduction: Annotated[str | None, typer.Option(help="dp_sgd: `mean` or `sum`.")] = None,
    expected_batch_size: Annotated[
        float | None, typer.Option(help="dp_sgd: what a mean divides by; for a full batch, --size by default.")
    ] = None,
    public_divisor: PublicDivisor = False,
    sampling: SamplingKind = None,
    sampling_rate: Annotated[float | None, typer.Option(help="dp_sgd: the Poisson rate.")] = None,
    steps_per_epoch: StepsPerEpoch = None,
    layers: Annotated[str | None, typer.Option(help="dp_sgd: clipped `together` or each layer `apart`.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="dp_sgd: `sgd`, `adam`, …")] = None,
    momentum: Annotated[float | None, typer.Option(help="dp_sgd: of SGD, 0 for none.")] = None,
    nesterov: Annotated[str | None, typer.Option(help="dp_sgd: `yes` or `no`, with momentum.")] = None,
    dampening: Annotated[float | None, typer.Option(help="dp_sgd: with momentum.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="dp_sgd: outside the clipped loss, 0 for none.")] = None,
    smoothness: Annotated[
        str | None, typer.Option(help="dp_sgd: `softmax`, `logistic`, `squared`, `huber` or `declared`.")
    ] = None,
    feature_bound: Annotated[
        float | None, typer.Option(help="smoothness: largest feature norm, bias included.")
    ] = None,
    beta: Annotated[float | None, typer.Option(help="smoothness: a declared Lipschitz constant.")] = None,
    records: Annotated[int | None, typer.Option(help="smoothness: a public bound on the number of records.")] = None,
    sensitivity: Annotated[float | None, typer.Option(help="gaussian_release: in L2.")] = None,
    standard_deviation: Annotated[float | None, typer.Option(help="gaussian_release: of the noise.")] = None,
    noise_on: Annotated[
        str | None,
        typer.Option(help="gaussian_release: `weights`; if the noise was added to something else, it is gaussian_dp."),
    ] = None,
    mu: Annotated[float | None, typer.Option(help="gaussian_dp: μ, wherever the noise is.")] = None,
    point: Annotated[list[str] | None, typer.Option(help="approximate_dp: `EPSILON:DELTA`; again for each.")] = None,
    order: Annotated[list[str] | None, typer.Option(help="renyi: `ORDER:VALUE`; again for each.")] = None,
    noise_source: NoiseSource = None,
    noise_seed: NoiseSeed = None,
    start: Start = None,
    public_source: PublicSource = None,
    parent: Parent = None,
    tuning: Tuning = "unknown",
    stopping: Stopping = None,
    schedule: Schedule = None,
    record_losses: RecordLosses = None,
    who: Who = None,
    checkpoint: Kept = None,
    delta: Delta = 1e-5,
    as_json: AsJson = False,
) -> None:
    """Write a manifest by hand, for a model that was trained without the recorder.

    On a terminal it asks for what was not given as a flag; elsewhere a missing answer is an error that names the flag.

    Example: `dpmerge manifest new --run old --dataset adult --adjacency add_remove --kind approximate_dp
    --point 1.2:1e-5 --noise-source os_entropy --start random --checkpoint 1=model.safetensors`
    """
    answers: dict[str, Any] = {k: v for k, v in locals().items() if k not in ("out", "delta", "as_json")}
    with one_line_errors():
        from dpmerge.portfolio.authoring import written_manifest

        out = _free(out)
        if sys.stdin.isatty():
            _ask(answers)
        _write(written_manifest(answers, out.parent), out, delta, as_json)


@app.command("import-opacus")
def import_opacus(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A saved accountant, as JSON.")],
    out: Out = Path("privacy.json"),
    run: Run = None,
    dataset: DatasetId = None,
    adjacency: AdjacencyName = "add_remove",
    unit: Unit = "record",
    size: Size = None,
    sampling: SamplingKind = "unknown",
    steps_per_epoch: StepsPerEpoch = None,
    public_divisor: PublicDivisor = False,
    noise_source: NoiseSource = "unknown",
    noise_seed: NoiseSeed = None,
    start: Start = "unknown",
    public_source: PublicSource = None,
    parent: Parent = None,
    tuning: Tuning = "unknown",
    stopping: Stopping = None,
    schedule: Schedule = None,
    record_losses: RecordLosses = None,
    who: Who = None,
    checkpoint: Kept = None,
    delta: Delta = 1e-5,
    as_json: AsJson = False,
) -> None:
    """Read an Opacus accountant's history, and say what it does not tell.

    Save it with `json.dump(privacy_engine.accountant.state_dict(), file)`. A history knows noise multipliers, rates and
    steps; not whether batches were really sampled, what was clipped, or how fast was learned. What you do not add as a
    flag stays unknown, and the theorems that need it stay out of reach.

    Example: `dpmerge manifest import-opacus history.json --run old --dataset adult --sampling poisson
    --public-divisor --noise-source os_entropy --start random`
    """
    with one_line_errors():
        from dpmerge.errors import InvalidInput
        from dpmerge.portfolio.authoring import imported_manifest
        from dpmerge.portfolio.opacus_history import history_facts, read_history

        out = _free(out)
        for flag, value in (("--run", run), ("--dataset", dataset)):
            if value is None:
                raise InvalidInput(flag, None, "a name", found="nothing")
        facts = history_facts(
            read_history(file),
            sampling=str(sampling),
            steps_per_epoch=steps_per_epoch,
            public_divisor=public_divisor or adjacency == "replace_one",
        )
        answers: dict[str, Any] = {
            "run": run, "dataset": dataset, "adjacency": adjacency, "unit": unit, "size": size, "start": start,
            "noise_source": noise_source, "noise_seed": noise_seed, "parent": parent, "tuning": tuning, "who": who,
            "checkpoint": checkpoint, "public_source": public_source, "stopping": stopping, "schedule": schedule,
            "record_losses": record_losses,
        }  # fmt: skip
        _write(imported_manifest(answers, facts, out.parent), out, delta, as_json)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A privacy.json, or the folder it is in.")],
    delta: Delta = 1e-5,
    as_json: AsJson = False,
) -> None:
    """Is this manifest valid, are its checkpoints what it says, and what can it prove?"""
    with one_line_errors():
        from dpmerge.portfolio.manifest import MANIFEST_NAME, Manifest
        from dpmerge.portfolio.runs import read_run

        path = file / MANIFEST_NAME if file.is_dir() else file
        manifest = Manifest.read(path)
        if path.name == MANIFEST_NAME:
            read_run(path.parent, contents=True)
        _report(manifest, path, delta, as_json)


@app.command()
def schema() -> None:
    """Print the JSON Schema of manifests."""
    from dpmerge.portfolio.manifest import json_schema

    print_json(json_schema())


def _free(out: Path) -> Path:
    """Where the manifest goes: the file named, or privacy.json in the folder named."""
    from dpmerge.errors import InvalidInput

    out = out / "privacy.json" if out.is_dir() else out
    if out.exists():
        raise InvalidInput("--out", str(out), "a file that does not exist yet: a record is never overwritten")
    if not out.parent.is_dir():
        raise InvalidInput("--out", str(out), "a file in a folder that exists")
    return out


def _ask(answers: dict[str, Any]) -> None:
    """Ask for what is missing, again if the answer will not do; answers decide what else is asked."""
    from dpmerge.errors import InvalidInput
    from dpmerge.portfolio.authoring import checked, missing

    while open_questions := missing(answers):
        question = open_questions[0]
        choices = f" ({', '.join(question.choices)})" if question.choices else ""
        try:
            answers[question.name] = checked(question, str(typer.prompt(question.words + choices)).strip())
        except InvalidInput as error:
            say(f"{error}", err=True)


def _write(manifest: Manifest, out: Path, delta: float, as_json: bool) -> None:
    from dpmerge.privacy import domain

    domain.delta("--delta", delta)
    manifest.write(out)
    _report(manifest, out, delta, as_json)


def _report(manifest: Manifest, path: Path, delta: float, as_json: bool) -> None:
    from dpmerge.portfolio.reach import print_reach, reach_document

    if as_json:
        print_json(reach_document(manifest, path, delta))
    else:
        print_reach(manifest, path, delta, wide_console())
