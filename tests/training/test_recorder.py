"""What is recorded is what happened: each figure of a record against a measurement that does not ask the recorder."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from opacus.accountants import PRVAccountant, RDPAccountant
from opacus.schedulers import (
    ExponentialGradClip,
    ExponentialNoise,
    LambdaGradClip,
    LambdaNoise,
    StepGradClip,
    StepNoise,
)
from torch import nn
from torch.optim import SGD, Adam, lr_scheduler

from dpmerge.accounting import DpSgd, LinearCombination, RenyiProfile, joint_release, last_step
from dpmerge.errors import RecordingError
from dpmerge.training import Recorder
from training.loops import (
    CLASSES,
    QUIET,
    Private,
    Truth,
    data,
    logical_steps,
    mlp,
    private,
    recorded,
    same_records,
    watched,
)

pytestmark = [pytest.mark.filterwarnings(rule) for rule in QUIET]

MODES = ("hooks", "functorch", "ghost", "ew")
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: SGD(parameters, lr=0.02),
    "momentum": lambda parameters: SGD(parameters, lr=0.02, momentum=0.9, nesterov=True),
    "dampening": lambda parameters: SGD(parameters, lr=0.02, momentum=0.8, dampening=0.3, weight_decay=0.01),
    "adam": lambda parameters: Adam(parameters, lr=0.02),
}
NOISE, CLIP, STEPS = 0.7, 1.3, 5


def mechanism(recorder: Recorder) -> DpSgd:
    """The record as the accounting reads it."""
    made = recorder.manifest().mechanism_from(None)
    assert isinstance(made, DpSgd)
    return made


def rate_moved_by(truth: Truth, step: int) -> float:
    """η of Δθ = −η·(sum + noise), by least squares: the effective rate of plain SGD."""
    noisy = truth.sums[step].double() + truth.noises[step]
    return -float(truth.moves[step] @ noisy / (noisy @ noisy))


def require_true(recorder: Recorder, truth: Truth, *, plain: bool) -> DpSgd:
    """Each step's noise, clip norm and rate as measured on records that are all the same and all too long."""
    said = mechanism(recorder)
    assert said.steps == recorder.steps == truth.steps
    noise = said.noise_multipliers * said.clip_norms
    assert truth.noise_stds == pytest.approx(noise.tolist(), rel=1e-12)
    for step, (measured, std) in enumerate(zip(truth.noises, noise, strict=True)):
        assert float(measured.std()) == pytest.approx(std, rel=6 / np.sqrt(2 * measured.numel()))
        assert abs(float(measured.mean())) < 6 * std / np.sqrt(measured.numel())
        longest = said.clip_norms[step] * truth.rows[step]
        assert float(truth.sums[step].double().norm()) <= longest * (1 + 1e-5)
        if plain:
            assert rate_moved_by(truth, step) == pytest.approx(said.rates[step], rel=1e-3)
    first = said.clip_norms[0] * truth.rows[0]
    assert float(truth.sums[0].double().norm()) == pytest.approx(first, rel=1e-4, abs=1e-6)
    return said


