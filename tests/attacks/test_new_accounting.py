"""Certified figures against oracles that were written from the theorems alone, and ways to get too small ones.

Of merged last steps: the law of what is seen in forty digits; losses rounded down, which the truth is never below; and
torch's own SGD for how much of the last gradient is in the weights. Of passes cut short: the
mixture over who was seen, outcome by outcome.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from scipy.signal import fftconvolve
from scipy.stats import binom, norm

import dpmerge as dpm
from dpmerge.accounting import (
    Adjacency,
    Checkpoint,
    DpSgd,
    Exposure,
    LinearCombination,
    StepBlock,
    joint_release,
    last_step,
)
from dpmerge.accounting.shuffled_passes import SecretOrder
from dpmerge.accounting.training_settings import Optimizer
from dpmerge.errors import NoGuaranteeError, NotCombinableError, RunsLockedError
from dpmerge.ledger import Ledger
from dpmerge.planning.candidates import covered
from dpmerge.planning.plan_file import read_plan
from dpmerge.portfolio.inspection import inspect
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.releasing.prepare import prepare
from dpmerge.releasing.verifying import verify
from dpmerge.terms.run_record import RunRecord
from ledger.releases import first, request, run, seeded
from portfolio.portfolios import BLOCK, DP_SGD, INITIAL, manifest, model, write_run

DELTA = 1e-5


# One merged step


def sampled(noise: float, rate: float, steps: int = 1, **facts: Any) -> DpSgd:
    block = StepBlock(steps=steps, noise_multiplier=noise, clip_norm=1.0, learning_rate=1.0, sampling_rate=rate)
    return DpSgd(blocks=[block], adjacency="add_remove", **facts)  # type: ignore[arg-type]


def half_lines(shifts: list[float], chances: list[float], epsilon: float) -> tuple[mpmath.mpf, mpmath.mpf]:
    """H_ε of Σ p N(c, 1) from N(0, 1) and back: the loss rises in x, so the best events are half-lines."""
    with mpmath.workdps(40):
        c, p = [mpmath.mpf(s) for s in shifts], [mpmath.mpf(q) for q in chances]

        def loss(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.log(mpmath.fsum(q * mpmath.exp(s * x - s * s / 2) for s, q in zip(c, p, strict=True)))

        def beyond(level: float) -> mpmath.mpf | None:
            low, high = mpmath.mpf(-60), mpmath.mpf(60 + 2 * max(shifts))
            if loss(low) >= level:
                return None
            for _ in range(110):
                middle = (low + high) / 2
                low, high = (middle, high) if loss(middle) < level else (low, middle)
            return low

        factor = mpmath.exp(epsilon)
        removal, addition = max(mpmath.mpf(0), 1 - factor), mpmath.mpf(0)
        if (x := beyond(epsilon)) is not None:
            drawn = mpmath.fsum(q * mpmath.ncdf(s - x) for s, q in zip(c, p, strict=True))
            removal = drawn - factor * mpmath.ncdf(-x)
        if (x := beyond(-epsilon)) is not None:
            drawn = mpmath.fsum(q * mpmath.ncdf(x - s) for s, q in zip(c, p, strict=True))
            addition = mpmath.ncdf(x) - factor * drawn
        return removal, addition


# (σ, q) of each run and its weight; the last ones have so little noise that e^ε is no float any more.
MERGED = {
    "two of unequal noise": ([(1.0, 0.2), (0.5, 0.7)], [0.6, 0.4]),
    "a tiny weight": ([(1.0, 0.2), (0.05, 0.9)], [1 - 1e-9, 1e-9]),
    "a full batch among them": ([(2.0, 1.0), (0.7, 0.01), (0.7, 0.01)], [0.2, 0.4, 0.4]),
    "nearly full batches": ([(1.0, 1 - 1e-12), (1.0, 1 - 1e-9)], [0.5, 0.5]),
    "hardly ever drawn": ([(0.3, 1e-8), (0.3, 1e-6)], [0.5, 0.5]),
    "next to no noise": ([(0.02, 0.5), (0.02, 0.01)], [0.5, 0.5]),
    "next to no noise in a full batch": ([(0.02, 0.3), (0.015, 1.0)], [0.5, 0.5]),
    "as little noise as is counted": ([(1 / 480, 1e-6)], [1.0]),
}


@pytest.mark.parametrize("case", MERGED)
def test_a_merged_step_is_never_told_apart_better_than_is_certified(case: str) -> None:
    settings, weights = MERGED[case]
    profile = last_step(LinearCombination.of_runs([sampled(*each) for each in settings], weights)).profile
    assert profile is not None
    spread = math.sqrt(sum((w * noise) ** 2 for w, (noise, _) in zip(weights, settings, strict=True)))
    shifts, chances = [], []
    for drawn in itertools.product((0, 1), repeat=len(weights)):
        chance = math.prod(rate if d else 1 - rate for d, (_, rate) in zip(drawn, settings, strict=True))
        if chance:
            shifts.append(sum(w for w, d in zip(weights, drawn, strict=True) if d) / spread)
            chances.append(chance)
    largest = max(shifts)
    for epsilon in (-0.5, 0.0, 1e-4, 0.3, 2.0, largest, largest**2 / 2, largest**2 / 2 + 2 * largest):
        claimed, true = profile.deltas(epsilon), half_lines(shifts, chances, epsilon)
        for ours, theirs in zip(claimed, true, strict=True):
            assert float(ours) >= float(theirs) * (1 - 1e-15), (epsilon, ours, theirs)
        if epsilon >= 0 and largest < 30:
            assert float(max(claimed)) <= float(max(true)) * 1.02 + 1e-6, "and it is no wild guess"


def coefficient(rates: list[float], settings: dict[str, Any]) -> float:
    """How far torch's SGD moves a weight by a last gradient of one."""
    moved = []
    for last in (0.0, 1.0):
        weight = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=1.0, **settings)
        for step, rate in enumerate(rates):
            optimizer.param_groups[0]["lr"] = rate
            weight.grad = torch.full((1,), last if step == len(rates) - 1 else 0.25, dtype=torch.float64)
            optimizer.step()
        moved.append(weight.item())
    return abs(moved[1] - moved[0])


