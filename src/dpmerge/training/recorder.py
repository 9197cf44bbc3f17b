"""The recorder: two lines around an Opacus loop, and the run's record is true.

    with record(model=model, optimizer=optimizer, data_loader=loader, run="adult-s32", dataset="adult-2026",
                adjacency="replace_one", directory="models/adult-s32") as recorder:
        ...  # the training loop, unchanged

Guarantees: the manifest on disk describes exactly the checkpoints beside it, at every moment, kill -9 included; each
logical step is recorded as it was taken; the accountant's own hook keeps running.
Refuses, before the step it concerns: whatever cannot be recorded truthfully (`CannotRecord`, one line, with the cure).
"""

from __future__ import annotations

import platform
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.utils.data import DataLoader

from dpmerge.documents import Strict, validated
from dpmerge.errors import CannotRecord, DpmergeError, InvalidInput
from dpmerge.portfolio.facts import DpSgdFacts, HistoryFacts, NonPrivateFacts, SmoothnessFacts
from dpmerge.portfolio.manifest import MANIFEST_NAME, SCHEMA, Manifest, Metric, SavedAs
from dpmerge.portfolio.statement import Ancestry
from dpmerge.privacy import domain
from dpmerge.privacy.exposure import Adjacency
from dpmerge.privacy.mechanisms import Sampling, enum_member
from dpmerge.training.attachment import attach, require_fresh
from dpmerge.training.batches import Batches
from dpmerge.training.ghost import GhostGradients
from dpmerge.training.loss_watch import LossWatch
from dpmerge.training.noise import NoiseWatch, randomness, warn_insecure
from dpmerge.training.noised_gradients import NoisedGradients
from dpmerge.training.reference_optimizer import ReferenceOptimizer
from dpmerge.training.row_prints import RowPrints
from dpmerge.training.saving import ModelTensors
from dpmerge.training.separate_records import SeparateRecords
from dpmerge.training.smooth_models import derived_smoothness, warn_clipping
from dpmerge.training.steps import MOST_BLOCKS, Step, StepReader, coarse_history, folded
from dpmerge.training.tied_weights import require_measured

MOST_RATES = 100_000
"""So many steps with a rate each fit into a manifest; of longer schedules it keeps what an accountant would."""


