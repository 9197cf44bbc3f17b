"""Trials of an attack in blocks, each from a random stream of its own, so that they can be played anywhere.

Guarantees: the scores are the same wherever and in whatever order blocks are played; no two blocks, worlds, purposes or
seeds share a stream.
Refuses: an attack that gives another number of scores than was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from dpmerge.auditing.attacks import Attack, Draws
from dpmerge.errors import InvalidInputError
from dpmerge.executors.task_runs import results_of

BLOCK = 2**20
"""Trials that are played together: few enough for an audit of many to keep several workers busy."""


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """Where blocks are played, and how the attack is made there: it holds functions that do not travel."""

    executor: Executor
    attack: Callable[[], Attack]


def played(
    attack: Attack, counts: Mapping[int, int], seed: int, elsewhere: Elsewhere | None = None
) -> dict[int, tuple[Draws, Draws]]:
    """For each purpose so many scores without the record, and as many with it."""
    blocks = [
        (purpose, there, place, min(BLOCK, trials - BLOCK * place))
        for purpose, trials in counts.items()
        for there in (False, True)
        for place in range(-(-trials // BLOCK))
    ]
    calls = [(_stream(seed, purpose, there, place), count, there) for purpose, there, place, count in blocks]
    if elsewhere is None:
        draws = [_play(lambda: attack, *each) for each in calls]
    else:
        draws = results_of(
            elsewhere.executor, _play, [(elsewhere.attack, *each) for each in calls], named="block of trials"
        )
    return {
        purpose: (_joined(purpose, False, blocks, draws), _joined(purpose, True, blocks, draws)) for purpose in counts
    }


def _play(made: Callable[[], Attack], stream: list[int], trials: int, present: bool) -> Draws:
    draws = made().play(np.random.default_rng(stream), trials, present)
    if draws.scores.shape != (trials,):
        raise InvalidInputError("scores", draws.scores.shape, f"{trials}, one a trial", found=f"{draws.scores.shape}")
    return draws


def _stream(seed: int, purpose: int, there: bool, place: int) -> list[int]:
    # As many words for every seed: a shorter one would be filled up with zeros, and meet a longer one.
    first = [seed % 2**32, seed // 2**32, 2 * purpose + there]
    return [*first, place] if place else first


def _joined(purpose: int, there: bool, blocks: list[tuple[int, bool, int, int]], draws: list[Draws]) -> Draws:
    own = [draw for (p, t, _, _), draw in zip(blocks, draws, strict=True) if (p, t) == (purpose, there)]
    if len(own) == 1:
        return own[0]
    index = [draw.index for draw in own if draw.index is not None]
    return Draws(np.concatenate([draw.scores for draw in own]), np.concatenate(index) if index else None)
