"""From what is asked for to what can be charged: all that is decided before a release, for Python and the commands.

Guarantees: the plan meets the target as it will be certified (rounded up to six digits); theorems that hold only for
the last release of its runs are used for a final one alone; what the ledger has locked, or a ceiling does not allow, is
planned around. Asked again with the same key, in the same words, it is the release that was charged, not one planned
anew (a plan made now could be another: it depends on what the ledger leaves); a final release that waits for approval
likewise, with or without a key.
Refuses: contradicting ways of saying what to release, targets nothing meets.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Literal

from dpmerge.accounting import validation
from dpmerge.accounting.rounding import down
from dpmerge.errors import InvalidInputError, TargetOutOfReachError
from dpmerge.files import file_digest
from dpmerge.ledger.charge import Charge
from dpmerge.ledger.entries import BudgetScope, Entry
from dpmerge.ledger.ledger import Ledger
from dpmerge.planning.plan import Plan
from dpmerge.planning.planner import plan as searched
from dpmerge.planning.planner import release_alternatives
from dpmerge.planning.stated_weights import stated_weights
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.shared_seeds import in_a_group
from dpmerge.releasing.available_runs import available
from dpmerge.releasing.ledger_location import default_ledger, is_missing
from dpmerge.releasing.settings import ReleaseSettings
from dpmerge.remote.remote_path import location
from dpmerge.terms.guarantee import Guarantee

LONGEST_WORDS = 500
"""Characters of what was asked for that are written down with a charge."""

WORTH_A_HINT = 0.9
"""The share of the noise that a final release must leave for it to be mentioned."""

Objective = Literal["noise", "saturate"]


def prepare(
    portfolio: Portfolio,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    plan: str | Path | None = None,
    weights: Mapping[str, float] | None = None,
    method: str | None = None,
    objective: str | None = None,
    theorem: str | None = None,
    final: bool = False,
    ledger: str | Path | None = None,
    request_key: str | None = None,
    insecure_permissions: bool = False,
    note: Callable[[str], object] | None = None,
) -> Plan:
    """The plan of the release that is asked for, ready for `dpm.release`.

    Args:
        portfolio: what to release from.
        epsilon: the ε to meet.
        delta: the δ to meet it at.
        plan: the file of a plan (`dpmerge plan -o FILE`), priced again; instead of everything above and below.
        weights: run@step → weight, of one linear combination; they must not come from looking at the models.
        method: as for `dpm.plan`; by default `auto`.
        objective: `noise` or `saturate`.
        theorem: by default `joint_release`, and `auto` for a final release.
        final: nothing else of these runs will ever be released.
        ledger: a file or a database's URL; by default a file beside the portfolio.
        request_key: a name for this request; what was charged for it before, in the same words, is returned.
        insecure_permissions: go on although everybody may write the ledger.
        note: told, in a sentence each, what was planned around, what a final release would gain, and the plan's notes.

    Returns:
        The plan. Its `request` says in which words it was asked for.

    Raises:
        InvalidInputError: what is asked for contradicts itself, or is not of this portfolio.
        TargetOutOfReachError: nothing meets the target.
        RunsLockedError: everything is locked, or beyond the ceiling.

    >>> plan = prepare(Portfolio.load("examples/mnist"), epsilon=0.8, delta=1e-5, weights={"c2-s64@20": 1.0})
    >>> plan.theorem, plan.request
    ('joint_release', {'epsilon': '0.8', 'delta': '1e-05', 'weights': 'c2-s64@20=1.0'})
    """
    validation.instance("portfolio", portfolio, Portfolio, "a Portfolio, as Portfolio.load returns it")
    if plan is not None:
        others = {"epsilon": epsilon, "delta": delta, "weights": weights, "theorem": theorem}
        _refuse_beside("plan", {**others, "method": method, "objective": objective})
    words = _words(
        epsilon=epsilon,
        delta=delta,
        plan=None if plan is None else file_digest(location(plan, "plan")),
        weights=None if weights is None else ",".join(f"{name}={weight!r}" for name, weight in weights.items()),
        method=method,
        objective=objective,
        theorem=theorem,
        final=final or None,
    )
    where = default_ledger(portfolio) if ledger is None else ledger
    known = charged_before(portfolio, where, request_key, words, insecure_permissions)
    if known is None and final:
        known = requested_before(portfolio, where, words, insecure_permissions)
    if known is not None:
        return known
    if plan is not None:
        return replace(Plan.load(plan, portfolio), request=words)
    target, priced_by = _target(epsilon, delta), _theorem(theorem, final)
    say = note or (lambda _: None)
    if weights is not None:
        _refuse_beside("weights", {"method": method, "objective": objective})
        stated = stated_weights(portfolio, weights, target, theorem=priced_by)  # type: ignore[arg-type]
        if not final:
            stated.terms.as_joint_release()  # refused for runs that share a noise seed
        return _noted(replace(stated, request=words), say)
    if objective not in (None, "noise", "saturate"):
        accepted = "noise or saturate; plan with the others (`dpmerge plan … -o FILE`) and give plan=FILE (--plan)"
        raise InvalidInputError("objective", objective, accepted)
    rule: Objective = "saturate" if objective == "saturate" else "noise"
    left = available(portfolio, where, final=final, delta=target.delta, insecure_permissions=insecure_permissions)
    _note_left_out(portfolio, left, final, say)
    how = method or "auto"
    if final or theorem is not None:
        priced = "auto" if method == "select" else priced_by
        wanted = searched(left, target, method=how, objective=rule, theorem=priced)  # type: ignore[arg-type]
        return _noted(replace(wanted, request=words), say)
    found = release_alternatives(left, target, method=how, objective=rule)  # type: ignore[arg-type]
    if isinstance(found.joint, TargetOutOfReachError):
        raise found.joint if found.final is None else _met_by_a_final_one(found.joint)
    if how == "auto" and found.final is not None:
        _note_final(found.joint, found.final, say)
    return _noted(replace(found.joint, request=words), say)


def _noted(plan: Plan, say: Callable[[str], object]) -> Plan:
    """The plan, after what it has to say besides its cost."""
    for text in plan.notes:
        say(text)
    return plan


def charged_before(
    portfolio: Portfolio,
    where: str | Path,
    request_key: str | None,
    words: Mapping[str, str],
    insecure_permissions: bool = False,
) -> Plan | None:
    """What was charged for this key, if it was asked for in the same words."""
    if request_key is None or is_missing(where):
        return None
    with Ledger.open(where, insecure_permissions=insecure_permissions) as ledger:
        known = ledger.by_key(BudgetScope(portfolio.dataset, portfolio.unit, portfolio.adjacency.value), request_key)
    if known is None:
        return None
    settings = ReleaseSettings.read(known.details)
    if settings.asked != dict(words):
        return None
    return Plan.of_terms(portfolio, known.terms, settings.guarantee, request=words)


def requested_before(
    portfolio: Portfolio, where: str | Path, words: Mapping[str, str], insecure_permissions: bool = False
) -> Plan | None:
    """What was asked for in the same words, and waits for approval or to be made: planned anew it might be another."""
    if is_missing(where):
        return None
    with Ledger.open(where, insecure_permissions=insecure_permissions) as ledger:
        waiting = ledger.requests()
    scope = BudgetScope(portfolio.dataset, portfolio.unit, portfolio.adjacency.value)
    for each in sorted(waiting, key=lambda request: (request.missing, request.seq)):
        if each.kind == "release" and each.scope == scope.document():
            charge = Charge(entry=Entry.draft("release", scope, each.content))
            settings = ReleaseSettings.read(charge.details)
            if settings.asked == dict(words):
                return Plan.of_terms(portfolio, charge.terms, settings.guarantee, request=words)
    return None


def _words(**options: object) -> dict[str, str]:
    """What was asked for, in words: asked again with the same key, it is the same release, however it was planned."""
    words = {name: str(value) for name, value in options.items() if value is not None}
    # Written down as one line of text; what is longer, or none, is known by its digest.
    return {name: text if _fits(text) else sha256(os.fsencode(text)).hexdigest() for name, text in words.items()}


def _fits(text: str) -> bool:
    return len(text) <= LONGEST_WORDS and text.isprintable()


def _target(epsilon: float | None, delta: float | None) -> Guarantee:
    if epsilon is None or delta is None:
        missing = " and ".join(n for n, v in (("epsilon", epsilon), ("delta", delta)) if v is None)
        raise InvalidInputError("target", None, "epsilon and delta, or plan=FILE (--plan)", found=f"no {missing}")
    Guarantee(epsilon=epsilon, delta=delta).require_target()
    # What is certified is rounded up to six digits: aimed for is what that leaves within the target.
    return Guarantee(epsilon=down(epsilon), delta=delta)


def _theorem(theorem: str | None, final: bool) -> str:
    if final:
        return theorem or "auto"
    if theorem not in (None, "auto", "joint_release"):
        accepted = "auto or joint_release: others hold only for the last release of these runs, final=True (--final)"
        raise InvalidInputError("theorem", theorem, accepted)
    return "joint_release"


def _met_by_a_final_one(error: TargetOutOfReachError) -> TargetOutOfReachError:
    """The same refusal, with the way out."""
    hint = "a final release, final=True (--final), which locks its runs, meets it"
    return TargetOutOfReachError(error.epsilon, error.delta, error.smallest, error.candidate, hint)


def _note_left_out(whole: Portfolio, left: Portfolio, final: bool, say: Callable[[str], object]) -> None:
    """Say which runs are planned around, and why."""
    kept = {run.id: len(run.checkpoints) for run in left.runs}
    gone = [run for run in whole.runs if kept.get(run.id, 0) < len(run.checkpoints)]
    grouped = [] if final else [run for run in gone if in_a_group(run)]
    if grouped:
        say(
            f"planned without {', '.join(run.id for run in grouped)} (of runs that share a noise seed one is all that "
            "may be released, in a final release, final=True (--final))"
        )
    if others := [run.id for run in gone if run not in grouped]:
        why = "released from before, locked, or beyond the ceiling" if final else "locked, or beyond the ceiling"
        say(f"planned without {', '.join(others)} ({why}; `dpmerge ledger show` says which)")


def _note_final(wanted: Plan, best: Plan, say: Callable[[str], object]) -> None:
    """Say what a final release would gain, while nothing is charged: runs that were seen cannot have one any more."""
    ours, theirs = wanted.noise_to_signal, best.noise_to_signal
    if best.is_final and ours and theirs is not None and theirs < WORTH_A_HINT * ours:
        say(
            f"as the last release of its runs, final=True (--final), this would carry {1 - theirs / ours:.0%} less "
            "noise; a run that was released from before cannot be in one"
        )


def _refuse_beside(option: str, others: Mapping[str, object]) -> None:
    for name, value in others.items():
        if value is not None:
            raise InvalidInputError(name, value, f"nothing beside {option}, which says it already")
