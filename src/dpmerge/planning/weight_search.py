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

from dpmerge.accounting.gaussian import GaussianProfile
from dpmerge.accounting.validation import LARGEST, Array
from dpmerge.errors import NoGuaranteeError
from dpmerge.planning.candidate_arrays import CandidateBatch, some_of
from dpmerge.planning.candidates import AskedTheorem, covered
from dpmerge.planning.feasible_weights import Weightings, lattice
from dpmerge.planning.noise_prediction import precision_weights
from dpmerge.planning.pareto_front import ParetoFront
from dpmerge.planning.usable_checkpoints import UsableCheckpoint, UsableCheckpoints

Face = tuple[UsableCheckpoint, ...]
ScoreBatch = Callable[[CandidateBatch], Array]

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
    usable: UsableCheckpoints,
    theorem: AskedTheorem,
    mu: float,
    fronts: Sequence[ParetoFront],
    score: ScoreBatch,
    *,
    release_noise: bool,
    by_name: bool = False,
) -> Iterator[CandidateBatch]:
    """Weightings by one theorem, the best within the budget μ refined; with release noise where hidden_state allows.

    `by_name`: the theorem was asked for, so it is used also where joint release costs no more, and merged_trajectory
    where it is not proved.
    """
    noisy = release_noise and theorem == "hidden_state" and mu > 0
    batches: list[CandidateBatch] = []
    weightings: dict[Face, Weightings] = {}
    for face in dict.fromkeys(_faces(usable, theorem, mu, fronts, by_name)):
        weightings[face] = Weightings(tuple(checkpoint.prefix for checkpoint in face), theorem)
        try:
            levels = mu * (LEVELS if len(face) > 1 else np.ones(1)) if noisy else None
            found = _weighted(face, weightings[face], _rows(face), levels, by_name=by_name)
            batches += [found] if len(found) else []
        except NoGuaranteeError:  # the theorem has no formula for this face after all
            continue
    yield from batches
    tops = [(number, top) for number, batch in enumerate(batches) if (top := _best(batch, mu, score)) is not None]
    for rank, (number, (_, index)) in enumerate(sorted(tops, key=lambda top: -top[1][0])[:MOST_REFINED]):
        batch = batches[number]
        # Faces of many runs take long, and are all much alike: only the best of them.
        if 1 < len(batch.checkpoints) <= (MOST_EXCHANGING if rank else len(usable.checkpoints)):
            yield _refined(batch, weightings[batch.checkpoints], index, mu, score, noisy=noisy, by_name=by_name)


def covered_checkpoints(
    usable: UsableCheckpoints, theorem: AskedTheorem, by_name: bool
) -> tuple[tuple[tuple[UsableCheckpoint, ...], ...], ...]:
    """Group by group, run by run, the checkpoints a theorem covers alone."""
    groups = []
    for group in usable.groups:
        if kept := tuple(c for of_run in group if (c := _covered_of_run(usable, theorem, of_run, by_name))):
            groups.append(kept)
    return tuple(groups)


def _covered_of_run(
    usable: UsableCheckpoints, theorem: AskedTheorem, of_run: tuple[UsableCheckpoint, ...], by_name: bool
) -> tuple[UsableCheckpoint, ...]:
    """If a later checkpoint is covered, so are the earlier ones."""

    def covers(checkpoint: UsableCheckpoint) -> bool:
        key = ("covers", theorem, by_name, checkpoint.name)
        return bool(usable.remembered(key, lambda: _covers(usable, theorem, [checkpoint], by_name)))

    for last in reversed(range(len(of_run))):
        if covers(of_run[last]):
            return of_run[: last + 1]
    return ()


def _covers(usable: UsableCheckpoints, theorem: AskedTheorem, face: Sequence[UsableCheckpoint], by_name: bool) -> bool:
    bound = covered(usable.portfolio, [checkpoint.name for checkpoint in face], theorem)
    return bound.mu is not None and (bound.certifies or (by_name and theorem == "merged_trajectory"))


def _faces(
    usable: UsableCheckpoints, theorem: AskedTheorem, mu: float, fronts: Sequence[ParetoFront], by_name: bool
) -> Iterator[Face]:
    for group in covered_checkpoints(usable, theorem, by_name):
        known = {checkpoint: None for of_run in group for checkpoint in of_run if checkpoint.noise is not None}
        last = [of_run[-1] for of_run in group if of_run[-1] in known]
        if theorem == "hidden_state" or by_name:
            latest_first = sorted(known, key=lambda c: (c is not usable.last_of(c.run), -c.epsilon))
            yield from ((checkpoint,) for checkpoint in latest_first[:MOST_SINGLES])
        proposed: list[Face] = [
            *_some_pairs(last),
            tuple(last),
            *(f for found in fronts for f in around(found, mu**2)),
        ]
        for face in proposed:
            inside = tuple(checkpoint for checkpoint in face if checkpoint in known)
            if len(inside) > 1 and _covers(usable, theorem, inside, by_name):
                yield inside


