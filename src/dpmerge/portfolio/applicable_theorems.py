"""What one manifest's facts can prove, and which facts are missing for the rest.

Guarantees: computed by asking each theorem about this run alone; a theorem out of reach alone is out of reach in any
average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dpmerge.accounting.combination import THEOREMS, LinearCombination
from dpmerge.accounting.exposure import Checkpoint
from dpmerge.accounting.premises import Premise
from dpmerge.portfolio.inspection import Cost, cost_of
from dpmerge.portfolio.manifest import Manifest
from dpmerge.terms.theorems import NAMED

REMEDIES = {
    "accounting_proved": "see the reason given",
    "learning_rates_known": "state kind dp_sgd with its learning rates and loss_reduction",
    "full_batch": "only full-batch runs have it; for last_step sampled ones do, but not under replace_one",
    "per_example_clipping": "only runs that clip each record's gradient have it",
    "at_most_ten_sampled_runs": "average at most ten of them",
    "last_update_linear_in_its_gradient": (
        "state kind dp_sgd with its clip norms, rates and optimizer, if that is SGD; or, of a gaussian_release, "
        "noise_on: weights, if that is where its noise is"
    ),
    "no_step_lost_on_the_way": "only checkpoints from before the run was broken off have it",
    "sgd_without_momentum": "state kind dp_sgd with its optimizer; SGD without momentum has it",
    "flat_clipping": "state kind dp_sgd with flat_clipping true, if one norm was clipped over all trained tensors",
    "same_tensors_trained": "average runs that trained the same tensors",
    "smoothness_known": "state smoothness, if the model is linear and its features are bounded",
    "features_bounded": "state smoothness.feature_bound",
    "number_of_records_bounded": "state smoothness.records, a public bound",
    "clip_norm_at_least_sqrt2_feature_bound": "only runs clipped above √2 times the feature bound have it",
    "update_bounded_for_any_two_hidden_states": "only single steps, clipped totals or a shared affine map have it",
}
"""What would supply a premise, where a manifest can."""


@dataclass(frozen=True)
class ApplicableTheorem:
    """A theorem, and what it lacks for this run (nothing, if it certifies)."""

    theorem: str
    missing: tuple[Premise, ...]
    certifies: bool

    def words(self) -> list[str]:
        """What is missing, a line each, with what would supply it."""
        return [_words(premise) for premise in self.missing]

    def document(self) -> dict[str, Any]:
        missing = [{"premise": p.name, "because": p.vouched_by, "remedy": REMEDIES.get(p.name)} for p in self.missing]
        return {"certifies": self.certifies, "missing": missing}


def applicable_theorems(manifest: Manifest) -> list[ApplicableTheorem]:
    """Every theorem's word on this run, all its steps, by itself."""
    mechanism = manifest.mechanism_from(None)
    alone = LinearCombination.of_runs([mechanism], [1.0])
    result = []
    for name in (theorem.value for theorem in NAMED):
        bound = THEOREMS[name](alone)
        result.append(ApplicableTheorem(name, tuple(p for p in bound.premises if not p.holds), bound.certifies))
    return result


def cost_alone(manifest: Manifest, delta: float) -> Cost:
    """What releasing every iterate of the run costs."""
    run = manifest.mechanism_from(None)
    return cost_of([Checkpoint(run, run.steps)], delta)


def _words(premise: Premise) -> str:
    if premise.name == "accounting_proved":
        return premise.vouched_by.removeprefix("nobody: ")
    remedy = REMEDIES.get(premise.name)
    return premise.name.replace("_", " ") + (f" ({remedy})" if remedy else "")
