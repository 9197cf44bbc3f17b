"""The audits of real training, by name: what is released, and what is looked for in it."""

from __future__ import annotations

from collections.abc import Mapping

CANARIES: Mapping[str, str] = {
    "canary_single": "A real run's final model is released; a white pixel that no other record has is looked for.",
    "canary_average": "The average of 2 or 4 real runs is released; the same pixel is looked for.",
    "canary_selection": "One real run, or the average of 4, drawn at random in sight; the same pixel is looked for.",
    "canary_image": "A real run's final model is released; an ordinary digit among digits is looked for.",
    "canary_one_run": "Of 4 real runs, trained once, one or the average is released; many pixels, each there "
    "by a coin's toss, are looked for.",
}
