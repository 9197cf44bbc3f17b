"""`record`: two lines around an Opacus loop.

Guarantees: what can be wrong with the choices is refused before the first step; everything that was wrapped is put back
at the end, whatever happens; a run that ends by an error keeps its last weights, as unfinished.
"""

from __future__ import annotations

import platform
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from opacus.optimizers import DPOptimizer
from torch import nn
from torch.utils.data import DataLoader

from dpmerge.errors import CannotRecord, DpmergeError, InvalidInput
from dpmerge.portfolio.facts import NonPrivateFacts
from dpmerge.portfolio.manifest import SCHEMA
from dpmerge.portfolio.statement import Ancestry
from dpmerge.privacy import domain
from dpmerge.privacy.exposure import Adjacency
from dpmerge.privacy.mechanisms import Sampling, enum_member
from dpmerge.training.attachment import attach, noting, require_fresh
from dpmerge.training.batches import Batches
from dpmerge.training.loss_watch import LossWatch
from dpmerge.training.noise import NoiseWatch, randomness, warn_insecure
from dpmerge.training.recorder import Recorder, manifest_of
from dpmerge.training.row_prints import RowPrints
from dpmerge.training.saving import ModelTensors
from dpmerge.training.separate_records import SeparateRecords
from dpmerge.training.smooth_models import derived_smoothness, warn_clipping
from dpmerge.training.steps import StepReader
from dpmerge.training.tied_weights import require_measured


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
    manifest_of(facts, NonPrivateFacts(kind="non_private"), checkpoints=[], finished=False)
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
        records_apart.before_each_pass(noting(recorder, recorder.require_still))
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
