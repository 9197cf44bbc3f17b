"""Runs that stop and go on: one run with one start, whatever was lost on the way composed into what follows."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dpmerge as dpm
from dpmerge.accounting import LinearCombination, hidden_state, last_step, merged_trajectory
from dpmerge.accounting.exposure import Checkpoint
from dpmerge.accounting.mechanisms import DpSgd
from dpmerge.errors import InvalidInputError, NotIndependentError, RecordingError
from dpmerge.portfolio import Portfolio
from dpmerge.training import Ancestry, LostStepsWarning
from training.loops import QUIET, mlp, private, recorded, refused_at_once, started, watched
from training.resuming import counted, document, finished_run, gaussian_mu, killed_run, momentum, rebuilt

pytestmark = [pytest.mark.filterwarnings(rule) for rule in QUIET]


def theorems(folder: Path, step: int) -> dict[str, bool]:
    """Which of the theorems about updates certify a checkpoint."""
    (run,) = Portfolio.load(folder).runs
    alone = LinearCombination(checkpoints=[run.at(step)], weights=[1.0])
    found = {"last_step": last_step, "merged_trajectory": merged_trajectory, "hidden_state": hidden_state}
    return {name: theorem(alone).certifies for name, theorem in found.items()}


def missing(folder: Path, step: int) -> set[str]:
    (run,) = Portfolio.load(folder).runs
    alone = LinearCombination(checkpoints=[run.at(step)], weights=[1.0])
    bounds = [last_step(alone), merged_trajectory(alone), hidden_state(alone)]
    assert all(bound.profile is None for bound in bounds)
    return set.intersection(*({p.name for p in bound.premises if not p.holds} for bound in bounds))


# Going on


def test_a_run_loaded_by_opacus_goes_on_as_one_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = finished_run(folder, 3, optimizer=momentum, stopping="fixed", who="Ann")
    before = document(folder)
    saved = tmp_path / "opacus.pt"
    first.engine.save_checkpoint(path=saved, module=first.model, optimizer=first.optimizer)

    made = private(mlp(), batches="full", optimizer=momentum)
    made.engine.load_checkpoint(path=saved, module=made.model, optimizer=made.optimizer)
    with recorded(made, folder, resume=True, stopping="fixed", who="Ann") as recorder, watched(made) as truth:
        assert recorder.steps == 3
        made.train(2)
    after = document(folder)
    assert truth.steps == 2
    assert [saved["step"] for saved in after["checkpoints"]] == [3, 5]
    for field in ("run", "initial_weights", "start_sample", "ancestry", "tensors", "noise", "stopping", "recorded_by"):
        assert after[field] == before[field], field
    (segment,) = after["resumed"]
    assert (segment["after"], segment["lost_steps"], segment["unseen_steps"], segment["optimizer"]) == (
        3,
        0,
        0,
        "restored",
    )
    assert segment["noise"]["source"] == "os_entropy"
    assert len({segment["noise"]["stream"], segment["sampling_stream"], before["noise"]["stream"]}) == 3
    assert after["finished"]
    assert counted(folder) == 5
    (run,) = Portfolio.load(folder).runs
    assert run.mechanism.profile().mu == pytest.approx(gaussian_mu([1.0] * 5), rel=1e-12)  # type: ignore[attr-defined]
    assert theorems(folder, 5)["last_step"]


def test_noise_and_batches_of_each_stretch_are_fresh(tmp_path: Path) -> None:
    """Rebuilt under the same seed of torch's, a stretch draws other noise and other batches."""
    torch.manual_seed(1)
    made = private(mlp(), batches="poisson")
    with recorded(made, tmp_path / "run"), watched(made) as first:
        made.train(8)
    torch.manual_seed(1)
    made = rebuilt(tmp_path / "run", batches="poisson")
    with recorded(made, tmp_path / "run", resume=True), watched(made) as second:
        made.train(8)
    assert not torch.equal(first.noises[0], second.noises[0])
    assert first.rows != second.rows


def test_resume_in_an_empty_folder_begins_a_run(tmp_path: Path) -> None:
    made = private(mlp(), batches="full")
    with recorded(made, tmp_path / "run", resume=True):
        made.train(2)
    assert "resumed" not in document(tmp_path / "run")


