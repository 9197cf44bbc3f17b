"""Which runs of a portfolio share a noise seed.

Guarantees: runs with one seed, as torch sees it, are one group, whatever they are called; whoever averages or prices
two of a group, or two that descend from them, is refused, here and in the mathematics.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dpmerge.accounting.exposure import Mechanism, one_seed, shared_noise
from dpmerge.errors import NotCombinableError
from dpmerge.portfolio.manifest import Manifest
from dpmerge.portfolio.recorded_runs import Run
from dpmerge.terms.noise_groups import ONE_OF_THEM

TORCH_SEEDS = 2**32
"""torch uses 32 bits of a seed: two that differ by 2³² give the same noise."""


def noise_groups(manifests: Iterable[Manifest]) -> dict[str, str]:
    """Run → its group, of runs that share their seed with another."""
    members: dict[int, list[str]] = {}
    for manifest in manifests:
        if manifest.noise.seed is not None:
            members.setdefault(manifest.noise.seed % TORCH_SEEDS, []).append(manifest.run)
    return {run: f"seed of {runs[0]}" for runs in members.values() if len(runs) > 1 for run in runs}


def in_a_group(run: Run) -> bool:
    """Whether a run, or one that it descends from, shares its seed with another."""
    return any(each.noise_group is not None for each in _line(run))


def shared_seed(runs: Sequence[Run]) -> NotCombinableError | None:
    """Why these runs must not be averaged, if two of them or of their ancestors share a noise seed."""
    pair = shared_noise(dict.fromkeys(each for run in runs for each in _line(run)))
    if pair is None:
        return None
    last = next(run for run in reversed(runs) if in_a_group(run))
    problem = f"noise.seed: {one_seed(*pair)}"
    return NotCombinableError(last.file, "noise.seed", None, ONE_OF_THEM, problem=problem)


def _line(run: Run) -> list[Mechanism]:
    return [run.mechanism, *(checkpoint.run for checkpoint in run.at(run.mechanism.steps).ancestors)]
