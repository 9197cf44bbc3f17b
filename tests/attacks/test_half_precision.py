"""Half precision as a way round clipping: gradients that overflow or are rounded up, hidden scalers, a moving base.

By effect: the sums of two data sets that differ in one record lie no further apart than the accounting says, 2·C.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from attacks.faults import must_notice
from dpmerge.errors import DpmergeError, RecordingError
from dpmerge.portfolio.manifest import MANIFEST_NAME
from dpmerge.training import float32_gradients, frozen_tensors, half_precision, recorder
from training.loops import CLASSES, FEATURES, QUIET, Private, data, private, recorded, refusing

pytestmark = [pytest.mark.filterwarnings(rule) for rule in QUIET]

CLIP, RECORDS = 0.5, 24
ROUNDING = 1e-5


def sums(made: Private) -> list[Tensor]:
    """The sum of clipped gradients of each step, before its noise."""
    found: list[Tensor] = []
    accounted = made.optimizer.step_hook

    def noted(optimizer: Any) -> None:
        found.append(torch.cat([p.summed_grad.double().flatten() for p in optimizer.params]))
        accounted(optimizer)

    made.optimizer.attach_step_hook(noted)
    return found


def one_step(
    made: Private, folder: Path, *, dtype: torch.dtype | None, physical: int | None = None, whole: bool = False
) -> Tensor:
    """The sum of the first step, recorded; `whole`: autocast around all of it."""
    found, forward = sums(made), made.model.forward

    def under_autocast(*args: Any) -> Any:
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            return forward(*args)

    made.model.forward = under_autocast
    with (
        recorded(made, folder) as recorder,
        torch.autocast("cpu", dtype or torch.bfloat16, enabled=whole),
    ):
        made.train(1, physical)
    assert recorder.manifest().finished  # nothing was stopped, whatever was in the batch
    return found[0]


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(FEATURES, 24), nn.ReLU(), nn.Linear(24, CLASSES))


def with_record(row: Tensor) -> TensorDataset:
    inputs, targets = data(RECORDS, size=3.0).tensors
    inputs[5] = row
    return TensorDataset(inputs, targets)


ROWS: dict[str, Tensor] = {
    "not a number": torch.full((FEATURES,), float("nan")),
    "infinite": torch.full((FEATURES,), float("inf")),
    "one value infinite": torch.cat([torch.tensor([-float("inf")]), torch.ones(FEATURES - 1)]),
    "infinite in float16": torch.full((FEATURES,), 1e5),
    "whose gradient overflows float16": torch.full((FEATURES,), 6e4),
    "whose gradient overflows bfloat16": torch.full((FEATURES,), 3e38),
    "whose norm overflows float32": torch.full((FEATURES,), 3e19),
    "long": torch.linspace(-100.0, 100.0, FEATURES),
}
LOOPS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": None},
    "bfloat16": {"dtype": torch.bfloat16},
    "float16": {"dtype": torch.float16},
    "in parts": {"dtype": torch.bfloat16, "physical": 5},
    "all of it under autocast": {"dtype": torch.bfloat16, "whole": True},
}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("mode", ["hooks", "functorch"])
def test_neighbouring_sums_are_no_further_apart_than_two_clip_norms(
    tmp_path: Path, loop: str, row: str, mode: str
) -> None:
    apart(tmp_path, loop, row, mode)


def apart(folder: Path, loop: str, row: str, mode: str = "hooks") -> None:
    found = []
    for name, each in (("with", ROWS[row]), ("without", torch.zeros(FEATURES))):
        made = private(model(), dataset=with_record(each), batches="in_order", batch_size=RECORDS, clip=CLIP, mode=mode)
        found.append(one_step(made, folder / name, **LOOPS[loop]))
    assert bool(torch.stack(found).isfinite().all())
    assert float((found[0] - found[1]).norm()) <= 2 * CLIP * (1 + ROUNDING)


@pytest.mark.parametrize("copies", [1, 2, 7])
@pytest.mark.parametrize("clip", [CLIP, [0.3, 0.0, 0.4, 0.0]])
def test_one_record_is_never_longer_than_the_clip_norm(tmp_path: Path, clip: Any, copies: int) -> None:
    alone(tmp_path, clip, copies)


def alone(folder: Path, clip: Any = CLIP, copies: int = 1) -> None:
    """Rounded in bfloat16, a clipped gradient is up to 0.4 % too long; no record may be, nor the sum of equal ones."""
    longest = 0.0
    for seed in range(20):
        rows = [tensor.repeat(copies, *[1] * (tensor.dim() - 1)) for tensor in data(1, size=5.0, seed=seed).tensors]
        made = private(model(seed), dataset=TensorDataset(*rows), batches="full", clip=clip)
        longest = max(longest, float(one_step(made, folder / str(seed), dtype=torch.bfloat16, whole=True).norm()))
    assert 0.4 * copies < longest <= CLIP * copies * (1 + ROUNDING)


# Gradients put in after the cast


def rounds_within(made: Private) -> None:
    """A method of the instance's own, around Opacus' clipping."""
    clip = made.optimizer.clip_and_accumulate

    def rounded() -> None:
        put_half(made)
        clip()

    made.optimizer.clip_and_accumulate = rounded  # type: ignore[method-assign]


def rounds_when_asked(made: Private) -> None:
    """A hook of the model's, which also runs when the recorder asks about one record, after the cast."""
    made.plain.register_forward_hook(lambda *_: put_half(made))


