"""Without an extra: one line that names the package and the extra, whoever asks."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from dpmerge.errors import DpmergeError, MissingExtraError
from dpmerge.extras import Extra, needs_extra

SOURCE = Path(__file__).parents[1] / "src" / "dpmerge"
EXTRAS = {
    "torch": "torch",
    "opacus": "torch",
    "safetensors": "torch",
    "plotly": "notebook",
    "pandas": "notebook",
    "matplotlib": "report",
    "psycopg": "postgres",
    "lightning": "lightning",
    "transformers": "huggingface",
    "accelerate": "huggingface",
    "rfc3161_client": "timestamps",
    "fsspec": "remote",
    "s3fs": "remote",
    "lm_eval": "lm-eval",
    "datasets": "lm-eval",
}
ASKING = {
    "the recorder": ("import dpmerge.training", "torch"),
    "the recorder, without safetensors": ("import dpmerge.training", "safetensors"),
    "the recorder, without opacus": ("import dpmerge.training", "opacus"),
    "the recorder in Lightning": ("import dpmerge.training.lightning", "lightning"),
    "the recorder in Trainer": ("import dpmerge.training.transformers", "transformers"),
    "the recorder in Trainer, without accelerate": ("import dpmerge.training.transformers", "accelerate"),
    "torch's evaluator": ("import dpmerge.evaluation.torch_evaluator", "torch"),
    "a benchmark": ("run('frontier', 'MODELS', '--evaluator', 'lm_eval:hellaswag')", "lm_eval"),
    "a benchmark, without datasets": ("run('frontier', 'MODELS', '--evaluator', 'lm_eval:hellaswag')", "datasets"),
    "the ledger": ("from dpmerge.ledger import Ledger; Ledger.open('postgresql://somewhere/x')", "psycopg"),
    "a request for a timestamp": (
        "from dpmerge.certificate.timestamp_token import new_request; new_request(b'certificate')",
        "rfc3161_client",
    ),
    "checking a timestamp": (
        "from dpmerge.certificate.timestamp_token import checked; checked(b'', b'certificate', [])",
        "rfc3161_client",
    ),
    "a portfolio by its URL": ("run('inspect', 's3://models/portfolio')", "fsspec"),
    "a portfolio in S3": ("run('inspect', 's3://models/portfolio')", "s3fs"),
    "a frame": ("from dpmerge import Portfolio; Portfolio.load('MODELS').to_frame()", "pandas"),
    "a figure": (
        "from dpmerge import Portfolio, plan; plan(Portfolio.load('MODELS'), epsilon=1, delta=1e-5).plot()",
        "plotly",
    ),
    "a picture": ("run('frontier', 'MODELS', '--delta', '1e-5', '--figures', 'figures')", "matplotlib"),
}


@pytest.mark.parametrize("asking", ASKING.values(), ids=ASKING.keys())
def test_a_missing_package_is_one_line_that_names_its_extra(asking: tuple[str, str], tmp_path: Path) -> None:
    command, missing = asking
    portfolio = str(SOURCE.parents[1] / "examples" / "probe")
    script = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from dpmerge.cli import app\n"
        "from dpmerge.cli.terminal import one_line_errors\n"
        "def run(*words): sys.exit(app(list(words), standalone_mode=False))\n"
        "try:\n"
        "    with one_line_errors():\n"
        f"        {command.replace('MODELS', portfolio)}\n"
        "except BaseException as error:\n"
        "    sys.exit(getattr(error, 'exit_code', getattr(error, 'code', 99)))\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    [line] = result.stderr.splitlines()
    assert line.endswith(f' needs {missing}: pip install "dpmerge[{EXTRAS[missing]}]"')
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_every_extra_that_is_named_exists_and_is_installed_for_the_tests() -> None:
    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["project"]
    assert set(get_args(Extra)) == set(project["optional-dependencies"])
    [installed] = re.findall(r'--editable "\.\[([\w,-]+)\]"', (SOURCE.parents[1] / "Makefile").read_text())
    assert set(installed.split(",")) == set(get_args(Extra))


def test_a_missing_extra_is_an_import_error_that_survives_pickling() -> None:
    error = MissingExtraError("x", "torch", "torch")
    assert isinstance(error, DpmergeError)
    assert isinstance(error, ImportError)
    assert error.name == "torch"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301


def test_a_broken_package_is_an_error_that_says_why() -> None:
    wanted = r'one does not \(libx.so: missing\): pip install "dpmerge\[torch\]"'
    with pytest.raises(MissingExtraError, match=wanted), needs_extra("torch", by="x"):
        raise ImportError("libx.so:\n missing")


def test_errors_other_than_imports_pass_unchanged() -> None:
    with pytest.raises(RuntimeError, match="unrelated"), needs_extra("torch", by="x"):
        raise RuntimeError("unrelated")


def test_extras_are_named_only_in_the_errors_of_missing_ones() -> None:
    """An error that names an extra by itself would not be the same line."""
    naming = {path.name for path in SOURCE.rglob("*.py") if re.search(r"pip install ['\"]?dpmerge\[", path.read_text())}
    moving = {"audit.py", "reproduce.py"}  # imports of experiments that leave the package
    assert naming - moving == {"errors.py", "extras.py"}
