"""Scores are those of the merged models, are found again, and survive interrupts; whatever is no number is refused."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

from dpmerge import Portfolio
from dpmerge.errors import CheckpointError, EvaluationError, InvalidInputError, NotCombinableError
from dpmerge.evaluation import evaluation_progress, linear_classifier
from dpmerge.evaluation.evaluate import evaluate
from dpmerge.evaluation.evaluators import BatchEvaluator, load_evaluator
from dpmerge.evaluation.linear_classifier import LinearClassifier
from dpmerge.evaluation.score_cache import ScoreCache
from dpmerge.evaluation.torch_evaluator import module_evaluator
from dpmerge.planning.analysis import BANNER
from dpmerge.portfolio.tensors import read_header, read_tensor
from dpmerge.terms.recipe import Recipe
from evaluation.scored_portfolios import (
    EXAMPLES,
    Counting,
    Tensors,
    linear_models,
    mixtures,
    names_of,
    public_data,
    quits,
    total,
    write_models,
)
from portfolio.portfolios import manifest, model, put_file, replaced, safetensors_bytes, write_portfolio

HALVES = Recipe.of({"a@4": 0.25, "b@4": 0.75})


@pytest.fixture(scope="module")
def abc(tmp_path_factory: pytest.TempPathFactory) -> Portfolio:
    """Three runs of the tiny model: float32, and a frozen float16."""
    return Portfolio.load(write_portfolio(tmp_path_factory.mktemp("abc")))


@pytest.fixture(scope="module")
def mnist() -> Portfolio:
    return Portfolio.load(EXAMPLES / "mnist")


@pytest.fixture(scope="module")
def mnist_accuracy() -> LinearClassifier:
    evaluator = load_evaluator(f"linear:{EXAMPLES / 'mnist' / 'public.npz'}")
    assert isinstance(evaluator, LinearClassifier)
    return evaluator


def seen(portfolio: Portfolio, recipe: Recipe, **options: Any) -> list[Tensors]:
    """The models an evaluator is shown for a recipe."""
    shown: list[Tensors] = []
    evaluate(portfolio, [recipe], lambda tensors: shown.append(tensors) or 0.0, **options)  # type: ignore[func-returns-value]
    return shown


# What is scored.


def test_a_merge_is_the_weighted_sum_in_the_stored_dtype(abc: Portfolio) -> None:
    [found] = seen(abc, HALVES)
    a, b = (load_file(abc.saved(name).files[0]) for name in HALVES.names)
    assert found.keys() == a.keys()
    for name in ("weight", "bias"):
        expected = np.float32(0.25) * a[name] + np.float32(0.75) * b[name]
        assert found[name].dtype == np.float32
        assert np.array_equal(found[name], expected)
    assert np.array_equal(found["embedding"], a["embedding"])
    assert found["embedding"].dtype == np.float16


def test_one_checkpoint_is_scored_as_it_lies_on_disk(abc: Portfolio) -> None:
    [found] = seen(abc, Recipe.of({"c@2": 1.0}))
    saved = load_file(abc.saved("c@2").files[0])
    assert all(np.array_equal(found[name], saved[name]) for name in saved)


def test_every_dtype_is_read_and_merged(tmp_path: Path) -> None:
    same = {
        "i64": np.array([-(2**62)]), "i32": np.array([-7], np.int32), "i16": np.array([-7], np.int16),
        "i8": np.array([-7], np.int8), "u64": np.array([2**63], np.uint64), "u32": np.array([7], np.uint32),
        "u16": np.array([7], np.uint16), "u8": np.array([7], np.uint8), "bool": np.array([True, False]),
        "none": np.zeros((0, 3), np.float32), "matrix": np.arange(6, dtype=np.int32).reshape(2, 3),
    }  # fmt: skip
    first = same | {"f64": np.array([1 / 3]), "f16": np.array([0.1], np.float16), "scalar": np.array(2, np.float32)}
    second = same | {"f64": np.array([1 / 7]), "f16": np.array([0.3], np.float16), "scalar": np.array(4, np.float32)}
    [found] = seen(write_models(tmp_path, {"a": first, "b": second}), Recipe.of({"a@4": 0.3, "b@4": 0.7}))
    assert {name: tensor.dtype for name, tensor in found.items()} == {name: first[name].dtype for name in first}
    assert {name: tensor.shape for name, tensor in found.items()} == {name: first[name].shape for name in first}
    assert found["f64"][0] == 0.3 * (1 / 3) + 0.7 * (1 / 7)
    assert found["f16"][0] == np.float16(
        np.float32(0.3) * np.float32(first["f16"][0]) + np.float32(0.7) * second["f16"][0]
    )
    assert found["scalar"] == np.float32(0.3) * 2 + np.float32(0.7) * 4
    assert all(np.array_equal(found[name], same[name]) for name in same)


def test_bfloat16_is_handed_on_as_float32(tmp_path: Path) -> None:
    models = {run: {"weight": np.zeros(3, np.float16)} for run in "ab"}
    models["b"] = {"weight": np.ones(3, np.float16)}
    write_models(tmp_path, models)
    values = {"a": torch.tensor([1.5, -3e38, 0.1]), "b": torch.tensor([0.25, 3e38, -0.2])}
    for run, tensor in values.items():
        stored = tensor.to(torch.bfloat16)
        header = {"weight": {"dtype": "BF16", "shape": [3], "data_offsets": [0, 6]}}
        put_file(tmp_path / run, safetensors_bytes(header, stored.view(torch.int16).numpy().tobytes()))
    [found] = seen(Portfolio.load(tmp_path), Recipe.of({"a@4": 0.5, "b@4": 0.5}))
    a, b = (tensor.to(torch.bfloat16).float().numpy() for tensor in values.values())
    assert found["weight"].dtype == np.float32
    assert np.array_equal(found["weight"], np.float32(0.5) * a + np.float32(0.5) * b)


def test_integers_that_differ_cannot_be_averaged(tmp_path: Path) -> None:
    models = {
        run: {"weight": np.full(2, place, np.float32), "count": np.array([place])} for place, run in enumerate("ab")
    }
    portfolio = write_models(tmp_path, models)
    with pytest.raises(
        InvalidInputError, match="tensor count: it has other values in b@4 than in a@4; average models whose integers"
    ):
        evaluate(portfolio, [HALVES], total)
    assert evaluate(portfolio, [Recipe.of({"b@4": 1.0})], total) == [3.0]


def test_a_file_that_became_shorter_is_noticed(tmp_path: Path) -> None:
    portfolio = Portfolio.load(write_portfolio(tmp_path))
    file = portfolio.saved("a@4").files[0]
    slots = read_header(file)
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match="another length than a moment ago"):
        read_tensor(file, slots[-1])
    with pytest.raises(CheckpointError, match="another length than a moment ago"):
        evaluate(portfolio, [HALVES], total)
    file.unlink()
    with pytest.raises(CheckpointError, match="No such file"):
        evaluate(portfolio, [HALVES], total)


def test_runs_that_must_not_be_averaged_are_refused(tmp_path: Path) -> None:
    other = replaced(manifest("b"), "initial_weights", to="ab" * 32)
    portfolio = Portfolio.load(write_portfolio(tmp_path, manifests={"b": other}))
    with pytest.raises(NotCombinableError, match="initial_weights"):
        evaluate(portfolio, [HALVES], total)
    assert len(evaluate(portfolio, [Recipe.of({"a@4": 0.5, "c@4": 0.5}), Recipe.of({"b@4": 1.0})], total)) == 2


@pytest.mark.parametrize(
    ("recipe", "options", "complaint"),
    [
        (Recipe.of({"z@4": 1.0}), {}, "checkpoint: got 'z@4'; accepted: a@2"),
        (HALVES, {"noise_draws": 0}, "noise_draws: got 0; accepted: an integer ≥ 1"),
    ],
)
def test_wrong_arguments_are_refused(abc: Portfolio, recipe: Recipe, options: Any, complaint: str) -> None:
    with pytest.raises(InvalidInputError, match=complaint):
        evaluate(abc, [recipe], total, **options)


def test_no_recipes_give_no_scores(abc: Portfolio) -> None:
    assert evaluate(abc, [], total) == []
    assert evaluate(abc, [], public_data()) == []


# Linear classifiers.


def one_by_one(classifier: LinearClassifier) -> Callable[[Tensors], float]:
    """The same evaluator without its shorter way."""
    return lambda tensors: classifier(tensors)


@pytest.mark.parametrize("name", ["mnist", "probe"])
def test_linear_accuracy_is_the_recorded_one(name: str) -> None:
    """The public features are what the model takes: those of the probe have their constant appended already."""
    portfolio = Portfolio.load(EXAMPLES / name)
    recipes = [Recipe.of({checkpoint: 1.0}) for checkpoint in names_of(portfolio)]
    found = evaluate(portfolio, recipes, load_evaluator(f"linear:{EXAMPLES / name / 'public.npz'}"))
    recorded = [saved.metric("accuracy") for saved in portfolio.checkpoints()]
    assert found == pytest.approx(recorded, abs=0.0011)  # float32 in training: one image on the fence


def test_linear_mixtures_are_scored_as_merged_models(mnist: Portfolio, mnist_accuracy: LinearClassifier) -> None:
    recipes = mixtures(names_of(mnist), 60) + mixtures(names_of(mnist)[:3], 20)
    together = evaluate(mnist, recipes, mnist_accuracy)
    assert together == evaluate(mnist, recipes, one_by_one(mnist_accuracy))
    models = {saved.name: load_file(saved.files[0]) for saved in mnist.checkpoints()}
    for recipe, score in list(zip(recipes, together, strict=True))[::7]:
        weight, bias = (
            sum(np.float32(part) * models[name][t] for name, part in recipe.parts) for t in ("weight", "bias")
        )
        logits = mnist_accuracy.features.astype(float) @ weight.astype(float).T + bias
        assert score == np.mean(logits.argmax(axis=1) == mnist_accuracy.labels)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("chunk_bytes", [32_000_000, 9_000])
def test_rounding_to_the_stored_dtype_is_seen(
    dtype: str, chunk_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half precision moves many examples over the fence; the shorter way follows every one of them."""
    monkeypatch.setattr(linear_classifier, "_CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(linear_classifier, "_RECIPES_AT_ONCE", 32)
    portfolio = write_models(tmp_path, linear_models(5, dtype=dtype))
    classifier = public_data(3000)
    recipes = mixtures(names_of(portfolio), 100)
    found = evaluate(portfolio, recipes, classifier)
    assert found == evaluate(portfolio, recipes, one_by_one(classifier))
    if dtype == "float16":
        wide = {run: {n: t.astype(float) for n, t in m.items()} for run, m in linear_models(5, dtype=dtype).items()}
        unrounded = evaluate(write_models(tmp_path / "wide", wide), recipes, classifier)
        assert found != unrounded


def test_ties_go_to_the_first_class(tmp_path: Path) -> None:
    zeros = {"weight": np.zeros((3, 2), np.float32)}
    tied = {"weight": np.array([[0, 0], [1, 0], [1, 0]], np.float32)}
    portfolio = write_models(tmp_path, {"a": zeros, "b": tied})
    classifier = LinearClassifier(np.array([[1.0, 0.0]] * 3), np.array([0, 1, 2]))
    recipes = [Recipe.of({"a@4": 1.0}), Recipe.of({"b@4": 1.0}), HALVES]
    assert evaluate(portfolio, recipes, classifier) == [1 / 3] * 3
    assert evaluate(portfolio, recipes, one_by_one(classifier)) == [1 / 3] * 3


def test_a_frozen_tensor_that_is_the_same_everywhere_is_kept(tmp_path: Path) -> None:
    models = {run: {**tensors, "head.bias": np.ones(4, np.float32)} for run, tensors in linear_models(3).items()}
    portfolio = write_models(tmp_path, models, frozen=["head.bias"])
    recipes = mixtures(names_of(portfolio), 10) + mixtures(names_of(portfolio), 5, release_noise=0.3)
    classifier = public_data()
    assert evaluate(portfolio, recipes, classifier) == evaluate(portfolio, recipes, one_by_one(classifier))
    assert all(np.array_equal(found["head.bias"], np.ones(4)) for found in seen(portfolio, recipes[-1]))


@pytest.mark.parametrize(
    ("tensors", "found"),
    [
        ({"w": np.zeros((4, 7))}, r"\{'w': \[4, 7\]\}"),
        ({"w": np.zeros((6, 4))}, r"\{'w': \[6, 4\]\}"),
        ({"w": np.zeros((4, 6)), "b": np.zeros(3)}, r"'b': \[3\]"),
        ({"w": np.zeros((4, 6)), "v": np.zeros((4, 6))}, r"'v': \[4, 6\]"),
        ({"w": np.zeros((4, 6)), "k": np.zeros((4, 6, 1))}, r"'k': \[4, 6, 1\]"),
        ({"w": np.zeros((4, 6)), "count": np.array(3)}, r"'count': \[\]"),
        ({"w": np.zeros((4, 6), np.int64)}, r"'w': \[4, 6\]"),
        ({"b": np.zeros(4)}, r"\{'b': \[4\]\}"),
        ({"w": np.zeros((3, 6))}, "labels: got 3; accepted: labels below 3"),
    ],
    ids=["more inputs", "transposed", "bias of another length", "two matrices", "a kernel", "a scalar", "integers",
         "no matrix", "too few classes"],
)  # fmt: skip
def test_models_that_are_not_linear_classifiers_are_refused(tensors: Tensors, found: str, tmp_path: Path) -> None:
    classifier = public_data()
    with pytest.raises(InvalidInputError, match=found):
        classifier(tensors)
    with pytest.raises(EvaluationError, match=f"evaluation of a@4: got .*{found}"):
        evaluate(write_models(tmp_path, {"a": tensors}), [Recipe.of({"a@4": 1.0})], classifier)


def test_a_linear_classifier_is_pickled_without_its_caches() -> None:
    classifier = public_data()
    size = len(pickle.dumps(classifier))
    classifier({"w": np.ones((4, 6))})
    copy = pickle.loads(pickle.dumps(classifier))  # noqa: S301
    assert len(pickle.dumps(classifier)) == size
    assert copy.identity == classifier.identity != public_data(seed=2).identity
    assert isinstance(classifier, BatchEvaluator)


# Release noise.


def test_noise_falls_on_what_was_trained_and_is_the_same_every_time(abc: Portfolio) -> None:
    noisy = Recipe.of(HALVES.parts, release_noise=0.5)
    [plain] = seen(abc, HALVES)
    first, again = seen(abc, noisy, noise_draws=500), seen(abc, noisy, noise_draws=500)
    assert len(first) == 500
    assert all(np.array_equal(x[name], y[name]) for x, y in zip(first, again, strict=True) for name in x)
    assert all(np.array_equal(found["embedding"], plain["embedding"]) for found in first)
    noise = np.array([np.concatenate([(f[n] - plain[n]).ravel() for n in ("weight", "bias")]) for f in first])
    assert noise.std() == pytest.approx(0.5, rel=0.05)
    assert abs(np.corrcoef(noise.T) - np.eye(8)).max() < 0.2
    other = seen(abc, Recipe.of(HALVES.parts, release_noise=0.6), noise_draws=1)
    assert not np.allclose((other[0]["bias"] - plain["bias"]) / 0.6, (first[0]["bias"] - plain["bias"]) / 0.5)


def test_a_noisy_score_is_the_mean_over_the_draws(abc: Portfolio) -> None:
    noisy = Recipe.of(HALVES.parts, release_noise=0.5)
    draws = seen(abc, noisy, noise_draws=5)
    assert evaluate(abc, [noisy], total, noise_draws=5) == [pytest.approx(np.mean([total(found) for found in draws]))]
    assert evaluate(abc, [noisy], total) == evaluate(abc, [noisy], total)
    assert evaluate(abc, [noisy], total) != evaluate(abc, [noisy], total, noise_draws=7)


def test_linear_mixtures_with_noise_are_scored_as_merged_models(
    mnist: Portfolio, mnist_accuracy: LinearClassifier
) -> None:
    plain = mixtures(names_of(mnist), 4)
    recipes = [recipe for r in plain for recipe in (r, Recipe.of(r.parts, release_noise=0.05))]
    found = evaluate(mnist, recipes, mnist_accuracy)
    assert found == evaluate(mnist, recipes, one_by_one(mnist_accuracy))
    assert all(noisy < clean for clean, noisy in zip(found[::2], found[1::2], strict=True))


# The cache.


def test_cached_scores_are_not_evaluated_again(abc: Portfolio, tmp_path: Path) -> None:
    file = tmp_path / "scores.jsonl"
    recipes = [*mixtures(["a@4", "b@4", "c@2"], 6), HALVES, HALVES, Recipe.of(reversed(HALVES.parts), release_noise=1)]
    first, second = Counting(), Counting()
    scores = evaluate(abc, recipes, first, cache=file, noise_draws=3)
    assert first.calls == 7 + 3
    assert evaluate(abc, recipes, second, cache=file, noise_draws=3) == scores
    assert second.calls == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    header, *lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert header == {"schema": "dpmerge/scores/v1", "banner": BANNER}
    assert "not for release" in BANNER
    assert len(lines) == 8
    assert (str(HALVES), scores[6]) in [(line["recipe"], line["score"]) for line in lines]


@pytest.mark.parametrize("change", ["weights", "evaluator", "draws", "noise", "recipe"])
def test_a_change_of_anything_a_score_depends_on_evaluates_again(change: str, tmp_path: Path) -> None:
    file = tmp_path / "scores.jsonl"
    noisy = Recipe.of(HALVES.parts, release_noise=1.0)
    portfolio = Portfolio.load(write_portfolio(tmp_path / "first"))
    other = {"a": {2: model(5), 4: model(6)}} if change == "weights" else None
    again = Portfolio.load(write_portfolio(tmp_path / "again", models=other))
    counting = Counting("another" if change == "evaluator" else "counting/1")
    evaluate(portfolio, [HALVES, noisy], Counting(), cache=file, noise_draws=2)
    asked = {"noise": [Recipe.of(HALVES.parts, release_noise=2.0)], "recipe": [Recipe.of({"a@4": 0.2, "b@4": 0.8})]}
    evaluate(again, asked.get(change, [HALVES, noisy]), counting, cache=file, noise_draws=3 if change == "draws" else 2)
    assert counting.calls == {"weights": 3, "evaluator": 3, "draws": 3, "noise": 2, "recipe": 1}[change]


def test_weights_that_were_not_read_are_recognised_by_their_records(abc: Portfolio, tmp_path: Path) -> None:
    file, counting = tmp_path / "scores.jsonl", Counting()
    evaluate(abc, [HALVES], counting, cache=file)
    evaluate(Portfolio.load(abc.path, contents=False), [HALVES], counting, cache=file)
    assert counting.calls == 1


def test_frozen_tensors_that_may_differ_are_averaged_as_a_release_does(tmp_path: Path) -> None:
    models = {
        run: {"weight": np.full(2, place, np.float32), "base": np.full(1, 10.0 * place)}
        for place, run in enumerate("ab")
    }
    write_models(tmp_path, models, frozen=["base"])
    portfolio = Portfolio.load(tmp_path, allow=["different_frozen_tensors"])
    pair = [Recipe.of({"a@4": 0.5, "b@4": 0.5}), Recipe.of({"b@4": 0.5, "a@4": 0.5})]
    assert evaluate(portfolio, pair, total) == [6.0, 6.0]


def test_a_plain_callable_is_remembered_in_memory_only(abc: Portfolio, tmp_path: Path) -> None:
    file, counting = tmp_path / "scores.jsonl", Counting(identity=None)
    with ScoreCache(file) as cache:
        evaluate(abc, [HALVES], counting, cache=cache)
        evaluate(abc, [HALVES], counting, cache=cache)
        assert counting.calls == 1
        twin = Counting(identity=None)
        evaluate(abc, [HALVES], twin, cache=cache)
        assert twin.calls == 1
        assert len(cache) == 2
    evaluate(abc, [HALVES], counting, cache=file)
    assert counting.calls == 2
    assert len(file.read_text().splitlines()) == 1


@pytest.mark.parametrize("cut", [1, 5, 100])
def test_a_line_cut_off_by_a_crash_is_dropped(cut: int, abc: Portfolio, tmp_path: Path) -> None:
    file, counting = tmp_path / "scores.jsonl", Counting()
    recipes = mixtures(["a@4", "b@4"], 3)
    scores = evaluate(abc, recipes, Counting(), cache=file)
    whole = file.read_bytes()
    file.write_bytes(whole[:-cut])
    assert evaluate(abc, recipes, counting, cache=file) == scores
    assert counting.calls == 1
    assert file.read_bytes() == whole
    header = whole.splitlines(keepends=True)[0]
    file.write_bytes(header[:-cut])
    evaluate(abc, recipes, counting, cache=file)
    assert file.read_bytes().startswith(header)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"{", "broken JSON"),
        (b"", "broken JSON"),
        (b"\xff", "not UTF-8"),
        (b"[]", "no object with key, recipe and score"),
        (b'{"key":"k","recipe":"r"}', "no object with key, recipe and score"),
        (b'{"key":"k","recipe":"r","score":NaN}', "the score nan of 'k'"),
        (b'{"key":"k","recipe":"r","score":"1"}', "the score '1' of 'k'"),
        (b'{"key":1,"recipe":"r","score":1.0}', "the score 1.0 of 1"),
        (b'{"key":"k","key":"k","score":1.0}', "the same field twice"),
    ],
)
def test_a_broken_line_is_named(line: bytes, found: str, abc: Portfolio, tmp_path: Path) -> None:
    file = tmp_path / "scores.jsonl"
    evaluate(abc, mixtures(["a@4", "b@4"], 3), Counting(), cache=file)
    lines = file.read_bytes().split(b"\n")
    lines[2] = line
    file.write_bytes(content := b"\n".join(lines))
    with pytest.raises(InvalidInputError, match=f"scores.jsonl, line 3: got .*{found}"):
        evaluate(abc, [HALVES], Counting(), cache=file)
    assert file.read_bytes() == content


