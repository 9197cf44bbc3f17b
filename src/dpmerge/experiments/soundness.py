"""What the paper's accounting of linear combination assumes, where that fails, and what a proof costs instead.

Guarantees: each ε is a theorem's own number for the recorded runs, and is called proved only where every premise of
that theorem holds. Runs made to break the assumption are accounted for in the same way, beside what is true of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from dpmerge.errors import NoGuarantee
from dpmerge.experiments import mean, mnist
from dpmerge.experiments.presets import DELTA
from dpmerge.experiments.statements import CONFIDENCE, Statement, Verdict
from dpmerge.experiments.tasks import PROBE_CLIP_NORM
from dpmerge.experiments.training import Setup, warm_up_and_decay
from dpmerge.experiments.workshop import Workshop
from dpmerge.planning.candidates import Theorem
from dpmerge.planning.weights import Weightings
from dpmerge.privacy import (
    THEOREMS,
    Adjacency,
    Checkpoint,
    DeclaredLipschitz,
    DpSgd,
    GaussianRelease,
    LinearCombination,
    StepBlock,
    gaussian_epsilon,
    linear_mus,
)
from dpmerge.privacy.domain import Array
from dpmerge.report import styles
from dpmerge.report.plots import COLOURS, Drawing, Plot, Series, values

TITLE = "Soundness: what linear combination costs by four theorems"

NAMES: tuple[Theorem, ...] = ("joint_release", "last_step", "hidden_state", "merged_trajectory")
_COLOURS = dict(zip(NAMES, (*styles.THEOREMS[1:4], COLOURS["combine"]), strict=True))

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


def probe_setups(workshop: Workshop) -> dict[str, Setup]:
    """Two smooth runs with the noise and schedule of MNIST."""
    scale = workshop.preset.mnist
    rates = warm_up_and_decay(mnist.PEAK_RATE, scale.steps)
    return {
        f"s{sigma:g}": Setup(clip_norm=PROBE_CLIP_NORM, noise_multiplier=sigma * scale.noise, rates=rates)
        for sigma in (64.0, 32.0)
    }


def settings(workshop: Workshop) -> dict[str, Any]:
    return {
        "mnist": {name: setup.document() for name, setup in mnist.setups(workshop).items()},
        "mean": {"sensitivity": mean.SENSITIVITY, "standard deviations": list(mean.DEVIATIONS)},
        "probe": {name: setup.document() for name, setup in probe_setups(workshop).items()},
        "delta": DELTA,
        "weights": workshop.preset.mean.points,
        "trials of the attack": workshop.preset.mean.draws,
    }


def measure(workshop: Workshop) -> dict[str, Any]:
    points = workshop.preset.mean.points
    trained = workshop.portfolio(workshop.mnist, mnist.RUNS, mnist.setups(workshop))
    smooth = workshop.portfolio(workshop.probe, "probe-soundness", probe_setups(workshop))
    pairs = [(trained.last(one), trained.last(other)) for one, other in combinations(trained.runs, 2)]
    releases = [
        GaussianRelease(
            sensitivity=mean.SENSITIVITY,
            standard_deviation=deviation,
            adjacency=Adjacency.REPLACE_ONE,
            label=f"noise {deviation:g}",
        )
        for deviation in mean.DEVIATIONS
    ]
    probes = [smooth.last(run) for run in smooth.runs]
    return {
        "delta": DELTA,
        "mnist": {"described": workshop.mnist.described, "edges": [edge(pair, points) for pair in pairs]},
        "mean": {
            "described": f"mean of {mean.RECORDS} clipped values, two Gaussian estimates",
            "edges": [edge([Checkpoint(release, 1) for release in releases], points)],
        },
        "probe": {
            "described": workshop.probe.described,
            "edges": [edge(probes, points, release_noise=float(_step_noises(probes[0]).max()))],
        },
        "schedule": _schedule(),
        "contraction": _contraction(),
        "revealed": _revealed(workshop),
    }


def edge(pair: Sequence[Checkpoint], points: int, *, release_noise: float = 0.0) -> dict[str, Any]:
    """ε of averages of two models by every theorem; `release_noise` adds hidden_state with that noise."""
    shares = np.linspace(0, 1, points)
    precisions = np.array([1 / np.sum(_step_noises(checkpoint) ** 2) for checkpoint in pair])
    named = {"equal weights": 0.5, "weights of least noise": float(precisions[1] / precisions.sum())}
    every = np.append(shares, list(named.values()))
    rows = np.column_stack([1 - every, every])
    asked: list[tuple[Theorem, float]] = [(name, 0.0) for name in NAMES]
    if release_noise:
        asked.append(("hidden_state", release_noise))
    found = []
    for theorem, noise in asked:
        bound = THEOREMS[theorem](LinearCombination(checkpoints=pair, weights=(0.5, 0.5), release_noise=noise))
        try:
            costs = Weightings(tuple(pair), theorem).epsilons(rows, DELTA, noise)
        except NoGuarantee:
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


def _step_noises(checkpoint: Checkpoint) -> Array:
    """The standard deviation of the noise that each step added to the weights."""
    assert isinstance(checkpoint.run, DpSgd | GaussianRelease), "its noise is known step by step"
    return checkpoint.run.moves(checkpoint.step).noise


def _run(rates: Sequence[float], sigma: float, adjacency: Adjacency, lipschitz: float | None = None) -> DpSgd:
    """A run of clip norm 1; `lipschitz` declares how far its updates pull two states apart."""
    smoothness = None if lipschitz is None else DeclaredLipschitz(factors=lipschitz)
    block = StepBlock(steps=len(rates), noise_multiplier=sigma, clip_norm=1.0, learning_rate=tuple(rates))
    return DpSgd(blocks=[block], adjacency=adjacency, smoothness=smoothness)


def _mus(runs: Sequence[DpSgd], weights: Sequence[float], release_noise: float = 0.0) -> dict[str, float | None]:
    combination = LinearCombination.of_runs(runs, weights, release_noise=release_noise)
    return {name: THEOREMS[name](combination).mu for name in NAMES}


def _epsilons(mus: dict[str, float | None]) -> dict[str, float | None]:
    return {name: None if mu is None else float(gaussian_epsilon(mu, DELTA)) for name, mu in mus.items()}


def _schedule() -> dict[str, Any]:
    """The example of docs/theory.md: the paper's schedule, convex losses, σ = (64, 32), weights (0.95, 0.05)."""
    rates, weights = warm_up_and_decay(mnist.PEAK_RATE, 20), (0.95, 0.05)
    runs = [_run(rates, sigma, Adjacency.REPLACE_ONE, lipschitz=1.0) for sigma in (64.0, 32.0)]
    noise = float(_step_noises(Checkpoint(runs[0], runs[0].steps)).max())
    silent, noised = (_epsilons(_mus(runs, weights, tau)) for tau in (0.0, noise))
    return {**silent, "release_noise": noise, "hidden_state with release noise": noised["hidden_state"]}


