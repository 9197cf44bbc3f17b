"""Losses that mix records: a mean over the batch's tokens scales each record's gradient by the other records.

64 records, one step on all of them, σ = 1, C = 10, replace_one: recorded as ε = 10.0, for sums that are at most
2·C = 20 apart. With the loss that causal language models return, a neighbouring pair's sums are 178 apart: ε = 233.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from attacks.faults import must_notice
from dpmerge.errors import InvalidInputError
from dpmerge.training import UnknownLossesWarning, loss_graph, per_record_loss, per_sample_gradient_check
from dpmerge.training.loss_graph import LossGraph
from training.loops import CLASSES, FEATURES, QUIET, Private, data, private, recorded, refusing, watched

pytestmark = [pytest.mark.filterwarnings(rule) for rule in QUIET]

RECORDS, TOKENS, WORDS, WIDTH = 64, 1024, 8, 4
NOISE, CLIP, DELTA = 1.0, 10.0, 1e-5
CLAIMED, TRUE = 10.0, 233.0
LENGTH = 2.98  # of a short record's gradient, shorter than the clip norm


def true_epsilon(apart: float) -> float:
    """Of a Gaussian of deviation σ·C around sums that are so far apart."""
    shift = apart / (NOISE * CLIP)

    def beyond(epsilon: float) -> float:
        left = norm.cdf(shift / 2 - epsilon / shift) - math.exp(epsilon + norm.logcdf(-shift / 2 - epsilon / shift))
        return float(left) - DELTA

    return float(brentq(beyond, 0, 600))


@dataclass
class Output:
    """As Hugging Face's models return it."""

    loss: Tensor | None
    logits: Tensor


class CausalModel(nn.Module):
    """A frozen embedding and a trained head, with the interface and the loss of Hugging Face's causal models."""

    def __init__(self, *, returns_logits: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH).requires_grad_(False)
        nn.init.ones_(self.embedding.weight)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        nn.init.zeros_(self.head.weight)
        self.dropout = nn.Dropout(dropout)
        self.returns_logits = returns_logits
        # Uniform predictions: the gradient of a token is (1/WORDS − e_y) ⊗ features.
        self.scale = LENGTH / (WIDTH * (1 - 1 / WORDS)) ** 0.5

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.head(self.dropout(self.scale * self.embedding(input_ids)))
        loss = None
        if labels is not None:
            shifted = functional.pad(labels, (0, 1), value=-100)[..., 1:]
            loss = functional.cross_entropy(logits.float().view(-1, WORDS), shifted.reshape(-1), ignore_index=-100)
        return Output(loss, logits) if self.returns_logits else (loss,)


def texts(first: int, others: int = 1, *, records: int = RECORDS, tokens: int = TOKENS) -> TensorDataset:
    """Records of `others` tokens to be learned, all of them the same word, and a first one with another number."""
    ids = torch.zeros(records, tokens, dtype=torch.long)
    labels = torch.full_like(ids, -100)
    for record in range(records):
        labels[record, 1 : 1 + (others if record else first)] = 0
    labels[0][labels[0] == 0] = 1
    return TensorDataset(ids, labels)


def causal(dataset: TensorDataset, model: nn.Module | None = None, **settings: Any) -> Private:
    return private(
        CausalModel() if model is None else model,
        dataset=dataset,
        **{"batches": "full", "noise": NOISE, "clip": CLIP} | settings,
    )


def returned_loss(run: Private, ids: Tensor, labels: Tensor) -> Any:
    output = run.model(input_ids=ids, labels=labels)
    return output.loss if isinstance(output, Output) else output[0]


def cured_loss(run: Private, ids: Tensor, labels: Tensor) -> Any:
    return per_record_loss(run.model(input_ids=ids, labels=labels).logits, labels)


Loss = Callable[[Private, Tensor, Tensor], Any]


def one_step(run: Private, loss: Loss) -> None:
    for ids, labels in run.loader:
        run.optimizer.zero_grad()
        run.rows += len(ids)
        loss(run, ids, labels).backward()
        run.optimizer.step()


def apart(loss: Loss) -> float:
    """How far the sums of clipped gradients of a neighbouring pair are apart, without anybody recording."""
    sums = []
    for first in (1, TOKENS - 1):
        run = causal(texts(first))
        with watched(run) as truth:
            one_step(run, loss)
        sums.append(truth.sums[0].double())
    return float((sums[0] - sums[1]).norm())


