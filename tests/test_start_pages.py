"""The first pages that somebody reads: commands run as they stand, figures are computed again."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpmerge as dpm
from dpmerge.accounting import Exposure
from dpmerge.accounting.rounding import format_up
from dpmerge.merging.staging import StagedFolder
from dpmerge.terms.theorems import NAMED
from page_commands import blocks, run_command, run_page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
START = DOCS / "start"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPMERGE_LEDGER", raising=False)


def test_the_first_certificate_is_made_as_the_page_says() -> None:
    assert [kind for kind, _ in run_page(START / "first-certificate.md")] == ["text"] * 6


def test_a_page_that_shows_something_else_than_is_printed_fails(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for shown in ("dpmerge 9.9.9\n", "", "…\n9.9.9\n…\n", "dpmerge 0.2.0\nand more\n"):
        page.write_text(f"```text\n$ dpmerge --version\n{shown}```\n")
        with pytest.raises(AssertionError):
            run_page(page)
    page.write_text("```sh\ndpmerge verify nothing\n```\n")
    with pytest.raises(AssertionError):
        run_page(page)


def test_the_install_page_names_every_extra_and_the_version() -> None:
    text = (START / "install.md").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r'`pip install -c constraints\.txt "\.\[([\w-]+)\]"`', text)) == set(extras)
    [(_, shown)] = [block for block in blocks(START / "install.md") if block[0] == "text"]
    assert run_command("dpmerge --version") == shown.partition("\n")[2]


def test_every_page_with_commands_or_code_is_run_by_a_test() -> None:
    tests = "".join(file.read_text() for file in ROOT.glob("tests/**/test_*.py"))
    pages = [page for folder in ("start", "how-to", "concepts") for page in sorted((DOCS / folder).glob("*.md"))]
    shown = [page for page in pages if {"sh", "text", "python"} & {kind for kind, _ in blocks(page)}]
    assert len(shown) > 10
    names = {page: (page.name, f'"{page.stem}"', f'"{page.parent.name}/{page.stem}"') for page in shown}
    assert [page.name for page in shown if not any(name in tests for name in names[page])] == []


# Before you train


BEFORE = START / "before-you-train.md"


def test_what_the_design_says_is_on_the_page_before_training() -> None:
    assert [kind for kind, _ in run_page(BEFORE)] == ["text"]


def test_what_opacus_defaults_allow_is_computed_from_the_spec_on_the_page(tmp_path: Path) -> None:
    [spec] = [content for kind, content in blocks(BEFORE) if kind == "json"]
    (tmp_path / "spec.json").write_text(spec)
    found = json.loads(run_command("dpmerge account spec.json --json"))
    first, second = (run["epsilon"] for run in found["single"])
    theorems = {name: theorem["epsilon"] for name, theorem in found["linear_combination"].items() if name in NAMED}
    wanted = [second, found["random_selection"]["epsilon_pld"], first, theorems["joint_release"], theorems["last_step"]]
    section = BEFORE.read_text().split("## What Opacus' defaults allow\n")[1]
    assert re.findall(r"\| (\d\.\d{4}) \|$", section, re.M) == [format_up(each) for each in wanted]
    assert theorems["hidden_state"] is theorems["merged_trajectory"] is None
    assert "no number |" in section


def test_figures_of_other_pages_are_those_of_the_pages_they_come_from() -> None:
    """The adjacency page's are computed there, the usefulness page is written from results."""
    before, readme = BEFORE.read_text(), (ROOT / "README.md").read_text()
    usefulness, adjacency = (DOCS / "usefulness.md").read_text(), (DOCS / "concepts" / "adjacency.md").read_text()
    rows = re.findall(r"^\| (Poisson|shuffled) \| (\S+) \| \S+ \| (\S+) \|", adjacency, re.M)
    (_, replaced, poisson), (_, _, shuffled) = rows
    assert f"costs ε = {poisson} or {replaced}" in before
    assert f"seemed to cost {poisson} costs {shuffled}" in before
    averages = re.findall(r"^- `(\w+)` \(([\w ]+)\): ([^:]*? of 4), on average (\S+ points)\.$", usefulness, re.M)
    assert len(averages) == 5
    for name, start, verdict, gain in averages:
        told = re.sub(r"undecided (?!in)", "undecided in ", verdict)
        assert f"| {name} | {start} | {told} | {gain} |\n" in before
    [counts] = re.findall(
        r"\*\*better in (\d+), the same in (\d+), worse in (\d+)\*\*,\s+and (\d+) in which", usefulness
    )
    better, same, worse, undecided = counts
    assert f"had in {better}, the same in {same}, worse in {worse}, and the seeds disagreed in {undecided}" in before
    assert f"better in {better} of {sum(map(int, counts))} cases, worse in {worse}" in readme
    gains = re.findall(
        r"\| ([+−]?\d\.\d) ± \S+ \| (?:same|better|undecided|\*\*worse\*\*) \| [^|]+; single", usefulness
    )
    assert len(gains) == sum(map(int, counts))
    assert f"up to {max(float(gain.replace('−', '-')) for gain in gains):g} points" in before


