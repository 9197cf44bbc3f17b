"""What the paper's accounting of linear combination assumes, where that fails, and what a proof costs instead.

Guarantees: each ε is a theorem's own number for the recorded runs, and is called proved only where every premise of
that theorem holds. Runs made to break the assumption are accounted for in the same way, beside what is true of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, Literal

import numpy as np

from dpmerge.accounting import (
    THEOREMS,
    Adjacency,
    Checkpoint,
    GaussianRelease,
    LinearCombination,
)
from dpmerge.accounting.validation import Array
from dpmerge.errors import NoGuaranteeError
from dpmerge.planning.candidates import THEOREM_NAMES, AskedTheorem
from dpmerge.planning.feasible_weights import Weightings
from dpmerge.report.jumps import with_jumps
from dpmerge.report.plots import COLOURS, Drawing, Panels, Plot, Series, lettered, values
from reproduction import mean, mnist
from reproduction.counterexample_figures import contraction, logistic, revealed, schedule, step_noises
from reproduction.mean_findings import DEVIATIONS, RECORDS
from reproduction.presets import DELTA
from reproduction.run_store import RunStore
from reproduction.statements import Statement, Verdict
from reproduction.tasks import PROBE_CLIP_NORM
from reproduction.training import Setup, warm_up_and_decay

TITLE = "Soundness: what linear combination costs by four theorems"

_READ_FOR = "paper, section 6, read for clipping each gradient"

PREMISES = {
    "update_bounded_for_any_two_hidden_states": (
        "that one record moves an update by no more than its own clipped gradient even when the hidden models already "
        "differ: the gradients of all other records then differ too, and nothing clips their sum"
    ),
    "smoothness_known": "a bound on how far one update can pull two hidden models apart",
    "sgd_without_momentum": "runs of plain SGD",
    "flat_clipping": "flat clipping",
}
"""In words, what a theorem needs; others are named as they are."""


def probe_setups(store: RunStore) -> dict[str, Setup]:
    """Two smooth runs with the noise and schedule of MNIST."""
    scale = store.preset.mnist
    rates = warm_up_and_decay(mnist.PEAK_RATE, scale.steps)
    return {
        f"s{sigma:g}": Setup(clip_norm=PROBE_CLIP_NORM, noise_multiplier=sigma * scale.noise, rates=rates)
        for sigma in (64.0, 32.0)
    }


def settings(store: RunStore) -> dict[str, Any]:
    return {
        "mnist": {name: setup.document() for name, setup in mnist.setups(store).items()},
        "mean": {"sensitivity": mean.SENSITIVITY, "standard deviations": list(DEVIATIONS)},
        "probe": {name: setup.document() for name, setup in probe_setups(store).items()},
        "delta": DELTA,
        "weights": store.preset.mean.points,
        "trials of the attack": store.preset.mean.draws,
    }


def measure(store: RunStore) -> dict[str, Any]:
    points = store.preset.mean.points
    trained = store.portfolio(store.mnist, mnist.RUNS, mnist.setups(store))
    smooth = store.portfolio(store.probe, "probe-soundness", probe_setups(store))
    pairs = [(trained.last(one), trained.last(other)) for one, other in combinations(trained.runs, 2)]
    releases = [
        GaussianRelease(
            sensitivity=mean.SENSITIVITY,
            standard_deviation=deviation,
            adjacency=Adjacency.REPLACE_ONE,
            label=f"noise {deviation:g}",
        )
        for deviation in DEVIATIONS
    ]
    probes = [smooth.last(run) for run in smooth.runs]
    return {
        "delta": DELTA,
        "mnist": {"described": store.mnist.described, "edges": [edge(pair, points) for pair in pairs]},
        "mean": {
            "described": f"mean of {RECORDS} clipped values, two Gaussian estimates",
            "edges": [edge([Checkpoint(release, 1) for release in releases], points)],
        },
        "probe": {
            "described": store.probe.described,
            "edges": [edge(probes, points, release_noise=float(step_noises(probes[0]).max()))],
        },
        "schedule": schedule(),
        "logistic": logistic(),
        "contraction": contraction(),
        "revealed": revealed(store),
    }


def edge(pair: Sequence[Checkpoint], points: int, *, release_noise: float = 0.0) -> dict[str, Any]:
    """ε of averages of two models by every theorem; `release_noise` adds hidden_state with that noise."""
    shares = np.linspace(0, 1, points)
    precisions = np.array([1 / np.sum(step_noises(checkpoint) ** 2) for checkpoint in pair])
    named = {"equal weights": 0.5, "weights of least noise": float(precisions[1] / precisions.sum())}
    every = np.append(shares, list(named.values()))
    rows = np.column_stack([1 - every, every])
    asked: list[tuple[AskedTheorem, float]] = [(name, 0.0) for name in THEOREM_NAMES]
    if release_noise:
        asked.append(("hidden_state", release_noise))
    found = []
    for theorem, noise in asked:
        bound = THEOREMS[theorem](LinearCombination(checkpoints=pair, weights=(0.5, 0.5), release_noise=noise))
        try:
            costs = Weightings(tuple(pair), theorem).epsilons(rows, DELTA, noise)
        except NoGuaranteeError:
            costs = np.full(len(rows), np.nan)
        found.append(
            {
                "theorem": theorem,
                "release_noise": noise,
                "proved": bound.certifies,
                "failing": [premise.name for premise in bound.premises if not premise.holds],
                "epsilons": costs[:points],
                "at": dict(zip(named, costs[points:], strict=True)),
            }
        )
    return {"models": [c.run.label for c in pair], "shares": shares, "named": named, "theorems": found}


def drawings(numbers: dict[str, Any]) -> list[Drawing]:
    plots = tuple(
        _drawing(numbers[name]["described"], found, f"soundness-{name}-{place + 1}", numbers["delta"])
        for name in ("mnist", "mean", "probe")
        for place, found in enumerate(numbers[name]["edges"])
    )
    own = " ".join(f"{lettered(place)} {plot.words}" for place, plot in enumerate(plots))
    words = (
        f"ε at δ = {numbers['delta']:g} of the average of two models, against the weight of the second, by each "
        "theorem that has a formula for it. Joint release pays for both models as if they were published, last step "
        "for all but their last update, hidden state for smooth models of which nothing but the average is ever seen; "
        "merged trajectory is the paper's. A solid line is proved for these models, a dashed one is not; an open "
        f"circle is where a line jumps, for there a model drops out. {own}"
    )
    return [Panels(name="soundness-theorems", heading=plots[0].heading, words=words, plots=plots)]


def _drawing(described: str, found: dict[str, Any], name: str, delta: float) -> Plot:
    series = []
    for of in found["theorems"]:
        if _is_silent(of):
            continue
        x, y = with_jumps(values(found["shares"]), values(of["epsilons"]))
        said = ": proved" if of["proved"] else ": assumed, not proved here"
        marks: Literal["none", "squares"] = "squares" if of["release_noise"] else "none"
        colour = COLOURS[of["theorem"]]
        series.append(Series(name=_called(of) + said, x=x, y=y, colour=colour, marks=marks, dashed=not of["proved"]))
    silent = [f"{_called(of)} needs {_missing(of)}" for of in found["theorems"] if _is_silent(of)]
    first, second = found["models"]
    words = f"{first} and {second}. " + "".join(f"{told[0].upper()}{told[1:]}, and has none. " for told in silent)
    return Plot(
        name=name,
        heading="What does averaging two models cost, and what of that is proved?",
        words=words.strip(),
        across=f"weight of {second}",
        up=f"ε at δ = {delta:g}",
        series=tuple(series),
        x_range=(-0.02, 1.02),
        note=f"{described}: {first} and {second}",
        caption=f"{described}: {first} and {second}",
    )


def _called(of: dict[str, Any]) -> str:
    noise = f", release noise {of['release_noise']:.3g}" if of["release_noise"] else ""
    return f"{of['theorem'].replace('_', ' ')}{noise}"


def _missing(of: dict[str, Any]) -> str:
    return "; ".join(PREMISES.get(name, name.replace("_", " ")) for name in of["failing"])


def statements(numbers: dict[str, Any]) -> list[Statement]:
    return [
        *(_accounted(numbers[name]) for name in ("mnist", "mean", "probe")),
        _with_release_noise(numbers["schedule"]),
        _regressed(numbers["logistic"]),
        _contracted(numbers["contraction"]),
        _told(numbers["revealed"]),
    ]


def _accounted(setting: dict[str, Any]) -> Statement:
    """Whether the paper's accounting is a proof here, and if not, what one costs."""
    edges = setting["edges"]
    theorems = {_called(of): of for of in edges[0]["theorems"]}
    assumed = theorems["merged trajectory"]
    plain = "; ".join(f"{' and '.join(found['models'])} {_multiples(found, noisy=False)}" for found in edges)
    measured = [
        f"Proved here: {', '.join(name for name, of in theorems.items() if of['proved'])}.",
        f"The least ε that is proved, over what the merged trajectory claims: {plain}.",
    ]
    if noisy := [found for found in edges if any(of["release_noise"] for of in found["theorems"])]:
        measured.append(f"With release noise: {'; '.join(_multiples(found, noisy=True) for found in noisy)}.")
    if assumed["proved"]:
        joint = _factors(edges[0], lambda of: of["theorem"] == "joint_release", "epsilons")[1:-1]
        measured.append(f"Joint release alone would say {joint.min():.2f} to {joint.max():.2f} times as much.")
    whole = [_factors(found, lambda of: of["proved"] and not of["release_noise"], "epsilons")[1:-1] for found in edges]
    verdict: Verdict = "agrees" if assumed["proved"] else "agrees in part"
    if np.max(whole) > 1 + 1e-9:
        verdict = "disagrees"
    why = []
    if not assumed["proved"]:
        why = [
            f"The merged trajectory assumes {_missing(assumed)}.",
            "Not proved is not false: what attacks show of one of the paper's merges is under mnist_audit.",
        ]
    why += [
        f"There is no formula by {name} here, it needs {_missing(of)}."
        for name, of in theorems.items()
        if _is_silent(of)
    ]
    return Statement(
        claim=f"An average of models is proved to cost what its merged trajectory costs ({setting['described']}).",
        source="paper, section 6",
        verdict=verdict,
        measured=" ".join(measured),
        why=" ".join(why),
    )


