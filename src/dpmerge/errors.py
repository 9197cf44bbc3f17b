"""The errors dpmerge raises, as one tree.

    DpmergeError
    ├── InvalidInputError           a value that is wrong: which one, what it was, what is accepted (also a ValueError)
    │   ├── PortfolioError          something wrong in a file of a portfolio: which file, which field
    │   │   ├── ManifestError       privacy.json or portfolio.yaml is not what it should be
    │   │   │   └── UnreadableManifestError *
    │   │   ├── UnsafePathError     a file name that leads out of the run's folder
    │   │   ├── PickleRefusedError  weights in a format that can run code
    │   │   ├── CheckpointError     a safetensors file that is broken, ambiguous or not finite
    │   │   │   └── UnreadableCheckpointError *
    │   │   ├── DigestMismatchError a file is not the one that was recorded
    │   │   ├── MixedPortfolioError runs on different data, units or adjacencies, or two runs with one name
    │   │   ├── TensorMismatchError models of different names, shapes or dtypes
    │   │   ├── NotIndependentError runs that share their noise
    │   │   ├── MissingParentError  a run that started from a private one that is not there
    │   │   ├── NotCombinableError  runs that can be selected from but not averaged
    │   │   └── PrivateMetricError  a metric that must not be used for planning
    │   ├── CannotReadError *       a document that cannot be read
    │   └── CannotWriteError *      an output that cannot be written, or is already there; nothing of it was written
    ├── NoGuaranteeError            a fair question to which no theorem gives a finite answer
    │   ├── DeltaOutOfReachError    δ is below what floating-point accounting can promise
    │   ├── TargetOutOfReachError   no release of this portfolio meets the target (the command line exits with 1)
    │   ├── CapExceededError        a release that would pass the cap on its data; nothing was charged
    │   └── RunsLockedError         runs that a final release has locked, or a final release of runs seen before
    ├── ApprovalNeededError         something a second person must approve; it was requested, and not done (exit code 3)
    ├── LedgerError                 a ledger that cannot be used
    │   ├── LedgerBrokenError       its chain of entries does not hold, or known entries are missing
    │   └── LedgerUnavailableError * its file or database cannot be opened, read, written or locked
    ├── EvaluationError             an evaluator that gave no finite number for a merge: which merge, what happened
    ├── WorkersLostError            work whose workers died again and again: which work
    ├── MissingExtraError           a package that is not installed: which extra brings it (also an ImportError)
    ├── RecordingError              a training loop whose privacy cannot be recorded truthfully
    └── FileSystemError             what is marked * above: also an OSError, with errno, strerror and filename

A message is one line of printable characters: what failed, where, and what to do. For a bad value that is the field,
the value found there and what would be accepted ("delta: got 2; accepted: …").
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Any, Self


class DpmergeError(Exception):
    """Base of everything raised on purpose.

    What to do: read the message; catch this one to catch them all.
    """

    def __str__(self) -> str:
        # Of BaseException, because an OSError would put its number in front.
        return printable(BaseException.__str__(self))


class FileSystemError(DpmergeError, OSError):
    """Something the operating system refused; `errno`, `strerror` and `filename` are set where it said them.

    What to do: look at `filename` and `strerror`; try again when the system lets you.
    """

    def said_by(self, error: OSError, filename: object) -> Self:
        """This error, with the number and the words of the system's own."""
        self.errno, self.strerror = error.errno, error.strerror
        self.filename = error.filename if error.filename is not None else str(filename)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args, self._of_the_system()

    def _of_the_system(self) -> dict[str, Any]:
        """What must be carried along when the error is pickled."""
        return {**self.__dict__, "errno": self.errno, "strerror": self.strerror, "filename": self.filename}


