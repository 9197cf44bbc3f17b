"""Release noise: its distribution, its key, and where it goes."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from dpmerge.errors import TensorMismatchError
from dpmerge.merging import gaussian_sampler
from dpmerge.merging.engine import merge
from dpmerge.merging.gaussian_sampler import BLOCK, PAIRS, SAMPLER, GaussianSampler, NoiseScratch
from merging.models import FLOATS, Tensor, checkpoints, read_model, stored, tensor, tree, values_of, write_run

KEY = bytes(range(32))
ONE_FILE = "step-4.safetensors"

# With fixed keys nothing here can flake; the tolerances are five standard errors or a p-value of 1e-6 all the same.
LEAST_P = 1e-6


def normals(
    count: int, *, key: bytes | None = KEY, weight: str = "w", start: int = 0, deviation: float = 1.0
) -> npt.NDArray[np.float64]:
    GaussianSampler(deviation, key).draw(weight, start, out := np.empty(count), NoiseScratch())
    return out


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
    weights = [normals(2**18, weight=name) for name in ("a", "b", "ab")]
    pairs = weights[0].reshape(-1, 2, PAIRS)  # the two normals of a pair lie half a block apart
    samples = {
        "neighbours": (weights[0][:-1], weights[0][1:]),
        "even and odd": (weights[0][::2], weights[0][1::2]),
        "pairs": (pairs[:, 0].ravel(), pairs[:, 1].ravel()),
        "weights": (weights[0], weights[1]),
        "shifted weights": (weights[1][1:], weights[2][:-1]),
        "blocks": (weights[0][:-BLOCK], weights[0][BLOCK:]),
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
    drawn = np.concatenate([normals(2**15 + 3, weight=f"layers.{number}") for number in range(20)])
    assert len(np.unique(drawn)) == len(drawn)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 2**16 - 1, 2**16, 2**16 + 1, 3 * 2**16 + 5])
def test_any_number_of_values_can_be_drawn(count: int) -> None:
    values = normals(count)
    assert values.shape == (count,)
    assert np.all(np.isfinite(values))
    assert np.all(abs(values) < 8.58)
    assert len(np.unique(values)) == count


def test_the_extreme_bits_give_finite_values() -> None:
    scratch = NoiseScratch()
    for pattern in (0x00, 0xFF, 0x80, 0x7F):
        scratch.random[:] = bytes([pattern]) * len(scratch.random)
        scratch.box_muller(0, PAIRS)
        assert np.all(np.isfinite(scratch.values))
        assert np.all(abs(scratch.values) < 8.58)


def test_pairs_are_what_box_and_muller_make_of_their_bits() -> None:
    """To fifteen digits of each value, however small, at random bits and at all corners of the two formulas."""
    scratch = NoiseScratch()
    bits = np.random.default_rng(4).integers(0, 2**64, (PAIRS, 2), dtype=np.uint64)
    corners = [0, 1, 2**11, 2**61, 2**62 - 1, 2**62, 2**62 + 2**11, 2**63 - 1, 2**63, 3 * 2**62, 2**64 - 1]
    root_half = int(2**64 / math.sqrt(2))  # where the logarithm changes its exponent
    firsts = [*corners, root_half - 2**12, root_half, root_half + 2**12]
    known = [(first, second) for first in firsts for second in corners]
    bits[: len(known)] = known
    scratch.random[: 16 * PAIRS] = bits.tobytes()
    scratch.box_muller(0, PAIRS)
    with mpmath.workdps(50):
        for place in (*range(len(known)), *range(len(known), PAIRS, 50)):
            radius = mpmath.sqrt(-2 * mpmath.log(mpmath.mpf((int(bits[place, 0]) >> 11) + 1) / 2**53))
            # Exact by the quarter, so that the oracle has no small cosine where there is none.
            quarter, share = divmod(int(bits[place, 1]) >> 11, 2**51)
            sine, cosine = (mpmath.sinpi(mpmath.mpf(part) / 2**52) for part in (share, 2**51 - share))
            x, y = [(cosine, sine), (-sine, cosine), (-cosine, -sine), (sine, -cosine)][quarter]
            for found, value in ((scratch.values[place], radius * x), (scratch.values[PAIRS + place], radius * y)):
                assert abs(mpmath.mpf(float(found)) - value) <= 1e-15 * abs(value), bits[place]


@pytest.mark.parametrize(
    ("start", "count"),
    [
        (0, 5),
        (5, 7),
        (PAIRS - 1, 2),
        (PAIRS, PAIRS),
        (PAIRS + 3, 9),
        (BLOCK - 1, 2),
        (3, 2 * BLOCK),
        (2 * BLOCK + 77, BLOCK),
        (5 * BLOCK - 1, 1),
    ],
)
def test_any_slice_of_a_weight_can_be_made_alone(start: int, count: int) -> None:
    whole = normals(5 * BLOCK)
    assert normals(count, start=start).tobytes() == whole[start : start + count].tobytes()


def test_the_bits_of_this_version_of_the_sampler_are_these_on_every_machine() -> None:
    """Computed from additions, products, quotients and roots: where this fails, the sampler needs another number."""
    assert SAMPLER == "aes-256-ctr box-muller 2"
    digest = hashlib.sha256(normals(3 * BLOCK + 1, weight="layers.0.weight").tobytes()).hexdigest()
    assert digest == "c6c59f9ef642c0e482347e90e703416c4de0b0a6e06a585f61468d2fb2be4bab"


def test_the_values_are_those_of_plain_python_bit_by_bit() -> None:
    """No vector instruction, library or fused product may change the last bit; Python takes one step at a time."""
    scratch = NoiseScratch()
    bits = np.random.default_rng(5).integers(0, 2**64, (PAIRS, 2), dtype=np.uint64)
    scratch.random[: 16 * PAIRS] = bits.tobytes()
    scratch.box_muller(0, PAIRS)

    def polynomial(coefficients: tuple[float, ...], at: float) -> float:
        value = at * coefficients[-1]
        for coefficient in coefficients[-2:0:-1]:
            value = (value + coefficient) * at
        return value + coefficients[0]

    def quarter_sine(share: float) -> float:
        return polynomial(gaussian_sampler._SIN, share * share) * share

    for place in range(0, PAIRS, 80):
        first, second = map(int, bits[place])
        mantissa, exponent = math.frexp(float((first >> 11) + 1) * 2.0**-53)
        if mantissa >= math.sqrt(0.5):
            ratio = (mantissa - 1.0) / (mantissa + 1.0)
        else:
            exponent -= 1
            ratio = (2 * mantissa - 1.0) / (2 * mantissa + 1.0)
        logarithm = polynomial(gaussian_sampler._LOG, ratio * ratio) * ratio + exponent * math.log(2)
        radius = math.sqrt(logarithm * -2.0)
        quadrant = second >> 62
        share = abs((quadrant & 1) - float((second & (2**62 - 1)) >> 11) * 2.0**-51)
        x = quarter_sine(1.0 - share) * radius * (-1 if quadrant in (1, 2) else 1)
        y = quarter_sine(share) * radius * (-1 if quadrant >= 2 else 1)
        assert (scratch.values[place], scratch.values[PAIRS + place]) == (x, y)


def test_a_key_for_each_weight_is_not_the_key_of_the_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    used, cipher = list[bytes](), gaussian_sampler.algorithms.AES
    monkeypatch.setattr(gaussian_sampler.algorithms, "AES", lambda key: used.append(key) or cipher(key))
    for weight in ("a", "b", "a"):
        normals(10, weight=weight)
    assert used[0] == used[2] != used[1]
    assert KEY not in used


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


@pytest.mark.parametrize("dtype", FLOATS)
def test_noise_depends_on_neither_buffers_nor_threads_nor_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """With one key: whole tensors, pieces that begin anywhere in them, and a model that has other tensors beside."""
    monkeypatch.setattr("os.urandom", lambda count: KEY[:count])
    sizes = {"first": 5, "large": 70_001, "last": 3001}
    for seed, run in enumerate("ab"):
        tensors = {name: tensor(dtype, (size,), seed + place) for place, (name, size) in enumerate(sizes.items())}
        write_run(tmp_path / "runs", run, {ONE_FILE: tensors})
        write_run(tmp_path / "fewer" / "runs", run, {ONE_FILE: {"large": tensors["large"]}})
    settings = {"trained": None, "release_noise": 1.0}
    whole = merged(tmp_path, "whole", **settings)
    for place, (buffer, jobs) in enumerate([(2**16, 1), (4096, 3), (8 * 1001, 2)]):
        assert merged(tmp_path, f"out-{place}", buffer=buffer, jobs=jobs, **settings) == whole
    assert merged(tmp_path / "fewer", "out", **settings)["large"] == whole["large"]


def test_noise_is_added_to_one_checkpoint_alone(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "a", {ONE_FILE: {"w": tensor("F64", (10_000,), 1), "f": tensor("F64", (9,), 2)}})
    (saved,) = checkpoints(tmp_path / "runs")
    (tmp_path / "out").mkdir()
    merge([(saved, 1.0)], tmp_path / "out", donor=saved, trained=["w"], release_noise=3.0)
    found = read_model(tmp_path / "out")
    assert found["f"] == tensor("F64", (9,), 2)
    noise = values_of("F64", found["w"][2]) - values_of("F64", tensor("F64", (10_000,), 1)[2])
    assert abs(noise.std() / 3.0 - 1) < 0.04
