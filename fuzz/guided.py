"""Inputs guided by coverage: atheris keeps those that reach new branches and mutates them further."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import atheris

from fuzz.mutations import TARGETS, Inputs

with atheris.instrument_imports(include=["dpmerge.portfolio", "dpmerge.terms.documents"]):
    from fuzz.checks import Checks


def run_guided(folder: Path, count: int, seed: int, save: Path) -> int:
    """Run until `count` inputs or the first failure; libFuzzer prints, saves the input and ends the process."""
    checks = Checks(folder)
    inputs = Inputs(seed)

    def one_input(data: bytes) -> None:
        if data:
            checks.check(TARGETS[data[0] % len(TARGETS)], data[1:])

    def mutate(data: bytes, largest: int, mutation_seed: int) -> bytes:
        """Half the time an input made by structure, half the time libFuzzer's own change of one that was kept."""
        inputs.random = Random(mutation_seed)
        if not data or inputs.random.random() < 0.5:
            place = inputs.random.randrange(len(TARGETS))
            return (bytes([place]) + inputs.draw(TARGETS[place])[1])[:largest]
        return bytes(atheris.Mutate(data, largest))

    save.mkdir(parents=True, exist_ok=True)
    options = [f"-runs={count}", f"-seed={seed or 1}", "-max_len=8192", f"-artifact_prefix={save}/"]
    atheris.Setup([sys.argv[0], *options], one_input, custom_mutator=mutate)
    atheris.Fuzz()
    return 0
