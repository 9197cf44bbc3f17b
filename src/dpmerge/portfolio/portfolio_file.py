"""Which runs a portfolio is made of: a folder of folders, or a `portfolio.yaml` that names them.

Guarantees: every folder named lies beside the listing and has a manifest; the YAML read has no aliases, tags or
duplicate fields.
Refuses: listings above 100 kB, unknown fields, names that lead elsewhere, folders without any run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field

from dpmerge.errors import InvalidInputError, ManifestError, UnreadableManifestError
from dpmerge.files import is_file
from dpmerge.portfolio.manifest import MANIFEST_NAME, Manifest, require_plain_path
from dpmerge.remote.remote_path import is_url
from dpmerge.strict_yaml import read_yaml
from dpmerge.terms.documents import Strict, validated
from dpmerge.terms.portfolio_facts import Allowance

LISTING_NAMES = ("portfolio.yaml", "portfolio.yml")


class Listing(Strict):
    """`portfolio.yaml`: which runs, and whether that is all of them."""

    schema_: Literal["dpmerge/portfolio/v1"] = Field(alias="schema", description='"dpmerge/portfolio/v1"')
    runs: Annotated[list[str], Field(min_length=1)] = Field(description="a non-empty list of folders beside this file")
    complete: bool | None = Field(
        default=None, description="true or false: are these all runs ever made on this data, dropped ones too?"
    )
    allow: list[Allowance] = Field(default_factory=list, description="a list of " + " and ".join(get_args(Allowance)))


def run_folders(path: Path) -> list[Path]:
    if is_file(path / MANIFEST_NAME):
        return [path]
    accepted = "a folder of runs, or a portfolio.yaml"
    try:
        beside = sorted(path.iterdir()) if (path.is_dir() if is_url(path) else os.path.isdir(path)) else None
    except OSError as error:
        raise UnreadableManifestError.from_os(error, path=path, accepted=accepted) from None
    if beside is None:
        problem = "it is a file" if is_file(path) else "there is no such folder"
        raise ManifestError(path, "path", str(path), f"needed: {accepted}", problem=problem)
    folders = [folder for folder in beside if is_file(folder / MANIFEST_NAME)]
    if not folders:
        needed = f"needed: folders with a {MANIFEST_NAME} each (`dpmerge manifest new` writes one by hand)"
        raise ManifestError(path, "runs", [], needed, problem="a folder without any run")
    return folders


def ignored_folders(home: Path, folders: Sequence[Path]) -> tuple[str, ...]:
    """Folders beside the runs that hold models or records and were not read."""
    read = {folder.resolve() for folder in folders}
    marks = ("*.safetensors", "*.pt", "*.bin", MANIFEST_NAME)
    if home.resolve() in read or not home.is_dir():
        return ()
    beside = (folder for folder in sorted(home.iterdir()) if folder.is_dir() and folder.resolve() not in read)
    return tuple(folder.name for folder in beside if any(next(folder.glob(mark), None) for mark in marks))


def require_complete(listing: Path, ignored: Sequence[str], dataset: str) -> None:
    """A listing that says it holds all runs on the data must not leave one out that lies beside it."""
    for name in ignored:
        file = listing.parent / name / MANIFEST_NAME
        if is_file(file) and Manifest.read(file).dataset.id == dataset:
            problem = f"complete: {name} is a run on {dataset} too, and is not listed"
            raise ManifestError(listing, "complete", True, "list it, or say false", problem=problem)


def read_listing(file: Path) -> Listing:
    try:
        listing = validated(Listing, read_yaml(file, "portfolio"), "portfolio")
    except InvalidInputError as error:
        raise ManifestError.of(file, error) from None
    for place, name in enumerate(listing.runs):
        require_plain_path(file, f"runs[{place}]", name)
        if not is_file(file.parent / name / MANIFEST_NAME):
            raise ManifestError(file, f"runs[{place}]", name, f"a folder with a {MANIFEST_NAME}")
    return listing
