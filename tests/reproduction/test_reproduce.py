"""`python -m reproduction` from the outside, at a scale of seconds: files, pages, interrupts, wrong input."""

from __future__ import annotations

import fcntl
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dpmerge.errors import CheckpointError
from dpmerge.executors import open_executor
from reproduction import pages, presets, training
from reproduction.__main__ import experiments_app
from reproduction.experiments import EXPERIMENTS, experiment
from reproduction.images import Images
from reproduction.results import Results
from reproduction.run_experiments import days_of_training
from reproduction.run_store import RunStore
from tiny_experiments import TINY, TinyImages


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(presets.PRESETS, "tiny", TINY)
    monkeypatch.setattr("reproduction.images.ImageFolder", lambda _: TinyImages())


def run(*arguments: str) -> Any:
    return CliRunner().invoke(experiments_app, [*arguments], env={"COLUMNS": "100"})


@pytest.fixture(scope="module")
def everything(store: RunStore, output: Path) -> Path:
    """All experiments, once; what other tests trained is found."""
    assert store.folder == output / "reproduction" / "runs"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(presets.PRESETS, "tiny", TINY)
        patch.setattr("reproduction.images.ImageFolder", lambda _: TinyImages())
        result = run("all", "-o", str(output), "--preset", "tiny")
        assert result.exit_code == 0, result.output
        assert f"Wrote {output / 'reproduction.md'}" in result.stdout
    return output


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_each_experiment_leaves_results_pictures_and_pages(everything: Path, name: str) -> None:
    folder = everything / "reproduction" / name
    results = Results.read(folder / f"{name}.json")
    made = experiment(name)
    drawings, statements = made.drawings(results.numbers), made.statements(results.numbers)
    assert (results.preset, results.seed) == ("tiny", 42)
    assert {"python", "numpy", "scipy", "torch", "opacus", "cores"} <= set(results.versions)
    assert results.timings["all of it, this time"] > 0
    assert results.settings
    assert len(set(results.seeds.values())) == len(results.seeds), "a noise stream for each run"
    assert bool(results.seeds) == (name not in ("mean", "composition"))
    names = {f"{drawing.name}.png" for drawing in drawings} | {f"{name}.{kind}" for kind in ("json", "md", "html")}
    assert {path.name for path in folder.iterdir()} == names
    page, whole = (folder / f"{name}.md").read_text(), (everything / "reproduction.md").read_text()
    html = (folder / f"{name}.html").read_text()
    assert drawings
    assert statements
    for drawing in drawings:
        assert f"({drawing.name}.png)" in page
        assert f"(reproduction/{name}/{drawing.name}.png)" in whole
        assert drawing.words in page
    for statement in statements:
        assert f"**{statement.verdict}**: {statement.claim}" in page
        assert statement.measured in page
        assert statement.claim in whole
        assert statement.source in whole
    assert made.TITLE in html
    assert not re.search(r"\b(nan|NaN|None)\b", page), "a figure that is none"


def test_redrawing_needs_nothing_but_the_results(everything: Path, tmp_path: Path) -> None:
    folder = tmp_path / "reproduction" / "composition"
    folder.mkdir(parents=True)
    kept = everything / "reproduction" / "composition"
    (folder / "composition.json").write_bytes((kept / "composition.json").read_bytes())
    result = run("composition", "-o", str(tmp_path), "--redraw", "--json")
    assert result.exit_code == 0, result.output
    [document] = json.loads(result.stdout)
    assert document["experiment"] == "composition"
    for path in kept.iterdir():
        assert (folder / path.name).read_bytes() == path.read_bytes(), path.name


