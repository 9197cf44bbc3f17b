"""Arbitrary valid manifests of every kind, for properties that must hold of all of them."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from dpmerge.portfolio.samples import StartSample
from dpmerge.terms.documents import UNSEEN

Document = dict[str, Any]

# Lone surrogates are no text, and what nobody sees is refused; anything else is text.
LETTERS = st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]).filter(lambda letter: not UNSEEN.search(letter))
TEXTS = st.text(LETTERS, min_size=1, max_size=20)
SIZES = st.floats(1e-30, 1e30)
SIZES_OR_ZERO = st.just(0.0) | st.just(0) | SIZES | st.integers(1, 10**6)
SHA256 = st.text("0123456789abcdef", min_size=64, max_size=64)
RUNS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
COUNTS = st.integers(1, 50)


def opaque(name: str) -> bool:
    """A dataset's name that could not be taken for a digest."""
    return sum(mark in "0123456789abcdefABCDEF" for mark in name) < 16


def optional(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Document]:
    return st.fixed_dictionaries({}, optional=fields)


@st.composite
def blocks(draw: st.DrawFn, *, sampled: bool, history: bool) -> Document:
    steps = draw(COUNTS)
    block: Document = {"steps": steps, "noise_multiplier": draw(SIZES_OR_ZERO)}
    if not history:
        block["clip_norm"] = draw(SIZES)
        block["learning_rate"] = draw(SIZES_OR_ZERO | st.lists(SIZES_OR_ZERO, min_size=steps, max_size=steps))
    if sampled:
        block["sampling_rate"] = draw(st.floats(0, 1, exclude_min=True))
    return block


@st.composite
def smoothness(draw: st.DrawFn, size: int | None) -> Document:
    kind = draw(st.sampled_from(["logistic", "huber", "squared", "softmax", "declared"]))
    facts: Document = {"kind": kind, "vouched_by": draw(TEXTS)}
    facts |= draw(optional(feature_bound=SIZES, records=st.integers(size or 1, 10**18)))
    if kind == "declared" or draw(st.booleans()):
        facts["beta"] = draw(SIZES_OR_ZERO)
    return facts


@st.composite
def training(draw: st.DrawFn, *, history: bool, size: int | None) -> tuple[Document, int]:
    """A DP-SGD run and its number of steps."""
    sampling = draw(st.sampled_from(["full_batch", "poisson", "shuffled", "unknown"]))
    made = draw(st.lists(blocks(sampled=sampling == "poisson", history=history), min_size=1, max_size=3))
    facts: Document = {
        "kind": "accountant_history" if history else "dp_sgd",
        "blocks": made,
        "sampling": sampling,
        "clipping": draw(st.sampled_from(["per_example", "aggregate"])),
        "public_divisor": draw(st.booleans()),
    }
    if sampling == "shuffled":
        facts["steps_per_epoch"] = draw(COUNTS)
    if history:
        facts |= draw(optional(sampling_vouched_by=TEXTS))
    if not history:
        facts["flat_clipping"] = draw(st.booleans())
        decay = {"momentum": SIZES_OR_ZERO, "weight_decay": SIZES_OR_ZERO, "dampening": st.floats(0, 1)}
        facts["optimizer"] = {"name": draw(TEXTS), **draw(optional(nesterov=st.booleans(), **decay))}
        facts["loss_reduction"] = draw(st.sampled_from(["mean", "sum"]))
        if facts["loss_reduction"] == "mean":
            facts["expected_batch_size"] = draw(SIZES)
        facts |= draw(
            optional(
                smoothness=smoothness(size),
                affine_map=st.fixed_dictionaries({"id": TEXTS, "vouched_by": TEXTS}),
            )
        )
        _agree(facts, size)
    return facts, sum(block["steps"] for block in made)


def _agree(facts: Document, size: int | None) -> None:
    """An epoch has no more batches than the data gives, and a bound on the records holds for a full batch."""
    if "steps_per_epoch" in facts and "expected_batch_size" in facts and size is not None:
        facts["steps_per_epoch"] = min(facts["steps_per_epoch"], math.ceil(size / facts["expected_batch_size"]))
    records = facts.get("smoothness", {}).get("records")
    if facts["sampling"] == "full_batch" and "expected_batch_size" in facts and records is not None:
        facts["expected_batch_size"] = min(facts["expected_batch_size"], float(records))


def _one_shot(facts: Document) -> tuple[Document, int]:
    return facts, 1


def _curve(points: dict[float, float]) -> Document:
    orders = sorted(points)
    return {"kind": "renyi", "orders": orders, "values": [points[order] for order in orders]}


