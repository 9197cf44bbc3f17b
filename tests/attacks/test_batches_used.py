"""Steps on other records than those drawn for them: what was recorded, and what it truly cost.

The true numbers are computed here, from the densities of a one-dimensional Gaussian mechanism, and not by dpmerge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from opacus.layers import DPLSTM
from opacus.utils.batch_memory_manager import BatchMemoryManager
from scipy.optimize import brentq
from scipy.stats import norm
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from attacks.faults import must_notice
from dpmerge.training import Recorder, batches
from dpmerge.training.batch_matching import FullBatches
from dpmerge.training.batch_sampling import SamplerCheck
from dpmerge.training.batches import Batches
from dpmerge.training.per_sample_gradient_check import PerSampleGradientCheck
from training.loops import CLASSES, FEATURES, QUIET, Private, data, mlp, private, recorded, refusing, watched

pytestmark = [pytest.mark.filterwarnings(rule) for rule in QUIET]

DELTA = 1e-5


def true_epsilon(shift: float, chance: float = 1.0) -> float:
    """Of one record replaced: with this chance it moves the result by `shift` deviations one way, or the other way."""
    grid = np.linspace(-15 - shift, 15 + shift, 200_001)
    one, other = (
        (1 - chance) * norm.pdf(grid) + chance * norm.pdf(grid, loc=sign * shift)  # with the record, and with the other
        for sign in (1, -1)
    )

    def beyond(epsilon: float) -> float:
        return float(np.trapezoid(np.maximum(one - np.exp(epsilon) * other, 0), grid)) - DELTA

    return float(brentq(beyond, 0, 650))


# What a user may do to a batch between loader and model without making other records of it.
TOUCHES: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda inputs: inputs,
    "copied": lambda inputs: inputs.clone(),
    "cast": lambda inputs: inputs.double().float(),
    "flattened": lambda inputs: inputs.reshape(len(inputs), 4, -1).flatten(1),
}


def loader_with(workers: int, records: int, batch_size: int, *, shuffle: bool) -> DataLoader[Any]:
    return DataLoader(data(records), batch_size=batch_size, shuffle=shuffle, num_workers=workers)


# Shuffled: 8 batches, σ = 2. One pass over the data costs 4.38; eight steps on one batch cost 15.5.

BATCHES, SHUFFLED_NOISE = 8, 2.0
CLAIMED_PASS, TRUE_PASSES = 4.38, 15.5


def shuffled(workers: int = 0) -> Private:
    made = loader_with(workers, 12 * BATCHES, 12, shuffle=True)
    return private(batches="shuffled", noise=SHUFFLED_NOISE, loader=made)


def of_the_first(loader: DataLoader[Any]) -> Iterator[Any]:
    batches = list(loader)
    yield from [batches[0]] * BATCHES


def of_the_eighth(loader: DataLoader[Any]) -> Iterator[Any]:
    batches = list(loader)
    yield from [batches[7]] * BATCHES


def of_the_first_while_the_loader_goes_on(loader: DataLoader[Any]) -> Iterator[Any]:
    first = None
    for batch in loader:
        first = first or batch
        yield first


REPEATED = [of_the_first, of_the_eighth, of_the_first_while_the_loader_goes_on]


def steps_on(run: Private, batches: Iterator[Any], touch: str) -> None:
    for inputs, targets in batches:
        run.step([TOUCHES[touch](inputs), targets])


def test_the_stated_costs_of_one_and_of_all_shuffled_passes_are_right() -> None:
    """One clip norm one way, or the other way: the result moves by 1/σ deviations from the middle."""
    assert true_epsilon(1 / SHUFFLED_NOISE) == pytest.approx(CLAIMED_PASS, abs=0.05)
    assert true_epsilon(BATCHES**0.5 / SHUFFLED_NOISE) == pytest.approx(TRUE_PASSES, abs=0.05)


@pytest.mark.parametrize("touch", TOUCHES)
@pytest.mark.parametrize("batches", REPEATED)
def test_one_shuffled_batch_for_all_steps_costs_a_pass_each(tmp_path: Path, batches: Any, touch: str) -> None:
    run = shuffled()
    with recorded(run, tmp_path) as recorder:
        steps_on(run, batches(run.loader), touch)
    require_passes(recorder)


@pytest.mark.parametrize("batches", REPEATED)
def test_one_shuffled_batch_while_workers_draw_costs_a_pass_each(tmp_path: Path, batches: Any) -> None:
    run = shuffled(workers=2)
    with recorded(run, tmp_path) as recorder:
        steps_on(run, batches(run.loader), "copied")
    require_passes(recorder)


def require_passes(recorder: Recorder) -> None:
    assert (recorder.steps, recorder.manifest().mechanism.steps_per_epoch) == (BATCHES, 1)
    assert recorder.epsilon(DELTA) == pytest.approx(TRUE_PASSES, abs=0.05)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("touch", TOUCHES)
@pytest.mark.parametrize("batches", ["a loop", "a list", "a list backwards"])
def test_each_shuffled_batch_once_costs_one_pass(tmp_path: Path, batches: str, touch: str, workers: int) -> None:
    run = shuffled(workers)
    with recorded(run, tmp_path) as recorder:
        drawn = run.loader if batches == "a loop" else list(run.loader)
        steps_on(run, iter(drawn if batches != "a list backwards" else reversed(list(drawn))), touch)
    facts = recorder.manifest()
    assert (facts.mechanism.steps_per_epoch, facts.record_losses) == (BATCHES, "checked")
    assert recorder.epsilon(DELTA) == pytest.approx(CLAIMED_PASS, abs=0.05)


def test_shuffled_batches_that_cannot_be_recognised_are_refused_unless_vouched(tmp_path: Path) -> None:
    """Normalised outside the model: one record might be several rows of a step; who vouches for it is named."""
    run = shuffled()
    with refusing(run, tmp_path / "unsaid", "not, row by row, the batch drawn"):
        for inputs, targets in run.loader:
            run.step([(inputs - 0.1) / 0.3, targets])
    run = shuffled()
    with recorded(run, tmp_path / "vouched", separate_records=True) as recorder:
        for inputs, targets in run.loader:
            run.step([(inputs - 0.1) / 0.3, targets])
    facts = recorder.manifest()
    assert (facts.mechanism.steps_per_epoch, facts.record_losses) == (BATCHES, "vouched")


# Poisson: q = 0.05, 20 steps, σ = 2. Drawn anew for each step that costs 0.845; one batch kept for all of them 6.9.

RATE, STEPS, POISSON_NOISE = 0.05, 20, 2.0
CLAIMED_KEPT, TRUE_KEPT = 0.845, 6.88


def poisson(workers: int = 0, **settings: Any) -> Private:
    made = loader_with(workers, 240, 12, shuffle=False)
    return private(noise=POISSON_NOISE, loader=made, **settings)


def kept_rows(loader: Any) -> Iterator[Any]:
    """As many rows as were drawn, but those of the first batches."""
    kept: list[Tensor] = []
    for inputs, targets in loader:
        if len(kept) < 3:
            kept.append(inputs)
            yield inputs, targets
        else:
            earlier = torch.cat(kept)
            assert len(earlier) >= len(inputs), "the seed of this test gives enough"
            yield earlier[: len(inputs)], targets


def test_the_stated_costs_of_drawn_and_of_kept_poisson_rows_are_right(tmp_path: Path) -> None:
    run = poisson()
    with recorded(run, tmp_path) as recorder:
        run.train(STEPS)
    assert recorder.manifest().record_losses == "checked"
    assert recorder.epsilon(DELTA) == pytest.approx(CLAIMED_KEPT, abs=0.01)
    assert true_epsilon(STEPS**0.5 / POISSON_NOISE, RATE) == pytest.approx(TRUE_KEPT, abs=0.01)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("touch", TOUCHES)
def test_poisson_rows_of_an_earlier_batch_are_refused(tmp_path: Path, touch: str, mode: str) -> None:
    run = poisson(mode=mode)
    with refusing(run, tmp_path, "is not, row by row, the batch drawn for it", noise_seed=1):
        steps_on(run, kept_rows(run.loader), touch)


@pytest.mark.parametrize("touch", ["as it is", "cast"])
def test_poisson_rows_of_an_earlier_batch_while_workers_draw_are_refused(tmp_path: Path, touch: str) -> None:
    run = poisson(workers=2)
    with refusing(run, tmp_path, "is not, row by row, the batch drawn for it", noise_seed=1):
        steps_on(run, kept_rows(run.loader), touch)


@pytest.mark.parametrize("workers", [0, 2])
def test_poisson_rows_of_an_earlier_physical_batch_are_refused(tmp_path: Path, workers: int) -> None:
    run = poisson(workers)
    split = BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=4, optimizer=run.optimizer)
    with refusing(run, tmp_path, "is not, row by row, the batch drawn for it", noise_seed=1), split as loader:
        steps_on(run, kept_rows(loader), "copied")


def test_one_row_of_an_earlier_batch_is_refused(tmp_path: Path) -> None:
    run = poisson()
    with refusing(run, tmp_path, "step 2 is not, row by row, the batch drawn for it", noise_seed=1):
        earlier = None
        for inputs, targets in run.loader:
            used = inputs if earlier is None else torch.cat([earlier[:1], inputs[1:]])
            earlier = inputs
            run.step([used, targets])


def test_one_record_as_often_as_there_are_records_is_refused(tmp_path: Path) -> None:
    """As many rows as were drawn, all of them one record: it adds up to a dozen clip norms."""
    run = poisson()
    with refusing(run, tmp_path, "step 1 is not, row by row, the batch drawn for it", noise_seed=1):
        for inputs, targets in run.loader:
            run.step([inputs[:1].expand_as(inputs), targets])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("physical", [None, 5])
@pytest.mark.parametrize("touch", TOUCHES)
def test_poisson_batches_used_as_they_were_drawn_are_checked(
    tmp_path: Path, touch: str, physical: int | None, workers: int
) -> None:
    run = poisson(workers)
    step = run.step
    run.step = lambda batch: step([TOUCHES[touch](batch[0]), batch[1]])  # type: ignore[method-assign]
    with recorded(run, tmp_path) as recorder:
        run.train(STEPS, physical)
    facts = recorder.manifest()
    assert (recorder.steps, facts.mechanism.sampling, facts.record_losses) == (STEPS, "poisson", "checked")


def test_changed_rows_are_refused_unless_vouched_for(tmp_path: Path) -> None:
    for vouched in (False, True):
        run = poisson()
        loop = recorded if vouched else refusing
        with loop(run, tmp_path / str(vouched), separate_records=vouched) as recorder:
            for inputs, targets in run.loader:
                run.step([inputs + 0.01 * torch.randn_like(inputs), targets])
    assert (recorder.steps, recorder.manifest().record_losses) == (STEPS, "vouched")


@pytest.mark.parametrize("changed", [False, True])
def test_a_batch_used_again_is_refused_even_if_vouched_for(tmp_path: Path, changed: bool) -> None:
    run = poisson()
    with refusing(run, tmp_path, "is not, row by row, the batch drawn for it", separate_records=True, noise_seed=1):
        kept: dict[int, Tensor] = {}
        for inputs, targets in run.loader:
            run.step([kept.setdefault(len(inputs), (inputs - 0.1) / 0.3 if changed else inputs), targets])


# Fewer rows than were drawn.


@pytest.mark.parametrize("vouched", [False, True])
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("batches", ["poisson", "shuffled"])
def test_rows_left_out_by_a_statistic_of_the_batch_are_refused(
    tmp_path: Path, batches: str, mode: str, vouched: bool
) -> None:
    """One record decides which of the others count: up to as many clip norms as there are records."""
    run = private(batches=batches, mode=mode)
    with refusing(run, tmp_path, "leave no record out", separate_records=vouched, noise_seed=1):
        for inputs, targets in run.loader:
            lengths = inputs.norm(dim=1)
            near = lengths <= lengths.mean()
            run.step([inputs[near], targets[near]])


class TimeMajor(nn.Module):
    """Takes records first, and lets its layer see time steps first: Opacus clips a gradient for each time step."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, sequences: Tensor) -> Tensor:
        result: Tensor = self.layer(sequences.transpose(0, 1)).mean(0)
        return result


