"""Accounting of very many merges, against dp_accounting doing the same one at a time."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as dp_pld
from rich.console import Console
from rich.table import Table

from dpmerge import accounting as dp
from dpmerge.accounting.loss_distribution import LossDistributionProfile, epsilon_curve
from dpmerge.accounting.step_mechanisms import PoissonStep

CANDIDATES = 1_000_000
PEER_CANDIDATES = 2
TARGET_EPSILON, DELTA = 0.8, 1e-5
STEPS = 20
CHECKPOINTS = range(100, 5001, 100)


def run(console: Console) -> dict[str, float]:
    """Print what was measured; return how many times faster than the peer each of them is."""
    ratios: dict[str, float] = {}
    console.print(f"\n[bold]accounting[/]: three runs of {STEPS} heterogeneous steps, {CANDIDATES:,} weight vectors")
    console.print(_merges(ratios))
    console.print("peer: dp_accounting, the same for one candidate (20 convolutions for LC, two mixtures for RS)")
    console.print(_little_noise(ratios))
    console.print("\n[bold]prefix curve[/]: ε at 50 checkpoints of σ = 1, q = 0.01, 5000 steps")
    console.print(_prefixes(ratios))
    return ratios


def _runs(noise_multipliers: tuple[float, ...] = (32.0, 48.0, 64.0)) -> list[dp.DpSgd]:
    """Rates, clip norms and noise all change from step to step, so that nothing can be grouped."""
    rng = np.random.default_rng(0)
    runs = []
    for noise in noise_multipliers:
        blocks = tuple(
            dp.StepBlock(
                steps=1,
                noise_multiplier=noise * rng.uniform(0.8, 1.2),
                clip_norm=rng.uniform(1, 4),
                learning_rate=rng.uniform(0.2, 4),
            )
            for _ in range(STEPS)
        )
        lipschitz = dp.DeclaredLipschitz(factors=1.0)
        runs.append(dp.DpSgd(blocks=blocks, adjacency=dp.Adjacency.REPLACE_ONE, smoothness=lipschitz))
    return runs


def timed(action: Callable[[], object], repeats: int = 3) -> float:
    """The best of a few runs, in seconds."""
    best = np.inf
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - start)
    return best


def _merges(ratios: dict[str, float]) -> Table:
    runs = _runs()
    checkpoints = [dp.Checkpoint(run, run.steps) for run in runs]
    members = [run.profile() for run in runs]
    rows = np.random.default_rng(1).dirichlet([1, 1, 1], CANDIDATES)
    curves = np.array([member.renyi_divergence(dp.DEFAULT_ORDERS) for member in members])
    limit = dp.largest_mu(TARGET_EPSILON, DELTA)
    combination_peer = _peer_combination(runs, rows[:PEER_CANDIDATES])
    selection_peer = _peer_selection(runs, rows[:PEER_CANDIDATES])

    ours: list[tuple[str, Callable[[], object], float]] = [
        (
            "LC feasible, merged_traj.",
            lambda: dp.merged_trajectory_mus(checkpoints, rows) <= limit,
            combination_peer,
        ),
        (
            "LC ε map, merged_traj.",
            lambda: dp.gaussian_epsilon(dp.merged_trajectory_mus(checkpoints, rows), DELTA),
            combination_peer,
        ),
        (
            "LC ε map, last_step",
            lambda: dp.gaussian_epsilon(dp.last_step_mus(checkpoints, rows), DELTA),
            combination_peer,
        ),
        (
            "LC ε map, hidden_state",
            lambda: dp.gaussian_epsilon(dp.hidden_state_mus(checkpoints, rows, 50.0), DELTA),
            combination_peer,
        ),
        ("RS feasible", lambda: dp.selection_feasible(members, rows, TARGET_EPSILON, DELTA), selection_peer),
        ("RS ε map", lambda: dp.selection_epsilons(members, rows, DELTA), selection_peer),
        (
            "RS ε map, 156 RDP orders",
            lambda: dp.selection_renyi_epsilons(curves, rows, DELTA, dp.DEFAULT_ORDERS, "improved"),
            selection_peer,
        ),
    ]
    table = Table("a million of", "seconds", "per second", "peer: s each", "ratio")
    for name, action, peer in ours:
        seconds = timed(action)
        each = seconds / CANDIDATES
        ratios[name] = peer / each
        table.add_row(name, f"{seconds:.2f}", f"{1 / each / 1e6:.2f} M", f"{peer:.3f}", f"{ratios[name]:.2g}")
    return table


def _little_noise(ratios: dict[str, float]) -> str:
    """The peer's time grows with the privacy loss, ours does not."""
    runs = _runs((1.0, 1.5, 2.0))
    rows = np.random.default_rng(1).dirichlet([1, 1, 1], CANDIDATES)
    seconds = timed(lambda: dp.gaussian_epsilon(dp.merged_trajectory_mus(runs, rows), DELTA))
    peer = _peer_combination(runs, rows[:1])
    ratio = ratios["LC ε map, little noise"] = peer / seconds * CANDIDATES
    return f"with σ around 1, 1.5 and 2: LC ε map {seconds:.2f} s, peer {peer:.1f} s each, ratio {ratio:.2g}"


