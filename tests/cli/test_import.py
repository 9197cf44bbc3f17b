"""`dpmerge import`: models trained without us, from files to a certified release; what is asked, what is refused."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result
from opacus import PrivacyEngine
from opacus.accountants import RDPAccountant
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

import dpmerge as dpm
from dpmerge.cli import app, importing
from dpmerge.errors import InvalidInputError
from dpmerge.portfolio.manifest import Manifest
from dpmerge.portfolio.opacus_history import is_prefix

DELTA = 1e-5
SAID = {
    "--dataset": "adult-2026",
    "--adjacency": "add_remove",
    "--sampling": "poisson",
    "--noise-source": "os_entropy",
    "--start": "random",
    "--who": "Ann",
}


def said(**other: str | None) -> list[str]:
    """All that has to be said, or something else of it; None leaves it out."""
    options: dict[str, str | None] = {**SAID, **{f"--{n.replace('_', '-')}": v for n, v in other.items()}}
    return [part for name, value in options.items() if value is not None for part in (name, value)]


def ran(*arguments: object, **how: Any) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments], **how)


def imported(*folders: Path, more: tuple[str, ...] = ("--public-divisor",), **other: str | None) -> Result:
    return ran("import", *folders, *said(**other), *more)


def state(seed: int) -> OrderedDict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return OrderedDict(weight=torch.randn(3, 4, generator=generator), bias=torch.randn(3, generator=generator))


def saved(folder: Path, seed: int, history: object = None, *, name: str = "model.safetensors") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if name.endswith(".safetensors"):
        save_file({key: value.numpy() for key, value in state(seed).items()}, folder / name)
    else:
        torch.save(state(seed), folder / name)
    if history is not None:
        (folder / "history.json").write_text(json.dumps(history))
    return folder


def history(noise: float, steps: int = 500, rate: float = 0.01) -> dict[str, Any]:
    return {"history": [[noise, rate, steps]], "mechanism": "rdp"}


def three(home: Path, name: str = "model.pt") -> list[Path]:
    return [saved(home / run, seed, history(sigma), name=name) for seed, (run, sigma) in enumerate(RUNS.items())]


RUNS = {"a": 1.0, "b": 2.0, "c": 4.0}


def test_from_three_state_dicts_and_histories_to_a_certified_selection_in_three_commands(tmp_path: Path) -> None:
    folders = three(tmp_path / "models")
    first = ran("import", *folders, "--allow-pickle", *said(), "--public-divisor")
    assert first.exit_code == 0, first.output
    target = ("--epsilon", 0.5, "--delta", DELTA)
    how = ("--method", "select", "--objective", "saturate")
    second = ran("merge", tmp_path / "models", *how, *target, "-o", tmp_path / "out")
    assert second.exit_code == 0, second.output
    third = ran("verify", tmp_path / "out", "--portfolio", tmp_path / "models")
    assert third.exit_code == 0, third.output
    assert "Verified: ε = 0.5 at δ = 1e-05 per record (add_remove) by random_selection" in third.stdout
    content = json.loads(ran("verify", tmp_path / "out", "--json").stdout)
    assert content["verified"]
    # The weights are those that were pickled, and the premises name who vouches for what no history says.
    drawn = load_file(tmp_path / "out" / "model.safetensors")
    assert any(np.array_equal(drawn["weight"], state(seed)["weight"].numpy()) for seed in (0, 1))
    card = (tmp_path / "out" / "README.md").read_text()
    assert "batches drawn as stated" in card
    assert "poisson, vouched for by Ann" in card
    assert "public divisor" in card


def test_the_next_command_that_is_named_meets_its_target(tmp_path: Path) -> None:
    first = ran("import", *three(tmp_path / "models"), "--allow-pickle", *said(), "--public-divisor")
    [suggested] = [line for line in first.output.splitlines() if line.startswith("Next: dpmerge ")]
    words = suggested.removeprefix("Next: dpmerge ").split()
    made = ran(*words[:-1], tmp_path / "out")
    assert made.exit_code == 0, made.output
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_the_cost_is_what_dp_accounting_says_of_the_history(tmp_path: Path) -> None:
    """σ = 1, q = 0.01, 1000 steps: dp_accounting's own figure, 1.8282 (remove)."""
    saved(tmp_path / "a", 1, history(1.0, 1000))
    document = json.loads(imported(tmp_path / "a", more=("--public-divisor", "--json")).stdout)
    [run] = document["runs"]
    assert run["released_alone"]["epsilon"] == pytest.approx(1.8282, abs=2e-4)
    assert run["random_selection"]
    assert [name for name, each in run["theorems"].items() if each["certifies"]] == ["joint_release"]
    for name in ("last_step", "hidden_state", "merged_trajectory"):
        assert "learning_rates_known" in [each["premise"] for each in run["theorems"][name]["missing"]]