@pytest.mark.parametrize("physical", [None, 5])
@pytest.mark.parametrize("batches", ["poisson", "shuffled", "in_order", "full"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("mode", MODES)
def test_every_kind_of_loop_is_recorded_as_it_was_taken(
    tmp_path: Path, mode: str, optimizer: str, batches: str, physical: int | None
) -> None:
    run = private(
        mlp(60),
        dataset=same_records(),
        batches=batches,
        mode=mode,
        optimizer=OPTIMIZERS[optimizer],
        noise=NOISE,
        clip=CLIP,
    )
    with recorded(run, tmp_path) as recorder, watched(run) as truth:
        run.train(STEPS, physical)
    said = require_true(recorder, truth, plain=optimizer == "sgd")
    (block,) = said.blocks
    divisor = 48 if batches == "full" else 12
    assert (block.steps, block.noise_multiplier, block.clip_norm) == (STEPS, NOISE, CLIP)
    assert block.learning_rate == pytest.approx(0.02 / divisor, rel=1e-15)
    assert said.flat_clipping
    sampling, rate, epoch = {
        "poisson": ("poisson", 0.25, None),
        "full": ("full_batch", 1.0, None),
        "shuffled": ("shuffled", 1.0, 4),
        "in_order": ("shuffled", 1.0, 4),
    }[batches]
    assert (said.sampling, block.sampling_rate, said.steps_per_epoch) == (sampling, rate, epoch)
    facts = {
        "sgd": ("sgd", 0.0, False, 0.0, 0.0),
        "momentum": ("sgd", 0.9, True, 0.0, 0.0),
        "dampening": ("sgd", 0.8, False, 0.3, 0.01),
        "adam": ("adam", 0.0, False, 0.0, 0.0),
    }[optimizer]
    used = said.optimizer
    assert (used.name, used.momentum, used.nesterov, used.dampening, used.weight_decay) == facts


@pytest.mark.parametrize("wrap_model", [True, False])
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_a_model_left_unwrapped_is_recorded(tmp_path: Path, mode: str, wrap_model: bool) -> None:
    run = private(mlp(60), dataset=same_records(), mode=mode, noise=NOISE, clip=CLIP, wrap_model=wrap_model)
    with recorded(run, tmp_path) as recorder, watched(run) as truth:
        run.train(STEPS)
    require_true(recorder, truth, plain=True)
    assert recorder.manifest().tensors.trained == ["0.weight", "0.bias", "2.weight", "2.bias"]


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_a_sum_of_losses_is_recorded_without_a_divisor(tmp_path: Path, mode: str) -> None:
    run = private(mlp(60), dataset=same_records(), mode=mode, noise=NOISE, clip=CLIP, loss_reduction="sum")
    with recorded(run, tmp_path, adjacency="add_remove") as recorder, watched(run) as truth:
        run.train(STEPS)
    said = require_true(recorder, truth, plain=True)
    assert said.blocks[0].learning_rate == 0.1
    facts = recorder.manifest().mechanism
    assert (facts.loss_reduction, facts.expected_batch_size, facts.public_divisor) == ("sum", None, True)


def test_layers_clipped_apart_are_recorded_at_their_joint_norm(tmp_path: Path) -> None:
    norms = [0.3, 0.05, 1.2, 0.4]
    run = private(mlp(60), dataset=same_records(), batches="full", noise=NOISE, clip=norms)
    seen: list[list[float]] = []
    with recorded(run, tmp_path) as recorder, watched(run) as truth:
        accounted = run.optimizer.step_hook

        def by_layer(optimizer: Any) -> None:
            seen.append([float(p.summed_grad.double().norm()) / 48 for p in optimizer.params])
            accounted(optimizer)

        run.optimizer.step_hook = by_layer
        run.train(2)
    said = mechanism(recorder)
    assert not said.flat_clipping
    assert all(a <= norm * (1 + 1e-5) for layers in seen for a, norm in zip(layers, norms, strict=True))
    assert said.clip_norms == pytest.approx(np.linalg.norm(norms), rel=1e-12)
    # Opacus holds the norm in single precision; the noise it really added is what counts.
    assert truth.noise_stds == pytest.approx((said.noise_multipliers * said.clip_norms).tolist(), rel=1e-12)
    assert said.noise_multipliers == pytest.approx(NOISE, rel=1e-6)


def test_rates_and_norms_kept_as_tensors_are_recorded(tmp_path: Path) -> None:
    def tensor_rate(parameters: Any) -> torch.optim.Optimizer:
        return SGD(parameters, lr=torch.tensor(0.02))

    run = private(mlp(60), dataset=same_records(), batches="full", optimizer=tensor_rate, noise=NOISE)
    run.optimizer.max_grad_norm = torch.tensor(CLIP)
    with recorded(run, tmp_path) as recorder, watched(run) as truth:
        for _ in logical_steps(run, 4):
            run.optimizer.param_groups[0]["lr"].mul_(0.5)
            run.optimizer.max_grad_norm = run.optimizer.max_grad_norm * 0.5
    said = require_true(recorder, truth, plain=True)
    assert said.rates == pytest.approx(0.02 / 48 * 0.5 ** np.arange(4), rel=1e-6)
    assert len(said.blocks) == 4


def scheduled(run: Private, folder: Path, make: Callable[[Any], Any], steps: int = 6) -> tuple[DpSgd, Truth]:
    with recorded(run, folder) as recorder, watched(run) as truth:
        scheduler = make(run.optimizer)
        run.train(steps, after=scheduler.step)
    return require_true(recorder, truth, plain=True), truth


NOISE_SCHEDULES: dict[str, tuple[Callable[[Any], Any], list[float], int]] = {
    "exponential": (lambda o: ExponentialNoise(o, gamma=0.9), [0.9**k for k in range(6)], 6),
    "step": (lambda o: StepNoise(o, step_size=2, gamma=0.5), [1, 1, 0.5, 0.5, 0.25, 0.25], 3),
    "lambda": (lambda o: LambdaNoise(o, noise_lambda=lambda k: 1 + (k // 3)), [1, 1, 1, 2, 2, 2], 2),
    "back again": (lambda o: LambdaNoise(o, noise_lambda=lambda k: 1 + k % 2), [1, 2, 1, 2, 1, 2], 6),
}


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("schedule", NOISE_SCHEDULES)
def test_noise_schedules_are_recorded_in_blocks(tmp_path: Path, schedule: str, mode: str) -> None:
    make, factors, blocks = NOISE_SCHEDULES[schedule]
    run = private(mlp(60), dataset=same_records(), batches="full", mode=mode, noise=NOISE, clip=CLIP)
    said, _ = scheduled(run, tmp_path, make)
    assert said.noise_multipliers == pytest.approx(NOISE * np.array(factors), rel=1e-12)
    assert len(said.blocks) == blocks


CLIP_SCHEDULES: dict[str, tuple[Callable[[Any], Any], list[float], int]] = {
    "exponential": (lambda o: ExponentialGradClip(o, gamma=0.9), [0.9**k for k in range(6)], 6),
    "step": (lambda o: StepGradClip(o, step_size=3, gamma=0.5), [1, 1, 1, 0.5, 0.5, 0.5], 2),
    "lambda": (
        lambda o: LambdaGradClip(o, scheduler_function=lambda k: 1 - k // 2 / 4),
        [1, 1, 0.75, 0.75, 0.5, 0.5],
        3,
    ),
}


@pytest.mark.parametrize("physical", [None, 20])
@pytest.mark.parametrize("schedule", CLIP_SCHEDULES)
def test_clip_schedules_are_recorded_in_blocks(tmp_path: Path, schedule: str, physical: int | None) -> None:
    make, factors, blocks = CLIP_SCHEDULES[schedule]
    run = private(mlp(60), dataset=same_records(), batches="full", noise=NOISE, clip=CLIP)
    with recorded(run, tmp_path) as recorder, watched(run) as truth:
        scheduler = make(run.optimizer)
        run.train(6, physical, after=scheduler.step)
    said = require_true(recorder, truth, plain=True)
    assert said.clip_norms == pytest.approx(CLIP * np.array(factors), rel=1e-12)
    assert said.noise_multipliers == pytest.approx(NOISE, rel=1e-12)
    assert len(said.blocks) == blocks


RATE_SCHEDULES: dict[str, tuple[Callable[[Any], Any], list[float] | None]] = {
    "step": (lambda o: lr_scheduler.StepLR(o, step_size=2, gamma=0.1), [1, 1, 0.1, 0.1, 0.01, 0.01]),
    "cosine": (lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=10), None),
    "warm up": (lambda o: lr_scheduler.LinearLR(o, start_factor=0.5, total_iters=3), None),
    "one cycle": (lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.5, total_steps=10, cycle_momentum=False), None),
}


@pytest.mark.parametrize("schedule", RATE_SCHEDULES)
def test_rate_schedules_are_one_block_with_its_rates(tmp_path: Path, schedule: str) -> None:
    make, factors = RATE_SCHEDULES[schedule]
    run = private(mlp(60), dataset=same_records(), batches="full", noise=NOISE, clip=CLIP)
    said, _ = scheduled(run, tmp_path, make)
    (block,) = said.blocks
    assert isinstance(block.learning_rate, tuple)
    assert len(set(block.learning_rate)) > 1
    if factors is not None:
        assert said.rates * 48 / 0.1 == pytest.approx(factors)
    assert said.optimizer.is_plain


def test_schedules_of_everything_with_split_poisson_batches_are_recorded(tmp_path: Path) -> None:
    run = private(mlp(60), dataset=same_records(), noise=NOISE, clip=CLIP)
    with recorded(run, tmp_path) as recorder, watched(run) as truth:
        schedulers = (
            ExponentialNoise(run.optimizer, gamma=1.1),
            StepGradClip(run.optimizer, step_size=4, gamma=0.7),
            lr_scheduler.StepLR(run.optimizer, step_size=3, gamma=0.5),
        )
        run.train(10, 4, after=lambda: [scheduler.step() for scheduler in schedulers])
    said = require_true(recorder, truth, plain=True)
    assert len(said.blocks) == 10
    assert set(said.sampling_rates) == {0.25}


# What it costs, as Opacus' own accountants see it


@pytest.mark.parametrize(("noise", "batch_size", "steps"), [(1.0, 4, 40), (0.8, 12, 10), (3.0, 2, 60)])
def test_cost_agrees_with_opacus(tmp_path: Path, noise: float, batch_size: int, steps: int) -> None:
    run = private(nn.Linear(16, 4), dataset=data(48), batch_size=batch_size, noise=noise)
    with recorded(run, tmp_path, adjacency="add_remove", public_divisor=True) as recorder:
        scheduler = StepNoise(run.optimizer, step_size=steps // 2, gamma=0.9)
        run.train(steps, after=scheduler.step)
    delta, error = 1e-5, 0.01
    theirs: PRVAccountant = run.engine.accountant
    upper = theirs.get_epsilon(delta, eps_error=error)
    ours = recorder.epsilon(delta)
    assert upper - 2 * error <= ours <= upper
    rdp = RDPAccountant()
    rdp.history = theirs.history
    profile = mechanism(recorder).profile()
    whole = list(range(2, 64))
    curve = RenyiProfile.of(profile, whole)
    # The rate is recorded as torch's random numbers of 24 bits make it, a little above Opacus' own figure.
    assert 1 - 1e-9 <= curve.epsilon(delta) / rdp.get_epsilon(delta, alphas=whole) < 1 + 1e-5
    # At fractional orders the curve is a chord where the series behind Opacus' is not to be trusted: never lower.
    every = RenyiProfile.of(profile, RDPAccountant.DEFAULT_ALPHAS).epsilon(delta)
    assert 1 - 1e-9 <= every / rdp.get_epsilon(delta) < 1.01
    assert ours <= every


@pytest.mark.parametrize("physical", [None, 5])
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_accountant_counts_as_if_nobody_recorded(tmp_path: Path, mode: str, physical: int | None) -> None:
    histories = []
    for watch in (True, False):
        run = private(mode=mode)
        if watch:
            with recorded(run, tmp_path):
                ExponentialNoise(run.optimizer, gamma=0.5)
                run.train(6, physical)
        else:
            ExponentialNoise(run.optimizer, gamma=0.5)
            run.train(6, physical)
        histories.append(run.engine.accountant.history)
    assert histories[0] == histories[1] == [(1.0, 0.25, 6)]


def test_shuffled_batches_cost_what_their_epochs_cost(tmp_path: Path) -> None:
    run = private(batches="shuffled", noise=2.0)
    with recorded(run, tmp_path) as recorder:
        run.train(9)
    assert recorder.epsilon(1e-5) == pytest.approx(mechanism(recorder).profile().epsilon(1e-5))
    assert mechanism(recorder).profile().mu == pytest.approx(2 / 2.0 * np.sqrt(3))  # type: ignore[attr-defined]


# Epochs cut short


@pytest.mark.parametrize("batches", ["shuffled", "in_order"])
@pytest.mark.parametrize("cuts", [(3, 4), (1, 1, 1, 1), (4, 2, 4), (2, 2, 4)])
def test_epochs_cut_short_cost_one_step_each(tmp_path: Path, batches: str, cuts: tuple[int, ...]) -> None:
    run = private(batches=batches, noise=2.0)
    with recorded(run, tmp_path) as recorder:
        for taken in cuts:
            for number, batch in enumerate(run.loader, 1):
                run.step(batch)
                if number == taken:
                    break
    said = mechanism(recorder)
    facts = recorder.manifest().mechanism
    assert facts.steps_per_epoch == 4
    assert [block.steps for block in facts.passes for _ in range(block.passes)] == list(cuts)
    for upto in range(1, said.steps + 1):
        begun = next(k for k in range(1, len(cuts) + 1) if sum(cuts[:k]) >= upto)
        assert said.profile(upto).mu == pytest.approx(2 / 2.0 * np.sqrt(begun))  # type: ignore[attr-defined]


def test_the_last_epoch_may_end_early(tmp_path: Path) -> None:
    run = private(batches="shuffled")
    with recorded(run, tmp_path) as recorder:
        run.train(6)
    assert recorder.manifest().mechanism.steps_per_epoch == 4


def test_skipped_batches_cost_an_epoch_a_step(tmp_path: Path) -> None:
    run = private(batches="shuffled")
    with recorded(run, tmp_path) as recorder:
        for _ in range(2):
            for number, batch in enumerate(run.loader):
                if number != 2:
                    run.step(batch)
    assert recorder.manifest().mechanism.steps_per_epoch == 1


def test_workers_that_draw_ahead_do_not_change_the_record(tmp_path: Path) -> None:
    loader = torch.utils.data.DataLoader(same_records(), batch_size=12, num_workers=1, prefetch_factor=2)
    run = private(mlp(60), loader=loader, noise=NOISE, clip=CLIP)
    with recorded(run, tmp_path) as recorder, watched(run) as truth:
        run.train(4, 5)
    said = require_true(recorder, truth, plain=True)
    assert (said.sampling, set(said.sampling_rates)) == ("poisson", {0.25})


# Settings that differ or change leave only joint release


def certified(recorder: Recorder) -> tuple[bool, bool]:
    """By joint release, and by any theorem that looks at the updates."""
    alone = LinearCombination.of_runs([mechanism(recorder)], [1.0])
    return joint_release(alone).certifies, last_step(alone).certifies


def test_plain_sgd_is_certified_by_its_last_step(tmp_path: Path) -> None:
    run = private(batches="full")
    with recorded(run, tmp_path) as recorder:
        run.train(3)
    assert certified(recorder) == (True, True)


@pytest.mark.parametrize("setting", ["momentum", "weight_decay", "dampening", "lr"])
def test_settings_that_change_leave_only_joint_release(tmp_path: Path, setting: str) -> None:
    def two_groups(parameters: Any) -> torch.optim.Optimizer:
        return SGD([{"params": parameters[:2]}, {"params": parameters[2:]}], lr=0.1)

    run = private(batches="full", optimizer=two_groups)
    with recorded(run, tmp_path) as recorder:
        run.train(2)
        assert certified(recorder) == (True, True)
        before = run.optimizer.param_groups[0][setting]
        run.optimizer.param_groups[0][setting] = 0.5
        run.train(1)
        run.optimizer.param_groups[0][setting] = before
        run.train(1)
    assert certified(recorder) == (True, False)
    assert recorder.manifest().mechanism.optimizer.name == "sgd with settings that differ or change"


@pytest.mark.parametrize("setting", [{"lr": 0.3}, {"momentum": 0.5}, {"weight_decay": 0.5}])
def test_groups_that_differ_leave_only_joint_release(tmp_path: Path, setting: dict[str, float]) -> None:
    def two_groups(parameters: Any) -> torch.optim.Optimizer:
        return SGD([{"params": parameters[:2]}, {"params": parameters[2:], **setting}], lr=0.1)

    run = private(batches="full", optimizer=two_groups)
    with recorded(run, tmp_path) as recorder:
        run.train(2)
    assert certified(recorder) == (True, False)
    assert max(mechanism(recorder).rates) * 48 == pytest.approx(max(0.1, setting.get("lr", 0)))


def test_adam_leaves_only_joint_release(tmp_path: Path) -> None:
    run = private(batches="full", optimizer=OPTIMIZERS["adam"])
    with recorded(run, tmp_path) as recorder:
        run.train(2)
    assert certified(recorder) == (True, False)


# Everything is wrapped, and taken off again


class Stop(Exception):
    """Raised in the middle of a loop."""


def attached(run: Private) -> dict[str, object]:
    """Whatever the recorder touches."""
    optimizer, inner = run.optimizer, run.optimizer.original_optimizer
    sampler = run.loader.batch_sampler
    return {
        "hook": optimizer.step_hook,
        "generator": optimizer.generator,
        "own": {k: v for k, v in vars(optimizer).items() if callable(v)},
        "loader": type(run.loader),
        "model's own": {k: v for k, v in vars(run.model).items() if callable(v)},
        "sampler": type(sampler),
        "sampler's own": dict(vars(sampler)),
        "before": dict(inner._optimizer_step_pre_hooks),
        "after": dict(inner._optimizer_step_post_hooks),
    }


@pytest.mark.parametrize("ending", ["well", "exception", "refusal"])
@pytest.mark.parametrize("batches", ["poisson", "shuffled", "full"])
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_everything_that_was_wrapped_is_put_back(tmp_path: Path, mode: str, batches: str, ending: str) -> None:
    run = private(mode=mode, batches=batches)
    run.optimizer.generator = torch.Generator()
    before = attached(run)

    def loop() -> None:
        with recorded(run, tmp_path):
            run.train(2, 5)
            assert attached(run) != before
            if ending == "exception":
                raise Stop
            if ending == "refusal":
                run.optimizer.original_optimizer.step()

    errors = {"well": nullcontext(), "exception": pytest.raises(Stop), "refusal": pytest.raises(RecordingError)}
    with errors[ending]:
        loop()
    assert attached(run) == before
    run.train(2)


def test_a_hook_of_ones_own_still_runs(tmp_path: Path) -> None:
    run = private()
    accounted, seen = run.optimizer.step_hook, []

    def own(optimizer: Any) -> None:
        accounted(optimizer)
        seen.append(optimizer)

    run.optimizer.attach_step_hook(own)
    with recorded(run, tmp_path) as recorder:
        run.train(3)
    assert seen == [run.optimizer] * 3
    assert recorder.steps == 3
    assert run.engine.accountant.history == [(1.0, 0.25, 3)]
    assert run.optimizer.step_hook is own


def test_an_optimizer_without_an_accountant_is_recorded(tmp_path: Path) -> None:
    run = private()
    run.optimizer.step_hook = None
    with recorded(run, tmp_path) as recorder:
        run.train(2)
    assert recorder.steps == 2
    assert run.optimizer.step_hook is None


def test_recording_does_not_change_training(tmp_path: Path) -> None:
    """The same noise and the same batches lead to the same weights, recorded or not."""
    first = mlp()
    results = []
    for watch in (True, False):
        run = private(copy.deepcopy(first), batches="in_order", optimizer=OPTIMIZERS["momentum"])
        if watch:
            with recorded(run, tmp_path, noise_seed=7):
                run.train(6)
        else:
            run.optimizer.generator = torch.Generator().manual_seed(7)
            run.train(6)
        results.append(run.weights)
    assert torch.equal(*results)


def test_steps_with_closures_are_recorded(tmp_path: Path) -> None:
    run = private()
    with recorded(run, tmp_path) as recorder:
        for inputs, targets in run.loader:
            run.optimizer.step(lambda inputs=inputs, targets=targets: run.backward(inputs, targets))
    assert recorder.steps == 4


def test_the_kind_of_model_is_recorded(tmp_path: Path) -> None:
    """Plans average linear models by themselves, and networks only from one public start."""
    size = data()[0][0].numel()
    frozen = nn.Sequential(nn.Linear(size, size), nn.Flatten(), nn.Linear(size, CLASSES))
    frozen[0].requires_grad_(False)
    models = {"linear": [nn.Linear(size, CLASSES), frozen], "network": [mlp()]}
    for kind, made in models.items():
        for place, model in enumerate(made):
            run = private(model)
            with recorded(run, tmp_path / f"{kind}-{place}") as recorder:
                run.train(1)
            assert recorder.manifest().model == kind
