"""Rungs: the checkpoints of a portfolio that a plan may use, each with its own cost and predicted noise.

Guarantees: every rung has a finite cost at the δ asked for, or is a non-private model asked for by name; whatever was
left out is named, with the reason.
Refuses: portfolios without any rung.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property

import numpy as np

from dpmerge.errors import DeltaOutOfReach, InvalidInput, NoGuarantee
from dpmerge.planning.noise import Noise, predicted_noise
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.runs import Run, SavedCheckpoint
from dpmerge.privacy.exposure import Checkpoint
from dpmerge.privacy.gaussian import GaussianProfile, largest_mu
from dpmerge.privacy.profile import PrivacyProfile


@dataclass(frozen=True, eq=False)
class Rung:
    """A kept checkpoint: what it costs by itself, every iterate up to it covered, and the noise it carries."""

    run: Run
    saved: SavedCheckpoint
    checkpoint: Checkpoint
    profile: PrivacyProfile
    epsilon: float
    noise: Noise | None
    way: float  # the share of its run's whole rate that it travelled; 1 where nothing is recorded of it

    @property
    def name(self) -> str:
        return self.saved.name

    @property
    def is_independent(self) -> bool:
        """Whether its noise, and that of what it started from, is known to be no other run's."""
        return all(c.run.independent_noise for c in (self.checkpoint, *self.checkpoint.ancestors))

    @property
    def is_gaussian(self) -> bool:
        return isinstance(self.profile, GaussianProfile)


@dataclass(frozen=True, eq=False)
class Rungs:
    """The usable checkpoints of a portfolio in its order, and why the others are not."""

    portfolio: Portfolio
    delta: float
    usable: tuple[Rung, ...]
    left_out: Mapping[str, str]
    non_private: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Rung:
        for rung in self.usable:
            if rung.name == name:
                return rung
        if name in self.left_out:
            raise InvalidInput(
                "checkpoint", name, "a checkpoint with a proved cost", found=f"{name}: {self.left_out[name]}"
            )
        known = [rung.name for rung in self.usable]
        near = get_close_matches(name, known, n=3, cutoff=0.5)
        raise InvalidInput("checkpoint", name, f"run@step, such as {', '.join(near or known[:4])}")

    def last_of(self, run: Run) -> Rung:
        """The latest rung of a run."""
        return [rung for rung in self.usable if rung.run is run][-1]

    @cached_property
    def groups(self) -> tuple[tuple[tuple[Rung, ...], ...], ...]:
        """The rungs that may be averaged: group by group, in each run by run, by increasing step."""
        groups = []
        for runs in self.portfolio.combinable():
            of_runs = (tuple(rung for rung in self.usable if rung.run is run) for run in runs)
            if found := tuple(rungs for rungs in of_runs if rungs):
                groups.append(found)
        return tuple(groups)

    def at_least(self, way: float) -> Rungs | None:
        """Only the rungs that are this far on their way; None if that is all of them, or none."""
        kept = tuple(rung for rung in self.usable if rung.way >= way)
        return replace(self, usable=kept) if 0 < len(kept) < len(self.usable) else None

    def squared_mu(self, rung: Rung) -> float:
        """μ² of a Gaussian cost, or of the Gaussian with the same ε at δ: additive, to compare and never to certify."""
        if isinstance(rung.profile, GaussianProfile):
            return rung.profile.mu**2
        return largest_mu(rung.epsilon, self.delta) ** 2


def rungs(portfolio: Portfolio, delta: float, *, non_private: Collection[str] = ()) -> Rungs:
    """Account for every kept checkpoint at δ; `non_private` names runs without privacy that may be drawn after all."""
    for name in non_private:
        portfolio.run(name)
    usable: list[Rung] = []
    left_out: dict[str, str] = {}
    out_of_reach: DeltaOutOfReach | None = None
    for run in portfolio.runs:
        for saved in run.checkpoints:
            checkpoint = run.at(saved.step)
            if saved.step == 0:
                left_out[saved.name] = "where its run started, not a trained model"
                continue
            try:
                profile = checkpoint.run.profile(saved.step)
                epsilon = profile.epsilon(delta)
            except DeltaOutOfReach as error:
                out_of_reach = error
                left_out[saved.name] = str(error)
            except NoGuarantee as error:
                left_out[saved.name] = str(error)
            else:
                if np.isinf(epsilon) and run.id not in non_private:
                    left_out[saved.name] = "not private, and not asked for by name"
                else:
                    noise = predicted_noise(checkpoint)
                    usable.append(Rung(run, saved, checkpoint, profile, epsilon, noise, _way(run, noise)))
    if private := [n for n in non_private if not any(r.run.id == n and np.isinf(r.epsilon) for r in usable)]:
        raise InvalidInput("non_private", private[0], "a run without privacy", found=f"{private[0]}, which has some")
    if not usable and out_of_reach is not None:
        raise out_of_reach
    if not usable:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items()) or "no checkpoint was kept"
        raise InvalidInput("portfolio", str(portfolio.path), "a portfolio with a private checkpoint", found=reasons)
    return Rungs(portfolio, delta, tuple(usable), left_out, tuple(non_private))


def _way(run: Run, noise: Noise | None) -> float:
    whole = predicted_noise(run.at(run.mechanism.steps))
    return 1.0 if noise is None or whole is None else noise.travelled / whole.travelled
