"""Manifests written by hand: from flat answers to a checked document.

Guarantees: nothing is filled in that was not said; what nobody says is "unknown", and has no number.
Refuses: answers that are missing (all named at once) or that do not belong to the kind of mechanism.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any, get_args

from dpmerge.documents import read_bytes, strict_json, validated
from dpmerge.errors import InvalidInput, UnsafePath
from dpmerge.portfolio.facts import MECHANISM_KINDS
from dpmerge.portfolio.manifest import SCHEMA, Manifest, require_plain_path
from dpmerge.portfolio.runs import INDEX_SUFFIX, inside, is_weights
from dpmerge.portfolio.statement import Decided
from dpmerge.portfolio.tensors import read_contents, read_header, refuse_pickle, weights_digest

Answers = Mapping[str, Any]
DECIDED = get_args(Decided)
VOUCHED = ("vouched", "unknown")
KINDS = tuple(kind for kind in MECHANISM_KINDS if kind != "accountant_history")


@dataclass(frozen=True)
class Question:
    """One fact to ask for: its name, the words, when it is needed, and what may be answered."""

    name: str
    words: str
    needed: Callable[[Answers], bool] = lambda _: True
    choices: tuple[str, ...] = ()
    kind: type = str
    may_be_left_out: bool = False

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"


def _is(name: str, *values: str) -> Callable[[Answers], bool]:
    return lambda answers: answers.get(name) in values


def _needs_batch_size(answers: Answers) -> bool:
    full = answers.get("sampling") == "full_batch" and answers.get("size") is not None
    return answers.get("kind") == "dp_sgd" and answers.get("loss_reduction") == "mean" and not full


def _has_momentum(answers: Answers) -> bool:
    return answers.get("optimizer") == "sgd" and bool(answers.get("momentum"))


_sgd = _is("kind", "dp_sgd")
QUESTIONS = (
    Question("run", "A name for this run"),
    Question("dataset", "A name for the private data (yours, never a digest)"),
    Question("adjacency", "Neighbouring data sets", choices=("replace_one", "add_remove")),
    Question("kind", "What is known of the run", choices=KINDS),
    Question("steps", "Number of steps", _sgd, kind=int),
    Question("noise_multiplier", "Noise multiplier σ", _sgd, kind=float),
    Question("clip_norm", "Clip norm C", _sgd, kind=float),
    Question("learning_rate", "Learning rate", _sgd, kind=float),
    Question("sampling", "Batches", _sgd, ("full_batch", "poisson", "shuffled", "unknown")),
    Question("sampling_rate", "Sampling rate", _is("sampling", "poisson"), kind=float),
    Question("steps_per_epoch", "Steps in an epoch", _is("sampling", "shuffled"), kind=int),
    Question("loss_reduction", "Loss reduction", _sgd, ("mean", "sum")),
    Question("expected_batch_size", "What the mean divides by", _needs_batch_size, kind=float),
    Question("optimizer", 'Optimizer, such as "sgd" or "adam"', _sgd),
    Question("momentum", "Momentum", _is("optimizer", "sgd"), kind=float),
    Question("nesterov", "Nesterov momentum", _has_momentum, ("yes", "no")),
    Question("dampening", "Dampening", _has_momentum, kind=float),
    Question("weight_decay", "Weight decay", _is("optimizer", "sgd"), kind=float),
    Question("layers", "Clipped over all tensors together, or each layer by itself", _sgd, ("together", "apart")),
    Question("sensitivity", "L2 sensitivity", _is("kind", "gaussian_release"), kind=float),
    Question("standard_deviation", "Standard deviation of the noise", _is("kind", "gaussian_release"), kind=float),
    Question(
        "noise_on",
        "What the noise was added to, so that both are in its units",
        _is("kind", "gaussian_release"),
        ("weights", "something_else"),
    ),
    Question("mu", "μ, as in Gaussian differential privacy", _is("kind", "gaussian_dp"), kind=float),
    Question("point", "Known guarantees, as EPSILON:DELTA, with spaces between several", _is("kind", "approximate_dp")),
    Question("order", "Rényi curve, as ORDER:VALUE, with spaces between several", _is("kind", "renyi")),
    Question("noise_source", "Where the noise came from", choices=("os_entropy", "seeded", "unknown")),
    Question("noise_seed", "The seed", _is("noise_source", "seeded"), kind=int),
    Question("start", "What training started from", choices=("random", "public", "private", "unknown")),
    Question("parent", "The private parent, as run@step", _is("start", "private")),
    Question("stopping", "By what it was decided when to stop", _sgd, DECIDED, may_be_left_out=True),
    Question("schedule", "By what rates, clip norms and noise changed", _sgd, DECIDED, may_be_left_out=True),
    Question("record_losses", "Does each record have a loss of its own", _sgd, VOUCHED, may_be_left_out=True),
)
"""What is asked, in this order; what may be left out is asked of people only."""

ONLY_FOR = {
    **dict.fromkeys(
        (
            "steps", "noise_multiplier", "clip_norm", "learning_rate", "sampling", "sampling_rate", "steps_per_epoch",
            "loss_reduction", "expected_batch_size", "public_divisor", "layers", "optimizer", "momentum",
            "nesterov", "dampening", "weight_decay", "smoothness", "feature_bound", "beta", "records",
        ),
        "dp_sgd",
    ),
    "sensitivity": "gaussian_release",
    "standard_deviation": "gaussian_release",
    "noise_on": "gaussian_release",
    "mu": "gaussian_dp",
    "point": "approximate_dp",
    "order": "renyi",
}  # fmt: skip
"""Answers that belong to one kind of mechanism; beside another they would say nothing."""


def missing(answers: Answers) -> list[Question]:
    """The questions that still need an answer."""
    return [q for q in QUESTIONS if answers.get(q.name) in (None, []) and q.needed(answers)]


def checked(question: Question, answer: str) -> Any:
    """The answer to a question, or what is wrong with it."""
    if question.choices and answer not in question.choices:
        raise InvalidInput(question.flag, answer, ", ".join(question.choices))
    if question.name in ("point", "order"):
        return answer.split()
    try:
        return question.kind(answer)
    except ValueError:
        accepted = "an integer" if question.kind is int else "a number"
        raise InvalidInput(question.flag, answer, accepted) from None


def written_manifest(answers: Answers, folder: Path) -> Manifest:
    """The manifest that says what was answered; `folder` is where its checkpoints lie."""
    if absent := [question for question in missing(answers) if not question.may_be_left_out]:
        flags = ", ".join(question.flag for question in absent)
        raise InvalidInput("flags", None, "a value for each", found=f"nothing for {flags}")
    for question in QUESTIONS:
        if question.choices and answers.get(question.name) not in (None, *question.choices):
            raise InvalidInput(question.flag, answers[question.name], ", ".join(question.choices))
    for name, kind in ONLY_FOR.items():
        if answers.get(name) not in (None, False, []) and answers["kind"] != kind:
            flag = f"--{name.replace('_', '-')}"
            raise InvalidInput(flag, answers[name], f"left out for {answers['kind']}: it belongs to {kind}")
    return _manifest(answers, _mechanism(answers), "hand", folder)


def imported_manifest(answers: Answers, mechanism: dict[str, Any], folder: Path) -> Manifest:
    """The manifest of an accountant's history and of what else was answered."""
    return _manifest(answers, mechanism, "opacus_history", folder)


