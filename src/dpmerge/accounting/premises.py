"""Premises as data: what a theorem needs to be true, whether it is, and who says so.

Guarantees: whatever the record contradicts, or a theorem needs and the record lacks, counts as failed. A record that
is silent about its optimizer or its noise stands by the defaults of `DpSgd`; the voucher is who wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dpmerge.accounting.exposure import Adjacency, Checkpoint, Mechanism, one_seed, shared_noise
from dpmerge.accounting.mechanisms import DpSgd
from dpmerge.accounting.one_shot_mechanisms import AccountantHistory, GaussianRelease
from dpmerge.accounting.smoothness import DeclaredLipschitz, Smoothness
from dpmerge.accounting.training_settings import Clipping, Sampling
from dpmerge.accounting.validation import Array

NoisyRun = DpSgd | GaussianRelease
"""A mechanism whose noise and shift are known step by step, not only what it costs in total."""

Trained = DpSgd | AccountantHistory
"""A mechanism whose cost is that of its steps, not somebody's figure."""

NULL_RECORD = "a_null_record_enters_nothing_but_the_draw"
MOST_SAMPLED_LAST_STEPS = 10
"""Poisson runs whose last steps are merged: each further one doubles the components of their mixture."""


@dataclass(frozen=True)
class Premise:
    """One condition of a theorem, evaluated over the runs that have a positive weight.

    Args:
        name: What has to be true.
        holds: Whether it is.
        vouched_by: Who says so; of one that fails, "nobody", and why.

    >>> Premise("full_batch", False, "the run's record").vouched_by
    "nobody: contradicted by the run's record"
    """

    name: str
    holds: bool
    vouched_by: str

    def __post_init__(self) -> None:
        if not self.holds and not self.vouched_by.startswith("nobody"):
            object.__setattr__(self, "vouched_by", f"nobody: contradicted by {self.vouched_by}")


def of_all(premises: Iterable[Premise]) -> tuple[Premise, ...]:
    """The premises of several bounds together: one of each name, which holds if it does in all of them."""
    merged: dict[str, Premise] = {}
    for premise in premises:
        known = merged.get(premise.name)
        if known is None or (known.holds and not premise.holds):
            merged[premise.name] = premise
        elif known.holds != premise.holds or premise.vouched_by in known.vouched_by:
            continue
        elif known.vouched_by in premise.vouched_by:
            merged[premise.name] = premise
        else:
            both = f"{known.vouched_by}, {premise.vouched_by}"
            merged[premise.name] = Premise(premise.name, premise.holds, both)
    return tuple(merged.values())


def independent_draw() -> Premise:
    """Random selection's own premise."""
    return Premise("draw_independent_of_the_data_and_of_all_noise", True, "whoever makes the release")


def only_release() -> Premise:
    """Two merged releases of the same runs do not add up; what covers several is joint release."""
    return Premise("nothing_else_of_these_runs_is_ever_released", True, "whoever makes the release")


def started_afresh(support: Sequence[Checkpoint]) -> Premise:
    holds = all(checkpoint.run.ancestry is None for checkpoint in support)
    return Premise("start_independent_of_private_data", holds, _records(support))


def independent_noise(support: Sequence[Checkpoint]) -> Premise:
    """Of several runs, each must have noise of its own; a single one may come from anywhere."""
    runs = dict.fromkeys(c.run for checkpoint in support for c in (checkpoint, *checkpoint.ancestors))
    if (pair := shared_noise(runs)) is not None:
        return Premise("independent_noise", False, f"nobody: {one_seed(*pair)}")
    if any(run.noise_group is not None for run in runs) and all(run.independent_noise for run in runs):
        # Of all candidates together it must not read as if they were independent of one another.
        return Premise("independent_noise", True, f"{_records(support)}, seen without others of its seed")
    holds = len(runs) == 1 or all(run.independent_noise for run in runs)
    return Premise(
        "independent_noise", holds, _records(support) if holds else "nobody: a run's noise source is unknown"
    )


