"""Frontiers as the paper draws them: many weights, each at its cost and its score, and the best within each ε.

Guarantees: what is shown for a target was chosen on one half of the public images and measured on the other, both ways
round, so that a frontier is no luck of the draw; it need not be monotone for that reason, and whether it is, is a
finding. Choosing by scores is not paid for here, as in the paper: such a point is no release (theory 5).
"""

from __future__ import annotations

import numpy as np

from dpmerge.accounting.validation import Array


def held_out(epsilons: Array, halves: Array, targets: Array) -> Array:
    """For each target the score of the best choice within it: chosen on one half, measured on the other, and averaged.

    `epsilons` [choices], `halves` [2, choices]; NaN where nothing is within the target.

    >>> held_out(np.array([1.0, 2.0]), np.array([[0.5, 0.7], [0.6, 0.8]]), np.array([0.5, 1.0, 2.0]))
    array([ nan, 0.55, 0.75])
    """
    measured = [other[_best_within(epsilons, chosen, targets)] for chosen, other in (halves, halves[::-1])]
    return np.where(_reached(epsilons, targets), np.mean(measured, axis=0), np.nan)


def in_sample(epsilons: Array, halves: Array, targets: Array) -> Array:
    """The same chosen and measured on all images, as in the paper: higher by the luck of the best of many."""
    scores = halves.mean(axis=0)
    return np.where(_reached(epsilons, targets), scores[_best_within(epsilons, scores, targets)], np.nan)


def _reached(epsilons: Array, targets: Array) -> Array:
    return np.asarray(targets >= np.min(epsilons))


def _best_within(epsilons: Array, scores: Array, targets: Array) -> Array:
    """The index of the best score among those of ε at most each target; of equal ones the cheapest."""
    order = np.lexsort((-scores, epsilons))
    ranked = scores[order]
    best = np.maximum.accumulate(ranked)
    first = np.searchsorted(best, best, side="left")  # where each running maximum was first reached
    counts = np.searchsorted(epsilons[order], targets, side="right")
    return np.asarray(order[first[np.maximum(counts, 1) - 1]])
