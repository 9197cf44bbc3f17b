"""What a manifest states about the mechanism of a run: what was done to the data, and who vouches for it.

Guarantees: each kind of mechanism says exactly what its accounting needs, and becomes the mathematics' mechanism with
nothing filled in. Where the facts prove nothing at all (unknown batches, a divisor that depends on a private number
of records), the mechanism is `Unaccounted`: it has no number.
Refuses: facts that contradict one another, each by its field.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from dpmerge.accounting.exposure import Adjacency, Mechanism
from dpmerge.accounting.mechanisms import DpSgd
from dpmerge.accounting.one_shot_mechanisms import AccountantHistory
from dpmerge.accounting.smoothness import SmoothKind, Smoothness
from dpmerge.accounting.training_settings import Clipping, Optimizer, Sampling, StepBlock
from dpmerge.errors import InvalidInputError
from dpmerge.terms.documents import NonNegative, Positive, Strict, Text
from dpmerge.terms.one_shot_schema import (
    ApproximateDpFacts,
    AverageFacts,
    GaussianDpFacts,
    GaussianReleaseFacts,
    NonPrivateFacts,
    RenyiFacts,
    Setting,
)

if TYPE_CHECKING:
    from dpmerge.accounting.shuffled_passes import SecretOrder

SamplingName = Annotated[
    Literal["full_batch", "poisson", "shuffled", "unknown"],
    Field(description='"full_batch", "poisson", "shuffled" or "unknown"'),
]
StepsPerEpoch = Annotated[
    Annotated[int, Field(ge=1)] | None, Field(description="an integer ≥ 1, for shuffled batches only")
]
ClippingName = Annotated[Literal["per_example", "aggregate"], Field(description='"per_example" or "aggregate"')]

PUBLIC_DIVISOR = (
    "a constant fixed without looking at the data? (One computed from the number of records alone is, under "
    "replace_one and zero_out; the realised size of a Poisson batch never is.)"
)


class PassBlock(Strict):
    """Consecutive passes over shuffled data that took equally many steps."""

    passes: int = Field(ge=1, description="an integer ≥ 1: how many passes")
    steps: int = Field(ge=1, description="an integer ≥ 1, at most steps_per_epoch: the steps of each")


class OrderFacts(Strict):
    """An order of the records that nobody knows, drawn anew for each pass (theory 2.5)."""

    secret: Literal[True] = Field(description="true: the recorder gave the sampler a generator of the system's")
    records: int = Field(ge=1, description="an integer ≥ 1: the records that are shuffled")
    batch_size: int = Field(ge=1, description="an integer ≥ 1: of every batch but the last of a pass")
    fixed_steps: list[Annotated[int, Field(ge=1)]] = Field(
        description="a list of steps in increasing order: checkpoints, and the end, that were fixed before the first"
    )

    def order(self, *, granted: bool) -> SecretOrder:
        """As the mathematics sees it; where stopping was not fixed, no step was."""
        from dpmerge.accounting.shuffled_passes import SecretOrder  # few runs need it

        stated = SecretOrder(records=self.records, batch_size=self.batch_size, fixed_steps=self.fixed_steps)
        return stated if granted else replace(stated, fixed_steps=())


PassBlocks = Annotated[
    list[PassBlock] | None,
    Field(description="a list of objects with passes and steps, for shuffled batches: how long each pass begun was"),
]
Order = Annotated[
    OrderFacts | None,
    Field(description="an object with records and batch_size, for shuffled batches of a secret order"),
]


class BlockSpec(Strict):
    """Consecutive steps with one noise multiplier and clip norm."""

    steps: int = Field(ge=1, description="an integer ≥ 1")
    noise_multiplier: NonNegative = Field(description="a finite number ≥ 0 (0: no noise, no privacy)")
    clip_norm: Positive = Field(description="a finite number > 0")
    learning_rate: NonNegative | list[NonNegative] | None = Field(
        default=None,
        description="a finite number ≥ 0, or a list of them with one for each step; effective rates, which multiply "
        "the sum of clipped gradients",
    )
    sampling_rate: Annotated[float, Field(gt=0, le=1)] = Field(default=1.0, description="a number in (0, 1]")

    def block(self) -> StepBlock:
        rate = self.learning_rate
        if rate is None:
            accepted = str(type(self).model_fields["learning_rate"].description)
            raise InvalidInputError("learning_rate", None, accepted, found="nothing")
        return StepBlock(
            steps=self.steps,
            noise_multiplier=self.noise_multiplier,
            clip_norm=self.clip_norm,
            learning_rate=tuple(rate) if isinstance(rate, list) else rate,
            sampling_rate=self.sampling_rate,
        )


class OptimizerFacts(Strict):
    """The optimizer, as far as theorems ask for it."""

    name: Text = Field(description='text: "sgd", "adam", …')
    momentum: NonNegative | None = Field(default=None, description="a finite number ≥ 0; sgd must say")
    nesterov: bool | None = Field(default=None, description="true or false; sgd must say")
    dampening: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None, description="a number in [0, 1]; sgd must say"
    )
    weight_decay: NonNegative | None = Field(
        default=None, description="a finite number ≥ 0, outside the clipped loss; sgd must say"
    )

    @model_validator(mode="after")
    def _sgd_says_everything(self) -> OptimizerFacts:
        for name in ("momentum", "nesterov", "dampening", "weight_decay"):
            if self.name.lower() == "sgd" and getattr(self, name) is None:
                raise InvalidInputError(name, None, str(type(self).model_fields[name].description), found="nothing")
        return self

    def optimizer(self) -> Optimizer:
        return Optimizer(**self.model_dump(exclude_none=True))


class SmoothnessFacts(Strict):
    """What is known of the per-example loss (theorem hidden_state), and who says so."""

    kind: SmoothKind = Field(description='"logistic", "huber", "squared", "softmax" or "declared"')
    feature_bound: Positive | None = Field(
        default=None, description="a finite number > 0: the largest norm of a feature vector, bias included"
    )
    beta: NonNegative | None = Field(default=None, description="a finite number ≥ 0 (required for declared)")
    records: Annotated[int, Field(ge=1, le=10**18)] | None = Field(
        default=None, description="an integer from 1 to 10¹⁸: a public bound on the number of records"
    )
    vouched_by: Text = Field(description="text: who says so")


class AffineMap(Strict):
    """All runs that name the same map share one affine update whose linear part does not depend on the data."""

    id: Text = Field(description="text: the name of the map")
    vouched_by: Text = Field(description="text: who says so")


class DpSgdFacts(Strict):
    """A DP-SGD run of which everything a theorem asks for is known, or all but its learning rates and reduction.

    Without these only joint release and random selection cover it, and the divisor has to be vouched for: nobody can
    see what the sum of gradients was divided by.
    """

    kind: Literal["dp_sgd"] = Field(description='"dp_sgd"')
    blocks: list[BlockSpec] = Field(min_length=1, description="a non-empty list of blocks of steps")
    sampling: SamplingName
    steps_per_epoch: StepsPerEpoch = None
    passes: PassBlocks = None
    order: Order = None
    clipping: ClippingName
    flat_clipping: bool = Field(description="true (one norm over all trained tensors) or false (one for each layer)")
    optimizer: OptimizerFacts = Field(description="an object with at least a name")
    loss_reduction: Literal["mean", "sum"] | None = Field(
        default=None, description='"mean" or "sum"; left out together with the learning rates'
    )
    expected_batch_size: Positive | None = Field(
        default=None, description="a finite number > 0: what a mean divides the sum by; left out for a sum"
    )
    public_divisor: bool = Field(description=f"true or false: is that divisor {PUBLIC_DIVISOR}")
    smoothness: SmoothnessFacts | None = Field(default=None, description="an object with a kind and who vouches")
    affine_map: AffineMap | None = Field(default=None, description="an object with an id and who vouches")

    @model_validator(mode="after")
    def _a_mean_has_a_divisor(self) -> DpSgdFacts:
        self._require_rates_or_none()
        if (self.loss_reduction == "mean") != (self.expected_batch_size is not None):
            accepted = "a finite number > 0 where loss_reduction is mean, and left out where it is sum"
            raise InvalidInputError("expected_batch_size", self.expected_batch_size, accepted)
        records = self.smoothness.records if self.smoothness is not None else None
        divisor = self.expected_batch_size if self.sampling == "full_batch" else None
        if records is not None and divisor is not None and records < divisor:
            accepted = f"an integer ≥ {divisor:g}, the expected size of a full batch"
            raise InvalidInputError("smoothness.records", records, accepted)
        return self

    @property
    def has_rates(self) -> bool:
        return self.blocks[0].learning_rate is not None

    def _require_rates_or_none(self) -> None:
        """Rates and reduction are stated or left out together; without them nothing may rest on them."""
        for place, block in enumerate(self.blocks):
            if (block.learning_rate is not None) != self.has_rates:
                accepted = "the rates of all blocks, or of none"
                raise InvalidInputError(f"blocks[{place}].learning_rate", block.learning_rate, accepted)
        if (self.loss_reduction is not None) != self.has_rates:
            accepted = '"mean" or "sum" beside learning rates, and left out without them'
            raise InvalidInputError("loss_reduction", self.loss_reduction, accepted)
        if self.has_rates:
            return
        for name in ("smoothness", "affine_map"):
            if getattr(self, name) is not None:
                accepted = "left out where the learning rates are: no theorem could use it"
                raise InvalidInputError(name, None, accepted, found="an object")
        if not self.public_divisor:
            accepted = (
                "true where learning rates are left out: somebody has to vouch that the sum of gradients was divided "
                "by no function of the batch that was drawn (under add_remove: by a public constant)"
            )
            raise InvalidInputError("public_divisor", False, accepted)

    def mechanism(self, setting: Setting) -> Mechanism:
        """Without rates: what it costs, in which the rate of a step does not enter, and nothing of its updates."""
        if not self.has_rates:
            rated = [block.model_copy(update={"learning_rate": 1.0}) for block in self.blocks]
            run = self.model_copy(update={"blocks": rated}).mechanism(setting)
            return AccountantHistory(costs=run, public_divisor=True) if isinstance(run, DpSgd) else run
        blocks = step_blocks(self.blocks)
        length = sum(block.steps for block in blocks)
        reasons = [_no_accounting(self.sampling, setting.adjacency), self._private_divisor(setting.adjacency)]
        if reason := "; ".join(filter(None, reasons)):
            return setting.unaccounted(length, reason)
        return DpSgd(
            blocks=blocks,
            adjacency=setting.adjacency,
            sampling=Sampling(self.sampling),
            steps_per_epoch=self.steps_per_epoch,
            passes=None if self.passes is None else [(block.passes, block.steps) for block in self.passes],
            order=None if self.order is None else self.order.order(granted=setting.stop_fixed),
            clipping=Clipping(self.clipping),
            flat_clipping=self.flat_clipping,
            optimizer=self.optimizer.optimizer(),
            smoothness=self._smoothness(),
            ancestry=setting.ancestry,
            unbroken_steps=setting.unbroken_steps,
            independent_noise=setting.independent_noise,
            label=setting.label,
            vouched_by=setting.vouched_by,
            noise_group=setting.noise_group,
        )

    def _private_divisor(self, adjacency: Adjacency) -> str | None:
        """Why a divisor that is not public leaves no number; None where there is one, or none is needed."""
        if self.public_divisor:
            return None
        if not adjacency.size_is_public:
            return (
                f"under {adjacency} the sum of gradients must be divided by a constant fixed without the data, and "
                "public_divisor is false"
            )
        if any(block.sampling_rate < 1 for block in self.blocks):
            # The realised size tells whether the record was drawn: nothing is left of amplification.
            return (
                "Poisson-sampled gradients must not be divided by the realised size of each batch, and public_divisor "
                f"is false; state true for a constant or, under {adjacency}, for what is computed from the number of "
                "records alone"
            )
        return None

    def _smoothness(self) -> Smoothness | None:
        if self.smoothness is None:
            return None
        facts = self.smoothness
        return Smoothness(
            kind=facts.kind,
            feature_bound=facts.feature_bound,
            beta=facts.beta,
            records=facts.records,
            divisor=self.expected_batch_size if self.expected_batch_size is not None else 1.0,
            vouched_by=facts.vouched_by,
        )


class HistoryBlock(Strict):
    """Consecutive steps as a privacy accountant remembers them."""

    steps: int = Field(ge=1, description="an integer ≥ 1")
    noise_multiplier: NonNegative = Field(description="a finite number ≥ 0 (0: no noise, no privacy)")
    sampling_rate: Annotated[float, Field(gt=0, le=1)] = Field(default=1.0, description="a number in (0, 1]")


class HistoryFacts(Strict):
    """A DP-SGD run of which only an accountant's history is known: enough for joint release, and for nothing else."""

    kind: Literal["accountant_history"] = Field(description='"accountant_history"')
    blocks: list[HistoryBlock] = Field(min_length=1, description="a non-empty list of blocks of steps")
    sampling: SamplingName
    steps_per_epoch: StepsPerEpoch = None
    passes: PassBlocks = None
    order: Order = None
    clipping: ClippingName
    public_divisor: bool = Field(description=f"true or false: is the divisor of the gradients' sum {PUBLIC_DIVISOR}")
    sampling_vouched_by: Text | None = Field(
        default=None, description="text: who vouches for how batches were drawn, which no history says, and the divisor"
    )

    def mechanism(self, setting: Setting) -> Mechanism:
        """The clip norm and rate of a step do not enter its cost, and nothing else may be made of them."""
        whole = DpSgdFacts(
            kind="dp_sgd",
            blocks=[BlockSpec(clip_norm=1.0, learning_rate=1.0, **block.model_dump()) for block in self.blocks],
            sampling=self.sampling,
            steps_per_epoch=self.steps_per_epoch,
            passes=self.passes,
            order=self.order,
            clipping=self.clipping,
            flat_clipping=False,
            optimizer=OptimizerFacts(name="unknown"),
            loss_reduction="sum",
            public_divisor=self.public_divisor,
        )
        run = whole.mechanism(setting)
        if not isinstance(run, DpSgd):
            return run
        return AccountantHistory(costs=run, public_divisor=self.public_divisor and self.sampling_vouched_by is not None)


MechanismFacts = Annotated[
    DpSgdFacts
    | HistoryFacts
    | GaussianReleaseFacts
    | GaussianDpFacts
    | RenyiFacts
    | ApproximateDpFacts
    | NonPrivateFacts
    | AverageFacts,
    Field(discriminator="kind"),
]
MECHANISM_KINDS = (
    "dp_sgd", "accountant_history", "gaussian_release", "gaussian_dp", "renyi", "approximate_dp", "non_private",
    "average",
)  # fmt: skip


def _no_accounting(sampling: str, adjacency: Adjacency) -> str | None:
    if sampling == "unknown":
        return 'how its batches were drawn is not recorded (sampling: "unknown")'
    if sampling == "shuffled" and not adjacency.size_is_public:
        return f"shuffled batches have no proved accounting under {adjacency}"
    return None


def step_blocks(stated: Sequence[BlockSpec]) -> list[StepBlock]:
    """Each as the mathematics sees it; what is refused is named by its place."""
    made = []
    for place, block in enumerate(stated):
        try:
            made.append(block.block())
        except InvalidInputError as error:
            raise error.within(f"blocks[{place}]") from None
    return made
