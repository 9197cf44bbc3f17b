"""Loops in which weights move by something else than the noised gradients: refused, or recorded as what they are."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from attacks.faults import must_notice
from dpmerge.accounting import LinearCombination, joint_release, last_step
from dpmerge.errors import RecordingError
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.training import noised_gradients, reference_optimizer, step_observer
from training.loops import QUIET, Private, data, private, recorded, refused_at_once, refusing

pytestmark = [pytest.mark.filterwarnings(rule) for rule in QUIET]

DELTA = 1e-5


def gaussian_epsilon(mu: float) -> float:
    """The smallest ε with Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2) ≤ δ, by bisection."""

    def delta(epsilon: float) -> float:
        def phi(x: float) -> float:
            return math.erfc(-x / math.sqrt(2)) / 2

        return phi(-epsilon / mu + mu / 2) - math.exp(epsilon) * phi(-epsilon / mu - mu / 2)

    low, high = 0.0, 200.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if delta(middle) > DELTA else (low, middle)
    return high


# The gradient changed between noise and update


def clipping_hook(made: Private, clip: Callable[[list[Tensor]], object]) -> None:
    """Opacus' step hook, wrapped: it runs after the noise and before the update."""
    accounted = made.optimizer.step_hook

    def hook(optimizer: Any) -> None:
        accounted(optimizer)
        clip(optimizer.params)

    made.optimizer.attach_step_hook(hook)


def loud_and_quiet(folder: Path, clip: Callable[[list[Tensor]], object] | None) -> list[Any]:
    """Two runs of one step, σ = 20 and 0.4; the noised gradient of the first is clipped to almost nothing."""
    made = []
    for name, noise in (("loud", 20.0), ("quiet", 0.4)):
        run = private(batches="full", noise=noise)
        if name == "loud" and clip is not None:
            clipping_hook(run, clip)
        with recorded(run, folder / name, run=name) as record:
            run.train(1)
        made.append(record.manifest().mechanism_from(None))
    return made


def noised_gradient_clipped(folder: Path, clip: Callable[[list[Tensor]], object]) -> None:
    """last_step counts on the noise of the loud run, ε 0.7 for their mean; clipped away, the quiet run is bare: 32."""
    claimed = last_step(LinearCombination.of_runs(loud_and_quiet(folder / "plain", None), [0.5, 0.5]))
    true = gaussian_epsilon(2 / 0.4)
    assert claimed.certifies
    assert claimed.profile.epsilon(DELTA) < 0.75 < 32 < true
    clipped = LinearCombination.of_runs(loud_and_quiet(folder / "clipped", clip), [0.5, 0.5])
    assert not last_step(clipped).certifies
    assert joint_release(clipped).certifies
    assert joint_release(clipped).profile.epsilon(DELTA) > true


CLIPS: dict[str, Callable[[list[Tensor]], object]] = {
    "by norm": lambda parameters: clip_grad_norm_(parameters, 1e-4),
    "by value": lambda parameters: clip_grad_value_(parameters, 1e-5),
}


@pytest.mark.parametrize("how", CLIPS)
def test_a_step_hook_that_clips_noised_gradients_leaves_only_joint_release(tmp_path: Path, how: str) -> None:
    noised_gradient_clipped(tmp_path, CLIPS[how])


def test_clipping_noised_gradients_by_hand_leaves_only_joint_release(tmp_path: Path) -> None:
    run = private(batches="full")
    with recorded(run, tmp_path) as record:
        for _ in range(3):
            for inputs, targets in run.loader:
                run.backward(inputs, targets)
                if run.optimizer.pre_step():
                    clip_grad_norm_(run.optimizer.params, 1e-3)
                    run.optimizer.original_optimizer.step()
    alone = LinearCombination.of_runs([record.manifest().mechanism_from(None)], [1.0])
    assert (joint_release(alone).certifies, last_step(alone).certifies) == (True, False)


