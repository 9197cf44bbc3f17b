"""Weights that a ledger has charged belong to the run it charged them for, whatever a manifest says today.

Guarantees: a checkpoint that was an input of a release is not released again as another run's, so that a manifest which
was written anew (a new stream of noise, as far as anybody can tell) does not shed locks and costs.
Refuses: such checkpoints, naming the release. Cannot see: the same weights in a file of other bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

from dpmerge.errors import RunsLockedError
from dpmerge.ledger.identity import identity_of
from dpmerge.ledger.ledger import Ledger
from dpmerge.portfolio.manifest import Manifest
from dpmerge.terms.checkpoint_reference import CheckpointReference


def require_runs_as_charged(ledger: Ledger, manifests: Iterable[Manifest]) -> None:
    """No file of a trained checkpoint was charged as another run's."""
    charged: dict[str, tuple[str, str]] = {}  # digest of a file → the run it was charged for, and its name then
    for entry in ledger.entries():
        inputs = entry.body.get("details", {}).get("inputs", {})
        for name, digests in inputs.items():
            checkpoint = CheckpointReference.parse(name, "details.inputs")
            if checkpoint.step and checkpoint.run in entry.body["identities"]:
                charged |= dict.fromkeys(digests, (entry.body["identities"][checkpoint.run], name))
    for manifest in manifests:
        identity = identity_of(manifest)
        for saved in manifest.checkpoints:
            for file in saved.files if saved.step else ():
                known, name = charged.get(file.sha256, (identity, ""))
                if known != identity:
                    raise RunsLockedError(
                        f"{CheckpointReference(manifest.run, saved.step)}: this ledger has charged these weights as "
                        f"{name}, of a run that was recorded otherwise; a manifest that is written again is another "
                        "run to it, so bring the first one back: what was released of it counts, and its locks hold"
                    )
