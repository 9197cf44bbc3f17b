"""The figures of `dpmerge account`: every accounting dpmerge knows, side by side.

Guarantees: a number is given only where there is a formula for it (else None), and `certifies` says whether it is a
proof for these runs. The paper's numbers appear whether or not they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dpmerge.account.spec import Spec
from dpmerge.errors import NoGuarantee
from dpmerge.privacy.combination import THEOREMS, Bound, LinearCombination, tightest
from dpmerge.privacy.domain import Array
from dpmerge.privacy.exposure import Mechanism
from dpmerge.privacy.gaussian import GaussianProfile
from dpmerge.privacy.profile import PrivacyProfile
from dpmerge.privacy.renyi import RenyiProfile
from dpmerge.privacy.selection import SelectionProfile

SHOWN_THEOREMS = ("joint_release", "last_step", "merged_trajectory", "merged_trajectory_prepended", "hidden_state")


@dataclass(frozen=True)
class Figures:
    """One profile in numbers; None where there is no formula."""

    mu: float | None
    epsilon: float | None
    epsilon_rdp_classic: float | None
    epsilon_rdp_improved: float | None
    reason: str | None = None


@dataclass(frozen=True)
class Account:
    """Everything `dpmerge account` says about a spec."""

    spec: Spec
    single: tuple[Figures, ...]
    selection: Figures | None
    combination: dict[str, tuple[Bound, Figures]] | None
    best: tuple[Bound, float] | None

    def document(self) -> dict[str, Any]:
        """As the JSON that `--json` prints."""
        result: dict[str, Any] = {"adjacency": self.spec.adjacency, "delta": self.spec.delta}
        result["single"] = [_numbers(figures) for figures in self.single]
        if self.selection is not None:
            numbers = _numbers(self.selection)
            del numbers["mu"]
            result["random_selection"] = {"epsilon_pld": numbers.pop("epsilon"), **numbers}
        if self.combination is not None:
            result["linear_combination"] = {
                name: {
                    **_numbers(figures),
                    "certifies": bound.certifies,
                    "premises": [
                        {"name": p.name, "holds": p.holds, "vouched_by": p.vouched_by} for p in bound.premises
                    ],
                }
                for name, (bound, figures) in self.combination.items()
            }
            result["auto"] = {
                "theorem": self.best[0].theorem if self.best else None,
                "epsilon": json_number(self.best[1]) if self.best else None,
            }
        return result


def account(spec: Spec) -> Account:
    """Account for each run, and for the selection and the combination the spec asks about."""
    runs, orders, delta = spec.mechanisms(), spec.orders(), spec.delta
    profiles = [_own_profile(run) for run in runs]
    single = tuple(_figures(profile, delta, orders) for profile in profiles)
    selection = None
    if spec.probabilities is not None:
        selection = _figures(_selection(profiles, spec.probabilities), delta, orders)
    combination, best = None, None
    if spec.weights is not None:
        merge = LinearCombination.of_runs(
            runs,
            spec.weights,
            release_noise=spec.release_noise,
            shared_affine="the spec (shared_affine)" if spec.shared_affine else None,
        )
        bounds = {name: theorem(merge) for name, theorem in THEOREMS.items()}
        combination = {name: (bounds[name], _figures(bounds[name].profile, delta, orders)) for name in SHOWN_THEOREMS}
        best = tightest(list(bounds.values()), delta)
    return Account(spec, single, selection, combination, best)


def _own_profile(run: Mechanism) -> PrivacyProfile | NoGuarantee:
    try:
        return run.profile()
    except NoGuarantee as reason:
        return reason


def _selection(
    profiles: list[PrivacyProfile | NoGuarantee], probabilities: list[float]
) -> PrivacyProfile | NoGuarantee:
    members: list[PrivacyProfile] = []
    chosen = [p for p in probabilities if p > 0]
    for profile, probability in zip(profiles, probabilities, strict=True):
        if probability > 0:
            if isinstance(profile, NoGuarantee):
                return profile
            members.append(profile)
    return SelectionProfile(tuple(members), tuple(p / sum(chosen) for p in chosen))


def _figures(profile: PrivacyProfile | NoGuarantee | None, delta: float, orders: Array) -> Figures:
    if profile is None or isinstance(profile, NoGuarantee):
        return Figures(None, None, None, None, None if profile is None else str(profile))
    curve_values = profile.renyi_divergence(orders)
    curve = None if curve_values is None else RenyiProfile(orders, curve_values)
    return Figures(
        mu=profile.mu if isinstance(profile, GaussianProfile) else None,
        epsilon=profile.epsilon(delta),
        epsilon_rdp_classic=None if curve is None else curve.converted("classic").epsilon(delta),
        epsilon_rdp_improved=None if curve is None else curve.epsilon(delta),
    )


def _numbers(figures: Figures) -> dict[str, float | str | None]:
    return {
        name: json_number(getattr(figures, name))
        for name in ("mu", "epsilon", "epsilon_rdp_classic", "epsilon_rdp_improved")
    }


def json_number(value: float | None) -> float | str | None:
    """JSON has no infinity: the string "inf" stands for it."""
    return "inf" if value is not None and np.isinf(value) else value
