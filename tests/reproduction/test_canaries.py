"""Canaries in real runs: the many runs are Opacus' own, the attack has teeth, and what is certified stands."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from scipy.stats import norm

from dpmerge.auditing.findings import Finding
from dpmerge.errors import InvalidInputError
from dpmerge.portfolio import Portfolio
from dpmerge.portfolio.manifest import MANIFEST_NAME, Manifest
from reproduction.images import Images
from reproduction.one_run import one_run_guesses
from reproduction.scenarios.canaries import (
    Records,
    Worlds,
    attack_on,
    canary_scores,
    dark_pixels,
    framed,
    pixel_canaries,
    reached,
    recorded,
    train,
    trained,
)
from reproduction.scenarios.canary_audits import (
    CANARY_AUDITS,
    CHANCES,
    CLIP_NORM,
    DELTA,
    NOISE,
    ONE_RUN_DELTA,
    ONE_RUN_NOISE,
    RUNS,
    STEPS,
    Sizes,
    findings,
    merged_model,
    one_run_estimates,
    play_canary,
    setup,
)
from reproduction.scenarios.canary_scenarios import CANARIES
from reproduction.training import Setup
from tiny_experiments import TinyImages

SURE = 0.999
TRIALS = 60_000
SIZES = Sizes(images=60, border=5, whole_trainings=3_000)

Found = dict[str, tuple[Finding, ...]]


def images(classes: int = 2, border: int = 0, count: int = 60) -> Records:
    mnist = TinyImages().mnist()
    return framed(mnist.train[:count], mnist.train_labels[:count], classes=classes, border=border)


def with_canary(classes: int = 2) -> Records:
    return images(classes).and_also(pixel_canaries(images(classes), [0]))


def weights(run: Path, step: int) -> torch.Tensor:
    [saved] = [c for c in Manifest.read(run / MANIFEST_NAME).checkpoints if c.step == step]
    return safetensors.torch.load_file(run / saved.files[0].name)["weight"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("canaries")


@pytest.fixture(scope="module")
def found(folder: Path) -> Found:
    return {
        name: findings(name, folder, TinyImages(), trials=TRIALS, confidence=SURE, seed=3, sizes=SIZES)
        for name in CANARY_AUDITS
    }


# The many runs and the real ones


@pytest.mark.parametrize(("classes", "clip_norm"), [(2, CLIP_NORM), (10, CLIP_NORM), (10, 7.0)])
@pytest.mark.parametrize("adjacency", ["replace_one", "add_remove"])
def test_a_run_trained_again_is_the_one_that_opacus_trained(
    tmp_path: Path, classes: int, clip_norm: float, adjacency: str
) -> None:
    """All weights, with noise, rates that change, and (at 7) records that are clipped beside others that are not."""
    records = with_canary(classes)
    made = Setup(clip_norm=clip_norm, noise_multiplier=3.0, rates=tuple(0.002 / (1 + step) for step in range(STEPS)))
    train(records, made, tmp_path / "run", adjacency=adjacency, noise_seed=11)  # type: ignore[arg-type]
    expected = weights(tmp_path / "run", STEPS)
    clipped = records.features.norm(dim=1) * math.sqrt(1 - 1 / classes) > clip_norm  # by the first step
    assert clipped.all() if clip_norm == CLIP_NORM else 0.1 < clipped.float().mean() < 0.9
    noise = torch.Generator().manual_seed(11)
    again = trained(records, made, 1, lambda shape: torch.normal(0.0, 1.0, shape, generator=noise))
    assert expected.shape == (classes, 784)
    assert expected.abs().max() > 0.01
    torch.testing.assert_close(again[0], expected, atol=1e-6, rtol=0)
    [run] = Portfolio.load(tmp_path).runs
    assert run.mechanism.adjacency == adjacency
    assert run.mechanism.rates.tolist() == pytest.approx(made.rates)  # type: ignore[attr-defined]


def test_many_runs_are_as_many_single_ones() -> None:
    records, made = with_canary(), setup(5.0)
    drawn = torch.randn(STEPS, 3, 2, 784, generator=torch.Generator().manual_seed(1))
    streams = [iter(drawn), *(iter(drawn[:, [run]]) for run in range(3))]
    together, *alone = (
        trained(records, made, 3 if n == 0 else 1, lambda _, s=s: next(s)) for n, s in enumerate(streams)
    )
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-6, rtol=0)


def test_the_canary_is_clipped_at_every_step_of_a_real_run(tmp_path: Path) -> None:
    """From the weights that were kept after every step: its gradient is longer than C, in one direction."""
    records = with_canary()
    train(
        records,
        replace(setup(NOISE["replace_one"]), keep=tuple(range(1, STEPS + 1))),
        tmp_path / "run",
        adjacency="replace_one",
        noise_seed=5,
    )
    lengths = []
    for step in range(STEPS):
        now = np.zeros((2, 784)) if step == 0 else weights(tmp_path / "run", step).numpy().astype(float)
        chances = np.exp(now[:, 0]) / np.exp(now[:, 0]).sum()
        gradient = chances - np.array([1.0, 0.0])  # label 0, a white pixel in the corner
        lengths.append(np.linalg.norm(gradient))
        assert gradient[0] == pytest.approx(-gradient[1])
    assert min(lengths) > 1.2 * CLIP_NORM


@pytest.mark.parametrize("mirror", [1.0, -1.0])
def test_the_canary_is_clipped_at_every_step_of_all_simulated_runs(mirror: float) -> None:
    """A recurrence of its own in numpy: two weights, one pixel, the noisiest runs there are."""
    rng, made = np.random.default_rng(0), setup(max(NOISE.values()))
    now, least = np.zeros((200_000, 2)), math.inf
    for rate in made.rates:
        wrong = 1 / (1 + np.exp(mirror * (now[:, 0] - now[:, 1])))
        length = math.sqrt(2) * wrong
        least = min(least, float(length.min()))
        gradient = mirror * CLIP_NORM / math.sqrt(2) * np.array([-1.0, 1.0])
        now -= rate * (gradient + made.noise_multiplier * CLIP_NORM * rng.standard_normal(now.shape))
    assert least > 1.2 * CLIP_NORM


@pytest.mark.parametrize("pixel", [0, 406], ids=["one that only the canary has", "one in the middle"])
def test_pixels_and_records_left_out_do_not_change_the_trained_weights(pixel: int) -> None:
    records, made = with_canary(), setup(5.0)
    looked_at = torch.zeros(784, dtype=torch.bool)
    looked_at[pixel] = True
    reach = reached(records, looked_at)
    drawn = torch.randn(STEPS, 1, 2, 784, generator=torch.Generator().manual_seed(2))
    whole, part = iter(drawn), iter(drawn[..., reach.pixels])
    expected = trained(records, made, 1, lambda _: next(whole))[..., reach.pixels]
    torch.testing.assert_close(trained(reach.records, made, 1, lambda _: next(part)), expected, atol=1e-6, rtol=0)
    if pixel == 0:
        assert reach.records.features.tolist() == [[1.0]]
    else:
        assert len(reach.records.labels) == 60  # all images, which share pixels, and not the canary
        assert torch.equal(reach.pixels, images().features.any(dim=0))


@pytest.mark.parametrize("adjacency", ["replace_one", "add_remove"])
def test_scores_are_log_likelihood_ratios(adjacency: str) -> None:
    """Of N(±μ²/2, μ²), with μ² = Σ of (k/σ)² over the steps of both runs at equal weights."""
    worlds = Worlds.of(images(), pixel_canaries(images(), [0]), adjacency)  # type: ignore[arg-type]
    attack = attack_on(worlds, [(setup(9.0), 0.5)] * 2)
    mu = (2 if adjacency == "replace_one" else 1) * math.sqrt(2 * STEPS) / 9.0
    for world, sign in ((False, -1), (True, 1)):
        scores = attack.play(np.random.default_rng(1), TRIALS, world).scores
        assert scores.mean() == pytest.approx(sign * mu**2 / 2, abs=5 * mu / math.sqrt(TRIALS))
        assert scores.std() == pytest.approx(mu, rel=0.02)
        below = (scores < sign * mu**2 / 2 - 2 * mu).mean()
        assert below == pytest.approx(norm.cdf(-2), abs=5 * math.sqrt(norm.cdf(-2) / TRIALS))


# What is certified, and what stands


def by_subject(found: Found, name: str) -> dict[str, list[Finding]]:
    grouped: dict[str, list[Finding]] = {}
    for finding in found[name]:
        grouped.setdefault(finding.subject, []).append(finding)
    return grouped


def test_certified_figures_are_those_of_the_recorded_runs(found: Found) -> None:
    """μ of a run is k√T/σ; of k equal ones √k times that."""
    one = 2 * math.sqrt(STEPS) / NOISE["replace_one"]
    expected = {
        "canary_single, replace_one": one,
        "canary_single, add_remove": math.sqrt(STEPS) / NOISE["add_remove"],
        f"canary_average, 2 of {RUNS}": math.sqrt(2) * one,
        f"canary_average, {RUNS} of {RUNS}": math.sqrt(RUNS) * one,
        "canary_image": one,
        f"canary_one_run, {RUNS} of {RUNS}, one_run": math.sqrt(RUNS * STEPS) / ONE_RUN_NOISE,
    }
    flat = [finding for name in found for finding in found[name]]
    for subject, mu in expected.items():
        claims = [finding.claim for finding in flat if finding.subject == subject]
        assert claims
        assert [claim.mu for claim in claims] == pytest.approx([mu] * len(claims))
        for claim in claims:
            assert claim.value is not None
            assert _delta(mu, claim.value) == pytest.approx(ONE_RUN_DELTA if "one_run" in subject else DELTA, rel=1e-3)
            assert claim.proved == (claim.by != "merged_trajectory")


def _delta(mu: float, epsilon: float) -> float:
    return float(norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2))


def test_the_claim_of_a_draw_is_the_mean_of_its_deltas(found: Found) -> None:
    one = 2 * math.sqrt(STEPS) / NOISE["replace_one"]
    for finding in found["canary_selection"]:
        value = finding.claim.value
        assert value is not None
        spent = CHANCES[0] * _delta(one, value) + CHANCES[1] * _delta(math.sqrt(RUNS) * one, value)
        assert spent == pytest.approx(DELTA, rel=1e-3)
        assert finding.claim.proved


def test_no_certified_figure_is_violated(found: Found) -> None:
    flat = [finding for name in found for finding in found[name]]
    assert [finding.subject for finding in flat if finding.verdict == "violated"] == []
    assert all(finding.estimate.bound > 0 for finding in flat)


def test_single_runs_averages_and_draws_are_tight_by_the_distance_of_their_scores(found: Found) -> None:
    """And counting, which asks nothing of the scores, comes half the way with so few trials."""
    for name in ("canary_single", "canary_average", "canary_selection"):
        for subject, group in by_subject(found, name).items():
            least = min(finding.claim.value for finding in group)  # type: ignore[type-var]
            [ratio] = {finding.tightness for finding in group if finding.claim.value == least}
            assert ratio is not None
            assert group[0].estimate.estimator == ("counting" if subject.endswith("counted") else "gaussian")
            assert 0.45 < ratio < 1 if subject.endswith("counted") else 0.9 < ratio < 1, subject


def test_of_unequal_runs_less_is_seen_than_is_proved(found: Found) -> None:
    """These dynamics are as kind as merged_trajectory assumes: it is met, and the proved figures are not."""
    group = by_subject(found, "canary_average")["canary_average, unequal runs"]
    shown = {finding.claim.by: finding.tightness for finding in group}
    assert shown["merged_trajectory"] > 0.9  # type: ignore[operator]
    assert shown["joint_release"] < shown["last_step"] < 0.8  # type: ignore[operator]


def test_an_audit_states_as_many_bounds_as_its_confidence_is_shared_by(found: Found) -> None:
    for name, audit in CANARY_AUDITS.items():
        estimates = {id(finding.estimate): finding.estimate for finding in found[name]}
        assert len(estimates) == audit.bounds
        assert [e.confidence for e in estimates.values()] == pytest.approx(
            [1 - (1 - SURE) / audit.bounds] * audit.bounds
        )
    assert found["canary_image"][0].estimate.trials == SIZES.whole_trainings
    assert found["canary_image"][0].estimate.mu is None  # others answer to its pushes: nobody says it is Gaussian


def test_a_record_that_claims_twice_the_noise_is_caught(tmp_path: Path) -> None:
    """The manifest on disk is doctored; the run is what it was."""

    def looked() -> tuple[Finding, ...]:
        return findings("canary_single", tmp_path, TinyImages(), trials=100_000, confidence=SURE, seed=3, sizes=SIZES)

    honest = looked()
    for file in tmp_path.glob(f"*/*/{MANIFEST_NAME}"):
        manifest = json.loads(file.read_text())
        for block in manifest["mechanism"]["blocks"]:
            block["noise_multiplier"] *= 2
        file.write_text(json.dumps(manifest))
    doctored = looked()
    assert {finding.verdict for finding in honest} <= {"tight", "consistent"}
    assert [finding.verdict for finding in doctored] == ["violated"] * 4
    # The attack is the same; an alarm is confirmed on fresh trials, and the smaller bound counts.
    pairs = zip(doctored, honest, strict=True)
    assert all(d.estimate.bound <= h.estimate.bound for d, h in pairs)
    assert {(d.estimate.attacks, h.estimate.attacks) for d, h in zip(doctored, honest, strict=True)} == {(2, 1)}


# One run, many canaries


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Portfolio, Records, np.ndarray]:
    framed_images = images(border=3)
    canaries = pixel_canaries(framed_images, dark_pixels(framed_images))
    included = np.random.default_rng(8).random(len(canaries.labels)) < 0.5
    records = framed_images.and_also(canaries.some(torch.from_numpy(included)))
    setups = {f"run-{number}": setup(ONE_RUN_NOISE) for number in (1, 2)}
    home = tmp_path_factory.mktemp("planted")
    return recorded(home, "planted", records, setups, adjacency="add_remove", seed=1), canaries, included


def test_scores_come_from_the_merged_model_alone(planted: tuple[Portfolio, Records, np.ndarray]) -> None:
    """Of each canary's pixel its own class's weight less the other's, over √2; who was included is not asked."""
    portfolio, canaries, included = planted
    merged = merged_model(portfolio, 2)
    kept = [
        weights(portfolio.saved(f"{run.id}@{STEPS}").tensors["weight"][0].parent, STEPS).numpy()
        for run in portfolio.runs
    ]
    assert merged == pytest.approx((kept[0] + kept[1]) / 2, abs=1e-7)
    pixels, labels = canaries.features.argmax(dim=1).numpy(), canaries.labels.numpy()
    expected = (merged[labels, pixels] - merged[1 - labels, pixels]) / math.sqrt(2)
    scores = canary_scores(merged, canaries)
    assert scores == pytest.approx(expected, abs=1e-7)
    guesses, correct = one_run_guesses(scores, included, most_in=20, most_out=20)
    assert one_run_guesses(scores, ~included, most_in=20, most_out=20) == (guesses, guesses - correct)


