"""Attacks on the share of a last pass: known orders, stops and batches that were chosen, manifests that lie."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from dpmerge.accounting import Checkpoint, Exposure, GaussianProfile
from dpmerge.errors import DpmergeError
from dpmerge.portfolio.manifest import Manifest
from dpmerge.training import Recorder
from training.loops import QUIET, Private, data, private, recorded, refusing

pytestmark = [pytest.mark.filterwarnings(rule) for rule in QUIET]

ONE_PASS = GaussianProfile(1.0)  # replace_one, σ = 2


def shuffled(**settings: Any) -> Private:
    return private(batches="shuffled", noise=2.0, loader=DataLoader(data(), batch_size=12, shuffle=True, **settings))


def require_whole(recorder: Recorder, passes: int = 1) -> None:
    """Whatever was tried, each pass begun is paid for in full."""
    run = recorder.manifest().mechanism_from(None)
    found = Exposure.of([Checkpoint(run, run.steps)]).fixed_steps_profile()
    assert isinstance(found, GaussianProfile)
    assert found.mu >= ONE_PASS.mu * passes**0.5 * (1 - 1e-12)


def seeded_again(run: Private) -> Iterator[Any]:
    run.loader.sampler.generator.manual_seed(7)  # type: ignore[attr-defined]
    yield next(iter(run.loader))


def own_generator(run: Private) -> Iterator[Any]:
    run.loader.sampler.generator = torch.Generator().manual_seed(7)  # type: ignore[attr-defined]
    yield next(iter(run.loader))


def own_generator_after_the_first_batch(run: Private) -> Iterator[Any]:
    for batch in run.loader:
        run.loader.sampler.generator = torch.Generator()  # type: ignore[attr-defined]
        yield batch
        return


def looked_ahead(run: Private) -> Iterator[Any]:
    """The order is drawn once to be known, the generator set back, and drawn again."""
    generator = run.loader.sampler.generator  # type: ignore[attr-defined]
    before = generator.get_state()
    known = list(run.loader.batch_sampler)  # type: ignore[arg-type]
    generator.set_state(before)
    drawn = next(iter(run.loader))
    assert torch.equal(drawn[0], data().tensors[0][known[0]])
    yield drawn


def the_last_of_a_list(run: Private) -> Iterator[Any]:
    yield list(run.loader)[-1]


CHEATS: dict[str, Callable[[Private], Iterator[Any]]] = {
    "the generator seeded": seeded_again,
    "a generator of one's own": own_generator,
    "one's own after the first batch": own_generator_after_the_first_batch,
    "the order looked up": looked_ahead,
    "the last batch first": the_last_of_a_list,
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_an_order_that_somebody_knows_or_chose_is_not_called_secret(tmp_path: Path, cheat: str) -> None:
    run = shuffled()
    with recorded(run, tmp_path, stopping="fixed") as recorder:
        for batch in CHEATS[cheat](run):
            run.step(batch)
    assert recorder.manifest().mechanism.order is None
    require_whole(recorder)


def test_passes_dropped_until_one_suits_are_seen(tmp_path: Path) -> None:
    """Unless the first one suits, in which case nothing was chosen; then the attack is made again."""
    for attempt in range(40):
        run = shuffled()
        record, dropped = data().tensors[0][0], 0
        with recorded(run, tmp_path / str(attempt), stopping="fixed") as recorder:
            while True:
                batch = next(iter(run.loader))
                if (batch[0] == record).all(dim=1).any():
                    run.step(batch)
                    break
                dropped += 1
        if dropped:
            assert recorder.manifest().mechanism.order is None
            require_whole(recorder)
            return
        assert recorder.manifest().mechanism.order is not None
    pytest.fail("forty first batches of a quarter of the data had the record")


def test_batches_left_out_until_one_suits_are_seen(tmp_path: Path) -> None:
    for attempt in range(40):
        run = shuffled()
        record, left_out = data().tensors[0][0], 0
        with recorded(run, tmp_path / str(attempt), stopping="fixed") as recorder:
            for batch in run.loader:
                if (batch[0] == record).all(dim=1).any():
                    run.step(batch)
                    break
                left_out += 1
        if left_out:
            assert recorder.manifest().mechanism.order is None
            require_whole(recorder)
            return
    pytest.fail("forty first batches of a quarter of the data had the record")


def test_a_pass_ended_when_the_record_has_come_costs_itself_and_all_later_ones_whole(tmp_path: Path) -> None:
    """Each pass is cut as soon as the record has come, so that the last one has it however short it is."""
    run = shuffled()
    record = data().tensors[0][0]
    with recorded(run, tmp_path, stopping="fixed", checkpoint_every=1) as recorder:
        begun = 0
        while recorder.steps < 8:
            begun += 1
            for batch in run.loader:
                run.step(batch)
                if (batch[0] == record).all(dim=1).any() or recorder.steps == 8:
                    break
    made = recorder.manifest().mechanism_from(None)
    taken = recorder.manifest().mechanism.passes
    lengths = [4] * begun if taken is None else [block.steps for block in taken for _ in range(block.passes)]
    first_cut = next((place for place, length in enumerate(lengths) if length < 4), len(lengths))
    until = sum(lengths[: first_cut + 1])
    assert all(made.share_seen(step) == 1 for step in range(until + 1, 9))


def test_batches_that_span_two_passes_cost_a_pass_a_step(tmp_path: Path) -> None:
    """The end of one pass and the beginning of the next in one step: a record may be in it twice."""
    run = shuffled()
    with refusing(run, tmp_path, "not, row by row, the batch drawn", stopping="fixed"):
        ends = [[part[:6] for part in batch] for batch in (list(run.loader)[-1], next(iter(run.loader)))]
        run.step([torch.cat(parts) for parts in zip(*ends, strict=True)])
    run = shuffled()
    with recorded(run, tmp_path / "kept", stopping="fixed") as recorder:
        kept = list(run.loader)
        run.step(kept[0])
        later = list(run.loader)
        for batch in (later[0], kept[1]):
            run.step(batch)
    assert recorder.manifest().mechanism.steps_per_epoch == 1
    require_whole(recorder, passes=3)


# Manifests that lie


@pytest.fixture
def manifest(tmp_path: Path) -> dict[str, Any]:
    run = shuffled()
    with recorded(run, tmp_path, stopping="fixed", checkpoint_at=(3,)):
        for _ in range(2):
            for number, batch in enumerate(run.loader, 1):
                run.step(batch)
                if number == 3:
                    break
    content: dict[str, Any] = json.loads((tmp_path / "privacy.json").read_text())
    assert content["mechanism"]["passes"] == [{"passes": 2, "steps": 3}]
    return content


def changed(content: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    owner: Any = content
    *parts, last = path.split(".")
    for part in parts:
        owner = owner[part]
    owner[last] = value
    return content


REFUSED: dict[str, tuple[str, Any, str]] = {
    "more records than there are": ("mechanism.order.records", 480, "order.records"),
    "smaller batches": ("mechanism.order.batch_size", 2, "order.records"),
    "not secret": ("mechanism.order.secret", False, "order.secret"),
    "longer passes": ("mechanism.passes", [{"passes": 1, "steps": 6}], r"passes\[0\].steps"),
    "fewer passes": ("mechanism.passes", [{"passes": 1, "steps": 3}], "passes"),
    "a share instead of facts": ("mechanism.order.share", 0.1, "order.share"),
    "written by hand": ("recorded_by.how", "hand", "mechanism.order"),
    "seeded": ("noise", {"source": "seeded", "stream": "a" * 32, "seed": 1}, "mechanism.order"),
    "passes of Poisson batches": ("mechanism.sampling", "poisson", "steps_per_epoch"),
    "steps that were not taken": ("mechanism.order.fixed_steps", [3, 60], "fixed_steps"),
}


@pytest.mark.parametrize("lie", REFUSED)
def test_a_manifest_that_claims_a_smaller_share_is_refused(manifest: dict[str, Any], lie: str) -> None:
    path, value, named = REFUSED[lie]
    if path == "recorded_by.how":
        manifest["record_losses"] = "vouched"
    with pytest.raises(DpmergeError, match=named):
        Manifest.parse(json.dumps(changed(manifest, path, value)))


@pytest.mark.parametrize(
    ("path", "value"),
    [("stopping", "public"), ("stopping", "unknown"), ("finished", False), ("noise.source", "unknown")],
)
def test_a_manifest_without_one_of_the_premises_has_no_share(manifest: dict[str, Any], path: str, value: Any) -> None:
    before = Manifest.parse(json.dumps(manifest)).mechanism_from(None)
    assert before.share_seen(3) < 1
    after = Manifest.parse(json.dumps(changed(manifest, path, value))).mechanism_from(None)
    assert after.share_seen(3) == 1
    assert after.fixed_step_profile(3) == after.own_profile(3)
