"""Audits of real training: canaries in Opacus runs, looked for in the final merged model, beside what is certified.

Guarantees: every certified figure comes from the manifests that the recorder wrote, through the library; an attack sees
the merged model (and which candidate was drawn) and nothing else. With the confidence asked for, all bounds of an audit
hold together. The same seed gives the same findings.
Refuses: names of no audit; images without a pixel for a canary.

Labels say whether a digit is odd. Of two classes p − e_y lies on one line: as long as the canary's gradient is clipped
it is C in one direction, and a score that is linear in the weights is Gaussian with one variance in both worlds. One
white pixel is clipped to C = 0.5 as long as its two logits differ by less than 0.6, at these rates ten deviations of
their noise.
"""

from __future__ import annotations

import tempfile
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from dpmerge.auditing.attacks import Array, Attack
from dpmerge.auditing.confirmation import confirmed
from dpmerge.auditing.estimate import estimate_epsilon
from dpmerge.auditing.findings import Claim, Estimate, Finding
from dpmerge.auditing.scenario import ScenarioResult, simultaneous
from dpmerge.auditing.threat_models import selected
from dpmerge.errors import InvalidInputError
from dpmerge.evaluation.merged_model import StoredModel, combined
from dpmerge.planning.candidates import AskedTheorem, candidate
from dpmerge.portfolio import Portfolio
from dpmerge.terms.recipe import Recipe
from reproduction.images import Images
from reproduction.one_run import one_run_epsilon, one_run_f_dp_epsilon, one_run_guesses
from reproduction.presets import DELTA
from reproduction.run_store import ImageSource
from reproduction.scenarios.accounting_claims import selection_claim
from reproduction.scenarios.canaries import (
    WEIGHT,
    AdjacencyName,
    Records,
    Worlds,
    attack_on,
    canary_scores,
    dark_pixels,
    framed,
    pixel_canaries,
    recorded,
)
from reproduction.scenarios.canary_scenarios import CANARIES
from reproduction.training import Setup

TRIALS = 1_000_000
STEPS = 20
CLIP_NORM = 0.5
RATE = 0.001
NOISE: Mapping[AdjacencyName, float] = {"replace_one": 18.0, "add_remove": 9.0}
"""A run costs ε ≈ 2 at δ = 1e-5 under either adjacency: little enough for counting to come near it."""

RUNS = 4
RUNGS, CHANCES = (1, RUNS), (0.75, 0.25)
"""Drawn by random selection: the first run alone, or the average of all."""

ONE_RUN_NOISE = 4.5
ONE_RUN_DELTA = 1e-6
"""The one-run bound allows for up to 2δ for each canary, all of which must be far below 1 − confidence."""

GUESSED = 16
"""One canary in so many is guessed to be in, and as many out: few, to be nearly sure of them; fixed beforehand."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How many real images are trained on, how wide a frame has room for canaries, how often all is trained anew."""

    images: int = 200
    border: int = 7
    whole_trainings: int = 10_000


@dataclass(frozen=True, kw_only=True, eq=False)
class CanaryExperiment:
    """Where runs are kept, what they are trained on, and how hard is looked; `confidence` is that of each bound."""

    folder: Path
    source: ImageSource
    trials: int
    confidence: float
    seed: int
    sizes: Sizes

    @cached_property
    def mnist(self) -> Images:
        return self.source.mnist()

    def records(self, *, border: int = 0) -> Records:
        count = self.sizes.images
        return framed(self.mnist.train[:count], self.mnist.train_labels[:count], classes=2, border=border)

    def corner(self, adjacency: AdjacencyName) -> Worlds:
        """One canary: the first pixel that no image uses, in MNIST a corner."""
        images = self.records()
        return Worlds.of(images, pixel_canaries(images, dark_pixels(images)[:1]), adjacency)

    def runs(self, name: str, records: Records, adjacency: AdjacencyName, noises: Sequence[float]) -> Portfolio:
        setups = {f"run-{number}": setup(noise) for number, noise in enumerate(noises, 1)}
        return recorded(self.folder, name, records, setups, adjacency=adjacency, seed=self.seed)

    def ladder(self, worlds: Worlds) -> Portfolio:
        """Equal runs."""
        return self.runs("canary-ladder", worlds.present, "replace_one", [NOISE["replace_one"]] * RUNS)

    def estimate(self, subject: str, attack: Attack, trials: int, claims: Sequence[Claim]) -> Estimate:
        def attacked(own: int) -> Estimate:
            return estimate_epsilon(attack, delta=DELTA, trials=trials, confidence=self.confidence, seed=own)

        # What is drawn for one is not drawn for another.
        return confirmed(attacked, claims, zlib.crc32(f"{self.seed} {subject}".encode()))

    def by_both(self, subject: str, attack: Attack, claims: Sequence[Claim]) -> list[Finding]:
        """By the distance μ of Gaussian scores, and by counting, which asks nothing of how they are distributed."""
        both = {subject: replace(attack, gaussian=True), f"{subject}, counted": replace(attack, gaussian=False)}
        found = []
        for words, each in both.items():
            estimate = self.estimate(words, each, self.trials, claims)
            found += [Finding(subject=words, claim=claim, estimate=estimate) for claim in claims]
        return found


