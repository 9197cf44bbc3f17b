"""Loops that make a record claim less than the truth, or lose it: each must be refused or recorded as it was."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from dpmerge.accounting import LinearCombination, last_step
from dpmerge.errors import DpmergeError, InvalidInputError, RecordingError
from dpmerge.files import LARGEST_DOCUMENT
from dpmerge.portfolio.manifest import MANIFEST_NAME
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.training import ChangedWeightsWarning, Recorder, bound_features
from dpmerge.training.step_blocks import RecordedStep
from training.loops import (
    CLASSES,
    FEATURES,
    QUIET,
    Truth,
    data,
    mlp,
    private,
    recorded,
    refused_at_once,
    refusing,
    same_records,
    started,
    watched,
)

pytestmark = [pytest.mark.filterwarnings(rule) for rule in QUIET]


def require_clipped(recorder: Recorder, truth: Truth) -> None:
    """No record's part of a sum is longer than the recorded clip norm (records that are all the same)."""
    norms = recorder.manifest().mechanism_from(None).clip_norms  # type: ignore[attr-defined]
    for norm, total, rows in zip(norms, truth.sums, truth.rows, strict=True):
        assert float(total.double().norm()) <= norm * rows * (1 + 1e-5)


def require_only_joint_release(recorder: Recorder) -> None:
    alone = LinearCombination.of_runs([recorder.manifest().mechanism_from(None)], [1.0])
    assert not last_step(alone).certifies


# Clipping that did not happen


def test_ghost_clipping_with_ones_own_loss_is_refused(tmp_path: Path) -> None:
    """make_private's criterion does the clipping; another loss leaves the batch's whole gradient in p.grad."""
    run = private(dataset=same_records(), batches="full", mode="ghost")
    run.criterion = nn.CrossEntropyLoss(reduction="sum")
    with refusing(run, tmp_path):
        run.train(1)


def test_ghost_clipping_with_a_penalty_in_the_loss_is_refused(tmp_path: Path) -> None:
    """A penalty on the weights is added to every record's loss, and no hook sees its gradient."""
    model = mlp()
    run = private(model, dataset=same_records(), batches="full", mode="ghost")
    with refusing(run, tmp_path):
        for inputs, targets in run.loader:
            run.optimizer.zero_grad()
            penalty = 100 * sum((parameter**2).sum() for parameter in model.parameters())
            (run.criterion(run.model(inputs), targets) + penalty).backward()
            run.optimizer.step()


def test_a_ghost_clip_norm_changed_between_backward_and_step_is_refused(tmp_path: Path) -> None:
    """Ghost clipping happens in backward(): what the norm is when step() is called does not matter."""
    run = private(dataset=same_records(), batches="full", mode="ghost", clip=3.0)
    with refusing(run, tmp_path):
        run.backward(*next(iter(run.loader)))
        run.model.max_grad_norm = run.optimizer.max_grad_norm = 0.1
        run.optimizer.step()


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("batches", ["poisson", "shuffled", "full"])
def test_more_rows_than_records_are_refused(tmp_path: Path, batches: str, mode: str) -> None:
    """Augmented copies are clipped one by one: a record of eight copies adds up to eight clip norms."""
    run = private(dataset=same_records(), batches=batches, mode=mode)
    with refusing(run, tmp_path):
        for inputs, targets in run.loader:
            run.step([torch.cat([inputs] * 8), torch.cat([targets] * 8)])


def test_records_twice_in_an_earlier_physical_batch_are_refused(tmp_path: Path) -> None:
    run = private(dataset=same_records(), batches="full")
    halves = BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=24, optimizer=run.optimizer)
    with refusing(run, tmp_path), halves as split:
        for number, (inputs, targets) in enumerate(split):
            run.backward(inputs, targets)
            if number == 0:
                run.criterion(run.model(inputs), targets).backward()
            run.optimizer.step()


