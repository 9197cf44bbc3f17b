"""The harness lm-eval without its own talk: no progress bars, no log below an error, while it works for us.

Guarantees: afterwards everything is as it was; with LMEVAL_LOG_LEVEL set nothing is kept quiet.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch


@contextmanager
def quiet() -> Iterator[None]:
    """Around whatever the harness does."""
    if os.environ.get("LMEVAL_LOG_LEVEL"):
        yield
        return
    with ExitStack() as changed:
        changed.enter_context(_level("lm_eval", logging.ERROR))
        changed.enter_context(_level("transformers", logging.ERROR))
        _without_bars(changed)
        yield


@contextmanager
def _level(name: str, level: int) -> Iterator[None]:
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)


def _without_bars(changed: ExitStack) -> None:
    import datasets
    import tqdm
    from transformers.utils import logging as transformers_logging

    def silent(*arguments: Any, **options: Any) -> Any:
        return tqdm.tqdm(*arguments, **{**options, "disable": True})

    for name, module in list(sys.modules.items()):
        if name.startswith("lm_eval.") and getattr(module, "tqdm", None) is tqdm.tqdm:
            changed.enter_context(patch.object(module, "tqdm", silent))
    if not datasets.are_progress_bars_disabled():
        datasets.disable_progress_bars()
        changed.callback(datasets.enable_progress_bars)
    if transformers_logging.is_progress_bar_enabled():
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        changed.callback(transformers_logging.enable_progress_bar)