def test_the_scores_of_included_canaries_are_higher_by_what_a_run_costs(
    planted: tuple[Portfolio, Records, np.ndarray],
) -> None:
    portfolio, canaries, included = planted
    scores = canary_scores(merged_model(portfolio, 2), canaries)
    apart = (scores[included].mean() - scores[~included].mean()) / scores[~included].std()
    assert len(scores) > 500
    assert apart == pytest.approx(math.sqrt(2 * STEPS) / ONE_RUN_NOISE, abs=5 * 2 / math.sqrt(len(scores)))


def test_tosses_that_were_not_used_for_training_are_not_guessed(planted: tuple[Portfolio, Records, np.ndarray]) -> None:
    portfolio, canaries, included = planted
    scores = canary_scores(merged_model(portfolio, 2), canaries)
    others = np.random.default_rng(9).permutation(included)
    assert all(estimate.bound > 1 for estimate in one_run_estimates(scores, included, SURE))
    assert all(estimate.bound == 0 for estimate in one_run_estimates(scores, others, SURE))


def test_a_draw_is_not_judged_by_a_gaussian_curve(found: Found) -> None:
    drawn = [finding for finding in found["canary_one_run"] if finding.claim.by == "random_selection"]
    assert [finding.estimate.estimator for finding in drawn] == ["one_run"]
    assert {f.estimate.estimator for f in found["canary_one_run"]} == {"one_run", "one_run_f_dp"}