def test_ghost_clipping_stepped_twice_within_a_split_batch_is_refused(tmp_path: Path) -> None:
    run = private(dataset=same_records(), batches="full", mode="ghost")
    halves = BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=24, optimizer=run.optimizer)
    with refusing(run, tmp_path), halves as split:
        for batch in split:
            run.step(batch)
            run.optimizer.step()
            break


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_gradients_left_over_from_before_are_refused(tmp_path: Path, mode: str) -> None:
    run = private(dataset=same_records(), batches="in_order", mode=mode)
    batch = next(iter(run.loader))
    for _ in range(5):
        run.optimizer.signal_skip_step(True)
        run.step(batch)
    refused_at_once(run, tmp_path)


# Weights that something else moves


def test_weights_moved_by_another_optimizer_are_refused(tmp_path: Path) -> None:
    run = private()
    beside = torch.optim.SGD(run.plain.parameters(), lr=0.1)
    with refusing(run, tmp_path):
        for inputs, targets in run.loader:
            run.step([inputs, targets])
            beside.zero_grad()
            run.model.disable_hooks()
            nn.functional.cross_entropy(run.plain(inputs), targets).backward()
            run.model.enable_hooks()
            beside.step()


def test_weights_that_are_set_back_are_refused(tmp_path: Path) -> None:
    run = private(batches="full")
    saved = {name: value.clone() for name, value in run.plain.state_dict().items()}
    with refusing(run, tmp_path, "trained weights were changed"):
        run.train(3)
        run.plain.load_state_dict(saved)
        run.train(1)


def test_weights_moved_after_the_last_step_are_refused(tmp_path: Path) -> None:
    """They are what would be written to disk."""
    run = private()
    with refusing(run, tmp_path) as recorder:
        run.train(1)
        with torch.no_grad():
            run.plain[0].weight += run.loader.dataset.tensors[0].sum()  # type: ignore[attr-defined]
        recorder.checkpoint()


def test_weights_moved_as_the_last_line_are_not_what_is_kept(tmp_path: Path) -> None:
    """Whatever they are, the record ends with those that the private optimizer left, and says so."""
    run = private()
    recorder = started(run, tmp_path)
    run.train(1)
    left = {name: value.clone() for name, value in run.plain.state_dict().items()}
    with torch.no_grad():
        run.plain[0].weight += run.loader.dataset.tensors[0].sum()  # type: ignore[attr-defined]
    with pytest.warns(ChangedWeightsWarning, match="changed after the last step"):
        recorder.close()
    kept = load_file(tmp_path / "step-1.safetensors")
    assert all(torch.equal(kept[name], value) for name, value in left.items())
    assert Portfolio.load(tmp_path).runs[0].manifest.finished
    with pytest.raises(RecordingError, match="changed by something else"):
        recorder.metric("accuracy", 1.0, measured_on="public")


def test_weights_moved_without_a_version_count_are_refused(tmp_path: Path) -> None:
    """Writing through .data is not counted as a change."""
    run = private()
    with refusing(run, tmp_path):
        for batch in run.loader:
            run.step(batch)
            run.plain[0].weight.data += batch[0].sum()


def test_a_part_of_the_model_is_refused(tmp_path: Path) -> None:
    """Nobody would look at batch normalisation, or at frozen tensors, in the part that was not given."""
    run = private()
    run.model = run.plain[2]
    refused_at_once(run, tmp_path, "the optimizer trains 2 tensors that are not in it")


# Optimizers that are not what they are called


def test_another_class_called_sgd_leaves_only_joint_release(tmp_path: Path) -> None:
    class SGD(torch.optim.Adam):
        """As bitsandbytes' and others' are."""

    run = private(batches="full", optimizer=lambda parameters: SGD(parameters, lr=0.1))
    with recorded(run, tmp_path) as recorder:
        run.train(2)
    require_only_joint_release(recorder)


