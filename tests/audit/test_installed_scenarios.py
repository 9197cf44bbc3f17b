"""Scenarios by entry point: the wheel's own, other packages', and what is refused."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points

import pytest

from dpmerge.auditing import installed_scenarios, logistic_scenarios
from dpmerge.auditing.installed_scenarios import GROUP, chosen_scenarios
from dpmerge.errors import InvalidInputError
from entry_points import declared_scenarios


def offered(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    points = [EntryPoint(name=name, value=value, group=GROUP) for name, value in values.items()]
    monkeypatch.setattr(installed_scenarios, "entry_points", lambda group: [*declared_scenarios(), *points])


def test_the_project_declares_every_scenario_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    offered(monkeypatch)
    found = installed_scenarios.installed_scenarios()
    assert found == {scenario.name: scenario for scenario in logistic_scenarios.SCENARIOS}


def test_the_installed_scenarios_are_those_that_the_project_declares() -> None:
    """Fails where an older version is installed than the one that is tested."""
    own = {point for point in entry_points(group=GROUP) if point.value.startswith("dpmerge.")}
    assert {(point.name, point.value) for point in own} == {(p.name, p.value) for p in declared_scenarios()}


def test_a_scenario_of_another_package_is_found_and_chosen_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    own = replace(logistic_scenarios.LOGISTIC, name="another")
    monkeypatch.setattr(logistic_scenarios, "ANOTHER", own, raising=False)
    offered(monkeypatch, another="dpmerge.auditing.logistic_scenarios:ANOTHER")
    found = installed_scenarios.installed_scenarios()
    assert found["another"] is own
    assert chosen_scenarios(["another", "logistic", "another"], found) == [own, logistic_scenarios.LOGISTIC]
    assert len(chosen_scenarios(["all"], found)) == len(found)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("broken", "no_such_package:SCENARIO", "no_such_package:SCENARIO, which cannot be loaded: No module named"),
        ("broken", "dpmerge.auditing.logistic_scenarios:NONE", "which cannot be loaded"),
        ("misnamed", "dpmerge.auditing.logistic_scenarios:LOGISTIC", "which has another name or no `play`"),
        ("number", "dpmerge.auditing.logistic_scenarios:FEATURE", "which has another name or no `play`"),
        ("logistic", "dpmerge.auditing.logistic_scenarios:LOGISTIC", "two installed packages offer 'logistic'"),
    ],
)
def test_an_entry_point_that_offers_no_scenario_is_refused(
    name: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [*declared_scenarios(), EntryPoint(name=name, value=value, group=GROUP)]
    monkeypatch.setattr(installed_scenarios, "entry_points", lambda group: points)
    with pytest.raises(InvalidInputError) as refused:
        installed_scenarios.installed_scenarios()
    assert words in str(refused.value)
