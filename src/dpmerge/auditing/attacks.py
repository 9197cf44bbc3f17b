"""An attack: scores that somebody who sees only what is released gives to it, in a world with the record and without.

Guarantees: nothing about how well it works; a score may be any function of what is released, and the bounds that
follow from scores are bounds on ε all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Draws:
    """The scores of some trials, larger where the record seems to be there; and what was publicly drawn in each."""

    scores: Array
    index: npt.NDArray[np.intp] | None = None


Play = Callable[[np.random.Generator, int, bool], Draws]
"""(noise, trials, whether the record is there) → a score for each trial."""


@dataclass(frozen=True, kw_only=True)
class Attack:
    """How to draw scores.

    `gaussian`: by construction the score is Gaussian with the same variance in both worlds (given the index), so that
    the distance μ of its two means says everything. `probabilities` are those of the public index; `draws` is how many
    random numbers a trial costs, so that somebody can say beforehand how long an audit takes.
    """

    play: Play
    gaussian: bool = False
    probabilities: tuple[float, ...] = (1.0,)
    draws: float = 1.0


BATCH = 2**14
"""Trials at a time: what is worked on stays in a processor's cache."""


def in_batches(scores: Callable[[np.random.Generator, int, bool], Array], size: int = BATCH) -> Play:
    """Play so many trials at a time, and put their scores one after the other."""

    def play(rng: np.random.Generator, trials: int, present: bool) -> Draws:
        counts = [min(size, trials - done) for done in range(0, trials, size)]
        return Draws(np.concatenate([np.empty(0), *(scores(rng, count, present) for count in counts)]))

    return play
