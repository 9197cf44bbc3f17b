"""What a reader of any number about a portfolio should know, and no check can settle.

Guarantees: everything doubtful about its runs (`terms.caveats`), and about them together, shows up here by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from dpmerge.accounting.mechanisms import DpSgd
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.recorded_runs import Run
from dpmerge.portfolio.starts import not_kept
from dpmerge.terms.caveats import Caveat, completeness_caveats, run_caveats, unknown_start_caveats
from dpmerge.terms.mechanism_schema import DpSgdFacts
from dpmerge.terms.noise_groups import group_caveats, groups_among
from dpmerge.terms.one_shot_schema import GaussianReleaseFacts

ROUNDING = 1e-9
"""Lipschitz factors are rounded up by less."""

FAR = 2.0
"""So many times the batch is no close bound on the number of records."""


def caveats(portfolio: Portfolio) -> list[Caveat]:
    """All that is doubtful about a portfolio: what concerns the whole, then run by run."""
    return [*_portfolio_caveats(portfolio), *(caveat for run in portfolio.runs for caveat in _caveats_of(run))]


def _portfolio_caveats(portfolio: Portfolio) -> Iterator[Caveat]:
    where = str(portfolio.path)
    yield from completeness_caveats(portfolio.complete, where)
    if not portfolio.contents_read:
        yield Caveat("contents_not_read", where, "only headers were read: digests and finiteness are not checked")
    for name in portfolio.ignored:
        yield Caveat("ignored", where, f"{name} is not part of this portfolio")
    for allowance, error in portfolio.differences(portfolio.runs):
        verdict = "averaged all the same, as allowed" if allowance in portfolio.allowed else "refused for averaging"
        which = next(run.id for run in portfolio.runs if str(run.file) == error.file)
        text = f"{error.field} differs from other runs': fine for random selection, {verdict}"
        yield Caveat("not_combinable", which, text)
    unknown = [run.id for run in portfolio.runs if run.manifest.initial_weights is None]
    if len(portfolio.runs) > 1:
        yield from unknown_start_caveats(unknown, where)
    yield from group_caveats(groups_among({run.id: run.mechanism for run in portfolio.runs}), where)
    for name in not_kept(portfolio.runs):
        text = "its start is not kept: that it did not come from another run's checkpoint is taken on its word"
        yield Caveat("start_not_kept", name, text)
    for run in portfolio.runs:
        if len(run.checkpoints) > 1:
            text = f"{len(run.checkpoints)} checkpoints of one run are correlated: together they cost the latest"
            yield Caveat("correlated_checkpoints", run.id, text)


def _caveats_of(run: Run) -> Iterator[Caveat]:
    yield from run_caveats(run.manifest.statement)
    yield from _smoothness_caveats(run)
    facts = run.manifest.mechanism
    if isinstance(facts, GaussianReleaseFacts) and facts.noise_on is None:
        text = (
            'nobody says that its noise is on the weights (noise_on: "weights"): joint release and random selection '
            "alone cover it"
        )
        yield Caveat("noise_not_said_to_be_on_the_weights", run.id, text)
    if not run.checkpoints:
        yield Caveat("no_checkpoint", run.id, "no checkpoint was kept")
    if (pair := _untold_pair(run)) is not None:
        text = f"{pair[0]} and {pair[1]} hold the same values and are not said to be one weight (tensors.tied)"
        yield Caveat("untold_tie", run.id, f"{text}: release noise on them is refused")
    private = sorted({m.name for c in run.checkpoints for m in c.metrics if m.measured_on != "public"})
    if private:
        yield Caveat(
            "private_metrics", run.id, f"measured on private data, never used for planning: {', '.join(private)}"
        )


def _untold_pair(run: Run) -> tuple[str, str] | None:
    """Two trained tensors that hold the same values, where these are known, and that no record says are one weight."""
    facts = run.manifest.tensors
    trained = None if facts is None else set(facts.trained)
    weights = {name: group[0] for group in (facts.tied or () if facts else ()) for name in group}
    for checkpoint in run.checkpoints:
        seen: dict[str, str] = {}
        for name, digest in (checkpoint.digests or {}).items():
            if (trained is not None and name not in trained) or not math.prod(checkpoint.tensors[name][1].shape):
                continue
            other = seen.setdefault(digest, name)
            rests = facts is not None and facts.tied is not None and facts.initial.get(name) == digest
            if weights.get(name, name) != weights.get(other, other) and not rests:
                return other, name
    return None


def _smoothness_caveats(run: Run) -> Iterator[Caveat]:
    """Where hidden_state covers a run and gains little from it."""
    mechanism, facts = run.mechanism, run.manifest.mechanism
    if not isinstance(mechanism, DpSgd) or not isinstance(facts, DpSgdFacts) or facts.smoothness is None:
        return
    largest = mechanism.largest_lipschitz(mechanism.steps)
    if largest is not None and largest > 1 + ROUNDING:
        text = (
            f"an update may pull two hidden models apart, by L = {largest:.4g} at most: hidden_state covers it, but "
            "hides little of a run with L above 1 (convex losses keep to 1 up to a rate of 2/β)"
        )
        yield Caveat("updates_expand", run.id, text)
    records, batch = facts.smoothness.records, facts.expected_batch_size or run.manifest.dataset.size
    if records is not None and batch is not None and mechanism.is_full_batch and records > FAR * batch:
        text = (
            f"smoothness.records is {records:,}, where a batch has {batch:,.0f}: L is that of so many records, and "
            "hidden_state hides less than a closer bound would let it"
        )
        yield Caveat("records_far_from_the_batch", run.id, text)
