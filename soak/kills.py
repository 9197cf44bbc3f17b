"""Releases that are killed at any moment, and many at once: `python -m soak.kills`. Fails if anything is lost or leaks.

A release is made in a child process, which is killed after a random time. Whatever the moment, what is found afterwards
is a whole, verified, charged output or none; the ledger's chain holds; recovery, which is killed now and then itself,
finishes with the draw that was charged, byte for byte, and leaves nothing behind.

Then many processes release from one portfolio under a cap, with the ledger in a file and in PostgreSQL. What has left
is added up again by the plain formula, μ² = Σ steps·(2/σ)², and compared with the cap.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import pickle
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console

from dpmerge.certificate.dsse import CERTIFICATE_NAME, read_certificate
from dpmerge.errors import CapExceededError, DpmergeError
from dpmerge.ledger.caps import Cap
from dpmerge.ledger.charge import Charge
from dpmerge.ledger.entries import BudgetScope
from dpmerge.ledger.head_checkpoint import check_head_checkpoint
from dpmerge.ledger.ledger import Ledger
from dpmerge.merging.recipe_files import build
from dpmerge.planning.plan import Plan
from dpmerge.planning.stated_weights import stated_weights
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.tensors import read_header, weights_digest
from dpmerge.releasing.commitment_salt import SALT_NAME
from dpmerge.releasing.ledger_location import LEDGER_NAME, WITNESS_NAME
from dpmerge.releasing.portfolio_ledger import PortfolioLedger
from dpmerge.releasing.rebuild import rebuilt
from dpmerge.releasing.release import release
from dpmerge.releasing.verifying import verify
from dpmerge.terms.candidate_terms import CandidateTerms, Choice, Part, Seen
from dpmerge.terms.guarantee import Guarantee
from dpmerge.terms.release_terms import ReleaseTerms
from soak.ledger import postgresql

DELTA = 1e-5
STEPS = (10, 20)
SIGMAS = {"a": 16.0, "b": 32.0, "c": 64.0}
CAP = Cap(epsilon=2.0, delta=DELTA, rule="gaussian_filter")
LARGEST_MU = 0.5015517  # of a Gaussian that is (2, 1e-5)-private, to seven digits, rounded up
LOOSE = Guarantee(epsilon=50.0, delta=DELTA)

# Portfolios and what is wanted of them


def write_models(home: Path, values: int = 4_000, *, tensors: int = 8, seed: int = 0, files: int = 1) -> Path:
    """Three full-batch runs of smooth models, two checkpoints each: each tensor has so many float32 values."""
    for place, (name, sigma) in enumerate(SIGMAS.items()):
        folder = home / name
        folder.mkdir(parents=True)
        saved = []
        for step in STEPS:
            saved.append(write_checkpoint(folder, step, random_model([seed, place, step], values, tensors), files))
        (folder / "config.json").write_text(json.dumps({"of": "a soak"}))
        (folder / "privacy.json").write_text(
            json.dumps({**_document(name, place, sigma, tensors), "checkpoints": saved})
        )
    return home


def _document(name: str, place: int, sigma: float, tensors: int) -> dict[str, Any]:
    block = {"steps": STEPS[-1], "noise_multiplier": sigma, "clip_norm": 1.4143, "learning_rate": 5e-5}
    return {
        "schema": "dpmerge/run/v1",
        "run": name,
        "dataset": {"id": "soaked", "size": 60_000},
        "unit": "record",
        "adjacency": "replace_one",
        "mechanism": {
            "kind": "dp_sgd",
            "blocks": [block],
            "sampling": "full_batch",
            "clipping": "per_example",
            "flat_clipping": True,
            "optimizer": {"name": "sgd", "momentum": 0, "nesterov": False, "dampening": 0, "weight_decay": 0},
            "loss_reduction": "mean",
            "expected_batch_size": 60_000,
            "public_divisor": True,
            "smoothness": {"kind": "softmax", "feature_bound": 1.0, "records": 60_000, "vouched_by": "the soak"},
        },
        "noise": {"source": "os_entropy", "generator": "philox", "stream": f"{place + 1:032x}"},
        "ancestry": {"start": "random"},
        "initial_weights": hashlib.sha256(b"the common start").hexdigest(),
        "tensors": {"trained": [f"layer-{n}" for n in range(tensors)], "frozen": []},
        "tuning": "none",
        "recorded_by": {"how": "recorder"},
    }


def random_model(seed: Sequence[int], values: int, tensors: int = 8) -> dict[str, np.ndarray[Any, Any]]:
    chance = np.random.default_rng(seed)
    return {f"layer-{n}": chance.standard_normal(values, np.float32) for n in range(tensors)}


def write_checkpoint(
    folder: Path, step: int, model: Mapping[str, np.ndarray[Any, Any]], files: int = 1
) -> dict[str, Any]:
    """Save a model in so many files, and return its entry in the manifest."""
    names = list(model)
    written: list[Path] = []
    for place in range(files):
        shard = "" if files == 1 else f"-{place + 1:05}-of-{files:05}"
        written.append(folder / f"step-{step}{shard}.safetensors")
        _write_file(written[-1], {name: model[name] for name in names[place::files]})
    digests = {name: hashlib.sha256(values.tobytes()).hexdigest() for name, values in model.items()}
    slots = [slot for file in written for slot in read_header(file)]
    return {
        "step": step,
        "files": [{"name": file.name, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()} for file in written],
        "weights": weights_digest((s.name, s.dtype, s.shape, digests[s.name]) for s in slots),
    }


def _write_file(file: Path, model: Mapping[str, np.ndarray[Any, Any]]) -> None:
    header, data = {}, b"".join(values.tobytes() for values in model.values())
    start = 0
    for name, values in model.items():
        header[name] = {"dtype": "F32", "shape": [values.size], "data_offsets": [start, start + values.nbytes]}
        start += values.nbytes
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)


def linked(home: Path, to: Path) -> Path:
    """The same portfolio in another folder, without its ledger: the files are the same ones, under other names."""
    for file in home.glob("*/*"):
        (to / file.parent.name).mkdir(parents=True, exist_ok=True)
        os.link(file, to / file.parent.name / file.name)
    return to


def loaded(home: Path) -> Portfolio:
    return Portfolio.load(home, contents=False)


def average(portfolio: Portfolio) -> Plan:
    """One merge of three models."""
    return stated_weights(portfolio, {"a@20": 0.25, "b@20": 0.25, "c@20": 0.5}, LOOSE)


def draw_of_two(portfolio: Portfolio) -> Plan:
    """One of two, each as likely: an average or a checkpoint as it was trained."""
    return drawn_from(portfolio, [{"a@20": 0.5, "b@20": 0.5}, {"c@20": 1.0}])


def drawn_from(portfolio: Portfolio, candidates: Iterable[Mapping[str, float]]) -> Plan:
    """One of some merges, each as likely."""
    return _planned(portfolio, [_candidate(each, "joint_release", 0.0) for each in candidates])


def noised(portfolio: Portfolio) -> Plan:
    """One merge with release noise: the last release of its runs."""
    return _planned(portfolio, [_candidate({"b@20": 0.25, "c@20": 0.75}, "hidden_state", 0.01)])


def _candidate(weights: Mapping[str, float], theorem: str, noise: float) -> CandidateTerms:
    named = [(*name.split("@"), weight) for name, weight in weights.items()]
    return CandidateTerms(
        parts=[Part(run=run, step=int(step), weight=weight) for run, step, weight in named],
        release_noise=noise,
        theorem=theorem,  # type: ignore[arg-type]
        seen=[Seen(run=run, step=int(step)) for run, step, _ in named],
    )


def _planned(portfolio: Portfolio, candidates: list[CandidateTerms]) -> Plan:
    involved = {seen.run for each in candidates for seen in each.seen}
    terms = ReleaseTerms(
        dataset=portfolio.dataset,
        unit=portfolio.unit,
        adjacency=portfolio.adjacency.value,
        accounting="pld",
        runs=[run.manifest.statement for run in portfolio.runs if run.id in involved],
        candidates=candidates,
        probabilities=[1 / len(candidates)] * len(candidates),
        choice=Choice.stated("stated beforehand", "stated_without_looking_at_the_models"),
    )
    return Plan.of_terms(portfolio, terms, LOOSE)


@dataclass(frozen=True)
class Wanted:
    """A kind of release."""

    name: str
    plan: Callable[[Portfolio], Plan]
    final: bool = False


WANTED = (Wanted("an average", average), Wanted("a draw of two", draw_of_two), Wanted("release noise", noised, True))

# Children


@dataclass(frozen=True)
class Ended:
    """How a child ended: killed, with an error, or with what it returned."""

    how: Literal["killed", "failed", "done"]
    value: Any = None
    error: str = ""
    notes: tuple[str, ...] = ()


class Child:
    """A copy of this process that does one thing; everything is imported in it already."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._reading, writing = os.pipe()
        with warnings.catch_warnings():
            # Later versions of Python warn of the threads that libraries keep; none of them holds a lock here.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            os.close(self._reading)
            _work_and_leave(work, writing)
        os.close(writing)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def ended(self) -> Ended:
        """Wait for it."""
        with os.fdopen(self._reading, "rb") as stream:
            told = stream.read()
        _, status = os.waitpid(self.pid, 0)
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL, f"a child died of signal {os.WTERMSIG(status)}"
            return Ended("killed")
        answer: Ended = pickle.loads(told)  # noqa: S301  from ourselves
        return answer


