"""Training on few distinct images: against Opacus, record by record, and against autograd with whole images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch.nn import functional
from torch.utils.data import TensorDataset

from dpmerge.errors import InvalidInputError
from reproduction.few_images import CLASSES, PIXELS, FewImages, faint_walls, merged
from reproduction.run_store import RunStore
from reproduction.training import Setup, Task, train, warm_up_and_decay

SETUP = Setup(clip_norm=2.0, noise_multiplier=32.0, rates=warm_up_and_decay(4.0, 6))
SILENT = Setup(clip_norm=2.0, noise_multiplier=0.0, rates=SETUP.rates)


@pytest.fixture
def data() -> FewImages:
    """Bright and faint images, clipped and not, in unequal numbers, of three labels."""
    images = np.full((4, PIXELS), 33, dtype=np.uint8)
    images[1, :100], images[2, 50:53], images[3, 200:] = 255, 90, 0
    counts = np.zeros((4, CLASSES), dtype=np.int64)
    counts[0, [0, 1]], counts[1, [0, 7]], counts[2, 1], counts[3, [1, 7]] = (20, 9), (5, 6), 11, (3, 6)
    return FewImages(images, counts)


def by_autograd(data: FewImages, setup: Setup) -> np.ndarray:
    """Weights [classes, pixels + 1] after training without noise, each record's gradient made and clipped."""
    features, labels = data.whole()
    features = torch.cat([features, torch.ones(len(features), 1)], dim=1).double()
    weights = torch.zeros(CLASSES, PIXELS + 1, dtype=torch.float64)
    for rate in setup.rates:
        total = torch.zeros_like(weights)
        for row, label in zip(features, labels, strict=True):
            at = weights.clone().requires_grad_()
            functional.cross_entropy((at @ row)[None], label[None]).backward()
            assert at.grad is not None
            total += at.grad * min(1.0, setup.clip_norm / float(at.grad.norm()))
        weights -= rate / len(labels) * total
    return weights.numpy()


def test_without_noise_the_weights_are_those_of_clipped_gradients_made_one_by_one(data: FewImages) -> None:
    [found] = data.trained(SILENT, 1, torch.Generator()).numpy()
    expected = by_autograd(data, SILENT)
    back = found.reshape(len(data.basis), CLASSES).T @ data.basis
    np.testing.assert_allclose(back, expected, atol=2e-5)
    assert np.abs(expected).max() > 0.1


def test_with_noise_mean_and_spread_are_those_of_opacus(data: FewImages, tmp_path: Path, store: RunStore) -> None:
    """24 runs of Opacus on all records against 4,000 of ours, in a direction of the data and in one of no image."""
    features, labels = data.whole()
    task = Task(
        dataset="few", described="few", settings={}, private=TensorDataset(features, labels),
        model=store.mnist.model, evaluators=store.mnist.evaluators,
    )  # fmt: skip
    theirs = []
    for seed in range(24):
        train(task, SETUP, tmp_path / str(seed), noise_seed=seed + 1)
        [file] = (tmp_path / str(seed)).glob("*.safetensors")
        tensors = load_file(file)
        weight, bias = (next(t for t in tensors.values() if t.ndim == n).astype(float) for n in (2, 1))
        theirs.append((np.column_stack([weight, bias]) @ data.basis.T).T.ravel())
    ours = data.trained(SETUP, 4000, torch.Generator().manual_seed(3)).double().numpy()
    means, spreads = ours.mean(axis=0), ours.std(axis=0)
    off = (np.mean(theirs, axis=0) - means) / spreads * np.sqrt(24)
    assert np.abs(off).max() < 4
    ratio = np.std(theirs, axis=0, ddof=1) / spreads
    assert 0.85 < np.sqrt(np.mean(ratio**2)) < 1.15


def test_an_average_is_that_of_independent_runs(data: FewImages) -> None:
    found = merged(data, [SETUP, SETUP], (0.5, 0.5), 3000, torch.Generator().manual_seed(1))
    one = data.trained(SETUP, 3000, torch.Generator().manual_seed(2))
    ratio = (found.std(0) / one.std(0)).numpy()
    assert np.median(ratio) == pytest.approx(np.sqrt(0.5), abs=0.03)


def test_faint_walls_are_bytes_of_two_labels_and_one_record_of_its_own() -> None:
    data, place = faint_walls(1000, contrast=8, signal=460, gates=(70, 70), walled=400)
    assert data.records == 1000
    assert len(data.images) == 2 + 4
    assert data.counts[:, 2:].sum() == 0
    assert data.counts[place].tolist() == [1] + [0] * 9
    assert sorted(np.unique(data.images[place]).tolist()) == [0, 33, 66]
    assert set(np.unique(data.images[2:]).tolist()) == {25, 33, 41}
    assert len(np.unique(data.images[2:], axis=0)) == 4
    other = data.exchanged(place, 0, 1)
    assert np.abs(other.counts - data.counts).sum() == 2
    assert len(data.basis) == 4, "the signal, two gates, and what all images share"


@pytest.mark.parametrize(
    "wrong",
    [{"signal": 461}, {"gates": (400,)}, {"walled": 1001}],
    ids=["odd", "too many pixels", "more than there are"],
)
def test_faint_walls_refuse_what_cannot_be(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError):
        faint_walls(1000, **({"contrast": 8, "signal": 460, "gates": (), "walled": 400} | wrong))  # type: ignore[arg-type]


def test_few_images_refuse_other_than_bytes_and_negative_counts(data: FewImages) -> None:
    with pytest.raises(InvalidInputError):
        FewImages(data.images.astype(float), data.counts)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError):
        FewImages(data.images, -data.counts)
