"""What cannot be recorded truthfully is refused in one line, before the weights move, and leaves nothing behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from opacus import GradSampleModule
from opacus.data_loader import DPDataLoader
from opacus.optimizers import AdaClipDPOptimizer, DistributedDPOptimizer, DPOptimizer
from opacus.schedulers import ExponentialGradClip
from opacus.utils.adaptive_clipping.adaptive_clipping_utils import PrivacyEngineAdaptiveClipping
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from dpmerge.errors import DpmergeError, InvalidInputError, RecordingError
from dpmerge.portfolio.manifest import MANIFEST_NAME
from training.loops import (
    CLASSES,
    FEATURES,
    QUIET,
    Private,
    data,
    loader_of,
    mlp,
    private,
    recorded,
    refused_at_once,
    refusing,
)

pytestmark = [pytest.mark.filterwarnings(rule) for rule in QUIET]


def refused(
    made: Private,
    folder: Path,
    loop: Callable[[Private], object] | None = None,
    *,
    kind: type[DpmergeError] = RecordingError,
    unmoved: bool = True,
    **settings: Any,
) -> str:
    """Run the loop, expect a refusal of one line; the step that was refused must not have moved the weights."""
    moments = [made.weights]
    inner = made.optimizer.original_optimizer if isinstance(made.optimizer, DPOptimizer) else made.optimizer
    handle = inner.register_step_post_hook(lambda *_: moments.append(made.weights))

    def recorded_loop() -> None:
        with recorded(made, folder, **settings):
            if loop is not None:
                loop(made)

    with pytest.raises(kind) as caught:
        recorded_loop()
    handle.remove()
    assert torch.equal(moments[-1].nan_to_num(), made.weights.nan_to_num())
    if unmoved:
        assert len(moments) == 1, "the weights moved before the refusal"
    assert not list(folder.rglob("*")), "something was left behind"
    message = str(caught.value)
    assert "\n" not in message
    return message


def by_hand(module: nn.Module, **settings: Any) -> Private:
    """Models that make_private would not take, put together from Opacus' parts."""
    wrapper = GradSampleModule(module, strict=False)
    given = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": 12} | settings
    trained = [p for p in module.parameters() if p.requires_grad]
    optimizer = DPOptimizer(torch.optim.SGD(trained, lr=0.1), **given)
    loader = DPDataLoader(data(), sample_rate=0.25)
    return Private(None, wrapper, module, optimizer, loader, nn.CrossEntropyLoss())  # type: ignore[arg-type]


def a_step(run: Private) -> None:
    run.train(1)


# Clipping


def test_ghost_clipping_with_a_clip_scheduler_is_refused(tmp_path: Path) -> None:
    run = private(mode="ghost")

    def loop(run: Private) -> None:
        scheduler = ExponentialGradClip(run.optimizer, gamma=0.5)
        scheduler.step()
        run.train(1)

    message = refused(run, tmp_path / "run", loop)
    assert message == (
        "optimizer.max_grad_norm: noise is scaled for 0.5 but gradients are clipped to 1; clip schedulers do not reach "
        "ghost clipping"
    )


def test_ghost_clipping_with_a_clip_scheduler_set_before_is_refused(tmp_path: Path) -> None:
    run = private(mode="ghost")
    ExponentialGradClip(run.optimizer, gamma=2.0).step()
    assert "clip schedulers do not reach ghost" in refused(run, tmp_path / "run", a_step)


def test_layers_clipped_apart_with_a_clip_scheduler_are_refused(tmp_path: Path) -> None:
    run = private(clip=[1.0, 1.0, 1.0, 1.0])

    def loop(run: Private) -> None:
        ExponentialGradClip(run.optimizer, gamma=0.5).step()
        run.train(1)

    assert "noise is scaled for 1 but gradients are clipped to 2; clip schedulers do not reach per_layer" in refused(
        run, tmp_path / "run", loop
    )