def _peer_combination(runs: list[dp.DpSgd], rows: np.ndarray) -> float:
    """Seconds a candidate: one Gaussian distribution a step, convolved step by step."""
    moves = [run.moves(run.steps) for run in runs]
    shift = np.array([move.shift for move in moves])
    noise = np.array([move.noise for move in moves])
    start = time.perf_counter()
    for row in rows:
        composed = None
        for sensitivity, deviation in zip(row @ shift, np.sqrt(row**2 @ noise**2), strict=True):
            step = dp_pld.from_gaussian_mechanism(deviation, sensitivity=sensitivity)
            composed = step if composed is None else composed.compose(step)
        composed.get_epsilon_for_delta(DELTA)
    return (time.perf_counter() - start) / len(rows)


def _peer_selection(runs: list[dp.DpSgd], rows: np.ndarray) -> float:
    """Seconds a candidate: the members' distributions (not counted) mixed and asked."""
    members = [dp_pld.from_gaussian_mechanism(1 / run.profile().mu) for run in runs]  # type: ignore[attr-defined]
    start = time.perf_counter()
    for row in rows:
        first_two = members[0].compute_mixture(members[1], row[0] / (row[0] + row[1]))
        first_two.compute_mixture(members[2], row[0] + row[1]).get_epsilon_for_delta(DELTA)
    return (time.perf_counter() - start) / len(rows)


def _prefixes(ratios: dict[str, float]) -> Table:
    step = PoissonStep(ratio=1.0, sampling_rate=0.01, replace_one=False)
    single = dp_pld.from_gaussian_mechanism(1.0, sampling_prob=0.01)
    LossDistributionProfile.of({step: 1}).epsilon(
        DELTA
    )  # the single-step distribution is built by both, and counted for neither
    start = time.perf_counter()
    composed = [single.self_compose(count) for count in CHECKPOINTS]
    composing = time.perf_counter() - start
    theirs = np.array([distribution.get_epsilon_for_delta(DELTA) for distribution in composed])
    total = time.perf_counter() - start
    ours = epsilon_curve([LossDistributionProfile.of({step: count}) for count in CHECKPOINTS], DELTA)
    seconds = timed(lambda: epsilon_curve([LossDistributionProfile.of({step: n}) for n in CHECKPOINTS], DELTA))
    table = Table("50 checkpoints", "seconds", "ratio", "largest difference in ε")
    table.add_row("dpmerge, ε included", f"{seconds:.2f}", "", "")
    table.add_row("dp_accounting, 50 × self_compose", f"{composing:.2f}", f"{composing / seconds:.1f}", "")
    ratios["ε of 50 prefixes"] = total / seconds
    difference = float(np.max(np.abs(ours - theirs)))
    table.add_row("dp_accounting, ε included", f"{total:.2f}", f"{total / seconds:.1f}", f"{difference:.1e}")
    return table