def common_premises(support: Sequence[Checkpoint]) -> list[Premise]:
    """What every theorem about several runs rests on."""
    seen = [*support, *(ancestor for checkpoint in support for ancestor in checkpoint.ancestors)]
    premises = [independent_noise(support), *null_record(seen)]
    vouched = [c for c in seen if isinstance(c.run, AccountantHistory) and c.run.public_divisor]
    if vouched or any(c.run.adjacency is Adjacency.ADD_REMOVE and isinstance(c.run, DpSgd) for c in seen):
        # Dividing by the true number of records would make both the shift and the noise depend on the record.
        premises.append(Premise("public_divisor", True, _records(support)))
    return premises


def null_record(support: Sequence[Checkpoint]) -> list[Premise]:
    """Under zero_out: the null record's gradient is zero, and no statistic, vocabulary, class weight or normalisation
    tells it from a record. No recorder sees what was computed before training; who recorded the run vouches."""
    trained = [c for c in support if c.run.adjacency is Adjacency.ZERO_OUT and isinstance(c.run, Trained)]
    return [Premise(NULL_RECORD, True, _records(trained))] if trained else []


def seen_in_part(runs: Sequence[Mechanism]) -> list[Premise]:
    """Of runs whose last pass over shuffled data counts in part: what that share rests on, and who says so."""
    voices = ", ".join(dict.fromkeys(map(_voucher, runs)))
    return [Premise("order_secret_and_step_fixed_beforehand", True, voices)] if runs else []


def learning_rates_known(support: Sequence[Checkpoint]) -> list[Premise]:
    """What every theorem about updates needs; of a run that states none only the cost is known."""
    silent = dict.fromkeys(c.run.label for c in support if isinstance(c.run, AccountantHistory))
    if not silent:
        return []
    return [Premise("learning_rates_known", False, f"nobody: not stated of {', '.join(silent)}")]


def separate_runs(support: Sequence[Checkpoint]) -> list[Premise]:
    """One checkpoint a run, and no run started from another one that is merged too."""
    runs = [checkpoint.run for checkpoint in support]
    ancestors = {ancestor.run for checkpoint in support for ancestor in checkpoint.ancestors}
    return [
        Premise("one_checkpoint_per_run", len(set(runs)) == len(runs), _records(support)),
        Premise("no_run_descends_from_another", not ancestors & set(runs), _records(support)),
    ]


def unbroken(support: Sequence[Checkpoint]) -> list[Premise]:
    """Of runs that were broken off and went on: theorems about updates need each to follow from the one before.

    Steps that were taken and lost are paid for, but are not in the weights; an optimizer that was reset forgot some.
    """
    resumed = [c for c in support if isinstance(c.run, DpSgd) and c.run.unbroken_steps is not None]
    if not resumed:
        return []
    broken = [c.run.label for c in resumed if isinstance(c.run, DpSgd) and c.step > (c.run.unbroken_steps or 0)]
    said = f"nobody: {', '.join(broken)} lost steps, or its optimizer was reset" if broken else _records(resumed)
    return [Premise("no_step_lost_on_the_way", not broken, said)]


def full_batch(support: Sequence[Checkpoint]) -> Premise:
    holds = all(isinstance(c.run, NoisyRun) and c.run.is_full_batch for c in support)
    return Premise("full_batch", holds, _records(support))


