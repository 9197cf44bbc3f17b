"""Attacks on runs that stop and go on: other weights, other states, lost steps forgotten, processes that are killed."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dpmerge.accounting import Adjacency
from dpmerge.errors import DigestMismatchError, InvalidInputError, NoGuaranteeError, NotIndependentError, RecordingError
from dpmerge.portfolio import Portfolio
from dpmerge.portfolio.manifest import Manifest
from dpmerge.terms.run_record import RunRecord
from dpmerge.training import step_count
from dpmerge.training.resumed_run import ResumedRun
from training.loops import QUIET, mlp, private, recorded, refused_at_once, started
from training.resuming import counted, document, finished_run, killed_run, momentum, rebuilt

pytestmark = [pytest.mark.filterwarnings(rule) for rule in QUIET]

HERE = Path(__file__).parent


# Killed


@pytest.mark.parametrize(
    ("point", "kills"),
    [("before the noise", [4]), ("after the noise", [5, 2]), ("after the update", [5]), ("before the manifest", [5])],
)
def test_a_killed_run_never_counts_fewer_steps_than_drew_noise(tmp_path: Path, point: str, kills: list[int]) -> None:
    """Killed by -9, once or twice, then resumed: every draw of noise is paid for, at no more noise than it had."""
    folder, log = tmp_path / "run", tmp_path / "draws"
    for steps in kills:
        argv = [sys.executable, str(HERE / "killed_training.py"), str(folder), str(log), point, str(steps)]
        found = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
        assert found.returncode == -9, found.stderr
    draws = [float(line) for line in log.read_text().split()]
    assert len(draws) >= sum(kills)
    made = rebuilt(folder)
    with recorded(made, folder, resume=True):
        made.train(1)
    (run,) = Portfolio.load(folder).runs
    assert run.mechanism.steps >= len(draws) + 1
    least = 2 * math.sqrt(sum(noise**-2 for noise in [*draws, 1.0]))
    assert run.mechanism.profile().mu >= least * (1 - 1e-12)  # type: ignore[attr-defined]
    assert not Manifest.read(folder / "privacy.json").resumed[0].noise.seed  # type: ignore[index]


def test_tests_notice_a_count_that_comes_after_the_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reservation left out, what is on disk in mid-step is too little."""
    counts = []
    made = private(mlp(), batches="full")

    def look(*_: Any) -> None:
        file = tmp_path / "steps.json"
        counts.append(counted(tmp_path) if file.exists() else 0)

    made.optimizer.original_optimizer.register_step_pre_hook(look)
    monkeypatch.setattr(step_count.StepCount, "_require", lambda self, upto: None)
    with recorded(made, tmp_path):
        made.train(3)
    assert any(count < step for step, count in enumerate(counts, start=1))


@pytest.mark.parametrize("batches", ["full", "poisson", "shuffled"])
def test_the_count_is_on_disk_before_each_batch_and_each_noise(tmp_path: Path, batches: str) -> None:
    made, steps = private(mlp(), batches=batches), [0]
    sampler_class = type(made.loader.batch_sampler)
    draw = sampler_class.__iter__
    seen = []

    def looked(self: Any) -> Any:
        for batch in draw(self):
            seen.append((counted(tmp_path), steps[0] + 1))
            yield batch

    def noised(*_: Any) -> None:
        steps[0] += 1
        seen.append((counted(tmp_path), steps[0]))

    made.optimizer.original_optimizer.register_step_pre_hook(noised)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampler_class, "__iter__", looked)
        with recorded(made, tmp_path):
            made.train(9)
    assert len(seen) >= 18
    assert all(on_disk >= begun for on_disk, begun in seen)
    assert counted(tmp_path) == 9


