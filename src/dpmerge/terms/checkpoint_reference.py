"""A checkpoint by its name, run@step: the one place where such names are built and taken apart.

Guarantees: what is parsed is written the same way again.
Refuses: names without a run, or without a step that is a whole number.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from dpmerge.errors import InvalidInputError

_WRITTEN = re.compile(r"(?P<run>.+)@(?P<step>0|[1-9][0-9]{0,17})", re.ASCII)


class CheckpointReference(NamedTuple):
    """The weights of a run after some step.

    >>> CheckpointReference.parse("adult-s32@200")
    CheckpointReference(run='adult-s32', step=200)
    >>> str(CheckpointReference("adult-s32", 200))
    'adult-s32@200'
    """

    run: str
    step: int

    @classmethod
    def parse(cls, name: str, field: str = "checkpoint") -> CheckpointReference:
        """The reference that is written run@step.

        Args:
            name: the text.
            field: what an error calls it.

        Raises:
            InvalidInputError: for any other text.
        """
        found = _WRITTEN.fullmatch(name)
        if found is None:
            raise InvalidInputError(field, name, "a checkpoint as run@step, such as adult-s32@200")
        return cls(found["run"], int(found["step"]))

    def __str__(self) -> str:
        return f"{self.run}@{self.step}"
