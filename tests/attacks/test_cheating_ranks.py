"""Ranks that disagree, die, skip steps or send something else: the recording ends, and what was kept is true."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attacks import cheating_ranks as ranks
from dpmerge.portfolio.manifest import Manifest
from dpmerge.portfolio.portfolio import Portfolio
from training.ranks import TIMEOUT, Outcome, all_returned, on_ranks

CHEATS: dict[str, tuple[str, dict[str, Any]]] = {
    "another_rate": ("learning_rate is", {}),
    "more_noise": ("noise_multiplier is 1 on rank 0 and 2 on rank 1", {}),
    "another_clip_norm": ("clip_norm is 1 on rank 0 and 0.5 on rank 1", {}),
    "other_weights": ("trained weights were changed by something else", {}),
    "other_records": ("not every record once", {}),
    "the_same_records": ("not every record once", {}),
    "a_seeded_stream": ("the generator of the sampler was seeded", {"who": (0, 1)}),
    "leaves": ("KeyError: 'a bug of its own'", {}),
    "skips_a_step": ("batches drawn in this pass only", {}),
    "stops_early": ("rank 0 takes step 5, but rank 1", {}),
    "without_the_gradients_of_others": ("by the gradients of one process alone", {"who": (0, 1)}),
    "unclipped_sum": ("longer than", {}),
    "something_in_place_of_noise": ("on a rank that draws no noise", {}),
    "scaled_sum": ("changed between the noise and their sum", {"who": (0, 1)}),
    "no_noise_anywhere": ("the noise of a step is 0 long", {"who": (0,)}),
    "noise_of_its_own": ("on a rank that draws no noise", {}),
    "another_divisor": ("is not the sum of what the ranks sent", {}),
    "sends_something_else": ("is not the sum of what the ranks sent", {}),
    "adds_its_own_sum": ("is not the sum of what the ranks sent", {"who": (0, 1)}),
    "changes_what_arrived": ("changed between the noise and the update", {"who": (0, 1)}),
}


def unfinished(folder: Path, *, steps: list[int]) -> Manifest:
    """The record that is left: valid, unfinished, and of the steps before the cheat."""
    manifest = Manifest.read(folder / "privacy.json")
    assert not manifest.finished
    assert [saved.step for saved in manifest.checkpoints] == steps
    assert manifest.mechanism_from(None).steps == steps[-1]
    assert Portfolio.load(folder.parent).run("run").mechanism.steps == steps[-1]
    assert sorted(path.name for path in folder.iterdir()) == ["privacy.json", *(f"step-{n}.safetensors" for n in steps)]
    return manifest


def none_waited(ended: list[Outcome]) -> None:
    """Nobody hangs: an answer that does not come is waited for as long as the loop's own group would."""
    assert max(each.seconds for each in ended) < 4 * TIMEOUT


def test_all_cheats_are_tried() -> None:
    assert {*CHEATS, "honest", "dies"} == set(ranks.CHEATS)


def test_without_a_cheat_all_eight_steps_are_recorded(tmp_path: Path) -> None:
    assert all_returned(on_ranks(2, ranks.run, tmp_path / "run", "honest")) == [8, 8]
    assert Manifest.read(tmp_path / "run" / "privacy.json").finished


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_rank_that_cheats_ends_the_recording_on_all(tmp_path: Path, cheat: str) -> None:
    text, options = CHEATS[cheat]
    ended = on_ranks(2, ranks.run, tmp_path / "run", cheat, **options)
    assert all(each.error for each in ended)
    assert any(text in each.error for each in ended), [each.error for each in ended]
    assert "RecordingError" in ended[0].error
    assert text in ended[0].error, ended[0].error
    unfinished(tmp_path / "run", steps=[2, 4])
    none_waited(ended)


@pytest.mark.parametrize("world", [2, 4])
def test_a_rank_that_dies_leaves_a_valid_record(tmp_path: Path, world: int) -> None:
    ended = on_ranks(world, ranks.run, tmp_path / "run", "dies", who=(world - 1,))
    assert [each.died for each in ended] == [False] * (world - 1) + [True]
    assert "RecordingError: record: another process is gone" in ended[0].error
    unfinished(tmp_path / "run", steps=[2, 4])
    none_waited(ended)


