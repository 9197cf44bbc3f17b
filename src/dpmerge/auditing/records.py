"""From what a run's record states to what is simulated of it.

Guarantees: read from the stated facts alone. Nothing of the accounting is asked; how far updates may pull two hidden
states apart is worked out here again, from theory 9.
Refuses: records of which only a guarantee is known, or too little, for there is nothing to simulate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from dpmerge.auditing.attacks import Array
from dpmerge.auditing.schedules import Schedule
from dpmerge.errors import InvalidInputError

if TYPE_CHECKING:
    from dpmerge.terms.mechanism_schema import BlockSpec, DpSgdFacts, HistoryBlock, HistoryFacts
    from dpmerge.terms.run_record import RunRecord

AdjacencyName = Literal["replace_one", "add_remove", "zero_out"]

CURVATURES = {"logistic": 1 / 4, "huber": 1.0, "squared": 1.0, "softmax": 1 / 2}
"""The largest second derivative of a record's convex loss, in units of the square of its features' norm."""

OPACUS_MARGIN = 2e-6
"""A gradient must be so much shorter than the clip norm for Opacus to leave it alone: it divides by norm + 1e-6."""

NOTHING = 1e-9
"""How far one record moves what is computed from weights that are seen anyway."""

_STATE_IT = "state it in the run's record, for otherwise there is nothing to simulate"


def schedules_of(statements: Mapping[str, RunRecord], adjacency: AdjacencyName) -> dict[str, Schedule]:
    """Each stated run; the keys are the names by which a run's parent is called."""
    made: dict[str, Schedule] = {}
    left = dict(statements)
    while left:
        ready = [name for name, stated in left.items() if stated.ancestry.run is None or stated.ancestry.run in made]
        if not ready:
            name, stated = next(iter(left.items()))
            field, parent = f"{name}.ancestry.run", stated.ancestry.run
            problem = f"{field}: {parent!r} is not stated, or descends from this run"
            raise InvalidInputError(field, parent, "state every run's parent too", problem=problem)
        for name in ready:
            made[name] = schedule_of(left.pop(name), adjacency, made)
    return made


def schedule_of(statement: RunRecord, adjacency: AdjacencyName, parents: Mapping[str, Schedule]) -> Schedule:
    """One stated run, attached to the parent that it names."""
    facts = statement.mechanism
    parent = _parent(statement, parents)
    if facts.kind == "dp_sgd" and facts.has_rates:
        return _trained(statement.run, facts, adjacency, parent, _shares(statement, facts))
    if facts.kind in ("dp_sgd", "accountant_history"):
        return _remembered(statement.run, facts, adjacency, parent, _shares(statement, facts))
    if facts.kind == "gaussian_release":
        return _once(statement.run, facts.sensitivity, facts.standard_deviation, adjacency, parent)
    if facts.kind == "gaussian_dp":
        # The least private thing that is μ-GDP: one number with noise of deviation 1, seen as it is, and no weights.
        return _once(statement.run, facts.mu, 1.0, adjacency, parent, optimizer="unknown")
    if facts.kind == "average":
        # Made of its run's weights: whoever sees them sees nothing more in it.
        return _once(statement.run, NOTHING, 1.0, adjacency, parent, optimizer="unknown")
    field = f"{statement.run}.mechanism.kind"
    problem = f"{field}: of a run that is {facts.kind} only a guarantee is known, which leaves nothing to simulate"
    remedy = "audit runs that are dp_sgd, accountant_history, gaussian_release or gaussian_dp"
    raise InvalidInputError(field, facts.kind, remedy, problem=problem)


def _trained(
    name: str,
    facts: DpSgdFacts,
    adjacency: AdjacencyName,
    parent: tuple[Schedule, int] | None,
    shares: Mapping[int, float],
) -> Schedule:
    optimizer = facts.optimizer
    rates = np.concatenate([np.broadcast_to(np.asarray(b.learning_rate, dtype=float), b.steps) for b in facts.blocks])
    return Schedule(
        name=name,
        rates=rates,  # a block's rate is the effective one already
        clip_norms=_each_step(facts.blocks, [block.clip_norm for block in facts.blocks]),
        noise_multipliers=_each_step(facts.blocks, [block.noise_multiplier for block in facts.blocks]),
        sampling_rates=_each_step(facts.blocks, [block.sampling_rate for block in facts.blocks]),
        adjacency=adjacency,
        sampling=_sampling(name, facts, adjacency),
        steps_per_epoch=facts.steps_per_epoch,
        passes=_passes(facts),
        shares=shares,
        aggregate=facts.clipping == "aggregate",
        optimizer=optimizer.name.lower(),
        momentum=optimizer.momentum or 0.0,
        nesterov=bool(optimizer.nesterov),
        dampening=optimizer.dampening or 0.0,
        weight_decay=optimizer.weight_decay or 0.0,
        divisor=facts.expected_batch_size or 1.0,
        stretches=_stretches(facts, rates),
        parent=parent,
    )