def optimistic(mixtures: list[tuple[float, list[float], list[float]]]) -> float:
    """ε at δ of mixtures of Gaussians (deviation, shifts, chances) released together; never above the truth.

    Noise is cut into cells, each of which counts with the smallest loss in it, rounded down.
    """
    grid, found = 1 / 512, 0.0
    for removed in (True, False):
        masses, lowest = np.ones(1), 0
        for deviation, shifts, chances in mixtures:
            c, p = np.array(shifts) / deviation, np.array(chances)
            edges = np.linspace(-9.0, 9.0 + c.max(), 2**13)
            logs = np.logaddexp.reduce(np.multiply.outer(edges, c) - c**2 / 2 + np.log(p), axis=1)
            drawn = np.diff(norm.cdf(np.subtract.outer(edges, c)) @ p) if removed else np.diff(norm.cdf(edges))
            losses = np.floor((logs[:-1] if removed else -logs[1:]) / grid).astype(int)
            own = np.zeros(losses.max() - losses.min() + 1)
            np.add.at(own, losses - losses.min(), drawn)
            masses, lowest = np.maximum(fftconvolve(masses, own) - 1e-15, 0.0), lowest + losses.min()
        losses = (lowest + np.arange(masses.size)) * grid

        def delta(epsilon: float, losses: Any = losses, masses: Any = masses) -> float:
            return float(masses[losses > epsilon] @ -np.expm1(epsilon - losses[losses > epsilon]))

        low, high = 0.0, float(losses[-1])
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if delta(middle) > DELTA else (low, middle)
        found = max(found, low)
    return found


