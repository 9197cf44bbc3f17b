"""The scenarios that installed packages offer to `dpmerge audit --scenario`, by entry points.

A package offers a scenario under its own name, in the group `dpmerge.audit_scenarios` of its pyproject.toml:

    [project.entry-points."dpmerge.audit_scenarios"]
    my_scenario = "my_package.my_module:MY_SCENARIO"

Guarantees: a name means one scenario.
Refuses: two packages that offer one name, packages that cannot be loaded, things that cannot be played.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points

from dpmerge.auditing.scenario import AuditScenario
from dpmerge.errors import InvalidInputError

GROUP = "dpmerge.audit_scenarios"


def installed_scenarios() -> dict[str, AuditScenario]:
    """Every scenario that is installed, by name."""
    found: dict[str, AuditScenario] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        if point.name in found:
            problem = f"scenario: two installed packages offer {point.name!r}"
            raise InvalidInputError("scenario", point.name, "remove one of them", problem=problem)
        found[point.name] = _loaded(point)
    return found


def _loaded(point: EntryPoint) -> AuditScenario:
    try:
        scenario = point.load()
    except (ImportError, AttributeError) as error:
        problem = f"scenario: {point.name} is {point.value}, which cannot be loaded: {error}"
        raise InvalidInputError("scenario", point.name, "repair or remove that package", problem=problem) from None
    if getattr(scenario, "name", None) != point.name or not callable(getattr(scenario, "play", None)):
        problem = f"scenario: {point.name} is {point.value}, which has another name or no `play`"
        raise InvalidInputError("scenario", point.name, "repair or remove that package", problem=problem)
    return scenario  # type: ignore[no-any-return]


def chosen_scenarios(
    asked: Sequence[str], known: Mapping[str, AuditScenario], *, elsewhere: str = ""
) -> list[AuditScenario]:
    """Those asked for, each once; `all` is every one that is known. `elsewhere` says where there are others."""
    for name in asked:
        if name not in (*known, "all"):
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise InvalidInputError("scenario", name, f"{hint}list, all, or one of {', '.join(known)}{elsewhere}")
    return list(known.values()) if "all" in asked else [known[name] for name in dict.fromkeys(asked)]
