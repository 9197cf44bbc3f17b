"""Several releases from the same runs: what adding up, averaging and sending again get wrong, and the ledger's rules.

Guarantees: what the ledger lets out is asked of a ledger; whatever it would let out by mistake the attacker sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import get_args

import numpy as np

from dpmerge.auditing.attacks import Array, Attack, Draws
from dpmerge.auditing.claims import average_claims
from dpmerge.auditing.findings import Claim
from dpmerge.auditing.scenario import DELTA, Scenario
from dpmerge.auditing.schedules import Schedule
from reproduction.scenarios.ledger_claims import (
    Asked,
    CapRule,
    Rule,
    Transcript,
    accepts,
    standing_claim,
    terms_of,
    transcript,
    transcript_claim,
)

# A cap, and a run of which seven steps are the most that fits it.

CAP_EPSILON, CAP_DELTA, ORDER = 1.0, 1e-5, 12.0
LADDER = Schedule.of("ladder", steps=400, noise_multiplier=20.0, adjacency="replace_one")
FITS, MOST, RELEASES = 7, 10, 1000


def one_of(low: int, high: int, chance: float) -> Asked:
    """The checkpoint after few steps, or with a small chance the one after many."""
    candidates = [[(LADDER, low, 1.0)], [(LADDER, high, 1.0)]]
    return Asked(candidates=candidates, probabilities=(1 - chance, chance))


GREEDY = one_of(FITS, LADDER.steps, 1.5e-6)
WISHES = (
    GREEDY,
    *[one_of(3, 9, 0.3)] * 4,
    *[one_of(3, 9, 0.01)] * 6,
    *(Asked(candidates=[[(LADDER, step, 1.0)]]) for step in range(3, MOST + 1)),
)
"""What is asked of the ledger, in turn: as the naive rule would have it, then more and more modestly."""


def naive_cap() -> Attack:
    """A thousand plans, each within the cap by itself; who waits for the rare draw sees all steps."""
    chance = GREEDY.probabilities[1]
    allowed = RELEASES if terms_of(GREEDY).delta(CAP_EPSILON) <= CAP_DELTA else 0

    def play(rng: np.random.Generator, trials: int, present: bool) -> Draws:
        drawn = rng.geometric(chance, trials) <= allowed
        return Draws(_ladder_scores(rng, np.where(drawn, float(LADDER.steps), float(FITS)), present))

    return Attack(play=play)


def capped(rule: Rule) -> Attack:
    """Everything the ledger lets out under the cap, along every course that the draws can take."""
    cap = _cap(rule)
    usual = transcript(WISHES, delta=CAP_DELTA, cap=cap)
    chances, left = dict[int, float](), 1.0
    for place, (asked, outcome) in enumerate(zip(WISHES, usual.outcomes, strict=True)):
        if outcome == "released" and len(asked.candidates) > 1:
            # The rare candidate is drawn here first. What else could be drawn after it would add nothing to it.
            seen = _latest(transcript(WISHES, delta=CAP_DELTA, cap=cap, draws={place: 1}), {place: 1})
            chances[seen] = chances.get(seen, 0.0) + left * asked.probabilities[1]
            left *= asked.probabilities[0]
    seen = _latest(usual, {})
    chances[seen] = chances.get(seen, 0.0) + left
    steps, weights = np.array(list(chances), dtype=float), tuple(chances.values())

    def play(rng: np.random.Generator, trials: int, present: bool) -> Draws:
        index = rng.choice(len(steps), size=trials, p=np.asarray(weights))
        return Draws(_ladder_scores(rng, steps[index], present), index)

    return Attack(play=play, gaussian=True, probabilities=weights)


def _cap(rule: Rule) -> CapRule:
    """The cap kept by a rule; for a ceiling, by the highest one that a ledger accepts."""
    cap = CapRule(epsilon=CAP_EPSILON, delta=CAP_DELTA, rule=rule, order=ORDER if rule == "renyi_filter" else None)
    if rule != "ceiling":
        return cap
    return next(filter(accepts, (replace(cap, ceiling=[(LADDER, step)]) for step in range(MOST, 0, -1))))


def _latest(made: Transcript, draws: Mapping[int, int]) -> int:
    """The latest checkpoint that has left: it tells all that the earlier ones tell."""
    released = [place for place, outcome in enumerate(made.outcomes) if outcome == "released"]
    return max((WISHES[place].candidates[draws.get(place, 0)][0][1] for place in released), default=0)


def _ladder_scores(rng: np.random.Generator, steps: Array, present: bool) -> Array:
    """Of the checkpoints after so many steps."""
    noise = float(LADDER.noise_multipliers[0])
    weights = (1.0 if present else -1.0) * steps + noise * np.sqrt(steps) * rng.standard_normal(len(steps))
    return np.asarray(2 * weights / noise**2)


# Two averages of the same two models.

PAIR = tuple(
    Schedule.of(name, steps=1, noise_multiplier=noise, adjacency="replace_one")
    for name, noise in (("one", 2.0), ("two", 0.5))
)
WEIGHTS = ((0.99, 0.01), (0.98, 0.02))
AVERAGES = tuple(tuple(zip(PAIR, (1, 1), weights, strict=True)) for weights in WEIGHTS)


def averages_seen(averages: Sequence[Sequence[float]]) -> Attack:
    """Some averages of the models of PAIR; two of them give both models away."""
    weights: Array = np.asarray(averages, dtype=float)
    spreads = np.array([float(run.noise_multipliers[0]) for run in PAIR])
    towards = 2 * np.linalg.solve((weights * spreads**2) @ weights.T, weights.sum(axis=1))

    def play(rng: np.random.Generator, trials: int, present: bool) -> Draws:
        models = (1.0 if present else -1.0) + spreads[:, None] * rng.standard_normal((2, trials))
        return Draws(np.asarray(towards @ (weights @ models)))

    return Attack(play=play, gaussian=True)


def _final_transcript() -> Transcript:
    finals = [Asked(candidates=[average], theorem="last_step", final=True) for average in AVERAGES]
    return transcript(finals, delta=DELTA)


def final_average() -> Attack:
    """What is let out of the two averages if the first is declared final."""
    outcomes = _final_transcript().outcomes
    return averages_seen([w for w, outcome in zip(WEIGHTS, outcomes, strict=True) if outcome == "released"])


def _final_claims() -> tuple[Claim, ...]:
    names = ("last_step", "merged_trajectory", "joint_release")
    locked = standing_claim("the ledger, its runs locked", _final_transcript())
    return (*average_claims(AVERAGES[0], DELTA, theorems=names), locked)


def _two_claims() -> tuple[Claim, ...]:
    # Basic composition adds up δ as well: each ε is that at half of it.
    halves = [claim for average in AVERAGES for claim in average_claims(average, DELTA / 2, theorems=["last_step"])]
    total = sum(claim.value for claim in halves if claim.value is not None)
    added = Claim(by="last_step, both added up (not ours)", value=total, proved=False, false_here=True)
    jointly = transcript([Asked(candidates=[average]) for average in AVERAGES], delta=DELTA)
    return added, transcript_claim("joint_release (the ledger's high-water mark)", jointly)


# One average under release noise, sent a hundred times.

SMOOTH = tuple(
    Schedule.of(name, steps=10, noise_multiplier=1.0, adjacency="add_remove", stretches=np.ones(10))
    for name in ("left", "right")
)
RELEASE_NOISE, SENDINGS = 50.0, 100
HIDDEN = Asked(
    candidates=[[(run, run.steps, 0.5) for run in SMOOTH]], theorem="hidden_state", release_noise=RELEASE_NOISE
)


def noised(fresh: int) -> Attack:
    """The average of the two models under `fresh` independent draws of release noise; linear losses."""
    steps, spread = SMOOTH[0].steps, float(np.sqrt(SMOOTH[0].steps))
    variance = spread**2 / 2 + RELEASE_NOISE**2 / fresh

    def play(rng: np.random.Generator, trials: int, present: bool) -> Draws:
        average = steps * present + spread * rng.standard_normal((2, trials)).mean(axis=0)
        total = np.zeros(trials)
        for _ in range(fresh):
            total += average + RELEASE_NOISE * rng.standard_normal(trials)
        return Draws(steps * (total / fresh - steps / 2) / variance)

    return Attack(play=play, gaussian=True)


def _sent_again() -> Transcript:
    """Asked for under one key, and in between under others: noise is drawn anew only for what is released."""
    final = replace(HIDDEN, final=True)
    keys = ("the same" if place % 2 == 0 else f"another, {place}" for place in range(SENDINGS))
    return transcript([replace(final, key=key) for key in keys], delta=DELTA)


def _hidden_claim() -> Claim:
    """Of one release under the release noise."""
    parts = HIDDEN.candidates[0]
    return average_claims(parts, DELTA, release_noise=RELEASE_NOISE, theorems=["hidden_state"])[0]


def _renoised_claims() -> tuple[Claim, ...]:
    jointly = transcript([replace(HIDDEN, theorem="joint_release")] * SENDINGS, delta=DELTA)
    return (
        replace(_hidden_claim(), by="hidden_state, counted once (not ours)", proved=False, false_here=True),
        transcript_claim("joint_release (the ledger's high-water mark)", jointly),
    )


def _again_claims() -> tuple[Claim, ...]:
    return _hidden_claim(), standing_claim("the ledger, its runs locked", _sent_again())


def _capped_scenario(rule: Rule) -> Scenario:
    return Scenario(
        name=f"cap_by_{rule}",
        words=(
            "Random selections and single checkpoints of one run are asked of a ledger whose cap is kept by the rule "
            f"{rule}; the attacker sees all that it lets out, whatever is drawn."
        ),
        attack=lambda: capped(rule),
        claims=lambda: (Claim(by=f"the cap, kept by {rule}", value=CAP_DELTA, proved=True),),
        quantity="delta",
        given=CAP_EPSILON,
        trials=4_000_000,
    )


SCENARIOS = (
    Scenario(
        name="naive_cap",
        words=(
            "A thousand random selections are made, each with an average δ within a cap: as long as the candidate "
            "beyond the cap is not drawn, the allowance is handed out again. The attacker waits until it is drawn."
        ),
        attack=naive_cap,
        claims=lambda: (
            Claim(
                by="average δ of each plan within the cap (not ours)", value=CAP_DELTA, proved=False, false_here=True
            ),
        ),
        quantity="delta",
        given=CAP_EPSILON,
        trials=2_000_000,
        note="Exact: 77 times the cap's δ.",
    ),
    *map(_capped_scenario, get_args(Rule)),
    Scenario(
        name="two_averages",
        words="Two averages of the same two models are released; the attacker solves for the models.",
        attack=lambda: averages_seen(WEIGHTS),
        claims=_two_claims,
        note="At δ = 1e-5 each is claimed to cost 4.43 and 4.48; both together cost 25.4.",
    ),
    Scenario(
        name="final_average",
        words=(
            "Of two averages of the same two models the first is declared final: the ledger locks the models and "
            "refuses the second, so that the attacker sees one."
        ),
        attack=final_average,
        claims=_final_claims,
        note="The claim is the truth here: at 95 % confidence one audit in twenty shows more by chance.",
    ),
    Scenario(
        name="renoised",
        words="One average is sent a hundred times, each time with fresh release noise; the attacker takes the mean.",
        attack=lambda: noised(SENDINGS),
        claims=_renoised_claims,
        trials=200_000,
        note="A hundred draws of release noise multiply μ by 9.1 here, by 10 where it is all the noise there is.",
    ),
    Scenario(
        name="sent_again",
        words="One average is asked for a hundred times; the ledger lets the same bytes out again, and nothing new.",
        attack=lambda: noised(_sent_again().outcomes.count("released")),
        claims=_again_claims,
    ),
)