@pytest.mark.parametrize("always", [True, False])
def test_clipping_that_acts_now_and_then_is_told_from_other_changes(tmp_path: Path, always: bool) -> None:
    """Short gradients are left alone by the rule that clips long ones; a long one left alone follows no rule."""
    run = private(batches="full")
    quiet: list[bool] = []

    def clip(parameters: list[Tensor]) -> None:
        if always or not quiet[-1]:
            clip_grad_norm_(parameters, 0.2 if always else 0.001)

    clipping_hook(run, clip)
    with refusing(run, tmp_path / "b", "between the noise") if not always else recorded(run, tmp_path / "a") as record:
        for step in range(4):
            quiet.append(step % 2 == 1)
            run.optimizer.noise_multiplier = 0.01 if quiet[-1] else 1.0
            run.train(1)
    if always:
        assert record.steps == 4
        assert record.manifest().mechanism.optimizer.name == "sgd with settings that differ or change"


CHANGES: dict[str, Callable[[Private, int], object]] = {
    "the sum without its noise": lambda made, _: [
        p.grad.copy_(p.summed_grad / made.optimizer.expected_batch_size) for p in made.optimizer.params
    ],
    "half of the noise": lambda made, _: [
        p.grad.copy_((p.grad + p.summed_grad / made.optimizer.expected_batch_size) / 2) for p in made.optimizer.params
    ],
    "a factor that changes from step to step": lambda made, step: [
        p.grad.mul_(1 + step) for p in made.optimizer.params
    ],
    "something added to one layer": lambda made, _: made.optimizer.params[0].grad.add_(data().tensors[0].mean()),
    "written past torch's count of changes": lambda made, _: made.optimizer.params[0].grad.data.mul_(-1),
}


def changed_gradient(folder: Path, name: str) -> None:
    run = private(batches="full")
    accounted, taken = run.optimizer.step_hook, []

    def hook(optimizer: Any) -> None:
        accounted(optimizer)
        taken.append(1)
        CHANGES[name](run, len(taken))

    run.optimizer.attach_step_hook(hook)
    with refusing(run, folder / "run", "gradients were changed between the noise and the update"):
        run.train(3)


@pytest.mark.parametrize("name", CHANGES)
def test_gradients_changed_after_the_noise_are_refused(tmp_path: Path, name: str) -> None:
    """No noise, no guarantee: the true ε is infinite, whatever is recorded."""
    changed_gradient(tmp_path, name)


@pytest.mark.parametrize("how", ["by hand", "an inner hook", "a hook of the recorder's own wrapped again"])
def test_a_sum_without_noise_put_back_elsewhere_is_refused(tmp_path: Path, how: str) -> None:
    run = private(batches="full")

    def put_back(*_: Any) -> None:
        CHANGES["the sum without its noise"](run, 0)

    with refusing(run, tmp_path / "run", "gradients were changed between the noise and the update"):
        if how == "an inner hook":
            run.optimizer.original_optimizer.register_step_pre_hook(put_back)
        elif how.startswith("a hook"):
            recording = run.optimizer.step_hook
            run.optimizer.attach_step_hook(lambda optimizer: (recording(optimizer), put_back()))
        for inputs, targets in run.loader:
            run.backward(inputs, targets)
            if how == "by hand":
                run.optimizer.pre_step()
                put_back()
                run.optimizer.original_optimizer.step()
            else:
                run.optimizer.step()


# Noise that was not added


@pytest.mark.parametrize("scale", [0.0, 0.5])
def test_noise_of_another_size_is_refused(tmp_path: Path, scale: float) -> None:
    run = private(batches="full")
    kind = type(run.optimizer)
    add_noise = kind.add_noise

    def quieter(optimizer: Any) -> None:
        add_noise(optimizer)
        for p in optimizer.params:
            p.grad = (p.summed_grad + scale * (p.grad - p.summed_grad)).view_as(p)

    with pytest.MonkeyPatch.context() as patch, refusing(run, tmp_path / "run", "the noise of a step is"):
        patch.setattr(kind, "add_noise", quieter)
        run.train(1)


def noise_left_out(folder: Path) -> None:
    run = private(batches="full")
    kind = type(run.optimizer)

    def none(optimizer: Any) -> None:
        for p in optimizer.params:
            p.grad = p.summed_grad.clone()

    with pytest.MonkeyPatch.context() as patch, refusing(run, folder / "run", "the noise of a step is"):
        patch.setattr(kind, "add_noise", none)
        run.train(1)


