"""Run every section, or those named on the command line."""

from __future__ import annotations

import platform
import sys

from rich.console import Console

from benchmarks import accounting, merging, planning, recording

SECTIONS = {
    "accounting": accounting.run,
    "planning": planning.run,
    "recording": recording.run,
    "merging": merging.run,
}


def main() -> None:
    console = Console()
    names = sys.argv[1:] or list(SECTIONS)
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        console.print(f"error: section: got {unknown[0]!r}; accepted: {', '.join(SECTIONS)}")
        raise SystemExit(2)
    console.print(f"{platform.machine()}, Python {platform.python_version()}")
    for name in names:
        SECTIONS[name](console)


if __name__ == "__main__":
    main()
