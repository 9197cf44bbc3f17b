"""Language models scored by the harness lm-eval (extra `lm-eval`), on tasks of its own or of a local file.

Guarantees: a score is what the harness's own command gives for the merged folder with the same arguments, negated where
less is better, over several tasks their mean; tasks and data are loaded once in each process; the random state of the
process is afterwards what it was. Workers whose tasks are other ones than the sender's are refused.
Refuses, in one line: see `lm_eval_arguments` and `lm_eval_tasks`; folders without a configuration.
"""

from __future__ import annotations

import copy
import gc
import json
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dpmerge.errors import InvalidInputError
from dpmerge.evaluation.lm_eval_arguments import Arguments, from_keywords, from_text
from dpmerge.evaluation.lm_eval_output import quiet
from dpmerge.evaluation.lm_eval_tasks import LoadedTasks, TaskDict, load_tasks
from dpmerge.evaluation.path_evaluator import PathEvaluator
from dpmerge.extras import needs_extra
from dpmerge.merging.config_files import ADAPTER_CONFIG

_SEED, _OTHER_SEED = 0, 1234
"""The harness's own, so that a score is what its command gives."""

_resident: dict[str, LoadedTasks] = {}
_at_work = threading.RLock()
"""The harness seeds generators of the whole process, so that two scores at a time would not be reproducible."""


class LmEval(PathEvaluator):
    """What `lm_eval` makes; other processes get its arguments, and load the tasks when they score first."""

    def __init__(self, arguments: Arguments, identity: str | None) -> None:
        super().__init__(self._score, identity=identity)
        self.arguments = arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (json.dumps(self.arguments), self.identity)

    def __repr__(self) -> str:
        return f"lm_eval({','.join(self.arguments['tasks'])!r})"

    def _score(self, folder: Path) -> float:
        with _harness():
            from lm_eval.api.registry import get_model

            kind = get_model(self.arguments.get("model", "hf"))  # imported before anything is kept quiet
        with _at_work, quiet(), _restored_random_state():
            loaded = self.loaded()
            results = _evaluated(kind, folder, self.arguments, _untouched(loaded.tasks, self.arguments))
            return float(np.mean([reading.of(results) for reading in loaded.readings]))

    def loaded(self) -> LoadedTasks:
        """The tasks as they were loaded in this process, or are now."""
        key = json.dumps([self.arguments, self.identity])
        if key not in _resident:
            loaded = load_tasks(self.arguments)
            if loaded.identity != self.identity:
                problem = "lm_eval: its tasks, data or version are other ones here than where scores were asked for"
                remedy = "install the same packages and files for all workers, and start again"
                raise InvalidInputError("lm_eval", None, remedy, problem=problem)
            _resident[key] = loaded
        return _resident[key]


def lm_eval(tasks: str | Sequence[str], **arguments: Any) -> LmEval:
    """An evaluator by benchmarks of the harness lm-eval, more is better: `lm_eval:TASK?name=value&…` in Python.

    The tasks and their data are loaded now, so that what is wrong with them is said before anything is merged. They
    must be public.

    Args:
        tasks: names of tasks, groups or tags of the harness, or YAML files; several are scored by their mean.
        arguments: `metric` and `filter` say which figure, where there are several; `include_path` is a folder of tasks
            of your own; `num_fewshot`, `limit`, `gen_kwargs`, `system_instruction`, `apply_chat_template`,
            `fewshot_as_multiturn`, `confirm_run_unsafe_code`, `metadata`, `batch_size`, `max_batch_size`, `device`
            (by default "cuda" where torch sees a GPU), `dtype`, `model` ("hf") and `model_args` are the harness's.

    Returns:
        The evaluator.

    Raises:
        InvalidInputError: an unknown argument or task, data that does not load, a metric that is not there, or of
            which it is not known whether more is better.
        MissingExtraError: the harness is not installed.

    Example (not run here, since it fetches a benchmark):

        evaluator = lm_eval("hellaswag", metric="acc_norm", num_fewshot=5, limit=200)
        dpm.frontier(portfolio, delta=1e-6, evaluator=evaluator, cache="scores.jsonl")
    """
    with _harness():
        return _made(from_keywords(tasks, arguments))


