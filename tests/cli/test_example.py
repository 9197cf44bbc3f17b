"""`dpmerge example`: a portfolio in one command, whole or not at all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dpmerge import Portfolio, examples
from dpmerge.cli import app
from dpmerge.errors import CannotWriteError, InvalidInputError
from dpmerge.examples import write_example

REPOSITORY = Path(__file__).parents[2] / "examples"


def ran(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "80", "DPMERGE_LEDGER": None})


def test_the_example_is_the_repositorys_ladder_byte_for_byte(tmp_path: Path) -> None:
    runs = write_example("mnist", tmp_path / "models")
    written = {file.relative_to(tmp_path / "models"): file for file in (tmp_path / "models").rglob("*.*")}
    kept = {file.relative_to(REPOSITORY / "mnist") for run in runs for file in (REPOSITORY / "mnist" / run).iterdir()}
    assert set(written) == kept
    assert all(file.read_bytes() == (REPOSITORY / "mnist" / name).read_bytes() for name, file in written.items())
    assert [run.id for run in Portfolio.load(tmp_path / "models").runs] == list(runs)


def test_the_command_that_example_suggests_makes_a_plan(tmp_path: Path) -> None:
    result = ran("example", "mnist", "-o", tmp_path / "x")
    assert result.exit_code == 0, result.output
    [suggested] = [line for line in result.stdout.splitlines() if line.startswith("Next: dpmerge ")]
    assert ran(*suggested.removeprefix("Next: dpmerge ").split()).exit_code == 0


def test_the_json_of_example_names_the_runs(tmp_path: Path) -> None:
    result = ran("example", "mnist", "-o", tmp_path / "x", "--json")
    assert json.loads(result.stdout) == {
        "example": "mnist", "output": str(tmp_path / "x"), "runs": [f"ladder-{n}" for n in range(1, 9)],
    }  # fmt: skip


def test_an_empty_folder_is_filled_and_a_full_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    assert ran("example", "mnist", "-o", tmp_path / "x").exit_code == 0
    (tmp_path / "y").mkdir()
    (tmp_path / "y" / "mine").write_text("kept")
    with pytest.raises(CannotWriteError, match="is not empty; name another"):
        write_example("mnist", tmp_path / "y")
    result = ran("example", "mnist", "-o", tmp_path / "y")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.parent == tmp_path / "y") == ["mine"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "y"]


def test_an_unknown_example_is_refused_with_the_names_there_are(tmp_path: Path) -> None:
    result = ran("example", "cifar", "-o", tmp_path / "x")
    assert result.exit_code == 2
    assert result.stderr == "error: example: got 'cifar'; accepted: mnist\n"
    assert list(tmp_path.iterdir()) == []


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []

    def full_disk(source: Path, target: Path) -> None:
        if len(done) == 3:
            raise OSError(28, "No space left on device")
        done.append(copyfile(source, target))

    copyfile = shutil.copyfile
    monkeypatch.setattr(shutil, "copyfile", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_example("mnist", tmp_path / "x")
    assert len(done) == 3
    assert list(tmp_path.iterdir()) == []


def test_an_installation_without_its_data_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "_HOMES", (tmp_path / "data",))
    with pytest.raises(InvalidInputError, match="install dpmerge again"):
        write_example("mnist", tmp_path / "x")
    assert list(tmp_path.iterdir()) == []
