"""Loops whose loss is not the one that smoothness is recorded for: no such record may be made.

Claimed and true, for logistic regression on one feature, 1,001 records, two full-batch steps, σ = 10 and 0.25, merged
with weights 0.9 and 0.1: hidden_state certifies ε = 1.198 at δ = 1e-5 for the loss as it is. With the outputs scaled by
200 the second step tells the sign of what the first has learned, and the merged model costs at least 11.5.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from attacks.faults import must_notice
from dpmerge.accounting import LinearCombination, hidden_state
from dpmerge.training import bound_features, loss_derivatives, stated_loss_check
from training.loops import QUIET, Private, private, recorded, refusing

pytestmark = [pytest.mark.filterwarnings(rule) for rule in QUIET]

DELTA = 1e-5
RECORDS, NOISE, WEIGHTS, RATE, SCALE = 1001, (10.0, 0.25), (0.9, 0.1), 8.0, 200.0
CLAIMED, TRUE = 1.198, 11.5

Law = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], float]


def second_step(noise: float, scale: float, ones: int) -> Law:
    """θ after two steps of −η(Σ(sigmoid(scale·θ) − y) + σZ) from 0: means, their weights, and the last deviation."""
    rate = RATE / RECORDS

    def total(theta: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return RECORDS / (1 + np.exp(-np.clip(scale * theta, -700, 700))) - ones

    z = np.linspace(-9, 9, 20_001)
    weights = np.exp(-(z**2) / 2)
    first = -rate * total(np.zeros(1)) + rate * noise * z
    return first - rate * total(first), weights / weights.sum(), rate * noise


def merged_law(scale: float, ones: int, points: int = 2**17) -> npt.NDArray[np.float64]:
    """The law of the merged model on a grid: both runs on it, convolved, and the Gaussians of the last steps."""
    grid = np.linspace(-8, 8, points)
    width = grid[1] - grid[0]
    frequencies = 2 * np.pi * np.fft.rfftfreq(2 * points, width)
    transformed = np.ones(len(frequencies), dtype=complex)
    for noise, weight in zip(NOISE, WEIGHTS, strict=True):
        means, weights, deviation = second_step(noise, scale, ones)
        place = (weight * means - grid[0]) / width
        below = np.floor(place).astype(int)
        mass = np.zeros(points)
        np.add.at(mass, below, weights * (below + 1 - place))
        np.add.at(mass, below + 1, weights * (place - below))
        transformed *= np.fft.rfft(mass, 2 * points)
        transformed *= np.exp(-((frequencies * weight * deviation) ** 2) / 2)
    return np.asarray(np.maximum(np.fft.irfft(transformed, 2 * points), 0))


def true_epsilon(scale: float, points: int = 2**17) -> float:
    """Of the merged model, one label flipped: a lower bound of what replacing a record does."""
    one, other = (merged_law(scale, ones, points) for ones in (501, 500))
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        excess = max(np.maximum(a - np.exp(middle) * b, 0).sum() for a, b in ((one, other), (other, one)))
        low, high = (middle, high) if excess > DELTA else (low, middle)
    return low


def test_a_scaled_loss_costs_more_than_is_claimed() -> None:
    assert true_epsilon(1.0) < CLAIMED
    assert true_epsilon(SCALE) > TRUE
    assert true_epsilon(SCALE, 2**16) == pytest.approx(true_epsilon(SCALE), rel=1e-3)


def logistic(noise: float = 1.0, mode: str = "hooks", size: float = 1.0) -> Private:
    labels = (torch.arange(RECORDS) < 501).float()
    layer = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(layer.weight)
    return private(
        nn.Sequential(bound_features(1.0), layer, nn.Flatten(0)),
        dataset=TensorDataset(size * torch.ones(RECORDS, 1), labels),
        batches="full",
        mode=mode,
        noise=noise,
        criterion=nn.BCEWithLogitsLoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=RATE),
    )


def test_hidden_state_of_the_stated_loss_certifies_the_claimed_epsilon(tmp_path: Path) -> None:
    runs = []
    for noise in NOISE:
        made = logistic(noise)
        with recorded(made, tmp_path / str(noise), run=f"s{noise}", criterion=made.criterion) as record:
            made.train(2)
        runs.append(record.manifest().mechanism_from(None))
    claimed = hidden_state(LinearCombination.of_runs(runs, list(WEIGHTS)))
    assert claimed.certifies
    assert claimed.profile.epsilon(DELTA) == pytest.approx(CLAIMED, abs=1e-3)


def outputs_scaled(made: Private, scale: Callable[[torch.Tensor], object]) -> None:
    for inputs, targets in made.loader:
        made.optimizer.zero_grad()
        outputs = made.model(inputs)
        scale(outputs)
        made.criterion(outputs, targets).backward()
        made.optimizer.step()


def scaled_in_place(outputs: torch.Tensor) -> None:
    """Through numpy: torch's own operations in place are forbidden behind the hooks of Opacus."""
    outputs.detach().numpy()[...] *= SCALE


def another_backward(made: Private) -> None:
    for inputs, targets in made.loader:
        made.backward(inputs, targets)
        (SCALE * made.model(inputs)).sigmoid().mean().backward()
        made.optimizer.step()


def longer(_: nn.Module, inputs: Any, outputs: Any = None) -> Any:
    return (SCALE * inputs[0],) if outputs is None else SCALE * outputs


