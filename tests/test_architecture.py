"""The shape of the package: which way imports go, what is public, what is never imported."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import dpmerge
import dpmerge.errors
from dpmerge.accounting.combination import THEOREMS
from dpmerge.terms.theorems import Theorem

SOURCE = Path(dpmerge.__file__).parent
REPRODUCTION = Path(__file__).parents[1] / "reproduction"

# Each part may import the parts before it and itself. `errors` is free for all.
ORDER = [
    "notebook",
    "extras",
    "executors",
    "remote",
    "permissions",
    "private_home",
    "console",
    "files",
    "strict_yaml",
    "accounting",
    "terms",
    "safetensors_header",
    "account_spec",
    "certificate",
    "portfolio",
    "merging",
    "evaluation",
    "planning",
    "design",
    "examples",
    "ledger",
    "auditing",
    "releasing",
    "training",
    "report",
    "cli",
]

# Inside `accounting`, likewise: from single numbers to theorems.
ACCOUNTING_ORDER = [
    "rounding",
    "validation",
    "epsilon_solver",
    "profile",
    "gaussian",
    "renyi",
    "implied_replace_one",
    "discretised_step",
    "discretised_mixture",
    "subsampled_renyi",
    "step_mechanisms",
    "step_spectrum",
    "composed_loss",
    "convolution",
    "loss_distribution",
    "discrete",
    "random_selection",
    "composition",
    "exposure",
    "smoothness",
    "training_settings",
    "shuffled_passes",
    "mechanisms",
    "one_shot_mechanisms",
    "premises",
    "update_chain",
    "hidden_state_shifts",
    "linear_combination_mu",
    "sampled_step",
    "combination",
    "comparison",
    "limits",
]


def imported_modules(path: Path, package: str = "dpmerge") -> set[str]:
    """Absolute names of the package's modules a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] == package}


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


def test_accounting_modules_import_only_earlier_ones() -> None:
    assert misdirected(SOURCE / "accounting", "dpmerge.accounting", ACCOUNTING_ORDER) == []


def test_every_accounting_module_has_its_place() -> None:
    modules = {path.stem for path in (SOURCE / "accounting").glob("*.py")} - {"__init__"}
    assert modules == set(ACCOUNTING_ORDER)


def test_accounting_imports_nothing_of_ours_but_errors() -> None:
    for path in (SOURCE / "accounting").glob("*.py"):
        for name in imported_modules(path):
            assert name.startswith(("dpmerge.accounting", "dpmerge.errors")), f"{path.name} imports {name}"


def test_attacks_and_estimators_import_nothing_of_the_accounting() -> None:
    """Attacks and estimators import nothing of what they test; what is claimed comes through four doors."""
    doors = ("claims", "release_attacks", "inputs", "audit")
    beside = ("dpmerge.errors", "dpmerge.auditing", "dpmerge.executors", "dpmerge.notebook")
    for path in (SOURCE / "auditing").glob("*.py"):
        if path.stem in doors:
            continue
        # What runs state about themselves is read as it stands in their records.
        free = (*beside, "dpmerge.portfolio.", "dpmerge.terms.") if path.stem == "records" else beside
        asked = () if path.stem == "logistic_scenarios" else tuple(f"dpmerge.auditing.{door}." for door in doors)
        for name in imported_modules(path):
            assert name.startswith(free), f"{path.name} imports {name}"
            assert not name.startswith(asked), f"{path.name} imports {name}"


def test_scenarios_ask_for_claims_and_nothing_else_of_the_accounting() -> None:
    """Real training, and what is claimed, may ask the rest of the package."""
    doors = ("accounting_claims", "ledger_claims", "canaries", "canary_audits")
    for path in (REPRODUCTION / "scenarios").glob("*.py"):
        if path.stem not in doors:
            others = [
                name for name in imported_modules(path) if not name.startswith(("dpmerge.errors", "dpmerge.auditing"))
            ]
            assert not others, f"{path.name} imports {others}"


def test_the_package_does_not_know_of_the_reproduction() -> None:
    for path in SOURCE.rglob("*.py"):
        assert not imported_modules(path, "reproduction"), f"{path} imports what is not installed with it"


def test_the_reproduction_imports_no_private_names() -> None:
    for path in REPRODUCTION.rglob("*.py"):
        private = [name for name in imported_modules(path) if any(part.startswith("_") for part in name.split("."))]
        assert not private, f"{path.name} imports {private}"
        tree = ast.parse(path.read_text())
        modules = {alias.asname or alias.name for node in ast.walk(tree) for alias in _imported_from_dpmerge(node)}
        reached = [
            f"{node.value.id}.{node.attr}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules
            if node.attr.startswith("_")
        ]
        assert not reached, f"{path.name} uses {reached}"


def _imported_from_dpmerge(node: ast.AST) -> list[ast.alias]:
    ours = isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "dpmerge"
    return node.names if ours and isinstance(node, ast.ImportFrom) else []


def test_tests_notice_a_misdirected_import(tmp_path: Path) -> None:
    (tmp_path / "gaussian.py").write_text("from dpmerge.accounting.combination import Bound\n")
    assert misdirected(tmp_path, "dpmerge.accounting", ACCOUNTING_ORDER) == ["gaussian → combination"]


PUBLIC_NAMES = [
    "DpmergeError", "Guarantee", "Ledger", "Plan", "Portfolio", "Prior", "PrivateValidation", "PublicEvaluation",
    "__version__", "audit", "errors", "feasible_set", "frontier", "import_models", "inspect", "path_evaluator", "plan",
    "prepare", "release", "verify",
]  # fmt: skip


def test_public_names_are_pinned() -> None:
    assert sorted(dpmerge.__all__) == PUBLIC_NAMES
    assert dir(dpmerge) == sorted(dpmerge.__all__)