def _is_silent(of: dict[str, Any]) -> bool:
    """Whether a theorem has no formula for these models."""
    return not np.isfinite(values(of["epsilons"])).any()


def _multiples(found: dict[str, Any], *, noisy: bool) -> str:
    def wanted(of: dict[str, Any]) -> bool:
        return bool(of["proved"]) and bool(of["release_noise"]) == noisy

    factors = _factors(found, wanted, "epsilons")[1:-1]  # at the ends there is nothing to merge
    at = [f"{float(_factors(found, wanted, 'at', name)):.3f} at {name}" for name in found["named"]]
    return f"{', '.join(at)}, {factors.min():.3f} to {factors.max():.3f} over all weights"


def _factors(found: dict[str, Any], wanted: Callable[[dict[str, Any]], bool], key: str, name: str = "") -> Array:
    """The least ε by the wanted theorems over what merged_trajectory claims, weight by weight or at named weights."""
    costs = {_called(of): values(of[key][name] if name else of[key]) for of in found["theorems"]}
    chosen = [costs[_called(of)] for of in found["theorems"] if wanted(of)]
    return np.asarray(np.nanmin(chosen, axis=0) / costs["merged trajectory"])


def _with_release_noise(found: dict[str, Any]) -> Statement:
    noised = found["hidden_state with release noise"]
    return Statement(
        claim="For convex models some release noise lets hidden_state prove less than the merged trajectory claims.",
        source="theory 9.1",
        verdict="agrees" if noised < found["merged_trajectory"] < found["hidden_state"] else "disagrees",
        measured=(
            "With the paper's schedule, σ = (64, 32) and weights (0.95, 0.05) ε is, by joint release, "
            f"{found['joint_release']:.3f}, by last step {found['last_step']:.3f}, by hidden state "
            f"{found['hidden_state']:.3f} without release noise, {noised:.3f} with one step's noise at the peak rate; "
            f"the merged trajectory claims {found['merged_trajectory']:.3f}, not proved."
        ),
    )