def put_half(made: Private) -> None:
    for parameter in made.optimizer.params:
        if isinstance(getattr(parameter, "grad_sample", None), Tensor):
            parameter.grad_sample = parameter.grad_sample.bfloat16()


@pytest.mark.parametrize("how", [rounds_within, rounds_when_asked])
def test_gradients_rounded_after_the_cast_are_clipped_in_single_precision(
    tmp_path: Path, how: Callable[[Private], None]
) -> None:
    for seed in range(20):
        made = private(model(seed), dataset=data(1, size=5.0, seed=seed), batches="full", clip=CLIP)
        how(made)
        found = one_step(made, tmp_path / str(seed), dtype=None)
        assert float(found.norm()) <= CLIP * (1 + ROUNDING)
        assert all(p.summed_grad.dtype == torch.float32 for p in made.optimizer.params)


# Scalers that hide


class Wrapped:
    """As accelerators do it: torch's scaler behind methods of other names."""

    def __init__(self) -> None:
        self.inner = torch.amp.GradScaler("cpu")

    def backward(self, loss: Tensor) -> None:
        self.inner.scale(loss).backward()

    def step(self, optimizer: Any) -> None:
        self.inner.step(optimizer)
        self.inner.update()


class OwnStep(torch.amp.GradScaler):
    """Decides by itself, before torch's method is asked."""

    def __init__(self) -> None:
        super().__init__("cpu")

    def backward(self, loss: Tensor) -> None:
        self.scale(loss).backward()

    def step(self, optimizer: Any) -> None:  # type: ignore[override]
        if all(bool(p.grad.isfinite().all()) for p in optimizer.params):
            optimizer.step()


class ByHand:
    """Nothing of torch's: a scale that follows the data, and steps left out by it."""

    def __init__(self, *, skips: bool) -> None:
        self.factor, self.skips, self.steps = 1024.0, skips, 0

    def backward(self, loss: Tensor) -> None:
        self.factor *= 1 + float(loss.detach()) / 100
        (loss * self.factor).backward()

    def step(self, optimizer: Any) -> None:
        self.steps += 1
        if not (self.skips and self.steps == 2):
            optimizer.step()


def train_with(made: Private, scaler: Any) -> None:
    for inputs, targets in made.loader:
        made.optimizer.zero_grad()
        scaler.backward(made.criterion(made.model(inputs), targets))
        scaler.step(made.optimizer)


@pytest.mark.parametrize("scaler", [Wrapped, OwnStep])
def test_a_scaler_behind_a_wrapper_is_refused_by_name(tmp_path: Path, scaler: Callable[[], Any]) -> None:
    with refusing(made := private(), tmp_path, "GradScaler: it scales losses"):
        train_with(made, scaler())


def test_a_scaler_whose_refusal_is_swallowed_leaves_no_finished_record(tmp_path: Path) -> None:
    made = private(batches="full")
    scaler = Wrapped()
    with recorded(made, tmp_path) as recorder:
        made.train(1)
        with pytest.raises(RecordingError):
            train_with(made, scaler)
    assert not recorder.manifest().finished


