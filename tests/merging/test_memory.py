"""Memory does not grow with the model, nor with a tensor: measured in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from merging.models import Tensor, write_run

MOST = 64 * 1024  # kilobytes above what the imports take
SCRIPT = """
import re, sys
from pathlib import Path
import numpy as np
from dpmerge.merging.recipe_files import build
from dpmerge.merging.staging import StagedFolder
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.terms.recipe import Recipe
if sys.argv[4] == "numpy":
    sys.modules["numba"] = None
else:  # a compiler is an import, and a large one
    from dpmerge.merging.arithmetic import Scratch
    from dpmerge.merging import compiled_kernels
    from dpmerge.merging.gaussian_sampler import GaussianSampler, NoiseScratch
    compiled_kernels.WORTH_IT = 0
    kernels = compiled_kernels.kernels(0, inputs=2, noised=False)
    two = [np.zeros(8, np.uint8), np.zeros(8, np.uint8)]
    Scratch(8, kernels).combine("BF16", two, [0.5, 0.5], np.zeros(8, np.uint8), None)
    GaussianSampler(1.0).draw("w", 0, np.zeros(8), NoiseScratch(kernels))
portfolio = Portfolio.load(sys.argv[1], contents=False)
def peak():  # getrusage would count what this process was before it became Python
    return int(re.search("VmHWM:\\\\s+(\\\\d+)", Path("/proc/self/status").read_text())[1])
before = peak()
with StagedFolder(sys.argv[2]) as staged:
    build(portfolio, Recipe.of({"a@4": 0.5, "b@4": 0.5}, release_noise=float(sys.argv[3])), staged.path)
print(peak() - before)
"""


@pytest.mark.parametrize("loops", ["numpy", "compiled"])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_large_tensor_is_streamed(tmp_path: Path, noise: float, loops: str) -> None:
    for seed, run in enumerate("ab"):
        values = np.random.default_rng(seed).integers(0x3F00, 0x3F80, 2**16, dtype=np.uint16)
        large: Tensor = ("BF16", (150, 2**20), np.tile(values, 150 * 16).tobytes())
        write_run(tmp_path / "runs", run, {"step-4.safetensors": {"w": large, "b": ("BF16", (1,), b"\0\0")}})
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "runs"), str(tmp_path / "out"), str(noise), loops]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(result.stdout) < MOST
