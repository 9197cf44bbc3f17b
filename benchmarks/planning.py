"""Planning, heatmaps and scores of many merges, each beside the way it would be done without this library."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import SupportsFloat

import numpy as np
from dp_accounting.dp_event import GaussianDpEvent
from dp_accounting.pld import privacy_loss_distribution as dp_pld
from dp_accounting.rdp import RdpAccountant
from rich.console import Console
from rich.table import Table

from benchmarks.accounting import timed
from dpmerge import Guarantee, Portfolio, plan
from dpmerge.accounting.renyi import DEFAULT_ORDERS
from dpmerge.accounting.validation import Array
from dpmerge.evaluation.evaluate import evaluate
from dpmerge.evaluation.evaluators import Evaluator, load_evaluator
from dpmerge.evaluation.merged_model import Tensors
from dpmerge.planning.feasible_weights import lattice
from dpmerge.planning.simplex_sweeps import face
from dpmerge.planning.usable_checkpoints import usable_checkpoints
from dpmerge.terms.recipe import Recipe
from planning.synthetic import ladder

MNIST = Path("examples") / "mnist"
DELTA = 1e-5
PEER_POINTS = 4


def run(console: Console) -> dict[str, float]:
    """Print what was measured; return how many times faster than the other way each of them is."""
    ratios: dict[str, float] = {}
    console.print("\n[bold]planning[/]: 12 runs × 10 checkpoints, objective noise, no model looked at")
    console.print(_plans())
    console.print(
        "\n[bold]sampled[/]: 12 Poisson runs × 10 checkpoints, σ 0.6 to 2, q 0.002, 20,000 steps, δ 1e-6; "
        "the peer composes all 12 once"
    )
    console.print(_sampled_plans(ratios))
    console.print("\n[bold]many runs[/]: full batch, one checkpoint each")
    console.print(_many_runs())
    console.print("\n[bold]heatmap[/]: ε at 5,151 points of the simplex of three models, four panels")
    console.print(_heatmaps(ratios))
    console.print("\n[bold]scores[/]: 1,000 averages of 20 linear models on 1,000 images")
    console.print(_scores(ratios))
    return ratios


def _plans() -> Table:
    table = _table("runs", "ε", "method", "ours")
    decaying = [0.01 * (1 - step / 21) for step in range(20)]
    for smooth in (False, True):
        portfolio = ladder(12, range(2, 21, 2), noise=np.geomspace(32, 512, 12), smooth=smooth, learning_rate=decaying)
        for epsilon in (0.05, 0.3, 1.0):
            for method in ("mix", "auto"):
                target = Guarantee(epsilon=epsilon, delta=DELTA)
                seconds = timed(lambda p=portfolio, t=target, m=method: plan(p, t, method=m))  # type: ignore[misc]
                kind = "smooth (hidden_state applies)" if smooth else "any model"
                table.add_row(kind, f"{epsilon:g}", method, f"{seconds:.2f} s")
    return table


def _sampled_plans(ratios: dict[str, float]) -> Table:
    table = _table("what", "ours", "dp_accounting, one composition (h = 1e-3)", "ratio")
    levels = np.geomspace(0.6, 2, 12)
    portfolio = _sampled(levels, range(2000, 20001, 2000))
    peer = timed(lambda: _peer_composition(levels, 20_000), repeats=1)
    first = timed(lambda: plan(portfolio, epsilon=4.0, delta=1e-6), repeats=1)
    further = [timed(lambda e=e: plan(portfolio, epsilon=e, delta=1e-6), repeats=1) for e in (2.0, 3.0, 6.0)]  # type: ignore[misc]
    small = _sampled(np.geomspace(0.8, 2, 4), range(100, 401, 100), steps=400)
    little = timed(lambda: plan(small, epsilon=2.0, delta=DELTA), repeats=1)
    for what, seconds in (
        ("the first plan", first),
        ("a further target (the slowest of three)", max(further)),
        ("4 runs × 4 checkpoints of 400 steps", little),
    ):
        ratios[f"sampled, {what}"] = peer / seconds
        table.add_row(what, f"{seconds:.2f} s", f"{peer:.2f} s", f"{peer / seconds:.2g}")
    return table


def _sampled(levels: Array, kept: range, steps: int = 20_000) -> Portfolio:
    return ladder(len(levels), kept, noise=levels.tolist(), steps=steps, sampling_rate=0.002, adjacency="add_remove")


def _peer_composition(levels: Array, steps: int) -> None:
    everything = None
    for sigma in levels.tolist():
        step = dp_pld.from_gaussian_mechanism(sigma, sampling_prob=0.002, value_discretization_interval=1e-3)
        run = step.self_compose(steps)
        everything = run if everything is None else everything.compose(run)
    assert everything is not None
    everything.get_epsilon_for_delta(1e-6)


def _many_runs() -> Table:
    table = _table("runs", "ours")
    for count in (250, 500, 1000):
        portfolio = ladder(count, noise=np.geomspace(32, 512, count).tolist())
        seconds = timed(lambda p=portfolio: plan(p, epsilon=1.0, delta=1e-6), repeats=1)  # type: ignore[misc]
        table.add_row(f"{count:,}", f"{seconds:.2f} s")
    return table


def _heatmaps(ratios: dict[str, float]) -> Table:
    portfolio = Portfolio.load(MNIST)
    known = usable_checkpoints(portfolio, DELTA)
    three = [known[name] for name in ("c2-s32@20", "c4-s32@20", "c2-s64@20")]
    table = _table("theorem of LC", "ours", "dp_accounting, a point at a time", "ratio")
    peer = _peer_heatmap()
    for theorem in ("auto", "merged_trajectory"):
        ours = timed(lambda t=theorem: face(known, three, theorem=t))  # type: ignore[misc]
        ratios[f"heatmap, {theorem}"] = peer / ours
        table.add_row(theorem, f"{ours:.3f} s", f"{peer:,.0f} s (from {PEER_POINTS} points)", f"{peer / ours:,.0f}")
    return table


def _peer_heatmap() -> float:
    """Seconds for all points of all panels, extrapolated from a few; the models' own distributions are not counted."""
    rows = lattice(3, 100)
    few = rows[np.random.default_rng(0).integers(0, len(rows), PEER_POINTS)]
    clip_norms, noise, steps = np.array([2.0, 4.0, 2.0]), np.array([32.0, 32.0, 64.0]), 20
    models = [dp_pld.from_gaussian_mechanism(sigma / (2 * steps**0.5)) for sigma in noise]
    orders = DEFAULT_ORDERS.tolist()

    def points() -> None:
        for row in few:
            first_two = models[0].compute_mixture(models[1], row[0] / max(row[0] + row[1], 1e-12))
            first_two.compute_mixture(models[2], row[0] + row[1]).get_epsilon_for_delta(DELTA)
            ratio = float(np.sqrt(row**2 @ (noise * clip_norms) ** 2) / (2 * row @ clip_norms))
            dp_pld.from_gaussian_mechanism(ratio).self_compose(steps).get_epsilon_for_delta(DELTA)
            for _ in ("RS", "LC"):
                accountant = RdpAccountant(orders)
                accountant.compose(GaussianDpEvent(ratio), steps)
                accountant.get_epsilon(DELTA)

    return timed(points, repeats=1) / PEER_POINTS * len(rows)


