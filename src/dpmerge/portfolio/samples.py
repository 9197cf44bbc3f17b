"""A few values of every tensor, at places that are the same for everybody: enough to see which weights are near which.

Guarantees: the places depend on nothing but the number of values, one in each of equally long stretches, so that
samples of two models are of the same weights; there are up to 1,024 of a tensor, and fewer of each of many tensors.
The places are public: this finds what was forgotten, not what somebody hides in between.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from dpmerge.errors import InvalidInputError
from dpmerge.terms.documents import AnyText, Strict

Array = npt.NDArray[np.float64]

MOST_VALUES = 1024
"""Of one tensor."""
MOST_IN_ALL = 2**15
"""Of one model, as far as one of each tensor allows: 180 kB of a manifest."""
_LONGEST = 4 * -(-4 * MOST_VALUES // 3)


@dataclass(frozen=True)
class Sample:
    """Every so-manieth of the values that could be kept of a tensor."""

    every: int
    values: Array

    def thinned(self, every: int) -> Array:
        """The values that a coarser sample would have kept; both strides are powers of two."""
        return self.values[:: max(every // self.every, 1)]


def aligned(*samples: Sample) -> list[Array] | None:
    """Samples of one tensor, of the same weights each; None if they are not of one size."""
    every = max(sample.every for sample in samples)
    values = [sample.thinned(every) for sample in samples]
    return values if len({len(each) for each in values}) == 1 else None


@lru_cache(maxsize=4096)
def places(count: int) -> npt.NDArray[np.int64]:
    """Where a tensor of so many values is sampled, in order."""
    if count <= MOST_VALUES:
        return np.arange(count, dtype=np.int64)
    bounds = [stretch * count // MOST_VALUES for stretch in range(MOST_VALUES + 1)]
    return np.array([low + _any_number(i) % (bounds[i + 1] - low) for i, low in enumerate(bounds[:-1])], dtype=np.int64)


def _any_number(index: int) -> int:
    return int.from_bytes(hashlib.sha256(b"dpmerge sample %d" % index).digest()[:8], "little")


def single(values: npt.ArrayLike) -> Array:
    """As they are kept: rounded to single precision, and no larger than that has numbers for."""
    largest = float(np.finfo(np.float32).max)
    return np.clip(np.asarray(values, dtype=np.float64), -largest, largest).astype(np.float32).astype(np.float64)


class StartSample(Strict):
    """Some values of the weights a run started from. Not for release."""

    every: Annotated[int, Field(ge=1, le=MOST_VALUES)] = Field(
        description="a power of two up to 1024: every so-manieth of the values that could be kept of a tensor"
    )
    values: dict[AnyText, Annotated[str, Field(max_length=_LONGEST)]] = Field(
        description="an object of tensor names and values: single precision, little endian, in base64"
    )

    @model_validator(mode="after")
    def _finite_numbers(self) -> StartSample:
        if self.every & (self.every - 1):
            raise InvalidInputError("every", self.every, str(type(self).model_fields["every"].description))
        for name, text in self.values.items():
            values = _decoded(text)
            if values is None or len(values) > MOST_VALUES // self.every or not np.isfinite(values).all():
                accepted = f"at most {MOST_VALUES // self.every} finite single precision numbers in base64"
                raise InvalidInputError(f"values: {name}", None, accepted, found="something else")
        return self

    @classmethod
    def of(cls, sampled: Mapping[str, npt.ArrayLike]) -> StartSample:
        """Of each tensor's values at its `places`; tensors that are not finite are left out."""
        kept = {name: single(values) for name, values in sampled.items() if np.isfinite(values).all()}
        every = stride(len(values) for values in kept.values())
        texts = {name: base64.b64encode(values[::every].astype("<f4").tobytes()) for name, values in kept.items()}
        return cls(every=every, values={name: text.decode() for name, text in texts.items()})

    def samples(self) -> dict[str, Sample]:
        """As numbers."""
        decoded = {name: _decoded(text) for name, text in self.values.items()}
        return {name: Sample(self.every, values) for name, values in decoded.items() if values is not None}


def stride(lengths: Iterable[int]) -> int:
    """The smallest power of two by which samples of these lengths have to be thinned out."""
    all_lengths, every = list(lengths), 1
    while every < MOST_VALUES and sum(-(-length // every) for length in all_lengths) > MOST_IN_ALL:
        every *= 2
    return every


def _decoded(text: str) -> Array | None:
    try:
        content: Any = base64.b64decode(text, validate=True)
        return np.frombuffer(content, dtype="<f4").astype(np.float64)
    except (binascii.Error, ValueError):
        return None
