"""What is trained: logistic regression and a softmax probe on MNIST, a fine-tuned ResNet18 on CIFAR-10.

Guarantees: the public images by which models are scored are split in two halves, so that weights chosen on one can be
judged on the other. Private and pretraining images of CIFAR-10 are disjoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from dpmerge.evaluation.evaluation_progress import Progressed
from dpmerge.evaluation.evaluators import Evaluator
from dpmerge.evaluation.linear_classifier import LinearClassifier
from dpmerge.evaluation.torch_evaluator import module_evaluator
from dpmerge.training import bound_features
from reproduction.images import Bytes, Images
from reproduction.presets import CifarScale, MnistScale
from reproduction.resnet import ResNet18
from reproduction.training import Task, placed, training_device

PROBE_CLIP_NORM = 1.4143
"""√2 is the largest norm of a softmax gradient on features of norm 1: clipping never acts."""

PRETRAINING_BATCH = 128
PRETRAINING_RATE = 0.1


def mnist_task(images: Images, scale: MnistScale) -> Task:
    """Logistic regression on pixels, centred and scaled by the usual public constants, from zero weights."""
    return _linear(images, scale, "MNIST, logistic regression", standardised, lambda: _zeros(nn.Linear(784, 10)))


def probe_task(images: Images, scale: MnistScale) -> Task:
    """Softmax regression on features of norm 1 at most, to which hidden_state applies."""
    described = "MNIST, softmax regression on unit-norm features"
    return _linear(images, scale, described, bounded, lambda: _zeros(nn.Linear(785, 10, bias=False)), bound=1.0)


def _linear(
    images: Images,
    scale: MnistScale,
    described: str,
    features: Callable[[Bytes], torch.Tensor],
    model: Callable[[], nn.Module],
    bound: float | None = None,
) -> Task:
    private = TensorDataset(features(images.train[: scale.records]), _labels(images.train_labels[: scale.records]))
    shown, labels = features(images.test[: scale.tests]).numpy(), images.test_labels[: scale.tests].astype(np.int64)
    return Task(
        dataset="mnist-train",
        described=described,
        settings={"described": described, "data": _content(private.tensors)},
        model=model,
        private=private,
        evaluators=(LinearClassifier(shown[::2], labels[::2]), LinearClassifier(shown[1::2], labels[1::2])),
        feature_bound=bound,
    )


def cifar_task(images: Images, scale: CifarScale, folder: Path, seed: int, progress: Progressed | None = None) -> Task:
    """A ResNet18 pretrained without privacy on one half of the training images, to be fine-tuned on the other.

    The pretrained weights are kept in `folder` under a name that holds what they were made from, and taken from there.
    """
    order = np.random.default_rng(seed).permutation(len(images.train))
    half = len(order) // 2
    public, private = order[:half][: scale.pretraining], order[half:][: scale.records]
    shown, labels = _colours(images.train[public]), _labels(images.train_labels[public])
    made_of = f"{scale.width} {scale.epochs} {scale.augmented} {seed} {_content([shown, labels])}"
    file = folder / f"pretrained-{hashlib.sha256(made_of.encode()).hexdigest()[:10]}.safetensors"
    pretrain(shown, labels, scale, file, seed, progress)
    weights = safetensors.torch.load_file(file)
    data = TensorDataset(_colours(images.train[private]), _labels(images.train_labels[private]))

    def model() -> nn.Module:
        network = ResNet18(scale.width)
        network.load_state_dict(weights)
        return network

    shown, labels = _colours(images.test[: scale.tests]), _labels(images.test_labels[: scale.tests])
    return Task(
        dataset="cifar10-private-half",
        described=_described(scale),
        settings={"width": scale.width, "data": _content(data.tensors), "start": _content(weights.values())},
        model=model,
        private=data,
        evaluators=(_accuracy(scale, shown[::2], labels[::2]), _accuracy(scale, shown[1::2], labels[1::2])),
        start="public",
        physical_batch=scale.physical_batch,
        workers=scale.workers if torch.cuda.is_available() else 0,
        papers_size=all(getattr(scale, name) == getattr(CifarScale(), name) for name in _SIZES),
    )


_SIZES = ("width", "pretraining", "records", "tests", "epochs", "augmented")


def _described(scale: CifarScale) -> str:
    """The setting, and in what it is not the paper's."""
    whole = CifarScale()

    def told(name: str) -> str:
        here, there = getattr(scale, name), getattr(whole, name)
        return f"{here:,}" if here == there else f"{here:,} (not {there:,})"

    plain = "" if scale.augmented else " (not augmented)"
    return (
        f"CIFAR-10, ResNet18 of width {told('width')}, pretrained for {told('epochs')} epochs on {told('pretraining')} "
        f"images{plain}, {told('records')} private and {told('tests')} test images"
    )


