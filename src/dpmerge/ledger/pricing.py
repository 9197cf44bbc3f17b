"""What exposures cost, run by run: the sums that the rules compare with a cap.

Guarantees: every price is made of what the runs state, an exposure at a time; squared μ and Rényi divergences add over
runs, since their noise is independent. Prices are remembered, never stored.
Refuses: several runs one of whose noise may be another's; runs without the kind of number a rule adds up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from dpmerge.errors import NoGuarantee
from dpmerge.portfolio.statement import RunStatement
from dpmerge.privacy.exposure import Adjacency, Checkpoint, Exposure, Mechanism
from dpmerge.privacy.gaussian import GaussianProfile
from dpmerge.privacy.profile import PrivacyProfile

Steps = Mapping[str, int]
"""An exposure by identity: run → the last step looked at."""


class Prices:
    """The runs of one book, whose statements name their parents by identity."""

    def __init__(self, adjacency: str, known: Prices | None = None) -> None:
        self._adjacency = Adjacency(adjacency)
        self._known = known
        self._statements: dict[str, RunStatement] = {}
        self._mechanisms: dict[str, Mechanism] = {}
        self._profiles: dict[tuple[str, int], PrivacyProfile] = {}
        self._divergences: dict[tuple[str, int, float], float] = {}

    def state(self, identity: str, statement: RunStatement) -> None:
        """What a run states; only the first word counts."""
        if self._owner(identity) is self:
            self._statements.setdefault(identity, statement)

    def considering(self) -> Prices:
        """To which runs can be added that may never be charged; what is known already is remembered here."""
        return Prices(self._adjacency, self)

    def _owner(self, identity: str) -> Prices:
        known = self._known
        return known._owner(identity) if known is not None and known.has(identity) else self

    def has(self, identity: str) -> bool:
        return identity in self._statements or (self._known is not None and self._known.has(identity))

    def statement(self, identity: str) -> RunStatement:
        return self._owner(identity)._statements[identity]

    def mechanism(self, identity: str) -> Mechanism:
        """The run as the mathematics sees it, the same object every time, its ancestors attached."""
        line = [identity]
        while not self._made(line[-1]) and (parent := self.statement(line[-1]).ancestry.run) is not None:
            line.append(parent)
        for each in reversed(line):
            if not self._made(each):
                statement = self.statement(each)
                origin = statement.ancestry
                started = None
                if origin.run is not None and origin.step is not None:
                    started = Checkpoint(self._owner(origin.run)._mechanisms[origin.run], origin.step)
                self._owner(each)._mechanisms[each] = statement.mechanism_from(self._adjacency, started)
        return self._owner(identity)._mechanisms[identity]

    def _made(self, identity: str) -> bool:
        return identity in self._owner(identity)._mechanisms

    def with_ancestors(self, steps: Steps) -> dict[str, int]:
        """The same exposure, ancestors included."""
        whole = dict(steps)
        for identity in steps:
            origin = self.statement(identity).ancestry
            while origin.run is not None and origin.step is not None:
                raise_mark(whole, {origin.run: origin.step})
                origin = self.statement(origin.run).ancestry
        return whole

    def joint(self, steps: Steps) -> PrivacyProfile:
        """The joint release of everything exposed, ancestors included."""
        return Exposure.of(Checkpoint(self.mechanism(run), step) for run, step in sorted(steps.items())).profile()

    def own_profile(self, identity: str, step: int) -> PrivacyProfile:
        profiles = self._owner(identity)._profiles
        if (identity, step) not in profiles:
            profiles[identity, step] = self.mechanism(identity).own_profile(step)
        return profiles[identity, step]

    def require_independent(self, steps: Steps) -> None:
        """Of several runs, each must have noise of its own."""
        seen = [self.mechanism(run) for run, step in steps.items() if step > 0]
        if len(seen) > 1 and (unknown := [run.label for run in seen if not run.independent_noise]):
            raise NoGuarantee(
                f"nobody says where the noise of {', '.join(sorted(unknown))} came from; "
                "runs that share a noise seed cost more than their sum"
            )

    def squared_mu(self, steps: Steps) -> float:
        """μ² of the joint release."""
        self.require_independent(steps)
        return math.fsum(self._squared_mu(run, step) for run, step in sorted(steps.items()))

    def _squared_mu(self, identity: str, step: int) -> float:
        profile = self.own_profile(identity, step)
        if not isinstance(profile, GaussianProfile):
            raise NoGuarantee(
                f"{self.mechanism(identity).label}: the rule gaussian_filter adds up full-batch runs only; "
                "ceiling covers every run, renyi_filter those with a Rényi curve"
            )
        return profile.mu * profile.mu

    def divergence(self, steps: Steps, order: float) -> float:
        """RDP_α of the joint release."""
        self.require_independent(steps)
        return math.fsum(self._divergence(run, step, order) for run, step in sorted(steps.items()))

    def _divergence(self, identity: str, step: int, order: float) -> float:
        divergences = self._owner(identity)._divergences
        if (identity, step, order) not in divergences:
            label = self.mechanism(identity).label
            divergences[identity, step, order] = renyi_divergence(self.own_profile(identity, step), order, label)
        return divergences[identity, step, order]


def renyi_divergence(profile: PrivacyProfile, order: float, label: str) -> float:
    """RDP_α of a profile; a refusal where no curve is proved for it."""
    values = profile.renyi_divergence(np.array([order]))
    if values is None:
        raise NoGuarantee(f"{label}: no Rényi curve is proved for it, so the rule renyi_filter cannot count it")
    return float(values[0])


def joined(*exposures: Steps) -> dict[str, int]:
    """The pointwise maximum."""
    highest: dict[str, int] = {}
    for exposure in exposures:
        raise_mark(highest, exposure)
    return highest


def raise_mark(mark: dict[str, int], exposure: Steps) -> None:
    """Raise a high-water mark in place to cover an exposure."""
    for run, step in exposure.items():
        mark[run] = max(mark.get(run, 0), step)
