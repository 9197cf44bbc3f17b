"""Smoothness that is derived, against curvature that is measured; features that are bounded, whatever comes in."""

from __future__ import annotations

import copy
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dpmerge.accounting import Smoothness
from dpmerge.errors import InvalidInputError
from dpmerge.terms.mechanism_schema import SmoothnessFacts
from dpmerge.training import bound_features
from training.loops import CLASSES, FEATURES, QUIET, Private, private, recorded, refused_at_once, refusing

pytestmark = [pytest.mark.filterwarnings(rule) for rule in QUIET]


def made_of(model: nn.Module, **settings: Any) -> Private:
    """A full-batch run of some model of six features, whatever its loss is said to be."""
    dataset = TensorDataset(torch.randn(8, 6), torch.zeros(8, dtype=torch.long))
    return private(model, dataset=dataset, batches="full", clip=20.0, **settings)


def derive(model: nn.Module, criterion: Any, folder: Path, **settings: Any) -> SmoothnessFacts:
    """What a record of one step says of the loss."""
    outputs = next(layer for layer in reversed(list(model.modules())) if isinstance(layer, nn.Linear)).out_features
    targets = torch.zeros(8, dtype=torch.long) if outputs > 1 else torch.zeros(8, 1)
    run = private(model, dataset=TensorDataset(torch.randn(8, 6), targets), batches="full", clip=20.0)
    with recorded(run, folder, criterion=criterion, **settings) as recorder:
        run.train(1)
    facts: SmoothnessFacts = recorder.manifest().mechanism.smoothness
    return facts


def beta_of(facts: SmoothnessFacts) -> float:
    """As the accounting reads it."""
    constant = Smoothness(**facts.model_dump()).gradient_lipschitz
    assert constant is not None
    return constant


def largest_curvature(model: nn.Linear, criterion: Any, bound: float, targets: Tensor, seed: int) -> float:
    """Gradient ascent on the largest eigenvalue of one record's Hessian, over weights and features within the bound."""
    generator = torch.Generator().manual_seed(seed)
    size = sum(p.numel() for p in model.parameters())
    shape = model.weight.shape

    def loss(vector: Tensor, features: Tensor) -> Tensor:
        weight = vector[: shape.numel()].reshape(shape)
        bias = vector[shape.numel() :] if model.bias is not None else None
        output = nn.functional.linear(features.unsqueeze(0), weight, bias)
        return criterion(output if shape[0] > 1 else output.squeeze(1), targets)

    hessian = torch.func.hessian(loss)
    vector = (0.3 * torch.randn(size, generator=generator, dtype=torch.float64)).requires_grad_()
    features = torch.randn(shape[1], generator=generator, dtype=torch.float64).requires_grad_()
    ascent = torch.optim.Adam([vector, features], lr=0.05)
    best = 0.0
    for _ in range(100):
        ascent.zero_grad()
        within = features * (bound / features.norm())
        top = torch.linalg.eigvalsh(hessian(vector, within))[-1]
        best = max(best, float(top.detach()))
        (-top).backward()
        ascent.step()
    return best