class Recorder:
    """What `record` hands out: the run so far."""

    def __init__(
        self,
        *,
        folder: Path,
        facts: dict[str, Any],
        reader: StepReader,
        tensors: ModelTensors,
        batches: Batches,
        records: SeparateRecords,
        vouched: bool,
        smoothness: SmoothnessFacts | None,
        public_divisor: bool,
        source: NoiseWatch,
        optimizer: DPOptimizer,
        due: Collection[int],
        every: int | None,
    ) -> None:
        self.folder = folder
        self._facts = facts
        self._reader = reader
        self._tensors = tensors
        self._batches = batches
        self._records = records
        self._vouched = vouched
        self._smoothness = smoothness
        self._public_divisor = public_divisor
        self._source = source
        self._optimizer = optimizer
        self._due = frozenset(due)
        self._every = every
        self._taken: list[Step] = []
        self._saved: list[SavedAs] = []
        self._loss: LossWatch | None = None
        self._gradients: GhostGradients | None = None
        self._noised = NoisedGradients(optimizer)
        self._reference = ReferenceOptimizer(optimizer)
        self._read = False
        self._gradients_used: Sequence[torch.Tensor] = ()
        self._finished = False

    @property
    def steps(self) -> int:
        """Logical steps taken so far."""
        return len(self._taken)

    def manifest(self, *, upto: int | None = None) -> Manifest:
        """The record of the first `upto` steps (by default all)."""
        taken = self._taken[:upto]
        if not taken:
            raise CannotRecord("no step has been taken yet, so there is nothing to record")
        losses = self._records.record_losses(linked=self._batches.linked, vouched=self._vouched)
        facts = {**self._facts, "record_losses": losses}
        return _manifest(facts, self._mechanism(taken), checkpoints=self._saved, finished=self._finished)

    def _mechanism(self, taken: Sequence[Step]) -> DpSgdFacts | HistoryFacts:
        blocks = folded(taken)
        rates = sum(len(block.learning_rate) for block in blocks if isinstance(block.learning_rate, list))
        if len(blocks) > MOST_BLOCKS or rates > MOST_RATES:
            return HistoryFacts(
                kind="accountant_history",
                blocks=coarse_history(taken),
                sampling=self._batches.sampling.value,
                steps_per_epoch=self._batches.steps_per_epoch,
                clipping="per_example",
                public_divisor=self._public_divisor,
            )
        return DpSgdFacts(
            kind="dp_sgd",
            blocks=blocks,
            sampling=self._batches.sampling.value,
            steps_per_epoch=self._batches.steps_per_epoch,
            clipping="per_example",
            flat_clipping=self._reader.flat_clipping,
            optimizer=self._reader.optimizer_facts(),
            loss_reduction=self._reader.loss_reduction,
            expected_batch_size=self._reader.divisor if self._reader.loss_reduction == "mean" else None,
            public_divisor=self._public_divisor,
            smoothness=self._smoothness,
        )

    def epsilon(self, delta: float) -> float:
        """What all steps so far cost, released at once; a private parent's cost is the portfolio's to add."""
        return self.manifest().mechanism_from(None).profile().epsilon(delta)

    def checkpoint(self) -> None:
        """Keep the weights as they are now, and say so in the manifest."""
        if not self._taken:
            raise CannotRecord("checkpoint: no step has been taken yet, so there is nothing to keep")
        if self._saved and self._saved[-1].step == self.steps:
            return
        self._reference.require_still()
        saved = self._tensors.save(self.folder, self.steps)
        self._saved.append(saved)
        self._write()

    def metric(
        self, name: str, value: float, *, measured_on: Literal["public", "private", "training"], data: str | None = None
    ) -> None:
        """Note a figure of merit of the last checkpoint, and the data it was measured on."""
        self._reference.require_still()
        if not self._saved or self._saved[-1].step != self.steps:
            raise CannotRecord(
                f"metric {name}: the weights after step {self.steps} were not kept; checkpoint() keeps them"
            )
        last = self._saved[-1]
        described = {"name": name, "value": value, "measured_on": measured_on, "data": data}
        noted = validated(Metric, described, "metric")
        self._saved[-1] = last.model_copy(update={"metrics": [*last.metrics, noted]})
        self._write()

    def finish(self) -> None:
        """The run ended as planned: keep the last weights, and say so."""
        try:
            self._batches.require_used_up()
        except CannotRecord:
            # Every step was what it is said to be; only that it was the last one may be the doing of that batch.
            self._facts |= {"stopping": "private"}
            self.rescue()
            raise
        if self._taken:
            self.checkpoint()
            self._finished = True
            self._write()

    def rescue(self) -> None:
        """The loop broke off, through no fault of the record's: what was learned so far is kept, as unfinished."""
        if self._taken:
            self.checkpoint()

    def _write(self) -> None:
        """Replace the manifest by one that covers what was saved, up to the last checkpoint and no further."""
        self.manifest(upto=self._saved[-1].step).write(self.folder / MANIFEST_NAME)

    def watch(self, loss: LossWatch | None, gradients: GhostGradients | None) -> None:
        """What else is looked at before a batch is added."""
        self._loss, self._gradients = loss, gradients

    def clipped(self) -> None:
        """A physical batch is about to be clipped, or was in backward(), and added to the step's sum."""
        if self._loss is not None:
            self._require_stated_loss(self._loss)
        self._source.require_undisturbed(self._optimizer.generator)
        rows = self._reader.clipped()
        self._batches.clipped(rows, self._records.entered())
        if self._gradients is not None:
            self._gradients.require_untouched()
        self._records.require_own(rows)

    def _require_stated_loss(self, loss: LossWatch) -> None:
        """Refuse a loss that is not the stated one, and forget what was derived from it, of earlier steps too."""
        try:
            loss.require_used()
            loss.require_stated(self._reader.clip_norm, ghost=self._reader.ghost)
        except CannotRecord:
            self._smoothness = None
            if self._saved:
                self._write()
            raise

    def noised(self) -> None:
        """Noise has been added to the sum of the step's clipped gradients."""
        self._noised.note(self._batches.rows)

    def before_step(self, optimizer: DPOptimizer) -> None:
        """The noise has been added; the weights have not moved."""
        try:
            self._reference.require_still()
            step = self._reader.read(self._batches.sampling_rate)
            self._tensors.require_untouched()
            self._batches.stepped()
        finally:
            self._batches.settled()
            self._source.used(optimizer.generator)
        self._taken.append(step)
        self._read = True

    def before_inner_step(self, *_: Any) -> None:
        """After all other hooks: what is about to move the weights."""
        if not (self._read and self._noised.waiting):
            raise CannotRecord("optimizer: the inner optimizer was stepped by itself, without clipping and noise")
        self._read = False
        try:
            self._gradients_used = self._noised.taken()
        except CannotRecord:
            self._taken.pop()  # the weights do not move
            raise
        self._reader.uniform &= not self._noised.changed

    def after_inner_step(self, *_: Any) -> None:
        self._reference.step(self._gradients_used)
        self._taken[-1] = self._reader.moved(self._taken[-1])
        if self.steps in self._due or (self._every and self.steps % self._every == 0):
            self.checkpoint()