RELEASES = st.one_of(
    st.fixed_dictionaries(
        {"kind": st.just("gaussian_release"), "sensitivity": SIZES, "standard_deviation": SIZES_OR_ZERO},
        optional={"noise_on": st.just("weights")},
    ),
    st.fixed_dictionaries({"kind": st.just("gaussian_dp"), "mu": SIZES}),
    st.dictionaries(st.floats(1, 1e5, exclude_min=True), st.floats(0, 1e6), min_size=1, max_size=5).map(_curve),
    st.fixed_dictionaries(
        {
            "kind": st.just("approximate_dp"),
            "points": st.lists(
                st.fixed_dictionaries({"epsilon": st.floats(0, 100), "delta": st.floats(0, 1)}), min_size=1, max_size=4
            ),
        }
    ),
    st.just({"kind": "non_private"}),
).map(_one_shot)

NOISES = st.one_of(
    st.fixed_dictionaries(
        {"source": st.just("os_entropy"), "stream": st.text("0123456789abcdef", min_size=32, max_size=32)},
        optional={"generator": TEXTS, "secure_rng": st.booleans()},
    ),
    st.fixed_dictionaries({"source": st.just("seeded"), "seed": st.integers(0, 2**70)}, optional={"generator": TEXTS}),
    st.fixed_dictionaries({"source": st.just("unknown")}, optional={"generator": TEXTS}),
)
ANCESTRIES = st.one_of(
    st.fixed_dictionaries({"start": st.sampled_from(["random", "unknown"])}),
    st.fixed_dictionaries(
        {"start": st.just("public")}, optional={"source": TEXTS, "independent_of": st.lists(RUNS, max_size=2)}
    ),
    st.fixed_dictionaries({"start": st.just("private"), "run": RUNS, "step": st.integers(1, 100)}),
)
DECIDED = st.sampled_from(["fixed", "public", "private", "unknown"])
START_SAMPLES = st.dictionaries(TEXTS, st.lists(st.floats(width=32), max_size=20), max_size=3).map(
    lambda sampled: StartSample.of(sampled).model_dump()
)
METRICS = st.fixed_dictionaries(
    {
        "name": TEXTS,
        "value": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**6), 10**6),
        "measured_on": st.sampled_from(["public", "private", "training"]),
    },
    optional={"data": TEXTS},
)


@st.composite
def checkpoints(draw: st.DrawFn, steps: int) -> list[Document]:
    chosen = sorted(draw(st.sets(st.integers(1, steps), max_size=3)))
    saved = []
    for step in chosen:
        shards = draw(st.integers(1, 2))
        files = [{"name": f"step {step}/{shard}.safetensors", "sha256": draw(SHA256)} for shard in range(shards)]
        extra = draw(optional(weights=SHA256, metrics=st.lists(METRICS, max_size=2)))
        saved.append({"step": step, "files": files, **extra})
    return saved


@st.composite
def tensors(draw: st.DrawFn) -> Document:
    names = draw(st.lists(TEXTS, unique=True, max_size=6))
    cut = draw(st.integers(0, len(names)))
    trained = names[:cut]
    ties = [[], *([trained[:2]] for _ in trained[1:2]), *([trained[:2], trained[2:]] for _ in trained[3:4])]
    return {"trained": trained, "frozen": names[cut:], **draw(optional(tied=st.sampled_from(ties)))}


@st.composite
def manifests(draw: st.DrawFn) -> Document:
    """A manifest that is complete for its kind and contradicts itself nowhere."""
    adjacency = draw(st.sampled_from(["replace_one", "add_remove", "zero_out"]))
    size = draw(st.none() | st.integers(1, 10**9)) if adjacency != "add_remove" else None
    facts, steps = draw(training(history=False, size=size) | training(history=True, size=size) | RELEASES)
    document: Document = {
        "schema": "dpmerge/run/v1",
        "run": draw(RUNS),
        "dataset": {"id": draw(TEXTS.filter(opaque)), **({} if size is None else {"size": size})},
        "unit": draw(TEXTS),
        "adjacency": adjacency,
        "mechanism": facts,
        "noise": draw(NOISES),
        "ancestry": draw(ANCESTRIES),
        "tuning": draw(st.sampled_from(["none", "public", "charged", "unknown"])),
        "recorded_by": {
            "how": draw(st.sampled_from(["recorder", "hand", "opacus_history"])),
            **draw(optional(who=TEXTS)),
        },
    }
    document |= draw(
        optional(
            initial_weights=SHA256,
            tensors=tensors(),
            checkpoints=checkpoints(steps),
            finished=st.booleans(),
            stopping=DECIDED,
            schedule=DECIDED,
            record_losses=st.sampled_from(["vouched", "unknown"]),
            start_sample=START_SAMPLES,
            tools=st.dictionaries(TEXTS, TEXTS, max_size=2),
        )
    )
    return document
