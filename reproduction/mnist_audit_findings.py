"""What the audit of the paper's MNIST merge found, drawn and in words.

Guarantees: everything is computed from the numbers; a claim is called broken only where counting shows it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpmerge.report import styles
from dpmerge.report.plots import COLOURS, Drawing, Plot, Series, values
from reproduction.statements import CONFIDENCE, Statement, Verdict


def drawings(numbers: dict[str, Any]) -> list[Drawing]:
    found, delta = numbers["by weight"], numbers["delta"]
    merged = slice(1, -1)  # at the ends there is nothing to merge
    lines = (
        ("certified", "certified: joint release or last step, proved", COLOURS["last_step"], False),
        ("attack", "attack, estimated as if Gaussian", styles.OTHERS[0], False),
        ("claimed", "merged trajectory, the paper's: assumed, not proved here", COLOURS["merged_trajectory"], True),
    )
    return [
        Plot(
            name="mnist_audit-weights",
            heading="What does the paper's MNIST merge cost: claimed, attacked, certified?",
            words=(
                f"ε at δ = {delta:g} of the average of c2-s32 and c2-s64 against the weight of the second. The attack "
                "sees the average alone; the adversary chose the data set, 60,000 records with the paper's clip norm, "
                "noise and rates. It is estimated from the two means of the best linear test, read as Gaussian; what "
                "is shown with confidence is in the text. Where it is above the claim, the claim is in doubt."
            ),
            across="weight of c2-s64",
            up=f"ε at δ = {delta:g}",
            series=tuple(
                Series(
                    name=name,
                    x=values(found["shares"])[merged],
                    y=values(found[key])[merged],
                    colour=colour,
                    dashed=dashed,
                    marks="dots" if key == "attack" else "none",
                )
                for key, name, colour, dashed in lines
            ),
            note="softmax regression, T = 20, C = 2, noise 32 and 64, 60,000 records, one label exchanged",
        )
    ]


def statements(numbers: dict[str, Any]) -> list[Statement]:
    return [_bounds_every_data_set(numbers), _at_its_delta(numbers), _on_mnist(numbers), _mechanism(numbers)]


def _bounds_every_data_set(numbers: dict[str, Any]) -> Statement:
    found, claimed, certified = numbers["counted"], numbers["equal"]["claimed"], numbers["equal"]["certified"]
    broken = found["advantage"] > found["advantage claimed"]
    return Statement(
        claim="The merged trajectory bounds what the average of the paper's MNIST runs c2-s32 and c2-s64 leaks, for "
        "every data set of 60,000 images.",
        source="paper, section 6, read for clipping each gradient",
        verdict="disagrees" if broken else "within noise",
        measured=(
            f"Claimed: no test has true minus false alarms above {found['advantage claimed']:.4f}. Shown with "
            f"{100 * CONFIDENCE:g} % confidence, {found['trials']:,} trials a side: {found['advantage']:.4f}. A "
            f"Gaussian curve must then state ε ≥ {found['epsilon']:.3f} at δ = {numbers['delta']:g}, not "
            f"{claimed['epsilon']:.3f}; certified {certified['epsilon']:.3f}."
        ),
        why=(
            "The others show faint patterns, each with both labels: clipped, their gradients cancel below a size of "
            "the weights and push back beyond it. So they hold back the noisier run, and the average weighs the better "
            "one more than its weights say."
        ),
    )


def _at_its_delta(numbers: dict[str, Any]) -> Statement:
    found, claimed = numbers["counted"], numbers["equal"]["claimed"]
    shown = found["epsilon at delta"]
    verdict: Verdict = "disagrees" if shown > claimed["epsilon"] else "within noise"
    return Statement(
        claim=f"The same average is (ε, δ)-DP with the paper's ε = {claimed['epsilon']:.3f} at δ = "
        f"{numbers['delta']:g}, for every data set.",
        source="paper, section 6, read for clipping each gradient",
        verdict=verdict,
        measured=(
            f"Estimated: {found['estimated epsilon']:.3f}, if scores are Gaussian in their tails too. Counting at this "
            f"δ shows ε ≥ {shown:.3f} with {100 * CONFIDENCE:g} % confidence."
        ),
        why=""
        if verdict == "disagrees"
        else (
            f"Events of probability near {numbers['delta']:g} decide here, and so many trials hardly see them: the "
            "curve is broken where tests are often right or wrong, and open at this point of it."
        ),
    )


def _on_mnist(numbers: dict[str, Any]) -> Statement:
    claimed, rows = numbers["equal"]["claimed"], sorted(numbers["real"], key=lambda row: -float(row["mu"]))
    told = "; ".join(f"{row['name']} {row['epsilon']:.3f}" for row in rows)
    above = rows[0]["mu"] > claimed["mu"]
    return Statement(
        claim="The merged trajectory bounds what the average leaks about one image of MNIST itself, all others known.",
        source="ours",
        verdict="disagrees" if above else "agrees in part",
        measured=f"ε of the linear part of the training, by the image exchanged: {told}. Claimed: "
        f"{claimed['epsilon']:.3f}.",
        why=(
            "The linear part is the same in both runs, and for it the claim is a theorem: such attacks cannot pass "
            "it. Whether the rest can, on these data, is open: no attack is known, and there is no proof."
        ),
    )


def _mechanism(numbers: dict[str, Any]) -> Statement:
    rows, claimed = numbers["compared"], numbers["equal"]["claimed"]
    costs = np.array([row["epsilon"] for row in rows])
    told = "; ".join(f"{row['name']} {row['epsilon']:.2f}" for row in rows)
    plain, best = costs[0], costs.max()
    return Statement(
        claim="It takes other records, that push back the noisier run, to pass the claim.",
        source="ours",
        verdict="agrees" if plain < claimed["epsilon"] < best else "disagrees",
        measured=f"ε estimated as if Gaussian: {told}.",
        why="Where others push depends on the size of the noise, which falls as the number of records grows: images "
        "made for 60,000 records suit no other number.",
    )
