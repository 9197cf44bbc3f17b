"""Weighted averages of runs, attacked where merged_trajectory is proved and where it is not.

Guarantees: every scenario says which claims are false for it; all others are theorems about exactly these runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from dpmerge.auditing.attacks import Attack
from dpmerge.auditing.claims import average_claims
from dpmerge.auditing.findings import Claim
from dpmerge.auditing.outputs import Part
from dpmerge.auditing.scenario import DELTA, Scenario, two_runs
from dpmerge.auditing.threat_models import merged, revealed, trained
from reproduction.scenarios.accounting_claims import amplified_claim
from reproduction.scenarios.adversarial_losses import latched

PEAK_RATE = 4.0


def warm_up_and_decay(steps: int) -> tuple[float, ...]:
    """The paper's schedule: a tenth of the steps of warm-up to the peak rate, then linear decay towards zero."""
    rising = max(1, round(steps / 10))
    return tuple(PEAK_RATE * min((t + 1) / rising, 1.0, (steps - t) / (steps - rising)) for t in range(steps))


def one_step() -> list[Part]:
    return two_runs(
        (0.7, 0.3),
        {"noise_multiplier": 3.0, "clip_norm": 1.0, "rates": 1.0},
        {"noise_multiplier": 1.0, "clip_norm": 2.0, "rates": 0.5},
        steps=1,
        adjacency="replace_one",
    )


def one_step_poisson() -> list[Part]:
    return two_runs(
        (0.6, 0.4),
        {"noise_multiplier": 1.0, "sampling_rate": 0.3},
        {"noise_multiplier": 0.5, "sampling_rate": 0.2},
        steps=1,
        adjacency="add_remove",
    )


def aggregate() -> list[Part]:
    return two_runs(
        (0.4, 0.6),
        {"noise_multiplier": 24.0, "clip_norm": 2.0, "rates": 0.5},
        {"noise_multiplier": 8.0, "clip_norm": 1.0, "rates": 0.25},
        steps=20,
        adjacency="add_remove",
        aggregate=True,
    )


def aggregate_unequal_lengths() -> list[Part]:
    return two_runs(
        (0.5, 0.5),
        {"noise_multiplier": 20.0, "steps": 20, "rates": 1.0},
        {"noise_multiplier": 5.0, "steps": 12, "rates": 0.5},
        adjacency="replace_one",
        aggregate=True,
    )


def aggregate_weight_decay() -> list[Part]:
    return two_runs(
        (0.5, 0.5),
        {"noise_multiplier": 10.0, "clip_norm": 1.0, "rates": 1.0},
        {"noise_multiplier": 1.0, "clip_norm": 100.0, "rates": 0.01},
        steps=100,
        adjacency="add_remove",
        aggregate=True,
        weight_decay=0.1,
    )


def aggregate_momentum() -> list[Part]:
    return two_runs(
        (0.5, 0.5),
        {"noise_multiplier": 1.0, "momentum": 0.9},
        {"noise_multiplier": 10.0},
        steps=100,
        adjacency="add_remove",
        aggregate=True,
    )


def aggregate_poisson() -> list[Part]:
    """The second run has next to no weight, and noise enough to hide the first."""
    return two_runs(
        (0.9, 0.1),
        {"noise_multiplier": 0.1},
        {"noise_multiplier": 80.0},
        steps=100,
        sampling_rate=0.1,
        adjacency="add_remove",
        aggregate=True,
    )


def shared_affine() -> list[Part]:
    return two_runs(
        (0.5, 0.5), {"noise_multiplier": 16.0}, {"noise_multiplier": 4.0}, steps=25, adjacency="replace_one"
    )


def adversarial() -> list[Part]:
    return two_runs(
        (0.5, 0.5),
        {"noise_multiplier": 64.0},
        {"noise_multiplier": 32.0},
        steps=20,
        clip_norm=2.0,
        rates=warm_up_and_decay(20),
        adjacency="replace_one",
    )