OPTIMIZERS: dict[str, tuple[list[dict[str, Any]], list[list[float]], float]] = {
    "plain": ([{}, {}], [[1.0, 0.5], [0.25, 0.0]], 0.0),
    "momentum, whose first gradient is not dampened": (
        [{"momentum": 0.9, "dampening": 0.5}, {"momentum": 0.9, "dampening": 0.5}], [[1.0], [1.0, 1.0]], 0.0,
    ),
    "nesterov beside plain": ([{"momentum": 0.9, "nesterov": True}, {}], [[0.0, 1.0], [1.0, 1.0]], 0.0),
    "release noise and rates of zero at the end": ([{"momentum": 0.5}, {}], [[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]], 0.7),
    "weight decay": ([{"weight_decay": 0.1, "momentum": 0.3}, {}], [[1.0, 2.0], [1.0, 1.0]], 0.2),
}  # fmt: skip


@pytest.mark.parametrize("case", OPTIMIZERS)
def test_what_came_before_and_the_merged_last_step_never_cost_more(case: str) -> None:
    settings, rates, tau = OPTIMIZERS[case]
    noise, chance, weights = [0.8, 1.5], [0.3, 0.15], [0.7, 0.3]
    runs, seen, shifts, variance = [], [], [], tau**2
    for place in (0, 1):
        block = StepBlock(
            steps=len(rates[place]), noise_multiplier=noise[place], clip_norm=1.5, learning_rate=rates[place],
            sampling_rate=chance[place],
        )  # fmt: skip
        runs.append(DpSgd(blocks=[block], adjacency="zero_out", optimizer=Optimizer(**settings[place])))  # type: ignore[arg-type]
        acting = max(step for step, rate in enumerate(rates[place]) if rate > 0)
        seen += [(noise[place], [0.0, 1.0], [1 - chance[place], chance[place]])] * acting
        shifts.append(weights[place] * coefficient(rates[place][: acting + 1], settings[place]) * 1.5)
        variance += (shifts[-1] * noise[place]) ** 2
    sums = [sum(itertools.compress(shifts, drawn)) for drawn in itertools.product((0, 1), repeat=2)]
    chances = [
        math.prod(q if d else 1 - q for q, d in zip(chance, drawn, strict=True))
        for drawn in itertools.product((0, 1), repeat=2)
    ]
    truth = optimistic([*seen, (math.sqrt(variance), sums, chances)])
    claimed = last_step(LinearCombination.of_runs(runs, weights, release_noise=tau)).epsilon(DELTA)
    assert claimed is not None
    assert claimed >= truth
    if "zero" not in case and case != "plain":
        assert claimed <= truth * 1.02 + 0.02


def test_a_thousand_components_on_a_coarse_grid_stay_above_when_composed() -> None:
    """Ten runs alike: who drew the record is binomial, so that eleven components are the truth."""
    runs = [sampled(4.0, 0.3, steps=2) for _ in range(10)]
    claimed = last_step(LinearCombination.of_runs(runs, [0.1] * 10)).epsilon(DELTA)
    drawn = np.arange(11)
    merged = (4.0 * math.sqrt(10), drawn.astype(float).tolist(), binom.pmf(drawn, 10, 0.3).tolist())
    truth = optimistic([(4.0, [0.0, 1.0], [0.7, 0.3])] * 10 + [merged])
    assert claimed is not None
    assert truth <= claimed <= truth * 1.02 + 0.02


# Passes cut short


def gaussian_delta(mu: float, epsilon: float) -> float:
    return float(norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2))