@contextmanager
def record(
    *,
    model: Any,
    optimizer: DPOptimizer,
    data_loader: DataLoader[Any],
    run: str,
    dataset: str,
    adjacency: Literal["replace_one", "add_remove"],
    directory: str | Path,
    checkpoint_every: int | None = None,
    checkpoint_at: Collection[int] = (),
    trained_only: bool = False,
    unit: str = "record",
    tuning: Literal["none", "public", "charged", "unknown"] = "unknown",
    stopping: Literal["fixed", "public", "private", "unknown"] = "unknown",
    schedule: Literal["fixed", "public", "private", "unknown"] = "unknown",
    ancestry: Ancestry | None = None,
    public_divisor: bool | None = None,
    criterion: Any = None,
    feature_bound: float | None = None,
    most_records: int | None = None,
    separate_records: bool = False,
    noise_seed: int | None = None,
    who: str | None = None,
) -> Iterator[Recorder]:
    """Record the training loop inside the `with` block; `model`, `optimizer` and `data_loader` are make_private's.

    checkpoint_every, checkpoint_at   after which steps to keep the weights; the last ones always are
    trained_only      keep only the trained tensors (adapters on a large frozen model)
    unit              whose privacy one record of the data set is
    tuning            on what the hyperparameters were tuned
    stopping          by what it was decided when to stop: fixed beforehand, or by public or private data
    schedule          likewise for learning rates, clip norms and noise that change
    ancestry          where the weights come from, if not from a random initialisation or a public checkpoint
    public_divisor    under add_remove: is the expected batch size a constant fixed without looking at the data?
    criterion, feature_bound, most_records   to derive smoothness for one linear layer: the loss, a bound on the norm
                      of its input (or a `bound_features` layer before it), under add_remove a bound on the records
    separate_records  you vouch, where it cannot be seen, that each row the model gets is made of one record drawn for
                      the step, and has a loss of its own
    noise_seed        only to rebuild an example: a real run draws its noise from the operating system
    who               who vouches for all this
    """
    adjacency_ = enum_member("adjacency", adjacency, Adjacency)
    folder = Path(directory)
    require_fresh(optimizer, folder)
    if checkpoint_every is not None:
        domain.integer("checkpoint_every", checkpoint_every, least=1)
    module: nn.Module = getattr(model, "_module", model)
    reader = StepReader(model, module, optimizer)
    prints = RowPrints()
    batches = Batches(data_loader, optimizer, prints, vouched=separate_records)
    records_apart = SeparateRecords(model, module, optimizer, prints, ghost=reader.ghost)
    replace_one = adjacency_ is Adjacency.REPLACE_ONE
    divisor_is_public = _public_divisor(batches, reader, replace_one, public_divisor)
    records = batches.records if replace_one else _bound_on_records(batches, most_records)
    smoothness = derived_smoothness(
        module,
        criterion,
        loss_reduction=reader.loss_reduction,
        feature_bound=feature_bound,
        records=records,
        ghost=reader.ghost,
    )
    if smoothness is not None and smoothness.kind == "softmax":
        warn_clipping(reader.clip_norm, smoothness)
    if reader.ghost:
        require_measured(model, module)
    tensors = ModelTensors(module, optimizer, trained_only=trained_only)
    source = randomness(next(iter(optimizer.params)).device, noise_seed)
    noise = source.record
    if optimizer.secure_mode:
        noise = noise.model_copy(update={"secure_rng": True, "generator": "torchcsprng"})
    else:
        warn_insecure()
    facts: dict[str, Any] = {
        "schema": SCHEMA,
        "run": run,
        "dataset": {"id": dataset, "size": batches.records if replace_one else None},
        "unit": unit,
        "adjacency": adjacency_.value,
        "noise": noise,
        "ancestry": ancestry or Ancestry(start="random", assumed=True),
        "initial_weights": tensors.initial_weights,
        "tensors": tensors.facts(),
        "start_sample": tensors.start_sample,
        "tuning": tuning,
        "stopping": stopping,
        "schedule": schedule,
        "recorded_by": {"how": "recorder", "who": who},
        "tools": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("dpmerge", "torch", "opacus", "safetensors")},
        },
    }
    # Whatever is wrong with a name or a choice is wrong before the first step.
    _manifest(facts, NonPrivateFacts(kind="non_private"), checkpoints=[], finished=False)
    recorder = Recorder(
        folder=folder,
        facts=facts,
        reader=reader,
        tensors=tensors,
        batches=batches,
        records=records_apart,
        vouched=separate_records,
        smoothness=smoothness,
        public_divisor=divisor_is_public,
        source=NoiseWatch(optimizer.generator if optimizer.secure_mode else source.noise),
        optimizer=optimizer,
        due=checkpoint_at,
        every=checkpoint_every,
    )
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as attached:
        loss = LossWatch(module, criterion) if smoothness is not None else None
        if loss is not None:
            loss.attach(attached)
        recorder.watch(loss, attach(attached, recorder, reader, batches, optimizer, model, loss))
        attached.enter_context(batches)
        records_apart.attach(attached)
        if not optimizer.secure_mode:
            attached.callback(setattr, optimizer, "generator", optimizer.generator)
            optimizer.generator = source.noise
            attached.callback(batches.use, batches.use(source.batches))
        with _saved_at_the_end(recorder):
            yield recorder


