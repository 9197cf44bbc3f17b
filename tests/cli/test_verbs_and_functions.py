"""Python does what the commands do: every option of a verb is a parameter of its function, and the other way round.

`VERBS` pairs each verb with its public function. An option and a parameter of one name are a pair by themselves; the
table names only what differs, and gives a reason for what one side has and the other has not. A new verb, option or
parameter fails here until it has its pair or its reason.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import typer.main

import dpmerge as dpm
from dpmerge.account_spec import Spec
from dpmerge.certificate.keys import generate
from dpmerge.cli import app
from dpmerge.design.design import design
from dpmerge.examples import write_example
from dpmerge.executors import open_executor
from dpmerge.planning.feasible_set import FeasibleSet
from dpmerge.portfolio.manifest_check import check_manifest
from dpmerge.portfolio.manifest_draft import write_manifest
from dpmerge.portfolio.manifest_template import write_template
from dpmerge.releasing.chargeable import why_not_chargeable
from dpmerge.releasing.json_schemas import json_schema
from dpmerge.releasing.manifest_upgrade import upgrade_manifests
from dpmerge.releasing.revoking import read_revocations, renew, revoke
from dpmerge.releasing.timestamping import attach_timestamp, fetch_timestamp, request_timestamp

PRINTING = {"as_json": "how the result is printed, not what it is"}
CHECKED = {"delta": "the δ of the check that is printed: check_manifest"}
PROGRESS = {"progress": "a function to call while working; the verb draws a bar with it"}
PASSPHRASE = {"passphrase": "the verb asks for it at the terminal, or takes it from the environment"}
CONFIRMED = {"yes": "the verb shows the request and asks at the terminal, unless this is given"}
LOADED = "a portfolio is loaded before: Portfolio.load has --allow and --headers-only"
LOAD = {
    "portfolio": (dpm.Portfolio.load, "path"),
    "allow": (dpm.Portfolio.load, "allow"),
    "headers_only": (dpm.Portfolio.load, "contents"),
    "rehash": (dpm.Portfolio.load, "rehash"),
}
OPENED = {
    "portfolio": (dpm.Ledger.of, "portfolio"),
    "ledger": (dpm.Ledger.of, "ledger"),
    "insecure_permissions": (dpm.Ledger.of, "insecure_permissions"),
}

WORKERS = {"workers_per_node": (open_executor, "workers_per_node")}

Parameter = tuple[Callable[..., Any], str]


@dataclass(frozen=True, kw_only=True)
class Verb:
    """A verb's function, and in what the two differ.

    `renamed`: option → parameter of the function. `elsewhere`: option → parameter of something that is made first and
    then given to the function. `only_command`, `only_python`: name → why the other side has nothing like it.
    """

    function: Callable[..., Any]
    renamed: Mapping[str, str] = field(default_factory=dict)
    elsewhere: Mapping[str, Parameter] = field(default_factory=dict)
    only_command: Mapping[str, str] = field(default_factory=dict)
    only_python: Mapping[str, str] = field(default_factory=dict)
    other_default: Mapping[str, str] = field(default_factory=dict)


VERBS = {
    "account": Verb(
        function=Spec.compare,
        elsewhere={"spec": (Spec.read, "path")},
    ),
    "inspect": Verb(
        function=dpm.inspect,
    ),
    "design": Verb(
        function=design,
        renamed={"epsilons": "low"},
        only_python={"high": "the other end of --range LOW:HIGH"},
    ),
    "plan": Verb(
        function=dpm.plan,
        elsewhere={
            **LOAD,
            "prior": (dpm.Prior, "utilities"),
            "evaluator": (dpm.PublicEvaluation, "evaluator"),
            "tuning": (dpm.PublicEvaluation, "tuning"),
            "look": (dpm.PublicEvaluation, "look"),
            "evaluations": (dpm.PublicEvaluation, "evaluations"),
            "cache": (dpm.PublicEvaluation, "cache"),
            "jobs": (dpm.PublicEvaluation, "executor"),
            "executor": (dpm.PublicEvaluation, "executor"),
            **WORKERS,
            "validation_epsilon": (dpm.PrivateValidation, "epsilon"),
            "disjoint": (dpm.PrivateValidation, "disjoint_vouched_by"),
            "records_per_unit": (dpm.PrivateValidation, "records_per_unit"),
            "ledger": (why_not_chargeable, "ledger"),
            "insecure_permissions": (why_not_chargeable, "insecure_permissions"),
        },
        only_command={"output": "writes plan.document()", "suggest": "prints plan.suggestions()"},
        only_python={"portfolio": LOADED, "target": "Guarantee(epsilon=, delta=), instead of the two"},
    ),
    "feasible": Verb(
        function=dpm.feasible_set,
        elsewhere={**LOAD, "grid": (FeasibleSet.grid, "grid")},
        only_command={
            "output": "writes the set as a table: report.feasible_table",
            "picture": "draws the set: report.feasible_plot",
        },
        only_python={"portfolio": LOADED},
    ),
    "frontier": Verb(
        function=dpm.frontier,
        renamed={"face": "faces", "jobs": "executor"},
        elsewhere={**LOAD, **WORKERS},
        only_command={
            "output": "writes the result as a page: report.page.write_page",
            "figures": "writes the result as figures and tables: report.pictures, report.numbers",
            "plain": "how the result is printed",
        },
        only_python={"portfolio": LOADED, **PROGRESS},
        other_default={"executor": "the verb has one worker by default, as the function without an executor"},
    ),
    "merge": Verb(
        function=dpm.release,
        renamed={"output": "out"},
        elsewhere={
            "portfolio": LOAD["portfolio"],
            "allow": LOAD["allow"],
            **{name: (dpm.prepare, name) for name in ("epsilon", "delta", "weights", "method", "objective", "theorem")},
            "plan_file": (dpm.prepare, "plan"),
            **WORKERS,
        },
        only_python={"plan": "what prepare makes of the other options", **PROGRESS, **PASSPHRASE},
    ),
    "verify": Verb(function=dpm.verify, renamed={"output": "out"}),
    "keygen": Verb(
        function=generate,
        renamed={"output": "path"},
        other_default={"passphrase": "the verb says whether, and asks for it"},
    ),
    "audit": Verb(
        function=dpm.audit,
        elsewhere=WORKERS,
        only_command={
            "picture": "draws the result: report.trade_off",
            "scenario": "plays installed scenarios: auditing.installed_scenarios",
        },
        only_python={"tell": "called with what takes long; the verb prints it"},
    ),
    "example": Verb(function=write_example),
    "manifest new": Verb(function=write_template),
    "manifest write": Verb(function=write_manifest, only_command=CHECKED),
    "manifest check": Verb(function=check_manifest, renamed={"file": "path"}),
    "manifest schema": Verb(function=json_schema),
    "import": Verb(
        function=dpm.import_models,
        only_command=CHECKED,
        only_python={"ask": "the verb asks at the terminal"},
    ),
    "manifest upgrade": Verb(function=upgrade_manifests),
    "ledger show": Verb(
        function=dpm.Ledger.reports,
        renamed={"everything": "newest"},
        elsewhere=OPENED,
        other_default={"newest": "the function lists all, the verb as many as somebody reads"},
    ),
    "ledger spent": Verb(
        function=dpm.Ledger.reports, elsewhere=OPENED, only_python={"newest": "the verb lists no releases"}
    ),
    "ledger cap": Verb(function=dpm.Ledger.cap, only_python=PASSPHRASE),
    "ledger policy": Verb(
        function=dpm.Ledger.change_policy, renamed={"person": "people"}, elsewhere=OPENED, only_python=PASSPHRASE
    ),
    "ledger approve": Verb(
        function=dpm.Ledger.approve, elsewhere=OPENED, only_command=CONFIRMED, only_python=PASSPHRASE
    ),
    "ledger deny": Verb(function=dpm.Ledger.deny, elsewhere=OPENED, only_command=CONFIRMED, only_python=PASSPHRASE),
    "ledger recover": Verb(
        function=dpm.Ledger.recover, elsewhere={**OPENED, **WORKERS}, only_python={**PROGRESS, **PASSPHRASE}
    ),
    "ledger verify": Verb(function=dpm.Ledger.verify, elsewhere=OPENED),
    "ledger export": Verb(function=dpm.Ledger.export, elsewhere=OPENED),
    "revocations add": Verb(function=revoke, only_python=PASSPHRASE),
    "revocations renew": Verb(function=renew, only_python=PASSPHRASE),
    "revocations show": Verb(function=read_revocations),
    "timestamp request": Verb(function=request_timestamp),
    "timestamp attach": Verb(function=attach_timestamp),
    "timestamp fetch": Verb(function=fetch_timestamp),
}

UNPAIRED = {
    "reproduce": "the paper's experiments, which are no part of the library",
}


def commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every verb with what Typer made of it."""
    command = typer.main.get_command(app) if command is None else command
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, (*path, name))
    if not hasattr(command, "commands"):
        yield " ".join(path), command


