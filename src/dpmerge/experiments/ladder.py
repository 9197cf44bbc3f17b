"""The ladder: averages of k of N equal runs, beside training once, random selection and shorter runs at the same ε.

Guarantees: every ε is that of a joint release, which needs no premise but independent noise (docs/theory.md); what is
compared has the same ε (a shorter run: at most that) and is paired within a repetition.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from dpmerge.evaluation.merged_model import StoredModel, combined
from dpmerge.experiments.presets import DELTA, Preset
from dpmerge.experiments.statements import Difference, Statement, Verdict, all_hold, difference, margins
from dpmerge.experiments.training import Setup, Task, warm_up_and_decay
from dpmerge.experiments.workshop import Workshop
from dpmerge.planning.candidates import Candidate, candidate
from dpmerge.planning.plan import Plan
from dpmerge.planning.planner import plan
from dpmerge.planning.program import best_mixture
from dpmerge.planning.target import Guarantee
from dpmerge.portfolio import Portfolio
from dpmerge.portfolio.recipe import Recipe
from dpmerge.privacy.domain import Array
from dpmerge.privacy.profile import PrivacyProfile
from dpmerge.report.plots import COLOURS, Drawing, Plot, Series, values
from dpmerge.report.styles import THEOREMS

TITLE = "The ladder: averages of equal runs, by joint release alone"

THEORY = {1: (0.051, 0.785), 2: (0.074, 0.821), 4: (0.108, 0.841), 8: (0.158, 0.856), 12: (0.197, 0.863)}
"""k → ε and accuracy of theory.md section 5, for σ = 512, 20 steps and 60,000 records of MNIST."""


@dataclass(frozen=True)
class Ladder:
    """N runs of equal settings, which averages of them are made, and how often all of it is repeated."""

    name: str
    clip_norm: float
    noise_multiplier: float
    rates: tuple[float, ...]
    runs: int
    averaged: tuple[int, ...]  # the numbers k, the first 1, the last all
    repetitions: int

    def __post_init__(self) -> None:
        assert self.runs <= len(self.rates), "the ε of one run is that of at least one step of the run of σ/√N"

    @property
    def steps(self) -> int:
        return len(self.rates)

    @property
    def equal_runs(self) -> list[str]:
        return [f"rung-{number:02}" for number in range(1, self.runs + 1)]

    def setups(self) -> dict[str, Setup]:
        """The equal runs, and for each k > 1 one run of the noise σ/√k, whose μ is that of k of them."""
        setups = {name: self._setup(1) for name in self.equal_runs}
        return setups | {f"retrained-{k}": self._setup(k) for k in self.averaged[1:]}

    def _setup(self, k: int) -> Setup:
        kept = tuple(sorted({*self.prefix_steps} - {self.steps})) if k == self.runs else ()
        noise = self.noise_multiplier / math.sqrt(k)
        return Setup(clip_norm=self.clip_norm, noise_multiplier=noise, rates=self.rates, keep=kept)

    @property
    def prefix_steps(self) -> list[int]:
        """How far the run of σ/√N gets within the ε of each k: μ² = t·(2/σ)²·N ≤ T·(2/σ)²·k."""
        return [self.steps * k // self.runs for k in self.averaged]

    def average(self, k: int) -> Recipe:
        """The first k runs: the averages are nested."""
        return Recipe.of({f"{name}@{self.steps}": 1 / k for name in self.equal_runs[:k]})

    def retrained(self, k: int) -> Recipe:
        return self.average(1) if k == 1 else Recipe.of({f"retrained-{k}@{self.steps}": 1.0})

    def prefix(self, step: int) -> Recipe:
        return Recipe.of({f"retrained-{self.runs}@{step}": 1.0})


def ladders(preset: Preset) -> dict[str, Ladder]:
    """Of MNIST and of CIFAR-10."""
    small, large = preset.mnist, preset.cifar
    rates = warm_up_and_decay(4.0, small.steps)
    return {
        "mnist": Ladder(
            "mnist-ladder", 2.0, 512 * small.noise, rates, small.rungs, _averaged(small.rungs), small.seeds
        ),
        "cifar10": Ladder(
            "cifar10-ladder", 2.0, 32.0, (0.1,) * large.steps, large.rungs, _averaged(large.rungs), large.seeds
        ),
    }


def _averaged(runs: int) -> tuple[int, ...]:
    return tuple(sorted({1, runs, *(k for k in THEORY if k <= runs)}))


def settings(workshop: Workshop) -> dict[str, Any]:
    common = {"delta": DELTA, "adjacency": "replace_one", "batch": "every record in every step"}
    described = {name: asdict(ladder) for name, ladder in ladders(workshop.preset).items()}
    return {**common, **described, "preset": workshop.preset.document()}


def measure(workshop: Workshop) -> dict[str, Any]:
    return {
        name: measure_task(workshop, getattr(workshop, name), ladder)
        for name, ladder in ladders(workshop.preset).items()
    }


def measure_task(workshop: Workshop, task: Task, ladder: Ladder) -> dict[str, Any]:
    """Train, account for, plan and score the ladder of one data set."""
    every = [workshop.portfolio(task, ladder.name, ladder.setups(), repeat=r) for r in range(ladder.repetitions)]
    accounts = _accounts(every[0], ladder)
    return {
        "described": task.described,
        "records": task.records,
        "noise_multiplier": ladder.noise_multiplier,
        "rates": ladder.rates,
        "steps": ladder.steps,
        "averaged": ladder.averaged,
        **accounts,
        **_scored(workshop, task, ladder, every, np.array(accounts["top_shares"])),
    }


def _accounts(portfolio: Portfolio, ladder: Ladder) -> dict[str, Any]:
    """What everything costs, and what is planned: the same in every repetition."""

    def joint_release(recipe: Recipe) -> Candidate:
        return candidate(portfolio, recipe, delta=DELTA, theorem="joint_release")

    averages = [ladder.average(k) for k in ladder.averaged]
    joint = [joint_release(recipe) for recipe in averages]
    assumed = [candidate(portfolio, recipe, delta=DELTA, theorem="merged_trajectory") for recipe in averages]
    epsilons = [each.profile.epsilon(DELTA) for each in joint]
    plans = [_planned(portfolio, ladder, epsilon) for epsilon in epsilons]
    prefixes = [joint_release(ladder.prefix(step)) for step in ladder.prefix_steps]
    return {
        "mus": [each.bound.mu for each in joint],
        "epsilons": epsilons,
        "proved": [each.proved for each in joint],
        "assumed_mus": [each.bound.mu for each in assumed],
        "assumed_proved": [each.proved for each in assumed],
        "retrained_mus": [joint_release(ladder.retrained(k)).bound.mu for k in ladder.averaged],
        "planned": [len(made.exposure.steps) for made in plans],
        "planned_average": [_is(made, average) for made, average in zip(plans, averages, strict=True)],
        "top_shares": [top_share(joint[0].profile, joint[-1].profile, epsilon) for epsilon in epsilons],
        "prefix_steps": ladder.prefix_steps,
        "prefix_epsilons": [each.profile.epsilon(DELTA) for each in prefixes],
    }


def _scored(
    workshop: Workshop, task: Task, ladder: Ladder, every: Sequence[Portfolio], shares: Array
) -> dict[str, Any]:
    """Accuracies [repetition][k], and what the models of all repetitions have in common and not."""
    averages, retrained = ([make(k) for k in ladder.averaged] for make in (ladder.average, ladder.retrained))
    prefixes = [ladder.prefix(step) for step in ladder.prefix_steps]
    alone = [Recipe.of({f"{name}@{ladder.steps}": 1.0}) for name in ladder.equal_runs]
    recipes = [*averages, *retrained, *prefixes, *alone]
    scores = np.array([workshop.scores(task, portfolio, recipes).mean(axis=0) for portfolio in every])
    average, once, shorter, single = np.split(scores, np.arange(1, 4) * len(averages), axis=1)
    repeated = {
        name: [Repeated.of(every, recipe) for recipe in models]
        for name, models in (("averages", averages), ("retrained", retrained))
    }
    return {
        "accuracies": {
            "averages": average,
            "retrained": once,
            "selected rungs": (1 - shares) * average[:, :1] + shares * average[:, -1:],
            "selected models": (1 - shares) * average[:, :1] + shares * once[:, -1:],
            "prefixes": shorter,
        },
        "single_runs": single,
        "deviations": {name: [each.deviation for each in models] for name, models in repeated.items()},
        "overall": {
            name: [float(np.mean([score(each.mean) for score in task.evaluators])) for each in models]
            for name, models in repeated.items()
        },
    }


def top_share(first: PrivacyProfile, top: PrivacyProfile, epsilon: float) -> float:
    """The largest probability of the top rung with which drawing it, or else the first, meets (ε, δ).

    The linear program of random selection (theory.md section 3) over two candidates, one of which is worth 1.
    """
    costs = np.array([profile.deltas(epsilon) for profile in (first, top)]).T
    found = best_mixture(costs, np.array([0.0, 1.0]), DELTA)
    return 0.0 if found is None else found.score


@dataclass(frozen=True)
class Repeated:
    """One recipe in every repetition: the mean model, and how far a weight lies from it (root mean square)."""

    mean: dict[str, Array]
    deviation: float

    @classmethod
    def of(cls, portfolios: Sequence[Portfolio], recipe: Recipe) -> Repeated:
        tensors = portfolios[0].saved(recipe.names[0]).tensors
        mean, squares = {}, 0.0
        for tensor in tensors:  # one by one: a network need not fit into memory as often as it was trained
            merged = np.array([_merged(portfolio, recipe, tensor) for portfolio in portfolios])
            mean[tensor] = merged.mean(axis=0)
            squares += float(np.square(merged - mean[tensor], dtype=float).sum())
        degrees = (len(portfolios) - 1) * sum(array.size for array in mean.values())
        return cls(mean, math.sqrt(squares / degrees) if degrees else math.nan)


def _merged(portfolio: Portfolio, recipe: Recipe, tensor: str) -> Array:
    def read(name: str, tensor: str) -> Array:
        return StoredModel.of(portfolio, name).read(tensor)

    return combined(recipe, [tensor], (), read)[tensor].rounded()


def _planned(portfolio: Portfolio, ladder: Ladder, epsilon: float) -> Plan:
    """What the planner releases of the equal runs for an ε, rounded up as somebody would state it."""
    equal = replace(portfolio, runs=tuple(run for run in portfolio.runs if run.id in ladder.equal_runs))
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - 4)
    return plan(equal, Guarantee(epsilon=math.ceil(epsilon / unit) * unit, delta=DELTA))


def _is(made: Plan, average: Recipe) -> bool:
    """Whether a plan releases this average, without a draw."""
    recipe = made.candidates[0].recipe
    same = recipe.names == average.names and np.allclose(recipe.weights, average.weights, rtol=1e-9)
    return len(made.candidates) == 1 and bool(same)


_LINES = {
    "averages": ("average of k equal runs", COLOURS["combine"], "squares"),
    "retrained": ("trained once with the noise σ/√k", THEOREMS[4], "diamonds"),
    "selected rungs": ("random selection of the first or the top average", COLOURS["select"], "none"),
    "selected models": ("random selection of the first run or one trained for the top ε", THEOREMS[3], "none"),
    "prefixes": ("the run trained for the top ε, stopped early", THEOREMS[1], "diamonds"),
}


def drawings(numbers: dict[str, Any]) -> list[Drawing]:
    return [_drawing(name, found) for name, found in numbers.items()]


def _drawing(name: str, found: dict[str, Any]) -> Plot:
    ks = found["averaged"]
    series = []
    for key, (title, colour, marks) in _LINES.items():
        accuracies = values(found["accuracies"][key])
        epsilons = values(found["prefix_epsilons" if key == "prefixes" else "epsilons"])
        error = margins(accuracies) if len(accuracies) > 1 else None
        series.append(
            Series(name=title, x=epsilons, y=accuracies.mean(axis=0), colour=colour, error=error, marks=marks)  # type: ignore[arg-type]
        )
    repetitions = len(values(found["accuracies"]["averages"]))
    return Plot(
        name=f"ladder-{name}",
        heading="Does averaging k equal runs do as well as training once for the same ε?",
        words=(
            f"{ks[-1]} runs with the same settings (σ = {found['noise_multiplier']:g}, {found['steps']} steps); the "
            f"average of the first k = {', '.join(map(str, ks))} of them costs the joint release of k runs, whatever "
            "the model. Beside it, at the same ε: one run with less noise, a random choice between the cheapest and "
            "the dearest model, and the dearest run stopped early. Bars and bands: 95 % confidence over "
            f"{repetitions} repetitions with other noise."
        ),
        across=f"ε at δ = {DELTA:g} (one record replaced)",
        up="accuracy on public test images",
        series=tuple(series),
        log_x=True,
        note=found["described"],
    )


def statements(numbers: dict[str, Any]) -> list[Statement]:
    return [statement for name, found in numbers.items() for statement in _statements(name, found)]


def _statements(name: str, found: dict[str, Any]) -> Iterator[Statement]:
    data = {"mnist": "MNIST", "cifar10": "CIFAR-10"}.get(name, name)
    if name == "mnist" and (found["noise_multiplier"], found["steps"]) == (512, 20):
        yield theory_statement(found)
    yield _root_growth(data, found)
    if np.isfinite(values(found["deviations"]["averages"])).all():
        yield _falling_noise(data, found)
    yield _nothing_unproved(data, found)
    yield Statement(
        claim=f"{data}: asked for the ε of a rung, the planner releases that rung, without looking at any model.",
        source="ours",
        verdict=all_hold(found["planned_average"]),
        measured=(
            f"For ε = {', '.join(f'{epsilon:.3g}' for epsilon in found['epsilons'])} it releases the average of "
            f"{', '.join(map(str, found['planned']))} runs."
        ),
    )
    yield from _comparisons(data, found)


def theory_statement(found: dict[str, Any]) -> Statement:
    """The figures of the theory: ε to the digits given, accuracies where the data are the same."""
    ks, epsilons = found["averaged"], found["epsilons"]
    accuracies, single = values(found["accuracies"]["averages"]).mean(axis=0), values(found["single_runs"])
    known = [place for place, k in enumerate(ks) if k in THEORY]
    met = [f"{epsilons[place]:.3f}" == f"{THEORY[ks[place]][0]:.3f}" for place in known]
    words = f"k = {', '.join(str(ks[p]) for p in known)}: ε {', '.join(f'{epsilons[p]:.3f}' for p in known)}"
    stated = ", ".join(f"{THEORY[ks[p]][0]:.3f}" for p in known)
    if found["records"] == 60_000:
        met += [bool(abs(accuracies[place] - THEORY[ks[place]][1]) <= 0.01) for place in known]
        words += f" and accuracy {', '.join(f'{accuracies[p]:.3f}' for p in known)}"
        stated += f" and accuracy {', '.join(f'{THEORY[ks[p]][1]:.3f}' for p in known)} (within 0.01)"
    return Statement(
        claim=f"MNIST: averages of equal runs with σ = 512 have ε {stated}.",
        source="theory, section 5",
        verdict=all_hold(met),
        measured=f"{words}.",
        why=(
            f"Here single runs have {single.mean():.3f} with a standard deviation of {single.std():.3f}, from "
            f"{single.min():.3f} to {single.max():.3f}; the theory does not say how often its figures were repeated."
        ),
    )


def _root_growth(data: str, found: dict[str, Any]) -> Statement:
    ks, mus, once = (values(found[name]) for name in ("averaged", "mus", "retrained_mus"))
    off = float(np.max(np.abs(mus / (np.sqrt(ks) * mus[0]) - 1)))
    apart = float(np.max(np.abs(once / mus - 1)))
    return Statement(
        claim=f"{data}: μ grows as √k, and one run with the noise σ/√k has exactly the μ of k averaged runs.",
        source="theory, section 5",
        verdict=all_hold([off < 1e-8, apart < 1e-8]),
        measured=(
            f"μ from {mus[0]:.4g} to {mus[-1]:.4g} for k = 1 to {ks[-1]:g}; off √k by {off:.1g} at most, off the "
            f"retrained runs by {apart:.1g} at most (relative)."
        ),
    )


def _falling_noise(data: str, found: dict[str, Any]) -> Statement:
    ks, averaged, once = (
        values(v) for v in (found["averaged"], found["deviations"]["averages"], found["deviations"]["retrained"])
    )
    power = float(np.polyfit(np.log(ks), np.log(averaged), 1)[0])
    ratios = averaged / once
    return Statement(
        claim=f"{data}: the noise of a weight falls as 1/√k.",
        source="theory, section 5",
        verdict=all_hold([abs(power + 0.5) <= 0.05]),
        measured=(
            f"Over repetitions a weight deviates by {averaged[0]:.3g} for k = 1 and {averaged[-1]:.3g} for k = "
            f"{ks[-1]:g}: as k to the power {power:.3f}. That is {ratios.min():.3f} to {ratios.max():.3f} times the "
            "deviation of a run trained once for the same ε."
        ),
    )


def _nothing_unproved(data: str, found: dict[str, Any]) -> Statement:
    ratios = values(found["assumed_mus"]) / values(found["mus"])
    lost = float(np.max(np.abs(ratios - 1)))
    also = "also" if all(found["assumed_proved"]) else "not"
    return Statement(
        claim=f"{data}: joint release proves every rung, and merged_trajectory would claim no less for it.",
        source="theory, section 5",
        verdict=all_hold([*found["proved"], lost < 1e-8]),
        measured=(
            f"{sum(found['proved'])} of {len(ratios)} rungs are proved by joint release; merged_trajectory, {also} "
            f"proved for these runs, gives the same μ to {lost:.1g}."
        ),
        why="With precision weights the two formulas are equal (Cauchy–Schwarz): nothing is lost by proving only one.",
    )


def _comparisons(data: str, found: dict[str, Any]) -> Iterator[Statement]:
    ks, shares = found["averaged"], found["top_shares"]
    between = range(1, len(ks) - 1)
    yield Statement(
        claim=f"{data}: the average of k equal runs is as accurate as one run trained for its ε.",
        source="ours",
        **_compared(found, "retrained", range(1, len(ks)), equal=True),
        why=_bias(found),
    )
    for other, what in (("selected rungs", "averages"), ("selected models", "single models")):
        if between:
            chances = ", ".join(f"{shares[place]:.2g}" for place in between)
            yield Statement(
                claim=f"{data}: the average of k runs is more accurate than random selection of {what} at its ε.",
                source="ours",
                **_compared(found, other, between),
                why=(
                    f"Within the ε of these rungs the dearest model may be drawn with probability {chances} only: "
                    "what is averaged by a draw is δ, and δ falls steeply with ε."
                ),
            )
    steps = found["prefix_steps"][:-1]
    rates = [found["rates"][step - 1] for step in steps]
    yield Statement(
        claim=f"{data}: the average of k runs is more accurate than the run trained for the top ε, stopped at its ε.",
        source="ours",
        **_compared(found, "prefixes", range(len(ks) - 1)),
        why=(
            f"Stopped after {', '.join(map(str, steps))} of {found['steps']} steps, at learning rates of "
            f"{', '.join(f'{rate:.2g}' for rate in rates)}."
        ),
    )


def _bias(found: dict[str, Any]) -> str:
    """What is left of the difference when noise is averaged away as far as it can be, equally on both sides."""
    averaged, once = (values(found["overall"][name])[1:] for name in ("averages", "retrained"))
    means = " and ".join(", ".join(f"{accuracy:.3f}" for accuracy in line) for line in (averaged, once))
    told = f"Averaged over all repetitions the two have {means} (k = {', '.join(map(str, found['averaged'][1:]))})"
    if np.all(averaged < once):
        return f"{told}: noise also changes what each run learns, and averaging afterwards does not undo that."
    return f"{told}."


def _compared(found: dict[str, Any], other: str, places: Sequence[int], *, equal: bool = False) -> dict[str, Any]:
    """Verdict and figures of averages minus something else, rung by rung."""
    gained = values(found["accuracies"]["averages"]) - values(found["accuracies"][other])
    differences = {found["averaged"][place]: difference(gained[:, place]) for place in places}
    words = "; ".join(f"k = {k}: {each}" for k, each in differences.items())
    return {"verdict": _verdict(list(differences.values()), equal=equal), "measured": f"{words}."}


def _verdict(differences: Sequence[Difference], *, equal: bool) -> Verdict:
    kinds = [each.kind for each in differences]
    if all(kind == "within noise" for kind in kinds):
        return "within noise"
    return all_hold([kind != "lower" if equal else kind == "higher" for kind in kinds])
