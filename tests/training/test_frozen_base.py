"""A frozen base: hashed whole at the start and at the close, looked at in secret places at each checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dpmerge.errors import RecordingError
from dpmerge.portfolio.manifest import MANIFEST_NAME, Manifest
from dpmerge.training import frozen_tensors
from dpmerge.training.frozen_tensors import FrozenTensors, tensor_digests
from training.loops import CLASSES, FEATURES, QUIET, Private, private, recorded, refusing

pytestmark = [pytest.mark.filterwarnings(rule) for rule in QUIET]

CHANGED = "model.base.weight: changed in training although the private optimizer does not train it"


class OnBase(nn.Module):
    """A trained head on a frozen layer of 32,768 values."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.base = nn.Linear(FEATURES, 2048, dtype=dtype).requires_grad_(False)
        self.head = nn.Linear(2048, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(torch.tanh(self.base(inputs.to(self.base.weight.dtype))).float())  # type: ignore[no-any-return]


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every base counts as a large one."""
    monkeypatch.setattr(frozen_tensors, "WHOLE_UP_TO", 0)


def on_base(dtype: torch.dtype = torch.float32) -> Private:
    return private(OnBase(dtype), batches="full")


def weight(made: Private) -> Tensor:
    return made.plain.base.weight  # type: ignore[union-attr, return-value]


def one_value(made: Private) -> None:
    """One of those that are not looked at, by a road that torch does not count."""
    weight(made).data[0, 0] += 1.0


def out_of_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the first row is looked at: 1 to 16 of 32,768 values."""
    kept = frozen_tensors._places

    def elsewhere(value: Tensor, most: int, generator: torch.Generator) -> Tensor | None:
        places = kept(value, most, generator)
        return None if places is None else places.clamp(min=FEATURES)

    monkeypatch.setattr(frozen_tensors, "_places", elsewhere)


def steps_in(folder: Path) -> list[int]:
    return [kept.step for kept in Manifest.read(folder / MANIFEST_NAME).checkpoints]


def test_digests_are_those_of_the_bytes_in_order() -> None:
    table = torch.randn(5, 7)
    tensors = {
        "plain": table,
        "tied": table,
        "turned": table.T,
        "half": table.bfloat16(),
        "whole": torch.arange(6),
        "flags": torch.tensor([True, False]),
        "empty": torch.zeros(0, 3),
        "single": torch.tensor(3.0),
    }
    found = tensor_digests(tensors, tensors)
    for name, tensor in tensors.items():
        values = tensor.contiguous().reshape(-1)
        raw = values.view(torch.int16).numpy() if tensor.dtype is torch.bfloat16 else values.numpy()
        assert found[name] == hashlib.sha256(raw.tobytes()).hexdigest(), name


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_adapter_on_a_large_base_is_recorded(
    tmp_path: Path, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the start and the close nothing is hashed."""
    hashed: list[str] = []
    digest = frozen_tensors._digest
    monkeypatch.setattr(frozen_tensors, "_digest", lambda value: (hashed.append("one"), digest(value))[1])
    made = on_base(dtype)
    with recorded(made, tmp_path, trained_only=True, checkpoint_every=1):
        assert len(hashed) == 4
        made.train(3)
        assert len(hashed) == 4
    assert len(hashed) == 6
    manifest = Manifest.read(tmp_path / MANIFEST_NAME)
    assert manifest.finished
    assert steps_in(tmp_path) == [1, 2, 3]


DENSE: dict[str, Callable[[Tensor], object]] = {
    "one value in a hundred": lambda base: base.data.flatten()[::100].add_(1.0),
    "a little of every value": lambda base: base.data.mul_(1.0001),
    "another tensor": lambda base: setattr(base, "data", torch.randn_like(base)),
    "zero turned into minus zero": lambda base: base.data.mul_(-1.0),
    "not a number": lambda base: base.data.fill_(float("nan")),
}


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("change", DENSE)
def test_a_dense_change_is_refused_at_the_next_checkpoint(tmp_path: Path, change: str) -> None:
    made = on_base()
    if change == "zero turned into minus zero":
        nn.init.zeros_(weight(made))
    with recorded(made, tmp_path, trained_only=True) as recorder:
        made.train(1)
        recorder.checkpoint()
        DENSE[change](weight(made))
        made.train(1)
        with pytest.raises(RecordingError, match=CHANGED):
            recorder.checkpoint()
        assert steps_in(tmp_path) == [1]
        recorder.close(RecordingError("the loop was left"))
    assert not (tmp_path / MANIFEST_NAME).exists()


@pytest.mark.usefixtures("large")
def test_a_change_that_no_checkpoint_saw_is_found_at_the_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoints in between lose their claim: nobody knows since when the base was another."""
    made = on_base()
    out_of_sight(monkeypatch)
    with refusing(made, tmp_path, CHANGED, trained_only=True, checkpoint_every=1):
        made.train(1)
        one_value(made)
        made.train(2)
        assert steps_in(tmp_path) == [1, 2, 3]
    assert not (tmp_path / MANIFEST_NAME).exists()


@pytest.mark.usefixtures("large")
def test_a_change_is_found_at_the_close_of_a_loop_that_broke_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = on_base()
    out_of_sight(monkeypatch)

    def loop() -> None:
        with recorded(made, tmp_path, trained_only=True, checkpoint_every=1):
            made.train(2)
            one_value(made)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loop()
    assert not (tmp_path / MANIFEST_NAME).exists()


@pytest.mark.usefixtures("large")
def test_a_loop_that_broke_off_keeps_what_it_has_if_the_base_is_the_same(tmp_path: Path) -> None:
    made = on_base()

    def loop() -> None:
        with recorded(made, tmp_path, trained_only=True, checkpoint_every=2):
            made.train(3)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loop()
    assert steps_in(tmp_path) == [2, 3]
    assert not Manifest.read(tmp_path / MANIFEST_NAME).finished


@pytest.mark.parametrize("trained_only", [True, False])
def test_a_small_base_is_hashed_whole_each_time_and_what_was_kept_stays(tmp_path: Path, trained_only: bool) -> None:
    made = on_base()
    with refusing(made, tmp_path, CHANGED, trained_only=trained_only, checkpoint_every=1):
        made.train(2)
        one_value(made)
        made.train(1)
    assert steps_in(tmp_path) == [1, 2]


@pytest.mark.usefixtures("large")
def test_a_large_base_that_is_saved_is_hashed_whole_each_time(tmp_path: Path) -> None:
    made = on_base()
    with refusing(made, tmp_path, CHANGED, checkpoint_every=1):
        made.train(2)
        one_value(made)
        made.train(1)
    assert steps_in(tmp_path) == [1, 2]


@pytest.mark.usefixtures("large")
def test_places_are_others_each_time_and_as_many_as_promised() -> None:
    state = {"base": torch.zeros(10**6), "short": torch.zeros(10)}
    found = [FrozenTensors(state, dict.fromkeys(state, "")) for _ in range(2)]
    places = [each._places["base"] for each in found]
    assert all(each is not None and len(each) == frozen_tensors.VALUES_OF_EACH for each in places)
    assert not torch.equal(*places)  # type: ignore[arg-type]
    assert found[0]._places["short"] is None
    state["short"][3] = 1.0
    with pytest.raises(RecordingError, match="model.short"):
        found[0].require_same_sample(state)


def test_the_chance_of_missing_a_dense_change_is_as_stated() -> None:
    assert 0.99**frozen_tensors.VALUES_OF_EACH < 1e-17