def with_hook(made: Private, hang: Callable[[nn.Module], object]) -> None:
    hang(made.plain)
    made.train(1)


def bound_lifted(made: Private) -> None:
    made.plain[0].bound = SCALE
    made.train(1)


LOOPS: dict[str, Callable[[Private], object]] = {
    "outputs scaled through .data": lambda made: outputs_scaled(made, lambda out: out.data.mul_(SCALE)),
    "outputs scaled in place": lambda made: outputs_scaled(made, scaled_in_place),
    "a hook on the gradient of the outputs": lambda made: outputs_scaled(
        made, lambda out: out.register_hook(lambda gradient: SCALE * gradient)
    ),
    "a forward hook on the layer": lambda made: with_hook(made, lambda m: m[1].register_forward_hook(longer)),
    "a forward pre-hook on the layer": lambda made: with_hook(made, lambda m: m[1].register_forward_pre_hook(longer)),
    "a forward hook on bound_features": lambda made: with_hook(made, lambda m: m[0].register_forward_hook(longer)),
    "the bound changed later": bound_lifted,
    "a second loss with a backward pass of its own": another_backward,
}


def another_loss(folder: Path, name: str, mode: str = "hooks") -> None:
    """Refused by the second step: at weights of zero, scaled outputs are still zero."""
    made = logistic(mode=mode, size=SCALE)
    with refusing(made, folder / "run", criterion=made.criterion):
        for _ in range(2):
            LOOPS[name](made)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("name", LOOPS)
def test_a_loss_that_is_not_the_stated_one_is_refused(tmp_path: Path, name: str, mode: str) -> None:
    another_loss(tmp_path, name, mode)


def test_earlier_checkpoints_lose_their_smoothness_after_a_refusal(tmp_path: Path) -> None:
    """The first step was what it seems to be by chance: whoever scales outputs has another loss throughout."""
    made = logistic()
    with refusing(made, tmp_path / "run", "not those of the stated loss", criterion=made.criterion, checkpoint_every=1):
        for _ in range(2):
            LOOPS["outputs scaled through .data"](made)
    kept = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert [saved["step"] for saved in kept["checkpoints"]] == [1]
    assert not kept["finished"]
    assert "smoothness" not in kept["mechanism"]


LOSSES: dict[str, tuple[nn.Module, int]] = {
    "cross entropy": (nn.CrossEntropyLoss(), 3),
    "cross entropy, smoothed labels": (nn.CrossEntropyLoss(label_smoothing=0.1), 3),
    "logistic": (nn.BCEWithLogitsLoss(), 1),
    "squared": (nn.MSELoss(), 1),
    "huber": (nn.HuberLoss(delta=0.3), 1),
    "smooth L1": (nn.SmoothL1Loss(beta=0.2), 1),
}


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", LOSSES)
def test_honest_losses_are_recorded(tmp_path: Path, name: str, bias: bool, mode: str) -> None:
    criterion, outputs = LOSSES[name]
    generator = torch.Generator().manual_seed(0)
    inputs = 3 * torch.randn(40, 7, generator=generator)
    targets = torch.randint(0, 3, (40,), generator=generator) if outputs > 1 else torch.randn(40).sigmoid()
    layers = [bound_features(2.0), nn.Linear(7, outputs, bias=bias)]
    made = private(
        nn.Sequential(*layers, *([nn.Flatten(0)] if outputs == 1 else [])),
        dataset=TensorDataset(inputs, targets),
        batches="full",
        mode=mode,
        clip=3.5 if outputs > 1 else 0.7,
        criterion=criterion,
    )
    with recorded(made, tmp_path, criterion=made.criterion) as record:
        made.train(6, 16)
    assert record.manifest().mechanism.smoothness is not None


@pytest.mark.parametrize("name", LOSSES)
def test_closed_form_gradients_are_those_of_autograd(name: str) -> None:
    criterion, outputs = LOSSES[name]
    generator = torch.Generator().manual_seed(1)
    layer = nn.Linear(5, outputs).double()
    features = torch.randn(9, 5, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 3, (9,)) if outputs > 1 else torch.randn(9, 1, generator=generator, dtype=torch.float64)
    found = layer(features).detach().requires_grad_(True)
    (gradient,) = torch.autograd.grad(9 * criterion(found, targets), found)
    expected = loss_derivatives.LossDerivative.of(criterion).expected(layer, features, targets)
    torch.testing.assert_close(expected, gradient, rtol=1e-12, atol=1e-12)


FAULTS: dict[str, tuple[Callable[[Path], object], object, str, Any]] = {
    "gradients of records are not compared": (
        lambda folder: another_loss(folder, "outputs scaled through .data"),
        stated_loss_check.StatedLossCheck,
        "_rows_agree",
        lambda *_: True,
    ),
    "the clipped sum is not compared": (
        lambda folder: another_loss(folder, "outputs scaled through .data", "ghost"),
        stated_loss_check.StatedLossCheck,
        "require_stated",
        lambda *_, **__: None,
    ),
    "features are not measured": (
        lambda folder: another_loss(folder, "the bound changed later"),
        stated_loss_check.StatedLossCheck,
        "_require_bounded",
        lambda *_: None,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_tests_notice_a_check_that_is_left_out(tmp_path: Path, fault: str) -> None:
    attack, owner, name, replacement = FAULTS[fault]
    must_notice(attack, tmp_path, owner, name, replacement)