@contextmanager
def _saved_at_the_end(recorder: Recorder) -> Iterator[None]:
    """The last weights are kept, as finished or not; but nothing of a run that could not be recorded truthfully."""
    try:
        yield
    except DpmergeError:
        raise
    except BaseException:
        with suppress(DpmergeError):
            recorder.rescue()
        raise
    recorder.finish()


def _public_divisor(batches: Batches, reader: StepReader, replace_one: bool, said: bool | None) -> bool:
    """Whether the divisor is public; refused where the run would have no number."""
    if batches.sampling is Sampling.SHUFFLED and not replace_one:
        raise CannotRecord(
            "adjacency: shuffled batches have no proved accounting under add_remove; say replace_one, or let "
            "make_private sample (poisson_sampling=True)"
        )
    if reader.loss_reduction == "mean" and not replace_one and not said:
        raise CannotRecord(
            "public_divisor: under add_remove the number of records is private, and Opacus divides by a number "
            "computed from it; say public_divisor=True if that number is fixed without the data, or use replace_one"
        )
    return True


def _bound_on_records(batches: Batches, most: int | None) -> int | None:
    if most is not None and domain.integer("most_records", most, least=1) <= batches.records:
        accepted = "a bound on the number of records that leaves room for one more: a neighbour may have it"
        raise InvalidInput("most_records", most, accepted)
    return most


def _manifest(facts: dict[str, Any], mechanism: Strict, *, checkpoints: list[SavedAs], finished: bool) -> Manifest:
    content = {**facts, "mechanism": mechanism, "checkpoints": checkpoints, "finished": finished}
    return validated(Manifest, content, "manifest")
