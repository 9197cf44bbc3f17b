"""Deliberate bugs in the accounting: the audit's scenarios or the oracle tests must notice every one.

Attacks do not ask the accounting, so what they show is found once; a bug changes what is claimed beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from accounting import (
    test_combination,
    test_loss_distribution,
    test_mechanisms,
    test_reference_values,
    test_selection,
)
from dpmerge.accounting import (
    combination,
    discretised_mixture,
    exposure,
    hidden_state_shifts,
    linear_combination_mu,
    loss_distribution,
    mechanisms,
    premises,
    random_selection,
    step_mechanisms,
    step_spectrum,
)
from dpmerge.accounting.gaussian import GaussianProfile
from dpmerge.accounting.update_chain import Chain
from dpmerge.auditing.findings import Estimate, Finding
from reproduction.scenarios.catalogue import simulated_scenarios as scenarios

TRIALS, CONFIDENCE = 50_000, 0.9999
"""Few trials, and so sure that no correct claim is ever called violated."""

Mutation = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(scope="module")
def found() -> dict[str, Estimate]:
    """What each scenario's attack shows."""
    return {name: s.estimate(trials=TRIALS, confidence=CONFIDENCE, seed=1) for name, s in scenarios().items()}


def alarms(found: Mapping[str, Estimate], names: Iterable[str]) -> set[str]:
    """The scenarios in which a claim is violated that ought to hold, or that is said to be proved."""
    raised = set()
    for name in names:
        for claim in scenarios()[name].claims():
            finding = Finding(subject=name, claim=claim, estimate=found[name])
            if finding.verdict == "violated" and (claim.proved or not claim.false_here):
                raised.add(name)
    return raised


def oracles(gaussian_values: Any, hidden_state_values: Any) -> dict[str, Callable[[], None]]:
    """Tests against 50 digits, quadrature or published figures."""
    return {
        "single runs, 50 digits": lambda: test_reference_values.test_single_runs_cost_the_reference_numbers(
            gaussian_values, 0
        ),
        "random selection, 50 digits": lambda: test_reference_values.test_random_selections_cost_the_reference_numbers(
            gaussian_values, 0
        ),
        "linear combination, 50 digits": lambda: (
            test_reference_values.test_linear_combinations_cost_the_reference_numbers_by_every_theorem(
                gaussian_values, 0
            )
        ),
        "unequal lengths, 50 digits": lambda: (
            test_reference_values.test_linear_combinations_cost_the_reference_numbers_by_every_theorem(
                gaussian_values, 2
            )
        ),
        "hidden state, quadratic program": lambda: (
            test_reference_values.test_hidden_state_bounds_equal_the_reference_numbers(hidden_state_values, 0)
        ),
        "sampled runs, published": test_loss_distribution.test_a_thousand_sampled_steps_cost_the_reference_numbers,
        "sampled runs, one record replaced": (
            test_mechanisms.test_poisson_sampling_under_replace_one_is_not_charged_twice_the_ratio
        ),
        "both directions": test_selection.test_both_directions_are_mixed_before_the_larger_is_taken,
        "shuffled batches": test_mechanisms.test_shuffled_batches_cost_one_step_an_epoch_at_its_smallest_noise,
        "sensitivity, aggregate": lambda: (
            test_mechanisms.test_sensitivity_is_two_clip_norms_unless_a_record_is_added_to_a_sum(
                "add_remove", "aggregate", 2
            )
        ),
        "ancestors": test_combination.test_every_theorem_charges_the_ancestors_or_refuses,
        "sampling buys nothing": test_combination.test_sampling_a_clipped_total_costs_the_full_batch_merged_trajectory,
        "paper's schedule": test_combination.test_the_papers_schedule_costs_the_stated_numbers,
        "merged trajectory is false": test_combination.test_merged_trajectory_is_false_for_unequal_contractions,
        "merged trajectory is false, logistic regression": (
            test_combination.test_merged_trajectory_is_false_for_logistic_regression
        ),
    }


def failing(checks: Mapping[str, Callable[[], None]]) -> set[str]:
    """The oracle tests that fail."""
    names = set()
    for name, check in checks.items():
        try:
            check()
        except AssertionError:
            names.add(name)
    return names


# The bugs.


