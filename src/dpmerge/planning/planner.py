"""From a target to a plan: the one door to planning.

Guarantees: the plan returned meets the target by its own accountant. Plans by the records alone cost nothing to make;
plans by looking at models pay for every model that could have been looked at, unless they are marked as uncharged.
Refuses: targets nothing in the portfolio meets, naming the smallest ε that something does.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from dpmerge.accounting import validation
from dpmerge.accounting.renyi import Conversion
from dpmerge.errors import InvalidInputError, NoGuaranteeError, TargetOutOfReachError
from dpmerge.planning.analysis import Accounting
from dpmerge.planning.asked_accounting import asked_conversion
from dpmerge.planning.candidate_search import CandidateSearch, Method, require_method
from dpmerge.planning.candidates import AskedTheorem
from dpmerge.planning.checkpoint_choice import AskedCheckpoints, asked_checkpoints
from dpmerge.planning.objectives import LeastNoise, Objective, objective_named
from dpmerge.planning.plan import Plan
from dpmerge.planning.preferences import preferred
from dpmerge.planning.private_selection import PrivateValidation, private_selection_plan
from dpmerge.planning.public_selection import PublicEvaluation, public_selection_plan
from dpmerge.planning.unaccounted_selection import unaccounted_plan
from dpmerge.planning.usable_checkpoints import UsableCheckpoints, usable_checkpoints
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.terms.guarantee import Guarantee

ObjectiveName = Literal["noise", "saturate"]

NO_ROOM_TO_LOOK = "No model could be looked at within the target, so none was: chosen by predicted noise alone."


def plan(
    portfolio: Portfolio,
    target: Guarantee | None = None,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    method: Method = "auto",
    objective: Objective | PublicEvaluation | PrivateValidation | ObjectiveName = "noise",
    theorem: AskedTheorem = "auto",
    accounting: Accounting = "pld",
    conversion: Conversion | None = None,
    checkpoints: AskedCheckpoints = "all",
    non_private: Collection[str] = (),
) -> Plan:
    """The best release of a portfolio that meets a target (docs/reference/verbs/plan.md; theory 5).

    Args:
        portfolio: The runs to release from, as `Portfolio.load` returns them.
        target: The (ε, δ) to meet; or give `epsilon` and `delta`.
        epsilon: The ε to meet.
        delta: The δ to meet it at.
        method: `select` one checkpoint at random, `combine` checkpoints into one, `mix` (draw either), or `auto`: mix,
            but of checkpoints from the last part of their runs if the target can be met with them; averages only of
            linear or smooth models, or of networks trained on from one public start; and without a draw, without
            locking runs and with fewer models where that costs at most 2 % of the score.
        objective: By what the best is told: `noise` (least predicted), `saturate` (spend the budget), a `Prior`, a
            `PublicEvaluation` or a `PrivateValidation`. By `auto` a charged `PublicEvaluation` without room to look at
            anything within the target becomes `noise`, and the plan says so.
        theorem: How combinations are accounted for; `auto`: joint release wherever it serves.
        accounting: `pld` (privacy loss distributions, exact) or `rdp` (Rényi divergence).
        conversion: With `rdp`: `improved` (the default) or `classic`, the paper's, which costs more.
        checkpoints: Those that may be used: `all`, `final` (the last one kept of each run), or names, run@step.
        non_private: Runs without privacy that may be drawn, with a probability below δ.

    Returns:
        What to release, what it costs by which theorem, and how it was chosen. Nothing is merged or charged.

    Raises:
        TargetOutOfReachError: Nothing in the portfolio meets the target; it names the smallest ε that something does.
        NoGuaranteeError: No theorem asked for covers these runs.
        InvalidInputError: A bad value, or not exactly one of `target` and `epsilon` with `delta`.

    >>> from dpmerge import Portfolio
    >>> plan(Portfolio.load("examples/mnist"), epsilon=0.12, delta=1e-5)
    Plan(0.2392: average of ladder-1…4@20; 0.7608: average of ladder-1…5@20; ε = 0.12 at δ = 1e-05 by random_selection)
    """
    target = _target(target, epsilon, delta)
    _require(portfolio, target, method, theorem)
    converted = asked_conversion(accounting, conversion)
    usable = asked_checkpoints(usable_checkpoints(portfolio, target.delta, non_private=non_private), checkpoints)
    if converted == "classic" and _looks(objective):
        accepted = "improved where models are looked at: what looking costs is converted like that"
        raise InvalidInputError("conversion", conversion, accepted)
    made = _planned(usable, target, method, objective, theorem, accounting, converted)
    if checkpoints == "all":
        return made
    named = checkpoints if isinstance(checkpoints, str) else ",".join(checkpoints)
    return replace(made, asked={**made.asked, "checkpoints": named})


def _planned(
    usable: UsableCheckpoints,
    target: Guarantee,
    method: Method,
    objective: Objective | PublicEvaluation | PrivateValidation | ObjectiveName,
    theorem: AskedTheorem,
    accounting: Accounting,
    conversion: Conversion,
) -> Plan:
    """The best plan by whatever tells what is best."""
    if isinstance(objective, PrivateValidation):
        return private_selection_plan(usable, target, objective, method, theorem, accounting)
    remarks: tuple[str, ...] = ()
    if isinstance(objective, PublicEvaluation) and objective.tuning == "charged":
        try:
            return public_selection_plan(usable, target, objective, method, theorem, accounting)
        except TargetOutOfReachError:
            if method != "auto" or objective.look is not None:
                raise
            objective, remarks = "noise", (NO_ROOM_TO_LOOK,)
    if method == "auto" and theorem in ("auto", "joint_release"):
        usable = usable.averaged_with_reason()
    rule = LeastNoise() if isinstance(objective, PublicEvaluation) else objective_named(objective)
    search = CandidateSearch.of(
        usable, target, rule, theorem, accounting, combining=method != "select", conversion=conversion
    )
    if isinstance(objective, PublicEvaluation):
        return unaccounted_plan(search, objective, method)
    return replace(_best(search, method), remarks=remarks)


@dataclass(frozen=True, kw_only=True)
class ReleaseAlternatives:
    """The best release that others may follow, or why there is none; and the best that must be its runs' last."""

    joint: Plan | TargetOutOfReachError
    final: Plan | None


