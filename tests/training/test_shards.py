"""Models in shards (FSDP2): what is recorded of them is what one process would have recorded."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from scipy.special import gammainccinv, gammaincinv

from dpmerge.portfolio.manifest import Manifest
from dpmerge.portfolio.portfolio import Portfolio
from training import sharded_loops as loops
from training.loops import QUIET, private, recorded
from training.ranks import all_returned, on_ranks
from training.test_distributed import clipped_sum, refused

pytestmark = [pytest.mark.filterwarnings(rule) for rule in QUIET]

RARE = 1e-9


@pytest.mark.parametrize(("world", "wrapped"), [(2, True), (3, True), (2, False)], ids=["two", "three", "unwrapped"])
def test_weights_move_by_the_sum_of_all_ranks_and_noise_on_every_coordinate(
    tmp_path: Path, world: int, wrapped: bool
) -> None:
    """With three ranks tensors of four rows are cut into two, two and none."""
    steps, noise, clip = 6, 0.7, 0.5
    settings = {"noise": noise, "clip": clip, "batch_size": 12, "wrap_model": wrapped}
    ranks = all_returned(on_ranks(world, loops.trained_in_shards, tmp_path / "run", steps=steps, **settings))
    [block] = ranks[0]["manifest"]["mechanism"]["blocks"]
    assert (block["noise_multiplier"], block["clip_norm"], block["steps"]) == (noise, clip, steps)
    assert block["learning_rate"] == pytest.approx(0.1 / 12)
    path = [*(weights for weights, _, _ in ranks[0]["seen"]), ranks[0]["weights"]]
    leftovers = []
    for step in range(steps):
        seen = [rank["seen"][step] for rank in ranks]
        assert all(np.array_equal(weights, path[step]) for weights, _, _ in seen)
        summed = sum(clipped_sum(weights, inputs, targets, clip) for weights, inputs, targets in seen)
        moved = (path[step + 1].astype(float) - path[step]) / -block["learning_rate"]
        leftovers.append((moved - summed) / (noise * clip))
    found = np.array(leftovers)
    _require_length(found.ravel())
    # Each coordinate, over the steps: none without noise, none with two.
    each = np.linalg.norm(found, axis=0)
    half = steps / 2
    assert each.min() > math.sqrt(2 * float(gammaincinv(half, RARE / found.size)))
    assert each.max() < math.sqrt(2 * float(gammainccinv(half, RARE / found.size)))
    # Each tensor, by the half that one rank has and the half that the other has: independent.
    for row in found:
        _require_length(row)
        one, other = row[: len(row) // 2], row[len(row) // 2 : len(row) // 2 * 2]
        assert abs(one @ other) < 6.2 * np.linalg.norm(one)
    assert abs(found[0] @ found[1]) < 6.2 * np.linalg.norm(found[0])


def _require_length(gaussian: np.ndarray[Any, Any]) -> None:
    least, most = (math.sqrt(2 * float(bound(len(gaussian) / 2, RARE))) for bound in (gammaincinv, gammainccinv))
    assert least < np.linalg.norm(gaussian) < most


def test_the_manifest_is_that_of_one_process(tmp_path: Path) -> None:
    said = {"checkpoint_every": 3, "adjacency": "add_remove", "public_divisor": True, "stopping": "fixed"}
    ranks = all_returned(on_ranks(2, loops.trained_in_shards, tmp_path / "several", said=said))
    torch.manual_seed(42)
    alone = private(mode="ghost")
    with recorded(alone, tmp_path / "one", **said) as recorder:
        alone.train(8)
    several, one = (json.loads((tmp_path / name / "privacy.json").read_text()) for name in ("several", "one"))
    assert several["tools"].pop("processes") == "2"
    assert (several.pop("record_losses"), one.pop("record_losses")) == ("unknown", "checked")
    assert "the model is in shards, so that no process can run a record again by itself" in ranks[0]["doubts"]
    for manifest in (several, one):
        assert manifest["noise"].pop("stream")
        for saved in manifest["checkpoints"]:
            assert saved.pop("files")
            assert saved.pop("weights")
            saved.pop("optimizer_state", None)  # of shards no process has it whole
    assert several == one  # the start included: the same digests of whole tensors
    assert [rank["epsilon"] for rank in ranks] == [recorder.epsilon(1e-5)] * 2
    assert ranks[0]["manifest"]["checkpoints"] == ranks[1]["manifest"]["checkpoints"]


def test_a_portfolio_takes_it_like_any_other_run(tmp_path: Path) -> None:
    ranks = all_returned(on_ranks(2, loops.trained_in_shards, tmp_path / "several", said={"run": "several"}))
    portfolio = Portfolio.load(tmp_path)
    assert portfolio.run("several").mechanism.profile().epsilon(1e-5) == ranks[0]["epsilon"]
    kept = load_file(tmp_path / "several" / "step-8.safetensors")
    whole = np.concatenate([kept[name].ravel() for name in ("0.weight", "0.bias", "2.weight", "2.bias")])
    for rank in ranks:
        assert np.array_equal(whole, rank["weights"])


def test_only_the_rank_that_writes_holds_more_than_one_whole_tensor(tmp_path: Path) -> None:
    writer, other = all_returned(on_ranks(2, loops.held_at_once, tmp_path / "run"))
    assert writer == [1, 2, 3, 4]
    assert other == [1, 1, 1, 1]


def test_other_optimizers_and_frozen_layers_are_recorded(tmp_path: Path) -> None:
    [(named, noise), (others, _)] = all_returned(on_ranks(2, loops.with_adam_and_a_frozen_layer, tmp_path / "run"))
    assert noise == 1.0
    manifest = Manifest.read(tmp_path / "run" / "privacy.json")
    assert [saved.step for saved in manifest.checkpoints] == [1, 2, 3]
    assert manifest.tensors is not None
    assert manifest.tensors.frozen == ["0.weight", "0.bias"]
    kept = load_file(tmp_path / "run" / "step-3.safetensors")
    assert kept.keys() == named.keys()
    assert all(np.array_equal(kept[name], named[name]) for name in kept)
    assert all(np.array_equal(kept[name], others[name]) for name in kept)


def test_a_model_of_one_layer_is_recorded(tmp_path: Path) -> None:
    assert all_returned(on_ranks(2, loops.of_one_layer, tmp_path / "run")) == [[2, 4]] * 2


def test_an_empty_batch_is_a_step_on_every_rank(tmp_path: Path) -> None:
    ranks = all_returned(on_ranks(2, loops.trained_in_shards, tmp_path / "run", steps=24, batch_size=1, records=12))
    rows = np.array([[len(inputs) for _, inputs, _ in rank["seen"]] for rank in ranks])
    assert rows.shape == (2, 24)
    assert (rows == 0).any()
    assert np.isfinite(ranks[0]["weights"]).all()


def test_noise_seeds_rebuild_a_run(tmp_path: Path) -> None:
    runs = [
        all_returned(on_ranks(2, loops.trained_in_shards, tmp_path / name, steps=2, said={"noise_seed": 7}))
        for name in ("one", "two")
    ]
    assert np.array_equal(runs[0][0]["weights"], runs[1][0]["weights"])


def test_what_the_private_optimizer_left_is_kept_whatever_one_rank_loads_afterwards(tmp_path: Path) -> None:
    left, _ = all_returned(on_ranks(2, loops.changed_at_the_end, tmp_path / "run"))
    kept = load_file(tmp_path / "run" / "step-3.safetensors")
    assert np.array_equal(np.concatenate([kept[n].ravel() for n in ("0.weight", "0.bias", "2.weight", "2.bias")]), left)


def test_a_loop_that_breaks_off_on_all_ranks_keeps_its_last_weights(tmp_path: Path) -> None:
    ended = on_ranks(2, loops.broken_off_everywhere, tmp_path / "run")
    assert {each.error for each in ended} == {"ArithmeticError: enough"}
    manifest = Manifest.read(tmp_path / "run" / "privacy.json")
    assert (manifest.finished, [saved.step for saved in manifest.checkpoints]) == (False, [2, 3])


# What is refused


def test_sums_of_losses_are_refused(tmp_path: Path) -> None:
    refused(on_ranks(2, loops.summed_losses, tmp_path / "run"), 'use loss_reduction="mean"')


@pytest.mark.parametrize("policy", [{"param_dtype": torch.bfloat16}, {"reduce_dtype": torch.bfloat16}], ids=str)
def test_half_precision_is_refused(tmp_path: Path, policy: dict[str, torch.dtype]) -> None:
    refused(on_ranks(2, loops.in_half_precision, tmp_path / "run", policy), "ghost clipping in torch.bfloat16")


def test_a_tensor_that_every_rank_holds_is_refused(tmp_path: Path) -> None:
    refused(on_ranks(2, loops.with_a_whole_tensor, tmp_path / "run"), "model.0.bias: not cut along its first dimension")


def test_shards_that_several_ranks_hold_are_refused(tmp_path: Path) -> None:
    refused(on_ranks(2, loops.on_a_mesh_of_copies, tmp_path / "run"), "so that several of them hold it")


def test_tied_layers_are_refused(tmp_path: Path) -> None:
    text = "model.1.weight: the same parameter as model.0.weight"
    refused(on_ranks(2, loops.with_tied_layers, tmp_path / "run"), text)


def test_physical_batches_are_refused(tmp_path: Path) -> None:
    refused(on_ranks(2, loops.in_physical_batches, tmp_path / "run"), "let every rank take its batch at once")


def test_resuming_is_refused(tmp_path: Path) -> None:
    refused(on_ranks(2, loops.resumed, tmp_path / "run"), "resume: recorded on one process only")


@pytest.mark.parametrize("what", ["whole", "shards"])
def test_penalties_are_refused(tmp_path: Path, what: str) -> None:
    refused(on_ranks(2, loops.with_a_penalty, tmp_path / "run", what), "by another way than through the layers")


def test_layers_that_are_not_measured_are_refused(tmp_path: Path) -> None:
    refused(on_ranks(2, loops.with_a_layer_in_evaluation_mode, tmp_path / "run"), "a layer in evaluation mode")