def test_gradient_ascent_is_not_recorded_as_a_contraction(tmp_path: Path) -> None:
    def uphill(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=1e-4, maximize=True)

    run = private(nn.Linear(FEATURES, CLASSES), batches="full", clip=20.0, optimizer=uphill)
    with recorded(run, tmp_path, criterion=nn.CrossEntropyLoss(), feature_bound=8.0) as recorder:
        run.train(2)
    made = recorder.manifest().mechanism_from(None)
    factors = made.lipschitz(2)  # type: ignore[attr-defined]
    assert factors is None or min(factors) > 1 + 1e-3 or not made.optimizer.is_sgd  # type: ignore[attr-defined]


@pytest.mark.parametrize("where", ["step hook", "inner hook"])
def test_a_rate_changed_by_a_hook_is_recorded_or_leaves_sgd(tmp_path: Path, where: str) -> None:
    run = private(batches="full")

    def faster(*_: Any) -> None:
        for group in run.optimizer.param_groups:
            group["lr"] = 5.0

    if where == "step hook":
        run.optimizer.attach_step_hook(faster)
    with recorded(run, tmp_path) as recorder:
        if where == "inner hook":
            run.optimizer.original_optimizer.register_step_pre_hook(faster)
        run.train(1)
    made = recorder.manifest().mechanism_from(None)
    assert not made.optimizer.is_sgd or made.rates[0] * 48 == pytest.approx(5.0)  # type: ignore[attr-defined]


def test_a_divisor_that_changes_is_refused(tmp_path: Path) -> None:
    """With weight decay the contraction is computed from the divisor, which is written down once."""
    run = private(batches="full")
    with refusing(run, tmp_path, "expected_batch_size: changed in the course"):
        run.train(2)
        run.optimizer.expected_batch_size = 1000
        run.train(1)


# Steps and batches


def test_steps_taken_before_under_a_wrapped_hook_are_refused(tmp_path: Path) -> None:
    """The accountant is behind a wrapper, and plain SGD keeps no state: fifty steps nobody sees."""
    run = private()
    accounted = run.optimizer.step_hook
    run.optimizer.attach_step_hook(lambda optimizer: accounted(optimizer))
    run.train(50)
    refused_at_once(run, tmp_path)


def test_another_loader_after_an_evaluation_on_the_right_one_is_refused(tmp_path: Path) -> None:
    """Batches drawn for an evaluation are not batches for later steps."""
    run = private(dataset=data(480))
    inputs, targets = run.loader.dataset.tensors  # type: ignore[attr-defined]
    with refusing(run, tmp_path):
        for _ in run.loader:
            pass
        for _ in range(40):
            run.step([inputs[:12], targets[:12]])


def test_the_same_batch_twice_after_an_evaluation_is_refused(tmp_path: Path) -> None:
    run = private(dataset=data(480))
    with refusing(run, tmp_path):
        for _ in run.loader:
            pass
        for batch in run.loader:
            run.step(batch)
            run.step(batch)


def test_the_same_batch_while_workers_draw_ahead_is_refused(tmp_path: Path) -> None:
    run = private(loader=DataLoader(data(480), batch_size=12, num_workers=1, prefetch_factor=4))
    with refusing(run, tmp_path):
        for batch in run.loader:
            for _ in range(4):
                run.step(batch)
            break


@pytest.mark.parametrize("batches", ["poisson", "shuffled"])
def test_two_poisson_epochs_at_once_are_refused(tmp_path: Path, batches: str) -> None:
    """Four steps in which a record can be twice are not one epoch."""
    run = private(batches=batches)
    with refusing(run, tmp_path):
        for first, second in zip(run.loader, run.loader, strict=True):
            run.step(first)
            run.step(second)


def test_overlapping_shuffled_epochs_cost_an_epoch_a_step(tmp_path: Path) -> None:
    run = private(batches="shuffled", noise=2.0)
    with recorded(run, tmp_path) as recorder:
        passes = [iter(run.loader), iter(run.loader)]
        for _ in range(4):
            for each in passes:
                run.step(next(each))
    assert recorder.manifest().mechanism.steps_per_epoch == 1