def sequences(times: int, records: int = 48, *, first: float = 1.0) -> TensorDataset:
    """The same record many times, but for the first, which is this many times as long."""
    inputs = torch.ones(records, times, FEATURES)
    inputs[0] *= first
    return TensorDataset(inputs, torch.zeros(records, dtype=torch.long))


def sum_of_clipped(times: int, first: float) -> Tensor:
    model = TimeMajor()
    nn.init.zeros_(model.layer.weight)
    nn.init.zeros_(model.layer.bias)
    run = private(model, dataset=sequences(times, first=first), batches="full", noise=1.0)
    with watched(run) as truth:
        run.train(1)
    return truth.sums[0].double()


def test_time_steps_clipped_as_records_cost_more_than_is_recorded() -> None:
    """Recorded is a step at σ = 1, with sums no farther apart than two clip norms: ε = 10.0. They are 24 apart."""
    apart = float((sum_of_clipped(12, 1e3) - sum_of_clipped(12, -1e3)).norm())
    assert true_epsilon(1.0) == pytest.approx(10.0, abs=0.05)
    assert apart > 23.9
    assert true_epsilon(apart / 2) > 24


@pytest.mark.parametrize("batches", ["poisson", "shuffled"])
@pytest.mark.parametrize("times", [3, 12, 40])
def test_time_steps_clipped_as_records_are_refused(tmp_path: Path, times: int, batches: str) -> None:
    """Fewer than the records, more, or by accident as many."""
    run = time_major(times, batches=batches)
    with refusing(run, tmp_path, noise_seed=1):
        run.train(4)