def _contraction() -> dict[str, Any]:
    """Constant gradients and states that contract by 0.9 in one run and not at all in the other: μ of their average.

    What is true has a closed form, μ = Σ λ_iA_i / √Σ λ_i²B_i², because everything is linear.
    """
    factors, sigmas, weights, steps = (0.9, 1.0), (10.0, 1.0), (0.5, 0.5), 100
    runs = [
        _run([1.0] * steps, sigma, Adjacency.ADD_REMOVE, lipschitz=factor)
        for sigma, factor in zip(sigmas, factors, strict=True)
    ]
    mus = {"true": float(linear_mus(runs, [weights])[0]), **_mus(runs, weights)}
    return {"mus": mus, "epsilons": _epsilons(mus)}


def _revealed(workshop: Workshop) -> dict[str, Any]:
    """Two steps of two runs on smooth losses, in which the other records write down what the hidden models were.

    The record that differs has loss ±θ₀, each of 10⁷ others 0.4·(θ₁(cos(θ₀/40) − 1) + θ₂ sin(θ₀/40)). An attack that
    sees only the average finds both hidden θ₀ in its coordinates 1 and 2; its errors bound ε from below.
    """
    weights, sigmas = np.array([0.9, 0.1]), np.array([4.0, 0.5])
    runs = [_run([1.0, 1.0], sigma, Adjacency.REPLACE_ONE) for sigma in sigmas.tolist()]
    trials = workshop.preset.mean.draws
    rng = np.random.default_rng(workshop.noise_seed("soundness", "attack"))
    pilot, shown = ([evidence(rng, trials, sign, weights, sigmas) for sign in (1, -1)] for _ in range(2))
    thresholds = np.quantile(pilot[1], 1 - np.arange(20) / trials)
    threshold = max(thresholds, key=lambda t: least_epsilon(pilot, t))
    claimed = _epsilons(_mus(runs, weights.tolist()))
    return {"epsilons": claimed, "trials": trials, "shown": least_epsilon(shown, float(threshold))}


def evidence(rng: np.random.Generator, trials: int, sign: int, weights: Array, sigmas: Array) -> Array:
    """The attack's logarithm of likelihoods, record +θ₀ against −θ₀, when the record is `sign`·θ₀."""
    others = 0.4 * 10**7
    first = sigmas * rng.normal(size=(3, trials, 2))  # three coordinates, after the first step
    first[0] -= sign
    turned = first[0] / 40
    second = (
        first[1:] + sigmas * rng.normal(size=(2, trials, 2)) - others * np.array([np.cos(turned) - 1, np.sin(turned)])
    )
    across, up = -(second @ weights) / others
    # 1 + across + i·up is a sum of two arrows of length λ₁ and λ₂: two ways to draw them, mirrored, equally likely.
    total = 1 + across + 1j * up
    long, short = weights
    cosine = (long**2 + np.abs(total) ** 2 - short**2) / (2 * long * np.abs(total))
    half = np.arccos(np.clip(cosine, -1, 1))
    likelihoods = []
    for centre in (-1, 1):
        ways = []
        for way in (half, -half):
            arrow = long * np.exp(1j * (np.angle(total) + way))
            hidden = 40 * np.array([np.angle(arrow), np.angle(total - arrow)])
            ways.append(-np.sum((hidden.T - centre) ** 2 / (2 * sigmas**2), axis=1))
        likelihoods.append(np.logaddexp(*ways))
    return np.asarray(likelihoods[0] - likelihoods[1])