def unclipped_sum(folder: Path) -> None:
    """A gradient added to the sum after clipping: 1,000 clip norms that no noise is scaled for."""
    run = private(batches="full")
    with refusing(run, folder / "run", "something was added to it that was not clipped"):
        add_noise = run.optimizer.add_noise

        def more() -> None:
            run.optimizer.params[0].summed_grad += 1000.0
            add_noise()

        run.optimizer.add_noise = more
        run.train(1)


def test_something_added_to_the_clipped_sum_is_refused(tmp_path: Path) -> None:
    unclipped_sum(tmp_path)


# Weights written past autograd


def solution_written(folder: Path, at: int) -> None:
    """The least-squares solution of the private data, scaled to the old norm: recorded ε 0.26, true none at all."""
    run = private(nn.Linear(16, 4, bias=False), dataset=data(48), batches="full", noise=200.0)
    inputs, targets = data(48).tensors
    solution = torch.linalg.lstsq(inputs, nn.functional.one_hot(targets, 4).float()).solution.T
    with refusing(run, folder / "run", "trained weights were changed"):
        for step in range(24):
            run.train(1)
            if step + 1 == at:
                weight = run.plain.weight
                weight.data.copy_(solution * (weight.detach().norm() / solution.norm()))
    honest = private(nn.Linear(16, 4, bias=False), dataset=data(48), batches="full", noise=200.0)
    with recorded(honest, folder / "honest") as record:
        honest.train(24)
    assert record.epsilon(DELTA) < 0.26


@pytest.mark.parametrize("at", [1, 17, 19, 23])
def test_weights_written_past_autograd_between_two_steps_are_refused(tmp_path: Path, at: int) -> None:
    solution_written(tmp_path, at)


