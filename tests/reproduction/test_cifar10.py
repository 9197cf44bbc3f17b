"""The network by hand, the split by content, pretraining that goes on, runs as recorded, and verdicts that flip."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch.nn import functional

from dpmerge import Portfolio
from dpmerge.accounting import DEFAULT_ORDERS
from dpmerge.portfolio.manifest import Manifest
from dpmerge.report.plots import Panels, values
from oracle import gaussian_mp
from reproduction import cifar10, tasks
from reproduction.pareto import ASSUMED_PLD, ASSUMED_RDP, PROVED, SELECT_PLD, SELECT_RDP
from reproduction.presets import DELTA, PRESETS, CifarScale
from reproduction.resnet import ResNet18
from reproduction.run_store import RunStore
from reproduction.statements import Statement
from reproduction.training import Task
from tiny_experiments import TINY, TinyImages, roundtrip

Numbers = dict[str, Any]
Weights = dict[str, torch.Tensor]

IMAGES = TinyImages().cifar10()
MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).reshape(1, 3, 1, 1)
DEVIATION = torch.tensor([0.247, 0.2435, 0.2616]).reshape(1, 3, 1, 1)
SETTINGS = [(2.0, 16.0), (2.0, 32.0), (4.0, 16.0), (4.0, 32.0)]  # C and σ of the paper, appendix on CIFAR-10


@pytest.fixture(scope="module")
def numbers(store: RunStore) -> Numbers:
    return roundtrip(cifar10.measure(store))


@pytest.fixture(scope="module")
def portfolios(store: RunStore, numbers: Numbers) -> list[Portfolio]:
    found = cifar10.setups(store)
    return [store.portfolio(store.cifar10, "cifar10-paper", found, repeat=k) for k in range(TINY.cifar.seeds)]


def pretrained(store: RunStore) -> Weights:
    assert store.cifar10.start == "public"
    [file] = store.folder.glob("pretrained-*.safetensors")
    return safetensors.torch.load_file(file)


# The network


def by_hand(weights: Weights, images: torch.Tensor) -> torch.Tensor:
    """ResNet18 written out: group normalisation by its definition, two channels a group up to 32 groups."""

    def normalised(inputs: torch.Tensor, name: str) -> torch.Tensor:
        channels = inputs.shape[1]
        groups = inputs.reshape(len(inputs), min(32, channels // 2), -1)
        centred = groups - groups.mean(dim=2, keepdim=True)
        scaled = (centred / (centred.square().mean(dim=2, keepdim=True) + 1e-5).sqrt()).reshape(inputs.shape)
        return scaled * weights[f"{name}.weight"][:, None, None] + weights[f"{name}.bias"][:, None, None]

    inner = normalised(functional.conv2d(images, weights["stem.weight"], padding=1), "stem_norm").relu()
    for block in range(8):
        name, stride = f"blocks.{block}", 2 if block in (2, 4, 6) else 1
        branch = functional.conv2d(inner, weights[f"{name}.first.weight"], stride=stride, padding=1)
        branch = normalised(branch, f"{name}.first_norm").relu()
        branch = normalised(
            functional.conv2d(branch, weights[f"{name}.second.weight"], padding=1), f"{name}.second_norm"
        )
        if stride == 2:
            inner = functional.conv2d(inner, weights[f"{name}.around.0.weight"], stride=2)
            inner = normalised(inner, f"{name}.around.1")
        inner = (branch + inner).relu()
    return inner.mean(dim=(2, 3)) @ weights["head.weight"].T + weights["head.bias"]


def pictures(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, 32, 32, generator=generator), torch.randint(0, 10, (count,), generator=generator)


def scattered(width: int) -> ResNet18:
    """A network of which no parameter is at a value that hides it."""
    torch.manual_seed(11)
    network = ResNet18(width)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.2 * torch.randn(parameter.shape)
    return network


def doubled(network: torch.nn.Module) -> Weights:
    return {name: tensor.detach().double() for name, tensor in network.state_dict().items()}


@pytest.mark.parametrize("width", [4, 8])
def test_the_network_is_the_resnet_written_out(width: int) -> None:
    network, (images, _) = scattered(width), pictures(5)
    found = network(images).detach().double()
    assert found.shape == (5, 10)
    assert found.numpy() == pytest.approx(by_hand(doubled(network), images.double()).numpy(), abs=1e-4)
    assert found.std() > 0.1


def test_the_full_network_is_as_large_as_the_original() -> None:
    """The count of the usual ResNet18 of CIFAR-10: of its norms, too, each channel has a scale and a shift."""
    with torch.device("meta"):  # shapes without values
        network = ResNet18()
    convolutions, channels = 9 * 3 * 64, 64
    inputs = 64
    for outputs in (64, 128, 256, 512):
        convolutions += 9 * inputs * outputs + 3 * 9 * outputs * outputs
        channels += 4 * outputs
        if inputs != outputs:
            convolutions += inputs * outputs
            channels += outputs
        inputs = outputs
    assert convolutions + 2 * channels + 512 * 10 + 10 == 11_173_962
    assert sum(parameter.numel() for parameter in network.parameters()) == 11_173_962
    assert not list(network.buffers())  # no running statistics: nothing but what DP-SGD has noised


@pytest.mark.parametrize("block", range(8))
def test_every_residual_branch_changes_the_output(block: int) -> None:
    network, (images, _) = scattered(4), pictures(2)
    before = network(images)
    with torch.no_grad():
        network.get_submodule(f"blocks.{block}.second").weight.mul_(-1)
    assert (network(images) - before).abs().max() > 1e-3


def test_the_output_for_a_record_does_not_depend_on_the_others() -> None:
    network, (images, _) = scattered(4).train(), pictures(6)
    together = network(images).detach()
    for place, image in enumerate(images):
        assert network(image[None])[0].detach().numpy() == pytest.approx(together[place].numpy(), abs=1e-4)
    others = torch.cat([images[:1], 100 * pictures(5, seed=1)[0]])
    assert network(others)[0].detach().numpy() == pytest.approx(together[0].numpy(), abs=1e-4)


# The split


def places(shown: torch.Tensor) -> list[int]:
    """Which training images these are, by their bytes."""
    known = {row.tobytes(): place for place, row in enumerate(IMAGES.train)}
    assert len(known) == len(IMAGES.train)
    pixels = torch.round((shown * DEVIATION + MEAN) * 255).to(torch.uint8).numpy()
    return [known[picture.tobytes()] for picture in pixels]


class Splits:
    """Tasks without pretraining: what would have been shown to it is noted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.public: list[int] = []
        self.ends_at = 0

    def pretrain(self, images: torch.Tensor, labels: torch.Tensor, scale: CifarScale, file: Path, *_: Any) -> None:
        self.public = places(images)
        assert labels.tolist() == IMAGES.train_labels[self.public].tolist()
        torch.manual_seed(self.ends_at)
        safetensors.torch.save_file(ResNet18(2).state_dict(), file)

    def task(self, scale: CifarScale, seed: int = 42) -> Task:
        return tasks.cifar_task(IMAGES, scale, self.folder, seed)

    def split(self, seed: int = 42, **sizes: Any) -> tuple[list[int], list[int]]:
        """The pretraining images and the private ones."""
        images, labels = self.task(replace(TINY.cifar, **sizes), seed).private.tensors
        private = places(images)
        assert labels.tolist() == IMAGES.train_labels[private].tolist()
        return self.public, private