def test_a_sampling_rate_changed_while_workers_draw_ahead_is_refused(tmp_path: Path) -> None:
    run = private(loader=DataLoader(data(480), batch_size=48, num_workers=1, prefetch_factor=4))
    with refusing(run, tmp_path, "rate or generator was changed"):
        for batch in run.loader:
            run.loader.batch_sampler.sample_rate = 0.001  # type: ignore[union-attr]
            run.step(batch)


def test_sampling_rates_are_rounded_up_to_24_bits(tmp_path: Path) -> None:
    """torch.rand(n) < q is true with probability ⌈q·2²⁴⌉/2²⁴, which is a little more than q."""
    run = private(nn.Linear(FEATURES, CLASSES), dataset=data(300), batch_size=100)
    with recorded(run, tmp_path) as recorder:
        run.train(1)
    rate = run.loader.sample_rate  # type: ignore[attr-defined]
    assert recorder.manifest().mechanism.blocks[0].sampling_rate >= math.ceil(rate * 2**24) / 2**24


def test_noise_from_another_generator_is_refused(tmp_path: Path) -> None:
    """The manifest says os_entropy."""
    run = private(batches="full")
    with refusing(run, tmp_path):
        run.optimizer.generator = torch.Generator().manual_seed(0)
        run.train(1)


def test_steps_taken_before_and_their_gradients_cleared_are_refused(tmp_path: Path) -> None:
    """The cure that the refusal recommends must not hide what it refuses."""
    run = private()
    accounted = run.optimizer.step_hook
    run.optimizer.attach_step_hook(lambda optimizer: accounted(optimizer))
    run.train(50)
    run.optimizer.zero_grad(set_to_none=True)
    refused_at_once(run, tmp_path)


def test_settings_changed_by_a_hook_leave_only_joint_release(tmp_path: Path) -> None:
    run = private(batches="full")
    run.optimizer.attach_step_hook(lambda optimizer: optimizer.param_groups[0].update(weight_decay=0.5))
    with recorded(run, tmp_path) as recorder:
        run.train(1)
    require_only_joint_release(recorder)


def test_a_small_penalty_under_ghost_clipping_is_refused(tmp_path: Path) -> None:
    """The records' gradients point in many directions, so that their sum leaves room for what does not belong there.

    Each record adds its clipped gradient and its share of the penalty's, here up to 1.4 clip norms more.
    """
    model = mlp()
    run = private(model, dataset=data(size=100.0), batches="full", mode="ghost")
    norm = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).norm()
    with refusing(run, tmp_path):
        for inputs, targets in run.loader:
            run.optimizer.zero_grad()
            penalty = 2.0 / norm * sum((parameter**2).sum() for parameter in model.parameters())
            (run.criterion(run.model(inputs), targets) + penalty).backward()
            run.optimizer.step()


