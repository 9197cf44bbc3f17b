"""Do these runs train the same tensors? What theorems sharper than joint release need of an average.

Such a theorem lets the noise of one run hide the step of another. A tensor that one run trained and another kept frozen
has the noise of the first alone, however much the other's has: there nothing is hidden (theory 4). Joint
release and random selection cover it: they count each run with its own noise.

Guarantees: runs whose records say that they trained different tensors are told.
Cannot see: what a run trained whose record does not say.
"""

from __future__ import annotations

from collections.abc import Sequence

from dpmerge.accounting.combination import Bound
from dpmerge.accounting.premises import Premise
from dpmerge.errors import NotCombinableError
from dpmerge.portfolio.recorded_runs import Run
from dpmerge.terms.theorems import Theorem


def differently_trained(runs: Sequence[Run]) -> NotCombinableError | None:
    """Why no theorem sharper than joint release is about these runs; None if they trained the same tensors."""
    known = [(run, set(run.manifest.tensors.trained)) for run in runs if run.manifest.tensors is not None]
    for run, trained in known[1:]:
        first, others = known[0]
        if difference := sorted(trained ^ others):
            does, lacks = (run, first) if difference[0] in trained else (first, run)
            problem = (
                f"tensors.trained: {does.id} trained {difference[0]} and {lacks.id} did not, so that the noise of one "
                "does not hide the step of the other there"
            )
            remedy = "use joint_release, or average runs that trained the same tensors"
            return NotCombinableError(run.file, "tensors.trained", difference[0], remedy, problem=problem)
    return None


def of_the_same_tensors(bound: Bound, runs: Sequence[Run]) -> Bound:
    """What a theorem says of an average of these runs: no figure where it would need them to have trained alike."""
    if not Theorem(bound.theorem).is_final or (reason := differently_trained(runs)) is None:
        return bound
    failing = Premise("same_tensors_trained", False, f"nobody: {reason.problem}")
    return Bound(bound.theorem, None, (*bound.premises, failing))