def _remembered(
    name: str,
    facts: DpSgdFacts | HistoryFacts,
    adjacency: AdjacencyName,
    parent: tuple[Schedule, int] | None,
    shares: Mapping[int, float],
) -> Schedule:
    """Rates and clip norms are not known, nor are they needed by somebody who sees the noisy gradients themselves."""
    steps = sum(block.steps for block in facts.blocks)
    return Schedule(
        name=name,
        rates=np.ones(steps),
        clip_norms=np.ones(steps),
        noise_multipliers=_each_step(facts.blocks, [block.noise_multiplier for block in facts.blocks]),
        sampling_rates=_each_step(facts.blocks, [block.sampling_rate for block in facts.blocks]),
        adjacency=adjacency,
        sampling=_sampling(name, facts, adjacency),
        steps_per_epoch=facts.steps_per_epoch,
        passes=_passes(facts),
        shares=shares,
        aggregate=facts.clipping == "aggregate",
        optimizer="unknown",
        parent=parent,
    )


def _passes(facts: DpSgdFacts | HistoryFacts) -> tuple[int, ...] | None:
    return None if facts.passes is None else tuple(b.steps for b in facts.passes for _ in range(b.passes))


def _shares(statement: RunRecord, facts: DpSgdFacts | HistoryFacts) -> dict[int, float]:
    """How likely the record is in what was seen of a last pass, where nobody knows the order or chose when to stop."""
    if facts.order is None or facts.steps_per_epoch is None or facts.passes is not None or not statement.stop_fixed:
        return {}
    within = {step: step % facts.steps_per_epoch for step in facts.order.fixed_steps}
    batch, records = facts.order.batch_size, facts.order.records
    return {step: min(1.0, taken * batch / records) for step, taken in within.items() if taken}


def _once(
    name: str,
    apart: float,
    deviation: float,
    adjacency: AdjacencyName,
    parent: tuple[Schedule, int] | None,
    optimizer: str = "sgd",
) -> Schedule:
    """One step in which the worlds lie so far apart: a record that is replaced pushes half of it each way."""
    push = apart / (2 if adjacency == "replace_one" else 1)
    return Schedule.of(
        name,
        steps=1,
        clip_norm=push,
        noise_multiplier=deviation / push,
        adjacency=adjacency,
        optimizer=optimizer,
        parent=parent,
    )


def _stretches(facts: DpSgdFacts, rates: Array) -> Array | None:
    """The largest factor by which each update can pull two states apart; None where theory has none.

    The update's slope is 1 − η_d·m − η_n·h, where η_d is the learning rate (effective rate × divisor), m the weight
    decay, η_n the effective rate × the number of records, and h the mean curvature: for convex losses between 0 and β,
    so that an end is the largest; otherwise between −β and β. One clip norm for all tensors keeps the gradient of a
    one-output model that of a convex loss; of a softmax, only one that never acts does.
    """
    smooth = facts.smoothness
    if smooth is None or smooth.records is None or not facts.flat_clipping or facts.optimizer.momentum:
        return None
    curvature = smooth.beta or 0.0
    if smooth.kind != "declared":
        if smooth.feature_bound is None or facts.clipping != "per_example":
            return None
        longest = math.sqrt(2) * smooth.feature_bound + OPACUS_MARGIN
        if smooth.kind == "softmax" and min(block.clip_norm for block in facts.blocks) < longest:
            return None
        curvature = max(curvature, CURVATURES[smooth.kind] * smooth.feature_bound**2)
    kept = 1 - rates * (facts.expected_batch_size or 1.0) * (facts.optimizer.weight_decay or 0.0)
    bent = rates * smooth.records * curvature
    if smooth.kind == "declared":
        return np.asarray(np.abs(kept) + bent)
    return np.asarray(np.maximum(np.abs(kept), np.abs(kept - bent)))


def _sampling(
    name: str, facts: DpSgdFacts | HistoryFacts, adjacency: AdjacencyName
) -> Literal["full_batch", "poisson", "shuffled"]:
    if facts.sampling == "unknown":
        field = f"{name}.mechanism.sampling"
        problem = f"{field}: nobody says how batches were drawn"
        raise InvalidInputError(field, facts.sampling, _STATE_IT, problem=problem)
    sampled = any(block.sampling_rate < 1 for block in facts.blocks)
    if not facts.public_divisor and (adjacency == "add_remove" or sampled):
        field = f"{name}.mechanism.public_divisor"
        why = f"under {adjacency} a record" if adjacency == "add_remove" else "whether a record was drawn"
        problem = f"{field}: {why} changes a divisor that is not public, and with it the noise"
        raise InvalidInputError(field, False, "train with a divisor that is public", problem=problem)
    return facts.sampling


def _parent(statement: RunRecord, parents: Mapping[str, Schedule]) -> tuple[Schedule, int] | None:
    origin = statement.ancestry
    if origin.start == "unknown":
        field = f"{statement.run}.ancestry.start"
        raise InvalidInputError(
            field, origin.start, _STATE_IT, problem=f"{field}: nobody says where the run started from"
        )
    if origin.run is None or origin.step is None:
        return None
    if origin.run not in parents:
        raise InvalidInputError(
            f"{statement.run}.ancestry.run", origin.run, f"one of {', '.join(parents) or 'no runs'}"
        )
    parent = parents[origin.run]
    if origin.step > parent.steps:
        raise InvalidInputError(
            f"{statement.run}.ancestry.step", origin.step, f"at most {parent.steps}, its parent's last"
        )
    return parent, origin.step


def _each_step(blocks: Sequence[BlockSpec] | Sequence[HistoryBlock], values: Sequence[float]) -> Array:
    return np.repeat(np.asarray(values, dtype=float), [block.steps for block in blocks])
