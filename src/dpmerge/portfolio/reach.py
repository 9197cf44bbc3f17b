"""What one manifest's facts can prove, and which facts are missing for the rest.

Guarantees: computed by asking each theorem about this run alone; a theorem out of reach alone is out of reach in any
average.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpmerge.account.table import shown
from dpmerge.portfolio.inspection import Cost, cost_numbers, cost_of
from dpmerge.portfolio.manifest import Manifest
from dpmerge.privacy.combination import THEOREMS, LinearCombination
from dpmerge.privacy.exposure import Checkpoint
from dpmerge.privacy.premises import Premise

SHOWN = ("joint_release", "last_step", "hidden_state", "merged_trajectory")

REMEDIES = {
    "accounting_proved": "see the reason given",
    "full_batch": "only full-batch runs have it",
    "last_update_linear_in_its_gradient": (
        "state kind dp_sgd with its clip norms, rates and optimizer, if that is SGD; or, of a gaussian_release, "
        "noise_on: weights, if that is where its noise is"
    ),
    "sgd_without_momentum": "state kind dp_sgd with its optimizer; SGD without momentum has it",
    "flat_clipping": "state kind dp_sgd with flat_clipping true, if one norm was clipped over all trained tensors",
    "smoothness_known": "state smoothness, if the model is linear and its features are bounded",
    "features_bounded": "state smoothness.feature_bound",
    "number_of_records_bounded": "state smoothness.records, a public bound",
    "clip_norm_at_least_sqrt2_feature_bound": "only runs clipped above √2 times the feature bound have it",
    "update_bounded_for_any_two_hidden_states": "only single steps, clipped totals or a shared affine map have it",
}
"""What would supply a premise, where a manifest can."""


@dataclass(frozen=True)
class Reach:
    """A theorem, and what it lacks for this run (nothing, if it certifies)."""

    theorem: str
    missing: tuple[Premise, ...]
    certifies: bool

    def document(self) -> dict[str, Any]:
        missing = [{"premise": p.name, "because": p.vouched_by, "remedy": REMEDIES.get(p.name)} for p in self.missing]
        return {"certifies": self.certifies, "missing": missing}


def reach(manifest: Manifest) -> list[Reach]:
    """Every theorem's word on this run, all its steps, by itself."""
    mechanism = manifest.mechanism_from(None)
    alone = LinearCombination.of_runs([mechanism], [1.0])
    result = []
    for name in SHOWN:
        bound = THEOREMS[name](alone)
        result.append(Reach(name, tuple(p for p in bound.premises if not p.holds), bound.certifies))
    return result


def cost_alone(manifest: Manifest, delta: float) -> Cost:
    """What releasing every iterate of the run costs."""
    run = manifest.mechanism_from(None)
    return cost_of([Checkpoint(run, run.steps)], delta)


def reach_document(manifest: Manifest, path: Path, delta: float) -> dict[str, Any]:
    """As the JSON that `--json` prints."""
    return {
        "delta": delta,
        "released_alone": cost_numbers(cost_alone(manifest, delta)),
        "file": str(path),
        "valid": True,
        "run": manifest.run,
        "mechanism": manifest.mechanism.kind,
        "checkpoints": [saved.step for saved in manifest.checkpoints],
        "theorems": {each.theorem: each.document() for each in reach(manifest)},
    }


def print_reach(manifest: Manifest, path: Path, delta: float, console: Console) -> None:
    """Say that the manifest is valid, what the run costs, and what it can and cannot prove."""
    kept = f"{len(manifest.checkpoints)} checkpoint{'' if len(manifest.checkpoints) == 1 else 's'}"
    console.print(Text(f"{path}: valid, run {manifest.run}, {manifest.mechanism.kind}, {kept}", style="bold"))
    cost = cost_alone(manifest, delta)
    figure = f"no figure ({cost.reason})" if cost.reason else f"ε = {shown(cost.epsilon)} at δ = {delta:g}"
    console.print(f"Released alone, with all its iterates: {figure}", highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("theorem")
    table.add_column("within reach?")
    table.add_column("what is missing")
    for each in reach(manifest):
        verdict = Text("yes", style="green") if each.certifies else Text("no", style="yellow")
        table.add_row(each.theorem, verdict, "\n".join(_words(premise) for premise in each.missing))
    console.print(table)


def _words(premise: Premise) -> str:
    if premise.name == "accounting_proved":
        return premise.vouched_by.removeprefix("nobody: ")
    remedy = REMEDIES.get(premise.name)
    return premise.name.replace("_", " ") + (f" ({remedy})" if remedy else "")
