"""Small runs that the tests of combinations are made of."""

from __future__ import annotations

from typing import Any

from dpmerge.accounting import Adjacency, Bound, DpSgd, StepBlock

DELTA = 1e-5


def sgd(
    rates: tuple[float, ...] | list[float] = (1.0,),
    noise: float = 2.0,
    clip: float = 1.0,
    adjacency: str = "replace_one",
    **facts: Any,
) -> DpSgd:
    block = StepBlock(steps=len(rates), noise_multiplier=noise, clip_norm=clip, learning_rate=tuple(rates))
    return DpSgd(blocks=(block,), adjacency=Adjacency(adjacency), **facts)


def failing(bound: Bound) -> list[str]:
    return [premise.name for premise in bound.premises if not premise.holds]


def sampled(steps: int = 1, rate: float = 0.1, noise: float = 1.0, **facts: Any) -> DpSgd:
    block = StepBlock(steps=steps, noise_multiplier=noise, clip_norm=1.0, learning_rate=1.0, sampling_rate=rate)
    return DpSgd(blocks=(block,), adjacency=facts.pop("adjacency", Adjacency.ADD_REMOVE), **facts)
