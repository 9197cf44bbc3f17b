"""Runs of several processes: what is recorded of them is what one process would have recorded."""

from __future__ import annotations

import json
import math
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from scipy.special import gammainccinv, gammaincinv
from scipy.stats import binom

from dpmerge.portfolio.manifest import Manifest
from dpmerge.portfolio.portfolio import Portfolio
from training import distributed_loops as loops
from training.loops import FEATURES, QUIET, mlp, private, recorded
from training.ranks import all_returned, on_ranks

pytestmark = [pytest.mark.filterwarnings(rule) for rule in QUIET]

RARE = 1e-9


def clipped_sum(weights: NDArray[Any], inputs: NDArray[Any], targets: NDArray[Any], clip: float) -> NDArray[Any]:
    """Of cross-entropy, record by record with torch alone: nothing of Opacus, nothing of ours."""
    model = mlp()
    torch.nn.utils.vector_to_parameters(torch.from_numpy(weights), model.parameters())
    total = torch.zeros(len(weights), dtype=torch.float64)
    for features, target in zip(torch.from_numpy(inputs), torch.from_numpy(targets), strict=True):
        loss = torch.nn.functional.cross_entropy(model(features[None]), target[None])
        gradient = torch.cat([each.flatten() for each in torch.autograd.grad(loss, list(model.parameters()))]).double()
        total += gradient * min(1.0, clip / (float(gradient.norm()) + 1e-6))
    return total.numpy()


@pytest.mark.parametrize(
    ("world", "settings"),
    [
        (2, {"mode": "hooks"}),
        (2, {"mode": "ghost", "loss_reduction": "sum"}),
        (4, {"mode": "hooks", "loss_reduction": "sum", "batch_size": 6}),
        (4, {"mode": "ghost", "batch_size": 6}),
        (2, {"mode": "hooks", "batch_size": 48}),
    ],
    ids=["hooks", "ghost, sum", "four, sum", "four, ghost", "full batch"],
)
def test_weights_move_by_the_sum_of_all_ranks_and_one_noise_at_the_recorded_rate(
    tmp_path: Path, world: int, settings: dict[str, Any]
) -> None:
    """What a move leaves over, once every rank's clipped gradients are taken off, is the noise of one process."""
    steps, noise, clip = 6, 0.7, 0.5
    ranks = all_returned(
        on_ranks(world, loops.trained, tmp_path / "run", steps=steps, noise=noise, clip=clip, **settings)
    )
    [block] = ranks[0]["manifest"]["mechanism"]["blocks"]
    assert (block["noise_multiplier"], block["clip_norm"], block["steps"]) == (noise, clip, steps)
    path = [*(weights for weights, _, _ in ranks[0]["seen"]), ranks[0]["weights"]]
    half = len(path[0]) / 2
    least, most = (noise * clip * math.sqrt(2 * float(bound(half, RARE))) for bound in (gammaincinv, gammainccinv))
    leftovers = []
    for step in range(steps):
        seen = [rank["seen"][step] for rank in ranks]
        assert all(np.array_equal(weights, path[step]) for weights, _, _ in seen)
        summed = sum(clipped_sum(weights, inputs, targets, clip) for weights, inputs, targets in seen)
        moved = (path[step + 1].astype(float) - path[step]) / -block["learning_rate"]
        leftovers.append(moved - summed)
        assert least < np.linalg.norm(leftovers[-1]) < most
    # Independent from step to step: their scalar products are those of Gaussian vectors.
    one, other = leftovers[:2]
    assert abs(one @ other) < 6.2 * np.linalg.norm(one) * (noise * clip)
    expected = 48 if settings.get("batch_size") == 48 else settings.get("batch_size", 12)
    assert block["learning_rate"] == pytest.approx(0.1 if "loss_reduction" in settings else 0.1 / expected)


@pytest.mark.parametrize("world", [2, 4])
def test_the_manifest_is_that_of_one_process(tmp_path: Path, world: int) -> None:
    said = {"checkpoint_every": 3, "adjacency": "add_remove", "public_divisor": True, "stopping": "fixed"}
    ranks = all_returned(on_ranks(world, loops.trained, tmp_path / "several", said=said))
    alone = private()
    with recorded(alone, tmp_path / "one", **said) as recorder:
        alone.train(8)
    several, one = (json.loads((tmp_path / name / "privacy.json").read_text()) for name in ("several", "one"))
    assert several["tools"].pop("processes") == str(world)
    for manifest in (several, one):
        assert manifest["noise"].pop("stream")
        for saved in manifest["checkpoints"]:
            assert saved.pop("files")
            assert saved.pop("weights")
        for name in ("initial_weights", "start_sample"):
            assert manifest.pop(name)
        assert manifest["tensors"].pop("initial")
    assert several == one
    assert [rank["epsilon"] for rank in ranks] == [recorder.epsilon(1e-5)] * world
    assert {rank["class"] for rank in ranks} == {"DistributedUniformWithReplacementSampler"}
    assert all(rank["manifest"]["checkpoints"] == ranks[0]["manifest"]["checkpoints"] for rank in ranks)