def test_an_interrupted_experiment_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, real = [], training._train

    def interrupted(task: Any, setup: Any, directory: Path, seed: int, progress: Any) -> None:
        trained.append(directory.name)
        if len(trained) == 3:

            def stop(step: int, _: int) -> None:
                if step == 10:
                    raise KeyboardInterrupt

            progress = stop
        real(task, setup, directory, seed, progress)

    monkeypatch.setattr(training, "_train", interrupted)
    stopped = run("mnist", "-o", str(tmp_path), "--preset", "tiny")
    assert stopped.exit_code == 130
    assert stopped.stderr.splitlines()[-1] == (
        "interrupted; what was trained is kept; the same command goes on from there"
    )
    assert not list(tmp_path.rglob("mnist.*"))
    weights = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    done = run("mnist", "-o", str(tmp_path), "--preset", "tiny")
    assert done.exit_code == 0, done.output
    again = {path for path, time in weights.items() if not path.exists() or path.stat().st_mtime_ns != time}
    assert {(path.parent.name, path.name) for path in again} == {(trained[2], "step-10.safetensors")}
    assert not any(path.exists() for path in again), "the run that was cut short was begun again"
    assert len(trained) == 3 * TINY.mnist.seeds + 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["means"], "experiment: got 'means'; accepted: mean, mnist, cifar10,"),
        (["mean", "--preset", "large"], "preset: got 'large'; accepted: paper, medium, small"),
        (["mean", "--seed", "-1"], "seed: got -1; accepted: an integer from 0 to 4294967295"),
        (["mnist", "--data", "nowhere"], "data: got 'nowhere'; accepted: a folder that exists"),
        (["mean", "--redraw", "-o", "nowhere"], "results: got"),
        (["mean", "--only", "mnist"], "experiment: got 'mean'; accepted: with --only mnist: mnist, checkpoints,"),
        (["all", "--only", "imagenet"], "only: got 'imagenet'; accepted: mnist, cifar10"),
        (["all", "--only", "mnist", "--redraw"], "only: got 'mnist'; accepted: no --only with --redraw"),
        (["ladder", "--preset", "paper"], "about 49 hours a repetition on two cores, 3 repetitions, in ladder;"),
    ],
)
def test_wrong_input_is_refused_in_one_line(
    arguments: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert told in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_only_one_data_set_is_asked_for_and_none_of_the_other_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unwanted(_: object) -> Images:
        raise AssertionError("CIFAR-10 was read")

    monkeypatch.setattr(TinyImages, "cifar10", unwanted)
    result = run("checkpoints", "--only", "mnist", "-o", str(tmp_path), "--preset", "tiny")
    assert result.exit_code == 0, result.output
    found = Results.read(tmp_path / "reproduction" / "checkpoints" / "checkpoints.json")
    assert list(found.numbers["tasks"]) == ["mnist", "mnist-steps"]
    assert "cifar10" not in found.settings
    assert "CIFAR-10" not in (tmp_path / "reproduction" / "checkpoints" / "checkpoints.md").read_text()


def test_the_papers_size_without_a_gpu_is_begun_only_if_somebody_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    paper = presets.PRESETS["paper"]
    told = days_of_training(["cifar10"], paper)
    assert told is not None
    assert told.startswith("No GPU was found. CIFAR-10 at the paper's size takes about 49 hours")
    assert days_of_training(["mnist"], paper) is None
    assert days_of_training(["ladder"], paper, "mnist") is None
    assert days_of_training(["cifar10"], presets.PRESETS["medium"]) is None
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert days_of_training(["cifar10"], paper) is None


@pytest.mark.parametrize(("answer", "begun"), [("y", True), ("n", False)])
def test_somebody_at_a_terminal_is_asked_before_days_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, begun: bool
) -> None:
    asked, ran = list[str](), list[str]()
    monkeypatch.setattr("reproduction.__main__._at_a_terminal", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda question, **_: asked.append(question) or answer == "y")
    monkeypatch.setattr("reproduction.run_experiments.run", lambda names, *_, **__: ran.extend(names) or iter(()))
    result = run("cifar10", "--preset", "paper", "-o", str(tmp_path))
    assert "49 hours" in asked[0]
    assert ran == (["cifar10"] if begun else [])
    assert result.exit_code == (0 if begun else 2)
    assert run("cifar10", "--preset", "paper", "--yes", "-o", str(tmp_path)).exit_code == 0
    assert len(asked) == 1, "with --yes nobody is asked"


def test_a_larger_preset_stands_beside_the_usual_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("small", "medium"):
        monkeypatch.setitem(presets.PRESETS, name, replace(TINY, name=name))
    for preset in ("small", "medium"):
        assert run("cifar10", "-o", str(tmp_path), "--preset", preset).exit_code == 0
    folders = {path.parent.name for path in tmp_path.rglob("cifar10*.json")}
    assert folders == {"cifar10", "cifar10-medium"}
    text = (tmp_path / "reproduction.md").read_text()
    assert "## CIFAR-10: fine-tuning a pretrained ResNet18\n" in text
    assert "## CIFAR-10: fine-tuning a pretrained ResNet18, preset medium\n" in text
    assert "[cifar10-medium](reproduction/cifar10-medium/cifar10-medium.md)" in text
    before = {path: path.read_bytes() for path in tmp_path.rglob("cifar10*") if path.suffix in (".md", ".html")}
    for path in before:
        path.unlink()
    assert run("cifar10", "-o", str(tmp_path), "--redraw").exit_code == 0
    assert {path: path.read_bytes() for path in before} == before


