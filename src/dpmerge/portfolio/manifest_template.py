"""Templates of manifests: YAML with every field a person has to fill in, what it means and what is accepted.

Guarantees: what is accepted, and what may be left out, is read from the manifest's own schema; the example values of a
template's comments make a manifest that passes. An empty field is not an answer: `manifest check` lists it.
Refuses: kinds of mechanisms that nobody states by hand (an accountant's history is imported), files that exist.
"""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap

from pydantic.fields import FieldInfo

from dpmerge.errors import InvalidInputError
from dpmerge.portfolio.manifest import SCHEMA, Manifest
from dpmerge.portfolio.run_files import require_free, write_atomically
from dpmerge.terms.documents import Strict, models_in
from dpmerge.terms.mechanism_schema import MECHANISM_KINDS

TEMPLATE_KINDS = tuple(kind for kind in MECHANISM_KINDS if kind not in ("accountant_history", "average"))
OPTIMIZER_RATE = "optimizer_learning_rate"
OPTIMIZER_RATE_ACCEPTED = (
    "a finite number ≥ 0, or a list of them with one for each step: as given to the optimizer (the manifest's "
    "learning_rate, which multiplies the sum of gradients, is computed from it)"
)
ASKED_FOR = frozenset(
    {
        "mechanism.noise_on",
        "mechanism.loss_reduction",
        "mechanism.expected_batch_size",
        *(f"mechanism.optimizer.{name}" for name in ("momentum", "nesterov", "dampening", "weight_decay")),
        "checkpoints[]",
    }
)
"""Optional in the schema, and empty in a template all the same: to leave them out is a decision."""