def test_an_opacus_checkpoint_brings_its_own_history(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 3)
    accountant = RDPAccountant()
    with pytest.warns(UserWarning, match="Secure RNG"):
        engine = PrivacyEngine()
    engine.accountant = accountant
    for _ in range(7):
        accountant.step(noise_multiplier=1.5, sample_rate=0.25)
    (tmp_path / "a").mkdir()
    optimizer = torch.optim.Adam(model.parameters())
    engine.save_checkpoint(path=tmp_path / "a" / "checkpoint.pt", module=model, optimizer=optimizer)
    assert imported(tmp_path / "a", more=("--public-divisor", "--allow-pickle")).exit_code == 0
    manifest = Manifest.read(tmp_path / "a" / "privacy.json")
    [block] = manifest.mechanism.blocks  # type: ignore[union-attr]
    assert (block.noise_multiplier, block.sampling_rate, block.steps) == (1.5, 0.25, 7)
    assert [saved.step for saved in manifest.checkpoints] == [7]
    kept = load_file(tmp_path / "a" / "checkpoint.safetensors")
    assert np.array_equal(kept["weight"], model.weight.detach().numpy())
    assert manifest.recorded_by.how == "opacus_history"


def test_names_of_opacus_wrapper_are_taken_off(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    torch.save({f"_module.{name}": value for name, value in state(1).items()}, tmp_path / "a" / "model.pth")
    (tmp_path / "a" / "history.json").write_text(json.dumps(history(1.0)))
    assert imported(tmp_path / "a", more=("--public-divisor", "--allow-pickle")).exit_code == 0
    assert set(load_file(tmp_path / "a" / "model.safetensors")) == {"weight", "bias"}


def test_without_a_history_noise_rate_and_steps_are_said(tmp_path: Path) -> None:
    saved(tmp_path / "a", 1)
    given = {"noise_multiplier": "1", "sampling_rate": "0.01", "steps": "1000"}
    assert imported(tmp_path / "a", **given).exit_code == 0  # type: ignore[arg-type]
    manifest = Manifest.read(tmp_path / "a" / "privacy.json")
    assert manifest.recorded_by.how == "hand"
    assert manifest.mechanism_from(None).profile().epsilon(DELTA) == pytest.approx(1.8282, abs=2e-4)


def test_all_that_is_missing_is_listed_at_once_and_nothing_is_written(tmp_path: Path) -> None:
    folders = [saved(tmp_path / name, seed) for seed, name in enumerate("ab")]
    result = ran("import", *folders)
    assert result.exit_code == 2
    for option in (*SAID, "--public-divisor", "--noise-multiplier", "--sampling-rate", "--steps"):
        assert f"{option} (" in result.stderr, option
    assert result.stderr.count("\n") == 1
    assert sorted(path.name for folder in folders for path in folder.iterdir()) == ["model.safetensors"] * 2


def test_at_a_terminal_it_is_asked_for_until_the_answer_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "_at_a_terminal", lambda: True)
    saved(tmp_path / "a", 1, history(1.0))
    answers = ["adult", "sideways", "add_remove", "poisson", "yes", "seeded", "many", "42", "random", "Ann"]
    result = ran("import", tmp_path / "a", input="\n".join(answers) + "\n")
    assert result.exit_code == 0, result.output
    assert "adjacency: got 'sideways'; accepted: replace_one" in result.stderr
    manifest = Manifest.read(tmp_path / "a" / "privacy.json")
    assert (manifest.dataset.id, manifest.adjacency, manifest.noise.seed) == ("adult", "add_remove", 42)
    assert manifest.recorded_by.who == "Ann"


