"""Scores of recipes on public data: each distinct merge once, in parallel, and never twice where there is a cache.

Guarantees: a score depends on the weights, the recipe and the evaluator alone, release noise included; what was
scored before an interrupt or a failure is in the cache. Scores are of models nobody has released: not for release.
Refuses: averages of runs that must not be averaged, and evaluators that give anything but a finite number.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpmerge.errors import DpmergeError, EvaluationFailed, InvalidInput, PortfolioError
from dpmerge.evaluation.evaluators import BatchEvaluator, Evaluator, identity_of
from dpmerge.evaluation.merged_model import (
    ModelsOnDisk,
    StoredModel,
    combined,
    frozen_in_all,
    same_frozen,
    simulated,
    tied_in_all,
)
from dpmerge.evaluation.progress import Progressed, shown
from dpmerge.evaluation.score_cache import ScoreCache
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.recipe import Recipe
from dpmerge.privacy import domain

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

    `progress(done, total)` is called as results arrive; without it a long run shows a bar if there is a terminal.
    """
    recipes = list(recipes)
    noise_draws = domain.integer("noise_draws", noise_draws, least=1)
    models = _models(portfolio, recipes)
    with _opened(cache) as scores, shown(progress, "scoring merges") as show:
        identity = identity_of(evaluator)
        name = scores.session_name(evaluator) if identity is None else identity
        keys = [_key(recipe, models, name, noise_draws) for recipe in recipes]
        distinct = dict(zip(keys, recipes, strict=True))
        book = _Book(scores, identity is not None, show, len(distinct))
        missing = {key: recipe for key, recipe in distinct.items() if key not in scores}
        book.begin(len(distinct) - len(missing))
        if isinstance(evaluator, BatchEvaluator) and missing and same_frozen(_used(models, missing.values())):
            _score_together(models, missing, evaluator, noise_draws, book)
        elif executor is not None:
            _score_in_parallel(models, missing, evaluator, noise_draws, book, executor)
        else:
            for key, recipe in missing.items():
                with _told([recipe], DpmergeError):
                    score = score_one(recipe, tuple(models[name] for name in recipe.names), evaluator, noise_draws)
                book.enter(key, recipe, score)
        return [scores[key] for key in keys]


def _models(portfolio: Portfolio, recipes: Sequence[Recipe]) -> dict[str, StoredModel]:
    """The checkpoints the recipes name, after a look at whether the runs may be averaged as the recipes do."""
    models = {name: StoredModel.of(portfolio, name) for name in dict.fromkeys(n for r in recipes for n in r.names)}
    run_of = {name: portfolio.saved(name).run for name in models}
    try:
        # Agreement is transitive: where all runs agree, those of every recipe do.
        portfolio.require_combinable([run for run in portfolio.runs if run.id in run_of.values()])
    except PortfolioError:
        for runs in {frozenset(run_of[name] for name in recipe.names) for recipe in recipes}:
            portfolio.require_combinable([run for run in portfolio.runs if run.id in runs])
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
class _Book:
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
    book: _Book,
) -> None:
    used = _used(models, missing.values())
    trained = set(used[0].tensors) - frozen_in_all(used)
    with _told(list(missing.values()), PortfolioError):
        scorer = evaluator.prepare(ModelsOnDisk(used), trained=trained, noise_draws=noise_draws)
    for some in _blocks(missing):
        recipes = [recipe for _, recipe in some]
        with _told(recipes, PortfolioError):
            found = list(scorer(recipes))
        if len(found) != len(some):
            raise EvaluationFailed(_listed(recipes), f"{len(found)} scores", f"{len(some)} finite numbers")
        for (key, recipe), value in zip(some, found, strict=True):
            book.enter(key, recipe, _number(recipe, value), quiet=True)
        book.show(book.done, book.total)


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
    book: _Book,
    executor: Executor,
) -> None:
    waiting: dict[Future[float], str] = {}
    try:
        for key, recipe in missing.items():
            inputs = tuple(models[name] for name in recipe.names)
            waiting[executor.submit(score_one, recipe, inputs, evaluator, noise_draws)] = key
        for future in as_completed(list(waiting)):
            recipe = missing[waiting[future]]
            with _told([recipe], DpmergeError):
                score = future.result()
            book.enter(waiting[future], recipe, score)
            del waiting[future]
    finally:
        # After an interrupt or a failure: nothing new begins, and what is finished is not lost.
        for future, key in waiting.items():
            if not future.cancel() and future.done() and future.exception() is None and key not in book.scores:
                book.enter(key, missing[key], future.result(), quiet=True)


def score_one(recipe: Recipe, inputs: Sequence[StoredModel], evaluator: Evaluator, noise_draws: int) -> float:
    """Merge and score one recipe: what a worker does, in this process or another."""
    by_name = {model.name: model for model in inputs}
    first = inputs[0]
    for model in inputs:
        if difference := sorted(model.tensors.keys() ^ first.tensors.keys()):
            raise InvalidInput(f"tensors of {model.name}", difference[0], f"the tensor names of {first.name}")
    tensors = combined(recipe, first.tensors, frozen_in_all(inputs), lambda name, tensor: by_name[name].read(tensor))
    found = []
    for merged in simulated(recipe, tensors, noise_draws, tied_in_all(inputs)):
        try:
            value = evaluator(merged)
        except (Exception, SystemExit) as error:
            raise EvaluationFailed(str(recipe), f"{type(error).__name__}: {error}") from error
        found.append(_number(recipe, value))
    return float(np.mean(found))


def _number(recipe: Recipe, value: object) -> float:
    """A score as a float; scalars of numpy and torch are numbers, arrays with one value are not."""
    scalar = value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value
    try:
        number = domain.number("score", scalar)
    except InvalidInput as error:
        raise EvaluationFailed(str(recipe), error.found or _described(value)) from None
    if np.isinf(number):
        raise EvaluationFailed(str(recipe), _described(value))
    return number


def _described(value: object) -> str:
    kind = type(value).__name__
    shape = getattr(value, "shape", ())
    return f"a {kind} of shape {list(shape)}" if shape else f"{value!r}, a {kind}" if value is not None else "None"


@contextmanager
def _told(recipes: Sequence[Recipe], clear: type[Exception]) -> Iterator[None]:
    """Errors of an evaluator, or of a pool, as errors that name the recipes concerned; some are `clear` already."""
    try:
        yield
    except clear:
        raise
    except (Exception, SystemExit) as error:
        raise EvaluationFailed(_listed(recipes), f"{type(error).__name__}: {error}") from error


def _listed(recipes: Sequence[Recipe]) -> str:
    return str(recipes[0]) + (f" (or one of {len(recipes) - 1} scored with it)" if len(recipes) > 1 else "")


@contextmanager
def _opened(cache: ScoreCache | str | Path | None) -> Iterator[ScoreCache]:
    if isinstance(cache, ScoreCache):
        yield cache
        return
    with ScoreCache(cache) as scores:
        yield scores
