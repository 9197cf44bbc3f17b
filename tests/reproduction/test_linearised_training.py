"""The linear part of training, against whole Jacobians by finite differences and a covariance made step by step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from reproduction.linearised_training import Exchange, LinearisedTraining
from reproduction.training import Setup

SETUP = Setup(clip_norm=0.8, noise_multiplier=1.0, rates=(0.5, 1.0, 0.7))
RECORDS, FEATURES, CLASSES = 12, 4, 3


@pytest.fixture
def training() -> LinearisedTraining:
    rng = np.random.default_rng(4)
    features = torch.from_numpy(rng.normal(size=(RECORDS, FEATURES)) * np.linspace(0.3, 2, RECORDS)[:, None])
    return LinearisedTraining(features.float(), torch.from_numpy(rng.integers(0, CLASSES, RECORDS)), SETUP, CLASSES)


def update(
    training: LinearisedTraining, weights: np.ndarray, rate: float, *, swap: Exchange | None = None
) -> np.ndarray:
    """One step in double precision, record by record; with `swap` the first of its two is there, or the second."""
    rows = [(row.double().numpy(), int(label)) for row, label in zip(training.features, training.labels, strict=True)]
    if swap is not None:
        rows[0] = (swap.features[1].double().numpy(), swap.labels[1])
    total = np.zeros_like(weights)
    for row, label in rows:
        logits = row @ weights
        chance = np.exp(logits - logits.max())
        error = chance / chance.sum() - np.eye(CLASSES)[label]
        gradient = np.outer(row, error)
        total += gradient * min(1.0, SETUP.clip_norm / np.linalg.norm(gradient))
    return weights - rate / RECORDS * total


def test_distances_are_those_of_jacobians_by_finite_differences(training: LinearisedTraining) -> None:
    first = training.features[0]
    swap = Exchange("x", (first, -first), (int(training.labels[0]), 1))
    size = FEATURES * CLASSES
    weights, shift, covariance = np.zeros((FEATURES, CLASSES)), np.zeros(size), np.zeros((size, size))
    clipped = []
    for rate in SETUP.rates:
        jacobian = np.empty((size, size))
        for place in range(size):
            step = np.zeros(size)
            step[place] = 1e-6
            ahead, behind = (
                update(training, weights + sign * step.reshape(weights.shape), rate).ravel() for sign in (1, -1)
            )
            jacobian[:, place] = (ahead - behind) / 2e-6
        moved = update(training, weights, rate, swap=swap) - update(training, weights, rate)
        shift = jacobian @ shift + moved.ravel()
        covariance = jacobian @ covariance @ jacobian.T + (rate / RECORDS * SETUP.clip_norm) ** 2 * np.eye(size)
        clipped.append(training._clipped(torch.from_numpy(weights).float(), training.features, training.labels)[2])
        weights = update(training, weights, rate)
    assert 0 < torch.stack(clipped).float().mean() < 1, "some gradients are clipped, some are not"
    best = float(np.sqrt(shift @ np.linalg.solve(covariance, shift)))
    [found] = training.distances([swap], size)
    assert max(found) == pytest.approx(best, rel=2e-3)
    assert all(reached <= best * (1 + 2e-3) for reached in found)
    assert found[0] <= found[2] <= found[-1] * (1 + 1e-4)
    # With one affine map for both runs the merged trajectory is a theorem: 2C a step over noise of C, in three steps.
    assert best <= 2 * np.sqrt(3)


def test_transposes_are_transposes(training: LinearisedTraining) -> None:
    generator = torch.Generator().manual_seed(1)
    one, other = (torch.randn(FEATURES, CLASSES, 2, generator=generator) for _ in range(2))
    for step in range(3):
        ahead = (training.pushed(step, one) * other).sum((0, 1))
        back = (one * training.pulled(step, other)).sum((0, 1))
        torch.testing.assert_close(ahead, back, rtol=1e-4, atol=1e-5)
