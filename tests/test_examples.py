"""The portfolios that ship: small, true, and between them something to try every theorem on."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from dpmerge import Portfolio
from dpmerge.accounting import LinearCombination, hidden_state, merged_trajectory
from dpmerge.portfolio import inspect
from dpmerge.portfolio.manifest import Manifest

EXAMPLES = Path(__file__).parents[1] / "examples"
PORTFOLIOS = ("mnist", "probe")


def test_all_examples_together_have_less_than_three_megabytes() -> None:
    kept = [path for path in EXAMPLES.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in kept) < 3_000_000


def test_mnist_has_the_papers_settings_and_a_ladder() -> None:
    portfolio = Portfolio.load(EXAMPLES / "mnist")
    assert portfolio.complete
    assert (portfolio.dataset, str(portfolio.adjacency)) == ("mnist-train", "replace_one")
    paper, ladder = portfolio.runs[:3], portfolio.runs[3:]
    blocks = [run.manifest.mechanism.blocks for run in portfolio.runs]  # type: ignore[union-attr]
    assert [(b[0].clip_norm, b[0].noise_multiplier) for b in blocks[:3]] == [(2, 32), (4, 32), (2, 64)]
    assert [[saved.step for saved in run.checkpoints] for run in paper] == [[8, 12, 16, 20]] * 3
    assert [(b[0].clip_norm, b[0].noise_multiplier) for b in blocks[3:]] == [(2, 512)] * 8
    assert [run.mechanism.steps for run in ladder] == [20] * 8
    assert all(
        len(b) == 1 and run.manifest.dataset.size == 60_000 for b, run in zip(blocks, portfolio.runs, strict=True)
    )


def test_the_learning_rates_of_mnist_are_the_papers_schedule() -> None:
    run = Portfolio.load(EXAMPLES / "mnist").run("c2-s32")
    rates = np.asarray(run.mechanism.rates) * 60_000  # type: ignore[attr-defined]
    assert rates[:3] == pytest.approx([2, 4, 4])
    assert np.diff(rates[2:]) == pytest.approx(np.full(17, -4 / 18))


def test_the_epsilons_of_mnist_are_the_closed_forms() -> None:
    """20 steps at σ = 32 under replace_one: μ = 2√20/32; ε from an independent 50-digit table."""
    figures = inspect(Portfolio.load(EXAMPLES / "mnist"), 1e-5).document()
    last = {run["run"]: run["checkpoints"][-1] for run in figures["runs"]}
    assert last["c2-s32"]["mu"] == pytest.approx(2 * np.sqrt(20) / 32, rel=1e-12)
    assert last["c2-s32"]["epsilon"] == pytest.approx(1.0470536090938, rel=1e-10)
    assert last["ladder-1"]["epsilon"] == pytest.approx(0.0505, abs=1e-4)
    squares = 20 * 4 * (2 / 32**2 + 1 / 64**2 + 8 / 512**2)
    assert figures["joint_release_of_everything"]["mu"] == pytest.approx(np.sqrt(squares), rel=1e-12)


@pytest.mark.parametrize("name", PORTFOLIOS)
def test_recorded_accuracy_is_what_the_weights_give_on_the_public_images(name: str) -> None:
    public = np.load(EXAMPLES / name / "public.npz")
    assert len(public["labels"]) == 1000
    for saved in Portfolio.load(EXAMPLES / name).checkpoints():
        weights = load_file(saved.files[0])
        scores = public["features"] @ weights["weight"].T + weights.get("bias", 0)
        accuracy = float(np.mean(scores.argmax(axis=1) == public["labels"]))
        assert saved.metric("accuracy") == pytest.approx(accuracy, abs=0.0021)  # two images on the fence


@pytest.mark.parametrize("name", PORTFOLIOS)
def test_every_run_has_a_seed_of_its_own_and_says_so(name: str) -> None:
    portfolio = Portfolio.load(EXAMPLES / name)
    assert {run.manifest.noise.source for run in portfolio.runs} == {"seeded"}
    assert len({run.manifest.noise.seed for run in portfolio.runs}) == len(portfolio.runs)
    warned = {caveat["where"] for caveat in _caveats(portfolio) if caveat["name"] == "seeded_noise"}
    assert warned == {run.id for run in portfolio.runs}
    script = ast.get_docstring(ast.parse((EXAMPLES / name / "train.py").read_text()))
    assert "A real run must not be seeded" in " ".join(str(script).split())


def test_no_two_runs_of_all_examples_share_a_seed() -> None:
    seeds = [Manifest.read(path).noise.seed for path in EXAMPLES.rglob("privacy.json")]
    assert len(seeds) == 14
    assert len(set(seeds)) == 14


def _caveats(portfolio: Portfolio) -> list[dict[str, str]]:
    caveats: list[dict[str, str]] = inspect(portfolio, 1e-5).document()["caveats"]
    return caveats


def test_every_theorem_has_a_portfolio_to_try_it_on() -> None:
    [group] = inspect(Portfolio.load(EXAMPLES / "probe"), 1e-5).document()["averaging"]
    covered = {theorem: found["applies_to"] for theorem, found in group["theorems"].items()}
    finals = ["s16@20", "s32@20", "s64@20"]
    assert covered == {
        "joint_release": finals,
        "last_step": finals,
        "hidden_state": finals,
        "merged_trajectory": ["s16@1", "s32@1", "s64@1"],
    }


def test_the_probes_features_have_norm_one_and_clipping_never_acts() -> None:
    public = np.load(EXAMPLES / "probe" / "public.npz")
    assert np.linalg.norm(public["features"].astype(float), axis=1).max() <= 1
    facts = json.loads((EXAMPLES / "probe" / "s16" / "privacy.json").read_text())["mechanism"]
    assert facts["smoothness"]["kind"] == "softmax"
    assert facts["smoothness"]["feature_bound"] == 1
    assert np.sqrt(2) + 2e-6 <= facts["blocks"][0]["clip_norm"] < 1.42


def test_the_probe_can_be_averaged_below_its_most_private_model() -> None:
    portfolio = Portfolio.load(EXAMPLES / "probe")
    runs = [portfolio.run(name).mechanism for name in ("s64", "s16")]
    noise = float(runs[0].moves(20).noise.max())  # type: ignore[attr-defined]
    bound = hidden_state(LinearCombination.of_runs(runs, [0.95, 0.05], release_noise=noise))
    assert bound.certifies
    assert float(bound.epsilon(1e-5) or np.inf) < runs[0].profile().epsilon(1e-5)
    assert not merged_trajectory(LinearCombination.of_runs(runs, [0.95, 0.05])).certifies