def test_the_loss_that_a_model_returns_costs_more_than_is_recorded() -> None:
    assert true_epsilon(2 * CLIP) == pytest.approx(CLAIMED, abs=0.05)
    measured = apart(returned_loss)
    assert measured == pytest.approx(178, abs=3)
    assert true_epsilon(measured) == pytest.approx(TRUE, rel=0.04)


@pytest.mark.parametrize("returns_logits", [True, False])
@pytest.mark.parametrize("batches", ["full", "poisson", "shuffled"])
def test_the_token_mean_that_a_model_returns_is_refused(tmp_path: Path, batches: str, returns_logits: bool) -> None:
    made = causal(texts(5, 1, tokens=8), CausalModel(returns_logits=returns_logits), batches=batches, batch_size=63)
    with refusing(made, tmp_path, "dpmerge.training.per_record_loss"):
        for _ in range(20):
            one_step(made, returned_loss)


def test_per_record_loss_bounds_what_one_record_does(tmp_path: Path) -> None:
    made = causal(texts(TOKENS - 1))
    with recorded(made, tmp_path) as recorder:
        one_step(made, cured_loss)
    assert recorder.epsilon(DELTA) == pytest.approx(CLAIMED, abs=0.05)
    assert recorder.manifest().record_losses == "checked"
    assert apart(cured_loss) <= 2 * CLIP


def test_a_loss_that_the_model_divides_itself_is_refused(tmp_path: Path) -> None:
    """No node of the graph says that it is a mean; the losses of two parts of the batch do not add up."""

    class Masked(CausalModel):
        def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
            output = super().forward(input_ids)
            assert labels is not None
            mask = (labels != -100).float()
            losses = functional.cross_entropy(output.logits.transpose(1, 2), labels.clamp(min=0), reduction="none")
            weights = mask / mask.sum()
            return Output((losses * weights).sum(), output.logits)

    made = causal(texts(5, 1, tokens=8), Masked())
    with refusing(made, tmp_path, "is not made of one loss a record"):
        one_step(made, returned_loss)


def test_a_returned_loss_that_adds_up_is_checked(tmp_path: Path) -> None:
    class Careful(CausalModel):
        def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
            output = super().forward(input_ids)
            assert labels is not None
            return Output(per_record_loss(output.logits, labels), output.logits)

    made = causal(texts(5, 1, tokens=8), Careful(dropout=0.3))
    with recorded(made, tmp_path) as recorder:
        one_step(made, returned_loss)
    assert recorder.manifest().record_losses == "checked"


def test_a_token_mean_over_records_of_equal_length_is_unknown(tmp_path: Path) -> None:
    """Blocks of a fixed length: the mean is right for this data, and nobody can see that it is for any."""
    made = causal(texts(7, 7, tokens=8))
    with recorded(made, tmp_path) as recorder:
        one_step(made, returned_loss)
    assert recorder.manifest().record_losses == "unknown"


# The loss itself.


def by_hand(logits: Tensor, labels: Tensor, *, shift: bool, ignore_index: int) -> list[float]:
    losses = []
    for record in range(len(logits)):
        own = []
        for token in range(labels.shape[1] - shift):
            label = int(labels[record, token + shift])
            if label != ignore_index:
                own.append(-float(logits[record, token].double().log_softmax(0)[label]))
        losses.append(sum(own) / len(own) if own else 0.0)
    return losses


@pytest.mark.parametrize("shift", [True, False])
@pytest.mark.parametrize("ignore_index", [-100, 3])
def test_per_record_loss_is_the_mean_over_each_records_tokens(shift: bool, ignore_index: int) -> None:
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(5, 7, WORDS, generator=generator), torch.randint(WORDS, (5, 7), generator=generator)
    labels[1, 2:] = ignore_index
    labels[2] = ignore_index
    wanted = by_hand(logits, labels, shift=shift, ignore_index=ignore_index)
    found = {
        reduction: per_record_loss(logits, labels, shift=shift, ignore_index=ignore_index, reduction=reduction)
        for reduction in ("none", "sum", "mean")
    }
    assert found["none"].tolist() == pytest.approx(wanted, rel=1e-5)
    assert wanted[2] == 0
    assert float(found["sum"]) == pytest.approx(sum(wanted), rel=1e-5)
    assert float(found["mean"]) == pytest.approx(sum(wanted) / 5, rel=1e-5)


