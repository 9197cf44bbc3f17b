"""`start` and `close()`: the recorder where there is no block to put around the loop."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from dpmerge.errors import RecordingError
from dpmerge.portfolio import Portfolio
from dpmerge.training import Recorder, record, start
from training.loops import QUIET, Private, private

pytestmark = [pytest.mark.filterwarnings(line) for line in QUIET]


def started(made: Private, folder: Path, **settings: Any) -> Recorder:
    return start(
        model=made.model,
        optimizer=made.optimizer,
        data_loader=made.loader,
        run="run",
        dataset="toy",
        adjacency="replace_one",
        directory=folder,
        **settings,
    )


def manifest(folder: Path) -> Any:
    return json.loads((folder / "privacy.json").read_text())


def test_a_run_between_start_and_close_is_recorded_as_in_a_block(tmp_path: Path) -> None:
    made = private()
    recorder = started(made, tmp_path, checkpoint_every=2)
    made.train(3)
    recorder.close()
    assert manifest(tmp_path)["finished"] is True
    assert [each["step"] for each in manifest(tmp_path)["checkpoints"]] == [2, 3]
    assert len(Portfolio.load(tmp_path).runs) == 1


def test_record_and_start_take_the_same_arguments() -> None:
    assert inspect.signature(record) == inspect.signature(start)
    assert record.__doc__ == start.__doc__


def test_closing_puts_everything_back(tmp_path: Path) -> None:
    made = private()
    before = type(made.loader), made.optimizer.generator, made.optimizer.step_hook, made.optimizer.add_noise
    recorder = started(made, tmp_path)
    assert type(made.loader) is not before[0]
    made.train(1)
    recorder.close()
    assert (type(made.loader), made.optimizer.generator, made.optimizer.step_hook, made.optimizer.add_noise) == before


def test_closing_twice_is_harmless(tmp_path: Path) -> None:
    made = private()
    recorder = started(made, tmp_path)
    made.train(2)
    recorder.close()
    written = (tmp_path / "privacy.json").read_bytes()
    made.train(1)  # no longer recorded
    recorder.close()
    recorder.close(KeyboardInterrupt())
    assert (tmp_path / "privacy.json").read_bytes() == written


def test_closing_inside_the_block_is_harmless(tmp_path: Path) -> None:
    made = private()
    with record(
        model=made.model,
        optimizer=made.optimizer,
        data_loader=made.loader,
        run="run",
        dataset="toy",
        adjacency="replace_one",
        directory=tmp_path,
    ) as recorder:
        made.train(2)
        recorder.close()
    assert manifest(tmp_path)["finished"] is True


def test_closing_with_the_error_keeps_the_last_weights_as_unfinished(tmp_path: Path) -> None:
    made = private()
    recorder = started(made, tmp_path)
    made.train(2)
    recorder.close(KeyboardInterrupt())
    assert manifest(tmp_path)["finished"] is False
    assert [each["step"] for each in manifest(tmp_path)["checkpoints"]] == [2]


@pytest.mark.parametrize("told", [True, False])
def test_closing_after_a_refusal_keeps_what_was_true_before_it(tmp_path: Path, told: bool) -> None:
    made = private()
    recorder = started(made, tmp_path, checkpoint_at=[1])
    made.train(2)
    made.plain[0].weight.data += 1
    with pytest.raises(RecordingError) as refused:
        made.train(1)
    # A callback that is not told of the error closes without it.
    recorder.close(refused.value if told else None)
    assert manifest(tmp_path)["finished"] is False
    assert [each["step"] for each in manifest(tmp_path)["checkpoints"]] == [1]
    assert made.optimizer.step_hook is not None


def test_closing_before_the_first_step_writes_nothing(tmp_path: Path) -> None:
    recorder = started(private(), tmp_path)
    recorder.close()
    assert not (tmp_path / "privacy.json").exists()
