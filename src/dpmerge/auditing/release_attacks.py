"""A planned release attacked: each candidate by what its theorem calls hidden, or in spite of it where it is unproved.

Guarantees: the attack is made from the terms as a document, the records of the runs, weights and probabilities; what
is certified is asked of the terms alone, and only to be put beside the result.
Refuses: terms of which something cannot be simulated, audits of more than 2·10¹⁰ random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial

import numpy as np
from scipy.optimize import brentq

from dpmerge.accounting.rounding import down
from dpmerge.auditing.attacks import Attack
from dpmerge.auditing.confirmation import confirmed
from dpmerge.auditing.estimate import estimate_epsilon
from dpmerge.auditing.findings import Claim, Estimate, Estimator, Finding
from dpmerge.auditing.gaussian_estimator import gaussian_epsilon
from dpmerge.auditing.gradients import exposed
from dpmerge.auditing.outputs import Part
from dpmerge.auditing.power import selection_trials_needed, trials_needed
from dpmerge.auditing.printed_figures import above, below
from dpmerge.auditing.records import schedules_of
from dpmerge.auditing.schedules import Schedule
from dpmerge.auditing.threat_models import (
    everything,
    merged,
    require_full_batch,
    revealed,
    selected,
    together,
    trained,
    trained_output,
)
from dpmerge.auditing.trials import Elsewhere
from dpmerge.auditing.worst_case_lipschitz import even, worst
from dpmerge.certificate.audited import Audited
from dpmerge.errors import InvalidInputError, NoGuaranteeError
from dpmerge.terms.candidate_terms import CandidateTerms
from dpmerge.terms.release_terms import ReleaseTerms

TRIALS = 100_000
MOST_DRAWS = 2 * 10**10
"""Random numbers in each world of one audit: a quarter of an hour on one core."""


def audit_release(
    terms: ReleaseTerms,
    *,
    delta: float,
    trials: int,
    confidence: float,
    seed: int,
    stated: float | None = None,
    executor: Executor | None = None,
) -> Finding:
    """What is certified of a release at δ, beside what attacking it has shown.

    `stated` is the ε that a certificate states; by default what follows from the terms. Trials are simulated where the
    `executor` says, or here.
    """
    attack = release_attack(terms)
    if trials * attack.draws > MOST_DRAWS:
        most = int(MOST_DRAWS // attack.draws)
        accepted = f"at most {most}: a trial of this release takes {attack.draws:.0f} random numbers"
        raise InvalidInputError("trials", trials, accepted)
    theorem = terms.candidates[0].theorem if len(terms.candidates) == 1 else "random_selection"
    computed = terms.epsilon(delta)
    follows = stated is None or math.isclose(stated, computed, rel_tol=1e-5)
    claim = Claim(
        by=theorem if terms.charged else f"{theorem}, not counting how it was chosen",
        value=computed if stated is None else stated,
        proved=terms.proved and terms.charged and (follows or computed <= (stated or 0.0)),
        mu=terms.mu if follows else None,
        deltas=terms.delta if follows else None,
    )

    elsewhere = None if executor is None else Elsewhere(executor=executor, attack=partial(release_attack, terms))

    def attacked(own: int) -> Estimate:
        return estimate_epsilon(
            attack, delta=delta, trials=trials, confidence=confidence, seed=own, elsewhere=elsewhere
        )

    return Finding(
        subject=" or ".join(str(candidate.recipe) for candidate in terms.candidates),
        claim=claim,
        estimate=confirmed(attacked, [claim], seed),
    )


def audited(
    terms: ReleaseTerms, *, delta: float, trials: int = TRIALS, confidence: float = 0.95, seed: int = 0
) -> Audited:
    """The result of an audit for the certificate of a release with these terms; refused if the attack shows more."""
    finding = audit_release(terms, delta=delta, trials=trials, confidence=confidence, seed=seed)
    shown = finding.estimate
    if finding.verdict == "violated":
        raise NoGuaranteeError(
            f"an attack on the simulated release shows ε ≥ {below(shown.bound)} at δ = {delta:g}, and "
            f"{above(finding.claim.value)} is claimed by {finding.claim.by}; nothing was charged or written"
        )
    return Audited(
        lower_bound=down(shown.bound),
        estimator="gaussian" if shown.estimator == "gaussian" else "counting",
        trials=shown.trials,
        confidence=confidence,
        seed=seed,
    )


def release_trials(terms: ReleaseTerms, *, delta: float, confidence: float, power: float) -> int:
    """How many trials show 90 % of what is certified with this probability, if it is exact.

    For what is not Gaussian it is as many as for a Gaussian release of the same ε at δ.
    """
    attack = release_attack(terms)
    mus = [bound.mu for bound in terms.bounds]
    if attack.gaussian and len(mus) > 1 and None not in mus and terms.accounting == "pld":
        each = [mu for mu in mus if mu is not None]
        return selection_trials_needed(
            mus=each, probabilities=terms.probabilities, delta=delta, confidence=confidence, power=power
        )
    epsilon = terms.epsilon(delta)
    if not 0 < epsilon < math.inf:
        problem = f"power: the release has ε = {epsilon:g} at δ = {delta:g}, of which no share can be shown"
        raise InvalidInputError("power", power, "give the number of trials instead", problem=problem)
    most = 1.0
    while gaussian_epsilon(most, delta) < epsilon:
        most *= 2
    mu = float(brentq(lambda m: gaussian_epsilon(m, delta) - epsilon, 0.0, most, xtol=1e-12 * most))
    estimator: Estimator = "gaussian" if attack.gaussian else "counting"
    return trials_needed(mu=mu, delta=delta, confidence=confidence, power=power, estimator=estimator)


def work(terms: ReleaseTerms) -> float:
    """How many random numbers one trial takes; a core draws some 5·10⁷ a second."""
    return release_attack(terms).draws


def release_attack(terms: ReleaseTerms) -> Attack:
    """Somebody who sees what is released, and which candidate it is; noise and data as bad as the theorem allows."""
    runs = schedules_of(terms.statements, terms.adjacency)
    attacks = [_candidate_attack(terms, candidate, runs) for candidate in terms.candidates]
    return attacks[0] if len(attacks) == 1 else selected(attacks, terms.probabilities)


def _candidate_attack(terms: ReleaseTerms, candidate: CandidateTerms, runs: Mapping[str, Schedule]) -> Attack:
    if candidate.theorem == "joint_release":
        return everything([(runs[seen.run], seen.step) for seen in candidate.seen])
    parts = [(runs[part.run], part.step, part.weight) for part in candidate.parts]
    noise = candidate.release_noise
    if candidate.theorem == "last_step":
        return revealed(parts, noise)
    if candidate.theorem == "hidden_state":
        return _stretched(parts, noise)
    if is_one_step(parts) or all(run.aggregate for run, _, _ in parts):
        return _with_ancestors(parts, trained(parts, noise))
    if _share_a_map(terms, candidate, parts):
        return _with_ancestors(parts, merged(parts, noise, stretches=[even(parts)] * len(parts)))
    if all(run.stretches is not None and run.parent is None for run, _, _ in parts):
        for run, _, _ in parts:
            require_full_batch(run)
        # hidden_state asks no more than that no factor is above the stated one; here the loss has the slopes it has.
        factors = [run.stretches for run, _, _ in parts if run.stretches is not None]
        return merged(parts, noise, stretches=factors)
    for run, _, _ in parts:
        require_full_batch(run)
    return _told(parts, noise)


def _stretched(parts: Sequence[Part], noise: float) -> Attack:
    """By any factors up to the stated ones: the theorem is about every update that is so Lipschitz."""
    for run, _, _ in parts:
        require_full_batch(run)
    return merged(parts, noise, stretches=worst(parts, noise))


def _told(parts: Sequence[Part], noise: float) -> Attack:
    """Other records tell what the hidden models were, of the runs whose examples are clipped one by one.

    Nothing that is recorded keeps them from it. Of a run whose total is clipped they can tell nothing: there the record
    does nothing either, and its noise hides what the others' last steps show.
    """
    told = [_acting(part) for part in parts if not part[0].aggregate]
    hidden = [trained_output([part], 0.0).variance for part in parts if part[0].aggregate]
    return revealed(told, math.sqrt(math.fsum([noise**2, *hidden])))


def _acting(part: Part) -> Part:
    """Without the steps of rate zero: their gradients are in no model. (Momentum would carry them on.)"""
    run, step, weight = part
    acting = np.flatnonzero(run.rates[:step])
    if run.momentum > 0 or len(acting) in (0, step):
        return part
    kept = replace(
        run,
        rates=run.rates[acting],
        clip_norms=run.clip_norms[acting],
        noise_multipliers=run.noise_multipliers[acting],
        sampling_rates=run.sampling_rates[acting],
        stretches=None,
    )
    return kept, len(acting), weight


def is_one_step(parts: Sequence[Part]) -> bool:
    """Whether no run acts more than once: then nothing is hidden that others could tell."""
    return all(
        step <= 1 or (run.momentum == 0 and int(np.count_nonzero(run.rates[:step])) <= 1) for run, step, _ in parts
    )


def _share_a_map(terms: ReleaseTerms, candidate: CandidateTerms, parts: Sequence[Part]) -> bool:
    """Whether somebody vouches that all runs move by one affine map, and nothing recorded contradicts it.

    Its linear part may be any: the one is taken under which all steps count alike.
    """
    facts = [terms.statements[part.run].mechanism for part in candidate.parts]
    maps = {each.affine_map.id if each.kind == "dp_sgd" and each.affine_map else None for each in facts}
    if len(maps) != 1 or None in maps or len({step for _, step, _ in parts}) != 1:
        return False
    shrunk = np.array([run.rates[:step] * run.divisor * run.weight_decay for run, step, _ in parts])
    plain = all(run.sampling == "full_batch" and run.optimizer == "sgd" and run.momentum == 0 for run, _, _ in parts)
    return plain and bool(np.allclose(shrunk, shrunk[0], rtol=1e-12, atol=0))


def _with_ancestors(parts: Sequence[Part], attack: Attack) -> Attack:
    """The certificate covers what the runs started from as if it were published; so it is seen."""
    ancestors = exposed(run.parent for run, _, _ in parts if run.parent is not None)
    return together([everything(list(ancestors.items())), attack]) if ancestors else attack
