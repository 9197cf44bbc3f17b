"""What is trained: five portfolios of four DP-SGD runs with four checkpoints each, three times.

Guarantees: the runs of a portfolio differ in noise alone and begin at the same weights; what they cost is the same
for every seed. Public images, private images and test images are disjoint.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from dpmerge.evaluation.torch_evaluator import module_evaluator
from reproduction.images import Bytes, Images
from reproduction.presets import CifarScale, MnistScale
from reproduction.run_store import ImageSource
from reproduction.tasks import cifar_task, mnist_task, standardised
from reproduction.training import Setup, Task, steps_per_epoch
from usefulness.networks import VisionTransformer, convolutional, perceptron, with_adapters

WHO = "python -m usefulness"


@dataclass(frozen=True)
class Scale:
    """How large everything is."""

    records: int = 4_000
    tests: int = 10_000
    batch: int = 200  # expected; Poisson
    clip_norm: float = 1.0
    noises: tuple[float, ...] = (1.0, 1.5, 2.5, 4.0)
    resnet_public: int = 20_000  # images to pretrain on
    transformer_public: int = 20_000
    pretraining: int = 8  # epochs
    width: int = 8  # of the ResNet


@dataclass(frozen=True)
class Kind:
    """One portfolio: what the reader is told of it, and how it is made."""

    name: str
    described: str
    start: str  # where its runs begin: "zero", "random" or "public"
    epochs: int
    rate: float
    task: Callable[[ImageSource, Scale, Path, int], Task]  # the last is the seed

    def setups(self, scale: Scale) -> Mapping[str, Setup]:
        """Each run by its noise."""
        steps = self.epochs * steps_per_epoch(scale.records, scale.batch)
        return {
            f"s{noise:g}": Setup(
                clip_norm=scale.clip_norm,
                noise_multiplier=noise,
                rates=(self.rate,) * steps,
                keep=tuple(steps * quarter // 4 for quarter in (1, 2, 3)),
                batch=scale.batch,
            )
            for noise in scale.noises
        }


def _linear(images: ImageSource, scale: Scale, _folder: Path, _seed: int) -> Task:
    return replace(mnist_task(images.mnist(), MnistScale(records=scale.records, tests=scale.tests)), who=WHO)


def _from_random(network: Callable[[], nn.Module], name: str) -> Callable[[ImageSource, Scale, Path, int], Task]:
    def task(images: ImageSource, scale: Scale, _folder: Path, seed: int) -> Task:
        def model() -> nn.Module:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(1_000 + seed)
                return network()

        found = images.mnist()
        private = slice(0, scale.records)
        return _network_task(name, model, network, found, scale, private, standardised, "random")

    return task


def _resnet(images: ImageSource, scale: Scale, folder: Path, _seed: int) -> Task:
    size = CifarScale(
        width=scale.width,
        pretraining=scale.resnet_public,
        records=scale.records,
        tests=scale.tests,
        epochs=scale.pretraining,
        augmented=False,
        physical_batch=128,
    )
    return replace(cifar_task(images.cifar10(), size, folder, 42), who=WHO)


def _lora(images: ImageSource, scale: Scale, folder: Path, seed: int) -> Task:
    """Pretrained on upright digits, adapted to digits in a mirror; public images come after the private ones."""
    found = images.mnist()
    public = slice(scale.records, scale.records + scale.transformer_public)
    shown, labels = standardised(found.train[public]), _labels(found.train_labels[public])
    start = _pretrained(shown, labels, scale.pretraining, folder)

    def model() -> nn.Module:
        network = VisionTransformer()
        network.load_state_dict(start)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(2_000 + seed)
            return with_adapters(network)

    private = slice(0, scale.records)
    empty = lambda: with_adapters(VisionTransformer())  # noqa: E731
    return _network_task("mirrored digits, adapters", model, empty, found, scale, private, mirrored, "public")


KINDS = {
    kind.name: kind
    for kind in (
        Kind("linear", "softmax regression on the pixels of MNIST", "zero", 8, 0.5, _linear),
        Kind("mlp", "a perceptron with one hidden layer on MNIST", "random", 8, 0.5, _from_random(perceptron, "mlp")),
        Kind("cnn", "a small convolutional network on MNIST", "random", 8, 0.4, _from_random(convolutional, "cnn")),
        Kind("resnet", "a ResNet18 of width 8 on CIFAR-10", "public", 4, 0.1, _resnet),
        Kind("lora", "low-rank adapters of a small vision transformer, on mirrored MNIST", "public", 8, 1.0, _lora),
    )
}


def mirrored(images: Bytes) -> torch.Tensor:
    """Each image as in a mirror."""
    return standardised(np.ascontiguousarray(images.reshape(-1, 28, 28)[:, :, ::-1]).reshape(-1, 784))


def _network_task(
    name: str,
    model: Callable[[], nn.Module],
    empty: Callable[[], nn.Module],
    images: Images,
    scale: Scale,
    private: slice,
    features: Callable[[Bytes], torch.Tensor],
    start: str,
) -> Task:
    data = TensorDataset(features(images.train[private]), _labels(images.train_labels[private]))
    shown, labels = features(images.test[: scale.tests]), _labels(images.test_labels[: scale.tests])

    def evaluator(half: int) -> object:
        some, wanted = shown[half::2], labels[half::2]

        def score(network: nn.Module) -> float:
            parts = [slice(place, place + 500) for place in range(0, len(wanted), 500)]
            return sum(int((network(some[part]).argmax(1) == wanted[part]).sum()) for part in parts) / len(wanted)

        return module_evaluator(empty, score, identity=f"{name} {_content([some, wanted])}")

    return Task(
        dataset="mnist-private-part",
        described=name,
        settings={"name": name, "data": _content(data.tensors), "start": _content(model().state_dict().values())},
        model=model,
        private=data,
        evaluators=(evaluator(0), evaluator(1)),  # type: ignore[arg-type]
        start=start,
        physical_batch=128,
        who=WHO,
    )


def _pretrained(images: torch.Tensor, labels: torch.Tensor, epochs: int, folder: Path) -> dict[str, torch.Tensor]:
    """A transformer trained without privacy on public images, or found as it was trained before."""
    digest = hashlib.sha256(f"{epochs} {_content([images, labels])}".encode()).hexdigest()[:10]
    file = folder / f"transformer-{digest}.safetensors"
    if not file.exists():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(42)
            network = VisionTransformer()
            optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
            for _ in range(epochs):
                order = torch.randperm(len(images))
                for place in range(0, len(order), 100):
                    batch = order[place : place + 100]
                    optimizer.zero_grad()
                    functional.cross_entropy(network(images[batch]), labels[batch]).backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
        folder.mkdir(parents=True, exist_ok=True)
        fresh = file.with_suffix(".new")
        safetensors.torch.save_file({n: t.detach().contiguous() for n, t in network.state_dict().items()}, fresh)
        os.replace(fresh, file)
    return safetensors.torch.load_file(file)


def _content(tensors: Iterable[torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(np.ascontiguousarray(tensor.numpy()).data)
    return digest.hexdigest()


def _labels(labels: Bytes) -> torch.Tensor:
    return torch.from_numpy(labels.astype(np.int64))
