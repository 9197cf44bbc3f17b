"""What exposures cost, run by run: the sums that the privacy filters compare with a cap.

Guarantees: every price is made of what the runs state, an exposure at a time; squared μ and Rényi divergences add over
runs, since their noise is independent. Prices are remembered, never stored.
Refuses: several runs one of whose noise may be another's; runs without the kind of number a rule adds up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from dpmerge.accounting.exposure import Adjacency, Checkpoint, Exposure, Mechanism, one_seed
from dpmerge.accounting.gaussian import GaussianProfile
from dpmerge.accounting.profile import PrivacyProfile
from dpmerge.errors import NoGuaranteeError
from dpmerge.terms.ancestry import ancestors, attach, highest, with_ancestors
from dpmerge.terms.checkpoint_reference import CheckpointReference
from dpmerge.terms.run_record import RunRecord

Steps = Mapping[str, int]
"""An exposure by identity: run → the last step looked at."""


class RunCosts:
    """The runs of one budget scope, whose statements name their parents by identity."""

    def __init__(self, adjacency: str, known: RunCosts | None = None) -> None:
        self._adjacency = Adjacency(adjacency)
        self._known = known
        self._statements: dict[str, RunRecord] = {}
        self._mechanisms: dict[str, Mechanism] = {}
        self._profiles: dict[tuple[str, int], PrivacyProfile] = {}
        self._divergences: dict[tuple[str, int, float], float] = {}
        self._marks: dict[str, str] = {}

    def mark(self, identity: str, mark: str) -> None:
        """What seeded noise a run has; two runs of one mark have no joint cost."""
        self._marks[identity] = mark

    def _mark(self, identity: str) -> str | None:
        return self._marks.get(identity) or (None if self._known is None else self._known._mark(identity))

    def state(self, identity: str, statement: RunRecord) -> None:
        """What a run states; only the first word counts."""
        if self._owner(identity) is self:
            self._statements.setdefault(identity, statement)

    def considering(self) -> RunCosts:
        """To which runs can be added that may never be charged; what is known already is remembered here."""
        return RunCosts(self._adjacency, self)

    def _owner(self, identity: str) -> RunCosts:
        known = self._known
        return known._owner(identity) if known is not None and known.has(identity) else self

    def has(self, identity: str) -> bool:
        return identity in self._statements or (self._known is not None and self._known.has(identity))

    def statement(self, identity: str) -> RunRecord:
        return self._owner(identity)._statements[identity]

    def mechanism(self, identity: str) -> Mechanism:
        """The run as the mathematics sees it, the same object every time, its ancestors attached."""
        owner = self._owner(identity)
        if owner is not self:
            return owner.mechanism(identity)
        if identity not in self._mechanisms:
            made = dict(self._mechanisms)
            for parent in ancestors(identity, self._parent):
                if self._owner(parent.run) is not self:  # known there with its whole line
                    made[parent.run] = self.mechanism(parent.run)
                    break
            attach(identity, self._parent, self._made, made)
            self._mechanisms |= {name: run for name, run in made.items() if self._owner(name) is self}
        return self._mechanisms[identity]

    def _parent(self, identity: str) -> CheckpointReference | None:
        return self.statement(identity).ancestry.parent

    def _made(self, identity: str, start: Checkpoint | None) -> Mechanism:
        return self.statement(identity).mechanism_from(self._adjacency, start)

    def with_ancestors(self, steps: Steps) -> dict[str, int]:
        """The same exposure, ancestors included."""
        return with_ancestors(steps, self._parent)

    def joint(self, steps: Steps) -> PrivacyProfile:
        """The joint release of everything exposed, ancestors included."""
        self._require_own_seeds(self.with_ancestors(steps))
        return Exposure.of(Checkpoint(self.mechanism(run), step) for run, step in sorted(steps.items())).profile()

    def own_profile(self, identity: str, step: int) -> PrivacyProfile:
        profiles = self._owner(identity)._profiles
        if (identity, step) not in profiles:
            profiles[identity, step] = self.mechanism(identity).own_profile(step)
        return profiles[identity, step]

    def require_independent(self, steps: Steps) -> None:
        """Of several runs, each must have noise of its own."""
        self.require_known_noise(steps)
        self._require_own_seeds(steps)

    def _require_own_seeds(self, steps: Steps) -> None:
        first: dict[str, str] = {}
        for run, step in steps.items():
            mark = self._mark(run) if step > 0 else None
            if mark is not None and (other := first.setdefault(mark, run)) != run:
                names = (self.mechanism(each).label for each in (other, run))
                raise NoGuaranteeError(f"{one_seed(*names)}: what they cost together nobody knows")

    def require_known_noise(self, steps: Steps) -> None:
        """Of several runs, somebody must say where the noise of each came from."""
        seen = [self.mechanism(run) for run, step in steps.items() if step > 0]
        if len(seen) > 1 and (unknown := [run.label for run in seen if not run.independent_noise]):
            raise NoGuaranteeError(
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
            raise NoGuaranteeError(
                f"{self.mechanism(identity).label}: the privacy filter gaussian_filter adds up full-batch runs only; "
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
        raise NoGuaranteeError(
            f"{label}: no Rényi curve is proved for it, so the privacy filter renyi_filter cannot count it"
        )
    return float(values[0])


def joined(*exposures: Steps) -> dict[str, int]:
    """The pointwise maximum."""
    return highest(exposures)


def raise_mark(mark: dict[str, int], exposure: Steps) -> None:
    """Raise a high-water mark in place to cover an exposure."""
    mark.update(highest([mark, exposure]))
