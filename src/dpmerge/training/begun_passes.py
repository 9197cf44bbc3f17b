"""Passes over shuffled data, as the steps of a run used them: how many steps each took, and in which order.

Guarantees: steps of two passes are never counted as one; a pass whose batches were not used one after the other from
its first is known as such, and so is one that was begun and dropped.
"""

from __future__ import annotations

from itertools import groupby

from dpmerge.terms.mechanism_schema import PassBlock
from dpmerge.training.loader_passes import LoaderPass


class BegunPasses:
    """Told of each batch that comes out of the loader, enters the model, and of each step."""

    def __init__(self) -> None:
        self._lengths: list[int] = []
        self._handing: LoaderPass | None = None
        self._stepping: LoaderPass | None = None
        self.without_gaps = True
        """Whether of each pass that another one followed the batches up to some one were used, all of them."""
        self.as_they_came = True
        """Whether every step used the next batch of its pass, and no pass was begun for nothing: none was chosen."""

    def go_on_after(self, passes: int, steps: int) -> None:
        """So many whole passes were counted before the run was resumed."""
        self._lengths = [steps] * passes

    def handed_out(self, this: LoaderPass) -> None:
        before, self._handing = self._handing, this
        if before is None or before is this:
            return
        self.without_gaps &= sorted(before.used) == list(range(len(before.used)))
        # Whoever drops passes until one suits has chosen its records.
        self.as_they_came &= bool(before.used)

    def entered(self, this: LoaderPass, number: int | None) -> None:
        """A batch of a pass entered the model: the one that was handed out as number so-and-so."""
        self.as_they_came &= number == len(this.used)
        if number is not None:
            this.used.append(number)

    def stepped(self, this: LoaderPass | None) -> None:
        if this is not self._stepping or not self._lengths:
            self._lengths.append(0)
            self._stepping = this
        self._lengths[-1] += 1

    def whole_before(self, this: LoaderPass | None, whole: int) -> bool:
        """Whether, if the next step is one of this pass, all passes before it took as many steps as a whole one."""
        before = self._lengths[:-1] if this is self._stepping else self._lengths
        return all(length == whole for length in filter(None, before))

    def not_stepped(self) -> None:
        """The last step was refused before it moved anything."""
        if self._lengths:
            self._lengths[-1] -= 1

    def taken(self, upto: int, whole: int) -> list[PassBlock] | None:
        """The passes of the first so many steps; None where all but the last one took as many steps as a whole one."""
        lengths = []
        for length in filter(None, self._lengths):
            lengths.append(min(length, upto))
            upto -= length
            if upto <= 0:
                break
        if all(length == whole for length in lengths[:-1]):
            return None
        return [PassBlock(passes=len(list(same)), steps=length) for length, same in groupby(lengths)]
