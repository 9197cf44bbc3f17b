"""Settings shared by all tests: reproducible hypothesis runs, the reference numbers, and which tests are quick.

A test is quick unless it is seen to train, to open a browser, to ask a server, to start processes, or to lie where
things take long. What it uses says so: nothing is marked by hand, and a test that moves takes it along.
"""

from __future__ import annotations

import inspect
import json
import re
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("dpmerge", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("dpmerge"), max_examples=20)
settings.load_profile("dpmerge")

HERE = Path(__file__).parent
DATA = HERE / "data"

SLOW = (
    "attacks",
    "audit",
    "design",
    "notebook",
    "oracle",
    "reproduction",
    "site",
    "training",
    "usefulness",
    "accounting/test_spectrum_attacks.py",
    "planning/test_brute_force.py",
    "planning/test_sampled_portfolios.py",
    "releasing/test_faults.py",
)
"""Where tests simulate, attack, train, enumerate, build the site or break things step by step: minutes together."""

LONG = {
    "test_a_release_above_the_cap_is_refused_by_every_rule",
    "test_a_stronger_method_or_accounting_is_nowhere_worse",
    "test_all_prefixes_of_a_long_sampled_run_fit_in_memory",
    "test_composing_in_any_order_costs_the_same",
    "test_composing_in_groups_costs_the_same",
    "test_discretising_takes_nothing_from_the_divergence",
    "test_epsilon_is_at_least_the_truth_and_at_most_a_little_more",
    "test_every_mutated_input_is_refused_by_name_or_consistent",
    "test_every_program_on_a_small_grid_is_solved_exactly",
    "test_frontier_prints_within_80_columns_and_its_json_has_every_curve",
    "test_frontier_writes_the_page_and_the_figures_asked_for",
    "test_merged_trajectory_bounds_a_shared_affine_map",
    "test_mix_is_at_least_as_good_as_selection_and_combination",
    "test_more_noise_is_more_private",
    "test_no_sequence_of_releases_passes_a_cap",
    "test_pictures_of_an_analysis_are_written_byte_for_byte_the_same_every_time",
    "test_renyi_conversion_agrees_with_fifty_digits",
    "test_sampled_runs_have_a_frontier_too",
    "test_selection_of_gaussians_is_never_below_fifty_digits",
    "test_subsampled_renyi_divergence_is_never_below_quadrature",
    "test_rarely_drawn_steps_may_be_composed_ten_million_times",
    "test_strong_gaussian_steps_beside_sampled_ones_cost_hardly_more",
    "test_the_curve_of_a_long_run_is_never_below_the_truth",
    "test_the_curve_of_poisson_prefixes_agrees_with_each_profile",
    "test_the_draws_follow_the_probabilities",
    "test_the_explanation_of_a_plan_fits_80_columns",
    "test_the_picture_is_what_the_code_draws_and_the_words_beside_it_are_true",
    "test_two_sampled_single_steps_merge_as_a_mixture",
    "test_values_are_those_of_the_specification",
    "test_what_is_printed_costs_no_more_than_is_printed_beside_it",
}
"""Single tests that take three seconds or more, elsewhere."""

TRAINING = re.compile(r"^\s*(from|import) (torch|opacus|dpmerge\.training|dpmerge\.experiments|reproduction)\b", re.M)
STARTING = {"NotebookClient", "subprocess", "multiprocessing", "fork", "ProcessPoolExecutor"}
SERVERS = {"server", "database", "object_store", "hub"}
OURS = (str(HERE), str(HERE.parent / "soak"))
"""Whose functions are followed; what the package itself starts is not asked."""


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("markexpr") == "quick":
        settings.load_profile("quick")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Importing torch takes longer than most tests: where quick ones are asked for, files without any stay closed."""
    if config.getoption("markexpr") != "quick":
        return None
    return in_slow_place(collection_path) or (collection_path.suffix == ".py" and trains(collection_path)) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        marks = slow_marks(item) or ("quick",)
        for mark in marks:
            item.add_marker(mark)


def slow_marks(item: pytest.Item) -> tuple[str, ...]:
    """Why it is not quick: markers that pyproject.toml explains."""
    fixtures = set(getattr(item, "fixturenames", ()))
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    found = {
        "training": trains(item.path),
        "browser": "browser" in fixtures,
        "server": bool(fixtures & SERVERS) or "postgresql" in [*map(str, parameters.values())],
        "processes": starts_processes(getattr(item, "function", None)),
        "slow": in_slow_place(item.path) or getattr(item, "originalname", None) in LONG,
    }
    return tuple(mark for mark, applies in found.items() if applies)


def in_slow_place(path: Path) -> bool:
    return any(path.is_relative_to(HERE / place) for place in SLOW)


@cache
def trains(file: Path) -> bool:
    """Whether a file of tests, or of code with examples, imports what training needs."""
    return TRAINING.search(file.read_text()) is not None


def starts_processes(function: object) -> bool:
    """Whether a test, or a function of the tests that it calls, starts another process."""
    waiting, seen = [function], set[FunctionType]()
    while waiting:
        called = inspect.unwrap(waiting.pop())  # type: ignore[arg-type]
        if not isinstance(called, FunctionType) or called in seen or not called.__code__.co_filename.startswith(OURS):
            continue
        seen.add(called)
        names = used_names(called.__code__)
        if names & STARTING:
            return True
        waiting += [called.__globals__.get(name) for name in names]
    return False


def used_names(code: CodeType) -> set[str]:
    """Of globals and attributes, within nested functions too."""
    nested = (used_names(each) for each in code.co_consts if isinstance(each, CodeType))
    return {*code.co_names}.union(*nested)


CHROMIUM = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, for pages as their readers see them; where there is none, that is said and the test is skipped."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        print("chromium is not installed: the page is not tried in a browser")
        pytest.skip(reason="chromium is not installed")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=list(CHROMIUM))
        yield started
        started.close()


@pytest.fixture(scope="session")
def gaussian_values() -> dict[str, Any]:
    """Computed with mpmath at 50 digits."""
    return json.loads((DATA / "gaussian_values.json").read_text())


@pytest.fixture(scope="session")
def hidden_state_values() -> list[dict[str, Any]]:
    """The quadratic program solved to 1e-12."""
    return json.loads((DATA / "hidden_state_values.json").read_text())


@pytest.fixture(autouse=True, scope="session")
def _private_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is kept for oneself stays out of the home of who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPMERGE_HOME", str(tmp_path_factory.mktemp("private") / "home"))
        yield