def least_epsilon(found: Sequence[Array], threshold: float) -> float:
    """The ε that an attack with this threshold proves at δ, with 95 % confidence (Clopper and Pearson, both errors)."""
    from scipy.special import betaincinv

    hits, errors = (int(np.count_nonzero(side > threshold)) for side in found)
    trials, tail = len(found[0]), (1 - CONFIDENCE) / 2
    least_hits = float(betaincinv(hits, trials - hits + 1, tail)) if hits else 0.0
    most_errors = float(betaincinv(errors + 1, trials - errors, 1 - tail)) if errors < trials else 1.0
    return float(np.log((least_hits - DELTA) / most_errors)) if least_hits > DELTA else 0.0


def drawings(numbers: dict[str, Any]) -> list[Drawing]:
    return [
        _drawing(numbers[name]["described"], found, f"soundness-{name}-{place + 1}", numbers["delta"])
        for name in ("mnist", "mean", "probe")
        for place, found in enumerate(numbers[name]["edges"])
    ]


def _drawing(described: str, found: dict[str, Any], name: str, delta: float) -> Plot:
    shares = values(found["shares"])
    series = [
        Series(
            name=_called(of) + (": proved" if of["proved"] else ": assumed, not proved here"),
            x=shares,
            y=values(of["epsilons"]),
            colour=COLOURS["mix"] if of["release_noise"] else _COLOURS[of["theorem"]],
            dashed=not of["proved"],
        )
        for of in found["theorems"]
        if not _is_silent(of)
    ]
    silent = [f"{_called(of)} needs {_missing(of)}" for of in found["theorems"] if _is_silent(of)]
    first, second = found["models"]
    words = (
        f"ε at δ = {delta:g} of the average of two models, {first} and {second}, against the weight of the second, by "
        "each theorem that has a formula for it. Joint release pays for both models as if they were published, last "
        "step for all but their last update, hidden state for smooth models of which nothing but the average is ever "
        "seen; merged trajectory is the paper's. A solid line is proved for these models, a dashed one is not. "
        + "".join(f"{words[0].upper()}{words[1:]}, and has none. " for words in silent)
    )
    return Plot(
        name=name,
        heading="What does averaging two models cost, and what of that is proved?",
        words=words.strip(),
        across=f"weight of {second}",
        up=f"ε at δ = {delta:g}",
        series=tuple(series),
        note=f"{described}: {first} and {second}",
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
    whole = [_factors(found, lambda of: of["proved"], "epsilons")[1:-1] for found in edges]
    verdict: Verdict = "agrees" if assumed["proved"] else "agrees in part"
    if np.max(whole) > 1 + 1e-9:
        verdict = "disagrees"
    why = [] if assumed["proved"] else [f"The merged trajectory assumes {_missing(assumed)}."]
    why += [
        f"There is no formula by {name} here, it needs {_missing(of)}."
        for name, of in theorems.items()
        if _is_silent(of)
    ]
    return Statement(
        claim=f"An average of DP-SGD models costs what its merged trajectory costs ({setting['described']}).",
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
        source="theory, section 4",
        verdict="agrees" if noised < found["merged_trajectory"] < found["hidden_state"] else "disagrees",
        measured=(
            "With the paper's schedule, σ = (64, 32) and weights (0.95, 0.05) ε is, by joint release, "
            f"{found['joint_release']:.3f}, by last step {found['last_step']:.3f}, by hidden state "
            f"{found['hidden_state']:.3f} without release noise, {noised:.3f} with one step's noise at the peak rate; "
            f"the merged trajectory claims {found['merged_trajectory']:.3f}, not proved."
        ),
    )


def _contracted(found: dict[str, Any]) -> Statement:
    mus, costs = found["mus"], found["epsilons"]
    sound = all(mus[name] >= mus["true"] for name in ("joint_release", "last_step", "hidden_state"))
    return Statement(
        claim="The merged trajectory bounds what an average of two linear runs costs.",
        source="paper, section 6",
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
        source="paper, section 6",
        verdict="agrees" if costs["merged_trajectory"] >= found["shown"] else "disagrees",
        measured=(
            f"It claims ε = {costs['merged_trajectory']:.2f}; an attack on the average alone, {int(found['trials']):,} "
            f"trials a side, its threshold fixed on others, shows ε ≥ {found['shown']:.1f} with 95 % confidence. Last "
            f"step says {costs['last_step']:.2f}, joint release {costs['joint_release']:.2f}."
        ),
        why="The gradients of the other records depend on the hidden models, and reveal them in the second step.",
    )