@pytest.fixture
def splits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Splits:
    made = Splits(tmp_path)
    monkeypatch.setattr(tasks, "pretrain", made.pretrain)
    return made


def test_no_private_image_is_shown_to_pretraining(splits: Splits) -> None:
    public, private = splits.split()
    assert (len(set(public)), len(set(private))) == (TINY.cifar.pretraining, TINY.cifar.records)
    assert not set(public) & set(private)
    public, private = splits.split(pretraining=25_000, records=25_000)
    assert len(public) == len(private) == 100
    assert sorted(public + private) == list(range(200))


def test_the_split_depends_on_the_seed_alone(splits: Splits) -> None:
    public, private = splits.split(pretraining=100, records=100)
    torch.manual_seed(0)
    assert splits.split() == (public[: TINY.cifar.pretraining], private[: TINY.cifar.records])
    assert splits.split(width=8, epochs=2, augmented=True, tests=10, pretraining=7, records=9) == (
        public[:7],
        private[:9],
    )
    assert public != sorted(public)
    others, hidden = splits.split(seed=43, pretraining=100, records=100)
    assert set(others) != set(public)
    assert set(hidden) == set(range(200)) - set(others)


def test_runs_on_other_data_or_from_another_start_are_kept_under_other_settings(splits: Splits) -> None:
    def kept(seed: int = 42, ends_at: int = 0, **sizes: Any) -> str:
        splits.ends_at = ends_at
        return json.dumps(splits.task(replace(TINY.cifar, **sizes), seed).settings, sort_keys=True)

    assert kept() == kept()
    assert len({kept(), kept(seed=43), kept(records=9), kept(ends_at=1)}) == 4


