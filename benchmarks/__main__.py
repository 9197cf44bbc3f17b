"""Run every section, or those named on the command line, and say what got worse.

A ratio is how many times faster something is than its peer, both measured here and now, so that it means about the same
on another machine. `ratios.json` has those of the last release; a ratio that fell by more than TOLERANCE is worse. That
is printed, and an exit code only with `--strict`: a busy machine can do it too. `--write` commits to new ones.
"""

from __future__ import annotations

import argparse
import os
import platform

from rich.console import Console

from benchmarks import accounting, distributed_recording, ledger, merging, planning, recording, scaling
from benchmarks.ratios import RATIOS, TOLERANCE, committed, compare, write

SECTIONS = {
    "accounting": accounting.run,
    "planning": planning.run,
    "recording": recording.run,
    "distributed_recording": distributed_recording.run,
    "merging": merging.run,
    "ledger": ledger.run,
    "scaling": scaling.run,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.split("\n", 1)[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--strict", action="store_true", help="exit with 1 if anything got worse")
    parser.add_argument("--write", action="store_true", help=f"write what was measured to {RATIOS.name}")
    asked = parser.parse_args()
    unknown = [name for name in asked.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"section: got {unknown[0]!r}; accepted: {', '.join(SECTIONS)}")
    console = Console()
    console.print(f"{platform.machine()}, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}")
    measured = {name: SECTIONS[name](console) for name in asked.sections or SECTIONS}
    if asked.write:
        write(measured, load=os.getloadavg()[0])
        console.print(f"\nWritten to {RATIOS.name}.")
        return
    worse, silent = compare(measured, committed())
    console.print(f"\n[bold]against {RATIOS.name}[/]: worse is a ratio that fell by more than {TOLERANCE:.0%}")
    for line in worse or ["nothing got worse"]:
        console.print(line, markup=False)
    if silent:
        console.print(f"not compared, nothing is committed for them: {', '.join(silent)}", markup=False)
    raise SystemExit(1 if worse and asked.strict else 0)


if __name__ == "__main__":
    main()