LOSSES: dict[str, tuple[Any, int, Tensor]] = {
    "cross entropy": (nn.CrossEntropyLoss(), 3, torch.tensor([1])),
    "cross entropy of two": (nn.CrossEntropyLoss(), 2, torch.tensor([1])),
    "smoothed labels": (nn.CrossEntropyLoss(label_smoothing=0.3), 3, torch.tensor([2])),
    "logistic": (nn.BCEWithLogitsLoss(), 1, torch.tensor([1.0], dtype=torch.float64)),
    "squared": (nn.MSELoss(), 1, torch.tensor([0.3], dtype=torch.float64)),
    "huber": (nn.HuberLoss(delta=0.7), 1, torch.tensor([0.1], dtype=torch.float64)),
    "smooth l1": (nn.SmoothL1Loss(beta=0.5), 1, torch.tensor([0.1], dtype=torch.float64)),
    "smooth l1 of 1": (nn.SmoothL1Loss(), 1, torch.tensor([0.1], dtype=torch.float64)),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", LOSSES)
def test_curvature_reaches_the_derived_constant_and_never_exceeds_it(tmp_path: Path, name: str, bias: bool) -> None:
    criterion, outputs, targets = LOSSES[name]
    bound = 1.7
    said = derive(nn.Linear(6, outputs, bias=bias), criterion, tmp_path, feature_bound=bound)
    assert said.feature_bound == pytest.approx(math.hypot(bound, 1) if bias else bound, rel=1e-15)
    model = nn.Linear(3, outputs, bias=bias).double()
    measured = max(largest_curvature(model, criterion, bound, targets, seed) for seed in range(2))
    assert measured <= beta_of(said) * (1 + 1e-9)
    assert measured >= beta_of(said) * 0.97


@pytest.mark.parametrize(
    ("criterion", "outputs", "kind"),
    [
        (nn.CrossEntropyLoss(), CLASSES, "softmax"),
        (nn.BCEWithLogitsLoss(), 1, "logistic"),
        (nn.MSELoss(), 1, "squared"),
        (nn.HuberLoss(), 1, "huber"),
        (nn.SmoothL1Loss(beta=0.1), 1, "huber"),
    ],
)
def test_each_loss_gives_its_kind_of_smoothness(tmp_path: Path, criterion: Any, outputs: int, kind: str) -> None:
    facts = derive(nn.Sequential(nn.Flatten(), bound_features(2.0), nn.Linear(6, outputs)), criterion, tmp_path)
    assert (facts.kind, facts.records, facts.feature_bound) == (kind, 8, math.hypot(2, 1))
    assert facts.vouched_by == (
        f"derived by the recorder from {type(criterion).__name__}; features bounded by a bound_features layer"
    )


@pytest.mark.parametrize(
    ("built_in", "bound", "who"),
    [
        (None, 3.0, "the caller of record()"),
        (2.0, 2.0, "a bound_features layer"),
        (2.0, 5.0, "a bound_features layer"),
    ],
)
def test_the_record_says_who_bounded_the_features(
    tmp_path: Path, built_in: float | None, bound: float, who: str
) -> None:
    layers = [] if built_in is None else [bound_features(built_in)]
    said = derive(nn.Sequential(*layers, nn.Linear(6, 4)), nn.CrossEntropyLoss(), tmp_path, feature_bound=bound)
    assert said.feature_bound == math.hypot(built_in or bound, 1)
    assert str(said.vouched_by).endswith(who)


def test_a_bound_below_what_the_layer_lets_through_is_refused(tmp_path: Path) -> None:
    run = made_of(nn.Sequential(bound_features(2.0), nn.Linear(6, 4)))
    text = "feature_bound: got 1.0; accepted: at least 2"
    refused_at_once(
        run, tmp_path / "run", text, kind=InvalidInputError, criterion=nn.CrossEntropyLoss(), feature_bound=1.0
    )


def test_a_clip_norm_too_small_for_softmax_is_warned_of_at_the_start(tmp_path: Path) -> None:
    run = private(nn.Linear(FEATURES, CLASSES), batches="full", clip=2.0)
    with (
        pytest.warns(UserWarning, match=r"clip norm 2 is below √2 × 1.41421 \+ 2e-6 = 2.000002"),
        recorded(run, tmp_path, criterion=nn.CrossEntropyLoss(), feature_bound=1.0),
    ):
        run.train(1)


@pytest.mark.parametrize("model", [None, nn.Sequential(bound_features(1.0), nn.Linear(FEATURES, CLASSES))])
def test_no_smoothness_is_derived_unless_asked_for(tmp_path: Path, model: nn.Module | None) -> None:
    run = private(model, batches="full")
    with recorded(run, tmp_path) as recorder:
        run.train(1)
    assert recorder.manifest().mechanism.smoothness is None


CE, ONE = nn.CrossEntropyLoss, torch.ones(1)
REFUSED: list[tuple[nn.Module, Any, float | None, str]] = [
    (nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4)), CE(), 1.0, "one trained linear layer"),
    (nn.Sequential(nn.Linear(6, 4), nn.Tanh()), CE(), 1.0, "one trained linear layer"),
    (nn.Conv1d(6, 4, 1), CE(), 1.0, "one trained linear layer"),
    (nn.Bilinear(6, 6, 4), CE(), 1.0, "one trained linear layer"),
    (nn.Linear(6, 4), CE(weight=torch.ones(4)), 1.0, "CrossEntropyLoss with class weights"),
    (nn.Linear(6, 1), nn.BCEWithLogitsLoss(pos_weight=ONE), 1.0, "with class weights"),
    (nn.Linear(6, 1), nn.BCEWithLogitsLoss(weight=ONE), 1.0, "with class weights"),
    (nn.Linear(6, 4), CE(reduction="sum"), 1.0, "CrossEntropyLoss reduces by 'sum'"),
    (nn.Linear(6, 4), CE(reduction="none"), 1.0, "CrossEntropyLoss reduces by 'none'"),
    (nn.Linear(6, 4), nn.functional.cross_entropy, 1.0, "not a loss module"),
    (nn.Linear(6, 4), CE(), None, "features are not bounded; put bound_features(R) before"),
    (nn.Sequential(bound_features(1.0), nn.ReLU(), nn.Linear(6, 4)), CE(), None, "features are not bounded"),
    (nn.Sequential(bound_features(1.0), nn.Dropout(0.5), nn.Linear(6, 4)), CE(), None, "features are not bounded"),
    (nn.Linear(6, 4), None, 1.0, "the loss is not known; pass criterion= too"),
    (nn.Linear(6, 1), CE(), 1.0, "CrossEntropyLoss with 1 outputs"),
    (nn.Linear(6, 2), nn.MSELoss(), 1.0, "MSELoss with 2 outputs"),
    (nn.Linear(6, 2), nn.BCEWithLogitsLoss(), 1.0, "BCEWithLogitsLoss with 2 outputs"),
    (nn.Linear(6, 1), nn.SmoothL1Loss(beta=0.0), 1.0, "SmoothL1Loss with 1 outputs"),
    (nn.Linear(6, 1), nn.L1Loss(), 1.0, "L1Loss with 1 outputs"),
    (nn.Linear(6, 4), nn.MultiMarginLoss(), 1.0, "MultiMarginLoss"),
    (nn.Linear(6, 4), type("CrossEntropyLoss", (CE,), {})(), 1.0, "smoothness is derived for CrossEntropyLoss"),
]