@pytest.mark.parametrize(
    "content",
    [
        b"precious",
        b"precious\n",
        b'{"a": 1}',
        b'{"a": 1}\n',
        b"[]\n",
        b'{"schema": "dpmerge/scores/v9"}\n',
        b"PK\x03\x04",
    ],
)
def test_a_file_that_is_no_cache_is_left_alone(content: bytes, abc: Portfolio, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(InvalidInputError, match="something else|line 1|schema 'dpmerge/scores/v9'"):
        evaluate(abc, [HALVES], Counting(), cache=tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == content


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (".", "cannot write .*: Is a directory; needed"),
        ("no/such/folder", "cannot write .*: No such file or directory; needed"),
        ("nul\0", "got an error: embedded null byte; accepted"),
    ],
)
def test_a_cache_that_cannot_be_written_is_refused(name: str, problem: str, abc: Portfolio, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=f"cache: {problem}: a file that can be read and written"):
        evaluate(abc, [HALVES], Counting(), cache=tmp_path / name)


def test_a_device_is_refused_as_a_cache(abc: Portfolio) -> None:
    with pytest.raises(InvalidInputError, match="no ordinary file"):
        evaluate(abc, [HALVES], Counting(), cache="/dev/null")


# Interrupts, failures, progress.


def test_an_interrupt_keeps_what_is_done_and_cancels_the_rest(abc: Portfolio, tmp_path: Path) -> None:
    file, counting = tmp_path / "scores.jsonl", Counting()
    recipes = mixtures(["a@4", "b@4"], 200)

    def interrupt(done: int, total: int) -> None:
        assert total == 200
        if done == 5:
            raise KeyboardInterrupt

    def slow(tensors: Tensors) -> float:
        time.sleep(0.002)
        return counting(tensors)

    slow.identity = "slow"  # type: ignore[attr-defined]
    with ThreadPoolExecutor(2) as pool:
        with pytest.raises(KeyboardInterrupt):
            evaluate(abc, recipes, slow, cache=file, progress=interrupt, executor=pool)
        pool.submit(int).result()  # the pool is the caller's, and still works
    kept = len(file.read_text().splitlines()) - 1
    assert 5 <= kept <= counting.calls < 200
    before = counting.calls
    assert evaluate(abc, recipes, slow, cache=file) == evaluate(abc, recipes, total)
    assert counting.calls - before == 200 - kept