def _work_and_leave(work: Callable[[], Any], writing: int) -> None:
    try:
        try:
            answer = Ended("done", work())
        except DpmergeError as error:
            notes = tuple(getattr(error, "__notes__", ()))
            answer = Ended("failed", error=f"{type(error).__name__}: {error}", notes=notes)
        except BaseException:
            answer = Ended("failed", error=f"UNEXPECTED {traceback.format_exc()}")
        with os.fdopen(writing, "wb") as stream:
            stream.write(pickle.dumps(answer))
    finally:
        os._exit(0)


def killed_after(seconds: float, work: Callable[[], Any]) -> Ended:
    """Do it in a child, and kill that after so long unless it is done."""
    child = Child(work)
    time.sleep(seconds)
    child.kill()
    return child.ended()


def at_once(works: Sequence[Callable[[], Any]]) -> list[Ended]:
    """All of them, each in a child, started together."""
    gate, opener = os.pipe()

    def waiting(work: Callable[[], Any]) -> Callable[[], Any]:
        def begun() -> Any:
            os.close(opener)
            os.read(gate, 1)  # ends when the last writer closes
            return work()

        return begun

    children = [Child(waiting(work)) for work in works]
    os.close(gate)
    os.close(opener)
    return [child.ended() for child in children]


# What must hold


