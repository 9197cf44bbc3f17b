"""The input of `dpmerge account`: a strict JSON description of runs and of how they are merged.

Guarantees: what is accepted is complete, inside every domain and free of NaN; nothing is guessed.
Refuses with one line that names the field, its value and what is accepted: unknown or duplicate fields, wrong types,
vectors that do not match the runs, lists that do not match their steps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from dpmerge.accounting import validation
from dpmerge.accounting.comparison import Comparison, compare
from dpmerge.accounting.exposure import Adjacency, AdjacencyName
from dpmerge.accounting.mechanisms import DpSgd
from dpmerge.accounting.one_shot_mechanisms import GaussianDp
from dpmerge.accounting.renyi import DEFAULT_ORDERS
from dpmerge.accounting.smoothness import DeclaredLipschitz, SmoothKind, Smoothness
from dpmerge.accounting.training_settings import Clipping, Optimizer, Sampling
from dpmerge.errors import InvalidInputError
from dpmerge.files import read_bytes
from dpmerge.terms.documents import NonNegative, Positive, Strict, strict_json, validated
from dpmerge.terms.mechanism_schema import BlockSpec, ClippingName, StepsPerEpoch, step_blocks
from dpmerge.terms.run_record import ADJACENCY

Finite = Annotated[float, Field(allow_inf_nan=False)]

_VOUCHER = "the spec and its defaults"
"""A spec cannot speak of everything: noise that is independent, plain SGD, one clip norm, a fresh start and a public
divisor are its defaults, and whoever wrote it stands by them."""


class SmoothnessSpec(Strict):
    """What is known of the per-example loss (theorem hidden_state)."""

    kind: SmoothKind = Field(description='"logistic", "huber", "squared", "softmax" or "declared"')
    feature_bound: Positive | None = Field(
        default=None, description="a finite number > 0: the largest norm of a feature vector, bias included"
    )
    beta: NonNegative | None = Field(default=None, description="a finite number ≥ 0 (required for declared)")
    batch_size: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="an integer ≥ 1: the number of records, by which the learning rate was divided"
    )
    vouched_by: str | None = Field(default=None, description="text: who says so")

    def smoothness(self) -> Smoothness:
        return Smoothness(
            kind=self.kind,
            feature_bound=self.feature_bound,
            beta=self.beta,
            records=self.batch_size,
            divisor=self.batch_size,
            vouched_by=self.vouched_by or _VOUCHER,
        )


class RunSpec(Strict):
    """One DP-SGD run."""

    blocks: list[BlockSpec] = Field(min_length=1, description="a non-empty list of blocks of steps")
    sampling: Literal["full_batch", "poisson", "shuffled"] | None = Field(
        default=None, description='"full_batch", "poisson" or "shuffled"'
    )
    steps_per_epoch: StepsPerEpoch = None
    clipping: ClippingName = "per_example"
    weight_decay: NonNegative = Field(default=0.0, description="a finite number ≥ 0")
    momentum: NonNegative = Field(default=0.0, description="a finite number ≥ 0")
    nesterov: bool | None = Field(default=None, description="true or false; momentum must say")
    dampening: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None, description="a number in [0, 1]; momentum must say"
    )
    lipschitz: NonNegative | list[NonNegative] | None = Field(
        default=None, description="a finite number ≥ 0, or a list of them with one for each step"
    )
    smoothness: SmoothnessSpec | None = Field(default=None, description="an object with at least a kind")
    kind: Literal["dp_sgd"] = Field(default="dp_sgd", description='"dp_sgd" or "gaussian_dp"')

    @model_validator(mode="after")
    def _momentum_says_everything(self) -> RunSpec:
        """They change by what a step's own gradient moves the weights, and a guess would be too small for some runs."""
        for name in ("nesterov", "dampening"):
            if self.momentum and getattr(self, name) is None:
                raise InvalidInputError(name, None, str(type(self).model_fields[name].description), found="nothing")
        return self

    def run(self, adjacency: Adjacency, label: str) -> DpSgd:
        if self.lipschitz is not None and self.smoothness is not None:
            raise InvalidInputError("lipschitz", self.lipschitz, "either lipschitz or smoothness, not both")
        facts: Smoothness | DeclaredLipschitz | None = None
        if self.lipschitz is not None:
            factors = tuple(self.lipschitz) if isinstance(self.lipschitz, list) else self.lipschitz
            facts = DeclaredLipschitz(factors=factors, vouched_by=f"{_VOUCHER} (declared)")
        elif self.smoothness is not None:
            facts = self.smoothness.smoothness()
        return DpSgd(
            blocks=step_blocks(self.blocks),
            adjacency=adjacency,
            sampling=None if self.sampling is None else Sampling(self.sampling),
            steps_per_epoch=self.steps_per_epoch,
            clipping=Clipping(self.clipping),
            optimizer=Optimizer(
                momentum=self.momentum,
                nesterov=bool(self.nesterov),
                dampening=self.dampening or 0.0,
                weight_decay=self.weight_decay,
            ),
            smoothness=facts,
            label=label,
            vouched_by=_VOUCHER,
        )