def pretrain(
    images: torch.Tensor,
    labels: torch.Tensor,
    scale: CifarScale,
    file: Path,
    seed: int,
    progress: Progressed | None = None,
) -> None:
    """Train without privacy by plain SGD, and keep the weights after every epoch: an interrupted run goes on.

    The order of an epoch depends on the seed and its number only, so that going on changes nothing.
    """
    device = training_device()
    partly = file.with_name(f"{file.stem}-unfinished{file.suffix}")
    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    network = placed(ResNet18(scale.width), device)
    done = 0
    if partly.exists():
        with safetensors.safe_open(partly, framework="pt") as kept:
            done = int(kept.metadata()["epochs"])
        network.load_state_dict(safetensors.torch.load_file(partly))
    optimizer = torch.optim.SGD(network.parameters(), lr=PRETRAINING_RATE)
    for epoch in range(done, scale.epochs):
        generator = torch.Generator().manual_seed(1_000_003 * seed + epoch)
        order = torch.randperm(len(images), generator=generator)
        for place in range(0, len(order), PRETRAINING_BATCH):
            batch = order[place : place + PRETRAINING_BATCH]
            shown = _augmented(images[batch], generator) if scale.augmented else images[batch]
            optimizer.zero_grad()
            loss = functional.cross_entropy(network(shown.to(device)), labels[batch].to(device))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
        fresh = partly.with_suffix(".new")
        safetensors.torch.save_file(weights, fresh, metadata={"epochs": str(epoch + 1)})
        fresh.replace(partly)
        if progress is not None:
            progress(epoch + 1, scale.epochs)
    partly.replace(file)


def _augmented(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Each image flipped or not, and moved by up to four pixels, as is usual for CIFAR-10."""
    flipped = torch.rand(len(images), generator=generator) < 0.5
    images = torch.where(flipped[:, None, None, None], images.flip(3), images)
    wide = functional.pad(images, (4, 4, 4, 4))
    across, down = torch.randint(0, 9, (2, len(images)), generator=generator)
    rows = down[:, None] + torch.arange(32)
    columns = across[:, None] + torch.arange(32)
    record = torch.arange(len(images))
    return wide.permute(0, 2, 3, 1)[record[:, None, None], rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def _accuracy(scale: CifarScale, images: torch.Tensor, labels: torch.Tensor) -> Evaluator:
    device = training_device()

    def score(network: nn.Module) -> float:
        placed(network, device)
        right = 0
        for place in range(0, len(labels), 250):
            part = slice(place, place + 250)
            right += int((network(images[part].to(device)).argmax(1).cpu() == labels[part]).sum())
        return right / len(labels)

    digest = hashlib.sha256(images.numpy().tobytes() + labels.numpy().tobytes()).hexdigest()
    return module_evaluator(lambda: ResNet18(scale.width), score, identity=f"resnet18 {scale.width} {digest}")


def _content(tensors: Iterable[torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(np.ascontiguousarray(tensor.numpy()).data)
    return digest.hexdigest()


def _zeros(model: nn.Linear) -> nn.Linear:
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def standardised(images: Bytes) -> torch.Tensor:
    """Pixels, centred and scaled by the usual public constants of MNIST."""
    return torch.from_numpy((images.astype(np.float32) / 255 - 0.1307) / 0.3081)


def bounded(images: Bytes) -> torch.Tensor:
    """Pixels and a constant for the bias, each record rescaled to norm 1 by itself."""
    pixels = torch.from_numpy(images.astype(np.float32) / 255)
    features: torch.Tensor = bound_features(1.0)(torch.cat([pixels, torch.ones(len(pixels), 1)], dim=1))
    return features


def _colours(images: Bytes) -> torch.Tensor:
    """Centred and scaled by the usual public constants of CIFAR-10."""
    values = torch.from_numpy(images.reshape(-1, 3, 32, 32).astype(np.float32) / 255)
    mean, deviation = (torch.tensor(v).reshape(1, 3, 1, 1) for v in ((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)))
    return (values - mean) / deviation


def _labels(labels: Any) -> torch.Tensor:
    return torch.from_numpy(labels.astype(np.int64))
