"""Tasks of the harness lm-eval, loaded once: what they measure, in which direction, and what they depend on.

Guarantees: the identity covers the versions of harness and transformers, the arguments, each task's configuration, its
data as loaded, and the source of local code; where one of these cannot be known there is none.
Refuses, in one line: tasks that do not load, metrics and filters that are not there or not told apart, metrics of which
nobody says whether more is better.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dpmerge.errors import InvalidInputError
from dpmerge.evaluation.lm_eval_arguments import Arguments

TaskDict = dict[str, dict[str, Any]]
"""Tasks, groups and their members, as the harness has them."""

_LOCAL = ("*.yaml", "*.yml", "*.py")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One figure of the harness's results; negated where less is better."""

    name: str  # of a task, or of a group that has a figure of its own
    metric: str
    filter: str | None  # None: the only one there is
    sign: int

    def of(self, results: Mapping[str, Mapping[str, Any]]) -> float:
        found = {key: value for key, value in results[self.name].items() if key.startswith(f"{self.metric},")}
        chosen = [key for key in found if self.filter is None or key == f"{self.metric},{self.filter}"]
        if len(chosen) != 1:
            raise InvalidInputError("filter", self.filter, _one_of(key.partition(",")[2] for key in found))
        return self.sign * float(found[chosen[0]])


@dataclass(frozen=True, kw_only=True)
class LoadedTasks:
    """Tasks with their data, and what is read of their results: the score is the mean."""

    tasks: TaskDict
    readings: tuple[Reading, ...]
    identity: str | None


def load_tasks(arguments: Arguments) -> LoadedTasks:
    """The tasks of the arguments, with their settings."""
    loaded = _loaded(arguments)
    readings: list[Reading] = []
    tasks: TaskDict = {"tasks": {}, "groups": {}, "group_map": {}}
    for name, found in loaded.items():
        if twice := sorted(tasks["tasks"].keys() & found["tasks"].keys()):
            raise InvalidInputError("tasks", ",".join(loaded), f"each task once, and not {twice[0]} again in {name}")
        readings += _readings(found, arguments)
        for part, members in found.items():
            tasks[part].update(members)
    for task in tasks["tasks"].values():
        _set_up(task, arguments)
    return LoadedTasks(tasks=tasks, readings=tuple(readings), identity=_identity(arguments, tasks, readings))


def _loaded(arguments: Arguments) -> dict[str, TaskDict]:
    from lm_eval.tasks import TaskManager

    names, folder = arguments["tasks"], arguments.get("include_path")
    metadata = {**arguments.get("model_args", {}), **arguments.get("metadata", {})}
    # To know all tasks of the harness takes seconds: not where those in the folder are enough.
    for all_of_them in (False, True):
        manager = TaskManager(include_path=folder, include_defaults=all_of_them, metadata=metadata)
        known = all(name in manager.task_index or Path(name).is_file() for name in names)
        try:
            if known:
                return {name: manager.load([name]) for name in names}
        except (Exception, SystemExit) as error:
            if isinstance(error, LookupError | ValueError) and not all_of_them:
                continue  # a group of one's own may have members that are the harness's
            told = " ".join(f"{type(error).__name__}: {error}".split())
            accepted = "tasks that load; their data must be there, or be allowed to be fetched"
            raise InvalidInputError("evaluator", ",".join(names), accepted, found=told) from error
    unknown = next(name for name in names if name not in manager.task_index and not Path(name).is_file())
    accepted = "a task of the harness (lm_eval ls tasks), its YAML file, or one in include_path=FOLDER"
    raise InvalidInputError("evaluator", f"lm_eval:{unknown}", accepted)


def _set_up(task: Any, arguments: Arguments) -> None:
    """As the harness's own command does."""
    if task.get_config("output_type") == "generate_until" and "gen_kwargs" in arguments:
        task.set_config(key="generation_kwargs", value=arguments["gen_kwargs"], update=True)
    stated = task.get_config("num_fewshot")
    if "num_fewshot" in arguments and stated != 0:
        task.set_config(key="num_fewshot", value=arguments["num_fewshot"])
    elif stated is None:
        task.set_config(key="num_fewshot", value=0)


# What is read of the results.


def _readings(found: TaskDict, arguments: Arguments) -> Iterator[Reading]:
    members = {child for children in found["group_map"].values() for child in children}
    whole = [group for name, group in found["groups"].items() if name not in members and group.has_aggregation]
    if len(whole) == 1:
        [group] = whole
        metric = _metric(group.name, [each.metric for each in group.aggregate_metric_list], arguments)
        signs = {_sign(task, metric) for task in found["tasks"].values() if metric in _metrics(task)}
        if len(signs) != 1:
            raise InvalidInputError("metric", metric, f"one of which more, or less, is better in all of {group.name}")
        yield Reading(name=group.name, metric=metric, filter=arguments.get("filter"), sign=signs.pop())
        return
    for name, task in found["tasks"].items():
        metric = _metric(name, _metrics(task), arguments)
        filters = [each.name for each in getattr(task, "_filters", ())] or ["none"]
        chosen = arguments.get("filter")
        if chosen not in filters and (chosen is not None or len(filters) > 1):
            problem = None if chosen else f"filter: {name} has {len(filters)}"
            raise InvalidInputError("filter", chosen, _one_of(filters), problem=problem)
        yield Reading(name=name, metric=metric, filter=chosen, sign=_sign(task, metric))