def test_pretrained_weights_are_kept_under_what_they_were_made_from(splits: Splits, tmp_path: Path) -> None:
    others: list[dict[str, Any]] = [{"pretraining": 9}, {"augmented": True}, {"epochs": 2}, {"width": 8}]
    for sizes in ({}, *others):
        splits.task(replace(TINY.cifar, **sizes))
    splits.task(TINY.cifar, seed=43)
    assert len(list(tmp_path.glob("pretrained-*.safetensors"))) == 6
    splits.task(replace(TINY.cifar, records=9, tests=8, seeds=1, steps=3, physical_batch=4))
    assert len(list(tmp_path.glob("pretrained-*.safetensors"))) == 6
    other = IMAGES._replace(train=IMAGES.train ^ 1)
    with pytest.raises(KeyError):  # other images: not what is known to this test, and not what was kept
        tasks.cifar_task(other, TINY.cifar, tmp_path, 42)


# Pretraining


def pretrain(images: torch.Tensor, labels: torch.Tensor, scale: CifarScale, file: Path) -> list[tuple[int, int]]:
    seen: list[tuple[int, int]] = []
    tasks.pretrain(images, labels, scale, file, 7, lambda done, total: seen.append((done, total)))
    return seen


def test_pretraining_is_plain_sgd_from_the_seed(tmp_path: Path) -> None:
    """One epoch of one batch is one step against the gradient of the mean loss, whatever the order."""
    images, labels = pictures(20)
    scale = CifarScale(width=4, epochs=1, augmented=False)
    assert pretrain(images, labels, scale, tmp_path / "a.safetensors") == [(1, 1)]
    torch.manual_seed(7)
    start = {name: tensor.requires_grad_() for name, tensor in doubled(ResNet18(4)).items()}
    logits = by_hand(start, images.double())
    loss = (logits.logsumexp(dim=1) - logits[torch.arange(20), labels]).mean()
    gradients = torch.autograd.grad(loss, list(start.values()))
    found = safetensors.torch.load_file(tmp_path / "a.safetensors")
    assert found.keys() == start.keys()
    for (name, before), gradient in zip(start.items(), gradients, strict=True):
        assert (found[name] - before).detach().numpy() == pytest.approx(-0.1 * gradient.numpy(), abs=1e-6), name
    assert max(float(gradient.abs().max()) for gradient in gradients) > 0.01


