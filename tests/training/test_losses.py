"""Losses that are not what they are said to be: unclipped, coupled, scaled, or of something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from dpmerge.accounting import LinearCombination, hidden_state
from dpmerge.portfolio import Portfolio
from dpmerge.training import Ancestry
from training.loops import CLASSES, FEATURES, QUIET, Private, data, private, recorded, refusing

pytestmark = [pytest.mark.filterwarnings(rule) for rule in QUIET]


def one_output(targets: torch.Tensor, mode: str, criterion: nn.Module) -> Private:
    dataset = TensorDataset(torch.randn(len(targets), FEATURES), targets)
    return private(nn.Linear(FEATURES, 1), dataset=dataset, batches="full", mode=mode, clip=0.01, criterion=criterion)


def test_ghost_clipping_of_a_column_of_losses_is_refused(tmp_path: Path) -> None:
    """Opacus multiplies n clip factors with n × 1 losses to an n × n table: nothing is clipped."""
    made = one_output(torch.ones(48, 1), "ghost", nn.BCEWithLogitsLoss())
    with refusing(made, tmp_path, "losses of shape (48, 1), which Opacus does not clip"):
        made.train(1)


@pytest.mark.parametrize("criterion", [nn.MSELoss(), nn.HuberLoss(), nn.SmoothL1Loss()])
def test_losses_of_unequal_shapes_are_refused(tmp_path: Path, criterion: nn.Module) -> None:
    made = one_output(torch.ones(48), "hooks", criterion)
    with refusing(
        made, tmp_path, "torch compares every record with every other", criterion=criterion, feature_bound=9.0
    ):
        made.train(1)


@pytest.mark.parametrize("what", ["another loss", "a penalty"])
def test_gradients_added_after_ghost_clipping_are_refused(tmp_path: Path, what: str) -> None:
    made = private(batches="full", mode="ghost")
    with refusing(made, tmp_path, "gradients were added after the backward pass"):
        inputs, targets = next(iter(made.loader))
        made.backward(inputs, targets)
        if what == "another loss":
            functional.cross_entropy(made.plain(inputs), targets).backward()
        else:
            sum((parameter**2).sum() for parameter in made.plain.parameters()).backward()  # type: ignore[union-attr]
        made.optimizer.step()


MISUSES: dict[str, tuple[Any, str]] = {
    "scaled": (lambda loss, out, y: 1000 * loss(out, y), "scaled or added to"),
    "of sharpened outputs": (
        lambda loss, out, y: loss(out / 0.01, y),
        "something else than the linear layer's outputs",
    ),
    "not used": (lambda loss, out, y: functional.multi_margin_loss(out, y), "called 0 times for one batch"),
    "used twice": (lambda loss, out, y: loss(out, y) + loss(out, y), "called 2 times for one batch"),
    "of targets to be ignored": (lambda loss, out, y: loss(out, torch.full_like(y, -100)), "targets to be ignored"),
}


@pytest.mark.parametrize("name", MISUSES)
def test_another_loss_than_smoothness_was_derived_from_is_refused(tmp_path: Path, name: str) -> None:
    compute, text = MISUSES[name]
    criterion = nn.CrossEntropyLoss()
    made = private(nn.Linear(FEATURES, CLASSES), batches="full", clip=20.0)
    with refusing(made, tmp_path, text, criterion=criterion, feature_bound=9.0):
        inputs, targets = next(iter(made.loader))
        made.optimizer.zero_grad()
        compute(criterion, made.model(inputs), targets).backward()
        made.optimizer.step()


def test_a_scaled_ghost_loss_is_refused(tmp_path: Path) -> None:
    made = private(nn.Linear(FEATURES, CLASSES), batches="full", clip=20.0, mode="ghost")
    with refusing(made, tmp_path, "scaled or added to", criterion=made.criterion, feature_bound=9.0):
        inputs, targets = next(iter(made.loader))
        made.optimizer.zero_grad()
        (1000 * made.criterion(made.model(inputs), targets)).backward()
        made.optimizer.step()


def test_an_evaluation_of_the_stated_loss_does_not_count_as_a_use(tmp_path: Path) -> None:
    criterion = nn.CrossEntropyLoss()
    made = private(nn.Linear(FEATURES, CLASSES), batches="full", clip=20.0)
    with recorded(made, tmp_path, criterion=criterion, feature_bound=9.0) as recorder:
        for _ in range(2):
            made.train(1)
            with torch.no_grad():
                criterion(made.model(data().tensors[0]), data().tensors[1])
    assert recorder.manifest().mechanism.smoothness.kind == "softmax"


def test_own_batches_beside_a_full_batch_loader_are_refused(tmp_path: Path) -> None:
    made = private(batches="full")
    inputs, targets = data().tensors
    with refusing(made, tmp_path, "a step was taken on 20 of 48 records"):
        chosen = torch.randint(48, (20,))
        made.step([inputs[chosen], targets[chosen]])


@pytest.mark.parametrize("where", ["before", "after"])
def test_hooks_around_the_inner_step_lose_the_sharper_theorem_or_are_refused(tmp_path: Path, where: str) -> None:
    """What they do to noised gradients is harmless but no SGD; what they do to weights, nobody can say."""
    made = private(nn.Linear(FEATURES, CLASSES), batches="full", clip=20.0)

    def shrink_gradients(*_: Any) -> None:
        for parameter in made.optimizer.params:
            parameter.grad *= 0.5  # type: ignore[operator]

    @torch.no_grad()
    def renormalise(*_: Any) -> None:
        for parameter in made.optimizer.params:
            parameter *= 3 / (parameter.norm() + 1e-9)

    inner = made.optimizer.original_optimizer
    if where == "before":
        inner.register_step_pre_hook(shrink_gradients)
        with recorded(made, tmp_path, criterion=nn.CrossEntropyLoss(), feature_bound=9.0) as recorder:
            made.train(3)
        run = recorder.manifest().mechanism_from(None)
        assert not hidden_state(LinearCombination.of_runs([run], [1.0])).certifies
    else:
        inner.register_step_post_hook(renormalise)
        with refusing(made, tmp_path, "changed by something else than the private optimizer"):
            made.train(3)


def test_leaving_out_the_last_poisson_batch_of_a_pass_is_refused(tmp_path: Path) -> None:
    made = private()
    with refusing(made, tmp_path, "were used; leaving one out"):
        for _ in range(2):
            for number, batch in enumerate(made.loader):
                if number < 3:
                    made.step(batch)


def test_equal_tensors_at_rest_are_not_taken_for_copies(tmp_path: Path) -> None:
    """Normalisation weights start at one, and a small rate may leave them there, in every run and checkpoint."""
    for name in ("a", "b"):
        model = nn.Sequential(nn.Linear(FEATURES, 8), nn.LayerNorm(8), nn.Linear(8, CLASSES))
        for parameter in model[0].parameters():
            nn.init.constant_(parameter, 0.1)
        made = private(model, batches="full", optimizer=lambda p: torch.optim.SGD(p, lr=1e-8))
        with recorded(made, tmp_path / name, run=name, checkpoint_every=1):
            made.train(2)
    assert len(Portfolio.load(tmp_path, allow=["different_initial_weights"]).runs) == 2


def test_a_head_on_a_private_model_pays_for_it_and_is_not_averaged_with_it(tmp_path: Path) -> None:
    """A private parent has other tensors than its child; it has to be paid for, not averaged with."""
    parent = private(nn.Sequential(nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)), batches="full")
    with recorded(parent, tmp_path / "a", run="a"):
        parent.train(2)
    parent.plain[0].requires_grad_(False)
    head = nn.Sequential(parent.plain[0], nn.Linear(8, CLASSES))
    child = private(head, batches="full", optimizer=lambda p: torch.optim.SGD(head[1].parameters(), lr=0.1))
    with recorded(
        child, tmp_path / "b", run="b", trained_only=True, ancestry=Ancestry(start="private", run="a", step=2)
    ):
        child.train(2)
    portfolio = Portfolio.load(tmp_path)
    costs = [run.mechanism.profile().epsilon(1e-5) for run in portfolio.runs]
    assert costs[1] > costs[0]
    assert [len(group) for group in portfolio.combinable()] == [1, 1]
