"""A portfolio: runs on the same data, read together, checked, and ready to be merged as far as their records allow.

Guarantees: every run that is in it passed every check of `run_reading` and `compatibility`; what is merely doubtful is
a caveat, and nothing private is ever offered for planning.
Refuses: see the table in docs/reference/portfolio.md, a named error for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from dpmerge import notebook
from dpmerge.accounting.exposure import Adjacency, Checkpoint, Exposure
from dpmerge.errors import InvalidInputError, NotCombinableError, PortfolioError
from dpmerge.files import is_file
from dpmerge.portfolio.compatibility import mechanisms, require_agreement, tensor_difference
from dpmerge.portfolio.portfolio_file import LISTING_NAMES, ignored_folders, read_listing, require_complete, run_folders
from dpmerge.portfolio.recorded_runs import Run, SavedCheckpoint
from dpmerge.portfolio.run_reading import Reading, read_runs
from dpmerge.portfolio.shared_seeds import in_a_group, shared_seed
from dpmerge.remote.remote_path import is_url, location, pinned
from dpmerge.terms.portfolio_facts import Allowance
from dpmerge.terms.run_record import shared_map_voucher

MOST_NAMED = 12
"""Runs that are named where a portfolio is shown on one line."""


@dataclass(frozen=True)
class Portfolio:
    """Runs on the same data, for the same unit of privacy and adjacency.

    >>> portfolio = Portfolio.load("examples/probe")
    >>> portfolio.dataset, portfolio.adjacency.value, [run.id for run in portfolio.runs]
    ('mnist-train', 'replace_one', ['s16', 's32', 's64'])
    """

    path: Path
    runs: tuple[Run, ...]
    complete: bool | None
    allowed: frozenset[str]
    contents_read: bool
    ignored: tuple[str, ...] = ()
    listing: Path | None = None  # the file that lists its runs, where there is one

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        contents: bool | None = None,
        rehash: bool = False,
        allow: Iterable[Allowance] = (),
    ) -> Portfolio:
        """Read a folder of runs, one run's folder, or a `portfolio.yaml`.

        Args:
            path: The folder or the file; or its URL, as `s3://bucket/models`.
            contents: Read every weight; False reads headers only: digests and finiteness are then not checked, and a
                caveat says so. By default weights on disk are read, and of weights in a store what is remembered of
                them. Files that were read before and have not changed are not read again.
            rehash: Read every weight, whatever is remembered of it.
            allow: Differences that may be averaged over, besides those a `portfolio.yaml` allows.

        Returns:
            The portfolio, every check between its runs passed.

        Raises:
            PortfolioError: Something is wrong in a file, or the runs do not belong together
                (docs/reference/portfolio.md has a named error for each reason).
        """
        path = pinned(location(path, "portfolio"))
        if rehash and contents is False:
            raise InvalidInputError("rehash", rehash, "either every byte or headers alone")
        reading: Reading = "recalled" if contents is None and is_url(path) else "contents"
        reading = "every byte" if rehash else "headers" if contents is False else reading
        for name in (allow := tuple(allow)):
            if name not in get_args(Allowance):
                raise InvalidInputError("allow", name, ", ".join(get_args(Allowance)))
        named = [path] if path.suffix in (".yaml", ".yml") else [path / name for name in LISTING_NAMES]
        if listing_file := next((file for file in named if is_file(file)), None):
            listing = read_listing(listing_file)
            home = listing_file.parent
            folders = [home / name for name in listing.runs]
            complete, allowed = listing.complete, {*listing.allow, *allow}
        else:
            home, folders, complete, allowed = path, run_folders(path), None, set(allow)
        recorded = tuple(run for folder in folders for run in read_runs(folder, reading=reading))
        read = reading != "headers" and all(c.digests is not None for run in recorded for c in run.checkpoints)
        require_agreement(recorded)
        made = mechanisms(recorded)
        runs = tuple(Run(r.manifest, r.folder, made[r.manifest.run], r.checkpoints) for r in recorded)
        ignored = ignored_folders(home, folders)
        if complete and listing_file:
            require_complete(listing_file, ignored, runs[0].manifest.dataset.id)
        return cls(home, runs, complete, frozenset(allowed), read, ignored, listing_file)

    def __repr__(self) -> str:
        named = [run.id for run in self.runs[:MOST_NAMED]]
        more = [f"… ({len(self.runs)} runs)"] if len(self.runs) > MOST_NAMED else []
        return f"Portfolio({str(self.path)!r}: {', '.join([*named, *more])})"

    def _repr_html_(self) -> str:
        """In a notebook."""
        return notebook.cell_html(self)

    def to_frame(self, delta: float = 1e-5) -> Any:
        """Its checkpoints as a frame of pandas: run, step, settings, public metrics, and what each costs at δ."""
        return notebook.frame(self, delta=delta)

    @property
    def dataset(self) -> str:
        return self.runs[0].manifest.dataset.id

    @property
    def unit(self) -> str:
        return self.runs[0].manifest.unit

    @property
    def adjacency(self) -> Adjacency:
        return self.runs[0].mechanism.adjacency

    def run(self, name: str) -> Run:
        """The run of that name."""
        if name not in self._runs:
            raise InvalidInputError("run", name, ", ".join(self._runs))
        return self._runs[name]

    def saved(self, name: str) -> SavedCheckpoint:
        """The checkpoint written as run@step."""
        if name not in self._saved:
            raise InvalidInputError("checkpoint", name, ", ".join(self._saved))
        return self._saved[name]

    @cached_property
    def computed(self) -> dict[tuple[object, ...], Any]:
        """What others have worked out about it and want to find again, by keys of their own; it lives as long."""
        return {}

    @cached_property
    def _runs(self) -> dict[str, Run]:
        return {run.id: run for run in reversed(self.runs)}  # of one name the first

    @cached_property
    def _saved(self) -> dict[str, SavedCheckpoint]:
        return {checkpoint.name: checkpoint for checkpoint in self.checkpoints()}

    def checkpoints(self) -> Iterator[SavedCheckpoint]:
        """Every checkpoint that was kept."""
        for run in self.runs:
            yield from run.checkpoints

    def everything(self) -> Exposure:
        """The exposure of all that was kept: of each run its last checkpoint, or the whole run if none was."""
        return Exposure.of(self.last(run) for run in self.runs)

    def last(self, run: Run) -> Checkpoint:
        """The latest checkpoint of a run that anybody could look at."""
        return run.at(run.checkpoints[-1].step if run.checkpoints else run.mechanism.steps)

    def affine_voucher(self, runs: Sequence[Run]) -> str | None:
        """Who vouches that these runs share one affine update map, or None if nobody does."""
        return shared_map_voucher(run.manifest.mechanism for run in runs)

    def require_combinable(self, runs: Sequence[Run]) -> None:
        """Refuse to average models that started from, or keep frozen, different weights, unless that was allowed."""
        if (shared := shared_seed(runs)) is not None:
            raise shared
        for allowance, error in self.differences(runs):
            if allowance not in self.allowed:
                raise error

    def combinable(self) -> list[tuple[Run, ...]]:
        """The runs in groups of which every member may be averaged with every other."""
        groups: list[tuple[list[Run], list[Run]]] = []  # the members, and those of them to compare with
        seeds = any(map(in_a_group, self.runs))
        for run in self.runs:
            for members, compared in groups:
                if not (seeds and shared_seed([*members, run])) and not any(
                    allowance not in self.allowed for allowance, _ in self.differences([*compared, run])
                ):
                    members.append(run)
                    if any(known(run) and not any(map(known, compared)) for known in _KNOWN):
                        compared.append(run)
                    break
            else:
                groups.append(([run], [run]))
        return [tuple(members) for members, _ in groups]

    def differences(self, runs: Sequence[Run]) -> Iterator[tuple[str, PortfolioError]]:
        """In what other runs differ from the first so that averaging needs an allowance, or cannot be."""
        for run, other in _pairs(runs, _has_checkpoints):
            if (mismatch := tensor_difference(other.checkpoints[0], run.checkpoints[0])) is not None:
                problem = f"tensors: other than those of {other.id} ({mismatch.field})"
                remedy = "average models with the same tensors"
                yield (
                    "different_tensors",
                    NotCombinableError(run.file, "tensors", mismatch.value, remedy, problem=problem),
                )
        for run, other in _pairs(runs, _has_start):
            if run.manifest.initial_weights != other.manifest.initial_weights:
                start = str(run.manifest.initial_weights)
                problem = f"initial_weights: {start}, other than those of {other.id}"
                remedy = "average runs that started alike, or allow different_initial_weights"
                yield (
                    "different_initial_weights",
                    NotCombinableError(run.file, "initial_weights", start, remedy, problem=problem),
                )
        for run, other in _pairs(runs, _has_tensors):
            if (name := _different_frozen(other, run)) is not None:
                field = f"tensors.frozen: {name}"
                problem = f"{field} is not the same as in {other.id}"
                remedy = "average runs that froze the same tensors, or allow different_frozen_tensors"
                yield (
                    "different_frozen_tensors",
                    NotCombinableError(run.file, field, name, remedy, problem=problem),
                )


def _has_checkpoints(run: Run) -> bool:
    return bool(run.checkpoints)


def _has_start(run: Run) -> bool:
    return run.manifest.initial_weights is not None


def _has_tensors(run: Run) -> bool:
    return run.manifest.tensors is not None


_KNOWN = (_has_checkpoints, _has_start, _has_tensors)
"""What runs are compared by, where it is known of both."""


def _pairs(runs: Sequence[Run], known: Callable[[Run], bool]) -> Iterator[tuple[Run, Run]]:
    """Each run of which something is known, with the first one of which it is."""
    first = next((run for run in runs if known(run)), None)
    for run in runs:
        if first is not None and run is not first and known(run):
            yield run, first


def _different_frozen(first: Run, run: Run) -> str | None:
    """The first tensor that one of two runs keeps frozen and that is not the same in the other."""
    facts = [r.manifest.tensors for r in (first, run)]
    if facts[0] is None or facts[1] is None:
        return None
    names = [set(f.frozen) for f in facts if f is not None]
    if difference := sorted(names[0] ^ names[1]):
        return difference[0]
    if None not in (kept := [facts[0].frozen_weights, facts[1].frozen_weights]) and kept[0] != kept[1]:
        return "frozen_weights"
    if not first.checkpoints or not run.checkpoints:
        return None
    digests = [r.checkpoints[-1].digests for r in (first, run)]
    if digests[0] is None or digests[1] is None:
        return None
    return next((name for name in sorted(names[0]) if digests[0][name] != digests[1][name]), None)