def test_a_portfolio_takes_it_like_any_other_run(tmp_path: Path) -> None:
    ranks = all_returned(on_ranks(2, loops.trained, tmp_path / "several", said={"run": "several"}))
    made = private()
    with recorded(made, tmp_path / "one", run="one"):
        made.train(8)
    portfolio = Portfolio.load(tmp_path)
    assert portfolio.run("several").mechanism.profile().epsilon(1e-5) == ranks[0]["epsilon"]
    kept = load_file(tmp_path / "several" / "step-8.safetensors")
    assert list(kept) == list(load_file(tmp_path / "one" / "step-8.safetensors"))
    whole = np.concatenate([kept[name].ravel() for name in ("0.weight", "0.bias", "2.weight", "2.bias")])
    for rank in ranks:
        assert np.array_equal(whole, rank["weights"])


# Which records


def test_every_record_is_on_one_rank_of_a_pass_and_drawn_with_the_recorded_probability(tmp_path: Path) -> None:
    records, passes = 40, 40
    ranks = all_returned(
        on_ranks(2, loops.drawn, tmp_path / "run", records=records, batch_size=10, passes=passes, epochs=True)
    )
    rate = Manifest.read(tmp_path / "run" / "privacy.json").mechanism.blocks[0].sampling_rate  # type: ignore[union-attr]
    assert rate == 0.25
    shares = []
    for at_once in zip(*ranks, strict=True):
        used = [{place for batch in rank for place in batch} for rank in at_once]
        assert not used[0] & used[1]
        assert all(len(set(batch)) == len(batch) for rank in at_once for batch in rank)
        shares.append(frozenset(used[0]))
    assert len(set(shares)) > 1  # set_epoch deals the records out anew
    counts = np.bincount([place for rank in ranks for epoch in rank for batch in epoch for place in batch])
    assert len(counts) == records
    draws = binom(4 * passes, rate)
    assert draws.ppf(RARE / records) <= counts.min()
    assert counts.max() <= draws.isf(RARE / records)


