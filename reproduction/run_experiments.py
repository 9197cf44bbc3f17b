"""Run experiments and write down what they found: results, pictures, pages.

Guarantees: what is drawn and told is computed from the results file that was written, read back. Trained runs and
scores are kept in `reproduction/runs`, so that an interrupted experiment goes on where it stopped.
Refuses: presets and experiments that are not known; folders that cannot be written to, or where another is at work.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from pathlib import Path

from dpmerge.errors import CannotWriteError, InvalidInputError
from dpmerge.report.plot_page import write_plot_page
from dpmerge.report.plot_pictures import write_plot_pictures
from dpmerge.report.plots import Drawing, Table
from dpmerge.report.whole_files import write_whole
from reproduction.experiments import EXPERIMENTS, Experiment, chosen, experiment
from reproduction.pages import FOLDER, OVERVIEW, overview, page
from reproduction.presets import LARGER, PRESETS, Preset
from reproduction.results import Results, versions
from reproduction.run_store import ImageSource, RunStore
from reproduction.statements import Statement

RUNS = "runs"


def preset_named(name: str) -> Preset:
    """A preset by its name."""
    if name not in PRESETS:
        raise InvalidInputError("preset", name, ", ".join(PRESETS))
    return PRESETS[name]


PAPER_HOURS = 49
"""Hours of two cores for one repetition of CIFAR-10 at the paper's size: 100 epochs of pretraining and four runs of 20
steps, on 25,000 images each, some 40 and 120 milliseconds an image."""


def days_of_training(names: Sequence[str], preset: Preset, only: str | None = None) -> str | None:
    """What the paper's size would take where there is no GPU; None where it would not."""
    import torch

    trained = [name for name in chosen(names, only) if "cifar10" in EXPERIMENTS[name] and only != "mnist"]
    if preset.name != "paper" or not trained or torch.cuda.is_available():
        return None
    return (
        f"No GPU was found. CIFAR-10 at the paper's size takes about {PAPER_HOURS} hours a repetition on two cores, "
        f"{preset.cifar.seeds} repetitions, in {', '.join(trained)}."
    )


def run(
    names: Sequence[str],
    folder: Path,
    *,
    preset: Preset,
    images: ImageSource,
    seed: int = 42,
    only: str | None = None,
    tell: Callable[[str], object] = lambda _: None,
    executor: Executor | None = None,
) -> Iterator[Results]:
    """Measure, write down and hand out each experiment in turn; the page about all that are there grows with them.

    With `only`, experiments on several data sets are made on that one alone. Runs are trained where `executor` says.
    """
    wanted = chosen(names, only)
    home = made_folder(folder / FOLDER)
    store = RunStore(made_folder(home / RUNS), preset, images, seed, tell, executor, only)
    with _alone(store.folder):
        for name in wanted:
            results = _written(measured(name, store), home)
            _write_overview(folder)
            yield results


def redraw(names: Sequence[str], folder: Path, *, kinds: Sequence[str] = ("png",)) -> Iterator[Results]:
    """Pictures, of these kinds, and pages again, from results that are there; nothing is trained or measured."""
    home = folder / FOLDER
    wanted = [file for name in chosen(names) for file in _results_files(home, name)]
    if "all" not in names:
        found = {file.parent.name for file in wanted}
        wanted += [home / name / f"{name}.json" for name in chosen(names) if name not in found]  # said to be missing
    if not wanted:
        raise InvalidInputError("output", str(folder), "a folder in which `python -m reproduction` has written results")
    for file in wanted:
        results = _written(Results.read(file), home, kinds)
        _write_overview(folder)
        yield results


def _results_files(home: Path, name: str) -> list[Path]:
    """Of one experiment: by the usual preset, and by larger ones."""
    names = [name, *(f"{name}-{preset}" for preset in LARGER)]
    return [file for each in names if (file := home / each / f"{each}.json").is_file()]


def measured(name: str, store: RunStore) -> Results:
    """One experiment, as a results file would give it back."""
    made = experiment(name)
    store.timings.clear()
    store.seeds.clear()
    begun = time.perf_counter()
    numbers = made.measure(store)
    timings = {**store.timings, "all of it, this time": time.perf_counter() - begun}
    results = Results(
        experiment=name,
        preset=store.preset.name,
        seed=store.seed,
        seeds=dict(store.seeds),
        settings=made.settings(store) | {"preset": store.preset.document()},
        numbers=numbers,
        versions=versions(),
        timings=timings,
    )
    return Results.parsed(results.document(), name)


def _written(results: Results, home: Path, kinds: Sequence[str] = ("png",)) -> Results:
    name, made = results.name, experiment(results.experiment)
    place = made_folder(home / name)
    write_whole(place / f"{name}.json", _json(results))
    drawings, statements = _told(results, made)
    write_plot_pictures(drawings, place, kinds)
    rows = [(s.verdict, f"{s.claim} ({s.source})", s.measured, s.why) for s in statements]
    table = Table(heading="What was found", head=("agrees?", "claim", "measured", "why"), rows=rows)
    subtitle = f"python -m reproduction {results.experiment}: preset {results.preset}, seed {results.seed}"
    write_plot_page(made.TITLE, subtitle, (), drawings, (table,), place / f"{name}.html")
    write_whole(place / f"{name}.md", page(results, made).encode())
    return results


def _told(results: Results, made: Experiment) -> tuple[list[Drawing], list[Statement]]:
    """What is drawn and said of results, unless they are those of a version that measured something else."""
    try:
        return made.drawings(results.numbers), made.statements(results.numbers)
    except KeyError as missing:
        found = f"{results.name}, of another version (it has no {missing})"
        raise InvalidInputError("results", results.name, "run the experiment again", found=found) from None


def _json(results: Results) -> bytes:
    """Readable, but with a list of numbers on one line."""
    document = results.document()
    numbers = {key: json.dumps(v, ensure_ascii=False, allow_nan=False) for key, v in document.pop("numbers").items()}
    head = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    lines = ",\n".join(f"  {json.dumps(key)}: {value}" for key, value in numbers.items())
    return f'{head[:-2]},\n "numbers": {{\n{lines}\n }}\n}}\n'.encode()


def _write_overview(folder: Path) -> None:
    """About every experiment of which there are results, not only those of this time."""
    found: list[tuple[Results, Experiment]] = []
    for name in EXPERIMENTS:
        for file in _results_files(folder / FOLDER, name):
            with suppress(InvalidInputError):  # of another version: this one cannot tell what it says
                results = Results.read(file)
                _told(results, experiment(name))
                found.append((results, experiment(name)))
    write_whole(folder / OVERVIEW, overview(found).encode())


def made_folder(folder: Path) -> Path:
    """The folder, made if need be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        found = f"{folder}: {error.strerror}"
        raise CannotWriteError("output", str(folder), "a folder that can be made", found=found) from None
    if not os.access(folder, os.W_OK):
        raise CannotWriteError("output", str(folder), "a folder that can be written to")
    return folder


@contextmanager
def _alone(runs: Path) -> Iterator[None]:
    """Two at once would begin each other's unfinished runs again."""
    with (runs / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            accepted = "a folder that no other `python -m reproduction` is at work in"
            raise CannotWriteError("output", str(runs), accepted, found=f"{runs}, where one is") from None
        yield
