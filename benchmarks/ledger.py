"""What a long ledger costs: a charge by a new process, and `ledger show`, at some number of entries.

There is no peer to compare with: the ratio is how much longer reading every entry takes than reading a snapshot.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table
from soak.ledger import SCOPE, manifests, request

from dpmerge.ledger import Ledger
from dpmerge.ledger.database import append
from dpmerge.ledger.entries import Entry, following

ENTRIES = 20_000
CHARGE_GOAL, SHOW_GOAL, MEMORY_GOAL = 0.3, 1.0, 200

_CHARGE = """
import json, sys, time
from soak.ledger import manifests, request
from dpmerge.ledger import Ledger
begun = time.perf_counter()
with Ledger.open(sys.argv[1]) as ledger:
    ledger.charge(request(manifests(), [(0, 1)]), lambda units: 0)
print(json.dumps(time.perf_counter() - begun))
"""
_SHOW = r"""
import json, re, sys, time
from pathlib import Path
begun = time.perf_counter()
from dpmerge.cli import app
app(["ledger", "show", "--ledger", sys.argv[1]], standalone_mode=False)
taken = time.perf_counter() - begun
memory = int(re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())[1])  # of this process alone
print(json.dumps([taken, memory / 1024]), file=sys.stderr)
"""


def run(console: Console) -> dict[str, float]:
    """Print what was measured; return how many times faster a snapshot is than every entry."""
    console.print(f"\n[bold]ledger[/]: {ENTRIES:,} entries, each process a new one")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        _fill(path, ENTRIES)
        whole = _charged(path)  # has no snapshot yet, and leaves one
        charged = min(_charged(path) for _ in range(5))
        shown, memory = min(_shown(path) for _ in range(3))
    table = Table("", "seconds", "goal")
    table.add_row("a charge that reads every entry, and leaves a snapshot", f"{whole:.2f}", "")
    table.add_row("a charge", f"{charged:.3f}", f"{CHARGE_GOAL:g}")
    table.add_row(
        f"ledger show, start-up included ({memory:.0f} MB; goal {MEMORY_GOAL})", f"{shown:.2f}", f"{SHOW_GOAL:g}"
    )
    console.print(table)
    return {"charge from a snapshot, against every entry": whole / charged}


def _fill(path: Path, count: int) -> None:
    """Charges and completions as the ledger writes them, all in one transaction."""
    runs = manifests()
    with Ledger.open(path) as ledger:
        first = ledger.charge(request(runs, [(0, 1), (1, 1)]), lambda _: 0)
        made, head = list[Entry](), ledger.head()
        body = dict(first.body)
        for number in range((count - head[0]) // 2):
            release = f"{number:032x}"
            step = 1 + number % 40
            terms = request(runs, [(number % 3, step)], f"request {number}").body
            charged = {**body, **terms, "release": release, "index": 0, "cost": 0.0, "counted": "joint"}
            output = {"files": {"model.safetensors": "0" * 64}, "certificate": "1" * 64, "where": f"models/{number}"}
            for kind, content in (("release", charged), ("completed", {"release": release, **output})):
                entry = following(ledger.id, head, kind=kind, scope=SCOPE, body=content)  # type: ignore[arg-type]
                made.append(entry)
                head = entry.seq, entry.hash
        with ledger._database.writing() as connection:
            append(connection, made)


def _charged(path: Path) -> float:
    return float(json.loads(_python(_CHARGE, path).stdout))


def _shown(path: Path) -> tuple[float, float]:
    seconds, memory = json.loads(_python(_SHOW, path).stderr.splitlines()[-1])
    return float(seconds), float(memory)


def _python(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