def _regressed(found: dict[str, Any]) -> Statement:
    costs = found["epsilons"]
    claimed, true, clipped = costs["merged_trajectory"], found["true"], found["true, total clipped"]
    return Statement(
        claim="The merged trajectory bounds what an average of two logistic regressions costs.",
        source=_READ_FOR,
        verdict="agrees" if claimed >= true else "disagrees",
        measured=(
            f"Two steps each, one label of {int(found['records'])} flipped: it claims ε = {claimed:.2f}; integrated "
            f"over the hidden models {true:.2f} is true, and {clipped:.2f} if the total is clipped. Last step says "
            f"{costs['last_step']:.2f}, joint release {costs['joint_release']:.2f}."
        ),
        why=(
            "In the second step all other records push a hidden model back from where the first put it, and nothing "
            "clips their sum. With the total clipped, as the paper writes its update, its theorem holds."
        ),
    )


def _contracted(found: dict[str, Any]) -> Statement:
    mus, costs = found["mus"], found["epsilons"]
    sound = all(mus[name] >= mus["true"] for name in ("joint_release", "last_step", "hidden_state"))
    return Statement(
        claim="The merged trajectory bounds what an average of two linear runs costs.",
        source=_READ_FOR,
        verdict="agrees" if mus["merged_trajectory"] >= mus["true"] else "disagrees",
        measured=(
            f"Constant gradients, states contracting by 0.9 and not at all, 100 steps: the true μ is {mus['true']:.2f} "
            f"(ε = {costs['true']:.2f}), the merged trajectory says {mus['merged_trajectory']:.2f} "
            f"({costs['merged_trajectory']:.2f}), hidden state {mus['hidden_state']:.2f}, last step "
            f"{mus['last_step']:.2f}, joint release {mus['joint_release']:.2f}; "
            f"these three are {'all' if sound else 'not all'} above the truth."
        ),
        why="The runs forget at different speeds: their hidden states drift apart where no merged step shows it.",
    )


def _told(found: dict[str, Any]) -> Statement:
    costs = found["epsilons"]
    return Statement(
        claim="The merged trajectory bounds what an average of two runs on smooth losses costs.",
        source=_READ_FOR,
        verdict="agrees" if costs["merged_trajectory"] >= found["shown"] else "disagrees",
        measured=(
            f"It claims ε = {costs['merged_trajectory']:.2f}; an attack on the average alone, {int(found['trials']):,} "
            f"trials a side, its threshold fixed on others, shows ε ≥ {found['shown']:.1f} with 95 % confidence. Last "
            f"step says {costs['last_step']:.2f}, joint release {costs['joint_release']:.2f}."
        ),
        why="The gradients of the other records depend on the hidden models, and reveal them in the second step.",
    )
