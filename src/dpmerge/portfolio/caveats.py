"""What a reader of any number about a portfolio should know, and no check can settle.

Guarantees: every fact that was stated as unknown, unusual or private shows up here by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from dpmerge.portfolio.facts import DpSgdFacts, GaussianReleaseFacts
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.runs import Run
from dpmerge.portfolio.starts import not_kept
from dpmerge.portfolio.statement import RunStatement, clips_records, trains
from dpmerge.privacy.mechanisms import DpSgd

ROUNDING = 1e-9
"""Lipschitz factors are rounded up by less."""

FAR = 2.0
"""So many times the batch is no close bound on the number of records."""

SINCE_2 = frozenset(
    {
        "stopping_unknown",
        "stopping_private",
        "schedule_unknown",
        "schedule_private",
        "record_losses_unknown",
        "near_start_stated_independent",
    }
)
"""Names of caveats about statements that certificates of version 1 do not know."""


@dataclass(frozen=True)
class Caveat:
    """One doubt: its name, what it is about, and what it means."""

    name: str
    where: str
    text: str


def caveats(portfolio: Portfolio) -> list[Caveat]:
    """All that is doubtful about a portfolio: what concerns the whole, then run by run."""
    return [*_portfolio_caveats(portfolio), *(caveat for run in portfolio.runs for caveat in _run_caveats(run))]


def _portfolio_caveats(portfolio: Portfolio) -> Iterator[Caveat]:
    where = str(portfolio.path)
    if portfolio.complete is None:
        text = "nobody says whether these are all runs made on this data; guarantees do not cover dropped ones"
        yield Caveat("completeness_unknown", where, text)
    elif not portfolio.complete:
        text = "other runs were made on this data; guarantees do not cover which runs were kept"
        yield Caveat("incomplete", where, text)
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
    if unknown and len(portfolio.runs) > 1:
        text = f"initial weights of {', '.join(unknown)} are not recorded; averaging assumes a common start"
        yield Caveat("initial_weights_unknown", where, text)
    for name in not_kept(portfolio.runs):
        text = "its start is not kept: that it did not come from another run's checkpoint is taken on its word"
        yield Caveat("start_not_kept", name, text)
    for run in portfolio.runs:
        if len(run.checkpoints) > 1:
            text = f"{len(run.checkpoints)} checkpoints of one run are correlated: together they cost the latest"
            yield Caveat("correlated_checkpoints", run.id, text)


def _run_caveats(run: Run) -> Iterator[Caveat]:
    yield from statement_caveats(run.manifest.statement)
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


def statement_caveats(stated: RunStatement) -> Iterator[Caveat]:
    """What is doubtful about a run by its own words."""
    if stated.noise.source == "seeded":
        yield Caveat("seeded_noise", stated.run, "the noise is seeded: whoever knows the seed can take it off again")
    elif stated.noise.source == "unknown":
        text = "where its noise came from is not recorded: not mergeable with others"
        yield Caveat("noise_unknown", stated.run, text)
    if stated.noise.secure_rng is False:
        yield Caveat("insecure_generator", stated.run, "the noise generator is not cryptographic")
    if stated.ancestry.assumed:
        text = "nobody said what it started from; a start without private data was assumed"
        yield Caveat("start_assumed", stated.run, text)
    if stated.tuning == "unknown":
        text = "how its hyperparameters were chosen is not recorded; guarantees do not cover that choice"
        yield Caveat("tuning_unknown", stated.run, text)
    yield from _decided(stated)
    if clips_records(stated) and stated.record_losses in (None, "unknown"):
        text = "nobody vouches that each record has a loss of its own; clipping does not bound one that mixes records"
        yield Caveat("record_losses_unknown", stated.run, text)
    if stated.ancestry.independent_of:
        others = ", ".join(stated.ancestry.independent_of)
        text = f"that it did not start from a checkpoint of {others}, near which it started, is taken on its word"
        yield Caveat("near_start_stated_independent", stated.run, text)
    if not stated.finished:
        yield Caveat("unfinished", stated.run, "the run did not end as planned; what was saved is accounted for")


def _decided(stated: RunStatement) -> Iterator[Caveat]:
    """What was decided in training by looking at private data without noise is a release of its own."""
    questions = {
        "stopping": (stated.stopping, "when it stopped"),
        "schedule": (stated.schedule, "how its rates, clip norms and noise changed"),
    }
    for name, (said, what) in questions.items():
        if said == "private":
            text = f"{what} was decided by private data without noise; guarantees do not cover that choice"
            yield Caveat(f"{name}_private", stated.run, text)
        elif said == "unknown" or (said is None and trains(stated)):
            text = f"what decided {what} is not recorded; guarantees do not cover that choice"
            yield Caveat(f"{name}_unknown", stated.run, text)
