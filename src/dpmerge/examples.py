"""Portfolios that come with dpmerge, to try it on before there are models of one's own.

Guarantees: the folder appears whole or not at all, and is the same from a wheel, an sdist and a checkout.
Refuses: names that are not shipped; a target that has something in it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from dpmerge.errors import InvalidInputError
from dpmerge.merging.staging import StagedFolder

EXAMPLES = {"mnist": tuple(f"ladder-{number}" for number in range(1, 9))}
"""The runs of each portfolio. `pyproject.toml` puts the same folders into the wheel, below `dpmerge/data`."""

_HERE = Path(__file__).parent
_HOMES = (_HERE / "data", _HERE.parents[1] / "examples")
"""Where they are: beside this file in a wheel, in the repository's own folder otherwise."""


def write_example(name: str, output: str | Path) -> tuple[str, ...]:
    """Write a small portfolio that ships with dpmerge, to plan with and release from.

    Args:
        name: Which one: `mnist` is eight runs of logistic regression on MNIST, trained with the same settings and
            different noise, each with ε = 0.0505 at δ = 1e-5 (`replace_one`).
        output: A folder that does not exist yet, or is empty.

    Returns:
        The runs that are in it now, a folder each.

    Raises:
        InvalidInputError: There is no example of that name.
        CannotWriteError: The folder has something in it, or cannot be written; nothing of it was.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_example("mnist", folder + "/models")[:2]
    ('ladder-1', 'ladder-2')
    """
    if name not in EXAMPLES:
        raise InvalidInputError("example", name, ", ".join(EXAMPLES))
    source = _shipped(name)
    with StagedFolder(output) as staged:
        for run in EXAMPLES[name]:
            (staged.path / run).mkdir()
            for file in sorted((source / run).iterdir()):
                shutil.copyfile(file, staged.path / run / file.name)  # not its mode: it may be another user's
        staged.publish()
    return EXAMPLES[name]


def _shipped(name: str) -> Path:
    for home in _HOMES:
        if all((home / name / run / "privacy.json").is_file() for run in EXAMPLES[name]):
            return home / name
    found = f"no {name} in {' or '.join(str(home) for home in _HOMES)}"
    raise InvalidInputError("example", name, "an installation with its data: install dpmerge again", found=found)