def test_at_most_twenty_names_are_public() -> None:
    assert len(dpmerge.__all__) <= 20


def test_every_public_name_is_there() -> None:
    for name in dpmerge.__all__:
        assert getattr(dpmerge, name) is not None


def test_errors_are_in_their_own_module_and_end_in_error() -> None:
    assert all(name.endswith("Error") for name in error_names())
    at_the_top = [name for name in dpmerge.__all__ if name in error_names()]
    assert at_the_top == ["DpmergeError"]
    assert dpmerge.errors.DpmergeError is dpmerge.DpmergeError


def test_the_error_tree_in_words_is_the_tree() -> None:
    drawn = re.findall(r"[├└]── (\w+)( \*)?", str(dpmerge.errors.__doc__))
    assert sorted(["DpmergeError", *(name for name, _ in drawn)]) == error_names()
    of_the_disk = {name for name in error_names() if issubclass(getattr(dpmerge.errors, name), OSError)}
    assert {name for name, marked in drawn if marked} == of_the_disk - {"FileSystemError"}


def test_the_error_tree_is_drawn_with_each_error_under_its_parent() -> None:
    above = ["DpmergeError"]
    for lead, name in re.findall(r"^    ([│├└─ ]*)── (\w+)", str(dpmerge.errors.__doc__), re.MULTILINE):
        depth = len(lead) // 4 + 1
        parent = above[depth - 1]
        assert issubclass(getattr(dpmerge.errors, name), getattr(dpmerge.errors, parent)), (name, parent)
        above[depth:] = [name]


def error_names() -> list[str]:
    defined = vars(dpmerge.errors).items()
    return sorted(name for name, value in defined if isinstance(value, type) and issubclass(value, Exception))


def test_neither_the_package_nor_the_command_line_imports_torch() -> None:
    script = (
        "import sys, dpmerge, dpmerge.accounting, dpmerge.account_spec, dpmerge.cli.account, dpmerge.cli;"
        "import dpmerge.portfolio, dpmerge.portfolio.inspection_table, dpmerge.cli.manifest;"
        "import dpmerge.releasing.release, dpmerge.releasing.recover, dpmerge.releasing.rebuild;"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('torch', 'opacus')))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_terms_import_nothing_of_ours_but_the_accounting() -> None:
    for path in (SOURCE / "terms").glob("*.py"):
        for name in imported_modules(path):
            allowed = ("dpmerge.terms", "dpmerge.accounting", "dpmerge.errors")
            assert name.startswith(allowed), f"{path.name} imports {name}"


def test_certificates_import_the_terms_and_the_accounting_and_no_other_part() -> None:
    free = (
        "errors",
        "extras",
        "notebook",
        "files",
        "remote",
        "permissions",
        "safetensors_header",
        "strict_yaml",
        "accounting",
        "terms",
        "certificate",
    )
    for path in (SOURCE / "certificate").glob("*.py"):
        wrong = [name for name in imported_modules(path) if name.split(".")[1] not in free]
        assert not wrong, f"{path.name} imports {wrong}"


MOST_MODULES = 49
"""Of ours, that have to be believed by who verifies a certificate."""


def test_verifying_a_certificate_needs_few_modules_and_neither_planner_nor_engine(tmp_path: Path) -> None:
    """Loaded and used: nothing more is imported on the way."""
    portfolio = shutil.copytree(Path(__file__).parents[1] / "examples" / "mnist", tmp_path / "mnist")
    dpmerge.release(
        dpmerge.plan(dpmerge.Portfolio.load(portfolio), epsilon=0.12, delta=1e-5, theorem="joint_release"),
        out=tmp_path / "out",
    )
    script = (
        # securesystemslib imports boto3 where it is installed, as it is here for a server to try S3 with.
        "import sys; sys.modules['boto3'] = None; from dpmerge.certificate.verification import check_output;"
        f"assert check_output({str(tmp_path / 'out')!r}).verified;"
        "asked = ('dpmerge', 'sqlalchemy', 'torch', 'urllib.request', 'rfc3161_client');"
        "print(*(n for n in sys.modules if n in asked or n.split('.')[0] in asked[:3]))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = result.stdout.split()
    others = [name for name in loaded if not name.startswith("dpmerge")]
    parts = {name.split(".")[1] for name in loaded if "." in name}
    assert others == []
    assert parts <= {"errors", "files", "remote", "accounting", "terms", "certificate"}
    assert {name for name in loaded if name.startswith("dpmerge.remote.")} == {"dpmerge.remote.remote_path"}
    assert len(loaded) <= MOST_MODULES, sorted(loaded)


def test_no_module_and_no_class_name_stands_twice() -> None:
    """But for the command line, whose modules are named after verbs."""
    modules = Counter(path.stem for path in SOURCE.rglob("*.py") if "cli" not in path.parts)
    classes = Counter(
        node.name
        for path in SOURCE.rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    )
    del modules["__init__"]
    assert [name for name, times in (modules + classes).items() if times > 1] == []


def test_every_theorem_of_the_accounting_is_in_the_one_enumeration() -> None:
    assert [theorem.value for theorem in Theorem] == list(THEOREMS)
    assert [theorem for theorem in Theorem if not theorem.is_final] == [Theorem.JOINT_RELEASE]


def test_importing_the_command_line_imports_no_mathematics() -> None:
    script = (
        "import sys, dpmerge.cli; print(sorted(set(sys.modules) & {'numpy', 'scipy', 'pydantic', 'dp_accounting'}))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_no_module_has_more_than_500_lines() -> None:
    modules = [*SOURCE.rglob("*.py"), *REPRODUCTION.rglob("*.py")]
    too_long = [p.name for p in modules if len(p.read_text().splitlines()) > 500]
    assert too_long == []
