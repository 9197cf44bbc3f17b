"""Fuzz the readers: `python -m fuzz --inputs 1000000 --seed 1`. Stops at the first exception that is not ours."""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fuzz.mutations import TARGETS, Inputs

if TYPE_CHECKING:
    from fuzz.checks import Checks

SLOW = 5.0
"""Seconds. A small input that takes longer is a way to keep the reader busy."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="how many (default: a million)")
    parser.add_argument("--seed", type=int, default=0, help="the inputs depend on this alone")
    parser.add_argument("--only", choices=TARGETS, help="one target instead of all")
    parser.add_argument("--save", type=Path, default=Path(tempfile.gettempdir()) / "dpmerge-fuzz", help="for failures")
    parser.add_argument("--replay", type=Path, help="a saved input instead of new ones")
    parser.add_argument("--atheris", action="store_true", help="guided by coverage (needs the atheris package)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.atheris:
            from fuzz.guided import run_guided

            return run_guided(Path(folder), options.inputs, options.seed, options.save)
        from fuzz.checks import Checks

        checks = Checks(Path(folder))
        if options.replay is not None:
            target = options.replay.name.split("-")[0]
            Console().print(checks.check(target, options.replay.read_bytes()))
            return 0
        return run(checks, drawn(options.seed, options.inputs, options.only), options.inputs, options.save)


def drawn(seed: int, count: int, only: str | None = None) -> Iterator[tuple[str, bytes]]:
    inputs = Inputs(seed)
    return islice(inputs if only is None else iter(lambda: inputs.draw(only), None), count)


def run(checks: Checks, inputs: Iterator[tuple[str, bytes]], count: int, save: Path) -> int:
    """Feed the inputs; 0 if every promise held, 1 at the first that did not."""
    console = Console()
    outcomes: Counter[tuple[str, str]] = Counter()
    slowest = (0.0, "", b"")
    begun = time.perf_counter()
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]} inputs/s"), TimeRemainingColumn())
    with Progress(*columns, console=console, refresh_per_second=2) as progress:
        bar = progress.add_task("fuzz", total=count, rate="")
        before = begun
        for place, (target, content) in enumerate(inputs, start=1):
            try:
                outcome = checks.check(target, content)
            except BaseException as error:
                progress.stop()
                file = saved(save, target, content)
                console.print(f"input {place}, for the {target}, saved as {file}", highlight=False)
                console.print("".join(traceback.format_exception(error)[-12:]), markup=False, highlight=False)
                return 130 if isinstance(error, KeyboardInterrupt) else 1
            outcomes[target, outcome] += 1
            now = time.perf_counter()
            if now - before > slowest[0]:
                slowest = (now - before, target, content)
            before = now
            if place % 1000 == 0:
                progress.update(bar, completed=place, rate=f"{place / (now - begun):,.0f}")
        progress.update(bar, completed=sum(outcomes.values()))
    total = time.perf_counter() - begun
    for (target, outcome), number in sorted(outcomes.items()):
        console.print(f"{target:9} {outcome:15} {number:>10,}", highlight=False)
    console.print(f"{count:,} inputs in {total:.0f} s, {count / total:,.0f} a second", highlight=False)
    seconds, target, content = slowest
    console.print(f"slowest: {seconds:.3f} s, a {target} of {len(content):,} bytes", highlight=False)
    if seconds > SLOW:
        console.print(f"too slow, saved as {saved(save, target, content)}", highlight=False)
        return 1
    return 0


def saved(folder: Path, target: str, content: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{target}-{hashlib.sha256(content).hexdigest()[:12]}"
    file.write_bytes(content)
    return file


if __name__ == "__main__":
    sys.exit(main())
