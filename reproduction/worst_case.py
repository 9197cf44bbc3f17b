"""The paper's worst case by its construction: a linear combination that costs exactly what joint release costs.

Each model trains a tensor of its own and leaves all others at their public start, as adapters on different layers do.
Then every tensor of the average is one model's own, scaled by a weight that everybody knows: the average tells as much
as all models do, whatever the weights. Where all train the same tensor their noise is averaged, and less is told.

Guarantees: what the average costs is integrated from its own density, tensor by tensor, and asks no accounting; what an
attack on the average alone shows holds with 95 % confidence, its threshold fixed on other trials.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr

from dpmerge.accounting import THEOREMS, Adjacency, Checkpoint, GaussianRelease, LinearCombination
from dpmerge.accounting.validation import Array
from dpmerge.auditing.gaussian_estimator import gaussian_epsilon
from dpmerge.auditing.thresholds import best_threshold, fixed_threshold
from dpmerge.report import styles
from dpmerge.report.plots import COLOURS, Drawing, Panels, Plot, Series, values
from reproduction.presets import DELTA
from reproduction.run_store import RunStore
from reproduction.statements import CONFIDENCE, Statement

TITLE = "The worst case by its construction: a linear combination that costs joint release"

CASES = {"noise 1 and 2": (1.0, 2.0), "noise 1 and 0.25": (1.0, 0.25)}
"""Standard deviations of two models of sensitivity 1."""

ATTACKED = "noise 1 and 0.25"
WEIGHT = 0.1  # of the second model, where the average is attacked

_NODES, _SHARES = np.polynomial.legendre.leggauss(40)


def settings(store: RunStore) -> dict[str, Any]:
    return {
        "models": "Gaussian estimates, sensitivity 1, each of a tensor of its own; beside them, both of one tensor",
        "standard deviations": {name: list(pair) for name, pair in CASES.items()},
        "weights of the second": shares(store).tolist(),
        "adjacency": "replace_one",
        "delta": DELTA,
        "attacked": f"{ATTACKED}, weight {WEIGHT:g} of the second",
        "trials of the attack": store.preset.mean.draws,
    }


def shares(store: RunStore) -> Array:
    """Of the second model, the ends left out: there nothing is merged."""
    return np.linspace(0.0, 1.0, max(5, store.preset.mean.points // 5))[1:-1]


def measure(store: RunStore) -> dict[str, Any]:
    return {
        "delta": DELTA,
        "cases": [{"name": name, **_case(pair, shares(store))} for name, pair in CASES.items()],
        "attacked": _attacked(store),
    }


def _case(deviations: Sequence[float], weights: Array) -> dict[str, Any]:
    """ε of the average against the second's weight: of tensors of their own, of one tensor, and joint release."""
    return {
        "shares": weights,
        "own tensors": [merged_epsilon(deviations, (1 - w, w), DELTA) for w in weights],
        "one tensor": [gaussian_epsilon(1 / float(np.hypot(*_scaled(deviations, (1 - w, w)))), DELTA) for w in weights],
        "joint release": joint_release(deviations),
    }


def joint_release(deviations: Sequence[float]) -> float:
    """By the accounting, which asks nothing of how the models are merged."""
    releases = [
        GaussianRelease(sensitivity=1.0, standard_deviation=deviation, adjacency=Adjacency.REPLACE_ONE)
        for deviation in deviations
    ]
    checkpoints = [Checkpoint(release, 1) for release in releases]
    bound = THEOREMS["joint_release"](LinearCombination(checkpoints=checkpoints, weights=(0.5, 0.5)))
    assert bound.mu is not None, "Gaussian"
    return float(gaussian_epsilon(bound.mu, DELTA))


def _scaled(of: Sequence[float], weights: Sequence[float]) -> Array:
    return np.array([weight * each for weight, each in zip(weights, of, strict=True)])


def merged_delta(deviations: Sequence[float], weights: Sequence[float], epsilon: float) -> float:
    """δ at ε of the average (λ₁θ₁, λ₂θ₂), integrated over its first tensor; given that, the second is one Gaussian.

    In one world tensor i has the mean λ_i, in the other 0. With ℓ the log ratio of the first tensor's densities, what
    is left of the second is P[ℓ₂ > ε − ℓ] − e^(ε − ℓ) Q[ℓ₂ > ε − ℓ].
    """
    means = np.asarray(weights, dtype=float)
    noise = _scaled(deviations, weights)
    edges = means[0] + noise[0] * np.linspace(-14.0, 14.0, 113)
    half, middle = np.diff(edges)[:, None] / 2, (edges[1:] + edges[:-1])[:, None] / 2
    first, chance = (middle + half * _NODES).ravel(), (half * _SHARES).ravel()
    log_density = -(((first - means[0]) / noise[0]) ** 2) / 2 - np.log(noise[0] * np.sqrt(2 * np.pi))
    left = epsilon - (first**2 - (first - means[0]) ** 2) / (2 * noise[0] ** 2)
    # The second tensor m is taken for the first world where its log ratio passes what is left.
    cut = means[1] / 2 + left * noise[1] ** 2 / means[1]
    alarm, false = log_ndtr((means[1] - cut) / noise[1]), left + log_ndtr(-cut / noise[1])
    return float(chance @ np.exp(log_density + alarm + np.log(-np.expm1(np.minimum(false - alarm, -1e-300)))))


