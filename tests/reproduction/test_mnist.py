"""Three models and all their mixtures: costs at fifty digits, frontiers by brute force, and verdicts that flip."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from dpmerge import Guarantee, Portfolio, plan
from dpmerge.accounting import DEFAULT_ORDERS
from dpmerge.planning.feasible_weights import lattice
from dpmerge.report.plots import Heatmaps, Panels, values
from oracle import gaussian_mp
from reproduction import mnist
from reproduction.pareto import ASSUMED_PLD, ASSUMED_RDP, PLANNED, PROVED, SELECT_PLD, SELECT_RDP
from reproduction.presets import DELTA
from reproduction.run_store import RunStore
from reproduction.statements import Statement
from tiny_experiments import roundtrip

Numbers = dict[str, Any]


@pytest.fixture(scope="module")
def numbers(store: RunStore) -> Numbers:
    return roundtrip(mnist.measure(store))


@pytest.fixture(scope="module")
def portfolios(store: RunStore, numbers: Numbers) -> list[Portfolio]:
    found = mnist.setups(store)
    return [store.portfolio(store.mnist, mnist.RUNS, found, repeat=k) for k in range(3)]


@pytest.fixture(scope="module")
def scores(store: RunStore, portfolios: list[Portfolio]) -> np.ndarray:
    """[repetition, half, row]: every average made and scored with nothing but numpy."""
    pixels = (store.images.mnist().test.astype(np.float32) / 255 - 0.1307) / 0.3081
    labels = store.images.mnist().test_labels
    rows = lattice(3, 10)
    found = []
    for portfolio in portfolios:
        tensors = [safetensors.numpy.load_file(run.checkpoints[-1].files[0]) for run in portfolio.runs]
        [weight] = [name for name in tensors[0] if tensors[0][name].ndim == 2]
        [bias] = [name for name in tensors[0] if tensors[0][name].ndim == 1]
        logits = np.array([pixels.astype(float) @ t[weight].T.astype(float) + t[bias] for t in tensors])
        right = np.einsum("rm,mic->ric", rows, logits).argmax(axis=2) == labels
        found.append([right[:, ::2].mean(axis=1), right[:, 1::2].mean(axis=1)])
    return np.array(found)


def verdict(numbers: Numbers, part: str) -> Statement:
    [found] = [s for s in mnist.statements(numbers) if part in s.claim]
    return found


def altered(numbers: Numbers) -> Numbers:
    return copy.deepcopy(numbers)


SIGMAS, CLIP_NORMS, STEPS = (2.0, 2.0, 4.0), (2.0, 4.0, 2.0), 20
MUS = [2 * STEPS**0.5 / sigma for sigma in SIGMAS]


def test_costs_of_the_models_are_the_closed_form(numbers: Numbers) -> None:
    for mu, pld, rdp in zip(MUS, numbers["model_epsilons"]["pld"], numbers["model_epsilons"]["rdp"], strict=True):
        assert pld == pytest.approx(float(gaussian_mp.epsilon(mu, DELTA)), rel=1e-9)
        assert rdp == pytest.approx(
            float(gaussian_mp.rdp_epsilon(mu, DELTA, DEFAULT_ORDERS.tolist(), "classic")), rel=1e-9
        )


def test_costs_of_mixtures_are_those_of_the_oracle(numbers: Numbers) -> None:
    rows, orders = lattice(3, 10), DEFAULT_ORDERS.tolist()
    found = {key: values(cost) for key, cost in numbers["epsilons"].items()}
    for place in (3, 17, 40, 65):
        row = rows[place]
        # Equal rates cancel: every step of the merged trajectory costs the same.
        moved = sum(w * 2 * c for w, c in zip(row, CLIP_NORMS, strict=True))
        noise = sum((w * s * c) ** 2 for w, s, c in zip(row, SIGMAS, CLIP_NORMS, strict=True)) ** 0.5
        mu = float(STEPS**0.5 * moved / noise)
        joint = float(np.sqrt(sum(m**2 for m, w in zip(MUS, row, strict=True) if w > 0)))
        expected = {
            SELECT_PLD: gaussian_mp.rs_epsilon(MUS, row.tolist(), DELTA),
            SELECT_RDP: gaussian_mp.rs_rdp_epsilon(MUS, row.tolist(), DELTA, orders, "classic"),
            ASSUMED_PLD: gaussian_mp.epsilon(mu, DELTA),
            ASSUMED_RDP: gaussian_mp.rdp_epsilon(mu, DELTA, orders, "classic"),
            PROVED: gaussian_mp.epsilon(joint, DELTA),
        }
        for key, cost in expected.items():
            assert found[key][place] == pytest.approx(float(cost), rel=1e-8), (key, place)


def test_accuracies_are_those_of_the_weights_on_disk(numbers: Numbers, scores: np.ndarray) -> None:
    rows = lattice(3, 10)
    corners = [int(np.flatnonzero(rows[:, model] == 1)[0]) for model in range(3)]
    assert values(numbers["accuracies"]).transpose(0, 2, 1) == pytest.approx(scores[:, :, corners])


@pytest.mark.parametrize("key", [SELECT_RDP, SELECT_PLD, ASSUMED_RDP, ASSUMED_PLD, PROVED])
def test_frontiers_are_the_best_within_each_target(numbers: Numbers, scores: np.ndarray, key: str) -> None:
    rows, costs, targets = lattice(3, 10), values(numbers["epsilons"][key]), values(numbers["targets"])
    if key in (SELECT_RDP, SELECT_PLD):
        scores = np.einsum("rhm,wm->rhw", values(numbers["accuracies"]).transpose(0, 2, 1), rows)
    for repeat, halves in enumerate(scores):
        for place in (0, 8, 25, 40, 59):
            within = np.flatnonzero(costs <= targets[place])
            seen = numbers["curves"][key]["in_sample"][repeat][place]
            held = numbers["curves"][key]["held_out"][repeat][place]
            if not within.size:
                assert np.isnan([seen, held]).all()
                continue
            assert seen == pytest.approx(halves.mean(axis=0)[within].max())
            # Of equally good choices any may have been taken: the held-out score is one of theirs.
            ways = []
            for chosen, measured in (halves, halves[::-1]):
                best = chosen[within].max()
                ways.append(measured[within][chosen[within] >= best - 1e-12])
            assert ways[0].min() / 2 + ways[1].min() / 2 - 1e-9 <= held <= ways[0].max() / 2 + ways[1].max() / 2 + 1e-9


def test_targets_reach_just_beyond_every_curve(numbers: Numbers) -> None:
    every = np.concatenate([values(cost) for cost in numbers["epsilons"].values()])
    targets = values(numbers["targets"])
    assert every.min() / 1.05 < targets[0] < every.min()
    assert every.max() < targets[-1] < every.max() * 1.05
    assert np.diff(np.log(targets)) == pytest.approx(np.log(targets[1] / targets[0]))


def test_the_planned_curve_is_what_the_planner_says(
    numbers: Numbers, portfolios: list[Portfolio], scores: np.ndarray
) -> None:
    targets = values(numbers["targets"])
    below = targets < min(numbers["model_epsilons"]["pld"])
    found = values(numbers["curves"][PLANNED]["held_out"])
    assert np.isnan(found[:, below]).all()
    assert np.isfinite(found[:, ~below]).all()
    made = plan(portfolios[0], Guarantee(epsilon=float(targets[30]), delta=DELTA), method="mix")
    assert made.proved
    assert made.charged
    assert made.guarantee.epsilon <= targets[30]
    singles = {f"{name}@20": place for place, name in enumerate(numbers["names"])}
    for repeat in range(3):
        expected = 0.0
        for probability, candidate in zip(made.probabilities, made.candidates, strict=True):
            assert candidate.recipe.is_one_checkpoint  # at this target no average is proved
            expected += probability * np.mean(numbers["accuracies"][repeat][singles[candidate.recipe.names[0]]])
        assert found[repeat, 30] == pytest.approx(expected)


def test_the_best_merge_is_chosen_on_the_other_half(numbers: Numbers, scores: np.ndarray) -> None:
    rows = lattice(3, 10)
    merged = rows.max(axis=1) < 1
    for repeat, halves in enumerate(scores):
        weights = values(numbers["best"]["weights"][repeat])
        places = [int(np.flatnonzero((rows == weights[half]).all(axis=1))[0]) for half in (0, 1)]
        for half in (0, 1):
            assert halves[half, places[half]] == pytest.approx(halves[half, merged].max())
        assert numbers["best"]["merge"][repeat] == pytest.approx((halves[1, places[0]] + halves[0, places[1]]) / 2)


def test_the_statement_that_pld_is_below_rdp_can_fail(numbers: Numbers) -> None:
    assert verdict(numbers, "by PLD is smaller").verdict == "agrees"
    other = altered(numbers)
    for key in (SELECT_PLD, ASSUMED_PLD):
        other["epsilons"][key] = [2 * cost for cost in other["epsilons"][key]]
    assert verdict(other, "by PLD is smaller").verdict == "disagrees"
    assert "0 of 132 mixtures" in verdict(other, "by PLD is smaller").measured
    other["epsilons"][SELECT_PLD] = numbers["epsilons"][SELECT_PLD]
    assert verdict(other, "by PLD is smaller").verdict == "agrees in part"


@pytest.mark.parametrize(
    ("key", "part"), [(ASSUMED_PLD, "(assumed, not proved here)"), (PROVED, "accounted for by joint release")]
)
def test_the_comparison_of_combination_and_selection_can_go_either_way(numbers: Numbers, key: str, part: str) -> None:
    base = values(numbers["curves"][SELECT_PLD]["held_out"])
    noise = 0.001 * np.array([[1], [-1], [0]])
    for gain, expected in ((0.02, "agrees"), (-0.02, "disagrees"), (0.0, "within noise")):
        other = altered(numbers)
        other["curves"][key]["held_out"] = (base + gain + noise).tolist()
        assert verdict(other, part).verdict == expected
    mixed = altered(numbers)
    gains = np.where(np.arange(60) < 30, 0.02, -0.02)
    mixed["curves"][key]["held_out"] = (base + gains + noise).tolist()
    found = verdict(mixed, part)
    reached = np.isfinite(base).all(axis=0) & (values(numbers["targets"]) <= max(numbers["epsilons"][key]) * 1.03)
    higher, lower = int(np.sum(reached & (gains > 0))), int(np.sum(reached & (gains < 0)))
    assert f"higher at {higher} of {higher + lower} targets, lower at {lower} and" in found.measured


def test_the_statement_that_frontiers_are_monotone_can_fail(numbers: Numbers) -> None:
    rising = np.linspace(0.5, 0.8, 60) + 0.001 * np.array([[1], [-1], [0]])
    other = altered(numbers)
    for curve in other["curves"].values():
        curve["held_out"] = rising.tolist()
    assert verdict(other, "monotone").verdict == "agrees"
    dented = rising.copy()
    dented[:, 30] -= 0.1
    other["curves"][PROVED]["held_out"] = dented.tolist()
    found = verdict(other, "monotone")
    assert found.verdict == "agrees in part"
    assert "1 are drops larger than noise, the deepest by 9.49 points" in found.measured
    for curve in other["curves"].values():
        curve["held_out"] = rising[:, ::-1].tolist()
    assert verdict(other, "monotone").verdict == "disagrees"
    for curve in other["curves"].values():
        curve["held_out"] = np.full((3, 60), 0.5).tolist()
    assert verdict(other, "monotone").verdict == "within noise"


def test_the_statement_that_a_merge_beats_its_models_can_go_either_way(numbers: Numbers) -> None:
    for gain, expected in ((0.05, "agrees"), (-0.05, "disagrees"), (0.0, "within noise")):
        other = altered(numbers)
        other["best"]["merge"] = [score + gain for score in other["best"]["model"]]
        found = verdict(other, "measured on the other")
        assert found.claim.startswith("A merged model")
        assert found.verdict == expected
        assert verdict(other, "the same images") == verdict(numbers, "the same images")
        other["best"]["in_sample"]["merge"] = [score + gain for score in other["best"]["in_sample"]["model"]]
        found = verdict(other, "the same images")
        assert found.verdict == expected
        assert f"ahead in {3 if gain > 0 else 0} of 3 repetitions" in found.measured
        assert "luck alone" in found.why


def test_the_best_merge_in_sample_is_the_best_of_all_on_all_images(numbers: Numbers, scores: np.ndarray) -> None:
    overall, merges = scores.mean(axis=1), lattice(3, 10).max(axis=1) < 1
    assert numbers["best"]["in_sample"]["merge"] == pytest.approx(overall[:, merges].max(axis=1), abs=1e-9)
    assert numbers["best"]["in_sample"]["model"] == pytest.approx(overall[:, ~merges].max(axis=1), abs=1e-9)


def test_statements_on_hyperparameters_and_flexibility_follow_the_epsilons(numbers: Numbers) -> None:
    found = verdict(numbers, "hyperparameter")
    accuracies = 100 * values(numbers["accuracies"]).mean(axis=(0, 2))
    for name, accuracy in zip(numbers["names"], accuracies, strict=True):
        assert f"{name}: ε " in found.measured
        assert f"accuracy {accuracy:.2f} ±" in found.measured
    other = altered(numbers)
    other["model_epsilons"]["pld"][1] *= 1.01
    assert verdict(other, "hyperparameter").verdict == "disagrees"
    fine = altered(numbers)
    ends = sorted(numbers["model_epsilons"]["pld"])
    for key in (SELECT_PLD, ASSUMED_PLD):
        fine["epsilons"][key] = np.geomspace(ends[0], ends[-1], 66).tolist()
    assert verdict(fine, "flexible").verdict == "agrees"
    fine["epsilons"][ASSUMED_PLD] = [ends[0], ends[-1]] * 33
    assert verdict(fine, "flexible").verdict == "agrees in part"
    fine["epsilons"][SELECT_PLD] = [20.0, 21.0] * 33
    assert verdict(fine, "flexible").verdict == "disagrees"


def test_the_drawings_of_mnist_show_what_was_measured(numbers: Numbers) -> None:
    heatmaps, frontiers = mnist.drawings(numbers)
    assert isinstance(heatmaps, Heatmaps)
    assert isinstance(frontiers, Panels)
    assert heatmaps.note == frontiers.note == "MNIST, logistic regression"
    panels = heatmaps.face.panels
    assert [(p.method, p.accounting, p.proved) for p in panels] == [
        ("select", "rdp", True),
        ("select", "pld", True),
        ("combine", "rdp", False),
        ("combine", "pld", False),
    ]
    for panel, kind in zip(panels, ("rdp", "pld", "rdp", "pld"), strict=True):
        corners = [panel.epsilons[0, 10], panel.epsilons[10, 0], panel.epsilons[0, 0]]
        assert corners == pytest.approx(numbers["model_epsilons"][kind])
        assert np.isnan(panel.epsilons[6, 5])
        assert np.isfinite(panel.epsilons[5, 5])
    assert [plot.caption for plot in frontiers.plots] == ["held out", "in sample"]
    for plot, measured in zip(frontiers.plots, ("held_out", "in_sample"), strict=True):
        assert [s.dashed for s in plot.series] == ["(assumed)" in s.name for s in plot.series]
        assert [s.dotted for s in plot.series] == ["RDP" in s.name for s in plot.series]
        drawn = {s.name: s for s in plot.series}["random selection, PLD"]
        assert drawn.y == pytest.approx(values(numbers["curves"][SELECT_PLD][measured]).mean(axis=0), nan_ok=True)
    assert "not proved here" in frontiers.words


def test_the_settings_of_mnist_name_every_run(store: RunStore) -> None:
    found = mnist.settings(store)
    assert [(r["clip_norm"], r["noise_multiplier"]) for r in found["runs"].values()] == list(
        zip(CLIP_NORMS, SIGMAS, strict=True)
    )
    assert all(len(run["rates"]) == STEPS and max(run["rates"]) == 4 for run in found["runs"].values())