@pytest.mark.parametrize("place", range(len(REFUSED)))
def test_losses_and_models_without_a_theorem_are_refused(tmp_path: Path, place: int) -> None:
    model, criterion, bound, text = REFUSED[place]
    run = made_of(copy.deepcopy(model))
    refused_at_once(run, tmp_path / "run", text, criterion=criterion, feature_bound=bound)
    assert not (tmp_path / "run").exists()


def test_the_number_of_records_is_recorded_where_it_is_public(tmp_path: Path) -> None:
    """Under replace_one and zero_out it is; under add_remove somebody must bound it, or no factor is known."""
    cases: list[tuple[dict[str, Any], int | None]] = [
        ({"adjacency": "replace_one"}, 48),
        ({"adjacency": "zero_out"}, 48),
        ({"adjacency": "add_remove", "public_divisor": True}, None),
        ({"adjacency": "add_remove", "public_divisor": True, "most_records": 60}, 60),
    ]
    for place, (settings_, records) in enumerate(cases):
        run = private(nn.Linear(FEATURES, CLASSES), batches="full", clip=20.0)
        with recorded(
            run, tmp_path / str(place), criterion=nn.CrossEntropyLoss(), feature_bound=8.0, **settings_
        ) as recorder:
            run.train(2)
        facts = recorder.manifest()
        assert facts.mechanism.smoothness.records == records
        assert facts.dataset.size == (48 if records == 48 else None)
        factors = facts.mechanism_from(None).lipschitz(2)  # type: ignore[attr-defined]
        assert (factors is None) == (records is None)


def test_the_wrapped_loss_of_ghost_clipping_is_recognised(tmp_path: Path) -> None:
    run = private(nn.Linear(FEATURES, CLASSES), batches="full", mode="ghost", clip=20.0)
    with recorded(run, tmp_path, criterion=run.criterion, feature_bound=8.0) as recorder:
        run.train(1)
    facts = recorder.manifest().mechanism.smoothness
    assert (facts.kind, facts.feature_bound) == ("softmax", math.hypot(8, 1))
    assert "CrossEntropyLoss" in facts.vouched_by