# Running it


def test_the_same_seed_finds_the_same_and_another_does_not(found: Found, tmp_path: Path) -> None:
    def looked(seed: int) -> list[float]:
        again = findings(
            "canary_single", tmp_path, TinyImages(), trials=TRIALS, confidence=SURE, seed=seed, sizes=SIZES
        )
        return [finding.estimate.bound for finding in again]

    first = [finding.estimate.bound for finding in found["canary_single"]]
    assert len(set(first)) == len(first)
    assert looked(3) == first
    assert set(looked(4)).isdisjoint(first)


def test_finished_runs_are_found_again_and_others_trained_anew(tmp_path: Path) -> None:
    def made(**changes: float) -> Portfolio:
        setups = {"run-1": replace(setup(9.0), **changes), "run-2": setup(9.0)}
        return recorded(tmp_path, "some", with_canary(), setups, adjacency="replace_one", seed=1)

    first = made()
    [home] = tmp_path.iterdir()
    before = {file: file.stat().st_mtime_ns for file in home.rglob("*.*")}
    made()
    assert {file: file.stat().st_mtime_ns for file in home.rglob("*.*")} == before
    manifest = home / "run-1" / MANIFEST_NAME
    manifest.write_text(manifest.read_text().replace('"finished": true', '"finished": false'))
    made()
    assert Manifest.read(manifest).finished
    made(noise_multiplier=10.0)
    assert len(list(tmp_path.iterdir())) == 2
    assert len({run.manifest.noise.seed for run in first.runs}) == 2  # type: ignore[union-attr]