def sensitivity_halved(patch: pytest.MonkeyPatch) -> None:
    """k = 1 whatever the adjacency."""
    patch.setattr(mechanisms.DpSgd, "sensitivity", property(lambda self: 1))


def aggregate_counted_once(patch: pytest.MonkeyPatch) -> None:
    """k = 1 under add_remove, though a clipped total can be turned round."""
    halved = property(lambda self: 1 if self.adjacency == "add_remove" else 2)
    patch.setattr(mechanisms.DpSgd, "sensitivity", halved)


def one_direction(patch: pytest.MonkeyPatch) -> None:
    """Only what adding a record costs, not removing it."""
    both = step_mechanisms.gaussian_pmfs

    def smaller(*arguments: Any) -> Any:
        _, added = both(*arguments)
        return added, added

    patch.setattr(step_mechanisms, "gaussian_pmfs", smaller)


def noise_squared_twice(patch: pytest.MonkeyPatch) -> None:
    """σ⁴ where σ² belongs."""
    patch.setattr(mechanisms, "_composed_mu", lambda k, noise: float(k * np.sqrt(np.sum(noise**-4.0))))


def probabilities_as_weights(patch: pytest.MonkeyPatch) -> None:
    """A random selection priced as the average of its candidates: π used as λ."""

    def averaged(self: random_selection.SelectionProfile, epsilon: Any) -> Any:
        mus = [member.mu if isinstance(member, GaussianProfile) else 0.0 for member in self.members]
        return GaussianProfile(float(np.dot(mus, self.probabilities))).deltas(epsilon)

    patch.setattr(random_selection.SelectionProfile, "deltas", averaged)


def weights_not_squared(patch: pytest.MonkeyPatch) -> None:
    """The noise of an average as Σ λ b² and not Σ λ² b²."""
    exact = linear_combination_mu.merged_trajectory_formula

    def wrong(checkpoints: Any, weights: Any, alignment: Any) -> Any:
        rows = np.asarray(weights, dtype=float)
        return exact(checkpoints, weights, alignment) * np.sqrt((rows**2).sum(axis=1) / rows.sum(axis=1))

    patch.setattr(linear_combination_mu, "merged_trajectory_formula", wrong)


def sampling_counted_twice(patch: pytest.MonkeyPatch) -> None:
    """q² for q."""
    exact = mechanisms.PoissonStep

    def squared(*, ratio: float, sampling_rate: float, replace_one: bool) -> Any:
        return exact(ratio=ratio, sampling_rate=sampling_rate**2, replace_one=replace_one)

    patch.setattr(mechanisms, "PoissonStep", squared)


def sampling_ignored(patch: pytest.MonkeyPatch) -> None:
    """Every batch a full one: q = 1. Too large, so no attack can see it."""
    patch.setattr(mechanisms.DpSgd, "sampling_rates", property(lambda self: np.ones(self.steps)))


def last_step_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint priced as the one before it."""
    exact = mechanisms.DpSgd.own_profile
    patch.setattr(mechanisms.DpSgd, "own_profile", lambda self, upto: exact(self, max(upto - 1, 0)))


def release_noise_squared_twice(patch: pytest.MonkeyPatch) -> None:
    """τ⁴ where τ² belongs."""
    for name in ("best_shifts", "proved_mu"):
        exact = getattr(hidden_state_shifts, name)
        patch.setattr(hidden_state_shifts, name, lambda c, w, tau, *rest, exact=exact: exact(c, w, tau**2, *rest))


def ancestors_forgotten(patch: pytest.MonkeyPatch) -> None:
    """What a run started from is not counted."""
    patch.setattr(exposure.Checkpoint, "ancestors", property(lambda self: ()))


def wrong_alignment(patch: pytest.MonkeyPatch) -> None:
    """Updates in the order from last to first."""
    exact = linear_combination_mu.chains

    def reversed_chains(candidates: Any) -> Any:
        return [Chain(c.shift[::-1], c.noise[::-1], c.lipschitz[::-1]) for c in exact(candidates)]

    patch.setattr(linear_combination_mu, "chains", reversed_chains)


def epoch_at_its_largest_noise(patch: pytest.MonkeyPatch) -> None:
    """Shuffled batches priced at the largest noise of an epoch."""

    def largest(self: mechanisms.DpSgd, upto: int) -> Any:
        return np.maximum.reduceat(self.noise_multipliers[:upto], np.arange(0, upto, self.steps_per_epoch))

    patch.setattr(mechanisms.DpSgd, "_noise_of_epochs", largest)


def premise_taken_for_granted(patch: pytest.MonkeyPatch) -> None:
    """merged_trajectory called proved for every run."""
    granted = premises.Premise("update_bounded_for_any_two_hidden_states", True, "nobody")
    patch.setattr(combination, "bounded_update", lambda *_: granted)


def clipped_gradients_taken_for_a_clipped_total(patch: pytest.MonkeyPatch) -> None:
    """What the paper's update says, claimed of ordinary per-example clipping."""
    patch.setattr(premises, "whole_update_clipped", lambda _: True)