def _manifest(answers: Answers, mechanism: dict[str, Any], how: str, folder: Path) -> Manifest:
    source = answers["noise_source"]
    run, _, step = str(answers.get("parent") or "").partition("@")
    if answers.get("parent") and not step.isdecimal():
        raise InvalidInput("parent", answers["parent"], "run@step, such as adult-s32@12")
    content = {
        "schema": SCHEMA,
        "run": answers["run"],
        "dataset": _given(id=answers["dataset"], size=answers.get("size")),
        "unit": answers.get("unit") or "record",
        "adjacency": answers["adjacency"],
        "mechanism": _given(**mechanism),
        "noise": _given(
            source=source,
            stream=secrets.token_hex(16) if source == "os_entropy" else None,
            seed=answers.get("noise_seed"),
        ),
        "ancestry": _given(
            start=answers["start"],
            source=answers.get("public_source"),
            run=run or None,
            step=int(step) if step else None,
        ),
        "tuning": answers.get("tuning") or "unknown",
        "stopping": answers.get("stopping"),
        "schedule": answers.get("schedule"),
        "record_losses": answers.get("record_losses"),
        "checkpoints": [_checkpoint(text, folder) for text in answers.get("checkpoint") or []],
        "recorded_by": _given(how=how, who=answers.get("who")),
    }
    return validated(Manifest, content, "manifest")