@pytest.mark.parametrize("augmented", [False, True])
def test_interrupted_pretraining_goes_on_as_if_nothing_had_happened(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, augmented: bool
) -> None:
    images, labels = pictures(130)  # a batch of 128, and what is left
    scale = CifarScale(width=2, epochs=3, augmented=augmented)
    whole, cut, plain = (tmp_path / name / "pretrained.safetensors" for name in ("whole", "cut", "plain"))
    taken: list[int] = []

    class PowerCutError(Exception):
        pass

    class Cut(torch.optim.SGD):
        last = 1_000

        def step(self, *_: Any) -> None:  # type: ignore[override]
            if len(taken) == self.last:
                raise PowerCutError
            taken.append(1)
            super().step()

    monkeypatch.setattr(torch.optim, "SGD", Cut)
    assert pretrain(images, labels, scale, whole) == [(1, 3), (2, 3), (3, 3)]
    assert len(taken) == 6
    taken.clear()
    Cut.last = 3  # in the midst of the second epoch
    with pytest.raises(PowerCutError):
        pretrain(images, labels, scale, cut)
    assert not cut.exists()
    taken.clear()
    Cut.last = 4
    assert pretrain(images, labels, scale, cut) == [(2, 3), (3, 3)]
    assert cut.read_bytes() == whole.read_bytes()
    assert [file.name for file in cut.parent.iterdir()] == [cut.name]
    Cut.last = len(taken)  # not one step more
    before = cut.stat().st_mtime_ns
    assert pretrain(images, labels, scale, cut) == []
    assert cut.stat().st_mtime_ns == before
    if augmented:
        Cut.last = 1_000
        pretrain(images, labels, replace(scale, augmented=False), plain)
        assert plain.read_bytes() != whole.read_bytes()


def test_augmented_images_are_flipped_or_not_and_moved_by_up_to_four_pixels() -> None:
    """Every way to flip and move is tried: exactly one gives the image that was made."""
    images, _ = pictures(64)
    untouched = images.clone()
    found = tasks._augmented(images, torch.Generator().manual_seed(3))
    assert torch.equal(images, untouched)
    assert found.shape == images.shape
    assert torch.equal(found, tasks._augmented(images, torch.Generator().manual_seed(3)))
    ways: list[list[tuple[int, int, bool]]] = [[] for _ in images]
    for down in range(-4, 5):
        for across in range(-4, 5):
            for flipped in (False, True):
                moved = torch.zeros_like(images)
                source = images.flip(3) if flipped else images
                moved[:, :, max(0, -down) : 32 - max(0, down), max(0, -across) : 32 - max(0, across)] = source[
                    :, :, max(0, down) : 32 + min(0, down), max(0, across) : 32 + min(0, across)
                ]
                for place in (found == moved).flatten(1).all(dim=1).nonzero().ravel().tolist():
                    ways[place].append((down, across, flipped))
    assert [len(of) for of in ways] == [1] * len(images)
    downs, acrosses, flips = (set(of) for of in zip(*(way for [way] in ways), strict=True))
    assert downs == acrosses == set(range(-4, 5))
    assert flips == {False, True}
    assert 16 < sum(way[2] for [way] in ways) < 48
    assert any(down != across for [(down, across, _)] in ways)


def test_the_pretrained_network_is_better_than_at_its_start(store: RunStore, numbers: Numbers) -> None:
    """Of four classes, among ten answers."""
    found = pretrained(store)
    assert min(numbers["pretrained"]) > 0.5
    assert numbers["pretrained"] == pytest.approx(halves(found))
    torch.manual_seed(store.seed)
    assert max(halves(ResNet18(TINY.cifar.width).state_dict())) <= 0.5  # at which it began
    model = store.cifar10.model()
    assert all(torch.equal(tensor, found[name]) for name, tensor in model.state_dict().items())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert all(torch.equal(tensor, found[name]) for name, tensor in store.cifar10.model().state_dict().items())


def halves(weights: Weights) -> list[float]:
    """Accuracy on every second test image, and on the others."""
    count = TINY.cifar.tests
    shown = (torch.from_numpy(IMAGES.test[:count]).reshape(-1, 3, 32, 32) / 255 - MEAN) / DEVIATION
    double = {name: tensor.double() for name, tensor in weights.items()}
    right = by_hand(double, shown.double()).argmax(dim=1).numpy() == IMAGES.test_labels[:count]
    return [float(right[::2].mean()), float(right[1::2].mean())]


# The runs


@pytest.mark.parametrize("preset", [TINY, *PRESETS.values()], ids=lambda preset: preset.name)
def test_the_setups_of_cifar10_are_the_papers(tmp_path: Path, preset: Any) -> None:
    found = list(cifar10.setups(RunStore(tmp_path, preset, TinyImages())).values())
    assert [(setup.clip_norm, setup.noise_multiplier) for setup in found] == SETTINGS
    for setup in found:
        assert setup.rates == (0.1,) * (5 if preset is TINY else 20)
        assert setup.batch is None
        assert setup.keep == ()


