"""Weights searched under the theorems for which they change the cost: last_step, hidden_state, merged_trajectory.

Guarantees: every row meets its theorem's premises (merged_trajectory asked for by name: its formula), and release noise
is the least with which a row meets the cost it was solved for, from the safe side.
Refuses nothing: what no theorem covers is not in what comes back.

A face is one checkpoint from each of some runs. Faces tried: single checkpoints (where the theorem gains by one), pairs
of runs at their last covered checkpoints, all of these together, and the averages of the joint-release front around
the budget: a few dozen, whatever the number of averages. On each a lattice of weights, or for many runs blends of
precision weights; the best few are then refined by exchanging weight between pairs of runs, down to 1e-4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

import numpy as np

from dpmerge.errors import NoGuarantee
from dpmerge.planning.averages import Front
from dpmerge.planning.candidates import Theorem, covered
from dpmerge.planning.noise import precision_weights
from dpmerge.planning.pool import Batch
from dpmerge.planning.rungs import Rung, Rungs
from dpmerge.planning.weights import Weightings, lattice
from dpmerge.privacy.domain import LARGEST, Array
from dpmerge.privacy.gaussian import GaussianProfile

Face = tuple[Rung, ...]
Scoring = Callable[[Batch], Array]

LEVELS = np.array([0.5, 0.8, 1.0, 1.25, 2.0])
"""Costs, relative to the budget, at which release noise is solved for: random selection may mix dearer with cheaper."""

WORTH_LOCKING = 1e-6
"""The share of μ a theorem must save over joint release before the runs are locked for it."""

MOST_SINGLES = 32
MOST_EXCHANGING = 6
MOST_ROUNDS = 20
MOST_REFINED = 3
MOST_PAIRS = 10
MOST_FRONT_FACES = 5


def searched(
    rungs: Rungs,
    theorem: Theorem,
    mu: float,
    fronts: Sequence[Front],
    scoring: Scoring,
    *,
    release_noise: bool,
    by_name: bool = False,
) -> Iterator[Batch]:
    """Weightings by one theorem, the best within the budget μ refined; with release noise where hidden_state allows.

    `by_name`: the theorem was asked for, so it is used also where joint release costs no more, and merged_trajectory
    where it is not proved.
    """
    noisy = release_noise and theorem == "hidden_state" and mu > 0
    batches: list[Batch] = []
    priced: dict[Face, Weightings] = {}
    for face in dict.fromkeys(_faces(rungs, theorem, mu, fronts, by_name)):
        priced[face] = Weightings(tuple(rung.checkpoint for rung in face), theorem)
        try:
            levels = mu * (LEVELS if len(face) > 1 else np.ones(1)) if noisy else None
            found = _weighted(face, priced[face], _rows(face), levels, by_name=by_name)
            batches += [found] if len(found) else []
        except NoGuarantee:  # the theorem has no formula for this face after all
            continue
    yield from batches
    tops = [(number, top) for number, batch in enumerate(batches) if (top := _best(batch, mu, scoring)) is not None]
    for rank, (number, (_, place)) in enumerate(sorted(tops, key=lambda top: -top[1][0])[:MOST_REFINED]):
        batch = batches[number]
        # Faces of many runs take long, and are all much alike: only the best of them.
        if 1 < len(batch.rungs) <= (MOST_EXCHANGING if rank else len(rungs.usable)):
            yield _refined(batch, priced[batch.rungs], place, mu, scoring, noisy=noisy, by_name=by_name)


def covered_rungs(rungs: Rungs, theorem: Theorem, by_name: bool) -> tuple[tuple[tuple[Rung, ...], ...], ...]:
    """Group by group, run by run, the rungs a theorem covers alone: if a later one is covered, so are the earlier."""
    groups = []
    for group in rungs.groups:
        kept = []
        for of_run in group:
            for last in reversed(range(len(of_run))):
                if _covers(rungs, theorem, of_run[last : last + 1], by_name):
                    kept.append(of_run[: last + 1])
                    break
        if kept:
            groups.append(tuple(kept))
    return tuple(groups)


def _covers(rungs: Rungs, theorem: Theorem, face: Sequence[Rung], by_name: bool) -> bool:
    bound = covered(rungs.portfolio, [rung.name for rung in face], theorem)
    return bound.mu is not None and (bound.certifies or (by_name and theorem == "merged_trajectory"))


def _faces(rungs: Rungs, theorem: Theorem, mu: float, fronts: Sequence[Front], by_name: bool) -> Iterator[Face]:
    for group in covered_rungs(rungs, theorem, by_name):
        known = [rung for of_run in group for rung in of_run if rung.noise is not None]
        last = [of_run[-1] for of_run in group if of_run[-1] in known]
        if theorem == "hidden_state" or by_name:
            latest_first = sorted(known, key=lambda rung: (rung is not rungs.last_of(rung.run), -rung.epsilon))
            yield from ((rung,) for rung in latest_first[:MOST_SINGLES])
        proposed: list[Face] = [
            *_some_pairs(last),
            tuple(last),
            *(f for found in fronts for f in _around(found, mu**2)),
        ]
        for face in proposed:
            inside = tuple(rung for rung in face if rung in known)
            if len(inside) > 1 and _covers(rungs, theorem, inside, by_name):
                yield inside


def _some_pairs(last: Sequence[Rung]) -> list[Face]:
    """Pairs of runs, the most different costs first: between equals nothing is gained over the front."""
    ordered = sorted(last, key=lambda rung: rung.epsilon)
    pairs: list[Face] = sorted(
        combinations(ordered, 2), key=lambda pair: pair[0].epsilon / max(pair[1].epsilon, 1e-300)
    )
    return pairs[:MOST_PAIRS]


def _around(found: Front, squared_mu: float) -> Iterator[Face]:
    """Averages a little above the budget, which other weights may bring within it, and the last one below."""
    place = found.within(squared_mu)
    start = 0 if place is None else place
    for near in range(start, min(start + MOST_FRONT_FACES, len(found))):
        yield found.support(near)


def _rows(face: Face) -> Array:
    count = len(face)
    precise = precision_weights([rung.noise for rung in face if rung.noise is not None])
    if count <= 3:
        return np.concatenate([precise[np.newaxis], lattice(count, {1: 1, 2: 16, 3: 12}[count])])
    powers = precise ** np.array([1.0, 0.0, 0.25, 0.5, 0.75, 1.5, 2.0])[:, np.newaxis]
    powers /= powers.sum(axis=1, keepdims=True)
    blends = [(1 - t) * precise + t * corner for t in (0.3, 0.6, 0.9) for corner in np.eye(count)]
    return np.concatenate([powers, np.array(blends)])


def _weighted(face: Face, weightings: Weightings, rows: Array, levels: Array | None, *, by_name: bool) -> Batch:
    """A batch of rows as they are, and with the release noise that brings each to each level of cost."""
    theorem, mus = weightings.theorem, weightings.mus(rows)
    # What joint release costs no more for is left to it: it locks no run.
    gaining = (mus < (1 - WORTH_LOCKING) * _joint_mus(face, rows)) | by_name
    if levels is None:
        return Batch(face, rows[gaining], theorem, mus[gaining])
    every = np.repeat(rows, levels.size, axis=0)
    wanted = np.tile(levels, rows.shape[0])
    dearer = np.repeat(mus, levels.size) > wanted
    every, wanted = every[dearer], wanted[dearer]
    noise = weightings.least_release_noise(every, wanted) if every.size else np.zeros(0)
    solved = np.isfinite(noise) & (noise <= LARGEST)
    every, noise = every[solved], noise[solved]
    costs = weightings.mus(every, noise) if every.size else np.zeros(0)
    return Batch(
        face,
        np.concatenate([rows[gaining], every]),
        theorem,
        np.concatenate([mus[gaining], costs]),
        release_noise=np.concatenate([np.zeros(np.count_nonzero(gaining)), noise]),
    )


def _joint_mus(face: Face, rows: Array) -> Array:
    """Infinite where joint release has no Gaussian cost."""
    squares = np.array([r.profile.mu**2 if isinstance(r.profile, GaussianProfile) else np.inf for r in face])
    return np.asarray(np.sqrt(np.where(rows > 0, squares, 0.0).sum(axis=1)))


def _best(batch: Batch, mu: float, scoring: Scoring) -> tuple[float, int] | None:
    assert batch.mus is not None
    if not len(batch):
        return None
    scores = np.where(batch.mus <= mu, scoring(batch), -np.inf)
    place = int(np.argmax(scores))
    return (float(scores[place]), place) if np.isfinite(scores[place]) else None


def _refined(
    batch: Batch, weightings: Weightings, place: int, mu: float, scoring: Scoring, *, noisy: bool, by_name: bool
) -> Batch:
    """Exchange weight between pairs of runs as long as that helps, by ever smaller amounts."""
    count = len(batch.rungs)
    row, kept = batch.rows[place], None
    best = float(scoring(batch)[place])
    step = 1 / 32
    levels = np.array([mu]) if noisy else None
    # Between the heaviest runs: what the others have is too little to matter.
    heaviest = np.argsort(-row)[:MOST_EXCHANGING].tolist()
    moves = np.array([np.eye(count)[i] - np.eye(count)[j] for i in heaviest for j in heaviest if i != j])
    for _ in range(MOST_ROUNDS):
        if step < 1e-4:
            break
        trials = row + step * moves
        trials = trials[trials.min(axis=1) >= 0]
        trials = trials / trials.sum(axis=1, keepdims=True)
        tried = _weighted(batch.rungs, weightings, trials, levels, by_name=by_name) if trials.size else None
        found = _best(tried, mu, scoring) if tried is not None else None
        if tried is not None and found is not None and found[0] > best:
            best, row = found[0], tried.rows[found[1]]
            kept = _only(tried, found[1])
        else:
            step /= 4
    return kept if kept is not None else _only(batch, place)


def _only(batch: Batch, place: int) -> Batch:
    assert batch.mus is not None
    noise = np.broadcast_to(np.asarray(batch.release_noise, dtype=float), len(batch))
    chosen = slice(place, place + 1)
    return Batch(batch.rungs, batch.rows[chosen], batch.theorem, batch.mus[chosen], release_noise=noise[chosen])