def test_a_run_resumed_and_closed_without_a_step_is_what_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    killed_run(folder, 3, kept_at=2)
    before, count = (folder / "privacy.json").read_bytes(), counted(folder)
    with recorded(rebuilt(folder), folder, resume=True) as recorder:
        assert recorder.manifest().statement.resumed[0].lost_steps == count - 2  # type: ignore[index]
        with pytest.raises(RecordingError, match="no step"):
            recorder.checkpoint()
    assert (folder / "privacy.json").read_bytes() == before
    assert counted(folder) == count


def test_a_run_may_go_on_many_times(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    finished_run(folder, 2, optimizer=momentum)
    for _ in range(2):
        made = rebuilt(folder, optimizer=momentum)
        with recorded(made, folder, resume=True):
            made.train(1)
    assert [(each["after"], each["optimizer"]) for each in document(folder)["resumed"]] == [(2, "reset"), (3, "reset")]
    assert Portfolio.load(folder).runs[0].mechanism.steps == 4


def test_weights_loaded_by_hand_without_state_are_noted_as_a_reset(tmp_path: Path) -> None:
    """Momentum began anew: what the last gradient's coefficient is, nobody asks any more."""
    folder = tmp_path / "run"
    finished_run(folder, 3, optimizer=momentum)
    made = rebuilt(folder, optimizer=momentum)
    with recorded(made, folder, resume=True):
        made.train(2)
    assert document(folder)["resumed"][0]["optimizer"] == "reset"
    assert theorems(folder, 3)["last_step"]
    assert "no_step_lost_on_the_way" in missing(folder, 5)
    assert not any(theorems(folder, 5).values())


@pytest.mark.parametrize("kind", ["Adam", "Adagrad", "RMSprop"])
def test_states_of_all_kinds_are_recognised(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "run"
    first = finished_run(folder, 2, optimizer=lambda p: getattr(torch.optim, kind)(p, lr=0.01))
    state = first.optimizer.state_dict()
    for expected in ("restored", "reset"):
        made = rebuilt(folder, optimizer=lambda p: getattr(torch.optim, kind)(p, lr=0.01))
        if expected == "restored":
            made.optimizer.load_state_dict(state)
        with recorded(made, folder, resume=True):
            made.train(1)
        assert document(folder)["resumed"][-1]["optimizer"] == expected


# Lost steps


def test_steps_lost_after_a_kill_are_composed_into_all_that_follows(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    killed_run(folder, 5, kept_at=3)
    begun = counted(folder)
    assert begun >= 5
    assert [each["step"] for each in document(folder)["checkpoints"]] == [3]
    made = rebuilt(folder)
    with recorded(made, folder, resume=True) as recorder:
        assert recorder.steps == begun
        made.train(2)
    after = document(folder)
    assert [each["step"] for each in after["checkpoints"]] == [3, begun + 2]
    assert after["resumed"][0]["lost_steps"] == begun - 3
    (run,) = Portfolio.load(folder).runs
    assert run.mechanism.profile(3).mu == pytest.approx(gaussian_mu([1.0] * 3), rel=1e-12)  # type: ignore[attr-defined]
    assert run.mechanism.profile().mu == pytest.approx(gaussian_mu([1.0] * (begun + 2)), rel=1e-12)  # type: ignore[attr-defined]
    assert "no_step_lost_on_the_way" in missing(folder, begun + 2)
    assert theorems(folder, 3)["last_step"]


def test_how_many_steps_were_lost_is_said_on_resuming_and_only_if_some_were(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    killed_run(folder, 5, kept_at=3)
    lost = counted(folder) - 3
    with pytest.warns(LostStepsWarning, match=rf'^run run: {lost} steps .* after step 3 .*lost_steps="unseen"'):
        started(rebuilt(folder), folder, resume=True).close()
    finished_run(tmp_path / "whole")
    with warnings.catch_warnings():
        warnings.simplefilter("error", LostStepsWarning)
        started(rebuilt(tmp_path / "whole"), tmp_path / "whole", resume=True).close()


def test_lost_steps_cost_what_the_worst_of_them_did(tmp_path: Path) -> None:
    """The noise fell after the checkpoint, and rose again before the kill."""
    folder = tmp_path / "run"
    made = private(mlp(), batches="full", noise=4.0)
    going = tmp_path / "going"
    recorder = started(made, going, checkpoint_at=[2])
    made.train(2)
    for noise in (1.5, 3.0):
        made.optimizer.noise_multiplier = noise
        made.train(1)
    shutil.copytree(going, folder)
    recorder.close()
    lost = counted(folder) - 2
    made = rebuilt(folder, noise=4.0)
    with recorded(made, folder, resume=True):
        made.train(1)
    (run,) = Portfolio.load(folder).runs
    noises = [4.0, 4.0, *[1.5] * lost, 4.0]
    assert run.mechanism.profile().mu == pytest.approx(gaussian_mu(noises), rel=1e-12)  # type: ignore[attr-defined]


def test_poisson_steps_that_were_lost_are_counted_at_their_rate(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    killed_run(folder, 6, kept_at=2, batches="poisson")
    begun = counted(folder)
    made = rebuilt(folder, batches="poisson")
    with recorded(made, folder, resume=True):
        made.train(1)
    (run,) = Portfolio.load(folder).runs
    mechanism = run.mechanism
    assert isinstance(mechanism, DpSgd)
    assert mechanism.steps == begun + 1 >= 7
    assert set(mechanism.sampling_rates) == {0.25}
    assert mechanism.rates[2:begun].tolist() == [0.0] * (begun - 2)


def test_a_run_killed_before_its_first_checkpoint_begins_again_with_what_it_lost(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    killed_run(folder, 3, kept_at=None)
    begun = counted(folder)
    refused_at_once(private(), folder, "killed before its first checkpoint", InvalidInputError)
    refused_at_once(private(), folder, "run: another", resume=True, run="another")
    made = private(mlp(), batches="full")
    with recorded(made, folder, resume=True):
        made.train(2)
    after = document(folder)
    assert (after["resumed"][0]["after"], after["resumed"][0]["lost_steps"]) == (0, begun)
    (run,) = Portfolio.load(folder).runs
    assert run.mechanism.profile().mu == pytest.approx(gaussian_mu([1.0] * (begun + 2)), rel=1e-12)  # type: ignore[attr-defined]


def test_killed_again_before_a_checkpoint_nothing_is_forgotten(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    killed_run(folder, 4, kept_at=2)
    made = rebuilt(folder)
    recorder = started(made, folder, resume=True)
    made.train(2)
    begun, manifest = counted(folder), (folder / "privacy.json").read_bytes()
    count = (folder / "steps.json").read_bytes()
    recorder.close(KeyboardInterrupt())
    (folder / "privacy.json").write_bytes(manifest)  # as if it had been killed
    (folder / "steps.json").write_bytes(count)
    assert begun >= 6
    made = rebuilt(folder)
    with recorded(made, folder, resume=True):
        made.train(1)
    assert Portfolio.load(folder).runs[0].mechanism.steps == begun + 1


def test_lost_steps_that_somebody_vouches_nobody_saw_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    killed_run(folder, 5, kept_at=3, stopping="fixed", schedule="fixed", separate_records=True, who="Ann")
    lost = counted(folder) - 3
    refused_at_once(rebuilt(folder), folder, "lost_steps", resume=True, lost_steps="unseen")
    made = rebuilt(folder)
    settings: dict[str, Any] = {"stopping": "fixed", "schedule": "fixed", "separate_records": True, "who": "Ann"}
    with recorded(made, folder, resume=True, lost_steps="unseen", **settings):
        assert document(folder)["resumed"][0]["vouched_by"] == "Ann"  # before it is relied on
        made.train(1)
    (segment,) = document(folder)["resumed"]
    assert (segment["lost_steps"], segment["unseen_steps"], segment["vouched_by"]) == (0, lost, "Ann")
    (run,) = Portfolio.load(folder).runs
    assert run.mechanism.profile().mu == pytest.approx(gaussian_mu([1.0] * 4), rel=1e-12)  # type: ignore[attr-defined]
    assert theorems(folder, 4)["last_step"]
    plan = dpm.plan(Portfolio.load(folder), dpm.Guarantee(epsilon=50, delta=1e-5), theorem="joint_release")
    premise = next(p for p in plan.premises if p.name == "lost_steps_unseen_and_no_cause_of_the_stop")
    assert premise.vouched_by == f"Ann for {lost} steps of run after step 3"


def test_lost_steps_is_counted_or_unseen(tmp_path: Path) -> None:
    refused_at_once(private(), tmp_path / "run", "lost_steps", InvalidInputError, lost_steps="forgotten", resume=True)
    refused_at_once(private(), tmp_path / "run", "lost_steps", InvalidInputError, lost_steps="unseen")


@pytest.mark.parametrize("kept_at", [4, 6])
def test_shuffled_batches_go_on_at_the_next_whole_pass(tmp_path: Path, kept_at: int) -> None:
    """Four batches a pass: two passes begun, and each later one, cost a step each."""
    folder = tmp_path / "run"
    killed_run(folder, 7, kept_at=kept_at, batches="shuffled")
    begun = counted(folder)
    passes = -(-begun // 4)
    made = rebuilt(folder, batches="shuffled")
    with recorded(made, folder, resume=True) as recorder:
        assert recorder.steps == 4 * passes
        made.train(4)
    (run,) = Portfolio.load(folder).runs
    assert document(folder)["mechanism"]["steps_per_epoch"] == 4
    assert run.mechanism.profile().mu == pytest.approx(gaussian_mu([1.0] * (passes + 1)), rel=1e-12)  # type: ignore[attr-defined]


def test_weights_that_never_got_into_the_manifest_are_no_checkpoint(tmp_path: Path) -> None:
    """Killed between the file and the manifest."""
    folder = tmp_path / "run"
    killed_run(folder, 3, kept_at=2)
    orphan = folder / "step-3.safetensors"
    orphan.write_bytes((folder / "step-2.safetensors").read_bytes())
    (folder / "mine.safetensors").write_bytes(b"")
    made = rebuilt(folder)
    with recorded(made, folder, resume=True, lost_steps="unseen", who="Ann"):
        assert not orphan.exists()
        made.train(1)
    assert orphan.exists()
    assert (folder / "mine.safetensors").exists()


# What is said of both stretches


def test_what_somebody_says_holds_for_both_stretches_or_is_unknown(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    finished_run(folder, 1, stopping="fixed", schedule="public", tuning="public", who="Ann")
    made = rebuilt(folder)
    with recorded(made, folder, resume=True, stopping="public", schedule="private", tuning="public", who="Bob"):
        made.train(1)
    after = document(folder)
    assert (after["stopping"], after["schedule"], after["tuning"]) == ("unknown", "private", "public")
    assert after["recorded_by"]["who"] == "Ann, Bob"


def test_record_losses_are_those_of_the_worse_stretch(tmp_path: Path) -> None:
    class Halved(nn.CrossEntropyLoss):
        def forward(self, output: Any, target: Any) -> Any:
            return super().forward(output, target) / 2

    folder = tmp_path / "run"
    made = private(mlp(), batches="full", criterion=Halved())
    with recorded(made, folder):
        made.train(1)
    assert document(folder)["record_losses"] == "unknown"
    made = rebuilt(folder)
    with recorded(made, folder, resume=True):
        made.train(1)
    assert document(folder)["record_losses"] == "unknown"


def test_sgd_that_goes_on_with_other_settings_is_covered_by_joint_release_alone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    finished_run(folder, 2)
    made = rebuilt(folder, optimizer=lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1))
    with recorded(made, folder, resume=True):
        made.train(1)
    assert document(folder)["mechanism"]["optimizer"] == {"name": "sgd with settings that differ or change"}


# What is refused

OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "run": ({"run": "other"}, "run: other"),
    "dataset": ({"dataset": "other"}, "dataset: other"),
    "unit": ({"unit": "person"}, "unit: person"),
    "adjacency": ({"adjacency": "add_remove", "public_divisor": True}, "adjacency: add_remove"),
    "ancestry": ({"ancestry": Ancestry(start="public", source="x")}, "ancestry: "),
    "seed": ({"noise_seed": 3}, "noise_seed"),
}


@pytest.mark.parametrize("name", list(OTHERS))
def test_another_run_is_not_gone_on_with(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run"
    finished_run(folder, 1)
    settings, text = OTHERS[name]
    refused_at_once(rebuilt(folder), folder, text, resume=True, **settings)


MADE: dict[str, tuple[dict[str, Any], str]] = {
    "sampling": ({"batches": "poisson"}, "data_loader: sampling"),
    "optimizer": ({"optimizer": lambda p: torch.optim.Adam(p, lr=0.1)}, "optimizer: adam"),
    "reduction": ({"loss_reduction": "sum"}, "optimizer: loss_reduction"),
    "clipping": ({"clip": [0.5] * 4}, "optimizer: flat clipping"),
}


@pytest.mark.parametrize("name", list(MADE))
def test_a_loop_made_otherwise_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run"
    finished_run(folder, 1)
    settings, text = MADE[name]
    refused_at_once(rebuilt(folder, **settings), folder, text, resume=True)


def test_a_frozen_tensor_that_changed_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def model() -> nn.Module:
        made = mlp()
        made[0].requires_grad_(False)  # type: ignore[index]
        return made

    made = private(model(), batches="full")
    with recorded(made, folder):
        made.train(1)
    made = private(model(), batches="full")
    refused_at_once(made, folder, "model: its frozen", resume=True)


def test_a_history_of_steps_that_an_accountant_counted_must_be_the_records(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    finished_run(folder, 2, batches="poisson")
    rate = 0.25
    for history, fits in (
        ([], True),
        ([(1.0, rate, 2)], True),
        ([(1.0, rate, 1), (1.0, rate, 1)], True),
        ([(1.0, rate, 3)], False),
        ([(2.0, rate, 2)], False),
        ([(1.0, 0.2, 2)], False),
    ):
        made = rebuilt(folder, batches="poisson")
        made.engine.accountant.history = history
        if fits:
            with recorded(made, folder, resume=True):
                pass
        else:
            refused_at_once(made, folder, "its accountant has counted", resume=True)


def test_a_folder_resumed_twice_from_copies_is_refused_in_a_portfolio(tmp_path: Path) -> None:
    finished_run(tmp_path / "both" / "a", 2)
    shutil.copytree(tmp_path / "both" / "a", tmp_path / "both" / "b")
    for name in "ab":
        folder = tmp_path / "both" / name
        made = rebuilt(folder)
        with recorded(made, folder, resume=True):
            made.train(1)
    manifest = document(tmp_path / "both" / "b")
    (tmp_path / "both" / "b" / "privacy.json").write_text(json.dumps({**manifest, "run": "another"}))
    with pytest.raises(NotIndependentError, match="one run, resumed from copies of its folder"):
        Portfolio.load(tmp_path / "both")
    # Nor does it help to leave out where it began: the stretch they share is told by its noise.
    made = rebuilt(tmp_path / "both" / "a")
    shutil.copytree(tmp_path / "both" / "a", tmp_path / "copies" / "a")
    shutil.copytree(tmp_path / "both" / "a", tmp_path / "copies" / "b")
    shared = document(tmp_path / "copies" / "b")
    shared |= {"run": "another", "noise": {**shared["noise"], "stream": "0" * 32}}
    (tmp_path / "copies" / "b" / "privacy.json").write_text(json.dumps(shared))
    with pytest.raises(NotIndependentError, match="one run, resumed from copies of its folder"):
        Portfolio.load(tmp_path / "copies")


def test_a_prefix_before_the_break_is_what_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    killed_run(folder, 4, kept_at=3)
    (before,) = Portfolio.load(folder).runs
    made = rebuilt(folder)
    with recorded(made, folder, resume=True):
        made.train(1)
    (after,) = Portfolio.load(folder).runs
    one, other = (Checkpoint(run.mechanism, 3).run.profile(3).epsilon(1e-5) for run in (before, after))
    assert one == other