class Penalised(nn.CrossEntropyLoss):
    """A loss that brings its own penalty on the weights."""

    weights: tuple[torch.Tensor, ...] = ()

    def forward(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        norm = torch.cat([weight.detach().flatten() for weight in self.weights]).norm()
        return super().forward(output, targets) + 2.0 / norm * sum((weight**2).sum() for weight in self.weights)


def test_a_penalty_within_the_criterion_under_ghost_clipping_is_refused(tmp_path: Path) -> None:
    model, criterion = mlp(), Penalised()
    criterion.weights = tuple(model.parameters())
    run = private(model, dataset=data(size=100.0), batches="full", mode="ghost", criterion=criterion)
    with refusing(run, tmp_path):
        run.train(1)


# Not too little, but wrong or lost


@pytest.mark.parametrize("most", [0, -1])
def test_a_bound_below_the_number_of_records_is_refused(tmp_path: Path, most: int) -> None:
    run = private(nn.Linear(FEATURES, CLASSES), batches="full", clip=20.0)
    facts = {"adjacency": "add_remove", "public_divisor": True, "criterion": nn.CrossEntropyLoss()}
    refused_at_once(run, tmp_path, kind=DpmergeError, feature_bound=8.0, most_records=most, **facts)


def test_a_folder_with_checkpoints_of_another_run_is_refused(tmp_path: Path) -> None:
    """Refused when the first checkpoint is written, which is too late."""
    (tmp_path / "step-1.safetensors").write_bytes(b"of a run that was killed before its first manifest")
    refused_at_once(private(), tmp_path, kind=DpmergeError)


def test_long_records_in_double_precision_keep_their_length() -> None:
    bounded = bound_features(1.0)(torch.ones(1, 6, dtype=torch.float64))
    assert float(bounded.norm()) == pytest.approx(1.0, rel=1e-9)


def test_a_metric_noted_after_the_end_does_not_undo_the_end(tmp_path: Path) -> None:
    run = private()
    with recorded(run, tmp_path) as recorder:
        run.train(1)
    recorder.metric("accuracy", 0.5, measured_on="public")
    assert json.loads((tmp_path / MANIFEST_NAME).read_text())["finished"] is True


def test_a_metric_of_weights_that_were_not_kept_is_refused(tmp_path: Path) -> None:
    """It would be written beside weights it was not measured on, and tell of steps that are not accounted for."""
    run = private()
    with recorded(run, tmp_path) as recorder:
        run.train(1)
        recorder.checkpoint()
        run.train(2)
        with pytest.raises(RecordingError):
            recorder.metric("accuracy", 0.5, measured_on="training")


def test_a_checkpoint_before_the_first_step_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with recorded(private(), tmp_path / "run") as recorder:
        with pytest.raises(RecordingError):
            recorder.checkpoint()
        assert not list((tmp_path / "run").iterdir())


def test_ones_own_methods_are_put_back(tmp_path: Path) -> None:
    run = private()
    clip, signal = run.optimizer.clip_and_accumulate, run.optimizer.signal_skip_step
    run.optimizer.clip_and_accumulate = own_clip = lambda: clip()  # type: ignore[method-assign]
    run.optimizer.signal_skip_step = own_signal = lambda do_skip=True: signal(do_skip)  # type: ignore[method-assign]
    with recorded(run, tmp_path):
        run.train(1)
    assert run.optimizer.clip_and_accumulate is own_clip
    assert run.optimizer.signal_skip_step is own_signal


def test_two_records_in_one_folder_are_refused(tmp_path: Path) -> None:
    first, second = private(), private()
    with refusing(first, tmp_path, kind=DpmergeError, run="a"):
        first.train(1)
        with recorded(second, tmp_path, run="b"):
            second.train(1)


@pytest.mark.parametrize("steps", [90_000, 150_000])
def test_long_noise_schedules_can_be_read_back(tmp_path: Path, steps: int) -> None:
    require_readable(tmp_path, [RecordedStep(1 + math.cos(k / 1e6), 1.0, 0.01, 0.01) for k in range(steps)])


@pytest.mark.parametrize("steps", [100_000, 500_000])
def test_long_rate_schedules_can_be_read_back(tmp_path: Path, steps: int) -> None:
    require_readable(tmp_path, [RecordedStep(1.0, 1.0, 0.1 * math.cos(k / 1e6), 0.01) for k in range(steps)])


def require_readable(folder: Path, steps: list[RecordedStep]) -> None:
    """A manifest larger than what is read would lose the run."""
    run = private()
    with recorded(run, folder) as recorder:
        run.train(1)
        recorder._writer.taken[:] = steps
        assert len(recorder.manifest().text()) < LARGEST_DOCUMENT
        del recorder._writer.taken[1:]


def test_a_buffer_that_changes_is_seen_before_training_is_over(tmp_path: Path) -> None:
    """Not only when the first checkpoint is written, which may be days later."""
    model = mlp()
    model.register_buffer("seen", torch.zeros(1))
    run = private(model)
    taken = 0
    with refusing(run, tmp_path):
        for batch in run.loader:
            model.seen += len(batch[0])
            run.step(batch)
            taken += 1
    assert taken < 4


def test_data_sets_without_a_length_are_refused(tmp_path: Path) -> None:
    class Stream(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            return iter(data())

    run = private(batches="shuffled")
    run.loader = DataLoader(Stream(), batch_size=4)
    refused_at_once(run, tmp_path)


@pytest.mark.parametrize(("bound", "features"), [(1e-7, 1), (1.3e-3, 100_000)])
def test_small_features_in_half_precision_stay_within_the_bound(bound: float, features: int) -> None:
    bounded = bound_features(bound)(torch.ones(1, features, dtype=torch.float16))
    square = sum((Fraction(value) ** 2 for value in bounded.double().flatten().tolist()), Fraction(0))
    assert square <= Fraction(bound) ** 2


@pytest.mark.parametrize("batch", [torch.ones(2, 3, dtype=torch.uint8), torch.ones(2, 0)])
def test_features_of_any_dtype_are_bounded_or_refused(batch: torch.Tensor) -> None:
    """Bounded, or refused by name; not an error from within torch."""
    try:
        bounded = bound_features(1.0)(batch)
    except InvalidInputError:
        return
    assert bool((bounded.double().flatten(1).norm(dim=1) <= 1).all())


# Holes that are none


def test_an_evaluation_on_the_training_data_between_epochs_is_recorded(tmp_path: Path) -> None:
    """Common, and harmless: it takes no steps."""
    run = private(batches="shuffled")
    with recorded(run, tmp_path) as recorder:
        for _ in range(3):
            run.train(4)
            with torch.no_grad():
                for inputs, _targets in run.loader:
                    run.model(inputs)
    assert (recorder.steps, recorder.manifest().mechanism.steps_per_epoch) == (12, 4)
    assert Portfolio.load(tmp_path).runs


def test_a_batch_forward_twice_in_one_loss_is_one_gradient(tmp_path: Path) -> None:
    run = private(dataset=same_records(), batches="full")
    with recorded(run, tmp_path, separate_records=True) as recorder, watched(run) as truth:
        for inputs, targets in run.loader:
            run.optimizer.zero_grad()
            run.rows += len(inputs)
            loss = run.criterion(run.model(inputs), targets) + run.criterion(run.model(2 * inputs), targets)
            loss.backward()
            run.optimizer.step()
    require_clipped(recorder, truth)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("physical", [None, 2])
@pytest.mark.parametrize("workers", [0, 1])
def test_empty_poisson_batches_are_steps(tmp_path: Path, mode: str, physical: int | None, workers: int) -> None:
    """An empty batch is a step like any other: its noise is what hides that it was empty."""
    loader = DataLoader(same_records(12), batch_size=1, num_workers=workers, persistent_workers=workers > 0)
    run = private(loader=loader, mode=mode)
    with recorded(run, tmp_path) as recorder, watched(run) as truth:
        run.train(30, physical)
    require_clipped(recorder, truth)
    assert 0 in truth.rows
    assert recorder.steps == truth.steps == 30


def test_a_loader_that_is_split_already_is_recorded(tmp_path: Path) -> None:
    run = private(dataset=same_records())
    split = BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=5, optimizer=run.optimizer)
    with split as loader:
        run.loader = loader
        with recorded(run, tmp_path) as recorder, watched(run) as truth:
            run.train(6)
    require_clipped(recorder, truth)
    assert (recorder.steps, recorder.manifest().mechanism.sampling) == (6, "poisson")


def test_batches_fetched_by_next_are_recorded(tmp_path: Path) -> None:
    run = private()
    with recorded(run, tmp_path) as recorder:
        for _ in range(3):
            batches = iter(run.loader)
            for _ in range(2):
                run.step(next(batches))
    assert recorder.steps == 6
