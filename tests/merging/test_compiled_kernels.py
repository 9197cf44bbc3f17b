"""Compiled or not: the same bytes of merges, and of release noise."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpmerge.merging import compiled_kernels, merge_workers
from dpmerge.merging.arithmetic import Scratch
from dpmerge.merging.compiled_kernels import Kernels, kernels
from dpmerge.merging.gaussian_sampler import BLOCK, GaussianSampler, NoiseScratch
from merging.models import tree
from merging.test_engine import merge_three, write_three

LARGE = compiled_kernels.WORTH_IT


def compiled() -> Kernels:
    made = kernels(LARGE, inputs=3, noised=False)
    assert made is not None, "numba is installed for the tests"
    return made


@given(
    st.integers(1, 5),
    st.integers(1, 3000),
    st.booleans(),
    st.integers(0, 2**32 - 1),
    st.sampled_from(["ordinary", "any bits"]),
)
def test_sums_of_bfloat16_are_the_same_bits(inputs: int, words: int, noised: bool, seed: int, kind: str) -> None:
    """Of ordinary values, and of any: subnormals, infinities and NaNs, which both must notice."""
    random = np.random.default_rng(seed)
    size = 8 * words
    if kind == "ordinary":
        values = random.standard_normal((inputs, 4 * words)).astype(np.float32)
        read = list((values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8))
    else:
        read = list(random.integers(0, 256, (inputs, size), np.uint8))
    weights = random.dirichlet(np.ones(inputs)).tolist()
    noise = random.standard_normal(4 * words - int(random.integers(0, 4))) if noised else None
    one, other = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
    with np.errstate(all="ignore"):
        finite = Scratch(size).combine("BF16", read, weights, one, noise)
    assert Scratch(size, compiled()).combine("BF16", read, weights, other, noise) == finite
    if finite:
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("start", "count"), [(0, 2 * BLOCK), (1, 1), (BLOCK - 3, 700), (BLOCK // 2 - 1, 3), (17, 999)])
def test_normals_are_the_same_bits(start: int, count: int) -> None:
    sampler = GaussianSampler(0.3, key=bytes(range(32)))
    drawn = []
    for scratch in (NoiseScratch(), NoiseScratch(compiled())):
        sampler.draw("layer", start, out := np.empty(count), scratch)
        drawn.append(out.view(np.uint64))
    np.testing.assert_array_equal(*drawn)


def test_extreme_random_numbers_give_the_same_bits() -> None:
    """All zeros, all ones, and one bit set: the ends of the radius, and every quadrant."""
    extreme = [0, 2**64 - 1, *(1 << bit for bit in range(64)), *((2**64 - 1) ^ (1 << bit) for bit in range(64))]
    pairs = np.array([(a, b) for a in extreme for b in extreme], np.uint64)
    found = []
    for scratch in (NoiseScratch(), NoiseScratch(compiled())):
        found.append([])
        for begun in range(0, len(pairs), len(scratch._words)):
            some = pairs[begun : begun + len(scratch._words)]
            scratch._words[: len(some)] = some
            scratch.box_muller(0, len(some))
            found[-1] += [scratch.values[: len(some)].copy(), scratch.values[BLOCK // 2 :][: len(some)].copy()]
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one.view(np.uint64), other.view(np.uint64))
        assert np.all(np.isfinite(one))


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_a_merge_has_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noise: float) -> None:
    write_three(tmp_path / "runs", frozen=["steps", "mask"])
    trained = ["bf16.weight", "bf16.scalar", "f32.weight", "f16.weight", "f64.weight"]
    monkeypatch.setattr("dpmerge.merging.gaussian_sampler.os.urandom", bytes)
    settings: dict[str, Any] = {"trained": trained, "frozen_may_differ": True, "release_noise": noise, "buffer": 64}
    merge_three(tmp_path / "runs", tmp_path / "plain", **settings)
    used = []
    monkeypatch.setattr(merge_workers, "kernels", lambda *_, **__: used.append(compiled()) or used[-1])
    merge_three(tmp_path / "runs", tmp_path / "compiled", **settings)
    assert used
    assert tree(tmp_path / "compiled") == tree(tmp_path / "plain")


def test_small_merges_import_nothing_and_numba_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels(LARGE - 1, inputs=2, noised=False) is None
    assert kernels(compiled_kernels.WORTH_IT_NOISED - 1, inputs=2, noised=True) is None
    compiled_kernels._compiled.cache_clear()
    try:
        monkeypatch.setitem(sys.modules, "numba", None)
        assert kernels(LARGE, inputs=2, noised=True) is None
    finally:
        monkeypatch.undo()
        compiled_kernels._compiled.cache_clear()


class Broken:
    """A numba that imports and does nothing else."""

    def __init__(self, works: bool) -> None:
        self.works = works
        self.asked: list[bool] = []

    def njit(self, **settings: Any) -> Any:
        self.asked.append(settings["cache"])
        if settings["cache"] or not self.works:
            raise RuntimeError("cannot cache function: no locator available for file")
        return lambda function: function


@pytest.mark.parametrize("works", [True, False], ids=["without what it keeps on disk", "not at all"])
def test_a_numba_that_does_not_work_is_not_used(works: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it raises, here where it cannot write: a merge that is charged goes on."""
    compiled_kernels._compiled.cache_clear()
    broken = Broken(works)
    monkeypatch.setitem(sys.modules, "numba", broken)  # type: ignore[arg-type]
    try:
        assert (kernels(LARGE, inputs=2, noised=True) is not None) == works
        assert broken.asked == [True, False]
    finally:
        monkeypatch.undo()
        compiled_kernels._compiled.cache_clear()
