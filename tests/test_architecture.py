"""The shape of the package: which way imports go, what is public, what is never imported."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import dpmerge
import dpmerge.errors

SOURCE = Path(dpmerge.__file__).parent

# Each part may import the parts before it and itself. `errors` is free for all.
ORDER = [
    "permissions",
    "console",
    "documents",
    "privacy",
    "account",
    "portfolio",
    "evaluation",
    "planning",
    "design",
    "merging",
    "certificate",
    "ledger",
    "releasing",
    "audit",
    "training",
    "report",
    "experiments",
    "service",
    "cli",
]

# Inside `privacy`, likewise: from single numbers to theorems.
PRIVACY_ORDER = [
    "domain",
    "profile",
    "gaussian",
    "renyi",
    "steps",
    "convolution",
    "loss_distribution",
    "discrete",
    "selection",
    "composition",
    "exposure",
    "smoothness",
    "mechanisms",
    "releases",
    "premises",
    "hidden_state",
    "weightings",
    "combination",
    "limits",
]


def imported_modules(path: Path) -> set[str]:
    """Absolute names of the dpmerge modules a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] == "dpmerge"}


def misdirected(root: Path, prefix: str, order: list[str]) -> list[str]:
    """Imports from a later part of `order`, as "importer → imported"."""
    wrong = []
    for path in root.rglob("*.py"):
        importer = path.relative_to(root).parts[0].removesuffix(".py")
        if importer == "__init__":
            continue
        for name in imported_modules(path):
            if not name.startswith(prefix + "."):
                continue
            imported = name[len(prefix) + 1 :].split(".")[0]
            if imported in order and importer in order and order.index(imported) > order.index(importer):
                wrong.append(f"{importer} → {imported}")
    return wrong


def test_parts_import_only_earlier_parts() -> None:
    assert misdirected(SOURCE, "dpmerge", ORDER) == []


def test_privacy_modules_import_only_earlier_ones() -> None:
    assert misdirected(SOURCE / "privacy", "dpmerge.privacy", PRIVACY_ORDER) == []


def test_every_privacy_module_has_its_place() -> None:
    modules = {path.stem for path in (SOURCE / "privacy").glob("*.py")} - {"__init__"}
    assert modules == set(PRIVACY_ORDER)


def test_privacy_imports_nothing_of_ours_but_errors() -> None:
    for path in (SOURCE / "privacy").glob("*.py"):
        for name in imported_modules(path):
            assert name.startswith(("dpmerge.privacy", "dpmerge.errors")), f"{path.name} imports {name}"


def test_what_attacks_does_not_ask_the_accounting() -> None:
    """Attacks and estimators import nothing of what they test; what is claimed comes through four doors."""
    doors = ("claims", "ledger_claims", "releases", "subjects")
    beside = ("dpmerge.errors", "dpmerge.audit")
    for path in (SOURCE / "audit").rglob("*.py"):
        if path.stem in doors:
            continue
        # What runs state about themselves is read as it stands in their records.
        free = (*beside, "dpmerge.portfolio.", "dpmerge.account.spec.") if path.stem == "records" else beside
        asked = () if path.parent.name == "scenarios" else tuple(f"dpmerge.audit.{door}." for door in doors)
        for name in imported_modules(path):
            assert name.startswith(free), f"{path.name} imports {name}"
            assert not name.startswith(asked), f"{path.name} imports {name}"


def test_a_misdirected_import_would_be_seen(tmp_path: Path) -> None:
    (tmp_path / "gaussian.py").write_text("from dpmerge.privacy.combination import Bound\n")
    assert misdirected(tmp_path, "dpmerge.privacy", PRIVACY_ORDER) == ["gaussian → combination"]


def test_public_names_are_pinned() -> None:
    errors = [name for name in dpmerge.__all__ if name[0].isupper() and issubclass(getattr(dpmerge, name), Exception)]
    others = sorted(set(dpmerge.__all__) - set(errors))
    assert others == [
        "Guarantee", "Plan", "Portfolio", "Prior", "PrivateValidation", "PublicEvaluation", "__version__", "plan",
        "release", "verify",
    ]  # fmt: skip
    assert sorted(errors) == error_names()


def test_the_error_tree_in_words_is_the_tree() -> None:
    drawn = re.findall(r"[├└]── (\w+)", str(dpmerge.errors.__doc__))
    assert sorted(["DpmergeError", *drawn]) == error_names()


def error_names() -> list[str]:
    defined = vars(dpmerge.errors).items()
    return sorted(name for name, value in defined if isinstance(value, type) and issubclass(value, Exception))


def test_neither_the_package_nor_the_command_line_imports_torch() -> None:
    script = (
        "import sys, dpmerge, dpmerge.privacy, dpmerge.account, dpmerge.account.table, dpmerge.cli;"
        "import dpmerge.portfolio, dpmerge.portfolio.inspection_table, dpmerge.cli.manifest;"
        "import dpmerge.releasing.release, dpmerge.releasing.recovery, dpmerge.releasing.rebuilding;"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('torch', 'opacus')))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_certificates_are_verified_without_the_engine() -> None:
    for path in (SOURCE / "certificate").glob("*.py"):
        wrong = [name for name in imported_modules(path) if name.startswith(("dpmerge.merging", "dpmerge.ledger"))]
        assert not wrong, f"{path.name} imports {wrong}"
    script = (
        "import sys, dpmerge.certificate.verification;"
        "print(sorted(n for n in sys.modules if n.startswith(('dpmerge.merging', 'sqlalchemy', 'torch'))))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_help_does_not_wait_for_the_mathematics() -> None:
    script = (
        "import sys, dpmerge.cli; print(sorted(set(sys.modules) & {'numpy', 'scipy', 'pydantic', 'dp_accounting'}))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_modules_stay_small() -> None:
    too_long = [p.name for p in SOURCE.rglob("*.py") if len(p.read_text().splitlines()) > 500]
    assert too_long == []