def known_inclusion(support: Sequence[Checkpoint]) -> list[Premise]:
    """last_step's premises on batches: full ones, or ones that each run drew by itself, record by record.

    Under replace_one no formula is proved for sampled ones, and of shuffled batches none under any adjacency.
    """
    drawn = [c for c in support if isinstance(c.run, DpSgd) and c.run.sampling is Sampling.POISSON]
    sampled = [c for c in drawn if not c.run.is_full_batch]  # type: ignore[attr-defined]
    others = [c for c in support if c not in sampled]
    replaced = any(c.run.adjacency is Adjacency.REPLACE_ONE for c in sampled)
    if not sampled or replaced or not full_batch(others).holds:
        return [full_batch(support)]
    per_example = all(c.run.clipping is Clipping.PER_EXAMPLE for c in support if isinstance(c.run, DpSgd))
    most, several = MOST_SAMPLED_LAST_STEPS, len(support) > 1
    return [
        Premise(
            "sampling_independent_between_runs",
            not several or all(c.run.independent_noise for c in sampled),
            _records(sampled),
        ),
        Premise("per_example_clipping", per_example, _records(support)),
        Premise(
            "at_most_ten_sampled_runs",
            len(sampled) <= most,
            f"{_records(sampled)}" if len(sampled) <= most else f"nobody: {len(sampled)} runs are sampled",
        ),
    ]


def noise_on_the_weights(support: Sequence[Checkpoint]) -> list[Premise]:
    """Of Gaussian releases whose record says so: their deviation is that of the noise on the weights themselves."""
    stated = [c for c in support if isinstance(c.run, GaussianRelease) and c.run.on_weights]
    return [Premise("noise_in_units_of_the_weights", True, _records(stated))] if stated else []


def linear_last_update(support: Sequence[Checkpoint]) -> Premise:
    """The last update is linear in its own noisy gradient: any SGD, never Adam."""
    holds = all(isinstance(c.run, NoisyRun) and c.run.optimizer.is_sgd for c in support)
    return Premise("last_update_linear_in_its_gradient", holds, _records(support))


def bounded_update(support: Sequence[Checkpoint], shared_affine: str | None) -> Premise:
    """merged_trajectory's premise: an update moves by at most k·C between *any two* hidden states.

    (a) one step; (b) the clipped total is the whole update; (c) one affine map shared by all runs.
    """
    name = "update_bounded_for_any_two_hidden_states"
    if not all(isinstance(c.run, NoisyRun) for c in support):
        return Premise(name, False, "nobody: the updates are not known")
    if one_step(support):
        return Premise(name, True, f"(a) every run takes one step: {_records(support)}")
    if whole_update_clipped(support):
        return Premise(name, True, f"(b) the clipped total is the whole update: {_records(support)}")
    if shared_affine is not None and _affine_maps_can_agree(support):
        return Premise(name, True, f"(c) all runs share one affine update map: {shared_affine}")
    return Premise(name, False, "nobody: it fails for per-example clipping with two or more steps")


def one_step(support: Sequence[Checkpoint]) -> bool:
    """(a): one step each, or (without momentum) one whose rate is not zero."""
    for checkpoint in support:
        run = checkpoint.run
        assert isinstance(run, NoisyRun)
        acting = int(np.count_nonzero(run.moves(checkpoint.step).shift)) if run.optimizer.is_plain else checkpoint.step
        if acting > 1 or not run.optimizer.is_sgd or run.optimizer.nesterov:
            return False
    return True


def whole_update_clipped(support: Sequence[Checkpoint]) -> bool:
    """(b): aggregate clipping, plain SGD, no weight decay."""
    return all(
        isinstance(c.run, DpSgd)
        and c.run.clipping is Clipping.AGGREGATE
        and c.run.optimizer.is_plain
        and c.run.optimizer.weight_decay == 0
        for c in support
    )


def _affine_maps_can_agree(support: Sequence[Checkpoint]) -> bool:
    """(c) cannot be true of runs of unequal length, with momentum, or whose weight decay shrinks differently."""
    shrinkages = []
    for checkpoint in support:
        run = checkpoint.run
        if not isinstance(run, DpSgd) or not run.is_full_batch or not run.optimizer.is_plain:
            return False
        shrinkage = _shrinkage(run, checkpoint.step)
        if shrinkage is None:
            return False
        shrinkages.append(shrinkage)
    first = shrinkages[0]
    return all(s.shape == first.shape and np.allclose(s, first, rtol=1e-12, atol=0) for s in shrinkages)