def test_one_layers_norm_changed_alone_is_refused(tmp_path: Path) -> None:
    run = private(clip=[1.0, 1.0, 1.0, 1.0])

    def loop(run: Private) -> None:
        run.optimizer.max_grad_norms[2] = 5.0  # type: ignore[attr-defined]
        run.train(1)

    assert "noise is scaled for 2 but gradients are clipped to 5.2915" in refused(run, tmp_path / "run", loop)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_clip_norm_changed_between_physical_batches_is_refused(tmp_path: Path, mode: str) -> None:
    run = private(batches="full", mode=mode)

    def loop(run: Private) -> None:
        with BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=24, optimizer=run.optimizer) as split:
            for number, batch in enumerate(split):
                run.optimizer.max_grad_norm = 1.0 - number / 2
                if mode == "ghost":
                    run.model.max_grad_norm = 1.0 - number / 2
                run.step(batch)

    message = refused(run, tmp_path / "run", loop)
    assert message == (
        "optimizer.max_grad_norm: changed within one logical step ([0.5, 1.0]); let the scheduler step once a "
        "logical step"
    )


def test_adaptive_clipping_is_refused(tmp_path: Path) -> None:
    run = private()
    settings = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": 12}
    adaptive = {"target_unclipped_quantile": 0.5, "clipbound_learning_rate": 0.2, "max_clipbound": 10.0}
    more = {"min_clipbound": 0.1, "unclipped_num_std": 1.0}
    run.optimizer = AdaClipDPOptimizer(run.optimizer.original_optimizer, **settings, **adaptive, **more)
    message = refused(run, tmp_path / "run")
    assert message.startswith("optimizer: a AdaClipDPOptimizer; recorded are those make_private returns for flat and")


@pytest.mark.filterwarnings("ignore")
def test_adaptive_ghost_clipping_is_refused(tmp_path: Path) -> None:
    model = mlp()
    engine = PrivacyEngineAdaptiveClipping()
    made = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        criterion=nn.CrossEntropyLoss(),
        data_loader=loader_of(data(), "full", 48),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
        grad_sample_mode="ghost",
        target_unclipped_quantile=0.5,
        min_clipbound=0.1,
        max_clipbound=10.0,
        clipbound_learning_rate=0.2,
    )
    run = Private(engine, made[0], model, made[1], made[3], made[2])
    message = refused(run, tmp_path / "run", a_step)
    assert message.startswith(("optimizer: adaptive clipping releases a count", "criterion: 0 clipped backward passes"))


def test_plain_optimizers_are_refused(tmp_path: Path) -> None:
    run = private()
    run.optimizer = run.optimizer.original_optimizer  # type: ignore[assignment]
    refused_at_once(run, tmp_path / "run", "optimizer: a SGD; pass the one PrivacyEngine.make_private returned")
    assert not (tmp_path / "run").exists()


def test_distributed_optimizers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    run = private()
    settings = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": 12}
    run.optimizer = DistributedDPOptimizer(run.optimizer.original_optimizer, **settings)
    message = refused(run, tmp_path / "run")
    assert message.startswith("optimizer: a DistributedDPOptimizer; recorded are")
    assert "on one device" in message


def test_ghost_clipping_without_the_wrapped_model_is_refused(tmp_path: Path) -> None:
    run = private(mode="ghost")
    run.model = run.plain
    assert refused(run, tmp_path / "run").startswith(
        "model: a Sequential; with ghost clipping pass what make_private returned"
    )


# Batch statistics and other state


def normalised(**settings: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8, affine=False, **settings), nn.Linear(8, CLASSES))


def test_batch_norm_in_training_mode_is_refused(tmp_path: Path) -> None:
    message = refused(by_hand(normalised()), tmp_path / "run")
    assert message == (
        "model.1: BatchNorm1d in training mode: private data flows into 1.running_mean, 1.running_var, "
        "1.num_batches_tracked; use GroupNorm (opacus.validators.ModuleValidator.fix), or keep the layer in eval mode"
    )


@pytest.mark.parametrize("evaluated", [True, False])
def test_batch_norm_without_running_statistics_is_refused(tmp_path: Path, evaluated: bool) -> None:
    model = normalised(track_running_stats=False)
    model[1].train(not evaluated)
    assert "model.1: BatchNorm1d in training mode: records of a batch are mixed" in refused(
        by_hand(model), tmp_path / "run"
    )


