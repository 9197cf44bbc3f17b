"""Release noise: its distribution, its key, and where it goes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from dpmerge.errors import TensorMismatchError
from dpmerge.merging.engine import merge
from dpmerge.merging.gaussian_sampler import GaussianSampler, NoiseScratch
from merging.models import FLOATS, Tensor, checkpoints, read_model, stored, tensor, tree, values_of, write_run

KEY = bytes(range(32))
ONE_FILE = "step-4.safetensors"

# With fixed keys nothing here can flake; the tolerances are five standard errors or a p-value of 1e-6 all the same.
LEAST_P = 1e-6


def normals(count: int, *, key: bytes | None = KEY, piece: int = 0, deviation: float = 1.0) -> npt.NDArray[np.float64]:
    return GaussianSampler(deviation, key).draw(piece, count, NoiseScratch(count)).copy()


@pytest.mark.parametrize("key", [KEY, bytes(32), b"\xff" * 32], ids=["counting", "zeros", "ones"])
def test_the_distribution_is_normal(key: bytes) -> None:
    values, count = normals(2**20, key=key), 2**20
    assert stats.kstest(values, "norm").pvalue > LEAST_P
    for power, (mean, variance) in enumerate([(0, 1), (1, 2), (0, 15), (3, 96), (0, 945), (15, 10170)], 1):
        assert abs(np.mean(values**power) - mean) < 5 * math.sqrt(variance / count), power
    for bound in (2.0, 3.0, 4.0):
        tail = 2 * stats.norm.sf(bound)
        assert abs(np.mean(abs(values) > bound) - tail) < 5 * math.sqrt(tail / count), bound


def test_halves_pairs_and_pieces_are_independent() -> None:
    pieces = [normals(2**18, piece=number) for number in range(3)]
    block = 2**15
    pairs = pieces[0].reshape(-1, 2, block)  # the two normals of a pair lie a block apart
    samples = {
        "neighbours": (pieces[0][:-1], pieces[0][1:]),
        "even and odd": (pieces[0][::2], pieces[0][1::2]),
        "pairs": (pairs[:, 0].ravel(), pairs[:, 1].ravel()),
        "pieces": (pieces[0], pieces[1]),
        "shifted pieces": (pieces[1][1:], pieces[2][:-1]),
    }
    for name, (one, other) in samples.items():
        for transform in (lambda x: x, np.square, np.abs, np.sign):
            assert stats.pearsonr(transform(one), transform(other)).pvalue > LEAST_P, name
        # The angle of independent normals is uniform, in every octant and quadrant.
        angle = np.arctan2(one, other) / (2 * math.pi) + 0.5
        assert stats.kstest(angle, "uniform").pvalue > LEAST_P, name
        counts, _ = np.histogram(angle, 64, (0, 1))
        assert stats.chisquare(counts).pvalue > LEAST_P, name


def test_no_value_is_drawn_twice() -> None:
    drawn = np.concatenate([normals(2**15 + 3, piece=number) for number in range(20)])
    assert len(np.unique(drawn)) == len(drawn)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 2**16 - 1, 2**16, 2**16 + 1, 3 * 2**16 + 5])
def test_any_number_of_values_can_be_drawn(count: int) -> None:
    values = normals(count)
    assert values.shape == (count,)
    assert np.all(np.isfinite(values))
    assert np.all(abs(values) < 8.58)
    assert len(np.unique(values)) == count


def test_the_extreme_bits_give_finite_values() -> None:
    scratch = NoiseScratch(64)
    for pattern in (0x00, 0xFF, 0x80, 0x7F):
        scratch.random[:] = bytes([pattern]) * len(scratch.random)
        scratch.box_muller(1.0, out := np.empty(64))
        assert np.all(np.isfinite(out))
        assert np.all(abs(out) < 8.58)


def test_pairs_are_what_box_and_muller_make_of_their_bits() -> None:
    scratch, pairs = NoiseScratch(2**16), 2**15
    bits = np.random.default_rng(4).integers(0, 2**64, 2 * pairs, dtype=np.uint64)
    scratch.random[: 8 * bits.size] = bits.tobytes()
    out = np.empty(2 * pairs)
    scratch.box_muller(3.0, out)
    for place in range(0, pairs, 1000):
        radius = mpmath.sqrt(-2 * mpmath.log(mpmath.mpf((int(bits[place]) >> 11) + 1) / 2**53))
        angle = 2 * mpmath.pi * (int(bits[pairs + place]) >> 11) / 2**53
        assert out[place] == pytest.approx(float(3 * radius * mpmath.cos(angle)), rel=1e-12, abs=1e-14)
        assert out[pairs + place] == pytest.approx(float(3 * radius * mpmath.sin(angle)), rel=1e-12, abs=1e-14)


def test_the_deviation_scales_the_same_normals() -> None:
    np.testing.assert_allclose(normals(1000, deviation=0.25), 0.25 * normals(1000), rtol=1e-15)


def test_a_key_of_the_system_is_drawn_for_every_merge() -> None:
    one, other = normals(100, key=None), normals(100, key=None)
    assert not np.any(one == other)


def merged(home: Path, name: str, **settings: Any) -> dict[str, Tensor]:
    saved = checkpoints(home / "runs")
    (home / name).mkdir()
    merge([(saved[0], 0.5), (saved[1], 0.5)], home / name, donor=saved[0], **settings)
    return read_model(home / name)


@pytest.mark.parametrize("dtype", FLOATS)
def test_noise_is_added_to_trained_tensors_only(tmp_path: Path, dtype: str) -> None:
    frozen = tensor(dtype, (30_001,), 9)
    integers = ("I64", (3,), stored("I64", [1, 2, 3]))
    for seed, run in enumerate("ab"):
        tensors = {"early": tensor(dtype, (30_001,), seed), "frozen": frozen, "integers": integers,
                   "late": tensor(dtype, (30_001,), seed + 5)}  # fmt: skip
        write_run(tmp_path / "runs", run, {ONE_FILE: tensors}, frozen=["frozen", "integers"])
    plain = merged(tmp_path, "plain", trained=["early", "late"])
    noised = merged(tmp_path, "noised", trained=["early", "late"], release_noise=2.0, buffer=4096)
    assert noised["frozen"] == frozen
    assert noised["integers"] == integers
    noise = {}
    for name in ("early", "late"):
        noise[name] = values_of(dtype, noised[name][2]) - values_of(dtype, plain[name][2])
        assert abs(noise[name].std() / 2.0 - 1) < 0.03
        assert abs(noise[name].mean()) < 0.08
        assert stats.kstest(noise[name], "norm", args=(0, 2.0)).pvalue > 1e-9 or dtype == "BF16"
    assert abs(np.corrcoef(noise["early"], noise["late"])[0, 1]) < 0.04


@pytest.mark.parametrize("trained", [["weight", "integers"], None], ids=["trained", "nobody says"])
def test_noise_that_would_pass_integers_by_is_refused(tmp_path: Path, trained: list[str] | None) -> None:
    integers = ("I64", (3,), stored("I64", [1, 2, 3]))
    for seed, run in enumerate("ab"):
        write_run(
            tmp_path / "runs", run, {ONE_FILE: {"weight": tensor("F32", (9,), seed), "integers": integers}}, frozen=None
        )
    with pytest.raises(TensorMismatchError, match="integers"):
        merged(tmp_path, "noised", trained=trained, release_noise=1.0)


def test_every_float_tensor_gets_noise_where_nobody_says_what_was_trained(tmp_path: Path) -> None:
    for seed, run in enumerate("ab"):
        write_run(tmp_path / "runs", run, {ONE_FILE: {d: tensor(d, (50,), seed) for d in FLOATS}}, frozen=None)
    plain, noised = merged(tmp_path, "plain", trained=None), merged(tmp_path, "noised", trained=None, release_noise=1.0)
    for dtype in FLOATS:
        assert np.mean(values_of(dtype, plain[dtype][2]) != values_of(dtype, noised[dtype][2])) > 0.9


def test_noise_differs_from_merge_to_merge_and_is_nowhere_else(tmp_path: Path) -> None:
    for seed, run in enumerate("ab"):
        write_run(tmp_path / "runs", run, {ONE_FILE: {"w": tensor("F32", (500,), seed)}})
    one, other = (merged(tmp_path, name, trained=None, release_noise=1.0) for name in ("one", "other"))
    assert not np.any(values_of("F32", one["w"][2]) == values_of("F32", other["w"][2]))
    assert list(tree(tmp_path / "one")) == ["model.safetensors"]


def test_noise_is_added_to_one_checkpoint_alone(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "a", {ONE_FILE: {"w": tensor("F64", (10_000,), 1), "f": tensor("F64", (9,), 2)}})
    (saved,) = checkpoints(tmp_path / "runs")
    (tmp_path / "out").mkdir()
    merge([(saved, 1.0)], tmp_path / "out", donor=saved, trained=["w"], release_noise=3.0)
    found = read_model(tmp_path / "out")
    assert found["f"] == tensor("F64", (9,), 2)
    noise = values_of("F64", found["w"][2]) - values_of("F64", tensor("F64", (10_000,), 1)[2])
    assert abs(noise.std() / 3.0 - 1) < 0.04