def setup(noise_multiplier: float) -> Setup:
    return Setup(clip_norm=CLIP_NORM, noise_multiplier=noise_multiplier, rates=(RATE,) * STEPS)


def merged_model(portfolio: Portfolio, k: int) -> Array:
    """The average of the first k recorded models: [classes, pixels]."""

    def read(name: str, tensor: str) -> Array:
        return StoredModel.of(portfolio, name).read(tensor)

    return combined(_average(k), [WEIGHT], (), read)[WEIGHT].rounded()


def one_run_estimates(scores: Array, included: npt.NDArray[np.bool_], confidence: float) -> list[Estimate]:
    """By both one-run estimators; who was included is asked only to see which guesses were right."""
    canaries = len(scores)
    each = max(1, canaries // GUESSED)
    guesses, correct = one_run_guesses(scores, included, most_in=each, most_out=each)
    common = Estimate(
        quantity="epsilon", bound=0.0, given=ONE_RUN_DELTA, estimator="one_run", trials=canaries, confidence=confidence
    )
    counted = one_run_epsilon(guesses, correct, canaries, delta=ONE_RUN_DELTA, confidence=confidence)
    by_curve = one_run_f_dp_epsilon(guesses, correct, canaries, delta=ONE_RUN_DELTA, confidence=confidence)
    return [replace(common, bound=float(counted)), replace(common, bound=float(by_curve), estimator="one_run_f_dp")]


def _average(k: int) -> Recipe:
    return Recipe.of({f"run-{number}@{STEPS}": 1 / k for number in range(1, k + 1)})


def _claims(portfolio: Portfolio, k: int, *theorems: AskedTheorem, delta: float = DELTA) -> list[Claim]:
    """Of the average of the first k runs."""
    priced = [candidate(portfolio, _average(k), delta=delta, theorem=theorem) for theorem in theorems]
    return [Claim(by=c.theorem, value=c.profile.epsilon(delta), proved=c.proved, mu=c.bound.mu) for c in priced]


def _claim_of_draw(portfolio: Portfolio, delta: float = DELTA) -> Claim:
    rungs = [candidate(portfolio, _average(k), delta=delta, theorem="joint_release") for k in RUNGS]
    return selection_claim([rung.profile for rung in rungs], CHANCES, delta)


def _attack(worlds: Worlds, noises: Sequence[float]) -> Attack:
    """On the average of one run for each noise."""
    return attack_on(worlds, [(setup(noise), 1 / len(noises)) for noise in noises])


def _single(experiment: CanaryExperiment) -> list[Finding]:
    found = []
    for adjacency, noise in NOISE.items():
        worlds = experiment.corner(adjacency)
        portfolio = experiment.runs("canary-alone", worlds.present, adjacency, [noise])
        claims = _claims(portfolio, 1, "joint_release")
        found += experiment.by_both(f"canary_single, {adjacency}", _attack(worlds, [noise]), claims)
    return found


def _averages(experiment: CanaryExperiment) -> list[Finding]:
    """Of equal runs all theorems say the same; of unequal ones merged_trajectory says less, and only assumes it."""
    worlds, noise = experiment.corner("replace_one"), NOISE["replace_one"]
    ladder, unequal = experiment.ladder(worlds), [noise / 2, noise]
    pair = experiment.runs("canary-pair", worlds.present, "replace_one", unequal)
    found = []
    for words, portfolio, noises in (
        (f"2 of {RUNS}", ladder, [noise] * 2),
        (f"{RUNS} of {RUNS}", ladder, [noise] * RUNS),
        ("unequal runs", pair, unequal),
    ):
        claims = _claims(portfolio, len(noises), "joint_release", "last_step", "merged_trajectory")
        found += experiment.by_both(f"canary_average, {words}", _attack(worlds, noises), claims)
    return found


def _selection(experiment: CanaryExperiment) -> list[Finding]:
    worlds, noise = experiment.corner("replace_one"), NOISE["replace_one"]
    attack = selected([_attack(worlds, [noise] * k) for k in RUNGS], CHANCES)
    claim = _claim_of_draw(experiment.ladder(worlds))
    return experiment.by_both(f"canary_selection, {RUNGS[0]} or {RUNGS[1]} of {RUNS}", attack, [claim])


def _image(experiment: CanaryExperiment) -> list[Finding]:
    """Its pixels are others' too, who answer to its pushes: all is trained in every trial, and scores are counted."""
    canary = framed(experiment.mnist.test[:1], experiment.mnist.test_labels[:1], classes=2)
    worlds, noise = Worlds.of(experiment.records(), canary, "replace_one"), NOISE["replace_one"]
    portfolio = experiment.runs("canary-image", worlds.present, "replace_one", [noise])
    attack, trials = _attack(worlds, [noise]), min(experiment.trials, experiment.sizes.whole_trainings)
    claims = _claims(portfolio, 1, "joint_release")
    estimate = experiment.estimate("canary_image", attack, trials, claims)
    return [Finding(subject="canary_image", claim=claim, estimate=estimate) for claim in claims]


def _one_run(experiment: CanaryExperiment) -> list[Finding]:
    """A fair coin for each canary; every run is trained once, on the same data."""
    images = experiment.records(border=experiment.sizes.border)
    canaries = pixel_canaries(images, dark_pixels(images))
    rng = np.random.default_rng([experiment.seed, zlib.crc32(b"canary_one_run")])
    included = rng.random(len(canaries.labels)) < 0.5
    records = images.and_also(canaries.some(torch.from_numpy(included)))
    portfolio = experiment.runs("canary-one-run", records, "add_remove", [ONE_RUN_NOISE] * RUNS)
    drawn = RUNGS[int(rng.choice(len(RUNGS), p=CHANCES))]
    released = [
        (f"{k} of {RUNS}", k, claim)
        for k in RUNGS
        for claim in _claims(portfolio, k, "joint_release", delta=ONE_RUN_DELTA)
    ]
    released.append((f"{drawn} of {RUNS} drawn", drawn, _claim_of_draw(portfolio, ONE_RUN_DELTA)))
    found = []
    for words, k, claim in released:
        scores = canary_scores(merged_model(portfolio, k), canaries)
        for estimate in one_run_estimates(scores, included, experiment.confidence):
            if estimate.estimator == "one_run" or claim.mu is not None:  # the other is about Gaussian curves only
                subject = f"canary_one_run, {words}, {estimate.estimator}"
                found.append(Finding(subject=subject, claim=claim, estimate=estimate))
    return found


@dataclass(frozen=True)
class CanaryAudit:
    """How an audit is made, and how many lower bounds it states."""

    found: Callable[[CanaryExperiment], list[Finding]]
    bounds: int


CANARY_AUDITS: Mapping[str, CanaryAudit] = {
    "canary_single": CanaryAudit(_single, 4),
    "canary_average": CanaryAudit(_averages, 6),
    "canary_selection": CanaryAudit(_selection, 2),
    "canary_image": CanaryAudit(_image, 1),
    "canary_one_run": CanaryAudit(_one_run, 5),
}


def findings(
    name: str,
    folder: Path,
    images: ImageSource,
    *,
    trials: int = TRIALS,
    confidence: float = 0.95,
    seed: int = 42,
    sizes: Sizes | None = None,
) -> tuple[Finding, ...]:
    """What an audit finds: real runs are trained into `folder`, once; `trials` are simulated ones, in each world."""
    if name not in CANARY_AUDITS:
        raise InvalidInputError("scenario", name, ", ".join(CANARY_AUDITS))
    audit = CANARY_AUDITS[name]
    experiment = CanaryExperiment(
        folder=folder,
        source=images,
        trials=trials,
        confidence=simultaneous(confidence, audit.bounds),
        seed=seed,
        sizes=sizes or Sizes(),
    )
    return tuple(audit.found(experiment))


def play_canary(name: str, images: ImageSource, *, trials: int | None, confidence: float, seed: int) -> ScenarioResult:
    """An audit with its real runs trained into a folder that is then removed."""
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        found = findings(
            name, Path(place), images, trials=TRIALS if trials is None else trials, confidence=confidence, seed=seed
        )
    took = time.perf_counter() - begun
    return ScenarioResult(name=name, words=CANARIES[name], note="", seconds=took, findings=found)
