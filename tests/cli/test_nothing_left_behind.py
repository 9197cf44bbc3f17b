"""What a refused command leaves behind: no ledger that was not there, no file that was replaced by another kind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import dpmerge as dpm
from dpmerge.cli import app
from dpmerge.errors import InvalidInputError
from dpmerge.releasing.ledger_location import LEDGER_NAME

EXAMPLE = Path(__file__).parents[2] / "examples" / "mnist"
TARGET = ("--epsilon", "0.12", "--delta", "1e-5")


def ran(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "80", "DPMERGE_LEDGER": None})


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "mnist"))


@pytest.mark.parametrize(
    "options",
    [("-o", "{}/full"), ("-o", "{}/out", "--adapters", "foo"), ("-o", "{}/out", "--donor", "nobody")],
    ids=["an output that is there", "an unknown way of merging adapters", "an unknown donor"],
)
def test_a_merge_refused_before_its_charge_leaves_no_ledger(home: Path, options: tuple[str, ...]) -> None:
    (home.parent / "full").mkdir()
    (home.parent / "full" / "mine.txt").write_text("mine")
    result = ran("merge", home, *TARGET, *(each.replace("{}", str(home.parent)) for each in options))
    assert result.exit_code == 2, result.output
    assert not (home / LEDGER_NAME).exists()
    assert not (home.parent / "out").exists()


def test_a_merge_charged_to_another_ledger_than_before_does_not_make_one(home: Path) -> None:
    assert ran("merge", home, *TARGET, "-o", home.parent / "one").exit_code == 0
    result = ran("merge", home, *TARGET, "-o", home.parent / "two", "--ledger", home.parent / "other.sqlite")
    assert result.exit_code == 2
    assert "there is no ledger, and " in result.stderr
    assert not (home.parent / "other.sqlite").exists()


@pytest.mark.parametrize("verb", ["plan", "export"])
def test_a_document_replaces_one_of_its_kind_and_nothing_else(home: Path, verb: str) -> None:
    assert ran("merge", home, *TARGET, "-o", home.parent / "one").exit_code == 0
    command = ("plan", home, *TARGET) if verb == "plan" else ("ledger", "export", home)
    file = home.parent / "document.json"
    for _ in range(2):
        assert ran(*command, "-o", file).exit_code == 0
    for content in ("-----BEGIN PUBLIC KEY-----", json.dumps({"schema": "dpmerge/run/v1"}), "[]"):
        file.write_text(content)
        result = ran(*command, "-o", file)
        assert result.exit_code == 2
        assert "document.json is something else; name another file" in result.stderr
        assert file.read_text() == content


@pytest.mark.parametrize("verb", ["show", "spent", "verify", "export"])
def test_the_ledger_of_a_folder_that_is_not_there_is_not_called_empty(tmp_path: Path, verb: str) -> None:
    result = ran("ledger", verb, tmp_path / "nope")
    assert result.exit_code == 2
    assert "nope is not there; name a folder" in result.stderr
    assert "nothing has been released" not in result.output


@pytest.mark.parametrize("function", [dpm.prepare, dpm.frontier])
def test_a_path_where_a_portfolio_belongs_is_an_error_of_ours(function: object) -> None:
    with pytest.raises(InvalidInputError, match=r"portfolio: got .*; accepted: a Portfolio, as Portfolio.load"):
        function(str(EXAMPLE), delta=1e-5)  # type: ignore[operator]
