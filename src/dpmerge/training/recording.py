"""`record`: two lines around an Opacus loop; `start` and `close()` where there is no block to put around it.

Guarantees: each logical step is recorded as it was taken; the accountant's own hook keeps running.
Refuses, before the step it concerns: what cannot be recorded truthfully (`RecordingError`, one line, with the cure).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

from opacus.optimizers import DPOptimizer
from torch.utils.data import DataLoader

from dpmerge.accounting.exposure import AdjacencyName
from dpmerge.terms.run_record import Ancestry
from dpmerge.training.recorder import Recorder
from dpmerge.training.recording_options import (
    CheckpointSchedule,
    Continuation,
    Decision,
    LostSteps,
    RunNames,
    SmoothnessClaim,
    Tuning,
    Vouched,
)
from dpmerge.training.recording_session import RecordingSession

Options = ParamSpec("Options")


def start(
    *,
    model: Any,
    optimizer: DPOptimizer,
    data_loader: DataLoader[Any],
    run: str,
    dataset: str,
    adjacency: AdjacencyName,
    directory: str | Path,
    checkpoint_every: int | None = None,
    checkpoint_at: Collection[int] = (),
    trained_only: bool = False,
    save_with: Sequence[Any] = (),
    unit: str = "record",
    tuning: Tuning = "unknown",
    stopping: Decision = "unknown",
    schedule: Decision = "unknown",
    ancestry: Ancestry | None = None,
    public_divisor: bool | None = None,
    criterion: Any = None,
    feature_bound: float | None = None,
    most_records: int | None = None,
    separate_records: bool = False,
    noise_seed: int | None = None,
    who: str | None = None,
    resume: bool = False,
    lost_steps: LostSteps = "counted",
    ema: float | None = None,
) -> Recorder:
    """Record the training loop that follows, which stays as it is, until `recorder.close()`.

    `with record(…) as recorder:` takes the same arguments and closes by itself, whatever happens in its block;
    `start` is for callbacks, which have no block.

    Args:
        model: what `PrivacyEngine.make_private` returned.
        optimizer: likewise; it has not taken a step yet.
        data_loader: likewise; the loop trains on it.
        run: the name of the run, by which plans and certificates know it.
        dataset: the name of the data; runs on the same data have the same.
        adjacency: what a neighbouring data set is: one record replaced, added or removed, or left empty (`zero_out`).
            With zero_out you vouch that an empty record would be drawn like any other, with a gradient of zero, and
            that it is in nothing else computed from the data: no statistic, vocabulary, class weight or normalisation.
        directory: a folder for the checkpoints and the manifest, without a record in it.
        checkpoint_every: keep the weights after every so many steps; the last ones are always kept.
        checkpoint_at: keep them after these steps, too.
        trained_only: keep only the trained tensors (of a large frozen model); of a PEFT model they always are.
        save_with: tokenizers and the like, saved beside each checkpoint with the configuration of a Hugging Face model;
            you vouch that nothing in them was made of private data.
        unit: whose privacy one record of the data set is.
        tuning: on what data the hyperparameters were tuned.
        stopping: by what it was decided when to stop: fixed beforehand, by public data or by private data.
        schedule: likewise for learning rates, clip norms and noise that change.
        ancestry: where the weights come from; a random start is assumed otherwise, and a caveat says so.
        public_divisor: needed under add_remove: the expected batch size is a constant fixed without the data.
        criterion: the loss, to derive smoothness for one linear layer.
        feature_bound: a bound on the norm of that layer's input, unless a `bound_features` layer is before it.
        most_records: a public bound on the number of records, for smoothness under add_remove.
        separate_records: you vouch, where it cannot be seen, that each row the model gets is made of one record drawn
            for the step, and has a loss of its own.
        noise_seed: only to rebuild an example: a real run draws its noise from the operating system.
        who: who vouches for all this.
        resume: the run in the folder goes on from its last checkpoint, which you have loaded; begun if there is none.
        lost_steps: steps that were begun after that checkpoint are `counted`; `unseen`: you vouch that nothing of them
            was seen by anybody, and that the stop did not depend on them.
        ema: the decay of an exponential average of the weights, which is kept beside each checkpoint.

    Returns:
        The recorder: `epsilon`, `checkpoint`, `metric` and `manifest` of the run so far, and `close`.

    Raises:
        RecordingError: something cannot be recorded truthfully; at once, or at the step it concerns.
        InvalidInputError: a value is none of the accepted ones, or the folder has a record in it.

    Warns:
        InsecureNoiseWarning: once in a process, that torch's generators are not cryptographic.
        LostStepsWarning: on resuming, how many steps count of which nothing was kept.
        UnknownLossesWarning: at the end, why it could not be told whether each record had a loss of its own.

    Example:
        >>> import tempfile, warnings, torch
        >>> from opacus import PrivacyEngine
        >>> from torch.utils.data import TensorDataset
        >>> warnings.simplefilter("ignore")
        >>> layer, data = torch.nn.Linear(2, 2), TensorDataset(torch.randn(8, 2), torch.arange(8) % 2)
        >>> model, optimizer, loader = PrivacyEngine().make_private(
        ...     module=layer, optimizer=torch.optim.SGD(layer.parameters(), lr=0.1),
        ...     data_loader=DataLoader(data, batch_size=8), noise_multiplier=2.0, max_grad_norm=1.0)
        >>> folder = tempfile.TemporaryDirectory()
        >>> with record(model=model, optimizer=optimizer, data_loader=loader, run="tiny", dataset="coins",
        ...             adjacency="zero_out", directory=folder.name) as recorder:
        ...     for inputs, labels in loader:
        ...         optimizer.zero_grad()
        ...         torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        ...         optimizer.step()
        >>> recorder.steps, round(recorder.epsilon(1e-5), 2)
        (1, 1.99)
        >>> sorted(path.name for path in recorder.folder.iterdir())
        ['privacy.json', 'step-1.safetensors', 'steps.json']
        >>> folder.cleanup()
    """
    session = RecordingSession(
        model=model,
        optimizer=optimizer,
        data_loader=data_loader,
        directory=directory,
        names=RunNames(run=run, dataset=dataset, unit=unit, adjacency=adjacency),
        vouched=Vouched(
            tuning=tuning,
            stopping=stopping,
            schedule=schedule,
            ancestry=ancestry,
            public_divisor=public_divisor,
            separate_records=separate_records,
            who=who,
        ),
        smoothness=SmoothnessClaim(criterion=criterion, feature_bound=feature_bound, most_records=most_records),
        schedule=CheckpointSchedule(
            every=checkpoint_every, at=checkpoint_at, trained_only=trained_only, save_with=save_with, ema=ema
        ),
        continuation=Continuation(resume=resume, lost_steps=lost_steps),
        noise_seed=noise_seed,
    )
    return session.start()


def _as_block(begin: Callable[Options, Recorder]) -> Callable[Options, AbstractContextManager[Recorder]]:
    """The same as a `with` block, at whose end the recording is closed."""

    @wraps(begin)
    @contextmanager
    def block(*args: Options.args, **options: Options.kwargs) -> Iterator[Recorder]:
        recorder = begin(*args, **options)
        try:
            yield recorder
        except BaseException as error:
            recorder.close(error)
            raise
        recorder.close()

    return block


record = _as_block(start)
