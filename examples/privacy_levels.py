"""The README's picture: what every privacy level gets from the example portfolio, by a plan and by the model one had.

    python examples/privacy_levels.py        # writes docs/start/privacy-levels.png

A plan looks at no model. Its accuracy on the public images is what is expected of its draw; the model one had is the
least private finished one within ε, of equal ones their mean. A test draws the picture again and compares.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import dpmerge as dpm
from dpmerge.portfolio.tensors import read_tensor
from dpmerge.report.plot_pictures import write_plot_pictures
from dpmerge.report.plots import COLOURS, Plot, Series

ROOT = Path(__file__).parents[1]
DELTA = 1e-5


def privacy_levels() -> Plot:
    """What is drawn, as plain data."""
    portfolio = dpm.Portfolio.load(ROOT / "examples" / "mnist")
    public = np.load(ROOT / "examples" / "mnist" / "public.npz")
    models = {
        saved.name: {name: read_tensor(file, entry) for name, (file, entry) in saved.tensors.items()}
        for saved in portfolio.checkpoints()
    }

    def accuracy(weights: dict[str, float]) -> float:
        weight, bias = (sum(w * models[name][part] for name, w in weights.items()) for part in ("weight", "bias"))
        return 100 * float(((public["features"] @ weight.T + bias).argmax(axis=1) == public["labels"]).mean())

    costs = {s.name: portfolio.run(s.run).mechanism.profile(s.step).epsilon(DELTA) for s in portfolio.checkpoints()}
    # Also where a model comes into reach: lines that have steps have them there.
    targets = np.unique([*np.geomspace(0.0506, 1.6, 60), *(cost * 1.0001 for cost in costs.values())])
    planned, had = [], []
    for epsilon in targets:
        plan = dpm.plan(portfolio, epsilon=float(epsilon), delta=DELTA, theorem="joint_release")
        drawn = zip(plan.probabilities, plan.candidates, strict=True)
        planned.append(sum(chance * accuracy(dict(candidate.recipe.parts)) for chance, candidate in drawn))
        assert plan.single_checkpoint is not None
        equal = [name for name, cost in costs.items() if cost == costs[plan.single_checkpoint.name]]
        had.append(np.mean([accuracy({name: 1.0}) for name in equal]))
    return Plot(
        name="privacy-levels",
        heading="Eleven models of MNIST: what each privacy level gets",
        words="Accuracy on public images against ε, for what dpmerge plan would release and for the model one had.",
        across=f"ε at δ = {DELTA:g} (smaller is more private)",
        up="accuracy on public images, %",
        series=(
            Series(
                name="what dpmerge plan would release, on average",
                x=targets,
                y=np.array(planned),
                colour=COLOURS["mix"],
            ),
            Series(
                name="the least private finished model within ε",
                x=targets,
                y=np.array(had),
                colour=COLOURS["select"],
                steps=True,
            ),
            Series(
                name="a model as it was trained",
                x=np.array(list(costs.values())),
                y=np.array([accuracy({name: 1.0}) for name in costs]),
                colour=COLOURS["models"],
                marks="diamonds",
                line=False,
            ),
        ),
        log_x=True,
        epsilon="x",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "start", help="the folder of the picture")
    write_plot_pictures([privacy_levels()], parser.parse_args().out)


if __name__ == "__main__":
    main()
