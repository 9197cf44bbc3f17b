"""Caveats: what a reader of a guarantee should know, and no check can settle.

Guarantees: every fact that a run states as unknown, unusual or private shows up here by name, and so does how a
release was chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dpmerge.accounting.premises import Premise
from dpmerge.terms.run_record import RunRecord, clips_records, trains

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


def release_caveats(
    *, premises: Iterable[Premise], kind: str, drawn: bool, without_privacy: bool, final: bool
) -> Iterator[Caveat]:
    """What a reader of a release's guarantee should know about how it was chosen and is made."""
    if failing := [p.name.replace("_", " ") for p in premises if not p.holds]:
        yield Caveat("assumed", "plan", f"not proved for these runs, it assumes: {'; '.join(failing)}")
    if kind == "uncharged":
        text = "chosen by looking at models that are not paid for: the guarantee does not cover the choice"
        yield Caveat("uncharged", "plan", text)
    if kind in ("public_evaluation", "private_validation"):
        text = "pays for this look set; nobody may have looked at other models, or chosen again after another look"
        yield Caveat("looked", "plan", text)
    if kind == "private_validation":
        text = "making this plan again draws again, and costs people in the validation set their ε again"
        yield Caveat("drawn_on_private_data", "plan", text)
    if without_privacy:
        yield Caveat("non_private", "plan", "a model without any privacy may be drawn, with a probability below δ")
    if drawn:
        text = "the guarantee holds before the draw; once it is known which candidate was drawn, its own ε holds"
        yield Caveat("ex_ante", "plan", text)
    if final:
        text = "holds only if nothing else of these runs is ever released, before or after"
        yield Caveat("final", "plan", text)


def completeness_caveats(complete: bool | None, where: str) -> Iterator[Caveat]:
    """Whether a portfolio holds all runs made on its data, as far as anybody says."""
    if complete is None:
        text = "nobody says whether these are all runs made on this data; guarantees do not cover dropped ones"
        yield Caveat("completeness_unknown", where, text)
    elif not complete:
        text = "other runs were made on this data; guarantees do not cover which runs were kept"
        yield Caveat("incomplete", where, text)


def unknown_start_caveats(runs: list[str], where: str) -> Iterator[Caveat]:
    """Runs whose initial weights nobody recorded."""
    if runs:
        text = f"initial weights of {', '.join(runs)} are not recorded; averaging assumes a common start"
        yield Caveat("initial_weights_unknown", where, text)


def run_caveats(stated: RunRecord) -> Iterator[Caveat]:
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


def _decided(stated: RunRecord) -> Iterator[Caveat]:
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
