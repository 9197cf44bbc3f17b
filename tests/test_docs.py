"""The documentation is run: README code and output, specs, links, one page a verb."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner

import dpmerge as dpm
from dpmerge.account_spec import RunSpec, SmoothnessSpec, Spec
from dpmerge.accounting import implied_replace_one_epsilon
from dpmerge.accounting.rounding import format_up
from dpmerge.cli import app
from dpmerge.errors import InvalidInputError, PortfolioError
from dpmerge.portfolio.manifest import Manifest
from dpmerge.releasing.json_schemas import json_schema
from dpmerge.terms.documents import Strict, models_in
from dpmerge.terms.mechanism_schema import BlockSpec
from dpmerge.training import record
from mkdocs_hooks.verbs import with_usage
from reproduction.__main__ import audit_app, experiments_app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
VERBS = DOCS / "reference" / "verbs"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.S | re.M)


def test_the_readmes_python_runs_and_says_what_it_should() -> None:
    _, code = blocks(ROOT / "README.md", "python")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    comment = code.strip().splitlines()[-1]
    assert comment == f"# {result.stdout.strip()}"


def test_each_row_of_what_is_recorded_and_refused_is_a_test() -> None:
    page = (ROOT / "docs/reference/recording.md").read_text()
    section = page.split("## What is recorded, and what is refused\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ") and not line.startswith("| in the loop")]
    named = [re.fullmatch(r"\|.*\| (recorded|refused|ends|vouched for) \|.*\| `(test_\w+)` \|", row) for row in rows]
    assert len(rows) > 80
    assert [row for row, found in zip(rows, named, strict=True) if found is None] == []
    written = {
        test
        for part in ("training", "attacks")
        for file in (ROOT / "tests" / part).glob("test_*.py")
        for test in re.findall(r"^def (test_\w+)\(", file.read_text(), re.M)
    }
    assert [found[2] for found in named if found and found[2] not in written] == []


@pytest.mark.parametrize("page", ["README.md", "docs/reference/recording.md"])
def test_the_arguments_of_record_in_the_documentation_exist(page: str) -> None:
    calls = [
        node
        for code in blocks(ROOT / page, "python")
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "record"
    ]
    known = inspect.signature(record).parameters
    assert calls
    assert all(keyword.arg in {None, *known} for call in calls for keyword in call.keywords)
    if page != "README.md":
        text = (ROOT / page).read_text()
        assert [name for name in known if f"`{name}`" not in text and f"{name}=" not in text] == []


def test_every_refusal_is_in_the_documentation() -> None:
    text = (DOCS / "reference" / "portfolio.md").read_text()
    assert [kind.__name__ for kind in PortfolioError.__subclasses__() if f"`{kind.__name__}`" not in text] == []


def test_the_readme_shows_what_merging_and_verifying_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [shown] = blocks(ROOT / "README.md", "text")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPMERGE_LEDGER", raising=False)
    printed = ""
    for command in re.findall(r"^\$ dpmerge (.*)$", shown, re.M):
        result = CliRunner().invoke(app, command.split(), env={"COLUMNS": "80"})
        assert result.exit_code == 0, result.output
        lines = "\n".join(line.rstrip() for line in result.stdout.splitlines())
        printed += f"$ dpmerge {command}\n{lines.strip()}\n\n"
    assert printed.strip() == shown.strip()


def test_the_demo_runs_every_step_from_inspecting_to_a_report(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "demo.py"), "--out", "demo"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    lines = result.stdout.splitlines()
    assert len(lines) <= 80, "somebody is to read it"
    assert f"in {len(lines)} lines" in (ROOT / "README.md").read_text()
    assert max(map(len, lines)) <= 80
    verbs = re.findall(r"^\$ dpmerge (\w+)", result.stdout, re.M)
    assert list(dict.fromkeys(verbs)) == [
        "inspect", "plan", "keygen", "merge", "verify", "audit", "ledger", "frontier",
    ]  # fmt: skip
    assert result.stdout.count("Verified: ε = ") == 2
    assert "verdict    tight" in result.stdout
    scores = [float(score) for score in re.findall(r"eps-0\.\d+: ([\d.]+)%", result.stdout)]
    assert len(scores) == 2
    assert min(scores) > 75, "what was measured on these models; a merge that went wrong would be near 10 %"
    assert (tmp_path / "demo" / "report.html").exists()
    assert "examples/demo.py" in (ROOT / "Makefile").read_text()
    named = re.findall(r"docs/[\w/.-]+\.md", result.stdout)
    assert len(named) == 2
    assert [page for page in named if not (ROOT / page).exists()] == []


def test_the_two_commands_of_the_readme_are_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    [commands] = blocks(ROOT / "README.md", "sh")
    targets = re.findall(r"make (\w+)", commands)
    assert targets == ["demo", "test"]
    for target in targets:
        assert re.search(rf"^{target}: \$\((DEMO_)?INSTALLED\)", makefile, re.M)


def test_the_readme_has_fewer_than_600_words_of_prose() -> None:
    prose = re.sub(r"```.*?```", "", (ROOT / "README.md").read_text(), flags=re.S)
    assert len(prose.split()) < 600


def test_specs_in_the_documentation_are_valid() -> None:
    specs = blocks(VERBS / "account.md", "json")
    assert specs
    for text in specs:
        assert Spec.parse(text).runs


def test_the_table_of_the_adjacency_page_is_computed_from_its_specs() -> None:
    """One run under three adjacencies, and what zero_out implies for replace_one; figures rounded up."""
    page = DOCS / "concepts" / "adjacency.md"
    specs = [json.loads(text) for text in blocks(page, "json")]
    rows = re.findall(r"^\| (Poisson|shuffled|full batch) \| (.*) \|$", page.read_text(), re.M)
    assert [name for name, _ in rows] == ["Poisson", "shuffled", "full batch"]
    for spec, (name, printed) in zip(specs, rows, strict=True):
        cells = []
        for adjacency in ("replace_one", "add_remove", "zero_out"):
            text = json.dumps({**spec, "adjacency": adjacency})
            if name == "shuffled" and adjacency == "add_remove":
                with pytest.raises(InvalidInputError, match="shuffled under replace_one or zero_out only"):
                    Spec.parse(text)
                cells.append("refused")
                continue
            [run] = Spec.parse(text).mechanisms()
            cells.append(format_up(run.profile().epsilon(1e-5), 3))
        cells.append(format_up(implied_replace_one_epsilon(run.profile(), 1e-5), 3))
        assert printed.split(" | ") == cells


def test_the_examples_are_valid_specs() -> None:
    examples = sorted((ROOT / "examples").glob("*.json"))
    assert examples
    for path in examples:
        assert Spec.read(path).runs


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_in_the_documentation_lead_to_files_that_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_verb_has_a_page_and_every_field_is_on_it() -> None:
    verbs = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
    verbs += [str(group.name) for group in app.registered_groups]
    assert {"account", "inspect", "manifest", "plan", "design", "frontier", "merge", "verify", "ledger"} <= set(verbs)
    for verb in verbs:
        assert (VERBS / f"{verb}.md").exists()
    text = (VERBS / "account.md").read_text()
    for model in (Spec, RunSpec, BlockSpec, SmoothnessSpec):
        for field in model.model_fields:
            assert f"`{field}`" in text, field


def test_every_field_of_a_manifest_is_on_its_page() -> None:
    text = (DOCS / "reference" / "manifest.md").read_text()
    for model in manifest_models(Manifest):
        for name in model.model_fields:
            assert f"`{name.removesuffix('_')}`" in text, name


def manifest_models(model: type[Strict]) -> set[type[Strict]]:
    """The model and all it is made of."""
    found = {model}
    for field in model.model_fields.values():
        for part in models_in(field.annotation):
            found |= {part} if part in found else manifest_models(part)
    return found


@pytest.mark.parametrize(
    ("document", "file"),
    [
        ("run", "run-v1"),
        ("plan", "plan-v1"),
        ("certificate", "certificate-v3"),
        ("ledger", "ledger-v2"),
        ("revocations", "revocations-v1"),
    ],
)
def test_the_published_schemas_are_the_schemas(document: str, file: str) -> None:
    assert json.loads((DOCS / "reference" / "schemas" / f"{file}.schema.json").read_text()) == json_schema(document)


def test_written_plans_certificates_and_ledgers_fit_their_published_schemas(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "mnist", tmp_path / "mnist")
    portfolio = dpm.Portfolio.load(tmp_path / "mnist")
    plan = dpm.plan(portfolio, epsilon=0.12, delta=1e-5, theorem="joint_release")
    release = dpm.release(plan, out=tmp_path / "out")
    with dpm.Ledger.of(portfolio) as ledger:
        exported = ledger.export()
    written = {"plan": plan.document(), "certificate": dict(release.content), "ledger": exported}
    for document, content in written.items():
        jsonschema.validate(json.loads(json.dumps(content)), json_schema(document))
    written["certificate"]["terms"] = {**written["certificate"]["terms"], "adjacency": "nearly_the_same"}
    with pytest.raises(jsonschema.ValidationError, match="nearly_the_same"):
        jsonschema.validate(written["certificate"], json_schema("certificate"))


def test_the_python_of_the_portfolio_page_runs() -> None:
    [code] = blocks(DOCS / "reference" / "portfolio.md", "python")
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_the_python_of_the_audit_page_says_what_it_should() -> None:
    [code] = blocks(VERBS / "audit.md", "python")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert code.strip().splitlines()[-1] == f"# {result.stdout.strip()}"


@pytest.mark.parametrize(
    "page", ["reference/verbs/plan", "reference/verbs/merge", "reference/verbs/feasible", "how-to/notebook", "scale"]
)
def test_the_python_of_a_page_runs(page: str) -> None:
    for code in blocks(DOCS / f"{page}.md", "python"):
        subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_the_python_of_the_ledger_page_runs(tmp_path: Path) -> None:
    [code] = blocks(VERBS / "ledger.md", "python")
    shutil.copytree(ROOT / "examples" / "mnist", tmp_path / "models")
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    assert (tmp_path / "ledger.json").exists()


LEDGER_VERBS = ("show", "spent", "cap", "recover", "verify", "export")
MANIFEST_VERBS = ("new", "check", "write", "upgrade", "schema")
REVOCATION_VERBS = ("add", "renew", "show")
TIMESTAMP_VERBS = ("request", "attach", "fetch")


@pytest.mark.parametrize(
    "verb",
    [
        "account",
        "audit",
        "design",
        "example",
        "feasible",
        "frontier",
        "import",
        "inspect",
        "keygen",
        "merge",
        "plan",
        "verify",
        *(f"ledger {verb}" for verb in LEDGER_VERBS),
        *(f"manifest {verb}" for verb in MANIFEST_VERBS),
        *(f"revocations {verb}" for verb in REVOCATION_VERBS),
        *(f"timestamp {verb}" for verb in TIMESTAMP_VERBS),
    ],
)
def test_every_option_of_a_verb_is_on_its_page(verb: str) -> None:
    text = with_usage((VERBS / f"{verb.split()[0]}.md").read_text())
    result = CliRunner().invoke(app, [*verb.split(), "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    options = result.stdout
    named = set(re.findall(r"--[a-z][a-z-]+", options)) - {"--help"}
    assert [option for option in sorted(named) if option not in text] == []


def test_every_option_of_the_reproduction_is_on_its_page() -> None:
    for command, page in ((experiments_app, "reproduce.md"), (audit_app, "audit.md")):
        result = CliRunner().invoke(command, ["--help"], env={"COLUMNS": "200"})
        assert result.exit_code == 0
        named = set(re.findall(r"--[a-z][a-z-]+", result.stdout)) - {"--help"}
        text = with_usage((VERBS / page).read_text())
        assert [option for option in sorted(named) if option not in text] == []


def test_documentation_names_no_machine() -> None:
    for page in [*PAGES, *DOCS.rglob("*.ipynb")]:
        assert not re.search(r"(?<![\w.])/(home|root|work|tmp)/", page.read_text()), page.name


GLOSSARY = {  # heading → how the word looks in a sentence
    "adjacency": r"adjacenc(?:y|ies)|replace_one|add_remove|zero_out",
    "budget-scope": r"budget scopes?",
    "caveat": r"caveats?",
    "certificate": r"certificates?",
    "ex-ante": r"ex ante",
    "exposure": r"exposures?",
    "final-release": r"final releases?",
    "head-checkpoint": r"head checkpoints?",
    "hidden-state": r"hidden state",
    "joint-release": r"joint releases?",
    "ledger": r"ledgers?",
    "linear-combination": r"linear combinations?",
    "look-set": r"look sets?",
    "μ": r"μ",
    "noise-group": "noise groups?",
    "premise": r"premises?",
    "random-selection": r"random selections?",
    "release-noise": r"release noise",
}
GLOSSARY_PAGE = DOCS / "concepts" / "glossary.md"
# Generated from results, or history: neither is edited for words.
WITHOUT_LINKS = ("concepts/glossary.md", "reproduction.md", "reproduction/", "decisions/")
LINKED = [
    page for page in sorted(DOCS.glob("**/*.md")) if not page.relative_to(DOCS).as_posix().startswith(WITHOUT_LINKS)
]


def prose(text: str) -> str:
    """The text with everything blanked out that nobody writes as a sentence: code, headings, links, computed tables."""

    def blank(found: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", found[0])

    text = re.sub(r"<!-- computed.*?<!-- end of what is computed -->", blank, text, flags=re.S)
    text = re.sub(r"^```.*?^```", blank, text, flags=re.S | re.M)
    text = re.sub(r"^(#| {4}).*$", blank, text, flags=re.M)
    text = re.sub(r"\[[^\]]*\]\((?!(?:\.\./)*(?:concepts/)?glossary\.md)[^)]*\)", blank, text)
    return re.sub(r"`(?!(?:replace_one|add_remove|zero_out)`)[^`\n]*`", blank, text)


def glossary_anchors() -> list[str]:
    headings = re.findall(r"^## (.*)$", GLOSSARY_PAGE.read_text(), re.M)
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]


def test_the_glossary_has_exactly_these_terms() -> None:
    assert glossary_anchors() == list(GLOSSARY)


def first_use(text: str, anchor: str) -> re.Match[str] | None:
    """Where a page's prose first uses a term of the glossary."""
    words = GLOSSARY[anchor]
    if anchor == "μ":  # by itself, not μ² or μ_t in a formula
        return re.search(r"(?<![\w(])μ(?![\w²′])", text)
    return re.search(rf"(?<![\w`/.-])(?:{words})(?![\w`/]|-\w)|`(?:{words})`", text, re.I)


