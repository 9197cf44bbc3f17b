"""The audit of the paper's MNIST merge: its costs in closed form, its tests on Gaussian scores, its words."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import ndtr

from dpmerge.report.plots import Plot
from oracle import gaussian_mp
from reproduction import mnist_audit
from reproduction.presets import DELTA
from reproduction.run_store import RunStore
from tiny_experiments import roundtrip

Numbers = dict[str, Any]


@pytest.fixture(scope="module")
def numbers(store: RunStore) -> Numbers:
    return roundtrip(mnist_audit.measure(store))


def test_the_merge_is_claimed_at_0_926_and_certified_at_1_17() -> None:
    found = mnist_audit.costs((0.5, 0.5))
    step, last = 2 / np.hypot(16, 32), 2 * np.hypot(1 / 32, 1 / 64)
    for key, mu in (("claimed", np.sqrt(20) * step), ("certified", np.sqrt(19 * last**2 + step**2))):
        assert found[key]["mu"] == pytest.approx(float(mu), rel=1e-9)
        assert found[key]["epsilon"] == pytest.approx(float(gaussian_mp.epsilon(float(mu), DELTA)), rel=1e-8)
    assert f"{found['claimed']['epsilon']:.3f} {found['certified']['epsilon']:.2f}" == "0.926 1.17"
    assert found["certified"]["theorem"] == "last_step"


def test_the_best_direction_is_fishers() -> None:
    """Gaussian worlds with a known distance: it is found, and by no more than that."""
    generator = torch.Generator().manual_seed(5)
    mixing = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    shift = 0.3 * torch.randn(6, generator=generator, dtype=torch.float64)
    there, elsewhere = (torch.randn(40_000, 6, generator=generator, dtype=torch.float64) @ mixing for _ in range(2))
    truth = float(torch.linalg.solve(mixing.T, shift).norm())
    assert mnist_audit.crossed(there + shift, elsewhere) == pytest.approx(truth, abs=0.02)
    assert mnist_audit.crossed(there, elsewhere) < 0.03


def test_worlds_differ_in_one_label() -> None:
    for records, walls in mnist_audit.DATA_SETS.values():
        one, other = mnist_audit.worlds(walls, records)
        assert one.records == other.records == records
        assert np.abs(one.counts - other.counts).sum() == 2
        assert np.array_equal(one.images, other.images)


def test_what_a_single_record_shows_is_what_it_may(numbers: Numbers) -> None:
    """Nothing that is measured is above what is certified, by more than so few trials can be off."""
    certified = numbers["equal"]["certified"]
    for row in (*numbers["compared"], *numbers["real"]):
        assert row["mu"] < certified["mu"] + 0.05
        assert row["epsilon"] == pytest.approx(float(gaussian_mp.epsilon(row["mu"], DELTA)), rel=1e-6)
    assert len(numbers["real"]) == 4
    # Along the linear part merged_trajectory is a theorem, and stripes that no image has come to 2C in every step.
    rates = np.array(mnist_audit.RUNS["c2-s32"].rates)
    most = 2 * rates.sum() / (np.hypot(16, 32) * np.sqrt((rates**2).sum()))
    assert max(row["mu"] for row in numbers["real"]) == pytest.approx(most, rel=0.01)
    assert most < numbers["equal"]["claimed"]["mu"]


def test_counting_reads_an_advantage_as_the_least_gaussian_curve(numbers: Numbers) -> None:
    found = numbers["counted"]
    assert found["advantage claimed"] == pytest.approx(2 * ndtr(0.125) - 1, rel=1e-9)
    assert found["advantage"] == pytest.approx(2 * ndtr(found["mu"] / 2) - 1, rel=1e-9)
    assert 0 < found["advantage"] < 0.13
    assert 0 <= found["epsilon at delta"] < numbers["equal"]["certified"]["epsilon"]
    assert found["mu"] < found["estimated mu"]


def verdicts(numbers: Numbers) -> list[str]:
    return [statement.verdict for statement in mnist_audit.statements(numbers)]


def test_a_claim_is_called_broken_only_where_counting_shows_it(numbers: Numbers) -> None:
    other = copy.deepcopy(numbers)
    other["counted"] |= {"advantage": 0.09, "epsilon at delta": 0.5, "estimated epsilon": 1.1}
    assert verdicts(other)[:3] == ["within noise", "within noise", "agrees in part"]
    other["counted"]["advantage"] = 0.1005
    assert verdicts(other)[:2] == ["disagrees", "within noise"]
    assert "open at this point" in mnist_audit.statements(other)[1].why
    other["counted"]["epsilon at delta"] = 0.95
    other["real"][0]["mu"] = 0.26
    assert verdicts(other)[:3] == ["disagrees", "disagrees", "disagrees"]
    other["compared"][0]["epsilon"], other["compared"][4]["epsilon"] = 0.7, 0.95
    assert verdicts(other)[3] == "agrees"
    other["compared"][0]["epsilon"] = 0.94
    assert verdicts(other)[3] == "disagrees"
    words = mnist_audit.statements(other)[0].measured
    assert all(figure in words for figure in ("0.0995", "0.1005", "0.926", "1.172"))


def test_the_claim_alone_is_dashed(numbers: Numbers) -> None:
    [drawing] = mnist_audit.drawings(numbers)
    assert isinstance(drawing, Plot)
    assert [series.dashed for series in drawing.series] == [False, False, True]
    assert [len(series.x) for series in drawing.series] == [9, 9, 9]


def test_the_settings_of_the_audit_are_the_papers(store: RunStore) -> None:
    found = mnist_audit.settings(store)
    assert [(run["clip_norm"], run["noise_multiplier"], len(run["rates"])) for run in found["runs"].values()] == [
        (2.0, 32.0, 20),
        (2.0, 64.0, 20),
    ]
    assert found["data sets"]["faint, four gates"]["records"] == 60_000
