"""The recorder: two lines around an Opacus loop, and the run's record is true.

    with record(model=model, optimizer=optimizer, data_loader=loader, run="adult-s32", dataset="adult-2026",
                adjacency="replace_one", directory="models/adult-s32") as recorder:
        ...  # the training loop, unchanged

Guarantees: the manifest on disk describes exactly the checkpoints beside it, at every moment, kill -9 included; each
logical step is recorded as it was taken; the accountant's own hook keeps running.
Refuses, before the step it concerns: whatever cannot be recorded truthfully (`CannotRecord`, one line, with the cure).
"""

from __future__ import annotations

import inspect
import platform
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from opacus.accountants.accountant import IAccountant
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.utils.data import DataLoader

from dpmerge.documents import Strict, validated
from dpmerge.errors import CannotRecord, InvalidInput
from dpmerge.portfolio.facts import DpSgdFacts, HistoryFacts, NonPrivateFacts, SmoothnessFacts
from dpmerge.portfolio.manifest import MANIFEST_NAME, SCHEMA, Ancestry, Manifest, Metric, SavedAs
from dpmerge.privacy import domain
from dpmerge.privacy.exposure import Adjacency
from dpmerge.privacy.mechanisms import Sampling, enum_member
from dpmerge.training.batches import Batches
from dpmerge.training.ghost import refuse_penalties
from dpmerge.training.noise import randomness, warn_insecure
from dpmerge.training.saving import ModelTensors
from dpmerge.training.smooth_models import derived_smoothness, require_one_vector_per_record
from dpmerge.training.steps import MOST_BLOCKS, Step, StepReader, coarse_history, folded

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
        smoothness: SmoothnessFacts | None,
        public_divisor: bool,
        generator: Any,
        due: Collection[int],
        every: int | None,
    ) -> None:
        self.folder = folder
        self._facts = facts
        self._reader = reader
        self._tensors = tensors
        self._batches = batches
        self._smoothness = smoothness
        self._public_divisor = public_divisor
        self._generator = generator
        self._due = frozenset(due)
        self._every = every
        self._taken: list[Step] = []
        self._saved: list[SavedAs] = []
        self._noised = False
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
        return _manifest(self._facts, self._mechanism(taken), checkpoints=self._saved, finished=self._finished)

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
        self._reader.require_still()
        saved = self._tensors.save(self.folder, self.steps)
        self._saved.append(saved)
        self._write()

    def metric(
        self, name: str, value: float, *, measured_on: Literal["public", "private", "training"], data: str | None = None
    ) -> None:
        """Note a figure of merit of the last checkpoint, and the data it was measured on."""
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
        if self._taken:
            self.checkpoint()
            self._finished = True
            self._write()

    def _write(self) -> None:
        """Replace the manifest by one that covers what was saved; steps after the last checkpoint left no trace."""
        self.manifest(upto=self._saved[-1].step).write(self.folder / MANIFEST_NAME)

    def clipped(self) -> None:
        """A physical batch is about to be clipped, or was in backward(), and added to the step's sum."""
        self._batches.clipped(self._reader.clipped())

    def before_step(self, optimizer: DPOptimizer) -> None:
        """The noise has been added; the weights have not moved."""
        if optimizer.generator is not self._generator:
            raise CannotRecord("optimizer.generator: replaced in the course of the run; the manifest names another one")
        self._tensors.require_untouched()
        step = self._reader.read(self._batches.sampling_rate)
        self._batches.stepped()
        self._taken.append(step)
        self._noised = True

    def before_inner_step(self, *_: Any) -> None:
        if not self._noised:
            raise CannotRecord("optimizer: the inner optimizer was stepped by itself, without clipping and noise")
        self._noised = False

    def after_inner_step(self, *_: Any) -> None:
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
    ancestry: Ancestry | None = None,
    public_divisor: bool | None = None,
    criterion: Any = None,
    feature_bound: float | None = None,
    most_records: int | None = None,
    noise_seed: int | None = None,
    who: str | None = None,
) -> Iterator[Recorder]:
    """Record the training loop inside the `with` block; `model`, `optimizer` and `data_loader` are make_private's.

    checkpoint_every, checkpoint_at   after which steps to keep the weights; the last ones always are
    trained_only      keep only the trained tensors (adapters on a large frozen model)
    unit              whose privacy one record of the data set is
    tuning            on what the hyperparameters were tuned
    ancestry          where the weights come from, if not from a random initialisation or a public checkpoint
    public_divisor    under add_remove: is the expected batch size a constant fixed without looking at the data?
    criterion, feature_bound, most_records   to derive smoothness for one linear layer: the loss, a bound on the norm
                      of its input (or a `bound_features` layer before it), under add_remove a bound on the records
    noise_seed        only to rebuild an example: a real run draws its noise from the operating system
    who               who vouches for all this
    """
    adjacency_ = enum_member("adjacency", adjacency, Adjacency)
    folder = Path(directory)
    _require_fresh(optimizer, folder)
    if checkpoint_every is not None:
        domain.integer("checkpoint_every", checkpoint_every, least=1)
    module: nn.Module = getattr(model, "_module", model)
    reader = StepReader(model, module, optimizer)
    batches = Batches(data_loader, optimizer)
    if batches.sampling is Sampling.SHUFFLED and adjacency_ is Adjacency.ADD_REMOVE:
        raise CannotRecord(
            "adjacency: shuffled batches have no proved accounting under add_remove; say replace_one, or let "
            "make_private sample (poisson_sampling=True)"
        )
    replace_one = adjacency_ is Adjacency.REPLACE_ONE
    divisor_known = reader.loss_reduction == "sum" or replace_one
    if not divisor_known and not public_divisor:
        raise CannotRecord(
            "public_divisor: under add_remove the number of records is private, and Opacus divides by a number "
            "computed from it; say public_divisor=True if that number is fixed without the data, or use replace_one"
        )
    if most_records is not None:
        domain.integer("most_records", most_records, least=1)
    records = batches.records if replace_one else most_records
    smoothness = derived_smoothness(
        module,
        criterion,
        loss_reduction=reader.loss_reduction,
        feature_bound=feature_bound,
        records=records,
        ghost=reader.ghost,
    )
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
        "ancestry": ancestry or Ancestry(start="random"),
        "initial_weights": tensors.initial_weights,
        "tensors": tensors.facts(),
        "tuning": tuning,
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
        smoothness=smoothness,
        public_divisor=divisor_known or bool(public_divisor),
        generator=optimizer.generator if optimizer.secure_mode else source.noise,
        due=checkpoint_at,
        every=checkpoint_every,
    )
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as attached:
        if smoothness is not None:
            attached.callback(require_one_vector_per_record(module).remove)
        _attach(attached, recorder, reader, batches, optimizer, model)
        attached.enter_context(batches)
        if not optimizer.secure_mode:
            attached.callback(setattr, optimizer, "generator", optimizer.generator)
            optimizer.generator = source.noise
            attached.callback(batches.use, batches.use(source.batches))
        yield recorder
        recorder.finish()