def test_counts_are_reserved_in_blocks_where_writing_is_slow(tmp_path: Path) -> None:
    """Writing as long as a step takes becomes rare; a kill charges a tenth of the steps more at most, or eight."""
    now, writes = [0.0], []

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return now[0]

    def slow(path: Path, content: bytes) -> None:
        writes.append(json.loads(content)["steps"])
        now[0] += 1.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_count, "time", Clock)
        patch.setattr(step_count, "write_atomically", slow)
        settings = step_count.StepSettings(1.0, 1.0, 1.0)
        count = step_count.StepCount(tmp_path, run="run", stream=None, settings=lambda: settings)
        for _ in range(1000):
            count.noising()
            assert count.begun <= writes[-1] <= count.begun + max(8, count.begun // 10)
            now[0] += 1.0
    assert len(writes) <= 50


# The count


def test_a_process_whose_run_another_has_gone_on_with_ends(tmp_path: Path) -> None:
    """Launched twice: the first is told at its next checkpoint, manifest or count; what it took until then counts."""
    folder = tmp_path / "run"
    made = private(mlp(), batches="full")
    first = started(made, folder, checkpoint_at=[2])
    made.train(3)
    again = rebuilt(folder)
    second = started(again, folder, resume=True)
    reserved = counted(folder)
    with pytest.raises(RecordingError, match="another process has begun to record"):
        first.checkpoint()
    with pytest.raises(RecordingError, match="another process has begun to record"):
        made.train(reserved + 1)
    first.close(KeyboardInterrupt())
    assert counted(folder) >= reserved
    again.train(1)
    second.close()
    assert Portfolio.load(folder).runs[0].mechanism.steps == reserved + 1
    assert not (folder / "step-3.safetensors").exists()
    with pytest.raises(RecordingError, match="not kept"):
        first.metric("accuracy", 1.0, measured_on="public")


def test_two_new_runs_in_one_folder_are_refused(tmp_path: Path) -> None:
    one, other = private(mlp(), batches="full"), private(mlp(), batches="full")
    first, second = started(one, tmp_path), started(other, tmp_path)
    one.train(1)
    with pytest.raises(RecordingError, match="another process has begun to record"):
        other.train(1)
    second.close()
    first.close()
    assert counted(tmp_path) == 1


def test_a_deleted_count_ends_the_run(tmp_path: Path) -> None:
    killed_run(tmp_path / "run", 4, kept_at=2)
    (tmp_path / "run" / "steps.json").unlink()
    refused_at_once(rebuilt(tmp_path / "run"), tmp_path / "run", "nobody knows how many steps were lost", resume=True)


def test_a_count_from_before_the_last_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    made = private(mlp(), batches="full")
    recorder = started(made, folder, checkpoint_every=1)
    made.train(1)
    older = (folder / "steps.json").read_bytes()
    made.train(5)
    recorder.close()
    # The block reserved then may reach further than the run ever went; nothing is lost by it.
    (folder / "steps.json").write_text(json.dumps({**json.loads(older), "steps": 1}))
    refused_at_once(rebuilt(folder), folder, "it is an older file", resume=True)


FORGED: dict[str, Any] = {
    "no JSON": b"three",
    "another schema": {"schema": "dpmerge/steps/v2"},
    "a negative count": {"steps": -1},
    "half a step": {"steps": 4.5},
    "no settings": {"noise_multiplier": None},
    "noise without end": {"noise_multiplier": "inf"},
    "a rate above 1": {"sampling_rate": 2.0},
    "more than there is to say": {"unseen": True},
}


@pytest.mark.parametrize("name", list(FORGED))
def test_a_count_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run"
    killed_run(folder, 4, kept_at=2)
    forged, path = FORGED[name], folder / "steps.json"
    path.write_bytes(
        forged if isinstance(forged, bytes) else json.dumps(json.loads(path.read_text()) | forged).encode()
    )
    refused_at_once(rebuilt(folder), folder, "is no count of steps", resume=True)


@pytest.mark.parametrize("change", [{"run": "other"}, {"stream": "0" * 32}])
def test_the_count_of_another_run_is_refused(tmp_path: Path, change: dict[str, str]) -> None:
    folder = tmp_path / "run"
    killed_run(folder, 4, kept_at=2)
    path = folder / "steps.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    refused_at_once(rebuilt(folder), folder, "is the count of another run", resume=True)


# Weights and states


def test_other_weights_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    made = private(mlp(), batches="full")
    with recorded(made, folder, checkpoint_every=1):
        made.train(2)
    refused_at_once(private(mlp(), batches="full"), folder, "its weights are no checkpoint of the record", resume=True)
    made = rebuilt(folder)
    with torch.no_grad():
        made.plain[0].weight[0, 0] += 1e-7  # type: ignore[index]
    refused_at_once(made, folder, "its weights are no checkpoint of the record", resume=True)
    earlier = shutil.copytree(folder, tmp_path / "earlier")
    kept = document(earlier)
    kept["checkpoints"].reverse()
    (earlier / "privacy.json").write_text(json.dumps(kept))
    refused_at_once(rebuilt(earlier), folder, "its weights are those after step 1", resume=True)


def test_the_optimizers_state_of_another_run_is_an_undeclared_parent(tmp_path: Path) -> None:
    other = finished_run(tmp_path / "other", 2, optimizer=momentum, run="other", noise=0.01)
    own = finished_run(tmp_path / "run", 2, optimizer=momentum)
    for state in (other.optimizer.state_dict(), altered(own.optimizer.state_dict())):
        made = rebuilt(tmp_path / "run", optimizer=momentum)
        made.optimizer.load_state_dict(state)
        refused_at_once(made, tmp_path / "run", "its state is not the one after step 2", resume=True)


def altered(state: Any) -> Any:
    state["state"][0]["momentum_buffer"][0, 0] += 1e-3
    return state


def test_a_state_filled_from_the_data_before_the_checkpoint_is_not_the_records(tmp_path: Path) -> None:
    """The digest is of what noised gradients made, not of what the optimizer holds when the weights are kept."""
    made = private(mlp(), batches="full", optimizer=momentum)
    with recorded(made, tmp_path / "run"):
        made.train(2)
        inner = made.optimizer.original_optimizer
        for buffer in (state["momentum_buffer"] for state in inner.state.values()):
            buffer += made.loader.dataset.tensors[0].sum()  # type: ignore[attr-defined]
    again = rebuilt(tmp_path / "run", optimizer=momentum)
    again.optimizer.load_state_dict(made.optimizer.state_dict())
    refused_at_once(again, tmp_path / "run", "its state is not the one after step 2", resume=True)


def test_gradients_that_wait_are_refused(tmp_path: Path) -> None:
    finished_run(tmp_path / "run", 1)
    made = rebuilt(tmp_path / "run")
    for batch in made.loader:
        made.backward(*batch)
    made.optimizer.pre_step()
    refused_at_once(made, tmp_path / "run", "has gradients already", resume=True)


def test_a_manifest_that_the_recorder_did_not_write_is_not_gone_on_with(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    finished_run(folder, 2)
    kept = document(folder)
    kept["mechanism"]["blocks"][0]["steps"] = 5  # more steps than checkpoints
    (folder / "privacy.json").write_text(json.dumps(kept))
    with pytest.raises(RecordingError, match="not a record that can go on"):
        ResumedRun.open(folder)


# Manifests and statements that were forged


def forged(folder: Path, **changes: Any) -> None:
    path = folder / "privacy.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_lost_steps_taken_out_of_a_manifest_are_missed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    killed_run(folder, 4, kept_at=2)
    made = rebuilt(folder)
    with recorded(made, folder, resume=True):
        made.train(1)
    (segment,) = document(folder)["resumed"]
    for change in ({"lost_steps": 10_000}, {"after": 10_000}, {"unseen_steps": 3}, {"vouched_by": "Ann"}):
        forged(folder, resumed=[segment | change])
        with pytest.raises(InvalidInputError, match="resumed"):
            Portfolio.load(folder)
    forged(folder, resumed=[segment | {"noise": document(folder)["noise"]}])
    with pytest.raises(InvalidInputError, match="resumed"):
        Portfolio.load(folder)


def test_an_average_without_its_run_has_no_number(tmp_path: Path) -> None:
    statement: dict[str, Any] = {
        "run": "free",
        "mechanism": {"kind": "average", "vouched_by": "Eve"},
        "noise": {"source": "none"},
        "ancestry": {"start": "random"},
        "tuning": "none",
        "recorded_by": {"how": "hand"},
    }
    free = RunRecord.model_validate(statement, by_name=True).mechanism_from(Adjacency.REPLACE_ONE, None)
    with pytest.raises(NoGuaranteeError, match="no run is named"):
        free.profile()
    for source in ("os_entropy", "unknown"):
        with pytest.raises((InvalidInputError, ValueError)):
            RunRecord.model_validate(statement | {"noise": {"source": source}}, by_name=True)
    blocks = [{"steps": 1, "noise_multiplier": 1.0}]
    history = {
        "kind": "accountant_history", "blocks": blocks, "sampling": "full_batch", "clipping": "per_example",
        "public_divisor": True,
    }  # fmt: skip
    with pytest.raises((InvalidInputError, ValueError)):
        RunRecord.model_validate(statement | {"mechanism": history}, by_name=True)


def test_later_weights_passed_off_as_an_earlier_average_are_found(tmp_path: Path) -> None:
    """The average of a model that saw more: the last weights, kept as an average of the first step."""
    folder = tmp_path / "run"
    made = private(mlp(), batches="full")
    with recorded(made, folder, ema=0.5, checkpoint_every=1):
        made.train(3)
    kept = document(folder)
    first, last = kept["checkpoints"][0]["averages"][0], kept["checkpoints"][-1]
    shutil.copy(folder / last["files"][0]["name"], folder / first["files"][0]["name"])
    with pytest.raises(DigestMismatchError):
        Portfolio.load(folder)
    first["files"][0]["sha256"], first["weights"] = last["files"][0]["sha256"], last["weights"]
    (folder / "privacy.json").write_text(json.dumps(kept))
    with pytest.raises(DigestMismatchError, match="digests of two files"):
        Portfolio.load(folder)
    first["files"][0]["blake3"] = last["files"][0]["blake3"]
    (folder / "privacy.json").write_text(json.dumps(kept))
    with pytest.raises(NotIndependentError, match="run@3 has the same"):
        Portfolio.load(folder)
