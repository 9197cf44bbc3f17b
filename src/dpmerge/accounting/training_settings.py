"""What a DP-SGD run was trained with: how batches were formed, what was clipped, blocks of steps, the optimizer.

Guarantees: every number is inside its domain.
Refuses: numbers outside it, and lists that do not match their steps, each named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import numpy as np

from dpmerge.accounting import validation
from dpmerge.accounting.validation import Array
from dpmerge.errors import InvalidInputError

Choice = TypeVar("Choice", bound=StrEnum)

MOST_STEPS = 10_000_000
"""Of one run: it is expanded step by step."""


class Sampling(StrEnum):
    """How each step's batch was formed (theory 2.2).

    >>> [kind.value for kind in Sampling]
    ['full_batch', 'poisson', 'shuffled']
    """

    FULL_BATCH = "full_batch"
    POISSON = "poisson"
    SHUFFLED = "shuffled"


class Clipping(StrEnum):
    """What is clipped: each record's gradient, or the whole batch's total.

    >>> [kind.value for kind in Clipping]
    ['per_example', 'aggregate']
    """

    PER_EXAMPLE = "per_example"
    AGGREGATE = "aggregate"


@dataclass(frozen=True, kw_only=True)
class StepBlock:
    """Consecutive steps with one noise multiplier, clip norm and sampling rate.

    Args:
        steps: How many.
        noise_multiplier: σ, the noise over the clip norm; 0 is no privacy.
        clip_norm: C.
        learning_rate: The *effective* rate, which multiplies the sum of clipped gradients: with a mean, the learning
            rate over the (public) expected batch size. One number, or one for each step.
        sampling_rate: Of Poisson sampling; 1 is a full batch.

    Raises:
        InvalidInputError: A value outside its domain, or rates that do not match the steps.

    >>> StepBlock(steps=2, noise_multiplier=32, clip_norm=2, learning_rate=[4, 2]).rates
    array([4., 2.])
    """

    steps: int
    noise_multiplier: float
    clip_norm: float
    learning_rate: float | Sequence[float]
    sampling_rate: float = 1.0

    def __post_init__(self) -> None:
        validation.integer("steps", self.steps, least=1, most=MOST_STEPS)
        validation.magnitude("noise_multiplier", self.noise_multiplier, zero=True)
        validation.magnitude("clip_norm", self.clip_norm, zero=False)
        validation.fraction("sampling_rate", self.sampling_rate, zero=False)
        if isinstance(self.learning_rate, Sequence | np.ndarray) and not isinstance(self.learning_rate, str):
            object.__setattr__(self, "learning_rate", tuple(self.learning_rate))
        if isinstance(self.learning_rate, tuple):
            for position, rate in enumerate(self.learning_rate):
                validation.magnitude(f"learning_rate[{position}]", rate, zero=True)
            if len(self.learning_rate) != self.steps:
                raise InvalidInputError(
                    "learning_rate", f"{len(self.learning_rate)} numbers", f"one number, or {self.steps}: one a step"
                )
        else:
            validation.magnitude("learning_rate", self.learning_rate, zero=True)

    @property
    def rates(self) -> Array:
        return np.broadcast_to(np.asarray(self.learning_rate, dtype=float), self.steps)


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """The facts about an optimizer that theorems ask for. Anything but "sgd" is covered by joint release alone.

    Args:
        name: "sgd", or any other.
        momentum: ≥ 0.
        nesterov: Whether momentum is Nesterov's.
        dampening: In [0, 1].
        weight_decay: ≥ 0, outside the clipped loss.

    Raises:
        InvalidInputError: A value outside its domain.

    >>> Optimizer(weight_decay=0.1).is_plain, Optimizer(momentum=0.9).is_plain, Optimizer(name="Adam").is_sgd
    (True, False, False)
    """

    name: str = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
    dampening: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        validation.instance("optimizer.name", self.name, str, 'text, such as "sgd" or "adam"')
        object.__setattr__(self, "name", self.name.lower())
        validation.truth("nesterov", self.nesterov)
        validation.magnitude("momentum", self.momentum, zero=True)
        validation.fraction("dampening", self.dampening, zero=True)
        validation.magnitude("weight_decay", self.weight_decay, zero=True)

    @property
    def is_sgd(self) -> bool:
        return self.name == "sgd"

    @property
    def is_plain(self) -> bool:
        """SGD without momentum; weight decay is allowed."""
        return self.is_sgd and self.momentum == 0

    def gradient_coefficient(self, first_step: bool) -> float:
        """By what the rate is multiplied to give the coefficient of a step's own gradient in its update.

        PyTorch's SGD: the momentum buffer starts as the first gradient itself, undampened.
        """
        if self.momentum == 0:
            return 1.0
        kept = 1.0 if first_step else 1.0 - self.dampening
        return 1.0 + self.momentum * kept if self.nesterov else kept


def enum_member(field_name: str, value: object, kind: type[Choice]) -> Choice:
    """The member of an enumeration with the given value, or an error that lists them."""
    try:
        return kind(str(value))
    except ValueError:
        raise InvalidInputError(field_name, value, " or ".join(kind)) from None
