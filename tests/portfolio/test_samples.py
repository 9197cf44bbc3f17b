"""Samples of tensors: the same places for everybody, as they lie in a file or in a model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from dpmerge.errors import ManifestError
from dpmerge.portfolio.manifest import Manifest
from dpmerge.portfolio.samples import MOST_IN_ALL, MOST_VALUES, StartSample, aligned, places, single, stride
from dpmerge.portfolio.tensors import read_contents, read_header
from dpmerge.portfolio.weight_similarity import AGREEMENT, agreement, distance, set_apart
from portfolio.portfolios import header_entry, manifest, safetensors_bytes


def test_sampled_places_are_pinned() -> None:
    """Samples of years apart are compared: these numbers are part of the format."""
    assert places(5).tolist() == [0, 1, 2, 3, 4]
    assert places(10_000)[[0, 1, 2, 500, 1023]].tolist() == [0, 15, 27, 4883, 9993]
    assert places(10**15)[-1] < 10**15


@pytest.mark.parametrize("count", [1, 1023, 1024, 1025, 4096, 10**6 + 7])
def test_sampled_places_are_spread_over_the_tensor(count: int) -> None:
    found = places(count)
    assert len(found) == min(count, MOST_VALUES)
    assert (np.diff(found) > 0).all()
    assert 0 <= found[0] <= found[-1] < count
    assert np.diff(found).max(initial=0) <= 2 * count / len(found) + 1


def test_samples_of_a_file_are_its_values_whatever_the_piece(tmp_path: Path) -> None:
    """A tensor of three pieces of 4 MB, one of half precision, one of whole numbers."""
    random = np.random.default_rng(0)
    made = {
        "large": random.standard_normal(2_500_001).astype(np.float32),
        "half": random.standard_normal((30, 50)).astype(np.float16),
        "double": random.standard_normal(20) * 1e300,
        "whole": np.arange(7),
        "empty": np.zeros((0, 3), np.float32),
    }
    file = tmp_path / "model.safetensors"
    save_file(made, file)
    found = read_contents(file, read_header(file)).samples
    assert set(found) == {"large", "half", "double"}
    for name, sample in found.items():
        assert sample.values.tolist() == single(made[name].reshape(-1)[places(made[name].size)]).tolist()


def test_samples_of_bfloat16_are_its_values(tmp_path: Path) -> None:
    words = np.array([0x3F80, 0xC020, 0x0000], "<u2")  # 1, -2.5, 0
    file = tmp_path / "model.safetensors"
    file.write_bytes(safetensors_bytes({"w": header_entry("BF16", [3], 0, 6)}, words.tobytes()))
    assert read_contents(file, read_header(file)).samples["w"].values.tolist() == [1.0, -2.5, 0.0]


def test_a_start_sample_survives_being_written() -> None:
    random = np.random.default_rng(0)
    values = {"a": random.standard_normal(1024), "b": random.standard_normal(3), "bad": np.array([1.0, np.nan])}
    kept = StartSample.of(values)
    assert (kept.every, set(kept.values)) == (1, {"a", "b"})
    assert kept.samples()["a"].values.tolist() == single(values["a"]).tolist()


def test_many_tensors_are_sampled_thinly_and_compare_with_others() -> None:
    full = {str(place): np.arange(1024.0) for place in range(100)}
    thin = StartSample.of(full)
    assert thin.every == stride([1024] * 100) == 4
    assert sum(len(sample.values) for sample in thin.samples().values()) <= MOST_IN_ALL
    whole = StartSample.of({"0": np.arange(1024.0)}).samples()["0"]
    both = aligned(thin.samples()["0"], whole)
    assert both is not None
    assert both[0].tolist() == both[1].tolist() == list(range(0, 1024, 4))
    assert aligned(whole, StartSample.of({"0": np.arange(3.0)}).samples()["0"]) is None
    assert stride([1024] * 10**6) == MOST_VALUES


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        ({"every": 3, "values": {}}, "start_sample.every: got 3"),
        ({"every": 2048, "values": {}}, "start_sample.every"),
        ({"every": 1, "values": {"w": "!"}}, "start_sample.values: w"),
        ({"every": 1, "values": {"w": "AAAA"}}, "start_sample.values: w"),
        ({"every": 1, "values": {"w": "AADAfw=="}}, "start_sample.values: w"),  # NaN
        ({"every": 1024, "values": {"w": "AACAPwAAgD8="}}, "start_sample.values: w"),  # two values where one could be
        ({"every": 1, "values": {"w": "A" * 10_000}}, "start_sample.values"),
        ({"every": 1}, "start_sample.values"),
    ],
)
def test_invalid_start_samples_are_refused(sample: dict[str, object], said: str) -> None:
    with pytest.raises(ManifestError, match=said):
        Manifest.parse(json.dumps(manifest(start_sample=sample)))


class TestNearness:
    def test_a_multiple_and_an_offset_are_taken_off(self) -> None:
        base = np.random.default_rng(0).standard_normal(500)
        assert not set_apart(3 * base, base).any()
        assert not set_apart(np.full(500, 2.0), np.zeros(500)).any()

    def test_agreement_of_empty_samples_is_not_suspicious(self) -> None:
        assert agreement(set_apart(np.zeros(0), np.zeros(0)), np.zeros(0)).suspicious is False

    def test_outliers_do_not_change_agreement_or_distance(self) -> None:
        start, moved, other = np.random.default_rng(0).standard_normal((3, 1024))
        start[:20] *= 1e6
        mine = start + 0.01 * moved
        mine[20:40] = 1e9
        found = agreement(set_apart(mine, start), set_apart(start + 0.01 * moved, start))
        assert found.share > 0.9
        assert not agreement(set_apart(mine, start), set_apart(start + 0.01 * other, start)).suspicious

    def test_the_threshold_is_2_4_times_the_movement(self) -> None:
        """(2/π)·asin(1/√(1 + 2.4²)) is a quarter."""
        assert 2 / np.pi * np.arcsin(1 / np.sqrt(1 + 2.4**2)) == pytest.approx(AGREEMENT, abs=0.003)
        start, moved, noise = np.random.default_rng(0).standard_normal((3, 100_000))
        share = agreement(set_apart(start + moved + 2.4 * noise, start), set_apart(start + moved, start)).share
        assert share == pytest.approx(AGREEMENT, abs=0.01)

    def test_opposite_movements_are_not_suspicious(self) -> None:
        start, moved = np.random.default_rng(0).standard_normal((2, 1024))
        assert not agreement(set_apart(start - moved, start), set_apart(start + moved, start)).suspicious

    def test_distance_ignores_scale_and_offset(self) -> None:
        weights, other, noise = np.random.default_rng(0).standard_normal((3, 1024))
        assert distance(0.5 * weights + 3, weights) < 1e-9
        assert distance(weights + 0.1 * noise, weights) == pytest.approx(0.1, abs=0.02)
        assert distance(other, weights) > 0.95
        assert distance(weights[:8], weights[:8]) == 1.0  # too few
        assert distance(weights[:0], weights[:0]) == 1.0
        assert distance(np.ones(1024), weights) == 1.0  # nothing sets them apart
