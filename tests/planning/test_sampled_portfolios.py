"""Plans of Poisson-sampled, mixed and Adam portfolios: recomputed by dp_accounting, and against every small average."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as dp_pld

import dpmerge as dpm
from dpmerge.accounting import LinearCombination, last_step
from dpmerge.errors import NoGuaranteeError, TargetOutOfReachError
from dpmerge.planning import sampled_last_steps
from dpmerge.planning.candidates import candidate
from dpmerge.planning.noise_prediction import precision_weights
from dpmerge.planning.sampled_last_steps import FEW_STEPS
from dpmerge.planning.usable_checkpoints import UsableCheckpoint, usable_checkpoints
from dpmerge.terms.recipe import Recipe
from planning.synthetic import portfolio, run_document

DELTA = 1e-5
INTERVAL = 2e-4
Runs = dict[str, tuple[dict[str, Any], list[int]]]


def drawn(rng: np.random.Generator, kind: str) -> Runs:
    """Two or three runs with two checkpoints each: all sampled, one of them full batch, or trained by Adam."""
    runs: Runs = {}
    for place in range(int(rng.integers(2, 4))):
        steps = int(rng.integers(60, 300))
        name = f"r{place}"
        document = run_document(
            name,
            noise_multiplier=float(rng.uniform(0.8, 3.0)) * (25 if kind == "mixed" and place == 0 else 1),
            steps=steps,
            clip_norm=float(rng.uniform(0.5, 4.0)),
            sampling_rate=None if kind == "mixed" and place == 0 else float(rng.uniform(0.005, 0.03)),
            adjacency="add_remove",
        )
        if kind == "adam":
            document["mechanism"] = {**document["mechanism"], "optimizer": {"name": "adam"}}
        runs[name] = (document, [steps // 2, steps])
    return runs


def peer(runs: Runs, exposed: dict[str, int]) -> Any:
    """The joint release of these prefixes by dp_accounting, from the manifests."""
    whole = None
    for name, step in exposed.items():
        block = runs[name][0]["mechanism"]["blocks"][0]
        one = dp_pld.from_gaussian_mechanism(
            block["noise_multiplier"],
            sampling_prob=block.get("sampling_rate", 1.0),
            value_discretization_interval=INTERVAL,
        ).self_compose(step)
        whole = one if whole is None else whole.compose(one)
    return whole


@pytest.mark.parametrize("kind", ["sampled", "mixed", "adam"])
def test_plans_recomputed_by_dp_accounting_are_within_their_targets(kind: str) -> None:
    rng = np.random.default_rng([3, len(kind)])
    for _ in range(3):
        runs = drawn(rng, kind)
        loaded = portfolio(runs)
        costs = sorted(c.epsilon for c in usable_checkpoints(loaded, DELTA).checkpoints)
        for epsilon in (costs[0] * 1.05, float(rng.uniform(costs[0], costs[-1])), costs[-1] * 1.1):
            for method in ("auto", "select", "mix"):
                plan = dpm.plan(loaded, epsilon=epsilon, delta=DELTA, method=method)  # type: ignore[arg-type]
                assert plan.guarantee.epsilon <= epsilon
                members = [peer(runs, candidate.exposed()) for candidate in plan.candidates]
                promised = plan.guarantee.epsilon
                removal, addition = np.sum(
                    [
                        [p * side.get_delta_for_epsilon(promised) for side in (m._pmf_remove, m._pmf_add)]
                        for p, m in zip(plan.probabilities, members, strict=True)
                    ],
                    axis=0,
                )
                assert max(removal, addition) <= DELTA * 1.02, "above what the plan promises, and dp_accounting's grid"


def every_average(found: list[UsableCheckpoint]) -> list[tuple[UsableCheckpoint, ...]]:
    """One checkpoint or none of each run."""
    by_run: dict[str, list[UsableCheckpoint]] = {}
    for checkpoint in found:
        by_run.setdefault(checkpoint.run.id, []).append(checkpoint)
    chosen = []
    for count in range(1, len(by_run) + 1):
        for names in combinations(by_run, count):
            chosen += list(product(*(by_run[name] for name in names)))
    return chosen


@pytest.mark.parametrize("kind", ["sampled", "mixed", "adam"])
def test_no_precision_weighted_average_within_the_target_has_less_noise(kind: str) -> None:
    """All averages of the portfolio, each composed: the search by an effective μ² misses none of them."""
    rng = np.random.default_rng([4, len(kind)])
    for _ in range(3):
        loaded = portfolio(drawn(rng, kind))
        usable = usable_checkpoints(loaded, DELTA)
        priced = []
        for support in every_average(list(usable.checkpoints)):
            weights = precision_weights([c.noise for c in support if c.noise is not None])
            recipe = Recipe.of(zip([c.name for c in support], weights.tolist(), strict=True))
            made = candidate(loaded, recipe, delta=DELTA, theorem="joint_release")
            assert made.noise_to_signal is not None
            priced.append((made.profile.epsilon(DELTA), made.noise_to_signal))
        for epsilon in rng.uniform(min(e for e, _ in priced), max(e for e, _ in priced), 4):
            best = min(noise for cost, noise in priced if cost <= epsilon)
            plan = dpm.plan(loaded, epsilon=float(epsilon), delta=DELTA, method="combine")
            assert plan.noise_to_signal is not None
            assert plan.noise_to_signal <= best * (1 + 1e-9)


def test_a_target_below_every_sampled_checkpoint_names_one_that_can_be_planned() -> None:
    loaded = portfolio(drawn(np.random.default_rng(9), "sampled"))
    with pytest.raises(TargetOutOfReachError) as refused:
        dpm.plan(loaded, epsilon=1e-3, delta=DELTA, method="select")
    plan = dpm.plan(loaded, epsilon=refused.value.smallest, delta=DELTA, method="select")
    assert plan.guarantee.epsilon <= refused.value.smallest


# last_step, whose costs are composed one by one


def few_steps(steps: int, adjacency: str = "add_remove") -> Runs:
    return {
        f"r{place}": (
            run_document(f"r{place}", noise_multiplier=noise, steps=steps, sampling_rate=0.2, adjacency=adjacency),
            [steps],
        )
        for place, noise in enumerate((1.0, 1.5, 2.0))
    }


def test_auto_prices_no_last_steps_of_long_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("priced")

    loaded = portfolio(few_steps(FEW_STEPS + 1))
    monkeypatch.setattr(sampled_last_steps, "_price", never)
    assert dpm.plan(loaded, epsilon=20, delta=DELTA).guarantee.epsilon <= 20
    monkeypatch.setattr(sampled_last_steps, "FEW_STEPS", FEW_STEPS + 1)
    with pytest.raises(AssertionError, match="priced"):
        dpm.plan(loaded, epsilon=21, delta=DELTA)


@pytest.mark.parametrize("steps", [1, 3, 60])
def test_by_name_every_sampled_average_is_what_the_theorem_says_of_it(steps: int) -> None:
    loaded = portfolio(few_steps(steps))
    for epsilon in (2.5, 6.0, 12.0):
        try:
            plan = dpm.plan(loaded, epsilon=epsilon, delta=DELTA, theorem="last_step", method="combine")
        except TargetOutOfReachError:
            continue
        [chosen] = plan.candidates
        assert chosen.theorem == "last_step"
        assert chosen.proved
        again = last_step(
            LinearCombination(
                checkpoints=[loaded.run(name.split("@")[0]).at(steps) for name in chosen.recipe.names],
                weights=chosen.recipe.weights,
            )
        )
        assert again.profile is not None
        assert plan.guarantee.epsilon == pytest.approx(again.profile.epsilon(DELTA), rel=1e-9)
        assert plan.guarantee.epsilon <= epsilon


def test_a_final_release_of_single_sampled_steps_has_less_noise_than_joint_release_allows() -> None:
    loaded = portfolio(few_steps(1))
    noise = [
        dpm.plan(loaded, epsilon=1.0, delta=DELTA, theorem=theorem, method="combine").candidates[0].noise_to_signal
        for theorem in ("last_step", "joint_release")
    ]
    assert noise[0] is not None
    assert noise[1] is not None
    assert noise[0] < 0.8 * noise[1]


def test_asked_for_by_name_under_replace_one_it_says_what_is_missing() -> None:
    with pytest.raises(NoGuaranteeError, match="last_step covers none of these runs .*full batch"):
        dpm.plan(portfolio(few_steps(2, "replace_one")), epsilon=20, delta=DELTA, theorem="last_step")