def test_ghost_clipping_of_as_many_time_steps_as_records_is_refused(tmp_path: Path) -> None:
    """Of any other number Opacus itself stops."""
    run = time_major(12, batches="shuffled", mode="ghost")
    with refusing(run, tmp_path, "what was clipped as one record's gradient is not that record's"):
        run.train(4)


def time_major(times: int, **settings: Any) -> Private:
    dataset = sequences(times)
    dataset.tensors[0].normal_(generator=torch.Generator().manual_seed(0))
    return private(TimeMajor(), dataset=dataset, **settings)


def test_a_statistic_of_the_batch_within_the_model_is_refused(tmp_path: Path) -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(FEATURES, CLASSES)

        def forward(self, inputs: Tensor) -> Tensor:
            result: Tensor = self.layer(inputs - inputs.mean(0))
            return result

    run = private(Centred(), noise=1.0)
    with refusing(run, tmp_path, "a record's outputs depend on the other records of the batch", noise_seed=1):
        run.train(4)


class Recurrent(nn.Module):
    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.cell = DPLSTM(FEATURES, 8, batch_first=batch_first)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, *, sequences: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        states, _ = self.cell(sequences)
        last = states[torch.arange(len(lengths)), lengths - 1]
        return {"logits": self.head(last)}


@pytest.mark.parametrize("dropout", [False, True])
def test_recurrent_models_of_several_named_inputs_are_checked(tmp_path: Path, dropout: bool) -> None:
    inputs = torch.randn(48, 5, FEATURES)
    dataset = TensorDataset(inputs, torch.randint(1, 6, (48,)), torch.randint(0, CLASSES, (48,)))
    model = Recurrent(batch_first=True)
    if dropout:
        model.head = nn.Sequential(nn.Dropout(0.5), model.head)  # type: ignore[assignment]
    run = private(model, dataset=dataset)
    with recorded(run, tmp_path) as recorder:
        for rows, lengths, targets in run.loader:
            run.optimizer.zero_grad()
            nn.functional.cross_entropy(run.model(sequences=rows, lengths=lengths)["logits"], targets).backward()
            run.optimizer.step()
    assert recorder.manifest().record_losses == "checked"