def test_batch_norm_switched_on_in_mid_run_is_refused(tmp_path: Path) -> None:
    model = normalised()
    model[1].eval()
    run = by_hand(model)

    def loop(run: Private) -> None:
        run.train(2)
        run.plain.train()
        run.train(1)

    assert refused(run, tmp_path / "run", loop, unmoved=False).startswith("model.1")


def test_batch_norm_kept_in_eval_mode_is_recorded(tmp_path: Path) -> None:
    model = normalised()
    model[1].eval()
    run = by_hand(model)
    with recorded(run, tmp_path) as recorder:
        run.train(2)
    assert "1.running_mean" in recorder.manifest().tensors.frozen


class Counting(nn.Module):
    """Keeps a sum of what it saw, as private state would be kept."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("seen", torch.zeros(FEATURES))

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen += inputs.detach().sum(0)
        return self.layer(inputs)


def test_other_buffers_that_change_are_refused(tmp_path: Path) -> None:
    message = refused(by_hand(Counting()), tmp_path / "run", a_step, unmoved=False, checkpoint_every=1)
    assert message == (
        "model.seen: changed in training although the private optimizer does not train it, so private data may have "
        "flowed into it without noise; freeze it, or train it with the same optimizer"
    )


@pytest.mark.parametrize("trained_only", [True, False])
def test_a_frozen_layer_trained_by_another_optimizer_is_refused(tmp_path: Path, trained_only: bool) -> None:
    model = mlp()
    model[0].requires_grad_(False)
    run = private(model)
    beside = torch.optim.SGD([model[0].weight], lr=0.1)

    def loop(run: Private) -> None:
        model[0].weight.grad = torch.ones_like(model[0].weight)
        beside.step()
        run.train(2)

    message = refused(run, tmp_path / "run", loop, unmoved=False, trained_only=trained_only)
    assert message.startswith("model.0.weight: changed in training although the private optimizer does not train it")


def test_state_that_is_no_tensor_or_of_an_odd_dtype_is_refused(tmp_path: Path) -> None:
    model = mlp()
    model.register_buffer("phase", torch.zeros(2, dtype=torch.complex64))
    assert refused(by_hand(model), tmp_path / "run").startswith("model.phase: torch.complex64; accepted: tensors of")


# Batches


def test_gradients_of_several_batches_in_one_step_are_refused(tmp_path: Path) -> None:
    run = private(batches="shuffled")

    def loop(run: Private) -> None:
        for number, (inputs, targets) in enumerate(run.loader):
            run.criterion(run.model(inputs), targets).backward()
            if number == 1:
                run.optimizer.step()

    message = refused(run, tmp_path / "run", loop)
    assert message == (
        "optimizer: gradients of 2 batches in one step, in which a record may be more than once; call "
        "optimizer.step() for each batch, or use BatchMemoryManager"
    )


def test_gradients_accumulated_under_poisson_sampling_are_refused(tmp_path: Path) -> None:
    run = private()
    run.model.allow_grad_accumulation()

    def loop(run: Private) -> None:
        for inputs, targets in run.loader:
            run.criterion(run.model(inputs), targets).backward()
        run.optimizer.step()

    assert "gradients of 4 batches in one step" in refused(run, tmp_path / "run", loop)


@pytest.mark.parametrize("batches", ["poisson", "shuffled", "full"])
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_logical_steps_glued_from_several_draws_are_refused(tmp_path: Path, mode: str, batches: str) -> None:
    run = private(mode=mode, batches=batches)

    def loop(run: Private) -> None:
        for _ in range(2):
            for batch in run.loader:
                run.optimizer.signal_skip_step(True)
                run.step(batch)

    message = refused(run, tmp_path / "run", loop)
    assert message == (
        "optimizer.signal_skip_step: one logical step was made of several draws, in which a record may be twice; let "
        "BatchMemoryManager split one draw instead"
    )


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_a_split_batch_left_in_the_middle_is_refused(tmp_path: Path, mode: str) -> None:
    run = private(batches="full", mode=mode)

    def loop(run: Private) -> None:
        for _ in range(2):
            with BatchMemoryManager(
                data_loader=run.loader, max_physical_batch_size=12, optimizer=run.optimizer
            ) as split:
                for batch in split:
                    run.step(batch)
                    break

    assert "one logical step was made of several draws" in refused(run, tmp_path / "run", loop)


def test_a_split_batch_left_before_its_step_is_refused(tmp_path: Path) -> None:
    run = private()

    def loop(run: Private) -> None:
        with BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=3, optimizer=run.optimizer) as split:
            for _ in split:
                break
            run.train(1)

    message = refused(run, tmp_path / "run", loop)
    assert message.startswith("data_loader: a new epoch begins while batches of the last one are still waiting")


def test_stepping_the_inner_optimizer_by_itself_is_refused(tmp_path: Path) -> None:
    def loop(run: Private) -> None:
        inputs, targets = next(iter(run.loader))
        run.backward(inputs, targets)
        run.optimizer.original_optimizer.step()

    message = refused(private(), tmp_path / "run", loop)
    assert message == (
        "optimizer: the inner optimizer was stepped by itself, without clipping and noise; step the one that "
        "make_private returned"
    )


def test_replacing_the_recorders_hook_is_refused(tmp_path: Path) -> None:
    def loop(run: Private) -> None:
        run.optimizer.attach_step_hook(lambda _: None)
        run.train(1)

    assert "the inner optimizer was stepped by itself" in refused(private(), tmp_path / "run", loop)


@pytest.mark.parametrize("batches", ["poisson", "shuffled"])
def test_training_on_another_loader_is_refused(tmp_path: Path, batches: str) -> None:
    run = private(batches=batches)
    given = run.loader

    def loop(run: Private) -> None:
        run.loader = DataLoader(given.dataset, batch_size=12)
        run.train(1)

    message = refused(run, tmp_path / "run", loop)
    assert message == (
        "data_loader: step 1 was taken without a batch of its own from the loader that was given; pass the loader "
        "make_private returned, train on it, and take one step for each batch"
    )


def test_the_same_batch_again_is_refused(tmp_path: Path) -> None:
    def loop(run: Private) -> None:
        for batch in run.loader:
            run.step(batch)
            run.step(batch)

    message = refused(private(), tmp_path / "run", loop, unmoved=False)
    assert message.startswith("data_loader: step 2 was taken without a batch of its own")


def with_sampler(sampler: Any) -> DataLoader[Any]:
    return DataLoader(data(), batch_sampler=BatchSampler(sampler, 12, drop_last=False))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: with_sampler(RandomSampler(data(), replacement=True)), "BatchSampler over RandomSampler"),
        (lambda: with_sampler(RandomSampler(data(), num_samples=96)), "BatchSampler over RandomSampler"),
        (lambda: with_sampler(WeightedRandomSampler([1.0] * 48, 48)), "BatchSampler over WeightedRandomSampler"),
        (lambda: with_sampler(SubsetRandomSampler(range(48))), "BatchSampler over SubsetRandomSampler"),
        (lambda: with_sampler([0] * 48), "BatchSampler over list"),
        (lambda: DataLoader(data(), batch_sampler=[[0, 0, 0], [1, 2, 3]]), "list"),
        (lambda: DataLoader(data(), batch_size=None), "NoneType"),
    ],
)
def test_samplers_that_may_draw_a_record_twice_are_refused(
    tmp_path: Path, make: Callable[[], DataLoader[Any]], named: str
) -> None:
    run = private(batches="shuffled")
    run.loader = make()
    message = refused(run, tmp_path / "run")
    assert message == (
        f"data_loader: batches drawn by {named}; recorded are Opacus' Poisson batches (make_private), and torch's own "
        "batches in order or shuffled without replacement"
    )


def test_poisson_batches_of_fewer_records_than_there_are_are_refused(tmp_path: Path) -> None:
    run = private()
    run.loader.batch_sampler.num_samples = 20  # type: ignore[union-attr]
    assert "batches drawn by UniformWithReplacementSampler" in refused(run, tmp_path / "run")


def test_a_record_within_a_record_is_refused(tmp_path: Path) -> None:
    def loop(run: Private) -> None:
        with recorded(run, tmp_path / "inner", run="inner"):
            run.train(1)

    refused(private(), tmp_path / "run", loop)
    assert not (tmp_path / "inner").exists()


# Beginnings


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_a_run_that_already_took_steps_is_refused(tmp_path: Path, optimizer: Any) -> None:
    run = private(optimizer=lambda parameters: optimizer(parameters, lr=0.1))
    run.train(3)
    message = refused(run, tmp_path / "run")
    assert message.startswith("optimizer: its accountant has counted 3 steps already; record a run from its first step")


def test_a_run_without_accountant_that_already_took_steps_is_refused(tmp_path: Path) -> None:
    run = private(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
    run.optimizer.step_hook = None
    run.train(1)
    message = refused(run, tmp_path / "run")
    assert message == "optimizer: it has taken steps already; record a run from its first step on"


def test_a_second_record_of_the_same_optimizer_is_refused(tmp_path: Path) -> None:
    run = private()
    with recorded(run, tmp_path / "first"):
        run.train(2)
    assert "has counted 2 steps already" in refused(run, tmp_path / "second")


def test_a_folder_that_has_a_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / MANIFEST_NAME).write_text("mine")
    refused_at_once(
        private(),
        tmp_path,
        "holds a privacy.json or checkpoints, and a record is never overwritten",
        kind=InvalidInputError,
    )
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(MANIFEST_NAME, "mine")]


def test_shuffled_batches_under_add_remove_are_refused(tmp_path: Path) -> None:
    for batches in ("shuffled", "in_order"):
        message = refused(
            private(batches=batches), tmp_path / "run", adjacency="add_remove", public_divisor=True, most_records=100
        )
        assert message.startswith("adjacency: shuffled batches have no proved accounting under add_remove")


@pytest.mark.parametrize("batches", ["poisson", "full"])
@pytest.mark.parametrize("said", [None, False])
def test_a_private_divisor_under_add_remove_is_refused(tmp_path: Path, batches: str, said: bool | None) -> None:
    message = refused(private(batches=batches), tmp_path / "run", adjacency="add_remove", public_divisor=said)
    assert message.startswith("public_divisor: under add_remove the number of records is private, and Opacus divides")


@pytest.mark.parametrize(
    ("setting", "value", "text"),
    [
        ("run", "../elsewhere", "run: got '../elsewhere'; accepted: 1 to 100 letters, digits"),
        ("run", "", "run: got ''"),
        ("dataset", "a" * 64, "got 'aaaa"),
        ("dataset", "sha256:" + "0" * 64, "a digest of the data would itself be a release"),
        ("dataset", "", "dataset.id: got ''"),
        ("adjacency", "zeroed", "adjacency: got 'zeroed'; accepted: replace_one or add_remove or zero_out"),
        ("noise_seed", 2**32, "noise_seed: got 4294967296; accepted:"),
        ("noise_seed", -1, "noise_seed: got -1; accepted:"),
        ("noise_seed", 1.5, "noise_seed: got 1.5; accepted:"),
        ("checkpoint_every", 0, "checkpoint_every: got 0; accepted:"),
        ("checkpoint_every", -3, "checkpoint_every: got -3; accepted:"),
        ("tuning", "some", "tuning: got 'some'; accepted:"),
        ("stopping", "early", "stopping: got 'early'; accepted:"),
        ("schedule", "cosine", "schedule: got 'cosine'; accepted:"),
        ("unit", "", "unit: got ''"),
        ("feature_bound", 0.0, "feature_bound: got 0.0; accepted:"),
        ("feature_bound", float("nan"), "feature_bound: got nan; accepted:"),
    ],
)
def test_values_out_of_their_domain_are_refused(tmp_path: Path, setting: str, value: object, text: str) -> None:
    run = private(nn.Linear(FEATURES, CLASSES), batches="full")
    assert text in refused(run, tmp_path / "run", kind=InvalidInputError, **{setting: value})


# A refusal inside the loop, and after it


def test_a_refused_step_may_be_caught_and_is_not_counted(tmp_path: Path) -> None:
    run = private(mode="ghost", batches="in_order")
    refusals = 0
    with recorded(run, tmp_path) as recorder:
        for number, batch in enumerate(run.loader):
            run.optimizer.max_grad_norm = 2.0 if number == 1 else 1.0
            before = run.weights
            try:
                run.step(batch)
            except RecordingError:
                refusals += 1
                assert torch.equal(before, run.weights)
    assert refusals >= 1
    assert recorder.steps == 4 - refusals


def test_metrics_before_any_checkpoint_are_refused(tmp_path: Path) -> None:
    with refusing(private(), tmp_path / "run", "metric accuracy: the weights after step 0 were not kept") as recorder:
        recorder.metric("accuracy", 0.5, measured_on="public")
    assert not list((tmp_path / "run").iterdir())


def test_costs_before_any_step_are_refused(tmp_path: Path) -> None:
    with refusing(private(), tmp_path, "no step has been taken yet") as recorder:
        recorder.epsilon(1e-5)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_weights_that_are_not_finite_are_not_kept(tmp_path: Path, mode: str) -> None:
    run = private(batches="full", mode=mode, clip=1e10, optimizer=lambda p: torch.optim.SGD(p, lr=1e30))
    message = refused(run, tmp_path / "run", a_step, kind=InvalidInputError, unmoved=False)
    assert "NaN or infinity among its values" in message


def test_poisson_batches_that_are_left_out_are_refused(tmp_path: Path) -> None:
    """Whether a batch is skipped tells what is in it; `if len(inputs) == 0: continue` is the common case."""

    def every_other(made: Private) -> None:
        for number, batch in enumerate(made.loader):
            if number % 2 == 1:
                made.step(batch)

    message = refused(private(), tmp_path / "run", every_other)
    assert message.startswith("data_loader: of 2 batches drawn in this pass only 1 were used")


def test_a_generator_that_is_set_back_is_refused(tmp_path: Path) -> None:
    """The same noise twice: the difference of two steps has none."""

    def rewind(made: Private) -> None:
        start = made.optimizer.generator.get_state()
        made.train(1)
        made.optimizer.generator.set_state(start)
        made.train(1)

    message = refused(private(batches="full"), tmp_path / "run", rewind, unmoved=False)
    assert message.startswith("optimizer.generator: used or set back by something else")


def test_a_step_in_a_forked_process_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forked(made: Private) -> None:
        monkeypatch.setattr(os, "getpid", lambda: -1)
        made.train(1)

    message = refused(private(batches="full"), tmp_path / "run", forked)
    assert message.startswith("record: this process was forked off")


def test_targets_that_weigh_classes_are_refused(tmp_path: Path) -> None:
    """A cross-entropy with targets that sum to ten is ten times as steep."""
    criterion = nn.CrossEntropyLoss()
    made = private(nn.Linear(FEATURES, CLASSES), batches="full", clip=20.0)

    def weighed(made: Private) -> None:
        inputs, targets = next(iter(made.loader))
        made.optimizer.zero_grad()
        criterion(made.model(inputs), 10 * nn.functional.one_hot(targets, CLASSES).float()).backward()
        made.optimizer.step()

    message = refused(made, tmp_path / "run", weighed, criterion=criterion, feature_bound=8.0)
    assert message == (
        "criterion: targets that weigh classes; smoothness is derived for class numbers, so use those or leave "
        "criterion and feature_bound out"
    )


def test_records_that_are_sequences_are_refused(tmp_path: Path) -> None:
    made = private(nn.Linear(FEATURES, CLASSES), batches="full", clip=20.0)

    def several(made: Private) -> None:
        inputs, _ = next(iter(made.loader))
        made.model(inputs.unsqueeze(1).repeat(1, 3, 1))

    message = refused(made, tmp_path / "run", several, criterion=nn.CrossEntropyLoss(), feature_bound=8.0)
    assert message.startswith(f"feature_bound: a record is (3, {FEATURES}), not one feature vector")


def test_weights_swapped_out_and_back_again_are_accepted(tmp_path: Path) -> None:
    """As for an evaluation of averaged weights."""
    made = private(batches="full")
    with recorded(made, tmp_path / "run") as recorder:
        made.train(1)
        own = {name: value.clone() for name, value in made.plain.state_dict().items()}
        made.plain.load_state_dict({name: value + 1 for name, value in own.items()})
        made.plain.load_state_dict(own)
        made.train(1)
    assert recorder.steps == 2