def release_alternatives(
    portfolio: Portfolio, target: Guarantee, *, method: Method = "auto", objective: ObjectiveName = "noise"
) -> ReleaseAlternatives:
    """Both kinds of release by one search, so that whoever releases can say what a final one would gain.

    Args:
        portfolio: The runs to release from.
        target: The (ε, δ) to meet.
        method: As for `plan`, of the release that others may follow; the final one is by `auto`.
        objective: `noise` or `saturate`.

    Returns:
        What `plan` returns for theorem `joint_release` (or the refusal), and for `auto` (or None).

    Raises:
        NoGuaranteeError, InvalidInputError: As `plan`, but for a target that joint release alone cannot meet.

    >>> from dpmerge import Portfolio
    >>> found = release_alternatives(Portfolio.load("examples/probe"), Guarantee(epsilon=0.6, delta=1e-5))
    >>> found.joint.theorem, found.final.theorem
    ('joint_release', 'hidden_state')
    """
    _require(portfolio, target, method, "auto")
    usable = usable_checkpoints(portfolio, target.delta)
    rule = objective_named(objective)
    by_auto = CandidateSearch.of(usable.averaged_with_reason(), target, rule, "auto", "pld")
    search = by_auto if method == "auto" else CandidateSearch.of(usable, target, rule, "auto", "pld")
    joint: Plan | TargetOutOfReachError
    try:
        joint = _best(search if method == "select" else search.by_joint_release(), method)
    except TargetOutOfReachError as error:
        joint = error
    try:
        final = preferred(by_auto)
    except NoGuaranteeError:
        final = None
    return ReleaseAlternatives(joint=joint, final=final)


def _best(search: CandidateSearch, method: Method) -> Plan:
    return preferred(search) if method == "auto" else search.plan(method)


def _target(target: Guarantee | None, epsilon: float | None, delta: float | None) -> Guarantee:
    """Exactly one of both ways of saying it."""
    if target is not None:
        validation.instance("target", target, Guarantee, "a Guarantee(epsilon=…, delta=…), or epsilon=… and delta=…")
        if epsilon is not None or delta is not None:
            raise InvalidInputError("target", target, "either a Guarantee, or epsilon and delta, not both")
        return target
    if epsilon is None or delta is None:
        missing = " and ".join(name for name, value in (("epsilon", epsilon), ("delta", delta)) if value is None)
        raise InvalidInputError("target", None, "epsilon=… and delta=…, or a Guarantee", found=f"no {missing}")
    return Guarantee(epsilon=epsilon, delta=delta)


def _looks(objective: object) -> bool:
    charged = isinstance(objective, PublicEvaluation) and objective.tuning == "charged"
    return charged or isinstance(objective, PrivateValidation)


def _require(portfolio: Portfolio, target: Guarantee, method: str, theorem: str) -> None:
    validation.instance("portfolio", portfolio, Portfolio, "a Portfolio, as Portfolio.load returns it")
    target.require_target()
    require_method(method, theorem)