@pytest.mark.parametrize("shape", [(5, 7), (5, 8, WORDS), (35, WORDS)])
def test_per_record_loss_refuses_other_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInputError, match="labels of shape"):
        per_record_loss(torch.zeros(shape), torch.zeros(5, 7, dtype=torch.long))


class GhostLoss(nn.Module):
    """As Opacus' ghost clipping wants a criterion: it sets the reduction to "none" when it calls."""

    def __init__(self) -> None:
        super().__init__()
        self.reduction: Any = "mean"

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return per_record_loss(logits, labels, reduction=self.reduction)


@pytest.mark.parametrize("batches", ["full", "poisson"])
def test_per_record_loss_under_ghost_clipping_is_checked(tmp_path: Path, batches: str) -> None:
    made = causal(texts(5, 1, tokens=8), batches=batches, batch_size=16, mode="ghost", criterion=GhostLoss())
    with recorded(made, tmp_path) as recorder:
        one_step(made, lambda run, ids, labels: run.criterion(run.model(ids).logits, labels))
    assert recorder.manifest().record_losses == "checked"


# Other losses: refused where they surely mix records, checked where they surely do not, and otherwise not known.

WEIGHTS = torch.tensor([1.0, 2.0, 3.0, 4.0])
MIXING: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "class weights": (lambda out, y: functional.cross_entropy(out, y, WEIGHTS), "class weights"),
    "ignored classes": (lambda out, y: functional.cross_entropy(out, y, ignore_index=2), "not to be ignored"),
    "a mean over some": (
        lambda out, y: functional.cross_entropy(out, y, reduction="none")[y > 0].mean(),
        "numbers for 48 records",
    ),
    "a sum over some by their number": (
        lambda out, y: (functional.cross_entropy(out, y, reduction="none") * (y > 0)).sum() / (y > 0).sum(),
        "numbers for 48 records",
    ),
}
SEPARATE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross-entropy": functional.cross_entropy,
    "cross-entropy by hand": lambda out, y: functional.cross_entropy(out, y, reduction="none").mean(),
    "squares": lambda out, y: functional.mse_loss(out[:, 0], y.float()),
    "logistic": lambda out, y: functional.binary_cross_entropy_with_logits(out[:, 1], (y > 1).float()),
    "two losses": lambda out, y: functional.cross_entropy(out, y) + out.square().mean(),
}
UNCLEAR: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "centred": lambda out, y: functional.cross_entropy(out - out.mean(0), y),
    "contrastive": lambda out, y: functional.cross_entropy(out @ out.T, torch.arange(len(y))),
    "weighed by a tensor": lambda out, y: (functional.cross_entropy(out, y, reduction="none") * y).mean(),
    "every record with every other": lambda out, y: (out[:, :1] - y.float()).square().mean(),
}


def with_loss(run: Private, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    for inputs, targets in run.loader:
        run.optimizer.zero_grad()
        loss(run.model(inputs), targets).backward()
        run.optimizer.step()


@pytest.mark.parametrize("name", MIXING)
def test_losses_that_mix_records_are_refused(tmp_path: Path, name: str) -> None:
    loss, text = MIXING[name]
    made = private(nn.Linear(FEATURES, CLASSES), batches="full")
    with refusing(made, tmp_path, text):
        with_loss(made, loss)


@pytest.mark.parametrize("name", SEPARATE)
def test_losses_of_one_record_each_are_checked(tmp_path: Path, name: str) -> None:
    made = private(nn.Linear(FEATURES, CLASSES))
    with recorded(made, tmp_path) as recorder:
        with_loss(made, SEPARATE[name])
    assert recorder.manifest().record_losses == "checked"


@pytest.mark.parametrize("vouched", [False, True])
@pytest.mark.parametrize("name", UNCLEAR)
def test_losses_that_cannot_be_seen_through_are_unknown_or_vouched(tmp_path: Path, name: str, vouched: bool) -> None:
    made = private(nn.Linear(FEATURES, CLASSES), dataset=data(48), batches="full")
    with recorded(made, tmp_path, separate_records=vouched) as recorder:
        with_loss(made, UNCLEAR[name])
    manifest = recorder.manifest()
    assert manifest.record_losses == manifest.statement.record_losses == ("vouched" if vouched else "unknown")


# Losses people use that the recorder does not see through: it says what is in the way.

NOT_SEEN_THROUGH: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "label smoothing": (
        lambda out, y: functional.cross_entropy(out, y, label_smoothing=0.1),
        "a sum that is divided by a number",
    ),
    "focal": (
        lambda out, y: focal(functional.cross_entropy(out, y, reduction="none")),
        "the operation Mul",
    ),
    "halved": (lambda out, y: functional.cross_entropy(out, y) / 2, "the operation Div"),
    "Kullback-Leibler": (
        lambda out, y: functional.kl_div(
            functional.log_softmax(out, 1), functional.one_hot(y, CLASSES).float(), reduction="batchmean"
        ),
        "no mean over records, where the optimizer expects a mean",
    ),
}


