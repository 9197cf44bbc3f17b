"""Poisson batches of several processes: every record is on one rank at a time, and drawn there with probability q.

Guarantees: a rank draws from its share of the records alone, each record of it with the same probability and by itself,
and a draw without records is a batch like any other, so that all ranks step together: Opacus' sampler drops it. The
shares of all ranks are, together, every record once; that is seen from the numbers of the records themselves.
Refuses: samplers that draw from all records on every rank, in whose batches a record is once a rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler

from dpmerge.errors import RecordingError

_MODULUS = 2**64


def require_shared(sampler: Any, records: int, *, rank: int, world: int) -> None:
    """Refuse batches in which a record may be on two ranks, or on none."""
    if type(sampler) is not DistributedUniformWithReplacementSampler:
        raise RecordingError(
            f"data_loader: batches drawn by {type(sampler).__name__} on each of {world} processes, so that a record "
            "may be in several of them; let make_private sample (poisson_sampling=True) for a model in Opacus' "
            "DifferentiallyPrivateDistributedDataParallel"
        )
    found = sampler.total_size, sampler.rank, sampler.num_replicas
    if found != (records, rank, world):
        raise RecordingError(
            f"data_loader: its sampler draws from {found[0]} records as rank {found[1]} of {found[2]}, but there are "
            f"{records}, and this is rank {rank} of {world}; let make_private make it on every rank"
        )


def own_records(sampler: DistributedUniformWithReplacementSampler) -> torch.Tensor:
    """The numbers of this rank's records, as Opacus deals them out: by a permutation that is public."""
    order = torch.arange(sampler.total_size)
    if sampler.shuffle:
        dealt = torch.Generator().manual_seed(sampler.shuffle_seed + sampler.epoch)
        order = torch.randperm(sampler.total_size, generator=dealt)
    return order[sampler.rank :: sampler.num_replicas]


def draws(sampler: DistributedUniformWithReplacementSampler) -> Iterator[list[int]]:
    """One pass: as Opacus' sampler draws, but for the draws without records, which it drops."""
    own = own_records(sampler)
    for _ in range(sampler.num_batches):
        chosen = torch.rand(len(own), generator=sampler.generator) < sampler.sample_rate
        yield own[chosen].tolist()


class RecordShares:
    """Tells whether the shares of all ranks are every record once, by a secret number for each record."""

    def __init__(self, key: int, records: int) -> None:
        self._numbers = np.random.Generator(np.random.Philox(key)).integers(_MODULUS, size=records, dtype=np.uint64)

    def fingerprint(self, share: torch.Tensor) -> int:
        """The sum of a share's secret numbers."""
        return int(self._numbers[share.numpy()].sum(dtype=np.uint64))

    def require_partition(self, fingerprints: Sequence[int]) -> None:
        """Refuse shares that are not all records, each once (other shares pass with a chance of 2⁻⁶⁴)."""
        if sum(fingerprints) % _MODULUS != int(self._numbers.sum(dtype=np.uint64)):
            raise RecordingError(
                "data_loader: the shares of the ranks are not every record once, so a record may be in the batches of "
                "two ranks; call the sampler's set_epoch() alike on every rank, and leave shuffle_seed as it is"
            )
