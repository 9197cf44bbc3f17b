"""Portfolios of linear models, and evaluators that processes other than the test's can import."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmerge import Portfolio
from dpmerge.evaluation.linear_classifier import LinearClassifier
from dpmerge.terms.recipe import Recipe
from portfolio.portfolios import manifest, write_portfolio

Tensors = Mapping[str, npt.NDArray[Any]]

EXAMPLES = Path(__file__).parents[2] / "examples"


def write_models(home: Path, models: Mapping[str, Tensors], *, frozen: Sequence[str] = ()) -> Portfolio:
    """A portfolio of one checkpoint a run, after step 4, with these tensors."""
    names = list(next(iter(models.values())))
    facts = {"trained": [name for name in names if name not in frozen], "frozen": list(frozen)}
    manifests = {run: manifest(run, tensors=facts) for run in models}
    write_portfolio(home, runs=models, manifests=manifests, models={run: {4: model} for run, model in models.items()})
    return Portfolio.load(home)


def linear_models(
    count: int, *, classes: int = 4, inputs: int = 6, dtype: str = "float32", seed: int = 0
) -> dict[str, Tensors]:
    random = np.random.default_rng(seed)
    return {
        f"r{place}": {
            "head.bias": random.standard_normal(classes).astype(dtype),
            "head.weight": random.standard_normal((classes, inputs)).astype(dtype),
        }
        for place in range(count)
    }


def public_data(examples: int = 200, *, classes: int = 4, inputs: int = 6, seed: int = 1) -> LinearClassifier:
    random = np.random.default_rng(seed)
    features = random.standard_normal((examples, inputs)).astype(np.float32)
    return LinearClassifier(features, random.integers(0, classes, examples))


def mixtures(names: Sequence[str], count: int, *, release_noise: float = 0.0, seed: int = 1) -> list[Recipe]:
    """Random recipes over all of the checkpoints."""
    weights = np.random.default_rng(seed).dirichlet(np.ones(len(names)), count)
    return [Recipe.of(zip(names, row.tolist(), strict=True), release_noise=release_noise) for row in weights]


def names_of(portfolio: Portfolio) -> list[str]:
    return [saved.name for saved in portfolio.checkpoints()]


def total(tensors: Tensors) -> float:
    """A plain evaluator."""
    return float(sum(tensor.astype(float).sum() for tensor in tensors.values()))


def quits(tensors: Tensors) -> float:
    raise SystemExit("this evaluator gave up")


class Counting:
    """Counts its calls; with an identity, so that its scores may be kept in a file."""

    def __init__(self, identity: str | None = "counting/1") -> None:
        self.calls = 0
        self.identity = identity
        self._lock = threading.Lock()

    def __call__(self, tensors: Tensors) -> float:
        with self._lock:
            self.calls += 1
        return total(tensors)
