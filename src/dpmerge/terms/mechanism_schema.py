"""What a manifest states about the mechanism of a run: what was done to the data, and who vouches for it.

Guarantees: each kind of mechanism says exactly what its accounting needs, and becomes the mathematics' mechanism with
nothing filled in. Where the facts prove nothing at all (unknown batches, a divisor that depends on a private number
of records), the mechanism is `Unaccounted`: it has no number.
Refuses: facts that contradict one another, each by its field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

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

SamplingName = Annotated[
    Literal["full_batch", "poisson", "shuffled", "unknown"],
    Field(description='"full_batch", "poisson", "shuffled" or "unknown"'),
]
StepsPerEpoch = Annotated[
    Annotated[int, Field(ge=1)] | None, Field(description="an integer ≥ 1, for shuffled batches only")
]
ClippingName = Annotated[Literal["per_example", "aggregate"], Field(description='"per_example" or "aggregate"')]


class BlockSpec(Strict):
    """Consecutive steps with one noise multiplier and clip norm."""

    steps: int = Field(ge=1, description="an integer ≥ 1")
    noise_multiplier: NonNegative = Field(description="a finite number ≥ 0 (0: no noise, no privacy)")
    clip_norm: Positive = Field(description="a finite number > 0")
    learning_rate: NonNegative | list[NonNegative] = Field(
        description="a finite number ≥ 0, or a list of them with one for each step; effective rates, which multiply "
        "the sum of clipped gradients"
    )
    sampling_rate: Annotated[float, Field(gt=0, le=1)] = Field(default=1.0, description="a number in (0, 1]")

    def block(self) -> StepBlock:
        rate = self.learning_rate
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
    """A DP-SGD run of which everything a theorem asks for is known."""

    kind: Literal["dp_sgd"] = Field(description='"dp_sgd"')
    blocks: list[BlockSpec] = Field(min_length=1, description="a non-empty list of blocks of steps")
    sampling: SamplingName
    steps_per_epoch: StepsPerEpoch = None
    clipping: ClippingName
    flat_clipping: bool = Field(description="true (one norm over all trained tensors) or false (one for each layer)")
    optimizer: OptimizerFacts = Field(description="an object with at least a name")
    loss_reduction: Literal["mean", "sum"] = Field(description='"mean" or "sum"')
    expected_batch_size: Positive | None = Field(
        default=None, description="a finite number > 0: what a mean divides the sum by; left out for a sum"
    )
    public_divisor: bool = Field(
        description="true or false: is that divisor a constant fixed without looking at the data?"
    )
    smoothness: SmoothnessFacts | None = Field(default=None, description="an object with a kind and who vouches")
    affine_map: AffineMap | None = Field(default=None, description="an object with an id and who vouches")

    @model_validator(mode="after")
    def _a_mean_has_a_divisor(self) -> DpSgdFacts:
        if (self.loss_reduction == "mean") != (self.expected_batch_size is not None):
            accepted = "a finite number > 0 where loss_reduction is mean, and left out where it is sum"
            raise InvalidInputError("expected_batch_size", self.expected_batch_size, accepted)
        records = self.smoothness.records if self.smoothness is not None else None
        divisor = self.expected_batch_size if self.sampling == "full_batch" else None
        if records is not None and divisor is not None and records < divisor:
            accepted = f"an integer ≥ {divisor:g}, the expected size of a full batch"
            raise InvalidInputError("smoothness.records", records, accepted)
        return self

    def mechanism(self, setting: Setting) -> Mechanism:
        blocks = step_blocks(self.blocks)
        length = sum(block.steps for block in blocks)
        reasons = [_no_accounting(self.sampling, setting.adjacency)]
        if setting.adjacency is Adjacency.ADD_REMOVE and not self.public_divisor:
            reasons.append(
                "under add_remove the sum of gradients must be divided by a constant fixed without the data, and "
                "public_divisor is false"
            )
        if reason := "; ".join(filter(None, reasons)):
            return setting.unaccounted(length, reason)
        return DpSgd(
            blocks=blocks,
            adjacency=setting.adjacency,
            sampling=Sampling(self.sampling),
            steps_per_epoch=self.steps_per_epoch,
            clipping=Clipping(self.clipping),
            flat_clipping=self.flat_clipping,
            optimizer=self.optimizer.optimizer(),
            smoothness=self._smoothness(),
            ancestry=setting.ancestry,
            unbroken_steps=setting.unbroken_steps,
            independent_noise=setting.independent_noise,
            label=setting.label,
            vouched_by=setting.vouched_by,
        )

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
    clipping: ClippingName
    public_divisor: bool = Field(
        description="true or false: is the divisor of the gradients' sum a constant fixed without looking at the data?"
    )

    def mechanism(self, setting: Setting) -> Mechanism:
        """The clip norm and rate of a step do not enter its cost, and nothing else may be made of them."""
        whole = DpSgdFacts(
            kind="dp_sgd",
            blocks=[BlockSpec(clip_norm=1.0, learning_rate=1.0, **block.model_dump()) for block in self.blocks],
            sampling=self.sampling,
            steps_per_epoch=self.steps_per_epoch,
            clipping=self.clipping,
            flat_clipping=False,
            optimizer=OptimizerFacts(name="unknown"),
            loss_reduction="sum",
            public_divisor=self.public_divisor,
        )
        run = whole.mechanism(setting)
        return AccountantHistory(costs=run) if isinstance(run, DpSgd) else run


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
    if sampling == "shuffled" and adjacency is Adjacency.ADD_REMOVE:
        return "shuffled batches have no proved accounting under add_remove"
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
