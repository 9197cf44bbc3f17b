"""Single runs, draws between runs, and several models seen together: what all other accounting is built on.

Guarantees: all claims here are theorems, and none is false.
"""

from __future__ import annotations

from collections.abc import Sequence

from dpmerge.auditing.attacks import Attack
from dpmerge.auditing.claims import average_claims, mechanism
from dpmerge.auditing.findings import Claim
from dpmerge.auditing.outputs import Part
from dpmerge.auditing.scenario import DELTA, Scenario
from dpmerge.auditing.schedules import Schedule
from dpmerge.auditing.threat_models import alone, alone_output, everything, merged, selected
from reproduction.scenarios.accounting_claims import average_profile, run_claim, selection_claim
from reproduction.scenarios.averages import warm_up_and_decay
from reproduction.scenarios.hidden_draw import selected_hidden

STEPS = 20
PROBABILITIES = (0.3, 0.7)


def full_batch(noise_multiplier: float, steps: int = STEPS, name: str = "run") -> Schedule:
    """The paper's run: full batch, rates that rise and then decay towards zero."""
    return Schedule.of(
        name,
        steps=steps,
        noise_multiplier=noise_multiplier,
        clip_norm=2.0,
        rates=warm_up_and_decay(steps),
        adjacency="replace_one",
    )


def many_steps() -> Schedule:
    """Noise that doubles over a long run, so that no two steps are alike."""
    steps = 500
    noises = [64.0 * 2 ** (step / steps) for step in range(steps)]
    return Schedule.of(
        "run", steps=steps, noise_multiplier=noises, rates=warm_up_and_decay(steps), adjacency="replace_one"
    )


def poisson() -> Schedule:
    return Schedule.of("run", steps=30, noise_multiplier=1.0, sampling_rate=0.1, adjacency="add_remove")


def poisson_replace_one() -> Schedule:
    return Schedule.of("run", steps=30, noise_multiplier=1.0, sampling_rate=0.1, adjacency="replace_one")


def shuffled() -> Schedule:
    """Three epochs of ten batches, and noise that falls within each: a record is in the last batch, at worst."""
    noises = [8.0 - 0.2 * (step % 10) for step in range(30)]
    return Schedule.of(
        "run", steps=30, noise_multiplier=noises, adjacency="replace_one", sampling="shuffled", steps_per_epoch=10
    )


def one_step_average() -> list[Part]:
    runs = [
        Schedule.of(f"step-{k + 1}", steps=1, noise_multiplier=noise, rates=rate, adjacency="replace_one")
        for k, (noise, rate) in enumerate(((6.0, 1.0), (3.0, 0.5)))
    ]
    return [(runs[0], 1, 0.6), (runs[1], 1, 0.4)]


def three_runs() -> list[tuple[Schedule, int]]:
    """Different noise, and one of them looked at half way."""
    return [(full_batch(32.0, name="a"), STEPS), (full_batch(64.0, name="b"), STEPS), (full_batch(16.0, name="c"), 10)]


def grown_from_private() -> Schedule:
    """A run that started from step 10 of another."""
    parent = full_batch(24.0, name="parent")
    return Schedule.of(
        "child", steps=STEPS, noise_multiplier=48.0, clip_norm=2.0, adjacency="replace_one", parent=(parent, 10)
    )


def _drawn_claims() -> tuple[Claim, ...]:
    return (selection_claim([mechanism(full_batch(noise)).profile() for noise in (32.0, 64.0)], PROBABILITIES, DELTA),)


def _merges_claims() -> tuple[Claim, ...]:
    profiles = [mechanism(full_batch(16.0)).profile(), average_profile(one_step_average(), "merged_trajectory")]
    return (selection_claim(profiles, PROBABILITIES, DELTA),)


def _sampled_claims() -> tuple[Claim, ...]:
    profiles = [mechanism(run).profile() for run in _sampled_and_whole()]
    return (selection_claim(profiles, PROBABILITIES, DELTA),)


def _sampled_and_whole() -> list[Schedule]:
    whole = Schedule.of("whole", steps=STEPS, noise_multiplier=8.0, adjacency="add_remove")
    return [poisson(), whole]