def test_asking_about_a_record_does_not_change_training(tmp_path: Path) -> None:
    """Dropout draws the same numbers whether somebody asks about a record or not."""
    first = nn.Sequential(mlp(), nn.Dropout(0.5))
    results = []
    for number in range(2):
        model = nn.Sequential(mlp(), nn.Dropout(0.5))
        model.load_state_dict(first.state_dict())
        run = private(model, batches="in_order")
        torch.manual_seed(5)
        with pytest.MonkeyPatch.context() as patch:
            if number:
                patch.setattr(PerSampleGradientCheck, "check", lambda *_, **__: False)
            with recorded(run, tmp_path / str(number), noise_seed=7):
                run.train(6)
        results.append(run.weights)
    assert torch.equal(*results)


def test_hooks_and_patches_are_removed_when_recording_ends(tmp_path: Path) -> None:
    run = poisson()
    watched = (run.plain._forward_pre_hooks, run.plain._forward_hooks)
    before = (DataLoader.__iter__, torch.autograd.backward, *map(dict, watched))
    with recorded(run, tmp_path):
        run.train(2, 5)
        assert (DataLoader.__iter__, torch.autograd.backward, *map(dict, watched)) != before
    assert (DataLoader.__iter__, torch.autograd.backward, *map(dict, watched)) == before


