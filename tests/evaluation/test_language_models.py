"""Benchmarks of lm-eval score merged language models: as its own command does, offline, quietly, in any process."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
from typer.testing import CliRunner

import dpmerge as dpm
from dpmerge import Portfolio
from dpmerge.cli import app
from dpmerge.errors import EvaluationError, InvalidInputError
from dpmerge.evaluation.evaluate import evaluate
from dpmerge.evaluation.evaluators import load_evaluator
from dpmerge.evaluation.lm_eval_arguments import KINDS, from_keywords, from_text
from dpmerge.evaluation.lm_eval_harness import LmEval, lm_eval
from dpmerge.merging.recipe_files import build
from dpmerge.terms.recipe import Recipe
from evaluation.language_models import save_model, write_adapter_runs, write_language_models, write_tasks
from evaluation.scored_portfolios import names_of
from page_commands import blocks, run_page

THIRDS = Recipe.of({"a@4": 0.25, "b@4": 0.5, "c@4": 0.25})
HALVES = Recipe.of({"a@4": 0.5, "b@4": 0.5})


@pytest.fixture(scope="module", autouse=True)
def _offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No network, and no copy of the data in somebody's home; other processes see it in the environment."""
    home = tmp_path_factory.mktemp("huggingface")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # models this small only wait for one another
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", home / "datasets")
        patch.setenv("HF_HOME", str(home))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def abc(tmp_path_factory: pytest.TempPathFactory) -> Portfolio:
    return write_language_models(tmp_path_factory.mktemp("models") / "runs")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("benchmarks") / "tasks")


def by_hand(folder: Path, tasks: Path, task: str, **arguments: Any) -> dict[str, Any]:
    """What the harness's own function finds in a folder that was merged to stay."""
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    model = {"pretrained": str(folder), **arguments.pop("model_args", {})}
    found = simple_evaluate(
        "hf", model_args=model, tasks=[task], task_manager=manager, device="cpu", bootstrap_iters=0, **arguments
    )
    assert found is not None
    return dict(found["results"])


def merged(portfolio: Portfolio, recipe: Recipe, folder: Path) -> Path:
    folder.mkdir()
    build(portfolio, recipe, folder)
    return folder


# What is scored.


@pytest.mark.parametrize(("task", "metric", "sign", "arguments"), [
    ("tiny_choice", "acc", 1, {}),
    ("tiny_choice", "acc_norm", 1, {"num_fewshot": 2, "limit": 25, "batch_size": 4}),
    ("tiny_perplexity", "word_perplexity", -1, {}),
    ("tiny_group", "acc", 1, {"limit": 0.5}),
])  # fmt: skip
def test_a_score_is_what_the_harness_finds_in_the_merged_folder(
    abc: Portfolio, tasks: Path, tmp_path: Path, task: str, metric: str, sign: int, arguments: dict[str, Any]
) -> None:
    expected = by_hand(merged(abc, THIRDS, tmp_path / "merged"), tasks, task, **arguments)
    evaluator = lm_eval(task, metric=metric, include_path=tasks, **arguments)
    assert evaluate(abc, [THIRDS], evaluator) == [sign * expected[task][f"{metric},none"]]
    assert evaluate(abc, [THIRDS], evaluator) == [sign * expected[task][f"{metric},none"]]  # nothing was used up


def test_several_tasks_are_scored_by_their_mean_and_a_tag_is_its_tasks(abc: Portfolio, tasks: Path) -> None:
    one, other = (evaluate(abc, [THIRDS], lm_eval(task, metric="acc", include_path=tasks))[0]
                  for task in ("tiny_choice", "tiny_second"))  # fmt: skip
    assert one != other
    both = lm_eval(["tiny_choice", "tiny_second"], metric="acc", include_path=tasks)
    assert evaluate(abc, [THIRDS], both) == [pytest.approx((one + other) / 2)]
    with pytest.raises(InvalidInputError, match="metric: got 'acc'; accepted: one of word_perplexity, which tiny_perp"):
        lm_eval("tiny_tag", metric="acc", include_path=tasks)


def test_merges_with_release_noise_are_scored_by_the_mean_over_simulated_releases(abc: Portfolio, tasks: Path) -> None:
    evaluator = lm_eval("tiny_first", include_path=tasks)
    seen: list[float] = []

    @dpm.path_evaluator
    def each(folder: Path) -> float:
        seen.append(float(evaluator(folder)))
        return seen[-1]

    noisy = Recipe.of({"a@4": 0.5, "b@4": 0.5}, release_noise=1.0)
    assert evaluate(abc, [noisy], evaluator, noise_draws=3) == evaluate(abc, [noisy], each, noise_draws=3)
    assert len(set(seen)) > 1