def test_weights_of_another_run_are_refused(tmp_path: Path) -> None:
    records, setups = with_canary(), {"run": setup(9.0)}
    recorded(tmp_path, "some", records, setups, adjacency="replace_one", seed=1)
    [home] = tmp_path.iterdir()
    for file in (home / "run").iterdir():
        file.unlink()
    train(records, setup(9.0), home / "run", adjacency="replace_one", noise_seed=1)
    with pytest.raises(InvalidInputError, match="other weights; accepted: the weights of its setup and noise; delete"):
        recorded(tmp_path, "some", records, setups, adjacency="replace_one", seed=1)


def test_an_audit_with_canaries_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    played = play_canary("canary_selection", TinyImages(), trials=4_000, confidence=SURE, seed=1)
    assert played.as_theory_says
    assert (played.name, played.words) == ("canary_selection", CANARIES["canary_selection"])
    assert list(tmp_path.iterdir()) == []


class White:
    """Images without a black pixel."""

    def mnist(self) -> Images:
        some = np.full((80, 784), 255, dtype=np.uint8)
        return Images(some, np.zeros(80, dtype=np.uint8), some, np.zeros(80, dtype=np.uint8))

    cifar10 = mnist


@pytest.mark.parametrize("name", ["canary_single", "canary_selection"])
def test_images_without_a_black_pixel_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        InvalidInputError, match=r"^pixels: got \[\]; accepted: at least one pixel that is black in every"
    ):
        findings(name, tmp_path, White(), trials=100, sizes=SIZES)


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        ([0, 406], r"^pixels: got \[406\]; accepted: pixels that are black in every image"),
        ([0, 1, 0], r"^pixels: got \[0, 1, 0\]; accepted: each pixel once"),
    ],
    ids=["a pixel of an image", "a pixel twice"],
)
def test_pixels_that_are_not_a_canarys_alone_are_refused(pixels: list[int], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        pixel_canaries(images(), pixels)


def test_a_name_of_no_audit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="^scenario: got 'canary'; accepted: canary_single, canary_average"):
        findings("canary", tmp_path, TinyImages())
