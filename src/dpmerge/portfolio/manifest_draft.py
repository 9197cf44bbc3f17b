"""A manifest that a person writes: YAML with the manifest's own fields, and what can be computed computed.

Guarantees: nothing is filled in that was not said, but for digests of the files named, a random id for noise that came
from the operating system, and effective learning rates where the optimizer's are stated. Everything that is wrong is
listed, each by its field. Booleans are `true` and `false` and 1e-5 is a number, as in YAML 1.2.
Refuses: aliases, tags, duplicate fields, pickles, files outside the folder.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from dpmerge.errors import InvalidInputError, ManifestError, UnsafePathError
from dpmerge.files import read_bytes
from dpmerge.portfolio.file_digests import FileDigests, FileHash
from dpmerge.portfolio.manifest import MANIFEST_NAME, Manifest
from dpmerge.portfolio.manifest_template import OPTIMIZER_RATE, OPTIMIZER_RATE_ACCEPTED
from dpmerge.portfolio.recorded_runs import INDEX_SUFFIX, is_weights
from dpmerge.portfolio.run_files import inside, require_free, require_plain_path
from dpmerge.portfolio.tensors import read_contents, read_header, refuse_pickle, weights_digest
from dpmerge.strict_yaml import PlainLoader, read_yaml
from dpmerge.terms.documents import problems, strict_json, validated

Document = dict[str, Any]
LARGEST_DRAFT = 1_000_000


class _DraftLoader(PlainLoader):
    """YAML 1.2's core schema: `no` is text, 1e-5 a number, 012 twelve and a date text."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  (PyYAML's own)


_DraftLoader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(?:~|null|)$"), ["~", "n", ""])
_DraftLoader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$"), ["t", "f"])
_NUMBER = list("-0123456789")
_DraftLoader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^-?(?:0|[1-9][0-9]*)$"), _NUMBER)
_DraftLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^-?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?$"), _NUMBER
)


def write_manifest(draft: str | Path, out: str | Path | None = None) -> Manifest:
    """Write the manifest that a filled template states.

    Args:
        draft: A filled template (`write_template`).
        out: A file that does not exist yet; by default `privacy.json` beside the template. Checkpoints are looked for
            in its folder.

    Returns:
        The manifest that was written.

    Raises:
        ManifestError: If something is missing or wrong; `check_manifest` lists everything.
        InvalidInputError: If the file cannot be made.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> lines = ["schema: dpmerge/run/v1", "run: partner", "dataset: {id: adult-2026}", "unit: record",
        ...          "adjacency: add_remove", "noise: {source: os_entropy}",
        ...          "mechanism: {kind: approximate_dp, points: [{epsilon: 1.2, delta: 1e-5}]}",
        ...          "ancestry: {start: random}", "tuning: unknown",
        ...          "recorded_by: {how: hand, who: Ann}"]
        >>> with TemporaryDirectory() as folder:
        ...     file = Path(folder) / "run.yaml"
        ...     _ = file.write_text("\\n".join(lines))
        ...     print(write_manifest(file).mechanism_from(None).profile().epsilon(1e-5))
        1.2
    """
    draft = Path(draft)
    path = require_free(Path(out) if out is not None else draft.parent, MANIFEST_NAME)
    document, found = completed(read_draft(draft), path.parent)
    if found:
        error = ManifestError.of(draft, found[0])
        if len(found) > 1:
            error.add_note(f"{len(found) - 1} more; dpmerge manifest check {draft} lists all")
        raise error
    manifest = validated(Manifest, document, "manifest")
    manifest.write(path)
    return manifest


def read_draft(path: Path) -> Document:
    """The fields of a draft that have a value."""
    try:
        content = _without_empty(read_yaml(path, "manifest", loader=_DraftLoader, limit=LARGEST_DRAFT))
    except InvalidInputError as error:
        raise ManifestError.of(path, error) from None
    if not isinstance(content, dict):
        raise ManifestError(
            path, "manifest", content, "one YAML object (`dpmerge manifest new KIND` writes a template)"
        )
    return content


