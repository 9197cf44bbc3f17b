"""A training process that dies in mid-step. Run by tests: folder, log of noise draws, where to die, after how many."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch  # noqa: E402
from opacus.optimizers import DPOptimizer  # noqa: E402

from dpmerge.training import manifest_writer  # noqa: E402
from training.loops import mlp, private, recorded  # noqa: E402
from training.resuming import rebuilt  # noqa: E402


def main(folder: Path, log: Path, point: str, steps: int) -> None:
    torch.set_num_threads(1)
    drawn = [0]

    def die(here: str) -> None:
        if point == here and drawn[0] >= steps:
            os.kill(os.getpid(), signal.SIGKILL)

    add_noise = DPOptimizer.add_noise

    def noted(optimizer: DPOptimizer) -> None:
        die("before the noise")
        add_noise(optimizer)
        drawn[0] += 1
        with log.open("a") as file:
            file.write(f"{optimizer.noise_multiplier}\n")
            file.flush()
            os.fsync(file.fileno())
        die("after the noise")

    DPOptimizer.add_noise = noted  # type: ignore[method-assign]
    write = manifest_writer.ManifestWriter.write

    def write_or_die(self: Any) -> None:
        die("before the manifest")
        write(self)

    manifest_writer.ManifestWriter.write = write_or_die  # type: ignore[method-assign]
    made = rebuilt(folder) if (folder / "privacy.json").exists() else private(mlp(), batches="full", noise=1.0)
    with recorded(made, folder, resume=True, checkpoint_every=3):
        for step in range(1000):
            made.optimizer.noise_multiplier = 1.0 + (step % 4) / 4
            made.train(1)
            die("after the update")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