def test_python_asks_whom_it_is_given(tmp_path: Path) -> None:
    saved(tmp_path / "a", 1, history(1.0))
    answers = {"dataset": "d", "adjacency": "add_remove", "sampling": "poisson", "public_divisor": "yes",
               "noise_source": "os_entropy", "start": "random", "who": "Ann"}  # fmt: skip
    [made] = dpm.import_models([tmp_path / "a"], ask=lambda question: answers[question.name])
    assert made.manifest == Manifest.read(tmp_path / "a" / "privacy.json")


def test_models_of_one_seed_are_a_group_and_the_next_command_says_so(tmp_path: Path) -> None:
    folders = three(tmp_path / "models", "model.safetensors")
    first = imported(*folders, noise_source="seeded", noise_seed="42")
    assert first.exit_code == 0, first.output
    assert "a, b, c share a noise seed: one of them, drawn in a final release, is all that may leave." in first.stdout
    assert " --final -o merged" in first.stdout
    assert "released jointly" not in first.stdout
    how = ("--method", "select", "--objective", "saturate", "--epsilon", 0.5, "--delta", DELTA)
    refused = ran("merge", tmp_path / "models", *how, "-o", tmp_path / "out")
    assert refused.exit_code == 1
    assert "all runs share a noise seed with another" in refused.stderr
    assert ran("merge", tmp_path / "models", *how, "--final", "-o", tmp_path / "out").exit_code == 0
    assert ran("verify", tmp_path / "out", "--portfolio", tmp_path / "models").exit_code == 0
    again = ran("merge", tmp_path / "models", *how, "--final", "-o", tmp_path / "again")
    assert again.exit_code == 1
    assert not (tmp_path / "again").exists()


def test_several_checkpoints_of_a_run_have_their_steps_in_their_names(tmp_path: Path) -> None:
    saved(tmp_path / "a", 1, history(1.0, 500), name="step-100.safetensors")
    saved(tmp_path / "a", 2, name="step_500.safetensors")
    assert imported(tmp_path / "a").exit_code == 0
    manifest = Manifest.read(tmp_path / "a" / "privacy.json")
    assert [(each.step, each.files[0].name) for each in manifest.checkpoints] == [
        (100, "step-100.safetensors"), (500, "step_500.safetensors"),
    ]  # fmt: skip


def test_a_single_model_costs_the_whole_history_whatever_its_name(tmp_path: Path) -> None:
    saved(tmp_path / "a", 1, history(1.0, 500), name="step-3.safetensors")
    assert imported(tmp_path / "a").exit_code == 0
    assert [each.step for each in Manifest.read(tmp_path / "a" / "privacy.json").checkpoints] == [500]


def test_a_history_saved_without_a_model_is_a_run_without_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "history.json").write_text(json.dumps(history(1.0)["history"]))
    assert imported(tmp_path / "a").exit_code == 0
    assert Manifest.read(tmp_path / "a" / "privacy.json").checkpoints == []


