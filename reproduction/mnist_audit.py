"""An audit of the paper's own MNIST merge: c2-s32 and c2-s64, half and half; the strongest attacks that we could build.

The paper's clip norm, noise, rates, number of steps and number of records; images are bytes. Two worlds differ in one
record, and the attack sees the average of two runs alone. DP is about every two such data sets, so that the adversary
may choose them: `reproduction.few_images` trains on theirs. On MNIST itself, one image exchanged, the training is
linearised (`reproduction.linearised_training`).

Guarantees: what is called shown holds with 95 % confidence, whatever the law of the scores: the test and its threshold
were fixed on other trials. What is estimated, or true of the linear part alone, is called so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import ndtri

from dpmerge.accounting import THEOREMS, Adjacency, DpSgd, LinearCombination, StepBlock
from dpmerge.accounting.validation import Array
from dpmerge.auditing.gaussian_estimator import gaussian_delta, gaussian_epsilon
from dpmerge.auditing.thresholds import (
    best_threshold,
    best_threshold_delta,
    fixed_threshold,
    fixed_threshold_delta,
)
from dpmerge.planning.candidates import THEOREM_NAMES
from reproduction.few_images import GREY, FewImages, faint_walls, merged
from reproduction.linearised_training import Exchange, LinearisedTraining
from reproduction.mnist import PEAK_RATE
from reproduction.mnist_audit_findings import drawings, statements
from reproduction.presets import DELTA
from reproduction.run_store import RunStore
from reproduction.statements import CONFIDENCE
from reproduction.tasks import standardised
from reproduction.training import Setup, threads, warm_up_and_decay

__all__ = ["TITLE", "drawings", "measure", "settings", "statements"]

TITLE = "An audit of one MNIST merge of the paper, half and half: claimed, shown, certified"

RECORDS = 60_000
EQUAL = (0.5, 0.5)
RUNS = {
    f"c2-s{noise:g}": Setup(clip_norm=2.0, noise_multiplier=noise, rates=warm_up_and_decay(PEAK_RATE, 20))
    for noise in (32.0, 64.0)
}
"""The paper's two runs of unequal noise, at its own size whatever the preset."""

WALLS = {"contrast": 8, "signal": 460, "gates": (70, 70, 70, 70), "walled": 33_000}
"""The data set that was found to cost most: by random search over `faint_walls`, on other trials."""

DATA_SETS: dict[str, tuple[int, dict[str, Any]]] = {
    "all others grey": (RECORDS, {**WALLS, "walled": 0}),
    "others show the record's image": (RECORDS, {"contrast": 33, "signal": 460, "gates": (), "walled": 33_000}),
    "faint, no gates": (RECORDS, {"contrast": 8, "signal": 740, "gates": (), "walled": 12_000}),
    "faint, two gates": (RECORDS, {"contrast": 8, "signal": 566, "gates": (78, 78), "walled": 12_000}),
    "faint, four gates": (RECORDS, WALLS),
    "the same, 20,000 records": (20_000, {**WALLS, "walled": 11_000}),
    "the same, 180,000 records": (180_000, {**WALLS, "walled": 99_000}),
}

LEARNING = 100_000  # trials in each world from which the test is learnt, at full size
COMPARED = 30_000
COUNTED = 2_000_000
ITERATIONS = 3


