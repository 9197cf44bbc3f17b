"""Scores of recipes on public data: each distinct merge once, in parallel, and never twice where there is a cache.

Guarantees: a score depends on the weights, the recipe and the evaluator alone, release noise included; what was
scored before an interrupt or a failure is in the cache. Scores are of models nobody has released: not for release.
Refuses: averages of runs that must not be averaged, and evaluators that give anything but a finite number.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dpmerge.accounting import validation
from dpmerge.errors import DpmergeError, EvaluationError, InvalidInputError, PortfolioError
from dpmerge.evaluation.evaluation_progress import Progressed, show_progress
from dpmerge.evaluation.evaluators import BatchEvaluator, Evaluator, identity_of, takes_folder
from dpmerge.evaluation.merged_model import (
    ModelsOnDisk,
    StoredModel,
    frozen_in_all,
    same_frozen,
)
from dpmerge.evaluation.score_cache import ScoreCache
from dpmerge.evaluation.score_recipe import finite_score, listed, naming_recipes, score_one
from dpmerge.executors.task_runs import run_tasks
from dpmerge.merging.adapters import require_one_scaling
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.terms.recipe import Recipe

NOISE_DRAWS = 8
_TOGETHER, _NOISY_TOGETHER = 512, 8
"""Recipes between two entries in the cache, where many are scored at once; noise makes each of them slow."""


def evaluate(
    portfolio: Portfolio,
    recipes: Iterable[Recipe],
    evaluator: Evaluator,
    *,
    executor: Executor | None = None,
    cache: ScoreCache | str | Path | None = None,
    progress: Progressed | None = None,
    noise_draws: int = NOISE_DRAWS,
) -> list[float]:
    """The score of each recipe, in their order.

    Merges are made and scored where `executor` says (one after the other, if it does not, since an evaluator that keeps
    a module of its own would mix up what two threads load into it); in processes the evaluator must be
    picklable, and only names travel, no weights. A BatchEvaluator scores in the calling thread, many at once.

    A recipe with release noise is scored by its mean over `noise_draws` simulated releases. Their noise is drawn from a
    generator seeded with the recipe's digest, so that a score is the same tomorrow; no real release may use it.

    `cache` is a file, made if it is not there, or a ScoreCache shared by several calls. Scores are found again for the
    same weights, recipe and evaluator. An evaluator is recognised in a later session by its attribute `identity`; a
    plain Python callable has none and could be anything tomorrow: its scores are kept in memory only, for that object.

    Args:
        portfolio: where the recipes' checkpoints are.
        recipes: what is scored; each distinct one once.
        evaluator: from tensors by name to a number, or from a model's folder (`path_evaluator`), on public data.
        executor: where merges are made and scored, such as a `ProcessPoolExecutor`.
        cache: a file of scores, or a ScoreCache.
        progress: called as results arrive, with how many are done, and of how many; without it a long run shows a bar
            if there is a terminal.
        noise_draws: over how many simulated releases a recipe with release noise is scored.

    Returns:
        One score a recipe.

    Raises:
        EvaluationError: the evaluator failed, or gave something else than a finite number; it names the recipe.
        PortfolioError: a recipe averages runs that must not be averaged.
        InvalidInputError: another argument is not what it should be.

    Example (not run here, since it needs a portfolio on disk):

        portfolio = Portfolio.load("models/")
        recipes = [Recipe.of({"a@100": w, "b@100": 1 - w}) for w in (0.25, 0.5, 0.75)]
        scores = evaluate(portfolio, recipes, load_evaluator("linear:public.npz"), cache="scores.jsonl")
    """
    recipes = list(recipes)
    noise_draws = validation.integer("noise_draws", noise_draws, least=1)
    models = _models(portfolio, recipes, folders=takes_folder(evaluator))
    with _opened(cache) as scores, show_progress(progress, "scoring merges") as show:
        identity = identity_of(evaluator)
        name = scores.session_name(evaluator) if identity is None else identity
        keys = [_key(recipe, models, name, noise_draws) for recipe in recipes]
        distinct = dict(zip(keys, recipes, strict=True))
        results = _Results(scores, identity is not None, show, len(distinct))
        missing = {key: recipe for key, recipe in distinct.items() if key not in scores}
        results.begin(len(distinct) - len(missing))
        if isinstance(evaluator, BatchEvaluator) and missing and same_frozen(_used(models, missing.values())):
            _score_together(models, missing, evaluator, noise_draws, results)
        elif executor is not None:
            _score_in_parallel(models, missing, evaluator, noise_draws, results, executor)
        else:
            for key, recipe in missing.items():
                with naming_recipes([recipe], DpmergeError):
                    score = score_one(recipe, tuple(models[name] for name in recipe.names), evaluator, noise_draws)
                results.enter(key, recipe, score)
        return [scores[key] for key in keys]


def _models(portfolio: Portfolio, recipes: Sequence[Recipe], *, folders: bool) -> dict[str, StoredModel]:
    """The checkpoints the recipes name, after a look at whether the runs may be averaged as the recipes do."""
    names = dict.fromkeys(name for recipe in recipes for name in recipe.names)
    models = {name: StoredModel.of(portfolio, name, with_small_files=folders) for name in names}
    run_of = {name: portfolio.saved(name).run for name in models}
    try:
        # Agreement is transitive: where all runs agree, those of every recipe do.
        portfolio.require_combinable([run for run in portfolio.runs if run.id in run_of.values()])
    except PortfolioError:
        for runs in {frozenset(run_of[name] for name in recipe.names) for recipe in recipes}:
            portfolio.require_combinable([run for run in portfolio.runs if run.id in runs])
    if folders:  # loaded with one of their configurations
        located = {name: (portfolio.run(run), portfolio.saved(name), 1.0) for name, run in run_of.items()}
        try:
            require_one_scaling(list(located.values()))
        except InvalidInputError:
            for used in {frozenset(recipe.names) for recipe in recipes}:
                require_one_scaling([located[name] for name in sorted(used)])
    return models


def _used(models: Mapping[str, StoredModel], recipes: Iterable[Recipe]) -> list[StoredModel]:
    return [models[name] for name in dict.fromkeys(name for recipe in recipes for name in recipe.names)]


def _key(recipe: Recipe, models: Mapping[str, StoredModel], evaluator: str, noise_draws: int) -> str:
    """What a score depends on."""
    digests = {name: models[name].digest for name in sorted(recipe.names)}
    draws = noise_draws if recipe.release_noise else 0
    content = json.dumps([recipe.digest, digests, draws, evaluator])
    return hashlib.sha256(content.encode()).hexdigest()


@dataclass
class _Results:
    """Where results are written down the moment they are known."""

    scores: ScoreCache
    durable: bool
    show: Progressed
    total: int
    done: int = 0

    def begin(self, done: int) -> None:
        self.done = done
        if done:
            self.show(done, self.total)

    def enter(self, key: str, recipe: Recipe, score: float, *, quiet: bool = False) -> None:
        self.scores.store(key, recipe, score, durable=self.durable)
        self.done += 1
        if not quiet:
            self.show(self.done, self.total)


def _score_together(
    models: Mapping[str, StoredModel],
    missing: Mapping[str, Recipe],
    evaluator: BatchEvaluator,
    noise_draws: int,
    results: _Results,
) -> None:
    used = _used(models, missing.values())
    trained = set(used[0].tensors) - frozen_in_all(used)
    with naming_recipes(list(missing.values()), PortfolioError):
        scorer = evaluator.prepare(ModelsOnDisk(used), trained=trained, noise_draws=noise_draws)
    for some in _blocks(missing):
        recipes = [recipe for _, recipe in some]
        with naming_recipes(recipes, PortfolioError):
            found = list(scorer(recipes))
        if len(found) != len(some):
            raise EvaluationError(listed(recipes), f"{len(found)} scores", f"{len(some)} finite numbers")
        for (key, recipe), value in zip(some, found, strict=True):
            results.enter(key, recipe, finite_score(recipe, value), quiet=True)
        results.show(results.done, results.total)


def _blocks(missing: Mapping[str, Recipe]) -> Iterator[list[tuple[str, Recipe]]]:
    plain = [(key, recipe) for key, recipe in missing.items() if not recipe.release_noise]
    noisy = [(key, recipe) for key, recipe in missing.items() if recipe.release_noise]
    for recipes, size in ((plain, _TOGETHER), (noisy, _NOISY_TOGETHER)):
        for start in range(0, len(recipes), size):
            yield recipes[start : start + size]


def _score_in_parallel(
    models: Mapping[str, StoredModel],
    missing: Mapping[str, Recipe],
    evaluator: Evaluator,
    noise_draws: int,
    results: _Results,
    executor: Executor,
) -> None:
    run_tasks(
        executor,
        score_one,
        {k: (r, tuple(models[name] for name in r.names), evaluator, noise_draws) for k, r in missing.items()},
        lambda key, score, late: results.enter(key, missing[key], score, quiet=late),
        around=lambda key: naming_recipes([missing[key]], DpmergeError),
        named=lambda key: f"the evaluation of {missing[key]}",
    )


@contextmanager
def _opened(cache: ScoreCache | str | Path | None) -> Iterator[ScoreCache]:
    if isinstance(cache, ScoreCache):
        yield cache
        return
    with ScoreCache(cache) as scores:
        yield scores
