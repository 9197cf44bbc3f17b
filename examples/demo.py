"""The whole story on the example portfolio, in at most 80 lines: inspect, plan, merge, verify, attack, count, draw.

Every command can be typed, and is run; of what it prints only the lines that matter for the story are shown. Works on
a copy of the portfolio, because a release leaves a ledger beside it. `make demo` runs this.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shutil
from pathlib import Path

from dpmerge.cli import app
from dpmerge.evaluation.evaluators import load_evaluator
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.tensors import read_header, read_tensor

HERE = Path(__file__).parent
TARGETS = ("0.12", "0.8")
DELTA = ("--delta", "1e-5")
KEY = ("--key", "signing.pem")


def told(*command: str, shown: str) -> None:
    """Run a verb as if it were typed, and print the lines that match; a verb that fails is shown as a whole."""
    print(f"$ dpmerge {' '.join(command)}", flush=True)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            app(command, standalone_mode=False)
    except BaseException:
        print(printed.getvalue(), flush=True)
        raise
    for line in printed.getvalue().splitlines():
        if re.search(shown, line):
            print(f"  {line.rstrip()}")


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


def story(out: Path) -> None:
    """Within a folder that has the portfolio; `out` is what the reader calls that folder."""
    print(
        f"""\
Eleven models of MNIST, trained with differential privacy. Wanted: one at
ε = 0.12 and one at ε = 0.8, levels that none of them has, without training.
Each command was run just now, in {out}; of what it prints some lines are shown.

1. What is there?"""
    )
    told("inspect", "mnist", shown=r"^ run|^ (c2-s32|c2-s64|ladder-1) |^Everything")
    print(
        """\
σ is the noise of training, C the length a record's gradient is clipped to. From
these follows ε: an attack that says "this record was there" with chance p when
it was not says so with chance at most e^ε·p + δ when it was; δ is 0.00001.
A small ε is private; μ is another scale for it. Accuracy: on public images.

2. What would meet ε = 0.12? Planning looks at no model and costs nothing."""
    )
    told("plan", "mnist", "--epsilon", TARGETS[0], *DELTA, shown=r"^ +0\.\d+ +merge|^It costs|^independently")
    print(
        """\
Two averages, of four and of five weak models, whose noise partly cancels; each
with its chance and its own ε. The draw between them costs 0.12 and no more.

3. Release both. Each is charged to a ledger first, and gets a certificate."""
    )
    told("keygen", "-o", "signing.pem", shown=r"^Private")
    for epsilon in TARGETS:
        told(
            *("merge", "mnist", "--epsilon", epsilon, *DELTA, "-o", f"eps-{epsilon}", "--key", "signing.pem"),
            shown=r"^ε|^Made|certificate",
        )
    print(
        """\
replace_one: one record is exchanged for another. joint_release: the theorem by
which an average costs what publishing all its models would. The noise of these
examples is seeded, so that anybody can remake them: they protect nobody.

4. Anybody can check: every figure is computed again, none is believed."""
    )
    for epsilon, shown in zip(
        TARGETS, (r"^✓ (signature|guarantee|rebuild|ledger)|^Verified", r"^Verified"), strict=True
    ):
        command = ("verify", f"eps-{epsilon}", "--key", "signing.pem.pub", "--portfolio", "mnist", "--rebuild")
        told(*command, shown=shown)
    print("\n5. Is ε an honest number? Attack it, simulated with a record and without.")
    told("audit", "eps-0.8", shown=r"^(certified|shown|verdict)|estimator|^ +(and not )?more *$")
    print(
        """\
Certified is what no attack passes if the runs' records are true; shown is what
one attack does reach.

6. What do both releases tell together? And what would other levels give?"""
    )
    told("ledger", "show", "mnist", shown=r"^mnist-train")
    told("frontier", "mnist", "--evaluator", "linear:mnist/public.npz", "-o", "report.html", shown=r"^Wrote")
    print("\nAccuracy, looked at after the release, when it can decide nothing any more:")
    for epsilon in TARGETS:
        merged = accuracy(Path(f"eps-{epsilon}") / "model.safetensors", Path("mnist/public.npz"))
        single, score = best_single(Portfolio.load("mnist"), float(epsilon))
        print(f"  eps-{epsilon}: {merged:.1%}; the best single model within that ε: {score:.1%} ({single})")
    print(
        f"""\
Which single one is best nobody knows without looking at all, and paying for it.

What to do next
- open {out}/report.html in a browser; it shows models that were not released,
  so it is for you alone. {out}/eps-0.12/README.md is for all: the model card;
- before you train models of your own: docs/start/before-you-train.md;
- with models that you have: dpmerge import, docs/how-to/pt-files.md."""
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(".demo"), help="a folder that is made afresh")
    out = parser.parse_args().out
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(HERE / "mnist", out / "mnist")
    os.environ["COLUMNS"] = "78"  # and two that set it apart
    os.chdir(out)
    story(out)


if __name__ == "__main__":
    main()