def merged_epsilon(deviations: Sequence[float], weights: Sequence[float], delta: float) -> float:
    """The ε at which the average's δ is this."""

    def excess(epsilon: float) -> float:
        return float(np.log(merged_delta(deviations, weights, epsilon)) - np.log(delta))

    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(brentq(excess, 0.0, high, xtol=1e-12, rtol=1e-14))


def scores(rng: np.random.Generator, trials: int, present: bool) -> Array:
    """The log-likelihood ratio of merged models, computed from the average alone."""
    weights = np.array([1 - WEIGHT, WEIGHT])
    noise = _scaled(CASES[ATTACKED], weights.tolist())
    merged = np.stack([weights[i] * (present + CASES[ATTACKED][i] * rng.standard_normal(trials)) for i in (0, 1)])
    means, spread = weights[:, None], noise[:, None]
    return np.asarray(((merged**2 - (merged - means) ** 2) / (2 * spread**2)).sum(axis=0))


def _attacked(store: RunStore) -> dict[str, Any]:
    trials = store.preset.mean.draws
    seed = store.seeds["worst_case/attack"] = store.noise_seed("worst_case", "attack")
    rng = np.random.default_rng(seed)
    pilot, (absent, present) = ([scores(rng, trials, there) for there in (False, True)] for _ in range(2))
    threshold = best_threshold(pilot[0], pilot[1], delta=DELTA, confidence=CONFIDENCE)
    shown = fixed_threshold(absent, present, threshold, delta=DELTA, confidence=CONFIDENCE)
    deviations, weights = CASES[ATTACKED], (1 - WEIGHT, WEIGHT)
    return {
        "trials": trials,
        "shown": shown,
        "joint release": joint_release(deviations),
        "one tensor": gaussian_epsilon(1 / float(np.hypot(*_scaled(deviations, weights))), DELTA),
    }


def drawings(numbers: dict[str, Any]) -> list[Drawing]:
    delta = numbers["delta"]
    heading = "What does an average cost if every model has a tensor of its own?"
    words = (
        f"ε at δ = {delta:g} of the average of two Gaussian estimates of sensitivity 1, by the weight of the second. "
        "If each model has a tensor of its own the average costs joint release, whatever the weights; if both estimate "
        "the same tensor their noise is averaged, and it costs less."
    )
    plots = tuple(
        Plot(
            name=f"worst_case-{place + 1}",
            heading=heading,
            caption=case["name"],
            words=words,
            across="weight of the second model",
            up=f"ε at δ = {delta:g}",
            series=(
                Series(
                    name="joint release, by the accounting",
                    x=values(case["shares"]),
                    y=np.full(len(case["shares"]), case["joint release"]),
                    colour=COLOURS["joint_release"],
                ),
                Series(
                    name="average of tensors of their own, integrated",
                    x=values(case["shares"]),
                    y=values(case["own tensors"]),
                    colour=styles.OTHERS[0],
                    marks="dots",
                    line=False,
                ),
                Series(
                    name="average in one tensor",
                    x=values(case["shares"]),
                    y=values(case["one tensor"]),
                    colour=COLOURS["combine"],
                ),
            ),
        )
        for place, case in enumerate(numbers["cases"])
    )
    return [Panels(name="worst_case-averages", heading=heading, words=words, plots=plots)]


def statements(numbers: dict[str, Any]) -> list[Statement]:
    return [_equal(numbers["cases"]), _shown(numbers["attacked"])]


def _equal(cases: Sequence[dict[str, Any]]) -> Statement:
    off = max(float(np.max(np.abs(values(c["own tensors"]) / c["joint release"] - 1))) for c in cases)
    told = "; ".join(
        f"{c['name']}: joint release {c['joint release']:.4f}, the average {min(c['own tensors']):.4f} to "
        f"{max(c['own tensors']):.4f} over all weights, in one tensor {min(c['one tensor']):.4f} to "
        f"{max(c['one tensor']):.4f}"
        for c in cases
    )
    return Statement(
        claim="In the worst case a linear combination costs exactly what joint release of all its models costs.",
        source="paper, Theorem 6.1, tightness",
        verdict="agrees" if off < 1e-6 else "disagrees",
        measured=f"{told}.",
        why="Each model has a tensor of its own: from the average, weights known, every model can be read off.",
    )


def _shown(found: dict[str, Any]) -> Statement:
    shown, joint, averaged = found["shown"], found["joint release"], found["one tensor"]
    return Statement(
        claim="An attack on such an average alone shows more than averaging noise in one tensor would allow, and no "
        "more than joint release.",
        source="ours",
        verdict="agrees" if averaged < shown <= joint else "disagrees",
        measured=(
            f"{ATTACKED[0].upper()}{ATTACKED[1:]}, weight {WEIGHT:g} of the second: joint release {joint:.2f}, in one "
            f"tensor {averaged:.2f}; {int(found['trials']):,} trials a side show ε ≥ {shown:.2f} with "
            f"{100 * CONFIDENCE:g} % confidence."
        ),
    )
