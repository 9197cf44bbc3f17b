"""Recorded steps, folded into the blocks of a manifest.

Guarantees: neighbours that differ in their rate at most are one block, with its rates; a run too long for a manifest is
described as an accountant would remember it, never at more noise or a smaller sampling rate than a step had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpmerge.terms.mechanism_schema import BlockSpec, HistoryBlock

MOST_BLOCKS = 20_000
"""More would not fit into a manifest."""
MOST_RATES = 100_000
"""So many steps with a rate each fit into a manifest; of longer schedules it keeps what an accountant would."""


@dataclass(frozen=True)
class RecordedStep:
    """One logical step."""

    noise_multiplier: float
    clip_norm: float
    learning_rate: float  # effective: of the sum of clipped gradients
    sampling_rate: float
    lost: bool = False  # it was taken, and its weights are gone


def fold_steps(steps: Sequence[RecordedStep]) -> list[BlockSpec]:
    """Blocks of neighbours that differ in their rate at most."""
    blocks: list[list[RecordedStep]] = []
    for step in steps:
        last = blocks[-1][-1] if blocks else None
        if last is not None and _mechanism(last) == _mechanism(step):
            blocks[-1].append(step)
        else:
            blocks.append([step])
    return [_block(block) for block in blocks]


def coarse_history(steps: Sequence[RecordedStep]) -> list[HistoryBlock]:
    """What an accountant would remember, in few enough blocks: neighbours are joined at the smaller noise."""
    blocks = [(b.steps, b.noise_multiplier, b.sampling_rate) for b in fold_steps(steps)]
    while len(blocks) > MOST_BLOCKS:
        pairs = [blocks[place : place + 2] for place in range(0, len(blocks), 2)]
        blocks = [(sum(n for n, _, _ in p), min(s for _, s, _ in p), max(q for _, _, q in p)) for p in pairs]
    return [HistoryBlock(steps=n, noise_multiplier=sigma, sampling_rate=q) for n, sigma, q in blocks]


def fits_a_manifest(blocks: Sequence[BlockSpec]) -> bool:
    """Whether a manifest can hold every block, and every step's rate."""
    rates = sum(len(block.learning_rate) for block in blocks if isinstance(block.learning_rate, list))
    return len(blocks) <= MOST_BLOCKS and rates <= MOST_RATES


def _mechanism(step: RecordedStep) -> tuple[float, float, float, bool]:
    return step.noise_multiplier, step.clip_norm, step.sampling_rate, step.lost


def unfolded(blocks: Sequence[BlockSpec] | Sequence[HistoryBlock]) -> list[RecordedStep]:
    """The steps of a manifest's blocks; of a history, whose rates and norms nobody knows, with any."""
    steps: list[RecordedStep] = []
    for block in blocks:
        norm, rate = (block.clip_norm, block.learning_rate) if isinstance(block, BlockSpec) else (1.0, 1.0)
        rates = rate if isinstance(rate, list) else [1.0 if rate is None else rate] * block.steps
        steps += [RecordedStep(block.noise_multiplier, norm, each, block.sampling_rate) for each in rates]
    return steps


def _block(steps: Sequence[RecordedStep]) -> BlockSpec:
    rates = [step.learning_rate for step in steps]
    return BlockSpec(
        steps=len(steps),
        noise_multiplier=steps[0].noise_multiplier,
        clip_norm=steps[0].clip_norm,
        learning_rate=rates[0] if len(set(rates)) == 1 else rates,
        sampling_rate=steps[0].sampling_rate,
    )
