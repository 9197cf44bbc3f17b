"""What lies on disk: checkpoints that any reader can open, and a manifest that is true of them at every moment."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from dpmerge.errors import (
    InvalidInputError,
    NoGuaranteeError,
    NotCombinableError,
    PrivateMetricError,
    RecordingError,
)
from dpmerge.portfolio.manifest import MANIFEST_NAME, Manifest
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.training import Ancestry
from training.loops import CLASSES, FEATURES, QUIET, data, logical_steps, mlp, private, recorded, refusing

pytestmark = [pytest.mark.filterwarnings(rule) for rule in QUIET]


class Stop(Exception):
    """Raised in the middle of a loop."""


def listed(folder: Path) -> list[int]:
    """The steps of the checkpoints that load, digests checked."""
    (run,) = Portfolio.load(folder).runs
    return [checkpoint.step for checkpoint in run.checkpoints]


def require_covered(folder: Path, *, finished: bool) -> Manifest:
    """It loads, says whether it is whole, and accounts for exactly the steps up to the last checkpoint."""
    steps = listed(folder)
    manifest = Manifest.read(folder / MANIFEST_NAME)
    assert manifest.finished is finished
    assert sum(block.steps for block in manifest.mechanism.blocks) == steps[-1]
    assert [saved.files[0].name for saved in manifest.checkpoints] == [f"step-{step}.safetensors" for step in steps]
    return manifest


def test_a_run_loads_and_holds_the_models_weights(tmp_path: Path) -> None:
    run = private()
    start = {name: value.clone() for name, value in run.plain.state_dict().items()}
    said = {"who": "a test", "tuning": "public", "unit": "person", "stopping": "fixed", "schedule": "public"}
    with recorded(run, tmp_path, checkpoint_every=2, **said) as recorder:
        states = [
            {name: value.clone() for name, value in run.plain.state_dict().items()} for _ in logical_steps(run, 5)
        ]
    manifest = require_covered(tmp_path, finished=True)
    assert listed(tmp_path) == [2, 4, 5]
    for step in (2, 4, 5):
        file = tmp_path / f"step-{step}.safetensors"
        kept = load_file(file)
        assert set(kept) == set(states[step - 1])
        assert all(torch.equal(kept[name], value) for name, value in states[step - 1].items())
        with safe_open(file, framework="pt") as opened:
            assert opened.metadata() == {"format": "pt"}
    assert (manifest.recorded_by.how, manifest.recorded_by.who) == ("recorder", "a test")
    assert (manifest.tuning, manifest.unit, manifest.dataset.size) == ("public", "person", 48)
    assert (manifest.stopping, manifest.schedule) == ("fixed", "public")
    assert manifest.start_sample is not None
    sampled = manifest.start_sample.samples()
    assert {name: sample.values.tolist() for name, sample in sampled.items()} == {
        name: value.double().flatten().tolist() for name, value in start.items()
    }
    assert set(manifest.tools) == {"python", "dpmerge", "torch", "opacus", "safetensors"}
    assert manifest.document() == recorder.manifest().document()
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        MANIFEST_NAME, "step-2.safetensors", "step-4.safetensors", "step-5.safetensors", "steps.json",
    ]  # fmt: skip


def test_checkpoints_are_kept_when_asked_for(tmp_path: Path) -> None:
    run = private()
    with recorded(run, tmp_path, checkpoint_at=[3, 1, 100], checkpoint_every=4) as recorder:
        for step in logical_steps(run, 7):
            if step == 6:
                recorder.checkpoint()
                recorder.checkpoint()
    assert listed(tmp_path) == [1, 3, 4, 6, 7]


def test_the_last_checkpoint_is_not_written_twice(tmp_path: Path) -> None:
    run = private()
    with recorded(run, tmp_path, checkpoint_every=2):
        run.train(4)
    assert listed(tmp_path) == [2, 4]


def test_a_run_of_no_steps_leaves_nothing(tmp_path: Path) -> None:
    with recorded(private(), tmp_path / "run"):
        pass
    assert not list((tmp_path / "run").iterdir())


@pytest.mark.parametrize("every", [None, 1, 2])
def test_an_exception_keeps_the_last_weights_as_unfinished(tmp_path: Path, every: int | None) -> None:
    """The data has been touched: an interrupted run is kept, and says that it did not finish."""
    run = private()

    def loop() -> None:
        with recorded(run, tmp_path, checkpoint_every=every):
            run.train(3)
            raise Stop

    with pytest.raises(Stop):
        loop()
    require_covered(tmp_path, finished=False)
    assert listed(tmp_path) == {None: [3], 1: [1, 2, 3], 2: [2, 3]}[every]


def test_a_refusal_keeps_the_checkpoints_before_it(tmp_path: Path) -> None:
    """After a refusal nobody knows what the weights are made of: they are not kept."""
    run = private()

    def loop() -> None:
        with recorded(run, tmp_path, checkpoint_every=2):
            run.train(3)
            with torch.no_grad():
                run.plain[0].weight += 1
            run.train(1)

    with pytest.raises(RecordingError):
        loop()
    require_covered(tmp_path, finished=False)
    assert listed(tmp_path) == [2]


def test_after_the_end_only_metrics_of_these_weights_are_noted(tmp_path: Path) -> None:
    run = private()
    with recorded(run, tmp_path) as recorder:
        run.train(2)
    recorder.metric("accuracy", 0.5, measured_on="public")
    run.train(1)
    with pytest.raises(RecordingError, match="changed by something else"):
        recorder.metric("accuracy", 0.9, measured_on="public")
    assert [metric.value for metric in Portfolio.load(tmp_path).saved("run@2").metrics] == [0.5]


def test_the_manifest_covers_the_checkpoints_after_every_step(tmp_path: Path) -> None:
    run = private()
    with recorded(run, tmp_path, checkpoint_every=2):
        for step in logical_steps(run, 6):
            if step >= 2:
                require_covered(tmp_path, finished=False)


@pytest.mark.parametrize("broken", ["os.fsync", "safetensors.torch.serialize_file", "pathlib.Path.replace"])
def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    run = private()

    def loop() -> None:
        with recorded(run, tmp_path, checkpoint_every=1):
            run.train(1)
            monkeypatch.setattr(broken, no_space)
            run.train(1)

    def no_space(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        loop()
    monkeypatch.undo()
    require_covered(tmp_path, finished=False)
    assert not list(tmp_path.glob(".*"))


def test_nothing_is_listed_whose_manifest_could_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop may catch the error and go on: the next manifest must still be true."""
    run = private()
    with recorded(run, tmp_path) as recorder:
        run.train(1)
        recorder.checkpoint()
        run.train(1)
        with monkeypatch.context() as patched:
            patched.setattr(Manifest, "write", lambda *_: (_ for _ in ()).throw(OSError("No space")))
            with pytest.raises(OSError, match="No space"):
                recorder.checkpoint()
        require_covered(tmp_path, finished=False)
        run.train(1)
    require_covered(tmp_path, finished=True)