def _shrinkage(run: DpSgd, upto: int) -> Array | None:
    """By how much weight decay shrinks the state at each step; None if it does and the divisor is not known."""
    if run.optimizer.weight_decay == 0:
        return np.zeros(upto)
    divisor = run.smoothness.divisor if isinstance(run.smoothness, Smoothness) else None
    return None if divisor is None else np.asarray(run.rates[:upto] * divisor * run.optimizer.weight_decay)


def hidden_state_premises(support: Sequence[Checkpoint]) -> list[Premise]:
    """Everything the hidden-state theorem needs beyond independent noise; the first failing one is the reason."""
    runs = [checkpoint.run for checkpoint in support]
    trained = [run for run in runs if isinstance(run, DpSgd)]
    whole = len(trained) == len(runs)
    record = _records(support)
    premises = [
        full_batch(support),
        *unbroken(support),
        *separate_runs(support),
        Premise("sgd_without_momentum", whole and all(r.optimizer.is_plain for r in trained), record),
        Premise("flat_clipping", whole and all(r.flat_clipping for r in trained), record),
        started_afresh(support),
    ]
    facts = [_smoothness_premises(checkpoint) for checkpoint in support]
    for name in dict.fromkeys(premise.name for each in facts for premise in each):
        same = [premise for each in facts for premise in each if premise.name == name]
        vouchers = dict.fromkeys(premise.vouched_by for premise in same)
        premises.append(Premise(name, all(premise.holds for premise in same), ", ".join(vouchers)))
    premises.append(only_release())
    return premises


def _smoothness_premises(checkpoint: Checkpoint) -> list[Premise]:
    run = checkpoint.run
    facts = run.smoothness if isinstance(run, DpSgd) else None
    if facts is None or not isinstance(run, DpSgd):
        return [Premise("smoothness_known", False, f"nobody: {run.label} has no smoothness facts")]
    voucher = facts.vouched_by or run.vouched_by
    known = Premise("smoothness_known", True, voucher)
    if isinstance(facts, DeclaredLipschitz):
        return [known]
    records = Premise("number_of_records_bounded", facts.records is not None, voucher)
    if run.optimizer.weight_decay > 0:
        # Weight decay shrinks by learning rate × decay; the learning rate is effective rate × divisor.
        known_facts = [
            known,
            records,
            Premise("divisor_known_for_weight_decay", facts.divisor is not None, voucher),
            Premise("weight_decay_outside_the_clipped_loss", True, run.vouched_by),
        ]
    else:
        known_facts = [known, records]
    if facts.kind == "declared":
        return known_facts
    features = Premise("features_bounded", facts.feature_bound is not None, voucher)
    per_example = Premise("per_example_clipping", run.clipping is Clipping.PER_EXAMPLE, run.vouched_by)
    premises = [*known_facts, features, per_example]
    if facts.kind == "softmax":
        premises.append(_clipping_never_acts(checkpoint, run, facts))
    return premises


def _clipping_never_acts(checkpoint: Checkpoint, run: DpSgd, facts: Smoothness) -> Premise:
    acting = run.rates[: checkpoint.step] > 0
    smallest = float(run.clip_norms[: checkpoint.step][acting].min(initial=np.inf))
    needed = facts.least_clip_norm
    return Premise(
        "clip_norm_at_least_sqrt2_feature_bound",
        facts.feature_bound is not None and smallest >= needed,
        f"{run.vouched_by} (clip norm {smallest:g}, needed {needed:.6g})",
    )


def _records(support: Sequence[Checkpoint]) -> str:
    return ", ".join(dict.fromkeys(_voucher(checkpoint.run) for checkpoint in support))


def _voucher(run: Mechanism) -> str:
    return str(getattr(run, "vouched_by", run.label))