class InvalidInputError(DpmergeError, ValueError):
    """A value outside its domain, or a state in which it cannot be used; nothing was computed from it.

    What to do: give the field what the message says is accepted.

    Args:
        field: The parameter, or the field of a document.
        value: What stood there.
        accepted: What would be accepted; with `problem`, what to do.
        found: What stood there, in words, where the value itself would say too little or too much.
        problem: What is wrong, where the value is good and something else forbids it. The message is then
            "problem; accepted" instead of "field: got value; accepted: …".

    Example:
        >>> print(InvalidInputError("delta", 2, "a number between 0 and 1"))
        delta: got 2; accepted: a number between 0 and 1
        >>> print(InvalidInputError("out", "merged", "name another folder", problem="merged is not empty"))
        merged is not empty; name another folder
    """

    def __init__(
        self, field: str, value: object, accepted: str, *, found: str | None = None, problem: str | None = None
    ) -> None:
        self.field, self.value, self.accepted = field, value, accepted
        self.found, self.problem = found, problem
        shown = _shown(value) if found is None else found
        bad_value = f"{_shortened(field)}: got {shown}; accepted: {accepted}"
        super().__init__(bad_value if problem is None else f"{problem}; {accepted}")

    def __reduce__(self) -> tuple[Any, ...]:
        made = partial(type(self), found=self.found, problem=self.problem)
        state = self._of_the_system() if isinstance(self, FileSystemError) else self.__dict__
        return made, self._arguments(), state

    def _arguments(self) -> tuple[object, ...]:
        return self.field, self.value, self.accepted

    def within(self, place: str) -> InvalidInputError:
        """The same error, its field named from further out."""
        field = f"{place}.{self.field}"
        return InvalidInputError(field, self.value, self.accepted, found=self.found, problem=self.problem)


class PortfolioError(InvalidInputError):
    """A portfolio that cannot be used as it stands; `file` is where to look, `field` what to look at there.

    What to do: repair the file that the message names, or leave that run out of the portfolio.
    """

    def __init__(
        self,
        file: object,
        field: str,
        value: object,
        accepted: str,
        *,
        found: str | None = None,
        problem: str | None = None,
    ) -> None:
        self.file = str(file)
        super().__init__(field, value, accepted, found=found, problem=problem)
        self.args = (f"{self.file}: {self.args[0]}",)

    def _arguments(self) -> tuple[object, ...]:
        return self.file, self.field, self.value, self.accepted


class ManifestError(PortfolioError):
    """A manifest that cannot be read, is incomplete or contradicts itself.

    What to do: `dpmerge manifest check` names every field at once; correct those, or record the run again.
    """

    @classmethod
    def of(cls, file: object, error: InvalidInputError) -> ManifestError:
        """The same complaint, with the file it is about."""
        if isinstance(error, OSError):
            unreadable = UnreadableManifestError(file, "path", file, error.accepted, problem=_unreadable(error))
            return unreadable.said_by(error, file)
        return cls(file, error.field, error.value, error.accepted, found=error.found, problem=error.problem)


class UnreadableManifestError(ManifestError, FileSystemError):
    """A manifest, or the folder it should be in, that the system does not let us read.

    What to do: see that the path is right and that you may read it.
    """

    @classmethod
    def from_os(cls, error: OSError, *, path: object, accepted: str) -> UnreadableManifestError:
        """What the system said about `path`; `accepted` is what is needed there."""
        return cls(path, "path", str(path), f"needed: {accepted}", problem=_unreadable(error)).said_by(error, path)


class UnsafePathError(PortfolioError):
    """A file name that is not a plain relative path inside the run's folder.

    What to do: move the files into the run's folder and name them from there.
    """


class PickleRefusedError(PortfolioError):
    """Weights stored as a pickle, which can run code when it is loaded.

    What to do: convert the weights to safetensors where they were made, or use `dpmerge import --allow-pickle`.
    """


class CheckpointError(PortfolioError):
    """A safetensors file that is broken, ambiguous, or holds values that are not finite.

    What to do: save the checkpoint again from the run; weights that are not finite cannot be released.
    """


class UnreadableCheckpointError(CheckpointError, FileSystemError):
    """Weights that the system does not let us read.

    What to do: see that the file is there and that you may read it.
    """

    @classmethod
    def from_os(cls, error: OSError, *, path: object) -> UnreadableCheckpointError:
        """What the system said about the file `path`."""
        accepted = "needed: a readable safetensors file"
        return cls(path, "file", path, accepted, problem=_unreadable(error)).said_by(error, path)


class DigestMismatchError(PortfolioError):
    """The file is not the one that was recorded.

    What to do: bring back the file that was recorded; a model that was changed since has no record.
    """


class MixedPortfolioError(PortfolioError):
    """Runs on different data sets, units or adjacencies, or two runs with one name.

    What to do: put runs that do not belong together into portfolios of their own, and give each run a name of its own.
    """


class TensorMismatchError(PortfolioError):
    """Models whose tensors differ in name, shape or dtype.

    What to do: merge models of one architecture only; leave the other run out.
    """


