"""Where noise and batches come from: the operating system, unless somebody wants to rebuild an example."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dpmerge.training.noise_generators import from_os_entropy, run_generators
from training.loops import QUIET, mlp, private, recorded, watched

pytestmark = [pytest.mark.filterwarnings(rule) for rule in QUIET]

CPU = torch.device("cpu")
STATE = slice(24, 24 + 8 * 624)


def trained(folder: Path, start: torch.nn.Module, **settings: Any) -> tuple[Any, list[Tensor], list[int], Tensor]:
    """The manifest's noise, the noise itself, the sizes of the batches and the weights of a run after manual_seed."""
    run = private(copy.deepcopy(start))
    torch.manual_seed(0)
    with recorded(run, folder, **settings) as recorder, watched(run) as truth:
        run.train(8)
    return recorder.manifest().noise, truth.noises, truth.rows, run.weights


def test_two_runs_after_the_same_manual_seed_differ(tmp_path: Path) -> None:
    start = mlp()
    first, second = (trained(tmp_path / name, start) for name in "ab")
    assert first[2] != second[2]
    assert not any(torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))
    assert abs(float(torch.corrcoef(torch.stack([first[1][0], second[1][0]]))[0, 1])) < 0.3
    for noise in (first[0], second[0]):
        assert (noise.source, noise.secure_rng, noise.seed) == ("os_entropy", False, None)
        assert noise.generator == "torch mt19937"
    assert first[0].stream != second[0].stream


def test_noise_differs_from_step_to_step(tmp_path: Path) -> None:
    _, noises, _, _ = trained(tmp_path, mlp())
    assert len({tuple(noise[:8].tolist()) for noise in noises}) == len(noises)


def test_a_seed_rebuilds_the_run_bit_for_bit(tmp_path: Path) -> None:
    start = mlp()
    first, second = (trained(tmp_path / name, start, noise_seed=11) for name in "ab")
    other = trained(tmp_path / "c", start, noise_seed=12)
    assert torch.equal(first[3], second[3])
    assert first[2] == second[2] != other[2]
    assert not torch.equal(first[3], other[3])
    assert (first[0].source, first[0].seed, first[0].secure_rng) == ("seeded", 11, False)
    a, b = (tmp_path / name / "step-8.safetensors" for name in "ab")
    assert a.read_bytes() == b.read_bytes()


def test_a_seed_gives_noise_and_batches_streams_of_their_own() -> None:
    made = run_generators(CPU, 3)
    assert not torch.equal(torch.rand(8, generator=made.noise), torch.rand(8, generator=made.batches))


def test_the_callers_noise_generator_is_not_used(tmp_path: Path) -> None:
    given = torch.Generator().manual_seed(0)
    run = private(noise_generator=given)
    before = given.get_state()
    with recorded(run, tmp_path):
        run.train(2)
    assert torch.equal(before, given.get_state())
    assert run.optimizer.generator is given


def test_the_whole_generator_state_is_drawn_from_the_system() -> None:
    """624 words, of which 32 bits of a seed would give 2³² choices; every word must count."""
    states = [from_os_entropy(CPU).get_state()[STATE].view(torch.int64) for _ in range(8)]
    assert all(int(state.max()) < 2**32 for state in states)
    stacked = torch.stack(states)
    assert int((stacked.max(0).values == stacked.min(0).values).sum()) == 0
    for seed in range(64):
        expected = torch.Generator().manual_seed(seed).get_state()[STATE].view(torch.int64)
        assert not any(torch.equal(expected, state) for state in states)


def test_the_state_that_was_drawn_is_the_one_that_is_used() -> None:
    """Changing any of a few words changes the numbers that come out."""
    generator = from_os_entropy(CPU)
    state = generator.get_state()
    numbers = torch.rand(1000, generator=generator)
    for word in (1, 2, 300, 396, 623):
        changed = state.clone()
        changed[STATE][8 * word + 3] ^= 0x80  # the highest bit; of the first word it is the only one that counts
        other = torch.Generator()
        other.set_state(changed)
        assert not torch.equal(numbers, torch.rand(1000, generator=other))


def test_numbers_from_a_drawn_state_are_uniform_and_normal() -> None:
    generator = from_os_entropy(CPU)
    numbers = torch.rand(200_000, generator=generator)
    assert abs(float(numbers.mean()) - 0.5) < 6 / (12 * 200_000) ** 0.5
    counts = torch.histc(numbers, bins=64, min=0, max=1)
    assert float(((counts - 3125) ** 2 / 3125).sum()) < 63 + 6 * (2 * 63) ** 0.5
    normal = torch.normal(0.0, 1.0, size=(200_000,), generator=generator)
    assert abs(float(normal.std()) - 1) < 6 / (2 * 200_000) ** 0.5


WARNINGS = """
import sys, warnings
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from training.loops import private, recorded
from dpmerge.training import InsecureNoiseWarning
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for name in "abc":
        run = private()
        with recorded(run, Path(sys.argv[2]) / name, run=name):
            run.train(1)
insecure = [w for w in caught if issubclass(w.category, InsecureNoiseWarning)]
assert len(insecure) == 1, insecure
assert "secure_rng: false" in str(insecure[0].message)
print(Path(insecure[0].filename).name)
"""


def test_the_warning_comes_once_in_a_process_and_points_at_the_caller(tmp_path: Path) -> None:
    tests = str(Path(__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", WARNINGS, tests, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "loops.py"