# Each check, taken out.


def test_tests_notice_when_any_batch_passes_for_the_one_drawn(tmp_path: Path) -> None:
    must_notice(
        lambda folder: test_one_shuffled_batch_for_all_steps_costs_a_pass_each(folder, of_the_first, "copied"),
        tmp_path,
        batches,
        "matching_batch",
        lambda waiting, _: next(iter(waiting), None),
    )


def test_tests_notice_when_rows_of_earlier_batches_are_matched(tmp_path: Path) -> None:
    must_notice(
        lambda folder: test_poisson_rows_of_an_earlier_batch_are_refused(folder, "copied", "hooks"),
        tmp_path,
        batches,
        "matching_batch",
        lambda waiting, _: next(iter(waiting), None),
    )


def test_tests_notice_when_rows_are_not_counted(tmp_path: Path) -> None:
    def any_number(batches: Batches) -> set[int]:
        drawn(batches)
        return {batches._rows}

    drawn = Batches._drawn
    must_notice(
        lambda folder: test_rows_left_out_by_a_statistic_of_the_batch_are_refused(
            folder, "shuffled", "hooks", vouched=True
        ),
        tmp_path,
        Batches,
        "_drawn",
        any_number,
    )


def test_tests_notice_when_no_record_is_asked_about(tmp_path: Path) -> None:
    must_notice(
        lambda folder: test_time_steps_clipped_as_records_are_refused(folder, 12, "shuffled"),
        tmp_path,
        PerSampleGradientCheck,
        "check",
        lambda *_, **__: False,
    )


# Full batches: what enters the model is the data, each record once


def balanced(inputs: Tensor, targets: Tensor) -> list[Tensor]:
    """As many rows as there are records, one of them many times."""
    rows = torch.arange(len(inputs))
    rows[1:20] = 0
    return [inputs[rows], targets[rows]]


