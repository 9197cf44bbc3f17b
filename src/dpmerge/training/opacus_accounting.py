"""What Opacus' accountant would say of a recorded run, where that is less than what is recorded.

Guarantees: said once a run, with the reason and the cure. Opacus accounts every loader as if its batches were Poisson
sampled, at a rate of one over their number; shuffled ones are not.
"""

from __future__ import annotations

from collections import Counter

from dpmerge.accounting.exposure import Adjacency, Checkpoint, Exposure
from dpmerge.accounting.mechanisms import DpSgd
from dpmerge.accounting.training_settings import Sampling, StepBlock
from dpmerge.errors import NoGuaranteeError
from dpmerge.portfolio.manifest import Manifest
from dpmerge.terms.mechanism_schema import DpSgdFacts, HistoryFacts
from dpmerge.training.user_warnings import OtherAccountingWarning, warn_user

USUAL_DELTA = 1e-5
"""At which both are compared where nobody asked for an ε."""

_MOST_NOISES = 8  # different ones: each takes a transform, only to be able to say a number


def epsilon_of(manifest: Manifest, delta: float) -> float:
    """What releasing all steps of the record costs, a last pass cut short only as far as that is proved."""
    run = manifest.mechanism_from(None)
    return Exposure.of([Checkpoint(run, run.steps)]).fixed_steps_profile().epsilon(delta)


def warn_other_accounting(manifest: Manifest, batches: int | None, delta: float) -> None:
    """Where each pass has so many shuffled batches: what is recorded, what Opacus would say, why, and what to do."""
    facts = manifest.mechanism
    if batches is None or not isinstance(facts, DpSgdFacts | HistoryFacts):
        return
    try:
        recorded, said = epsilon_of(manifest, delta), _as_if_poisson(facts, batches, delta)
    except NoGuaranteeError:  # a private parent, or a δ out of reach
        recorded, said = None, None
    if recorded is None or said is None:
        figures = "more than"
    elif recorded > said:
        figures = f"ε = {recorded:.3g} at δ = {delta:g}, not {said:.3g} as"
    else:
        return
    warn_user(
        f"run {manifest.run}: this costs {figures} Opacus' accountant says. It counts shuffled batches as if they had "
        "been Poisson sampled, which they were not: each pass over the data costs a whole step. For the smaller number "
        "let make_private sample (poisson_sampling=True, its default).",
        OtherAccountingWarning,
    )


def _as_if_poisson(facts: DpSgdFacts | HistoryFacts, batches: int, delta: float) -> float | None:
    """ε by Opacus' reading of the loader; None where it would take long to compute."""
    steps: Counter[float] = Counter()
    for block in facts.blocks:
        steps[block.noise_multiplier] += block.steps
    if len(steps) > _MOST_NOISES:
        return None
    blocks = [
        StepBlock(steps=count, noise_multiplier=noise, clip_norm=1.0, learning_rate=1.0, sampling_rate=1 / batches)
        for noise, count in steps.items()
    ]
    run = DpSgd(blocks=blocks, adjacency=Adjacency.ADD_REMOVE, sampling=Sampling.POISSON)
    return run.profile().epsilon(delta)