def test_shuffled_batches_have_no_rate_whatever_the_accountant_was_told(tmp_path: Path) -> None:
    saved(tmp_path / "a", 1, history(1.0, 1000))
    told = {"sampling": "shuffled", "steps_per_epoch": "100", "adjacency": "replace_one"}
    assert imported(tmp_path / "a", **told).exit_code == 0  # type: ignore[arg-type]
    manifest = Manifest.read(tmp_path / "a" / "privacy.json")
    assert manifest.mechanism.blocks[0].sampling_rate == 1  # type: ignore[union-attr]
    assert manifest.mechanism_from(None).profile().epsilon(DELTA) > 20  # ten epochs, each a Gaussian step with μ = 2


def test_unknown_batches_have_no_number_and_it_is_said(tmp_path: Path) -> None:
    saved(tmp_path / "a", 1, history(1.0))
    result = imported(tmp_path / "a", sampling="unknown")
    assert result.exit_code == 0
    assert "no figure" in result.stdout
    assert "nothing yet" in result.stdout


REFUSED: dict[str, tuple[object, dict[str, str | None], tuple[str, ...], str]] = {
    "a divisor nobody vouches for": (
        history(1.0), {}, ("--no-public-divisor",), "public_divisor: got 'no'; accepted: yes: divided by the batch",
    ),
    "an empty history": ([], {}, (), "history: got []; accepted: a non-empty list of [noise multiplier"),
    "a history that is none": ({"history": 3}, {}, (), "history: got 3"),
    "two numbers": ([[1.0, 0.1]], {}, (), "history[0]: got [1.0, 0.1]; accepted: [noise multiplier ≥ 0"),
    "a rate above one": ([[1.0, 1.5, 3]], {}, (), "history[0]: got [1.0, 1.5, 3]"),
    "steps that are no integer": ([[1.0, 0.5, 3.5]], {}, (), "history[0]: got [1.0, 0.5, 3.5]"),
    "negative noise": ([[-1.0, 0.5, 3]], {}, (), "history[0]: got [-1.0, 0.5, 3]"),
    "a full batch at a rate": (
        history(1.0), {"sampling": "full_batch"}, ("--public-divisor",), "sampling: got full_batch, at a rate of 0.01",
    ),
    "shuffled without epochs": (
        history(1.0), {"sampling": "shuffled", "adjacency": "replace_one"}, ("--public-divisor",),
        "not said: --steps-per-epoch",
    ),
    "epochs longer than the rate says": (
        [[1.0, 0.1, 1000]], {"sampling": "shuffled", "steps_per_epoch": "1000", "adjacency": "replace_one"},
        ("--public-divisor",), "steps_per_epoch: got 1000; accepted: at most 10",
    ),
    "unknown words": (history(1.0), {"sampling": "often"}, ("--public-divisor",), "mechanism.sampling: got 'often'"),
    "an adjacency that does not exist": (
        history(1.0), {"adjacency": "sideways"}, ("--public-divisor",), "adjacency: got 'sideways'",
    ),
    "noise said twice": (
        history(1.0), {"noise_multiplier": "8"}, ("--public-divisor",), "noise_multiplier: got 8.0; accepted: nothing",
    ),
    "a seed of noise that was not seeded": (
        history(1.0), {"noise_seed": "42"}, ("--public-divisor",), "noise_seed: got 42; accepted: nothing",
    ),
    "a parent without a step": (
        history(1.0), {"start": "private", "parent": "x"}, ("--public-divisor",), "parent: got 'x'",
    ),
    "a size that is private": (
        history(1.0), {"size": "100"}, ("--public-divisor",), "dataset.size: got 100; accepted: left out",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_refused_by_name_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    content, other, more, message = REFUSED[name]
    saved(tmp_path / "a", 1, content)
    before = sorted(path.name for path in (tmp_path / "a").iterdir())
    result = imported(tmp_path / "a", more=more, **other)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == before


def test_folders_that_cannot_be_imported_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty" / "within").mkdir(parents=True)
    done = saved(tmp_path / "done", 1, history(1.0))
    assert imported(done).exit_code == 0
    several = saved(
        saved(tmp_path / "several", 1, history(1.0), name="resnet18.safetensors"), 2, name="x34.safetensors"
    )
    both = saved(saved(tmp_path / "both", 1, history(1.0)), 1, name="model.pt")
    odd = saved(tmp_path / "no name", 1, history(1.0))
    for folder, words in {
        tmp_path / "empty": "which has neither; accepted: a folder with a model, or with history.json",
        tmp_path / "nowhere": "a folder with a model, a history, or both",
        done: "a record is never overwritten",
        several: "several whose names say their step, such as step-100.pt",
        both: "one of model.pt and model.safetensors, not both",
        odd: "run: got 'no name'",
    }.items():
        result = imported(folder, more=("--public-divisor", "--allow-pickle"))
        assert result.exit_code == 2
        assert words in result.stderr, result.stderr
    assert imported(done, done).exit_code == 2
    assert imported(saved(tmp_path / "x", 3), saved(tmp_path / "y", 4), run="z").exit_code == 2


def test_of_several_folders_all_are_imported_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = three(tmp_path, "model.safetensors")
    write, written = Manifest.write, []

    def failing(self: Manifest, path: Path) -> None:
        if len(written) == 2:
            raise OSError(28, "No space left on device", str(path))
        written.append(path)
        write(self, path)

    monkeypatch.setattr(Manifest, "write", failing)
    result = imported(*folders)
    assert result.exit_code == 2
    assert "No space left on device" in result.stderr
    assert len(written) == 2
    for folder in folders:
        assert sorted(path.name for path in folder.iterdir()) == ["history.json", "model.safetensors"]


def test_a_pickle_is_read_only_when_asked_by_name(tmp_path: Path) -> None:
    saved(tmp_path / "a", 1, history(1.0), name="model.pt")
    result = imported(tmp_path / "a")
    assert result.exit_code == 2
    assert "--allow-pickle" in result.stderr
    assert not (tmp_path / "a" / "privacy.json").exists()


def test_histories_that_are_not_one_anothers_beginning_are_two_runs(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 3)
    (tmp_path / "a").mkdir()
    accountant = {"history": [(2.0, 0.01, 100)], "mechanism": "rdp"}
    content = {"module_state_dict": model.state_dict(), "privacy_accountant_state_dict": accountant}
    torch.save(content, tmp_path / "a" / "model.pt")
    (tmp_path / "a" / "history.json").write_text(json.dumps(history(1.0)))
    result = imported(tmp_path / "a", more=("--public-divisor", "--allow-pickle"))
    assert result.exit_code == 2
    assert "keep one run in a folder, with its own history" in result.stderr


@pytest.mark.parametrize(
    ("first", "second", "begins"),
    [
        ([(1.0, 0.1, 5)], [(1.0, 0.1, 9)], True),
        ([(1.0, 0.1, 5), (2.0, 0.1, 1)], [(1.0, 0.1, 5), (2.0, 0.1, 9)], True),
        ([(1.0, 0.1, 3), (1.0, 0.1, 2)], [(1.0, 0.1, 5)], True),
        ([(1.0, 0.1, 6), (2.0, 0.1, 1)], [(1.0, 0.1, 5), (2.0, 0.1, 9)], False),
        ([(1.0, 0.2, 5)], [(1.0, 0.1, 9)], False),
        ([(1.0, 0.1, 9)], [(1.0, 0.1, 5)], False),
    ],
)
def test_whether_a_history_is_how_another_began(first: Any, second: Any, begins: bool) -> None:
    assert is_prefix(first, second) is begins


def test_what_is_missing_in_python_is_one_error_too(tmp_path: Path) -> None:
    saved(tmp_path / "a", 1, history(1.0))
    with pytest.raises(InvalidInputError, match=r"not said: --dataset .*--who"):
        dpm.import_models([tmp_path / "a"])