def _some_pairs(last: Sequence[UsableCheckpoint]) -> list[Face]:
    """Pairs of runs, the most different costs first: between equals nothing is gained over the front."""
    ordered = sorted(last, key=lambda checkpoint: checkpoint.epsilon)
    if len(ordered) > 2 * MOST_PAIRS + 1:  # those are among the cheapest and the dearest
        ordered = [*ordered[: MOST_PAIRS + 1], *ordered[-MOST_PAIRS:]]
    pairs: list[Face] = sorted(
        combinations(ordered, 2), key=lambda pair: pair[0].epsilon / max(pair[1].epsilon, 1e-300)
    )
    return pairs[:MOST_PAIRS]


def around(found: ParetoFront, squared_mu: float) -> Iterator[Face]:
    """Averages a little above the budget, which other weights may bring within it, and the last one below."""
    index = found.within(squared_mu)
    start = 0 if index is None else index
    for near in range(start, min(start + MOST_FRONT_FACES, len(found))):
        yield found.support(near)


def _rows(face: Face) -> Array:
    count = len(face)
    precise = precision_weights([checkpoint.noise for checkpoint in face if checkpoint.noise is not None])
    if count <= 3:
        return np.concatenate([precise[np.newaxis], lattice(count, {1: 1, 2: 16, 3: 12}[count])])
    powers = precise ** np.array([1.0, 0.0, 0.25, 0.5, 0.75, 1.5, 2.0])[:, np.newaxis]
    powers /= powers.sum(axis=1, keepdims=True)
    blends = [(1 - t) * precise + t * corner for t in (0.3, 0.6, 0.9) for corner in np.eye(count)]
    return np.concatenate([powers, np.array(blends)])


def _weighted(
    face: Face, weightings: Weightings, rows: Array, levels: Array | None, *, by_name: bool
) -> CandidateBatch:
    """A batch of rows as they are, and with the release noise that brings each to each level of cost."""
    theorem, mus = weightings.theorem, weightings.mus(rows)
    # What joint release costs no more for is left to it: it locks no run.
    gaining = (mus < (1 - WORTH_LOCKING) * _joint_mus(face, rows)) | by_name
    if levels is None:
        return CandidateBatch(face, rows[gaining], theorem, mus[gaining])
    every = np.repeat(rows, levels.size, axis=0)
    wanted = np.tile(levels, rows.shape[0])
    dearer = np.repeat(mus, levels.size) > wanted
    every, wanted = every[dearer], wanted[dearer]
    noise = weightings.least_release_noise(every, wanted) if every.size else np.zeros(0)
    solved = np.isfinite(noise) & (noise <= LARGEST)
    every, noise = every[solved], noise[solved]
    costs = weightings.mus(every, noise) if every.size else np.zeros(0)
    return CandidateBatch(
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


def _best(batch: CandidateBatch, mu: float, score: ScoreBatch) -> tuple[float, int] | None:
    assert batch.mus is not None
    if not len(batch):
        return None
    scores = np.where(batch.mus <= mu, score(batch), -np.inf)
    index = int(np.argmax(scores))
    return (float(scores[index]), index) if np.isfinite(scores[index]) else None


def _refined(
    batch: CandidateBatch,
    weightings: Weightings,
    index: int,
    mu: float,
    score: ScoreBatch,
    *,
    noisy: bool,
    by_name: bool,
) -> CandidateBatch:
    """Exchange weight between pairs of runs as long as that helps, by ever smaller amounts."""
    best, best_score = some_of(batch, np.array([index])), float(score(batch)[index])
    moves = _exchanges(batch.rows[index])
    levels = np.array([mu]) if noisy else None
    step = 1 / 32
    for _ in range(MOST_ROUNDS):
        if step < 1e-4:
            break
        trials = best.rows[0] + step * moves
        trials = trials[trials.min(axis=1) >= 0]
        trials = trials / trials.sum(axis=1, keepdims=True)
        tried = _weighted(batch.checkpoints, weightings, trials, levels, by_name=by_name) if trials.size else None
        found = None if tried is None else _best(tried, mu, score)
        if tried is not None and found is not None and found[0] > best_score:
            best, best_score = some_of(tried, np.array([found[1]])), found[0]
        else:
            step /= 4
    return best


def _exchanges(row: Array) -> Array:
    """Directions from one run to another, between the heaviest: what the others have is too little to matter."""
    unit = np.eye(row.size)
    heaviest = np.argsort(-row)[:MOST_EXCHANGING].tolist()
    return np.array([unit[i] - unit[j] for i in heaviest for j in heaviest if i != j])
