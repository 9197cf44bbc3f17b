"""A recording from its start to its close: what `record` puts around a loop, and what a callback could call.

Guarantees: what can be wrong with the choices is refused when a session is made, before anything is touched;
everything that is wrapped from `start` on is put back by `close`, whatever happens; a run that ends by an error keeps
its last weights, as unfinished, but nothing of a run that could not be recorded truthfully.
"""

from __future__ import annotations

import platform
import secrets
from contextlib import ExitStack, nullcontext, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from opacus.optimizers import DPOptimizer
from torch import nn
from torch.utils.data import DataLoader

from dpmerge.accounting.training_settings import Sampling
from dpmerge.errors import DpmergeError, RecordingError
from dpmerge.portfolio.manifest import SCHEMA, NoiseRecord, ResumedSegment
from dpmerge.terms.mechanism_schema import SmoothnessFacts
from dpmerge.terms.one_shot_schema import NonPrivateFacts
from dpmerge.training.batches import Batches
from dpmerge.training.distributed_models import plain_module
from dpmerge.training.fresh_run import require_fresh
from dpmerge.training.half_precision import HALF
from dpmerge.training.linear_smoothness import derived_smoothness, linear_layer, warn_clipping
from dpmerge.training.loader_passes import LoaderObserver
from dpmerge.training.manifest_writer import ManifestWriter, manifest_of
from dpmerge.training.model_tensors import ModelTensors
from dpmerge.training.noise_generators import NoiseStreamCheck, run_generators, warn_insecure_noise
from dpmerge.training.opacus_accounting import USUAL_DELTA
from dpmerge.training.opacus_hooks import observe_clipping, observe_steps
from dpmerge.training.processes import Processes
from dpmerge.training.recorder import Recorder
from dpmerge.training.recording_options import CheckpointSchedule, Continuation, RunNames, SmoothnessClaim, Vouched
from dpmerge.training.reference_optimizer import ReferenceOptimizer
from dpmerge.training.resumed_run import ResumedRun
from dpmerge.training.row_fingerprints import RowFingerprints
from dpmerge.training.run_processes import telling_others
from dpmerge.training.separate_records_check import SeparateRecordsCheck
from dpmerge.training.stated_loss_check import StatedLossCheck
from dpmerge.training.step_count import StepCount, StepSettings
from dpmerge.training.step_observer import StepObserver
from dpmerge.training.step_reader import StepReader
from dpmerge.training.tied_weights import require_measured
from dpmerge.training.user_warnings import LostStepsWarning, UnknownLossesWarning, warn_user
from dpmerge.training.weight_averages import ExponentialAverage, require_short