class NotIndependentError(PortfolioError):
    """Two runs with the same noise.

    What to do: keep one of the two runs, or train one again with noise of its own.
    """


class MissingParentError(PortfolioError):
    """A run that started from a privately trained checkpoint which is not in the portfolio.

    What to do: add the parent run to the portfolio, or name it in the manifest's `ancestry`.
    """


class NotCombinableError(PortfolioError):
    """Models that must not be averaged: they started from, or keep frozen, different weights.

    What to do: use `--method select`, or allow the difference by name (`--allow`) where you mean it.
    """


class PrivateMetricError(PortfolioError):
    """A metric measured on private data: choosing by it is a release that is not charged.

    What to do: choose by noise, by public data, or by a validation set that is paid for.
    """


class RecordingError(DpmergeError):
    """A training loop whose privacy cannot be recorded truthfully; raised before the step it concerns is taken.

    What to do: change the loop as the message says; nothing of the refused step was taken.
    """


class MissingExtraError(DpmergeError, ImportError):
    """Something was asked for that needs packages which the core does without; `extra` brings them.

    What to do: run the `pip install` line of the message.
    """

    def __init__(self, needed_by: str, package: str, extra: str) -> None:
        self.needed_by, self.package, self.extra = needed_by, package, extra
        super().__init__(f'{needed_by} needs {package}: pip install "dpmerge[{extra}]"', name=package)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.needed_by, self.package, self.extra)


class EvaluationError(DpmergeError):
    """An evaluator raised, or returned something that is no finite number.

    What to do: try your evaluator on that merge by itself; scores kept so far are in the cache.
    """

    def __init__(self, recipe: str, found: str, accepted: str = "a finite number") -> None:
        self.recipe, self.found, self.accepted = recipe, found, accepted
        super().__init__(f"evaluation of {_shortened(recipe)}: got {_one_line(found)}; accepted: {accepted}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.recipe, self.found, self.accepted)


class WorkersLostError(DpmergeError):
    """The workers of an executor died with the same piece of work, each time it was given to another.

    What to do: mostly they had too little memory: fewer workers on a machine (--workers-per-node, processes:N).
    """

    def __init__(self, work: str, attempts: int, found: str) -> None:
        self.work, self.attempts, self.found = work, attempts, found
        lost = f"executor: workers died {attempts} times with {_shortened(work)}, or with what ran beside it"
        super().__init__(f"{lost} ({_one_line(found)}); have fewer of them on a machine, or more memory")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.work, self.attempts, self.found)


class NoGuaranteeError(DpmergeError):
    """No proof covers what was asked, so there is no number.

    What to do: ask for what is covered: another theorem, `joint_release`, or random selection.
    """


class DeltaOutOfReachError(NoGuaranteeError):
    """δ lies below the floor under which a convolved privacy loss distribution cannot be trusted.

    What to do: ask for a larger δ.
    """

    def __init__(self, delta: float, floor: float) -> None:
        self.delta, self.floor = delta, floor
        super().__init__(
            f"delta: got {delta:g}; accepted: at least {floor:.3g} where subsampled steps are composed "
            "numerically (below that, rounding errors could make the result too small)"
        )