class GaussianDpSpec(Strict):
    """A model that is μ-GDP, wherever its noise is: for joint release and random selection alone."""

    kind: Literal["gaussian_dp"] = Field(description='"dp_sgd" or "gaussian_dp"')
    mu: Positive = Field(description="a finite number > 0: what it costs is one Gaussian step of this μ")

    def run(self, adjacency: Adjacency, label: str) -> GaussianDp:
        return GaussianDp(mu=self.mu, adjacency=adjacency, label=label, vouched_by=_VOUCHER)


def _kind(value: Any) -> str:
    """A run that does not say what it is is one of DP-SGD."""
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return "gaussian_dp" if kind == "gaussian_dp" else "dp_sgd"


AnyRun = Annotated[
    Annotated[RunSpec, Tag("dp_sgd")] | Annotated[GaussianDpSpec, Tag("gaussian_dp")], Discriminator(_kind)
]


class Spec(Strict):
    """Runs on one dataset, and the selection or combination of them to account for."""

    adjacency: AdjacencyName = Field(description=ADJACENCY)
    delta: Annotated[float, Field(gt=0, lt=1)] = Field(description="a number strictly between 0 and 1")
    rdp_orders: list[Finite] | None = Field(default=None, description="a non-empty list of finite numbers > 1")
    release_noise: NonNegative = Field(
        default=0.0,
        description="a finite number ≥ 0: the standard deviation of the noise added to each merged weight (one step's "
        "noise is learning_rate × clip_norm × noise_multiplier)",
    )
    shared_affine: bool = Field(default=False, description="true or false")
    runs: list[AnyRun] = Field(min_length=1, description="a non-empty list of runs")
    probabilities: list[Finite] | None = Field(default=None, description="one number ≥ 0 for each run, summing to 1")
    weights: list[Finite] | None = Field(default=None, description="one number ≥ 0 for each run, summing to 1")

    @classmethod
    def parse(cls, text: str | bytes) -> Spec:
        """From JSON text."""
        spec = validated(cls, strict_json(text, "spec"), "spec")
        spec.mechanisms()
        spec.orders()
        for field, vector in (("probabilities", spec.probabilities), ("weights", spec.weights)):
            if vector is not None:
                validation.simplex(field, vector, len(spec.runs))
        return spec

    @classmethod
    def read(cls, path: Path) -> Spec:
        """From a file."""
        return cls.parse(read_bytes(path))

    def mechanisms(self) -> list[DpSgd | GaussianDp]:
        """The runs, each an object of its own: its noise is independent of the others'."""
        adjacency = Adjacency(self.adjacency)
        made: list[DpSgd | GaussianDp] = []
        for place, run in enumerate(self.runs):
            try:
                made.append(run.run(adjacency, f"run {place + 1}"))
            except InvalidInputError as error:
                raise error.within(f"runs[{place}]") from None
        return made

    def compare(self) -> Comparison:
        """Account for each run, and for the selection and the combination asked about."""
        return compare(
            self.mechanisms(),
            self.delta,
            probabilities=self.probabilities,
            weights=self.weights,
            release_noise=self.release_noise,
            shared_affine="the spec (shared_affine)" if self.shared_affine else None,
            orders=self.orders(),
        )

    def orders(self) -> validation.Array:
        """The Rényi orders to use, sorted."""
        return (
            DEFAULT_ORDERS if self.rdp_orders is None else validation.orders("rdp_orders", sorted(set(self.rdp_orders)))
        )
