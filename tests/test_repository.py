"""What holds the repository together: markers, the hosted workflow, versions, names of files in CONTRIBUTING.md."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import dpmerge
from conftest import HERE, LONG, SLOW, slow_marks, starts_processes, trains

ROOT = HERE.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_workflow_calls_the_targets_of_the_makefile_and_nothing_else() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    [job] = workflow["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    called = re.findall(r"^make (\w+)$", (ROOT / ".ci" / "run").read_text(), re.M)
    assert called == ["check", "chromium", "docs", "test", "package"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.M) for target in called)


def test_no_version_of_python_is_claimed_that_the_workflow_does_not_run() -> None:
    [job] = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"].values()
    named = (re.search(r":: Python :: (3\.\d+)$", line) for line in PROJECT["project"]["classifiers"])
    assert {found[1] for found in named if found} <= set(job["strategy"]["matrix"]["python"])


def test_every_install_is_held_to_the_constraints() -> None:
    for file in ("Makefile", ".ci/package"):
        text = re.sub(r"\\\n", " ", (ROOT / file).read_text())
        for line in re.findall(r"^.*-m pip install.*$", text, re.M):
            assert "--constraint constraints.txt" in line, line
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text().split()


def test_the_demo_installs_no_test_tools() -> None:
    [recipe] = re.findall(r"^\$\(DEMO_INSTALLED\):.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)
    assert re.search(r"--editable \.$", recipe, re.M)
    assert "--group" not in recipe
    assert "torch" not in recipe


def test_the_version_is_the_same_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)[0]
    assert citation["version"] == newest == dpmerge.__version__


def test_no_rule_on_names_is_ignored_by_the_linter() -> None:
    assert not [rule for rule in PROJECT["tool"]["ruff"]["lint"]["ignore"] if rule.startswith("N")]


def test_files_that_contributors_are_sent_to_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"`((?:src|tests|docs)/[\w./-]+)`", text))
    assert len(named) > 20
    sent = {name for name in named if "VERB" not in name and ("/terms/" not in name or terms_exist())}
    assert [name for name in sorted(sent) if not (ROOT / name).exists()] == []


def terms_exist() -> bool:
    return (ROOT / "src" / "dpmerge" / "terms").is_dir()


# Markers


def test_every_test_is_quick_or_says_why_not(request: pytest.FixtureRequest) -> None:
    known = {line.split(":")[0] for line in PROJECT["tool"]["pytest"]["ini_options"]["markers"]}
    for item in request.session.items:
        marks = {mark.name for mark in item.iter_markers()} & known
        assert marks == set(slow_marks(item) or ("quick",)), item.nodeid


def test_slow_places_exist() -> None:
    moved = {"experiments", "reproduction"}  # one of them does
    assert [place for place in SLOW if not (HERE / place).exists() and place not in moved] == []
    assert any((HERE / place).exists() for place in moved)


def test_long_tests_exist_under_their_names() -> None:
    """One that was renamed would be quick all of a sudden; `make quick` has a minute and a half."""
    defined = {name for file in HERE.rglob("test_*.py") for name in re.findall(r"def (test_\w+)\(", file.read_text())}
    assert defined >= LONG


def test_tests_that_train_or_start_processes_are_recognised(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("import numpy\ntorch = None\n")
    (tmp_path / "network.py").write_text("def f():\n    from torch import nn\n")
    assert not trains(tmp_path / "plain.py")
    assert trains(tmp_path / "network.py")
    assert starts_processes(test_a_test_may_start_a_process_through_its_helper)
    assert not starts_processes(test_slow_places_exist)


def helper() -> object:
    def nested() -> object:
        import subprocess

        return subprocess.run

    return nested


def test_a_test_may_start_a_process_through_its_helper() -> None:
    assert helper()