def test_results_of_another_version_are_left_out_of_the_page_and_refused_when_drawn_again(tmp_path: Path) -> None:
    for name in ("mnist", "composition"):
        folder = tmp_path / "reproduction" / name
        folder.mkdir(parents=True)
        committed = Path(__file__).parents[2] / "docs" / "reproduction" / name / f"{name}.json"
        document = json.loads(committed.read_text())
        if name == "mnist":
            del document["numbers"]["best"]["in_sample"]
        (folder / f"{name}.json").write_text(json.dumps(document))
    assert run("composition", "-o", str(tmp_path), "--redraw").exit_code == 0
    assert "## MNIST" not in (tmp_path / "reproduction.md").read_text()
    result = run("mnist", "-o", str(tmp_path), "--redraw")
    assert result.exit_code == 2
    assert "mnist, of another version (it has no 'in_sample'); accepted: run the experiment again" in result.stderr


def test_long_cells_are_cut_at_the_end_of_a_sentence() -> None:
    cut = pages._shortened(f"{'a' * 100}. {'b' * 100}; {'c' * 200}.", "there.md")
    assert cut == f"{'a' * 100}. [more](there.md)"
    assert (
        pages._shortened(f"{'a' * 100}; {'b' * 100}; {'c' * 200}.", "x.md")
        == f"{'a' * 100}; {'b' * 100} … [more](x.md)"
    )
    assert pages._shortened("a" * 299, "x.md") == "a" * 299


def test_an_output_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    result = run("mean", "-o", str(tmp_path / "taken"), "--preset", "tiny")
    assert result.exit_code == 2
    assert "output: got" in result.stderr
    assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.parametrize("content", ["", "[]", '{"schema": "dpmerge/reproduction/v1"}', '{"schema": "other"}'])
def test_results_of_another_kind_are_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "reproduction" / "mean" / "mean.json"
    file.parent.mkdir(parents=True)
    file.write_text(content)
    result = run("mean", "-o", str(tmp_path), "--redraw")
    assert result.exit_code == 2
    assert "mean.json" in result.stderr


def test_a_second_reproduction_in_the_same_folder_at_once_is_refused(tmp_path: Path) -> None:
    runs = tmp_path / "reproduction" / "runs"
    runs.mkdir(parents=True)
    with (runs / ".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        result = run("composition", "-o", str(tmp_path), "--preset", "tiny")
    assert result.exit_code == 2
    assert "accepted: a folder that no other `python -m reproduction` is at work in" in result.stderr
    assert [path.name for path in runs.parent.iterdir()] == ["runs"]


@pytest.mark.parametrize("missing", ["matplotlib"])
def test_a_missing_extra_is_refused_before_anything_is_measured(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    result = run("mnist", "-o", str(tmp_path), "--preset", "tiny")
    assert result.exit_code == 2
    assert f"got no {missing}; accepted: the extras torch and report" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_damaged_weights_say_what_to_delete(store: RunStore, tmp_path: Path) -> None:
    other = RunStore(tmp_path, TINY, TinyImages())
    setup = {"run": training.Setup(clip_norm=2.0, noise_multiplier=1.0, rates=(1.0, 1.0))}
    [run_] = other.portfolio(store.mnist, "damaged", setup).runs
    [weights] = run_.folder.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(CheckpointError) as told:
        other.portfolio(store.mnist, "damaged", setup)
    [note] = told.value.__notes__
    assert note == f"delete {run_.folder.parents[1]} to train these runs again"


def test_runs_on_other_data_are_kept_in_other_folders(store: RunStore, tmp_path: Path) -> None:
    class Reversed(TinyImages):
        def mnist(self) -> Images:
            images = super().mnist()
            return images._replace(train=images.train[::-1].copy())

    setup = {"run": training.Setup(clip_norm=2.0, noise_multiplier=1.0, rates=(1.0,))}
    homes = [RunStore(tmp_path, TINY, source()).portfolio for source in (TinyImages, Reversed)]
    tasks = [store.mnist, RunStore(tmp_path, TINY, Reversed()).mnist]
    folders = {home(task, "same", setup).runs[0].folder for home, task in zip(homes, tasks, strict=True)}
    assert len(folders) == 2


def test_runs_that_other_processes_train_are_the_same(tmp_path: Path) -> None:
    """The files of each checkpoint, byte for byte."""
    setup = training.Setup(clip_norm=1.0, noise_multiplier=2.0, rates=(0.5, 0.25))
    setups = {"one": setup, "two": replace(setup, clip_norm=2.0)}
    told: list[str] = []
    with open_executor("processes:2") as processes:
        here = RunStore(tmp_path / "here", TINY, TinyImages())
        away = RunStore(tmp_path / "away", TINY, TinyImages(), tell=told.append, executor=processes)
        for data in ("mnist", "cifar10"):
            found = [store.portfolio(store.task(data), "some", setups) for store in (here, away)]
            for one, other in zip(*(portfolio.checkpoints() for portfolio in found), strict=True):
                assert one.file_digests == other.file_digests
    assert [line.split(" trained in ")[0] for line in told if "trained in" in line] == [
        "some: one, repetition 1,",
        "some: two, repetition 1,",
    ] * 2
