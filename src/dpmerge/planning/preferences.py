"""What the method `auto` means: the best mix of trained models, or a simpler plan that is nearly as good.

Guarantees: the plan meets the target like any other; it is at most SIMPLICITY of the score worse than the best mix of
the checkpoints it may use, and says what the checkpoints it passed over would have made possible.
Refuses: targets nothing in the portfolio meets.
"""

from __future__ import annotations

from dataclasses import replace

from dpmerge.planning.candidate_arrays import CandidateBatch
from dpmerge.planning.candidate_search import SIMPLICITY, CandidateSearch, Method
from dpmerge.planning.objectives import LeastNoise
from dpmerge.planning.plan import Plan
from dpmerge.planning.selection_program import Mixture
from dpmerge.planning.single_checkpoint import FINISHED

LESS_NOISE = 3.0
"""How many times less noise makes up for checkpoints of linear and smooth models that are not finished."""


def preferred(search: CandidateSearch) -> Plan:
    """The plan of `auto`, among trained checkpoints where that is possible."""
    everything = search.allowed("auto")
    best = search.mixture(everything, drawn=True, biased=True)
    if best is None:
        raise search.out_of_reach("auto", everything)
    if (trained := _among_trained(search, best)) is not None:
        passed_over = search.mixture(everything, drawn=True, biased=False)
        return replace(preferred(trained), passed_over=None if passed_over is None else -passed_over.score)
    method, batches = _simplest(search, everything, best)
    return search.certified(method, batches, asked="auto")


def _among_trained(search: CandidateSearch, best: Mixture) -> CandidateSearch | None:
    """The search among trained checkpoints alone; None where it is the same, meets no target or is too noisy.

    Only noise is predicted, and a checkpoint from the middle of its run may be far from where it was going: such ones
    are used where nothing else meets the target, or with LESS_NOISE where noise is all that matters.
    """
    if not isinstance(search.objective, LeastNoise):
        return None
    finished = search.usable.trained_to(FINISHED)
    among = None if finished is None else search.restricted(finished)
    if among is None:
        return None
    found = among.mixture(among.allowed("auto"), drawn=True, biased=True)
    if found is None or (search.usable.noise_decides and abs(found.score) > LESS_NOISE * abs(best.score)):
        return None
    return among


def _simplest(
    search: CandidateSearch, everything: tuple[CandidateBatch, ...], best: Mixture
) -> tuple[Method, tuple[CandidateBatch, ...]]:
    """The first way, from the simplest on, that comes near the best mix: without a draw, without locking runs."""
    unlocked = search.without_locks(everything)
    ways: tuple[tuple[Method, tuple[CandidateBatch, ...]], ...] = (
        ("combine", unlocked),
        ("mix", unlocked),
        ("combine", everything),
    )
    for method, batches in ways:
        found = search.mixture(batches, drawn=method == "mix", biased=True)
        if found is not None and best.score - found.score <= SIMPLICITY * abs(best.score):
            return method, batches
    return "mix", everything