def test_an_interrupt_of_many_at_once_keeps_the_blocks_that_are_done(tmp_path: Path) -> None:
    portfolio = write_models(tmp_path / "runs", linear_models(3))
    recipes, classifier, file = mixtures(names_of(portfolio), 1100), public_data(), tmp_path / "scores.jsonl"

    class InterruptedAt:
        def __init__(self, when: int) -> None:
            self.when = when

        def __call__(self, done: int, total: int) -> None:
            if done == self.when:
                raise KeyboardInterrupt

    for kept in (512, 1024, 1100):
        with pytest.raises(KeyboardInterrupt):
            evaluate(portfolio, recipes, classifier, cache=file, progress=InterruptedAt(kept))
        assert len(file.read_text().splitlines()) - 1 == kept


SLOW = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are started with it ignored
from dpmerge import Portfolio
from dpmerge.evaluation.evaluate import evaluate
from evaluation.scored_portfolios import mixtures, total

class Slow:
    identity = "slow"
    def __call__(self, tensors):
        time.sleep(0.05)
        return total(tensors)

def tell(done, total):
    print(done, flush=True)

evaluate(Portfolio.load(sys.argv[1]), mixtures(["a@4", "b@4"], 400), Slow(), cache=sys.argv[2], progress=tell)
"""


def test_control_c_keeps_what_is_done(abc: Portfolio, tmp_path: Path) -> None:
    file = tmp_path / "scores.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(abc.path), str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert process.stdout is not None
    for _ in range(4):
        process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=20)
    assert process.returncode == -signal.SIGINT
    assert complaint.splitlines()[-1] == "KeyboardInterrupt"
    kept = len(file.read_text().splitlines()) - 1
    assert 4 <= kept < 400
    with ScoreCache(file) as cache:
        assert len(cache) == kept


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (float("nan"), "nan, a float"),
        (float("inf"), "inf, a float"),
        (-np.float32("inf"), r"np.float32\(-inf\), a float32"),
        (None, "None"),
        (True, "True, a bool"),
        (np.True_, "np.True_, a bool"),
        ("0.5", "'0.5', a str"),
        (0.5j, "0.5j, a complex"),
        (np.complex64(1), "a complex64"),
        (np.array([0.5]), r"a ndarray of shape \[1\]"),
        (torch.ones(1), r"a Tensor of shape \[1\]"),
        (torch.tensor(True), r"tensor\(True\), a Tensor"),
        ([0.5], r"\[0.5\], a list"),
        (10**400, "a number beyond all doubles"),
    ],
)
def test_what_is_no_finite_number_is_refused_by_name(value: Any, found: str, abc: Portfolio) -> None:
    with pytest.raises(EvaluationError, match=f"of 0.25 × a@4 .*: got .*{found}.*; accepted: a finite number$"):
        evaluate(abc, [HALVES], lambda tensors: value)


@pytest.mark.parametrize(
    "value", [1, 0.5, np.float16(0.5), np.int8(1), np.array(0.5), torch.tensor(0.5), torch.ones((), requires_grad=True)]
)
def test_scalars_of_all_kinds_are_numbers(value: Any, abc: Portfolio) -> None:
    assert evaluate(abc, [HALVES], lambda tensors: value) == [value.item() if hasattr(value, "item") else value]


@pytest.mark.parametrize(
    ("evaluator", "found"),
    [(lambda tensors: tensors["absent"], "KeyError: 'absent'"), (quits, "SystemExit: this evaluator gave up")],
)
def test_an_evaluator_that_raises_is_refused_by_recipe(evaluator: Any, found: str, abc: Portfolio) -> None:
    with pytest.raises(EvaluationError, match=f"evaluation of 0.25 × a@4 .* got {found}; accepted"):
        evaluate(abc, [HALVES], evaluator)


def test_a_failure_keeps_what_is_done(abc: Portfolio, tmp_path: Path) -> None:
    file, good = tmp_path / "scores.jsonl", mixtures(["a@4", "b@4"], 4)
    bad = Recipe.of({"c@4": 1.0})

    class Fails(Counting):
        def __call__(self, tensors: Tensors) -> float:
            super().__call__(tensors)
            if self.calls == 5:
                raise RuntimeError("out of\n memory")
            return 1.0

    with ThreadPoolExecutor(1) as pool, pytest.raises(EvaluationError) as caught:
        evaluate(abc, [*good, bad], Fails(), cache=file, executor=pool)
    assert str(caught.value) == "evaluation of c@4: got RuntimeError: out of memory; accepted: a finite number"
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301
    assert len(file.read_text().splitlines()) == 1 + 4


class Hasty:
    """A batch evaluator that gets something wrong."""

    def __init__(self, scores: Any) -> None:
        self.scores = scores

    def __call__(self, tensors: Tensors) -> float:
        raise AssertionError("the shorter way was open")

    def prepare(self, models: Any, *, trained: Any, noise_draws: int) -> Any:
        assert {name: set(models[name]) for name in models} == {n: set(trained) for n in ("r0@4", "r1@4")}
        assert (len(models), noise_draws) == (2, 8)
        return lambda recipes: self.scores(recipes)


@pytest.mark.parametrize(
    ("scores", "complaint"),
    [
        (lambda recipes: [0.0], r"0.5 × .* \(or one of 1 scored with it\): got 1 scores; accepted: 2 finite numbers"),
        (lambda recipes: [0.0, np.nan], "of r1@4: got nan, a float; accepted: a finite number"),
        (lambda recipes: 1 / 0, r"\(or one of 1 scored with it\): got ZeroDivisionError"),
    ],
)
def test_scores_of_batch_evaluators_are_checked_too(scores: Any, complaint: str, tmp_path: Path) -> None:
    portfolio = write_models(tmp_path, linear_models(2))
    recipes = [Recipe.of({"r0@4": 0.5, "r1@4": 0.5}), Recipe.of({"r1@4": 1.0})]
    with pytest.raises(EvaluationError, match=complaint.replace("0.5 × .*", "average of r0@4, r1@4")):
        evaluate(portfolio, recipes, Hasty(scores))


def test_progress_counts_what_was_there_already(abc: Portfolio, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    recipes = mixtures(["a@4", "b@4"], 4)
    with ScoreCache(tmp_path / "scores.jsonl") as cache:
        evaluate(abc, recipes[:2], Counting(), cache=cache)
        evaluate(
            abc, recipes + recipes, Counting(), cache=cache, progress=lambda done, total: told.append((done, total))
        )
    assert told == [(2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize("terminal", [True, False])
def test_a_progress_bar_is_shown_on_terminals_only(
    terminal: bool, abc: Portfolio, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluation_progress, "PATIENCE", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setenv("TERM", "xterm")
    evaluate(abc, mixtures(["a@4", "b@4"], 3), total)
    out, err = capsys.readouterr()
    assert out == ""
    assert ("scoring merges" in err) is terminal


def test_no_progress_bar_is_shown_within_a_second(
    abc: Portfolio, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    evaluate(abc, [HALVES], total)
    assert capsys.readouterr() == ("", "")


# Processes, names, torch.


def test_a_pool_of_processes_gives_the_same(abc: Portfolio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "named_for_processes.py").write_text("def f(t):\n    return float(t['weight'].sum())\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    named = load_evaluator("named_for_processes:f")
    recipes = [*mixtures(["a@4", "b@2"], 5), *mixtures(["a@4", "b@2"], 2, release_noise=0.1)]
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert evaluate(abc, recipes, total, executor=pool) == evaluate(abc, recipes, total)
        assert evaluate(abc, recipes, named, executor=pool) == evaluate(abc, recipes, named)
        with pytest.raises(EvaluationError, match="evaluation of .*pickle"):
            evaluate(abc, recipes, lambda tensors: 0.0, executor=pool)
        with pytest.raises(EvaluationError, match="SystemExit: this evaluator gave up"):
            evaluate(abc, recipes, quits, executor=pool)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of the user's, in the current folder."""
    file = tmp_path / "users_module.py"
    file.write_text(
        "import numpy as np\nfrom dpmerge.evaluation.linear_classifier import LinearClassifier\n"
        "def f(tensors):\n    return 2.5\nclass C:\n    g = staticmethod(f)\nnumber = 3\n"
        "linear = LinearClassifier(np.ones((2, 3)), np.array([0, 1]))\n"
    )
    (tmp_path / "broken_module.py").write_text("raise RuntimeError('no\\n GPU')\n")
    (tmp_path / "quitting_module.py").write_text("import sys\nsys.exit('bye')\n")
    (tmp_path / "unparsable_module.py").write_text("def\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.delitem(sys.modules, "users_module", raising=False)
    return file


def test_a_function_is_found_in_the_current_folder(module: Path, abc: Portfolio, tmp_path: Path) -> None:
    assert evaluate(abc, [HALVES], load_evaluator("users_module:f")) == [2.5]
    assert evaluate(abc, [HALVES], load_evaluator("users_module:C.g"), cache=tmp_path / "scores.jsonl") == [2.5]
    assert len((tmp_path / "scores.jsonl").read_text().splitlines()) == 2


def test_the_identity_of_a_function_changes_with_its_module(module: Path) -> None:
    first: Any = load_evaluator("users_module:f")
    module.write_text(module.read_text() + "\n# another\n")
    second: Any = load_evaluator("users_module:f")
    assert first.identity.startswith("users_module:f ")
    assert first.identity != second.identity
    linear: Any = load_evaluator("users_module:linear")
    assert isinstance(linear, BatchEvaluator)
    assert not isinstance(first, BatchEvaluator)
    assert linear.identity.endswith(linear.function.identity)
    assert load_evaluator("builtins:len").identity is None  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ("", "got ''"),
        ("users_module", "got 'users_module'"),
        (":f", "got ':f'"),
        ("users_module:", "got 'users_module:'"),
        ("no_such_module:f", "importing no_such_module: ModuleNotFoundError: No module named 'no_such_module'"),
        ("broken_module:f", "importing broken_module: RuntimeError: no GPU"),
        ("quitting_module:f", "importing quitting_module: SystemExit: bye"),
        ("unparsable_module:f", "importing unparsable_module: SyntaxError: invalid syntax"),
        (".users_module:f", "importing .users_module: TypeError"),
        ("users_module:absent", "AttributeError: module 'users_module' has no attribute 'absent'"),
        ("users_module:f.absent", "AttributeError: 'function' object has no attribute 'absent'"),
        ("users_module:", "module:function, or linear:PATH.npz with arrays features and labels"),
        ("users_module:number", "number of users_module, which is a int and not callable"),
    ],
)  # fmt: skip
def test_names_that_are_no_evaluators_are_refused(spec: str, found: str, module: Path) -> None:
    with pytest.raises(InvalidInputError) as caught:
        load_evaluator(spec)
    assert str(caught.value).startswith("evaluator: got ")
    assert found in str(caught.value)
    assert "accepted: module:function, or linear:PATH.npz" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