def glossary_link(page: Path) -> str:
    return os.path.relpath(GLOSSARY_PAGE, page.parent)


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_glossary_term_is_a_link_where_it_first_appears(page: Path) -> None:
    text = prose(page.read_text())
    unlinked = []
    for anchor in GLOSSARY:
        first = first_use(text, anchor)
        if first is not None and not text[first.end() :].startswith(f"]({glossary_link(page)}#{anchor})"):
            unlinked.append(f"line {text[: first.start()].count(chr(10)) + 1}: {first[0]}")
    assert unlinked == []


def test_glossary_links_lead_to_a_heading() -> None:
    links = 0
    for page in DOCS.glob("**/*.md"):
        for target, anchor in re.findall(r"\]\(([^)]*glossary\.md)#([^)]*)\)", page.read_text()):
            assert target == glossary_link(page), f"{page.name}: {target}"
            assert anchor in glossary_anchors(), f"{page.name}: {anchor}"
            links += 1
    assert links > 100


SECTION = r"\d+(?:\.\d+)*"


def theory_sections() -> list[str]:
    """Numbers of the theory's headings, each with an anchor of that name above it."""
    heading = rf'^<a id="({SECTION})"></a>\n\n#+ ({SECTION})\.? \S'
    found = [
        numbers for page in sorted(DOCS.glob("theory/*.md")) for numbers in re.findall(heading, page.read_text(), re.M)
    ]
    assert all(anchor == number for anchor, number in found)
    return [number for number, _ in found]


