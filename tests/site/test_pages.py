"""The pages of the built site: nothing is fetched, every public name is there, markdown came out as meant."""

from __future__ import annotations

import html
import inspect
import re
from pathlib import Path

import pytest

import dpmerge
from dpmerge import accounting, errors, ledger, portfolio
from dpmerge.cli import app
from mkdocs_hooks.verbs import MARKER

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
API = DOCS / "reference" / "api"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, str]:
    found = {page.relative_to(site).as_posix(): page.read_text() for page in site.rglob("*.html")}
    assert len(found) > 60
    return found


def article(page: str) -> str:
    return re.search(r"<article.*?</article>", page, re.S)[0]  # type: ignore[index]


def test_every_page_of_the_documentation_is_on_the_site(pages: dict[str, str]) -> None:
    written = [page.relative_to(DOCS) for ending in ("md", "ipynb") for page in DOCS.rglob(f"*.{ending}")]
    expected = {page.with_suffix(".html").as_posix() for page in written if page.name != "README.md"}
    assert expected <= set(pages)
    assert {"contributing.html", "security.html", "changes.html"} <= set(pages)


def test_no_page_loads_anything_from_elsewhere(pages: dict[str, str]) -> None:
    """Links that a reader follows may lead out; what a browser loads by itself may not."""
    for name, page in pages.items():
        for tag in re.findall(r"<(?:script|link|img|iframe|source|video|object|embed)\b[^>]*>", page):
            for target in re.findall(r"""\b(?:src|href|data|srcset)=["']?([^"'\s>]+)""", tag):
                assert not re.match(r"(https?:)?//", target), f"{name}: {tag}"


def test_styles_and_scripts_of_our_own_load_nothing_from_elsewhere() -> None:
    for file in DOCS.glob("assets/*"):
        assert not re.search(r"(?:url\(|@import|fetch\()\s*[\"']?(?:https?:)?//", file.read_text()), file.name


def test_lists_and_tables_are_not_lost_in_paragraphs(pages: dict[str, str]) -> None:
    """A list needs an empty line before it here; elsewhere, on GitHub for one, it does not."""
    lost = []
    for name, page in pages.items():
        prose = re.sub(r"<pre.*?</pre>", "", article(page), flags=re.S)
        for paragraph in re.findall(r"<p>(.*?)</p>", prose, re.S):
            if re.search(r"\n(?:[-*] |\d+\. |\|.*\|$)|^\|.*\|\n", html.unescape(paragraph), re.M):
                lost.append(f"{name}: {paragraph[:80]}")
    assert lost == []


def test_every_verb_has_its_options_on_its_page() -> None:
    marked = {
        found["words"]: page.stem
        for page in (DOCS / "reference" / "verbs").glob("*.md")
        for found in MARKER.finditer(page.read_text())
    }
    verbs = {str(each.name or each.callback.__name__) for each in app.registered_commands if each.callback}
    for group in app.registered_groups:
        assert group.typer_instance is not None
        commands = group.typer_instance.registered_commands
        verbs |= {f"{group.name} {each.name or each.callback.__name__}" for each in commands if each.callback}
    verbs -= {"reproduce"}  # which says where the experiments are; its page is that of `python -m reproduction`
    assert {words for words in marked if not words.startswith("reproduction")} == verbs
    assert all(words.split()[0] == page for words, page in marked.items() if not words.startswith("reproduction"))


def shown_by_mkdocstrings() -> set[str]:
    return {name for page in API.glob("*.md") for name in re.findall(r"^::: ([\w.]+)$", page.read_text(), re.M)}


def test_every_public_name_is_in_the_reference() -> None:
    shown = shown_by_mkdocstrings()
    aliases = {"dpmerge.Ledger": "dpmerge.releasing.portfolio_ledger.PortfolioLedger"}
    elsewhere = {"dpmerge.__version__", "dpmerge.errors", "dpmerge.DpmergeError"}  # the index of errors
    again = {"dpmerge.portfolio.Portfolio", "dpmerge.portfolio.inspect", "dpmerge.portfolio.Ancestry"}  # shown once
    for part in (dpmerge, accounting, portfolio, ledger):
        names = {f"{part.__name__}.{name}" for name in part.__all__} - elsewhere - again
        assert {aliases.get(name, name) for name in names} <= shown


def test_every_public_name_of_the_recorder_is_in_the_reference() -> None:
    source = (ROOT / "src" / "dpmerge" / "training" / "__init__.py").read_text()
    public = set(re.findall(r'^    "(\w+)",$', source.split("__all__ = [")[1], re.M))
    assert "record" in public
    shown = {name.rpartition(".")[2] for name in shown_by_mkdocstrings() if name.startswith("dpmerge.training.")}
    assert {name for name in public if not name.endswith(("Warning", "Error"))} <= shown


def test_the_reference_has_arguments_and_examples(pages: dict[str, str]) -> None:
    page = article(pages["reference/api/dpmerge.html"])
    plan = page[page.index('id="dpmerge.plan"') :]
    assert "Parameters:" in plan
    assert '<span class="gp">&gt;&gt;&gt; </span>' in plan, "a prompt, coloured as one"
    assert "&gt;&gt;&gt;" not in re.sub(r"<pre.*?</pre>", "", page, flags=re.S), "an example that is no code"


def test_every_error_is_in_the_index(pages: dict[str, str]) -> None:
    page = article(pages["reference/errors.html"])
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.DpmergeError)]
    source = (ROOT / "src" / "dpmerge" / "training" / "user_warnings.py").read_text()
    names = [*(kind.__name__ for kind in kinds), *re.findall(r"^class (\w+)", source, re.M)]
    assert len(names) > 30
    assert [name for name in names if f'id="{name.lower()}"' not in page] == []
    assert page.count("What to do:") == len(names)


def test_sections_of_the_theory_that_code_cites_are_links(pages: dict[str, str]) -> None:
    page = pages["reference/api/accounting.html"]
    assert re.search(r'<a href="\.\./\.\./theory/index\.html#4\.2">theory 4\.2</a>', page)
    assert '<a id="4.2"></a>' in pages["theory/index.html"]


def test_anchors_that_the_readme_links_to_exist(pages: dict[str, str]) -> None:
    """It is no page of the site, so that nobody else looks."""
    for name, anchor in re.findall(r"\]\(docs/([^)#]+)\.(?:md|ipynb)#([^)]+)\)", (ROOT / "README.md").read_text()):
        assert f'id="{anchor}"' in pages[f"{name}.html"], f"{name}#{anchor}"
