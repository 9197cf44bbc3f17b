"""An attacker who sees one number of a model that was drawn, and is not told which model it is.

Guarantees: scored by the exact densities of the two mixtures. It certifies no release: the many numbers of a whole
model reveal which one was drawn.
Refuses: probabilities that are not one for each candidate, positive and of sum 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import numpy as np

from dpmerge.auditing.attacks import Array, Attack, in_batches
from dpmerge.auditing.outputs import SimulatedOutput
from dpmerge.auditing.threat_models import require_chances


def selected_hidden(outputs: Sequence[SimulatedOutput], probabilities: Sequence[float]) -> Attack:
    """Sees one number, and not which candidate it is: scored by the likelihoods of the two mixtures."""
    require_chances(probabilities, len(outputs))

    def log_density(values: Array, present: bool) -> Array:
        each = (
            math.log(p) + output.log_density(values, present) for p, output in zip(probabilities, outputs, strict=True)
        )
        return np.asarray(reduce(np.logaddexp, each))

    def scores(rng: np.random.Generator, trials: int, present: bool) -> Array:
        index = rng.choice(len(outputs), size=trials, p=np.asarray(probabilities) / math.fsum(probabilities))
        values = np.empty(trials)
        for place, output in enumerate(outputs):
            drawn = np.flatnonzero(index == place)
            values[drawn] = output.draw(rng, len(drawn), present)
        return log_density(values, True) - log_density(values, False)

    draws = 1 + sum(p * output.draws for p, output in zip(probabilities, outputs, strict=True))
    return Attack(play=in_batches(scores), draws=draws)
