"""Attackers, by what they see of some runs: every noisy gradient, the hidden models but the last, the average alone.

Guarantees: what is seen is drawn by simulation: noise, batches and hidden states step by step, the record ever pushing
one way (`auditing.gradients`). A score is the log-likelihood ratio of what is seen, so that one threshold serves a
mixture of attacks: exactly so in `everything`, and of averages as far as their law is exact (`auditing.outputs`).
Where only an average is seen, what its runs started from counts as public.
Refuses: what a view is not made for, each fact named.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dpmerge.auditing.attacks import Array, Attack, Draws, in_batches
from dpmerge.auditing.gradients import BARELY, Sight, exposed, sights
from dpmerge.auditing.outputs import (
    Part,
    SimulatedOutput,
    Stretched,
    output_of,
    recorded_motion,
    require_parts,
    require_sgd,
)
from dpmerge.auditing.schedules import Schedule
from dpmerge.auditing.worst_case_lipschitz import even
from dpmerge.errors import InvalidInputError


def everything(seen: Sequence[tuple[Schedule, int]]) -> Attack:
    """Sees every noisy gradient of every run up to a step, and of all they started from (joint release)."""
    return _seen([sight for run, step in exposed(seen).items() for sight in sights(run, step)])


def revealed(parts: Sequence[Part], release_noise: float) -> Attack:
    """Sees the average, and every noisy gradient before each run's last acting step (theorem last_step).

    Other records can do that to a run whose examples are clipped one by one: their gradients tell where the hidden
    model stood. The last update alone is hidden in the average, and is linear in its own noisy gradient.
    """
    require_parts(parts, release_noise)
    ancestors = exposed(run.parent for run, _, _ in parts if run.parent is not None)
    if both := [run.name for run, _, _ in parts if run in ancestors]:
        problem = f"parts: {both[0]} is averaged with a run that started from it"
        raise InvalidInputError("parts", both[0], "leave out one of the two", problem=problem)
    before = [sight for run, step in ancestors.items() for sight in sights(run, step)]
    last: list[Part] = []
    for run, step, weight in parts:
        require_sgd(run)
        if run.sampling == "shuffled":
            raise InvalidInputError(f"{run.name}.sampling", run.sampling, "full_batch or poisson")
        acting = np.flatnonzero(run.rates[:step])
        if acting.size:
            place = int(acting[-1])
            before += sights(run, place)
            last.append((_one_step(run, place), 1, weight))
    attacks = [_seen(before)] if before else []
    if last:
        attacks.append(merged(last, release_noise, stretches=[1.0] * len(last)))
    return together(attacks or [_seen([])])


def merged(parts: Sequence[Part], release_noise: float, *, stretches: Sequence[npt.ArrayLike]) -> Attack:
    """Sees the average alone; other records stretch each hidden state by given factors: x ← G·x + η·gradient."""
    return merged_output(parts, release_noise, stretches=stretches).attack()


def trained(parts: Sequence[Part], release_noise: float) -> Attack:
    """Sees the average alone; nobody but the record pushes, and the recorded optimizer does the rest."""
    return trained_output(parts, release_noise).attack()


def alone(run: Schedule, step: int) -> Attack:
    """Sees the model of one run alone, of which other records' losses make all steps count alike."""
    return alone_output(run, step).attack()


def merged_output(
    parts: Sequence[Part], release_noise: float, *, stretches: Sequence[npt.ArrayLike]
) -> SimulatedOutput:
    """What `merged` sees. Factors: for each run one number, or one for each step."""
    require_parts(parts, release_noise)
    if len(stretches) != len(parts):
        raise InvalidInputError("stretches", len(stretches), f"{len(parts)}: factors for each run")
    motions = [
        Stretched(_factors(run, step, given), run.rates[:step])
        for (run, step, _), given in zip(parts, stretches, strict=True)
    ]
    return output_of(parts, motions, release_noise)


def trained_output(parts: Sequence[Part], release_noise: float) -> SimulatedOutput:
    """What `trained` sees."""
    require_parts(parts, release_noise)
    return output_of(parts, [recorded_motion(run, step) for run, step, _ in parts], release_noise)


