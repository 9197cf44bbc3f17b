"""Ranks that cheat while a check is taken out, in each process: the attack then gets through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attacks import cheating_ranks
from dpmerge.training import distributed_start, rank_messages
from dpmerge.training.distributed_sampling import RecordShares
from dpmerge.training.noised_gradients import NoisedGradients
from dpmerge.training.rank_sums import RankSum

FAULTS: dict[str, tuple[Any, str, Any]] = {
    "sums are not compared": (RankSum, "agrees", lambda *_, **__: True),
    "shares are not compared": (RecordShares, "require_partition", lambda *_: None),
    "facts are not compared": (rank_messages, "SAME", ()),
    "noise elsewhere is not seen": (NoisedGradients, "_require_no_noise", lambda *_: None),
    "streams are not compared": (distributed_start, "_compare_streams", lambda *_: None),
    "records are not compared": (distributed_start, "_compare_records", lambda *_: None),
}


def with_fault(rank: int, folder: Path, fault: str, attack: str, *args: Any) -> Any:
    owner, name, replacement = FAULTS[fault]
    assert hasattr(owner, name)
    setattr(owner, name, replacement)
    return getattr(cheating_ranks, attack)(rank, folder, *args)