def test_a_writer_that_dies_leaves_a_valid_record(tmp_path: Path) -> None:
    ended = on_ranks(2, ranks.run, tmp_path / "run", "dies", who=(0,))
    assert [each.died for each in ended] == [True, False]
    assert "another process is gone" in ended[1].error
    unfinished(tmp_path / "run", steps=[2, 4])


# From the start

STARTS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "another run": (ranks.told_otherwise, {"run": "other"}, 'run: "run" on rank 0 and "other" on rank 1'),
    "another adjacency": (ranks.told_otherwise, {"adjacency": "add_remove", "public_divisor": True}, "dataset: "),
    "other checkpoints": (ranks.told_otherwise, {"checkpoint_every": 3}, "checkpoints: [null, [], false] on rank 0"),
    "another word": (ranks.told_otherwise, {"stopping": "fixed"}, 'stopping: "unknown" on rank 0'),
    "another noise": (ranks.made_otherwise, {"noise": 3.0}, "noise_multiplier: 1.0 on rank 0 and 3.0 on rank 1"),
    "another clip norm": (ranks.made_otherwise, {"clip": 3.0}, "max_grad_norm: 1.0 on rank 0 and 3.0 on rank 1"),
    "another batch size": (ranks.made_otherwise, {"batch_size": 24}, "expected_batch_size: 12.0 on rank 0"),
    "another start": (ranks.other_start, {}, "initial_weights"),
    "another order": (ranks.other_order, {}, "is not the same on all ranks"),
    "all records": (ranks.all_records, {}, "UniformWithReplacementSampler"),
    "one stream": (ranks.forked_streams, {}, "the same stream of random numbers"),
}


@pytest.mark.parametrize("what", STARTS)
def test_ranks_that_differ_from_the_start_are_refused_at_once(tmp_path: Path, what: str) -> None:
    function, options, text = STARTS[what]
    ended = on_ranks(2, function, tmp_path / "run", **options)
    for each in ended:
        assert "RecordingError" in each.error
        assert text in each.error, each.error
    assert not (tmp_path / "run").exists()
    none_waited(ended)


def test_a_rank_without_a_recorder_is_refused(tmp_path: Path) -> None:
    ended = on_ranks(2, ranks.no_record, tmp_path / "run")
    assert "RecordingError" in ended[0].error
    assert not (tmp_path / "run" / "privacy.json").exists()
    none_waited(ended)


# Within the loop


def test_a_checkpoint_on_one_rank_alone_is_refused(tmp_path: Path) -> None:
    ended = on_ranks(2, ranks.checkpoint_on_one_rank, tmp_path / "run")
    for each in ended:
        assert "rank 0 keeps the weights after step 3, but rank 1 takes step 4" in each.error
    unfinished(tmp_path / "run", steps=[2])


def test_a_loop_that_goes_on_in_spite_of_a_refusal_stays_unfinished(tmp_path: Path) -> None:
    assert all_returned(on_ranks(2, ranks.swallowed, tmp_path / "run")) == [False, False]
    unfinished(tmp_path / "run", steps=[2, 4])


def test_records_mixed_on_another_rank_are_no_longer_called_checked(tmp_path: Path) -> None:
    ended = on_ranks(2, ranks.mixes_records, tmp_path / "run")
    assert "depend" in ended[1].error
    assert "rank 1 has left" in ended[0].error
    manifest = Manifest.read(tmp_path / "run" / "privacy.json")
    assert (manifest.finished, manifest.record_losses) == (False, "unknown")


def test_what_one_rank_cannot_tell_nobody_can(tmp_path: Path) -> None:
    all_returned(on_ranks(2, ranks.unlike_losses, tmp_path / "run"))
    assert Manifest.read(tmp_path / "run" / "privacy.json").record_losses == "unknown"