def test_steps_that_a_scaler_of_ones_own_leaves_out_are_refused(tmp_path: Path) -> None:
    """By their effect: a batch that was drawn is not used, or gradients of two batches are in one step."""
    with refusing(made := private(), tmp_path):
        train_with(made, ByHand(skips=True))


def test_losses_that_a_scaler_of_ones_own_scales_are_never_called_checked(tmp_path: Path) -> None:
    made = private()
    with recorded(made, tmp_path) as recorder:
        train_with(made, ByHand(skips=False))
    assert recorder.manifest().record_losses == "unknown"
    assert "the operation Mul" in recorder.record_losses_doubts


# A frozen base that moves


class OnBase(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(FEATURES, 512).requires_grad_(False)
        self.head = nn.Linear(512, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(torch.tanh(self.base(inputs)))  # type: ignore[no-any-return]


def learns_by_data(made: Private) -> None:
    """The base takes up what is in the batches, without noise, by a road that torch does not count."""
    inputs, _ = next(iter(made.loader))
    base: Any = made.plain.base
    base.weight.data[:FEATURES] += 0.01 * inputs[:FEATURES]


def base_moved(folder: Path) -> None:
    made = private(OnBase(), batches="full")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frozen_tensors, "WHOLE_UP_TO", 0)
        with refusing(made, folder, "model.base.weight: changed in training", trained_only=True, checkpoint_every=2):
            made.train(4, after=lambda: learns_by_data(made))
    assert not (folder / MANIFEST_NAME).exists()


def hidden_place_moved(folder: Path) -> None:
    """One value that nobody looks at: every checkpoint is kept, and none of them stays."""
    made = private(OnBase(), batches="full")
    base: Any = made.plain.base
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frozen_tensors, "WHOLE_UP_TO", 0)
        patch.setattr(frozen_tensors, "_places", lambda value, *_: torch.arange(1, value.numel()))
        with refusing(made, folder, "model.base.weight: changed in training", trained_only=True, checkpoint_every=1):
            made.train(3, after=lambda: base.weight.data[0, 0].add_(0.5))
            assert (folder / MANIFEST_NAME).exists()
    assert not (folder / MANIFEST_NAME).exists()


def test_a_base_that_learns_by_private_data_between_checkpoints_leaves_no_claim(tmp_path: Path) -> None:
    base_moved(tmp_path)


def test_a_base_that_moves_where_nobody_looks_leaves_no_claim(tmp_path: Path) -> None:
    hidden_place_moved(tmp_path)


# With a check taken out, the attacks above get through


def stands(attack: Callable[[Path], object]) -> Callable[[Path], object]:
    """An attack on a loop that must be recorded: that it is refused, or breaks, counts as noticed, too."""

    def attempt(folder: Path) -> None:
        try:
            attack(folder)
        except (DpmergeError, RuntimeError) as error:
            pytest.fail(str(error))

    return attempt


FAULTS: dict[str, tuple[Callable[[Path], object], object, str, Any]] = {
    "gradients stay in half precision": (stands(alone), float32_gradients.Float32Gradients, "widen", lambda self: None),
    "autocast reaches clipping": (
        stands(lambda folder: alone(folder, copies=2)),
        float32_gradients,
        "without_autocast",
        lambda device: torch.autocast(device.type, torch.bfloat16),
    ),
    "records that are not finite stay": (
        stands(lambda folder: apart(folder, "bfloat16", "not a number")),
        float32_gradients.Float32Gradients,
        "_zero_what_is_not_finite",
        lambda self: [setattr(p, "grad_sample", p.grad_sample.detach()) for p in self._parameters],
    ),
    "the base is not hashed at the close": (
        hidden_place_moved,
        recorder.Recorder,
        "require_frozen_whole",
        lambda self: None,
    ),
    "scalers are not looked for": (
        lambda folder: test_a_scaler_behind_a_wrapper_is_refused_by_name(folder, Wrapped),
        half_precision,
        "_check_first",
        lambda *_: None,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_tests_above_notice_a_check_that_is_taken_out(tmp_path: Path, fault: str) -> None:
    attack, owner, name, replaced = FAULTS[fault]
    must_notice(attack, tmp_path, owner, name, replaced)