def _mechanism(answers: Answers) -> dict[str, Any]:
    kind = answers["kind"]
    if kind == "dp_sgd":
        return _dp_sgd(answers)
    if kind == "gaussian_release":
        if answers["noise_on"] != "weights":
            accepted = "weights; of noise that is elsewhere state --kind gaussian_dp with --mu"
            raise InvalidInput("--noise-on", answers["noise_on"], accepted)
        return {name: answers[name] for name in ("kind", "sensitivity", "standard_deviation", "noise_on")}
    if kind == "gaussian_dp":
        return {"kind": kind, "mu": answers["mu"]}
    if kind == "approximate_dp":
        points = [_pair("point", text) for text in answers["point"]]
        return {"kind": kind, "points": [{"epsilon": epsilon, "delta": delta} for epsilon, delta in points]}
    if kind == "renyi":
        curve = sorted(_pair("order", text) for text in answers["order"])
        return {"kind": kind, "orders": [order for order, _ in curve], "values": [value for _, value in curve]}
    return {"kind": kind}


def _dp_sgd(answers: Answers) -> dict[str, Any]:
    mean, size = answers["loss_reduction"] == "mean", answers.get("expected_batch_size")
    if mean and size is None:
        size = answers["size"]  # of a full batch
    block = _given(
        steps=answers["steps"],
        noise_multiplier=answers["noise_multiplier"],
        clip_norm=answers["clip_norm"],
        # Effective: of the sum of gradients.
        learning_rate=answers["learning_rate"] / size if mean and size else answers["learning_rate"],
        sampling_rate=answers.get("sampling_rate"),
    )
    optimizer = {name: answers.get(name) for name in ("momentum", "dampening", "weight_decay")}
    if answers["optimizer"] == "sgd":
        optimizer |= {"nesterov": answers.get("nesterov") == "yes", "dampening": answers.get("dampening") or 0.0}
    smoothness = None
    if answers.get("smoothness") is not None:
        facts = {name: answers.get(name) for name in ("feature_bound", "beta")}
        facts["records"] = answers.get("records") or answers.get("size")
        smoothness = _given(kind=answers["smoothness"], vouched_by=answers.get("who") or "who wrote this", **facts)
    public = answers["adjacency"] == "replace_one" or not mean or bool(answers.get("public_divisor"))
    return _given(
        kind="dp_sgd",
        blocks=[block],
        sampling=answers["sampling"],
        steps_per_epoch=answers.get("steps_per_epoch"),
        clipping="per_example",
        flat_clipping=answers["layers"] == "together",
        optimizer=_given(name=answers["optimizer"], **optimizer),
        loss_reduction=answers["loss_reduction"],
        expected_batch_size=float(size) if mean and size else None,
        public_divisor=public,
        smoothness=smoothness,
    )


def _checkpoint(text: str, folder: Path) -> dict[str, Any]:
    step, _, name = text.partition("=")
    if not step.isdecimal() or not name:
        accepted = "STEP=FILE, such as 20=model.safetensors, or 20=model.safetensors.index.json for shards"
        raise InvalidInput("checkpoint", text, accepted)
    files, tensors = [], []
    for part in _files(name, folder):
        path = _located(part, folder)
        if not is_weights(path):
            files.append({"name": part, "sha256": sha256(read_bytes(path)).hexdigest()})
            continue
        slots = read_header(path)
        contents = read_contents(path, slots)
        files.append({"name": part, "sha256": contents.sha256})
        tensors += [(slot.name, slot.dtype, slot.shape, contents.tensors[slot.name]) for slot in slots]
    return {"step": int(step), "files": files, "weights": weights_digest(tensors)}


def _files(name: str, folder: Path) -> list[str]:
    """The file itself; of an index, as Hugging Face writes it beside shards, those it names and the index."""
    if not name.endswith(INDEX_SUFFIX):
        return [name]
    index = strict_json(read_bytes(_located(name, folder)), name)
    shards = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(shards, dict) or not shards or not all(isinstance(shard, str) for shard in shards.values()):
        accepted = "an index with a weight_map of tensors and their files"
        raise InvalidInput("checkpoint", name, accepted, found="another file")
    beside = PurePosixPath(name).parent
    return [*(str(beside / shard) for shard in sorted(set(shards.values()))), name]


def _located(name: str, folder: Path) -> Path:
    refuse_pickle("--checkpoint", "checkpoint", name)
    require_plain_path("--checkpoint", "checkpoint", name)
    path = folder / name
    if not inside(path, folder):
        raise UnsafePath("--checkpoint", "checkpoint", name, f"a file in {folder}")
    return path


def _pair(name: str, text: str) -> tuple[float, float]:
    first, _, second = text.partition(":")
    try:
        return float(first), float(second)
    except ValueError:
        raise InvalidInput(name, text, "two numbers with a colon between them") from None


def _given(**fields: Any) -> dict[str, Any]:
    """The fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}