def focal(losses: Tensor) -> Tensor:
    return ((1 - torch.exp(-losses)) ** 2 * losses).mean()


@pytest.mark.filterwarnings("always::dpmerge.training.UnknownLossesWarning")
@pytest.mark.parametrize("name", NOT_SEEN_THROUGH)
def test_an_unknown_loss_is_warned_of_with_its_reason_and_the_cure(tmp_path: Path, name: str) -> None:
    loss, reason = NOT_SEEN_THROUGH[name]
    made = private(nn.Linear(FEATURES, CLASSES))
    with pytest.warns(UnknownLossesWarning) as caught, recorded(made, tmp_path, run="mine") as recorder:
        with_loss(made, loss)
    assert recorder.manifest().record_losses == "unknown"
    assert reason in recorder.record_losses_doubts
    [message] = [str(each.message) for each in caught if each.category is UnknownLossesWarning]
    assert message.startswith("run mine: record_losses is unknown")
    assert reason in message
    assert "separate_records=True" in message


@pytest.mark.filterwarnings("error::dpmerge.training.UnknownLossesWarning")
@pytest.mark.parametrize(("name", "vouched"), [("halved", True), ("cross-entropy", False)])
def test_a_loss_that_is_vouched_for_or_checked_is_not_warned_of(tmp_path: Path, name: str, vouched: bool) -> None:
    made = private(nn.Linear(FEATURES, CLASSES))
    with recorded(made, tmp_path, separate_records=vouched) as recorder:
        with_loss(made, SEPARATE[name] if name in SEPARATE else NOT_SEEN_THROUGH[name][0])
    assert recorder.manifest().record_losses == ("vouched" if vouched else "checked")


# Each check, taken out.


def test_tests_notice_when_the_loss_graph_is_not_judged(tmp_path: Path) -> None:
    for name in MIXING:
        (tmp_path / name).mkdir()
        must_notice(
            lambda folder, name=name: test_losses_that_mix_records_are_refused(folder, name),  # type: ignore[misc]
            tmp_path / name,
            LossGraph,
            "separate",
            lambda *_, **__: True,
        )


def test_tests_notice_when_a_returned_loss_is_not_checked(tmp_path: Path) -> None:
    fault = (per_sample_gradient_check, "require_additive_loss", lambda *_, **__: None)
    must_notice(test_a_loss_that_the_model_divides_itself_is_refused, tmp_path, *fault)


def test_tests_notice_when_unknown_operations_pass_for_known(tmp_path: Path) -> None:
    def trusting(graph: LossGraph, rows: int, *, mean: bool) -> bool:
        graph.unknown.clear()
        return judged(graph, rows, mean=mean)

    judged = LossGraph.separate
    must_notice(
        lambda folder: test_losses_that_cannot_be_seen_through_are_unknown_or_vouched(
            folder, "contrastive", vouched=False
        ),
        tmp_path,
        LossGraph,
        "separate",
        trusting,
    )


# Functions of the whole batch between the outputs and the gradients: nobody may call them checked

