"""Workers killed in the middle of a merge or an evaluation: `python -m soak.lost_workers`. Fails if anything is lost.

Releases (an average, and one with release noise) are merged by two workers, and evaluations scored by them, in
processes, on a Ray cluster of two nodes and on a Dask cluster; one worker is killed at a random moment. Whatever the
moment: the release is whole, has the bytes of a merge on one machine, was charged once and verifies; every score is
there once, and is that of one machine.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from dpmerge.errors import InvalidInputError
from dpmerge.evaluation.evaluate import evaluate
from dpmerge.executors import open_executor
from dpmerge.executors.named_executors import is_remote
from dpmerge.ledger.ledger import Ledger
from dpmerge.releasing.release import release
from dpmerge.releasing.verifying import verify
from dpmerge.terms.recipe import Recipe
from soak.clusters import cluster
from soak.kills import WANTED, Wanted, expected_files, hidden, linked, loaded, write_models
from soak.ledger import postgresql

MARK = "DPMERGE_SOAK_WORKERS"
"""Of this process and all it starts, so that workers are found."""

CONNECTIONS = 4
"""How often a cluster is asked."""

KINDS = ("processes:2", "ray", "dask")


@dataclass
class Lost:
    """How many workers of what were killed at what, and what was wrong afterwards."""

    kills: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


class SlowTotal:
    """An evaluator that takes a moment."""

    identity = "slow total"

    def __call__(self, tensors: Mapping[str, Any]) -> float:
        time.sleep(0.1)
        return float(np.sum([np.sum(tensor, dtype=np.float64) for tensor in tensors.values()]))


def workers() -> list[int]:
    """The processes that work for an executor of ours, now."""
    found = []
    for place in Path("/proc").iterdir():
        if not place.name.isdigit():
            continue
        try:
            command = (place / "cmdline").read_bytes().replace(b"\0", b" ")
            marked = f"{MARK}={os.environ[MARK]}".encode() in (place / "environ").read_bytes()
        except OSError:
            continue
        if marked and (command.startswith(b"ray::call") or b"spawn_main" in command):
            found.append(int(place.name))
    return found


def with_a_kill(work: Callable[[], object], after: float, chance: random.Random) -> bool:
    """Do it, while a worker is killed after so many seconds; whether one was."""
    killed: list[int] = []

    def kill() -> None:
        if there := workers():
            killed.append(chance.choice(there))
            os.kill(killed[-1], signal.SIGKILL)

    timer = threading.Timer(after, kill)
    timer.start()
    try:
        work()
    finally:
        timer.cancel()
        timer.join()
    return bool(killed)


class Scene:
    """One release or evaluation, in folders of its own."""

    def __init__(self, wanted: Wanted | None, models: Path, scratch: Path, ledger: str) -> None:
        self.wanted, self.ledger = wanted, ledger
        self.home = linked(models, scratch / "portfolio")
        self.place = scratch / "outputs"
        self.place.mkdir()
        self.recipes = [Recipe.of({"a@20": w / 16, "b@20": 1 - w / 16}) for w in range(1, 16)]

    def work(self, executor: Executor) -> None:
        if self.wanted is None:
            cache = self.place / "scores.jsonl"
            self.scores = evaluate(loaded(self.home), self.recipes, SlowTotal(), executor=executor, cache=cache)
            return
        plan = self.wanted.plan(loaded(self.home))
        release(plan, out=self.place / "out", final=self.wanted.final, ledger=self.ledger, executor=executor)

    def wrong(self, scores: list[float], files: Mapping[str, Any]) -> Iterator[str]:
        """What is not as it should be."""
        if self.wanted is None:
            if self.scores != scores:
                yield "other scores"
            lines = (self.place / "scores.jsonl").read_text().splitlines()
            if len(lines) != 1 + len(scores):
                yield f"{len(lines) - 1} scores were kept of {len(scores)}"
            return
        found = verify(self.place / "out", portfolio=self.home, ledger=self.ledger)
        yield from (str(check) for check in found.checks if check.passed is False)
        with Ledger.open(self.ledger) as ledger:
            kinds = [entry.kind for entry in ledger.entries()]
            pending = ledger.pending()
        if kinds.count("release") != 1 or pending:
            yield f"charged: {kinds}, pending: {pending}"
        expected = files[self.wanted.name]
        if expected is not None and {k: v for k, v in found.files.items() if k in expected} != expected:
            yield "other bytes than one machine makes"
        if left := hidden(self.place):
            yield f"left behind: {left}"


def lost(models: Path, scratch: Path, *, kills: int, seed: int) -> Lost:
    """Kill so many workers, of each kind of executor as many."""
    chance, done = random.Random(seed), Lost()  # noqa: S311
    scenes = [WANTED[0], WANTED[2], None]
    files = {each.name: expected_files(each.plan(loaded(models)), scratch / "expected")[0] for each in WANTED[::2]}
    first = Scene(None, models, scratch / "first", "")
    scores = evaluate(loaded(models), first.recipes, SlowTotal())
    with ExitStack() as stack:
        server = stack.enter_context(postgresql())
        for kind in KINDS:
            with ExitStack() as own:
                name = kind
                if kind != "processes:2":
                    found = own.enter_context(cluster(kind))
                    name = found.get("RAY_CLIENT", found["EXECUTOR"])
                executor = own.enter_context(_opened(name))
                durations: dict[str, float] = {}
                share = kills // len(KINDS) + (KINDS.index(kind) < kills % len(KINDS))
                for number, wanted in enumerate(itertools.cycle(scenes)):
                    if done.kills[kind] >= share:
                        break
                    what = "an evaluation" if wanted is None else wanted.name
                    place = scratch / f"{KINDS.index(kind)}-{number}"
                    ledger = _database(server, place.name) if is_remote(executor) else str(place / "ledger.sqlite")
                    scene = Scene(wanted, models, place, ledger)
                    began = time.monotonic()
                    if what not in durations:  # the first of each is not disturbed
                        scene.work(executor)
                        durations[what] = time.monotonic() - began
                        killed = False
                    else:
                        killed = with_a_kill(
                            lambda scene=scene, executor=executor: scene.work(executor),
                            chance.uniform(0.05, 0.95) * durations[what],
                            chance,
                        )
                    done.kills[kind] += killed
                    done.kills[what] += killed
                    done.violations += [f"{kind}, {what}: {each}" for each in scene.wrong(scores, files)]
                    shutil.rmtree(place)
    return done


def _opened(name: str) -> Executor:
    """The executor; Ray's server for clients does not always start within the time that Ray gives it."""
    for _ in range(CONNECTIONS - 1):
        with suppress(InvalidInputError):
            return open_executor(name)
    return open_executor(name)


def _database(server: str, name: str) -> str:
    """The address of a new database of this server."""
    url = make_url(server)
    engine = create_engine(url.set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f'CREATE DATABASE "soak-{name}"'))
    engine.dispose()
    return url.set(database=f"soak-{name}").render_as_string(hide_password=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    say = Console(highlight=False).print
    os.environ[MARK] = str(os.getpid())
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        scratch = Path(folder)
        models = write_models(scratch / "models", values=2_000_000, tensors=8, files=4)
        began = time.monotonic()
        done = lost(models, scratch / "rounds", kills=options.kills, seed=options.seed)
    total = sum(done.kills[kind] for kind in KINDS)
    say(f"{total} workers killed in {time.monotonic() - began:.0f} s")
    say("  " + ", ".join(f"{what}: {count}" for what, count in sorted(done.kills.items())))
    for violation in done.violations:
        say(f"VIOLATION {violation}", style="bold red")
    say(f"{len(done.violations)} violations")
    return 1 if done.violations else 0


if __name__ == "__main__":
    sys.exit(main())