class RecordingSession:
    """One run: checked when it is made, observed from `start` to `close`."""

    _processes: Processes

    @telling_others
    def __init__(
        self,
        *,
        model: Any,
        optimizer: DPOptimizer,
        data_loader: DataLoader[Any],
        directory: str | Path,
        names: RunNames,
        vouched: Vouched,
        smoothness: SmoothnessClaim,
        schedule: CheckpointSchedule,
        continuation: Continuation,
        noise_seed: int | None,
    ) -> None:
        public_size, folder = names.public_size, Path(directory)
        processes = self._processes
        for asked, option in ((continuation.resume, "resume"), (schedule.ema is not None, "ema")):
            if asked:
                processes.require_one(option)
        resumed = self._resumed = ResumedRun.open(folder) if continuation.resume else None
        if resumed is None:
            require_fresh(optimizer, folder)
        elif noise_seed is not None:
            raise RecordingError("noise_seed: a run goes on with noise of the operating system's; leave it out")
        self._model, self._optimizer, self._loader = model, optimizer, data_loader
        self._module: nn.Module = plain_module(getattr(model, "_module", model), optimizer, several=processes.several)
        self._reader = StepReader(model, self._module, optimizer, processes)
        fingerprints = RowFingerprints(HALF & {parameter.dtype for parameter in self._module.parameters()})
        self._batches = Batches(
            data_loader, optimizer, fingerprints, vouched=vouched.separate_records, processes=processes
        )
        self._separate_records = SeparateRecordsCheck(
            model, self._module, optimizer, fingerprints, ghost=self._reader.ghost
        )
        _require_accountable(self._batches, self._reader, vouched, public_size=public_size)
        derived = self._derived(smoothness, public_size=public_size)
        self._criterion = smoothness.criterion if derived is not None else None
        if self._reader.ghost:
            require_measured(model, self._module)
        tensors = ModelTensors(
            self._module, optimizer, trained_only=schedule.trained_only, save_with=schedule.save_with
        )
        self._generators = run_generators(next(iter(optimizer.params)).device, noise_seed, rank=processes.rank)
        if not optimizer.secure_mode:
            warn_insecure_noise()
        facts = {
            "schema": SCHEMA,
            "run": names.run,
            "dataset": {"id": names.dataset, "size": self._batches.records if public_size else None},
            "unit": names.unit,
            "adjacency": names.adjacency,
            "noise": self._noise_record(),
            "initial_weights": tensors.initial_weights,
            "tensors": tensors.facts(),
            "start_sample": tensors.start_sample,
            "public_files": dict(tensors.files.public) or None,
            "model": "network" if linear_layer(self._module)[0] is None else "linear",
            "tools": _tools() | ({"processes": str(processes.world)} if processes.several else {}),
            **vouched.facts(),
        }
        segment = None
        if resumed is not None:
            resumed.require_names(names, vouched, self._batches.records)
            segment = self._go_on(resumed, tensors, unseen=continuation.lost_steps == "unseen", who=vouched.who)
            facts, derived = resumed.facts(facts), resumed.smoothness(derived)
            self._criterion = smoothness.criterion if derived is not None else None
        if schedule.ema is not None:
            require_short(names.run)
        # Whatever is wrong with a name or a choice is wrong before the first step.
        manifest_of(facts, NonPrivateFacts(kind="non_private"), checkpoints=[], finished=False)
        self._writer = ManifestWriter(
            folder=folder,
            facts=facts,
            reader=self._reader,
            batches=self._batches,
            separate_records=self._separate_records,
            vouched=vouched.separate_records,
            smoothness=derived,
            writes=processes.writes,
        )
        if resumed is not None and segment is not None:
            resumed.carry_on(self._writer, segment)
        weights = ReferenceOptimizer(optimizer)
        self._count = StepCount(
            folder,
            run=names.run,
            stream=facts["noise"].stream,
            settings=self._settings,
            begun=self._writer.steps,
            each_draw=self._batches.sampling is Sampling.POISSON,
            writes=not processes.several,  # such a run is not resumed
        )
        self._writer.may_write = self._count.require_own
        if segment is not None and resumed is not None and segment.lost_steps:
            _warn_lost_steps(names.run, segment.lost_steps, segment.after)
            # Of shuffled data they are counted as whole passes by now.
            self._count.carry(resumed.count.worst._replace(steps_per_epoch=self._batches.steps_in_one_pass))
        self.recorder = Recorder(
            writer=self._writer,
            tensors=tensors,
            weights=weights,
            schedule=schedule,
            processes=processes,
            count=self._count,
            average=self._average(schedule.ema, weights, tensors),
            when_closed=self.close,
        )
        self._observer = StepObserver(
            writer=self._writer,
            optimizer=optimizer,
            tensors=tensors,
            weights=weights,
            noise_stream=NoiseStreamCheck(
                optimizer.generator if optimizer.secure_mode else self._generators.noise, drawn=processes.draws_noise
            ),
            processes=processes,
            count=self._count,
            after_step=self.recorder.after_step,
        )
        self._attached = ExitStack()
        processes.agree_on_start(
            {
                **{name: fact for name, fact in facts.items() if name != "noise"},
                **self._reader.settings(),
                "noise_seed": noise_seed,
                "checkpoints": [schedule.every, sorted(schedule.at), schedule.trained_only],
                "smoothness": derived,
            },
            optimizer,
            self._generators,
            dataset=data_loader.dataset,
            records=self._batches.records,
        )
        processes.follow(self._writer)

    def _go_on(self, resumed: ResumedRun, tensors: ModelTensors, *, unseen: bool, who: str | None) -> ResumedSegment:
        """Compare the loop with the record that it goes on with."""
        batches, optimizer = self._batches, self._optimizer
        resumed.require_sampling(batches.sampling, batches.sampler.batches_per_epoch, self._reader)
        resumed.require_weights(tensors)
        steps_per_epoch = resumed.steps_per_epoch(batches.sampler.batches_per_epoch)
        segment = resumed.segment(
            noise=self._noise_record(),
            sampling_stream=secrets.token_hex(16),
            optimizer=resumed.optimizer_state(optimizer, tensors),
            steps_per_epoch=steps_per_epoch,
            unseen=unseen,
            who=who,
        )
        batches.go_on(segment.after + segment.lost_steps, steps_per_epoch)
        return segment

    def _settings(self) -> StepSettings:
        """What a step would be taken with now."""
        reader = self._reader
        return StepSettings(
            reader.noise_multiplier(),
            reader.clip_norm,
            self._batches.sampler.rate,
            self._batches.steps_in_one_pass,
            self._writer.losses_so_far,
        )

    def _average(
        self, decay: float | None, weights: ReferenceOptimizer, tensors: ModelTensors
    ) -> ExponentialAverage | None:
        if decay is None:
            return None
        resumed = self._resumed
        if resumed is None or not resumed.saved:
            return ExponentialAverage(weights.weights, decay)
        taken = sum(not step.lost for step in resumed.steps)
        return ExponentialAverage.resumed(
            resumed.folder, resumed.saved[-1], tensors, weights.weights, decay, steps=taken
        )

    def _derived(self, claim: SmoothnessClaim, *, public_size: bool) -> SmoothnessFacts | None:
        """Smoothness, where it was asked for."""
        derived = derived_smoothness(
            self._module,
            claim.criterion,
            loss_reduction=self._reader.loss_reduction,
            feature_bound=claim.feature_bound,
            records=claim.records(self._batches.records, public_size=public_size),
            ghost=self._reader.ghost,
        )
        if derived is not None and derived.kind == "softmax":
            warn_clipping(self._reader.clip_norm, derived)
        return derived

    def _noise_record(self) -> NoiseRecord:
        noise = self._generators.record
        if self._optimizer.secure_mode:
            noise = noise.model_copy(update={"secure_rng": True, "generator": "torchcsprng"})
        return noise

    def start(self) -> Recorder:
        """Observe the loop from now on."""
        with self._processes.telling(), ExitStack() as attached:
            if self._processes.writes:
                self.recorder.folder.mkdir(parents=True, exist_ok=True)
            if self._resumed is not None:
                self._count.take_over(self._resumed.count)
                self._resumed.remove_orphans()
                if self._writer.resumed[-1].unseen_steps:
                    self._writer.write()  # what somebody vouches for is kept before it is relied on
            self._count.begin()
            self._attach(attached)
            self._attached = attached.pop_all()
        return self.recorder

    def _attach(self, attached: ExitStack) -> None:
        observer, optimizer = self._observer, self._optimizer
        if self._criterion is not None:
            observer.stated_loss = StatedLossCheck(self._module, self._criterion)
            observer.stated_loss.attach(attached)
        observe_steps(attached, observer, optimizer, self._batches)
        observe_clipping(attached, observer, optimizer, self._reader, self._model)
        self._processes.attach(attached)
        self._batches.before_draw = self._count.drawing
        attached.enter_context(LoaderObserver(self._loader, self._batches))
        self._separate_records.before_each_pass(observer.noting_refusals(observer.before_pass))
        self._separate_records.attach(attached)
        if not optimizer.secure_mode:
            attached.callback(setattr, optimizer, "generator", optimizer.generator)
            optimizer.generator = self._generators.noise
            attached.callback(self._batches.sampler.use, self._batches.sampler.use(self._generators.batches))
        if self._generators.record.source == "os_entropy":
            attached.callback(self._batches.sampler.shuffle_by(self._generators.batches))

    def close(self, error: BaseException | None = None) -> None:
        """The loop has ended, by an error or as planned: keep the last weights, and put everything back."""
        with self._attached, self._count:
            try:
                if error is None:
                    # Whoever closes after a refusal has been told what was wrong.
                    with suppress(DpmergeError) if self._writer.refused else nullcontext(), self._processes.telling():
                        self.recorder.finish()
                elif not isinstance(error, DpmergeError):
                    self._processes.hurry()
                    with suppress(DpmergeError):
                        self.recorder.rescue()
            finally:
                # Told already, or less urgent than what ended the loop.
                with suppress(DpmergeError):
                    self.recorder.require_frozen_whole()
                if error is not None:
                    self._processes.tell(error)
                self._processes.close()
        if error is None and self._writer.taken and self._writer.record_losses == "unknown":
            self._warn_unknown_losses()
        if error is None and self._writer.taken:
            self.recorder.say_what_opacus_says(USUAL_DELTA)

    def _warn_unknown_losses(self) -> None:
        reasons = "; ".join(self._separate_records.doubts) or "what entered the model was not the batch drawn for it"
        warn_user(
            f"run {self._writer.facts['run']}: record_losses is unknown, and releases of it will carry a caveat: "
            f"it cannot be told whether each record has a loss of its own ({reasons}). If each has, say "
            "separate_records=True; for language models use dpmerge.training.per_record_loss.",
            UnknownLossesWarning,
        )


