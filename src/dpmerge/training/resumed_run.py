"""A run that goes on: what its folder says it was, compared with what the loop was rebuilt to.

Nothing is loaded here, least of all a pickle: whoever resumes loads weights, optimizer and accountant himself, as he
likes, and everything is compared with the record by digest.

Guarantees: the run stays one run with one start; its steps go on counting; steps that were begun after the last
checkpoint, by the count on disk, are composed into everything that follows, at the worst settings any had, unless
somebody vouches that nobody saw them. Shuffled batches go on at the next whole pass: a pass begun is paid for, and of
steps lost in passes that were cut short, or drawn by another loader, each that may have been one.
Refuses: other weights than the last checkpoint's, the optimizer's state of another run (an undeclared parent), an
accountant that counted other steps, other names or settings, a missing count or one that is behind the record.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from opacus.optimizers import DPOptimizer

from dpmerge.accounting.training_settings import Sampling
from dpmerge.errors import RecordingError
from dpmerge.files import is_file
from dpmerge.portfolio.manifest import MANIFEST_NAME, Manifest, NoiseRecord, ResumedSegment, SavedAs
from dpmerge.releasing.charged_statements import charged_beside
from dpmerge.terms.mechanism_schema import DpSgdFacts, HistoryFacts, SmoothnessFacts
from dpmerge.training.fresh_run import accountant_of, require_no_gradients, require_unused
from dpmerge.training.manifest_writer import ManifestWriter
from dpmerge.training.model_tensors import ModelTensors
from dpmerge.training.optimizer_state import fresh_digest, state_digest
from dpmerge.training.recording_options import RunNames, Vouched
from dpmerge.training.step_blocks import RecordedStep, unfolded
from dpmerge.training.step_count import COUNT_NAME, CountFile, worse_losses
from dpmerge.training.step_reader import StepReader

_ANEW = "begin a new run in a folder of its own, which names this one as its parent in ancestry="
_OURS = re.compile(r"step-(\d+)(\.ema|\.average)?(\.safetensors|/\w+\.safetensors)")
_RATE_ERROR = 2.0**-23
"""torch's random numbers make a sampling rate a little larger than Opacus' accountant has it."""


@dataclass(frozen=True)
class ResumedRun:
    """What is on disk of a run that is to go on."""

    folder: Path
    manifest: Manifest | None  # None: it was killed before its first checkpoint
    count: CountFile

    @classmethod
    def open(cls, folder: Path) -> ResumedRun | None:
        """The run of a folder; None where there is none yet."""
        count, path = CountFile.read(folder), folder / MANIFEST_NAME
        manifest = Manifest.read(path) if is_file(path) else None
        if manifest is None and count is None:
            return None
        if count is None:
            raise RecordingError(
                f"directory: {folder / COUNT_NAME} is missing, so nobody knows how many steps were lost since the last "
                f"checkpoint; put it back, or {_ANEW}"
            )
        found = cls(folder, manifest, count)
        if manifest is not None:
            found._require_own_record(manifest)
        return found

    def _require_own_record(self, manifest: Manifest) -> None:
        facts = manifest.mechanism
        trained = isinstance(facts, DpSgdFacts | HistoryFacts)
        if manifest.recorded_by.how != "recorder" or not trained or len(self.steps) != self.after or not self.after:
            raise RecordingError(f"directory: {MANIFEST_NAME} in {self.folder} is not a record that can go on; {_ANEW}")
        if self.count.run != manifest.run or self.count.stream != manifest.noise.stream:
            raise RecordingError(
                f"directory: {COUNT_NAME} in {self.folder} is the count of another run; put its own back"
            )
        if (ledger := charged_beside(self.folder / MANIFEST_NAME, manifest)) is not None:
            raise RecordingError(
                f"directory: {ledger} has charged run {manifest.run} as it is, and what was released of it would no "
                f"longer fit its record; {_ANEW}"
            )
        if self.count.steps < self.after:
            raise RecordingError(
                f"directory: {COUNT_NAME} in {self.folder} counts {self.count.steps} steps, and a checkpoint was kept "
                f"after {self.after}: it is an older file; put back the one that was there"
            )

    # What the record says

    @property
    def saved(self) -> list[SavedAs]:
        return [] if self.manifest is None else list(self.manifest.checkpoints)

    @property
    def after(self) -> int:
        """The step that it goes on from."""
        return self.saved[-1].step if self.saved else 0

    @property
    def lost(self) -> int:
        """How many steps were begun since."""
        return self.count.steps - self.after

    @cached_property
    def steps(self) -> list[RecordedStep]:
        """The steps of the record, those that were lost before included."""
        if self.manifest is None or not isinstance(self.manifest.mechanism, DpSgdFacts | HistoryFacts):
            return []
        steps = unfolded(self.manifest.mechanism.blocks)
        for each in self.manifest.resumed or ():
            for place in range(each.after, each.after + each.lost_steps):
                steps[place] = RecordedStep(*self._settings(steps[place]), lost=True)
        return steps

    @staticmethod
    def _settings(step: RecordedStep) -> tuple[float, float, float, float]:
        return step.noise_multiplier, step.clip_norm, 0.0, step.sampling_rate

    def lost_steps(self, count: int, sampling: Sampling) -> list[RecordedStep]:
        """So many steps since the last checkpoint, at the worst settings that any of them had."""
        worst = self.count.worst
        rate = worst.sampling_rate if sampling is Sampling.POISSON else 1.0
        return [RecordedStep(worst.noise_multiplier, worst.clip_norm, 0.0, rate, lost=True)] * count

    def _counted(self, lost: int, steps_per_epoch: int | None) -> int:
        """How many steps, up to the end of a pass, cost what the lost ones did."""
        if steps_per_epoch is None:
            return lost
        then = self.count.steps_per_epoch
        if steps_per_epoch not in (1, then):
            # A pass of then may be any part of a pass of now, or the like: each costs a whole one.
            return -self.after % steps_per_epoch + math.ceil(lost / then) * steps_per_epoch
        return lost + -(self.after + lost) % steps_per_epoch

    # What must be the same

    def require_names(self, names: RunNames, vouched: Vouched, records: int) -> None:
        """The same run, on the same data, in the same sense."""
        if self.manifest is None:
            if self.count.run != names.run:
                raise _differs("run", names.run, self.count.run)
            return
        known = self.manifest
        compared = {
            "run": (names.run, known.run),
            "dataset": (names.dataset, known.dataset.id),
            "unit": (names.unit, known.unit),
            "adjacency": (names.adjacency, known.adjacency),
            "data_loader: number of records": (known.dataset.size and records, known.dataset.size),
            "ancestry": (vouched.ancestry or known.ancestry, known.ancestry),
        }
        for field, (given, recorded) in compared.items():
            if given != recorded:
                raise _differs(field, given, recorded)

    def require_sampling(self, sampling: Sampling, steps_per_epoch: int | None, reader: StepReader) -> None:
        """Batches drawn, clipped and divided as before."""
        facts = None if self.manifest is None else self.manifest.mechanism
        if not isinstance(facts, DpSgdFacts | HistoryFacts):
            return
        compared: dict[str, tuple[object, object]] = {"data_loader: sampling": (sampling.value, facts.sampling)}
        if facts.steps_per_epoch not in (None, 1):
            compared["data_loader: batches in an epoch"] = (steps_per_epoch, facts.steps_per_epoch)
        if isinstance(facts, DpSgdFacts):
            mean = reader.loss_reduction == "mean"
            compared["optimizer: loss_reduction"] = (reader.loss_reduction, facts.loss_reduction)
            compared["optimizer: expected_batch_size"] = (reader.divisor if mean else None, facts.expected_batch_size)
            compared["optimizer: flat clipping"] = (reader.flat_clipping, facts.flat_clipping)
        for field, (given, recorded) in compared.items():
            if given != recorded:
                raise _differs(field, given, recorded)
        if isinstance(facts, DpSgdFacts) and reader.optimizer_facts() != facts.optimizer:
            one, other = reader.optimizer_facts().name, facts.optimizer.name
            if one.split()[0] != other.split()[0]:
                raise _differs("optimizer", one, other)
            reader.uniform = False  # SGD with other settings than before, or than in itself

    def require_weights(self, tensors: ModelTensors) -> None:
        """The model is the last checkpoint, frozen tensors included."""
        if self.manifest is None:
            return
        now, known = tensors.facts(), self.manifest.tensors
        assert known is not None, "the recorder writes them"
        for field in ("trained", "frozen", "tied", "frozen_weights"):
            if getattr(now, field) != getattr(known, field):
                raise RecordingError(
                    f"model: its {field.replace('_', ' ')} tensors are not those of the record; build the model, and "
                    "say trained_only, as when the run began"
                )
        if dict(tensors.files.public) != (self.manifest.public_files or {}):
            raise RecordingError("save_with: other files than the record keeps beside its checkpoints; pass the same")
        if tensors.initial_weights != self.saved[-1].weights:
            earlier = next((s.step for s in self.saved[:-1] if s.weights == tensors.initial_weights), None)
            found = "no checkpoint of the record" if earlier is None else f"those after step {earlier}"
            raise RecordingError(
                f"model: its weights are {found}; a run goes on from its last checkpoint: load "
                f"{self.saved[-1].files[0].name} (to go on from others, {_ANEW})"
            )

    def optimizer_state(self, optimizer: DPOptimizer, tensors: ModelTensors) -> Literal["restored", "reset"]:
        """Whether the optimizer has the state it had, or none; anything else is another run's."""
        if self.manifest is None:
            require_unused(optimizer)
            return "restored"
        require_no_gradients(optimizer)
        self._require_counted(optimizer)
        inner = optimizer.original_optimizer
        names = {id(parameter): name for parameter, name in zip(optimizer.params, tensors.names, strict=True)}
        now = state_digest(inner, names)
        if now is not None and now == self.saved[-1].optimizer_state:
            return "restored"
        if not any(inner.state.values()) or (now is not None and now == fresh_digest(inner, names)):
            return "reset"
        raise RecordingError(
            f"optimizer: its state is not the one after step {self.after} of the record, so it is made of gradients "
            "that nobody counted; load the state that was saved with that checkpoint, or leave it as it is made"
        )

    def _require_counted(self, optimizer: DPOptimizer) -> None:
        """An accountant that knows of steps knows of those of the record, from the start or from where one went on."""
        accountant = accountant_of(optimizer)
        history = [] if accountant is None else list(accountant.history)
        if not history:
            return
        counted = [(noise, rate) for noise, rate, steps in history for _ in range(steps)]
        if not any(_same_steps(counted, steps) for steps in self._since_each_start()):
            raise RecordingError(
                f"optimizer: its accountant has counted {len(counted)} steps that are not those of the record, which "
                f"has {self.after}; load the accountant that was saved with its last checkpoint, or make a new one"
            )

    def _since_each_start(self) -> Iterator[list[RecordedStep]]:
        starts = [0, *(each.after for each in (self.manifest.resumed if self.manifest else None) or ())]
        for start in starts:
            yield [step for step in self.steps[start:] if not step.lost]

    # How it goes on

    def segment(
        self,
        *,
        noise: NoiseRecord,
        sampling_stream: str,
        optimizer: Literal["restored", "reset"],
        steps_per_epoch: int | None,
        unseen: bool,
        who: str | None,
    ) -> ResumedSegment:
        """The stretch that begins now. Shuffled: a pass that was begun counts whole, and a new one begins."""
        if unseen and self.lost and self.manifest is None:
            raise RecordingError(
                'lost_steps: "unseen" is a word that stands in the manifest, and there is none, for nothing was kept; '
                "leave it out, and they are counted"
            )
        counted = self._counted(0 if unseen else self.lost, steps_per_epoch)
        if unseen and self.lost and who is None:
            raise RecordingError('lost_steps: "unseen" is somebody\'s word; say whose, who=')
        left_out = self.lost if unseen else 0
        return ResumedSegment(
            after=self.after,
            lost_steps=counted,
            unseen_steps=left_out,
            vouched_by=who if left_out else None,
            optimizer=optimizer,
            noise=noise,
            sampling_stream=sampling_stream,
        )

    def steps_per_epoch(self, batches: int | None) -> int | None:
        """Of shuffled batches: as many as the loader has in an epoch, or 1 where an epoch was not whole before."""
        facts = None if self.manifest is None else self.manifest.mechanism
        if not isinstance(facts, DpSgdFacts | HistoryFacts) or facts.steps_per_epoch is None:
            return batches
        return facts.steps_per_epoch if facts.passes is None else 1

    def carry_on(self, writer: ManifestWriter, segment: ResumedSegment) -> None:
        """The record so far, what was lost included, is where the next step is added."""
        writer.taken += [*self.steps, *self.lost_steps(segment.lost_steps, writer.batches.sampling)]
        writer.saved += self.saved
        writer.verified = len(writer.saved)  # require_weights has compared all frozen tensors
        writer.resumed += [*((self.manifest.resumed if self.manifest else None) or []), segment]
        known = [] if self.manifest is None else [self.manifest.record_losses or "unknown"]
        if self.lost and not segment.unseen_steps:
            known.append(self.count.record_losses)
        if known:
            writer.losses_before = worse_losses(*known)
        if self.manifest is not None:
            writer.history_only = isinstance(self.manifest.mechanism, HistoryFacts)

    def facts(self, now: dict[str, Any]) -> dict[str, Any]:
        """What the manifest goes on to say: where the run began is what it said; what somebody vouches for holds for
        both stretches, or is not known."""
        if self.manifest is None:
            lost = now["noise"].model_copy(update={"stream": self.count.stream or secrets.token_hex(16)})
            return {**now, "noise": lost}
        known = self.manifest
        noise, fresh = known.noise, now["noise"]
        if noise.secure_rng and not fresh.secure_rng:
            noise = noise.model_copy(update={"secure_rng": False, "generator": fresh.generator})
        said = {field: _both(getattr(known, field), now[field]) for field in ("tuning", "stopping", "schedule")}
        voices = dict.fromkeys(filter(None, [known.recorded_by.who, now["recorded_by"]["who"]]))
        begun = ("ancestry", "initial_weights", "tensors", "start_sample", "amended")
        return {
            **now,
            **{field: getattr(known, field) for field in begun},
            **said,
            "noise": noise,
            "model": known.model if known.model == now["model"] else "network",
            "recorded_by": {"how": "recorder", "who": ", ".join(voices) or None},
        }

    def smoothness(self, derived: SmoothnessFacts | None) -> SmoothnessFacts | None:
        """What holds of the loss in all stretches."""
        if self.manifest is None:
            return derived
        facts = self.manifest.mechanism
        return derived if isinstance(facts, DpSgdFacts) and facts.smoothness == derived else None

    def remove_orphans(self) -> None:
        """Weights that were written and never got into the manifest are no checkpoints, and stand in the way."""
        named = {file.name for saved in self.saved for file in saved.files}
        named |= {file.name for saved in self.saved for average in saved.averages or () for file in average.files}
        for path in [*self.folder.glob("step-*.safetensors"), *self.folder.glob("step-*/*.safetensors")]:
            name = path.relative_to(self.folder).as_posix()
            ours = _OURS.fullmatch(name)
            if ours and name not in named and int(ours[1]) > self.after:
                path.unlink()


def _both(before: Any, now: Any) -> Any:
    if before == now:
        return now
    return "private" if "private" in (before, now) else "unknown"


def _same_steps(counted: list[tuple[float, float]], steps: list[RecordedStep]) -> bool:
    """Whether an accountant counted these steps; it has rates of shuffled and full batches, too, as if sampled."""
    return len(counted) == len(steps) and all(
        math.isclose(noise, step.noise_multiplier, rel_tol=1e-5)
        and (step.sampling_rate == 1 or abs(rate - step.sampling_rate) <= _RATE_ERROR)
        for (noise, rate), step in zip(counted, steps, strict=True)
    )


def _differs(field: str, given: object, recorded: object) -> RecordingError:
    return RecordingError(
        f"{field}: {given}, where the record that is to go on has {recorded}; resume it with what it had, or {_ANEW}"
    )
