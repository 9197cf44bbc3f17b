"""Whatever is asked for, in whatever order: the transcript never costs more than the cap.

The cost is added up again from the definitions: μ² = Σ over runs of steps·(2/σ)² for full batches, one merged step
costs (Σ λ_i·2)² / Σ (λ_iσ_i)² with equal rates and clip norms, and RDP(α) = αμ²/2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from dpmerge.errors import CapExceededError, RunsLockedError
from dpmerge.ledger import Cap
from dpmerge.ledger.caps import renyi_budget
from dpmerge.ledger.state import State
from ledger.releases import SCOPE, capped, entered, exactly, request, run

DELTA = 1e-5
SIGMAS = {"a": 20.0, "b": 30.0, "c": 50.0}
RUNS = {name: run(name, sigma, steps=60) for name, sigma in SIGMAS.items()}
SHORT_SIGMAS = {f"s{place}": sigma for place, sigma in enumerate((6.0, 8.0, 12.0, 16.0))}
SHORT = {name: run(name, sigma, steps=1) for name, sigma in SHORT_SIGMAS.items()}
CEILING = {"a": 8, "b": 20, "c": 60, "s0": 1, "s1": 1, "s2": 1, "s3": 0}


def delta_of(mu: float, epsilon: float) -> float:
    if mu == 0:
        return 0.0
    return float(norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2))


@dataclass
class Transcript:
    """What has left, as the definitions see it."""

    seen: dict[str, int] = field(default_factory=dict)
    finals: float = 0.0

    def add(self, exposure: dict[str, int]) -> None:
        for name, step in exposure.items():
            self.seen[name] = max(self.seen.get(name, 0), step)

    @property
    def squared_mu(self) -> float:
        sigmas = SIGMAS | SHORT_SIGMAS
        return sum(step * (2 / sigmas[name]) ** 2 for name, step in self.seen.items()) + self.finals


@dataclass(frozen=True)
class Plain:
    """One of several sets of checkpoints, averaged."""

    candidates: tuple[tuple[tuple[str, int], ...], ...]
    draw: int


@dataclass(frozen=True)
class Merged:
    """A final release of one merged step of two short runs."""

    pair: tuple[str, str]
    weight: float


CHECKPOINTS = st.tuples(st.sampled_from(sorted(SIGMAS)), st.integers(1, 60))
CANDIDATE = st.lists(CHECKPOINTS, min_size=1, max_size=2, unique_by=lambda each: each[0]).map(tuple)
PLAIN = st.builds(Plain, st.lists(CANDIDATE, min_size=1, max_size=3).map(tuple), st.integers(0, 2))
MERGED = st.builds(
    Merged,
    st.lists(st.sampled_from(sorted(SHORT)), min_size=2, max_size=2, unique=True).map(tuple),
    st.floats(0.05, 0.95),
)


def ask(state: State, wanted: Plain | Merged, transcript: Transcript, *, jointly: bool) -> None:
    """Charge it, and if that is allowed add it to what has left."""
    if isinstance(wanted, Plain):
        made = [{f"{name}@{step}": 1 / len(c) for name, step in c} for c in wanted.candidates]
        index = wanted.draw % len(made)
        entered(state, request(RUNS.values(), *made), index)
        transcript.add(dict(wanted.candidates[index]))
        return
    one, two = wanted.pair
    weights = {f"{one}@1": wanted.weight, f"{two}@1": 1 - wanted.weight}
    entered(state, request(SHORT.values(), weights, theorem="merged_trajectory", final=True), 0)
    if jointly:
        transcript.add({one: 1, two: 1})
    else:
        spread = (wanted.weight * SHORT_SIGMAS[one]) ** 2 + ((1 - wanted.weight) * SHORT_SIGMAS[two]) ** 2
        transcript.finals += 4 / spread


@settings(max_examples=300)
@given(st.sampled_from(["ceiling", "gaussian_filter"]), st.floats(0.5, 6.0), st.lists(PLAIN | MERGED, max_size=12))
def test_no_sequence_of_releases_passes_a_cap(rule: str, epsilon: float, releases: list[Plain | Merged]) -> None:
    if rule == "ceiling":
        try:
            state = capped(Cap.of_manifests(epsilon, DELTA, CEILING, [*RUNS.values(), *SHORT.values()]))
        except CapExceededError:
            assert delta_of(math.sqrt(Transcript(CEILING).squared_mu), epsilon) > DELTA
            return
    else:
        state = capped(Cap(epsilon=epsilon, delta=DELTA, rule="gaussian_filter"))
    transcript = Transcript()
    for wanted in releases:
        try:
            ask(state, wanted, transcript, jointly=rule == "ceiling")
        except (CapExceededError, RunsLockedError):
            continue
        assert delta_of(math.sqrt(transcript.squared_mu), epsilon) <= DELTA * (1 + 1e-9)


STEP = st.tuples(st.integers(1, 60), st.integers(1, 60), st.floats(0.01, 0.99), st.sampled_from(sorted(SIGMAS)))


@settings(max_examples=100)
@given(st.floats(0.5, 4.0), st.lists(STEP, min_size=1, max_size=4), st.booleans())
def test_the_renyi_filter_keeps_its_budget_in_expectation_over_all_draws(
    epsilon: float, plans: list[tuple[int, int, float, str]], lucky: bool
) -> None:
    """Every sequence of draws, each with its probability: E[e^{(α−1)·RDP}] ≤ e^{(α−1)B}, plans chosen on the way.

    Asking for more after a lucky draw (the lower candidate) than after an unlucky one is what the naive rule forgets.
    """
    cap = Cap(epsilon=epsilon, delta=DELTA, rule="renyi_filter")
    assert cap.order is not None
    order, total = cap.order, 0.0
    for draws in product((0, 1), repeat=len(plans)):
        state, transcript, chance = capped(cap), Transcript(), 1.0
        for (low, high, probability, name), drawn in zip(plans, draws, strict=True):
            if lucky and transcript.seen.get(name, 0) > low:
                chance *= 0.5  # no release on this branch: both draws lead to the same
                continue
            pair = exactly([1 - probability, probability])
            wanted = request(RUNS.values(), f"{name}@{low}", f"{name}@{high}", probabilities=pair)
            try:
                entered(state, wanted, drawn)
            except CapExceededError:
                chance *= 0.5
                continue
            chance *= pair[drawn]
            transcript.add({name: (low, high)[drawn]})
        total += chance * math.exp((order - 1) * order * transcript.squared_mu / 2)
    assert total <= math.exp((order - 1) * renyi_budget(epsilon, DELTA, order)) * (1 + 1e-9)


def test_the_runs_of_these_tests_are_of_one_budget_scope() -> None:
    assert {(each.dataset.id, each.unit, each.adjacency) for each in [*RUNS.values(), *SHORT.values()]} == {
        (SCOPE.dataset, SCOPE.unit, SCOPE.adjacency)
    }
