"""CIFAR-10: a ResNet18 pretrained without privacy on one half of the images, fine-tuned with DP-SGD on the other.

Guarantees: privacy is that of the private half alone, as in the paper; every figure says how large the network was and
how many images there were.
"""

from __future__ import annotations

from typing import Any

from dpmerge.report.plots import Drawing, values
from reproduction.pareto import pareto
from reproduction.pareto_findings import pareto_drawing, pareto_statements
from reproduction.run_store import RunStore
from reproduction.statements import Statement, Verdict, all_hold, difference, told_at_size
from reproduction.tasks import PRETRAINING_BATCH, PRETRAINING_RATE
from reproduction.training import Setup

TITLE = "CIFAR-10: fine-tuning a pretrained ResNet18"

RATE = 0.1

_SOURCE = "paper, CIFAR-10 frontiers"


def setups(store: RunStore) -> dict[str, Setup]:
    """C in {2, 4} × σ in {16, 32}, full batch, one rate."""
    rates = (RATE,) * store.preset.cifar.steps
    return {
        f"c{clip_norm}-s{noise}": Setup(clip_norm=float(clip_norm), noise_multiplier=float(noise), rates=rates)
        for clip_norm in (2, 4)
        for noise in (16, 32)
    }


def settings(store: RunStore) -> dict[str, Any]:
    return {
        "task": store.cifar10.described,
        "scale": store.preset.document()["cifar"],
        "pretraining": f"on other images, by plain SGD, batch {PRETRAINING_BATCH}, rate {PRETRAINING_RATE}, no privacy",
        "normalisation": "by groups: batch normalisation would mix records",
        "runs": {name: setup.document() for name, setup in setups(store).items()},
        "adjacency": "replace_one",
    }


def measure(store: RunStore) -> dict[str, Any]:
    """The frontiers, and what the pretrained model scored before any private image was seen."""
    scale, task = store.preset.cifar, store.cifar10
    found = pareto(store, task, "cifar10-paper", setups(store), repeats=scale.seeds, resolution=scale.resolution)
    start = {name: tensor.detach().numpy() for name, tensor in task.model().state_dict().items()}
    described = {"task": task.described, "papers_size": task.papers_size}
    return {**found, **described, "pretrained": [float(score(start)) for score in task.evaluators]}


def drawings(numbers: dict[str, Any]) -> list[Drawing]:
    heading = "What each privacy level costs in accuracy on CIFAR-10, by method"
    return [pareto_drawing(numbers, name="cifar10-frontier", heading=heading, note=numbers["task"])]


def statements(numbers: dict[str, Any]) -> list[Statement]:
    found = [*pareto_statements(numbers, source=_SOURCE), _fine_tuning_helps(numbers)]
    return told_at_size(found, papers=numbers["papers_size"], repetitions=len(numbers["accuracies"]))


def _fine_tuning_helps(numbers: dict[str, Any]) -> Statement:
    """Whether there is anything to merge: the private images must have taught the models something."""
    accuracies = values(numbers["accuracies"])  # [repeat, model, half]
    before = values(numbers["pretrained"]).mean()
    gains = {
        name: difference(accuracies[:, place].mean(axis=1) - before) for place, name in enumerate(numbers["names"])
    }
    kinds = {gain.kind for gain in gains.values()}
    verdict: Verdict = all_hold([gain.kind == "higher" for gain in gains.values()])
    if verdict == "disagrees" and "lower" not in kinds:
        verdict = "within noise"
    told = "; ".join(f"{name} {gain}" for name, gain in gains.items())
    return Statement(
        claim="Fine-tuning with privacy improves on the pretrained model.",
        source="the paper's premise",
        verdict=verdict,
        measured=f"The pretrained model scores {100 * before:.1f} %; fine-tuned: {told}.",
        why="Where it is lower, noise took more than the private images gave." if "lower" in kinds else "",
    )