def _joint_claims() -> tuple[Claim, ...]:
    seen = three_runs()
    parts = [(run, step, 1 / len(seen)) for run, step in seen]
    return average_claims(parts, DELTA, theorems=("joint_release",))


def _between(attacks: Sequence[Attack]) -> Attack:
    return selected(attacks, PROBABILITIES)


SCENARIOS = (
    Scenario(
        name="single_full_batch",
        words=(
            "One run is trained on the whole dataset at every step, and the attacker sees nothing but its last model; "
            "the other records happen to stretch the model so that it remembers every step equally well."
        ),
        attack=lambda: alone(full_batch(32.0), STEPS),
        claims=lambda: (run_claim(full_batch(32.0), DELTA),),
        trials=400_000,
    ),
    Scenario(
        name="single_many_steps",
        words="The same for a run of 500 steps, whose noise rises while its rates decay.",
        attack=lambda: alone(many_steps(), many_steps().steps),
        claims=lambda: (run_claim(many_steps(), DELTA),),
        trials=300_000,
    ),
    Scenario(
        name="single_poisson",
        words=(
            "Each step's batch is drawn at random and has the record in it one time in ten; the attacker sees all "
            "noisy gradients."
        ),
        attack=lambda: everything([(poisson(), 30)]),
        claims=lambda: (run_claim(poisson(), DELTA),),
        trials=2_000_000,
    ),
    Scenario(
        name="single_poisson_replace_one",
        words="The same, but without the record there is another in its place, which pushes the other way.",
        attack=lambda: everything([(poisson_replace_one(), 30)]),
        claims=lambda: (run_claim(poisson_replace_one(), DELTA),),
        trials=1_500_000,
    ),
    Scenario(
        name="single_shuffled",
        words=(
            "The data is shuffled before each of three epochs, and each time the record happens to be in the batch "
            "with the least noise; the attacker sees all noisy gradients."
        ),
        attack=lambda: everything([(shuffled(), 30)]),
        claims=lambda: (run_claim(shuffled(), DELTA),),
    ),
    Scenario(
        name="single_prefix",
        words="A run is looked at after 8 of its 20 steps, and the attacker sees that model.",
        attack=lambda: alone(full_batch(16.0), 8),
        claims=lambda: (run_claim(full_batch(16.0), DELTA, upto=8),),
    ),
    Scenario(
        name="selection_visible",
        words="One of two models is drawn, the less private one three times in ten, and published with its name.",
        attack=lambda: _between([alone(full_batch(noise), STEPS) for noise in (32.0, 64.0)]),
        claims=_drawn_claims,
        trials=1_500_000,
    ),
    Scenario(
        name="selection_hidden",
        words="The same draw, but nobody says which model it was, and the attacker sees one number of it.",
        attack=lambda: selected_hidden(
            [alone_output(full_batch(noise), STEPS) for noise in (32.0, 64.0)], PROBABILITIES
        ),
        claims=_drawn_claims,
        trials=4_000_000,
    ),
    Scenario(
        name="selection_of_merges",
        words="What is drawn and named is either the model of one run or an average of two models of one step each.",
        attack=lambda: _between(
            [alone(full_batch(16.0), STEPS), merged(one_step_average(), 0.0, stretches=(1.0, 1.0))]
        ),
        claims=_merges_claims,
        trials=1_500_000,
    ),
    Scenario(
        name="selection_poisson",
        words=(
            "What is drawn and named is either a run whose batches were drawn at random or one that saw the whole "
            "dataset at every step; the attacker sees all noisy gradients of that run."
        ),
        attack=lambda: _between([everything([(run, run.steps)]) for run in _sampled_and_whole()]),
        claims=_sampled_claims,
        trials=3_000_000,
    ),
    Scenario(
        name="joint_models",
        words="Three runs are looked at, one of them half way, and the attacker sees every model that was.",
        attack=lambda: everything(three_runs()),
        claims=_joint_claims,
    ),
    Scenario(
        name="ancestry",
        words="A run is started from a privately trained model, and the attacker sees the steps of both.",
        attack=lambda: everything([(grown_from_private(), STEPS)]),
        claims=lambda: (run_claim(grown_from_private(), DELTA),),
    ),
)