FULL: dict[str, Callable[[Tensor, Tensor], list[Tensor]]] = {
    "a record many times": balanced,
    "standardised by the batch": lambda x, y: [(x - x.mean(0)) / x.std(0), y],
    "other data of the same size": lambda x, y: [torch.randn_like(x), y],
}


def full_batch(folder: Path, name: str) -> None:
    """One record in 24 rows: recorded as 1.99 at σ = 4, true 113."""
    run = private(batches="full", noise=4.0)
    with refusing(run, folder / "run", "not, row by row, the batch drawn"):
        for inputs, targets in run.loader:
            run.step(FULL[name](inputs, targets))


@pytest.mark.parametrize("name", FULL)
def test_full_batches_that_are_not_the_data_are_refused(tmp_path: Path, name: str) -> None:
    full_batch(tmp_path, name)


def test_tests_notice_when_full_batches_are_not_compared(tmp_path: Path) -> None:
    must_notice(
        lambda folder: full_batch(folder, "a record many times"), tmp_path, FullBatches, "entered", lambda *_: True
    )


def test_one_part_of_a_full_batch_for_all_of_them_is_refused(tmp_path: Path) -> None:
    run = private(batches="full")
    quarters = BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=12, optimizer=run.optimizer)
    with refusing(run, tmp_path / "run", "not, row by row, the batch drawn"), quarters as split:
        first = None
        for batch in split:
            first = first or batch
            run.step(first)


def test_a_full_batch_taken_once_may_be_used_ever_since(tmp_path: Path) -> None:
    run = private(batches="full")
    with recorded(run, tmp_path) as recorder:
        batch = next(iter(run.loader))
        for _ in range(3):
            run.step(batch)
            with torch.no_grad():
                for inputs, _targets in run.loader:
                    run.model(inputs)
    assert recorder.manifest().record_losses == "checked"


def reseeded(folder: Path) -> None:
    """Batches drawn from a seed that is known: recorded as 31.2 for 100 steps, true 111 (no amplification)."""
    run = private()
    with refusing(run, folder / "run", "the generator of the sampler was seeded"):
        for epoch in range(2):
            run.loader.batch_sampler.generator.manual_seed(epoch)  # type: ignore[union-attr]
            for batch in run.loader:
                run.step(batch)


def test_a_sampler_seeded_in_the_course_of_the_run_is_refused(tmp_path: Path) -> None:
    reseeded(tmp_path)
    must_notice(reseeded, tmp_path, SamplerCheck, "require_unpredicted", lambda self: None)


@pytest.mark.parametrize("parts", [1, 3])
def test_a_full_batch_may_be_the_data_itself_in_any_order(tmp_path: Path, parts: int) -> None:
    """Full batches are often taken from the data set, or from the loader before the block."""
    run = private(batches="full")
    inputs, targets = run.loader.dataset.tensors  # type: ignore[attr-defined]
    with recorded(run, tmp_path) as recorder:
        for _ in range(2):
            order = torch.randperm(48)
            chunks = order.tensor_split(parts)
            for number, rows in enumerate(chunks):
                run.optimizer.signal_skip_step(do_skip=number < len(chunks) - 1)
                run.step([inputs[rows], targets[rows]])
    assert (recorder.steps, recorder.manifest().record_losses) == (2, "checked")


def layers_called_one_by_one(folder: Path) -> None:
    """The model itself is never called, so nobody sees what enters it; one record is in twenty of its rows."""
    run = private(batches="full")
    with refusing(run, folder / "run", "not, row by row, the batch drawn"):
        for inputs, targets in run.loader:
            rows, labels = balanced(inputs, targets)
            run.optimizer.zero_grad()
            run.criterion(run.plain[2](run.plain[1](run.plain[0](rows))), labels).backward()
            run.optimizer.step()


def test_a_model_whose_layers_are_called_one_by_one_is_refused(tmp_path: Path) -> None:
    layers_called_one_by_one(tmp_path)
