"""Shuffled runs: how passes are recorded, when their order is called secret, and what Opacus would say."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from dpmerge import Portfolio, plan
from dpmerge.accounting import GaussianProfile
from dpmerge.training import OtherAccountingWarning
from training.loops import QUIET, Private, data, private, recorded, refusing

pytestmark = [pytest.mark.filterwarnings(rule) for rule in QUIET]

FIXED = {"stopping": "fixed"}


def shuffled(records: int = 48, batch_size: int = 12, noise: float = 2.0, **settings: Any) -> Private:
    loader = DataLoader(data(records), batch_size=batch_size, shuffle=True, **settings)
    return private(batches="shuffled", noise=noise, loader=loader)


def train(run: Private, *cuts: int) -> None:
    for taken in cuts:
        for number, batch in enumerate(run.loader, 1):
            run.step(batch)
            if number == taken:
                break


def written(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "privacy.json").read_text())
    return content["mechanism"]  # type: ignore[no-any-return]


def passes(*each: tuple[int, int]) -> list[dict[str, int]]:
    return [{"passes": passes, "steps": steps} for passes, steps in each]


def test_the_manifest_says_how_long_each_pass_was(tmp_path: Path) -> None:
    run = shuffled()
    with recorded(run, tmp_path) as recorder:
        train(run, 4, 2, 2, 3, 4)
        facts = recorder.manifest(upto=7).mechanism
        assert [(block.passes, block.steps) for block in facts.passes] == [(1, 4), (1, 2), (1, 1)]
        assert recorder.manifest(upto=4).mechanism.passes is None
    assert written(tmp_path)["passes"] == passes((1, 4), (2, 2), (1, 3), (1, 4))
    assert recorder.epsilon(1e-5) == pytest.approx(GaussianProfile(np.sqrt(5)).epsilon(1e-5))


def test_whole_passes_are_recorded_as_before(tmp_path: Path) -> None:
    run = shuffled()
    with recorded(run, tmp_path):
        train(run, 4, 4, 1)
    facts = written(tmp_path)
    assert "passes" not in facts
    assert facts["steps_per_epoch"] == 4


def test_passes_split_into_physical_batches_are_the_same(tmp_path: Path) -> None:
    run = shuffled()
    with recorded(run, tmp_path, **FIXED) as recorder:
        run.train(6, physical=5)
    facts = recorder.manifest().mechanism
    assert (facts.steps_per_epoch, facts.passes) == (4, None)
    assert facts.order is not None
    assert (facts.order.records, facts.order.batch_size, facts.order.fixed_steps) == (48, 12, [6])


@pytest.mark.parametrize("workers", [0, 2])
def test_the_share_of_the_last_pass_counts_where_all_was_fixed(tmp_path: Path, workers: int) -> None:
    run = shuffled(num_workers=workers)
    with recorded(run, tmp_path, checkpoint_at=(5,), **FIXED) as recorder:
        train(run, 4, 3)
        assert recorder.epsilon(1e-5) == pytest.approx(GaussianProfile(np.sqrt(2)).epsilon(1e-5)), "may yet go on"
    assert written(tmp_path)["order"] == {"secret": True, "records": 48, "batch_size": 12, "fixed_steps": [5, 7]}
    one, two = (GaussianProfile(np.sqrt(k)) for k in (1, 2))
    epsilon = recorder.epsilon(1e-5)
    assert one.epsilon(1e-5) < epsilon < two.epsilon(1e-5)
    mixed = 0.25 * one.delta(epsilon) + 0.75 * two.delta(epsilon)
    assert mixed == pytest.approx(1e-5, rel=1e-4)
    assert mixed <= 1e-5
    portfolio = Portfolio.load(tmp_path)
    found = plan(portfolio, epsilon=epsilon * 1.0001, delta=1e-5, method="select", checkpoints=["run@7"])
    assert found.guarantee.epsilon == pytest.approx(epsilon, rel=1e-6)
    assert any(p.name == "order_secret_and_step_fixed_beforehand" for p in found.candidates[0].bound.premises)


def test_a_checkpoint_at_will_counts_the_whole_pass(tmp_path: Path) -> None:
    run = shuffled()
    with recorded(run, tmp_path, **FIXED) as recorder:
        for number, batch in enumerate(run.loader, 1):
            run.step(batch)
            if number == 2:
                recorder.checkpoint()
            if number == 3:
                break
    made = recorder.manifest().mechanism_from(None)
    assert [made.share_seen(step) for step in (1, 2)] == [1, 1]
    assert made.share_seen(3) == pytest.approx(0.75)


@pytest.mark.parametrize("stopping", ["unknown", "public", "private"])
def test_no_share_where_the_end_was_not_fixed(tmp_path: Path, stopping: str) -> None:
    run = shuffled()
    with recorded(run, tmp_path, stopping=stopping, checkpoint_at=(1,)) as recorder:
        train(run, 2)
    made = recorder.manifest().mechanism_from(None)
    assert [made.share_seen(step) for step in (1, 2)] == [1, 1]


def test_no_share_of_a_run_that_broke_off(tmp_path: Path) -> None:
    run = shuffled()

    def broken() -> None:
        train(run, 2)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), recorded(run, tmp_path, checkpoint_at=(1,), **FIXED) as recorder:
        broken()
    assert recorder.manifest().mechanism_from(None).share_seen(1) == 1
    run = shuffled()
    with refusing(run, tmp_path / "refused", checkpoint_at=(1,), **FIXED) as recorder:
        train(run, 2)
        run.optimizer.original_optimizer.step()
    assert recorder.manifest().mechanism_from(None).share_seen(1) == 1


def test_seeded_runs_and_orders_that_are_no_permutation_of_all_have_no_secret_order(tmp_path: Path) -> None:
    def of(sampler: Any) -> Private:
        loader = DataLoader(data(), batch_sampler=BatchSampler(sampler, 12, drop_last=False))
        return private(batches="shuffled", loader=loader)

    cases = {
        "seeded": (shuffled(), {"noise_seed": 3}),
        "in order": (private(batches="in_order"), {}),
        "of a part": (of(RandomSampler(data(), num_samples=30)), {}),
    }
    for name, (run, settings) in cases.items():
        with recorded(run, tmp_path / name.replace(" ", "-"), **FIXED, **settings) as recorder:
            train(run, 2)
        assert recorder.manifest().mechanism.order is None, name


def test_the_order_is_of_the_operating_system_whatever_was_seeded_and_the_old_generator_comes_back(
    tmp_path: Path,
) -> None:
    orders = []
    for attempt in range(2):
        torch.manual_seed(1)
        mine = torch.Generator().manual_seed(2)
        run = shuffled(generator=mine)
        with recorded(run, tmp_path / str(attempt), **FIXED) as recorder:
            seen = []
            for batch in run.loader:
                seen.append(batch[0].clone())
                run.step(batch)
        orders.append(torch.cat(seen))
        assert recorder.manifest().mechanism.order is not None
        assert run.loader.sampler.generator is mine  # type: ignore[attr-defined]
    assert not torch.equal(*orders)


def test_a_batch_size_that_does_not_divide_the_data_is_recorded_with_its_share(tmp_path: Path) -> None:
    for drop_last, whole in ((False, 5), (True, 4)):
        run = shuffled(records=50, drop_last=drop_last)
        with recorded(run, tmp_path / str(drop_last), **FIXED) as recorder:
            train(run, 3)
        assert recorder.manifest().mechanism.steps_per_epoch == whole
        assert recorder.manifest().mechanism_from(None).share_seen(3) == pytest.approx(36 / 50)


def test_what_opacus_says_is_said_once_with_reason_and_cure(tmp_path: Path) -> None:
    """Eight passes of eight batches at σ = 2 cost 15.5 by replacement; Opacus' accountant counts them as Poisson."""
    run = shuffled(records=96, noise=2.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with recorded(run, tmp_path) as recorder:
            train(run, *[8] * 8)
            epsilon = recorder.epsilon(1e-5)
            recorder.epsilon(1e-6)
    said = [str(w.message) for w in caught if issubclass(w.category, OtherAccountingWarning)]
    assert len(said) == 1
    assert epsilon == pytest.approx(15.5, abs=0.05)
    _, _, rest = said[0].partition("ε = 15.5 at δ = 1e-05, not ")
    assert float(rest.split()[0]) == pytest.approx(run.engine.get_epsilon(1e-5), rel=0.02)
    for part in ("Opacus' accountant", "shuffled", "Poisson", "poisson_sampling=True"):
        assert part in said[0]


def test_it_is_said_at_the_end_if_nobody_asked_and_never_of_poisson_batches(tmp_path: Path) -> None:
    for name, run in (("shuffled", shuffled()), ("poisson", private())):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with recorded(run, tmp_path / name):
                run.train(4)
        said = [w for w in caught if issubclass(w.category, OtherAccountingWarning)]
        assert len(said) == (name == "shuffled")
        assert all(w.filename == __file__ or "loops" in w.filename for w in said)
