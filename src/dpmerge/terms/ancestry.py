"""Ancestry: each run as the mathematics sees it, the private checkpoints it descends from attached.

Guarantees: a run that started from a privately trained checkpoint carries that parent, its parent and so on, so that
whoever prices it prices them too (theory 2.4). One object a run, whoever asks.
Refuses: parents that are not stated, steps a parent does not have, runs that descend from themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping

from dpmerge.accounting.exposure import Adjacency, Checkpoint, Mechanism
from dpmerge.errors import InvalidInputError
from dpmerge.terms.checkpoint_reference import CheckpointReference
from dpmerge.terms.run_record import RunRecord

Parents = Callable[[str], CheckpointReference | None]
"""Of a run's name: the private checkpoint it started from; a KeyError for a run that is not stated."""


def mechanisms_of(
    records: Mapping[str, RunRecord], adjacency: Adjacency, noise_groups: Mapping[str, str] | None = None
) -> dict[str, Mechanism]:
    """Every run's mechanism, by what the runs state.

    Args:
        records: what the runs state, by the names their children call them.
        adjacency: what they all agree on.
        noise_groups: of runs that share a noise seed: the group, by name.

    Raises:
        InvalidInputError: for a run whose parents are not all among the records, or that descends from itself.
    """
    made: dict[str, Mechanism] = {}
    for name in records:
        attach(
            name,
            lambda each: records[each].ancestry.parent,
            lambda each, start: records[each].mechanism_from(adjacency, start, (noise_groups or {}).get(each)),
            made,
        )
    return made


def attach(
    name: str,
    parent_of: Parents,
    make: Callable[[str, Checkpoint | None], Mechanism],
    made: MutableMapping[str, Mechanism],
) -> Mechanism:
    """One run's mechanism; it and its ancestors are added to `made`, where what is there already is used.

    Raises:
        InvalidInputError: as `mechanisms_of`.
    """
    line = [name]
    for parent in ancestors(name, parent_of):
        line.append(parent.run)
        if parent.run in made:
            break
    for each in reversed(line):  # a parent before its children, however long the line is
        if each not in made:
            made[each] = make(each, _start(each, parent_of(each), made))
    return made[name]


def ancestors(name: str, parent_of: Parents) -> Iterator[CheckpointReference]:
    """The private checkpoints a run descends from, nearest first."""
    line = [name]
    while (parent := _parent(line, parent_of)) is not None:
        if parent.run in line:
            circle = " → ".join([*line[line.index(parent.run) :], parent.run])
            closing = parent_of(parent.run)
            assert closing is not None, "a circle has no beginning"
            raise _no_parent(parent.run, closing.run, "a parent that does not descend from this run", found=circle)
        yield parent
        line.append(parent.run)


def _parent(line: list[str], parent_of: Parents) -> CheckpointReference | None:
    try:
        return parent_of(line[-1])
    except KeyError:
        child = line[-2] if len(line) > 1 else line[-1]
        accepted = "a run that is stated too, and does not descend from this one"
        raise _no_parent(child, line[-1], accepted) from None


def with_ancestors(steps: Mapping[str, int], parent_of: Parents) -> dict[str, int]:
    """An exposure (run → last step looked at), all that its runs descend from included."""
    return highest([steps, *({ref.run: ref.step} for name in steps for ref in ancestors(name, parent_of))])


def highest(exposures: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The pointwise maximum of exposures: the high-water mark of all of them."""
    mark: dict[str, int] = {}
    for exposure in exposures:
        for run, step in exposure.items():
            mark[run] = max(mark.get(run, 0), step)
    return mark


def _start(name: str, parent: CheckpointReference | None, made: Mapping[str, Mechanism]) -> Checkpoint | None:
    if parent is None:
        return None
    try:
        return Checkpoint(made[parent.run], parent.step)
    except InvalidInputError as error:
        raise InvalidInputError(f"{name}.ancestry.step", parent.step, error.accepted) from None


def _no_parent(child: str, parent: str, accepted: str, found: str | None = None) -> InvalidInputError:
    return InvalidInputError(f"{child}.ancestry.run", parent, accepted, found=found)
