"""Which batches a run really used: one draw a step, each draw once, and the rows that were drawn.

Guarantees: what is recorded is what happened: passes that are cut short are recorded as such; where passes overlap, or
batches are not used each once and without gaps, no two steps are accounted as one pass. A logical step is made of one
draw, which no other step uses, and of as many gradients as that draw has records; of Poisson batches, the rows that
enter the model are those drawn for the step.
Refuses: logical steps glued together from several draws, batches used twice, Poisson batches that are left out.
Of full batches it trusts that the batch used is the data: nothing has to be drawn anew for each step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opacus.optimizers import DPOptimizer
from torch.utils.data import DataLoader

from dpmerge.accounting.training_settings import Sampling
from dpmerge.errors import RecordingError
from dpmerge.terms.mechanism_schema import OrderFacts, PassBlock
from dpmerge.training.batch_matching import FullBatches, matching_batch
from dpmerge.training.batch_sampling import SamplerCheck, batch_sampler_of
from dpmerge.training.begun_passes import BegunPasses
from dpmerge.training.distributed_sampling import own_records
from dpmerge.training.loader_passes import LoaderPass, SamplerPass
from dpmerge.training.process_agreement import SeveralProcesses
from dpmerge.training.processes import Processes
from dpmerge.training.row_fingerprints import Fingerprints, RowFingerprints


class Batches:
    """The batches of one loader, as `LoaderObserver` tells of them, and the steps that use them."""

    def __init__(
        self,
        loader: DataLoader[Any],
        optimizer: DPOptimizer,
        fingerprints: RowFingerprints,
        *,
        vouched: bool = False,
        processes: Processes,
    ) -> None:
        self._loader, self._optimizer = loader, optimizer
        self._fingerprints, self._vouched = fingerprints, vouched
        try:
            self.records = len(loader.dataset)  # type: ignore[arg-type]
        except TypeError:
            raise RecordingError(
                "data_loader: a data set without a length, so nobody can say how it was sampled; use one that knows "
                "how many records it has"
            ) from None
        self._processes = processes
        self._drawn_by = batch_sampler_of(loader)
        self.sampler = SamplerCheck(
            self._drawn_by, self.records, (processes.rank, processes.world) if processes.several else None
        )
        self.sampling = self.sampler.sampling
        # A share of the data is another one in another pass: of several processes, each step has a draw of its own.
        self._reusable = self.sampling is Sampling.FULL_BATCH and not processes.several
        self._one_draw_a_step = not self._reusable and self.sampling is not Sampling.SHUFFLED
        self.share = 0  # a fingerprint of the records that this process drew the step's batch from
        self._full = FullBatches(loader.dataset, fingerprints)
        self._begun = BegunPasses()
        self._in_turn = True
        self._resumed = False
        self._unfinished = False
        self._passes: list[SamplerPass] = []
        self._current: SamplerPass | None = None
        self._steps = 0
        self._logical: LoaderPass | None = None  # the pass from which the loader handed out a batch last
        self._physical: LoaderPass | None = None  # the same, where BatchMemoryManager's own loader counts as well
        self._used_for: dict[int, int] = {}  # where somebody vouches: what entered the model for which batch
        self._handed_out: set[int] = set()  # shuffled: every tensor that ever came out of the loader
        self._begin_step()
        self._number: int | None = None
        self._reused = False  # what entered is a whole batch, though of another step
        self.before_draw: Callable[[], None] | None = None
        self.linked = True
        """Whether all that entered the model was what had been drawn for it."""

    def _begin_step(self) -> None:
        self._rows, self._linked = 0, True
        self._full.step_ends()

    @property
    def rows(self) -> int:
        """How many rows were clipped for the step under way."""
        return self._rows

    @property
    def steps_per_epoch(self) -> int | None:
        """For shuffled batches, the steps of a whole pass; 1 once a batch was used out of turn, or left out."""
        if self.sampling is not Sampling.SHUFFLED:
            return None
        return self.sampler.batches_per_epoch if self._passes_known else 1

    @property
    def _passes_known(self) -> bool:
        return self._in_turn and self._begun.without_gaps

    def passes(self, upto: int) -> list[PassBlock] | None:
        """For shuffled batches, how many steps each pass begun took, where some but the last were cut short."""
        whole = self.steps_per_epoch
        return None if whole is None or not self._passes_known else self._begun.taken(upto, whole)

    @property
    def steps_in_one_pass(self) -> int:
        """So many steps in a row, the one under way included, were one pass over shuffled data each; 1 if not all."""
        whole = self.sampler.batches_per_epoch
        if whole is None or not (self._passes_known and self._linked):
            return 1
        return whole if self._begun.whole_before(self._physical, whole) else 1

    def secret_order(self, fixed_steps: list[int]) -> OrderFacts | None:
        """What is known of the order of the records, where nobody knows or has chosen it."""
        size = self.sampler.secret_batch_size
        chosen = self._resumed or not (self._passes_known and self._begun.as_they_came and self.linked)
        if size is None or chosen or not getattr(self._loader, "in_order", True):
            return None
        return OrderFacts(secret=True, records=self.records, batch_size=size, fixed_steps=fixed_steps)

    def go_on(self, steps: int, steps_per_epoch: int | None) -> None:
        """The run was resumed after so many steps, which fill whole passes; if not, each step is a pass of its own."""
        self._resumed = True
        if steps_per_epoch is None:
            return
        self._in_turn &= steps_per_epoch == self.sampler.batches_per_epoch
        if self._in_turn:
            self._begun.go_on_after(steps // steps_per_epoch, steps_per_epoch)

    # What the loop does with its batches

    def clipped(self, rows: int, entered: Fingerprints | None) -> None:
        """Gradients of so many rows, of what entered the model, were clipped and added to the step's sum."""
        if self._current is not None and self._current.split and not self._optimizer._step_skip_queue:
            raise RecordingError(
                "optimizer.step: called more often than BatchMemoryManager handed out batches; call it once for each"
            )
        self._rows += rows
        if self._reusable:
            self._linked &= self._full.entered(entered)
        else:
            self._link(entered)

    def _link(self, entered: Fingerprints | None) -> None:
        """Find the waiting batch that entered the model; somebody's word may stand for it."""
        waiting = self._physical.waiting if self._physical is not None else {}
        self._number = matching_batch(waiting, entered)
        linked = self._number is not None
        taken_for = self._number if linked else next(iter(waiting), None)
        if self.sampling is Sampling.SHUFFLED and self._physical is not None and (linked or self._vouched):
            self._begun.entered(self._physical, taken_for)
        if linked or self._vouched:
            batch = waiting.pop(taken_for, None)  # type: ignore[arg-type]
            # What entered for another batch before is not made of this one, whoever vouches for it.
            self._linked &= linked or self._used_for.get(hash(entered), hash(batch)) == hash(batch)
        else:
            self._linked = False
            self._reused = entered is not None and {hash(each) for each in entered} <= self._handed_out
        self.linked &= linked
        if self._vouched:
            self._used_for.setdefault(hash(entered), hash(batch))

    def stepped(self) -> None:
        """A logical step is about to be taken."""
        self.sampler.require_unchanged()
        full = self._reusable
        if full:
            self._linked = self._linked or self._full.is_the_data_set()
            self.linked &= self._linked
        self._require_rows({self.records} if full else self._drawn(), full=full)
        if not self._linked and not self._vouched_for():
            raise RecordingError(
                f"data_loader: what entered the model in step {self._steps + 1} is not, row by row, the batch drawn "
                "for it; train on that batch (moved, cast or reshaped is fine) and change records in the data set, in "
                "collate_fn or within the model; or say separate_records=True if each row is made of one record drawn "
                "for the step"
            )
        self._in_turn &= self._linked
        self._begun.stepped(self._physical)
        self._steps += 1

    def not_stepped(self) -> None:
        """The step was refused after all, before it moved the weights."""
        self._begun.not_stepped()

    def _require_rows(self, accepted: set[int], *, full: bool) -> None:
        """Refuse a step of more or fewer gradients than its batch has records."""
        drawn = min(accepted, key=lambda size: abs(size - self._rows))
        if full and self._rows != drawn:
            raise RecordingError(
                f"data_loader: a step was taken on {self._rows} of {drawn} records, but the loader gives full batches; "
                "train on what it gives, or let it draw smaller ones"
            )
        if self._rows > drawn:
            raise RecordingError(
                f"data_loader: a step was taken on {self._rows} gradients, but its batch has {drawn} records; copies "
                "of a record are clipped one by one and add up, so average them before clipping, or leave them out"
            )
        if self._rows < drawn:
            raise RecordingError(
                f"data_loader: a step was taken on {self._rows} gradients, but its batch has {drawn} records; leave no "
                "record out, and let records come first in every layer (batch_first): the gradient of a time step is "
                "one of all records"
            )

    def _vouched_for(self) -> bool:
        """Whether a step may have used something else than its batch: another whole batch, at the cost of a pass."""
        if self.sampling is Sampling.SHUFFLED:
            return self._reused or self._vouched
        return self._vouched and self._reusable

    def step_ends(self) -> None:
        """The gradients added so far were used, or refused; the next ones are another step's."""
        self._begin_step()

    def require_used_up(self) -> None:
        """A pass in which steps were taken left no batch out, not even its last one."""
        this = self._logical
        if self._one_draw_a_step and this is not None and 0 < this.steps < this.draws:
            raise _left_out(this)

    def _drawn(self) -> set[int]:
        """How many records the step's draw has, as far as that is known; refused if there is no draw of its own."""
        current, logical = self._current, self._logical
        split = current is not None and current.split
        using = current if split else logical
        if current is None or using is None or using.steps >= using.draws:
            raise RecordingError(
                f"data_loader: step {self._steps + 1} was taken without a batch of its own from the loader that was "
                "given; pass the loader make_private returned, train on it, and take one step for each batch"
            )
        using.steps += 1
        # Workers draw batches long before they are used.
        if self._one_draw_a_step and using.draws > using.steps and not (split and self._loader.num_workers):
            raise _left_out(using)
        self.share = current.share
        if split:
            return {current.sizes[current.steps - 1]}
        drawn = logical.drawn if logical is not None else None
        if drawn is None or logical is None:
            return {current.sizes[-1]}
        self.share = drawn.share
        if not getattr(self._loader, "in_order", True) or (self._number is None and self.sampling is Sampling.SHUFFLED):
            return set(drawn.sizes)
        return {drawn.sizes[logical.draws - 1 if self._number is None else self._number]}

    def skip_signalled(self, do_skip: bool) -> None:
        """The optimizer was told whether the next physical batch ends a logical step."""
        self._unfinished = do_skip
        if self._current is not None:
            self._current.split = True

    # What LoaderObserver tells

    def sampler_pass_begins(self) -> SamplerPass:
        if self._optimizer._step_skip_queue:
            raise RecordingError(
                "data_loader: a new epoch begins while batches of the last one are still waiting; finish each logical "
                "batch before leaving the loop"
            )
        self._in_turn &= not any(each.active for each in self._passes)
        self._passes = [each for each in self._passes if each.active]
        processes = self._processes
        share = processes.share(own_records(self._drawn_by)) if isinstance(processes, SeveralProcesses) else 0
        self._passes.append(SamplerPass(share=share))
        return self._passes[-1]

    def drawing(self) -> None:
        if self.before_draw is not None:
            self.before_draw()
        self.sampler.require_unpredicted()

    def drew(self, this: SamplerPass, batch: Any | None) -> None:
        self.sampler.drew()
        if batch is None:
            return
        if self._unfinished:
            raise RecordingError(
                "optimizer.signal_skip_step: one logical step was made of several draws, in which a record may be "
                "twice; let BatchMemoryManager split one draw instead"
            )
        self._require_once(this, batch)
        self._current = this
        this.sizes.append(len(batch))

    def _require_once(self, this: SamplerPass, batch: Any) -> None:
        """Whatever the sampler has become meanwhile: a draw, or a pass over shuffled data, has each record once."""
        seen = this.seen if self.sampling is Sampling.SHUFFLED else set[int]()
        before = len(seen)
        seen.update(batch)
        if len(seen) < before + len(batch):
            raise RecordingError(
                "data_loader: the sampler drew a record more than once in one pass, or in one batch, which costs more "
                "than it does once; leave the sampler as it was when the record began"
            )

    def loader_pass_begins(self) -> LoaderPass:
        self.require_used_up()
        self._logical = LoaderPass()
        return self._logical

    def handed_out(self, this: LoaderPass, batch: Any, *, physical: bool) -> None:
        if not physical:
            self._logical = this
        this.drawn = this.drawn or self._current
        self._physical = this
        found = self._fingerprints.handed(batch)
        if self._reusable:
            self._full.handed_out(found, first=this.draws == 0)
        else:
            this.waiting[this.draws] = found
        if self.sampling is Sampling.SHUFFLED:
            self._handed_out |= {hash(each) for each in found}
            self._begun.handed_out(this)
        this.draws += 1


def _left_out(this: SamplerPass | LoaderPass) -> RecordingError:
    return RecordingError(
        f"data_loader: of {this.draws} batches drawn in this pass only {this.steps} were used; leaving one out because "
        "of what is in it is a release of its own, so take a step for each, empty ones too"
    )
