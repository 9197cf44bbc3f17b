"""A run as an attacker simulates it: its noise, clip norms and rates step by step, and how the record pushes.

Guarantees: plain arrays, read from a record's facts; no accounting is asked and nothing is derived from it.
Refuses: records of which only a guarantee is known, for there is nothing to simulate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from dpmerge.auditing.attacks import Array
from dpmerge.errors import InvalidInputError


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """One run. A step adds rate · (sum of clipped gradients + noise_multiplier · clip_norm · N(0, 1)) to the weights.

    The record's own clipped gradient is always ±clip_norm in one direction, or absent: `adjacency` says which worlds
    are told apart. Of a clipped total (`aggregate`) the record turns the whole around.
    """

    name: str
    rates: Array  # effective: of the sum of gradients
    clip_norms: Array
    noise_multipliers: Array
    sampling_rates: Array
    adjacency: Literal["replace_one", "add_remove", "zero_out"]
    sampling: Literal["full_batch", "poisson", "shuffled"] = "full_batch"
    steps_per_epoch: int | None = None
    passes: tuple[int, ...] | None = None  # of shuffled batches: the steps of each pass, where some were cut short
    shares: Mapping[int, float] = field(default_factory=dict)  # stopping there, how likely its last pass had the record
    aggregate: bool = False
    optimizer: str = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
    dampening: float = 0.0
    weight_decay: float = 0.0  # per unit of `divisor` · rate
    divisor: float = 1.0
    stretches: Array | None = None  # by how much each update may pull two hidden states apart, where that is known
    parent: tuple[Schedule, int] | None = None  # the run and step that it started from

    def __post_init__(self) -> None:
        lengths = {len(a) for a in (self.rates, self.clip_norms, self.noise_multipliers, self.sampling_rates)}
        if len(lengths) != 1:
            raise InvalidInputError(
                f"{self.name}.steps", sorted(lengths), "one rate, clip norm, noise and sampling a step"
            )

    @property
    def steps(self) -> int:
        return len(self.rates)

    def passes_begun(self, step: int) -> list[tuple[int, int]]:
        """Of shuffled batches: first step and end of each pass begun before a step."""
        assert self.steps_per_epoch is not None, "only shuffled batches have passes"
        whole = -(-self.steps // self.steps_per_epoch)
        ends = np.cumsum(self.passes or (self.steps_per_epoch,) * whole).tolist()
        return [(first, min(end, step)) for first, end in zip([0, *ends], ends, strict=False) if first < step]

    @classmethod
    def of(
        cls,
        name: str,
        *,
        steps: int,
        noise_multiplier: float | Sequence[float],
        adjacency: Literal["replace_one", "add_remove", "zero_out"],
        clip_norm: float = 1.0,
        rates: float | Sequence[float] = 1.0,
        sampling_rate: float = 1.0,
        **facts: object,
    ) -> Schedule:
        """A run written down by hand: numbers are the same at every step, lists have one a step."""

        def each(value: float | Sequence[float]) -> Array:
            return np.broadcast_to(np.asarray(value, dtype=float), steps).copy()

        if sampling_rate < 1:
            facts.setdefault("sampling", "poisson")
        return cls(
            name=name,
            rates=each(rates),
            clip_norms=each(clip_norm),
            noise_multipliers=each(noise_multiplier),
            sampling_rates=each(sampling_rate),
            adjacency=adjacency,
            **facts,  # type: ignore[arg-type]
        )