def test_sections_of_the_theory_are_numbered_once_and_in_order() -> None:
    numbers = theory_sections()
    assert len(set(numbers)) == len(numbers) > 20
    headings = [line for page in DOCS.glob("theory/*.md") for line in re.findall(r"^##+ .*$", page.read_text(), re.M)]
    assert [line for line in headings if not re.match(rf"##+ {SECTION}\.? ", line)] == []
    for number in numbers:  # nothing is left out: 4.3 follows 4.2, and 4 has come before 4.1
        *outer, last = map(int, number.split("."))
        before = [*outer, last - 1] if last > 1 else outer
        assert not before or ".".join(map(str, before)) in numbers, number


def test_sections_of_the_theory_that_are_cited_exist() -> None:
    """In code and results `theory 4.2`; in pages a link."""
    files = [file for place in ("src", "reproduction", "usefulness", "docs") for file in (ROOT / place).rglob("*.*")]
    cited = {
        (number, file.name)
        for file in [*files, *ROOT.glob("*.md")]
        if file.suffix in {".py", ".md", ".json", ".ipynb"}
        for number in re.findall(rf"\btheory ({SECTION})\b", file.read_text())
    }
    assert len(cited) > 50
    numbers = theory_sections()
    assert sorted(each for each in cited if each[0] not in numbers) == []
    otherwise = r"docs/theory\.md|theory(?:\.md)?,? section \d"  # in any other form nobody would find it
    code = [file for file in files if file.suffix in {".py", ".md"}]
    assert [file.name for file in code if re.search(otherwise, file.read_text())] == []


def test_every_decision_is_listed() -> None:
    listed = re.findall(r"^- \[(.*)\]\((.*)\)$", (DOCS / "decisions" / "index.md").read_text(), re.M)
    pages = sorted(DOCS.glob("decisions/0*.md"))
    assert listed == [(page.read_text().splitlines()[0].removeprefix("# "), page.name) for page in pages]


def test_pages_that_code_names_exist() -> None:
    """In docstrings, messages and computed pages, where nothing else would notice."""
    files = [
        file for place in ("src", "reproduction", "usefulness", "examples") for file in (ROOT / place).rglob("*.py")
    ]
    named = {
        name
        for file in [*files, ROOT / "Makefile", ROOT / "CONTRIBUTING.md"]
        for name in re.findall(r"\bdocs/[\w/.-]+\.(?:md|json|png|ipynb)\b", file.read_text())
    }
    assert len(named) > 15
    named -= {"docs/reference/verbs/VERB.md"}  # whichever it is
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