# PEFT asks transformers 5 by the old name.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_adapters_are_scored_on_the_model_they_were_trained_on(tasks: Path, tmp_path: Path) -> None:
    save_model(tmp_path / "base", seed=0)
    portfolio = write_adapter_runs(tmp_path / "runs", tmp_path / "base")
    folder = merged(portfolio, HALVES, tmp_path / "merged")
    model_args = {"pretrained": str(tmp_path / "base"), "peft": str(folder)}
    expected = by_hand(folder, tasks, "tiny_perplexity", model_args=model_args)["tiny_perplexity"]
    [found] = evaluate(portfolio, [HALVES], lm_eval("tiny_perplexity", include_path=tasks))
    assert found == -expected["word_perplexity,none"]
    without = by_hand(tmp_path / "base", tasks, "tiny_perplexity")["tiny_perplexity"]
    assert found != -without["word_perplexity,none"]


# By name, from outside.


def test_frontier_by_a_benchmark_finds_its_scores_again(abc: Portfolio, tasks: Path, tmp_path: Path) -> None:
    home = abc.runs[0].folder.parent
    name = f"lm_eval:tiny_choice?metric=acc&include_path={tasks}&limit=20"
    command = ["frontier", str(home), "--delta", "1e-5", "--evaluator", name, "--evaluations", "4", "--json"]
    command += ["--cache", str(tmp_path / "scores.jsonl")]
    first = CliRunner().invoke(app, command)
    assert first.exit_code == 0, first.output
    assert first.stderr == ""
    kept = (tmp_path / "scores.jsonl").read_text()
    singles = [Recipe.of({each: 1.0}) for each in names_of(abc)]
    expected = dict(zip(names_of(abc), evaluate(abc, singles, load_evaluator(name)), strict=True))
    assert {each["name"]: each["utility"] for each in json.loads(first.stdout)["models"]} == expected
    assert {entry["recipe"] for entry in map(json.loads, kept.splitlines()[1:])} > expected.keys()
    second = CliRunner().invoke(app, command)
    assert second.stdout == first.stdout
    assert (tmp_path / "scores.jsonl").read_text() == kept