def lm_eval_named(text: str) -> LmEval:
    """The evaluator of what stands after `lm_eval:` on a command line."""
    with _harness():
        return _made(from_text(text))


def _made(arguments: Arguments) -> LmEval:
    with _at_work, quiet():
        loaded = load_tasks(arguments)
    _resident[json.dumps([arguments, loaded.identity])] = loaded
    return LmEval(arguments, loaded.identity)


def _arrived(arguments: str, identity: str | None) -> LmEval:
    return LmEval(json.loads(arguments), identity)


@contextmanager
def _harness() -> Iterator[None]:
    with needs_extra("lm-eval", by="lm_eval:TASK"):
        import datasets  # noqa: F401
        import lm_eval.evaluator  # noqa: F401
    yield


def _untouched(tasks: TaskDict, arguments: Arguments) -> TaskDict:
    """A copy to work with: the harness writes requests, answers and samples into tasks. Tables are not copied."""
    try:
        return copy.deepcopy(tasks)
    except Exception:  # whatever a task of somebody's own holds
        return load_tasks(arguments).tasks


def _evaluated(kind: Any, folder: Path, arguments: Arguments, tasks: TaskDict) -> dict[str, dict[str, Any]]:
    import torch
    from lm_eval.evaluator import evaluate

    random.seed(_SEED)
    np.random.seed(_OTHER_SEED)
    torch.manual_seed(_OTHER_SEED)
    for task in tasks["tasks"].values():
        task.set_fewshot_seed(seed=_OTHER_SEED)
    device = arguments.get("device") or ("cuda" if torch.cuda.is_available() else "cpu")
    sizes = {"batch_size": arguments.get("batch_size", 1), "max_batch_size": arguments.get("max_batch_size")}
    model = kind.create_from_arg_obj(_model_arguments(folder, arguments), {**sizes, "device": device})
    names = ("limit", "system_instruction", "apply_chat_template", "confirm_run_unsafe_code")
    passed = {name: arguments[name] for name in names if name in arguments}
    try:
        found = evaluate(
            lm=model, task_dict=tasks, bootstrap_iters=0, log_samples=False,
            fewshot_as_multiturn=arguments.get("fewshot_as_multiturn", True), **passed,
        )  # fmt: skip
    finally:
        del model
        gc.collect()  # the next candidate's weights take the place of these
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return dict(found["results"])


def _model_arguments(folder: Path, arguments: Arguments) -> dict[str, Any]:
    """What the harness loads: the folder; of an adapter, the model it was trained on with the folder on top."""
    given = dict(arguments.get("model_args", {}))
    if "dtype" in arguments:
        given["dtype"] = arguments["dtype"]
    if (folder / ADAPTER_CONFIG).exists():
        base = json.loads((folder / ADAPTER_CONFIG).read_text()).get("base_model_name_or_path")
        given.setdefault("pretrained", base)
        if not given["pretrained"]:
            problem = f"{ADAPTER_CONFIG}: base_model_name_or_path does not say which model the adapters are for"
            raise InvalidInputError("model_args", None, "model_args=pretrained=MODEL", problem=problem)
        if (folder / "tokenizer_config.json").exists():
            given.setdefault("tokenizer", str(folder))
        return {**given, "peft": str(folder)}
    if not (folder / "config.json").exists():
        problem = "the run's folder has no config.json: transformers cannot load the model"
        raise InvalidInputError("config.json", None, "put it there, as save_pretrained writes it", problem=problem)
    return {**given, "pretrained": str(folder)}


@contextmanager
def _restored_random_state() -> Iterator[None]:
    """Whoever trains in this process afterwards must not find a seed that everybody knows."""
    import torch

    python, legacy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)
