"""What the harness lm-eval is asked to do: by keywords in Python, or as `TASK[,TASK]?name=value&…` on a command line.

Guarantees: both give the same arguments, in one form that JSON keeps.
Refuses: names the harness is not given here, values of another kind, no task.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from dpmerge.errors import InvalidInputError

Arguments = dict[str, Any]


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("a word or a text")
    return value


def _folder(value: Any) -> str:
    try:
        folder = str(Path(value).absolute())
    except TypeError:
        folder = ""
    if not folder or not Path(folder).is_dir():
        raise ValueError("a folder with the YAML files of tasks")
    return folder


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not str(value).isdigit():
        raise ValueError("a whole number")
    return int(value)


def _limit(value: Any) -> int | float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if isinstance(value, bool) or not (0 < number < 1 or (number >= 1 and number.is_integer())):
        raise ValueError("a number of examples, or a fraction of them between 0 and 1")
    return number if number < 1 else int(number)


def _batch(value: Any) -> int | str:
    word, _, often = str(value).partition(":")
    if word == "auto" and (not often or often.isdigit()):
        return str(value)
    try:
        return _whole(value)
    except ValueError:
        raise ValueError("a whole number, auto or auto:N") from None


def _yes_or_no(value: Any) -> bool:
    found = {"true": True, "false": False}.get(str(value).lower())
    if found is None:
        raise ValueError("true or false")
    return found


def _yes_no_or_name(value: Any) -> bool | str:
    try:
        return _yes_or_no(value)
    except ValueError:
        return _text(value)


def _settings(value: Any) -> dict[str, Any]:
    accepted = "name=value,name=value; in Python a dictionary of what JSON has"
    if isinstance(value, str):
        from lm_eval.utils import simple_parse_args_string

        if not all("=" in pair for pair in value.split(",")):
            raise ValueError(accepted)
        return dict(simple_parse_args_string(value))
    try:
        return dict(json.loads(json.dumps(dict(value), allow_nan=False)))
    except (TypeError, ValueError):
        raise ValueError(accepted) from None


KINDS: Mapping[str, Callable[[Any], Any]] = {
    "metric": _text,
    "filter": _text,
    "include_path": _folder,
    "num_fewshot": _whole,
    "limit": _limit,
    "batch_size": _batch,
    "max_batch_size": _whole,
    "device": _text,
    "dtype": _text,
    "model": _text,
    "model_args": _settings,
    "gen_kwargs": _settings,
    "metadata": _settings,
    "system_instruction": _text,
    "apply_chat_template": _yes_no_or_name,
    "fewshot_as_multiturn": _yes_or_no,
    "confirm_run_unsafe_code": _yes_or_no,
}
"""What may be given, and what makes it of a text or of a value."""


def from_keywords(tasks: str | Sequence[str], given: Mapping[str, Any]) -> Arguments:
    """The arguments in one form; what is None was not given.

    >>> from_keywords("hellaswag,piqa", {"metric": "acc", "limit": "100", "device": None})
    {'tasks': ['hellaswag', 'piqa'], 'limit': 100, 'metric': 'acc'}
    """
    names = tasks.split(",") if isinstance(tasks, str) else list(tasks)
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise InvalidInputError("tasks", tasks, "the names of one or more tasks, comma-separated")
    found: Arguments = {"tasks": [name.strip() for name in names]}
    for name, value in sorted(given.items()):
        if name not in KINDS:
            raise InvalidInputError("lm_eval", name, f"arguments named {', '.join(KINDS)}")
        if value is not None:
            try:
                found[name] = KINDS[name](value)
            except ValueError as error:
                raise InvalidInputError(name, value, str(error)) from None
    return found


def from_text(text: str) -> Arguments:
    """The arguments as they are written after `lm_eval:`; %26 stands for an & within a value.

    >>> from_text("hellaswag?metric=acc_norm&num_fewshot=5")
    {'tasks': ['hellaswag'], 'metric': 'acc_norm', 'num_fewshot': 5}
    """
    tasks, _, query = text.partition("?")
    given: dict[str, str] = {}
    for pair in query.split("&") if query else ():
        name, equals, value = pair.partition("=")
        if not equals or name in given:
            accepted = "lm_eval:TASK?name=value&name=value, each name once"
            raise InvalidInputError("evaluator", f"lm_eval:{text}", accepted)
        given[name] = unquote(value)
    return from_keywords(unquote(tasks), given)