def _metrics(task: Any) -> list[str]:
    return list(task.aggregation() or ())


def _metric(name: str, present: Iterable[str], arguments: Arguments) -> str:
    metrics, chosen = sorted(set(present)), arguments.get("metric")
    if chosen is None and len(metrics) == 1:
        return metrics[0]
    if chosen is None:
        problem = f"metric: {name} has {len(metrics)}, and none is named"
        raise InvalidInputError("metric", None, _one_of(metrics), problem=problem)
    if chosen not in metrics:
        raise InvalidInputError("metric", chosen, f"{_one_of(metrics)}, which {name} has")
    return str(chosen)


def _sign(task: Any, metric: str) -> int:
    better = (task.higher_is_better() or {}).get(metric)
    if not isinstance(better, bool):
        problem = f"metric: nobody says whether more {metric} is better in {task.task_name}"
        raise InvalidInputError("metric", metric, "state higher_is_better in the task's metric_list", problem=problem)
    return 1 if better else -1


def _one_of(names: Iterable[str]) -> str:
    return "one of " + (", ".join(sorted(names)) or "none")


# What scores depend on.


def _identity(arguments: Arguments, tasks: TaskDict, readings: Iterable[Reading]) -> str | None:
    """Without paths: it stands in plans and certificates."""
    try:
        known = [
            [version(package) for package in ("lm_eval", "transformers")],
            {name: value for name, value in arguments.items() if name != "include_path"},
            [vars(reading) for reading in readings],
            {name: [_configuration(task), list(_data(task.dataset))] for name, task in tasks["tasks"].items()},
            {name: _group(group) for name, group in tasks["groups"].items()},
            sorted(_local_sources(arguments, tasks)),
        ]
    except _UnknowableError:
        return None
    digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()
    metrics = ",".join(sorted({reading.metric for reading in readings}))
    return f"lm_eval:{','.join(Path(name).name for name in arguments['tasks'])} {metrics} {digest}"


class _UnknowableError(Exception):
    """Something a score depends on has no digest."""


def _configuration(task: Any) -> Any:
    return [task.VERSION, _plain(task.config.to_dict(keep_callable=True))]


def _group(group: Any) -> Any:
    return [group.version, group.child_names, _plain([vars(each) for each in group.aggregate_metric_list or ()])]


def _plain(value: Any) -> Any:
    """As JSON has it; functions as the digest of their source."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items() if name != "config_source"}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return _source(value) if callable(value) else _unknowable()


def _source(function: Callable[..., object]) -> Any:
    """The digest of the whole file: what a function calls is as much a part of it."""
    try:
        return hashlib.sha256(Path(inspect.getfile(function)).read_bytes()).hexdigest()
    except (TypeError, OSError):
        return _unknowable()


def _data(dataset: Any) -> Iterator[list[str]]:
    """Of every split a digest of its rows as loaded, wherever they came from."""
    if not isinstance(dataset, Mapping):
        _unknowable()
    for split, rows in sorted(dataset.items()):
        digest = hashlib.sha256()
        for row in _rows(rows):
            digest.update(json.dumps(row, sort_keys=True, default=repr).encode() + b"\n")
        yield [str(split), digest.hexdigest()]


def _rows(rows: Any) -> Iterator[Any]:
    """One by one; of a table as stored, without decoding images or sound."""
    table = getattr(getattr(rows, "data", None), "table", None)
    if isinstance(rows, list):
        yield from rows
    elif table is None or getattr(rows, "_indices", None) is not None:
        _unknowable()
    else:
        for batch in table.to_batches(max_chunksize=1000):
            yield from batch.to_pylist()


def _local_sources(arguments: Arguments, tasks: TaskDict) -> Iterator[str]:
    """Digests of the YAML and Python files beside tasks that did not come with the harness."""
    import lm_eval

    own = Path(lm_eval.__file__).parent
    sources = [(task.config.metadata or {}).get("config_source", "inline") for task in tasks["tasks"].values()]
    places = {Path(source).resolve().parent for source in sources if source != "inline"}
    if "include_path" in arguments:
        places.add(Path(arguments["include_path"]).resolve())
    for place in sorted(each for each in places if not each.is_relative_to(own)):
        for file in sorted({file for pattern in _LOCAL for file in place.rglob(pattern)}):
            yield hashlib.sha256(file.name.encode() + b"\0" + file.read_bytes()).hexdigest()


def _unknowable() -> Any:
    raise _UnknowableError