class TargetOutOfReachError(NoGuaranteeError):
    """No plan meets the target; `smallest` is the least ε that some candidate reaches, and `candidate` which.

    What to do: ask for at least that ε, or train a more private run (`dpmerge design`, `dpmerge plan --suggest`).
    """

    def __init__(self, epsilon: float, delta: float, smallest: float, candidate: str, hint: str = "") -> None:
        self.epsilon, self.delta, self.smallest, self.candidate, self.hint = epsilon, delta, smallest, candidate, hint
        least = math.nextafter(float(f"{smallest:.6g}") * (1 + 1e-5), math.inf) if math.isfinite(smallest) else smallest
        super().__init__(
            f"no release meets ε = {epsilon:g} at δ = {delta:g}; the smallest is ε = {least:.6g} "
            f"({_shortened(candidate)}){'; ' + hint if hint else ''}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.epsilon, self.delta, self.smallest, self.candidate, self.hint)


class CapExceededError(NoGuaranteeError):
    """A release that the privacy filter of a cap does not allow; nothing was charged or written.

    What to do: `dpmerge ledger show` says what is left; plan within it.
    """


class RunsLockedError(NoGuaranteeError):
    """A final release holds only if nothing else of its runs is ever released, before or after.

    What to do: use other runs; what is locked stays locked.
    """


class ApprovalNeededError(DpmergeError):
    """Others have to approve this first, by the ledger's policy; it was requested, and nothing else was done.

    What to do: have `people` approve the request (`dpmerge ledger approve`), then do the same again; the command line
    exits with 3.

    Args:
        request: The id of the request.
        what: What would be done.
        missing: How many people have still to approve.
        people: Who may.
        expires: Until when.
        ledger: Where the ledger is.
    """

    def __init__(
        self, request: str, what: str, *, missing: int, people: Iterable[str], expires: str, ledger: str
    ) -> None:
        self.request, self.what, self.missing = request, what, missing
        self.people, self.expires, self.ledger = tuple(people), expires, ledger
        who = " and ".join(self.people) if missing == len(self.people) else f"{missing} of {', '.join(self.people)}"
        super().__init__(
            f"waiting for approval, and nothing was done: {what}; {who} must approve it until {expires[:16]} UTC "
            f"(dpmerge ledger approve {request[:16]} --ledger {ledger} --key KEY), then do the same again"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        named = {name: getattr(self, name) for name in ("missing", "people", "expires", "ledger")}
        return partial(type(self), **named), (self.request, self.what)


class LedgerError(DpmergeError):
    """A ledger that cannot be used.

    What to do: see the kinds below.
    """


class LedgerBrokenError(LedgerError):
    """Entries were changed, removed or lost: what has been released is not known.

    What to do: bring the right ledger back, or `dpmerge ledger recover`; release nothing until then.
    """


class LedgerUnavailableError(LedgerError, FileSystemError):
    """A ledger whose file or database cannot be opened, read, written or locked.

    What to do: see that the file or the server can be reached and written to, and try again.
    """

    lost = False
    """Whether the database's server went away, and may be back in a moment."""

    @classmethod
    def from_os(cls, error: OSError, *, path: object, failed: str) -> LedgerUnavailableError:
        """What the system said about `path`; `failed` is what could not be done with it."""
        return cls(f"{path}: {failed} ({_words(error)})").said_by(error, path)


class CannotReadError(InvalidInputError, FileSystemError):
    """A document that the system does not let us read.

    What to do: see that the path is right and that you may read it.
    """

    @classmethod
    def from_os(cls, error: OSError, *, path: object, accepted: str) -> CannotReadError:
        """What the system said about the file `path`; `accepted` is what is needed there."""
        problem = f"{path}: {_unreadable(error)}"
        return cls(str(path), path, f"needed: {accepted}", problem=problem).said_by(error, path)


class CannotWriteError(InvalidInputError, FileSystemError):
    """An output that cannot be written, or that is there already; what was there is as it was.

    What to do: name another output, or make room; nothing there was replaced.
    """

    @classmethod
    def from_os(
        cls, error: OSError, *, field: str, path: object, accepted: str, failed: str = "cannot write"
    ) -> CannotWriteError:
        """What the system said about `path`; one that is a CannotWriteError already stays as it is.

        Args:
            error: The system's own.
            field: The parameter that named the path.
            path: What could not be written.
            accepted: What is needed there.
            failed: What could not be done.

        Returns:
            The error to raise, with `errno`, `strerror` and `filename` set.

        Example:
            >>> import errno, os
            >>> full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            >>> print(CannotWriteError.from_os(full, field="out", path="merged", accepted="room for 12 bytes"))
            out: cannot write merged: No space left on device; needed: room for 12 bytes
        """
        if isinstance(error, CannotWriteError):
            return error
        problem = f"{_shortened(field)}: {failed} {path}: {_words(error)}"
        return cls(field, str(path), f"needed: {accepted}", problem=problem).said_by(error, path)


def _unreadable(error: OSError) -> str:
    return f"cannot be read: {_words(error)}"


def _words(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


def _shown(value: object) -> str:
    try:
        return _shortened(repr(value), 80)
    except RecursionError:
        return "a value nested too deeply"


def _shortened(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _one_line(text: str) -> str:
    return _shortened(" ".join(text.split()))


def printable(text: str) -> str:
    """Text of strangers as one line that shows every character it has.

    What comes from a file may hold anything: line breaks that begin a line of ours, bytes that a terminal obeys,
    characters that turn the text round or cannot be seen.

    >>> printable("a\\n✓ signature")
    'a\\\\n✓ signature'
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