def _scores(ratios: dict[str, float]) -> Table:
    portfolio = Portfolio.load(MNIST)
    names = [saved.name for saved in portfolio.checkpoints()]
    rows = np.random.default_rng(0).dirichlet(np.ones(len(names)), 1000)
    recipes = [Recipe.of(zip(names, row.tolist(), strict=True)) for row in rows]
    linear = load_evaluator(f"linear:{MNIST / 'public.npz'}")
    together = timed(lambda: evaluate(portfolio, recipes, linear))
    apart = timed(lambda: evaluate(portfolio, recipes[:50], partial(_called, linear)), repeats=1) * 20
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "scores.jsonl"
        evaluate(portfolio, recipes, linear, cache=cache)
        again = timed(lambda: evaluate(portfolio, recipes, linear, cache=cache))
    ratios["scores in one product"] = apart / together
    table = _table("how", "seconds", "ratio")
    table.add_row("one matrix product", f"{together:.2f}", "1")
    table.add_row("merge and score each (from 50)", f"{apart:.1f}", f"{apart / together:.0f}")
    table.add_row("found in the cache", f"{again:.2f}", f"{again / together:.2f}")
    return table


def _called(evaluator: Evaluator, tensors: Tensors) -> SupportsFloat:
    """An evaluator that knows no shorter way."""
    return evaluator(tensors)


def _table(*columns: str) -> Table:
    table = Table()
    for column in columns:
        table.add_column(column)
    return table