def clipped_total_amplified(patch: pytest.MonkeyPatch) -> None:
    """Sampling taken to help where the clipped total is the whole update."""
    exact = linear_combination_mu.merged_trajectory_formula

    def cheaper(checkpoints: Any, weights: Any, alignment: Any) -> Any:
        rates = [float(np.max(c.run.sampling_rates)) for c in checkpoints]
        return exact(checkpoints, weights, alignment) * max(rates)

    patch.setattr(linear_combination_mu, "merged_trajectory_formula", cheaper)


@pytest.fixture
def fresh() -> Iterator[None]:
    """Discretised steps and their compositions are remembered: a bug must not find, or leave, the right ones."""
    remembered = (
        step_mechanisms.gaussian_pmfs,
        discretised_mixture.mixture_pmfs,
        step_spectrum.step_on_grid,
        step_spectrum.step_cumulants,
        step_spectrum.low_frequencies,
        loss_distribution._composition,
    )
    for function in remembered:
        function.cache_clear()
    yield
    for function in remembered:
        function.cache_clear()


CAUGHT: dict[Mutation, tuple[str | None, str]] = {
    sensitivity_halved: ("single_full_batch", "single runs, 50 digits"),
    aggregate_counted_once: ("aggregate", "sensitivity, aggregate"),
    one_direction: ("single_poisson", "sampled runs, published"),
    noise_squared_twice: ("joint_models", "single runs, 50 digits"),
    probabilities_as_weights: ("selection_visible", "random selection, 50 digits"),
    weights_not_squared: ("one_step", "linear combination, 50 digits"),
    sampling_counted_twice: ("single_poisson", "sampled runs, one record replaced"),
    sampling_ignored: (None, "sampled runs, one record replaced"),
    last_step_forgotten: ("one_step", "single runs, 50 digits"),
    release_noise_squared_twice: ("linear_losses", "paper's schedule"),
    ancestors_forgotten: ("ancestry", "ancestors"),
    wrong_alignment: ("forgetting", "paper's schedule"),
    epoch_at_its_largest_noise: ("single_shuffled", "shuffled batches"),
    premise_taken_for_granted: ("revealed_state", "merged trajectory is false"),
    clipped_gradients_taken_for_a_clipped_total: ("logistic", "merged trajectory is false, logistic regression"),
    clipped_total_amplified: ("aggregate_poisson", "sampling buys nothing"),
}
"""Which scenario and which oracle test notices which bug. Of a figure that is too large no attack can tell."""


@pytest.mark.usefixtures("fresh")
def test_neither_scenarios_nor_oracles_raise_an_alarm_without_a_bug(
    found: dict[str, Estimate], gaussian_values: Any, hidden_state_values: Any
) -> None:
    assert alarms(found, scenarios()) == set()
    assert failing(oracles(gaussian_values, hidden_state_values)) == set()


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("mutation", CAUGHT, ids=lambda mutation: mutation.__name__)
def test_every_bug_is_noticed_by_its_scenario_and_its_oracle(
    mutation: Mutation,
    found: dict[str, Estimate],
    gaussian_values: Any,
    hidden_state_values: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scenario, oracle = CAUGHT[mutation]
    mutation(monkeypatch)
    assert alarms(found, scenarios() if scenario is None else [scenario]) == ({scenario} if scenario else set())
    assert failing({oracle: oracles(gaussian_values, hidden_state_values)[oracle]}) == {oracle}