def completed(document: Document, folder: Path) -> tuple[Document, list[InvalidInputError]]:
    """The manifest's document, with what can be computed; and all that is missing or wrong in it, each field once."""
    made, unreadable = dict(document), list[InvalidInputError]()
    noise, mechanism = _object(made, "noise"), _object(made, "mechanism")
    if noise.get("source") == "os_entropy":
        made["noise"] = {"stream": secrets.token_hex(16), **noise}
    if isinstance(mechanism.get("blocks"), list):
        made["mechanism"] = {**mechanism, "blocks": [_effective(block, mechanism) for block in mechanism["blocks"]]}
    if isinstance(document.get("checkpoints"), list):
        made["checkpoints"] = list(document["checkpoints"])
    for place, saved in enumerate(made.get("checkpoints", ())):
        files = saved.get("files") if isinstance(saved, dict) else None
        if isinstance(files, list) and files and all(isinstance(name, str) for name in files):
            try:
                recorded = recorded_files(files, folder)
            except InvalidInputError as error:
                why = error.strerror if isinstance(error, OSError) else error.problem or error.found
                field = f"checkpoints[{place}].files"
                said = f"{field}: {', '.join(files)}: {why}" if why else None
                unreadable.append(InvalidInputError(field, files, error.accepted, problem=said))
                recorded = {"files": None}
            made["checkpoints"][place] = {**saved, **recorded}
    found_at: dict[str, InvalidInputError] = {}
    for problem in (*_needed(document), *unreadable, *problems(Manifest, made, "manifest")):
        found_at.setdefault(problem.field, problem)
    return made, list(found_at.values())


def _effective(block: Any, mechanism: Document) -> Any:
    """A block whose rate multiplies the sum of gradients, as the manifest's does."""
    if not isinstance(block, dict) or OPTIMIZER_RATE not in block or "learning_rate" in block:
        return block
    rates, size = block[OPTIMIZER_RATE], mechanism.get("expected_batch_size")
    mean = mechanism.get("loss_reduction") == "mean" and isinstance(size, int | float) and size > 0
    divisor = size if mean and size is not None else 1
    each = [rate / divisor if isinstance(rate, int | float) else rate for rate in _listed(rates)]
    rest = {name: value for name, value in block.items() if name != OPTIMIZER_RATE}
    return {**rest, "learning_rate": each if isinstance(rates, list) else each[0]}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _needed(document: Document) -> Iterator[InvalidInputError]:
    """Fields that other fields make necessary."""
    for path, needed, accepted in _conditions(document):
        if needed:
            yield InvalidInputError(path, None, accepted, found="nothing")


def _conditions(document: Document) -> Iterator[tuple[str, bool, str]]:
    """Field, whether it is missing, what to write."""
    noise, ancestry = _object(document, "noise"), _object(document, "ancestry")
    yield "noise.seed", noise.get("source") == "seeded" and "seed" not in noise, "an integer ≥ 0: the seed"
    for name, words in (("run", "the parent's run id"), ("step", "an integer ≥ 1: the parent's step")):
        yield f"ancestry.{name}", ancestry.get("start") == "private" and name not in ancestry, words
    facts = _object(document, "mechanism")
    kind, sampling = facts.get("kind"), facts.get("sampling")
    elsewhere = "weights; of noise that is elsewhere use kind gaussian_dp with mu"
    yield "mechanism.noise_on", kind == "gaussian_release" and "noise_on" not in facts, elsewhere
    epochs = "an integer ≥ 1: the number of batches in an epoch"
    yield "mechanism.steps_per_epoch", sampling == "shuffled" and "steps_per_epoch" not in facts, epochs
    # What is not said yet may turn out to be the case that needs more: all of it is asked for in one round.
    rateless = _leaves_out_rates(facts)
    mean = facts.get("loss_reduction", "mean" if kind == "dp_sgd" and not rateless else None) == "mean"
    reduction = kind == "dp_sgd" and not rateless and "loss_reduction" not in facts
    yield "mechanism.loss_reduction", reduction, '"mean" or "sum": of the batch\'s losses'
    divisor = "a finite number > 0: what a mean divides the sum by; left out for a sum"
    yield "mechanism.expected_batch_size", mean and "expected_batch_size" not in facts, divisor
    yield from _of_the_optimizer(facts)
    for place, block in enumerate(_listed(facts.get("blocks", []))):
        if isinstance(block, dict) and kind == "dp_sgd":
            path = f"mechanism.blocks[{place}]"
            yield f"{path}.sampling_rate", sampling == "poisson" and "sampling_rate" not in block, "a number in (0, 1]"
            stated = {OPTIMIZER_RATE, "learning_rate"} & block.keys()
            yield f"{path}.learning_rate", not stated and not rateless, f"{OPTIMIZER_RATE}: {OPTIMIZER_RATE_ACCEPTED}"
            if len(stated) == 2:
                yield f"{path}.{OPTIMIZER_RATE}", True, f"{OPTIMIZER_RATE} or learning_rate, not both"


