"""Which run is which, across portfolios, names and retraining.

Guarantees: two runs never have one identity unless their records say that they are one run (the same stream of noise,
or the same facts, seed and weights); one run may get two, and is then charged twice.
Refuses: nothing. Identities and marks are not for release: they are made of what brings the noise back.
"""

from __future__ import annotations

from collections.abc import Iterable

from dpmerge.ledger.entries import canonical, sha256
from dpmerge.portfolio.manifest import Manifest


def identity_of(manifest: Manifest) -> str:
    """64 hexadecimal digits: of the stream of noise where one is recorded, else of everything that is."""
    if manifest.noise.stream is not None:
        return sha256("stream:" + manifest.noise.stream)
    document = manifest.document()
    facts = {name: document[name] for name in ("run", "dataset", "unit", "adjacency", "mechanism", "noise", "ancestry")}
    facts["initial_weights"] = manifest.initial_weights
    facts["checkpoints"] = [
        [saved.step, saved.weights, [[file.name, file.sha256] for file in saved.files]]
        for saved in manifest.checkpoints
    ]
    return sha256("facts:" + canonical(facts))


def noise_mark(manifest: Manifest) -> str | None:
    """What two runs with the same seeded noise have in common; None where the noise was not seeded."""
    seed = manifest.noise.seed
    # torch uses 32 bits of a seed: two that differ by 2³² give the same noise.
    return None if seed is None else sha256(f"seed:{seed % 2**32}")


def identities(manifests: Iterable[Manifest]) -> dict[str, str]:
    """Run name → identity."""
    return {manifest.run: identity_of(manifest) for manifest in manifests}


def noise_marks(manifests: Iterable[Manifest]) -> dict[str, str | None]:
    """Run name → noise mark."""
    return {manifest.run: noise_mark(manifest) for manifest in manifests}
