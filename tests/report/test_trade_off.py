"""True against false alarms: what a claim allows, and how it is drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from dpmerge.accounting import GaussianProfile
from dpmerge.auditing.findings import Claim, Estimate, Finding, Roc
from dpmerge.errors import InvalidInputError
from dpmerge.report.trade_off import allowed_rates, claimed_rates, roc_plot, roc_rows, write_roc

FALSE = np.geomspace(1e-4, 1, 40)


def finding(mu: float = 1.0, claimed: float = 1.0, **changes: object) -> Finding:
    roc = Roc(FALSE, norm.sf(norm.isf(FALSE) - mu))
    estimate = Estimate(
        quantity="epsilon", bound=4.0, given=1e-5, estimator="gaussian", trials=1000, confidence=0.95, roc=roc
    )
    profile = GaussianProfile(claimed)
    claim = Claim(by="joint_release", value=profile.epsilon(1e-5), proved=True, mu=claimed, deltas=profile.delta)
    return Finding(subject="a release", claim=replace(claim, **changes), estimate=estimate)  # type: ignore[arg-type]


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
def test_the_line_of_a_gaussian_claim_is_its_trade_off_curve(mu: float) -> None:
    """Neyman and Pearson: no test of N(0, 1) against N(μ, 1) has more true alarms than Φ(μ − Φ⁻¹(1 − f))."""
    line = claimed_rates(finding(claimed=mu), FALSE)
    truth = norm.sf(norm.isf(FALSE) - mu)
    assert line is not None
    assert np.all(line >= truth - 1e-9)
    assert np.allclose(line, truth, atol=0.02)


def test_the_line_of_one_pair_is_that_of_randomised_response() -> None:
    line = allowed_rates(lambda _: 0.0, [np.log(3)], np.array([0.0, 0.25, 0.5, 1.0]))
    assert line == pytest.approx([0.0, 0.75, 1 - 0.5 / 3, 1.0])


def test_a_claim_without_a_profile_is_drawn_by_its_one_pair() -> None:
    line = claimed_rates(finding(deltas=None, value=np.log(3.0)), np.array([0.25]))
    assert line == pytest.approx([0.75 + 1e-5], abs=2e-5)


def test_a_claim_that_promises_nothing_has_no_line() -> None:
    assert claimed_rates(finding(value=None), FALSE) is None
    assert claimed_rates(finding(value=np.inf), FALSE) is None
    assert [series.name for series in roc_plot([finding(value=None)], "x").series] == ["the attack"]


def test_a_violating_attack_is_drawn_above_the_line_of_its_claim() -> None:
    seen = finding(mu=3.0, claimed=1.0)
    attack, line = roc_plot([seen], "x").series
    assert np.interp(0.01, attack.x, attack.y) > np.interp(0.01, line.x, line.y) + 0.3
    rows = list(roc_rows(seen))
    middle = [row[8 + 20 :][:1] for row in rows[:13]]
    assert middle.index("●") < middle.index("·")


def test_the_line_of_a_claim_that_is_not_proved_is_dashed() -> None:
    assert [series.dashed for series in roc_plot([finding(), finding(proved=False)], "x").series] == [
        False,
        False,
        True,
    ]


def test_the_printed_trade_off_fits_80_columns() -> None:
    rows = list(roc_rows(finding()))
    assert max(map(len, rows)) <= 80
    assert rows[0].startswith("     1 ┤")
    assert "0.001" in rows[-3]
    assert rows[-1].strip() == "● true alarms   · the most that joint release allows"


def test_the_picture_of_a_trade_off_is_written_as_png(tmp_path: Path) -> None:
    file = write_roc([finding(), finding(proved=False)], tmp_path / "roc.png")
    assert file == tmp_path / "roc.png"
    assert file.read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="ends in .png"):
        write_roc([finding()], tmp_path / "roc.gif")


def test_an_infinite_epsilon_in_reach_is_drawn_without_a_warning() -> None:
    assert allowed_rates(lambda _: 0.0, [2000.0], np.array([1e-6])) == pytest.approx([1.0])