def shuffled(noise: float, steps: int, adjacency: str) -> DpSgd:
    block = StepBlock(steps=steps, noise_multiplier=noise, clip_norm=1.0, learning_rate=1.0)
    order = SecretOrder(records=95, batch_size=10, fixed_steps=(steps,))
    return DpSgd(
        blocks=[block], adjacency=adjacency, sampling="shuffled", steps_per_epoch=10, order=order,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize(("adjacency", "k"), [("replace_one", 2), ("zero_out", 1)])
def test_passes_of_several_runs_cost_the_mixture_over_who_was_seen(adjacency: str, k: int) -> None:
    runs = [shuffled(3.0, 12, adjacency), shuffled(2.0, 27, adjacency), shuffled(4.0, 10, adjacency)]
    claimed = joint_release(LinearCombination.of_runs(runs, [0.3, 0.3, 0.4])).epsilon(DELTA)
    assert claimed is not None
    # Passes completed, and how likely the record is in the next: 2 and 7 of its batches of 10, of 95 records.
    known = [(3.0, 1, 20 / 95), (2.0, 2, 70 / 95), (4.0, 1, 0.0)]
    total = 0.0
    for among in itertools.product((0, 1), repeat=3):
        chance = math.prod(p if a else 1 - p for a, (_, _, p) in zip(among, known, strict=True))
        squared = sum((passes + a) * (k / noise) ** 2 for a, (noise, passes, _) in zip(among, known, strict=True))
        total += chance * gaussian_delta(math.sqrt(squared), claimed)
    assert total <= DELTA
    assert total == pytest.approx(DELTA, rel=1e-4)
    whole = Exposure.of(Checkpoint(each, each.steps) for each in runs).profile().epsilon(DELTA)
    assert claimed < whole, "what a ledger adds up counts passes whole"


def test_a_run_that_was_broken_off_and_went_on_has_no_share() -> None:
    """Whoever breaks off and goes on may wait for a record to come, as whoever stops by what is seen."""
    mechanism = copy.deepcopy(DP_SGD) | {
        "blocks": [BLOCK | {"steps": 15}], "sampling": "shuffled", "steps_per_epoch": 10, "expected_batch_size": 10,
        "order": {"secret": True, "records": 100, "batch_size": 10, "fixed_steps": [15]},
    }  # fmt: skip
    statement = {
        "run": "a", "mechanism": mechanism, "noise": {"source": "os_entropy"}, "ancestry": {"start": "random"},
        "tuning": "none", "stopping": "fixed", "recorded_by": {"how": "recorder"},
    }  # fmt: skip
    for resumed, share in ((None, 0.5), ([{"after": 10}], 1.0), ([{"after": 3, "lost_steps": 2}], 1.0)):
        stated = statement if resumed is None else statement | {"resumed": resumed}
        made = RunRecord.model_validate(stated, by_name=True).mechanism_from(Adjacency.REPLACE_ONE, None)
        assert made.share_seen(15) == pytest.approx(share, abs=1e-6)


# Noise that somebody else's release gives away


def test_a_seed_used_for_other_data_in_the_same_ledger_is_refused(tmp_path: Path) -> None:
    """Who knows the other data subtracts what it trained, and has the noise of this: its ε is infinite."""
    others = {"id": "customers-2025", "size": 100}
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.charge(request([seeded("b", 43, dataset=others)], "b@3"), first)
        ledger.charge(request([seeded("a", 42)], "a@3"), first)
        for name, seed, refused in (("c", 42, "c and a"), ("d", 42 + 2**32, "d and a")):
            with pytest.raises(NoGuaranteeError, match=f"{refused} were made with the same noise seed"):
                ledger.charge(request([seeded(name, seed, dataset=others)], f"{name}@3"), first)
        ledger.charge(request([run("e", dataset=others)], "e@3"), first)
    with Ledger.open(tmp_path / "final.sqlite") as ledger:
        pair = [seeded("a", 42), seeded("b", 42)]
        ledger.charge(request(pair, "a@3", "b@3", final=True, noise_groups=[["a", "b"]]), first)
        with pytest.raises(RunsLockedError, match="has locked all runs of that seed"):
            ledger.charge(request([seeded("c", 42, dataset=others)], "c@3"), first)


# Runs that trained different tensors


@pytest.fixture
def unlike(tmp_path: Path) -> Path:
    """x trains the bias alone, with much noise; y the weight as well, with little."""
    trained = {"x": (10.0, ["bias"], ["embedding", "weight"]), "y": (0.5, ["weight", "bias"], ["embedding"])}
    for seed, (name, (noise, moving, frozen)) in enumerate(trained.items()):
        mechanism = copy.deepcopy(DP_SGD) | {"blocks": [BLOCK | {"steps": 1, "noise_multiplier": noise}]}
        tensors = {"trained": moving, "frozen": frozen, "initial": dict(INITIAL)}
        write_run(tmp_path / "models" / name, manifest(name, mechanism=mechanism, tensors=tensors), {1: model(seed)})
    return tmp_path / "models"


def test_noise_on_one_tensor_hides_nothing_in_another(unlike: Path, tmp_path: Path) -> None:
    """The weight has y's noise alone: one record moves it by k·C against σ·C, whatever y counts in the average."""
    portfolio = Portfolio.load(unlike, allow=("different_frozen_tensors",))
    weights = {"x@1": 0.9, "y@1": 0.1}
    mechanisms = [portfolio.run(name).mechanism for name in "xy"]
    as_if_alike = last_step(LinearCombination.of_runs(mechanisms, [0.9, 0.1])).epsilon(DELTA)
    assert as_if_alike is not None
    assert gaussian_delta(2 / 0.5, as_if_alike) > 0.9, "that would be no guarantee at all"
    for theorem in ("last_step", "merged_trajectory"):
        with pytest.raises(NoGuaranteeError, match=f"{theorem} needs same tensors trained"):
            prepare(portfolio, epsilon=100.0, delta=DELTA, weights=weights, theorem=theorem, final=True)
        failing = [p for p in covered(portfolio, list(weights), theorem).premises if not p.holds]  # type: ignore[arg-type]
        assert ["y trained weight and x did not" in p.vouched_by for p in failing] == [True]
    final = prepare(portfolio, epsilon=100.0, delta=DELTA, weights=weights, final=True)
    assert final.theorem == "joint_release"
    assert gaussian_delta(2 / 0.5, final.guarantee.epsilon) <= DELTA
    searched = dpm.plan(portfolio, epsilon=30.0, delta=DELTA, theorem="last_step", method="combine")
    assert [len(candidate.recipe.names) for candidate in searched.candidates] == [1]
    together = [scope.theorem for _, scopes in inspect(portfolio).groups for scope in scopes if len(scope.members) > 1]
    assert together == ["joint_release"]
    forged = final.document()
    forged["candidates"][0]["theorem"] = "last_step"
    (tmp_path / "plan.json").write_text(json.dumps(forged))
    with pytest.raises(NotCombinableError, match="the noise of one does not hide the step of the other"):
        read_plan(tmp_path / "plan.json", portfolio)


def test_a_certificate_that_counts_on_it_does_not_fit_the_portfolio(
    unlike: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one made before this was known."""
    with monkeypatch.context() as before:
        for module in ("planning.plan.differently_trained", "portfolio.trained_tensors.differently_trained"):
            before.setattr(f"dpmerge.{module}", lambda runs: None)
        portfolio = Portfolio.load(unlike, allow=("different_frozen_tensors",))
        plan = prepare(
            portfolio, epsilon=1.0, delta=DELTA, weights={"x@1": 0.9, "y@1": 0.1}, theorem="last_step", final=True
        )
        dpm.release(plan, out=tmp_path / "out", final=True)
    checked = verify(tmp_path / "out", portfolio=portfolio)
    assert not checked.verified
    assert "last_step does not cover 0.9 × x@1 + 0.1 × y@1" in str(checked.problems)
