"""Passes over shuffled data: which steps belong to which, and how much of the last one was seen.

Guarantees: in each pass begun a record is in at most one batch, so that the pass costs at most one step at its smallest
noise, cut short or not. Of a secret uniform order, `share` bounds from above how likely a record is among those seen
in the last pass, and is 1 wherever that is not proved.
Refuses: passes longer than an epoch, or that do not add up to the run; orders that contradict the epoch.

The share needs more than a secret order: the step at which one stops must not depend on the order, nor may it on what
was seen of it. So it is granted for steps that were fixed beforehand, and after whole passes alone: where an earlier
pass was cut short, whoever cut it may have waited for a record to come.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dpmerge.accounting import validation
from dpmerge.errors import InvalidInputError

MOST_RECORDS = 10**12

DRAW_ERROR = Fraction(1, 2**31)
"""What torch's random permutations add, at most, to the chance of each place: 32 random bits modulo what is left."""


@dataclass(frozen=True, kw_only=True)
class SecretOrder:
    """A uniform order of the records, drawn anew for each pass, that nobody knows (theory 2.5).

    Args:
        records: How many there are; a public number.
        batch_size: Of every batch but the last of a pass.
        fixed_steps: The steps, ascending, that were fixed as checkpoints or as the end before the first one was taken.

    >>> SecretOrder(records=1000, batch_size=100, fixed_steps=(25,)).chance(5) < 0.5 + 1e-6
    True
    """

    records: int
    batch_size: int
    fixed_steps: Sequence[int]

    def __post_init__(self) -> None:
        validation.integer("order.records", self.records, least=1, most=MOST_RECORDS)
        validation.integer("order.batch_size", self.batch_size, least=1, most=self.records)
        object.__setattr__(self, "fixed_steps", tuple(self.fixed_steps))
        for place, (before, step) in enumerate(zip((0, *self.fixed_steps), self.fixed_steps, strict=False)):
            if validation.integer(f"order.fixed_steps[{place}]", step, least=1) <= before:
                raise InvalidInputError(f"order.fixed_steps[{place}]", step, "steps in increasing order, each once")

    def chance(self, steps: int) -> float:
        """An upper bound on how likely a record is in the first so many batches of a pass."""
        seen = min(steps * self.batch_size, self.records)
        exact = Fraction(seen, self.records) + seen * DRAW_ERROR
        return 1.0 if exact >= 1 else min(1.0, math.nextafter(float(exact), 1.0))


@dataclass(frozen=True, kw_only=True)
class Passes:
    """The passes of one run.

    Args:
        steps: Of the whole run.
        steps_per_epoch: Of a whole pass.
        taken: (passes, steps of each) in order, where some were cut short; None: whole ones, and the last as it ended.
        order: Known of the order of the records; None: nothing.
    """

    steps: int
    steps_per_epoch: int
    taken: Sequence[tuple[int, int]] | None = None
    order: SecretOrder | None = None

    def __post_init__(self) -> None:
        validation.instance("order", self.order, (SecretOrder, type(None)), "a SecretOrder or None")
        self._check_taken()
        if self.order is not None:
            self._check_order(self.order)

    def _check_taken(self) -> None:
        if self.taken is None:
            return
        total = 0
        for place, (passes, steps) in enumerate(self.taken):
            validation.integer(f"passes[{place}].passes", passes, least=1, most=self.steps)
            validation.integer(f"passes[{place}].steps", steps, least=1)
            if steps > self.steps_per_epoch:
                accepted = f"at most {self.steps_per_epoch}, the steps of a whole pass (steps_per_epoch)"
                raise InvalidInputError(f"passes[{place}].steps", steps, accepted)
            total += passes * steps
        if total != self.steps:
            accepted = f"passes whose steps add up to the run's {self.steps}"
            raise InvalidInputError("passes", total, accepted, found=f"passes of {total} steps")

    def _check_order(self, order: SecretOrder) -> None:
        batches = Fraction(order.records, order.batch_size)
        if self.steps_per_epoch not in (math.floor(batches), math.ceil(batches)):
            accepted = f"records that are {self.steps_per_epoch} batches of this size, the last one smaller or dropped"
            found = f"{order.records} records in batches of {order.batch_size}"
            raise InvalidInputError("order.records", order.records, accepted, found=found)
        if order.fixed_steps and order.fixed_steps[-1] > self.steps:
            accepted = f"steps of the run, which has {self.steps}"
            raise InvalidInputError("order.fixed_steps", order.fixed_steps[-1], accepted)

    @cached_property
    def _all_starts(self) -> npt.NDArray[np.intp]:
        if self.taken is None:
            return np.arange(0, self.steps, self.steps_per_epoch)
        lengths = np.repeat([steps for _, steps in self.taken], [passes for passes, _ in self.taken])
        return np.asarray(np.concatenate([[0], np.cumsum(lengths)[:-1]]), dtype=np.intp)

    def starts(self, upto: int) -> npt.NDArray[np.intp]:
        """The first step, counted from 0, of each pass begun before a step."""
        return self._all_starts[: int(np.searchsorted(self._all_starts, upto))]

    def share(self, upto: int) -> float:
        """A bound on how likely a record is among those seen in the last pass begun; 1 where nothing smaller is proved.

        A pass that took all its steps counts whole.
        """
        if self.order is None or upto not in self.order.fixed_steps:
            return 1.0
        starts = self.starts(upto)
        within = upto - int(starts[-1])
        whole_before = bool(np.all(np.diff(starts) == self.steps_per_epoch))
        return self.order.chance(within) if whole_before and within < self.steps_per_epoch else 1.0
