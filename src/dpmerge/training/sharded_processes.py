"""What the processes of a run agree on where each holds a shard of the model (FSDP2).

Guarantees, beside those of process_agreement: each rank's noise comes from a stream of its own, and the noise of all
shards together is as long as noise of the recorded deviation is; the shards of the sum are those of what the ranks
sent (sharded_sums). Checkpoints are gathered tensor by tensor, and rank 0 alone keeps them, for the file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from opacus.optimizers import DPOptimizer
from torch import Tensor

from dpmerge.portfolio.manifest import SavedAs
from dpmerge.training.model_tensors import ModelTensors
from dpmerge.training.noise_generators import RunGenerators
from dpmerge.training.noised_gradients import noise_lengths
from dpmerge.training.process_agreement import SeveralProcesses
from dpmerge.training.rank_messages import Event
from dpmerge.training.sharded_models import local, whole
from dpmerge.training.sharded_sums import ShardedSum, agree
from dpmerge.training.step_blocks import RecordedStep


class ShardedProcesses(SeveralProcesses):
    """Several processes, each with its shard of the model, of the sum and of the noise."""

    @property
    def sharded(self) -> bool:
        return True

    @property
    def draws_noise(self) -> bool:
        return True

    def agree_on_start(
        self, facts: Mapping[str, Any], optimizer: DPOptimizer, generators: RunGenerators, dataset: Any, records: int
    ) -> None:
        super().agree_on_start(facts, optimizer, generators, dataset, records)
        self._optimizer = optimizer
        self._lengths = noise_lengths(sum(parameter.numel() for parameter in optimizer.params))

    def _sum_of(self, key: int, parameters: Sequence[Tensor]) -> None:
        self._shards = ShardedSum(key, parameters)

    def attach(self, attached: ExitStack) -> None:
        self._shards.attach(attached)

    def factors_computed(self) -> None:
        self._shards.begin()

    def agree_on_step(
        self, number: int, step: RecordedStep, *, divisor: float, rows: int, share: int, noised: Sequence[Tensor]
    ) -> list[Tensor]:
        state: Any = self._optimizer.grad_state
        summed = [local(state[parameter]["summed_grad"]) for parameter in self._optimizer.params]
        sent, length = self._shards.sent(rows, step.clip_norm)
        with torch.no_grad():
            noise = [self.world * part.double() for part in self._noise(noised, summed, divisor / self.world)]
        own = self._word(
            Event.STEP,
            number,
            **self._facts(step, divisor=divisor, rows=rows, share=share),
            projection=sent,
            length=length,
            arrived=self._shards.arrived(summed),
            noise=math.hypot(*(float(part.norm()) for part in noise)),
        )
        heard = self._exchange(own)
        self._require(lambda: self._shares.require_partition([each.share for each in heard]))
        lengths = [each.length for each in heard]
        if not agree(sent=[e.projection for e in heard], arrived=[e.arrived for e in heard], lengths=lengths):
            raise self._ended(
                "model: the shards of the gradients are not those of the sum of what the ranks sent, divided by their "
                "number; leave FSDP's reduction as it is (no set_gradient_divide_factor, no hooks), and p.grad alone"
            )
        self._require_noise(math.hypot(*(each.noise for each in heard)), step, sum(lengths))
        return list(noised)

    @staticmethod
    def _noise(noised: Sequence[Tensor], summed: Sequence[Tensor], divisor: float) -> list[Tensor]:
        """What was added to the sums, of which `noised` are divided."""
        return [one * divisor - other for one, other in zip(noised, summed, strict=True)]

    def _require_noise(self, found: float, step: RecordedStep, length: float) -> None:
        deviation = step.noise_multiplier * step.clip_norm
        least, most = (deviation * each for each in self._lengths)
        rounding = 8 * torch.finfo(torch.float32).eps * (length + found)
        if math.isfinite(found) and not least - rounding <= found <= most + rounding:
            raise self._ended(
                f"optimizer: the noise of a step is {found:.6g} long on all ranks together; noise of deviation "
                f"{deviation:g} is between {least:.6g} and {most:.6g}; let Opacus' optimizer add it on every rank"
            )

    def save(
        self, tensors: ModelTensors, folder: Path, step: int, weights: Mapping[str, Tensor] | None = None
    ) -> SavedAs:
        held = tensors.held(weights)
        self._exchange(self._word(Event.CHECKPOINT, step))
        gathered: dict[str, Tensor] = {}
        for name, shard in held.items():
            tensor = whole(shard)
            if self.writes:
                gathered[name] = tensor.to("cpu", copy=tensor is shard)
            del tensor  # before the next one is there
        saved = tensors.save(folder, step, gathered=gathered) if self.writes else None
        own = bytes.fromhex(saved.weights or "") if saved is not None else b""
        digest = self._exchange(self._word(Event.SAVED, step, digest=own))[0].digest.hex()
        file = self._written(tensors, step, saved)
        return saved or SavedAs(step=step, files=[file], weights=digest)
