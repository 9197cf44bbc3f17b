"""What was found, as Markdown: a page an experiment, and one with everything beside what the paper says.

Guarantees: every figure in the text comes from the results; nothing is typed in but what an experiment is about.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from dpmerge.report.plots import Drawing
from reproduction.experiments import EXPERIMENTS, Experiment
from reproduction.presets import USUAL
from reproduction.results import Results
from reproduction.statements import Statement

OVERVIEW = "reproduction.md"
FOLDER = "reproduction"

_BEFORE = """# The paper's experiments, again, beside what is proved

Computed by `make reproduce` (docs/reference/verbs/reproduce.md); every verdict and figure below comes from the results
files beside the pictures, none is typed in. Accuracies are means over repetitions with independent noise, ± is half of
a 95 % confidence interval over those, and *within noise* means that the repetitions cannot tell a difference from none.
Where that happens at another size than the paper's, or with one repetition, the claim is *not tested at this size*. All
repetitions share the test images (and, for CIFAR-10, one pretrained start): what another test set would change is not
in the ±.

What to know before comparing with the paper:

- **ε is for one record replaced**, as in the paper; only for Poisson batches (`checkpoints`) for one added or removed,
  since RDP is known for that alone, with ε by PLD for a record replaced beside it. Figures are
  rounded to the nearest digit, since they are compared with each other; the ε of a release is always rounded up.
- **merged_trajectory**, the paper's accounting of linear combination, is a theorem about clipped totals, as the paper
  writes its update, and not a proof for ordinary DP-SGD of two or more steps, which clips each record's gradient
  (theory 4.3 says why, the experiment `soundness` what a proof costs). Its curves are dashed.
- The paper chooses weights by test accuracy and does not pay for it. So do its curves here, drawn twice: *in sample* as
  in the paper, chosen and measured on the same test images, and *held out*, chosen on one half of them and measured on
  the other, so that the best of many is no luck. Verdicts are held out unless they say otherwise. The planner's curves
  are chosen without looking at any model.
- The paper seeds all runs alike, and runs that share their noise are not independent. Here each run has a noise stream
  of its own, spawned from one seed.
"""


def overview(found: Sequence[tuple[Results, Experiment]]) -> str:
    """All experiments on one page: what is claimed, what was measured, whether that agrees, and why."""
    counted = [s for results, experiment in found for s in experiment.statements(results.numbers)]
    parts = [_BEFORE, _tally(counted)]
    for results, experiment in found:
        name, file = results.name, f"{FOLDER}/{results.name}/{results.name}.md"
        parts.append(f"## {_title(results, experiment)}\n\n{_made(results)} More: [{name}]({file}).")
        parts.append(_table(experiment.statements(results.numbers), file))
        parts += [_figure(drawing, f"{FOLDER}/{name}/") for drawing in experiment.drawings(results.numbers)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _title(results: Results, experiment: Experiment) -> str:
    """Where two sizes stand beside one another, the size."""
    return experiment.TITLE if results.name == results.experiment else f"{experiment.TITLE}, preset {results.preset}"


def page(results: Results, experiment: Experiment) -> str:
    """One experiment: what was found, the figures, the settings."""
    name = results.name
    parts = [f"# {_title(results, experiment)}", _made(results), "## What was found"]
    parts += [_told(statement) for statement in experiment.statements(results.numbers)]
    parts.append("## Figures")
    parts += [f"{_figure(drawing, '')}\n\n{drawing.words}" for drawing in experiment.drawings(results.numbers)]
    timings = {what: round(seconds, 1) for what, seconds in results.timings.items()}
    parts += [
        "## Settings",
        _block(results.settings),
        "## Versions, and seconds taken",
        _block({**results.versions, "seconds": timings}),
        f"All numbers are in `{name}.json`. `python -m reproduction {results.experiment} --redraw` also makes a page "
        f"of these figures to hover over, `{name}.html`.",
    ]
    return "\n\n".join(parts) + "\n"


def _made(results: Results) -> str:
    """At which size, with which seed."""
    if results.preset == USUAL and "cifar10" not in EXPERIMENTS[results.experiment]:
        return f"At the paper's size (preset `{USUAL}` differs from it in CIFAR-10 only), seed {results.seed}."
    smaller = {
        "small": ": CIFAR-10 with fewer images and a narrower network than the paper's",
        "medium": ": CIFAR-10 with the paper's images and a narrower network",
    }
    return f"Preset `{results.preset}`{smaller.get(results.preset, '')}; seed {results.seed}."


def _tally(statements: Sequence[Statement]) -> str:
    counts = {verdict: sum(s.verdict == verdict for s in statements) for verdict in dict.fromkeys(_ORDER)}
    told = "; ".join(f"{verdict}: {count}" for verdict, count in counts.items() if count)
    return f"{len(statements)} statements. {told[0].upper()}{told[1:]}."


_ORDER = ("agrees", "agrees in part", "within noise", "not tested at this size", "disagrees")


LONGEST = 300
"""Characters of a cell: longer ones cannot be read across."""


def _table(statements: Sequence[Statement], file: str) -> str:
    head = ("claim", "measured", "agrees?", "why")
    rows = [
        (
            f"{s.claim} *({s.source})*",
            _shortened(s.measured, file),
            f"**{s.verdict}**" if s.verdict != "agrees" else s.verdict,
            _shortened(s.why, file),
        )
        for s in statements
    ]
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + " --- |" * len(head), *lines[1:]])


def _shortened(text: str, file: str) -> str:
    """Whole sentences, or parts of one, as long as a cell may be; the page of the experiment has them all."""
    more = f" [more]({file})"
    if len(text) < LONGEST:
        return text
    ends = [match.end() for match in re.finditer(r"[.;:](?= )", text) if match.end() + len(more) < LONGEST]
    sentences = [end for end in ends if text[end - 1] == "."]
    end = max(sentences or ends)
    return text[: end - (text[end - 1] != ".")] + ("" if text[end - 1] == "." else " …") + more


def _told(statement: Statement) -> str:
    why = f" {statement.why}" if statement.why else ""
    return f"**{statement.verdict}**: {statement.claim} *({statement.source})* {statement.measured}{why}"


def _figure(drawing: Drawing, folder: str) -> str:
    return f"![{drawing.heading}]({folder}{drawing.name}.png)"


def _block(content: object) -> str:
    return f"```json\n{json.dumps(content, indent=2, ensure_ascii=False)}\n```"