def _manifest(facts: dict[str, Any], mechanism: Strict, *, checkpoints: list[SavedAs], finished: bool) -> Manifest:
    content = {**facts, "mechanism": mechanism, "checkpoints": checkpoints, "finished": finished}
    return validated(Manifest, content, "manifest")


def _require_fresh(optimizer: DPOptimizer, folder: Path) -> None:
    """A record covers a run from its first step, in a folder of its own."""
    if not isinstance(optimizer, DPOptimizer):
        raise CannotRecord(f"optimizer: a {type(optimizer).__name__}; pass the one PrivacyEngine.make_private returned")
    if (folder / MANIFEST_NAME).exists() or any(folder.glob("*.safetensors")):
        accepted = f"a folder without a {MANIFEST_NAME} or checkpoints: a record is never overwritten"
        raise InvalidInput("directory", str(folder), accepted)
    accountant = _accountant(optimizer)
    if accountant is not None and accountant.history:
        taken = sum(steps for _, _, steps in accountant.history)
        raise CannotRecord(
            f"optimizer: its accountant has counted {taken} steps already; record a run from its first step on (to "
            "go on from a private checkpoint, make a new PrivacyEngine and name the parent in ancestry=)"
        )
    if optimizer.state:
        raise CannotRecord("optimizer: it has taken steps already; record a run from its first step on")
    waiting = optimizer._step_skip_queue or optimizer._is_last_step_skipped
    if waiting or any(p.grad is not None or p.summed_grad is not None for p in optimizer.params):
        raise CannotRecord(
            "optimizer: it has gradients already; record a run from its first step on, with a new optimizer"
        )


def _accountant(optimizer: DPOptimizer) -> IAccountant | None:
    """The accountant behind the step hook, if it is Opacus' own."""
    if not inspect.isfunction(optimizer.step_hook):
        return None
    owner = inspect.getclosurevars(optimizer.step_hook).nonlocals.get("self")
    return owner if isinstance(owner, IAccountant) else None


def _attach(
    attached: ExitStack, recorder: Recorder, reader: StepReader, batches: Batches, optimizer: DPOptimizer, model: Any
) -> None:
    """Wrap what the optimizer already does; everything is put back at the end, whatever happens."""
    accounted = optimizer.step_hook

    def step_hook(optim: DPOptimizer) -> None:
        recorder.before_step(optim)
        if accounted is not None:
            accounted(optim)

    optimizer.attach_step_hook(step_hook)
    attached.callback(setattr, optimizer, "step_hook", accounted)

    gather = "accumulate" if reader.ghost else "clip_and_accumulate"
    add, signal = getattr(optimizer, gather), optimizer.signal_skip_step

    def clip_and_note() -> None:
        recorder.clipped()
        add()

    def signal_and_note(do_skip: bool = True) -> None:
        batches.signalled(do_skip)
        signal(do_skip)

    _wrap(attached, optimizer, gather, clip_and_note)
    _wrap(attached, optimizer, "signal_skip_step", signal_and_note)
    if reader.ghost:
        factors = model.get_clipping_coef

        def compute_and_note() -> Any:
            computed = factors()
            reader.factors_computed(len(computed))
            return computed

        _wrap(attached, model, "get_clipping_coef", compute_and_note)
        refuse_penalties(attached)
    inner = optimizer.original_optimizer
    attached.callback(inner.register_step_pre_hook(recorder.before_inner_step).remove)
    attached.callback(inner.register_step_post_hook(recorder.after_inner_step).remove)


def _wrap(attached: ExitStack, owner: Any, name: str, wrapper: Any) -> None:
    """Put a wrapper before a method of one object; afterwards the object is as it was."""
    own = vars(owner).get(name)
    vars(owner)[name] = wrapper
    if own is None:
        attached.callback(vars(owner).pop, name)
    else:
        attached.callback(vars(owner).__setitem__, name, own)
