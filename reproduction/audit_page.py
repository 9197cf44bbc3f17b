"""The table of docs/audit.md, from the results of all scenarios.

Guarantees: every figure on it is one of the results, a lower bound rounded down and a claim rounded up; nothing is
written by hand between the two marks.
Refuses: a page without the marks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpmerge.auditing.printed_figures import SYMBOLS, above, below, percent, ratio
from dpmerge.errors import InvalidInputError

BEGIN, END = "<!-- computed: make audit -->", "<!-- end of what is computed -->"


def table(results: Mapping[str, Any]) -> str:
    """Scenario × claim → claimed, shown, tightness, verdict; then what each scenario is."""
    played = results["scenarios"]
    found = [finding for scenario in played for finding in scenario["findings"]]
    violated = [f for f in found if f["verdict"] == "violated"]
    tight = [f for f in found if f["verdict"] == "tight"]
    lines = [
        BEGIN,
        "",
        f"{len(played)} scenarios, {len(found)} claims: {len(violated)} violated, {len(tight)} tight, "
        f"{len(found) - len(violated) - len(tight)} consistent. All lower bounds together hold with "
        f"{percent(results['confidence'])} confidence: each alone with {percent(results['each'])}. "
        f"Seed {results['seed']}; {sum(s['seconds'] for s in played):.0f} s in all.",
        "",
        "| scenario | claimed by | proved here | claimed | shown | tightness | verdict |",
        "|---|---|---|---|---|---|---|",
    ]
    for scenario in played:
        for place, finding in enumerate(scenario["findings"]):
            own = scenario["name"]
            link = f"[{own}](#{own})" if place == 0 else ""
            which = finding["subject"].removeprefix(own).removeprefix(", ")  # of a scenario with several releases
            lines.append(f"| {' '.join(filter(None, (link, which)))} | {_row(finding)} |")
    lines += ["", "## The scenarios", ""]
    for scenario in played:
        ways = dict.fromkeys(
            f"{found['trials']:,} {'canaries' if found['estimator'].startswith('one_run') else 'trials'}, "
            f"{found['estimator'].replace('_', ' ')}"
            for found in scenario["findings"]
        )
        how = f"{'; '.join(ways)}; {scenario['seconds']:.1f} s"
        note = f" {scenario['note']}" if scenario["note"] else ""
        lines += [f'<a id="{scenario["name"]}"></a>**{scenario["name"]}**: {scenario["words"]}{note} ({how})', ""]
    return "\n".join([*lines, END])


def _row(finding: Mapping[str, Any]) -> str:
    symbol = SYMBOLS[finding["quantity"]]
    verdict = finding["verdict"]
    cells = [
        finding["claimed_by"].replace("_", " "),
        "yes" if finding["proved"] else "no",
        "no number" if finding["claimed"] is None else f"{symbol} = {above(finding['claimed'])}",
        f"{symbol} ≥ {below(finding['lower_bound'])}",
        ratio(finding["tightness"]),
        f"**{verdict}**" if verdict == "violated" else verdict,
    ]
    return " | ".join(cells)


def with_table(page: str, results: Mapping[str, Any]) -> str:
    """The page with its table made anew."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InvalidInputError("page", None, f"a page with {BEGIN} and {END}", found="a page without")
    return before + table(results) + after


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(with_table(target.read_text(), json.loads(source.read_text())))
