"""Errors: what failed, where, what to do; failures of the disk are OSErrors too, and errors survive pickling."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path

import pytest

from dpmerge.errors import (
    CannotReadError,
    CannotWriteError,
    DpmergeError,
    InvalidInputError,
    LedgerUnavailableError,
    ManifestError,
    PortfolioError,
    TargetOutOfReachError,
    UnreadableCheckpointError,
    UnreadableManifestError,
)
from dpmerge.files import read_bytes
from dpmerge.ledger.ledger import Ledger
from dpmerge.portfolio.tensors import read_header

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "merged/model")

OF_THE_DISK: dict[str, DpmergeError] = {
    "out: cannot write merged: No space left on device; needed: room": CannotWriteError.from_os(
        FULL, field="out", path="merged", accepted="room"
    ),
    "out: cannot lock merged: No space left on device; needed: locks": CannotWriteError.from_os(
        FULL, field="out", path="merged", accepted="locks", failed="cannot lock"
    ),
    "plan.json: cannot be read: No space left on device; needed: a JSON file": CannotReadError.from_os(
        FULL, path="plan.json", accepted="a JSON file"
    ),
    "a.safetensors: cannot be read: No space left on device; needed: a readable safetensors file": (
        UnreadableCheckpointError.from_os(FULL, path="a.safetensors")
    ),
    "runs: cannot be read: No space left on device; needed: a folder of runs": UnreadableManifestError.from_os(
        FULL, path="runs", accepted="a folder of runs"
    ),
    "l.sqlite: cannot be opened (No space left on device)": LedgerUnavailableError.from_os(
        FULL, path="l.sqlite", failed="cannot be opened"
    ),
}


@pytest.mark.parametrize("message", OF_THE_DISK)
def test_a_failure_of_the_disk_is_an_oserror_that_says_what_the_system_said(message: str) -> None:
    error = OF_THE_DISK[message]
    assert str(error) == message
    assert isinstance(error, OSError)
    assert (error.errno, error.strerror, error.filename) == (errno.ENOSPC, FULL.strerror, "merged/model")


@pytest.mark.parametrize("message", OF_THE_DISK)
def test_a_failure_of_the_disk_survives_pickling(message: str) -> None:
    error = OF_THE_DISK[message]
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert type(again) is type(error)
    assert str(again) == message
    assert (again.errno, again.strerror, again.filename) == (errno.ENOSPC, FULL.strerror, "merged/model")


def test_without_a_file_name_from_the_system_the_path_is_the_file_name() -> None:
    error = CannotWriteError.from_os(OSError(errno.EIO, "broken"), field="out", path=Path("merged"), accepted="a disk")
    assert error.filename == "merged"


def test_a_write_error_that_is_ours_already_is_not_wrapped_again() -> None:
    inner = CannotWriteError.from_os(FULL, field="out", path="inner", accepted="room")
    assert CannotWriteError.from_os(inner, field="out", path="outer", accepted="room") is inner


def test_an_output_that_is_refused_for_another_reason_is_an_oserror_without_a_number() -> None:
    error = CannotWriteError("output", "merged", "another folder", found="a folder that is not empty")
    assert isinstance(error, OSError)
    assert error.errno is None
    assert str(error) == "output: got a folder that is not empty; accepted: another folder"


@pytest.mark.parametrize("name", ["nowhere", "."])
def test_reading_what_cannot_be_read_is_an_oserror_and_an_invalid_input(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError) as raised:  # noqa: PT011
        read_bytes(tmp_path / name)
    assert isinstance(raised.value, InvalidInputError)
    assert raised.value.errno is not None


def test_weights_that_are_not_there_are_an_oserror(tmp_path: Path) -> None:
    with pytest.raises(UnreadableCheckpointError) as raised:
        read_header(tmp_path / "model.safetensors")
    assert raised.value.errno == errno.ENOENT


def test_a_manifest_that_cannot_be_read_is_an_oserror() -> None:
    unreadable = ManifestError.of("privacy.json", CannotReadError.from_os(FULL, path="x", accepted="a JSON file"))
    assert isinstance(unreadable, UnreadableManifestError)
    assert str(unreadable) == "privacy.json: cannot be read: No space left on device; needed: a JSON file"


def test_a_ledger_in_a_folder_that_is_not_there_is_an_oserror(tmp_path: Path) -> None:
    with pytest.raises(LedgerUnavailableError) as raised:
        Ledger.open(tmp_path / "no" / "ledger.sqlite")
    assert raised.value.errno == errno.ENOENT


def test_an_error_with_a_problem_tells_it_instead_of_the_bad_value() -> None:
    error = InvalidInputError("out", "merged", "name another folder", problem="merged is not empty")
    assert str(error) == "merged is not empty; name another folder"
    assert str(error.within("release")) == str(error)
    assert error.within("release").field == "release.out"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301
    assert str(PortfolioError("p.yaml", "runs", [], "add one", problem="no runs")) == "p.yaml: no runs; add one"


def test_a_target_out_of_reach_names_the_smallest_epsilon() -> None:
    error = TargetOutOfReachError(0.01, 1e-5, 0.0505, "ladder-1@20", "retrain")
    assert str(error) == "no release meets ε = 0.01 at δ = 1e-05; the smallest is ε = 0.0505005 (ladder-1@20); retrain"
