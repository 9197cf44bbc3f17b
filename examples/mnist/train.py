"""Train this portfolio again: logistic regression on MNIST, 60,000 images, full batch, 20 steps.

    python examples/mnist/train.py --out NEW_FOLDER

The paper's three settings with checkpoints after 8, 12, 16 and 20 steps, and a ladder of eight equal runs at σ = 512.

The noise is seeded so that anybody can rebuild these files. A real run must not be seeded: who knows the seed can take
the noise off again. Leave `noise_seed` out and the recorder draws it from the operating system.
"""

from __future__ import annotations

import sys
from pathlib import Path

from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2]))  # for `reproduction`, which is not installed
sys.path.insert(0, str(Path(__file__).parents[1]))
from full_batch import train
from mnist_data import example

from reproduction.tasks import standardised
from reproduction.training import warm_up_and_decay

PAPER = {"c2-s32": (2.0, 32.0), "c4-s32": (4.0, 32.0), "c2-s64": (2.0, 64.0)}
LADDER = {f"ladder-{rung}": (2.0, 512.0) for rung in range(1, 9)}
FIRST_SEED = 1001


def main() -> None:
    data, public, out = example(__doc__ or "", Path(__file__).parent, standardised)
    for place, (name, (clip_norm, noise_multiplier)) in enumerate((PAPER | LADDER).items()):
        train(
            nn.Linear(784, 10),
            data,
            public,
            noise_multiplier=noise_multiplier,
            clip_norm=clip_norm,
            rates=warm_up_and_decay(4.0, 20),
            keep=(8, 12, 16, 20) if name in PAPER else (20,),
            directory=out / name,
            dataset="mnist-train",
            tuning="public",
            noise_seed=FIRST_SEED + place,
            who="examples/mnist/train.py",
        )


if __name__ == "__main__":
    main()