# The picture


def test_the_picture_is_what_the_code_draws_and_the_words_beside_it_are_true(tmp_path: Path) -> None:
    import matplotlib.image

    spec = importlib.util.spec_from_file_location("privacy_levels", ROOT / "examples" / "privacy_levels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    plot = module.privacy_levels()
    [file] = module.write_plot_pictures([plot], tmp_path)
    drawn, committed = (matplotlib.image.imread(each) for each in (file, START / "privacy-levels.png"))
    again = "python examples/privacy_levels.py draws it again"
    assert drawn.shape == committed.shape, again
    assert np.mean(np.abs(drawn - committed) > 0.1) < 0.005, again
    planned, had, _ = plot.series
    gain = planned.y - had.y
    inside = (planned.x > 0.07) & (planned.x < 0.37)
    assert gain[inside].min() > 0, "README: from ε = 0.07 to 0.37"
    assert 10 <= gain.max() < 11, "README: up to ten points"
    assert np.mean(gain[~inside]) < 0.1, "README: elsewhere nothing"


# How-to pages that train nothing; the others are run in tests/training/test_how_to_pages.py


@pytest.fixture
def released() -> None:
    """What some pages begin with: two releases that were signed, and a copy of the ledger as it was between them."""
    merged = "merge models --epsilon {} --delta 1e-5 -o {} --key signing.pem"
    first, second = merged.format(0.06, "first"), merged.format(0.12, "merged")
    for command in ("example mnist -o models", "keygen -o signing.pem", first):
        run_command(f"dpmerge {command}")
    shutil.copy("models/privacy-ledger.sqlite", "backup.sqlite")
    run_command(f"dpmerge {second}")


def test_a_target_below_the_most_private_model_is_met_as_the_page_says() -> None:
    shutil.copytree(ROOT / "examples" / "probe", "examples/probe")
    run_page(DOCS / "how-to" / "lower-target.md")
    assert dpm.verify("merged", portfolio="probe").verified
    assert dpm.verify("merged-early", portfolio="early").verified
    [exposed] = dpm.Portfolio.load("examples/probe").runs[2].checkpoints[-1:]
    assert exposed.name == "s64@20"


def test_a_model_is_published_as_the_page_says() -> None:
    run_page(DOCS / "how-to" / "publish.md")


@pytest.mark.usefixtures("released")
def test_an_auditor_can_run_what_the_page_says() -> None:
    run_command("dpmerge revocations renew revoked.json --key signing.pem")
    run_page(DOCS / "how-to" / "auditor.md")
    assert json.loads(Path("ledger.json").read_text())["entries"]


@pytest.mark.usefixtures("released")
def test_what_was_killed_or_lost_is_recovered_as_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after the charge, in each of two portfolios; then a backup comes back that is too old."""

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    run_command("dpmerge example mnist -o other")
    with monkeypatch.context() as patched:
        patched.setattr(StagedFolder, "publish", killed)
        for portfolio in ("models", "other"):
            asked = f"merge {portfolio} --epsilon 0.1 --delta 1e-5 -o pending-{portfolio} --key signing.pem"
            run_command(f"dpmerge {asked}  # exits with 130")
    [release] = re.findall(r"([0-9a-f]{12}) +pending", run_command("dpmerge ledger show other"))
    run_page(DOCS / "how-to" / "recover.md", RELEASE=release)
    assert dpm.verify("pending-models", portfolio="models").verified
    assert not Path("pending-other").exists()
    Path("models/privacy-ledger.sqlite").unlink()
    for command in ("show models", "recover models --adopt merged --accept"):  # no empty one in its place
        assert "was charged to" in run_command(f"dpmerge ledger {command}  # exits with 2")
    run_command("dpmerge ledger recover models --ledger other/privacy-ledger.sqlite --adopt merged --accept")


# Concepts


CONCEPTS = DOCS / "concepts"


@pytest.mark.parametrize("page", ["exposure", "choosing", "several-releases"])
def test_the_commands_and_the_code_of_a_concept_run(page: str) -> None:
    shutil.copytree(ROOT / "examples" / "mnist", "examples/mnist")
    assert run_page(CONCEPTS / f"{page}.md")


def cost(names: list[str]) -> str:
    """Of the joint release of checkpoints of the example portfolio, rounded up."""
    portfolio = dpm.Portfolio.load(ROOT / "examples" / "mnist")
    seen = [portfolio.run(run).at(int(step)) for run, _, step in (name.partition("@") for name in names)]
    return format_up(Exposure.of(seen).profile().epsilon(1e-5))


def test_the_figures_of_exposure_and_choosing_are_computed() -> None:
    rows = re.findall(r"^\| (.*@.*) \| .* \| (0\.\d{4}) \|$", (CONCEPTS / "exposure.md").read_text(), re.M)
    assert len(rows) == 5
    for looked_at, epsilon in rows:
        whole = re.sub(r"all eight (ladder)-1…8@20", " ".join(rf"\1-{n}@20" for n in range(1, 9)), looked_at)
        assert cost(re.findall(r"[\w-]+@\d+", whole)) == epsilon
    portfolio = dpm.Portfolio.load(ROOT / "examples" / "mnist")
    best = max(portfolio.checkpoints(), key=lambda saved: saved.metric("accuracy"))
    everything = format_up(portfolio.everything().profile().epsilon(1e-5))
    shown = re.findall(r"^\| releasing .* \| (\d\.\d{4}) \|$", (CONCEPTS / "choosing.md").read_text(), re.M)
    assert (best.name, shown) == ("c4-s32@20", [cost(["c4-s32@20"]), everything])


def test_every_theorem_is_in_the_table_of_theorems() -> None:
    table, _, rest = (CONCEPTS / "theorems.md").read_text().partition("## You have")
    assert re.findall(r"^\| `(\w+)` \|", table, re.M) == [str(theorem) for theorem in NAMED]
    assert all(f"`{theorem}`" in rest for theorem in NAMED)


@pytest.mark.parametrize(
    ("models", "settings", "of_the_block"),
    [
        ("Opacus' defaults: Poisson batches, SGD", {}, {"sampling_rate": 0.05}),
        ("full batches, SGD, a network", {}, {}),
        ("full batches, plain SGD, a linear model with bounded features", {"lipschitz": 1}, {}),
        ("shuffled batches", {"sampling": "shuffled", "steps_per_epoch": 4}, {}),
    ],
)
def test_the_theorem_that_the_page_names_is_the_tightest(
    models: str, settings: dict[str, Any], of_the_block: dict[str, float], tmp_path: Path
) -> None:
    """Of two runs of eight steps and unequal noise, averaged half and half under zero_out."""
    runs = [
        {
            "blocks": [
                {"steps": 8, "noise_multiplier": sigma, "clip_norm": 1, "learning_rate": 0.1, **of_the_block},
            ],
            **settings,
        }
        for sigma in (4, 8)
    ]
    spec = {"adjacency": "zero_out", "delta": 1e-5, "weights": [0.5, 0.5], "runs": runs}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    combined = json.loads(run_command("dpmerge account spec.json --json"))["linear_combination"]
    proved = {theorem: combined[theorem]["epsilon"] for theorem in NAMED if combined[theorem]["certifies"]}
    page = (CONCEPTS / "theorems.md").read_text()
    [(others_follow, last)] = re.findall(
        rf"^\| {re.escape(models)} \| random selection \| (.*) \| (.*) \|$", page, re.M
    )
    assert others_follow.startswith("`joint_release`")
    tightest = min(proved, key=lambda theorem: proved[theorem])  # of equal ones the first
    assert last.startswith(f"`{tightest}`") or (last == "the same" and tightest == "joint_release")