class Tied(nn.Module):
    """Two names for one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, FEATURES, bias=False)
        self.second = nn.Linear(FEATURES, FEATURES, bias=False)
        self.second.weight = self.first.weight
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.second(torch.tanh(self.first(inputs))))


def test_tied_weights_are_written_under_each_name(tmp_path: Path) -> None:
    run = private(Tied())
    with recorded(run, tmp_path) as recorder:
        run.train(2)
    assert recorder.manifest().tensors.trained == ["first.weight", "second.weight", "head.weight", "head.bias"]
    assert recorder.manifest().tensors.tied == [["first.weight", "second.weight"]]
    kept = load_file(tmp_path / "step-2.safetensors")
    assert torch.equal(kept["first.weight"], kept["second.weight"])
    run.plain.load_state_dict(kept)
    assert listed(tmp_path) == [2]


@pytest.mark.parametrize("trained_only", [True, False])
def test_frozen_tensors_are_kept_or_left_out_as_asked(tmp_path: Path, trained_only: bool) -> None:
    model = mlp()
    model[0].requires_grad_(False)
    model.register_buffer("scale", torch.ones(3))
    run = private(model)
    with recorded(run, tmp_path, trained_only=trained_only) as recorder:
        run.train(2)
    tensors = recorder.manifest().tensors
    frozen = ["0.weight", "0.bias", "scale"]
    assert tensors.trained == ["2.weight", "2.bias"]
    assert sorted(tensors.frozen) == ([] if trained_only else sorted(frozen))
    assert tensors.frozen_weights is not None
    kept = load_file(tmp_path / "step-2.safetensors")
    assert set(kept) == {*tensors.trained, *tensors.frozen}
    assert listed(tmp_path) == [2]


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
)
def test_buffers_of_every_dtype_are_kept(tmp_path: Path, dtype: torch.dtype) -> None:
    model = mlp()
    model.register_buffer("kept", torch.ones(2, 3).to(dtype).t())
    model.register_buffer("scalar", torch.tensor(1).to(dtype))
    model.register_buffer("nothing", torch.zeros(0, 3).to(dtype))
    run = private(model)
    with recorded(run, tmp_path):
        run.train(1)
    kept = load_file(tmp_path / "step-1.safetensors")
    assert kept["kept"].dtype == dtype
    assert torch.equal(kept["kept"], model.kept)
    assert listed(tmp_path) == [1]


def test_metrics_belong_to_the_last_checkpoint(tmp_path: Path) -> None:
    run = private()
    with recorded(run, tmp_path, checkpoint_every=1) as recorder:
        run.train(1)
        recorder.metric("accuracy", 0.5, measured_on="public", data="holdout")
        recorder.metric("loss", 2.0, measured_on="training")
        run.train(1)
        recorder.metric("accuracy", 0.75, measured_on="public")
        require_covered(tmp_path, finished=False)
        with pytest.raises(InvalidInputError, match="value"):
            recorder.metric("accuracy", float("nan"), measured_on="public")
        with pytest.raises(InvalidInputError, match="measured_on"):
            recorder.metric("accuracy", 0.5, measured_on="somewhere")  # type: ignore[arg-type]
    require_covered(tmp_path, finished=True)
    portfolio = Portfolio.load(tmp_path)
    assert portfolio.saved("run@1").metric("accuracy") == 0.5
    assert portfolio.saved("run@2").metric("accuracy") == 0.75
    with pytest.raises(PrivateMetricError, match="measured on training data"):
        portfolio.saved("run@1").metric("loss")


def test_the_manifest_is_plain_json_and_reads_back_the_same(tmp_path: Path) -> None:
    run = private()
    with recorded(run, tmp_path, ancestry=Ancestry(start="public", source="a public model")):
        run.train(3)
    document = json.loads((tmp_path / MANIFEST_NAME).read_text())
    assert Manifest.read(tmp_path / MANIFEST_NAME).document() == document
    assert document["ancestry"] == {"start": "public", "source": "a public model", "assumed": False}
    assert document["finished"] is True


def test_runs_trained_side_by_side_make_a_portfolio(tmp_path: Path) -> None:
    """Two loops in one process, each with its own noise; the second one goes on from the first."""
    start = mlp().state_dict()
    for name in ("a", "b"):
        run = private()
        run.plain.load_state_dict(start)
        with recorded(run, tmp_path / name, run=name):
            run.train(2)
        if name == "b":
            middle = {key: value.clone() for key, value in run.plain.state_dict().items()}
    child = private()
    child.plain.load_state_dict(middle)
    with recorded(child, tmp_path / "c", run="c", ancestry=Ancestry(start="private", run="b", step=2)):
        child.train(3)
    portfolio = Portfolio.load(tmp_path)
    assert [run.id for run in portfolio.runs] == ["a", "b", "c"]
    costs = {run.id: run.at(run.mechanism.steps).run.profile().epsilon(1e-5) for run in portfolio.runs}
    assert costs["c"] > costs["b"] == costs["a"]


def test_a_run_that_goes_on_without_naming_its_parent_is_refused(tmp_path: Path) -> None:
    first = private()
    with recorded(first, tmp_path / "a", run="a"):
        first.train(2)
    second = private()
    second.plain.load_state_dict(first.plain.state_dict())
    with recorded(second, tmp_path / "b", run="b"):
        second.train(2)
    with pytest.raises(InvalidInputError, match="private, run a, step 2: the initial weights came from there"):
        Portfolio.load(tmp_path)


def test_two_runs_of_one_seed_are_not_independent(tmp_path: Path) -> None:
    for name in "ab":
        run = private()
        with recorded(run, tmp_path / name, run=name, noise_seed=5):
            run.train(1)
    portfolio = Portfolio.load(tmp_path)
    with pytest.raises(NoGuaranteeError, match="a and b share a noise seed"):
        portfolio.everything().profile()
    with pytest.raises(NotCombinableError, match="noise.seed"):
        portfolio.require_combinable(portfolio.runs)


def test_weights_that_turn_not_finite_keep_the_checkpoints_before(tmp_path: Path) -> None:
    run = private(dataset=data(24), batches="in_order", clip=1e10)
    with (
        pytest.raises(InvalidInputError, match="NaN or infinity among its values"),
        recorded(run, tmp_path, checkpoint_every=1),
    ):
        run.train(2, after=lambda: run.optimizer.param_groups[0].update(lr=1e30))
    require_covered(tmp_path, finished=False)
    assert listed(tmp_path) == [1]


# kill -9

KILLED = """
import os, random, signal, sys, time, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[1])
import torch
from pathlib import Path
from training.loops import mlp, private, recorded, refusing
torch.set_num_threads(1)
moments = random.Random(5)
with torch.no_grad():
    torch.zeros(2).sum()
