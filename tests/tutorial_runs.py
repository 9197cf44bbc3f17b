"""The tutorials, run as a reader would run them; and what they show, stored in them.

    python tests/tutorial_runs.py [1 4 …]     # make tutorials: all of docs/tutorials, or those that begin so

Guarantees: a notebook is run in a copy of its place in a clone, with a temporary folder of its own; what is stored has
no release's id, no time and no machine in it, so that running it again changes nothing but what has to vary.
Refuses, within the notebook: to look up or to connect to any other machine.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

import dpmerge as dpm

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
SHOWN = ("text/plain", "text/html", "image/png")
"""What a page of the site can show."""

STYLE, FRAME = re.compile(r"<style scoped>.*?</style>\n?", re.S), '<table border="1" class="dataframe">'
"""What pandas has around a table."""

ALONE = """
import sys
import matplotlib.font_manager  # says that it makes its cache, the first time, and not in a tutorial's cell

_reached = []

def _refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo"):
        place = arguments[1] if event == "socket.connect" else arguments[0]
        place = place[0] if isinstance(place, tuple) else place
        if event == "socket.getaddrinfo" or not str(place).startswith(("/", "127.", "::1")):
            _reached.append(f"{event} {place}")
            raise OSError(f"a tutorial reaches for the network: {event} {place}")

sys.addaudithook(_refuse)
"""


def run(notebook: Path, place: Path, *, check: str = "pass") -> NotebookNode:
    """The notebook after all its cells; then `check` is run in its kernel, which raises if an assertion fails.

    `place` gets what a clone has beside a tutorial, and `place/temporary`, where temporary folders are made.
    """
    folder = place / "docs" / "tutorials"
    folder.mkdir(parents=True)
    (place / "temporary").mkdir()
    shutil.copytree(ROOT / "examples", place / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    book = nbformat.read(notebook, as_version=4)
    own = book.cells
    around = [nbformat.v4.new_code_cell(code) for code in (ALONE, f"assert _reached == [], _reached\n{check}")]
    book.cells = [around[0], *own, around[1]]
    environment = {**os.environ, "PYTHONPATH": str(Path(dpm.__file__).parents[1]), "TMPDIR": str(place / "temporary")}
    environment.pop("DPMERGE_LEDGER", None)
    client = NotebookClient(
        book,
        timeout=120,
        kernel_name="python3",
        coalesce_streams=True,
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env=environment)
    book.cells = own
    for number, cell in enumerate((cell for cell in own if cell.cell_type == "code"), start=1):
        cell.execution_count = number
        cell.outputs = [_stored(output, number, cell.metadata.get("alt")) for output in cell.outputs]
    book.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return book


def _stored(output: NotebookNode, number: int, alt: str | None) -> NotebookNode:
    """What is kept of an output: what a page can show, without the id that each release has for itself.

    The text of a picture is what its cell's metadata have as `alt`, not how many dots it has; a table of pandas is a
    table as any other, for the page to style.
    """
    if output.output_type == "stream":
        output.text = _anonymous(output.text)
        return output
    output.data = {kind: _anonymous(text) for kind, text in output.data.items() if kind in SHOWN}
    if "image/png" in output.data and alt is not None:
        output.data["text/plain"] = alt
    output.metadata = {}
    if "text/html" in output.data:
        output.data["text/html"] = STYLE.sub("", output.data["text/html"]).replace(FRAME, "<table>")
    if "execution_count" in output:
        output.execution_count = number
    return output


def _anonymous(text: str) -> str:
    return re.sub(r"\b[0-9a-f]{32}\b", "…", text)


def main(names: list[str]) -> None:
    for notebook in TUTORIALS:
        if not names or notebook.name.startswith(tuple(names)):
            with tempfile.TemporaryDirectory() as place:
                nbformat.write(run(notebook, Path(place)), notebook)
            print(notebook.name)


if __name__ == "__main__":
    main(sys.argv[1:])