WHOLE_BATCH: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "flooding": lambda out, y: ((functional.cross_entropy(out, y) - 0.5).abs() + 0.5).backward(),
    "a logarithm of the loss": lambda out, y: functional.cross_entropy(out, y).log().backward(),
    "a gradient given to backward": lambda out, y: functional.cross_entropy(out, y).backward(
        gradient=torch.tensor(3.0)
    ),
    "a mean of detached outputs taken off": lambda out, y: functional.cross_entropy(
        out - out.detach().mean(0), y
    ).backward(),
    "records in the place of classes": lambda out, y: functional.cross_entropy(
        out.T.reshape(-1, CLASSES), y
    ).backward(),
    "weights of the batch": lambda out, y: functional.binary_cross_entropy_with_logits(
        out, functional.one_hot(y, CLASSES).float(), pos_weight=out.detach().abs().mean(0)
    ).backward(),
    "a sum where the optimizer divides by the expected batch": lambda out, y: functional.cross_entropy(
        out, y, reduction="sum"
    ).backward(),
}


def whole_batch(folder: Path, name: str) -> None:
    """Flooding was `checked` and recorded as 1.99 where 383 is true; the others 10 to 69."""
    run = private(batches="full", noise=4.0)
    with recorded(run, folder / "run") as recorder:
        for inputs, targets in run.loader:
            run.optimizer.zero_grad()
            WHOLE_BATCH[name](run.model(inputs), targets)
            run.optimizer.step()
    assert recorder.manifest().record_losses == "unknown"


@pytest.mark.parametrize("name", WHOLE_BATCH)
def test_a_function_of_the_whole_batch_is_not_checked(tmp_path: Path, name: str) -> None:
    whole_batch(tmp_path, name)


def test_tests_notice_when_functions_of_totals_are_not_looked_for(tmp_path: Path) -> None:
    must_notice(
        lambda folder: whole_batch(folder, "a logarithm of the loss"),
        tmp_path,
        loss_graph,
        "_input_shape",
        lambda node: torch.Size([2]),
    )


def test_a_hook_on_the_loss_makes_it_unknown(tmp_path: Path) -> None:
    run = private(batches="full")
    with recorded(run, tmp_path) as recorder:
        for inputs, targets in run.loader:
            run.optimizer.zero_grad()
            loss = run.criterion(run.model(inputs), targets)
            size = loss.item()
            loss.register_hook(lambda gradient, size=size: gradient / size)
            loss.backward()
            run.optimizer.step()
    assert recorder.manifest().record_losses == "unknown"


def test_soft_targets_are_recorded(tmp_path: Path) -> None:
    run = private(batches="full")
    with recorded(run, tmp_path) as recorder:
        for inputs, targets in run.loader:
            run.optimizer.zero_grad()
            functional.cross_entropy(run.model(inputs), functional.one_hot(targets, CLASSES).float()).backward()
            run.optimizer.step()
    assert recorder.steps == 1


def test_an_embedding_with_padding_is_recorded(tmp_path: Path) -> None:
    """Opacus gives the padding a gradient and torch does not: it is the record's own all the same."""
    words = torch.arange(48 * 3).reshape(48, 3) % 7  # every record has a 0 in it, or its neighbour has
    model = nn.Sequential(nn.Embedding(7, 5, padding_idx=0), nn.Flatten(), nn.Linear(15, CLASSES))
    run = private(model, dataset=TensorDataset(words, torch.arange(48) % CLASSES), batches="full")
    with recorded(run, tmp_path) as recorder:
        run.train(4)
    assert recorder.manifest().record_losses == "checked"


def test_earlier_checkpoints_become_unknown_once_records_are_found_mixed(tmp_path: Path) -> None:
    class LateMixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.passes = nn.Linear(FEATURES, CLASSES), 0

        def forward(self, inputs: Tensor) -> Tensor:
            self.passes += 1
            return self.layer(inputs - (inputs.mean(0) if self.passes > 4 else 0.0))

    run = private(LateMixing(), batches="full")
    with refusing(run, tmp_path / "run", "depend on the other records", checkpoint_every=1):
        run.train(16)
    kept = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert kept["checkpoints"]
    assert kept["record_losses"] == "unknown"


def test_records_mixed_after_the_first_steps_are_found_at_the_stated_steps(tmp_path: Path) -> None:
    """Step 32 is one of those that are always asked about, whatever else is looked at by chance."""

    class LaterMixing(nn.Module):
        mixes = False

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(FEATURES, CLASSES)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.layer(inputs - (inputs.mean(0) if self.mixes else 0.0))

    model = LaterMixing()
    run = private(model, batches="full")
    with refusing(run, tmp_path / "run", "depend on the other records") as recorder:
        run.train(20)
        model.mixes = True
        run.train(12)
    assert 20 <= recorder.steps < 32