def test_runs_are_recorded_as_full_batches_from_a_public_start(store: RunStore, portfolios: list[Portfolio]) -> None:
    start = {name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for name, tensor in pretrained(store).items()}
    found: list[Manifest] = [run.manifest for portfolio in portfolios for run in portfolio.runs]
    for manifest, (clip_norm, noise) in zip(found, SETTINGS * TINY.cifar.seeds, strict=True):
        assert manifest.finished
        assert manifest.adjacency == "replace_one"
        assert manifest.dataset.size == TINY.cifar.records
        assert manifest.ancestry.start == "public"
        facts = manifest.document()["mechanism"]
        assert (facts["kind"], facts["sampling"], facts["clipping"]) == ("dp_sgd", "full_batch", "per_example")
        [block] = facts["blocks"]
        assert (block["steps"], block["clip_norm"], block["noise_multiplier"]) == (TINY.cifar.steps, clip_norm, noise)
        assert block["sampling_rate"] == 1
        assert block["learning_rate"] == pytest.approx(0.1 / TINY.cifar.records)
        assert manifest.tensors is not None
        assert manifest.tensors.initial == start
        assert not manifest.tensors.frozen
        assert [saved.step for saved in manifest.checkpoints] == [TINY.cifar.steps]
    assert len({manifest.noise.seed for manifest in found}) == len(found) == 8


def test_costs_of_the_models_are_the_closed_form(numbers: Numbers) -> None:
    orders = DEFAULT_ORDERS.tolist()
    for place, (_, noise) in enumerate(SETTINGS):
        mu = 2 * TINY.cifar.steps**0.5 / noise
        assert numbers["model_epsilons"]["pld"][place] == pytest.approx(float(gaussian_mp.epsilon(mu, DELTA)), rel=1e-9)
        assert numbers["model_epsilons"]["rdp"][place] == pytest.approx(
            float(gaussian_mp.rdp_epsilon(mu, DELTA, orders, "classic")), rel=1e-9
        )


def test_accuracies_are_those_of_the_weights_on_disk(numbers: Numbers, portfolios: list[Portfolio]) -> None:
    assert values(numbers["accuracies"]).shape == (TINY.cifar.seeds, 4, 2)
    for portfolio, accuracies in zip(portfolios, numbers["accuracies"], strict=True):
        for run, found in zip(portfolio.runs, accuracies, strict=True):
            weights = safetensors.torch.load_file(run.checkpoints[-1].files[0])
            assert found == pytest.approx(halves(weights)), run.id


# What is said of them


def statement(numbers: Numbers, part: str) -> Statement:
    [found] = [s for s in cifar10.statements(numbers) if part in s.claim]
    return found


NOISE = 0.001 * np.array([[1], [-1]])
"""Of two repetitions: a margin of 12.7 · 0.001."""


def _dearer(numbers: Numbers, *keys: str) -> None:
    for key in keys:
        numbers["epsilons"][key] = [2 * cost for cost in numbers["epsilons"][key]]


def _gain(numbers: Numbers, key: str, gain: float) -> None:
    base = values(numbers["curves"][SELECT_PLD]["held_out"])
    numbers["curves"][key]["held_out"] = (base + gain + NOISE).tolist()


def _slope(numbers: Numbers, slope: float, dent: float = 0.0) -> None:
    drawn = 0.5 + slope * np.linspace(0, 1, len(numbers["targets"])) + NOISE
    drawn[:, 30] -= dent
    for curve in numbers["curves"].values():
        curve["held_out"] = drawn.tolist()


def _merge(numbers: Numbers, gain: float, *, in_sample: bool = False) -> None:
    best = numbers["best"]["in_sample"] if in_sample else numbers["best"]
    best["merge"] = [score + gain for score in best["model"]]


def _tuned(numbers: Numbers, *gains: float, noise: float = 0.001) -> None:
    """Models better than the pretrained one by these gains, in two repetitions of opposite noise."""
    numbers["pretrained"] = [0.4, 0.6]
    numbers["accuracies"] = [[[0.45 + g + n, 0.55 + g + n] for g in gains] for n in (noise, -noise)]


