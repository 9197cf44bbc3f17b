"""Analyses to report on: three full-batch runs, real accounting, made-up accuracies; and what may go wrong in one."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt

from dpmerge.accounting import (
    DEFAULT_ORDERS,
    Adjacency,
    DpSgd,
    GaussianProfile,
    StepBlock,
    gaussian_epsilon,
    joint_release_mus,
    last_step_mus,
    merged_trajectory_mus,
    selection_epsilons,
    selection_renyi_epsilons,
)
from dpmerge.accounting.renyi import renyi_epsilon
from dpmerge.planning.analysis import (
    Analysis,
    Curve,
    Edge,
    Face,
    InputModel,
    Line,
    Panel,
    Recommendation,
    Utility,
)

Array = npt.NDArray[np.float64]

DELTA = 1e-5
RESOLUTION = 24
NAMES = ("noisy-s96@20", "middle-s64@20", "sharp-s40@20")
ACCURACIES = np.array([0.803, 0.856, 0.881])
HOSTILE = ("</script><script>alert(1)</script>", "=cmd|' /C calc'!A0\"<b>&amp;", "модель–模型 $x^2$ %{y}\u202e\n_z")

RUNS = tuple(
    DpSgd(
        blocks=(StepBlock(steps=20, noise_multiplier=noise, clip_norm=2.0, learning_rate=1.0),),
        adjacency=Adjacency.REPLACE_ONE,
    )
    for noise in (96.0, 64.0, 40.0)
)
ORDERS = np.array(DEFAULT_ORDERS)
PROFILES = tuple(GaussianProfile(float(np.sqrt(np.sum(run.step_mus(20) ** 2)))) for run in RUNS)


def drawn(rows: Array) -> Array:
    return selection_epsilons(PROFILES, rows, DELTA)


def drawn_renyi(rows: Array) -> Array:
    curves = np.array([profile.renyi_divergence(ORDERS) for profile in PROFILES])
    return selection_renyi_epsilons(curves, rows, DELTA, ORDERS, "improved")


def averaged(rows: Array) -> Array:
    return gaussian_epsilon(last_step_mus(RUNS, rows), DELTA)


def averaged_renyi(rows: Array) -> Array:
    mus = last_step_mus(RUNS, rows)
    return renyi_epsilon(ORDERS, np.outer(mus**2 / 2, ORDERS), DELTA, "improved")


def averaged_together(rows: Array) -> Array:
    return gaussian_epsilon(joint_release_mus(RUNS, rows), DELTA)


def averaged_as_in_the_paper(rows: Array) -> Array:
    return gaussian_epsilon(merged_trajectory_mus(RUNS, rows), DELTA)


def simplex() -> tuple[Array, npt.NDArray[np.bool_]]:
    """Weights at every place of a panel, and which places are in the triangle."""
    row, column = np.mgrid[: RESOLUTION + 1, : RESOLUTION + 1]
    inside = row + column <= RESOLUTION
    rest = np.where(inside, RESOLUTION - row - column, 0)
    return np.stack([column, row, rest], axis=-1) / RESOLUTION, inside


def accuracy(rows: Array, *, merged: bool) -> Array:
    """An average is a little better than its parts, for their noise cancels."""
    gain = 0.03 * (1 - np.sum(rows**2, axis=-1)) if merged else 0.0
    return np.asarray(rows @ ACCURACIES + gain)


def best(costs: Array, values: Array, targets: Array) -> Array:
    return np.array([max(values[costs <= target], default=np.nan) for target in targets])


@cache
def ordinary() -> Analysis:
    """Three models, one face with four panels, one edge with every kind of line, eight plans."""
    weights, inside = simplex()
    rows = weights[inside]
    targets = np.linspace(0.2, 1.4, 49)
    ways = (
        ("random selection, PLD", "select", "pld", None, True, drawn),
        ("random selection, RDP", "select", "rdp", None, True, drawn_renyi),
        ("linear combination, PLD", "combine", "pld", "last_step", True, averaged),
        ("linear combination, RDP", "combine", "rdp", "last_step", True, averaged_renyi),
        ("linear combination, paper", "combine", "pld", "merged_trajectory", False, averaged_as_in_the_paper),
    )
    costs = {way[0]: way[-1](rows) for way in ways}
    curves = [
        Curve(name, method, accounting, theorem, proved, targets, best(costs[name], worth(method, rows), targets))
        for name, method, accounting, theorem, proved, _ in ways
    ]
    panels = []
    for name, method, accounting, theorem, proved, _ in ways:
        values = np.full(inside.shape, np.nan)
        values[inside] = costs[name]
        panels.append(Panel(name, method, accounting, theorem, proved, values))
    mixed = np.fmax(curves[0].utilities, curves[2].utilities)
    curves.append(Curve("drawing among averages, PLD", "mix", "pld", "last_step", True, targets, mixed))
    return Analysis(
        title="Three runs on mnist-train",
        subtitle="60,000 records; unit of privacy: record; replace_one; δ = 1e-05",
        delta=DELTA,
        utility=Utility("accuracy", higher_is_better=True, measured=True),
        models=tuple(
            InputModel(name, profile.epsilon(DELTA), float(value))
            for name, profile, value in zip(NAMES, PROFILES, ACCURACIES, strict=True)
        ),
        curves=tuple(curves),
        faces=(Face(NAMES, RESOLUTION, tuple(panels[i] for i in (1, 0, 3, 2))),),
        edges=(edge(),),
        recommendations=plans(rows, costs["random selection, PLD"]),
        joint_epsilon=float(averaged_together(np.full((1, 3), 1 / 3))[0]),
        caveats=(
            "the noise is seeded: whoever knows the seed can take it off again",
            "accuracies were measured on 10,000 public images; differences below 0.005 mean nothing",
        ),
    )


def worth(method: str, rows: Array) -> Array:
    return accuracy(rows, merged=method != "select")


def edge() -> Edge:
    """The first and the last model."""
    weights = np.linspace(0, 1, 41)
    rows = np.stack([1 - weights, np.zeros_like(weights), weights], axis=1)
    lines = (
        Line("random selection, PLD", "select", "pld", None, True, drawn(rows)),
        Line("random selection, RDP", "select", "rdp", None, True, drawn_renyi(rows)),
        Line("linear combination, PLD", "combine", "pld", "last_step", True, averaged(rows)),
        Line("linear combination, RDP", "combine", "rdp", "last_step", True, averaged_renyi(rows)),
    )
    theorems = (
        Line("joint_release", "combine", "pld", "joint_release", True, averaged_together(rows)),
        Line("last_step", "combine", "pld", "last_step", True, averaged(rows)),
        Line("merged_trajectory", "combine", "pld", "merged_trajectory", False, averaged_as_in_the_paper(rows)),
    )
    return Edge((NAMES[0], NAMES[2]), weights, lines, theorems)


def plans(rows: Array, costs: Array) -> tuple[Recommendation, ...]:
    found = []
    values = accuracy(rows, merged=False)
    for target in (0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8):
        meeting = np.flatnonzero(costs <= target)
        if meeting.size:
            row = meeting[np.argmax(values[meeting])]
            outcomes = tuple((float(p), name) for p, name in zip(rows[row], NAMES, strict=True) if p > 0)
            found.append(
                Recommendation(
                    target,
                    float(costs[row]),
                    float(values[row]),
                    "random_selection",
                    outcomes,
                    ({},) * len(outcomes),
                    False,
                )
            )
    recipe = f"0.75 × {NAMES[1]} + 0.25 × {NAMES[2]} + noise of 0.05"
    exact = {"weights": {NAMES[1]: 0.75, NAMES[2]: 0.25}, "release_noise": 0.05}
    found.append(Recommendation(1.0, 0.983511, 0.8852, "last_step", ((1.0, recipe),), (exact,), True))
    return tuple(found)


@cache
def hostile() -> Analysis:
    """Names that are code somewhere, figures that are none."""
    usual = ordinary()
    epsilons = usual.curves[0].epsilons.copy()
    epsilons[3], epsilons[5] = np.inf, np.nan
    panel = usual.faces[0].panels[0].epsilons.copy()
    panel[0, 0], panel[2, 3], panel[5, :5] = np.nan, np.inf, np.inf
    line = usual.edges[0].lines[0].epsilons.copy()
    line[:3], line[9] = np.inf, np.nan
    return replace(
        usual,
        title=f"{HOSTILE[0]} & 'title'",
        subtitle='δ < "ε" <img src=x onerror=alert(2)>',
        utility=Utility("<i>accuracy</i>%{x}", higher_is_better=True, measured=False),
        models=(
            *(replace(model, name=name) for model, name in zip(usual.models, HOSTILE, strict=True)),
            InputModel("@no-number", math.inf, 0.9),
            InputModel("-not-measured", 1.0, math.nan),
        ),
        curves=(
            replace(usual.curves[0], name=HOSTILE[0], epsilons=epsilons),
            replace(usual.curves[1], name="_hidden $\\frac$", utilities=np.full(epsilons.size, np.nan)),
            *usual.curves[2:],
        ),
        faces=(
            Face(
                HOSTILE,
                RESOLUTION,
                (
                    replace(usual.faces[0].panels[0], name=HOSTILE[1], epsilons=panel, proved=False),
                    replace(usual.faces[0].panels[1], name="empty", epsilons=np.full(panel.shape, np.inf)),
                ),
            ),
        ),
        edges=(
            replace(
                usual.edges[0],
                names=HOSTILE[:2],
                lines=(replace(usual.edges[0].lines[0], name=HOSTILE[2], epsilons=line), *usual.edges[0].lines[1:]),
            ),
        ),
        recommendations=(
            Recommendation(0.3, 0.29871, math.nan, HOSTILE[0], ((0.5, HOSTILE[1]), (0.5, HOSTILE[2])), ({}, {}), False),
            Recommendation(0.9, math.inf, 0.8, "", ((1.0, HOSTILE[0]),), ({},), False),
        ),
        joint_epsilon=math.inf,
        caveats=HOSTILE,
    )


@cache
def bare() -> Analysis:
    """No faces, no edges, no plans, no caveats."""
    return replace(ordinary(), faces=(), edges=(), recommendations=(), caveats=())


@cache
def losses() -> Analysis:
    """A utility of which less is better, over ε of two orders of magnitude."""
    usual = ordinary()
    epsilons = np.geomspace(0.05, 8, 30)
    curves = tuple(
        replace(curve, epsilons=epsilons, utilities=(1 + place) * 0.02 / epsilons**1.5)
        for place, curve in enumerate(usual.curves)
    )
    models = tuple(InputModel(name, e, 0.05 / e) for name, e in zip(NAMES, (0.06, 0.5, 7.0), strict=True))
    return replace(
        usual, utility=Utility("excess loss", higher_is_better=False, measured=False), curves=curves, models=models
    )


ALL = (ordinary, hostile, bare, losses)
