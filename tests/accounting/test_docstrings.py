"""What public functions say of themselves: arguments, results, an example that runs."""

from __future__ import annotations

import inspect
import re

import pytest

import dpmerge as dpm
from dpmerge import accounting
from dpmerge.design import design
from dpmerge.planning import candidates, frontier, planner, usable_checkpoints

FUNCTIONS = {
    **{name: value for name in accounting.__all__ if inspect.isfunction(value := getattr(accounting, name))},
    "plan": planner.plan,
    "release_alternatives": planner.release_alternatives,
    "frontier": frontier.frontier,
    "design": design.design,
    "parse_range": design.parse_range,
    "candidate": candidates.candidate,
    "usable_checkpoints": usable_checkpoints.usable_checkpoints,
}
CLASSES = {
    **{name: value for name in accounting.__all__ if inspect.isclass(value := getattr(accounting, name))},
    **{each.__name__: each for each in (dpm.Guarantee, dpm.Prior, dpm.PublicEvaluation, dpm.PrivateValidation)},
}
del CLASSES["Comparison"]  # what `compare` returns; the example is there


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_says_what_it_takes_and_returns_with_an_example(name: str) -> None:
    text = inspect.getdoc(FUNCTIONS[name]) or ""
    parameters = inspect.signature(FUNCTIONS[name]).parameters
    documented = re.findall(r"^    (\w+): ", text.split("Args:")[1].split("Returns:")[0], re.MULTILINE)
    assert documented == list(parameters)
    assert "Returns:" in text
    assert ">>> " in text


@pytest.mark.parametrize("name", CLASSES)
def test_a_public_class_has_an_example(name: str) -> None:
    assert ">>> " in (CLASSES[name].__doc__ or "")
