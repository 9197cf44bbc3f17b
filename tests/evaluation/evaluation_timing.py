"""How long it takes to score many mixtures of few linear models.

PYTHONPATH=tests python -m evaluation.evaluation_timing
"""

from __future__ import annotations

import time

from dpmerge import Portfolio
from dpmerge.evaluation.evaluate import evaluate
from dpmerge.evaluation.evaluators import load_evaluator
from evaluation.scored_portfolios import EXAMPLES, mixtures, names_of


def seconds_for(count: int, *, release_noise: float = 0.0) -> float:
    """Seconds to score that many mixtures of the example's 20 checkpoints on its 1,000 images, reading included."""
    portfolio = Portfolio.load(EXAMPLES / "mnist")
    evaluator = load_evaluator(f"linear:{EXAMPLES / 'mnist' / 'public.npz'}")
    recipes = mixtures(names_of(portfolio), count, release_noise=release_noise)
    begun = time.perf_counter()
    evaluate(portfolio, recipes, evaluator)
    return time.perf_counter() - begun


if __name__ == "__main__":
    print(f"1,000 mixtures of 20 linear models on 1,000 images: {seconds_for(1000):.3f} s")
    print(f"100 of them with release noise, 8 draws each: {seconds_for(100, release_noise=0.01):.3f} s")