FLIPS: dict[str, dict[str, Callable[[Numbers], None]]] = {
    "by PLD is smaller": {
        "agrees": lambda _: None,
        "agrees in part": lambda numbers: _dearer(numbers, SELECT_PLD),
        "disagrees": lambda numbers: _dearer(numbers, SELECT_PLD, ASSUMED_PLD),
    },
    "(assumed, not proved here)": {
        "agrees": lambda numbers: _gain(numbers, ASSUMED_PLD, 0.02),
        "disagrees": lambda numbers: _gain(numbers, ASSUMED_PLD, -0.02),
        "within noise": lambda numbers: _gain(numbers, ASSUMED_PLD, 0.01),
    },
    "by joint release": {
        "agrees": lambda numbers: _gain(numbers, PROVED, 0.02),
        "disagrees": lambda numbers: _gain(numbers, PROVED, -0.02),
        "within noise": lambda numbers: _gain(numbers, PROVED, 0.01),
    },
    "monotone": {
        "agrees": lambda numbers: _slope(numbers, 0.3),
        "agrees in part": lambda numbers: _slope(numbers, 0.3, dent=0.1),
        "disagrees": lambda numbers: _slope(numbers, -0.3),
        "within noise": lambda numbers: _slope(numbers, 0.0),
    },
    "measured on the other": {
        "agrees": lambda numbers: _merge(numbers, 0.05),
        "disagrees": lambda numbers: _merge(numbers, -0.05),
        "within noise": lambda numbers: _merge(numbers, 0.0),
    },
    "measured on the same images": {
        "agrees": lambda numbers: _merge(numbers, 0.05, in_sample=True),
        "disagrees": lambda numbers: _merge(numbers, -0.05, in_sample=True),
        "within noise": lambda numbers: _merge(numbers, 0.0, in_sample=True),
    },
    "Fine-tuning": {
        "agrees": lambda numbers: _tuned(numbers, 0.02, 0.02, 0.1, 0.02),
        "agrees in part": lambda numbers: _tuned(numbers, 0.02, 0.02, -0.02, 0.02),
        "disagrees": lambda numbers: _tuned(numbers, -0.02, -0.02, -0.02, -0.02),
        "within noise": lambda numbers: _tuned(numbers, 0.02, 0.02, 0.02, 0.02, noise=0.01),
    },
}


@pytest.mark.parametrize(("part", "expected"), [(part, expected) for part in FLIPS for expected in FLIPS[part]])
def test_verdicts_are_decided_by_the_numbers(numbers: Numbers, part: str, expected: str) -> None:
    other = {**copy.deepcopy(numbers), "papers_size": True}
    FLIPS[part][expected](other)
    assert statement(other, part).verdict == expected
    smaller = "not tested at this size" if expected == "within noise" else expected
    assert statement({**other, "papers_size": False}, part).verdict == smaller


def test_one_repetition_of_the_papers_size_tests_nothing_and_is_not_given_an_infinite_error(numbers: Numbers) -> None:
    once = {**copy.deepcopy(numbers), "papers_size": True}
    once["accuracies"] = once["accuracies"][:1]
    for curve in once["curves"].values():
        curve.update({how: rows[:1] for how, rows in curve.items()})
    for best in (once["best"], once["best"]["in_sample"]):
        best.update({key: rows[:1] for key, rows in best.items() if isinstance(rows, list)})
    found = cifar10.statements(once)
    assert [s.verdict for s in found] == ["agrees"] + ["not tested at this size"] * 6
    assert not any("inf" in s.measured for s in found)
    assert all("points (once)" in s.measured for s in found[1:])
    [panels] = cifar10.drawings(once)
    assert isinstance(panels, Panels)
    assert "one repetition:" in panels.words
    assert "confidence" not in panels.words
    assert all(series.error is None for plot in panels.plots for series in plot.series)