def still(parts: Sequence[Part]) -> Attack:
    """Nobody stretches anything: the models add up what their steps have added."""
    return merged(parts, 0.0, stretches=[1.0] * len(parts))


def _scenario(
    runs: Callable[[], list[Part]],
    attack: Callable[[Sequence[Part]], Attack],
    words: str,
    *,
    name: str | None = None,
    false: Collection[str] = (),
    claims: Callable[[], tuple[Claim, ...]] | None = None,
    trials: int = 1_000_000,
) -> Scenario:
    return Scenario(
        name=name or runs.__name__,
        words=words,
        attack=lambda: attack(runs()),
        claims=claims or (lambda: average_claims(runs(), DELTA, false=false)),
        trials=trials,
    )


def _both_alignments() -> tuple[Claim, ...]:
    """Of clipped totals the virtual steps of the shorter run may stand before its own or after."""
    theorems = ("joint_release", "last_step", "merged_trajectory", "merged_trajectory_prepended")
    return average_claims(aggregate_unequal_lengths(), DELTA, theorems=theorems)


def _sampled_claims() -> tuple[Claim, ...]:
    """Joint release has nothing to say of a run with next to no noise, and takes seconds to say it."""
    parts = aggregate_poisson()
    return (*average_claims(parts, DELTA, theorems=("merged_trajectory",)), amplified_claim(parts, DELTA))


def _affine_claims() -> tuple[Claim, ...]:
    return average_claims(shared_affine(), DELTA, shared_affine="the scenario")


SCENARIOS = (
    _scenario(
        one_step,
        still,
        "Two models of one step each, with different noise, clip norms and rates, are averaged.",
    ),
    _scenario(
        one_step_poisson,
        still,
        "Two models of one step each are averaged; their batches are drawn at random, so that the record is in one, in "
        "both or in neither.",
    ),
    _scenario(
        aggregate,
        still,
        "Two runs of plain SGD in which the whole batch gradient is clipped; the record turns it around.",
    ),
    _scenario(
        aggregate_unequal_lengths,
        still,
        "Two runs of plain SGD, of different length and rate, in which the whole batch gradient is clipped; the record "
        "turns it around.",
        claims=_both_alignments,
    ),
    _scenario(
        aggregate_weight_decay,
        lambda parts: trained(parts, 0.0),
        "Two runs with weight decay in which the whole batch gradient is clipped. The one with more noise and "
        "the larger rate forgets, the other hardly does.",
        false={"merged_trajectory"},
        trials=200_000,
    ),
    _scenario(
        aggregate_momentum,
        lambda parts: trained(parts, 0.0),
        "Two runs in which the whole batch gradient is clipped. One has momentum, which repeats every push about ten "
        "times, and less noise than the other.",
        false={"merged_trajectory"},
        trials=200_000,
    ),
    _scenario(
        aggregate_poisson,
        latched,
        "Batches are drawn at random and their whole gradient is clipped. A run with little noise shows the other "
        "records that the record was drawn once, and from then on they push as it would; another run's noise hides "
        "this in the average.",
        claims=_sampled_claims,
        trials=300_000,
    ),
    _scenario(
        shared_affine,
        still,
        "Two runs share one affine update map, which neither shrinks nor stretches: sums of clipped records.",
        claims=_affine_claims,
    ),
    _scenario(
        shared_affine,
        lambda parts: merged(parts, 0.0, stretches=(0.9, 0.9)),
        "Two runs share one affine update map, which shrinks the model by a tenth: iterated estimation of a mean.",
        name="shared_affine_contracting",
        claims=_affine_claims,
    ),
    _scenario(
        adversarial,
        lambda parts: revealed(parts, 0.0),
        "Two runs with the paper's schedule. The other records write down what the hidden models were before the last "
        "step, and the attacker reads it in the average.",
        false={"merged_trajectory"},
    ),
)