def alone_output(run: Schedule, step: int) -> SimulatedOutput:
    """What `alone` sees: each state is stretched by η_t C_t σ_t² over the same one acting step earlier."""
    require_full_batch(run)
    return merged_output([(run, step, 1.0)], 0.0, stretches=[even([(run, step, 1.0)])])


def together(attacks: Sequence[Attack]) -> Attack:
    """Sees what several see, of which the noise is independent: log-likelihood ratios add up."""
    for attack in attacks:
        _require_undrawn(attack)

    def scores(rng: np.random.Generator, trials: int, present: bool) -> Array:
        return np.asarray(sum(attack.play(rng, trials, present).scores for attack in attacks))

    return Attack(
        play=in_batches(scores),
        gaussian=all(attack.gaussian for attack in attacks),
        draws=sum(attack.draws for attack in attacks),
    )


def selected(attacks: Sequence[Attack], probabilities: Sequence[float]) -> Attack:
    """Sees which candidate was drawn, and what that one shows (random selection, index public)."""
    require_chances(probabilities, len(attacks))
    for attack in attacks:
        _require_undrawn(attack)

    def play(rng: np.random.Generator, trials: int, present: bool) -> Draws:
        index = rng.choice(len(attacks), size=trials, p=np.asarray(probabilities) / math.fsum(probabilities))
        scores = np.empty(trials)
        for place, attack in enumerate(attacks):
            drawn = np.flatnonzero(index == place)
            scores[drawn] = attack.play(rng, len(drawn), present).scores
        return Draws(scores, index.astype(np.intp))

    return Attack(
        play=play,
        gaussian=all(attack.gaussian for attack in attacks),
        probabilities=tuple(probabilities),
        draws=1 + sum(p * attack.draws for p, attack in zip(probabilities, attacks, strict=True)),
    )


def require_full_batch(run: Schedule) -> None:
    if run.sampling != "full_batch":
        raise InvalidInputError(f"{run.name}.sampling", run.sampling, "full_batch")


def _seen(before: Sequence[Sight]) -> Attack:
    def scores(rng: np.random.Generator, trials: int, present: bool) -> Array:
        return sum((sight.log_ratios(rng, trials, present) for sight in before), np.zeros(trials))

    return Attack(
        play=in_batches(scores),
        gaussian=bool(before) and all(sight.is_sure and sight.noise >= BARELY for sight in before),
        draws=sum(sight.draws for sight in before),
    )


def _one_step(run: Schedule, place: int) -> Schedule:
    """A step by itself, its rate the coefficient of its own gradient in its update.

    Of PyTorch's SGD: the buffer takes in 1 − dampening of a gradient (the first whole), and Nesterov's update is the
    gradient itself with momentum · buffer.
    """
    kept = 1.0 if place == 0 or run.momentum == 0 else 1 - run.dampening
    coefficient = 1 + run.momentum * kept if run.nesterov else kept
    only = slice(place, place + 1)
    return replace(
        run,
        rates=coefficient * run.rates[only],
        clip_norms=run.clip_norms[only],
        noise_multipliers=run.noise_multipliers[only],
        sampling_rates=run.sampling_rates[only],
    )


def _factors(run: Schedule, step: int, given: npt.ArrayLike) -> Array:
    factors = np.asarray(given, dtype=float)
    if factors.ndim > 1 or (factors.ndim == 1 and len(factors) not in (step, run.steps)):
        raise InvalidInputError(f"stretches of {run.name}", factors.shape, f"one number, or {step}: one a step")
    if not np.all(np.isfinite(factors)):
        raise InvalidInputError(f"stretches of {run.name}", factors.tolist(), "finite numbers")
    return np.broadcast_to(factors, step) if factors.ndim == 0 else factors[:step]


def require_chances(probabilities: Sequence[float], count: int) -> None:
    total = math.fsum(probabilities)
    if len(probabilities) != count or not all(p > 0 for p in probabilities) or abs(total - 1) > 1e-9:
        raise InvalidInputError("probabilities", list(probabilities), f"{count} numbers > 0 that sum to 1")


def _require_undrawn(attack: Attack) -> None:
    if len(attack.probabilities) != 1:
        raise InvalidInputError("attacks", attack.probabilities, "attacks without a draw of their own")