ONES, ZEROS = np.ones((2, 3)), np.zeros(2, int)


@pytest.mark.parametrize(
    ("arrays", "found"),
    [
        ({}, "with nothing, without features"),
        ({"features": ONES}, "with features, without labels"),
        ({"x": ONES, "y": ZEROS}, "with x, y, without features"),
        ({"features": np.ones(3), "labels": ZEROS}, "features: an array [3] of float64"),
        ({"features": np.ones((0, 3)), "labels": ZEROS[:0]}, "features: an array [0, 3]"),
        ({"features": ONES.astype(int), "labels": ZEROS}, "features: an array [2, 3] of int64"),
        ({"features": ONES * np.nan, "labels": ZEROS}, "features: NaN or infinity"),
        ({"features": ONES, "labels": ZEROS[:1]}, "labels: an array [1] of int64"),
        ({"features": ONES, "labels": ZEROS.astype(float)}, "labels: an array [2] of float64"),
        ({"features": ONES, "labels": ZEROS.astype(bool)}, "labels: an array [2] of bool"),
        ({"features": ONES, "labels": ZEROS - 1}, "labels: -1"),
        ({"features": ONES.astype(object), "labels": ZEROS}, "Object arrays cannot be loaded"),
    ],
)
def test_data_of_other_shapes_or_kinds_is_refused(arrays: dict[str, Any], found: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "public.npz", **arrays)
    with pytest.raises(InvalidInputError) as caught:
        load_evaluator(f"linear:{tmp_path / 'public.npz'}")
    assert found in str(caught.value)
    assert "accepted: linear:PATH.npz with arrays features [examples, features] of floats" in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"text", b"PK\x03\x04 and no more", pickle.dumps(3), "npy"])