def test_ranks_that_were_seeded_alike_draw_different_records(tmp_path: Path) -> None:
    """Opacus' own sampler draws the same positions on both; then a batch is two halves that know each other."""
    first, second = all_returned(on_ranks(2, loops.drawn_by_opacus, records=80, steps=30))
    assert first == second
    first, second = all_returned(on_ranks(2, loops.drawn, tmp_path / "run", records=80, batch_size=8, passes=3))
    order = torch.randperm(80, generator=torch.Generator().manual_seed(0)).tolist()
    place = {record: order.index(record) // 2 for record in range(80)}
    both = total = 0
    for one, other in zip(chain(*first), chain(*second), strict=True):
        both += len({place[each] for each in one} & {place[each] for each in other})
        total += 40
    assert total == 1200
    assert binom(total, 0.01).ppf(RARE) <= both <= binom(total, 0.01).isf(RARE)  # 120 if they were the same


def test_an_empty_batch_is_a_step_on_every_rank(tmp_path: Path) -> None:
    """Opacus' sampler drops it, and the ranks would fall out of step."""
    [*_, (_, kept)] = all_returned(on_ranks(2, loops.drawn_by_opacus, records=8, steps=40))
    assert kept < 40
    for mode in ("hooks", "ghost"):
        folder = tmp_path / mode
        ranks = all_returned(on_ranks(2, loops.trained, folder, steps=48, mode=mode, batch_size=1, records=24))
        rows = np.array([[len(inputs) for _, inputs, _ in rank["seen"]] for rank in ranks])
        assert rows.shape == (2, 48)
        alone = (rows == 0).any(axis=0) & (rows > 0).any(axis=0)
        assert alone.any()
        assert (rows == 0).all(axis=0).any()
        assert Manifest.read(folder / "privacy.json").mechanism_from(None).steps == 48
        assert ranks[0]["own_steps"][0][2] == 48  # Opacus' accountant says so, too


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_physical_batches_are_a_matter_of_each_rank(tmp_path: Path, mode: str) -> None:
    ranks = all_returned(on_ranks(2, loops.trained, tmp_path / "run", physical=2, mode=mode))
    physical = [len(rank["seen"]) for rank in ranks]
    assert all(count > 8 for count in physical)
    assert [rank["manifest"]["mechanism"]["blocks"][0]["steps"] for rank in ranks] == [8, 8]
    assert np.array_equal(ranks[0]["weights"], ranks[1]["weights"])


def test_noise_seeds_rebuild_a_run_and_leave_the_ranks_apart(tmp_path: Path) -> None:
    runs = [
        all_returned(on_ranks(2, loops.trained, tmp_path / name, said={"noise_seed": 7})) for name in ("one", "two")
    ]
    assert np.array_equal(runs[0][0]["weights"], runs[1][0]["weights"])
    one, other = (rank["seen"][0][1] for rank in runs[0])
    assert one.shape[1] == FEATURES
    assert not {tuple(row) for row in one} & {tuple(row) for row in other}


# Checkpoints and endings


def test_checkpoints_are_asked_for_on_every_rank_and_written_by_one(tmp_path: Path) -> None:
    assert all_returned(on_ranks(2, loops.kept_by_hand, tmp_path / "run")) == [(6, [2, 5, 6])] * 2
    manifest = Manifest.read(tmp_path / "run" / "privacy.json")
    assert [saved.step for saved in manifest.checkpoints if saved.metrics] == [2, 5]
    assert manifest.finished
    files = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert files == ["privacy.json", "step-2.safetensors", "step-5.safetensors", "step-6.safetensors"]


def test_two_records_can_follow_each_other(tmp_path: Path) -> None:
    assert all_returned(on_ranks(2, loops.one_after_the_other, tmp_path)) == [[4, 4]] * 2


def test_a_loop_that_breaks_off_on_all_ranks_keeps_its_last_weights(tmp_path: Path) -> None:
    ended = on_ranks(2, loops.broken_off_everywhere, tmp_path / "run")
    assert {each.error for each in ended} == {"ArithmeticError: enough"}
    manifest = Manifest.read(tmp_path / "run" / "privacy.json")
    assert (manifest.finished, [saved.step for saved in manifest.checkpoints]) == (False, [4, 6])


# What is refused at once


def refused(ended: list[Any], text: str) -> None:
    for each in ended:
        assert each.error.startswith("RecordingError")
        assert text in each.error


def test_layers_that_are_clipped_apart_are_refused(tmp_path: Path) -> None:
    refused(on_ranks(2, loops.per_layer, tmp_path / "run"), "SimpleDistributedPerLayerOptimizer")


def test_streams_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    refused(on_ranks(2, loops.with_secure_mode, tmp_path / "run"), "secure_mode on several processes")


def test_a_model_without_its_wrapper_is_refused(tmp_path: Path) -> None:
    refused(
        on_ranks(2, loops.unwrapped, tmp_path / "run"), "model: a Sequential with an optimizer for several processes"
    )


def test_ghost_clipping_in_torchs_own_wrapper_is_refused(tmp_path: Path) -> None:
    refused(on_ranks(2, loops.in_torchs_wrapper, tmp_path / "run", "ghost"), "DistributedDataParallel")


def test_torchs_own_wrapper_is_recorded_with_hooks(tmp_path: Path) -> None:
    assert all_returned(on_ranks(2, loops.in_torchs_wrapper, tmp_path / "run", "hooks")) == [6, 6]


@pytest.mark.parametrize("batches", ["in order", "distributed sampler"])
def test_batches_that_opacus_sampler_did_not_deal_out_are_refused(tmp_path: Path, batches: str) -> None:
    ended = on_ranks(2, loops.all_records_on_each_rank, tmp_path / "run", batches)
    refused(ended, "let make_private sample")
    assert not (tmp_path / "run").exists()


# Opacus' own example


def test_opacus_example_of_several_processes_is_recorded(tmp_path: Path) -> None:
    """Its tutorial on DDP, with the recorder's lines added (examples/with_ddp.py)."""
    all_returned(on_ranks(2, loops.example, 2, tmp_path / "meeting", tmp_path / "models", 300, 3, timeout=0))
    manifest = Manifest.read(tmp_path / "models" / "ddp" / "privacy.json")
    assert manifest.finished
    assert manifest.record_losses == "checked"
    assert [saved.step for saved in manifest.checkpoints] == [6, 12, 18]
    [block] = manifest.mechanism.blocks  # type: ignore[union-attr]
    assert (block.steps, block.noise_multiplier, block.learning_rate) == (18, 1.0, 1 / 50)
    assert manifest.checkpoints[-1].metrics[0].value > 0.3  # of ten classes