_DP_SGD = {
    "mechanism.blocks[].steps": ("how many steps; of several stretches with other settings make one block each", "20"),
    "mechanism.blocks[].noise_multiplier": ("σ, the noise's standard deviation as a multiple of the clip norm", "32"),
    "mechanism.blocks[].clip_norm": ("C, the norm gradients are clipped to", "2"),
    f"mechanism.blocks[].{OPTIMIZER_RATE}": ("", "4"),
    "mechanism.blocks[].sampling_rate": ("the chance of a record to be in a batch, where sampling is poisson", "0.01"),
    "mechanism.sampling": ("how batches were really drawn", "full_batch"),
    "mechanism.steps_per_epoch": ("", "100"),
    "mechanism.passes[].passes": ("where passes before the last were cut short: so many, one after the other", "4"),
    "mechanism.passes[].steps": ("", "100"),
    "mechanism.clipping": ("what was clipped: each record's gradient, or their sum", "per_example"),
    "mechanism.flat_clipping": ("", "true"),
    "mechanism.optimizer.name": ("", "sgd"),
    "mechanism.optimizer.momentum": ("leave it out for others than sgd", "0"),
    "mechanism.optimizer.nesterov": ("leave it out for others than sgd", "false"),
    "mechanism.optimizer.dampening": ("leave it out for others than sgd", "0"),
    "mechanism.optimizer.weight_decay": ("leave it out for others than sgd", "0"),
    "mechanism.loss_reduction": ("of the batch's losses", "mean"),
    "mechanism.expected_batch_size": ("of full batches: the size of the data set", "100"),
    "mechanism.public_divisor": ("", "true"),
    "mechanism.smoothness.kind": ("for theorem hidden_state: the loss of a linear model", "softmax"),
    "mechanism.smoothness.feature_bound": ("", "1.0"),
    "mechanism.smoothness.beta": ("a Lipschitz constant of the gradient, where kind is declared", "0.25"),
    "mechanism.smoothness.records": ("", "100"),
    "mechanism.smoothness.vouched_by": ("", "Ann"),
    "mechanism.affine_map.id": ("for theorem merged_trajectory: runs that share one linear update", "least-squares"),
    "mechanism.affine_map.vouched_by": ("", "Ann"),
}
_MECHANISMS: dict[str, dict[str, tuple[str, str]]] = {
    "dp_sgd": _DP_SGD,
    "gaussian_release": {
        "mechanism.sensitivity": ("how far one record moves the weights", "1"),
        "mechanism.standard_deviation": ("of the noise", "2"),
        "mechanism.noise_on": ("", "weights"),
    },
    "gaussian_dp": {"mechanism.mu": ("μ, as in Gaussian differential privacy", "0.5")},
    "renyi": {
        "mechanism.orders": ("", "[2, 4, 8]"),
        "mechanism.values": ("the Rényi divergence at each order", "[0.1, 0.2, 0.4]"),
    },
    "approximate_dp": {
        "mechanism.points[].epsilon": ("a guarantee somebody vouches for; add a further - for each", "1.2"),
        "mechanism.points[].delta": ("", "1e-5"),
    },
    "non_private": {},
}
_BEFORE = {
    "schema": ("", SCHEMA),
    "run": ("a name for this run", "partner"),
    "dataset.id": ("which private data", "adult-2026"),
    "dataset.size": ("", "100"),
    "unit": ("", "record"),
    "adjacency": (
        "which data sets are neighbours: one record exchanged, added or removed, or left empty "
        "(docs/concepts/adjacency.md)",
        "replace_one",
    ),
    "mechanism.kind": ("", ""),
}
_TRAINED = {
    "stopping": ("left out, nobody says, and certificates have a caveat", "fixed"),
    "schedule": ("left out, nobody says, and certificates have a caveat", "fixed"),
    "record_losses": ("left out, nobody says, and certificates have a caveat; checked is the recorder's", "vouched"),
}
_AFTER = {
    "noise.source": ("of unknown noise the run is never counted as independent of another", "os_entropy"),
    "noise.generator": ("", "philox"),
    "noise.secure_rng": ("", "true"),
    "noise.seed": ("", "7"),
    "ancestry.start": ("what training started from; with unknown the run has no number", "random"),
    "ancestry.source": ("", "resnet-18"),
    "ancestry.run": ("", "adult-s32"),
    "ancestry.step": ("", "12"),
    "ancestry.independent_of": ("", "[adult-s32]"),
    "tuning": ("on what hyperparameters were tuned", "unknown"),
    "model": ("left out, plans by auto do not average it, unless all started from one public checkpoint", "linear"),
}
_KEPT = {
    "tensors.trained": ("names of the tensors that the run trained", "[weight, bias]"),
    "tensors.frozen": ("", "[]"),
    "tensors.tied": ("", "[]"),
    "checkpoints[].step": ("add a further - for each checkpoint; delete all three lines where none is kept", "1"),
    "checkpoints[].files": (
        "safetensors files, or the index of shards, in the folder of the manifest; their digests are computed",
        "[model.safetensors]",
    ),
    "recorded_by.how": ("", "hand"),
    "recorded_by.who": ("who vouches for all this", "Ann"),
}
_STATED = {"schema": SCHEMA, "recorded_by.how": "hand"}
_ACCEPTED = {
    "checkpoints[].files": "a non-empty list of file names",
    "tuning": '"none", "public", "charged" or "unknown"',
}
_HEAD = """\
# The record of one run, of kind {kind}. Fill in every empty field (an example is beside it); what begins with # is
# optional: take the # away to state it. Then
#   dpmerge manifest check FILE     lists what is missing or wrong, and what the manifest can prove
#   dpmerge manifest write FILE     writes privacy.json, which portfolios read
"""