def digests(folder: Path) -> dict[str, str]:
    """Every file of a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def release_in(out: Path) -> str:
    return str(read_certificate((out / CERTIFICATE_NAME).read_bytes()).content["release"])


def leaks(place: Path, ledger: Ledger, portfolio: Portfolio | None = None) -> list[str]:
    """What is wrong with the models in a folder: each must be a verified output that was charged.

    Weights may otherwise only be in a folder being staged, whose name begins with a dot and ends with ".partial".
    """
    wrong = []
    folders = {file.parent for file in place.rglob("*.safetensors")}
    for folder in sorted(folders):
        name = folder.relative_to(place).parts[0]
        if name.startswith(".") and name.endswith(".partial"):
            continue
        if not (folder / CERTIFICATE_NAME).is_file():
            wrong.append(f"{folder.name}: weights without a certificate")
            continue
        result = verify(folder, portfolio=portfolio)
        wrong += [f"{folder.name}: {problem}" for problem in result.problems]
        if ledger.release(release_in(folder)) is None:
            wrong.append(f"{folder.name}: was not charged")
    return wrong


def broken(ledger: Ledger, home: Path) -> list[str]:
    """What is wrong with a ledger."""
    wrong = []
    verdict = ledger.verify()
    if not verdict.ok:
        wrong.append(f"the chain is broken at {verdict.broken}: {verdict.why}")
    try:
        check_head_checkpoint(ledger, home / WITNESS_NAME)
    except DpmergeError as error:
        wrong.append(str(error))
    return wrong


def hidden(place: Path) -> list[str]:
    """What was left beside the outputs."""
    return sorted(path.name for path in place.iterdir() if path.name.startswith("."))


def left_behind(home: Path, place: Path) -> list[str]:
    """What is in a portfolio and beside its outputs that belongs to no finished release."""
    runs = [folder for folder in sorted(home.iterdir()) if folder.is_dir()]
    found = [name for folder in (place, home, *runs) for name in hidden(folder)]
    found += [path.name for path in home.iterdir() if path.name.startswith(f"{LEDGER_NAME}-")]
    return [name for name in found if name not in (WITNESS_NAME, SALT_NAME)]


def expected_files(planned: Plan, folder: Path) -> list[dict[str, str] | None]:
    """The files of each candidate, made without releasing them; None where noise is added."""
    made: list[dict[str, str] | None] = []
    for place, candidate in enumerate(planned.terms.candidates):
        if candidate.release_noise:
            made.append(None)
            continue
        (folder / str(place)).mkdir(parents=True)
        built = build(planned.portfolio, candidate.recipe, folder / str(place))
        made.append({file.name: file.sha256 for file in built.files})
        shutil.rmtree(folder / str(place))
    return made


def phase(place: Path, out: Path, charged: Charge | None) -> str:
    """How far a release had come."""
    if charged is None:
        return "before the charge"
    if charged.status == "completed":
        return "completed"
    if (out / CERTIFICATE_NAME).is_file() and release_in(out) == charged.release_id:
        return "published"
    staged = [path for path in place.glob(".*.partial") if path.is_dir()]
    if any((path / CERTIFICATE_NAME).is_file() for path in staged):
        return "certified"
    return "merging" if any(any(path.glob("*.safetensors")) for path in staged) else "charged"


# Kills


@dataclass
class Kills:
    """What was killed, and what was wrong afterwards."""

    phases: Counter[str] = field(default_factory=Counter)
    recoveries: int = 0
    recoveries_killed: int = 0
    removed: int = 0
    draws: Counter[int] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


class Victim:
    """Releases of one kind, from one portfolio, one after the other."""

    def __init__(self, wanted: Wanted, models: Path, scratch: Path, chance: random.Random) -> None:
        self.wanted, self._models, self._scratch, self._chance = wanted, models, scratch, chance
        self._rounds = 0
        self.expected = expected_files(wanted.plan(loaded(models)), scratch / "expected")
        self._fresh()
        began = time.monotonic()
        ended = Child(self._release(overwrite=False)).ended()
        assert ended.how == "done", ended.error
        self.duration = time.monotonic() - began

    def _fresh(self) -> None:
        """Another portfolio of the same models, with a ledger of its own."""
        self._rounds += 1
        folder = self._scratch / f"round-{self._rounds}"
        self.home = linked(self._models, folder / "portfolio")
        self.place = folder / "outputs"
        self.place.mkdir()
        self.out = self.place / "out"

    def _release(self, *, overwrite: bool) -> Callable[[], str]:
        planned = self.wanted.plan(loaded(self.home))
        return lambda: release(planned, out=self.out, final=self.wanted.final, overwrite=overwrite).release_id

    def killed_once(self, number: int, kills: Kills) -> None:
        """Kill a release, look, recover, look again."""
        chance = self._chance
        if self.wanted.final:  # its runs are locked now
            shutil.rmtree(self.home.parent)
            self._fresh()
        # Sometimes over what is there: then that must stay whole until it is replaced.
        overwrite = self.out.exists() and chance.random() < 0.5
        if not overwrite:
            shutil.rmtree(self.out, ignore_errors=True)
        before = digests(self.out) if overwrite else None
        known = self._releases()
        killed_after(chance.uniform(0.0, self.duration), self._release(overwrite=overwrite))
        said = f"kill {number} ({self.wanted.name}{', overwriting' if overwrite else ''})"
        kills.violations += [f"{said}: {problem}" for problem in self._after_the_kill(known, before, kills)]

    def _releases(self) -> dict[str, Charge]:
        if not (self.home / LEDGER_NAME).exists():
            return {}
        with Ledger.open(self.home / LEDGER_NAME) as ledger:
            names = [entry.body["release"] for entry in ledger.entries() if entry.kind == "release"]
            found = {name: ledger.release(name) for name in names}
        return {name: charged for name, charged in found.items() if charged is not None}

    def _after_the_kill(
        self, known: Mapping[str, Charge], before: Mapping[str, str] | None, kills: Kills
    ) -> Iterator[str]:
        new = {name: charged for name, charged in self._releases().items() if name not in known}
        charged = next(iter(new.values()), None)
        found = phase(self.place, self.out, charged)
        kills.phases[found] += 1
        # Of those that are done in time there are soon fewer.
        self.duration *= 0.85 if found == "completed" else 1.05
        if len(new) > 1:
            yield f"{len(new)} charges for one release"
        with Ledger.open(self.home / LEDGER_NAME) as ledger:
            yield from (f"{found}: {problem}" for problem in broken(ledger, self.home))
            yield from (f"{found}: {problem}" for problem in leaks(self.place, ledger))
        present = digests(self.out) if self.out.exists() else None
        made = present is not None and charged is not None and release_in(self.out) == charged.release_id
        if not made and present != before:
            yield f"{found}: what was there before is gone or changed"
        inode = self.out.stat().st_ino if made else None
        if self._chance.random() < 0.3:
            kills.recoveries_killed += 1
            killed_after(self._chance.uniform(0.0, self.duration), self._recovery())
            with Ledger.open(self.home / LEDGER_NAME) as ledger:
                problems = [*broken(ledger, self.home), *leaks(self.place, ledger)]
            yield from (f"{found}, recovery killed: {problem}" for problem in problems)
            if charged is not None and not made and self.out.exists() and release_in(self.out) == charged.release_id:
                made, present, inode = True, digests(self.out), self.out.stat().st_ino
        with PortfolioLedger.of(self.home) as ledger:
            for step in ledger.recover():
                kills.recoveries += step.removed is None
                kills.removed += step.removed is not None
                if step.unsolved:
                    yield f"{found}: recovery failed: {step.outcome}"
            yield from self._after_the_recovery(ledger, found, charged)
        if made and (self.out.stat().st_ino != inode or digests(self.out) != present):
            yield f"{found}: what had been published was made again"
        if charged is not None and charged.index is not None:
            kills.draws[charged.index] += 1

    def _recovery(self) -> Callable[[], object]:
        def work() -> None:
            with PortfolioLedger.of(self.home) as ledger:
                ledger.recover()

        return work

    def _after_the_recovery(self, ledger: Ledger, found: str, charged: Charge | None) -> Iterator[str]:
        if ledger.pending():
            yield f"{found}: something is pending after recovery"
        yield from (f"{found}: left behind: {name}" for name in left_behind(self.home, self.place))
        portfolio = loaded(self.home)
        problems = [*broken(ledger, self.home), *leaks(self.place, ledger, portfolio)]
        yield from (f"{found}, recovered: {problem}" for problem in problems)
        if charged is None:
            return
        now = ledger.release(charged.release_id)
        if now is None or now.status != "completed" or now.output is None:
            yield f"{found}: not completed by recovery"
            return
        if now.index != charged.index or charged.index is None:
            yield f"{found}: another draw: {charged.index} became {now.index}"
            return
        if not self.out.exists() or release_in(self.out) != charged.release_id:
            yield f"{found}: recovered, and not there"
            return
        result = verify(self.out)
        wanted = self.expected[charged.index]
        if wanted is not None and dict(result.files) != wanted:
            yield f"{found}: not the model that was drawn"
        if dict(result.files) != dict(now.output.files):
            yield f"{found}: not the files in the ledger"
        if wanted is not None and rebuilt(result, portfolio).passed is not True:
            yield f"{found}: cannot be made again"


def killed(models: Path, scratch: Path, *, kills: int, seed: int, wanted: Iterable[Wanted] = WANTED) -> Kills:
    """Kill so many releases, of each kind in turn."""
    chance = random.Random(seed)  # noqa: S311
    done = Kills()
    victims = []
    for place, each in enumerate(wanted):
        victims.append(Victim(each, models, scratch / str(place), chance))
    for number in range(kills):
        victims[number % len(victims)].killed_once(number, done)
    return done


# Kills before every change to the disk

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link"}


@dataclass
class Swept:
    """What was killed, how often something was left that recovery removed, and what was wrong afterwards."""

    kills: int = 0
    removed: int = 0
    violations: list[str] = field(default_factory=list)


def kills_before_changes(models: Path, scratch: Path, *, overwrite: bool, every: int = 1) -> Swept:
    """Kill a release before its first change to the disk, then another before the next, and so on; recover each."""
    swept, number, count = Swept(), 0, 1
    while number <= count:
        folder = scratch / f"before-{number}"
        home, place = linked(models, folder / "portfolio"), folder / "outputs"
        place.mkdir()
        planned = average(loaded(home))
        if overwrite:
            release(planned, out=place / "out")
        if number == 0:
            ended = _killed_before(None, planned, place / "out", folder, overwrite=overwrite)
            count = int(ended.value)
        else:
            ended = _killed_before(number, planned, place / "out", folder, overwrite=overwrite)
            swept.kills += 1
            swept.violations += [f"before change {number}: {problem}" for problem in _after(ended, home, place, swept)]
        shutil.rmtree(folder)
        number += every
    return swept


def _killed_before(number: int | None, planned: Plan, out: Path, below: Path, *, overwrite: bool) -> Ended:
    """Make a release in a child that dies before change `number`; how many there were if it did not."""

    def work() -> int:
        seen = 0

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal seen
            creates = event == "open" and isinstance(arguments[2], int) and bool(arguments[2] & os.O_CREAT)
            if (creates or event in CHANGES) and str(below) in str(arguments[0]):
                seen += 1
                if seen == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        release(planned, out=out, overwrite=overwrite)
        return seen

    return Child(work).ended()


def _after(ended: Ended, home: Path, place: Path, swept: Swept) -> Iterator[str]:
    if ended.how != "killed":
        yield f"{ended.how}: {ended.error}"
    if (home / LEDGER_NAME).exists():
        with PortfolioLedger.of(home) as ledger:
            steps = ledger.recover()
            yield from broken(ledger, home)
            yield from leaks(place, ledger, loaded(home))
        yield from (f"recovery failed: {step.outcome}" for step in steps if step.unsolved)
        swept.removed += any(step.removed is not None for step in steps)
    yield from (f"left behind: {name}" for name in left_behind(home, place))
    if [path.name for path in place.iterdir()] not in ([], ["out"]):
        yield "something beside the output is left"


# Many at once


@dataclass(frozen=True)
class Tally:
    """What one worker did: the outputs it made, and how often it was refused."""

    made: tuple[str, ...]
    refused: int


def work(home: Path, where: str, place: Path, worker: int, asks: int, seed: int) -> Tally:
    """Ask so often for releases: checkpoints, averages and draws."""
    chance = random.Random(1000 * seed + worker)  # noqa: S311
    portfolio, made, refused = loaded(home), [], 0
    for number in range(asks):
        names = [f"{run}@{chance.choice(STEPS)}" for run in chance.sample(sorted(SIGMAS), chance.randint(1, 2))]
        candidates = [{name: 1 / len(names) for name in names}]
        if chance.random() < 0.3:
            candidates.append({f"c@{chance.choice(STEPS)}": 1.0})
        try:
            release(drawn_from(portfolio, candidates), out=place / f"out-{worker}-{number}", ledger=where)
        except CapExceededError:
            refused += 1
        else:
            made.append(f"out-{worker}-{number}")
    return Tally(tuple(made), refused)


def crowd(home: Path, where: str, place: Path, *, workers: int, asks: int, seed: int = 0) -> list[Ended]:
    """All workers at once, under a cap that is set first."""
    portfolio = loaded(home)
    with Ledger.open(where) as ledger:
        ledger.set_cap(BudgetScope(portfolio.dataset, portfolio.unit, portfolio.adjacency.value), CAP)

    def worker(number: int) -> Callable[[], Tally]:
        return lambda: work(home, where, place, number, asks, seed)

    return at_once([worker(number) for number in range(workers)])


def squared_mu(bodies: Iterable[Mapping[str, Any]]) -> float:
    """μ² of everything that was drawn: Σ steps·(2/σ)² over runs, each as far as it was ever looked at."""
    seen: dict[str, int] = {}
    for body in bodies:
        for each in body["terms"]["candidates"][body["index"]]["seen"]:
            seen[each["run"]] = max(seen.get(each["run"], 0), each["step"])
    return math.fsum(step * (2 / SIGMAS[run]) ** 2 for run, step in seen.items())


def crowded_out(home: Path, where: str, place: Path, ended: Sequence[Ended], asks: int) -> list[str]:
    """What is wrong after a crowd has released; nothing, it is hoped."""
    wrong = [f"worker {number}: {each.how}: {each.error}" for number, each in enumerate(ended) if each.how != "done"]
    tallies = [each.value for each in ended if each.how == "done"]
    portfolio = loaded(home)
    with Ledger.open(where, create=False) as ledger:
        wrong += broken(ledger, home)
        wrong += leaks(place, ledger, portfolio)
        entries = list(ledger.entries())
    charged = {entry.body["release"]: entry.body for entry in entries if entry.kind == "release"}
    completed = {entry.body["release"]: entry.body for entry in entries if entry.kind == "completed"}
    outputs = {path.name: release_in(path) for path in sorted(place.iterdir()) if not path.name.startswith(".")}
    if sorted(outputs) != sorted(name for tally in tallies for name in tally.made):
        wrong.append("outputs are not those that were reported")
    if sorted(outputs.values()) != sorted(completed):
        wrong.append(f"{len(outputs)} outputs and {len(completed)} completed entries")
    if set(charged) != set(completed):
        wrong.append(f"{len(charged)} charged and {len(completed)} completed")
    if hidden(place):
        wrong.append(f"left behind: {', '.join(hidden(place))}")
    if any(len(tally.made) + tally.refused != asks for tally in tallies):
        wrong.append("an answer was lost")
    for body in completed.values():
        if dict(verify(body["where"]).files) != body["files"]:
            wrong.append(f"{body['where']}: not the files in the ledger")
    if (spent := squared_mu(charged.values())) > LARGEST_MU**2:
        wrong.append(f"the cap was passed: μ² is {spent:g}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m soak.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--asks", type=int, default=25, help="releases each worker asks for")
    parser.add_argument("--values", type=int, default=1_000_000, help="float32 values in each of eight tensors")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    console, wrong = Console(), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        began = time.monotonic()
        models = write_models(folder / "models", options.values)
        done = killed(models, folder / "kills", kills=options.kills, seed=options.seed)
        phases = ", ".join(f"{count} {found}" for found, count in done.phases.most_common())
        console.print(
            f"killed {options.kills} releases ({phases}), finished {done.recoveries} of them after killing "
            f"{done.recoveries_killed} recoveries, removed {done.removed} leftovers, {time.monotonic() - began:.1f} s"
        )
        wrong += done.violations
        small = write_models(folder / "small")
        for overwrite in (False, True):
            began = time.monotonic()
            swept = kills_before_changes(small, folder / f"changes-{overwrite}", overwrite=overwrite)
            said = f"{swept.kills} changes to the disk{' (overwriting)' if overwrite else ''}"
            console.print(
                f"killed a release before each of {said}: "
                f"something was left {swept.removed} times and removed, {time.monotonic() - began:.1f} s"
            )
            wrong += swept.violations
        with postgresql() as server:
            for kind, where in (("SQLite", None), ("PostgreSQL", server)):
                began = time.monotonic()
                home, place = linked(small, folder / kind / "portfolio"), folder / kind / "outputs"
                place.mkdir()
                at = str(home / LEDGER_NAME) if where is None else where
                ended = crowd(home, at, place, workers=options.workers, asks=options.asks, seed=options.seed)
                tallies = [each.value for each in ended if each.how == "done"]
                console.print(
                    f"{kind}: {options.workers} processes asked {options.asks} times each, "
                    f"{sum(len(tally.made) for tally in tallies)} released, "
                    f"{sum(tally.refused for tally in tallies)} refused, {time.monotonic() - began:.1f} s"
                )
                wrong += [f"{kind}: {problem}" for problem in crowded_out(home, at, place, ended, options.asks)]
    for problem in wrong:
        console.print(f"VIOLATION: {problem}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
