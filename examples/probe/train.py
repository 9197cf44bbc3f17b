"""Train this portfolio again: softmax regression on unit-norm features, to which every theorem applies.

    python examples/probe/train.py --out NEW_FOLDER

Each image is a feature vector with a constant appended for the bias, rescaled by itself to norm 1 at most, and the
clip norm lies just above √2, so that clipping never acts: the update is Lipschitz, and hidden_state certifies. The
checkpoint after one step is there for merged_trajectory, whose premise holds for single steps.

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

from reproduction.tasks import PROBE_CLIP_NORM, bounded
from reproduction.training import warm_up_and_decay

NOISE = {"s16": 16.0, "s32": 32.0, "s64": 64.0}

PEAK_RATE = 4.0  # 2/β: at most this, and an update never pulls two hidden states apart
FIRST_SEED = 2001


def main() -> None:
    data, public, out = example(__doc__ or "", Path(__file__).parent, bounded)
    for place, (name, noise_multiplier) in enumerate(NOISE.items()):
        train(
            nn.Linear(785, 10, bias=False),
            data,
            public,
            noise_multiplier=noise_multiplier,
            clip_norm=PROBE_CLIP_NORM,
            rates=warm_up_and_decay(PEAK_RATE, 20),
            keep=(1, 10, 20),
            directory=out / name,
            dataset="mnist-train",
            tuning="public",
            feature_bound=1.0,
            noise_seed=FIRST_SEED + place,
            who="examples/probe/train.py",
        )


if __name__ == "__main__":
    main()
