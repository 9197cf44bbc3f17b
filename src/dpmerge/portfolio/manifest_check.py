"""Is this manifest complete, are its checkpoints what it says, and what does it let one do?

Guarantees: every field that is missing or wrong is listed with what to write there; where nothing is, every checkpoint
beside it was read, and each theorem was asked.
Refuses (`PortfolioError`): files that cannot be read, checkpoints that are not those recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dpmerge.accounting import validation
from dpmerge.errors import InvalidInputError, ManifestError
from dpmerge.files import LARGEST_DOCUMENT, read_bytes
from dpmerge.portfolio.applicable_theorems import ApplicableTheorem, applicable_theorems, cost_alone
from dpmerge.portfolio.inspection import Cost, cost_numbers
from dpmerge.portfolio.manifest import MANIFEST_NAME, Manifest
from dpmerge.portfolio.manifest_draft import completed, missing_of_the_optimizer, read_draft
from dpmerge.portfolio.run_reading import read_runs
from dpmerge.terms.documents import problems, strict_json, validated

DRAFTS = (".yaml", ".yml")


@dataclass(frozen=True, kw_only=True)
class ManifestCheck:
    """What was found: problems, or a manifest and what it can prove at the given δ."""

    path: Path
    delta: float
    manifest: Manifest | None
    problems: tuple[InvalidInputError, ...] = ()

    def __str__(self) -> str:
        if self.manifest is None:
            return "\n".join(self.complaints())
        able = [each.theorem for each in self.theorems if each.certifies]
        return f"{self.path}: valid, run {self.manifest.run}; certified by {', '.join(able) or 'no theorem'}"

    @property
    def valid(self) -> bool:
        return self.manifest is not None

    @cached_property
    def cost(self) -> Cost:
        """What releasing every iterate of the run costs."""
        return cost_alone(self._required(), self.delta)

    @cached_property
    def theorems(self) -> list[ApplicableTheorem]:
        """Each theorem's word on the run alone, and what it lacks."""
        return applicable_theorems(self._required())

    def complaints(self) -> list[str]:
        """A line for each field: what to write where it is empty, what is accepted where it is wrong."""
        return [
            f"{self.path}: {problem.field}: missing; write {problem.accepted}"
            if problem.found == "nothing"
            else str(ManifestError.of(self.path, problem))
            for problem in self.problems
        ]

    def document(self) -> dict[str, Any]:
        """As the JSON that `--json` prints."""
        if self.manifest is None:
            listed = [
                {"field": p.field, "missing": p.found == "nothing", "problem": str(p), "write": p.accepted}
                for p in self.problems
            ]
            return {"file": str(self.path), "valid": False, "problems": listed}
        return {
            "delta": self.delta,
            "released_alone": cost_numbers(self.cost),
            "file": str(self.path),
            "valid": True,
            "problems": [],
            "run": self.manifest.run,
            "mechanism": self.manifest.mechanism.kind,
            "checkpoints": [saved.step for saved in self.manifest.checkpoints],
            "theorems": {each.theorem: each.document() for each in self.theorems},
        }

    def _required(self) -> Manifest:
        if self.manifest is None:
            raise ManifestError.of(self.path, self.problems[0])
        return self.manifest


def check_manifest(path: str | Path, delta: float = 1e-5) -> ManifestCheck:
    """Check a manifest, or a filled template, and every checkpoint it names.

    Args:
        path: A `privacy.json`, the folder it is in, or a template (`.yaml`).
        delta: The δ at which its ε is given.

    Returns:
        The manifest with what it can prove, or every field that is missing or wrong.

    Raises:
        ManifestError: If the file cannot be read, or is no JSON or YAML at all.
        PortfolioError: If a checkpoint is not the one that was recorded.
        InvalidInputError: If δ is not between 0 and 1.

    Example:
        >>> check = check_manifest("examples/probe/s16")
        >>> check.valid, [each.theorem for each in check.theorems if each.certifies]
        (True, ['joint_release', 'last_step', 'hidden_state'])
    """
    validation.delta("--delta", delta)
    path = Path(path)
    path = path / MANIFEST_NAME if path.is_dir() else path
    if path.suffix in DRAFTS:
        document, found = completed(read_draft(path), path.parent)
        made = None if found else validated(Manifest, document, "manifest")
        return ManifestCheck(path=path, delta=delta, manifest=made, problems=tuple(found))
    content = _content(path)
    if found := problems(Manifest, content, "manifest"):
        by_field = {each.field: each for each in (*missing_of_the_optimizer(content), *found)}
        return ManifestCheck(path=path, delta=delta, manifest=None, problems=tuple(by_field.values()))
    manifest = Manifest.read(path)
    if path.name == MANIFEST_NAME:
        manifest, *_ = (run.manifest for run in read_runs(path.parent, reading="every byte"))
    return ManifestCheck(path=path, delta=delta, manifest=manifest)


def _content(path: Path) -> Any:
    try:
        text = read_bytes(path, LARGEST_DOCUMENT)
    except InvalidInputError as error:
        if isinstance(error, OSError):
            raise ManifestError.of(path, error) from None
        raise ManifestError(path, "file", path, error.accepted, found=error.found) from None
    try:
        return strict_json(text, "manifest")
    except InvalidInputError as error:
        raise ManifestError.of(path, error) from None
