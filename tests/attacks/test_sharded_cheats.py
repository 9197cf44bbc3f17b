"""Ranks of a model in shards that cheat: the recording ends, and what was kept is true."""

from __future__ import annotations

from pathlib import Path

import pytest

from attacks import sharded_cheats as ranks
from dpmerge.portfolio.manifest import Manifest
from training.ranks import all_returned, on_ranks

CHEATS: dict[str, tuple[str, tuple[int, ...]]] = {
    "without_noise": ("the noise of a step is 0 long", (1,)),
    "less_noise": ("the noise of a step is", (1,)),
    "noise_multiplier_of_zero": ("noise_multiplier is 1 on rank 0 and 0 on rank 1", (1,)),
    "noise_for_more_ranks": ("the noise of a step is", (0, 1)),
    "a_seeded_generator": ("optimizer.generator: used or set back", (1,)),
    "another_generator": ("optimizer.generator: replaced", (1,)),
    "other_shards": ("trained weights were changed by something else", (1,)),
    "an_undivided_sum": ("not those of the sum of what the ranks sent", (0, 1)),
    "gradients_added_to": ("not those of the sum of what the ranks sent", (1,)),
    "sends_more": ("not those of the sum of what the ranks sent", (1,)),
    "unclipped": ("longer than", (1,)),
}


def test_all_cheats_are_tried() -> None:
    assert {*CHEATS, "honest"} == set(ranks.CHEATS)


def test_without_a_cheat_all_steps_are_recorded(tmp_path: Path) -> None:
    assert all_returned(on_ranks(2, ranks.run, tmp_path / "run", "honest")) == [4, 4]


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_ends_the_recording_and_what_was_kept_is_true(tmp_path: Path, cheat: str) -> None:
    text, who = CHEATS[cheat]
    # A rank that refuses before backward() is waited for by the others, in FSDP's own exchange.
    ended = on_ranks(2, ranks.run, tmp_path / "run", cheat, who, timeout=4)
    assert all(each.error for each in ended)
    assert any(each.error.startswith("RecordingError") and text in each.error for each in ended)
    manifest = Manifest.read(tmp_path / "run" / "privacy.json")
    assert not manifest.finished
    assert [saved.step for saved in manifest.checkpoints] == [2]
    assert manifest.mechanism_from(None).steps == 2


def test_ranks_whose_noise_comes_from_one_stream_are_refused(tmp_path: Path) -> None:
    for each in on_ranks(2, ranks.the_same_noise, tmp_path / "run"):
        assert "two ranks draw from the same stream of random numbers" in each.error
    assert not (tmp_path / "run").exists()


def test_noise_divided_by_another_number_of_ranks_is_refused_from_the_start(tmp_path: Path) -> None:
    for each in on_ranks(2, ranks.noise_for_more_ranks_from_the_start, tmp_path / "run"):
        assert "the noise of a step is" in each.error
    assert not (tmp_path / "run" / "privacy.json").exists()


def test_a_rank_that_dies_ends_the_recording_of_the_others(tmp_path: Path) -> None:
    left, gone = on_ranks(2, ranks.dies, tmp_path / "run", timeout=4)
    assert gone.died
    assert left.error
    manifest = Manifest.read(tmp_path / "run" / "privacy.json")
    assert (manifest.finished, [saved.step for saved in manifest.checkpoints]) == (False, [2])
