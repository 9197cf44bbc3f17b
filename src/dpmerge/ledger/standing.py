"""How a book stands: what has left, what it has cost, what is left under its cap.

Guarantees: ε is of the joint release of the high-water mark together with each final release's own bound, which are
independent because final releases lock their runs; validations add to it. None where no theorem gives a number.
It is of what was drawn; whether it held before anything was drawn is what a cap is for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpmerge.errors import NoGuarantee
from dpmerge.ledger.capping import cap_in
from dpmerge.ledger.caps import Cap, gaussian_budget, renyi_budget
from dpmerge.ledger.entries import Book
from dpmerge.ledger.state import BookState, Release
from dpmerge.portfolio.recipe import Recipe
from dpmerge.privacy import domain
from dpmerge.privacy.composition import compose


@dataclass(frozen=True, kw_only=True)
class RunStanding:
    """How far a run was looked at, and whether it may be again; `ceiling` is how far it may be."""

    name: str
    identity: str
    step: int
    locked_by: str | None
    ceiling: int | None


@dataclass(frozen=True, kw_only=True)
class ReleaseLine:
    """One release in a list of them."""

    release_id: str
    seq: int
    time: str
    status: str
    final: bool
    adopted: bool
    candidates: int
    index: int | None
    recipe: str
    theorem: str
    key: str | None
    where: str | None


@dataclass(frozen=True)
class Left:
    """What is left under a cap, in its rule's own currency."""

    currency: str
    limit: float
    spent: float

    @property
    def left(self) -> float:
        return max(0.0, self.limit - self.spent)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One book, now. `epsilon` is None where there is no number, and `why` says why."""

    book: Book
    delta: float
    epsilon: float | None
    why: str | None
    cap: Cap | None
    left: Left | None
    runs: tuple[RunStanding, ...]
    releases: tuple[ReleaseLine, ...]
    caveats: tuple[str, ...]


def standing(book: BookState, delta: float, others: Sequence[Book]) -> Standing:
    domain.delta("delta", delta)
    epsilon, why = _epsilon(book, delta)
    ceiling = {} if book.cap is None else {run["identity"]: run["step"] for run in book.cap["ceiling"]}
    seen = sorted({*book.exposed, *book.locks, *ceiling}, key=lambda run: (book.runs[run].name, run))
    return Standing(
        book=book.book,
        delta=delta,
        epsilon=epsilon,
        why=why,
        cap=None if book.cap is None else cap_in(book.cap),
        left=_left(book),
        runs=tuple(
            RunStanding(
                name=book.runs[run].name,
                identity=run,
                step=book.exposed.get(run, 0),
                locked_by=book.locks.get(run),
                ceiling=ceiling.get(run),
            )
            for run in seen
        ),
        releases=tuple(map(_line, book.releases.values())),
        caveats=tuple(_caveats(book, others)),
    )


def _epsilon(book: BookState, delta: float) -> tuple[float | None, str | None]:
    try:
        book.prices.require_independent(book.exposed)
        profiles = [book.prices.joint(book.high_water)]
        for release_id in book.finals:
            release = book.releases[release_id]
            bound = release.terms.bounds[release.entry.body["index"]]
            if bound.profile is None:
                raise NoGuarantee(f"release {release_id}: its theorem gives no number")
            profiles.append(bound.profile)
        training = compose(profiles).epsilon(delta)
    except NoGuarantee as reason:
        return None, str(reason)
    if not math.isfinite(training):
        return None, "a model that was trained without privacy has left"
    # Someone in a validation set that is apart from the training set has paid for validations only.
    total = max(training, book.validation_apart) + book.validation
    return (total if book.validation == 0 else math.nextafter(total, math.inf)), None


def _left(book: BookState) -> Left | None:
    if book.cap is None:
        return None
    epsilon, delta, order = (book.cap[name] for name in ("epsilon", "delta", "order"))
    if book.cap["rule"] == "gaussian_filter":
        try:
            spent = book.prices.squared_mu(book.high_water) + book.spent
        except NoGuarantee:  # an adopted release the rule cannot count
            spent = math.inf
        return Left("μ²", gaussian_budget(epsilon, delta), spent)
    if book.cap["rule"] == "renyi_filter":
        return Left(f"Rényi divergence of order {order:g}", renyi_budget(epsilon, delta, order), book.spent)
    ceiling = {run["identity"]: run["step"] for run in book.cap["ceiling"]}
    taken = sum(min(book.exposed.get(run, 0), step) for run, step in ceiling.items())
    return Left("steps of the ceiling", float(sum(ceiling.values())), float(taken))


def _line(release: Release) -> ReleaseLine:
    body = release.entry.body
    index, candidates = body["index"], body["terms"]["candidates"]
    shown = candidates if index is None else [candidates[index]]
    return ReleaseLine(
        release_id=release.id,
        seq=release.entry.seq,
        time=release.entry.time,
        status=release.status,
        final=body["final"],
        adopted=release.entry.kind == "adopted",
        candidates=len(candidates),
        index=index,
        recipe=" or ".join(str(_recipe(candidate)) for candidate in shown),
        theorem=", ".join(sorted({c["theorem"] for c in shown})),
        key=body["key"],
        where=None if release.output is None else release.output.where,
    )


def _recipe(candidate: Mapping[str, Any]) -> Recipe:
    parts = [(f"{part['run']}@{part['step']}", part["weight"]) for part in candidate["parts"]]
    return Recipe.of(parts, release_noise=candidate["releaseNoise"])


def _caveats(book: BookState, others: Sequence[Book]) -> Iterator[str]:
    if book.uncharged:
        yield f"ε does not cover how {len(book.uncharged)} of the releases were chosen"
    if book.cap is not None and book.cap["releasesBefore"]:
        before = book.cap["releasesBefore"]
        yield f"releases before the cap was set: {before}; it holds only if whoever set it did not look at them"
    if book.conflict is not None:
        yield f"the cap, if any, cannot be vouched for: {book.conflict}"
    if adopted := sum(release.entry.kind == "adopted" for release in book.releases.values()):
        yield f"adopted after entries were lost: {adopted}; others may be missing"
    if unsigned := sum("everything" in release.entry.body for release in book.releases.values()):
        yield f"adopted with no signature: {unsigned}; all runs count as released, private validations of theirs do not"
    if book.accepted:
        yield "entries were lost; somebody vouched that what is counted here is all: others may be missing"
    if same := [other for other in others if other.dataset == book.book.dataset]:
        yield f"the same data has other books, whose releases are not counted here: {', '.join(map(str, same))}"
    if len(book.releases) > 1 and book.cap is None:
        yield "ε is of what was drawn; where later releases were chosen after earlier ones, only a cap is a guarantee"
