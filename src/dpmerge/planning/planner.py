"""From a target to a plan: the one door to planning.

Guarantees: the plan returned meets the target by its own accountant. Plans by the records alone cost nothing to make;
plans by looking at models pay for every model that could have been looked at, unless they are marked as uncharged.
Refuses: targets nothing in the portfolio meets, naming the smallest ε that something does.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, get_args

from dpmerge.errors import InvalidInput
from dpmerge.planning.analysis import Accounting
from dpmerge.planning.candidates import Theorem
from dpmerge.planning.desk import Desk, Method, require_method
from dpmerge.planning.looking import PublicEvaluation, looked_plan
from dpmerge.planning.objectives import LeastNoise, Objective, objective_named
from dpmerge.planning.plan import Plan
from dpmerge.planning.rungs import rungs
from dpmerge.planning.target import Guarantee
from dpmerge.planning.uncharged import uncharged_plan
from dpmerge.planning.validation import PrivateValidation, validated_plan
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.privacy import domain

ObjectiveName = Literal["noise", "saturate"]


def plan(
    portfolio: Portfolio,
    target: Guarantee,
    *,
    method: Method = "auto",
    objective: Objective | PublicEvaluation | PrivateValidation | ObjectiveName = "noise",
    theorem: Theorem = "auto",
    accounting: Accounting = "pld",
    non_private: Collection[str] = (),
) -> Plan:
    """The best release of a portfolio that meets a target.

    `method`: `select` one checkpoint at random, `combine` checkpoints into one, `mix` (random selection among
    checkpoints and combinations), or `auto` (mix, but of checkpoints from the last part of their runs if the target
    can be met with them, and without a draw, without locking runs and with fewer models where that costs at most 2 %
    of the score). `objective`: by what the best is told, see
    `objectives`, `looking` and `validation`. `theorem` restricts how combinations are accounted for, `accounting` is
    by privacy loss distributions or Rényi divergence. `non_private` names runs without privacy that may be drawn
    (with a probability below δ).
    """
    domain.instance("portfolio", portfolio, Portfolio, "a Portfolio, as Portfolio.load returns it")
    domain.instance("target", target, Guarantee, "a Guarantee(epsilon=…, delta=…)")
    target.require_target()
    require_method(method, theorem)
    if accounting not in get_args(Accounting):
        raise InvalidInput("accounting", accounting, ", ".join(get_args(Accounting)))
    usable = rungs(portfolio, target.delta, non_private=non_private)
    if isinstance(objective, PublicEvaluation) and objective.tuning == "charged":
        return looked_plan(usable, target, objective, method, theorem, accounting)
    if isinstance(objective, PrivateValidation):
        return validated_plan(usable, target, objective, method, theorem, accounting)
    if isinstance(objective, PublicEvaluation):
        desk = Desk.of(usable, target, LeastNoise(), theorem, accounting, combining=method != "select")
        return uncharged_plan(desk, objective, method)
    desk = Desk.of(usable, target, objective_named(objective), theorem, accounting, combining=method != "select")
    return desk.preferred() if method == "auto" else desk.plan(method)
