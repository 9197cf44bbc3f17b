"""Averages of a run's weights: kept beside its checkpoints, at the cost of the steps so far, and no iterates."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from blake3 import blake3
from safetensors.torch import load_file
from torch import Tensor, nn

import dpmerge as dpm
from dpmerge.accounting import LinearCombination, hidden_state, joint_release, last_step, merged_trajectory
from dpmerge.errors import (
    InvalidInputError,
    MissingParentError,
    NoGuaranteeError,
    NotIndependentError,
    RecordingError,
    RunsLockedError,
)
from dpmerge.planning.stated_weights import stated_weights
from dpmerge.portfolio import Portfolio
from dpmerge.portfolio.manifest import MANIFEST_NAME, Manifest
from dpmerge.training import Ancestry, ChangedWeightsWarning
from training.loops import QUIET, Private, mlp, private, recorded, refused_at_once, started
from training.resuming import counted, document, gaussian_mu, killed_run, rebuilt

pytestmark = [pytest.mark.filterwarnings(rule) for rule in QUIET]

DECAY = 0.8


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def exponential(states: list[dict[str, Tensor]], decay: float) -> dict[str, Tensor]:
    """Σ d^(t−s) θ_s / Σ d^(t−s), in double precision, as it is defined."""
    shares = torch.tensor([decay ** (len(states) - 1 - s) for s in range(len(states))], dtype=torch.float64)
    shares /= shares.sum()
    return {
        name: sum(share * state[name].double() for share, state in zip(shares, states, strict=True))  # type: ignore[misc]
        for name in states[0]
    }


def trained(folder: Path, steps: int, **settings: Any) -> tuple[Private, list[dict[str, Tensor]]]:
    made, states = private(mlp(), batches="full"), list[dict[str, Tensor]]()
    with recorded(made, folder, ema=DECAY, **settings):
        made.train(steps, after=lambda: states.append(state_of(made.plain)))
    return made, states


def test_the_exponential_average_is_of_the_weights_of_every_step(tmp_path: Path) -> None:
    _, states = trained(tmp_path, 6, checkpoint_every=2)
    for step in (2, 4, 6):
        kept, expected = load_file(tmp_path / f"step-{step}.ema.safetensors"), exponential(states[:step], DECAY)
        assert set(kept) == set(expected)
        assert all(torch.allclose(kept[n].double(), expected[n], rtol=1e-5, atol=1e-7) for n in kept)
        iterate = load_file(tmp_path / f"step-{step}.safetensors")
        assert all(torch.equal(iterate[n], states[step - 1][n]) for n in iterate)


def test_checkpoints_and_averages_are_recorded_by_both_digests(tmp_path: Path) -> None:
    trained(tmp_path, 2)
    files = [file for _, file in Manifest.read(tmp_path / MANIFEST_NAME).files()]
    assert [file.name for file in files] == ["step-2.safetensors", "step-2.ema.safetensors"]
    for file in files:
        content = (tmp_path / file.name).read_bytes()
        assert (file.sha256, file.blake3) == (hashlib.sha256(content).hexdigest(), blake3(content).hexdigest())


def test_without_the_package_the_record_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "blake3", None)
    trained(tmp_path, 2)
    assert "blake3" not in (tmp_path / MANIFEST_NAME).read_text()
    assert [run.id for run in Portfolio.load(tmp_path).runs] == ["run", "run.ema-2"]


def test_an_average_is_a_model_of_a_portfolio_at_the_cost_of_its_prefix(tmp_path: Path) -> None:
    trained(tmp_path / "run", 6, checkpoint_every=3)
    portfolio = Portfolio.load(tmp_path)
    assert [run.id for run in portfolio.runs] == ["run", "run.ema-3", "run.ema-6"]
    for step in (3, 6):
        average = portfolio.run(f"run.ema-{step}")
        assert average.mechanism.profile().mu == pytest.approx(gaussian_mu([1.0] * step), rel=1e-12)  # type: ignore[attr-defined]
        alone = LinearCombination(checkpoints=[average.at(1)], weights=[1.0])
        assert joint_release(alone).certifies
        assert not any(theorem(alone).certifies for theorem in (last_step, merged_trajectory, hidden_state))
        assert all(theorem(alone).profile is None for theorem in (last_step, merged_trajectory, hidden_state))
    # All of it together costs the run, once.
    assert portfolio.everything().profile().mu == pytest.approx(gaussian_mu([1.0] * 6), rel=1e-12)  # type: ignore[attr-defined]


def test_an_average_is_planned_merged_and_verified(tmp_path: Path) -> None:
    trained(tmp_path / "runs" / "run", 4, stopping="fixed", schedule="fixed", tuning="none")
    portfolio = Portfolio.load(tmp_path / "runs")
    target = dpm.Guarantee(epsilon=30.0, delta=1e-5)
    plan = dpm.plan(portfolio, target, checkpoints="run.ema-4@1")
    assert dict(plan.candidates[0].recipe.parts) == {"run.ema-4@1": 1.0}
    assert plan.candidates[0].exposed() == {"run.ema-4": 1, "run": 4}
    premise = next(p for p in plan.premises if p.name == "averages_made_of_their_run_and_public_data_alone")
    assert premise.vouched_by == "run.ema-4 (computed by the recorder)"
    assert all(premise.holds for premise in plan.premises)
    made = dpm.release(plan, out=tmp_path / "out")
    released, kept = (
        load_file(tmp_path / "out" / "model.safetensors"),
        load_file(tmp_path / "runs" / "run" / "step-4.ema.safetensors"),
    )
    assert all(torch.equal(released[name], kept[name]) for name in kept)
    assert not (tmp_path / "out" / "steps.json").exists()
    assert dpm.verify(tmp_path / "out", portfolio=tmp_path / "runs", rebuild=True).verified
    # What was charged is the run: releasing its last iterate as well costs nothing more.
    finding = dpm.audit(tmp_path / "out", trials=2000)
    assert 0.5 < (finding.tightness or 0.0) <= 1  # the average hides nothing that is charged
    again = dpm.release(dpm.plan(Portfolio.load(tmp_path / "runs"), target, checkpoints="run@4"), out=tmp_path / "more")
    assert again.guarantee.epsilon == pytest.approx(made.guarantee.epsilon, rel=1e-9)
    # And what was released is released of the run as it is.
    run = rebuilt(tmp_path / "runs" / "run")
    refused_at_once(run, tmp_path / "runs" / "run", "has charged run run as it is", resume=True)


def test_averages_of_two_runs_may_be_averaged_by_joint_release(tmp_path: Path) -> None:
    start = state_of(mlp())
    for name in ("a", "b"):
        model = mlp()
        model.load_state_dict(start)
        made = private(model, batches="full")
        with recorded(made, tmp_path / name, run=name, ema=DECAY):
            made.train(2)
    portfolio = Portfolio.load(tmp_path)
    weights, target = {"a.ema-2@1": 0.5, "b.ema-2@1": 0.5}, dpm.Guarantee(epsilon=100.0, delta=1e-5)
    for theorem in ("last_step", "hidden_state", "merged_trajectory"):
        with pytest.raises(NoGuaranteeError):
            stated_weights(portfolio, weights, target, theorem=theorem)  # type: ignore[arg-type]
    plan = stated_weights(portfolio, weights, target)
    assert {c.theorem for c in plan.candidates} == {"joint_release"}
    assert plan.candidates[0].exposed() == {"a": 2, "a.ema-2": 1, "b": 2, "b.ema-2": 1}
    assert plan.candidates[0].profile.mu == pytest.approx(gaussian_mu([1.0] * 4), rel=1e-12)  # type: ignore[attr-defined]


def test_auto_does_not_average_a_run_with_its_own_average(tmp_path: Path) -> None:
    """Their noise is the same: nothing is gained, though the two look like two runs."""
    trained(tmp_path / "run", 4, checkpoint_every=1)
    plan = dpm.plan(Portfolio.load(tmp_path), dpm.Guarantee(epsilon=100.0, delta=1e-5), method="combine")
    assert all(len(candidate.recipe.parts) == 1 for candidate in plan.candidates)


def test_a_descendant_of_an_average_names_it(tmp_path: Path) -> None:
    trained(tmp_path / "run", 3)
    weights = load_file(tmp_path / "run" / "step-3.ema.safetensors")
    for name, ancestry in (
        ("told", Ancestry(start="private", run="run.ema-3", step=1)),
        ("untold", None),
    ):
        model = mlp()
        model.load_state_dict(weights)
        made = private(model, batches="full")
        with recorded(made, tmp_path / name, run=name, ancestry=ancestry):
            made.train(1)
        if name == "told":
            child = Portfolio.load(tmp_path).run("told")
            assert child.mechanism.profile().mu == pytest.approx(gaussian_mu([1.0] * 4), rel=1e-12)  # type: ignore[attr-defined]
    with pytest.raises(MissingParentError, match=r"run\.ema-3"):
        Portfolio.load(tmp_path)


@pytest.mark.parametrize("first", ["final", "average"])
def test_a_final_release_and_an_average_of_its_run_exclude_each_other(tmp_path: Path, first: str) -> None:
    start = state_of(mlp())
    for name in ("a", "b"):
        model = mlp()
        model.load_state_dict(start)
        made = private(model, batches="full")
        with recorded(made, tmp_path / "runs" / name, run=name, ema=DECAY):
            made.train(2)
    portfolio, target = Portfolio.load(tmp_path / "runs"), dpm.Guarantee(epsilon=100.0, delta=1e-5)
    plans = {
        "final": stated_weights(portfolio, {"a@2": 0.5, "b@2": 0.5}, target, theorem="last_step"),
        "average": dpm.plan(portfolio, target, checkpoints="a.ema-2@1"),
    }
    dpm.release(plans.pop(first), out=tmp_path / "first", final=first == "final")
    (second,) = plans.values()
    with pytest.raises(RunsLockedError):
        dpm.release(second, out=tmp_path / "second", final=first != "final")


# Going on


def test_an_average_goes_on_where_it_was_kept(tmp_path: Path) -> None:
    """Lost steps are in no average: they are in no weights."""
    folder, states = tmp_path / "run", list[dict[str, Tensor]]()
    made = private(mlp(), batches="full")
    recorder = started(made, folder, ema=DECAY, checkpoint_at=[3])
    made.train(3, after=lambda: states.append(state_of(made.plain)))
    manifest = (folder / "privacy.json").read_bytes()
    made.train(2)
    count = (folder / "steps.json").read_bytes()
    recorder.close()
    (folder / "privacy.json").write_bytes(manifest)
    (folder / "steps.json").write_bytes(count)
    made = rebuilt(folder)
    with recorded(made, folder, resume=True, ema=DECAY) as recorder:
        made.train(2, after=lambda: states.append(state_of(made.plain)))
        last = recorder.steps
    kept, expected = load_file(folder / f"step-{last}.ema.safetensors"), exponential(states, DECAY)
    assert all(torch.allclose(kept[n].double(), expected[n], rtol=1e-5, atol=1e-7) for n in kept)
    average = Portfolio.load(folder).run(f"run.ema-{last}")
    assert average.mechanism.profile().mu == pytest.approx(gaussian_mu([1.0] * last), rel=1e-12)  # type: ignore[attr-defined]


def test_an_average_that_the_record_does_not_have_is_not_gone_on_with(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    trained(folder, 2)
    refused_at_once(rebuilt(folder), folder, "one of decay 0.8", resume=True, ema=0.9)
    with recorded(rebuilt(folder), folder, resume=True) as _:  # nor need it be gone on with
        pass
    other = tmp_path / "other"
    trained(other, 2)
    (folder / "step-2.ema.safetensors").write_bytes((other / "step-2.ema.safetensors").read_bytes())
    refused_at_once(rebuilt(folder), folder, "is not the average that the record kept", resume=True, ema=DECAY)
    killed_run(tmp_path / "without", 3, kept_at=2)
    made = rebuilt(tmp_path / "without")
    refused_at_once(made, tmp_path / "without", "kept no average beside step 2", resume=True, ema=DECAY)


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.5, 1.5, float("nan")])
def test_a_decay_is_between_0_and_1(tmp_path: Path, decay: float) -> None:
    refused_at_once(private(), tmp_path / "run", "ema", InvalidInputError, ema=decay)


def test_a_name_leaves_room_for_those_of_averages(tmp_path: Path) -> None:
    refused_at_once(private(), tmp_path / "run", "run", InvalidInputError, ema=DECAY, run="r" * 81)
    made = private(mlp(), batches="full")
    with recorded(made, tmp_path, run="r" * 81) as recorder:
        made.train(1)
        with pytest.raises(InvalidInputError, match="at most 80 characters"):
            recorder.checkpoint(weights=state_of(made.plain), who="Ann")


# Other averages, which somebody vouches for


def test_an_average_somebody_vouches_for_is_a_premise_with_his_name(tmp_path: Path) -> None:
    folder, states = tmp_path / "run", list[dict[str, Tensor]]()
    made = private(mlp(), batches="full")
    with recorded(made, folder, tuning="none", stopping="fixed", schedule="fixed") as recorder:
        made.train(3, after=lambda: states.append(state_of(made.plain)))
        swa = {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}
        recorder.checkpoint(weights=swa, who="Ann")
        recorder.checkpoint(weights=states[0], who="Bob")  # once a step, however often it is asked for
        made.train(1)
    kept = load_file(folder / "step-3.average.safetensors")
    assert all(torch.equal(kept[name], swa[name]) for name in swa)
    assert [each["step"] for each in document(folder)["checkpoints"]] == [3, 4]
    portfolio = Portfolio.load(folder)
    average = portfolio.run("run.average-3")
    assert average.mechanism.profile().mu == pytest.approx(gaussian_mu([1.0] * 3), rel=1e-12)  # type: ignore[attr-defined]
    plan = dpm.plan(portfolio, dpm.Guarantee(epsilon=30.0, delta=1e-5), checkpoints="run.average-3@1")
    premise = next(p for p in plan.premises if p.name == "averages_made_of_their_run_and_public_data_alone")
    assert premise.vouched_by == "run.average-3 (vouched for by Ann)"


def test_an_average_in_the_model_as_the_last_line_leaves_the_record_whole(tmp_path: Path) -> None:
    made, states = private(mlp(), batches="full"), list[dict[str, Tensor]]()
    recorder = started(made, tmp_path)
    made.train(2, after=lambda: states.append(state_of(made.plain)))
    made.plain.load_state_dict({name: (states[0][name] + states[1][name]) / 2 for name in states[0]})
    recorder.checkpoint(weights=made.plain.state_dict(), who="Ann")
    with pytest.warns(ChangedWeightsWarning, match="changed after the last step"):
        recorder.close()
    kept = load_file(tmp_path / "step-2.safetensors")
    assert all(torch.equal(kept[name], states[1][name]) for name in kept)
    assert document(tmp_path)["finished"]
    assert counted(tmp_path) == 2
    assert [run.id for run in Portfolio.load(tmp_path).runs] == ["run", "run.average-2"]


BAD: dict[str, tuple[Any, str]] = {
    "a name that is not the model's": (lambda state: {**state, "more": torch.zeros(2)}, "more is not in the model"),
    "a tensor that is missing": (lambda state: dict(list(state.items())[1:]), "is not in weights"),
    "another shape": (lambda state: {**state, "0.bias": torch.zeros(2)}, "0.bias is not"),
    "another dtype": (lambda state: {**state, "0.bias": state["0.bias"].double()}, "0.bias is not"),
    "no tensor": (lambda state: {**state, "0.bias": [0.0]}, "0.bias is not"),
    "values that are not finite": (lambda state: {**state, "0.bias": state["0.bias"] * torch.nan}, "0.bias"),
}


@pytest.mark.parametrize("name", list(BAD))
def test_what_is_no_average_of_this_model_is_refused(tmp_path: Path, name: str) -> None:
    change, text = BAD[name]
    made = private(mlp(), batches="full")
    with recorded(made, tmp_path) as recorder:
        made.train(1)
        with pytest.raises(dpm.DpmergeError, match=text):
            recorder.checkpoint(weights=change(state_of(made.plain)), who="Ann")
    assert "averages" not in document(tmp_path)["checkpoints"][0]
    assert not list(tmp_path.glob("*average*"))


def test_an_average_without_who_vouches_is_refused(tmp_path: Path) -> None:
    made = private(mlp(), batches="full")
    with recorded(made, tmp_path) as recorder:
        made.train(1)
        with pytest.raises(RecordingError, match="who: nobody vouches"):
            recorder.checkpoint(weights=state_of(made.plain))


def test_an_average_that_is_another_models_weights_is_refused(tmp_path: Path) -> None:
    other = private(mlp(), batches="full", noise=0.1)
    with recorded(other, tmp_path / "other", run="other"):
        other.train(1)
    made = private(mlp(), batches="full")
    with recorded(made, tmp_path / "run") as recorder:
        made.train(1)
        recorder.checkpoint(weights=state_of(other.plain), who="Ann")
    with pytest.raises(NotIndependentError, match="so the two share their noise"):
        Portfolio.load(tmp_path)
