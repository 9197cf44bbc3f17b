"""The probe: softmax regression on unit-norm features, where hidden_state proves linear combination.

Guarantees: every model shown was chosen without looking at any (theory 5), so the frontiers are
of releases that could be made; only the line of merged_trajectory is not proved for these runs, and it is dashed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dpmerge.accounting.mechanisms import DpSgd
from dpmerge.accounting.validation import Array
from dpmerge.errors import NoGuaranteeError
from dpmerge.evaluation.merged_model import StoredModel
from dpmerge.planning.candidate_search import Method as PlanMethod
from dpmerge.planning.candidates import AskedTheorem, candidate
from dpmerge.planning.planner import plan
from dpmerge.planning.usable_checkpoints import usable_checkpoints
from dpmerge.portfolio import Portfolio
from dpmerge.terms.guarantee import Guarantee
from dpmerge.terms.recipe import Recipe
from reproduction.presets import DELTA, MnistScale
from reproduction.probe_findings import EXAMPLE, drawings, statements
from reproduction.run_store import RunStore
from reproduction.tasks import PROBE_CLIP_NORM
from reproduction.training import Setup, Task, warm_up_and_decay

__all__ = ["TITLE", "drawings", "measure", "settings", "statements"]

TITLE = "The probe: linear combination with a proof, for a convex model"

NOISES = {"s32": 32, "s64": 64, "s128": 128, "s256": 256, "s512": 512, "s512-2": 512, "s512-3": 512, "s512-4": 512}
"""The runs and their noise multipliers, from where noise hardly matters to where it does; four of them are a ladder."""

TARGETS = 16  # at most; a preset that is coarser than that has fewer

NOISE_DRAWS = 16  # releases simulated for each merge with release noise, in each repetition

RELEASE_NOISES = np.linspace(0, 2, 21)
"""For the example: in units of the noise of one step at the highest rate."""


def schedules(scale: MnistScale) -> dict[str, tuple[float, ...]]:
    return {"constant": (2.0,) * scale.steps, "decaying": warm_up_and_decay(4.0, scale.steps)}


def setups(scale: MnistScale, rates: tuple[float, ...]) -> dict[str, Setup]:
    return {
        run: Setup(clip_norm=PROBE_CLIP_NORM, noise_multiplier=noise * scale.noise, rates=rates)
        for run, noise in NOISES.items()
    }


def settings(store: RunStore) -> dict[str, Any]:
    scale = store.preset.mnist
    return {
        "delta": DELTA,
        "adjacency": "replace_one",
        "clip_norm": PROBE_CLIP_NORM,
        "schedules": {
            name: {run: setup.document() for run, setup in setups(scale, rates).items()}
            for name, rates in schedules(scale).items()
        },
        "targets": min(TARGETS, scale.resolution),
        "noise_draws": NOISE_DRAWS,
        "preset": store.preset.document(),
    }


def measure(store: RunStore) -> dict[str, Any]:
    return {
        name: measure_schedule(store, store.probe, name, rates) for name, rates in schedules(store.preset.mnist).items()
    }


@dataclass(frozen=True)
class Offer:
    """What a method releases for a target: recipes and their probabilities, and what that costs."""

    epsilon: float
    outcomes: tuple[tuple[float, Recipe], ...]
    proved: bool
    noise_to_signal: float

    def expected(self, scored: Mapping[Recipe, float]) -> float:
        """Over the draw."""
        return sum(p * scored[recipe] for p, recipe in self.outcomes)

    def __str__(self) -> str:
        drawn = len(self.outcomes) > 1
        return " or ".join(
            f"{recipe} with probability {p:.2g}" if drawn else str(recipe) for p, recipe in self.outcomes
        )


Method = Callable[[Portfolio, float], Offer | None]


def planned(method: PlanMethod, theorem: AskedTheorem) -> Method:
    """What the planner chooses by the records alone; None where it has nothing for the target."""

    def choose(portfolio: Portfolio, target: float) -> Offer | None:
        try:
            found = plan(portfolio, Guarantee(epsilon=target, delta=DELTA), method=method, theorem=theorem)
        except NoGuaranteeError:
            return None
        recipes = [each.recipe for each in found.candidates]
        outcomes = tuple(zip(found.probabilities, recipes, strict=True))
        return Offer(found.guarantee.epsilon, outcomes, found.proved, found.noise_to_signal or math.nan)

    return choose


def best_single(portfolio: Portfolio, target: float) -> Offer | None:
    """The least private model within the target, as it was trained."""
    within = [model for model in usable_checkpoints(portfolio, DELTA).checkpoints if model.epsilon <= target]
    if not within:
        return None
    recipe = Recipe.of({max(within, key=lambda model: model.epsilon).name: 1.0})
    found = candidate(portfolio, recipe, delta=DELTA, theorem="joint_release")
    ratio = found.noise_to_signal or math.nan
    return Offer(found.profile.epsilon(DELTA), ((1.0, recipe),), found.proved, ratio)


METHODS: dict[str, Method] = {
    "hidden_state": planned("combine", "hidden_state"),
    "selection": planned("select", "auto"),
    "singles": best_single,
    "ladder": planned("combine", "joint_release"),
    "merged_trajectory": planned("combine", "merged_trajectory"),
}


def measure_schedule(store: RunStore, task: Task, name: str, rates: tuple[float, ...]) -> dict[str, Any]:
    """Train, plan for every target and score what was planned, under one schedule of rates."""
    scale = store.preset.mnist
    runs = setups(scale, rates)
    every = [store.portfolio(task, f"probe-{name}", runs, repeat=repeat) for repeat in range(scale.seeds)]
    first = every[0]
    models = {model.run.id: model.epsilon for model in usable_checkpoints(first, DELTA).checkpoints}
    # From a quarter of the most private model's ε to a quarter above the least private one's.
    targets = np.geomspace(min(models.values()) / 4, 1.25 * max(models.values()), min(TARGETS, scale.resolution))
    offers = {key: [choose(first, float(target)) for target in targets] for key, choose in METHODS.items()}
    single = {run: Recipe.of({f"{run}@{len(rates)}": 1.0}) for run in models}
    recipes = [*single.values()]
    recipes += [recipe for of_method in offers.values() for offer in of_method if offer for _, recipe in offer.outcomes]
    measured = np.array([scores(store, task, each, recipes, repeat) for repeat, each in enumerate(every)])
    scored = [dict(zip(recipes, found, strict=True)) for found in measured]
    for of in scored:
        # Which of equal runs is released is nobody's choice: each stands for their mean, lest one be lucky.
        equal = {
            noise: float(np.mean([of[single[r]] for r in models if NOISES[r] == noise])) for noise in NOISES.values()
        }
        of.update({single[run]: equal[NOISES[run]] for run in models})
    return {
        "described": task.described,
        "noise": scale.noise,
        "steps": scale.steps,
        "rates": rates,
        "models": {"epsilons": models, "accuracies": measured[:, : len(models)]},
        "targets": targets,
        "methods": {key: _documented(of_method, scored) for key, of_method in offers.items()},
        "same_weights": _same_weights(first, offers["hidden_state"]),
        "example": _example(first, len(rates)),
        "gradients": largest_gradient(task, every) | {"clip_norm": PROBE_CLIP_NORM},
    }


def scores(store: RunStore, task: Task, portfolio: Portfolio, recipes: Sequence[Recipe], repeat: int) -> Array:
    """Accuracy of each recipe, over releases that are simulated anew in each repetition.

    What is simulated depends on the recipe alone; a billionth more noise is another recipe, and costs no more.
    """
    renewed = [Recipe(recipe.parts, recipe.release_noise * (1 + 1e-9 * repeat)) for recipe in recipes]
    return np.asarray(store.scores(task, portfolio, renewed, noise_draws=NOISE_DRAWS).mean(axis=0))


def _documented(offers: Sequence[Offer | None], scored: Sequence[Mapping[Recipe, float]]) -> dict[str, Any]:
    """One entry a target; accuracies [repetition][target], expected over the draw."""

    def each(value: Callable[[Offer], float]) -> list[float]:
        return [math.nan if offer is None else value(offer) for offer in offers]

    return {
        "epsilons": each(lambda offer: offer.epsilon),
        "release_noise": each(lambda offer: offer.outcomes[0][1].release_noise),
        "noise_to_signal": each(lambda offer: offer.noise_to_signal),
        "accuracies": [[math.nan if offer is None else offer.expected(of) for offer in offers] for of in scored],
        "released": ["" if offer is None else str(offer) for offer in offers],
        "proved": [offer is not None and offer.proved for offer in offers],
    }


def _epsilon(portfolio: Portfolio, recipe: Recipe, theorem: AskedTheorem) -> float:
    return candidate(portfolio, recipe, delta=DELTA, theorem=theorem).profile.epsilon(DELTA)


def _same_weights(portfolio: Portfolio, offers: Sequence[Offer | None]) -> dict[str, list[float]]:
    """What the weights planned by hidden_state would cost without release noise, by three theorems."""
    bare = [None if offer is None else Recipe(offer.outcomes[0][1].parts) for offer in offers]
    theorems: tuple[AskedTheorem, ...] = ("hidden_state", "merged_trajectory", "joint_release")
    return {
        theorem: [math.nan if recipe is None else _epsilon(portfolio, recipe, theorem) for recipe in bare]
        for theorem in theorems
    }


def _example(portfolio: Portfolio, steps: int) -> dict[str, Any]:
    """Two runs with unequal weights, without and with as much release noise as one step at the highest rate has."""
    noises = {}
    for run in EXAMPLE:
        mechanism = portfolio.run(run).mechanism
        assert isinstance(mechanism, DpSgd)
        noises[run] = mechanism.moves(steps).noise
    tau = float(noises["s64"].max())
    variance = sum(float(((weight * noises[run]) ** 2).sum()) for run, weight in EXAMPLE.items())
    weights = {f"{run}@{steps}": weight for run, weight in EXAMPLE.items()}
    noisy = [Recipe.of(weights, release_noise=float(tau * share)) for share in RELEASE_NOISES]
    return {
        "release_noises": RELEASE_NOISES,
        "epsilons": [_epsilon(portfolio, recipe, "hidden_state") for recipe in noisy],
        "more_noise": math.sqrt(1 + tau**2 / variance) - 1,
        "with noise": _epsilon(portfolio, Recipe.of(weights, release_noise=tau), "hidden_state"),
        "without noise": _epsilon(portfolio, Recipe.of(weights), "hidden_state"),
        "merged_trajectory": _epsilon(portfolio, Recipe.of(weights), "merged_trajectory"),
        "joint_release": _epsilon(portfolio, Recipe.of(weights), "joint_release"),
    }


def largest_gradient(task: Task, portfolios: Sequence[Portfolio]) -> dict[str, float]:
    """The largest norm of one record's gradient at any trained model, and of its features.

    The gradient of softmax regression is (p − y)xᵀ: its norm is ‖p − y‖·‖x‖ ≤ √2·‖x‖.
    """
    features, labels = task.private.tensors
    norms = features.double().norm(dim=1)
    largest = 0.0
    for portfolio in portfolios:
        for saved in portfolio.checkpoints():
            stored = StoredModel.of(portfolio, saved.name)
            [weight] = (torch.from_numpy(stored.read(tensor).copy()) for tensor in stored.tensors)
            errors = torch.softmax((features @ weight.T).double(), dim=1)
            errors[torch.arange(len(labels)), labels] -= 1
            largest = max(largest, float((errors.norm(dim=1) * norms).max()))
    return {"largest": largest, "largest_features": float(norms.max())}