COMMANDS = dict(commands())
PAIRED = sorted(VERBS)


def options(name: str) -> dict[str, Any]:
    """Option → default, but for those every verb has."""
    return {str(each.name): each.default for each in COMMANDS[name].params if each.name not in PRINTING}


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return {name: each for name, each in inspect.signature(function).parameters.items() if name != "self"}


def test_every_verb_has_a_function_or_a_reason() -> None:
    assert sorted([*VERBS, *UNPAIRED]) == sorted(COMMANDS)


@pytest.mark.parametrize("name", PAIRED)
def test_every_option_of_a_verb_has_a_parameter_or_a_reason(name: str) -> None:
    verb = VERBS[name]
    known = {*parameters(verb.function), *verb.renamed, *verb.elsewhere, *verb.only_command}
    assert sorted(set(options(name)) - known) == []


@pytest.mark.parametrize("name", PAIRED)
def test_every_parameter_of_a_function_has_an_option_or_a_reason(name: str) -> None:
    verb = VERBS[name]
    direct = set(options(name)) - {*verb.elsewhere, *verb.only_command, *verb.renamed}
    assert sorted(set(parameters(verb.function)) - {*direct, *verb.renamed.values(), *verb.only_python}) == []


@pytest.mark.parametrize("name", PAIRED)
def test_the_table_names_only_what_is_there(name: str) -> None:
    verb, given = VERBS[name], options(name)
    assert set(verb.only_command) <= set(given)
    assert set(verb.renamed) <= set(given)
    assert {each for each in verb.elsewhere if each not in given} <= set(LOAD), "shared rows may name more"
    assert {*verb.renamed.values(), *verb.only_python, *verb.other_default} <= set(parameters(verb.function))
    for function, parameter in verb.elsewhere.values():
        assert parameter in parameters(function), (function, parameter)


@pytest.mark.parametrize("name", PAIRED)
def test_an_option_and_its_parameter_have_the_same_default(name: str) -> None:
    verb = VERBS[name]
    for option, default in options(name).items():
        if option in {*verb.elsewhere, *verb.only_command}:
            continue
        parameter = parameters(verb.function)[verb.renamed.get(option, option)]
        if parameter.name in verb.other_default or parameter.default is inspect.Parameter.empty:
            continue
        agreed = str(default) == str(parameter.default) or (not default and not parameter.default)
        assert agreed, (option, default, parameter.default)


def test_tests_notice_an_option_without_a_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VERBS, "verify", Verb(function=lambda out, portfolio: None, renamed={"output": "out"}))
    with pytest.raises(AssertionError, match="rebuild"):
        test_every_option_of_a_verb_has_a_parameter_or_a_reason("verify")


def test_tests_notice_a_parameter_without_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VERBS, "ledger verify", Verb(function=lambda strict: None, elsewhere=OPENED))
    with pytest.raises(AssertionError, match="strict"):
        test_every_parameter_of_a_function_has_an_option_or_a_reason("ledger verify")