def _warn_lost_steps(run: str, lost: int, after: int) -> None:
    warn_user(
        f"run {run}: {lost} steps that may have been begun after step {after} were not kept, and count from now on, in "
        "every later checkpoint. If nobody saw anything of them, and the stop did not depend on them, "
        'say lost_steps="unseen" and who=.',
        LostStepsWarning,
    )


def _require_accountable(batches: Batches, reader: StepReader, vouched: Vouched, *, public_size: bool) -> None:
    """Refuse a run that would have no number: shuffled, or of a private divisor, under add_remove."""
    if batches.sampling is Sampling.SHUFFLED and not public_size:
        raise RecordingError(
            "adjacency: shuffled batches have no proved accounting under add_remove; say zero_out or replace_one, or "
            "let make_private sample (poisson_sampling=True)"
        )
    if reader.loss_reduction == "mean" and not public_size and not vouched.public_divisor:
        raise RecordingError(
            "public_divisor: under add_remove the number of records is private, and Opacus divides by a number "
            "computed from it; say public_divisor=True if that number is fixed without the data, or use zero_out or "
            "replace_one, where it is public"
        )


def _tools() -> dict[str, str]:
    """What the run was made with."""
    packages = {name: version(name) for name in ("dpmerge", "torch", "opacus", "safetensors")}
    return {"python": platform.python_version(), **packages}