class ReadsTheSum(torch.optim.SGD):
    """An optimizer of one's own that moves the weights by the sum without its noise."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p -= group["lr"] * p.summed_grad


def test_an_optimizer_that_reads_the_sum_without_its_noise_is_refused(tmp_path: Path) -> None:
    run = private(batches="full", optimizer=lambda parameters: ReadsTheSum(parameters, lr=0.1))
    with refusing(run, tmp_path / "run", "ReadsTheSum could not be repeated with the noised gradients alone"):
        run.train(1)


def test_momentum_filled_from_the_private_data_is_refused(tmp_path: Path) -> None:
    run = private(batches="full", optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
    with refusing(run, tmp_path / "run", "did not move by what SGD makes of the noised gradients"):
        run.train(2)
        for state in run.optimizer.state.values():
            state["momentum_buffer"] += data().tensors[0].mean()
        run.train(1)


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "RMSprop", "NAdam", "Adadelta"])
def test_honest_optimizers_of_all_kinds_are_repeated_exactly(tmp_path: Path, kind: str) -> None:
    run = private(batches="full", optimizer=lambda p: getattr(torch.optim, kind)(p, lr=0.01))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(run.optimizer.original_optimizer, T_max=10)
    with recorded(run, tmp_path) as record:
        run.train(6, after=scheduler.step)
    assert record.steps == 6


# A refusal keeps what was valid


@pytest.mark.parametrize("ending", ["a batch left out", "weights changed"])
def test_a_refusal_at_the_end_keeps_what_was_valid(tmp_path: Path, ending: str) -> None:
    run = private()
    with refusing(run, tmp_path / "run", checkpoint_every=2, stopping="fixed") as recorder:
        batches = iter(run.loader)
        for _ in range(3):
            run.step(next(batches))
        if ending == "a batch left out":
            next(batches)
        else:
            run.plain[0].weight.data += 1
            recorder.checkpoint()
    (loaded,) = Portfolio.load(tmp_path).runs
    assert not loaded.manifest.finished
    assert [saved.step for saved in loaded.checkpoints] == ([2, 3] if ending == "a batch left out" else [2])
    # That step 3 was the last one may be the doing of what was in the fourth batch.
    assert loaded.manifest.stopping == ("private" if ending == "a batch left out" else "fixed")


# With a check taken out, the attacks above get through

FAULTS: dict[str, tuple[Callable[[Path], object], object, str, Any]] = {
    "weights are not compared between steps": (
        lambda folder: solution_written(folder, 17),
        reference_optimizer.ReferenceOptimizer,
        "require_still",
        lambda self: None,
    ),
    "gradients are not compared before the update": (
        lambda folder: changed_gradient(folder, "half of the noise"),
        noised_gradients.NoisedGradients,
        "taken",
        lambda self: [p.grad.clone() for p in self._optimizer.params],
    ),
    "any change of gradients is taken for clipping": (
        lambda folder: changed_gradient(folder, "half of the noise"),
        noised_gradients,
        "_rules",
        lambda noised, used: {"norm": 1.0},
    ),
    "clipped gradients pass for SGD's": (
        lambda folder: noised_gradient_clipped(folder, CLIPS["by norm"]),
        noised_gradients.NoisedGradients,
        "changed",
        property(lambda self: False),
    ),
    "noise is not measured": (noise_left_out, noised_gradients.NoisedGradients, "_require_noise", lambda *_: None),
    "sums are not measured": (unclipped_sum, noised_gradients, "_SUM_ERROR", 1e9),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_tests_notice_a_check_that_is_left_out(tmp_path: Path, fault: str) -> None:
    attack, owner, name, replacement = FAULTS[fault]
    must_notice(attack, tmp_path, owner, name, replacement)


def test_tests_notice_when_updates_are_not_compared(tmp_path: Path) -> None:
    """Without the comparison an optimizer of one's own could move the weights by anything."""

    def attack(folder: Path) -> None:
        run = private(batches="full", optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
        with refusing(run, folder / "run", "did not move by what SGD makes"):
            run.train(2)
            for state in run.optimizer.state.values():
                state["momentum_buffer"] += 1.0
            run.train(1)

    must_notice(attack, tmp_path, reference_optimizer, "_agree", lambda *_: True)


# Passes at other weights, copies of the model, refusals that were caught


def at_other_weights(folder: Path) -> None:
    """Sharpness-aware: gradients at weights moved along the last, un-noised gradient. Recorded as 3.71, true 134."""
    run = private(batches="full")
    with refusing(run, folder / "run", "trained weights were changed"):
        for step in range(3):
            for inputs, targets in run.loader:
                before = [p.detach().clone() for p in run.optimizer.params]
                for p in run.optimizer.params if step else ():
                    p.data.add_(0.1)
                run.backward(inputs, targets)
                for p, kept in zip(run.optimizer.params, before, strict=True):
                    p.data.copy_(kept)
                run.optimizer.step()


def test_tests_notice_when_weights_are_not_compared_before_a_pass(tmp_path: Path) -> None:
    must_notice(at_other_weights, tmp_path, step_observer.StepObserver, "before_pass", lambda self: None)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_a_model_may_be_copied_in_the_course_of_the_run(tmp_path: Path, mode: str) -> None:
    """As for an average of weights; the copy is nobody's business."""
    run = private(batches="full", mode=mode)
    with recorded(run, tmp_path / "run") as record:
        run.train(1)
        kept = copy.deepcopy(run.plain).eval()
        with torch.no_grad():
            kept(data().tensors[0])
        run.train(2)
    assert record.steps == 3
    with recorded(private(batches="full", mode=mode), tmp_path / "another"):
        pass


def test_a_new_adagrad_is_recorded_and_a_used_one_is_refused(tmp_path: Path) -> None:
    run = private(batches="full", optimizer=lambda p: torch.optim.Adagrad(p, lr=0.01))
    with recorded(run, tmp_path / "run") as record:
        run.train(3)
    assert record.steps == 3
    refused_at_once(run, tmp_path / "again", "counted 3 steps already")


def test_a_run_whose_refusal_was_caught_is_unfinished(tmp_path: Path) -> None:
    run = private(batches="full")
    with recorded(run, tmp_path) as record:
        run.train(1)
        before = run.plain[0].weight.detach().clone()
        run.plain[0].weight.data += 1
        with pytest.raises(RecordingError):
            run.train(1)
        run.plain[0].weight.data.copy_(before)
    assert not record.manifest().finished


def test_an_unsaved_buffer_that_changes_is_refused(tmp_path: Path) -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 4)
            self.register_buffer("mean", torch.zeros(16), persistent=False)

        def forward(self, inputs: Tensor) -> Tensor:
            if self.training:
                self.mean.mul_(0.9).add_(0.1 * inputs.detach().mean(0))
            return self.layer(inputs - self.mean)

    run = private(Centred(), batches="full")
    with refusing(run, tmp_path / "run"):
        run.train(2)
