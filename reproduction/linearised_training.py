"""Training seen through its linear part around the course without noise: how far one record moves a merged model.

Around that course a run is affine, θ ↦ A_t θ + noise, and the merged model Gaussian: an exchanged record moves its mean
by d, the noise gives it the covariance S, and the best test of all is the linear one, whose distance is √(dᵀS⁻¹d).
Runs of one clip norm and one schedule on one data set have the same A_t. For such runs the merged trajectory *is* a
theorem (theory 4.3: one affine update map), so that this attack can come near its claim and never pass it: what
breaks the claim must come from noise large enough to bend the gradients.

Guarantees: every distance it returns is that of one definite linear test, never more than the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from reproduction.training import Setup


@dataclass(frozen=True, eq=False)
class Exchange:
    """One record and the one that takes its place: features with the one for the bias, and labels."""

    name: str
    features: tuple[torch.Tensor, torch.Tensor]
    labels: tuple[int, int]


@dataclass(frozen=True, eq=False)
class LinearisedTraining:
    """Softmax regression on all records in every step, from zero; features have a one for the bias in the end.

    The noise multiplier of `setup` is not looked at: distances are for noise of deviation C on the sum.
    """

    features: torch.Tensor
    labels: torch.Tensor
    setup: Setup
    classes: int = 10

    @property
    def rates(self) -> list[float]:
        """Of the sum of clipped gradients."""
        return [rate / len(self.labels) for rate in self.setup.rates]

    @cached_property
    def course(self) -> list[torch.Tensor]:
        """The weights [features, classes] before every step, without noise."""
        weights = [torch.zeros(self.features.shape[1], self.classes)]
        for rate in self.rates[:-1]:
            errors, factors, _ = self._clipped(weights[-1], self.features, self.labels)
            weights.append(weights[-1] - rate * (self.features.T @ (errors * factors)))
        return weights

    @cached_property
    def _parts(self) -> list[tuple[torch.Tensor, ...]]:
        """What the derivative of every clipped gradient is made of, step by step."""
        parts: list[tuple[torch.Tensor, ...]] = []
        for weights in self.course:
            errors, factors, acts = self._clipped(weights, self.features, self.labels)
            chances = errors.clone()
            chances[torch.arange(len(self.labels)), self.labels] += 1
            # Along a gradient that is clipped nothing changes its length; one that is not has no such direction.
            along = torch.where(acts, errors / errors.norm(dim=1, keepdim=True), torch.zeros(()))
            parts.append((chances, factors, along))
        return parts

    def pushed(self, step: int, moved: torch.Tensor) -> torch.Tensor:
        """A_t times each of [features, classes, columns]."""
        chances, factors, along = (part[:, :, None] for part in self._parts[step])
        logits = self._times(self.features, moved)
        change = chances * (logits - (chances * logits).sum(1, keepdim=True))
        change = factors * (change - along * (along * change).sum(1, keepdim=True))
        return moved - self.rates[step] * self._times(self.features.T, change)

    def pulled(self, step: int, seen: torch.Tensor) -> torch.Tensor:
        """The transpose of A_t times each of [features, classes, columns]."""
        chances, factors, along = (part[:, :, None] for part in self._parts[step])
        change = factors * self._times(self.features, seen)
        change = change - along * (along * change).sum(1, keepdim=True)
        change = chances * (change - (chances * change).sum(1, keepdim=True))
        return seen - self.rates[step] * self._times(self.features.T, change)

    def shift(self, exchanges: Sequence[Exchange]) -> torch.Tensor:
        """By how much each exchange moves the final mean: [features, classes, exchanges]."""
        moved = torch.zeros(*self.course[0].shape, len(exchanges))
        for step, rate in enumerate(self.rates):
            if step:
                moved = self.pushed(step, moved)
            for place, exchange in enumerate(exchanges):
                rows, labels = torch.stack(exchange.features), torch.tensor(exchange.labels)
                errors, factors, _ = self._clipped(self.course[step], rows, labels)
                gradients = rows[:, :, None] * (errors * factors)[:, None, :]
                moved[:, :, place] += rate * (gradients[0] - gradients[1])
        return moved

    def covariance_times(self, seen: torch.Tensor) -> torch.Tensor:
        """S times each column, for noise of deviation C on the sum."""
        pulled = [seen]
        for step in range(len(self.rates) - 1, 0, -1):
            pulled.append(self.pulled(step, pulled[-1]))
        pulled.reverse()
        total = torch.zeros_like(seen)
        for step, rate in enumerate(self.rates):
            if step:
                total = self.pushed(step, total)
            total = total + (rate * self.setup.clip_norm) ** 2 * pulled[step]
        return total

    def distances(self, exchanges: Sequence[Exchange], iterations: int) -> list[list[float]]:
        """For each exchange the distance of a linear test, better from iteration to iteration (conjugate gradients)."""
        goal = self.shift(exchanges)
        found: list[list[float]] = [[] for _ in exchanges]

        def dot(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            return (one.double() * other.double()).sum((0, 1))

        scale = dot(goal, goal).sqrt().float()
        goal = goal / scale
        test, left = torch.zeros_like(goal), goal.clone()
        direction, seen, size = left.clone(), torch.zeros_like(goal), dot(left, left)
        for _ in range(iterations):
            image = self.covariance_times(direction)
            length = (size / dot(direction, image)).float()
            test, seen, left = test + length * direction, seen + length * image, left - length * image
            reached = dot(test, goal) / dot(test, seen).sqrt() * scale
            for place, value in enumerate(reached.tolist()):
                found[place].append(value)
            fresh = dot(left, left)
            direction, size = left + (fresh / size).float() * direction, fresh
        return found

    def _clipped(
        self, weights: torch.Tensor, rows: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """p − y of each row, the factor of its clipping, and whether clipping acts."""
        errors = torch.softmax(rows @ weights, dim=1)
        errors[torch.arange(len(labels)), labels] -= 1
        norms = errors.norm(dim=1, keepdim=True) * rows.norm(dim=1, keepdim=True)
        factors = (self.setup.clip_norm / (norms + 1e-6)).clamp_max(1.0)
        return errors, factors, factors < 1

    @staticmethod
    def _times(matrix: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        return (matrix @ columns.reshape(columns.shape[0], -1)).reshape(matrix.shape[0], *columns.shape[1:])