def scaled(store: RunStore, trials: int) -> int:
    """So many for the paper's 60,000 records, fewer for a preset with fewer."""
    return max(1000, trials * store.preset.mnist.records // RECORDS)


def seed_of(store: RunStore, *names: str) -> int:
    """Of a stream of trials, written down with the results."""
    seed = store.seeds["/".join(("mnist_audit", *names))] = store.noise_seed("mnist_audit", *names)
    return seed


def settings(store: RunStore) -> dict[str, Any]:
    return {
        "runs": {name: setup.document() for name, setup in RUNS.items()},
        "weights": list(EQUAL),
        "adjacency": "replace_one",
        "delta": DELTA,
        "data sets": {name: {"records": records, **walls} for name, (records, walls) in DATA_SETS.items()},
        "exchanged": "the label of one record: 0 in one world, 1 in the other",
        "trials": {
            name: scaled(store, trials)
            for name, trials in (("learning", LEARNING), ("compared", COMPARED), ("counted", COUNTED))
        },
        "confidence": CONFIDENCE,
    }


def measure(store: RunStore) -> dict[str, Any]:
    with threads(1):
        store.tell("mnist_audit: linearised training on MNIST")
        real = on_mnist(store)
        store.tell("mnist_audit: data sets of the adversary's")
        compared = [
            {"name": name, "records": records, **compare(store, name, records, walls)}
            for name, (records, walls) in DATA_SETS.items()
        ]
        store.tell("mnist_audit: counting")
        shown = count(store)
    return {"delta": DELTA, "equal": costs(EQUAL), "real": real, "compared": compared, **shown}


def costs(weights: Sequence[float]) -> dict[str, Any]:
    """What the project's own accounting says of the average: claimed by the paper's theorem, and proved."""
    runs = [
        DpSgd(
            blocks=[
                StepBlock(
                    steps=len(setup.rates),
                    noise_multiplier=setup.noise_multiplier,
                    clip_norm=setup.clip_norm,
                    learning_rate=setup.rates,
                )
            ],
            adjacency=Adjacency.REPLACE_ONE,
        )
        for setup in RUNS.values()
    ]
    combination = LinearCombination.of_runs(runs, weights)
    bounds = {name: THEOREMS[name](combination) for name in THEOREM_NAMES}
    proved = min((bound.mu, name) for name, bound in bounds.items() if bound.certifies and bound.mu is not None)
    claimed = bounds["merged_trajectory"].mu
    assert claimed is not None, "full batches have a Gaussian profile"
    return {
        "claimed": {"mu": claimed, "epsilon": gaussian_epsilon(claimed, DELTA)},
        "certified": {"mu": proved[0], "epsilon": gaussian_epsilon(proved[0], DELTA), "theorem": proved[1]},
    }


def worlds(walls: dict[str, Any], records: int) -> tuple[FewImages, FewImages]:
    """With the record's label 0, and 1."""
    data, place = faint_walls(records, **walls)
    return data, data.exchanged(place, 0, 1)


def coupled(data: Sequence[FewImages], weights: Sequence[float], trials: int, seed: int) -> list[torch.Tensor]:
    """Merged models of both worlds with the same noise, so that their difference has hardly any."""
    setups = list(RUNS.values())
    return [merged(each, setups, weights, trials, torch.Generator().manual_seed(seed)) for each in data]


def best_direction(there: torch.Tensor, elsewhere: torch.Tensor) -> torch.Tensor:
    """The linear test that is best if both worlds are Gaussian (Fisher's)."""
    present, absent = there.double(), elsewhere.double()
    spread = (torch.cov(present.T) + torch.cov(absent.T)) / 2
    spread += 1e-7 * torch.diag(
        spread.diagonal()
    )  # logits that all classes share are not learnt: no variance but noise
    test: torch.Tensor = torch.linalg.solve(spread, (present - absent).mean(0))
    return test


def distance(test: torch.Tensor, there: torch.Tensor, elsewhere: torch.Tensor) -> float:
    """Of the two means of a test, in deviations."""
    present, absent = there.double() @ test, elsewhere.double() @ test
    return float((present.mean() - absent.mean()) / ((present.var() + absent.var()) / 2).sqrt())


def crossed(there: torch.Tensor, elsewhere: torch.Tensor) -> float:
    """The distance of the best linear test, learnt on one half of the trials and measured on the other, both ways."""
    half = len(there) // 2
    parts = [(there[:half], elsewhere[:half]), (there[half:], elsewhere[half:])]
    found = [distance(best_direction(*parts[one]), *parts[1 - one]) for one in (0, 1)]
    return max(0.0, sum(found) / 2)


def compare(store: RunStore, name: str, records: int, walls: dict[str, Any]) -> dict[str, Any]:
    """An estimate for one pair of data sets, read as if scores were Gaussian."""
    seed = seed_of(store, "compared", name)
    mu = crossed(*coupled(worlds(walls, records), EQUAL, scaled(store, COMPARED), seed))
    return {"mu": mu, "epsilon": gaussian_epsilon(mu, DELTA)}


def count(store: RunStore) -> dict[str, Any]:
    """The attack on the worst data set: learnt, its thresholds fixed, then counted on fresh trials; and by weight."""
    data, setups = worlds(WALLS, RECORDS), list(RUNS.values())
    learning, counted = scaled(store, LEARNING), scaled(store, COUNTED)
    seed = seed_of(store, "learning")
    ends = [coupled(data, weights, learning, seed) for weights in ((1.0, 0.0), (0.0, 1.0))]
    shares = np.linspace(0.0, 1.0, 11)
    found = [costs((1 - share, share)) for share in shares]
    by_weight = {
        "shares": shares,
        "claimed": [each["claimed"]["epsilon"] for each in found],
        "certified": [each["certified"]["epsilon"] for each in found],
        "attack": [gaussian_epsilon(crossed(*_average(ends, share)), DELTA) for share in shares],
    }
    test = best_direction(*_average(ends, EQUAL[1])).float()

    def scores(world: int, phase: str, trials: int) -> Array:
        generator = torch.Generator().manual_seed(seed_of(store, phase, str(world)))
        part = 100_000
        drawn = [
            merged(data[world], setups, EQUAL, min(part, trials - begun), generator) @ test
            for begun in range(0, trials, part)
        ]
        return torch.cat(drawn).numpy().astype(float)

    pilot = [scores(world, "pilot", learning) for world in (1, 0)]
    guess = best_threshold_delta(*pilot, epsilon=0.0, confidence=CONFIDENCE, trials=counted)
    far = best_threshold(*pilot, delta=DELTA, confidence=CONFIDENCE, trials=counted)
    absent, present = (scores(world, "counted", counted) for world in (1, 0))
    advantage = fixed_threshold_delta(absent, present, guess, epsilon=0.0, confidence=CONFIDENCE)
    least = 2 * float(ndtri((1 + advantage) / 2))
    estimate = (present.mean() - absent.mean()) / np.sqrt((present.var() + absent.var()) / 2)
    return {
        "by weight": by_weight,
        "counted": {
            "trials": counted,
            "advantage": advantage,
            "advantage claimed": float(gaussian_delta(costs(EQUAL)["claimed"]["mu"], 0.0)),
            "mu": least,
            "epsilon": gaussian_epsilon(least, DELTA),
            "epsilon at delta": fixed_threshold(absent, present, far, delta=DELTA, confidence=CONFIDENCE),
            "estimated mu": float(estimate),
            "estimated epsilon": gaussian_epsilon(max(0.0, float(estimate)), DELTA),
        },
    }


def _average(ends: Sequence[Sequence[torch.Tensor]], share: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Both worlds' merged models with this weight of the second run."""
    (one, other), (second, another) = ends
    return (1 - share) * one + share * second, (1 - share) * other + share * another


def on_mnist(store: RunStore) -> list[dict[str, Any]]:
    """MNIST itself but for one image, by the linear part of the training: several choices of that image."""
    images = store.images.mnist()
    count = store.preset.mnist.records
    features = with_one(standardised(images.train[:count]))
    labels = torch.from_numpy(images.train_labels[:count].astype(np.int64))
    first = int(labels[0])
    stripes = np.tile([1, -1], 392)

    def picture(offset: int | npt.NDArray[np.int64]) -> torch.Tensor:
        return with_one(standardised(np.broadcast_to(GREY + np.asarray(offset), (1, 784)).astype(np.uint8)))[0]

    exchanges = [
        Exchange("the first image, another label", (features[0], features[0]), (first, (first + 1) % 10)),
        Exchange("a white image, labels 0 and 1", (picture(222), picture(222)), (0, 1)),
        Exchange("a black image and a grey one, label 0", (picture(-33), picture(33)), (0, 0)),
        Exchange("faint stripes and their negative, label 0", (picture(33 * stripes), picture(-33 * stripes)), (0, 0)),
    ]
    first_run, second_run = RUNS.values()
    noise = np.hypot(EQUAL[0] * first_run.noise_multiplier, EQUAL[1] * second_run.noise_multiplier)
    found = LinearisedTraining(features, labels, first_run).distances(exchanges, ITERATIONS)
    return [
        {"name": exchange.name, "mu": max(reached) / noise, "epsilon": gaussian_epsilon(max(reached) / noise, DELTA)}
        for exchange, reached in zip(exchanges, found, strict=True)
    ]


def with_one(pixels: torch.Tensor) -> torch.Tensor:
    """Features with a one for the bias."""
    return torch.cat([pixels, torch.ones(len(pixels), 1)], dim=1)
