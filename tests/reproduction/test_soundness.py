"""Four theorems on the same averages: numbers against the oracles, and an attack that proves no more than is true."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from dpmerge.auditing.thresholds import fixed_threshold
from dpmerge.report.plots import Panels, values
from oracle import affine_chains, gaussian_mp, hidden_state_taut, logistic_steps
from reproduction import soundness
from reproduction.presets import DELTA
from reproduction.run_store import RunStore
from reproduction.scenarios.counterexamples import revealing
from reproduction.statements import CONFIDENCE, Statement
from reproduction.training import warm_up_and_decay
from tiny_experiments import roundtrip

Numbers = dict[str, Any]


@pytest.fixture(scope="module")
def numbers(store: RunStore) -> Numbers:
    return roundtrip(soundness.measure(store))


def theorem(edge: Numbers, name: str, *, noisy: bool = False) -> Numbers:
    [found] = [of for of in edge["theorems"] if of["theorem"] == name and bool(of["release_noise"]) == noisy]
    return found


def statement(numbers: Numbers, part: str) -> Statement:
    [found] = [s for s in soundness.statements(numbers) if part in s.claim]
    return found


def test_the_figures_of_the_paper_schedule_are_those_of_the_theory(numbers: Numbers) -> None:
    found = numbers["schedule"]
    assert found["hidden_state"] == pytest.approx(0.945, abs=5e-4)
    assert found["hidden_state with release noise"] == pytest.approx(0.427, abs=5e-4)
    assert found["merged_trajectory"] == pytest.approx(0.519, abs=5e-4)
    assert found["joint_release"] == pytest.approx(1.18, abs=5e-3)
    rates = warm_up_and_decay(4.0, 20)
    shifts, noises = [[2 * r for r in rates]] * 2, [[s * r for r in rates] for s in (64.0, 32.0)]
    for tau, key in ((0.0, "hidden_state"), (256.0, "hidden_state with release noise")):
        mu = hidden_state_taut.exact_mu(shifts, noises, [[1.0] * 20] * 2, [0.95, 0.05], tau)
        assert found[key] == pytest.approx(float(gaussian_mp.epsilon(mu, DELTA)), rel=1e-8)
    words = statement(numbers, "release noise").measured
    assert all(figure in words for figure in ("0.945", "0.427", "0.519", "1.184"))


def test_logistic_regression_costs_more_than_merged_trajectory_claims(numbers: Numbers) -> None:
    found = numbers["logistic"]
    for key, total in (("true", False), ("true, total clipped", True)):
        laws = logistic_steps.flipped_label(301, (10.0, 0.5), total=total)
        assert found[key] == pytest.approx(logistic_steps.epsilon(*laws, DELTA), abs=5e-4)
    said = statement(numbers, "logistic regressions")
    assert said.verdict == "disagrees"
    assert all(figure in said.measured for figure in ("1.19", "3.86", "0.50", "24.47", "39.45"))
    other = copy.deepcopy(numbers)
    other["logistic"]["true"] = 1.0
    assert statement(other, "logistic regressions").verdict == "agrees"


def test_the_contracting_counterexample_costs_more_than_merged_trajectory_claims(numbers: Numbers) -> None:
    mus, example = numbers["contraction"]["mus"], affine_chains.unequal_contractions()
    assert mus["true"] == pytest.approx(example.truth, rel=1e-9)
    assert mus["merged_trajectory"] == pytest.approx(example.merged_trajectory, rel=1e-9)
    assert mus["joint_release"] == pytest.approx(example.joint_release, rel=1e-9)
    assert [round(mus[name], 2) for name in ("true", "merged_trajectory", "joint_release")] == [4.40, 1.99, 10.05]
    assert mus["merged_trajectory"] < mus["true"] < mus["hidden_state"] < mus["last_step"] < mus["joint_release"]
    found = statement(numbers, "two linear runs")
    assert found.verdict == "disagrees"
    assert "all above the truth" in found.measured
    other = copy.deepcopy(numbers)
    other["contraction"]["mus"]["merged_trajectory"] = 5.0
    other["contraction"]["mus"]["hidden_state"] = 4.0
    assert statement(other, "two linear runs").verdict == "agrees"
    assert "not all above the truth" in statement(other, "two linear runs").measured


def test_the_revealing_counterexample_shows_more_than_merged_trajectory_claims(numbers: Numbers) -> None:
    found = numbers["revealed"]
    assert found["epsilons"]["merged_trajectory"] == pytest.approx(3.32, abs=5e-3)
    assert found["epsilons"]["last_step"] == pytest.approx(24.95, abs=5e-3)
    assert found["epsilons"]["joint_release"] == pytest.approx(39.8, abs=5e-2)
    # What the first step alone reveals, both hidden values seen exactly, bounds any attack from above.
    truth = gaussian_mp.epsilon(((2 / 4) ** 2 + (2 / 0.5) ** 2) ** 0.5, DELTA)
    assert found["epsilons"]["merged_trajectory"] < found["shown"] < float(truth)
    assert statement(numbers, "smooth losses").verdict == "disagrees"
    other = copy.deepcopy(numbers)
    other["revealed"]["shown"] = 3.0
    assert statement(other, "smooth losses").verdict == "agrees"


def least_epsilon(present: np.ndarray, absent: np.ndarray, threshold: float) -> float:
    return fixed_threshold(absent, present, threshold, delta=DELTA, confidence=CONFIDENCE)


def test_an_attack_proves_no_more_than_is_true() -> None:
    rng = np.random.default_rng(5)
    for mu in (0.5, 2.0, 4.0):
        truth = float(gaussian_mp.epsilon(mu, DELTA))
        present, absent = rng.normal(mu, 1, size=50_000), rng.normal(0, 1, size=50_000)
        shown = [least_epsilon(present, absent, t) for t in np.linspace(-1, 5, 25)]
        assert 0 < max(shown) <= truth
    assert least_epsilon(np.zeros(100), np.zeros(100), 1.0) == 0
    assert least_epsilon(np.ones(100), np.ones(100), 0.0) < 0.05


def test_the_attack_sees_both_hidden_models() -> None:
    """Its evidence is that of two Gaussian views of the record, 2/σ₁ and 2/σ₂, up to the ambiguity of a mirror."""
    attack = revealing(np.array([0.9, 0.1]), np.array([4.0, 0.5]))
    plus, minus = (attack.play(np.random.default_rng(1), 20_000, present).scores for present in (True, False))
    mu = float(np.hypot(2 / 4, 2 / 0.5))
    ideal = np.mean(np.random.default_rng(2).normal(mu / 2, 1, 20_000) > 0)
    assert (np.mean(plus > 0) + np.mean(minus < 0)) / 2 == pytest.approx(ideal, abs=0.12)
    assert np.mean(plus > 0) > 0.85
    assert (plus.mean() + minus.mean()) == pytest.approx(0, abs=0.5)


def test_every_theorem_on_the_edges_of_mnist_has_its_closed_form_or_its_failing_premise(numbers: Numbers) -> None:
    settings = {"c2-s32": (2.0, 2.0), "c4-s32": (4.0, 2.0), "c2-s64": (2.0, 4.0)}  # clip norm and noise at this scale
    edges = numbers["mnist"]["edges"]
    assert [edge["models"] for edge in edges] == [["c2-s32", "c4-s32"], ["c2-s32", "c2-s64"], ["c4-s32", "c2-s64"]]
    for edge in edges:
        (c1, s1), (c2, s2) = (settings[name] for name in edge["models"])
        shares = values(edge["shares"])
        merged, joint = (values(theorem(edge, name)["epsilons"]) for name in ("merged_trajectory", "joint_release"))
        last = values(theorem(edge, "last_step")["epsilons"])
        for place in (1, 10, 19):
            w1, w2 = 1 - shares[place], shares[place]
            step = 2 * (w1 * c1 + w2 * c2) / np.hypot(w1 * s1 * c1, w2 * s2 * c2)
            each = np.hypot(2 / s1, 2 / s2)
            for found, mu in (
                (merged, np.sqrt(20) * step),
                (joint, np.sqrt(20) * each),
                (last, np.sqrt(19 * each**2 + step**2)),
            ):
                assert found[place] == pytest.approx(float(gaussian_mp.epsilon(float(mu), DELTA)), rel=1e-8)
        assert edge["named"]["weights of least noise"] == pytest.approx(
            (s1 * c1) ** 2 / ((s1 * c1) ** 2 + (s2 * c2) ** 2)
        )
        assert not theorem(edge, "merged_trajectory")["proved"]
        assert theorem(edge, "merged_trajectory")["failing"] == ["update_bounded_for_any_two_hidden_states"]
        assert theorem(edge, "hidden_state")["failing"] == ["smoothness_known"]
        assert np.isnan(values(theorem(edge, "hidden_state")["epsilons"])).all()
        assert theorem(edge, "joint_release")["proved"]
        assert theorem(edge, "last_step")["proved"]


def test_mean_estimation_is_proved_by_merged_trajectory(numbers: Numbers) -> None:
    [edge] = numbers["mean"]["edges"]
    shares = values(edge["shares"])
    merged = values(theorem(edge, "merged_trajectory")["epsilons"])
    for place in (0, 7, 20):
        mu = 0.02 / np.hypot((1 - shares[place]) * 0.04, shares[place] * 0.12)
        assert merged[place] == pytest.approx(float(gaussian_mp.epsilon(float(mu), DELTA)), rel=1e-8)
    assert theorem(edge, "merged_trajectory")["proved"]
    found = statement(numbers, "mean of 100")
    assert found.verdict == "agrees"
    assert "1.000 to 1.000 over all weights" in found.measured


def test_hidden_state_proves_the_probe(numbers: Numbers) -> None:
    [edge] = numbers["probe"]["edges"]
    records, rates = 800, warm_up_and_decay(4.0, 20)
    clip = 1.4143
    noised = theorem(edge, "hidden_state", noisy=True)
    assert noised["release_noise"] == pytest.approx(4.0 / records * clip * 4.0, rel=1e-6)
    shifts = [[2 * clip * r / records for r in rates]] * 2
    noises = [[s * clip * r / records for r in rates] for s in (4.0, 2.0)]
    for of in (theorem(edge, "hidden_state"), noised):
        for place in (1, 10, 18):
            share = values(edge["shares"])[place]
            mu = hidden_state_taut.exact_mu(shifts, noises, [[1.0] * 20] * 2, [1 - share, share], of["release_noise"])
            assert of["epsilons"][place] == pytest.approx(float(gaussian_mp.epsilon(mu, DELTA)), rel=1e-6)
        assert of["proved"]
    found = statement(numbers, "softmax")
    assert found.verdict == "disagrees", "without release noise a proof costs more than is claimed"
    claimed = values(theorem(edge, "merged_trajectory")["epsilons"])[1:-1]
    factors = values(noised["epsilons"])[1:-1] / claimed
    equal = noised["at"]["equal weights"] / theorem(edge, "merged_trajectory")["at"]["equal weights"]
    assert f"With release noise: {equal:.3f} at equal weights" in found.measured
    assert f"{factors.min():.3f} to {factors.max():.3f} over all weights" in found.measured


def test_statements_say_what_fails_and_what_a_proof_costs(numbers: Numbers) -> None:
    found = statement(numbers, "MNIST, logistic")
    assert found.verdict == "disagrees"
    assert "Proved here: joint release, last step." in found.measured
    assert "even when the hidden models already differ" in found.why
    assert "how far one update can pull" in found.why
    edge = numbers["mnist"]["edges"][1]
    least = min(theorem(edge, name)["at"]["equal weights"] for name in ("joint_release", "last_step"))
    factor = least / theorem(edge, "merged_trajectory")["at"]["equal weights"]
    assert f"c2-s32 and c2-s64 {factor:.3f} at equal weights" in found.measured
    # At weights of least noise and equal clip norms nothing is lost by proving joint release (Cauchy and Schwarz).
    assert "1.000 at weights of least noise" in found.measured
    proved = copy.deepcopy(numbers)
    for edge in proved["mnist"]["edges"]:
        theorem(edge, "merged_trajectory").update(proved=True, failing=[])
    other = statement(proved, "MNIST, logistic")
    assert other.verdict == "agrees"
    assert "even when" not in other.why


def test_drawings_dash_what_is_not_proved(numbers: Numbers) -> None:
    [panels] = soundness.drawings(numbers)
    assert isinstance(panels, Panels)
    drawings = panels.plots
    assert [d.name for d in drawings] == [
        *(f"soundness-mnist-{k}" for k in (1, 2, 3)), "soundness-mean-1", "soundness-probe-1",
    ]  # fmt: skip
    for drawing in drawings:
        assert all(s.dashed == ("not proved" in s.name) for s in drawing.series)
        assert len({(s.colour, s.dashed, s.marks) for s in drawing.series}) == len(drawing.series)
        joint = drawing.series[0]  # both ends are one model alone, and cost less by far: no line goes there
        assert np.flatnonzero(np.isnan(joint.x)).tolist() == [1, joint.x.size - 2]
        assert joint.y[0] < 0.99 * joint.y[2]
    assert [len(d.series) for d in drawings] == [3, 3, 3, 3, 5]
    assert "Hidden state needs a bound on how far one update" in drawings[0].words
    assert drawings[0].words in panels.words
    assert not any(s.dashed for s in drawings[3].series)


def test_the_settings_of_soundness_hold_probe_and_mean(store: RunStore) -> None:
    found = soundness.settings(store)
    assert [run["noise_multiplier"] for run in found["probe"].values()] == [4.0, 2.0]
    assert found["mean"] == {"sensitivity": 0.02, "standard deviations": [0.04, 0.12]}
