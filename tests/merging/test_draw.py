"""The draw of a random selection, by every number it can be given."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpmerge.errors import InvalidInputError
from dpmerge.merging.draw import draw
from dpmerge.terms.release_terms import UNITS, _require_units


@given(st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(any))
def test_each_index_is_drawn_by_as_many_numbers_as_it_has_units(units: list[int]) -> None:
    drawn = Counter(draw(units, below=lambda total, n=n: n) for n in range(sum(units)))
    assert drawn == {place: count for place, count in enumerate(units) if count}


def test_the_whole_range_is_asked_for() -> None:
    asked = []

    def below(total: int) -> int:
        asked.append(total)
        return total - 1

    assert draw([UNITS - 1, 1], below) == 1
    assert asked == [UNITS]


def test_draws_come_out_as_often_as_they_should() -> None:
    drawn = Counter(draw([1, 0, 3]) for _ in range(20_000))
    assert drawn[1] == 0
    assert abs(drawn[2] / 20_000 - 0.75) < 0.03  # ten standard errors


@pytest.mark.parametrize("units", [[], [0], [0, 0], [1, -1], [1, 0.5], [1, True], ["1"], [float("nan")]])
def test_units_that_are_refused(units: list[Any]) -> None:
    with pytest.raises(InvalidInputError, match="units"):
        draw(units)


def test_a_source_of_randomness_that_is_wrong_is_noticed() -> None:
    with pytest.raises(InvalidInputError, match="below"):
        draw([1, 2], below=lambda total: total)


@given(st.lists(st.integers(1, UNITS - 1), max_size=5, unique=True))
def test_units_and_probabilities_are_the_same(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), UNITS]
    units = [b - a for a, b in pairwise(edges)]
    probabilities = [unit / UNITS for unit in units]
    _require_units(probabilities, len(units))
    assert [int(probability * UNITS) for probability in probabilities] == units


NOT_PROBABILITIES = {
    "none": [],
    "thirds": [1 / 3, 1 / 3, 1 / 3],
    "a part of a part": [1 - 2.0**-53, 2.0**-54, 2.0**-54],
    "too much": [1.0, 2.0**-53],
    "too little": [0.5, 0.25],
}


@pytest.mark.parametrize("name", NOT_PROBABILITIES)
def test_probabilities_that_are_refused(name: str) -> None:
    with pytest.raises(InvalidInputError, match="probabilities"):
        _require_units(NOT_PROBABILITIES[name], len(NOT_PROBABILITIES[name]))
