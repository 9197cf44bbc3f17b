"""Canaries: records put into real training to see whether the model gives them away, and that training many times over.

Guarantees: `recorded` trains with Opacus under the recorder, every record in every step, and hands runs out only after
`trained` has arrived at the same weights from the same noise. `trained` is that training, many runs at once: the
gradient of a linear layer is an outer product, so that its norm is a product of two norms and no record's gradient is
ever made. `reached` leaves out exactly what cannot matter to the weights that are looked at.
The noise is seeded, so that anybody can repeat an audit: never train like this for a release.
Refuses: pixels that are not the canary's alone; recorded weights that are not those of their setup and noise.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dpmerge.auditing.attacks import Array, Attack, in_batches
from dpmerge.errors import InvalidInputError
from dpmerge.evaluation.merged_model import StoredModel
from dpmerge.portfolio import Portfolio
from dpmerge.portfolio.manifest import MANIFEST_NAME, Manifest
from dpmerge.training import Ancestry, record
from reproduction.images import Bytes
from reproduction.training import Setup, quiet, threads

AdjacencyName = Literal["replace_one", "add_remove"]
Noise = Callable[[torch.Size], Tensor]
"""Standard normals of a shape, fresh ones at every call."""

WEIGHT = "weight"
"""The one tensor of these models: [classes, pixels]."""

SIDE = 28
"""Pixels in a row of an image of MNIST."""

CLIPPING_SLACK = 1e-6
"""Opacus scales a gradient by C / (norm + this)."""

_AT_ONCE = 2**18
"""Weights in memory at a time."""

_AGREEMENT = 1e-5
"""By how much single precision may tell a weight that was trained from the same one trained again."""


class Records(NamedTuple):
    """What a softmax regression without bias is trained on: features [records, pixels], labels [records]."""

    features: Tensor
    labels: Tensor
    classes: int

    @property
    def pixels(self) -> int:
        return self.features.shape[1]

    def and_also(self, others: Records) -> Records:
        features, labels = torch.cat([self.features, others.features]), torch.cat([self.labels, others.labels])
        return Records(features, labels, self.classes)

    def some(self, which: Tensor) -> Records:
        return Records(self.features[which], self.labels[which], self.classes)

    def mirrored(self) -> Records:
        """Every feature turned around: at a model of zeros, and nearly so close to it, the gradients turn around."""
        return self._replace(features=-self.features)

    def directions(self) -> Tensor:
        """Where each record pushes a model of zeros: [records, classes, pixels], each of norm 1."""
        pushed = nn.functional.one_hot(self.labels, self.classes) - 1 / self.classes
        outer = pushed[:, :, None] * self.features[:, None, :]
        lengths: Tensor = outer.flatten(1).norm(dim=1)
        return outer / lengths[:, None, None]


def framed(images: Bytes, labels: Bytes, *, classes: int, border: int = 0) -> Records:
    """Grey values in [0, 1] with a black border of so many pixels; labels modulo the number of classes."""
    grey = images.reshape(-1, SIDE, SIDE).astype(np.float32) / 255
    wide = np.pad(grey, ((0, 0), (border, border), (border, border)))
    kinds = torch.from_numpy(labels.astype(np.int64) % classes)
    return Records(torch.from_numpy(wide.reshape(len(wide), -1)), kinds, classes)


def dark_pixels(images: Records) -> list[int]:
    """The pixels that are black in every image."""
    dark: list[int] = torch.nonzero(~images.features.any(dim=0)).flatten().tolist()
    return dark


def pixel_canaries(images: Records, pixels: Iterable[int]) -> Records:
    """Black images with one white pixel each, where only that record has a gradient; their labels take turns."""
    places = list(pixels)
    if not places:
        raise InvalidInputError("pixels", places, "at least one pixel that is black in every image")
    if shared := sorted(set(places) - set(dark_pixels(images))):
        raise InvalidInputError("pixels", shared, "pixels that are black in every image")
    if len(set(places)) < len(places):
        raise InvalidInputError("pixels", places, "each pixel once")
    features = torch.zeros(len(places), images.pixels)
    features[range(len(places)), places] = 1.0
    return Records(features, torch.arange(len(places)) % images.classes, images.classes)


def recorded(
    folder: Path, name: str, records: Records, setups: Mapping[str, Setup], *, adjacency: AdjacencyName, seed: int
) -> Portfolio:
    """Real runs on these records, each with noise of its own, trained now or found as they were trained before.

    The rates of a setup are those of the *sum* of clipped gradients: nothing is divided by the number of records,
    which under add_remove is private.
    """
    content = hashlib.sha256(records.features.numpy().tobytes() + records.labels.numpy().tobytes()).hexdigest()
    made_of = [content, {run: setup.document() for run, setup in setups.items()}, adjacency, seed]
    digest = hashlib.sha256(json.dumps(made_of).encode()).digest()
    home = folder / f"{name}-{digest.hex()[:10]}"
    # Spawned by all that a run is made of: two portfolios never share a stream.
    streams = np.random.SeedSequence(seed, spawn_key=tuple(digest)).generate_state(len(setups))
    for (run, setup), noise_seed in zip(setups.items(), streams.tolist(), strict=True):
        manifest = home / run / MANIFEST_NAME
        if not (manifest.exists() and Manifest.read(manifest).finished):
            shutil.rmtree(home / run, ignore_errors=True)  # begun and not finished
            train(records, setup, home / run, adjacency=adjacency, noise_seed=noise_seed)
    portfolio = Portfolio.load(home)
    for (run, setup), noise_seed in zip(setups.items(), streams.tolist(), strict=True):
        found = StoredModel.of(portfolio, f"{run}@{len(setup.rates)}").read(WEIGHT)
        if np.abs(found - trained_again(records, setup, noise_seed).numpy()).max() > _AGREEMENT:
            accepted = f"the weights of its setup and noise; delete {home} to train again"
            raise InvalidInputError(str(home / run), run, accepted, found="other weights")
    return portfolio


def train(records: Records, setup: Setup, directory: Path, *, adjacency: AdjacencyName, noise_seed: int) -> None:
    """One run with Opacus under the recorder: softmax regression from zero weights, every record in every step."""
    model = nn.Linear(records.pixels, records.classes, bias=False)
    nn.init.zeros_(model.weight)
    data = TensorDataset(records.features, records.labels)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with quiet(), threads(1):
        private, optimizer, criterion, loader = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=setup.rates[0]),
            criterion=nn.CrossEntropyLoss(reduction="sum"),
            data_loader=DataLoader(data, batch_size=len(data)),
            noise_multiplier=setup.noise_multiplier,
            max_grad_norm=setup.clip_norm,
            loss_reduction="sum",
            grad_sample_mode="ghost",
        )
        with record(
            model=private,
            optimizer=optimizer,
            data_loader=loader,
            run=directory.name,
            dataset="mnist-train with canaries",
            adjacency=adjacency,
            directory=directory,
            checkpoint_at=setup.keep,
            ancestry=Ancestry(start="random"),
            tuning="none",
            stopping="fixed",
            schedule="fixed",
            noise_seed=noise_seed,
            who="dpmerge audit",
        ):
            for rate in setup.rates:
                for group in optimizer.param_groups:
                    group["lr"] = rate
                optimizer.zero_grad()
                criterion(private(records.features), records.labels).backward()
                optimizer.step()


def trained(records: Records, setup: Setup, runs: int, noise: Noise) -> Tensor:
    """The final weights of so many runs as `train` trains them: [runs, classes, pixels].

    A record's gradient is (p − e_y) ⊗ x: clipped to C it is that times min(1, C / (|p − e_y| · |x|)).
    """
    features, lengths = records.features, records.features.norm(dim=1)
    wanted = nn.functional.one_hot(records.labels, records.classes).T
    weights = torch.zeros(runs, records.classes, records.pixels)
    with threads(1):
        for rate in setup.rates:
            errors = torch.softmax(weights @ features.T, dim=1) - wanted
            norms = errors.norm(dim=1, keepdim=True) * lengths
            clipped = errors * (setup.clip_norm / (norms + CLIPPING_SLACK)).clamp(max=1.0)
            drawn = noise(weights.shape)
            weights -= rate * (clipped @ features + setup.noise_multiplier * setup.clip_norm * drawn)
    return weights


def trained_again(records: Records, setup: Setup, noise_seed: int) -> Tensor:
    """What `trained` makes of one run with the noise of a recorded one: [classes, pixels]."""
    generator = torch.Generator().manual_seed(noise_seed)
    return trained(records, setup, 1, lambda shape: torch.normal(0.0, 1.0, shape, generator=generator))[0]


class Reach(NamedTuple):
    """Some records with some of the pixels, whose weights train as they would among all."""

    records: Records
    pixels: Tensor  # which of all pixels: a mask


def reached(records: Records, pixels: Tensor) -> Reach:
    """All that the weights of these pixels (a mask) depend on, through whatever records.

    Exact: no record that is left out has a gradient at a pixel that is kept, and the logits of no kept record have a
    term from a pixel that is left out. Pixels that no record uses get noise and nothing else.
    """
    lit = records.features != 0
    while True:
        rows = lit[:, pixels].any(dim=1)
        wider = pixels | lit[rows].any(dim=0)
        if torch.equal(wider, pixels):
            kept = records.some(rows)
            return Reach(kept._replace(features=kept.features[:, pixels]), pixels)
        pixels = wider


class Worlds(NamedTuple):
    """A canary, the records with it, and those of the neighbour, who has its mirror image (or nothing) instead."""

    canary: Records
    present: Records
    absent: Records
    adjacency: AdjacencyName

    @classmethod
    def of(cls, images: Records, canary: Records, adjacency: AdjacencyName) -> Worlds:
        absent = images.and_also(canary.mirrored()) if adjacency == "replace_one" else images
        return cls(canary, images.and_also(canary), absent, adjacency)


def attack_on(worlds: Worlds, parts: Sequence[tuple[Setup, float]]) -> Attack:
    """For every trial train all parts of an average, and see how far the canary's way the average has gone.

    On the scale of the log-likelihood ratio of a canary whose gradient is C in one direction at every step, so that
    scores of different averages compare.
    """
    pushed = sum(weight * setup.clip_norm * sum(setup.rates) for setup, weight in parts)
    noises = [weight * s.noise_multiplier * s.clip_norm * np.linalg.norm(s.rates) for s, weight in parts]
    scale = pushed / float(np.square(noises).sum())
    way = worlds.canary.directions()[0]
    absent, present = (reached(each, worlds.canary.features[0] != 0) for each in (worlds.absent, worlds.present))
    classes, size = way.shape[0], max(*absent.records.features.shape, *present.records.features.shape)

    def scores(rng: np.random.Generator, trials: int, there: bool) -> Array:
        def noise(shape: torch.Size) -> Tensor:
            return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))

        records, pixels = present if there else absent
        with threads(1):
            merged = torch.zeros(trials, classes, records.pixels)
            for setup, weight in parts:
                merged += weight * trained(records, setup, trials, noise)
            moved = torch.einsum("rcp,cp->r", merged, way[:, pixels]).double().numpy()
        return np.asarray(2 * scale * moved if worlds.adjacency == "replace_one" else scale * (moved - pushed / 2))

    return Attack(
        play=in_batches(scores, max(1, _AT_ONCE // (classes * size))),
        draws=float(classes * present.records.pixels * sum(len(setup.rates) for setup, _ in parts)),
    )


def canary_scores(merged: npt.ArrayLike, canaries: Records) -> Array:
    """How far each canary's way a merged model has gone: all that an attacker with one model looks at."""
    ways = canaries.directions().flatten(1).double().numpy()
    return np.asarray(ways @ np.asarray(merged, dtype=float).ravel())