def test_the_page_on_language_models_does_what_it_says(
    abc: Portfolio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "language-models.md"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    shutil.copytree(abc.runs[0].folder.parent, "models")
    write_tasks(tmp_path / "others", examples=12)
    Path("benchmark").mkdir()
    shutil.copy("others/data.jsonl", "benchmark/data.jsonl")
    [(_, task)] = [block for block in blocks(page) if block[0] == "yaml"]
    Path("benchmark/capitals.yaml").write_text(task)
    [code] = [content for _, content in blocks(page) if "path_evaluator" in content]
    Path("mine.py").write_text(code)
    names: dict[str, Any] = {"__name__": "page"}
    run_page(page, names)
    assert names["plan"].chosen_by["evaluator"] == names["accuracy"].identity
    assert Path("report.html").stat().st_size > 100_000
    shown = page.read_text()
    assert all(f"`{name}`" in shown for name in KINDS)


def test_a_plan_names_the_benchmark_without_saying_where_it_lies(abc: Portfolio, tasks: Path) -> None:
    evaluator = lm_eval("tiny_first", include_path=tasks, limit=4)
    objective = dpm.PublicEvaluation(evaluator=evaluator, evaluations=2)
    plain = dpm.PublicEvaluation(evaluator=lambda tensors: 0.0, evaluations=2)
    found, same = (dpm.plan(abc, epsilon=8, delta=1e-5, objective=each) for each in (objective, plain))
    assert found.chosen_by["evaluator"] == evaluator.identity
    assert str(tasks) not in str(evaluator.identity)
    assert str(evaluator.identity).startswith("lm_eval:tiny_first acc ")
    assert found.chosen_by["look"] == same.chosen_by["look"]  # looking costs what it costs
    assert found.guarantee == same.guarantee


def test_another_process_gives_the_same_scores(abc: Portfolio, tasks: Path) -> None:
    recipes = [THIRDS, HALVES, Recipe.of({"c@4": 1.0})]
    evaluator = lm_eval("tiny_choice", metric="acc", include_path=tasks)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert evaluate(abc, recipes, evaluator, executor=pool) == evaluate(abc, recipes, evaluator)


def test_a_worker_with_other_tasks_is_refused(abc: Portfolio, tasks: Path) -> None:
    evaluator = lm_eval("tiny_choice", metric="acc", include_path=tasks)
    arrived = pickle.loads(pickle.dumps(evaluator))  # noqa: S301
    assert (arrived.arguments, arrived.identity) == (evaluator.arguments, evaluator.identity)
    other = LmEval(evaluator.arguments, "lm_eval:tiny_choice acc of another version")
    with pytest.raises(EvaluationError, match="its tasks, data or version are other ones here"):
        evaluate(abc, [THIRDS], other)


# What is left as it was.


def test_nothing_is_printed_and_nothing_is_left(
    abc: Portfolio, tasks: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    evaluate(abc, [THIRDS], lm_eval("tiny_choice", metric="acc", include_path=tasks))
    broken = lm_eval("tiny_choice", metric="acc", include_path=tasks, dtype="no_such_type")
    with pytest.raises(EvaluationError, match="no_such_type"):
        evaluate(abc, [THIRDS], broken)
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_random_numbers_afterwards_are_not_those_of_a_seed_that_everybody_knows(abc: Portfolio, tasks: Path) -> None:
    def drawn() -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), float(torch.rand(()))  # noqa: S311

    evaluator = lm_eval("tiny_first", include_path=tasks)
    random.seed(7), np.random.seed(7), torch.manual_seed(7)
    expected = drawn()
    random.seed(7), np.random.seed(7), torch.manual_seed(7)
    evaluate(abc, [THIRDS], evaluator)
    assert drawn() == expected


def test_tasks_that_stay_in_memory_hold_no_requests_or_answers(abc: Portfolio, tasks: Path) -> None:
    evaluator = lm_eval("tiny_first", include_path=tasks)
    evaluate(abc, [THIRDS], evaluator)
    assert [getattr(task, "_instances", None) for task in evaluator.loaded().tasks["tasks"].values()] == [None]


# What scores depend on.


def test_an_identity_is_that_of_the_contents_wherever_they_lie(tasks: Path, tmp_path: Path) -> None:
    shutil.copytree(tasks, tmp_path / "copied")
    here, there = (lm_eval("tiny_choice", metric="acc", include_path=each) for each in (tasks, tmp_path / "copied"))
    # The copy's file names the same data, so that all is the same.
    assert here.identity == there.identity == lm_eval("tiny_choice", metric="acc", include_path=tasks).identity


def test_an_identity_changes_with_the_task_its_data_its_code_and_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def identity(**arguments: Any) -> str:
        given = {"metric": "acc", "include_path": tmp_path / "tasks", **arguments}
        return str(lm_eval("tiny_choice", **given).identity)

    folder = write_tasks(tmp_path / "tasks")
    found = [identity(), identity(num_fewshot=1), identity(metric="acc_norm"), identity(dtype="bfloat16")]
    (folder / "data.jsonl").write_text((folder / "data.jsonl").read_text().replace("w3 ", "w4 ", 1))
    found.append(identity())
    (folder / "choice.yaml").write_text((folder / "choice.yaml").read_text().replace("{{question}}", "{{question}}?"))
    found.append(identity())
    (folder / "deeper.py").write_text("COUNT = 5\n")
    (folder / "utils.py").write_text(
        "from deeper import COUNT\ndef shorter(docs):\n    return docs.select(range(COUNT))\n"
    )
    whole = (folder / "choice.yaml").read_text()
    (folder / "choice.yaml").write_text(f'{whole[:-1]}, "process_docs": !function utils.shorter}}')
    monkeypatch.syspath_prepend(folder)
    found.append(identity())
    (folder / "deeper.py").write_text("COUNT = 6\n")
    found.append(identity())
    (folder / "utils.py").write_text((folder / "utils.py").read_text() + "# longer\n")
    found.append(identity())
    assert len(set(found)) == len(found)


def test_scores_by_data_that_has_no_digest_are_kept_in_memory_only(abc: Portfolio, tmp_path: Path) -> None:
    write_tasks(tmp_path / "tasks")
    (tmp_path / "tasks" / "utils.py").write_text(
        "import datasets, json, pathlib\n"
        "def made(**_):\n"
        "    lines = (pathlib.Path(__file__).parent / 'data.jsonl').read_text().splitlines()\n"
        "    rows = [json.loads(line) for line in lines]\n"
        "    return {'test': datasets.Dataset.from_list(rows).select([3, 1])}\n"
    )
    whole = (tmp_path / "tasks" / "first.yaml").read_text()
    (tmp_path / "tasks" / "first.yaml").write_text(f'{whole[:-1]}, "custom_dataset": !function utils.made}}')
    evaluator = lm_eval("tiny_first", include_path=tmp_path / "tasks")
    assert evaluator.identity is None
    evaluate(abc, [THIRDS], evaluator, cache=tmp_path / "scores.jsonl")
    assert len((tmp_path / "scores.jsonl").read_text().splitlines()) == 1


# What is refused.


@pytest.mark.parametrize(("name", "complaint"), [
    ("lm_eval:tiny_choice", "metric: tiny_choice has 2, and none is named; one of acc, acc_norm"),
    ("lm_eval:tiny_choice?metric=f1", "metric: got 'f1'; accepted: one of acc, acc_norm, which tiny_choice has"),
    ("lm_eval:tiny_choice?metric=acc&filter=strict", "filter: got 'strict'; accepted: one of none"),
    ("lm_eval:tiny_filters", "filter: tiny_filters has 2; one of first, second"),
    ("lm_eval:tiny_first,tiny_group?metric=acc", "each task once, and not tiny_first again in tiny_group"),
    ("lm_eval:tiny_lost", "evaluator: got FileNotFoundError"),
    ("lm_eval:tiny_first?metrics=acc", "lm_eval: got 'metrics'; accepted: arguments named metric, filter"),
    ("lm_eval:tiny_first?limit", "accepted: lm_eval:TASK?name=value&name=value, each name once"),
    ("lm_eval:tiny_first?limit=1&limit=2", "accepted: lm_eval:TASK?name=value&name=value, each name once"),
    ("lm_eval:?limit=1", "tasks: got ''; accepted: the names of one or more tasks"),
    ("lm_eval:", "accepted: module:function, or linear:PATH.npz"),
])  # fmt: skip
def test_what_is_wrong_with_a_benchmark_is_one_line(name: str, complaint: str, tmp_path: Path) -> None:
    lost = {"dataset_kwargs": {"data_files": {"test": str(tmp_path / "nowhere.jsonl")}}, "task": "tiny_lost"}
    filters = [{"name": each, "filter": [{"function": "take_first"}]} for each in ("first", "second")]
    folder = write_tasks(
        tmp_path / "tasks",
        perplexity=lost,
        second={"task": "tiny_filters", "filter_list": filters, "metric_list": [{"metric": "acc"}]},
    )
    if "tiny_group" in name:
        write_tasks(folder)
    if "include" not in name and ":tiny" in name:
        name += ("&" if "?" in name else "?") + f"include_path={folder}"
    with pytest.raises(InvalidInputError) as caught:
        load_evaluator(name)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_task_is_one_line_of_the_command(abc: Portfolio) -> None:
    home = abc.runs[0].folder.parent
    found = CliRunner().invoke(app, ["frontier", str(home), "--delta", "1e-5", "--evaluator", "lm_eval:no_such_task"])
    assert found.exit_code == 2
    [line] = found.stderr.splitlines()
    assert "got 'lm_eval:no_such_task'; accepted: a task of the harness (lm_eval ls tasks), its YAML file, or" in line


def test_a_run_without_a_configuration_cannot_be_loaded(abc: Portfolio, tasks: Path, tmp_path: Path) -> None:
    home = shutil.copytree(abc.runs[0].folder.parent, tmp_path / "runs")
    (home / "b" / "config.json").unlink()
    with pytest.raises(EvaluationError, match="the run's folder has no config.json: transformers"):
        evaluate(Portfolio.load(home), [THIRDS], lm_eval("tiny_first", include_path=tasks))


@pytest.mark.parametrize(("name", "value", "accepted"), [
    ("metric", "", "a word or a text"), ("include_path", "nowhere", "a folder"), ("include_path", 3, "a folder"),
    ("num_fewshot", -1, "a whole number"), ("num_fewshot", True, "a whole number"), ("limit", 0, "a number of"),
    ("limit", 1.5, "a number of examples"), ("limit", "ten", "a number of examples"), ("batch_size", "auto:x", "a w"),
    ("confirm_run_unsafe_code", "perhaps", "true or false"), ("model_args", "a", "name=value"),
    ("model_args", {"a": object()}, "name=value"), ("gen_kwargs", 3, "name=value"), ("apply_chat_template", 1, "a w"),
])  # fmt: skip
def test_values_of_another_kind_are_refused(name: str, value: Any, accepted: str) -> None:
    with pytest.raises(InvalidInputError, match=f"^{name}: got .*; accepted: {accepted}"):
        from_keywords("task", {name: value})


def test_text_and_keywords_give_the_same_arguments(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "metric": "acc", "filter": "none", "include_path": str(tmp_path), "num_fewshot": 5, "limit": 0.25,
        "batch_size": "auto:4", "max_batch_size": 8, "device": "cuda:1", "dtype": "bfloat16", "model": "hf",
        "model_args": {"trust_remote_code": True, "max_length": 64}, "gen_kwargs": {"temperature": 0.5},
        "metadata": {"length": 4}, "system_instruction": "a & b", "apply_chat_template": True,
        "fewshot_as_multiturn": False, "confirm_run_unsafe_code": True,
    }  # fmt: skip
    assert given.keys() == KINDS.keys()
    text = "&".join(
        f"{name}=" + (",".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else str(value))
        for name, value in {**given, "system_instruction": "a %26 b"}.items()
    )
    assert from_text(f"one,two?{text}") == from_keywords(["one", "two"], given)
    assert from_keywords(["one", "two"], given) == {"tasks": ["one", "two"], **given}