def test_records_of_several_vectors_are_refused(tmp_path: Path) -> None:
    """A sum over a sequence is steeper than one vector's loss."""
    dataset = TensorDataset(torch.randn(8, 5, FEATURES), torch.zeros(8, CLASSES, dtype=torch.long))
    run = private(nn.Linear(FEATURES, CLASSES), dataset=dataset, batches="full", clip=20.0)
    facts = {"criterion": nn.CrossEntropyLoss(), "feature_bound": 8.0}
    with refusing(run, tmp_path / "run", "not one feature vector", **facts):
        run.train(1)
    assert not list((tmp_path / "run").iterdir())


# Features of bounded norm

DTYPES = {torch.float64: 11, torch.float32: 8, torch.float16: 5, torch.bfloat16: 8}


def exact_square(record: Tensor) -> Fraction:
    """The squared norm of what is really in the tensor."""
    return sum((Fraction(value) ** 2 for value in record.double().flatten().tolist()), Fraction(0))


NUMBERS = st.one_of(
    st.floats(width=64),
    st.sampled_from([0.0, -0.0, 5e-324, 1e-310, 1e-45, 6e-8, 65504.0, 3.4e38, 1.7e308, math.inf, -math.inf, math.nan]),
    st.floats(-2, 2),
)


@settings(max_examples=300)
@given(
    values=arrays(np.float64, st.tuples(st.integers(0, 4), st.integers(1, 3), st.integers(1, 4)), elements=NUMBERS),
    dtype=st.sampled_from(sorted(DTYPES, key=str)),
    bound=st.one_of(st.floats(1e-3, 1e4), st.sampled_from([1.0, 0.5, 3.0, 1e10, 1e30])),
)
def test_no_record_is_longer_than_the_bound(values: np.ndarray, dtype: torch.dtype, bound: float) -> None:
    batch = torch.from_numpy(values).to(dtype)
    layer = bound_features(bound)
    bounded = layer(batch)
    assert bounded.shape == batch.shape
    assert bounded.dtype == dtype
    room = Fraction(bound * (1 - 8 * torch.finfo(dtype).eps))
    for record, result in zip(batch, bounded, strict=True):
        assert bool(torch.isfinite(result).all())
        assert exact_square(result) <= Fraction(bound) ** 2
        if bool(torch.isfinite(record).all()) and exact_square(record) <= room**2:
            assert torch.equal(record, result)
        # alone, or as a transform of a dataset, it comes out the same: nothing depends on the rest of the batch
        assert torch.equal(layer(record.unsqueeze(0))[0], result)
        assert torch.equal(layer.record(record), result)


@settings(max_examples=100)
@given(
    values=arrays(np.float64, (1, 6), elements=st.floats(-1e6, 1e6)),
    bound=st.floats(1e-2, 1e2),
    dtype=st.sampled_from([torch.float32]),
)
def test_long_records_keep_their_direction_and_nearly_the_bound(
    values: np.ndarray, bound: float, dtype: torch.dtype
) -> None:
    batch = torch.from_numpy(values).to(dtype)
    bounded = bound_features(bound)(batch)
    if exact_square(batch) > Fraction(bound) ** 2:
        assert float(bounded.double().norm()) == pytest.approx(bound, rel=1e-5)
        similarity = nn.functional.cosine_similarity(batch.double(), bounded.double())
        assert float(similarity) == pytest.approx(1, abs=1e-6)


def test_many_features_in_low_precision_stay_within_the_bound() -> None:
    for dtype in DTYPES:
        batch = torch.randn(3, 4096, generator=torch.Generator().manual_seed(0)).to(dtype) * 10
        for bound in (0.37, 1.0, 1.3, 57.0):
            bounded = bound_features(bound)(batch)
            assert all(exact_square(record) <= Fraction(bound) ** 2 for record in bounded)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_bounds_that_are_not_positive_numbers_are_refused(value: float) -> None:
    with pytest.raises(InvalidInputError, match="bound: got"):
        bound_features(value)


def test_a_bound_features_layer_of_a_private_model_gives_smoothness(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), bound_features(0.5), nn.Linear(FEATURES, CLASSES))
    run = private(model, batches="full", clip=2.0, criterion=nn.CrossEntropyLoss())
    with recorded(run, tmp_path, criterion=nn.CrossEntropyLoss()) as recorder:
        run.train(2)
    facts = recorder.manifest().mechanism.smoothness
    assert (facts.kind, facts.feature_bound) == ("softmax", math.hypot(0.5, 1))