def test_files_that_are_no_data_are_refused(content: bytes | str | None, tmp_path: Path) -> None:
    file = tmp_path / "public.npz"
    if content == "npy":
        with file.open("wb") as out:
            np.save(out, ONES)
    elif isinstance(content, bytes):
        file.write_bytes(content)
    with pytest.raises(InvalidInputError, match="^evaluator: got .*public.npz, .*accepted: linear:PATH.npz"):
        load_evaluator(f"linear:{file}")


def perceptron() -> nn.Module:
    return nn.Linear(784, 10)


class Accuracy:
    def __init__(self) -> None:
        public = np.load(EXAMPLES / "mnist" / "public.npz")
        self.features, self.labels = (torch.from_numpy(public[name]) for name in ("features", "labels"))

    def __call__(self, module: nn.Module) -> torch.Tensor:
        assert not module.training
        scores = module(self.features)
        assert not scores.requires_grad
        return (scores.argmax(1) == self.labels).double().mean()


def test_a_torch_module_scores_as_the_linear_evaluator(mnist: Portfolio, mnist_accuracy: LinearClassifier) -> None:
    recipes = mixtures(names_of(mnist), 30)
    evaluator = module_evaluator(perceptron, Accuracy())
    found = evaluate(mnist, recipes, evaluator)
    assert found == pytest.approx(evaluate(mnist, recipes, mnist_accuracy), abs=0.0011)
    assert module_evaluator(perceptron, Accuracy(), identity="mine/1").identity == "mine/1"


def test_a_torch_module_must_have_the_tensors_of_the_merge(abc: Portfolio) -> None:
    with pytest.raises(EvaluationError, match="RuntimeError: Error.* in loading state_dict for Linear"):
        evaluate(abc, [HALVES], module_evaluator(perceptron, lambda module: 0.0))


def test_a_torch_evaluator_is_picklable_if_its_parts_are() -> None:
    evaluator = module_evaluator(perceptron, Accuracy(), identity="mine/1")
    zeros = {"weight": np.zeros((10, 784), np.float32), "bias": np.zeros(10, np.float32)}
    evaluator(zeros)
    copy = pickle.loads(pickle.dumps(evaluator))  # noqa: S301
    assert float(copy(zeros)) == float(evaluator(zeros))
    assert copy.identity == "mine/1"


def test_scoring_does_not_need_torch() -> None:
    script = "import sys, dpmerge.evaluation.evaluate; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