for number in range(int(sys.argv[3])):
    folder = Path(sys.argv[2]) / f"run-{number}"
    child = os.fork()
    if child == 0:
        run = private(mlp(3000))
        with recorded(run, folder, run=folder.name, checkpoint_every=1) as recorder:
            while True:
                run.train(1, after=lambda: recorder.metric("steps", recorder.steps, measured_on="public"))
    # By what it has done, so that a busy machine does not decide how far each comes; and a moment later.
    while not folder.exists() or len(list(folder.glob("step-*"))) < number:
        time.sleep(0.002)
    time.sleep(moments.uniform(0.0, 0.05))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


def test_a_run_killed_at_any_moment_leaves_a_valid_record(tmp_path: Path) -> None:
    """Forked from one process, because importing torch takes longer than the rest."""
    killed = 8
    tests = str(Path(__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, tests, str(tmp_path), str(killed)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    folders = sorted(tmp_path.iterdir())
    assert len(folders) == killed
    written = [folder for folder in folders if (folder / MANIFEST_NAME).exists()]
    for folder in written:
        manifest = require_covered(folder, finished=False)
        for saved in manifest.checkpoints[:-1]:
            assert [metric.value for metric in saved.metrics] == [saved.step]
    assert len(written) >= killed // 2
    assert len({len(listed(folder)) for folder in written}) > 1


def test_refusals_in_mid_run_keep_the_earlier_checkpoints(tmp_path: Path) -> None:
    run = private()
    with refusing(run, tmp_path, "stepped by itself", checkpoint_every=1):
        run.train(2)
        run.optimizer.original_optimizer.step()
    require_covered(tmp_path, finished=False)
    assert listed(tmp_path) == [1, 2]
