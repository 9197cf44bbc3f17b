"""A recipe: which checkpoints, with which weights, and how much release noise. What is merged, and nothing else.

Guarantees: weights are positive and sum to one; two recipes with the same digest are the same merge.
Refuses: weights off the simplex, a checkpoint named twice, negative noise.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpmerge.accounting import validation
from dpmerge.errors import InvalidInputError

_NUMBERED = re.compile(r"(.*?)(\d+)@(\d+)")


@dataclass(frozen=True)
class Recipe:
    """Σ λ_i θ_i over checkpoints written run@step, plus Gaussian noise of standard deviation `release_noise`.

    >>> Recipe.of({"a@20": 0.75, "b@20": 0.25, "c@20": 0.0})
    Recipe(0.75 × a@20 + 0.25 × b@20)
    """

    parts: tuple[tuple[str, float], ...]
    release_noise: float = 0.0

    def __post_init__(self) -> None:
        names = [name for name, _ in self.parts]
        if repeated := [name for name in names if names.count(name) > 1]:
            raise InvalidInputError("weights", repeated[0], "each checkpoint once", found=f"{repeated[0]} twice")
        if not names:
            raise InvalidInputError("weights", {}, "at least one checkpoint with a positive weight")
        weights = validation.simplex("weights", [weight for _, weight in self.parts], len(names))
        kept = tuple((name, float(w)) for name, w in zip(names, weights, strict=True) if w > 0)
        object.__setattr__(self, "parts", kept)
        object.__setattr__(
            self, "release_noise", validation.magnitude("release_noise", float(self.release_noise), zero=True)
        )

    @classmethod
    def of(cls, weights: Mapping[str, float] | Iterable[tuple[str, float]], *, release_noise: float = 0.0) -> Recipe:
        """The recipe of these weights; those of weight zero are left out."""
        pairs = weights.items() if isinstance(weights, Mapping) else weights
        return cls(tuple((str(name), weight) for name, weight in pairs), release_noise)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.parts)

    @property
    def weights(self) -> tuple[float, ...]:
        return tuple(weight for _, weight in self.parts)

    @property
    def is_one_checkpoint(self) -> bool:
        """A model as it was trained, with nothing done to it."""
        return len(self.parts) == 1 and self.release_noise == 0

    @property
    def digest(self) -> str:
        """SHA-256 over the sorted parts and the noise, whatever order they were given in."""
        content = json.dumps([sorted(self.parts), self.release_noise], separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()

    def document(self) -> dict[str, Any]:
        return {"weights": dict(self.parts), "release_noise": self.release_noise}

    def __str__(self) -> str:
        if len(self.parts) == 1:
            words = self.parts[0][0]
        elif len(set(self.weights)) == 1:
            words = f"average of {', '.join(shortened(self.names))}"
        else:
            words = " + ".join(f"{weight} × {name}" for weight, name in self._grouped())
        return f"{words} + noise of {self.release_noise:.6g}" if self.release_noise else words

    def _grouped(self) -> list[tuple[str, str]]:
        """Checkpoints of equal weight are named together."""
        same: dict[str, list[str]] = {}
        for name, weight in self.parts:
            same.setdefault(f"{weight:.4g}", []).append(name)
        together = {weight: " + ".join(shortened(names)) for weight, names in same.items()}
        return [(weight, words if len(same[weight]) == 1 else f"({words})") for weight, words in together.items()]

    def __repr__(self) -> str:
        return f"Recipe({self})"


def shortened(names: Sequence[str]) -> list[str]:
    """Checkpoints whose runs are numbered through are named by the first and the last of them.

    >>> shortened(["a@5", "run-1@20", "run-2@20", "run-3@20", "run-5@20"])
    ['a@5', 'run-1…3@20', 'run-5@20']
    """
    words: list[str] = []
    stretch: list[tuple[str, int, str]] = []
    for name in [*names, ""]:
        found = _NUMBERED.fullmatch(name)
        numbered = (found[1], int(found[2]), found[3]) if found and found[2] == str(int(found[2])) else None
        if stretch and numbered != (stretch[-1][0], stretch[-1][1] + 1, stretch[-1][2]):
            words += _stretched(stretch)
            stretch = []
        if numbered is not None:
            stretch.append(numbered)
        elif name:
            words.append(name)
    return words


def _stretched(stretch: Sequence[tuple[str, int, str]]) -> list[str]:
    stem, first, step = stretch[0]
    if len(stretch) < 3:
        return [f"{stem}{number}@{step}" for _, number, _ in stretch]
    return [f"{stem}{first}…{stretch[-1][1]}@{step}"]
