"""The releases of one budget scope: a few columns of each in memory, the whole charge where it is asked for.

Guarantees: whatever is read of a release is what its entries say: an entry that is read again has its own hash, and is
the one that the entry after it follows. Releases come in the order in which they were charged.
Refuses (LedgerBrokenError): an entry that is no longer what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dpmerge.errors import LedgerBrokenError
from dpmerge.ledger.charge import Charge, Output, Status
from dpmerge.ledger.entries import Entry

EntriesAt = Callable[[Sequence[int]], Mapping[int, Entry]]
"""The entries of these numbers, as the ledger has them now."""


class ReleaseRow(NamedTuple):
    """What is remembered of a release; everything else is in its entries."""

    release_id: str
    seq: int
    status: Status
    adopted: bool
    unsigned: bool  # adopted with no signature
    key: str | None
    draw_number: int | None
    output_seq: int | None  # the entry that says what was, or is about to be, published

    @classmethod
    def of(cls, charge: Charge) -> ReleaseRow:
        return cls(
            release_id=charge.release_id,
            seq=charge.entry.seq,
            status=charge.status,
            adopted=charge.adopted,
            unsigned="everything" in charge.body,
            key=charge.key,
            draw_number=charge.draw_number,
            output_seq=charge.output_seq,
        )


class Releases(Mapping[str, Charge]):
    """Release → its charge, read from the ledger again where it is not in memory."""

    def __init__(self, rows: Iterator[ReleaseRow] | None = None, entries_at: EntriesAt | None = None) -> None:
        self._rows = {row.release_id: row for row in rows or ()}
        self._charges: dict[str, Charge] = {}
        self._entries_at = entries_at

    def __getitem__(self, release_id: str) -> Charge:
        charge = self._charges.get(release_id)
        return charge if charge is not None else self._read([self._rows[release_id]])[0]

    def __setitem__(self, release_id: str, charge: Charge) -> None:
        self._charges[release_id] = charge

    def __contains__(self, release_id: object) -> bool:
        return release_id in self._charges or release_id in self._rows

    def __iter__(self) -> Iterator[str]:
        yield from self._rows
        yield from (release_id for release_id in self._charges if release_id not in self._rows)

    def __len__(self) -> int:
        return len(self._rows) + sum(release_id not in self._rows for release_id in self._charges)

    def rows(self) -> Iterator[ReleaseRow]:
        """One of each, in order, without reading entries."""
        for release_id in self:
            charge = self._charges.get(release_id)
            yield self._rows[release_id] if charge is None else ReleaseRow.of(charge)

    def newest(self, count: int | None) -> list[Charge]:
        """The last so many, or all, in order."""
        known = list(self)
        return self._several(known[0 if count is None else max(0, len(known) - count) :])

    def pending(self) -> Iterator[Charge]:
        """Charged, and neither published nor given up."""
        yield from self._several([row.release_id for row in self.rows() if row.status == "pending"])

    def _several(self, release_ids: Sequence[str]) -> list[Charge]:
        """These, those that are not in memory read together."""
        absent = [self._rows[each] for each in release_ids if each not in self._charges]
        read = {charge.release_id: charge for charge in self._read(absent)}
        return [self._charges.get(each) or read[each] for each in release_ids]

    def _read(self, rows: Sequence[ReleaseRow]) -> list[Charge]:
        if not rows:
            return []
        assert self._entries_at is not None
        entries = self._entries_at([seq for row in rows for seq in (row.seq, row.output_seq) if seq is not None])
        charges = []
        for row in rows:
            output = None if row.output_seq is None else output_in(entries[row.output_seq])
            charge = Charge(
                entry=entries[row.seq],
                status=row.status,
                output=output,
                output_seq=row.output_seq,
                draw_number=row.draw_number,
            )
            if charge.release_id != row.release_id:
                raise LedgerBrokenError(f"entry {row.seq}: is not the charge of release {row.release_id}")
            charges.append(charge)
        return charges


def output_in(entry: Entry) -> Output:
    """What an entry says was, or is about to be, published."""
    body = entry.body
    return Output(body["files"], body["certificate"], body["where"])