def manifest_template(kind: str) -> str:
    """A manifest to be filled in, as commented YAML.

    Args:
        kind: What is known of the run: `dp_sgd`, `gaussian_release`, `gaussian_dp`, `renyi`, `approximate_dp` or
            `non_private`.

    Returns:
        YAML in which every field that has to be stated is empty and every optional one commented out.

    Raises:
        InvalidInputError: If there is no such kind.

    Example:
        >>> [line for line in manifest_template("gaussian_dp").splitlines() if "mu:" in line]
        ['  mu:  # for example: 0.5']
    """
    if kind not in TEMPLATE_KINDS:
        history = "; of an accountant's history: dpmerge import" if kind == "accountant_history" else ""
        raise InvalidInputError("kind", kind, ", ".join(TEMPLATE_KINDS) + history)
    words = {**_BEFORE, **_MECHANISMS[kind], **_AFTER, **(_TRAINED if kind == "dp_sgd" else {}), **_KEPT}
    lines = [_HEAD.format(kind=kind)]
    opened: list[str] = []
    for path, (meaning, example) in words.items():
        parents = path.split(".")[:-1]
        sections = [depth for depth in range(len(parents)) if opened[: depth + 1] != parents[: depth + 1]]
        for depth in sections:
            lines += _section(kind, parents[: depth + 1])
        if not parents:
            lines.append("")
        opened = parents
        lines += _entry(kind, path, meaning, example, first=bool(sections))
    return "\n".join(lines) + "\n"


def write_template(kind: str, out: str | Path = "run.yaml") -> Path:
    """Write a manifest to be filled in; `manifest_template` is its text.

    Args:
        kind: As for `manifest_template`.
        out: A file that does not exist yet, in a folder that does.

    Returns:
        Where it was written.

    Raises:
        InvalidInputError: If there is no such kind, or the file cannot be made.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     print(write_template("approximate_dp", Path(folder) / "run.yaml").name)
        run.yaml
    """
    text = manifest_template(kind)
    path = require_free(Path(out), "run.yaml")
    write_atomically(path, text.encode())
    return path


def _section(kind: str, parents: list[str]) -> list[str]:
    """The line that opens an object or a list, with a word on it if it may be left out."""
    path, indent = ".".join(parents), _indent(parents[:-1])
    line = f"{indent}{parents[-1].removesuffix('[]')}:"
    lines = [""] if len(parents) == 1 else []
    if _may_be_left_out(kind, path):
        return [*lines, *_comment(indent, f"optional: {_field(kind, path).description}"), f"#{line}"]
    return [*lines, line]


def _entry(kind: str, path: str, meaning: str, example: str, *, first: bool) -> list[str]:
    """One field: its comment, and a line that is empty, commented out or, where only one value can be, filled in."""
    *parents, name = path.split(".")
    indent = _indent(parents)
    field = f"{indent[:-2]}- {name}:" if first and parents[-1].endswith("[]") else f"{indent}{name}:"
    value = {**_STATED, "mechanism.kind": kind}.get(path)
    if value is not None:
        return [f"{field} {value}"]
    rate = name == OPTIMIZER_RATE
    accepted = OPTIMIZER_RATE_ACCEPTED if rate else _ACCEPTED.get(path) or str(_field(kind, path).description)
    optional = not rate and _may_be_left_out(kind, path)
    within = [".".join(parents[: depth + 1]) for depth in range(len(parents))]
    commented = optional or any(_may_be_left_out(kind, parent) for parent in within)
    words = "; ".join(filter(None, ["optional" * optional, meaning, accepted]))
    line = f"#{field} {example}" if commented else f"{field}  # for example: {example}"
    return [*_comment(indent, words), line]


def _comment(indent: str, words: str) -> list[str]:
    return wrap(words, 118, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")


def _indent(parents: list[str]) -> str:
    return "  " * sum(2 if parent.endswith("[]") else 1 for parent in parents)


def _may_be_left_out(kind: str, path: str) -> bool:
    return path not in ASKED_FOR and not _field(kind, path).is_required()


def _field(kind: str, path: str) -> FieldInfo:
    """The schema's field at a path, for a mechanism of this kind."""
    owners: list[type[Strict]] = [Manifest]
    field: FieldInfo | None = None
    for part in path.split("."):
        named = {name.removesuffix("_"): f for owner in owners for name, f in owner.model_fields.items()}
        field = named[part.removesuffix("[]")]
        owners = list(models_in(field.annotation))
        if part == "mechanism":
            owners = [owner for owner in owners if str(owner.model_fields["kind"].description) == f'"{kind}"']
    assert field is not None
    return field