def test_every_statement_on_cifar10_has_a_case_in_which_it_fails(numbers: Numbers) -> None:
    found = cifar10.statements(numbers)
    assert len(found) == len(FLIPS)
    assert len({statement(numbers, part).claim for part in FLIPS}) == len(FLIPS)
    assert [s.source for s in found].count("paper, CIFAR-10 frontiers") == 4
    assert [s.source for s in found].count("paper, CIFAR-10 frontiers, held out") == 1


def test_the_statement_on_fine_tuning_lists_the_gain_of_every_model(numbers: Numbers) -> None:
    other = copy.deepcopy(numbers)
    _tuned(other, 0.1, -0.1, 0.02, 0.0)
    found = statement(other, "Fine-tuning")
    assert "scores 50.0 %" in found.measured
    gains = ("c2-s16 +10.00", "c2-s32 -10.00", "c4-s16 +2.00", "c4-s32 +0.00")
    assert "; ".join(f"{gain} ± 1.27 points" for gain in gains) in found.measured.replace("-0.00", "+0.00")
    assert found.why
    _tuned(other, 0.1, 0.1, 0.1, 0.1)
    assert not statement(other, "Fine-tuning").why


def test_the_drawing_of_cifar10_shows_what_was_measured(store: RunStore, numbers: Numbers) -> None:
    [panels] = cifar10.drawings(numbers)
    assert isinstance(panels, Panels)
    assert panels.name == "cifar10-frontier"
    assert panels.note == numbers["task"] == store.cifar10.described
    held_out, in_sample = panels.plots
    assert [(s.name, s.colour, s.dashed, s.dotted) for s in in_sample.series] == [
        (s.name, s.colour, s.dashed, s.dotted) for s in held_out.series
    ]
    for series, key in zip(in_sample.series, (SELECT_RDP, SELECT_PLD, ASSUMED_RDP, ASSUMED_PLD), strict=False):
        assert series.y == pytest.approx(values(numbers["curves"][key]["in_sample"]).mean(axis=0), nan_ok=True)
    plot = held_out
    assert "width 4 (not 64)" in plot.note
    assert [s.dashed for s in plot.series] == ["(assumed)" in s.name for s in plot.series]
    drawn = {s.name: s for s in plot.series}
    for name, key in (("random selection, PLD", SELECT_PLD), ("random selection, RDP", SELECT_RDP)):
        assert drawn[name].y == pytest.approx(values(numbers["curves"][key]["held_out"]).mean(axis=0), nan_ok=True)
    [assumed] = [s for s in plot.series if s.dashed and s.dotted]
    expected = values(numbers["curves"][ASSUMED_RDP]["held_out"]).mean(axis=0)
    assert assumed.y == pytest.approx(expected, nan_ok=True)
    assert plot.series[-1].x == pytest.approx(numbers["model_epsilons"]["pld"])
    assert plot.series[-1].y == pytest.approx(values(numbers["accuracies"]).mean(axis=(0, 2)))
    assert "not proved here" in panels.words


def test_the_note_says_what_is_not_the_papers_size(splits: Splits, numbers: Numbers) -> None:
    def note(name: str) -> str:
        described = splits.task(PRESETS[name].cifar).described
        [plot] = cifar10.drawings({**numbers, "task": described})
        assert plot.note == described
        return described

    assert "width 8 (not 64)" in note("small")
    assert "2,000 (not 25,000) private" in note("small")
    assert "(not" not in note("paper")
    assert "25,000 private" in note("paper")


def test_the_settings_of_cifar10_hold_scale_runs_and_pretraining(store: RunStore) -> None:
    stated = json.loads(json.dumps(cifar10.settings(store)))
    assert stated["task"] == store.cifar10.described
    assert stated["scale"] == {name: getattr(TINY.cifar, name) for name in CifarScale.__dataclass_fields__}
    assert stated["adjacency"].startswith("replace_one")
    assert [(run["clip_norm"], run["noise_multiplier"]) for run in stated["runs"].values()] == SETTINGS
    assert list(stated["runs"]) == ["c2-s16", "c2-s32", "c4-s16", "c4-s32"]
    assert all(run["rates"] == [0.1] * 5 and run["batch"] is None for run in stated["runs"].values())
    assert "batch 128, rate 0.1, no privacy" in stated["pretraining"]
