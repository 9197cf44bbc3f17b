"""`make bench` says what got worse."""

from __future__ import annotations

from pathlib import Path

from benchmarks.ratios import RATIOS, TOLERANCE, committed, compare, write


def test_a_ratio_that_fell_by_more_than_the_tolerance_is_reported_as_worse() -> None:
    before = {"planning": {"heatmap": 100.0, "scores": 10.0}}
    fell = 100 * (1 - TOLERANCE)
    assert compare({"planning": {"heatmap": fell + 1, "scores": 12.0}}, before) == ([], [])
    worse, silent = compare({"planning": {"heatmap": fell - 1, "scores": 10.0}}, before)
    assert worse == ["worse: planning: heatmap: 69 times the peer, 100 before"]
    assert silent == []


def test_a_ratio_that_was_never_committed_is_reported() -> None:
    assert compare({"new": {"x": 1.0}}, {"old": {"x": 2.0}}) == ([], ["new: x"])


def test_sections_that_were_not_measured_keep_their_ratios(tmp_path: Path) -> None:
    file = tmp_path / "ratios.json"
    write({"a": {"x": 1.23456}, "b": {"y": 2.0}, "c": {}}, load=0.5, file=file)
    write({"b": {"y": 3.0}}, load=0.5, file=file)
    assert committed(file) == {"a": {"x": 1.23}, "b": {"y": 3.0}}


def test_every_committed_ratio_is_positive() -> None:
    assert RATIOS.exists()
    assert all(ratio > 0 for ratios in committed().values() for ratio in ratios.values())