def _leaves_out_rates(facts: Document) -> bool:
    """Whether rates and reduction are left out on purpose: the divisor, which nobody can see then, is vouched for."""
    blocks = [block for block in _listed(facts.get("blocks", [])) if isinstance(block, dict)]
    stated = any({OPTIMIZER_RATE, "learning_rate"} & block.keys() for block in blocks)
    return facts.get("public_divisor") is True and not stated and "loss_reduction" not in facts


def _of_the_optimizer(facts: Document) -> Iterator[tuple[str, bool, str]]:
    optimizer = _object(facts, "optimizer")
    sgd = str(optimizer.get("name", "sgd" if facts.get("kind") == "dp_sgd" else None)).lower() == "sgd"
    for name in ("momentum", "nesterov", "dampening", "weight_decay"):
        words = f"{'true or false' if name == 'nesterov' else 'a number ≥ 0'}; sgd must say, others leave it out"
        yield f"mechanism.optimizer.{name}", sgd and name not in optimizer, words


def missing_of_the_optimizer(document: Any) -> list[InvalidInputError]:
    """What a manifest's optimizer has to say and does not."""
    facts = _object(document, "mechanism") if isinstance(document, dict) else {}
    return [InvalidInputError(at, None, words, found="nothing") for at, gone, words in _of_the_optimizer(facts) if gone]


def _object(document: Document, name: str) -> Document:
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def _without_empty(value: Any) -> Any:
    """A field without a value is a field that was left out."""
    if isinstance(value, dict):
        return {name: _without_empty(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_empty(inner) for inner in value if inner is not None]
    return value


def recorded_files(names: list[str], folder: Path) -> Document:
    """`files` and `weights` of a checkpoint: every byte is read, and has to be finite."""
    files, tensors = [], []
    for part in [part for name in names for part in _with_shards(name, folder)]:
        path = _located(part, folder)
        if not is_weights(path):
            files.append(_recorded(part, FileHash(read_bytes(path)).digests()))
            continue
        slots = read_header(path)
        contents = read_contents(path, slots)
        files.append(_recorded(part, contents.file))
        tensors += [(slot.name, slot.dtype, slot.shape, contents.tensors[slot.name]) for slot in slots]
    return {"files": files, "weights": weights_digest(tensors)}


def _recorded(name: str, found: FileDigests) -> Document:
    digests = {"sha256": found.sha256, "blake3": found.blake3}
    return {"name": name, **{kind: digest for kind, digest in digests.items() if digest is not None}}


def _with_shards(name: str, folder: Path) -> list[str]:
    """The file itself; of an index, as Hugging Face writes it beside shards, those it names and the index."""
    if not name.endswith(INDEX_SUFFIX):
        return [name]
    index = strict_json(read_bytes(_located(name, folder)), name)
    shards = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(shards, dict) or not shards or not all(isinstance(shard, str) for shard in shards.values()):
        accepted = "an index with a weight_map of tensors and their files"
        raise InvalidInputError("checkpoint", name, accepted, found="another file")
    beside = PurePosixPath(name).parent
    return [*(str(beside / shard) for shard in sorted(set(shards.values()))), name]


def _located(name: str, folder: Path) -> Path:
    refuse_pickle(folder, "checkpoint", name)
    require_plain_path(folder, "checkpoint", name)
    path = folder / name
    if not inside(path, folder):
        raise UnsafePathError(folder, "checkpoint", name, f"a file in {folder}")
    return path
