"""The report in a terminal: it fits, it says the same, and it draws what is proved."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from dpmerge.planning.analysis import BANNER, Analysis
from dpmerge.report.plain import METHODS, print_analysis
from report.analyses import ALL, bare, hostile, losses, ordinary

MODEL = "◆"


def printed(analysis: Analysis, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    print_analysis(analysis, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def plot(text: str) -> list[str]:
    return [line for line in text.splitlines() if "│" in line or "┤" in line]


@pytest.mark.parametrize("analysis", ALL)
@pytest.mark.parametrize("width", [80, 120, 200])
def test_every_line_of_a_printed_analysis_fits_its_width(analysis: Callable[[], Analysis], width: int) -> None:
    assert max(cell_len(line) for line in printed(analysis(), width).splitlines()) <= width


def test_a_printed_analysis_has_banner_title_caveats_and_models() -> None:
    text = printed(ordinary())
    words = " ".join(text.split())
    for said in (BANNER, ordinary().title, ordinary().subtitle, *ordinary().caveats, "not drawn", "joint_release"):
        assert said in words
    for model in ordinary().models:
        assert model.name in text
    assert "\x1b" not in text


def test_a_printed_epsilon_is_rounded_up() -> None:
    plans = (replace(ordinary().recommendations[0], epsilon=0.31550001),)
    assert "0.3156" in printed(replace(ordinary(), recommendations=plans))


@pytest.mark.parametrize("analysis", [ordinary, hostile, losses, bare])
def test_the_printed_plot_is_small_and_has_one_letter_for_each_method(analysis: Callable[[], Analysis]) -> None:
    lines = plot(printed(analysis()))
    assert 5 < len(lines) <= 17
    drawn = set("".join(line.split("│")[-1].split("┤")[-1] for line in lines)) - {" "}
    assert {MODEL, "s", "c"} <= drawn <= {MODEL, *(letter for letter, _ in METHODS.values())}


def test_curves_that_are_not_proved_are_not_drawn_in_the_printed_plot() -> None:
    curves = tuple(replace(curve, proved=False) for curve in ordinary().curves)
    drawn = "".join(line.split("│")[-1].split("┤")[-1] for line in plot(printed(replace(ordinary(), curves=curves))))
    assert set(drawn) == {" ", MODEL}


def test_a_utility_that_falls_as_epsilon_grows_is_said_in_a_terminal() -> None:
    first, *others = ordinary().recommendations
    fallen = replace(ordinary(), recommendations=(replace(first, utility=2.0), *others))
    assert "More ε does not always help here" in " ".join(printed(fallen).split())
    assert "More ε does not always help here" not in " ".join(printed(ordinary()).split())


def test_an_analysis_of_nothing_prints() -> None:
    empty = replace(bare(), models=(), curves=())
    assert "No plan was found" in printed(empty)
    flat = replace(bare(), models=(replace(ordinary().models[0], utility=0.0),), curves=())
    assert MODEL in printed(flat)
    single = replace(ordinary().edges[0], weights=np.zeros(0), lines=(), theorems=())
    assert "share 0" in printed(replace(bare(), edges=(single,)))


def test_control_characters_in_names_are_printed_escaped() -> None:
    text = printed(hostile())
    assert "\u202e" not in text
    assert "\\u202e" in text
