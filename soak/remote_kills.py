"""Publishing to an object store, killed at any moment: `python -m soak.remote_kills`. Fails if anything leaks.

A release is made and sent to an S3 server on loopback in a child process, which is killed after a random time, or at a
random request. Whatever the moment: without a certificate the prefix is unfinished, with it the output verifies;
whatever is there was charged and sealed; recovery, which is killed now and then itself, finishes with the same bytes
and leaves neither claim nor staged files.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from dpmerge.certificate.dsse import CERTIFICATE_NAME
from dpmerge.errors import InvalidInputError
from dpmerge.ledger.ledger import Ledger
from dpmerge.releasing.ledger_location import LEDGER_NAME
from dpmerge.releasing.recover import recover
from dpmerge.releasing.release import release
from dpmerge.releasing.verifying import verify
from dpmerge.remote.remote_path import RemotePath, location
from dpmerge.remote.s3_store import S3Store
from dpmerge.remote.stores import store_of
from soak.kills import WANTED, Child, Wanted, linked, loaded, write_models
from soak.object_store import downloaded, object_store

CALLS = ("create", "upload", "remove", "files", "read", "drop_unfinished")
"""What a store is asked to do: at any of these a child may die."""


@dataclass
class Killed:
    """What was killed, how far it had come, and what was wrong afterwards."""

    phases: Counter[str] = field(default_factory=Counter)
    recoveries_killed: int = 0
    violations: list[str] = field(default_factory=list)


def dying_at(call: int) -> None:
    """In a child: die at that request of the store, before it is sent or after it is answered."""
    left = [call]

    def patched(original: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **named: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), 9)
            result = original(*given, **named)
            if left[0] == 1:
                left[0] = 0
                os.kill(os.getpid(), 9)
            return result

        return called

    for name in CALLS:
        setattr(S3Store, name, patched(getattr(S3Store, name)))


class Publishing:
    """One release to a prefix of its own, from a portfolio with a ledger of its own."""

    def __init__(self, wanted: Wanted, models: Path, scratch: Path, prefix: str) -> None:
        self.wanted, self.home = wanted, linked(models, scratch / "portfolio")
        self.url = f"s3://soak/{prefix}/model"

    def release(self) -> None:
        release(self.wanted.plan(loaded(self.home)), out=self.url, final=self.wanted.final)

    def recover(self) -> list[str | None]:
        if not (self.home / LEDGER_NAME).exists():
            return []
        with Ledger.open(self.home / LEDGER_NAME) as ledger:
            return [each.problem for each in recover(ledger)]

    def seen(self) -> tuple[str, dict[str, bytes], list[str]]:
        """How far it is, what anybody can read, and what is wrong with that."""
        out = location(self.url)
        assert isinstance(out, RemotePath)
        present, wrong = dict(downloaded(out)), []
        charges = self._charges()
        if len(charges) > 1:
            wrong.append(f"{len(charges)} charges for one release")
        if CERTIFICATE_NAME in present:
            wrong += [f"verify: {problem}" for problem in verify(self.url, portfolio=self.home).problems]
        else:
            try:
                verify(self.url)
                wrong.append("verified without a certificate")
            except InvalidInputError as error:
                if present and "unfinished" not in str(error):
                    wrong.append(f"half of it is not called unfinished: {error}")
        if present and (not charges or charges[0].output is None):
            wrong.append("something can be read that was not charged and sealed")
        status = charges[0].status if charges else "before the charge"
        if status == "pending":
            sent = "published" if CERTIFICATE_NAME in present else "partly sent" if present else "sealed"
            status = "charged" if charges[0].output is None else sent
        return status, present, wrong

    def left(self) -> list[str]:
        """What should be gone after a recovery."""
        out = location(self.url)
        assert isinstance(out.parent, RemotePath)
        beside = [name for name in store_of(out.parent).files(out.parent) if not name.startswith("model/")]
        staging = Path(os.environ["DPMERGE_HOME"]) / "staging"
        folders = [path.name for path in staging.iterdir() if path.is_dir()] if staging.is_dir() else []
        shutil.rmtree(staging, ignore_errors=True)  # so that the next is judged by itself
        return beside + folders

    def _charges(self) -> list[Any]:
        if not (self.home / LEDGER_NAME).exists():
            return []
        with Ledger.open(self.home / LEDGER_NAME) as ledger:
            names = [entry.body["release"] for entry in ledger.entries() if entry.kind == "release"]
            return [ledger.release(name) for name in names]


def asked(work: Callable[[], Any]) -> Any:
    """What a child found; the parent never speaks to the store, so that each child begins afresh."""
    ended = Child(work).ended()
    assert ended.how == "done", ended.error
    return ended.value


def killed(models: Path, scratch: Path, *, kills: int, seed: int) -> Killed:
    """Kill so many releases on their way to the store."""
    chance, done = random.Random(seed), Killed()  # noqa: S311
    durations = {wanted.name: 1.0 for wanted in WANTED}
    for number in range(kills):
        wanted = WANTED[number % len(WANTED)]
        one = Publishing(wanted, models, scratch / str(number), f"{seed}-{number}")
        _kill(chance, one.release, durations[wanted.name])
        phase, before, wrong = asked(one.seen)
        durations[wanted.name] *= 0.9 if phase == "completed" else 1.05
        done.phases[phase] += 1
        if chance.random() < 0.3:
            done.recoveries_killed += 1
            _kill(chance, one.recover, durations[wanted.name])
            _, between, more = asked(one.seen)
            wrong += [f"recovery killed: {each}" for each in more] + _changed(before, between)
            before = between
        wrong += [f"recovery failed: {each}" for each in asked(one.recover) if each is not None]
        after_phase, after, more = asked(one.seen)
        wrong += [f"recovered: {each}" for each in more] + _changed(before, after)
        if after_phase not in ("completed", "before the charge"):
            wrong.append(f"recovered, and still {after_phase}")
        if after_phase == "completed" and CERTIFICATE_NAME not in after:
            wrong.append("completed, and not there")
        wrong += [f"left behind: {each}" for each in asked(one.left)]
        done.violations += [f"kill {number} ({wanted.name}, {phase}): {each}" for each in wrong]
        shutil.rmtree(scratch / str(number))
    return done


def _kill(chance: random.Random, work: Callable[[], Any], duration: float) -> None:
    """At a random request of the store, or after a random time."""
    if chance.random() < 0.5:
        call = chance.randint(2, 14)
        Child(lambda: (dying_at(call), work())).ended()
        return
    child = Child(work)
    time.sleep(chance.uniform(0.3, 1.0) * duration)
    child.kill()
    child.ended()


def _changed(before: dict[str, bytes], after: dict[str, bytes]) -> list[str]:
    return [f"{name} could be read, and became another" for name in before if after.get(name) != before[name]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    say = Console(highlight=False).print
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        scratch = Path(folder)
        (scratch / "gate").mkdir()
        models = write_models(scratch / "models")
        with object_store(scratch / "gate") as store:
            os.environ.update(store.environment, DPMERGE_HOME=str(scratch / "private"))
            Child(lambda: str(store.bucket("soak"))).ended()
            began = time.monotonic()
            done = killed(models, scratch / "rounds", kills=options.kills, seed=options.seed)
    say(f"{options.kills} kills in {time.monotonic() - began:.0f} s, recoveries killed: {done.recoveries_killed}")
    say("  " + ", ".join(f"{phase}: {count}" for phase, count in sorted(done.phases.items())))
    for violation in done.violations:
        say(f"VIOLATION {violation}", style="bold red")
    say(f"{len(done.violations)} violations")
    return 1 if done.violations else 0


if __name__ == "__main__":
    sys.exit(main())
