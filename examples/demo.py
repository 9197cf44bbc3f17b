"""The whole story on the example portfolio: inspect, plan, merge, verify, attack, count; every line can be typed.

Works on a copy of the portfolio, because a release leaves a ledger beside it. `make demo` runs this.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

from dpmerge.cli import app
from dpmerge.evaluation.evaluators import load_evaluator
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.tensors import read_header, read_tensor

HERE = Path(__file__).parent
TARGETS = ("0.12", "0.8")
DELTA = ("--delta", "1e-5")


def told(*command: str) -> None:
    """Run a verb as if it were typed."""
    print(f"\n$ dpmerge {' '.join(command)}", flush=True)
    app(command, standalone_mode=False)


def accuracy(weights: Path, public: Path) -> float:
    """Of a linear model on public images."""
    model = {slot.name: read_tensor(weights, slot) for slot in read_header(weights)}
    return float(load_evaluator(f"linear:{public}")(model))


def best_single(portfolio: Portfolio, epsilon: float) -> tuple[str, float]:
    """The most accurate checkpoint that costs no more, by the public figures in the manifests."""
    within = [
        (saved.metric("accuracy"), saved.name)
        for saved in portfolio.checkpoints()
        if portfolio.run(saved.run).mechanism.profile(saved.step).epsilon(1e-5) <= epsilon
    ]
    score, name = max(within)
    return name, score


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(".demo"), help="a folder that is made afresh")
    out = parser.parse_args().out
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(HERE / "mnist", out / "mnist")
    os.chdir(out)
    print(f"In {out}, with a copy of the example portfolio: eleven private models, none of them at these levels.")
    told("inspect", "mnist")
    for epsilon in TARGETS:
        told("plan", "mnist", "--epsilon", epsilon, *DELTA)
    told("keygen", "-o", "signing.pem")
    for epsilon in TARGETS:
        told("merge", "mnist", "--epsilon", epsilon, *DELTA, "-o", f"eps-{epsilon}", "--key", "signing.pem")
    for epsilon in TARGETS:
        told("verify", f"eps-{epsilon}", "--key", "signing.pem.pub", "--portfolio", "mnist", "--rebuild")
    told("audit", "eps-0.8")
    told("ledger", "show", "mnist")
    told("ledger", "verify", "mnist")
    told("frontier", "mnist", *DELTA, "--evaluator", "linear:mnist/public.npz", "-o", "report.html")
    print("\nAccuracy on the 1,000 public images (looked at after the release, which costs nothing any more):")
    for epsilon in TARGETS:
        weights = Path(f"eps-{epsilon}") / "model.safetensors"
        single, score = best_single(Portfolio.load("mnist"), float(epsilon))
        merged = accuracy(weights, Path("mnist/public.npz"))
        print(
            f"  eps-{epsilon}: {merged:.1%}; of single checkpoints within that ε the best is {single} with {score:.1%}"
        )
    print("  (which single one is best can only be known by looking at all, and paying for it: the merge was not.)")
    print(f"\nModels: {out}/eps-0.12 and {out}/eps-0.8, each with a certificate and a model card.")
    print(f"Report: {out}/report.html, to be opened in a browser; not for release, it shows models nobody has seen.")


if __name__ == "__main__":
    main()
